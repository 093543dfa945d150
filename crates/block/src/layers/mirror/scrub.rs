//! Scrub: reads every written block of every healthy side while the volume is in use, so that bit
//! rot is found while another side still has a good copy, from which the block is then repaired.
//!
//! The checksums decide whether a block is correct. A block without a known checksum is compared
//! with the copies on the other sides, and then gets a checksum. A scrub must never repair from a
//! copy that is not known to be better, and never delay clients for long. If it could not read some
//! content, it must never report that content as checked.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};

use super::scrub_progress::Run;
use super::shared::{Shared, VolumeState};
use super::side::{Side, add};
use super::store::Checked;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::range_set::RangeSet;
use crate::request::Origin;

/// Size of a piece, the part of the volume that is scrubbed in one step.
const PIECE_BYTES: u64 = 1 << 20;
/// Number of equal parts of the volume for recording the progress of a scrub. The superblocks get
/// the progress after each scrubbed part, and at least once in each interval of `NOTED_EVERY`.
const NOTED_PARTS: u64 = 100;
const NOTED_EVERY: Duration = Duration::from_secs(30);

impl Shared {
    pub(super) fn start_scrub(self: &Rc<Self>) -> Result<(), String> {
        if !self.is_logged() {
            return Err("only a formatted volume can be scrubbed".to_owned());
        }
        if self.state.get() != VolumeState::Open {
            return Err("the volume is not open for writing, so nothing could be repaired".into());
        }
        if self.repair.scrub.was_resumed() {
            return Ok(());
        }
        let run = self
            .repair
            .scrub
            .begin(self.rt.now(), self.rt.unix_seconds(), None);
        let run = run.ok_or("a scrub of the volume is running")?;
        self.scrub_by(run);
        Ok(())
    }

    /// Resumes a scrub that a stop of the volume has interrupted.
    pub(super) fn resume_scrub(self: &Rc<Self>) {
        let volume = self.membership.superblocks.as_ref();
        let before = volume.and_then(|volume| volume.remembered().scrub);
        let unix_s = self.rt.unix_seconds();
        let begin = |before| self.repair.scrub.begin(self.rt.now(), unix_s, Some(before));
        if let Some(run) = before.and_then(begin) {
            self.scrub_by(run);
        }
    }

    fn scrub_by(self: &Rc<Self>, run: Rc<Run>) {
        let shared = Rc::clone(self);
        self.watchers.spawn(async move {
            shared.scrub_all(&run).await;
            if !run.is_interrupted() {
                shared.remember_scrub(None);
            }
            run.end(shared.rt.now());
        });
    }

    async fn scrub_all(self: &Rc<Self>, run: &Run) {
        let mut position = run.counts.position_bytes.get();
        if position == 0 {
            for index in self.healthy() {
                self.scrub_superblocks(run, index).await;
            }
            // This call writes the superblocks, which repairs corrupt copies and would hide the
            // damage. The superblocks have therefore been checked before it.
            self.remember_scrub(Some(run.record()));
            run.is_noted();
            for index in self.healthy() {
                self.scrub_headers(run, index).await;
                self.scrub_areas(run, index).await;
            }
        }
        if run.is_cancelled() {
            return;
        }
        let (mut noted, mut noted_at) = (position, self.rt.now());
        // The loop reads the size again, since the volume may grow during the scrub.
        while position < self.size_bytes() {
            position = self.first_touched(position);
            run.counts.position_bytes.set(position);
            let piece = position..self.size_bytes().min(position + PIECE_BYTES);
            if piece.is_empty() {
                return;
            }
            let bytes = (piece.end - piece.start) * self.healthy().len() as u64;
            self.repair
                .scrub
                .pace
                .turn(&self.repair.clients, bytes)
                .await;
            if run.is_cancelled() {
                return;
            }
            position = piece.end;
            self.scrub_piece(run, piece).await;
            run.counts.position_bytes.set(position);
            let now = self.rt.now();
            let is_far = position - noted >= self.size_bytes() / NOTED_PARTS;
            if is_far || now.ns_since(noted_at) >= NOTED_EVERY.as_nanos() as u64 {
                (noted, noted_at) = (position, now);
                self.remember_scrub(Some(run.record()));
            }
        }
    }

    /// Returns the first position at or after `position` at which a healthy side may hold data. The
    /// range before that position was never written, so a scrub need not read it.
    fn first_touched(&self, position: u64) -> u64 {
        let range = position..self.size_bytes();
        let healthy = self.healthy().into_iter();
        let stores = healthy.filter_map(|index| self.sides[index].store());
        let first = stores.map(|store| store.first_touched(&range)).min();
        first.unwrap_or(position)
    }

