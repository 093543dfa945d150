//! HM_WRITE and HM_DELAY_WRITE, the paper's rules for writes: admits writes, sends them to the
//! sides, and acknowledges them.
//!
//! A write must never be acknowledged beyond the bounds of the exposure.

use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::exposure::{ExposureBounds, Sides};
use bimetal_policy::hetero::{AckRule, BackInTime, HeteroRules, Mode, Next, QueueView};
use bimetal_rt::sync::Permit;
use bimetal_rt::{Instant, Payload};
use futures_util::future::{join_all, select};

use super::admission::Taken;
use super::queue::{Batch, Change, Progress, Ticket};
use super::shared::{Shared, VolumeState};
use super::side::{Side, add};
use super::store::digests::Digests;
use super::store::{Append, Outcome, Space, Store, all_stored};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::range_lock::RangeGuard;
use crate::range_set::RangeSet;
use crate::request::{IoResult, Op, Reply, Request};

/// Maximum length of a batch of merged writes.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// Half of the delay, in nanoseconds, before the next request to a side after its first error: the
/// delay is this value, doubled once for each consecutive error. From [`ERRORS_IN_A_ROW_MAX`]
/// errors on, the delay stays the same.
const RETRY_NS_MIN: u64 = 50_000_000;
/// Minimum time between two wake-ups of the writes that wait for the pace. Clients answer several
/// acknowledgements at once with several writes, which share an entry of each log. If each write
/// had an entry, the headers would be as long as the content.
const PACE_STEP_MIN: Duration = Duration::from_millis(5);
/// Maximum time between two wake-ups of the writes that wait for the pace.
const PACE_STEP_MAX: Duration = Duration::from_millis(20);
/// Age of the oldest operation in flight of a side from which on the side counts as frozen in the
/// statistics.
const FREEZE_MIN: Duration = Duration::from_millis(200);
/// Number of consecutive errors after which a side is considered absent.
const ERRORS_IN_A_ROW_MAX: u32 = 5;

/// A change that was queued on the sides and is not yet acknowledged. If the future of the request
/// is dropped, the change still continues to its acknowledgement: its range must stay locked until
/// then, since otherwise a newer change of the same blocks could overtake it on a side.
struct Admitted {
    shared: Rc<Shared>,
    ticket: Rc<Ticket>,
    op: Op,
    fua: bool,
    /// `None` once the change is acknowledged.
    held: Option<Held>,
}

/// Resources that a change holds from its admission to its acknowledgement.
struct Held {
    _range: RangeGuard,
    _room: Taken,
    /// Permit of the semaphore that admits one write at a time; `None` unless `serial` is
    /// configured.
    _turn: Option<Permit>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else {
            return;
        };
        let (shared, ticket) = (Rc::clone(&self.shared), Rc::clone(&self.ticket));
        let (op, fua) = (self.op, self.fua);
        self.shared.tasks.spawn(async move {
            // No client waits for the result any more; an error shows in the health of the sides.
            let _ = shared.wait_until_acknowledged(&ticket, op, fua).await;
            drop(held);
        });
    }
}

impl Shared {
    /// Stores a change on the sides, and acknowledges it by the configured rules. The smallest log
    /// of a side limits the exposure. A write larger than this limit is split into several changes.
    /// As a single change, it could not be destaged before all of it is in the log, so the log
    /// could not make room for the rest of it.
    pub(super) async fn change(self: &Rc<Self>, request: Request) -> IoResult {
        let piece_bytes_max = self.exposure.bytes_max_by_logs() / BLOCK_BYTES * BLOCK_BYTES;
        let piece_bytes_max = piece_bytes_max.max(BLOCK_BYTES);
        if request.op != Op::Write || request.len <= piece_bytes_max {
            return self.change_at_once(request).await;
        }
        let starts = (0..request.len).step_by(piece_bytes_max as usize);
        let pieces = starts.map(|start| {
            let end = request.len.min(start + piece_bytes_max);
            let payload = request.payload.slice(start as usize..end as usize);
            let piece = Request::write(request.offset + start, payload, request.flags);
            self.change_at_once(piece.from_origin(request.origin))
        });
        // The write is answered only after all changes into which it was split have ended, even if
        // one of them has failed.
        let mut done = join_all(pieces).await.into_iter();
        done.try_for_each(|piece| piece.map(drop))?;
        Ok(Reply::Done)
    }

