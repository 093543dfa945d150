//! The queue of one side: waiting writes, writes in flight, and the remaining bytes of each
//! numbered write.
//!
//! This module is pure bookkeeping without I/O. It guarantees that overlapping writes apply on the
//! side in the order in which they were admitted: a write that overlaps a write in flight waits for
//! the end of that write. It also guarantees that a newer write replaces the waiting parts of older
//! writes, so that no content is written twice.
//!
//! The content of a side with a log must pass through consistent points (states that the volume had
//! between two changes). This limits replacement: waiting writes are in [`groups`], and a newer
//! write replaces older writes only in the last group, and only while no part of that group has
//! been given to the side.

mod groups;
#[cfg(test)]
mod tests;
mod ticket;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::{Instant, Payload};

use self::groups::Groups;
pub(super) use self::ticket::{Progress, Ticket};
use super::store::digests::Digests;
use crate::error::IoError;
use crate::extent_map::{Cut, ExtentMap};
use crate::range_set::RangeSet;
use crate::request::{self, Flags, Op};

/// Minimum number of batches in elevator order between two jumps to the oldest write: a jump for
/// each batch would make the order random again.
const BATCHES_BETWEEN_DISCONTINUITIES: u32 = 32;

/// Operation of a write with its payload.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) op: Op,
    pub(super) flags: Flags,
    pub(super) origin: request::Origin,
    pub(super) payload: Payload,
    /// Block digests of the payload, if a side needs them.
    pub(super) digests: Option<Digests>,
}

impl Cut for Change {
    fn cut(&self, range: Range<u64>) -> Change {
        let payload = match self.op {
            Op::Write => self.payload.slice(range.start as usize..range.end as usize),
            _ => Payload::empty(),
        };
        Change {
            op: self.op,
            flags: self.flags,
            origin: self.origin,
            payload,
            digests: match self.op {
                Op::Write => self.digests.as_ref().map(|digests| digests.cut(range)),
                _ => None,
            },
        }
    }
}

/// A part of an admitted write that waits or is in flight.
#[derive(Clone)]
pub(super) struct Waiting {
    pub(super) change: Change,
    pub(super) ticket: Rc<Ticket>,
}

impl Cut for Waiting {
    fn cut(&self, range: Range<u64>) -> Waiting {
        Waiting {
            change: self.change.cut(range),
            ticket: Rc::clone(&self.ticket),
        }
    }
}

/// Parts of writes that are sent to the device as one operation.
pub(super) struct Batch {
    pub(super) range: Range<u64>,
    pub(super) change: Change,
    pub(super) parts: Vec<(Range<u64>, Waiting)>,
    /// True if the batch is included in the limit on drained batches in flight, because it was
    /// taken in elevator order or while the side was delayed.
    pub(super) drained: bool,
}

/// A write with parts that still wait or are in flight on this side.
struct Outstanding {
    bytes: u64,
    /// Number of bytes of the write that still wait to be given to the side.
    unsent: u64,
    ticket: Rc<Ticket>,
    /// Sequence number of the oldest write that this write stands for: its own number, or the
    /// number of an older write that it replaced before the side had stored the older write. The
    /// older write is treated as stored only once this write is stored.
    origin: u64,
    /// Error of a part that could not be stored. The write is abandoned once its other parts have
    /// ended.
    failed: Option<IoError>,
}

/// The oldest write that one or more outstanding writes stand for. It is either an outstanding
/// write itself, or an older write that outstanding writes have replaced. Such an older write is
/// treated as stored only once the outstanding writes that stand for it are stored.
struct SourceWrite {
    ticket: Rc<Ticket>,
    count: usize,
    /// Number of the outstanding writes that stand for this write and that the side has not been
    /// given completely.
    unsent: usize,
}

/// Turn of a waiting part in the order of admission. A write that replaces an older write takes the
/// turn of the older one. With a turn of its own, blocks that are written again and again while a
/// long group waits would be exposed for as long as two groups need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    /// Sequence number of the oldest write for which the write stands.
    origin: u64,
    seq: u64,
    /// Offset at which the part begins.
    start: u64,
}

