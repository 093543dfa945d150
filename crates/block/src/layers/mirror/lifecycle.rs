//! The life cycle of a side, as one value with one checked transition. Whether a side takes writes,
//! is counted on, may be read or belongs to the volume at all is asked here and nowhere else.
//!
//! ```text
//!             +---------------------------------------+
//!             v                                       |
//! Absent --> Resyncing <--> Joining --> Healthy --> Absent --> Removed
//! ```
//!
//! A side is given up (becomes absent) from every state but `Removed`. It must never count without
//! having been rebuilt, and a side that was removed must never be used again.

use std::cell::Cell;

use bimetal_rt::sync::Event;

use crate::error::IoError;

/// Where a side stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It takes every write, and acknowledgements count on it.
    Healthy {
        /// The sequence number of the first write that counted on it.
        counted_from: u64,
    },
    /// It takes every write and is given what it lacks. Nothing counts on it.
    Resyncing,
    /// Its rebuild is over, but its queue may still hold writes that were acknowledged without it.
    /// New acknowledgements count on it already, so that the number of those writes only falls.
    Joining {
        /// The sequence number of the first write that counts on it.
        counted_from: u64,
    },
    /// It is given nothing: it is missing, silent for too long, or failing.
    Absent {
        /// Why it was given up; `None` when it was missing from the beginning.
        because: Option<IoError>,
    },
    /// It has left the volume for good.
    Removed,
}

impl Life {
    /// A side that was whole when the volume was opened.
    pub(super) const WHOLE: Life = Life::Healthy { counted_from: 0 };
    /// A side that was missing when the volume was opened.
    pub(super) const MISSING: Life = Life::Absent { because: None };

    /// A side that was given up because of this.
    pub(super) fn given_up(because: IoError) -> Life {
        Life::Absent {
            because: Some(because),
        }
    }

    /// Why the side is absent; `None` when it is not, or was missing from the beginning.
    pub(super) fn absent_because(self) -> Option<IoError> {
        match self {
            Life::Absent { because } => because,
            _ => None,
        }
    }

    /// The word in `status`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Life::Healthy { .. } => "healthy",
            Life::Resyncing | Life::Joining { .. } => "resyncing",
            Life::Absent { .. } => "absent",
            Life::Removed => "removed",
        }
    }

    /// True of a side that was opened.
    pub(super) fn is_used(self) -> bool {
        !matches!(self, Life::Absent { .. } | Life::Removed)
    }

    /// True when a side may go from this state to another one.
    fn may_become(self, next: Life) -> bool {
        match (self, next) {
            (Life::Resyncing, Life::Joining { .. }) => true,
            (Life::Joining { counted_from }, Life::Healthy { counted_from: same }) => {
                counted_from == same
            }
            (Life::Joining { .. } | Life::Absent { .. }, Life::Resyncing) => true,
            (
                Life::Healthy { .. } | Life::Resyncing | Life::Joining { .. },
                Life::Absent { .. },
            ) => true,
            (Life::Absent { .. }, Life::Removed) => true,
            _ => false,
        }
    }
}

/// See the module.
pub(super) struct LifeCycle {
    life: Cell<Life>,
    /// The state has changed.
    pub(super) changed: Event,
}

impl LifeCycle {
    /// A side that begins in a state.
    pub(super) fn beginning(life: Life) -> LifeCycle {
        LifeCycle {
            life: Cell::new(life),
            changed: Event::new(),
        }
    }

    /// The state.
    pub(super) fn get(&self) -> Life {
        self.life.get()
    }

    /// The side is in another state from now on.
    ///
    /// # Panics
    /// When a side in the present state cannot become this.
    pub(super) fn turn(&self, next: Life) {
        let now = self.life.get();
        assert!(
            now.may_become(next),
            "a side that is {now:?} cannot become {next:?}"
        );
        self.life.set(next);
        self.changed.notify();
    }

    /// True when the side holds everything that was acknowledged, or will before a write counts on
    /// it.
    pub(super) fn is_healthy(&self) -> bool {
        matches!(self.life.get(), Life::Healthy { .. })
    }

    /// True when the side is given writes.
    pub(super) fn is_active(&self) -> bool {
        self.life.get().is_used()
    }

    /// True when acknowledgements and flushes wait for the side, within the bounds.
    pub(super) fn is_counted_on(&self) -> bool {
        self.counted_from().is_some()
    }

    /// The sequence number of the first write that counts on the side; `None` when none does.
    pub(super) fn counted_from(&self) -> Option<u64> {
        match self.life.get() {
            Life::Healthy { counted_from } | Life::Joining { counted_from } => Some(counted_from),
            Life::Resyncing | Life::Absent { .. } | Life::Removed => None,
        }
    }

    /// True when the side has been rebuilt and does not hold all of its queue yet.
    pub(super) fn is_joining(&self) -> bool {
        matches!(self.life.get(), Life::Joining { .. })
    }

    /// True when the side has left the volume.
    pub(super) fn is_removed(&self) -> bool {
        self.life.get() == Life::Removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOINING: Life = Life::Joining { counted_from: 7 };
    const JOINED: Life = Life::Healthy { counted_from: 7 };

    /// Every pair of states that is not listed is refused.
    #[test]
    fn a_side_becomes_only_what_its_state_allows() {
        let states = [
            JOINED,
            Life::Resyncing,
            JOINING,
            Life::MISSING,
            Life::Removed,
        ];
        let allowed = [
            (JOINED, Life::MISSING),
            (Life::Resyncing, JOINING),
            (Life::Resyncing, Life::MISSING),
            (JOINING, JOINED),
            (JOINING, Life::Resyncing),
            (JOINING, Life::MISSING),
            (Life::MISSING, Life::Resyncing),
            (Life::MISSING, Life::Removed),
        ];
        for from in states {
            for to in states {
                let is_allowed = allowed.contains(&(from, to));
                assert_eq!(from.may_become(to), is_allowed, "{from:?} to {to:?}");
            }
        }
        assert!(!JOINING.may_become(Life::WHOLE), "it counts from 7 on");
    }

    #[test]
    #[should_panic(expected = "cannot become")]
    fn a_side_that_was_removed_stays_so() {
        let life = LifeCycle::beginning(Life::Removed);
        life.turn(Life::Resyncing);
    }

    #[test]
    fn what_is_asked_follows_from_the_state() {
        // Healthy, active, counted on.
        let expected = [
            (Life::WHOLE, [true, true, true]),
            (Life::Resyncing, [false, true, false]),
            (JOINING, [false, true, true]),
            (Life::MISSING, [false, false, false]),
            (Life::Removed, [false, false, false]),
        ];
        for (state, answers) in expected {
            let life = LifeCycle::beginning(state);
            let found = [life.is_healthy(), life.is_active(), life.is_counted_on()];
            assert_eq!(found, answers, "{state:?}");
        }
    }
}
