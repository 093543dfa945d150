//! The table of sides: the sides of the volume, with the last epoch of each side.
//!
//! A history has room for a limited number of epochs, and a side can be absent for more epochs than
//! that. The table must then still distinguish a side that only missed epochs from a side that was
//! used alone and has changes of its own. It must never record an epoch that does not belong to the
//! volume's own past.

use super::{SIDES_MAX, Uuid};

/// Table of all sides by place; `None` in a free place.
pub type Table = [Option<Listed>; SIDES_MAX];

/// The first half of an epoch's identifier, which represents the epoch because the table has no
/// room for the whole identifier.
type Half = [u8; 8];

const NOTHING: Half = [0; 8];

/// Entry of a side in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// UUID of the side.
    pub side: Uuid,
    /// Last known epoch of the side.
    pub acknowledged: Acknowledged,
}

impl Listed {
    /// Creates the entry of a side whose last epoch is unknown.
    pub fn new(side: Uuid) -> Listed {
        let acknowledged = Acknowledged::default();
        Listed { side, acknowledged }
    }
}

/// Last known (acknowledged) epoch of a side. If a write of its superblock failed, the side has
/// either the epoch from before that write or the epoch of that write, so there are two fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    before: Half,
    last: Half,
}

impl Acknowledged {
    /// Length in bytes of an encoded record.
    pub(super) const BYTES: usize = 16;

    /// Creates the record of a side whose last epoch is either `before` or `last`. `None` stands
    /// for an epoch that is not known.
    pub fn one_of(before: Option<Uuid>, last: Option<Uuid>) -> Acknowledged {
        let half = |id: Option<Uuid>| id.map_or(NOTHING, |id| half_of(&id));
        Acknowledged {
            before: half(before),
            last: half(last),
        }
    }

    /// Returns this record with `id` as the last epoch. Called when the side has possibly got that
    /// epoch.
    pub fn perhaps_since(self, id: &Uuid) -> Acknowledged {
        let last = half_of(id);
        Acknowledged { last, ..self }
    }

    /// Returns true when no epoch is known.
    pub fn is_unknown(&self) -> bool {
        *self == Acknowledged::default()
    }

    /// Returns true when the current epoch of the side is possibly `id`, according to this record.
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

/// Returns the place of a side in a table; `None` when the table does not list the side.
pub fn place_in(table: &Table, side: &Uuid) -> Option<usize> {
    let is = |listed: &Option<Listed>| listed.is_some_and(|listed| listed.side == *side);
    table.iter().position(is)
}
