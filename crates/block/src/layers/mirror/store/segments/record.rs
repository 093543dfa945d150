//! The segment record of a logged side: the segments of its log, the free segments, and where the
//! pages of its tables and the runs of its journal are. Everything else about the segments follows
//! from these.
//! `docs/format/logged-side.md` specifies the bytes.
//!
//! The record has two copies, which are written one after the other. Segments that a record
//! releases must not be filled before both copies have it, so either copy is enough.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use bimetal_rt::Rt;

use super::chain::Listed;
use super::journal::Run;
use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::error::IoError;
use crate::layers::mirror::store::entry::{put_u32, put_u64, u32_at, u64_at};
use crate::layers::mirror::superblock::segmented::{
    RECORD_HEAD_BYTES, RUN_ENTRY_BYTES, RUNS_MAX, TABLE_ENTRY_BYTES, all_table_pages, record_bytes,
};
use crate::layers::mirror::superblock::{SegmentLayout, Uuid};
use crate::request::{Flags, Request};

const MAGIC: [u8; 8] = *b"BMSEGS\0\x04";
const CHECKED_FROM: usize = 12;
/// Maximum length of the requests that read and write a record.
const REQUEST_BYTES_MAX: u64 = 1 << 20;

/// Where the two copies of a page of a table are, and what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TableEntry {
    /// For each copy, the number of its block in the segments, plus 1; 0 when the page was never
    /// written.
    copies: [u32; 2],
    /// CRC32C of the page without the checksums of its sectors.
    pub(super) digest: u32,
}

impl TableEntry {
    /// Returns the entry of a page that was written to these blocks.
    pub(super) fn at(blocks: [u32; 2], digest: u32) -> TableEntry {
        TableEntry {
            copies: blocks.map(|block| block + 1),
            digest,
        }
    }

    /// Returns true when the page was ever written.
    pub(super) fn was_written(&self) -> bool {
        self.copies != [0; 2]
    }

    /// Returns the blocks of the segments that hold the copies.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> + use<> {
        let written = self.copies.into_iter().filter(|place| *place != 0);
        written.map(|place| place - 1)
    }

    /// Returns true when the page was never written, or both copies are inside of `blocks` blocks.
    fn is_sound(&self, blocks: u64) -> bool {
        let is_inside = |place: &u32| (1..=blocks).contains(&u64::from(*place));
        !self.was_written() || self.copies.iter().all(is_inside)
    }
}

/// Content of a segment record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Counts the records of the side.
    pub(super) sequence: u64,
    /// The segments of the log.
    pub(super) log: Listed,
    /// Number of pages of the map.
    pub(super) pages: u64,
    /// Number of segments.
    pub(super) segments: u64,
    /// The segments that are free.
    pub(super) free: BTreeSet<u32>,
    /// Where the pages of the page table are, and behind them those of the segment table.
    pub(super) tables: Vec<TableEntry>,
    /// The runs of the journal, in ascending order, and the number of the next one.
    pub(super) runs: Vec<Run>,
    pub(super) next_run: u64,
}

