//! Bits that record which pages of the dirty-region bitmap and of the checksums were ever written.
//! `docs/format/mirror-side.md` specifies the bytes.
//!
//! A side of 20 TiB has 21 GB of such pages, and formatting writes none of these pages. Instead, a
//! page without a set bit is treated as a page of a new side, whatever the device holds at its
//! location. A page with a set bit is validated by its own checksums alone, so a page that has
//! turned to zeroes is recognized as damaged.
//!
//! A bit must never be durable before its page is durable. The log must never drop the changes in a
//! page before the bit of the page is durable. A lost bit would make content read as zeroes. So all
//! bits are stored twice, bits are never cleared, and a bit counts as set if it is set in either
//! copy.

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Rt;
use bimetal_rt::turn::count_entries;

use super::pages::{Area, PageBits, WriteBack};
use crate::device::Device;
use crate::error::IoError;
use crate::layers::mirror::superblock::Uuid;
use crate::layers::mirror::superblock::areas::{
    ENTRIES_BYTES, PAGE_BITS, PAGE_BYTES, SECTORS, written_bytes,
};
use crate::request::Request;

const PAGE_WORDS: usize = ENTRIES_BYTES / 8;
const SECTOR_WORDS: usize = PAGE_WORDS / SECTORS;
/// Numbers of the first page of each of the two copies. The checksums of a page include its number.
/// The numbers are chosen so that no page of the bitmap or the checksums can be mistaken for a page
/// of a copy.
const FIRST_PAGES: [u64; 2] = [1 << 62, 1 << 63];
/// Maximum number of attempts to write the bits, when a page read back differs from the page
/// written.
const WRITE_TRIES: usize = 4;

/// Returns the areas of the two copies of the bits, which begin at the two halves of the given
/// area.
fn copies((offset, len): (u64, u64), pages: u64, side: Uuid) -> [Area; 2] {
    let half = len / 2 / PAGE_BYTES * PAGE_BYTES;
    let needed = written_bytes(pages) / 2;
    assert!(needed <= half, "the area has room for {pages} bits");
    [0, 1].map(|copy| Area {
        offset: offset + copy * half,
        len: needed,
        side,
        numbered_from: FIRST_PAGES[copy as usize],
    })
}

/// Writes both copies of the bits with all bits cleared, for `pages` pages that were never written.
/// The bits are durable after the next flush.
///
/// # Errors
/// Errors of the device; the content is then unknown.
///
/// # Panics
/// When the area has no room for the bits.
pub(super) async fn initialise(
    rt: &Rt,
    device: &dyn Device,
    place: (u64, u64),
    pages: u64,
    side: Uuid,
) -> Result<(), IoError> {
    for copy in copies(place, pages, side) {
        copy.fill(rt, device, |_, _: &mut [u8]| ()).await?;
    }
    Ok(())
}

/// The written bits of a side in use.
pub(super) struct Written {
    device: Rc<dyn Device>,
    copies: [WriteBack; 2],
    /// One bit for each page. A set bit is durable, or becomes durable with the next write of the
    /// bits.
    bits: RefCell<Vec<u64>>,
    /// Pages that the device has written, but whose written bit is not set yet, because they may
    /// not be durable.
    fresh: RefCell<BTreeSet<u64>>,
    damaged_sectors: Cell<u64>,
}

/// The sectors read from one copy; `None` for an invalid sector.
type Sectors = Vec<Option<[u64; SECTOR_WORDS]>>;

impl Written {
    /// Reads both copies of the bits, in parallel.
    ///
    /// # Errors
    /// Errors of the device that do not concern a single block. A sector that is invalid in both
    /// copies is not an error: all of its pages are treated as written, so that their own checksums
    /// decide.
    ///
    /// # Panics
    /// When the area has no room for the bits.
    pub(super) async fn load(
        rt: &Rt,
        device: &Rc<dyn Device>,
        place: (u64, u64),
        pages: u64,
        side: Uuid,
    ) -> Result<Rc<Written>, IoError> {
        let areas = copies(place, pages, side);
        let reads = areas.map(|area| read_copy(&**device, area));
        let [one, other] = reads;
        let (one, other) = futures_util::future::try_join(one, other).await?;
        let written = Written {
            device: Rc::clone(device),
            copies: areas.map(|area| WriteBack::new(rt, device, area)),
            bits: RefCell::default(),
            fresh: RefCell::default(),
            damaged_sectors: Cell::new(0),
        };
        for (number, (one, other)) in one.into_iter().zip(other).enumerate() {
            let words = written.take_sector((number / SECTORS) as u64, one, other);
            written.bits.borrow_mut().extend(words);
        }
        Ok(Rc::new(written))
    }

    /// Merges the two copies of a sector. A copy that lacks bits is scheduled to be written.
    fn take_sector(
        &self,
        page: u64,
        one: Option<[u64; SECTOR_WORDS]>,
        other: Option<[u64; SECTOR_WORDS]>,
    ) -> [u64; SECTOR_WORDS] {
        let words = match (one, other) {
            (Some(one), Some(other)) => std::array::from_fn(|word| one[word] | other[word]),
            (Some(words), None) | (None, Some(words)) => words,
            (None, None) => {
                self.damaged_sectors.set(self.damaged_sectors.get() + 1);
                [u64::MAX; SECTOR_WORDS]
            }
        };
        for (copy, found) in self.copies.iter().zip([one, other]) {
            if found != Some(words) {
                copy.mark(page);
            }
        }
        words
    }

