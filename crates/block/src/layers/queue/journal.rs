//! What a queue was told and what it decided, so that the same can be decided again in virtual
//! time.
//!
//! The decisions of a queue follow from what it is told and when it is asked, and from nothing
//! else. A journal keeps both; [`replay`] tells a queue of its own the same, at the same times, and
//! holds its decisions against the kept ones. It must never hold more than it was given room for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bimetal_policy::scheduler::{Bio, Queue as Policy, Tag};

use super::QueueConfig;

/// What happened to a queue. Times are in nanoseconds since any fixed start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A bio came.
    Added {
        /// Its tag.
        tag: Tag,
        /// What it is.
        bio: Bio,
        /// When.
        at_ns: u64,
    },
    /// The device has done a request.
    Completed {
        /// Its tag.
        tag: Tag,
        /// When.
        at_ns: u64,
    },
    /// Somebody waits for all that is here.
    Unplugged,
    /// The queue was asked what goes next, after any of the above or at a time that it had named.
    Asked {
        /// When.
        at_ns: u64,
    },
    /// The decision: this request goes.
    Issued {
        /// Its tag.
        tag: Tag,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Journal {
    events: RefCell<Vec<Event>>,
    events_max: usize,
    dropped: Cell<u64>,
}

impl Journal {
    pub(super) fn new(events_max: usize) -> Journal {
        Journal {
            events: RefCell::default(),
            events_max,
            dropped: Cell::new(0),
        }
    }

    pub(super) fn note(&self, event: Event) {
        let mut events = self.events.borrow_mut();
        if events.len() < self.events_max {
            events.push(event);
        } else {
            self.dropped.set(self.dropped.get() + 1);
        }
    }

    /// The events so far, the oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.events.borrow().clone()
    }

    /// Events that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }
}

/// Where a queue decided otherwise than it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The event that it did not expect.
    pub event: usize,
    /// The request that it would have issued instead; `None` if it would have waited.
    pub instead: Option<Tag>,
}

/// Decides everything again, by a queue of that configuration, and returns how many requests it has
/// issued.
///
/// # Errors
/// The first decision that is another one, or that the configuration is wrong, in words.
pub fn replay(config: &QueueConfig, events: &[Event]) -> Result<Result<u64, Divergence>, String> {
    config.check()?;
    let mut policy = config.policy()?;
    let (mut in_flight, mut issued) = (0, 0);
    let (mut decided, mut done) = (VecDeque::new(), Vec::new());
    for (event, what) in events.iter().enumerate() {
        let expected = decided.front().copied();
        match *what {
            Event::Issued { tag } if expected == Some(tag) => {
                decided.pop_front();
                issued += 1;
                continue;
            }
            Event::Issued { .. } => {
                return Ok(Err(Divergence {
                    event,
                    instead: expected,
                }));
            }
            _ if expected.is_some() => {
                return Ok(Err(Divergence {
                    event,
                    instead: expected,
                }));
            }
            Event::Added { tag, bio, at_ns } => {
                policy.add(tag, bio, at_ns);
            }
            Event::Completed { tag, at_ns } => {
                policy.complete(tag, at_ns, &mut done);
                done.clear();
                in_flight -= 1;
            }
            Event::Unplugged => policy.unplug(),
            Event::Asked { at_ns } => decide(
                &mut policy,
                config.depth,
                at_ns,
                &mut in_flight,
                &mut decided,
            ),
        }
    }
    Ok(Ok(issued))
}

/// All that goes at a time.
fn decide(
    policy: &mut Policy,
    depth: u32,
    at_ns: u64,
    in_flight: &mut u32,
    decided: &mut VecDeque<Tag>,
) {
    while *in_flight < depth
        && let Some(tag) = policy.next(at_ns)
    {
        *in_flight += 1;
        decided.push_back(tag);
    }
}