/// The queue of one side; see the module documentation.
pub(super) struct SideQueue {
    waiting: Groups,
    /// Whether the side has a log.
    logged: bool,
    /// Ranges in flight, each with its part of a write.
    flying: ExtentMap<Waiting>,
    outstanding: BTreeMap<u64, Outstanding>,
    origins: BTreeMap<u64, SourceWrite>,
    /// Writes that have replaced an older write, and of which no part waits any more. If such a
    /// write is not below a consistent point, the writes that it replaced must not be below the
    /// point either, because the side was never given them. Key: the sequence number of the write.
    /// Value: the sequence number of the oldest write that it replaced.
    ahead: BTreeMap<u64, u64>,
    /// Parts of admitted writes in the order in which they are given to the side. Parts that no
    /// longer wait are skipped.
    order: BTreeMap<Turn, Range<u64>>,
    /// Urgent writes, which no other side is likely to store in time, in the order in which they
    /// became urgent.
    urgent: VecDeque<Rc<Ticket>>,
    /// Whether a write that was sent immediately stays urgent, as in the paper's rules. By this
    /// project's rules, a write is urgent only until a side has it.
    stays_urgent: bool,
    /// Current position of the elevator.
    head: u64,
    /// Number of batches since the elevator last jumped to the oldest write.
    since_discontinuity: u32,
}

impl SideQueue {
    /// Creates an empty queue. `logged` is true for a side with a log. For `stays_urgent`, see
    /// [`SideQueue::stays_urgent`].
    pub(super) fn new(stays_urgent: bool, logged: bool) -> SideQueue {
        SideQueue {
            waiting: Groups::new(logged),
            logged,
            flying: ExtentMap::new(),
            outstanding: BTreeMap::new(),
            origins: BTreeMap::new(),
            ahead: BTreeMap::new(),
            order: BTreeMap::new(),
            urgent: VecDeque::new(),
            stays_urgent,
            head: 0,
            since_discontinuity: 0,
        }
    }

    /// Adds an admitted write to a group. Parts of older writes that wait in the same group are
    /// dropped where the new write overlaps them, because it replaces them. A group of a side with
    /// a log accepts no more writes once it has reached `group_bytes_max`.
    pub(super) fn push(
        &mut self,
        change: Change,
        ticket: &Rc<Ticket>,
        side: usize,
        urgent: bool,
        group_bytes_max: u64,
    ) {
        let range = ticket.range.clone();
        let group = self.waiting.gathering(group_bytes_max);
        let replaced = group.remove(range.clone());
        let entry = Waiting {
            change,
            ticket: Rc::clone(ticket),
        };
        group.insert(range.clone(), entry);
        let origin = self.settle_replaced(replaced, side, ticket.admitted);
        let left = Outstanding {
            bytes: range.end - range.start,
            unsent: range.end - range.start,
            ticket: Rc::clone(ticket),
            origin: ticket.seq,
            failed: None,
        };
        self.outstanding.insert(ticket.seq, left);
        self.add_origin(Rc::clone(ticket), true);
        if let Some(origin) = origin {
            self.inherit(ticket.seq, origin);
        }
        self.add_turn(ticket.seq, range);
        if urgent {
            self.urgent.push_back(Rc::clone(ticket));
        }
        self.sweep_order();
    }

    /// Removes the waiting parts that a newer write has replaced. From now on, the newer write
    /// stands for the replaced writes: they are treated as stored only once the newer write is
    /// stored. Returns the oldest write for which the newer write stands; `None` when no part was
    /// replaced.
    fn settle_replaced(
        &mut self,
        replaced: Vec<(Range<u64>, Waiting)>,
        side: usize,
        now: Instant,
    ) -> Option<Rc<Ticket>> {
        let mut oldest: Option<Rc<Ticket>> = None;
        for (part, waiting) in replaced {
            let bytes = part.end - part.start;
            assert!(
                waiting.ticket.acknowledged.get().is_some(),
                "only acknowledged writes are replaced: the range lock keeps others apart"
            );
            let origin = self.origin_of(waiting.ticket.seq);
            if oldest.as_ref().is_none_or(|o| origin.seq < o.seq) {
                oldest = Some(origin);
            }
            waiting.ticket.stored(side, bytes, now);
            self.sent(waiting.ticket.seq, bytes);
            self.settle(waiting.ticket.seq, bytes, side);
        }
        oldest
    }

