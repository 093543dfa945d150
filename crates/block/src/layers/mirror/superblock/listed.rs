//! The table of sides: who belongs to the volume, and which epoch each of them had last.
//!
//! A history has room for so many epochs and a side can be away for more. What the table says of it
//! must then still tell a side that was left behind from one that ran alone. It must never name an
//! epoch that is not of the volume's own past.

use super::{SIDES_MAX, Uuid};

/// All sides by their places; `None` where a place is free.
pub type Table = [Option<Listed>; SIDES_MAX];

/// What stands for an epoch where there is no room for its identity: the first half of it.
type Half = [u8; 8];

const NOTHING: Half = [0; 8];

/// A side in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The side.
    pub side: Uuid,
    /// The epoch that it had last.
    pub told: Told,
}

impl Listed {
    /// A side of which nothing else is known.
    pub fn new(side: Uuid) -> Listed {
        let told = Told::default();
        Listed { side, told }
    }
}

/// What is known of the current epoch of a side. One that was given up while its superblock was
/// being written has the epoch before or that one, so there are two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    before: Half,
    last: Half,
}

impl Told {
    /// As they lie in the table.
    pub(super) const BYTES: usize = 16;

    /// The side has one of these epochs, as far as they are known.
    pub fn one_of(before: Option<Uuid>, last: Option<Uuid>) -> Told {
        let half = |id: Option<Uuid>| id.map_or(NOTHING, |id| half_of(&id));
        Told {
            before: half(before),
            last: half(last),
        }
    }

    /// It may have had this epoch since.
    pub fn perhaps_since(self, id: &Uuid) -> Told {
        let last = half_of(id);
        Told { last, ..self }
    }

    /// True when nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Told::default()
    }

    /// True when the side may have this epoch as its current one.
    pub fn may_be(&self, id: &Uuid) -> bool {
        let half = half_of(id);
        half != NOTHING && [self.before, self.last].contains(&half)
    }

    pub(super) fn encode(&self) -> [u8; Told::BYTES] {
        let mut bytes = [0; Told::BYTES];
        bytes[..8].copy_from_slice(&self.before);
        bytes[8..].copy_from_slice(&self.last);
        bytes
    }

    pub(super) fn decode(bytes: [u8; Told::BYTES]) -> Told {
        let half = |at: usize| std::array::from_fn(|byte| bytes[at + byte]);
        Told {
            before: half(0),
            last: half(8),
        }
    }
}

fn half_of(id: &Uuid) -> Half {
    std::array::from_fn(|byte| id[byte])
}

/// The place of a side in a table; `None` when it is not listed.
pub fn place_in(table: &Table, side: &Uuid) -> Option<usize> {
    let is = |listed: &Option<Listed>| listed.is_some_and(|listed| listed.side == *side);
    table.iter().position(is)
}
