//! Destaging: writes changes from the log to their home locations, a chunk of the oldest entries at
//! a time, sorted and merged, and without the parts that newer changes have replaced.
//!
//! Only changes that are durable in the log and complete are destaged. If the side is started
//! alone, it starts with only its complete changes, so the data area must never have a change
//! beyond them. An entry is dropped when two conditions hold: its records are durable at their home
//! locations, with their checksums; and every other side has these records, or the dirty-region
//! bitmap marks their regions.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::pacing::Stage;
use bimetal_rt::Payload;
use bimetal_rt::sync::TaskGroup;

use super::Store;
use super::checksums::{Checksums, Expected};
use super::choose::{Chunk, Fill};
use super::digests::Digests;
use super::entry::Space;
use super::index::{Content, Logged};
use super::pacing;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::request::{Flags, Op, Origin, Request};

/// Maximum length in bytes of a merged write to home locations.
const WRITE_BYTES_MAX: u64 = 1 << 20;
/// Time without requests after which a side is considered idle.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Maximum interval between two checks whether the destager is allowed to continue.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Number of consecutive failed attempts to free space in a full log after which the log drops
/// changes that a lagging member lacks.
const FAILED_PROBES_MAX: u32 = 3;
/// Delay of a background task after an error of the device.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Timeout of a read of content from another side.
const PEER_PATIENCE: Duration = Duration::from_millis(20);
/// Number of home writes between two waits for the rebuild.
const BURST_WRITES_BESIDE_REBUILD: usize = 16;
/// Number of home writes that the destager makes before it lets the log proceed, if the device is
/// not rotational.
const BURST_WRITES: usize = 8;
/// Maximum number of reads of the log in flight.
const READS_IN_FLIGHT_MAX: usize = 4;
/// Maximum number of parts of log entries that are read with one request, if they are close
/// together in the log. The constants below limit the length of each such part, and the gap of
/// unneeded bytes between two of them (a header, and a block that was replaced).
const READ_PIECES_MAX: usize = 64;
const READ_TOGETHER_BYTES_MAX: u64 = 64 << 10;
const READ_GAP_BYTES_MAX: u64 = 8 << 10;

/// A range that is written to its home location with one request.
pub(super) struct DestageWrite {
    range: Range<u64>,
    /// Data of the range; empty when only the checksum entries are set, or the range becomes
    /// zeroes.
    data: Payload,
    expected: Vec<Expected>,
    /// Whether the space of a range that becomes zeroes is freed or kept.
    space: Space,
}

impl DestageWrite {
    /// Creates a write of the content of `range` to its home location. `digests` are the digests of
    /// the content. If `data` is empty, only the digests are recorded.
    pub(super) fn of(range: &Range<u64>, data: Payload, digests: &Digests) -> DestageWrite {
        let expected = digests
            .values()
            .iter()
            .map(|digest| Expected::Digest(*digest));
        DestageWrite {
            range: range.clone(),
            data,
            expected: expected.collect(),
            space: Space::Freed,
        }
    }

    /// Returns the cost of the write, for the pace of its chunk.
    fn cost(&self) -> usize {
        pacing::cost(self.data.len() as u64, 1) as usize
    }
}

/// Guard that makes the destager run without waiting for an idle side, until the guard is dropped.
struct Escalation<'s>(&'s Store);

impl Escalation<'_> {
    fn of(store: &Store) -> Escalation<'_> {
        store.escalations.set(store.escalations.get() + 1);
        Escalation(store)
    }
}

impl Drop for Escalation<'_> {
    fn drop(&mut self) {
        let escalations = &self.0.escalations;
        escalations.set(escalations.get() - 1);
    }
}

impl Store {
    /// Returns true when the next piece may be destaged now.
    fn may_destage(&self) -> bool {
        let held = || {
            let held = Rc::clone(&self.held.borrow());
            self.log.is_busy() || held()
        };
        match self.urgency() {
            _ if self.escalations.get() > 0 => true,
            Fill::Full | Fill::High => true,
            // Folding needs no time of the device that the log could use.
            Fill::Much if self.segments.is_some() => true,
            Fill::Much => !held(),
            Fill::Low => self.rt.now().since(self.wanted.get()) >= IDLE_AFTER && !held(),
        }
    }

