//! Group commit: batches of many threads become one write of the log.
//!
//! A thread puts its batch into a queue. If no thread leads, this thread becomes the leader: it
//! takes the waiting batches, writes them to the log together, applies them, answers their threads,
//! and does maintenance. Batches that arrive meanwhile wait for the next leader, so a longer write
//! covers more batches. This module must never answer a batch before it is as durable as requested,
//! nor continue after a failed write, nor leave a thread waiting for a leader that has panicked.

use crate::conflicts::{Expectation, Taken};
use crate::error::Error;
use crate::limits::Limits;
use crate::node::Seq;
use crate::planted::{Bug, is_planted};
use crate::readers::Readers;
use crate::sync::{Condvar, Mutex};
use crate::tree::Tree;
use crate::writer::{Durability, Writer};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::RandomState;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Maximum number of bytes of a group with more than one batch. If the log is so short that the
/// maximum length of a single batch is lower, that length is the maximum of a group too.
const GROUP_BYTES: usize = 1 << 20;

/// Number of waiting batches at which a group is committed without waiting for further batches.
const GROUP_BATCHES: usize = 16;

/// A batch that waits to be committed.
#[derive(Debug)]
struct Request {
    ticket: u64,
    operations: Vec<u8>,
    durability: Durability,
    expects: Option<Expectation>,
}

#[derive(Debug, Default)]
struct CommitQueue {
    waiting: Vec<Request>,
    next_ticket: u64,
    is_led: bool,
    /// Results of batches whose threads have not collected them yet.
    outcomes: BTreeMap<u64, Result<Seq, Error>>,
}

impl CommitQueue {
    /// Returns true if the group is allowed to wait for further batches: few batches are waiting,
    /// and all of them requested [`Durability::Group`].
    fn may_wait(&self) -> bool {
        let is_patient = |request: &Request| request.durability == Durability::Group;
        self.waiting.len() < GROUP_BATCHES && self.waiting.iter().all(is_patient)
    }
}

/// State of an open index, shared by its handles.
pub(crate) struct Shared {
    pub tree: Arc<Tree>,
    pub readers: Arc<Readers>,
    pub limits: Limits,
    /// Hashes keys to find conflicts.
    pub hasher: RandomState,
    writer: Mutex<Writer>,
    queue: Mutex<CommitQueue>,
    turn: Condvar,
    group_wait: Duration,
    end: OnceLock<End>,
}

/// Reason why an index accepts no more writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The index was opened for reading only.
    OnlyRead,
    /// The index was closed.
    Closed,
    /// The index was abandoned.
    Abandoned,
    /// A write has failed, with this error.
    Failed(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::OnlyRead => "it was opened for reading only",
            End::Closed => "it was closed",
            End::Abandoned => "it was abandoned",
            End::Failed(error) => error,
        })
    }
}

impl Shared {
    pub(crate) fn new(
        tree: Arc<Tree>,
        readers: Arc<Readers>,
        writer: Writer,
        group_wait_us: u32,
    ) -> Shared {
        Shared {
            limits: Limits::of(&tree.geometry),
            hasher: RandomState::new(),
            tree,
            readers,
            writer: Mutex::new(writer),
            queue: Mutex::default(),
            turn: Condvar::new(),
            group_wait: Duration::from_micros(u64::from(group_wait_us)),
            end: OnceLock::new(),
        }
    }

    /// Ends all writing from now on.
    pub(crate) fn end_writing(&self, end: End) {
        // If a reason is set already, keep it.
        let _ = self.end.set(end);
    }