    /// Stores a change that needs no splitting, under a single sequence number.
    async fn change_at_once(self: &Rc<Self>, request: Request) -> IoResult {
        let range = request.offset..request.end();
        if range.is_empty() {
            return Ok(Reply::Done);
        }
        let turn = match &self.admission.serial {
            Some(serial) => Some(serial.acquire(1).await),
            None => None,
        };
        self.until_rebuilds_follow(&range).await;
        let data_bytes = match request.op {
            Op::Write => request.len,
            _ => 0,
        };
        let bytes_max = || self.exposure.bytes_max_by_logs();
        let guard = self.admission.ranges.lock(range).await;
        // The change acquires room after it has locked its range. So only changes that can proceed
        // hold room: a range that stays locked for a long time does not delay changes of other
        // ranges.
        let room = self.admission.take_room(data_bytes, bytes_max).await;
        self.check_writable()?;
        let (op, fua, range) = (request.op, request.flags.fua, request.offset..request.end());
        self.capacity.check(op, &range)?;
        let ticket = self.admit(request)?;
        self.capacity.admitted(op, &range);
        let mut admitted = Admitted {
            shared: Rc::clone(self),
            ticket: Rc::clone(&ticket),
            op,
            fua,
            held: Some(Held {
                _range: guard,
                _room: room,
                _turn: turn,
            }),
        };
        let result = self.wait_until_acknowledged(&ticket, op, fua).await;
        admitted.held = None;
        result.map(|()| Reply::Done)
    }

    fn check_writable(&self) -> Result<(), IoError> {
        match self.state.get() {
            VolumeState::Open => Ok(()),
            VolumeState::ReadOnly | VolumeState::Frozen => Err(IoError::ReadOnly),
            VolumeState::Stopped => Err(IoError::Offline),
            VolumeState::Closed => Err(IoError::Closed),
        }
    }

    /// Returns the block digests of a payload, computed with the algorithm of the first side with a
    /// log. In most volumes the other sides use the same algorithm, and so can use these digests.
    fn digests_of(&self, payload: &Payload) -> Option<Digests> {
        let mut stores = self.sides.iter().filter_map(|side| side.store());
        let made_by = stores.next()?.digest();
        Some(Digests::of(made_by, payload))
    }

    /// Assigns a sequence number to a change and queues the change on every side that can accept
    /// it. The other sides are recorded as lacking the range of the change.
    fn admit(self: &Rc<Self>, request: Request) -> Result<Rc<Ticket>, IoError> {
        let range = request.offset..request.end();
        let len = request.len;
        let takes: Vec<bool> = self.sides.numbered().map(|s| s.takes(&range)).collect();
        let progress = |takes: &bool| match takes {
            true => Progress::Left(len),
            false => Progress::Absent,
        };
        let sides: Vec<Progress> = takes.iter().map(progress).collect();
        if !sides.contains(&Progress::Left(len)) {
            return Err(IoError::Offline);
        }
        let seq = self.admission.take_number();
        let decides = self
            .sides
            .numbered()
            .map(|side| side.is_healthy() && side.out_of_sync.is_clear(&range));
        let decides = decides.collect();
        self.repair.forget_lost(range.clone());
        let ticket = Ticket::new(seq, range.clone(), self.rt.now(), sides, decides);
        let urgent_on = self.sides_to_escalate();
        let digests = match request.op {
            Op::Write => self.digests_of(&request.payload),
            _ => None,
        };
        let change = Change {
            op: request.op,
            flags: request.flags,
            origin: request.origin,
            payload: request.payload,
            digests,
        };
        self.admission.undecided.admit(&ticket, &change);
        for side in self.sides.iter() {
            if takes[side.index] {
                side.out_of_sync.queued(range.clone());
                let urgent = urgent_on.contains(&side.index);
                let group_bytes_max = self.exposure.bytes_max_by_logs();
                side.queue.borrow_mut().push(
                    change.clone(),
                    &ticket,
                    side.index,
                    urgent,
                    group_bytes_max,
                );
            } else {
                self.pass_over(side, &range);
            }
        }
        for side in 0..self.sides.len() {
            self.pump(side);
        }
        self.is_busy();
        Ok(ticket)
    }

