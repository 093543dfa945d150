//! Rebuilding an index from its remains: images of leaves with the footers of their segments, and
//! the log. Neither a superblock nor a checkpoint is needed.
//!
//! Of all images whose range contains a key, the image with the highest LSN is right (the format
//! says why). So the keys are divided into pieces, each with its newest image; then patches and the
//! log are applied in the order of their batches. The rebuild must never use an older image in
//! place of a damaged newer image. Keys whose newest image is not proven are listed as lost, with
//! the exact range if it is known. [`proof`] describes the evidence, and [`Rebuilt::is_proven`] the
//! cases in which no proof is possible.

mod evidence;
mod log;
mod losses;
mod pieces;
mod proof;
mod survey;

use crate::batch::{Batch, Operation};
use crate::db::Db;
use crate::error::Error;
use crate::layout::{LOG_OFFSET, Superblock};
use crate::node::{Image, Kind, Seq};
use crate::options::Options;
use crate::storage::{BLOCK_BYTES, Storage};
use crate::tree::blob::Reference;
use crate::tree::deletions::Deletion;
use crate::verify::Problem;
use crate::writer::Durability;
use evidence::{CompleteLog, Doubt};
use log::{Found, Frames};
use losses::Losses;
use pieces::{Piece, Pieces, Source};
use std::collections::{BTreeMap, VecDeque};
use survey::Survey;

/// Approximate length of a batch that is written to the new index, in bytes.
const BATCH_BYTES: usize = 64 << 10;
/// Maximum number of losses, and of problems, that are listed. Further losses and problems are only
/// counted.
const LISTED_MAX: usize = 10_000;

/// Kind of loss in a range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Every key of the range is missing, except keys of which the log or a patch has a newer
    /// version than the lost content.
    Keys,
    /// Changes are missing: some keys of the range may be missing, have an older value, or be
    /// present although they were deleted.
    Changes,
}

/// A range of keys with losses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The first key.
    pub from: Vec<u8>,
    /// First key after the range; `None` if the range extends to the end of all keys.
    pub to: Option<Vec<u8>>,
    /// Kind of loss.
    pub loss: Loss,
}

/// Result of a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Id of the index that was read.
    pub id: u64,
    /// Segments read.
    pub segments: u64,
    /// Readable images of leaves, including images that newer images replace.
    pub leaves: u64,
    /// Readable patches.
    pub patches: u64,
    /// Frames of the log.
    pub log_frames: u64,
    /// Sequence number of the last batch in the log. If the index was not closed, it is not known
    /// whether later batches existed.
    pub last_batch: u64,
    /// Keys in the new index.
    pub keys: u64,
    /// True if all keys that are not listed as lost are proven to be as they were after the last
    /// batch. False if no frame of the log is left, as in an index that never had a batch. Also
    /// false if no superblock is left, unless the log extends back to the beginning of the index.
    /// In these cases a missing segment looks like a segment that was never filled, and an image
    /// damaged together with its footer looks like an image that a power cut has left half written.
    pub is_proven: bool,
    /// Lost ranges, in the order of keys.
    pub lost: Vec<Lost>,
    /// Number of lost ranges, including those that are not listed.
    pub lost_found: u64,
    /// Defects found in the storage that was read. Lost ranges are not among them (see `lost`). A
    /// defect does not always cause a loss.
    pub problems: Vec<Problem>,
    /// Number of problems, including those that are not listed.
    pub problems_found: u64,
}

impl Rebuilt {
    fn problem(&mut self, what: String, offset: u64) {
        self.problems_found += 1;
        if self.problems.len() < LISTED_MAX {
            self.problems.push(Problem { what, offset });
        }
    }
}

/// Current step of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildStep {
    /// Searching for heads of segments. Progress is counted in bytes of the storage.
    Finding,
    /// Reading segments, counted in segments.
    Reading,
    /// Writing leaves into the new index, counted in key ranges with one source image each.
    Writing,
    /// Applying patches and the log, counted in patches and frames.
    Changing,
}

/// Progress callback: receives the step, the work done in the step, and the total work of the step.
pub type RebuildProgress<'a> = dyn FnMut(RebuildStep, u64, u64) + 'a;