impl Record {
    fn encode(&self, side: &Uuid) -> Vec<u8> {
        let log = &self.log.segments;
        let counts = [log.len(), self.tables.len(), self.runs.len()];
        let counts = counts.map(|count| count as u64);
        let mut bytes = vec![0; record_bytes(self.segments, counts) as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[16..32].copy_from_slice(side);
        put_u64(&mut bytes, 32, self.sequence);
        put_u64(&mut bytes, 40, self.log.first);
        put_u32(&mut bytes, 48, log.len() as u32);
        put_u32(&mut bytes, 52, self.runs.len() as u32);
        put_u64(&mut bytes, 56, self.pages);
        put_u64(&mut bytes, 64, self.next_run);
        put_u32(&mut bytes, 72, self.segments as u32);
        let mut at = RECORD_HEAD_BYTES as usize;
        for segment in log {
            put_u32(&mut bytes, at, *segment);
            at += 4;
        }
        for table in &self.tables {
            put_u32(&mut bytes, at, table.copies[0]);
            put_u32(&mut bytes, at + 4, table.copies[1]);
            put_u32(&mut bytes, at + 8, table.digest);
            at += TABLE_ENTRY_BYTES as usize;
        }
        for run in &self.runs {
            put_u64(&mut bytes, at, run.sequence);
            put_u32(&mut bytes, at + 8, run.copies[0]);
            put_u32(&mut bytes, at + 12, run.copies[1]);
            put_u32(&mut bytes, at + 16, run.blocks);
            at += RUN_ENTRY_BYTES as usize;
        }
        for segment in &self.free {
            bytes[at + *segment as usize / 8] |= 1 << (segment % 8);
        }
        let checksum = crc32c::crc32c(&bytes[CHECKED_FROM..]);
        put_u32(&mut bytes, 8, checksum);
        bytes
    }

    /// Returns the number of bytes that a record has, as its first block says; `None` when the
    /// block does not begin a record that could be on a side with this layout.
    fn bytes_of(head: &[u8], layout: &SegmentLayout, pages: u64) -> Option<u64> {
        if head.len() as u64 != RECORD_HEAD_BYTES || head[..8] != MAGIC {
            return None;
        }
        let [log, runs] = [48, 52].map(|at| u64::from(u32_at(head, at)));
        let segments = layout.segments();
        let is_of_layout = u64_at(head, 56) == pages && u64::from(u32_at(head, 72)) == segments;
        let fits = log <= segments && runs <= RUNS_MAX && is_of_layout;
        fits.then(|| record_bytes(segments, [log, all_table_pages(pages, segments), runs]))
    }

    /// Decodes a record; `None` when it is not a valid record of this side.
    fn decode(bytes: &[u8], side: &Uuid, layout: &SegmentLayout) -> Option<Record> {
        let valid = u32_at(bytes, 8) == crc32c::crc32c(&bytes[CHECKED_FROM..]);
        if !valid || bytes[16..32] != side[..] {
            return None;
        }
        let (log, pages) = (u32_at(bytes, 48) as usize, u64_at(bytes, 56));
        let segments = layout.segments();
        let tables = all_table_pages(pages, segments) as usize;
        let runs = u32_at(bytes, 52) as usize;
        let log_at = RECORD_HEAD_BYTES as usize;
        let tables_at = log_at + log * 4;
        let runs_at = tables_at + tables * TABLE_ENTRY_BYTES as usize;
        let free_at = runs_at + runs * RUN_ENTRY_BYTES as usize;
        let free = &bytes[free_at..free_at + segments.div_ceil(8) as usize];
        let is_free = |segment: &u32| free[*segment as usize / 8] & (1 << (segment % 8)) != 0;
        let run = |index: usize| {
            let at = runs_at + index * RUN_ENTRY_BYTES as usize;
            Run {
                sequence: u64_at(bytes, at),
                copies: [8, 12].map(|copy| u32_at(bytes, at + copy)),
                blocks: u32_at(bytes, at + 16),
            }
        };
        let table = |index: usize| {
            let at = tables_at + index * TABLE_ENTRY_BYTES as usize;
            TableEntry {
                copies: [0, 4].map(|copy| u32_at(bytes, at + copy)),
                digest: u32_at(bytes, at + 8),
            }
        };
        let record = Record {
            sequence: u64_at(bytes, 32),
            log: Listed {
                first: u64_at(bytes, 40),
                segments: (0..log).map(|n| u32_at(bytes, log_at + n * 4)).collect(),
            },
            pages,
            segments,
            free: (0..free.len() as u32 * 8).filter(is_free).collect(),
            tables: (0..tables).map(table).collect(),
            runs: (0..runs).map(run).collect(),
            next_run: u64_at(bytes, 64),
        };
        record.is_sound(layout).then_some(record)
    }

    /// Returns true when every segment and every block that the record names exists, and no segment
    /// is named twice.
    fn is_sound(&self, layout: &SegmentLayout) -> bool {
        let mut segments: Vec<u32> = self.log.segments.iter().copied().collect();
        segments.sort_unstable();
        let distinct = segments.windows(2).all(|pair| pair[0] < pair[1]);
        let are_used = segments.iter().all(|segment| !self.free.contains(segment));
        let last = segments.last().max(self.free.last());
        let last = last.copied().map_or(0, u64::from);
        let blocks = layout.area.1 / BLOCK_BYTES;
        let end = self.log.first.checked_add(segments.len() as u64);
        let has_end = end.is_some_and(|end| end.checked_mul(layout.segment_bytes).is_some());
        let has_tables = self.tables.iter().all(|table| table.is_sound(blocks));
        let exist = distinct && are_used && last < layout.segments();
        exist && has_end && has_tables && self.has_sound_runs(layout)
    }

    /// Returns true when the runs of the journal are in order, and each of their copies is in one
    /// segment.
    fn has_sound_runs(&self, layout: &SegmentLayout) -> bool {
        let all_blocks = layout.area.1 / BLOCK_BYTES;
        let fits = |copy: u32, run: &Run| {
            let (first, blocks) = (u64::from(copy), u64::from(run.blocks));
            let left = layout.segment_blocks() - first % layout.segment_blocks();
            first < all_blocks && (1..=left).contains(&blocks)
        };
        let fit = |run: &Run| run.copies.iter().all(|copy| fits(*copy, run));
        let is_ordered = |a: &Run, b: &Run| a.sequence < b.sequence;
        let last = self.runs.last();
        self.runs.is_sorted_by(is_ordered)
            && last.is_none_or(|last| last.sequence < self.next_run)
            && self.runs.iter().all(fit)
    }
}

/// Returns the offsets of the two copies.
fn copies(layout: &SegmentLayout) -> [u64; 2] {
    let half = layout.record.1 / 2 / BLOCK_BYTES * BLOCK_BYTES;
    [layout.record.0, layout.record.0 + half]
}

/// Result of reading both copies.
pub(super) struct Found {
    pub(super) newest: Record,
    /// Index of the copy to write first next time, because it may not hold the newest record.
    pub(super) older_copy: usize,
}

/// Reads the newest segment record of a side whose map has `pages` pages.
///
/// # Errors
/// When neither copy is valid: the error of the device if a copy cannot be read, otherwise
/// `Corrupt`.
pub(super) async fn read(
    device: &dyn Device,
    side: &Uuid,
    layout: &SegmentLayout,
    pages: u64,
) -> Result<Found, IoError> {
    let (mut newest, mut error) = (None::<Found>, IoError::Corrupt);
    for (index, offset) in copies(layout).into_iter().enumerate() {
        let found = match read_copy(device, side, layout, (offset, pages)).await {
            Ok(found) => found,
            Err(failed) => {
                error = failed;
                continue;
            }
        };
        let newer = |found: &Record| {
            let known = newest.as_ref();
            known.is_none_or(|known| known.newest.sequence < found.sequence)
        };
        if let Some(found) = found.filter(newer) {
            newest = Some(Found {
                newest: found,
                older_copy: 1 - index,
            });
        }
    }
    newest.ok_or(error)
}

async fn read_copy(
    device: &dyn Device,
    side: &Uuid,
    layout: &SegmentLayout,
    (offset, pages): (u64, u64),
) -> Result<Option<Record>, IoError> {
    let head = device
        .submit(Request::read(offset, RECORD_HEAD_BYTES))
        .await?;
    let mut bytes = head.into_data().to_vec();
    let Some(len) = Record::bytes_of(&bytes, layout, pages) else {
        return Ok(None);
    };
    if len > layout.record.1 / 2 {
        return Ok(None);
    }
    for part in parts(device, RECORD_HEAD_BYTES..len) {
        let read = Request::read(offset + part.start, part.end - part.start);
        let data = device.submit(read).await?.into_data();
        bytes.extend_from_slice(&data.to_vec());
    }
    Ok(Record::decode(&bytes, side, layout))
}

/// Returns the number of copies that do not hold `record`. Both should hold it.
///
/// # Errors
/// Errors of the device other than an unreadable block.
pub(super) async fn wrong_copies(
    device: &dyn Device,
    side: &Uuid,
    layout: &SegmentLayout,
    record: &Record,
) -> Result<u64, IoError> {
    let mut wrong = 0;
    for offset in copies(layout) {
        let place = (offset, record.pages);
        let found = match read_copy(device, side, layout, place).await {
            Err(error) if error.is_of_a_block() => None,
            other => other?,
        };
        wrong += u64::from(found.as_ref() != Some(record));
    }
    Ok(wrong)
}

/// Divides a range into parts that one request can transfer.
fn parts(device: &dyn Device, range: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
    let transfer = u64::from(device.geometry().transfer_bytes_max);
    let step = REQUEST_BYTES_MAX.min(transfer) / BLOCK_BYTES * BLOCK_BYTES;
    let starts = range.clone().step_by(step.max(BLOCK_BYTES) as usize);
    starts
        .map(|start| start..(start + step).min(range.end))
        .collect()
}

/// Durably writes a record to both copies, first to the copy that may not hold the newest record.
///
/// # Errors
/// When the device fails. One copy is intact nevertheless, with this record or the previous one.
///
/// # Panics
/// When the record is longer than its area allows.
pub(super) async fn write(
    rt: &Rt,
    device: &Rc<dyn Device>,
    side: &Uuid,
    layout: &SegmentLayout,
    (record, older_copy): (&Record, &Cell<usize>),
) -> Result<(), IoError> {
    let bytes = rt.pool().copy_of(&record.encode(side));
    let len = bytes.len() as u64;
    assert!(len <= layout.record.1 / 2, "the area has room for a record");
    for _ in 0..2 {
        let offset = copies(layout)[older_copy.get()];
        for part in parts(&**device, 0..len) {
            let data = bytes.slice(part.start as usize..part.end as usize);
            let write = Request::write(offset + part.start, data, Flags::NONE);
            device.submit(write).await?;
        }
        device.submit(Request::flush()).await?;
        older_copy.set(1 - older_copy.get());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: Uuid = *b"0123456789abcdef";

    fn layout() -> SegmentLayout {
        SegmentLayout {
            record: (64 << 10, 128 << 10),
            area: (1 << 20, 16 << 20),
            segment_bytes: 1 << 20,
            log_overtakes: true,
            room_bytes: None,
        }
    }

    fn record() -> Record {
        Record {
            sequence: 7,
            log: Listed {
                first: 5,
                segments: [3, 15, 0].into(),
            },
            pages: 2 * 504 + 1,
            segments: 16,
            free: [1, 14].into(),
            tables: vec![
                TableEntry::default(),
                TableEntry::at([4095, 7], 0x1234),
                TableEntry::default(),
                TableEntry::at([0, 1], 5),
            ],
            runs: vec![Run {
                sequence: 4,
                copies: [0x1FE, 0x300],
                blocks: 2,
            }],
            next_run: 9,
        }
    }

    /// Returns the bytes of the record, put together by hand from the format page.
    fn golden() -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        bytes[..8].copy_from_slice(b"BMSEGS\0\x04");
        bytes[16..32].copy_from_slice(&SIDE);
        bytes[32] = 7;
        bytes[40] = 5;
        bytes[48] = 3;
        bytes[52] = 1;
        bytes[56..58].copy_from_slice(&[0xF1, 3]);
        bytes[64] = 9;
        bytes[72] = 16;
        bytes[4096] = 3;
        bytes[4100] = 15;
        bytes[4125] = 0x10;
        bytes[4128] = 8;
        bytes[4132..4134].copy_from_slice(&[0x34, 0x12]);
        bytes[4156] = 1;
        bytes[4160] = 2;
        bytes[4164] = 5;
        bytes[4172] = 4;
        bytes[4180..4186].copy_from_slice(&[0xFE, 1, 0, 0, 0, 3]);
        bytes[4188] = 2;
        bytes[4196..4198].copy_from_slice(&[2, 0x40]);
        let checksum = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decoded(bytes: &[u8]) -> Option<Record> {
        let len = Record::bytes_of(&bytes[..4096], &layout(), 1009)?;
        (len == bytes.len() as u64).then(|| Record::decode(bytes, &SIDE, &layout()))?
    }

    #[test]
    fn a_record_is_as_the_format_page_draws_it() {
        assert_eq!(record().encode(&SIDE), golden());
        assert_eq!(decoded(&golden()), Some(record()));
        assert_eq!(Record::decode(&golden(), &[0; 16], &layout()), None);
    }

    #[test]
    fn no_byte_can_change_unnoticed() {
        for byte in 0..golden().len() {
            let mut bad = golden();
            bad[byte] ^= 1 << (byte % 8);
            assert_eq!(decoded(&bad), None, "byte {byte}");
        }
    }

    /// Records with a valid checksum but impossible values are refused.
    #[test]
    fn what_cannot_be_is_refused() {
        let cases: [(usize, &[u8]); 13] = [
            (48, &[17]),        // More segments than the side has.
            (56, &[4]),         // Another number of pages.
            (47, &[0xFF]),      // Positions beyond the end of numbers.
            (4096, &[15]),      // One segment twice.
            (4096, &[16]),      // A segment that does not exist.
            (4124, &[1, 0x10]), // A block behind the last segment.
            (4128, &[0]),       // One copy only.
            (52, &[2]),         // A run with the number of the one before, which is empty.
            (64, &[4]),         // The number of the next run is in use.
            (4188, &[3]),       // A run that crosses the end of a segment.
            (4184, &[0, 0x10]), // A run behind the last segment.
            (72, &[15]),        // Another number of segments.
            (4196, &[10]),      // A segment of the log that is free.
        ];
        for (at, bytes) in cases {
            let mut bad = golden();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            let checksum = crc32c::crc32c(&bad[12..]);
            bad[8..12].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(decoded(&bad), None, "byte {at}");
        }
    }
}