    /// Returns the sides on which a new write is urgent. An urgent write overtakes the other
    /// waiting changes. By this project's rules, a write is urgent only when every side is delayed
    /// (its oldest write has exceeded its limit). The write is then urgent on all active sides, and
    /// the first side that completes it decides when it is done. By the paper's rules, a write is
    /// sent immediately to every side that is not delayed. If all sides are delayed, it is sent to
    /// the side with the fewest bytes in flight.
    fn sides_to_escalate(&self) -> Vec<usize> {
        let active = || self.sides.iter().filter(|side| side.is_active());
        let in_time: Vec<usize> = active()
            .filter(|s| s.is_in_time())
            .map(|s| s.index)
            .collect();
        match (self.is_paper(), in_time.is_empty()) {
            (false, false) => Vec::new(),
            (false, true) => active().map(|side| side.index).collect(),
            (true, false) => in_time,
            (true, true) => {
                let least = active().min_by_key(|side| side.queue.borrow().flying_bytes());
                least.map(|side| side.index).into_iter().collect()
            }
        }
    }

    async fn wait_until_acknowledged(
        self: &Rc<Self>,
        ticket: &Rc<Ticket>,
        op: Op,
        fua: bool,
    ) -> Result<(), IoError> {
        ticket
            .changed
            .until(|| ticket.any_done() || ticket.settled())
            .await;
        let stored = ticket.any_done();
        if !stored {
            self.failed_everywhere(ticket);
            self.admission.undecided.failed(ticket);
            return Err(ticket.error());
        }
        self.admission.undecided.stored(ticket);
        self.capacity.stored(op, &ticket.range);
        let mut durable = Ok(());
        if fua && self.is_logged() {
            durable = self.flush_up_to(ticket.seq + 1).await;
        } else if fua {
            ticket.changed.until(|| self.all_healthy_have(ticket)).await;
        } else if !ticket.settled() {
            self.watch_wait_limit(ticket).await;
        }
        self.until_it_may_be_acknowledged(ticket).await;
        // The write is stored on a side, even if making it durable has failed, so the other sides
        // must still get it.
        ticket.acknowledged.set(Some(self.rt.now()));
        if self.all_healthy_have(ticket) {
            return durable;
        }
        add(&self.counts.acknowledged_early, 1);
        if self.is_saved_from_a_freeze(ticket) {
            add(&self.counts.saved_from_freezes, 1);
        }
        let bytes_max = self.rules.exposure_bytes_max;
        let now = self.rt.now();
        self.exposure.add(now, ticket.range.clone(), bytes_max);
        durable
    }

