//! A rebuild in the order in which a logged disk has the blocks.
//!
//! A volume that was written at random lies in the order of its writing on a logged side. In the
//! order of the volume, a disk supplies it at the rate of its seeks: a terabyte in weeks. So if
//! only disks of this kind have what a logged side lacks, most of it is first copied in the order
//! of the disk. The rest, and what clients change meanwhile, is copied in the order of the volume,
//! as for any side.
//!
//! No range is locked: a block counts as copied only if no change of it was admitted since the pass
//! began. Until the end of the pass, the blocks that were copied are recorded as lacking, because
//! the set of lacking ranges has no room for scattered blocks.
//!
//! A change that was admitted after the content of a block was read must never be undone.

use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Payload;
use bimetal_rt::turn::{count_entries, give_way};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{Writing, end_of_write, should_settle};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::block_set::BlockSet;
use crate::layers::mirror::out_of_sync::Copying;
use crate::layers::mirror::share::COST_BYTES_MIN;
use crate::layers::mirror::shared::Shared;
use crate::layers::mirror::side::Side;
use crate::layers::mirror::store::{Listed, Run, Store};
use crate::range_set::RangeSet;

/// Part of the volume that a side must lack for a pass to be worth its cost, as a divisor. A pass
/// reads the whole place map of the source and its checksums, 1/512 of the volume, about a hundred
/// times as fast as a disk supplies scattered blocks.
const WORTH_DIVISOR: u64 = 16 << 10;
/// Number of lacking bytes that a pass must have at least.
const WORTH_BYTES_MIN: u64 = 256 << 10;
/// Length of the part of the volume that is copied together. Two bits for each of its blocks take
/// 64 MiB of memory: one says whether it was copied, the other one whether it has changed since.
const SLICE_BYTES: u64 = 1 << 40;
/// Number of blocks that have changed during a pass from which on they are copied in another pass.
const AGAIN_BLOCKS_MIN: u64 = 256;
/// Length of the part of the device whose blocks are listed at once: its list takes up to 80 MiB of
/// memory.
const LISTED_BYTES: u64 = 8 << 30;
/// Length of the part of the volume whose blocks are recorded as copied together.
const NOTED_BYTES: u64 = 4 << 20;
/// Maximum number of runs in flight. A disk that has the next read in its queue loses no time.
const RUNS_IN_FLIGHT_MAX: usize = 4;

impl Shared {
    /// Copies most of what a side lacks in the order in which a logged disk has it, if only such
    /// disks have it.
    ///
    /// # Errors
    /// Errors of a device. What was not copied remains out of sync.
    pub(super) async fn copy_by_place(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        let (Some(source), Some(store)) = (self.source_by_place(side), side.store()) else {
            return Ok(());
        };
        let ranges = side.out_of_sync.ranges();
        let announced = self.done_by(side, async move { store.announce(ranges).await });
        announced.await.unwrap_or(Err(IoError::Timeout))?;
        for start in (0..self.size_bytes()).step_by(SLICE_BYTES as usize) {
            let slice = start..self.size_bytes().min(start + SLICE_BYTES);
            self.copy_slice_by_place(side, source, slice).await?;
        }
        Ok(())
    }

    /// Returns the side from which to copy in the order of its device; `None` if that is not worth
    /// its cost, or if another side supplies the content in the order of the volume as fast.
    fn source_by_place(&self, side: &Side) -> Option<usize> {
        let is_logged = |side: &Side| side.store().is_some_and(|store| !store.has_homes());
        let worth_bytes = (self.size_bytes() / WORTH_DIVISOR).max(WORTH_BYTES_MIN);
        if !is_logged(side) || side.out_of_sync.bytes() < worth_bytes {
            return None;
        }
        let is_other = |other: &&Side| other.index != side.index && other.is_active();
        let mut others = self.sides.numbered().filter(is_other);
        let is_slow = |other: &Side| is_logged(other) && other.device.geometry().rotational;
        if !others.all(is_slow) {
            return None;
        }
        let mut sources = self.sides.numbered().filter(is_other);
        let source = sources.find(|other| other.is_healthy() && other.out_of_sync.is_empty());
        source.map(|source| source.index)
    }

