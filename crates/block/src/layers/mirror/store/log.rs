//! The log of a side: changes go in at its head, in sequence, several of them in one write.
//!
//! Whatever waits when the device is ready for the next write goes out together; nothing waits to
//! be merged. An entry counts as stored only when all before it are, so that after a crash the log
//! is a prefix of what was reported as stored. It must never overwrite what is still needed, and
//! never report what is not on the device.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::sync::{Event, OnceValue, Semaphore, TaskGroup};
use bimetal_rt::{Payload, Rt};

use super::append::Append;
use super::checkpoint::{self, Checkpoint, JUMPS_MAX};
use super::entry::{DATA_BLOCKS_MAX, HEADER_BYTES, Header, Kind, RECORDS_MAX, Record};
use super::index::{Entry, Index, block_count};
use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::error::IoError;
use crate::extent_map::Cut;
use crate::layers::mirror::digest::BlockDigest;
use crate::layers::mirror::superblock::Uuid;
use crate::request::{Flags, Request};

/// Entries in flight, at most: one that is being written and one that is ready behind it.
const ENTRIES_IN_FLIGHT_MAX: usize = 2;

/// Bytes of the volume that the records without data of an entry cover, at most. Bringing an entry
/// home takes a checksum in memory for each of its blocks, so this bounds that memory, however long
/// a discard is.
const BARE_BYTES_MAX: u64 = 256 << 20;

/// Gives the number below which a log has been given everything, at most that which it is called
/// with: the side is then the volume at that moment.
pub(in super::super) type GivenBelow = dyn Fn(u64) -> u64;

/// What comes of an append.
pub(in super::super) type Outcome = Rc<OnceValue<Result<(), IoError>>>;

/// Something that waits for its place in an entry.
pub(super) struct Pending {
    pub(super) append: Append,
    pub(super) outcome: Outcome,
}

/// An entry that is being written.
pub(super) struct Flying {
    pub(super) header: Header,
    /// What is told when it is stored: those whose last part is in it.
    last_parts: Vec<Outcome>,
    /// What is told when it is not.
    parts: Vec<Outcome>,
    outcome: Option<Result<(), IoError>>,
}

/// Where the log is and how large its entries may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    /// First byte on the device.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) bytes: u64,
    /// Blocks of data in an entry, at most.
    pub(super) data_blocks_max: u64,
}

impl Area {
    /// The log area of a side on a device that takes at most `transfer_bytes_max` at once.
    pub(super) fn new((offset, bytes): (u64, u64), transfer_bytes_max: u64) -> Area {
        let fits = (transfer_bytes_max / BLOCK_BYTES).saturating_sub(1);
        let share = bytes / 32 / BLOCK_BYTES;
        Area {
            offset,
            bytes,
            data_blocks_max: DATA_BLOCKS_MAX.min(share).min(fits).max(1),
        }
    }

    /// What may be in flight at a crash, in bytes.
    pub(super) fn window(&self) -> u64 {
        ENTRIES_IN_FLIGHT_MAX as u64 * (HEADER_BYTES + self.data_blocks_max * BLOCK_BYTES)
    }

    /// Bytes that can be in use before changes have to wait.
    pub(super) fn usable_bytes(&self) -> u64 {
        self.bytes.saturating_sub(3 * self.window())
    }

    /// Where a position lies on the device.
    pub(super) fn at(&self, position: u64) -> u64 {
        self.offset + position % self.bytes
    }

    /// Bytes from a position to the end of the area.
    pub(super) fn bytes_left_at(&self, position: u64) -> u64 {
        self.bytes - position % self.bytes
    }
}

/// Counts of a log since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct LogCounts {
    /// Entries written.
    pub(in super::super) entries: u64,
    /// Bytes written, headers included.
    pub(in super::super) bytes: u64,
    /// Records in them.
    pub(in super::super) records: u64,
    /// Times that a change had to wait for space.
    pub(in super::super) full: u64,
}