    /// Waits until the destager is allowed to destage more.
    ///
    /// # Errors
    /// `Closed` when the destager must end.
    async fn turn(&self) -> Result<(), IoError> {
        let over = || self.ending.get() || self.may_destage();
        let begun = self.rt.now();
        while !over() {
            let moved = self.log.changed.until(over);
            // No event is signalled when a side becomes idle, so the condition is also checked
            // after a timeout.
            let _ = self.rt.timeout(PROBE_INTERVAL, moved).await;
        }
        let waited = self.rt.now().since(begun);
        self.pacing.borrow_mut().pause(waited.as_nanos() as u64);
        if self.ending.get() {
            return Err(IoError::Closed);
        }
        Ok(())
    }

    /// Returns the maximum number of reads of the log in flight.
    fn reads_depth(&self) -> usize {
        if self.urgency() <= Fill::Much {
            1
        } else {
            READS_IN_FLIGHT_MAX
        }
    }

    /// Returns the maximum number of home writes in flight.
    fn destage_depth(&self) -> usize {
        match self.urgency() {
            _ if self.escalations.get() > 0 => 16,
            Fill::Full => 16,
            Fill::High => self.burst_writes(),
            Fill::Much => 1,
            Fill::Low => 4,
        }
    }

    /// Returns the number of home writes that the destager makes before it waits for the log. On a
    /// disk it is 1, because the disk seeks for each home write, and this delays the log. While
    /// another side hangs, clients wait for this log.
    fn burst_writes(&self) -> usize {
        match self.device.geometry().rotational {
            true => 1,
            false => BURST_WRITES,
        }
    }

    /// Runs the destager until the store ends.
    pub(super) async fn destage_for_ever(self: Rc<Self>) {
        let mut failed_probes = 0;
        loop {
            let some = || !self.log.index.borrow().entries().is_empty();
            self.log.changed.until(some).await;
            if self.turn().await.is_err() {
                self.nothing_withheld();
                return;
            }
            let (tail, durable) = (self.log.tail(), self.log.flushed());
            let was_full = self.log.is_full();
            let brought = self.destage_chunk().await;
            if let Err(error) = brought {
                // Changes that wait for space in the log fail now. Otherwise they would wait
                // forever if no destage succeeds.
                self.nothing_withheld();
                self.log.fail_waiting(error);
                self.rt.sleep(RETRY_AFTER).await;
            } else if self.log.tail() == tail && self.log.flushed() == durable {
                self.durability_has_moved();
                // No entry could be dropped: another side must first make progress, or a missing
                // change must arrive. The wait also ends when the log becomes full, since entries
                // are relogged only then. If the log was full before, the wait ends when the log is
                // full and has unflushed changes, which must be flushed.
                let full = || self.log.is_full() && (!was_full || self.log.has_unflushed());
                let paced = || self.log.is_paced();
                let changed = &self.log.changed;
                let moved = changed.until(|| full() || paced() || self.first_may_go());
                let patience = match was_full {
                    true => PROBE_INTERVAL,
                    false => IDLE_AFTER,
                };
                let kept_full = || was_full && self.log.is_full() && self.keeps_first();
                let held_up = kept_full().then(|| self.noticed.hold_up());
                let in_vain = self.rt.timeout(patience, moved).await.is_err();
                drop(held_up);
                // Without a limit on failed attempts, two full logs that wait for each other would
                // wait forever. So after `FAILED_PROBES_MAX` failed attempts, the log drops changes
                // that a member lacks.
                if in_vain && kept_full() {
                    failed_probes += 1;
                    self.let_go.set(failed_probes >= FAILED_PROBES_MAX);
                }
            } else {
                failed_probes = 0;
                self.let_go.set(false);
            }
        }
    }

