//! HM_READ, the paper's rule for reads: a read goes to the fastest side that has the newest
//! content. If only a queue has the content, it is read from memory. After an error, the read is
//! repeated on another side. A read must never return content older than an acknowledged write.
//!
//! [`super::undecided`] explains when a read waits for a write, and why no returned content is ever
//! reverted.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::hedge::late_after_ns;
use bimetal_rt::Payload;
use bimetal_rt::turn::give_way;
use futures_util::future::Either;

use super::queue::Waiting;
use super::shared::{Shared, VolumeState};
use super::side::{Side, add};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::extent_map::{Cut, ExtentMap};
use crate::extents::ExtentList;
use crate::media::null::zero_payload;
use crate::request::{Extent, IoResult, Op, Origin, Reply, Request};

/// Minimum number of latency samples of a side before reads choose the side by its measured speed
/// instead of by the order in the configuration.
const SAMPLES_MIN: u32 = 16;
/// Another side becomes the preferred side for reads only if its median latency is less than this
/// factor times that of the preferred side. Two equal sides therefore do not alternate.
const FASTER_BY: f64 = 0.8;
/// Interval at which one read is repeated on the sides that are not preferred, to measure their
/// latency.
const PROBE_EVERY_NS: u64 = 1_000_000_000;

/// Maximum number of parts from separate sources in one answer to an extents request.
const EXTENT_PARTS_MAX: usize = 256;

/// Source of a part of a read.
enum Source {
    Side(usize),
    Queue(Waiting),
}

/// Whether a part of an answer to an extents request holds data.
#[derive(Clone, Copy)]
struct IsData(bool);

impl Cut for IsData {
    fn cut(&self, _range: Range<u64>) -> IsData {
        *self
    }
}

/// Returns true when at least one block has the same content in two payloads of equal length.
fn has_equal_block(one: &Payload, other: &Payload) -> bool {
    let block_bytes = BLOCK_BYTES as usize;
    let bytes_of = |payload: &Payload, start: usize| {
        let end = (start + block_bytes).min(payload.len());
        payload.slice(start..end).to_vec()
    };
    let mut starts = (0..one.len()).step_by(block_bytes);
    starts.any(|start| bytes_of(one, start) == bytes_of(other, start))
}

impl Shared {
    /// Reads a range from the sides and the queues.
    pub(super) async fn read(self: &Rc<Self>, request: Request) -> IoResult {
        self.check_readable()?;
        let range = request.offset..request.end();
        let ask = async || {
            let data = self.read_from_any(&range, request.origin).await?;
            self.until_decided(&range, &data).await;
            Ok(Reply::Data(data))
        };
        self.unless_a_write_fails(&range, ask).await
    }

    /// Returns the result of `ask`. If a write that overlaps the range fails during the call, `ask`
    /// is repeated under the lock of the range, and the second result is returned.
    async fn unless_a_write_fails(
        self: &Rc<Self>,
        range: &Range<u64>,
        ask: impl AsyncFn() -> IoResult,
    ) -> IoResult {
        let reading = self.admission.undecided.begin_read(range);
        let found = ask().await;
        if !reading.has_met_failure() {
            return found;
        }
        drop(reading);
        let _locked = self.admission.ranges.lock(range.clone()).await;
        self.check_readable()?;
        ask().await
    }

    /// Waits until every undecided write whose content may be in the answer `data` is decided.
    async fn until_decided(&self, range: &Range<u64>, data: &Payload) {
        if self.admission.undecided.is_clear(range) {
            return;
        }
        let mut found = self.admission.undecided.within(range);
        found.retain(|(part, write)| {
            let inside = |at: u64| (at - range.start) as usize;
            let answer = data.slice(inside(part.start)..inside(part.end));
            has_equal_block(&answer, &self.content_of(write, part.clone()))
        });
        for (_, write) in found {
            self.admission.undecided.until_decided(&write.ticket).await;
        }
    }

