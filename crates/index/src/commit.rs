//! Group commit: batches of many threads become one write of the log.
//!
//! A thread that has a batch puts it into a queue. If nobody leads, it leads: it takes all that waits,
//! writes it to the log at once, applies it, answers everybody, and keeps house. Batches that come
//! meanwhile wait for the next leader, so the longer a write takes, the more it covers. It must never
//! answer a batch before it is as durable as was asked, nor go on after a failed write.

use crate::error::Error;
use crate::node::Seq;
use crate::planted::{Bug, is_planted};
use crate::readers::Readers;
use crate::sync::{Condvar, Mutex};
use crate::tree::Tree;
use crate::writer::{Durability, Writer};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A group takes no further batch when it has so many bytes.
const GROUP_BYTES: usize = 1 << 20;

/// So many batches need not wait for more.
const GROUP_BATCHES: usize = 16;

/// What must not have changed since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expectation {
    pub read_at: Seq,
    pub keys: Vec<Box<[u8]>>,
}

/// A batch that waits.
#[derive(Debug)]
struct Request {
    ticket: u64,
    operations: Vec<u8>,
    durability: Durability,
    expects: Option<Expectation>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Request>,
    next_ticket: u64,
    is_led: bool,
    /// What became of batches whose threads have not looked yet.
    outcomes: BTreeMap<u64, Result<Seq, Error>>,
}

impl Queue {
    /// True if all that waits may wait for more.
    fn may_wait(&self) -> bool {
        let is_patient = |request: &Request| request.durability == Durability::Group;
        self.waiting.len() < GROUP_BATCHES && self.waiting.iter().all(is_patient)
    }
}

/// Everything an open index has.
pub(crate) struct Shared {
    pub tree: Arc<Tree>,
    pub readers: Arc<Readers>,
    writer: Mutex<Writer>,
    queue: Mutex<Queue>,
    turn: Condvar,
    group_wait: Duration,
    failure: OnceLock<String>,
}

impl Shared {
    pub(crate) fn new(
        tree: Arc<Tree>,
        readers: Arc<Readers>,
        writer: Writer,
        group_wait_us: u32,
    ) -> Shared {
        Shared {
            tree,
            readers,
            writer: Mutex::new(writer),
            queue: Mutex::default(),
            turn: Condvar::new(),
            group_wait: Duration::from_micros(u64::from(group_wait_us)),
            failure: OnceLock::new(),
        }
    }

    /// Nothing is written from now on.
    pub(crate) fn end_writing(&self, reason: &str) {
        // If there is a reason already, that one counts.
        let _ = self.failure.set(reason.to_owned());
    }