    /// Checks the copies of the superblock of a side, and rewrites them if one is corrupt.
    async fn scrub_superblocks(self: &Rc<Self>, run: &Run, index: usize) {
        let (side, Some(volume)) = (&self.sides[index], &self.membership.superblocks) else {
            return;
        };
        let marked = side.changed.until(|| !side.marking.get());
        let superblocks = async {
            marked.await;
            volume.wrong_copies(index).await
        };
        match self.unless_gone(index, superblocks).await {
            // The superblock was being written during the check, so the result is meaningless.
            Ok(_) if side.marking.get() => {}
            Ok(0) => {}
            Ok(wrong) => {
                add(&run.counts.found, wrong);
                self.mark_side(index);
                let marked = side.changed.until(|| !side.marking.get());
                let marked = self.unless_gone(index, async {
                    marked.await;
                    volume.wrong_copies(index).await
                });
                let repaired = marked.await == Ok(0);
                let counter = if repaired {
                    &run.counts.repaired
                } else {
                    &run.counts.unrepairable
                };
                add(counter, wrong);
            }
            Err(_) => add(&side.counts.errors, 1),
        }
    }

    /// Checks and repairs the entry headers in the log of a side.
    async fn scrub_headers(self: &Rc<Self>, run: &Run, index: usize) {
        let side = &self.sides[index];
        let Some(store) = side.store() else { return };
        let mut next = Some(0);
        while let Some(from) = next.filter(|_| !run.is_cancelled()) {
            let pace = &self.repair.scrub.pace;
            pace.turn(&self.repair.clients, PIECE_BYTES).await;
            match self.unless_gone(index, store.check_headers(from)).await {
                Ok(headers) => {
                    add(&run.counts.read_bytes, headers.read_bytes);
                    add(&run.counts.found, headers.wrong);
                    add(&run.counts.repaired, headers.repaired);
                    add(&run.counts.unrepairable, headers.wrong - headers.repaired);
                    next = headers.next;
                }
                Err(_) => {
                    add(&side.counts.errors, 1);
                    return;
                }
            }
        }
    }

    /// Checks and repairs three metadata areas of a side: the checkpoint, the dirty-region bitmap
    /// and the checksums.
    async fn scrub_areas(self: &Rc<Self>, run: &Run, index: usize) {
        let side = &self.sides[index];
        let Some(store) = side.store() else { return };
        let mut next = Some(0);
        while let Some(page) = next.filter(|_| !run.is_cancelled()) {
            self.repair
                .scrub
                .pace
                .turn(&self.repair.clients, PIECE_BYTES)
                .await;
            match self.unless_gone(index, store.check_areas(page)).await {
                Ok(areas) => {
                    add(&run.counts.read_bytes, areas.read_bytes);
                    add(&run.counts.found, areas.wrong_pages);
                    add(&run.counts.repaired, areas.wrong_pages);
                    // The checksums on a corrupt page are lost, so this call marks the blocks that
                    // they covered for repair.
                    self.note_suspects(index);
                    next = areas.next;
                }
                Err(_) => {
                    add(&side.counts.errors, 1);
                    return;
                }
            }
        }
    }

    /// Waits for an operation of a side. Returns `Timeout` when the side is ejected, or when the
    /// operation takes longer than `absent_after`, the time after which a side is considered
    /// absent.
    async fn unless_gone<T>(
        &self,
        index: usize,
        future: impl Future<Output = Result<T, IoError>>,
    ) -> Result<T, IoError> {
        let side = &self.sides[index];
        let gone = std::pin::pin!(side.life.changed.until(|| !side.is_active()));
        let future = std::pin::pin!(future);
        let either = select(future, gone);
        let patience = Duration::from_nanos(self.rules.absent_after_ns);
        match self.rt.timeout_awake(patience, either).await {
            Ok(Either::Left((result, _))) => result,
            Ok(Either::Right(_)) | Err(bimetal_rt::Elapsed) => Err(IoError::Timeout),
        }
    }

    async fn scrub_piece(self: &Rc<Self>, run: &Run, piece: Range<u64>) {
        let checks = self.healthy().into_iter().filter_map(|index| {
            let (store, piece) = (self.sides[index].store()?, piece.clone());
            Some(async move {
                let check = self.unless_gone(index, store.check(&piece));
                (index, check.await)
            })
        });
        let mut wrong: Vec<(usize, Vec<Range<u64>>)> = Vec::new();
        let mut unknown = RangeSet::new();
        for (index, checked) in join_all(checks).await {
            match checked {
                Ok(checked) => {
                    add(&run.counts.read_bytes, checked.read_bytes);
                    let Checked {
                        wrong: of_side,
                        unknown: blocks,
                        ..
                    } = checked;
                    wrong.push((index, of_side));
                    unknown.extend(blocks);
                }
                Err(_) => {
                    add(&self.sides[index].counts.errors, 1);
                    let skipped = piece.end - piece.start;
                    add(&run.counts.skipped_bytes, skipped);
                }
            }
        }
        self.repair(run, &wrong).await;
        let unknown: Vec<Range<u64>> = unknown.iter().collect();
        for range in unknown {
            self.compare(run, range).await;
        }
    }