    /// Waits until every healthy or joining side has a write, or until the exposure has room for
    /// the write. Writes get room in the order in which they began to wait, so that small writes
    /// cannot starve a large write. If all of these sides have the write, it needs no room, and
    /// does not wait for the room of other writes.
    ///
    /// If one of these sides still lacks the write, the caller must add the write to the exposure
    /// before its next await.
    async fn until_it_may_be_acknowledged(self: &Rc<Self>, ticket: &Ticket) {
        let len = ticket.range.end - ticket.range.start;
        let on_all = || self.membership.is_marked() && self.all_healthy_have(ticket);
        let has_room = || {
            let (exposed, age_ns) = (self.exposure.bytes(), self.exposure_age_ns());
            let rules = self.rules();
            let may = rules.may_acknowledge_early(exposed, age_ns, len)
                && self.has_memory(&rules, exposed, len);
            self.exposure.set_bounded(!may);
            self.membership.is_marked() && may && self.is_within_pace(&rules, exposed, len)
        };
        if on_all() || self.exposure.backpressured_writes.is_empty() && has_room() {
            return;
        }
        add(&self.counts.backpressured_writes, 1);
        let _held_up = self.exposure.hold_up(&self.rt);
        self.keep_pace();
        let room = self
            .exposure
            .backpressured_writes
            .in_turn(|| has_room().then_some(()));
        let stored = ticket.changed.until(on_all);
        // When the set of healthy sides changes, every write that waits here checks its condition
        // again.
        let fewer = self.membership.changed.until(on_all);
        select(pin!(room), select(pin!(stored), pin!(fewer))).await;
    }

    /// Returns true when the buffer pool has memory for the content of an exposure of
    /// `exposed_bytes` and a write of `len` bytes. Requests more memory for the pool early enough
    /// that writes do not have to wait for it.
    fn has_memory(&self, rules: &HeteroRules, exposed_bytes: u64, len: u64) -> bool {
        let (pool, wanted) = (self.rt.pool(), rules.exposure_bytes_max);
        let share = pool.deferred_share(wanted);
        let after = exposed_bytes + len;
        if share < wanted && after > share / 2 {
            pool.want_more();
        }
        after <= share || exposed_bytes == 0
    }

    /// Returns true when [the pace](bimetal_policy::exposure) allows a write of `len` bytes to be
    /// acknowledged early.
    fn is_within_pace(&self, rules: &HeteroRules, exposed_bytes: u64, len: u64) -> bool {
        if exposed_bytes == 0 || rules.exposure_age_ns_max == u64::MAX {
            return true;
        }
        let sides = match self.all_logged() {
            true => Sides::Logged,
            false => Sides::WithHome {
                in_time: self.is_in_time(exposed_bytes + len),
            },
        };
        let bounds = ExposureBounds {
            bytes_max: rules.exposure_bytes_max,
            age_ns_max: rules.exposure_age_ns_max,
        };
        let now = self.rt.now();
        self.exposure.is_within_pace(now, len, bounds, sides)
    }

    /// Returns true when the sides are expected to store `bytes` exposed bytes within a third of
    /// the maximum age of the exposure. Without this, all of the exposure would be given away
    /// within moments, and when the logs of the sides have no room left, storing it takes longer
    /// than its age is allowed to be: nothing more could be acknowledged until nearly all of it is
    /// stored.
    fn is_in_time(&self, bytes: u64) -> bool {
        let (ranges, time_ns) = (
            self.exposure.count() + 1,
            self.rules.exposure_age_ns_max / 3,
        );
        let mut counted_on = self.sides.iter().filter(|side| side.is_counted_on());
        let in_time = |store: Rc<Store>| store.stored_in_ns(bytes, ranges) <= time_ns;
        counted_on.all(|side| side.store().is_none_or(in_time))
    }

    /// Wakes the writes that wait for the pace when it may allow them, until none waits. On sides
    /// with a home, only what they store allows more.
    fn keep_pace(self: &Rc<Self>) {
        if !self.all_logged() || self.exposure.is_paced.replace(true) {
            return;
        }
        let shared = Rc::clone(self);
        self.tasks.spawn(async move {
            // The first write begins to wait after this task was spawned.
            shared.rt.sleep(PACE_STEP_MIN).await;
            let exposure = &shared.exposure;
            while !exposure.backpressured_writes.is_empty() {
                exposure.backpressured_writes.wake_first();
                let paced_in = exposure.paced_in(shared.rt.now()).unwrap_or(PACE_STEP_MAX);
                let step = paced_in.clamp(PACE_STEP_MIN, PACE_STEP_MAX);
                shared.rt.sleep(step).await;
            }
            exposure.is_paced.set(false);
        });
    }