    /// Records that `bytes` bytes of the write `seq` no longer wait, because they were given to the
    /// side or dropped.
    fn sent(&mut self, seq: u64, bytes: u64) {
        let entry = self.outstanding.get_mut(&seq);
        let entry = entry.expect("a part belongs to a write");
        entry.unsent -= bytes;
        if entry.unsent == 0 {
            let origin = self.origins.get_mut(&entry.origin);
            origin.expect("an origin is listed").unsent -= 1;
            if entry.origin < seq {
                self.ahead.insert(seq, entry.origin);
            }
        }
    }

    /// Records that bytes of a write wait again.
    fn unsent(&mut self, seq: u64, bytes: u64) {
        let entry = self.outstanding.get_mut(&seq);
        let entry = entry.expect("a part belongs to a write");
        if entry.unsent == 0 && bytes > 0 {
            let origin = self.origins.get_mut(&entry.origin);
            origin.expect("an origin is listed").unsent += 1;
        }
        entry.unsent += bytes;
    }

    /// Returns the last consistent point: the highest sequence number, at most `limit`, such that
    /// the side was given every write below it. Once these writes are stored, the content of the
    /// side equals the volume at that point.
    ///
    /// A newer write can replace an older write in the queue and be given to the side before its
    /// turn. The side is then never given the older content. So if the newer write is not below the
    /// point, the older write must not be below it either.
    pub(super) fn given_below(&self, limit: u64) -> u64 {
        let mut unsent = self.origins.iter().filter(|(_, origin)| origin.unsent > 0);
        let below = unsent.next().map_or(limit, |(seq, _)| limit.min(*seq));
        self.moment_below(below)
    }

    /// Returns the last consistent point, at most `below`. If a write at or above the point has
    /// replaced an older write below the point, the side was never given the older write, so the
    /// point moves down to the older write. More writes are then at or above the point, so the
    /// check is repeated.
    fn moment_below(&self, mut below: u64) -> u64 {
        loop {
            let replaced = self.ahead.range(below..).map(|(_, origin)| *origin).min();
            match replaced.filter(|replaced| *replaced < below) {
                Some(replaced) => below = replaced,
                None => return below,
            }
        }
    }

    /// Returns the sequence number of the oldest write for which the outstanding write `seq`
    /// stands: `seq` itself, or the number of an older write that it has replaced.
    pub(super) fn stands_for(&self, seq: u64) -> u64 {
        self.outstanding[&seq].origin
    }

    fn settle(&mut self, seq: u64, bytes: u64, side: usize) {
        let entry = self
            .outstanding
            .get_mut(&seq)
            .expect("a part belongs to a write");
        entry.bytes -= bytes;
        if entry.bytes == 0 {
            let entry = self.outstanding.remove(&seq);
            let entry = entry.expect("it was there a moment ago");
            self.drop_origin(entry.origin);
            if let Some(error) = entry.failed {
                entry.ticket.give_up(side, error);
            }
        }
    }

    /// Returns the oldest write for which the outstanding write `seq` stands: the write `seq`
    /// itself, or an older write that it has replaced.
    fn origin_of(&self, seq: u64) -> Rc<Ticket> {
        Rc::clone(&self.origins[&self.outstanding[&seq].origin].ticket)
    }

    fn add_origin(&mut self, ticket: Rc<Ticket>, unsent: bool) {
        let origin = self.origins.entry(ticket.seq).or_insert(SourceWrite {
            ticket,
            count: 0,
            unsent: 0,
        });
        origin.count += 1;
        origin.unsent += usize::from(unsent);
    }

    fn drop_origin(&mut self, seq: u64) {
        let origin = self.origins.get_mut(&seq).expect("an origin is listed");
        origin.count -= 1;
        if origin.count == 0 {
            self.origins.remove(&seq);
            self.forget_ahead();
        }
    }