    /// Makes all relaxed writes durable, and ends all writing.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let ended = self.with_writer(|writer| {
            let written = writer.end();
            // End writing before any other batch can be accepted.
            written.inspect(|()| self.end_writing(End::Closed))
        });
        match (ended, self.end.get()) {
            (Err(Error::ReadOnly { .. }), Some(End::OnlyRead | End::Closed)) => Ok(()),
            (ended, _) => ended,
        }
    }

    fn check_writable(&self) -> Result<(), Error> {
        self.tree.check_sound()?;
        match self.end.get() {
            Some(end) => Err(Error::ReadOnly {
                reason: end.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Ends all writing if the state of the storage is unknown after this error.
    fn note(&self, error: Error) -> Error {
        if !matches!(error, Error::Full { .. }) && !is_planted(Bug::GoesOn) {
            // If a reason is set already, keep it.
            let _ = self.end.set(End::Failed(error.to_string()));
        }
        error
    }

    /// Runs an action that changes the index. If the action panics, every later call fails, because
    /// the data being changed may be in any state. The caller gets the panic and resumes it in its
    /// own thread.
    fn soundly<T>(&self, act: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
        catch_unwind(AssertUnwindSafe(act)).inspect_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            self.tree.poison(text.unwrap_or("the panic has no message"));
        })
    }

    /// Waits until `ranges` more deletions fit into the list of pending range deletions, which some
    /// leaves have not applied yet. To make room, the calling thread applies listed deletions to
    /// leaves in steps; other threads can write between the steps.
    pub(crate) fn admit(&self, ranges: usize) -> Result<(), Error> {
        let mut is_admitted = ranges == 0;
        while !is_admitted {
            let advanced = self.with_writer(|writer| match writer.may_delete(ranges) {
                true => Ok(true),
                false => writer.advance_deletions().map(|()| false),
            });
            is_admitted = match advanced {
                // A full storage must not prevent deletions.
                Err(Error::Full { .. }) => true,
                other => other?,
            };
        }
        Ok(())
    }

    /// Commits a batch and returns its sequence number.
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
            if let Err(poisoned) = self.tree.check_sound() {
                queue.waiting.retain(|request| request.ticket != ticket);
                return Err(poisoned);
            }
            if queue.is_led {
                self.turn.wait(&mut queue);
                continue;
            }
            if !has_waited && queue.may_wait() {
                // During this wait another thread can become the leader and take this batch into
                // its group.
                has_waited = true;
                self.turn.wait_for(&mut queue, self.group_wait);
                continue;
            }
            queue.is_led = true;
            let bytes_max = GROUP_BYTES.min(self.limits.batch_bytes_max);
            let group = take_group(&mut queue.waiting, bytes_max);
            drop(queue);
            let led = self.soundly(|| self.lead(&group));
            queue = self.queue.lock();
            queue.is_led = false;
            self.turn.notify_all();
            if let Err(panic) = led {
                drop(queue);
                resume_unwind(panic);
            }
        }
    }

    /// Commits a group, answers its threads, and does maintenance.
    fn lead(&self, group: &[Request]) {
        let mut writer = self.writer.lock();
        let before = writer.log.head();
        let changes_bytes = group.iter().map(|request| request.operations.len() as u64);
        let changes_bytes = changes_bytes.sum();
        let outcomes = self.commit_group(&mut writer, group);
        let mut queue = self.queue.lock();
        queue.outcomes.extend(outcomes);
        self.turn.notify_all();
        drop(queue);
        if self.end.get().is_none() {
            let blocks = writer.log.head() - before;
            if let Err(error) = writer.maintain(blocks, changes_bytes) {
                self.note(error);
            }
        }
    }

    fn commit_group(
        &self,
        writer: &mut Writer,
        group: &[Request],
    ) -> Vec<(u64, Result<Seq, Error>)> {
        let mut taken = Vec::with_capacity(group.len());
        let mut outcomes = Vec::with_capacity(group.len());
        if let Err(error) = self.append_group(writer, group, &mut taken, &mut outcomes) {
            let error = self.note(error);
            let outcome = |request: &Request| (request.ticket, Err(error.clone()));
            return group.iter().map(outcome).collect();
        }
        for (request, seq) in taken {
            outcomes.push((request.ticket, Ok(seq)));
        }
        outcomes
    }

    fn append_group<'a>(
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
        let mut rivals = Taken::new(&self.hasher);
        for request in group {
            if let Some(expects) = &request.expects
                && let Err(error) = self.check(expects, &mut rivals)
            {
                outcomes.push((request.ticket, Err(error)));
                continue;
            }
            rivals.add(&request.operations, request.expects.as_ref());
            taken.push((request, writer.append_to_log(&request.operations)?));
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

    /// Refuses a transaction that conflicts with batches of its group or with earlier batches.
    fn check(&self, expects: &Expectation, rivals: &mut Taken<'_>) -> Result<(), Error> {
        if !is_planted(Bug::OverlooksRivals) && rivals.contradicts(expects) {
            return Err(Error::Conflict);
        }
        for (key, _) in expects.keys() {
            match self.tree.has_changed(key, expects.read_at)? {
                Some(false) => {}
                Some(true) => return Err(Error::Conflict),
                None => return Err(Error::SnapshotTooOld),
            }
        }
        Ok(())
    }

    /// Returns the number of batches that are waiting for the group being committed to complete.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Runs an action with the writer locked, between groups.
    pub(crate) fn with_writer<T>(
        &self,
        act: impl FnOnce(&mut Writer) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut writer = self.writer.lock();
        self.check_writable()?;
        let result = self.soundly(|| {
            let result = act(&mut writer);
            writer.release_memory();
            result
        });
        match result {
            Ok(result) => result.map_err(|error| self.note(error)),
            Err(panic) => {
                drop(writer);
                resume_unwind(panic)
            }
        }
    }

    /// Runs a read-only action with the writer locked.
    pub(crate) fn look_at_writer<T>(&self, look: impl FnOnce(&Writer) -> T) -> T {
        look(&self.writer.lock())
    }
}

impl Drop for Shared {
    /// Writes out relaxed commits. [`Db::close`] does the same and reports failures.
    ///
    /// [`Db::close`]: crate::Db::close
    fn drop(&mut self) {
        if self.check_writable().is_err() {
            return;
        }
        // A failure at this point has the effect of a crash, which can lose relaxed commits.
        let _ = self.writer.get_mut().end();
    }
}

/// Takes waiting batches for a group of at most `bytes_max` bytes, but at least one batch.
fn take_group(waiting: &mut Vec<Request>, bytes_max: usize) -> Vec<Request> {
    let mut bytes = 0;
    let fits = |request: &&Request| {
        bytes += request.operations.len() + 1;
        bytes <= bytes_max
    };
    let count = waiting.iter().take_while(fits).count().max(1);
    let rest = waiting.split_off(count.min(waiting.len()));
    std::mem::replace(waiting, rest)
}