    /// Returns true when no healthy or joining side has bytes of the write left to store.
    fn all_healthy_have(&self, ticket: &Ticket) -> bool {
        self.sides.iter().all(|side| {
            !side.is_counted_on() || !matches!(ticket.progress(side.index), Progress::Left(_))
        })
    }

    /// Returns true when a side that lacks a write has not ended its oldest operation for so long
    /// that people notice: without the other sides, they would wait for it.
    fn is_saved_from_a_freeze(&self, ticket: &Ticket) -> bool {
        let is_frozen = |side: &Side| {
            let oldest = side.work.oldest();
            oldest.is_some_and(|(_, started)| self.rt.now().since(started.at) >= FREEZE_MIN)
        };
        let lacks = |side: &Side| matches!(ticket.progress(side.index), Progress::Left(_));
        let mut sides = self.sides.iter().filter(|side| side.is_counted_on());
        sides.any(|side| lacks(side) && is_frozen(side))
    }

    /// Applies the paper's wait limit: after the first completion of a write, the other sides get
    /// the limit as extra time, and are marked delayed if they exceed it. Waits for these sides
    /// only if the acknowledgement rule is `WaitLimit`.
    async fn watch_wait_limit(self: &Rc<Self>, ticket: &Rc<Ticket>) {
        let first_done = ticket.first_done.get().expect("a side has the write");
        let first_ns = first_done.ns_since(ticket.admitted);
        let Some(limit_ns) = self.sides[0].policy.borrow().limit_after_first_ns(first_ns) else {
            return;
        };
        let deadline = first_done + Duration::from_nanos(limit_ns);
        let (shared, ticket) = (Rc::clone(self), Rc::clone(ticket));
        match self.rules.ack {
            AckRule::WaitLimit => shared.watch_late(ticket, deadline).await,
            AckRule::First => self.tasks.spawn(shared.watch_late(ticket, deadline)),
        }
    }

    /// Starts background tasks at the deadline of a write: one task for each side that still works
    /// on the write. The task marks its side as delayed.
    async fn watch_late(self: Rc<Self>, ticket: Rc<Ticket>, deadline: Instant) {
        let left = deadline.since(self.rt.now());
        let all = ticket.changed.until(|| ticket.settled());
        if self.rt.timeout(left, all).await.is_ok() {
            return;
        }
        for side in self.sides.iter() {
            let (shared, ticket, index) = (Rc::clone(&self), Rc::clone(&ticket), side.index);
            let working = matches!(ticket.progress(index), Progress::Left(_))
                && side.queue.borrow().is_flying(&ticket);
            if working {
                self.tasks
                    .spawn(async move { shared.follow_late(ticket, index).await });
            }
        }
    }

    /// Marks a side as delayed because of a late write, and waits until that write has ended. After
    /// the last late write has ended, the side can be in time again.
    async fn follow_late(self: Rc<Self>, ticket: Rc<Ticket>, index: usize) {
        let side = &self.sides[index];
        side.work.becomes_late();
        side.policy.borrow_mut().overdue(self.rt.now().as_ns());
        ticket
            .changed
            .until(|| !matches!(ticket.progress(index), Progress::Left(_)))
            .await;
        let last = side.work.late_is_done();
        if last && self.rules.back_in_time == BackInTime::LateDone {
            side.policy.borrow_mut().caught_up(self.rt.now().as_ns());
        }
    }