    /// Destages every entry that can be destaged, and returns true when the log is then empty.
    pub(in super::super) async fn empty(self: &Rc<Self>) -> Result<bool, IoError> {
        let _escalation = Escalation::of(self);
        self.empty_now().await
    }

    /// Destages the oldest chunk, and returns true when this has freed space. The log is not
    /// emptied: the entries that it keeps save lagging members from copying whole regions.
    pub(super) async fn make_space(self: &Rc<Self>) -> Result<bool, IoError> {
        let tail = self.log.tail();
        let _escalation = Escalation::of(self);
        let brought = self.destage_chunk().await;
        brought.map(|()| self.log.tail() > tail)
    }

    async fn empty_now(self: &Rc<Self>) -> Result<bool, IoError> {
        loop {
            let left = self.log.index.borrow().entries().len();
            if left == 0 {
                return Ok(true);
            }
            self.destage_chunk().await?;
            if self.log.index.borrow().entries().len() == left {
                return Ok(false);
            }
        }
    }

    /// Destages one chunk and drops its entries.
    async fn destage_chunk(self: &Rc<Self>) -> Result<(), IoError> {
        let _one = self.destaging.acquire(1).await;
        if let Some(segments) = self.segments.as_ref().filter(|of| of.must_clean_first()) {
            let _ = self
                .rt
                .timeout(PROBE_INTERVAL, segments.until_freed())
                .await;
            if segments.must_clean_first() {
                return Ok(());
            }
        }
        if !self.first_may_go() {
            self.log.claim_when_full();
            if self.log.has_unflushed() {
                self.log.flush(0).await?;
                self.durability_has_moved();
            }
        }
        let Some(chunk) = self.choose_chunk().await else {
            if self.log.is_paced() {
                // The other members are asked to flush while there is still room that was withheld.
                self.durability_has_moved();
                self.nothing_withheld();
            }
            if self.fill() >= Fill::High && !self.log.is_broken() {
                self.relog().await?;
            }
            return Ok(());
        };
        let paced = match &self.segments {
            Some(segments) => {
                self.fold(segments, &chunk).await?;
                None
            }
            None => {
                let paced = self.begin_paced(&chunk);
                let writes = self.contents_of(&chunk).await?;
                self.write_home(writes).await?;
                self.chunk_advances(Stage::Settle, 0, 1);
                Some(paced)
            }
        };
        for range in &chunk.unreleased {
            self.regions.mark(range.clone(), self.epoch.get() + 1);
        }
        if self.segments.is_some() && is_planted(Bug::DropsBeforeCommit) {
            self.log.drop_before(chunk.end).await?;
        }
        self.releasing(self.write_pages()).await?;
        self.log.drop_before(chunk.end).await?;
        if let Some(paced) = paced {
            paced.end();
        }
        if let Some(segments) = &self.segments {
            segments.log_has_begun();
        }
        self.count(|counts| counts.replaced_bytes += chunk.replaced_bytes);
        Ok(())
    }

    /// Reads the content of a chunk in the order of the log. Returns it as home writes in the order
    /// of the home locations, with adjacent ones merged.
    async fn contents_of(&self, chunk: &Chunk) -> Result<Vec<DestageWrite>, IoError> {
        let mut pieces: Vec<&(Range<u64>, Logged)> = chunk.pieces.iter().collect();
        pieces.sort_by_key(|(_, record)| match record.content {
            Content::Data { position, .. } => position,
            Content::Zeroes(_) | Content::Lost => u64::MAX,
        });
        let mut writes = Vec::with_capacity(pieces.len());
        let runs: Vec<&[&(Range<u64>, Logged)]> = pieces
            .chunk_by(|a, b| self.are_read_together(a, b))
            .flat_map(|run| run.chunks(READ_PIECES_MAX))
            .collect();
        let (all, mut runs) = (runs.len(), runs.as_slice());
        while !runs.is_empty() {
            self.turn().await?;
            let (some, rest) = runs.split_at(self.reads_depth().min(runs.len()));
            runs = rest;
            let reads = some.iter().map(|run| self.contents_of_run(run));
            for run in futures_util::future::join_all(reads).await {
                writes.extend(run?);
            }
            self.chunk_advances(Stage::Read, all - runs.len(), all);
        }
        writes.sort_by_key(|write| write.range.start);
        Ok(merged(writes))
    }