    /// Returns the number of sectors that were invalid in both copies.
    pub(super) fn damaged_sectors(&self) -> u64 {
        self.damaged_sectors.get()
    }

    /// Returns the pages that the device has written, and whose bits are not set yet. The caller
    /// must then flush the device and read these pages back. After that, the caller can pass the
    /// pages to [`settle`](Self::settle).
    pub(super) fn fresh(&self) -> BTreeSet<u64> {
        self.fresh.borrow().clone()
    }

    /// Sets the bits of the pages in `durable_pages`, unless they are already set, and makes all
    /// bits durable. The future must run to completion.
    ///
    /// # Errors
    /// Errors of the device; `Corrupt` when the device does not keep the written content. Bits that
    /// were not written are written by the next call.
    pub(super) async fn settle(&self, durable_pages: BTreeSet<u64>) -> Result<(), IoError> {
        for page in durable_pages {
            if self.fresh.borrow_mut().remove(&page) {
                self.set(page);
            }
        }
        for _ in 0..WRITE_TRIES {
            if self.copies.iter().all(WriteBack::is_settled) {
                return Ok(());
            }
            for copy in &self.copies {
                // The second copy stays intact until the write of the first copy has ended.
                copy.run(|page, bytes| self.encode(page, bytes)).await?;
            }
            self.device.submit(Request::flush()).await?;
            for copy in &self.copies {
                let lost = copy.verify().await?;
                lost.into_iter().for_each(|page| copy.mark(page));
            }
        }
        match self.copies.iter().all(WriteBack::is_settled) {
            true => Ok(()),
            false => Err(IoError::Corrupt),
        }
    }

    /// Reads both copies from the device. Returns the number of bytes read and the number of
    /// corrupt pages, which the next [`settle`](Self::settle) rewrites.
    ///
    /// # Errors
    /// Errors of the device. An unreadable or corrupt block is not an error: it counts as a corrupt
    /// page.
    pub(super) async fn check(&self) -> Result<(u64, u64), IoError> {
        let (mut read_bytes, mut wrong_pages) = (0, 0);
        for copy in &self.copies {
            for page in 0..copy.area().pages() {
                read_bytes += PAGE_BYTES;
                // The page may have been written during the first read, so it is read again.
                if !self.is_right(copy, page).await? && !self.is_right(copy, page).await? {
                    wrong_pages += 1;
                    copy.mark(page);
                }
            }
        }
        Ok((read_bytes, wrong_pages))
    }

    async fn is_right(&self, copy: &WriteBack, page: u64) -> Result<bool, IoError> {
        let read = copy.area().read(copy.device(), page..page + 1).await;
        let found = match read {
            Err(error) if error.is_of_a_block() => None,
            other => copy.area().entries(page, &other?.to_vec()).ok(),
        };
        let mut right = vec![0; ENTRIES_BYTES];
        self.encode(page, &mut right);
        Ok(copy.is_due(page) || found.is_some_and(|found| found == right))
    }

    fn encode(&self, page: u64, bytes: &mut [u8]) {
        let bits = self.bits.borrow();
        let words = &bits[page as usize * PAGE_WORDS..][..PAGE_WORDS];
        for (word, bytes) in words.iter().zip(bytes.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn set(&self, page: u64) {
        self.bits.borrow_mut()[(page / 64) as usize] |= 1 << (page % 64);
        for copy in &self.copies {
            copy.mark(page / PAGE_BITS);
        }
    }
}

impl PageBits for Written {
    fn is_written(&self, page: u64) -> bool {
        let settled = self.bits.borrow()[(page / 64) as usize] >> (page % 64) & 1 == 1;
        settled || self.fresh.borrow().contains(&page)
    }

    fn first_written(&self, pages: Range<u64>) -> u64 {
        let fresh = self.fresh.borrow().range(pages.clone()).next().copied();
        let end = fresh.unwrap_or(pages.end);
        let bits = self.bits.borrow();
        let (mut page, mut words) = (pages.start, 0);
        while page < end {
            words += 1;
            let rest = bits[(page / 64) as usize] >> (page % 64);
            if rest != 0 {
                page += u64::from(rest.trailing_zeros());
                break;
            }
            page = (page / 64 + 1) * 64;
        }
        count_entries(words);
        page.min(end)
    }

    fn note(&self, page: u64) {
        if !self.is_written(page) {
            self.fresh.borrow_mut().insert(page);
        }
    }

    fn forget(&self, page: u64) {
        self.fresh.borrow_mut().remove(&page);
    }
}

/// Reads one copy of the bits.
async fn read_copy(device: &dyn Device, area: Area) -> Result<Sectors, IoError> {
    let mut sectors = Sectors::new();
    for run in area.runs(0..area.pages(), device) {
        match area.read(device, run.clone()).await {
            Err(error) if error.is_of_a_block() => {
                let count = (run.end - run.start) as usize * SECTORS;
                sectors.extend(std::iter::repeat_n(None, count));
            }
            other => {
                let payload = other?;
                for (index, page) in run.enumerate() {
                    let at = index * PAGE_BYTES as usize;
                    let bytes = payload.slice(at..at + PAGE_BYTES as usize).to_vec();
                    sectors.extend(area.sectors(page, &bytes).map(|s| s.ok().map(words_of)));
                }
            }
        }
    }
    Ok(sectors)
}

fn words_of(entries: &[u8]) -> [u64; SECTOR_WORDS] {
    let word = |at: usize| entries[at * 8..at * 8 + 8].try_into().expect("eight bytes");
    std::array::from_fn(|at| u64::from_le_bytes(word(at)))
}