/// See the module.
pub(super) struct Log {
    pub(super) rt: Rt,
    pub(super) device: Rc<dyn Device>,
    pub(super) side: Uuid,
    digest: BlockDigest,
    pub(super) area: Area,
    pub(super) index: RefCell<Index>,
    pub(super) checkpoint: RefCell<Checkpoint>,
    pub(super) older_slot: Cell<usize>,
    /// One checkpoint is written at a time.
    pub(super) checkpointing: Rc<Semaphore>,
    /// The position of the next entry.
    pub(super) head: Cell<u64>,
    pending: RefCell<VecDeque<Pending>>,
    /// What is appended again under its old number. It goes before all that is pending, and may use
    /// space that is kept from that, since it makes space.
    pub(super) again: RefCell<VecDeque<Pending>>,
    /// What the pending ones stand for, and how many each.
    pending_numbers: RefCell<BTreeMap<u64, usize>>,
    pub(super) flying: RefCell<VecDeque<Flying>>,
    /// An entry has failed: nothing is written before a new run has begun.
    pub(super) broken: Cell<bool>,
    /// Why nothing is taken any more.
    pub(super) halted: Cell<Option<IoError>>,
    /// Below this position everything is durable.
    pub(super) flushed: Cell<u64>,
    /// All changes below this number are in what is stored, and in what is durable.
    pub(super) complete: Cell<u64>,
    pub(super) complete_durable: Cell<u64>,
    /// The number below which the mirror has given everything to the log, of those up to the one it
    /// is asked with.
    given_below: RefCell<Rc<GivenBelow>>,
    epoch: Cell<u64>,
    pub(super) shared_below: Cell<u64>,
    /// See [`Checkpoint::kept_from`].
    pub(super) kept_from: Cell<u64>,
    /// The highest number of a change of which an entry has been formed, and the highest number
    /// that an entry has called complete.
    pub(super) formed: Cell<(u64, u64)>,
    waits_for_space: Cell<bool>,
    /// There was no space for a new run.
    pub(super) cramped: Cell<bool>,
    pub(super) changed: Event,
    tasks: TaskGroup,
    counts: Cell<LogCounts>,
}

/// What a log starts from.
pub(super) struct LogStart {
    pub(super) index: Index,
    pub(super) checkpoint: Checkpoint,
    /// The slot of the checkpoint to write first.
    pub(super) older_slot: usize,
    pub(super) head: u64,
    pub(super) complete: u64,
}

