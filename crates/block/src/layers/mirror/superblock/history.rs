//! Epochs, the periods in which the set of members (the sides that hold everything) stayed the
//! same, and the history of epochs that every side keeps.
//!
//! Epochs are identified by a random identifier and never by number: two sides that each continued
//! without the other both have a next epoch with the same number. The epochs form a tree, and a
//! history is a path in this tree.

use super::{SIDES_MAX, Uuid};

/// Maximum number of epochs in a history. A superblock has room for this number of epochs.
pub const EPOCHS_MAX: usize = 64;

/// A period in which the set of members (the sides that hold everything) stayed the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Number of the epoch: 1 for the first epoch, and one more for each epoch after it.
    pub number: u64,
    /// Random identifier of the epoch.
    pub id: Uuid,
    /// Sequence number of the first change admitted in the epoch. If changes were discarded or lost
    /// before the epoch began, this number can be lower than that of the previous epoch.
    pub first_change: u64,
    /// Bit set of the members (the sides that hold everything) by their places in the table of
    /// sides.
    pub members: u32,
    /// Time at which the epoch began, in seconds since 1970.
    pub began_s: u64,
}

impl Epoch {
    /// Returns true when the side at `place` of the table is a member of the epoch.
    pub fn has_member(&self, place: usize) -> bool {
        place < SIDES_MAX && self.members & (1 << place) != 0
    }
}

/// The epochs that a side has, oldest first: at least one and at most [`EPOCHS_MAX`], with
/// consecutive numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History(Vec<Epoch>);

impl History {
    /// Creates a history that consists of the epoch `first`.
    pub fn new(first: Epoch) -> History {
        History(vec![first])
    }

    /// Creates a history of the given epochs.
    ///
    /// # Errors
    /// When the epochs form no valid history: there are none or too many, their numbers have a gap,
    /// or an identifier occurs twice.
    pub fn of(epochs: Vec<Epoch>) -> Result<History, String> {
        if !(1..=EPOCHS_MAX).contains(&epochs.len()) {
            return Err(format!("it has {} epochs", epochs.len()));
        }
        for (at, epoch) in epochs.iter().enumerate() {
            let follows = at == 0 || epochs[at - 1].number.checked_add(1) == Some(epoch.number);
            let twice = epochs[..at].iter().any(|before| before.id == epoch.id);
            if !follows || twice || epoch.number == 0 || epoch.number == u64::MAX {
                return Err(format!("its epoch {} is impossible", epoch.number));
            }
        }
        Ok(History(epochs))
    }

    /// Returns the epochs, oldest first.
    pub fn epochs(&self) -> &[Epoch] {
        &self.0
    }

    /// Returns the newest epoch.
    pub fn current(&self) -> &Epoch {
        self.0.last().expect("a history has at least one epoch")
    }

    /// Returns the oldest epoch that the history still has.
    pub fn oldest(&self) -> &Epoch {
        &self.0[0]
    }

    /// Returns true when the history has an epoch with the identifier `id`.
    pub fn contains(&self, id: &Uuid) -> bool {
        self.0.iter().any(|epoch| epoch.id == *id)
    }

    /// Returns true when an epoch is older than all epochs in the history, so that it may have been
    /// dropped from the history.
    pub fn may_have_dropped(&self, epoch: &Epoch) -> bool {
        epoch.number < self.oldest().number
    }

    /// Appends a new epoch. If the history is full, its oldest epoch is dropped.
    ///
    /// # Panics
    /// When the number of the epoch is not the next one.
    pub fn push(&mut self, epoch: Epoch) {
        self.push_within(EPOCHS_MAX, epoch);
    }

    /// Appends a new epoch as [`push`](Self::push) does, to a history with room for `epochs_max`
    /// epochs.
    pub(in crate::layers::mirror) fn push_within(&mut self, epochs_max: usize, epoch: Epoch) {
        assert_eq!(
            self.current().number.checked_add(1),
            Some(epoch.number),
            "epochs are numbered one by one"
        );
        if self.0.len() == epochs_max {
            self.0.remove(0);
        }
        self.0.push(epoch);
    }