    /// Drops the records in `ahead` on which no later consistent point can depend. These are
    /// records of writes older than every write in `origins`. Such a record is kept only if a newer
    /// record, directly or through other records, names its write or an older write as replaced.
    fn forget_ahead(&mut self) {
        let oldest = self.origins.keys().next().copied().unwrap_or(u64::MAX);
        if self.ahead.keys().next().is_some_and(|seq| *seq < oldest) {
            let needed = self.moment_below(oldest);
            self.ahead = self.ahead.split_off(&needed);
        }
    }

    /// Records that the outstanding write `seq` also stands for the older write `origin`: `origin`
    /// is treated as stored only once `seq` is stored.
    fn inherit(&mut self, seq: u64, origin: Rc<Ticket>) {
        let entry = self.outstanding.get_mut(&seq);
        let entry = entry.expect("what replaces a write is outstanding");
        if origin.seq < entry.origin {
            let before = std::mem::replace(&mut entry.origin, origin.seq);
            let unsent = entry.unsent > 0;
            if unsent {
                let old = self.origins.get_mut(&before);
                old.expect("an origin is listed").unsent -= 1;
            }
            self.add_origin(origin, unsent);
            self.drop_origin(before);
        }
    }

    /// Makes the waiting parts of a write urgent.
    pub(super) fn make_urgent(&mut self, ticket: &Rc<Ticket>) {
        let listed = self.urgent.iter().any(|other| other.seq == ticket.seq);
        if !listed && self.waits(ticket) {
            self.urgent.push_back(Rc::clone(ticket));
        }
    }

    /// Returns true when an urgent write waits and no older write, waiting or in flight, blocks it.
    pub(super) fn has_urgent(&mut self) -> bool {
        self.forget_what_is_not_urgent();
        self.first_urgent().is_some()
    }

    fn forget_what_is_not_urgent(&mut self) {
        let mut urgent = std::mem::take(&mut self.urgent);
        urgent.retain(|ticket| (self.stays_urgent || !ticket.any_done()) && self.waits(ticket));
        self.urgent = urgent;
    }

    fn waits(&self, ticket: &Ticket) -> bool {
        self.is_queued(ticket.seq, &ticket.range)
    }

    /// Returns true when a part of a write waits in a range, in any group.
    fn is_queued(&self, seq: u64, range: &Range<u64>) -> bool {
        let mut there = self.waiting.overlapping(range);
        there.any(|(_, entry)| entry.ticket.seq == seq)
    }

    /// Returns the next urgent part. By the paper's rules, this is the part of the oldest urgent
    /// write. By this project's rules, it is the urgent part that comes next in the direction of
    /// the elevator, because the order of the positions matters most when one disk serves all
    /// requests alone.
    fn first_urgent(&self) -> Option<(u64, Range<u64>)> {
        let mut free = self.urgent.iter().filter_map(|ticket| {
            let part = self.first_free_of_all(ticket.seq, &ticket.range)?;
            Some((ticket.seq, part))
        });
        if self.stays_urgent {
            return free.next();
        }
        free.min_by_key(|(_, part)| (part.start < self.head, part.start))
    }

    /// Returns the first part of the write `seq` that overlaps no write in flight. Searches only
    /// the first group, which is the one being given to the side.
    fn first_free(&self, seq: u64, range: &Range<u64>) -> Option<Range<u64>> {
        let mut parts = self.waiting.first().overlapping(range);
        parts
            .find(|(part, entry)| entry.ticket.seq == seq && self.flying.is_clear(part))
            .map(|(part, _)| part)
    }

    /// Returns the first part of a write that can be sent now. The part can be in any group. It is
    /// allowed to overtake parts that it does not overlap.
    fn first_free_of_all(&self, seq: u64, range: &Range<u64>) -> Option<Range<u64>> {
        let is_free = |part: &Range<u64>| self.flying.is_clear(part);
        self.waiting.first_that(seq, range, is_free)
    }

    /// Takes the next urgent part from the queue as a batch.
    pub(super) fn take_urgent(&mut self) -> Option<Batch> {
        let (seq, part) = self.first_urgent()?;
        self.head = part.end;
        Some(self.take(seq, part, false))
    }