    /// Reads a range. After an error of a side, the read is repeated without that side, until it
    /// succeeds or no source is left.
    async fn read_from_any(
        self: &Rc<Self>,
        range: &Range<u64>,
        origin: Origin,
    ) -> Result<Payload, IoError> {
        // Sides that have failed this read.
        let mut failed = Vec::new();
        let mut first_error = None;
        loop {
            match self.read_without(range, origin, &failed).await {
                Ok(data) => return Ok(data),
                Err((Some(side), error)) if error.is_device_fault() => {
                    add(&self.sides[side].counts.errors, 1);
                    self.note_suspects(side);
                    failed.push(side);
                    first_error.get_or_insert(error);
                }
                Err((_, error)) => {
                    let error = first_error.unwrap_or(error);
                    if error == IoError::Corrupt {
                        add(&self.counts.lost_reads, 1);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Marks the blocks that the store of a side has found corrupt as out of sync, so that they are
    /// copied from another side. A block is not marked if no other side has it, or if no side could
    /// provide it in an earlier repair. Reads of such a block still go to the side: they fail for
    /// now, and can succeed later.
    pub(super) fn note_suspects(&self, index: usize) {
        let side = &self.sides[index];
        let Some(store) = side.store() else { return };
        let found = store.take_suspects().into_iter();
        let blocks = found.flat_map(|range| range.step_by(BLOCK_BYTES as usize));
        for start in blocks {
            let range = start..start + BLOCK_BYTES;
            add(&side.counts.corrupt, 1);
            let elsewhere = |other: &&Side| other.index != index && other.is_current(&range);
            let hopeless = self.repair.is_lost(&range);
            // If the set of ranges has no room for the block, the block is not recorded now. The
            // next read of the block finds it corrupt again.
            let noted = side.out_of_sync.has_room();
            if noted && !hopeless && self.sides.iter().any(|other| elsewhere(&other)) {
                if side.out_of_sync.is_clear(&range) {
                    side.out_of_sync.note_corrupt(range.clone());
                }
                side.note_lack(range);
            }
        }
    }

    /// Reads a range from the queues in memory and from the sides that are not in `failed`. The
    /// error of a side is returned with the index of that side.
    async fn read_without(
        self: &Rc<Self>,
        range: &Range<u64>,
        origin: Origin,
        failed: &[usize],
    ) -> Result<Payload, (Option<usize>, IoError)> {
        let from = |side, part| async move {
            let reply = self.read_from(side, &part, origin).await;
            reply.map_err(|error| (Some(side), error))
        };
        if let Some(side) = self.current_side(range, failed) {
            let reply = self.read_hedged(side, range, origin, failed).await;
            let reply = reply.map_err(|error| (Some(side), error))?;
            self.probe_others(side, range);
            return Ok(reply.into_data());
        }
        let mut data = Payload::empty();
        for (part, source) in self.sources(range, failed).map_err(|error| (None, error))? {
            data.append(match source {
                Source::Side(side) => from(side, part).await?.into_data(),
                Source::Queue(waiting) => self.content_of(&waiting, part),
            });
        }
        Ok(data)
    }

    pub(super) fn check_readable(&self) -> Result<(), IoError> {
        match self.state.get() {
            VolumeState::Open | VolumeState::ReadOnly | VolumeState::Frozen => Ok(()),
            VolumeState::Stopped => Err(IoError::Offline),
            VolumeState::Closed => Err(IoError::Closed),
        }
    }

    /// Returns the active sides: the preferred side first, and then the other sides by index.
    pub(super) fn read_order(&self) -> Vec<usize> {
        let mut order = vec![self.preference.side.get()];
        order.extend((0..self.sides.len()).filter(|&side| side != self.preference.side.get()));
        order.retain(|&side| self.sides[side].is_active());
        order
    }

    /// Returns the side from which to read a range: the preferred side or, if it cannot be used,
    /// the first side that can. A side can be used if it has the newest content of the whole range
    /// and is not in `except`.
    pub(super) fn current_side(&self, range: &Range<u64>, except: &[usize]) -> Option<usize> {
        let preferred = self.preference.side.get();
        let good = |side: usize| !except.contains(&side) && self.sides[side].is_current(range);
        if good(preferred) {
            return Some(preferred);
        }
        (0..self.sides.len()).find(|&side| good(side))
    }

    /// Reads from a side. Once the read is late, and if the budget allows, a second read is sent to
    /// another side that has the newest content. The first answer is used; the other read is
    /// dropped.
    async fn read_hedged(
        self: &Rc<Self>,
        index: usize,
        range: &Range<u64>,
        origin: Origin,
        failed: &[usize],
    ) -> IoResult {
        self.preference.budget.borrow_mut().read();
        let side = &self.sides[index];
        let late_ns = late_after_ns(&side.read_latency.borrow()).filter(|_| self.preference.hedges);
        let mut first = std::pin::pin!(self.read_from(index, range, origin));
        let Some(late_ns) = late_ns else {
            return first.await;
        };
        let started = self.rt.now();
        let late = Duration::from_nanos(late_ns);
        if let Ok(reply) = self.rt.timeout(late, first.as_mut()).await {
            return reply;
        }
        let Some(other) = self.hedge_side(index, range, failed) else {
            return first.await;
        };
        add(&self.counts.hedged_reads, 1);
        let second = std::pin::pin!(self.read_from(other, range, origin));
        match futures_util::future::select(first, second).await {
            Either::Left((Err(_), second)) => second.await,
            Either::Left((reply, _)) => reply,
            Either::Right((Err(error), first)) => {
                if error.is_device_fault() {
                    add(&self.sides[other].counts.errors, 1);
                }
                first.await
            }
            Either::Right((reply, _)) => {
                // The first read is late and has not ended. Its latency is at least the time
                // elapsed so far.
                let latency_ns = self.rt.now().ns_since(started);
                side.read_latency.borrow_mut().record(latency_ns);
                reply
            }
        }
    }

    /// Returns a second side for a late read: a side that has the newest content of the whole range
    /// and is not stuck. Returns `None` when there is no such side, when the budget is used up, or
    /// when the exposure is near a bound. In the last case the read would delay the side that has
    /// to catch up.
    fn hedge_side(&self, index: usize, range: &Range<u64>, failed: &[usize]) -> Option<usize> {
        let exposed = self.exposure.bytes();
        if self.rules().is_pressed(exposed, self.exposure_age_ns()) {
            return None;
        }
        let other = self.sides.iter().find(|side| {
            side.index != index
                && !failed.contains(&side.index)
                && !side.work.is_stuck()
                && side.is_current(range)
        });
        let other = other?.index;
        self.preference.budget.borrow_mut().take().then_some(other)
    }

    async fn read_from(
        self: &Rc<Self>,
        index: usize,
        range: &Range<u64>,
        origin: Origin,
    ) -> IoResult {
        let side = &self.sides[index];
        add(&side.counts.reads, 1);
        let started = self.rt.now();
        let request = Request::read(range.start, range.end - range.start);
        let reply = self.ask(index, request.from_origin(origin)).await?;
        let latency_ns = self.rt.now().ns_since(started);
        side.read_latency.borrow_mut().record(latency_ns);
        Ok(reply)
    }

    /// Sends a side a request that changes nothing, and waits for the answer. The wait also ends
    /// when the side is ejected. If another side is healthy, the wait also ends when the side has
    /// not answered for `absent_after`, the time after which a side is considered absent.
    pub(super) async fn ask(self: &Rc<Self>, index: usize, request: Request) -> IoResult {
        let side = &self.sides[index];
        let started = self.rt.now();
        let patience = Duration::from_nanos(self.rules.absent_after_ns);
        let mut answer = std::pin::pin!(side.ask(request));
        loop {
            let gone = std::pin::pin!(side.life.changed.until(|| !side.is_active()));
            let either = futures_util::future::select(answer.as_mut(), gone);
            match self.rt.timeout_awake(patience, either).await {
                Ok(Either::Left((reply, _))) => {
                    side.work.read_answered(self.rt.now());
                    return reply;
                }
                Ok(Either::Right(_)) => return Err(IoError::Timeout),
                Err(bimetal_rt::Elapsed) if self.healthy().iter().any(|other| *other != index) => {
                    let silent = side.is_active() && side.work.last_answer() <= started;
                    if silent && self.another_is_healthy(index) {
                        self.give_up(index, IoError::Timeout);
                    }
                    return Err(IoError::Timeout);
                }
                Err(bimetal_rt::Elapsed) => {}
            }
        }
    }

    /// Periodically repeats a read on the idle sides that were not used for it, to measure their
    /// latency without delaying the client, and prefers the fastest side for reads.
    fn probe_others(self: &Rc<Self>, used: usize, range: &Range<u64>) {
        let now = self.rt.now();
        if now < self.preference.next_probe.get() || self.state.get() == VolumeState::Closed {
            return;
        }
        self.preference
            .next_probe
            .set(now + Duration::from_nanos(PROBE_EVERY_NS));
        self.prefer_the_fastest();
        for side in self.sides.iter() {
            let idle = side.work.in_flight() == 0 && !side.queue.borrow().has_waiting();
            if side.index != used && idle && side.is_current(range) {
                let (shared, range, index) = (Rc::clone(self), range.clone(), side.index);
                self.tasks.spawn(async move {
                    if shared.read_from(index, &range, Origin::NONE).await.is_err() {
                        add(&shared.sides[index].counts.errors, 1);
                    }
                });
            }
        }
    }

    fn prefer_the_fastest(&self) {
        let median = |index: usize| {
            let latency = self.sides[index].read_latency.borrow();
            latency
                .quantile_ns(0.5)
                .filter(|_| latency.samples() >= SAMPLES_MIN)
        };
        let preferred = self.preference.side.get();
        let Some(preferred_ns) = median(preferred) else {
            return;
        };
        let measured = (0..self.sides.len()).filter_map(|side| Some((median(side)?, side)));
        if let Some((fastest_ns, fastest)) = measured.min()
            && (fastest_ns as f64) < preferred_ns as f64 * FASTER_BY
        {
            self.preference.side.set(fastest);
        }
    }

    /// Divides a range into parts, each with one source that has the newest content of the part.
    fn sources(
        &self,
        range: &Range<u64>,
        except: &[usize],
    ) -> Result<Vec<(Range<u64>, Source)>, IoError> {
        let mut cuts = vec![range.start, range.end];
        for side in self.sides.iter().filter(|side| side.is_active()) {
            let lacking = side.out_of_sync.parts_in(range).into_iter();
            for part in lacking.chain(side.queue.borrow().pending_in(range)) {
                cuts.extend([part.start.max(range.start), part.end.min(range.end)]);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut sources = Vec::new();
        for pair in cuts.windows(2) {
            let part = pair[0]..pair[1];
            match self.current_side(&part, except) {
                Some(side) => sources.push((part, Source::Side(side))),
                None => self.sources_in_queues(&part, &mut sources)?,
            }
        }
        Ok(sources)
    }

    /// Adds waiting writes in the queues of the sides as sources of a part. Used if no side has
    /// stored the newest content of the whole part.
    ///
    /// # Errors
    /// `Medium` when the queues do not cover the whole part: its content is lost.
    fn sources_in_queues(
        &self,
        part: &Range<u64>,
        sources: &mut Vec<(Range<u64>, Source)>,
    ) -> Result<(), IoError> {
        let mut newest = ExtentMap::new();
        for side in self.sides.iter().filter(|side| side.is_active()) {
            for (range, waiting) in side.queue.borrow().newest_in(part) {
                newest.insert(range, waiting);
            }
            if newest.covers(part) {
                break;
            }
        }
        if !newest.covers(part) {
            return Err(IoError::Medium);
        }
        sources.extend(
            newest
                .iter()
                .map(|(range, w)| (range, Source::Queue(w.clone()))),
        );
        Ok(())
    }

    fn content_of(&self, waiting: &Waiting, part: Range<u64>) -> Payload {
        match waiting.change.op {
            Op::Write => waiting.change.payload.clone(),
            _ => zero_payload(&self.zeroes, part.end - part.start),
        }
    }

    /// Returns the extents of data and of holes in a prefix of the range. The queues are queried
    /// first. A part that no queue covers is queried on a side that has its newest content.
    pub(super) async fn extents(self: &Rc<Self>, request: Request) -> IoResult {
        self.check_readable()?;
        let range = request.offset..request.end();
        let ask = async || {
            let found = self.extents_of(&range, request.extents_max).await?;
            let found = self.with_undecided(range.start, request.extents_max, found);
            Ok(found.into_reply())
        };
        self.unless_a_write_fails(&range, ask).await
    }

    /// Returns the extents `found`, which begin at `start`, with every part that an undecided write
    /// covers reported as data. Otherwise, a hole could be reported that no longer exists once the
    /// write is decided.
    fn with_undecided(&self, start: u64, extents_max: u32, found: ExtentList) -> ExtentList {
        let answered = start..start + found.covered_bytes();
        if self.admission.undecided.is_clear(&answered) {
            return found;
        }
        let mut map = ExtentMap::new();
        let mut position = start;
        for Extent { len, data } in found.into_extents() {
            map.insert(position..position + len, IsData(data));
            position += len;
        }
        for (part, _) in self.admission.undecided.within(&answered) {
            map.insert(part, IsData(true));
        }
        let mut extents = ExtentList::new(extents_max);
        for (part, &IsData(data)) in map.iter() {
            let len = part.end - part.start;
            extents.push(Extent { len, data });
        }
        extents
    }

    async fn extents_of(
        self: &Rc<Self>,
        range: &Range<u64>,
        extents_max: u32,
    ) -> Result<ExtentList, IoError> {
        let mut found = ExtentList::new(extents_max);
        for _ in 0..EXTENT_PARTS_MAX {
            let position = range.start + found.covered_bytes();
            if position >= range.end || found.is_full() {
                break;
            }
            give_way().await;
            let (part, source) = self.first_source(&(position..range.end))?;
            let len = part.end - part.start;
            match source {
                Source::Queue(waiting) => {
                    let data = waiting.change.op == Op::Write;
                    found.push(Extent { len, data });
                }
                Source::Side(side) => {
                    let asked = found.asks_for();
                    // If the side cannot report its holes, the request does not fail: the whole
                    // part is reported as data.
                    let all = || vec![Extent { len, data: true }];
                    let runs = self
                        .extents_on(side, &part, asked)
                        .await
                        .unwrap_or_else(all);
                    let ends_here = runs.len() >= asked as usize;
                    runs.into_iter().for_each(|run| found.push(run));
                    if ends_here {
                        break;
                    }
                }
            }
        }
        Ok(found)
    }

    /// Returns the first part of a range that one source can supply, and that source. The source is
    /// the first side, in the order of read preference, that has the newest content of the part. If
    /// no side has it, the source is a queue of changes, which holds the content in memory.
    fn first_source(&self, range: &Range<u64>) -> Result<(Range<u64>, Source), IoError> {
        let preferred = self.preference.side.get();
        let others = (0..self.sides.len()).filter(|&index| index != preferred);
        let mut nearest = range.end;
        for index in std::iter::once(preferred).chain(others) {
            let side = &self.sides[index];
            if !side.is_active() {
                continue;
            }
            let change = side.current_changes_at(range);
            if side.is_current(&(range.start..change)) {
                return Ok((range.start..change, Source::Side(index)));
            }
            nearest = nearest.min(change);
        }
        let mut sources = Vec::new();
        self.sources_in_queues(&(range.start..nearest), &mut sources)?;
        Ok(sources.swap_remove(0))
    }

    /// Returns the extents of data and of holes in a prefix of the range on a side; `None` when the
    /// side reports no extents.
    pub(super) async fn extents_on(
        self: &Rc<Self>,
        index: usize,
        range: &Range<u64>,
        extents_max: u32,
    ) -> Option<Vec<Extent>> {
        let len = range.end - range.start;
        let extents = Request::extents(range.start, len, extents_max);
        let found = self.ask(index, extents).await.ok()?.into_extents();
        Some(found).filter(|found| !found.is_empty())
    }

    /// Reads a range for a rebuild, from any side but `target`.
    ///
    /// # Errors
    /// `Corrupt` when the range is corrupt on every side that has it; otherwise `Medium`.
    pub(super) async fn read_for_resync(
        self: &Rc<Self>,
        range: Range<u64>,
        target: usize,
    ) -> Result<Payload, IoError> {
        let (mut failed, mut all_corrupt) = (vec![target], true);
        while let Some(source) = self.current_side(&range, &failed) {
            match self.read_from(source, &range, Origin::NONE).await {
                Ok(reply) => return Ok(reply.into_data()),
                Err(error) => {
                    add(&self.sides[source].counts.errors, 1);
                    all_corrupt &= error == IoError::Corrupt;
                    failed.push(source);
                }
            }
        }
        // The range is reported as corrupt only if at least one side was read, and each side that
        // was read is corrupt there. Any other error may be temporary.
        Err(match all_corrupt && failed.len() > 1 {
            true => IoError::Corrupt,
            false => IoError::Medium,
        })
    }
}