    /// Returns the epochs after the epoch with the identifier `id`. The slice is empty if that
    /// epoch is the current epoch. Returns `None` if that epoch is not in the history.
    pub fn after(&self, id: &Uuid) -> Option<&[Epoch]> {
        let at = self.0.iter().position(|epoch| epoch.id == *id)?;
        Some(&self.0[at + 1..])
    }

    /// Returns the number of the epoch in which a change was admitted, which is the last epoch
    /// whose first change is not after this change; 0 when that epoch was dropped from the history.
    pub fn epoch_of(&self, change: u64) -> u64 {
        let mut epochs = self.0.iter().rev();
        let began = epochs.find(|epoch| epoch.first_change <= change);
        began.map_or(0, |epoch| epoch.number)
    }

    /// Returns the epoch after the epoch with the identifier `id`; `None` unless both epochs are in
    /// the history.
    pub fn next_after(&self, id: &Uuid) -> Option<&Epoch> {
        self.after(id)?.first()
    }

    /// Returns the newest epoch that is in both histories.
    pub fn common(&self, other: &History) -> Option<&Epoch> {
        self.0.iter().rev().find(|epoch| other.contains(&epoch.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(number: u64) -> Epoch {
        let mut id = [7; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        Epoch {
            number,
            id,
            first_change: number.wrapping_mul(10),
            members: 3,
            began_s: 5,
        }
    }

    #[test]
    fn a_full_history_drops_its_oldest_epoch() {
        let mut history = History::new(epoch(1));
        (2..=64).for_each(|number| history.push(epoch(number)));
        assert!(history.contains(&epoch(1).id));
        history.push(epoch(65));
        assert_eq!(history.epochs().len(), 64);
        assert!(!history.contains(&epoch(1).id));
        assert_eq!(
            (history.oldest(), history.current()),
            (&epoch(2), &epoch(65))
        );
        assert_eq!(history.next_after(&epoch(64).id), Some(&epoch(65)));
        assert_eq!(history.next_after(&epoch(65).id), None);
        assert_eq!(history.after(&epoch(63).id).unwrap().len(), 2);
        assert_eq!(history.after(&epoch(1).id), None);
    }

    #[test]
    fn a_change_belongs_to_the_last_epoch_that_had_begun() {
        // The epochs 3, 4 and 5 begin with the changes 30, 40 and 50. Epoch 6 then discards the
        // changes from 45 on, and begins with change 45.
        let again = Epoch {
            first_change: 45,
            ..epoch(6)
        };
        let history = History::of(vec![epoch(3), epoch(4), epoch(5), again]).unwrap();
        let of = |change| history.epoch_of(change);
        assert_eq!([29, 30, 39, 40, 44, 45, 50].map(of), [0, 3, 3, 4, 4, 6, 6]);
    }

    #[test]
    #[should_panic(expected = "one by one")]
    fn a_number_is_never_left_out() {
        History::new(epoch(1)).push(epoch(3));
    }

    #[test]
    fn what_cannot_be_a_history_is_refused() {
        assert!(History::of(vec![epoch(4), epoch(5)]).is_ok());
        assert!(History::of((1..=64).map(epoch).collect()).is_ok());
        let same_id = Epoch {
            id: epoch(4).id,
            ..epoch(5)
        };
        for bad in [
            vec![],
            (1..=65).map(epoch).collect(),
            vec![epoch(0)],
            vec![epoch(u64::MAX)],
            vec![epoch(4), epoch(6)],
            vec![epoch(5), epoch(4)],
            vec![epoch(4), same_id],
        ] {
            assert!(History::of(bad).is_err());
        }
    }

    #[test]
    fn the_common_epoch_is_the_newest_shared_one() {
        let fork = |number| Epoch {
            id: [9; 16],
            ..epoch(number)
        };
        let one = History::of(vec![epoch(1), epoch(2), epoch(3)]).unwrap();
        let other = History::of(vec![epoch(1), epoch(2), fork(3)]).unwrap();
        assert_eq!(one.common(&other), Some(&epoch(2)));
        assert_eq!(one.common(&History::new(fork(3))), None);
    }
}