    async fn copy_slice_by_place(
        self: &Rc<Self>,
        side: &Side,
        source: usize,
        slice: Range<u64>,
    ) -> Result<(), IoError> {
        if side.out_of_sync.is_clear(&slice) {
            return Ok(());
        }
        let source = &self.sides[source];
        let Some(from) = source.store() else {
            return Err(IoError::Offline);
        };
        let copying = side.out_of_sync.begin_long_copy(slice.clone());
        let mut copied = BlockSet::none_in(slice.clone());
        let (mut result, mut again_before) = (Ok(()), u64::MAX);
        while result.is_ok() {
            // The map and the log of the source have older content of what is in its queue.
            for range in source.queue.borrow().pending_in(&slice) {
                copying.overtake(&range);
            }
            result = self
                .copy_all_listed(side, (source, &from), &copying, &mut copied)
                .await;
            // What has changed during a pass lies at the head of the log and is copied in another
            // one, while each one leaves less. The set of lacking ranges has no room for all of it.
            let changed = copying.take_overtaken();
            copied.remove_all(&changed);
            let again = changed.count();
            if again < AGAIN_BLOCKS_MIN || again > again_before / 2 {
                break;
            }
            again_before = again;
        }
        self.note_copied(side, &copied, &copying).await;
        if let Some(mut progress) = side.rebuild.get() {
            progress.ahead_bytes = 0;
            side.rebuild.set(Some(progress));
        }
        result
    }

    /// Records that a side has the blocks that were copied, and the blocks between them that were
    /// never written. Scattered blocks without these would be more ranges than the set of lacking
    /// ranges has room for.
    async fn note_copied(self: &Rc<Self>, side: &Side, copied: &BlockSet, copying: &Copying<'_>) {
        for start in copied.range().step_by(NOTED_BYTES as usize) {
            give_way().await;
            count_entries((NOTED_BYTES / BLOCK_BYTES) as usize);
            let part = start..copied.range().end.min(start + NOTED_BYTES);
            let ranges = copied.ranges_in(&part, true);
            if ranges.is_empty() {
                continue;
            }
            let mut fresh = RangeSet::new();
            fresh.extend(ranges.iter().cloned());
            let lacking = side.out_of_sync.parts_in(&part).into_iter();
            let rest: Vec<Range<u64>> = lacking.flat_map(|part| fresh.gaps(&part)).collect();
            let mut holes = Vec::new();
            for rest in rest {
                for (part, has_data) in self.extents_for_resync(&rest, side.index).await {
                    if !has_data && self.is_never_written(side.index, &part).await {
                        holes.push(part);
                    }
                }
            }
            let newest = |range| copying.not_overtaken(range);
            let all_fresh = ranges.iter().flat_map(newest);
            all_fresh.for_each(|range| self.is_copied(side, range));
            let holes = holes.iter().flat_map(newest);
            holes.for_each(|range| self.is_fresh(side, range));
        }
    }

    async fn copy_all_listed(
        self: &Rc<Self>,
        side: &Side,
        (source, from): (&Side, &Rc<Store>),
        copying: &Copying<'_>,
        copied: &mut BlockSet,
    ) -> Result<(), IoError> {
        let slice = copied.range();
        let is_lacking = |offset: u64| {
            let block = offset..offset + BLOCK_BYTES;
            let is_asked = slice.contains(&offset) && !copying.is_overtaken(&block);
            is_asked && side.out_of_sync.covers(&block)
        };
        // What the map refers to is older than what the log has, also if the log is folded
        // meanwhile: the checksums of a block and its place are not read at the same time.
        let is_wanted = |offset: u64| is_lacking(offset) && !copied.has(offset);
        let (in_log, logged) = from.list_log(&is_wanted).await;
        self.copy_listed(side, source, (&in_log, copying), copied)
            .await?;
        let area = from.content_area();
        for start in area.clone().step_by(LISTED_BYTES as usize) {
            let part = start..area.end.min(start + LISTED_BYTES);
            let is_wanted = |offset: u64| {
                let block = offset..offset + BLOCK_BYTES;
                is_lacking(offset) && logged.is_clear(&block) && !copied.has(offset)
            };
            let listed = from.list_by_place(&part, &is_wanted).await?;
            self.copy_listed(side, source, (&listed, copying), copied)
                .await?;
        }
        Ok(())
    }