impl Log {
    /// A log as it was found. Nothing can be appended before [`begin_run`](Log::begin_run).
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
            again: RefCell::default(),
            pending_numbers: RefCell::default(),
            flying: RefCell::default(),
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
            cramped: Cell::new(false),
            changed: Event::new(),
            tasks: TaskGroup::new(rt),
            counts: Cell::default(),
        })
    }

    /// Reads the newest checkpoint as it lies on the device, and writes it anew when a slot is not
    /// whole. Returns how many were not.
    ///
    /// # Errors
    /// Those of the device.
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

    /// Tells the log how to ask for the number below which it has been given everything, and in
    /// which epoch it writes.
    pub(super) fn attend(&self, epoch: u64, given_below: Rc<GivenBelow>) {
        self.epoch.set(epoch);
        *self.given_below.borrow_mut() = given_below;
    }

    /// Forgets every change with a number from `first` on.
    pub(super) fn forget_from(&self, first: u64) {
        assert!(
            self.broken.get() && !self.is_writing(),
            "a log forgets before it is used"
        );
        self.index.borrow_mut().forget_from(first);
        self.complete.set(self.complete.get().min(first));
        // What all members had of a past that does not count says nothing of the one that does.
        let mut checkpoint = self.checkpoint.borrow_mut();
        checkpoint.shared_below = checkpoint.shared_below.min(first);
    }

    /// Forgets every change and every entry: nothing of the log is needed, so the next run begins
    /// an empty log behind it.
    pub(super) fn forget_all(&self) {
        self.forget_from(0);
        self.index.borrow_mut().forget_all();
    }

    /// A new epoch has begun.
    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.set(epoch);
    }

    /// All changes below this number are durable on every member of the epoch.
    pub(super) fn set_shared_below(&self, number: u64) {
        self.shared_below.set(number);
    }

    /// From now on no change leaves the log while a member of the epoch lacks it, and all members
    /// have every change below this number. `None`: one has had to leave all the same.
    pub(super) fn keep_from(&self, number: Option<u64>) {
        match number {
            Some(number) if self.kept_from.get() == 0 => self.kept_from.set(number),
            Some(_) => {}
            None => self.kept_from.set(0),
        }
    }

    /// A change below this number leaves the log although a member of the epoch lacks it.
    pub(super) fn let_go_below(&self, number: u64) {
        self.kept_from.set(self.kept_from.get().max(number));
    }

    /// The device has been flushed since the log was read.
    pub(super) fn read_is_durable(&self) {
        assert!(
            self.broken.get() && !self.is_writing(),
            "nothing is added meanwhile"
        );
        self.flushed.set(self.head.get());
        self.complete_durable.set(self.complete.get());
    }

    /// True when something is stored that may not be durable.
    pub(super) fn has_unflushed(&self) -> bool {
        !self.broken.get() && self.stored() > self.flushed.get()
    }

    /// The ranges of the records in entries that are stored and may not be durable.
    pub(super) fn unflushed(&self) -> Vec<Range<u64>> {
        let index = self.index.borrow();
        let entries = index.entries().iter().rev();
        let unflushed = entries.take_while(|entry| entry.end > self.flushed.get());
        let ranges = unflushed.flat_map(|entry| entry.records.iter().map(|(range, _)| range));
        ranges.cloned().collect()
    }

    /// Keeps a change. The outcome is set when it is stored, with all that was appended before, or
    /// when it could not be; then it is not in the log.
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

    /// Has an entry without data say what is complete. It goes before all that waits: that is of
    /// later changes, and may wait for space that only what is complete can make.
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

    /// Has a full log say that more is complete than its last entry says, if that is so: with no
    /// space for another entry nothing else says it.
    pub(super) fn claim_when_full(self: &Rc<Self>) {
        let claims = |first: &Pending| first.append.range.is_empty();
        let claimed = self.pending.borrow().front().is_some_and(claims);
        let more = || self.complete_with_this() > self.formed.get().1;
        if self.is_full() && !self.is_broken() && !claimed && more() {
            // Nobody waits for it: whoever does something with what is complete looks again.
            let _ = self.claim();
        }
    }

    fn note_pending(&self, append: &Append) {
        let mut numbers = self.pending_numbers.borrow_mut();
        *numbers.entry(append.stands_for).or_default() += 1;
    }

    /// True when something waits to be written.
    fn has_waiting(&self) -> bool {
        !self.pending.borrow().is_empty() || !self.again.borrow().is_empty()
    }

    /// True when a new run has to begin before anything is written.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Does what can be done now for what waits: after a failure that is a new run, once nothing is
    /// in flight any more.
    pub(super) fn take_up(self: &Rc<Self>) {
        if !self.broken.get() {
            self.pump();
        } else if !self.is_writing() && self.has_waiting() {
            let log = Rc::clone(self);
            self.tasks.spawn(async move { log.mend().await });
        }
    }

    /// Begins a new run after a failure, or fails what waits for it.
    async fn mend(self: Rc<Self>) {
        match self.begin_run().await {
            Ok(()) => self.pump(),
            Err(IoError::NoSpace) => {
                self.make_room_for_a_run().await;
                self.fail_pending(IoError::NoSpace);
            }
            Err(error) => self.fail_pending(error),
        }
    }

    /// Lets what is stored go home, so that the next attempt to begin a run finds space. Nothing
    /// more comes to this run that could make it durable.
    async fn make_room_for_a_run(&self) {
        self.cramped.set(true);
        let flushed = self.device.submit(Request::flush()).await;
        if flushed.is_ok() && self.broken.get() && !self.is_writing() {
            self.read_is_durable();
        }
        self.changed.notify();
    }

    /// Writes what waits as long as the device is ready and there is space.
    pub(super) fn pump(self: &Rc<Self>) {
        while !self.broken.get()
            && self.halted.get().is_none()
            && self.flying.borrow().len() < ENTRIES_IN_FLIGHT_MAX
            && self.has_waiting()
        {
            self.drop_replaced();
            if self.has_gap() {
                // What is missing needs the space that is left.
                self.fail_again(IoError::NoSpace);
            }
            let again = !self.again.borrow().is_empty();
            if !again && self.pending.borrow().is_empty() {
                return;
            }
            let Some((flying, data)) = self.form_entry(again) else {
                if again {
                    // The destage appends it again. It makes the space, and must not wait for it.
                    self.fail_again(IoError::NoSpace);
                    continue;
                }
                if !self.waits_for_space.replace(true) {
                    self.count(|counts| counts.full += 1);
                    self.changed.notify();
                }
                return;
            };
            if !again {
                self.waits_for_space.set(false);
            }
            self.write(flying, data);
        }
    }

    /// Bytes for the data of the next entry; `None` when there is no space for one. `again` says
    /// that it is for what is appended again.
    fn room(&self, again: bool) -> Option<u64> {
        let (head, window) = (self.head.get(), self.area.window());
        // Two windows stay free for the jump of the next run, and one for entries without data, so
        // that a flush never waits for space that only a flush can free, and for what is appended
        // again, after which older entries can go.
        let claim = |first: &Pending| first.append.range.is_empty();
        let only_claim = !again && self.pending.borrow().front().is_some_and(claim);
        let reserve = if only_claim || again { 2 } else { 3 };
        let kept = head - self.floor() + reserve * window;
        let free = self.area.bytes.checked_sub(kept)?;
        if only_claim {
            return (free >= HEADER_BYTES).then_some(0);
        }
        if free < HEADER_BYTES + BLOCK_BYTES {
            return None;
        }
        let most = HEADER_BYTES + self.area.data_blocks_max * BLOCK_BYTES;
        Some(free.min(self.area.bytes_left_at(head)).min(most) - HEADER_BYTES)
    }

    /// The lowest position that must not be overwritten.
    pub(super) fn floor(&self) -> u64 {
        let tail = self.checkpoint.borrow().tail;
        let pinned = self.index.borrow().lowest_pin();
        pinned.map_or(tail, |pinned| pinned.min(tail))
    }

    /// Takes as much of what waits as fits into one entry: of what is appended again, or else of
    /// what is new.
    fn form_entry(&self, again: bool) -> Option<(Flying, Payload)> {
        let (mut room, mut bare_room) = (self.room(again)?, BARE_BYTES_MAX);
        let queue = if again { &self.again } else { &self.pending };
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
                if !again {
                    self.given(done.append.stands_for);
                }
                last_parts.push(done.outcome);
            } else {
                append.advance(taken);
                break;
            }
        }
        drop(pending);
        let header = Header {
            side: self.side,
            run: self.checkpoint.borrow().run,
            position: self.head.get(),
            flushed: self.flushed.get(),
            complete_below: self.complete_with_this(),
            epoch: self.epoch.get(),
            written_s: self.rt.unix_seconds(),
            shared_below: self.shared_below.get(),
            records,
            digests,
        };
        self.head.set(header.end());
        let (highest, complete) = self.formed.get();
        let numbers = header.records.iter().map(|record| record.number);
        let highest = numbers.fold(highest, u64::max);
        self.formed
            .set((highest, complete.max(header.complete_below)));
        let flying = Flying {
            header,
            last_parts,
            parts,
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

    /// All changes below this number are in entries that have been formed, or at home.
    fn complete_with_this(&self) -> u64 {
        let ask = Rc::clone(&self.given_below.borrow());
        let pending = self.pending_numbers.borrow().keys().next().copied();
        let complete = ask(pending.unwrap_or(u64::MAX));
        // Numbers that are given again after an error do not take back what was said before.
        complete.max(self.complete.get())
    }

    fn write(self: &Rc<Self>, flying: Flying, data: Payload) {
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
            let request = Request::write(at, payload, Flags::NONE);
            let written = log.device.submit(request).await.map(|_| ());
            log.written(position, written);
        });
    }

    /// An entry has been written, or not: those at the front that are done are stored, in order.
    fn written(self: &Rc<Self>, position: u64, outcome: Result<(), IoError>) {
        let mut flying = self.flying.borrow_mut();
        let this = flying.iter_mut().find(|f| f.header.position == position);
        this.expect("an entry is written once").outcome = Some(outcome);
        let mut stored = Vec::new();
        while let Some(Some(Ok(()))) = flying.front().map(|first| first.outcome)
            && !self.broken.get()
        {
            stored.push(flying.pop_front().expect("it was looked at"));
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
        // Something may have come while the last entry was in flight.
        self.take_up();
    }

    /// Space cannot be made: fails what waits for it. A new run begins before anything else is
    /// taken.
    pub(super) fn fail_waiting(&self, error: IoError) {
        if self.is_full() && !self.is_writing() && !self.broken.get() {
            self.broken.set(true);
            self.waits_for_space.set(false);
            self.fail_pending(error);
            self.changed.notify();
        }
    }

    /// What waits while an entry has failed fails with it, or its order would be lost.
    fn fail_pending(&self, error: IoError) {
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        self.pending_numbers.borrow_mut().clear();
        for waiting in pending {
            waiting.outcome.set(Err(error));
        }
        self.fail_again(error);
    }

    /// Nothing is in flight any more after a failure: what could not be reported as stored is not
    /// in the log, and a new run begins where it would have been.
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

    /// True while entries are being written.
    pub(super) fn is_writing(&self) -> bool {
        !self.flying.borrow().is_empty()
    }

    /// True while changes wait or are being written.
    pub(super) fn is_busy(&self) -> bool {
        self.is_writing() || self.has_waiting()
    }

    /// True while a change waits for space, or the log has to be emptied before it can be used.
    pub(super) fn is_full(&self) -> bool {
        self.cramped.get() || self.waits_for_space.get() && !self.pending.borrow().is_empty()
    }

    /// Takes nothing more, and fails what waits. What is being written goes on by itself.
    pub(super) fn halt(&self, error: IoError) {
        self.halted.set(Some(error));
        self.fail_pending(error);
        self.changed.notify();
    }

    /// Makes everything stored durable, and the log say that it is complete up to `number`, if it
    /// is. Everything the caller needs has been stored before the call.
    ///
    /// # Errors
    /// When the device fails; then nothing is known of what was written since the last good flush.
    pub(super) async fn flush(self: &Rc<Self>, number: u64) -> Result<(), IoError> {
        if self.complete.get() < number {
            // The last entry was formed when something was missing that has come since, in another
            // way than through the log.
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

    /// The position behind the last stored entry.
    pub(super) fn stored(&self) -> u64 {
        match self.flying.borrow().front() {
            Some(first) => first.header.position,
            None => self.head.get(),
        }
    }

    /// Below this position everything is durable.
    pub(super) fn flushed(&self) -> u64 {
        self.flushed.get()
    }

    /// All changes below this number are stored.
    pub(super) fn complete(&self) -> u64 {
        self.complete.get()
    }

    /// All changes below this number are durable.
    pub(super) fn complete_durable(&self) -> u64 {
        self.complete_durable.get()
    }

    /// The position of the first entry that is needed.
    pub(super) fn tail(&self) -> u64 {
        self.checkpoint.borrow().tail
    }

    /// Bytes between the tail and the head.
    pub(super) fn used_bytes(&self) -> u64 {
        self.head.get() - self.tail()
    }

    /// True when the log must move on before many more runs can begin.
    pub(super) fn has_many_runs(&self) -> bool {
        self.checkpoint.borrow().jumps.len() >= JUMPS_MAX / 16 * 15
    }

    /// Bytes that can be in use before changes have to wait.
    pub(super) fn usable_bytes(&self) -> u64 {
        self.area.usable_bytes()
    }

    /// True when so much more, in entries of `records_per_entry` records or fuller ones, fits in
    /// behind what waits here, before anything goes home that is not complete now, whatever has to
    /// go home first; also when a new run has to begin.
    pub(super) fn takes(&self, bytes: u64, records: u64, records_per_entry: u64) -> bool {
        let complete = self.complete.get();
        let index = self.index.borrow();
        let stays = |entry: &&Entry| entry.highest().is_some_and(|highest| highest >= complete);
        let first = index.entries().iter().find(stays);
        let stays_bytes = first.map_or(0, |first| self.head.get() - first.position);
        let pending = self.pending.borrow();
        let waits = |waiting: &Pending| waiting.append.data_bytes() + HEADER_BYTES;
        let waits_bytes: u64 = pending.iter().map(waits).sum();
        // Not every entry is full: each wait for what was given ends one, and so does the area.
        let full = bytes / (self.area.data_blocks_max * BLOCK_BYTES);
        let headers = (full + records.div_ceil(records_per_entry) + 4) * HEADER_BYTES;
        let all = stays_bytes + waits_bytes + bytes + headers + self.area.window();
        all <= self.usable_bytes()
    }

    /// Waits until nothing is being written.
    pub(super) async fn until_quiet(&self) {
        self.changed.until(|| self.flying.borrow().is_empty()).await;
    }

    /// Ends the tasks; nothing may be in flight, or it is left to itself.
    pub(super) async fn cancel(&self) {
        self.tasks.cancel().await;
    }

    /// Counts so far.
    pub(super) fn counts(&self) -> LogCounts {
        self.counts.get()
    }

    fn count(&self, add: impl FnOnce(&mut LogCounts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }
}
