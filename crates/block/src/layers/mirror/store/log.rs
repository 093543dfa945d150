//! The log of a side: changes are appended at its head sequentially, several of them in one write.
//! When the device is ready for the next write, all waiting changes go into one entry; no change
//! waits in order to be merged. An entry is treated as stored only when all entries before it are
//! stored, or overtaken by it, so that after a crash the log is a prefix of the entries reported as
//! stored. The log must never overwrite an entry that is still needed, and never report as stored
//! an entry that is not on the device.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::sync::{Event, Semaphore, TaskGroup};
use bimetal_rt::{Payload, Rt};
use futures_util::future::join;

use super::append::Append;
use super::checkpoint::{self, Checkpoint, DISCONTINUITIES_MAX};
use super::entry::{HEADER_BYTES, Header, Kind, RECORDS_MAX, Record};
use super::flying::{EntrySource, Flying, LogCounts, Outcome, Pending};
use super::index::{Entry, Index, block_count};
use super::late::Overtaking;
use super::log_area::{Area, ENTRIES_IN_FLIGHT_MAX};
use super::segments::Birth;
use super::withheld::Withheld;
use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::error::IoError;
use crate::extent_map::Cut;
use crate::layers::mirror::digest::BlockDigest;
use crate::layers::mirror::lately::Lately;
use crate::layers::mirror::superblock::Uuid;
use crate::request::{Flags, Request};

/// The records without data in one entry cover at most this number of bytes of the volume.
/// Destaging needs a checksum in memory for each block, so this bounds the memory for a discard.
const BARE_BYTES_MAX: u64 = 256 << 20;

/// Function that returns a sequence number up to its argument. The side was given every change
/// below this number, and a log with all of them holds a consistent state of the volume.
pub(in super::super) type GivenBelow = dyn Fn(u64) -> u64;

/// The log of a side; see the module documentation.
pub(super) struct Log {
    pub(super) rt: Rt,
    pub(super) device: Rc<dyn Device>,
    pub(super) side: Uuid,
    pub(super) digest: BlockDigest,
    pub(super) area: Area,
    pub(super) index: RefCell<Index>,
    pub(super) checkpoint: RefCell<Checkpoint>,
    pub(super) older_slot: Cell<usize>,
    /// Semaphore that lets one checkpoint be written at a time.
    pub(super) checkpointing: Rc<Semaphore>,
    /// Position of the next entry.
    pub(super) head: Cell<u64>,
    pub(super) pending: RefCell<VecDeque<Pending>>,
    pub(super) withheld: Withheld,
    /// Changes to append again (relog) under their old sequence numbers, before all pending
    /// changes. Relogging frees space, so it can use space that pending changes must leave free.
    pub(super) again: RefCell<VecDeque<Pending>>,
    /// Number of pending appends, by the value of their field `stands_for`.
    pending_numbers: RefCell<BTreeMap<u64, usize>>,
    pub(super) flying: RefCell<VecDeque<Flying>>,
    /// The entries that are late, and what overtakes them.
    pub(super) overtaking: Overtaking,
    /// If true, nothing is written before a new incarnation begins. Set when an entry has failed.
    pub(super) broken: Cell<bool>,
    /// Error with which appends are refused once the log is halted.
    pub(super) halted: Cell<Option<IoError>>,
    /// Position below which the log is durable.
    pub(super) flushed: Cell<u64>,
    /// Sequence number below which every change is stored (`complete_durable`: stored durably).
    pub(super) complete: Cell<u64>,
    pub(super) complete_durable: Cell<u64>,
    /// See [`GivenBelow`].
    given_below: RefCell<Rc<GivenBelow>>,
    epoch: Cell<u64>,
    pub(super) shared_below: Cell<u64>,
    /// See [`Checkpoint::kept_from`].
    pub(super) kept_from: Cell<u64>,
    /// Highest sequence number and highest `complete_below` of all entries that the log has built
    /// so far, including entries that are still being written.
    pub(super) formed: Cell<(u64, u64)>,
    waits_for_space: Cell<bool>,
    /// When changes waited for space, or for room that is withheld.
    pub(super) held_up: Lately,
    /// Number of tasks for which the log pauses.
    pub(super) gives_way: Cell<u32>,
    /// Whether a task checks if the pause is over, or clients wait for this log.
    pub(super) looks: Cell<bool>,
    /// Function that returns true while clients wait for this log because another side does not
    /// answer. The log does not pause then.
    pub(super) is_awaited: RefCell<Rc<dyn Fn() -> bool>>,
    /// Whether a new incarnation could not begin for lack of space.
    pub(super) cramped: Cell<bool>,
    pub(super) changed: Event,
    pub(super) tasks: TaskGroup,
    counts: Cell<LogCounts>,
}