    async fn copy_listed(
        self: &Rc<Self>,
        side: &Side,
        source: &Side,
        (listed, copying): (&[Listed], &Copying<'_>),
        copied: &mut BlockSet,
    ) -> Result<(), IoError> {
        let Some(from) = source.store() else {
            return Err(IoError::Offline);
        };
        let mut runs = from.runs_by_place(listed);
        let mut in_flight = FuturesUnordered::new();
        loop {
            while in_flight.len() < RUNS_IN_FLIGHT_MAX
                && !should_settle(side)
                && let Some(run) = runs.next()
            {
                in_flight.push(self.copy_run(side, source, run, copying));
            }
            match in_flight.next().await {
                Some(written) => {
                    for range in written? {
                        copied.insert(&range);
                    }
                }
                None if should_settle(side) => self.settle_copies(side).await?,
                None => return Ok(()),
            }
            if !side.is_active() {
                return Err(IoError::Offline);
            }
        }
    }

    /// Copies a run of blocks that lie one behind the other on the source, in its turn. Returns the
    /// ranges that were copied.
    async fn copy_run(
        self: &Rc<Self>,
        side: &Side,
        source: &Side,
        run: Run,
        copying: &Copying<'_>,
    ) -> Result<Vec<Range<u64>>, IoError> {
        let bytes = run.blocks.len() as u64 * BLOCK_BYTES;
        let cost_bytes = bytes.max(COST_BYTES_MIN);
        let share = &self.repair.share;
        let turn = share.turn(&self.repair.clients, cost_bytes).await;
        let Some(from) = source.store() else {
            return Err(IoError::Offline);
        };
        let read = self.done_by(source, async move { from.read_by_place(&run).await });
        let content = read.await.unwrap_or(Err(IoError::Timeout))?;
        let written = self
            .write_run(side, source, joined(content), copying)
            .await?;
        if written.is_empty() {
            turn.took(0);
            return Ok(written);
        }
        share.brought(cost_bytes);
        self.repair.following.wake_first();
        if let Some(mut progress) = side.rebuild.get() {
            progress.passed_bytes += bytes;
            progress.ahead_bytes += written
                .iter()
                .map(|part| part.end - part.start)
                .sum::<u64>();
            side.rebuild.set(Some(progress));
            side.advanced_at.set(self.rt.now());
        }
        Ok(written)
    }

    /// Writes content of the source to a side, as far as it is still what the side lacks.
    async fn write_run(
        self: &Rc<Self>,
        side: &Side,
        source: &Side,
        content: Vec<(Range<u64>, Payload)>,
        copying: &Copying<'_>,
    ) -> Result<Vec<Range<u64>>, IoError> {
        let Some(store) = side.store().filter(|_| side.is_active()) else {
            return Err(IoError::Offline);
        };
        let (mut kept, mut data, mut parts) = (Vec::new(), Payload::empty(), Vec::new());
        for (range, content) in content {
            let is_newest = source.is_current(&range) && !copying.is_overtaken(&range);
            let is_lacking = side.out_of_sync.covers(&range);
            if !is_newest || !is_lacking || !side.queue.borrow().is_current(&range) {
                continue;
            }
            if let Some(lock) = store.begin_straight(&range) {
                kept.push(lock);
                data.append(content);
                parts.push(range);
            }
        }
        if !parts.is_empty() {
            let write = self.begin_writing(side, Writing::Straight(store, kept, data));
            end_of_write(side, write).await?;
        }
        Ok(parts)
    }
}

/// Joins blocks that are next to each other in the volume, in whose order they are given.
fn joined(blocks: Vec<(u64, Payload)>) -> Vec<(Range<u64>, Payload)> {
    let mut joined: Vec<(Range<u64>, Payload)> = Vec::new();
    for (offset, content) in blocks {
        match joined.last_mut() {
            Some((last, data)) if last.end == offset => {
                last.end += BLOCK_BYTES;
                data.append(content);
            }
            _ => joined.push((offset..offset + BLOCK_BYTES, content)),
        }
    }
    joined
}
