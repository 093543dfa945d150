//! A journal of the inputs and decisions of a queue, so that the decisions can be replayed in
//! virtual time.
//!
//! The decisions of a queue depend only on its inputs and on the times at which the queue is asked
//! for its next request. A journal records the inputs and these times. [`replay`] gives the same
//! inputs at the same times to a new queue, and compares the decisions of the new queue with the
//! recorded decisions. A journal must never hold more events than its maximum.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bimetal_policy::scheduler::{Bio, RequestQueue as Policy, Tag};

use super::QueueConfig;

/// An event of a queue. A bio is a request as submitted, before merging. Times are in nanoseconds
/// since any fixed start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A bio arrived.
    Added {
        /// Tag of the bio.
        tag: Tag,
        /// The bio.
        bio: Bio,
        /// Time of arrival.
        at_ns: u64,
    },
    /// The device completed a request.
    Completed {
        /// Tag of the request.
        tag: Tag,
        /// Time of completion.
        at_ns: u64,
    },
    /// A caller waits for all queued requests.
    Unplugged,
    /// The queue was asked for its next request, either after one of the other events or at a
    /// wake-up time that the queue had named.
    Asked {
        /// Time of the query.
        at_ns: u64,
    },
    /// The queue decided to issue this request.
    Issued {
        /// Tag of the request.
        tag: Tag,
    },
}

/// A journal of a queue; see the module.
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

    /// Returns the events so far, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.events.borrow().clone()
    }

    /// Returns the number of events that were dropped because the journal was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }
}

/// First difference between a replay and the recorded decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Index of the first recorded event at which the replayed queue decided differently.
    pub event: usize,
    /// Request that the replayed queue issued instead of the recorded one; `None` if the replayed
    /// queue issued no request.
    pub instead: Option<Tag>,
}

/// Replays all events with a new queue of this configuration. Returns the number of issued
/// requests, or the first decision that differs from the recorded decisions.
///
/// # Errors
/// A message that describes the mistake in the configuration.
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

/// Appends to `decided` all requests that the policy issues at `at_ns`, up to the queue depth.
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