    /// Repairs the corrupt blocks of each side, given in `wrong`, from other sides with a correct
    /// copy.
    async fn repair(self: &Rc<Self>, run: &Run, wrong: &[(usize, Vec<Range<u64>>)]) {
        for (index, ranges) in wrong {
            let side = &self.sides[*index];
            let blocks = ranges.iter().flat_map(|range| {
                let starts = range.clone().step_by(BLOCK_BYTES as usize);
                starts.map(|start| start..start + BLOCK_BYTES)
            });
            for block in blocks {
                // The side is recorded as lacking this block, for example because the block was
                // written in the meantime. No read uses this copy, so it needs no repair here.
                if !side.out_of_sync.is_clear(&block) {
                    continue;
                }
                let good = wrong.iter().any(|(other, wrong)| {
                    let wrong_too = wrong
                        .iter()
                        .any(|w| w.start <= block.start && block.end <= w.end);
                    other != index && !wrong_too && self.sides[*other].is_current(&block)
                });
                add(&run.counts.found, 1);
                add(&side.counts.corrupt, 1);
                if good {
                    self.replace(run, side, block).await;
                } else {
                    add(&run.counts.unrepairable, 1);
                }
            }
        }
    }

    /// Copies a block to a side from another side.
    async fn replace(self: &Rc<Self>, run: &Run, side: &Side, block: Range<u64>) {
        side.note_lack(block.clone());
        side.out_of_sync.note_corrupt(block.clone());
        let copied = self.copy_piece(side, block).await;
        let counter = match copied {
            Ok(()) => &run.counts.repaired,
            Err(_) => &run.counts.unrepairable,
        };
        add(counter, 1);
    }

    /// Compares the copies of blocks for which at least one side has no checksum.
    async fn compare(self: &Rc<Self>, run: &Run, range: Range<u64>) {
        // The range must not change during the comparison.
        let guard = self.admission.ranges.lock(range.clone()).await;
        let mut order = self.read_order();
        order.retain(|&index| {
            let side = &self.sides[index];
            side.is_healthy() && side.is_current(&range)
        });
        let reads = order.into_iter().filter_map(|index| {
            let (store, range) = (self.sides[index].store()?, range.clone());
            Some(async move {
                let read = async {
                    let reply = store.read(range.clone(), Origin::NONE).await?;
                    let unknown = store.unknown_in(&range).await?;
                    Ok((reply.into_data(), unknown))
                };
                (index, self.unless_gone(index, read).await)
            })
        });
        let mut copies = Vec::new();
        for (index, read) in join_all(reads).await {
            match read {
                Ok((data, unknown)) => copies.push((index, data.to_vec(), data, unknown)),
                Err(error) if error.is_of_a_block() => self.note_suspects(index),
                Err(_) => add(&self.sides[index].counts.errors, 1),
            }
        }
        // A single copy cannot be compared with another one.
        if copies.len() < 2 {
            return;
        }
        let mut differing = Vec::new();
        for block in range.clone().step_by(BLOCK_BYTES as usize) {
            let at = (block - range.start) as usize;
            let content = |bytes: &[u8]| bytes[at..at + BLOCK_BYTES as usize].to_vec();
            let is_known = |unknown: &[Range<u64>]| !unknown.iter().any(|u| u.contains(&block));
            // A copy with a known checksum is correct. If no copy has one, the copy on the side
            // that reads prefer is kept.
            let known = copies.iter().find(|(.., unknown)| is_known(unknown));
            let truth = content(&known.unwrap_or(&copies[0]).1);
            let wrong = copies
                .iter()
                .filter(|(_, bytes, ..)| content(bytes) != truth);
            differing.extend(wrong.map(|(index, ..)| (*index, block..block + BLOCK_BYTES)));
        }
        for (index, _, data, unknown) in &copies {
            let Some(store) = self.sides[*index].store() else {
                continue;
            };
            for part in unknown {
                let of_side = differing.iter().filter(|(of, _)| of == index);
                let mut same = RangeSet::new();
                same.insert(part.clone());
                of_side.for_each(|(_, block)| {
                    same.remove(block.clone());
                });
                for part in same.iter() {
                    let bytes =
                        (part.start - range.start) as usize..(part.end - range.start) as usize;
                    match store.learn(part.clone(), &data.slice(bytes)).await {
                        Ok(blocks) => add(&run.counts.learned_blocks, blocks),
                        Err(_) => add(&self.sides[*index].counts.errors, 1),
                    }
                }
            }
        }
        drop(guard);
        for (index, block) in differing {
            add(&run.counts.found, 1);
            self.replace(run, &self.sides[index], block).await;
        }
    }
}