    /// Sends batches from the queue of a side to this side, as long as the policy of the side
    /// allows it.
    pub(super) fn pump(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        while side.is_active() && self.rt.now() >= side.retry_at.get() {
            let view = self.view(index);
            let next = side.policy.borrow().next(view);
            let delayed = side.policy.borrow().mode() == Mode::Delayed;
            let overdue = self.exposure_age_ns() > self.rules.exposure_age_ns_max / 4 * 3;
            let batch = match next {
                Next::Urgent => side.queue.borrow_mut().take_urgent(),
                Next::InOrder => side.queue.borrow_mut().take_in_order(delayed),
                Next::Batch => side.queue.borrow_mut().take_batch(BATCH_BYTES_MAX, overdue),
                Next::Nothing => None,
            };
            let Some(batch) = batch else { break };
            self.issue(index, batch);
        }
        self.note_backlog(index);
        let drained = !side.queue.borrow().has_waiting() && !side.work.is_stuck();
        if drained && self.rules.back_in_time == BackInTime::Drained {
            side.policy.borrow_mut().caught_up(self.rt.now().as_ns());
        }
    }

    fn view(&self, index: usize) -> QueueView {
        let side = &self.sides[index];
        let crowded = self
            .rules()
            .is_pressed(self.exposure.bytes(), self.exposure_age_ns());
        let mut queue = side.queue.borrow_mut();
        let (bytes, parts) = (queue.waiting_bytes(), queue.waiting_parts());
        let may_overtake = || {
            let store = side.store();
            store.is_none_or(|store| store.may_overtake(bytes, parts))
        };
        QueueView {
            urgent: (self.is_paper() || !crowded) && queue.has_urgent() && may_overtake(),
            waiting: queue.has_waiting(),
            in_flight: side.work.in_flight(),
            drain_in_flight: side.work.drains(),
            pressed: crowded || self.flushes.are_waited_for(),
            logged: side.store().is_some(),
        }
    }

    fn issue(self: &Rc<Self>, index: usize, batch: Batch) {
        let side = &self.sides[index];
        let operation = side.start(self.rt.now());
        add(&side.counts.writes, 1);
        add(
            &side.counts.written_bytes,
            batch.range.end - batch.range.start,
        );
        add(&side.counts.merged, batch.parts.len() as u64 - 1);
        if batch.drained {
            side.work.drain_starts();
        }
        // The change must be appended before any other task runs. Until then, the log of the side
        // does not know that the side was given the change, and could state that no change is
        // missing.
        let appended = self.append_to_log(index, &batch);
        let shared = Rc::clone(self);
        self.tasks.spawn(async move {
            let result = match appended {
                Some(outcomes) => all_stored(outcomes).await,
                None => shared.store_bare(index, &batch).await,
            };
            shared.completed(index, operation, batch, result);
        });
    }

    /// Appends each part of a batch to the log of a side; `None` when the side has no log.
    fn append_to_log(&self, index: usize, batch: &Batch) -> Option<Vec<Outcome>> {
        let side = &self.sides[index];
        let store = side.store()?;
        let append = |(range, waiting): &(Range<u64>, super::queue::Waiting)| {
            let number = waiting.ticket.seq;
            let stands_for = side.queue.borrow().stands_for(number);
            let change = &waiting.change;
            let append = match change.op {
                Op::Write => {
                    let (payload, digests) = (change.payload.clone(), change.digests.clone());
                    Append::known(range.clone(), payload, digests, number)
                }
                _ => {
                    let space = match change.op == Op::WriteZeroes && change.flags.keep_allocated {
                        true => Space::Kept,
                        false => Space::Freed,
                    };
                    Append::zeroes(range.clone(), space, number)
                }
            };
            store.append(append.standing_for(stands_for))
        };
        Some(batch.parts.iter().map(append).collect())
    }

    /// Performs a batch on a bare device. A discard is replaced by write-zeroes if discarded blocks
    /// of the device are not guaranteed to read as zeroes.
    async fn store_bare(&self, index: usize, batch: &Batch) -> Result<(), IoError> {
        let side = &self.sides[index];
        let len = batch.range.end - batch.range.start;
        let request = match batch.change.op {
            Op::Write => {
                let payload = batch.change.payload.clone();
                Request::write(batch.range.start, payload, batch.change.flags)
            }
            // All sides must have the same content afterwards, so a discard without a guarantee of
            // zeroes is not enough.
            Op::Discard if !side.device.geometry().discard_zeroes => {
                Request::without_data(Op::WriteZeroes, batch.range.start, len, batch.change.flags)
            }
            op => Request::without_data(op, batch.range.start, len, batch.change.flags),
        };
        let request = request.from_origin(batch.change.origin);
        side.change_bare(request).await
    }

