//! A copy of the volume from one side alone, without a server, a configuration or the other sides.
//! It is for the day on which nothing else is left. The content is read in the order in which it
//! lies on the device and is written to another device; what is missing is listed.
//!
//! The side must never be written to.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::{Payload, Rt};
use futures_util::stream::{self, StreamExt};

use super::opening::store_alone;
use super::store::{Piece, Store};
use super::superblock::{Candidate, SideKind, SideState, Superblock, Uuid};
use crate::device::Device;
use crate::error::{IoError, OpenError};
use crate::range_set::RangeSet;
use crate::request::{Flags, Request};

/// Length of the part of the device whose content is listed at once, so that the list fits into
/// memory.
const LISTED_BYTES: u64 = 16 << 30;
/// Maximum number of reads of the side in flight, and of writes of the copy for each of them.
const READS_MAX: usize = 8;
const WRITES_MAX: usize = 32;

/// A side that is read for a copy; see the module documentation.
pub struct Rescue {
    store: Rc<Store>,
    superblock: Superblock,
}

/// What a side says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RescueFacts {
    /// UUID of the volume.
    pub volume: Uuid,
    /// Name of the volume.
    pub name: String,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// How the side stores the blocks of the volume.
    pub kind: SideKind,
    /// Number of sides of the volume, including this one.
    pub sides: usize,
    /// Time of the newest change that the side has, in seconds since 1970; `None` when its log has
    /// none.
    pub written_s: Option<u64>,
    /// Whether the side was being rebuilt, so that its content is a mixture of old and new.
    pub is_mixed: bool,
    /// Whether the log of the side has lost changes that had been durable.
    pub is_damaged: bool,
}

/// Result of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rescued {
    /// Number of bytes that were copied. The rest of the volume, apart from what is missing, is
    /// zeroes.
    pub copied_bytes: u64,
    /// Number of copied bytes for which no digest is known.
    pub unverified_bytes: u64,
    /// Ranges of the volume that the side cannot supply, in bytes.
    pub missing: Vec<Range<u64>>,
}

/// Progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RescueStep {
    /// Reading the log of the side. The numbers are bytes read, and the length of the log.
    ReadingLog(u64, u64),
    /// Reading the map of a logged side. The numbers are bytes read, and to be read.
    ReadingMap(u64, u64),
    /// Searching the segments for blocks whose places are lost. The numbers are the length of the
    /// segments that were searched, and that of all segments, in bytes.
    RestoringMap(u64, u64),
    /// Copying. The numbers are the length of the part of the device that was copied, and that of
    /// the whole, in bytes.
    Copying(u64, u64),
}

/// Reason why a copy has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RescueError {
    /// The side failed.
    #[error("reading the side: {0}")]
    Side(IoError),
    /// The device with the copy failed.
    #[error("writing the copy: {0}")]
    Copy(IoError),
}

impl Rescue {
    /// Reads what is needed to find the content of the side on `device`. `name` is its name in
    /// messages. Calls `told` with the progress.
    ///
    /// # Errors
    /// When the device holds no side, or when the side cannot be read.
    pub async fn open(
        rt: &Rt,
        name: &str,
        device: &Rc<dyn Device>,
        told: &dyn Fn(RescueStep),
    ) -> Result<Rescue, OpenError> {
        let candidate = Candidate {
            name: name.to_owned(),
            device: Rc::clone(device),
        };
        let found = candidate.superblock().await?;
        let superblock = found.ok_or_else(|| candidate.error("it holds no side of a volume"))?;
        let on = store_alone(device, &superblock);
        let log_bytes = superblock.layout.log.1;
        let of_log = |read| told(RescueStep::ReadingLog(read, log_bytes));
        let store = Store::open_telling(rt, &on, &of_log).await;
        let store = store.map_err(|error| match error {
            IoError::Corrupt => candidate.error(super::opening::damaged_words(&superblock)),
            error => candidate.error(&error.to_string()),
        })?;
        // As when the side is started alone, only changes without a gap before them count.
        store.forget_from(store.complete());
        let of_map = |done, all| told(RescueStep::ReadingMap(done, all));
        let counted = store.count_map(&of_map).await;
        counted.map_err(|error| candidate.error(&error.to_string()))?;
        let of_places = |done, all| told(RescueStep::RestoringMap(done, all));
        let restored = store.restore_places(&of_places).await;
        restored.map_err(|error| candidate.error(&error.to_string()))?;
        Ok(Rescue { store, superblock })
    }