    /// Removes from the queue the oldest part that can be sent now, and returns it as a batch.
    pub(super) fn take_in_order(&mut self, drained: bool) -> Option<Batch> {
        while let Some((turn, range)) = self.order.first_key_value() {
            if self.is_queued(turn.seq, range) {
                break;
            }
            self.order.pop_first();
        }
        let (seq, part) = self.order.iter().find_map(|(turn, range)| {
            let part = self.first_free(turn.seq, range)?;
            Some((turn.seq, part))
        })?;
        Some(self.take(seq, part, drained))
    }

    /// Takes the next batch in elevator order: adjacent parts with the same operation and flags, of
    /// at most `bytes_max` together. With `overdue`, which means that the oldest write has waited
    /// too long, the elevator can first jump to the oldest write.
    pub(super) fn take_batch(&mut self, bytes_max: u64, overdue: bool) -> Option<Batch> {
        self.since_discontinuity = self.since_discontinuity.saturating_add(1);
        if overdue
            && self.since_discontinuity > BATCHES_BETWEEN_DISCONTINUITIES
            && let Some(oldest) = self.oldest_waiting()
        {
            self.head = oldest.start;
            self.since_discontinuity = 0;
        }
        let (seq, first) = self.next_free_from_head()?;
        let mut batch = self.take(seq, first, true);
        while batch.range.end - batch.range.start < bytes_max {
            let Some((next, entry)) = self.waiting.first().starting_at(batch.range.end) else {
                break;
            };
            let joins = entry.change.op == batch.change.op
                && entry.change.flags == batch.change.flags
                && next.end - batch.range.start <= bytes_max
                && self.flying.is_clear(&next);
            if !joins {
                break;
            }
            let seq = entry.ticket.seq;
            let more = self.take(seq, next, true);
            batch.range.end = more.range.end;
            batch.change.payload.append(more.change.payload);
            batch.parts.extend(more.parts);
        }
        self.head = batch.range.end;
        Some(batch)
    }

    fn oldest_waiting(&self) -> Option<Range<u64>> {
        let mut oldest = self.outstanding.iter();
        oldest.find_map(|(&seq, entry)| self.first_free(seq, &entry.ticket.range))
    }

    /// Returns true when a part of the write is in flight.
    pub(super) fn is_flying(&self, ticket: &Ticket) -> bool {
        self.flying
            .overlapping(&ticket.range)
            .any(|(_, entry)| entry.ticket.seq == ticket.seq)
    }

    fn next_free_from_head(&self) -> Option<(u64, Range<u64>)> {
        let (waiting, mut position) = (self.waiting.first(), self.head);
        // Few operations are in flight, so few waiting entries overlap them and are skipped. The
        // loop takes at most two steps for each range in flight, and one more. If it finds no free
        // entry, all waiting entries are searched below.
        for _ in 0..=2 * self.flying.len() {
            let (range, entry) = waiting.next_from(position)?;
            if self.flying.is_clear(&range) {
                return Some((entry.ticket.seq, range));
            }
            position = range.end;
        }
        waiting
            .iter()
            .find(|(range, _)| self.flying.is_clear(range))
            .map(|(range, entry)| (entry.ticket.seq, range))
    }

    /// Moves one waiting part of a write to the ranges in flight, and returns it as a batch.
    fn take(&mut self, seq: u64, range: Range<u64>, drained: bool) -> Batch {
        let waiting = self.waiting.take(&range, seq);
        self.sent(seq, range.end - range.start);
        assert!(
            self.flying.is_clear(&range),
            "per side, overlapping writes apply in order"
        );
        self.flying.insert(range.clone(), waiting.clone());
        Batch {
            change: waiting.change.clone(),
            range: range.clone(),
            parts: vec![(range, waiting)],
            drained,
        }
    }

    /// Handles a batch that the device has stored.
    pub(super) fn stored(&mut self, batch: &Batch, side: usize, now: Instant) {
        self.arrived(batch);
        for (range, waiting) in &batch.parts {
            let bytes = range.end - range.start;
            self.settle(waiting.ticket.seq, bytes, side);
            waiting.ticket.stored(side, bytes, now);
        }
    }

    /// Handles a batch that the device could not store: its parts wait again. Without a log, only
    /// the parts that no newer write has replaced wait again.
    pub(super) fn failed(&mut self, batch: Batch, side: usize, now: Instant) {
        self.arrived(&batch);
        for (range, waiting) in batch.parts {
            if self.logged {
                self.wait_again(range.clone(), waiting.clone());
                self.waiting.put_back(range, waiting);
            } else {
                self.failed_bare(&range, &waiting, side, now);
            }
        }
    }

