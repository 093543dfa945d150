//! What the paper leaves open: the parameters, one value each, frozen before the first run
//! (docs/experiments/chc-tree.md).

use serde::Serialize;

/// Bytes of a key, and of a value.
pub(super) const FIELD_BYTES: u64 = 8;
/// The fill of the paper's ordinary tree, which is also what the area is reckoned by.
pub(super) const FILL_NORMAL: f64 = 0.69;
/// The fill of its dense tree.
pub(super) const FILL_FULL: f64 = 0.97;

/// How keys look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyForm {
    /// Numbers below twice the number of keys.
    Dense,
    /// Numbers spread at random over all of 64 bits.
    Spread,
}

/// Everything that is the same for all schemes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// What is different about it.
    pub name: String,
    /// Length of a node, in bytes.
    pub node_bytes: usize,
    /// Length of a segment, in bytes.
    pub segment_bytes: u32,
    /// Keys that are loaded.
    pub keys: u64,
    /// How they look.
    pub key_form: KeyForm,
    /// The part of the keys that is hot, and of the leaves, and of the same area; the rest of the
    /// updates, in numbers from 0 to 1, goes there.
    pub hot_share: f64,
    /// How much of the area is in use after loading.
    pub utilisation: f64,
    /// Clients of the closed queue.
    pub clients: u64,
    /// Updates before anything is measured.
    pub warm_up: u64,
    /// Operations of each kind of load.
    pub operations: u64,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting {
            name: "as chosen".to_owned(),
            node_bytes: 4 << 10,
            segment_bytes: 128 << 10,
            keys: 1_000_000,
            key_form: KeyForm::Dense,
            hot_share: 1.0 / 3.0,
            utilisation: 0.85,
            clients: 32,
            warm_up: 60_000,
            operations: 40_000,
        }
    }
}