/// State from which a log starts.
pub(super) struct LogStart {
    pub(super) index: Index,
    pub(super) checkpoint: Checkpoint,
    /// Index of the checkpoint slot to write first.
    pub(super) older_slot: usize,
    pub(super) head: u64,
    pub(super) complete: u64,
    /// How the log deals with entries that the device is late with.
    pub(super) overtaking: Overtaking,
}

impl Log {
    /// Creates a log in the state in which it was found. No entry is written before
    /// [`begin_run`](Log::begin_run).
    pub(super) fn new(
        rt: &Rt,
        device: Rc<dyn Device>,
        side: Uuid,
        digest: BlockDigest,
        area: Area,
        start: LogStart,
    ) -> Rc<Log> {
        let (complete, kept_from) = (start.complete, start.checkpoint.kept_from);
        let highest = start
            .index
            .entries()
            .iter()
            .filter_map(Entry::highest)
            .max();
        let highest = highest.unwrap_or(0);
        Rc::new(Log {
            rt: rt.clone(),
            device,
            side,
            digest,
            area,
            index: RefCell::new(start.index),
            checkpoint: RefCell::new(start.checkpoint),
            older_slot: Cell::new(start.older_slot),
            checkpointing: Semaphore::new(1),
            head: Cell::new(start.head),
            pending: RefCell::default(),
            withheld: Withheld::default(),
            again: RefCell::default(),
            pending_numbers: RefCell::default(),
            flying: RefCell::default(),
            overtaking: start.overtaking,
            broken: Cell::new(true),
            halted: Cell::new(None),
            flushed: Cell::new(0),
            complete: Cell::new(complete),
            complete_durable: Cell::new(0),
            given_below: RefCell::new(Rc::new(move |limit| complete.min(limit))),
            epoch: Cell::new(0),
            shared_below: Cell::new(0),
            kept_from: Cell::new(kept_from),
            formed: Cell::new((highest, complete)),
            waits_for_space: Cell::new(false),
            held_up: Lately::default(),
            gives_way: Cell::new(0),
            looks: Cell::new(false),
            is_awaited: RefCell::new(Rc::new(|| false)),
            cramped: Cell::new(false),
            changed: Event::new(),
            tasks: TaskGroup::new(rt),
            counts: Cell::default(),
        })
    }

