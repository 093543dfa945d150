//! Planted bugs of recovery and durability. A side stores content other than the content written to
//! it, or returns content other than the stored content, and a later life detects the effect.
//!
//! A bug is inactive until a superblock has been read from the side, so formatting is correct. A
//! bug must break only the promise that it is about: it submits all other requests unchanged to the
//! device below.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use bimetal_block::layers::mirror::superblock::{History, SideState, Superblock};
use bimetal_block::request::{IoResult, Op, Reply, Request};
use bimetal_block::{BLOCK_BYTES, Device, Flags, IoError};
use bimetal_rt::{Payload, Rt};
use twox_hash::XxHash3_64;

use super::{Bug, Plant, Planted};

/// Byte range of both checkpoint slots on a side.
const CHECKPOINTS: Range<u64> = 4 << 10..12 << 10;
/// Number of sectors in a page of the dirty-region bitmap; each sector has its own checksum.
const SECTORS: u64 = 8;
const SECTOR_BYTES: usize = 512;
/// Magic number at the start of an entry of the log. The entry's checksum follows the magic number,
/// and the checksum covers the bytes from `ENTRY_CHECKED_FROM` on.
const ENTRY_MAGIC: &[u8; 8] = b"BMLOG\0\0\x01";
const ENTRY_CHECKSUM_AT: usize = 8;
const ENTRY_CHECKED_FROM: usize = 12;
const ENTRY_RECORDS_AT: usize = 96;
const ENTRY_RECORD_BYTES: usize = 24;

/// Wraps the device of a side in a bug.
pub(super) fn bad_side(rt: &Rt, plant: Plant, below: Rc<dyn Device>) -> Rc<dyn Device> {
    Rc::new(Planted(Rc::new(BadSide {
        rt: rt.clone(),
        plant,
        below,
        found: RefCell::default(),
        in_use: Cell::new(false),
        marked: Cell::new(false),
        forgotten: RefCell::default(),
    })))
}

struct BadSide {
    rt: Rt,
    plant: Plant,
    below: Rc<dyn Device>,
    /// First superblock that was read in this life.
    found: RefCell<Option<Superblock>>,
    /// Whether the side has been written in this life.
    in_use: Cell<bool>,
    /// Whether the last write was to a superblock.
    marked: Cell<bool>,
    /// Content of writes that the bug has not stored; reads return this content until the program
    /// ends.
    forgotten: RefCell<BTreeMap<u64, Payload>>,
}

impl Bug for BadSide {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    async fn run(self: Rc<Self>, request: Request) -> IoResult {
        match request.op {
            Op::Read => self.read(request).await,
            Op::Flush => self.flush(request).await,
            Op::Write | Op::Discard | Op::WriteZeroes => self.change(request).await,
            Op::Extents => self.below.submit(request).await,
        }
    }
}

impl BadSide {
    fn is_superblock(&self, request: &Request) -> bool {
        let last = self.below.geometry().size_bytes - BLOCK_BYTES;
        let one = request.len == BLOCK_BYTES;
        one && (request.offset == 0 || request.offset == last)
    }

    /// Returns the byte range of the side in which the bug does not store the written content;
    /// `None` if the bug has no such range.
    fn forgets(&self) -> Option<Range<u64>> {
        let found = self.found.borrow();
        let layout = found.as_ref()?.layout;
        match self.plant {
            Plant::ForgetsMap => Some(layout.map.0..layout.map.0 + layout.map.1),
            Plant::ForgetsCheckpoints => Some(CHECKPOINTS),
            _ => None,
        }
    }

    fn log(&self) -> Option<Range<u64>> {
        let found = self.found.borrow();
        let (start, len) = found.as_ref()?.layout.log;
        Some(start..start + len)
    }

    async fn flush(&self, request: Request) -> IoResult {
        let lies = match self.plant {
            Plant::LiesAboutFlush => self.found.borrow().is_some(),
            Plant::UnorderedMarks => self.found.borrow().is_some() && self.marked.get(),
            _ => false,
        };
        if lies {
            return Ok(Reply::Done);
        }
        self.below.submit(request).await
    }