    fn completed(
        self: &Rc<Self>,
        index: usize,
        operation: u64,
        batch: Batch,
        result: Result<(), IoError>,
    ) {
        let (side, now) = (&self.sides[index], self.rt.now());
        let started = side.finish(operation, now);
        if batch.drained {
            side.work.drain_ends();
        }
        let range = batch.range.clone();
        match result {
            Ok(()) => {
                side.errors_in_a_row.set(0);
                side.policy
                    .borrow_mut()
                    .completed(now.ns_since(started.at), started.ahead);
                if side.is_active() {
                    side.queue.borrow_mut().stored(&batch, index, now);
                } else {
                    // The side was ejected with this batch in flight, so the ranges of the batch
                    // are already recorded as out of sync.
                    side.queue
                        .borrow_mut()
                        .abandoned(&batch, index, IoError::Timeout);
                }
            }
            Err(error) => self.failed_on_side(index, batch, error),
        }
        // The latency limit of the side now takes this completion into account, so check again
        // whether the side is stuck.
        side.refresh_stuck(now);
        self.unexpose(&range);
        side.changed.notify();
        self.exposure.backpressured_writes.wake_first();
        self.repair.following.wake_first();
        self.pump(index);
    }

    /// Handles a batch that failed on a side. The batch is retried until the side is considered
    /// absent. The last healthy side is never ejected. On that side, the batch is retried as long
    /// as it is possible that one of its writes was acknowledged or read; otherwise, the client
    /// gets the error.
    fn failed_on_side(self: &Rc<Self>, index: usize, batch: Batch, error: IoError) {
        let (side, now) = (&self.sides[index], self.rt.now());
        add(&side.counts.errors, 1);
        // An entry of a log that fails takes with it all batches that have a part in it or in the
        // entries behind it. Nothing is sent between a failure and the next attempt, so what fails
        // in between failed with it.
        let is_same_failure = now < side.retry_at.get();
        let in_a_row = side.errors_in_a_row.get() + u32::from(!is_same_failure);
        side.errors_in_a_row.set(in_a_row);
        // The last healthy side must eventually store every acknowledged write. A batch with an
        // acknowledged write is retried without limit, and is read from memory in the meantime.
        let only = self.healthy() == [index];
        let given_up = only && side.queue.borrow().may_be_given_up(&batch);
        if given_up {
            self.lack_elsewhere(index, &batch);
        }
        if given_up || !side.is_active() {
            side.queue.borrow_mut().abandoned(&batch, index, error);
            return;
        }
        let last = !self.another_is_healthy(index);
        side.queue.borrow_mut().failed(batch, index, now);
        if in_a_row >= ERRORS_IN_A_ROW_MAX && !last {
            self.give_up(index, error);
        } else if !is_same_failure {
            side.policy.borrow_mut().overdue(now.as_ns());
            self.escalate_elsewhere(index);
            let again = in_a_row.min(ERRORS_IN_A_ROW_MAX);
            self.retry_later(index, RETRY_NS_MIN << again);
        }
    }

    /// Records that all sides but `index` lack the ranges of a batch. Called when side `index`, the
    /// only healthy side, abandons the writes of the batch. These writes fail, whatever their
    /// outcome on the other sides. Without the record, a side that joins while the writes are still
    /// in flight on it would treat them as stored.
    fn lack_elsewhere(&self, index: usize, batch: &Batch) {
        for side in self.sides.iter().filter(|side| side.index != index) {
            for (_, part) in &batch.parts {
                side.note_lack(part.ticket.range.clone());
            }
        }
    }