/// Rebuilds the index on `from` as a new index on `to` with the id `new_id`. The previous content
/// of `to` is lost; nothing is written to `from`. If `from` has parts of several indexes, `id`
/// selects one. The lengths of log and segments are those of the old index, whatever `options` say.
///
/// # Errors
///
/// [`Error::NotAnIndex`] if `from` has no part of an index, or parts of several and `id` is `None`;
/// and errors of the new index. Damage is reported in the result.
pub fn rebuild(
    from: &dyn Storage,
    id: Option<u64>,
    to: impl Storage + 'static,
    new_id: u64,
    options: &Options,
    progress: &mut RebuildProgress<'_>,
) -> Result<Rebuilt, Error> {
    let mut superblocks = survey::superblocks(from)?;
    let geometry = survey::geometry(from, &superblocks, id, progress)?;
    superblocks.retain(|superblock| superblock.geometry == geometry);
    let options = Options {
        log_bytes: geometry.log_blocks * BLOCK_BYTES as u64,
        segment_bytes: geometry.segment_bytes,
        ..options.clone()
    };
    let mut rebuilt = Rebuilt {
        id: geometry.id,
        ..Rebuilt::default()
    };
    let mut found = Found::in_front(from, &geometry);
    let mut survey = Survey::of(from, geometry, &mut found, &mut rebuilt, progress);
    let mut frames = Frames::of(from, geometry, found, &superblocks, &mut rebuilt);
    if superblocks.first().is_some_and(|s| s.log_durable == 0) && survey.last_lsn() == 0 {
        frames.begin_at_once();
    }
    rebuilt.last_batch = frames.last_seq();
    let whole = frames.whole();
    rebuilt.is_proven = frames.count() > 0 && (!superblocks.is_empty() || whole.from == 0);
    let lacks_end = lacks_end(&superblocks, &survey, &frames, &mut rebuilt);
    let doubts = proof::doubts(
        from,
        &superblocks,
        &mut survey,
        whole,
        frames.lacks_needed(),
    );
    let pieces = survey.pieces(whole);
    let db = Db::create(to, new_id, &options)?;
    let mut building = Building {
        from,
        survey: &survey,
        pieces: &pieces,
        db: &db,
        batch: Batch::new(),
        batch_bytes: 0,
        lost_values: BTreeMap::new(),
        is_log_complete: false,
        losses: Losses::default(),
        rebuilt,
    };
    building.write_leaves(progress)?;
    building.change(&frames, progress)?;
    building.lose_what_is_doubted(&doubts, whole);
    if lacks_end {
        building.losses.add(&[], None, Loss::Changes);
    }
    building.end()
}

/// Returns true if the end of the log is missing: if a superblock says that the log was durable
/// beyond the end that was found, or if an image has a batch that the log lacks. (An image is
/// written only when its content is durable in the log.) The number of missing batches is not
/// known.
fn lacks_end(
    superblocks: &[Superblock],
    survey: &Survey,
    frames: &Frames,
    rebuilt: &mut Rebuilt,
) -> bool {
    let durable = superblocks.iter().map(|superblock| superblock.log_durable);
    let (durable, end) = (durable.max().unwrap_or(0), frames.end());
    let (last, image) = (frames.last_seq(), survey.last_lsn());
    let what = if end < durable {
        format!("the log was durable up to block {durable}, but ends at {end}")
    } else if last < image {
        format!("the log ends with batch {last}, but images contain batch {image}")
    } else {
        return false;
    };
    rebuilt.problem(what, LOG_OFFSET);
    true
}

/// State of the new index while it is built.
struct Building<'a> {
    from: &'a dyn Storage,
    survey: &'a Survey,
    pieces: &'a Pieces,
    db: &'a Db,
    batch: Batch,
    batch_bytes: usize,
    /// Keys whose values are stored out of line and cannot be read. The flag is true while the
    /// value is lost; it becomes false if the log or a patch has the value or a newer change.
    lost_values: BTreeMap<Vec<u8>, bool>,
    /// True once no frame of the log is missing from the current frame to the end of the log.
    is_log_complete: bool,
    losses: Losses,
    rebuilt: Rebuilt,
}