    async fn change(&self, mut request: Request) -> IoResult {
        self.marked.set(self.is_superblock(&request));
        if self.found.borrow().is_some() {
            self.in_use.set(true);
            if request.op == Op::Write && self.is_superblock(&request) {
                self.falsify(&mut request);
            }
            let inside = |area: &Range<u64>| within(&request, area);
            if request.op == Op::Write && self.forgets().is_some_and(|area| inside(&area)) {
                let blocks = request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES;
                let mut forgotten = self.forgotten.borrow_mut();
                for (index, block) in blocks.enumerate() {
                    forgotten.insert(block, block_of(&request.payload, index));
                }
                if self.plant != Plant::ForgetsMap {
                    return Ok(Reply::Done);
                }
                // The simulated bug replaces the written page of the bitmap: the new page has valid
                // checksums, but no marked regions.
                request.payload = self.empty_pages(&request);
            }
        }
        self.below.submit(request).await
    }

    /// Returns pages of the dirty-region bitmap with valid checksums and without marked regions.
    /// The planted bug stores them in place of the written pages.
    fn empty_pages(&self, request: &Request) -> Payload {
        let found = self.found.borrow();
        let found = found.as_ref().expect("a bug begins when it was read");
        let first = (request.offset - found.layout.map.0) / BLOCK_BYTES;
        let mut bytes = vec![0; request.len as usize];
        for (sector, content) in (0..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
            let page: u64 = first + sector / SECTORS;
            let number = (sector % SECTORS) as u32;
            let (entries, sum) = content.split_at_mut(SECTOR_BYTES - 4);
            let crc = crc32c::crc32c(&found.side);
            let crc = crc32c::crc32c_append(crc, &page.to_le_bytes());
            let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
            sum.copy_from_slice(&crc32c::crc32c_append(crc, entries).to_le_bytes());
        }
        self.rt.pool().copy_of(&bytes).into()
    }

    /// Replaces the superblock in a write request by one with a wrong state or wrong epochs. The
    /// planted bug determines what is wrong.
    fn falsify(&self, request: &mut Request) {
        let Ok(Some(mut superblock)) = Superblock::decode(&request.payload.to_vec()) else {
            return;
        };
        match self.plant {
            Plant::ForgetsActive if superblock.state == SideState::Dirty => {
                superblock.state = SideState::Clean;
            }
            Plant::ForgetsRebuild if superblock.state == SideState::Inconsistent => {
                superblock.state = SideState::Clean;
                let member = 1 << superblock.place();
                let mut epochs = superblock.history.epochs().to_vec();
                for epoch in &mut epochs {
                    epoch.members |= member;
                }
                let Ok(history) = History::of(epochs) else {
                    return;
                };
                superblock.history = history;
            }
            Plant::ForgetsEpochs => {
                let found = self.found.borrow();
                let found = found.as_ref().expect("a bug begins when it was read");
                superblock.history = found.history.clone();
            }
            _ => return,
        }
        request.payload = self.rt.pool().copy_of(&superblock.encode()).into();
    }

    async fn read(&self, request: Request) -> IoResult {
        let range = request.offset..request.end();
        let superblock = self.is_superblock(&request);
        if !self.in_use.get() && self.log().is_some_and(|log| within(&request, &log)) {
            match self.plant {
                Plant::HidesLog => {
                    return Ok(Reply::Data(
                        self.rt.pool().zeroed(request.len as usize).into(),
                    ));
                }
                Plant::ShortensEntry => {
                    self.in_use.set(true);
                    self.shorten_newest_entry().await?;
                }
                _ => {}
            }
        }
        let reply = self.below.submit(request).await?;
        let Reply::Data(data) = reply else {
            return Ok(reply);
        };
        if superblock {
            return Ok(Reply::Data(self.look(data)));
        }
        let forgotten = self.forgotten.borrow();
        if forgotten.is_empty() {
            return Ok(Reply::Data(data));
        }
        let mut shown = Payload::empty();
        for (index, block) in (range.start / BLOCK_BYTES..range.end / BLOCK_BYTES).enumerate() {
            let known = forgotten.get(&block).cloned();
            shown.append(known.unwrap_or_else(|| block_of(&data, index)));
        }
        Ok(Reply::Data(shown))
    }

