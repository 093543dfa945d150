//! Epochs: the times during which the set of sides that count stayed the same, and the history of
//! them that every side keeps.
//!
//! Epochs are told apart by their random identity and never by number: two sides that each went on
//! without the other both have a next epoch, of the same number. A history is a path in that tree.

use super::{SIDES_MAX, Uuid};

/// Epochs a superblock has room for.
pub const EPOCHS_MAX: usize = 64;

/// A time during which the set of sides that count stayed the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// One more than that of the epoch before; the first one has 1.
    pub number: u64,
    /// Random: what tells epochs apart.
    pub id: Uuid,
    /// Number of the first change admitted in it. Lower than that of the epoch before when the
    /// operator has given up changes.
    pub first_change: u64,
    /// A bit for each place in the table of sides that counts.
    pub members: u32,
    /// When it began, in seconds since 1970.
    pub began_s: u64,
}

impl Epoch {
    /// True when the side at `place` of the table counts.
    pub fn has_member(&self, place: usize) -> bool {
        place < SIDES_MAX && self.members & (1 << place) != 0
    }
}

/// The epochs a side has been in, oldest first; at least one, at most [`EPOCHS_MAX`], with
/// consecutive numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History(Vec<Epoch>);

impl History {
    /// A history that begins with this epoch.
    pub fn new(first: Epoch) -> History {
        History(vec![first])
    }

    /// The history of these epochs.
    ///
    /// # Errors
    /// When they cannot be one: too few or too many, numbers with gaps, an identity twice.
    pub fn of(epochs: Vec<Epoch>) -> Result<History, String> {
        if !(1..=EPOCHS_MAX).contains(&epochs.len()) {
            return Err(format!("it has {} epochs", epochs.len()));
        }
        for (at, epoch) in epochs.iter().enumerate() {
            let follows = at == 0 || epochs[at - 1].number.checked_add(1) == Some(epoch.number);
            let twice = epochs[..at].iter().any(|before| before.id == epoch.id);
            if !follows || twice || epoch.number == 0 || epoch.number == u64::MAX {
                return Err(format!("its epoch {} cannot be there", epoch.number));
            }
        }
        Ok(History(epochs))
    }

    /// The epochs, oldest first.
    pub fn epochs(&self) -> &[Epoch] {
        &self.0
    }

    /// The newest epoch.
    pub fn current(&self) -> &Epoch {
        self.0.last().expect("a history has at least one epoch")
    }

    /// The oldest epoch that has not been dropped.
    pub fn oldest(&self) -> &Epoch {
        &self.0[0]
    }

    /// True when the epoch of this identity is in it.
    pub fn contains(&self, id: &Uuid) -> bool {
        self.0.iter().any(|epoch| epoch.id == *id)
    }

    /// True when an epoch is older than all that are in it.
    pub fn may_have_dropped(&self, epoch: &Epoch) -> bool {
        epoch.number < self.oldest().number
    }

    /// Starts a new epoch. The oldest one is dropped when there is no room.
    ///
    /// # Panics
    /// When its number is not the next one.
    pub fn push(&mut self, epoch: Epoch) {
        self.push_within(EPOCHS_MAX, epoch);
    }

    /// The same with room for this many epochs.
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

    /// The epochs after the one of this identity; empty for the current one, `None` when it is
    /// not there.
    pub fn after(&self, id: &Uuid) -> Option<&[Epoch]> {
        let at = self.0.iter().position(|epoch| epoch.id == *id)?;
        Some(&self.0[at + 1..])
    }

    /// Number of the epoch in which a change was admitted: the last one that had begun by then. 0
    /// when that is one which has been dropped.
    pub fn epoch_of(&self, change: u64) -> u64 {
        let mut epochs = self.0.iter().rev();
        let began = epochs.find(|epoch| epoch.first_change <= change);
        began.map_or(0, |epoch| epoch.number)
    }

    /// The epoch that followed the one of this identity, if both are there.
    pub fn next_after(&self, id: &Uuid) -> Option<&Epoch> {
        self.after(id)?.first()
    }

    /// The newest epoch that is in both histories.
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
        // The first changes are 30, 40 and 50; then a past that does not count was left at 45.
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