    fn check_writable(&self) -> Result<(), Error> {
        match self.failure.get() {
            Some(reason) => Err(Error::ReadOnly {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    /// An error after which nobody knows what is on the storage ends all writing.
    fn note(&self, error: Error) -> Error {
        if !matches!(error, Error::Full { .. }) && !is_planted(Bug::GoesOn) {
            // The first reason is the one that counts.
            let _ = self.failure.set(error.to_string());
        }
        error
    }

    /// Commits a batch; returns its number.
    pub(crate) fn commit(
        &self,
        operations: Vec<u8>,
        durability: Durability,
        expects: Option<Expectation>,
    ) -> Result<Seq, Error> {
        self.check_writable()?;
        let mut queue = self.queue.lock();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiting.push(Request {
            ticket,
            operations,
            durability,
            expects,
        });
        let mut has_waited = false;
        loop {
            if let Some(outcome) = queue.outcomes.remove(&ticket) {
                return outcome;
            }
            if queue.is_led {
                self.turn.wait(&mut queue);
                continue;
            }
            if !has_waited && queue.may_wait() {
                // Somebody who is in a hurry takes this batch along.
                has_waited = true;
                self.turn.wait_for(&mut queue, self.group_wait);
                continue;
            }
            queue.is_led = true;
            let group = take_group(&mut queue.waiting);
            drop(queue);
            self.lead(group);
            queue = self.queue.lock();
            queue.is_led = false;
            self.turn.notify_all();
        }
    }

    /// Commits a group, answers it, and keeps house.
    fn lead(&self, group: Vec<Request>) {
        let mut writer = self.writer.lock();
        let before = writer.log.head();
        let changes_bytes = group.iter().map(|request| request.operations.len() as u64);
        let changes_bytes = changes_bytes.sum();
        let outcomes = self.commit_group(&mut writer, &group);
        let mut queue = self.queue.lock();
        queue.outcomes.extend(outcomes);
        self.turn.notify_all();
        drop(queue);
        if self.failure.get().is_none() {
            let blocks = writer.log.head() - before;
            if let Err(error) = writer.keep_house(blocks, changes_bytes) {
                self.note(error);
            }
        }
    }

    fn commit_group(
        &self,
        writer: &mut Writer,
        group: &[Request],
    ) -> Vec<(u64, Result<Seq, Error>)> {
        let all = |error: Error| {
            let outcome = |request: &Request| (request.ticket, Err(error.clone()));
            group.iter().map(outcome).collect()
        };
        let mut taken = Vec::with_capacity(group.len());
        let mut outcomes = Vec::with_capacity(group.len());
        match self.enlog_group(writer, group, &mut taken, &mut outcomes) {
            Ok(()) => {}
            Err(error) => return all(self.note(error)),
        }
        for (request, seq) in taken {
            outcomes.push((request.ticket, Ok(seq)));
        }
        outcomes
    }

    fn enlog_group<'a>(
        &self,
        writer: &mut Writer,
        group: &'a [Request],
        taken: &mut Vec<(&'a Request, Seq)>,
        outcomes: &mut Vec<(u64, Result<Seq, Error>)>,
    ) -> Result<(), Error> {
        self.check_writable()?;
        let bytes = group.iter().map(|request| request.operations.len() + 1);
        writer.begin_group(bytes.sum())?;
        let position = writer.log.head();
        for request in group {
            if let Err(error) = self.check(writer, request, taken) {
                outcomes.push((request.ticket, Err(error)));
                continue;
            }
            taken.push((request, writer.enlog(&request.operations)?));
        }
        let is_durable = |(request, _): &(&Request, Seq)| request.durability != Durability::Relaxed;
        let counted = match is_planted(Bug::FollowsTheFirst) {
            true => 1,
            false => taken.len(),
        };
        if taken.iter().take(counted).any(is_durable) {
            writer.write_log(true)?;
        }
        if is_planted(Bug::PublishesEarly) {
            writer.publish(writer.seq());
        }
        for (request, seq) in taken.iter() {
            writer.apply(*seq, &request.operations, position)?;
        }
        writer.publish(writer.seq());
        Ok(())
    }

    /// Refuses what cannot be taken or what was overtaken.
    fn check(
        &self,
        writer: &Writer,
        request: &Request,
        taken: &[(&Request, Seq)],
    ) -> Result<(), Error> {
        writer.check_batch(&request.operations)?;
        let Some(expects) = &request.expects else {
            return Ok(());
        };
        for key in &expects.keys {
            // Batches of the same group are not in the leaves yet.
            let is_taken = !is_planted(Bug::OverlooksRivals)
                && taken
                    .iter()
                    .any(|(other, _)| changes(&other.operations, key));
            let has_changed = match is_taken {
                true => Some(true),
                false => self.tree.has_changed(key, expects.read_at)?,
            };
            match has_changed {
                Some(false) => {}
                Some(true) => return Err(Error::Conflict),
                None => return Err(Error::SnapshotTooOld),
            }
        }
        Ok(())
    }

    /// Batches that wait for the group before theirs.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Does something with the writer, between groups.
    pub(crate) fn with_writer<T>(
        &self,
        act: impl FnOnce(&mut Writer) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.check_writable()?;
        act(&mut self.writer.lock()).map_err(|error| self.note(error))
    }

    /// Looks at the writer.
    pub(crate) fn look_at_writer<T>(&self, look: impl FnOnce(&Writer) -> T) -> T {
        look(&self.writer.lock())
    }
}

/// As many of those that wait as make a group.
fn take_group(waiting: &mut Vec<Request>) -> Vec<Request> {
    let mut bytes = 0;
    let fits = |request: &Request| {
        bytes += request.operations.len();
        bytes <= GROUP_BYTES
    };
    let count = waiting.iter().map_while({
        let mut fits = fits;
        move |request| fits(request).then_some(())
    });
    let count = count.count().max(1);
    let rest = waiting.split_off(count.min(waiting.len()));
    std::mem::replace(waiting, rest)
}

/// True if a batch changes the key.
fn changes(operations: &[u8], key: &[u8]) -> bool {
    use crate::batch::{Operation, Operations};
    let mut operations = Operations::new(operations);
    while let Ok(Some(operation)) = operations.take() {
        let hit = match operation {
            Operation::Put { key: other, .. } | Operation::Delete { key: other } => other == key,
            Operation::DeleteRange { start, end } => {
                start <= key && end.is_none_or(|end| key < end)
            }
            Operation::End => false,
        };
        if hit {
            return true;
        }
    }
    false
}