    /// Records a superblock that was read. Returns the data with which to answer the read. Some
    /// bugs falsify this data.
    fn look(&self, data: Payload) -> Payload {
        let Ok(Some(mut superblock)) = Superblock::decode(&data.to_vec()) else {
            return data;
        };
        self.found
            .borrow_mut()
            .get_or_insert_with(|| superblock.clone());
        if self.plant != Plant::ChecksNothing {
            return data;
        }
        superblock.flags.no_checksums = true;
        self.rt.pool().copy_of(&superblock.encode()).into()
    }

    /// Overwrites the last block of the newest log entry with zeroes, and updates the checksums so
    /// that the entry still looks valid.
    async fn shorten_newest_entry(&self) -> Result<(), IoError> {
        let Some(log) = self.log() else { return Ok(()) };
        let whole = Request::read(log.start, log.end - log.start);
        let bytes = self.below.submit(whole).await?.into_data().to_vec();
        let block = BLOCK_BYTES as usize;
        let headers = (0..bytes.len()).step_by(block);
        let newest = headers
            .filter_map(|at| Some((Entry::of(&bytes[at..at + block])?, at)))
            .max_by_key(|(entry, _)| entry.position);
        let Some((entry, at)) = newest.filter(|(entry, _)| entry.blocks > 0) else {
            return Ok(());
        };
        let mut header = bytes[at..at + block].to_vec();
        entry.forge_last(&mut header);
        let last = log.start + at as u64 + entry.blocks * BLOCK_BYTES;
        let zeroes = self.rt.pool().zeroed(block);
        let header = self.rt.pool().copy_of(&header);
        let header_at = log.start + at as u64;
        for (offset, payload) in [(last, zeroes), (header_at, header)] {
            let write = Request::write(offset, payload, Flags::FUA);
            self.below.submit(write).await?;
        }
        Ok(())
    }
}

fn within(request: &Request, area: &Range<u64>) -> bool {
    area.start <= request.offset && request.end() <= area.end
}

fn block_of(payload: &Payload, index: usize) -> Payload {
    let bytes = BLOCK_BYTES as usize;
    payload.slice(index * bytes..(index + 1) * bytes)
}

/// Fields of a log entry that are needed to overwrite its last block; `docs/format/mirror-side.md`
/// describes the layout.
struct Entry {
    position: u64,
    blocks: u64,
    records: usize,
}

impl Entry {
    fn of(header: &[u8]) -> Option<Entry> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(header[at..at + 4].try_into().ok()?));
        let sum = crc32c::crc32c(&header[ENTRY_CHECKED_FROM..]);
        if header[..8] != ENTRY_MAGIC[..] || u32_at(ENTRY_CHECKSUM_AT)? != sum {
            return None;
        }
        Some(Entry {
            position: u64::from_le_bytes(header[40..48].try_into().ok()?),
            blocks: u64::from(u32_at(12)?),
            records: u32_at(72)? as usize,
        })
    }

    /// Changes the checksums in the header of the entry so that they are correct for an entry whose
    /// last block contains only zeroes.
    fn forge_last(&self, header: &mut [u8]) {
        let sums_at = ENTRY_RECORDS_AT + self.records * ENTRY_RECORD_BYTES;
        let last_at = sums_at + (self.blocks as usize - 1) * 4;
        let zeroes = XxHash3_64::oneshot(&[0; BLOCK_BYTES as usize]) as u32;
        header[last_at..last_at + 4].copy_from_slice(&zeroes.to_le_bytes());
        let sum = crc32c::crc32c(&header[ENTRY_CHECKED_FROM..]);
        header[ENTRY_CHECKSUM_AT..ENTRY_CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }
}