    /// Inserts a part of a write into the order of admission again.
    fn wait_again(&mut self, part: Range<u64>, waiting: Waiting) {
        let seq = waiting.ticket.seq;
        self.unsent(seq, part.end - part.start);
        self.add_turn(seq, part);
    }

    /// Adds a waiting part of an outstanding write to the order.
    fn add_turn(&mut self, seq: u64, part: Range<u64>) {
        let turn = Turn {
            origin: self.stands_for(seq),
            seq,
            start: part.start,
        };
        let end = part.end;
        let listed = self.order.entry(turn).or_insert(part);
        // Another part of the write may wait behind one that waits again.
        listed.end = listed.end.max(end);
    }

    fn failed_bare(&mut self, range: &Range<u64>, waiting: &Waiting, side: usize, now: Instant) {
        for gap in self.waiting.first().gaps(range) {
            let part = waiting.cut(gap.start - range.start..gap.end - range.start);
            self.waiting.first_mut().insert(gap.clone(), part.clone());
            self.wait_again(gap, part);
        }
        let there = || self.waiting.first().overlapping(range);
        let kept: u64 = there()
            .filter(|(_, e)| e.ticket.seq == waiting.ticket.seq)
            .map(|(r, _)| r.end.min(range.end) - r.start.max(range.start))
            .sum();
        let replaced = range.end - range.start - kept;
        if replaced > 0 {
            let origin = self.origin_of(waiting.ticket.seq);
            let newer = there().map(|(_, e)| e.ticket.seq);
            let newer = newer.filter(|seq| *seq != waiting.ticket.seq);
            for seq in newer.collect::<Vec<_>>() {
                self.inherit(seq, Rc::clone(&origin));
            }
            self.settle(waiting.ticket.seq, replaced, side);
            waiting.ticket.stored(side, replaced, now);
        }
    }

    /// Removes a batch whose operation has ended, whatever its outcome, from the ranges in flight.
    fn arrived(&mut self, batch: &Batch) {
        let arrived = self.flying.remove(batch.range.clone());
        let bytes: u64 = arrived
            .iter()
            .map(|(range, _)| range.end - range.start)
            .sum();
        assert_eq!(
            bytes,
            batch.range.end - batch.range.start,
            "a batch lands once"
        );
    }

    /// Drops all waiting parts, marks their writes as failed on the side, and returns the ranges
    /// that the side therefore lacks.
    pub(super) fn abandon_waiting(&mut self, side: usize, error: IoError) -> Vec<Range<u64>> {
        let dropped = self.waiting.take_all();
        self.order.clear();
        self.urgent.clear();
        for (range, waiting) in &dropped {
            self.sent(waiting.ticket.seq, range.end - range.start);
            self.settle(waiting.ticket.seq, range.end - range.start, side);
            waiting.ticket.give_up(side, error);
        }
        dropped.into_iter().map(|(range, _)| range).collect()
    }

    /// Returns true when every write in a batch can be abandoned, because no client can have seen
    /// the write: it is not acknowledged, it has not been stored by a side that decides its
    /// outcome, and it has not replaced an older write, which a client might have seen.
    pub(super) fn may_be_given_up(&self, batch: &Batch) -> bool {
        batch.parts.iter().all(|(_, part)| {
            let own = self.outstanding[&part.ticket.seq].origin == part.ticket.seq;
            own && part.ticket.acknowledged.get().is_none() && !part.ticket.any_done()
        })
    }

    /// Handles a batch that will not be stored. The waiting parts of its writes are dropped, and
    /// each write is marked as failed on the side once none of its parts is in flight.
    pub(super) fn abandoned(&mut self, batch: &Batch, side: usize, error: IoError) {
        self.arrived(batch);
        for (range, waiting) in &batch.parts {
            let ticket = &waiting.ticket;
            if let Some(entry) = self.outstanding.get_mut(&ticket.seq) {
                entry.failed = Some(error);
            }
            self.settle(ticket.seq, range.end - range.start, side);
            for part in self.waiting.take_parts(ticket.seq, &ticket.range) {
                self.sent(ticket.seq, part.end - part.start);
                self.settle(ticket.seq, part.end - part.start, side);
            }
        }
    }