    /// Reads both checkpoint slots, and rewrites the checkpoint when a slot is wrong. Returns the
    /// number of wrong slots.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn check_checkpoint(&self) -> Result<u64, IoError> {
        let _turn = self.checkpointing.acquire(1).await;
        let mut next = self.checkpoint.borrow().clone();
        if self.broken.get() {
            return Ok(0);
        }
        let wrong = checkpoint::wrong_slots(&self.device, &self.side, &next).await?;
        if wrong > 0 {
            next.sequence += 1;
            self.write_checkpoint(&next).await?;
        }
        Ok(wrong)
    }

    /// Sets the number of the epoch, and the callback `given_below`; see [`GivenBelow`].
    pub(super) fn monitor(&self, epoch: u64, given_below: Rc<GivenBelow>) {
        self.epoch.set(epoch);
        *self.given_below.borrow_mut() = given_below;
    }

    /// Discards every change with a sequence number of at least `first`.
    pub(super) fn forget_from(&self, first: u64) {
        assert!(
            self.broken.get() && !self.is_writing(),
            "a log forgets before it is used"
        );
        self.index.borrow_mut().forget_from(first);
        self.complete.set(self.complete.get().min(first));
        // Changes from `first` on no longer count as shared, even if all members had them.
        let mut checkpoint = self.checkpoint.borrow_mut();
        checkpoint.shared_below = checkpoint.shared_below.min(first);
    }

    /// Discards every change and every entry, so that no part of the log is needed. The next
    /// incarnation then begins with an empty log behind the present end.
    pub(super) fn forget_all(&self) {
        self.forget_from(0);
        self.index.borrow_mut().forget_all();
    }

    /// Returns the age of content that has all changes in the log.
    pub(super) fn newest(&self) -> Birth {
        Birth {
            epoch: self.epoch.get(),
            number: self.formed.get().0,
        }
    }

    /// Sets the number of the epoch, after a new epoch has begun.
    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.set(epoch);
    }

    /// Sets the sequence number below which every change is durable on every member of the epoch.
    pub(super) fn set_shared_below(&self, number: u64) {
        self.shared_below.set(number);
    }

    /// Records that, from now on, the log keeps every change that a member of the epoch lacks, and
    /// that all members have every change below `number`. `None` records that the log has to drop a
    /// change although a member lacks it.
    pub(super) fn keep_from(&self, number: Option<u64>) {
        match number {
            Some(number) if self.kept_from.get() == 0 => self.kept_from.set(number),
            Some(_) => {}
            None => self.kept_from.set(0),
        }
    }

    /// Records that the log is allowed to drop changes below `number` although a member lacks them.
    pub(super) fn let_go_below(&self, number: u64) {
        self.kept_from.set(self.kept_from.get().max(number));
    }

    /// Records that a flush after the log was read has made everything in the log durable.
    pub(super) fn read_is_durable(&self) {
        assert!(
            self.broken.get() && !self.is_writing(),
            "nothing is added meanwhile"
        );
        self.flushed.set(self.head.get());
        self.complete_durable.set(self.complete.get());
    }

    /// Returns true when a stored entry may not be durable.
    pub(super) fn has_unflushed(&self) -> bool {
        !self.broken.get() && self.stored() > self.flushed.get()
    }

    /// Returns the ranges of the records in stored entries that are possibly not durable.
    pub(super) fn unflushed(&self) -> Vec<Range<u64>> {
        let index = self.index.borrow();
        let entries = index.entries().iter().rev();
        let unflushed = entries.take_while(|entry| entry.end > self.flushed.get());
        let ranges = unflushed.flat_map(|entry| entry.records.iter().map(|(range, _)| range));
        ranges.cloned().collect()
    }

    /// Appends a change. The outcome is set when the change and all changes appended before it are
    /// stored, or when the change could not be stored; in the latter case it is not in the log.
    pub(super) fn append(self: &Rc<Self>, append: Append) -> Outcome {
        let outcome = Outcome::default();
        if let Some(error) = self.halted.get() {
            outcome.set(Err(error));
            return outcome;
        }
        self.note_pending(&append);
        self.pending.borrow_mut().push_back(Pending {
            append,
            outcome: Rc::clone(&outcome),
        });
        self.take_up();
        outcome
    }

    /// Forms an entry that has no data and states up to which number the log is complete. It
    /// precedes all waiting changes, which are newer and may wait for space that it frees.
    fn claim(self: &Rc<Self>) -> Outcome {
        let outcome = Outcome::default();
        if let Some(error) = self.halted.get() {
            outcome.set(Err(error));
            return outcome;
        }
        let append = Append::nothing();
        self.note_pending(&append);
        self.pending.borrow_mut().push_front(Pending {
            append,
            outcome: Rc::clone(&outcome),
        });
        self.take_up();
        outcome
    }

    /// If a full log is complete up to a higher sequence number than its last entry states, adds an
    /// entry without data that states the higher number. Another entry, with data, would state it
    /// too, but the log has no space for one.
    pub(super) fn claim_when_full(self: &Rc<Self>) {
        let more = || self.complete_with_this() > self.formed.get().1;
        if self.is_full() && !self.is_broken() && !self.is_claim_first() && more() {
            let _ = self.claim();
        }
    }

    /// Returns true when the next entry of new changes is one without data.
    pub(super) fn is_claim_first(&self) -> bool {
        let claims = |first: &Pending| first.append.range.is_empty();
        self.pending.borrow().front().is_some_and(claims)
    }

    /// Returns true when a new change waits to be written.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.borrow().is_empty()
    }

    fn note_pending(&self, append: &Append) {
        let mut numbers = self.pending_numbers.borrow_mut();
        *numbers.entry(append.stands_for).or_default() += 1;
    }

    /// Returns true when an append, new or relogged, waits to be written.
    pub(super) fn has_waiting(&self) -> bool {
        self.has_pending() || !self.again.borrow().is_empty() || self.overtaking.has_waiting()
    }

    /// Returns true when a new incarnation must begin before anything is written.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Starts to write the waiting appends, as far as this is possible now. After a failure, begins
    /// a new incarnation first, if no entry is in flight.
    pub(super) fn take_up(self: &Rc<Self>) {
        if !self.broken.get() {
            self.pump();
        } else if !self.is_writing() && self.has_waiting() {
            let log = Rc::clone(self);
            self.tasks.spawn(async move { log.rewrite().await });
        }
    }

    /// Begins a new incarnation after a failure and writes the waiting appends, or fails them.
    async fn rewrite(self: Rc<Self>) {
        match self.begin_run().await {
            Ok(()) => self.pump(),
            Err(IoError::NoSpace) => {
                self.make_room_for_a_run().await;
                self.fail_pending(IoError::NoSpace);
            }
            Err(error) => self.fail_pending(error),
        }
    }

    /// Flushes the device, so that the stored entries can be destaged and the next attempt to begin
    /// an incarnation finds space. While the log is broken, nothing else flushes these entries.
    async fn make_room_for_a_run(&self) {
        self.cramped.set(true);
        self.area.wake_cleaner();
        let flushed = self.device.submit(Request::flush()).await;
        if flushed.is_ok() && self.broken.get() && !self.is_writing() {
            self.read_is_durable();
        }
        self.changed.notify();
    }

    /// Writes waiting appends as long as the device is ready and the log has space.
    pub(super) fn pump(self: &Rc<Self>) {
        self.write_waiting();
        self.note_held_up();
    }

    fn write_waiting(self: &Rc<Self>) {
        self.look_while_paused();
        while !self.broken.get()
            && self.halted.get().is_none()
            && !self.pauses()
            && self.takes_entry()
            && self.has_waiting()
        {
            if self.overtaking.has_waiting() {
                let Some((flying, data)) = self.form_entry(EntrySource::Overtaken) else {
                    return;
                };
                self.write(flying, data);
                continue;
            }
            self.drop_replaced();
            if self.has_gap() {
                // The remaining space is needed for the missing changes.
                self.fail_again(IoError::NoSpace);
            }
            let again = !self.again.borrow().is_empty();
            if !again && self.pending.borrow().is_empty() {
                return;
            }
            let from = match again {
                true => EntrySource::Again,
                false => EntrySource::New,
            };
            let Some((flying, data)) = self.form_entry(from) else {
                if again {
                    // A relog frees space, so it must not wait for space. It fails and is retried.
                    self.fail_again(IoError::NoSpace);
                    continue;
                }
                self.area.wake_cleaner();
                if self.waits_for_withheld() {
                    self.waits_for_space.set(false);
                    return;
                }
                self.withheld.settle();
                if !self.waits_for_space.replace(true) {
                    self.count(|counts| counts.full += 1);
                    self.changed.notify();
                }
                return;
            };
            if !again {
                self.waits_for_space.set(false);
                self.withheld.settle();
            }
            self.write(flying, data);
        }
    }

    /// Returns true when another entry may be in flight. Entries that are overtaken do not count,
    /// but with them, all must stay within the in-flight window.
    fn takes_entry(&self) -> bool {
        let flying = self.flying.borrow();
        let count = flying.iter().filter(|entry| !entry.is_overtaken).count();
        let has_room = self.bytes_left_in_window() >= HEADER_BYTES + BLOCK_BYTES;
        self.overtaking.has_waiting() || count < ENTRIES_IN_FLIGHT_MAX && has_room
    }

    /// Forms one entry from waiting appends, as far as the entry has room.
    fn form_entry(&self, from: EntrySource) -> Option<(Flying, Payload)> {
        let (mut room, mut bare_room) = (self.room(from != EntrySource::New)?, BARE_BYTES_MAX);
        let queue = match from {
            EntrySource::New => &self.pending,
            EntrySource::Again => &self.again,
            EntrySource::Overtaken => &self.overtaking.waiting,
        };
        let (mut records, mut digests, mut data) = (Vec::new(), Vec::new(), Payload::empty());
        let (mut parts, mut last_parts) = (Vec::new(), Vec::new());
        let mut pending = queue.borrow_mut();
        while records.len() < RECORDS_MAX {
            let Some(first) = pending.front_mut() else {
                break;
            };
            let append = &mut first.append;
            let kind = append.kind.for_side_with(self.digest);
            let len = append.range.end - append.range.start;
            let taken = match kind {
                Kind::Write => len.min(room),
                Kind::Zeroes(_) | Kind::Lost => len.min(bare_room),
            };
            if taken == 0 && len > 0 {
                break;
            }
            if len > 0 {
                records.push(Record {
                    offset: append.range.start,
                    number: append.number,
                    blocks: block_count(taken),
                    kind,
                });
            }
            if kind == Kind::Write {
                room -= taken;
                let payload = append.payload.slice(0..taken as usize);
                let part = append.digests.as_ref().map(|made| made.cut(0..taken));
                match part.filter(|made| made.made_by() == self.digest) {
                    Some(made) => digests.extend_from_slice(made.values()),
                    None => digests.extend(self.digest.of_each(&payload)),
                }
                data.append(payload);
            } else {
                bare_room -= taken;
            }
            parts.push(Rc::clone(&first.outcome));
            if taken == len {
                let done = pending.pop_front().expect("it was looked at");
                if from == EntrySource::New {
                    self.given(done.append.stands_for);
                }
                last_parts.push(done.outcome);
            } else {
                append.advance(taken);
                break;
            }
        }
        let is_partial = from == EntrySource::Overtaken && !pending.is_empty();
        drop(pending);
        let follows = match from == EntrySource::Overtaken && self.overtaking.begins() {
            true => self.stored(),
            false => self.head.get(),
        };
        if from == EntrySource::Overtaken && !is_partial {
            self.overtaking.join(&mut parts, &mut last_parts);
        }
        let header = Header {
            side: self.side,
            run: self.checkpoint.borrow().run,
            position: self.head.get(),
            follows,
            flushed: self.flushed.get(),
            complete_below: match is_partial {
                // The next entries repeat the rest.
                true => self.complete.get(),
                false => self.complete_with_this(),
            },
            epoch: self.epoch.get(),
            written_s: self.rt.unix_seconds(),
            shared_below: self.shared_below.get(),
            records,
            digests,
        };
        self.head.set(header.end());
        let summary = self.area.note_appended(&header);
        let (highest, complete) = self.formed.get();
        let numbers = header.records.iter().map(|record| record.number);
        let highest = numbers.fold(highest, u64::max);
        self.formed
            .set((highest, complete.max(header.complete_below)));
        let flying = Flying {
            header,
            last_parts,
            parts,
            summary,
            data: data.clone(),
            is_overtaken: false,
            outcome: None,
        };
        Some((flying, data))
    }

    fn given(&self, number: u64) {
        let mut numbers = self.pending_numbers.borrow_mut();
        let count = numbers.get_mut(&number).expect("what waits is counted");
        *count -= 1;
        if *count == 0 {
            numbers.remove(&number);
        }
    }

    /// Returns the sequence number below which each change is in an entry or at its home location.
    fn complete_with_this(&self) -> u64 {
        let ask = Rc::clone(&self.given_below.borrow());
        let pending = self.pending_numbers.borrow().keys().next().copied();
        let complete = ask(pending.unwrap_or(u64::MAX));
        // Do not let the value decrease: sequence numbers are used again after an error.
        complete.max(self.complete.get())
    }

    fn write(self: &Rc<Self>, mut flying: Flying, data: Payload) {
        let summary = flying.summary.take();
        let header = &flying.header;
        let mut block = self.rt.pool().alloc_now(HEADER_BYTES as usize);
        header.encode(&mut block);
        let mut payload = Payload::from(block.freeze());
        payload.append(data);
        self.count(|counts| {
            counts.entries += 1;
            counts.bytes += payload.len() as u64;
            counts.records += header.records.len() as u64;
        });
        let (position, at) = (header.position, self.area.at(header.position));
        self.flying.borrow_mut().push_back(flying);
        let log = Rc::clone(self);
        self.tasks.spawn(async move {
            let writing = async {
                let entry = log.device.submit(Request::write(at, payload, Flags::NONE));
                match summary {
                    None => entry.await.map(|_| ()),
                    Some((at, bytes)) => {
                        let summary = log.rt.pool().copy_of(&bytes);
                        let summary = Request::write(at, summary, Flags::NONE);
                        let (entry, summary) = join(entry, log.device.submit(summary)).await;
                        entry.and(summary).map(|_| ())
                    }
                }
            };
            let written = log.or_overtaken(position, writing).await;
            log.written(position, written);
        });
    }

    /// Handles the end of an entry's write. An entry is stored only after all earlier entries that
    /// it does not overtake.
    fn written(self: &Rc<Self>, position: u64, outcome: Result<(), IoError>) {
        let mut flying = self.flying.borrow_mut();
        let this = flying.iter_mut().find(|f| f.header.position == position);
        let Some(this) = this else {
            drop(flying);
            self.overtaken_is_over(position);
            return;
        };
        this.outcome = Some(outcome);
        let mut stored = Vec::new();
        while !self.broken.get() {
            if let Some(Some(Ok(()))) = flying.front().map(|first| first.outcome) {
                stored.extend(flying.pop_front());
            } else if !self.overtaking.pass(&mut flying) {
                break;
            }
        }
        let all_over = flying.iter().all(|entry| entry.outcome.is_some());
        drop(flying);
        for entry in stored {
            self.complete
                .set(self.complete.get().max(entry.header.complete_below));
            self.index
                .borrow_mut()
                .push(Entry::of(&entry.header, self.digest));
            for part in entry.last_parts {
                part.set(Ok(()));
            }
        }
        if let Err(error) = outcome {
            self.broken.set(true);
            self.fail_pending(error);
        }
        if self.broken.get() && all_over {
            self.fail_flying();
        }
        self.changed.notify();
        // Appends may have arrived while the last entry was in flight.
        self.take_up();
    }

    /// Called after a destage has failed with `error`: fails the appends that wait for space in a
    /// full log. A new incarnation begins before the next append is written.
    pub(super) fn fail_waiting(&self, error: IoError) {
        if self.is_full() && !self.is_writing() && !self.broken.get() {
            self.broken.set(true);
            self.waits_for_space.set(false);
            self.fail_pending(error);
            self.changed.notify();
        }
    }

    /// Fails all waiting appends, because none may be stored after an entry that has failed.
    fn fail_pending(&self, error: IoError) {
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        self.pending_numbers.borrow_mut().clear();
        for waiting in pending {
            waiting.outcome.set(Err(error));
        }
        self.fail_again(error);
        self.overtaking.fail(error);
        self.note_held_up();
    }

    /// Fails the remaining entries after a failure, once all their writes have ended. Entries not
    /// reported as stored are not in the log; the next incarnation begins in their place.
    fn fail_flying(&self) {
        let failed = std::mem::take(&mut *self.flying.borrow_mut());
        let error = failed.iter().find_map(|f| f.outcome.and_then(Result::err));
        let error = error.unwrap_or(IoError::Medium);
        if let Some(first) = failed.front() {
            self.head.set(first.header.position);
        }
        for entry in failed {
            for part in entry.parts {
                part.set(Err(error));
            }
        }
    }

    /// Returns true while entries are being written.
    pub(super) fn is_writing(&self) -> bool {
        !self.flying.borrow().is_empty()
    }

    /// Returns true while appends wait or entries are being written.
    pub(super) fn is_busy(&self) -> bool {
        self.is_writing() || self.has_waiting()
    }

    /// Returns true while a change or a new incarnation waits for space.
    pub(super) fn is_full(&self) -> bool {
        self.cramped.get() || self.waits_for_space.get() && self.has_pending()
    }

    /// Refuses all further appends, and fails the waiting ones. Entries in flight are completed.
    pub(super) fn halt(&self, error: IoError) {
        self.halted.set(Some(error));
        self.fail_pending(error);
        self.changed.notify();
    }

    /// Makes all stored entries durable. If the log is complete up to the sequence number `number`,
    /// a durable entry states this after the call. All changes that the caller needs must have been
    /// stored before the call.
    ///
    /// # Errors
    /// When the device fails; writes since the last successful flush are then in an unknown state.
    pub(super) async fn flush(self: &Rc<Self>, number: u64) -> Result<(), IoError> {
        if self.complete.get() < number {
            // The last entry states a lower number, because a change was missing when it was
            // formed. The side has that change now, so an entry with the present number is written.
            self.claim().wait().await?;
        }
        let (position, complete) = (self.stored(), self.complete.get());
        self.device.submit(Request::flush()).await?;
        self.flushed.set(self.flushed.get().max(position));
        self.complete_durable
            .set(self.complete_durable.get().max(complete));
        self.changed.notify();
        Ok(())
    }

    /// Returns the position after the last stored entry.
    pub(super) fn stored(&self) -> u64 {
        match self.flying.borrow().front() {
            Some(first) => first.header.position,
            None => self.head.get(),
        }
    }

    /// Returns the position below which the log is durable.
    pub(super) fn flushed(&self) -> u64 {
        self.flushed.get()
    }

    /// Returns the sequence number below which every change is stored.
    pub(super) fn complete(&self) -> u64 {
        self.complete.get()
    }

    /// Returns the sequence number below which every change is durable.
    pub(super) fn complete_durable(&self) -> u64 {
        self.complete_durable.get()
    }

    /// Returns the position of the first entry that is still needed.
    pub(super) fn tail(&self) -> u64 {
        self.checkpoint.borrow().tail
    }

    /// Returns the number of bytes between the tail and the head.
    pub(super) fn used_bytes(&self) -> u64 {
        self.head.get() - self.tail()
    }

    /// Returns true when the tail must advance before many more incarnations can begin, because the
    /// checkpoint has little room for further discontinuity records.
    pub(super) fn has_many_runs(&self) -> bool {
        self.checkpoint.borrow().discontinuities.len() >= DISCONTINUITIES_MAX / 16 * 15
    }

    /// Returns the number of bytes that can be in use before changes must wait for space.
    pub(super) fn usable_bytes(&self) -> u64 {
        self.area.usable_bytes()
    }

    /// Waits until no entry is in flight, overtaken or not.
    pub(super) async fn until_idle(&self) {
        let is_idle = || self.flying.borrow().is_empty() && self.overtaking.lowest().is_none();
        self.changed.until(is_idle).await;
    }

    /// Cancels the tasks of the log. No write should be in flight, since writes are not awaited.
    pub(super) async fn cancel(&self) {
        self.tasks.cancel().await;
    }

    /// Returns the counters.
    pub(super) fn counts(&self) -> LogCounts {
        self.counts.get()
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut LogCounts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }
}