    /// Returns true when two pieces are so close in the log that reading the gap between them costs
    /// less than a second read. Always false on a side that reads content from another side: such a
    /// side reads little of its own log, so its reads are not combined.
    fn are_read_together(&self, one: &(Range<u64>, Logged), next: &(Range<u64>, Logged)) -> bool {
        let place = |(range, record): &(Range<u64>, Logged)| match record.content {
            Content::Data { position, .. } => {
                let at = self.log.area.at(position);
                Some(at..at + (range.end - range.start))
            }
            Content::Zeroes(_) | Content::Lost => None,
        };
        let (Some(one), Some(next)) = (place(one), place(next)) else {
            return false;
        };
        let (small, near) = (one.end - one.start, one.end..=one.end + READ_GAP_BYTES_MAX);
        small <= READ_TOGETHER_BYTES_MAX
            && near.contains(&next.start)
            && self.peer.borrow().is_none()
    }

    /// Reads a run of pieces that are close together in the log with one request, and returns their
    /// home writes. If a piece is corrupt or unreadable, each piece is read separately.
    async fn contents_of_run(
        &self,
        run: &[&(Range<u64>, Logged)],
    ) -> Result<Vec<DestageWrite>, IoError> {
        if run.len() > 1
            && let Some(writes) = self.read_run(run).await?
        {
            return Ok(writes);
        }
        let mut writes = Vec::with_capacity(run.len());
        for (range, record) in run {
            writes.push(self.content_of(range, record).await?);
        }
        Ok(writes)
    }

