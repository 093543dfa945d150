//! The table of sides: the sides of the volume, and the last epoch of each.
//!
//! A history has room for a limited number of epochs, and a side can be absent for more. The table
//! must then still tell a side that was left behind from one that ran alone. It must never name an
//! epoch that is not of the volume's own past.

use super::{SIDES_MAX, Uuid};

/// All sides by their places; `None` in a free place.
pub type Table = [Option<Listed>; SIDES_MAX];

/// The first half of an epoch's identity, which stands for the epoch; there is no room for the
/// whole.
type Half = [u8; 8];

const NOTHING: Half = [0; 8];

/// A side in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// UUID of the side.
    pub side: Uuid,
    /// Last known epoch of the side.
    pub acknowledged: Acknowledged,
}

impl Listed {
    /// Creates the entry of a side whose epochs are unknown.
    pub fn new(side: Uuid) -> Listed {
        let acknowledged = Acknowledged::default();
        Listed { side, acknowledged }
    }
}

/// Last known (acknowledged) epoch of a side. A side that failed while its superblock was being
/// written has either the epoch before the write or the one written, so there are two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    before: Half,
    last: Half,
}

impl Acknowledged {
    /// Length in the table, in bytes.
    pub(super) const BYTES: usize = 16;

    /// Creates the record that the side has one of these epochs, as far as they are known.
    pub fn one_of(before: Option<Uuid>, last: Option<Uuid>) -> Acknowledged {
        let half = |id: Option<Uuid>| id.map_or(NOTHING, |id| half_of(&id));
        Acknowledged {
            before: half(before),
            last: half(last),
        }
    }

    /// Returns the record with this epoch as one that the side may have had since.
    pub fn perhaps_since(self, id: &Uuid) -> Acknowledged {
        let last = half_of(id);
        Acknowledged { last, ..self }
    }

    /// Returns true when no epoch is known.
    pub fn is_unknown(&self) -> bool {
        *self == Acknowledged::default()
    }

    /// Returns true when the side may have this epoch as its current one.
    pub fn may_be(&self, id: &Uuid) -> bool {
        let half = half_of(id);
        half != NOTHING && [self.before, self.last].contains(&half)
    }

    pub(super) fn encode(&self) -> [u8; Acknowledged::BYTES] {
        let mut bytes = [0; Acknowledged::BYTES];
        bytes[..8].copy_from_slice(&self.before);
        bytes[8..].copy_from_slice(&self.last);
        bytes
    }

    pub(super) fn decode(bytes: [u8; Acknowledged::BYTES]) -> Acknowledged {
        let half = |at: usize| std::array::from_fn(|byte| bytes[at + byte]);
        Acknowledged {
            before: half(0),
            last: half(8),
        }
    }
}

fn half_of(id: &Uuid) -> Half {
    std::array::from_fn(|byte| id[byte])
}

/// Returns the place of a side in a table; `None` when it is not listed.
pub fn place_in(table: &Table, side: &Uuid) -> Option<usize> {
    let is = |listed: &Option<Listed>| listed.is_some_and(|listed| listed.side == *side);
    table.iter().position(is)
}