    fn retry_later(self: &Rc<Self>, index: usize, delay_ns: u64) {
        let at = self.rt.now() + Duration::from_nanos(delay_ns);
        self.sides[index].retry_at.set(at);
        let shared = Rc::clone(self);
        self.tasks.spawn(async move {
            shared.rt.sleep_until(at).await;
            shared.pump(index);
        });
    }

    /// Makes the sides agree after a write has failed on every side whose result counts for the
    /// acknowledgement. Each side may hold the old content, the new content, or a mixture. A
    /// healthy side that is not out of sync in the range is chosen as the source, and all other
    /// sides are marked as out of sync there. The source lacks no older write of the range, even if
    /// it lagged. It would lack one only if it had abandoned this write after this write replaced
    /// the older one in its queue, and a side never abandons such a write.
    fn failed_everywhere(&self, ticket: &Ticket) {
        add(&self.counts.failed_writes, 1);
        let mut order = self.read_order().into_iter();
        let truth = order.find(|&side| {
            let side = &self.sides[side];
            side.is_healthy() && side.out_of_sync.is_clear(&ticket.range)
        });
        for side in self.sides.iter() {
            if Some(side.index) != truth {
                side.out_of_sync.forget_corrupt(ticket.range.clone());
                side.note_lack(ticket.range.clone());
            }
        }
    }

    /// Makes writes urgent on all active sides other than `slow`: the unacknowledged writes that
    /// are in the queue of `slow` and that no side has stored yet.
    pub(super) fn escalate_elsewhere(self: &Rc<Self>, slow: usize) {
        if self.is_paper() {
            return;
        }
        let waiting: Vec<Rc<Ticket>> = self.sides[slow]
            .queue
            .borrow()
            .unacknowledged()
            .filter(|ticket| !ticket.any_done())
            .cloned()
            .collect();
        for side in self
            .sides
            .iter()
            .filter(|side| side.index != slow && side.is_active())
        {
            for ticket in &waiting {
                side.queue.borrow_mut().make_urgent(ticket);
            }
            self.pump(side.index);
        }
    }

    /// Marks a side as delayed when its oldest outstanding write is older than the latency limit of
    /// the side, even if the side completes operations. A delayed side catches up in batches.
    fn note_backlog(&self, index: usize) {
        let side = &self.sides[index];
        let oldest = side.queue.borrow().oldest_admitted();
        let limit_ns = side.policy.borrow().own_limit_ns(0);
        if let (Some(oldest), Some(limit_ns)) = (oldest, limit_ns)
            && self.rt.now().ns_since(oldest) > limit_ns
        {
            side.policy.borrow_mut().overdue(self.rt.now().as_ns());
        }
    }

    /// Removes from the exposure the parts of a range that every healthy or joining side now holds.
    pub(super) fn unexpose(&self, range: &Range<u64>) {
        if self.exposure.is_clear(range) {
            return;
        }
        let now = self.rt.now();
        let mut pending = RangeSet::new();
        for side in self.sides.iter().filter(|side| side.is_counted_on()) {
            for part in side.queue.borrow().pending_in(range) {
                pending.insert(part);
            }
        }
        for held in pending.gaps(range) {
            self.exposure.remove(now, held);
        }
    }

    /// Recomputes the exposure after the set of healthy and joining sides has changed.
    pub(super) fn recount_exposure(&self) {
        for range in self.exposure.ranges() {
            self.unexpose(&range);
        }
        self.exposure.backpressured_writes.wake_first();
    }

    /// Returns the age in nanoseconds of the oldest acknowledged write that a healthy or joining
    /// side lacks; 0 when no bytes are exposed.
    pub(super) fn exposure_age_ns(&self) -> u64 {
        if self.exposure.is_empty() {
            return 0;
        }
        let oldest = self.sides.iter().filter_map(|side| {
            let from = side.life.counted_from()?;
            side.queue.borrow().oldest_acknowledged(from)
        });
        let oldest: Option<Instant> = oldest.min();
        oldest.map_or(0, |acknowledged| self.rt.now().ns_since(acknowledged))
    }
}
