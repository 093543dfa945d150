//! The parameters that the paper leaves open, with one value each, frozen before the first run
//! (docs/experiments/chc-tree.md).

use serde::Serialize;

/// Length of a key, and of a value, in bytes.
pub(super) const FIELD_BYTES: u64 = 8;
/// Fill factor of the paper's ordinary tree, from which the area is also computed.
pub(super) const FILL_NORMAL: f64 = 0.69;
/// Fill factor of the paper's dense tree.
pub(super) const FILL_FULL: f64 = 0.97;

/// Form of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyForm {
    /// Numbers below twice the number of keys.
    Dense,
    /// Numbers spread at random over all of 64 bits.
    Spread,
}

/// Parameters that are the same for all schemes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Name of the setting, which describes its difference from the chosen one.
    pub name: String,
    /// Length of a node, in bytes.
    pub node_bytes: usize,
    /// Length of a segment, in bytes.
    pub segment_bytes: u32,
    /// Number of keys that are loaded.
    pub keys: u64,
    /// Form of the keys.
    pub key_form: KeyForm,
    /// Share, from 0 to 1, of the keys that are hot. It is also the hot share of the leaves and of
    /// the same area. The remaining share of the updates goes to the hot keys.
    pub hot_share: f64,
    /// Share of the area that is in use after loading.
    pub utilisation: f64,
    /// Number of clients of the closed queue.
    pub clients: u64,
    /// Number of updates before the measurement.
    pub warm_up: u64,
    /// Number of operations of each kind of load.
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