    /// Returns what the side says about itself.
    pub fn facts(&self) -> RescueFacts {
        let found = self.store.found();
        RescueFacts {
            volume: self.superblock.volume,
            name: self.superblock.name.clone(),
            volume_bytes: self.superblock.volume_bytes,
            kind: match self.superblock.layout.segments {
                Some(_) => SideKind::Log,
                None => SideKind::Home,
            },
            sides: self.superblock.table.iter().flatten().count(),
            written_s: found.written_s,
            is_mixed: self.superblock.state == SideState::Inconsistent,
            is_damaged: found.damaged,
        }
    }

    /// Copies the volume to `into`, which must read as zeroes and be as large as the volume. The
    /// copy is durable when this returns. Calls `told` with the progress.
    ///
    /// # Errors
    /// Errors of a device other than an unreadable block of the side.
    pub async fn copy(
        &self,
        into: &Rc<dyn Device>,
        told: &dyn Fn(RescueStep),
    ) -> Result<Rescued, RescueError> {
        let mut rescued = Rescued::default();
        let mut missing = RangeSet::new();
        let in_log = self.store.pieces_in_log(&mut missing);
        self.copy_pieces(&in_log, into, (&mut rescued, &mut missing), &|_| ())
            .await?;
        let area = self.store.content_area();
        let all = area.end - area.start;
        for start in area.clone().step_by(LISTED_BYTES as usize) {
            let part = start..area.end.min(start + LISTED_BYTES);
            let pieces = self.store.pieces_in(part).await;
            let pieces = pieces.map_err(RescueError::Side)?;
            let of_part = |at: u64| told(RescueStep::Copying(at - area.start, all));
            self.copy_pieces(&pieces, into, (&mut rescued, &mut missing), &of_part)
                .await?;
        }
        let lost = self.store.lost_ranges().await;
        missing.extend(lost.map_err(RescueError::Side)?.iter());
        let flushed = into.submit(Request::flush()).await;
        flushed.map_err(RescueError::Copy)?;
        rescued.missing = missing.iter().collect();
        Ok(rescued)
    }

    async fn copy_pieces(
        &self,
        pieces: &[Piece],
        into: &Rc<dyn Device>,
        (rescued, missing): (&mut Rescued, &mut RangeSet),
        told: &dyn Fn(u64),
    ) -> Result<(), RescueError> {
        let runs = self.store.runs_of(pieces);
        let reads = runs.map(async |run| {
            let salvaged = self.store.salvage(run).await;
            (run.end, salvaged)
        });
        let mut reads = stream::iter(reads).buffered(READS_MAX);
        while let Some((end, salvaged)) = reads.next().await {
            let salvaged = salvaged.map_err(RescueError::Side)?;
            rescued.unverified_bytes += salvaged.unverified_bytes;
            missing.extend(salvaged.missing);
            rescued.copied_bytes += write_all(into, salvaged.intact).await?;
            told(end);
        }
        Ok(())
    }
}

/// Writes parts of the copy. Returns the number of bytes.
async fn write_all(
    into: &Rc<dyn Device>,
    mut parts: Vec<(u64, Payload)>,
) -> Result<u64, RescueError> {
    parts.sort_unstable_by_key(|(offset, _)| *offset);
    let done = Cell::new(0);
    let writes = parts.into_iter().map(async |(offset, data)| {
        let bytes = data.len() as u64;
        let write = Request::write(offset, data, Flags::NONE);
        into.submit(write).await?;
        done.set(done.get() + bytes);
        Ok(())
    });
    let mut writes = stream::iter(writes).buffer_unordered(WRITES_MAX);
    while let Some(written) = writes.next().await {
        written.map_err(RescueError::Copy)?;
    }
    Ok(done.get())
}
