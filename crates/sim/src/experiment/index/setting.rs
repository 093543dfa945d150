//! The parameters that the paper does not give. Each of these parameters has one value, which was
//! fixed before the first run (docs/experiments/chc-tree.md).

use serde::Serialize;

/// Length in bytes of a key, and also of a value.
pub(super) const FIELD_BYTES: u64 = 8;
/// Fill factor of the ordinary B+-tree of the paper. With [`super::Area::Same`], the length of the
/// area of all schemes is computed from this fill factor.
pub(super) const FILL_NORMAL: f64 = 0.69;
/// Fill factor of the dense B+-tree of the paper.
pub(super) const FILL_FULL: f64 = 0.97;

/// Form of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyForm {
    /// Successive numbers below twice the number of keys.
    Dense,
    /// Numbers spread at random over the range of 64 bits.
    Spread,
}

/// Parameters that are the same for all schemes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Name of the setting, which tells how it differs from the default setting.
    pub name: String,
    /// Length of a node, in bytes.
    pub node_bytes: usize,
    /// Length of a segment, in bytes.
    pub segment_bytes: u32,
    /// Number of keys that are loaded before the measurement.
    pub keys: u64,
    /// Form of the keys.
    pub key_form: KeyForm,
    /// Fraction, from 0 to 1, of the keys that are hot. The same fraction of the leaves is hot.
    /// Under [`super::Area::Same`], a scheme with an area for hot leaves gives this fraction of the
    /// whole area to them. The hot keys receive the fraction 1 - `hot_share` of the updates.
    pub hot_share: f64,
    /// Fraction of the area that is in use after loading.
    pub utilisation: f64,
    /// Number of clients of the closed queue.
    pub clients: u64,
    /// Number of updates that age the index before the measurement.
    pub warm_up: u64,
    /// Number of operations in each kind of load.
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