impl Building<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.batch.put(key, value);
        self.batched(key.len() + value.len())
    }

    fn batched(&mut self, bytes: usize) -> Result<(), Error> {
        self.batch_bytes += bytes;
        if self.batch_bytes >= BATCH_BYTES.min(self.db.limits().batch_bytes_max / 4) {
            self.write_batch()?;
        }
        Ok(())
    }

    fn write_batch(&mut self) -> Result<(), Error> {
        if !self.batch.is_empty() {
            self.db.write(&self.batch, Durability::Relaxed)?;
            self.batch.clear();
        }
        self.batch_bytes = 0;
        Ok(())
    }

    /// Writes the rows of all pieces, in order.
    fn write_leaves(&mut self, progress: &mut RebuildProgress<'_>) -> Result<(), Error> {
        let mut current: Option<(usize, Image)> = None;
        let count = self.pieces.all().len() as u64;
        for (number, piece) in (0..).zip(self.pieces.all()) {
            if number % 64 == 0 {
                progress(RebuildStep::Writing, number, count);
            }
            let to = self.pieces.end_of(number as usize);
            match piece.source {
                Source::Nothing => {}
                Source::Lost(_) => self.losses.add(&piece.from, to, Loss::Keys),
                Source::Leaf(index) => {
                    let image = match current.take().filter(|(at, _)| *at == index) {
                        Some((_, image)) => Some(image),
                        None => self
                            .survey
                            .image(self.from, &self.survey.leaves[index].place),
                    };
                    let Some(image) = image else {
                        // The image could be read during the survey, but cannot be read now.
                        self.losses.add(&piece.from, to, Loss::Keys);
                        continue;
                    };
                    self.write_rows(&image, piece, to)?;
                    current = Some((index, image));
                }
            }
        }
        self.write_batch()
    }

    /// Writes the keys of an image that are within `piece`, a key range with this image as its
    /// source. Of each key, only the newest version is written.
    fn write_rows(&mut self, image: &Image, piece: &Piece, to: Option<&[u8]>) -> Result<(), Error> {
        let (mut key, mut before) = (Vec::new(), None);
        for row in image.lower_bound(&piece.from)..image.rows() {
            image.key(row, &mut key);
            if to.is_some_and(|to| &key[..] >= to) {
                break;
            }
            // The newest version of a key comes first.
            if before.as_ref() == Some(&key) {
                continue;
            }
            before = Some(key.clone());
            match image.kind(row) {
                Kind::Put => self.put(&key, &image.value(row))?,
                Kind::Delete => {}
                Kind::Blob => match self.value_of(&image.value(row)) {
                    Some(value) => self.put(&key, &value)?,
                    None => {
                        self.lost_values.insert(key.clone(), true);
                    }
                },
            }
        }
        Ok(())
    }

    /// Returns a value that is stored out of line. If several blobs have the same id, the checksum
    /// of the value shows which of these blobs hold the value.
    fn value_of(&self, reference: &[u8]) -> Option<Vec<u8>> {
        let reference = Reference::decode(reference)?;
        let mut values = vec![Vec::new()];
        for blob in &reference.blobs {
            let parts = self.survey.blobs(self.from, *blob);
            let mut longer = Vec::new();
            for value in &values {
                for part in &parts {
                    longer.push([&value[..], part].concat());
                }
            }
            values = longer;
        }
        values.into_iter().find(|value| reference.is_of(value))
    }

    /// Applies patches and the log, in the order of their batches.
    fn change(&mut self, frames: &Frames, progress: &mut RebuildProgress<'_>) -> Result<(), Error> {
        let count = (self.survey.patches.len() + frames.count()) as u64;
        let mut done = 0;
        let mut patches = self.survey.patches.iter().peekable();
        let mut deletions = VecDeque::from(self.relogged_deletions(frames)?);
        frames.each(self.from, &mut |frame| {
            // The log is complete from this frame on only if no later frame is missing. A missing
            // frame may have held a newer change of a key that this frame changes.
            self.is_log_complete = frame.position >= frames.whole().from;
            done += 1;
            if done % 64 == 0 {
                progress(RebuildStep::Changing, done, count);
            }
            let added = frame.each(|seq, operation| {
                while let Some(patch) = patches.next_if(|patch| patch.place.lsn < seq) {
                    self.delete_relogged(&mut deletions, patch.place.lsn)?;
                    self.add_patch(patch, frames.whole())?;
                    done += 1;
                }
                self.delete_relogged(&mut deletions, seq)?;
                self.add_operation(seq, operation)
            });
            added.map(|_| ())
        })?;
        for patch in patches {
            self.delete_relogged(&mut deletions, patch.place.lsn)?;
            self.add_patch(patch, frames.whole())?;
        }
        self.delete_relogged(&mut deletions, Seq::MAX)?;
        self.write_batch()
    }

    /// Returns the relogged range deletions with the sequence numbers of their batches, in the
    /// order of these numbers.
    fn relogged_deletions(&self, frames: &Frames) -> Result<Vec<Deletion>, Error> {
        let mut all: Vec<Deletion> = Vec::new();
        frames.each(self.from, &mut |frame| {
            let noted = frame.each(|_, operation| {
                if let Operation::RangeDeleted { seq, start, end } = operation {
                    all.push(Deletion {
                        seq,
                        start: start.into(),
                        end: end.map(Into::into),
                    });
                }
                Ok(())
            });
            noted.map(|_| ())
        })?;
        all.sort_by_key(|deletion| deletion.seq);
        all.dedup();
        Ok(all)
    }

    /// Applies the relogged range deletions of batches up to `seq`. A value in a deleted range that
    /// cannot be read still counts as lost, because it might be newer than the deletion.
    fn delete_relogged(
        &mut self,
        deletions: &mut VecDeque<Deletion>,
        seq: Seq,
    ) -> Result<(), Error> {
        while let Some(deletion) = deletions.pop_front_if(|deletion| deletion.seq <= seq) {
            let Deletion { seq, start, end } = deletion;
            self.delete_in_pieces(seq, &start, end.as_deref())?;
        }
        Ok(())
    }

    /// Returns true if the image that a key comes from does not include the change of batch `seq`.
    fn is_news(&self, key: &[u8], seq: Seq) -> bool {
        seq > self.pieces.of_key(key).lsn
    }

    /// Returns true if a lost image might have contained a newer change of the key than the change
    /// in the log. This is possible if the image for the key cannot be read and the log lacks a
    /// frame after the current frame.
    fn is_superseded(&self, key: &[u8]) -> bool {
        let is_lost = matches!(self.pieces.of_key(key).source, Source::Lost(_));
        is_lost && !self.is_log_complete
    }

    /// Returns true if a change of `key` that was found in the log must be applied: the change is
    /// newer than the image, or the key's value in the image is lost and the log is complete.
    fn is_wanted(&self, key: &[u8], seq: Seq) -> bool {
        self.is_news(key, seq) || (self.is_log_complete && self.lost_values.contains_key(key))
    }

    fn add_patch(&mut self, patch: &survey::Patch, whole: CompleteLog) -> Result<(), Error> {
        let image = match patch.is_whole {
            true => self.survey.image(self.from, &patch.place),
            // A damaged patch is skipped here. `lose_what_is_doubted` decides whether its changes
            // are reported as lost.
            false => None,
        };
        let Some(image) = image else {
            return Ok(());
        };
        let mut key = Vec::new();
        for row in 0..image.rows() {
            image.key(row, &mut key);
            let lsn = patch.place.lsn;
            if !self.is_news(&key, lsn) || self.pieces.may_be_outdated(&key, lsn, whole) {
                continue;
            }
            match image.kind(row) {
                Kind::Delete => self.delete(&key)?,
                _ => self.put_again(&key, &image.value(row))?,
            }
        }
        Ok(())
    }

    fn put_again(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.found_again(key);
        self.put(key, value)
    }

    /// Notes that the unreadable value of a key is not lost, because the change being written is as
    /// new as the value, or newer.
    fn found_again(&mut self, key: &[u8]) {
        if let Some(is_lost) = self.lost_values.get_mut(key) {
            *is_lost = false;
        }
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        self.found_again(key);
        self.batch.delete(key);
        self.batched(key.len())
    }

    /// Adds to the losses those parts of the doubtful key ranges in which changes may be missing.
    fn lose_what_is_doubted(&mut self, doubts: &[Doubt], whole: CompleteLog) {
        let pieces = self.pieces;
        for Doubt { range, up_to } in doubts {
            for number in pieces.within(range) {
                let piece = &pieces.all()[number];
                if piece.lsn < *up_to && has_gap(piece, whole) {
                    let from = (&*piece.from).max(&*range.from);
                    let to = match (pieces.end_of(number), range.to.as_deref()) {
                        (Some(piece), Some(range)) => Some(piece.min(range)),
                        (piece, range) => piece.or(range),
                    };
                    self.losses.add(from, to, Loss::Changes);
                }
            }
        }
    }

    fn add_operation(&mut self, seq: Seq, operation: Operation<'_>) -> Result<(), Error> {
        match operation {
            Operation::Put { key, .. } if self.is_superseded(key) => self.delete(key),
            Operation::Put { key, value } if self.is_wanted(key, seq) => self.put_again(key, value),
            Operation::Delete { key } if self.is_wanted(key, seq) => self.delete(key),
            Operation::DeleteRange { start, end } => self.delete_range(seq, start, end),
            // Nothing to do: relogged range deletions are applied separately, in the order of their
            // batches.
            Operation::RangeDeleted { .. } => Ok(()),
            Operation::Put { .. } | Operation::Delete { .. } | Operation::End => Ok(()),
        }
    }

    /// Deletes a range of keys, except keys whose source image already includes the deletion.
    fn delete_range(&mut self, seq: Seq, start: &[u8], end: Option<&[u8]>) -> Result<(), Error> {
        let is_in = |key: &[u8]| key >= start && end.is_none_or(|end| key < end);
        if self.is_log_complete {
            let in_range = self.lost_values.iter_mut().filter(|(key, _)| is_in(key));
            in_range.for_each(|(_, is_lost)| *is_lost = false);
        }
        self.delete_in_pieces(seq, start, end)
    }

    fn delete_in_pieces(
        &mut self,
        seq: Seq,
        start: &[u8],
        end: Option<&[u8]>,
    ) -> Result<(), Error> {
        let pieces = self.pieces;
        let mut number = pieces.number_of(start);
        let mut from = start;
        loop {
            let piece_end = pieces.end_of(number);
            let is_last = match (end, piece_end) {
                (_, None) => true,
                (Some(end), Some(piece_end)) => end <= piece_end,
                (None, Some(_)) => false,
            };
            let to = if is_last { end } else { piece_end };
            if seq > pieces.all()[number].lsn && to.is_none_or(|to| from < to) {
                self.batch.delete_range(from, to);
                self.batched(from.len() + to.map_or(0, <[u8]>::len))?;
            }
            match piece_end {
                Some(piece_end) if !is_last => from = piece_end,
                _ => return Ok(()),
            }
            number += 1;
        }
    }

    fn end(mut self) -> Result<Rebuilt, Error> {
        let lost = std::mem::take(&mut self.lost_values).into_iter();
        for (key, _) in lost.filter(|(_, is_lost)| *is_lost) {
            let mut after = key.clone();
            after.push(0);
            self.losses.add(&key, Some(&after), Loss::Keys);
        }
        self.rebuilt.lost = std::mem::take(&mut self.losses).list();
        self.rebuilt.lost_found = self.rebuilt.lost.len() as u64;
        self.rebuilt.lost.truncate(LISTED_MAX);
        self.db.write_back()?;
        let mut rows = self
            .db
            .scan((std::ops::Bound::Unbounded, std::ops::Bound::Unbounded));
        while rows.next()?.is_some() {
            self.rebuilt.keys += 1;
        }
        Ok(self.rebuilt)
    }
}

/// Returns true if batches after the LSN of `piece` are missing from the complete part of the log
/// (`whole`). Changes of these batches may have existed only in a lost image.
fn has_gap(piece: &Piece, whole: CompleteLog) -> bool {
    piece.lsn + 1 < whole.first_seq
}