    async fn read_run(
        &self,
        run: &[&(Range<u64>, Logged)],
    ) -> Result<Option<Vec<DestageWrite>>, IoError> {
        let mut parts = Vec::with_capacity(run.len());
        for (range, record) in run {
            let Content::Data { position, digests } = &record.content else {
                return Ok(None);
            };
            parts.push((range, self.log.area.at(*position), digests));
        }
        let (first, (last, last_at, _)) = (parts[0].1, &parts[parts.len() - 1]);
        let bytes = last_at + (last.end - last.start) - first;
        if bytes > u64::from(self.device.geometry().transfer_bytes_max) {
            return Ok(None);
        }
        let read = Request::read(first, bytes);
        let data = match self.device.submit(read).await {
            Ok(reply) => reply.into_data(),
            Err(IoError::Medium) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.noticed.note();
        let mut writes = Vec::with_capacity(parts.len());
        for (range, at, digests) in parts {
            let start = (at - first) as usize;
            let data = data.slice(start..start + (range.end - range.start) as usize);
            if !digests.agree_with(&data) {
                return Ok(None);
            }
            writes.push(DestageWrite::of(range, data, digests));
        }
        Ok(Some(writes))
    }

    async fn content_of(
        &self,
        range: &Range<u64>,
        record: &Logged,
    ) -> Result<DestageWrite, IoError> {
        let count = ((range.end - range.start) / BLOCK_BYTES) as usize;
        let without_data = |expected, space| DestageWrite {
            range: range.clone(),
            data: Payload::empty(),
            expected: vec![expected; count],
            space,
        };
        let digests = match &record.content {
            Content::Zeroes(space) => return Ok(without_data(Expected::NeverWritten, *space)),
            Content::Lost => return Ok(without_data(Expected::Lost, Space::Freed)),
            Content::Data { digests, .. } => digests,
        };
        if let Some(data) = self.content_from_peer(range, digests).await {
            return Ok(DestageWrite::of(range, data, digests));
        }
        match self.read_logged(range, record, Origin::NONE).await {
            Ok(data) => {
                self.noticed.note();
                Ok(DestageWrite::of(range, data, digests))
            }
            Err(IoError::Corrupt) => {
                // Only the digest from the log is recorded for the home location. The old content
                // there does not match this digest, so it cannot be mistaken for the newest
                // content.
                self.suspect.borrow_mut().insert(range.clone());
                Ok(DestageWrite::of(range, Payload::empty(), digests))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the content of a range from another side, if it matches the digests in the log. The
    /// destager asks the other side first so that its own disk need not seek to the log.
    async fn content_from_peer(&self, range: &Range<u64>, digests: &Digests) -> Option<Payload> {
        let ask = self.peer.borrow().clone()?;
        // The timeout makes this side read its own log if the other side does not answer.
        let asked = self
            .rt
            .timeout(PEER_PATIENCE, ask(range.clone(), false))
            .await;
        let data = asked.ok()??;
        digests.agree_with(&data).then_some(data)
    }

    async fn write_home(self: &Rc<Self>, writes: Vec<DestageWrite>) -> Result<(), IoError> {
        let failed = Rc::new(Cell::new(None));
        let group = TaskGroup::new(&self.rt);
        let mut burst = 0;
        let (all, done) = (writes.iter().map(DestageWrite::cost).sum(), Rc::default());
        for write in writes {
            if let Err(error) = self.turn().await {
                failed.set(Some(error));
                break;
            }
            self.give_way_after_burst(&group, &mut burst).await;
            self.give_way_to_log().await;
            group.at_most(self.destage_depth().saturating_sub(1)).await;
            if failed.get().is_some() {
                break;
            }
            let (store, failed, cost) = (Rc::clone(self), Rc::clone(&failed), write.cost());
            let done: Rc<Cell<usize>> = Rc::clone(&done);
            group.spawn(async move {
                if let Err(error) = store.destage_one(write).await {
                    failed.set(Some(error));
                }
                done.set(done.get() + cost);
                store.chunk_advances(Stage::Write, done.get(), all);
            });
        }
        group.join().await;
        failed.get().map_or(Ok(()), Err)
    }

    /// Lets the rebuild and the log proceed between two bursts of home writes. Otherwise, a disk
    /// that orders its requests by position would continue through the home locations, where there
    /// is always another request, and starve the rebuild and the log.
    async fn give_way_after_burst(&self, group: &TaskGroup, burst: &mut usize) {
        *burst += 1;
        if burst.is_multiple_of(BURST_WRITES_BESIDE_REBUILD) && self.straight.is_writing() {
            group.join().await;
            // The wait has a timeout, since the write in flight may hang on the device.
            let _ = self
                .rt
                .timeout(PROBE_INTERVAL, self.straight.until_written())
                .await;
        }
        if *burst < self.burst_writes()
            || self.urgency() != Fill::High
            || self.escalations.get() > 0
        {
            return;
        }
        *burst = 0;
        group.join().await;
        let had = || self.urgency() != Fill::High || !self.log.is_busy() || self.ending.get();
        // The wait has a timeout, for a log that is never idle.
        let _ = self
            .rt
            .timeout(PROBE_INTERVAL, self.log.changed.until(had))
            .await;
    }

    async fn destage_one(&self, write: DestageWrite) -> Result<(), IoError> {
        let _home = self.home.lock(write.range.clone()).await;
        self.write_locked_home(write).await
    }

    /// Writes a range to its home location. The caller must hold the lock of the range in `home`.
    pub(super) async fn write_locked_home(&self, write: DestageWrite) -> Result<(), IoError> {
        let (offset, len) = (
            self.data_offset + write.range.start,
            write.range.end - write.range.start,
        );
        let zeroes = write.expected[0] == Expected::NeverWritten;
        if !write.data.is_empty() {
            let request = Request::write(offset, write.data, Flags::NONE);
            self.device.submit(request).await?;
        } else if zeroes {
            self.forget_home(offset, len, write.space).await?;
        }
        self.count(|counts| {
            counts.destage_writes += 1;
            counts.destaged_bytes += len;
        });
        if let Some(checksums) = &self.checksums {
            let first = write.range.start / BLOCK_BYTES;
            self.set_expected(checksums, first, &write.expected).await?;
        }
        Ok(())
    }

    /// Clears the home location of blocks that read as zeroes from now on. On a side with
    /// checksums, the checksum entries record that the blocks are zeroes. The data area can then
    /// hold anything, so a discard suffices, even if the device does not zero discarded blocks. In
    /// two cases, the data area itself must read as zeroes: on a side without checksums, and on an
    /// adopted disk, which is usable as the volume without this program after a clean stop.
    ///
    /// With [`Space::Kept`], no space is freed. The blocks are then overwritten with zeroes if the
    /// device guarantees that discarded blocks read as zeroes, or if the data area itself must read
    /// as zeroes. Otherwise the blocks are left unchanged.
    async fn forget_home(&self, offset: u64, len: u64, space: Space) -> Result<(), IoError> {
        let geometry = self.device.geometry();
        let home_decides = self.checksums.is_none() || geometry.content_offset_bytes.is_some();
        let keep_allocated = space == Space::Kept;
        let op = match (geometry.discard_zeroes, home_decides, space) {
            (true, _, Space::Freed) => Op::Discard,
            (true, _, Space::Kept) | (false, true, _) => Op::WriteZeroes,
            (false, false, Space::Freed) => Op::Discard,
            (false, false, Space::Kept) => return Ok(()),
        };
        let flags = Flags {
            keep_allocated,
            ..Flags::NONE
        };
        let request = Request::without_data(op, offset, len, flags);
        match self.device.submit(request).await {
            // A discard is only a hint; a device that does not support it keeps the content.
            Err(IoError::Unsupported) if op == Op::Discard && !geometry.discard_zeroes => Ok(()),
            other => other.map(|_done| ()),
        }
    }

    /// Sets the checksum entries of blocks. A damaged checksum page is reset, which makes its other
    /// entries unknown, so that the blocks of these entries must be repaired from another side.
    pub(super) async fn set_expected(
        &self,
        checksums: &Checksums,
        first: u64,
        expected: &[Expected],
    ) -> Result<(), IoError> {
        loop {
            match checksums.update(first, expected).await {
                Err(IoError::Corrupt) => {}
                other => return other,
            }
            for (page, _) in checksums.damaged() {
                checksums.reset_page(page).await;
                let blocks = Checksums::blocks_of(page);
                let end = (blocks.end * BLOCK_BYTES).min(self.volume_bytes.get());
                let range = blocks.start * BLOCK_BYTES..end;
                if !range.is_empty() {
                    self.suspect.borrow_mut().insert(range);
                }
            }
        }
    }
}

/// Merges adjacent writes that can be written with one request.
fn merged(writes: Vec<DestageWrite>) -> Vec<DestageWrite> {
    let mut merged: Vec<DestageWrite> = Vec::with_capacity(writes.len());
    for write in writes {
        let len = write.range.end - write.range.start;
        match merged.last_mut() {
            Some(last)
                if last.range.end == write.range.start
                    && !last.data.is_empty()
                    && !write.data.is_empty()
                    && last.range.end - last.range.start + len <= WRITE_BYTES_MAX =>
            {
                last.range.end = write.range.end;
                last.data.append(write.data);
                last.expected.extend(write.expected);
            }
            _ => merged.push(write),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use bimetal_rt::{Rt, VirtualOptions};

    use super::*;
    use crate::device::{Device, IoFuture};
    use crate::geometry::Geometry;
    use crate::layers::mirror::formatting::{self, Formatting};
    use crate::layers::mirror::superblock::Candidate;
    use crate::layers::mirror::{Mirror, MirrorConfig, OpenOptions, SideToOpen};
    use crate::media::memory::MemoryDevice;
    use crate::request::Reply;

    const MIB: u64 = 1 << 20;

    /// A disk without an efficient way to write zeroes. It counts the bytes that it has to write as
    /// zeroes.
    struct Disk {
        below: MemoryDevice,
        geometry: Geometry,
        zeroed_bytes: Cell<u64>,
    }

    impl Device for Disk {
        fn geometry(&self) -> &Geometry {
            &self.geometry
        }

        fn submit(&self, request: Request) -> IoFuture<'_> {
            match request.op {
                Op::Discard => return IoFuture::ready(Ok(Reply::Done)),
                Op::WriteZeroes => self.zeroed_bytes.set(self.zeroed_bytes.get() + request.len),
                _ => {}
            }
            self.below.submit(request)
        }
    }

    /// Fills the first MiB of a mirror of two [`Disk`]s, discards or zeroes the whole volume, and
    /// closes it. Returns, for each disk, the number of bytes that it had to zero, and whether the
    /// first MiB of its data area is zeroes.
    fn cleared(op: Op, no_checksums: bool) -> [(u64, bool); 2] {
        let rt = Rt::virtual_time(VirtualOptions::default());
        rt.block_on(async {
            let disks = [(); 2].map(|()| {
                Rc::new(Disk {
                    below: MemoryDevice::new(&rt, 32 * MIB),
                    geometry: Geometry {
                        discard_zeroes: false,
                        ..Geometry::of_size(32 * MIB)
                    },
                    zeroed_bytes: Cell::new(0),
                })
            });
            let names = ["a", "b"].map(str::to_owned);
            let named = names.iter().zip(&disks);
            let candidates: Vec<Candidate> = named
                .map(|(name, disk)| Candidate {
                    name: name.clone(),
                    device: Rc::clone(disk) as Rc<dyn Device>,
                })
                .collect();
            let formatting = Formatting {
                no_checksums,
                ..Formatting::with_homes()
            };
            let made = formatting::format(&rt, "vol", &candidates, &formatting).await;
            let made = made.expect("the disks are fit");
            let config = MirrorConfig::of(names.to_vec());
            let open = async || {
                let sides = candidates.iter().map(|side| SideToOpen {
                    name: side.name.clone(),
                    device: Ok(Rc::clone(&side.device)),
                });
                let options = OpenOptions::default();
                let opened = Mirror::open(&rt, &config, sides.collect(), &options).await;
                opened.expect("both sides are there")
            };
            let mirror = open().await;
            let data = rt.pool().copy_of(&vec![0x5a; MIB as usize]);
            let write = mirror.submit(Request::write(0, data, Flags::NONE)).await;
            write.expect("taken");
            mirror.close().await.expect("everything is at home");
            disks.iter().for_each(|disk| disk.zeroed_bytes.set(0));
            let mirror = open().await;
            let whole = mirror.geometry().size_bytes;
            let clear = Request::without_data(op, 0, whole, Flags::NONE);
            mirror.submit(clear).await.expect("taken");
            mirror.close().await.expect("everything is at home");
            let mirror = open().await;
            let read = mirror
                .submit(Request::read(0, MIB))
                .await
                .expect("readable");
            assert!(read.into_data().to_vec().iter().all(|byte| *byte == 0));
            mirror.close().await.expect("closed");
            let mut found = Vec::new();
            for (disk, (_, _, data_offset)) in disks.iter().zip(&made.sides) {
                let data_offset = data_offset.expect("the blocks have a home");
                let home = disk.below.submit(Request::read(data_offset, MIB)).await;
                let home = home.expect("memory").into_data().to_vec();
                found.push((disk.zeroed_bytes.get(), home.iter().all(|byte| *byte == 0)));
            }
            found.try_into().expect("two disks")
        })
    }

    #[test]
    fn no_disk_writes_zeroes_that_the_checksums_know() {
        for op in [Op::Discard, Op::WriteZeroes] {
            assert_eq!(cleared(op, false), [(0, false); 2], "{op:?}");
        }
    }

    #[test]
    fn without_checksums_the_home_has_the_zeroes() {
        for side in cleared(Op::Discard, true) {
            assert!(side.0 >= 16 * MIB && side.1, "{side:?}");
        }
    }
}
