//! The life cycle of a side, as one value whose transitions are checked. Only this module decides
//! whether a side in a given state takes writes, whether acknowledgements depend on it, whether it
//! may be read, and whether it belongs to the volume.
//!
//! ```text
//!             +---------------------------------------+
//!             v                                       |
//! Absent --> Resyncing <--> Joining --> Healthy --> Absent --> Removed
//! ```
//!
//! A side is ejected (becomes absent) from every state but `Removed`. An absent side must never
//! become healthy without having been rebuilt, and a removed side must never be used again.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use bimetal_rt::sync::Event;

use crate::error::IoError;

/// Reason for which a side was ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsentReason {
    /// A request failed with this error, or the side did not answer for `absent_after` (`Timeout`).
    Error(IoError),
    /// Changes of clients waited because of the side, and it completed nothing for this time.
    Silent(Duration),
    /// A command requires that the device of the side is formatted again for another layout.
    Converted,
}

impl AbsentReason {
    /// Returns the error with which the requests that wait for the side end.
    pub fn error(self) -> IoError {
        match self {
            AbsentReason::Error(error) => error,
            AbsentReason::Silent(_) => IoError::Timeout,
            AbsentReason::Converted => IoError::Offline,
        }
    }
}

impl fmt::Display for AbsentReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AbsentReason::Error(error) => error.fmt(f),
            AbsentReason::Silent(silence) => write!(
                f,
                "silent for {:.1} s while writes waited for it; it is opened again once it answers",
                silence.as_secs_f64()
            ),
            AbsentReason::Converted => {
                f.write_str("its device is formatted for another layout, and then rebuilt")
            }
        }
    }
}

/// State of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The side is given every write, and acknowledgements depend on the side.
    Healthy {
        /// Sequence number of the first write whose acknowledgement depended on the side.
        counted_from: u64,
    },
    /// The side is given writes while it is rebuilt, except for the writes that
    /// [`Side::takes`](super::side::Side::takes) excludes. Acknowledgements do not depend on the
    /// side.
    Resyncing,
    /// The rebuild of the side is complete, but its queue may still hold writes that were
    /// acknowledged without the side. New acknowledgements already depend on the side, so the
    /// number of such writes can only fall.
    Joining {
        /// Sequence number of the first write whose acknowledgement depends on the side.
        counted_from: u64,
    },
    /// The side is given no requests: it is missing, has not answered for too long, or fails.
    Absent {
        /// Reason for which the side was ejected; `None` when it was missing when the volume was
        /// opened.
        because: Option<AbsentReason>,
    },
    /// The side has left the volume permanently.
    Removed,
}

impl Life {
    /// State of a side that held everything when the volume was opened.
    pub(super) const WHOLE: Life = Life::Healthy { counted_from: 0 };
    /// State of a side that was missing when the volume was opened.
    pub(super) const MISSING: Life = Life::Absent { because: None };

    /// Returns the state of a side that was ejected.
    pub(super) fn ejected(because: AbsentReason) -> Life {
        Life::Absent {
            because: Some(because),
        }
    }

    /// Returns the reason for which the side was ejected; `None` when the side is not absent, or
    /// was missing when the volume was opened.
    pub(super) fn absent_reason(self) -> Option<AbsentReason> {
        match self {
            Life::Absent { because } => because,
            _ => None,
        }
    }

    /// Returns the name of the state as `status` shows it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Life::Healthy { .. } => "healthy",
            Life::Resyncing | Life::Joining { .. } => "resyncing",
            Life::Absent { .. } => "absent",
            Life::Removed => "removed",
        }
    }

    /// Returns true when a side in this state is in use, so that it is given requests.
    pub(super) fn is_used(self) -> bool {
        !matches!(self, Life::Absent { .. } | Life::Removed)
    }

    /// Returns true when the transition to `next` is allowed.
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

/// The current state of a side; see the module.
pub(super) struct LifeCycle {
    life: Cell<Life>,
    /// Signaled when the state has changed.
    pub(super) changed: Event,
}

impl LifeCycle {
    /// Creates a life cycle that begins in the given state.
    pub(super) fn beginning(life: Life) -> LifeCycle {
        LifeCycle {
            life: Cell::new(life),
            changed: Event::new(),
        }
    }

    /// Returns the current state.
    pub(super) fn get(&self) -> Life {
        self.life.get()
    }

    /// Changes the state of the side to `next`, and wakes the tasks that wait for a change.
    ///
    /// # Panics
    /// When the transition is not allowed.
    pub(super) fn turn(&self, next: Life) {
        let now = self.life.get();
        assert!(
            now.may_become(next),
            "a side that is {now:?} cannot become {next:?}"
        );
        self.life.set(next);
        self.changed.notify();
    }

    /// Returns true when the side is in state `Healthy`: every acknowledged write, except for
    /// corrupt blocks, is on the side, or waits in its queue and is part of the exposure.
    pub(super) fn is_healthy(&self) -> bool {
        matches!(self.life.get(), Life::Healthy { .. })
    }

    /// Returns true when the side is given writes.
    pub(super) fn is_active(&self) -> bool {
        self.life.get().is_used()
    }

    /// Returns true when the side is healthy or joining, so that acknowledgements (within the
    /// bounds of the exposure) and flushes depend on it.
    pub(super) fn is_counted_on(&self) -> bool {
        self.counted_from().is_some()
    }

    /// Returns the sequence number of the first write whose acknowledgement depends on the side;
    /// `None` when no acknowledgement depends on it.
    pub(super) fn counted_from(&self) -> Option<u64> {
        match self.life.get() {
            Life::Healthy { counted_from } | Life::Joining { counted_from } => Some(counted_from),
            Life::Resyncing | Life::Absent { .. } | Life::Removed => None,
        }
    }

    /// Returns true when the side has been rebuilt, but its queue may still hold writes that were
    /// acknowledged without it.
    pub(super) fn is_joining(&self) -> bool {
        matches!(self.life.get(), Life::Joining { .. })
    }

    /// Returns true when the side has left the volume.
    pub(super) fn is_removed(&self) -> bool {
        self.life.get() == Life::Removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOINING: Life = Life::Joining { counted_from: 7 };
    const JOINED: Life = Life::Healthy { counted_from: 7 };

    /// Transitions that are not listed as allowed are refused.
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
        // Expected results of `is_healthy`, `is_active` and `is_counted_on`, in this order.
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