    /// Marks the writes in flight as failed on the side. Their ranges remain recorded as in flight.
    pub(super) fn give_up_flying(&self, side: usize, error: IoError) {
        for (_, waiting) in self.flying.iter() {
            waiting.ticket.give_up(side, error);
        }
    }

    /// Returns true when no part of the range waits or is in flight, so that the side has the
    /// newest content.
    pub(super) fn is_current(&self, range: &Range<u64>) -> bool {
        self.waiting.is_clear(range) && self.flying.is_clear(range)
    }

    /// Returns the first position after the start of a range at which a waiting part or a part in
    /// flight begins or ends; the end of the range if there is no such position.
    pub(super) fn first_boundary(&self, range: &Range<u64>) -> u64 {
        let waiting = self.waiting.first_boundary(range);
        waiting.min(self.flying.first_boundary(range))
    }

    /// Returns the parts of a range that wait or are in flight on this side.
    pub(super) fn pending_in(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut pending = RangeSet::new();
        let waiting = self.waiting.overlapping(range);
        for (part, _) in waiting.chain(self.flying.overlapping(range)) {
            pending.insert(part.start.max(range.start)..part.end.min(range.end));
        }
        pending.iter().collect()
    }

    /// Returns the newest changes in a range that this side has yet to store, in ascending order of
    /// position and cut to the range.
    pub(super) fn newest_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, Waiting)> {
        let mut newest = ExtentMap::new();
        let flying = self.flying.overlapping(range);
        for (part, waiting) in flying.chain(self.waiting.overlapping(range)) {
            let cut = part.start.max(range.start)..part.end.min(range.end);
            let inside = cut.start - part.start..cut.end - part.start;
            newest.insert(cut, waiting.cut(inside));
        }
        newest
            .iter()
            .map(|(part, waiting)| (part, waiting.clone()))
            .collect()
    }

    /// Returns true when at least one waiting part can be given to the side.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.first().is_empty()
    }

    /// Returns the number of waiting bytes.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting.bytes()
    }

    /// Returns the number of waiting parts.
    pub(super) fn waiting_parts(&self) -> u64 {
        self.waiting.parts() as u64
    }

    /// Returns the number of bytes in flight.
    pub(super) fn flying_bytes(&self) -> u64 {
        self.flying.bytes()
    }

    /// Returns the sequence number of the oldest write that this side has not stored. A write also
    /// counts as stored once a newer write that replaced it is stored.
    pub(super) fn oldest_seq(&self) -> Option<u64> {
        self.origins.keys().next().copied()
    }

    /// Returns the time of acknowledgement of the oldest acknowledged write with a sequence number
    /// of at least `from` that is not on this side.
    pub(super) fn oldest_acknowledged(&self, from: u64) -> Option<Instant> {
        self.origins
            .range(from..)
            .find_map(|(_, origin)| origin.ticket.acknowledged.get())
    }

    /// Returns the time of admission of the oldest write that waits or is in flight.
    pub(super) fn oldest_admitted(&self) -> Option<Instant> {
        let oldest = self.outstanding.values().next();
        oldest.map(|entry| entry.ticket.admitted)
    }

    /// Returns the writes of which parts wait or are in flight.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = &Rc<Ticket>> {
        self.outstanding.values().map(|left| &left.ticket)
    }

    /// Returns the outstanding writes that are not yet acknowledged.
    pub(super) fn unacknowledged(&self) -> impl Iterator<Item = &Rc<Ticket>> {
        let tickets = self.outstanding.values().map(|entry| &entry.ticket);
        tickets.filter(|ticket| ticket.acknowledged.get().is_none())
    }

    /// Removes outdated entries from `order` once it has more than 64 entries and more than twice
    /// as many entries as parts wait.
    fn sweep_order(&mut self) {
        if self.order.len() > 64 && self.order.len() > 2 * self.waiting.parts() {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|turn, range| self.is_queued(turn.seq, range));
            self.order = order;
        }
    }
}
