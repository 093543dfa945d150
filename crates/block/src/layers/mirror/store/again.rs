//! Relogging: changes are appended to a log again under their old sequence numbers, so that their
//! old entries can be dropped. Such a copy must never be placed after a newer change of the same
//! blocks.

use std::rc::Rc;

use super::append::Append;
use super::entry::Record;
use super::flying::{Outcome, Pending};
use super::log::Log;
use crate::error::IoError;

impl Log {
    /// Appends a second copy of changes that the log already has, under the same sequence numbers,
    /// so that their old entries can be dropped. If a newer change replaces such a change before an
    /// entry with the copy is formed, the copy is left out. A copy must never be placed after a
    /// newer change of the same blocks: the newer change might be dropped first, and only the old
    /// content would remain in the log.
    pub(super) fn append_again(self: &Rc<Self>, appends: Vec<Append>) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(appends.len());
        for append in appends {
            let outcome = Outcome::default();
            if let Some(error) = self.halted.get() {
                outcome.set(Err(error));
            } else {
                self.again.borrow_mut().push_back(Pending {
                    append: append.standing_for(u64::MAX),
                    outcome: Rc::clone(&outcome),
                });
            }
            outcomes.push(outcome);
        }
        self.take_up();
        outcomes
    }

    /// Removes waiting copies of changes that newer changes have replaced.
    pub(super) fn drop_replaced(&self) {
        let index = self.index.borrow();
        let flying = self.flying.borrow();
        let is_replaced = |waiting: &Pending| {
            let (range, number) = (&waiting.append.range, waiting.append.number);
            let newer = |record: &Record| {
                let end = record.offset + record.bytes();
                record.number > number && record.offset < range.end && range.start < end
            };
            let stored = index.newest_in(range).into_iter();
            stored.into_iter().any(|(_, other)| other.number > number)
                || flying.iter().any(|f| f.header.records.iter().any(newer))
        };
        self.again.borrow_mut().retain(|waiting| {
            let replaced = is_replaced(waiting);
            if replaced {
                waiting.outcome.set(Ok(()));
            }
            !replaced
        });
    }

    /// Returns true when the log has only a part of a change, or has a change while an earlier
    /// change is missing. Entries from this gap on cannot be destaged until the missing changes
    /// have been appended.
    pub(super) fn has_gap(&self) -> bool {
        let (highest, complete) = self.formed.get();
        highest >= complete
    }

    /// Fails all waiting copies with `error`.
    pub(super) fn fail_again(&self, error: IoError) {
        for waiting in std::mem::take(&mut *self.again.borrow_mut()) {
            waiting.outcome.set(Err(error));
        }
    }
}
