//! Pages of the map and of the checksums: where a page lies, how its sectors are sealed for their
//! side and place, and how changed pages are written back to the device. The bytes are those of
//! `docs/format/mirror-side.md`.
//!
//! A write may be torn between any two sectors. Each sector therefore has its own checksum, and a
//! page with old and new sectors is valid: the changes in the page stay in the log until the page
//! is durable.
//!
//! This module must never trust a sector before verifying its checksum, never have two writes of
//! one page in flight (a device promises no order between them), and never forget that a page has
//! changed before the device has taken it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::sync::Semaphore;
use bimetal_rt::{Payload, Rt};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::device::Device;
use crate::error::IoError;
use crate::layers::mirror::superblock::Uuid;
use crate::layers::mirror::superblock::areas::{
    ENTRIES_BYTES, PAGE_BYTES, SECTOR_BYTES, SECTOR_ENTRIES_BYTES,
};
use crate::request::{Flags, Request};

/// Offset of the checksum in a sector.
const CHECKSUM_AT: usize = 508;

/// Maximum number of bytes of neighbouring pages that are read or written together.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of unchanged pages between two changed ones that are written along with them:
/// about as many as pass under the head of a disk in a tenth of a revolution.
const BRIDGED_PAGES_MAX: u64 = 32;
/// Maximum number of writes of one write-back in flight.
const WRITES_IN_FLIGHT_MAX: usize = 8;

/// Reason why a page is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::layers::mirror) enum PageError {
    /// The page is not 4096 bytes long.
    #[error("it has {0} bytes")]
    Length(usize),
    /// The bytes of the sector with this number are not those that were written, or were written
    /// for another side or place.
    #[error("the checksum of its sector {0} is wrong")]
    Checksum(u32),
}

/// Returns a digest of each page of a payload that tells it from the same page at another time: the
/// CRC32C of the page without the checksums of its sectors. With these included, the CRC of every
/// sealed page of a place would be the same number, like the CRC of anything that ends with its own
/// CRC.
fn digests(pages: &Payload) -> Vec<u32> {
    let bytes = pages.to_vec();
    let digest = |page: &[u8]| {
        let sectors = page.chunks_exact(SECTOR_BYTES);
        sectors.fold(0, |crc, sector| {
            crc32c::crc32c_append(crc, &sector[..CHECKSUM_AT])
        })
    };
    bytes
        .chunks_exact(PAGE_BYTES as usize)
        .map(digest)
        .collect()
}

/// An area of pages of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layers::mirror) struct Area {
    /// First byte on the device.
    pub(in crate::layers::mirror) offset: u64,
    /// Length in bytes, a multiple of 4 KiB.
    pub(in crate::layers::mirror) len: u64,
    /// UUID of the side.
    pub(in crate::layers::mirror) side: Uuid,
    /// The page number under which the first page is sealed. Pages of areas with other numbers have
    /// wrong checksums in this one.
    pub(in crate::layers::mirror) numbered_from: u64,
}

impl Area {
    /// Pages in the area.
    pub(in crate::layers::mirror::store) fn pages(&self) -> u64 {
        self.len / PAGE_BYTES
    }

    fn bytes_of(&self, pages: &Range<u64>) -> Range<u64> {
        assert!(
            pages.end <= self.pages(),
            "the pages {pages:?} lie in the area"
        );
        self.offset + pages.start * PAGE_BYTES..self.offset + pages.end * PAGE_BYTES
    }

    /// Computes the checksum of a sector of a page. It includes the side and the place, which are
    /// written nowhere else: a sector written for another side or place has a wrong checksum.
    fn checksum(&self, page: u64, number: u32, sector: &[u8]) -> u32 {
        let crc = crc32c::crc32c(&self.side);
        let crc = crc32c::crc32c_append(crc, &(self.numbered_from + page).to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
        crc32c::crc32c_append(crc, &sector[..CHECKSUM_AT])
    }

    /// Builds a page from its entries, spread over the sectors.
    ///
    /// # Panics
    /// When the entries or the page have another length than those of a page.
    pub(in crate::layers::mirror::store) fn seal(
        &self,
        page: u64,
        entries: &[u8],
        bytes: &mut [u8],
    ) {
        assert_eq!(entries.len(), ENTRIES_BYTES, "a page is full of entries");
        assert_eq!(bytes.len() as u64, PAGE_BYTES, "a page is made as a whole");
        let sectors = bytes.chunks_exact_mut(SECTOR_BYTES);
        let parts = entries.chunks_exact(SECTOR_ENTRIES_BYTES);
        for (number, (sector, part)) in (0..).zip(sectors.zip(parts)) {
            sector[..SECTOR_ENTRIES_BYTES].copy_from_slice(part);
            sector[SECTOR_ENTRIES_BYTES..CHECKSUM_AT].fill(0);
            let checksum = self.checksum(page, number, sector);
            sector[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        }
    }

    /// Returns the entries of the bytes read from the place of a page, in order. Each entry is as
    /// old as the last write of its sector; after a torn write some are older than others.
    ///
    /// # Errors
    /// The reason why the page is not valid.
    pub(in crate::layers::mirror::store) fn entries(
        &self,
        page: u64,
        bytes: &[u8],
    ) -> Result<Vec<u8>, PageError> {
        if bytes.len() as u64 != PAGE_BYTES {
            return Err(PageError::Length(bytes.len()));
        }
        let mut entries = Vec::with_capacity(ENTRIES_BYTES);
        for sector in self.sectors(page, bytes) {
            entries.extend_from_slice(sector?);
        }
        Ok(entries)
    }

    /// Returns the entries of each sector of the bytes read from the place of a page, or the reason
    /// why the sector is not valid.
    ///
    /// # Panics
    /// When the bytes have another length than those of a page.
    pub(in crate::layers::mirror::store) fn sectors<'b>(
        &self,
        page: u64,
        bytes: &'b [u8],
    ) -> impl Iterator<Item = Result<&'b [u8], PageError>> {
        assert_eq!(bytes.len() as u64, PAGE_BYTES, "a page is read as a whole");
        let sectors = (0..).zip(bytes.chunks_exact(SECTOR_BYTES));
        sectors.map(move |(number, sector)| {
            let checksum = self.checksum(page, number, sector);
            match sector[CHECKSUM_AT..] == checksum.to_le_bytes() {
                true => Ok(&sector[..SECTOR_ENTRIES_BYTES]),
                false => Err(PageError::Checksum(number)),
            }
        })
    }

    /// Splits a range of pages into runs that may be read or written with one request each.
    pub(in crate::layers::mirror::store) fn runs(
        &self,
        pages: Range<u64>,
        device: &dyn Device,
    ) -> Vec<Range<u64>> {
        runs(pages, Area::run_pages_max(device))
    }

    /// Returns the number of pages that may be read or written with one request.
    pub(in crate::layers::mirror::store) fn run_pages_max(device: &dyn Device) -> u64 {
        let transfer = u64::from(device.geometry().transfer_bytes_max);
        (RUN_BYTES_MAX.min(transfer) / PAGE_BYTES).max(1)
    }

    /// Reads pages with one request.
    ///
    /// # Errors
    /// Those of the device.
    pub(in crate::layers::mirror::store) async fn read(
        &self,
        device: &dyn Device,
        pages: Range<u64>,
    ) -> Result<Payload, IoError> {
        let bytes = self.bytes_of(&pages);
        let read = Request::read(bytes.start, bytes.end - bytes.start);
        Ok(device.submit(read).await?.into_data())
    }

    /// Writes all pages; `entries` fills in the entries of each. Durable after a flush.
    ///
    /// # Errors
    /// Those of the device; the content is then unknown.
    pub(in crate::layers::mirror::store) async fn fill(
        &self,
        rt: &Rt,
        device: &dyn Device,
        entries: impl Fn(u64, &mut [u8]),
    ) -> Result<(), IoError> {
        for run in self.runs(0..self.pages(), device) {
            device.submit(self.write(rt, &run, &entries)).await?;
        }
        Ok(())
    }

    /// Builds the write of a run of pages; `fill` fills in the entries of each.
    fn write(&self, rt: &Rt, run: &Range<u64>, fill: impl Fn(u64, &mut [u8])) -> Request {
        let place = self.bytes_of(run);
        let mut bytes = rt.pool().alloc_now((place.end - place.start) as usize);
        let pages = bytes.chunks_exact_mut(PAGE_BYTES as usize);
        for (page, bytes) in run.clone().zip(pages) {
            let mut entries = [0; ENTRIES_BYTES];
            fill(page, &mut entries);
            self.seal(page, &entries, bytes);
        }
        Request::write(place.start, bytes.freeze(), Flags::NONE)
    }
}

/// Joins neighbours among sorted pages into runs of at most `pages_max`.
fn runs(pages: impl IntoIterator<Item = u64>, pages_max: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run) if run.end == page && run.end - run.start < pages_max => run.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

/// Bits that say which pages of a side were ever written, indexed by the number of the page among
/// all pages with bits.
pub(in crate::layers::mirror::store) trait PageBits {
    /// Returns true when the page was written, as far as the device has answered.
    fn is_written(&self, page: u64) -> bool;

    /// Returns the first page of a range that was written, or the end of the range.
    fn first_written(&self, pages: Range<u64>) -> u64;

    /// Notes that the device has taken the page.
    fn note(&self, page: u64);

    /// Notes that the page was not read back as it was written. If it has no bit, it counts as
    /// never written.
    fn forget(&self, page: u64);
}

/// View of the bits for the pages of one area, the map or the checksums.
#[derive(Clone, Default)]
pub(in crate::layers::mirror::store) struct WrittenIn {
    /// `None` on a side whose pages were all written when it was formatted.
    of: Option<Rc<dyn PageBits>>,
    /// Index of the bit of the area's first page.
    first_bit: u64,
}

impl WrittenIn {
    /// Creates the view of the area whose first page has this bit.
    pub(in crate::layers::mirror::store) fn new(
        of: Option<Rc<dyn PageBits>>,
        first_bit: u64,
    ) -> WrittenIn {
        WrittenIn { of, first_bit }
    }

    /// Returns true when the page counts as the content that the device has in its place.
    pub(in crate::layers::mirror::store) fn is_written(&self, page: u64) -> bool {
        let of = self.of.as_ref();
        of.is_none_or(|of| of.is_written(self.first_bit + page))
    }

    /// Returns the first page of a range that was written, or the end of the range.
    pub(in crate::layers::mirror::store) fn first_written(&self, pages: Range<u64>) -> u64 {
        let Some(of) = &self.of else {
            return pages.start;
        };
        let bits = self.first_bit + pages.start..self.first_bit + pages.end;
        of.first_written(bits) - self.first_bit
    }

    /// Notes that the device has taken the page.
    pub(in crate::layers::mirror::store) fn note(&self, page: u64) {
        if let Some(of) = &self.of {
            of.note(self.first_bit + page);
        }
    }

    /// Notes that the page was not read back as it was written. If it has no bit, it counts as
    /// never written.
    pub(in crate::layers::mirror::store) fn forget(&self, page: u64) {
        if let Some(of) = &self.of {
            of.forget(self.first_bit + page);
        }
    }
}

/// Write-back of an area: the set of pages that have changed and are not on the device, and their
/// writes.
pub(in crate::layers::mirror::store) struct WriteBack {
    rt: Rt,
    device: Rc<dyn Device>,
    area: Area,
    dirty: RefCell<BTreeSet<u64>>,
    /// Pages whose write is in flight.
    writing: RefCell<BTreeSet<u64>>,
    /// Pages that were written and not yet read back, with the digest of each.
    unverified: RefCell<BTreeMap<u64, u32>>,
    /// Lets one write-back run at a time, so that no page is in flight twice.
    turn: Rc<Semaphore>,
    writes: Cell<u64>,
    /// Informed of each page that the device has taken, and of each that it has lost.
    written: WrittenIn,
}

/// A run in flight. Unless its write succeeds, its pages become due again.
struct InFlight<'a> {
    of: &'a WriteBack,
    run: Range<u64>,
    taken: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        for page in self.run.clone() {
            self.of.writing.borrow_mut().remove(&page);
            if !self.taken {
                self.of.dirty.borrow_mut().insert(page);
            }
        }
    }
}

impl WriteBack {
    pub(in crate::layers::mirror::store) fn new(
        rt: &Rt,
        device: &Rc<dyn Device>,
        area: Area,
    ) -> WriteBack {
        WriteBack {
            rt: rt.clone(),
            device: Rc::clone(device),
            area,
            dirty: RefCell::default(),
            writing: RefCell::default(),
            unverified: RefCell::default(),
            turn: Semaphore::new(1),
            writes: Cell::new(0),
            written: WrittenIn::default(),
        }
    }

    /// Sets the bits of an area whose pages were not all written when the side was formatted.
    pub(in crate::layers::mirror::store) fn with_written(self, written: WrittenIn) -> WriteBack {
        WriteBack { written, ..self }
    }

    /// Returns the bits that say which pages of the area count as written.
    pub(in crate::layers::mirror::store) fn written(&self) -> &WrittenIn {
        &self.written
    }

    /// Returns true when the device has taken every page as it is now, and every page was read back
    /// correctly.
    pub(in crate::layers::mirror::store) fn is_settled(&self) -> bool {
        self.due_pages() == 0 && self.unverified.borrow().is_empty()
    }

    /// Returns the area.
    pub(in crate::layers::mirror::store) fn area(&self) -> Area {
        self.area
    }

    /// Returns the device that holds the area.
    pub(in crate::layers::mirror::store) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Notes that a page has changed.
    pub(in crate::layers::mirror::store) fn mark(&self, page: u64) {
        self.dirty.borrow_mut().insert(page);
    }

    /// Returns true when the device has not taken the page as it is now.
    pub(in crate::layers::mirror::store) fn is_due(&self, page: u64) -> bool {
        self.dirty.borrow().contains(&page) || self.writing.borrow().contains(&page)
    }

    /// Returns true when memory must keep the page: the device has not taken it as it is now, or
    /// may have lost it, since it has not been read back.
    pub(in crate::layers::mirror::store) fn is_needed(&self, page: u64) -> bool {
        self.is_due(page) || self.unverified.borrow().contains_key(&page)
    }

    /// Returns the number of pages that memory must keep.
    #[cfg(test)]
    pub(in crate::layers::mirror::store) fn needed_pages(&self) -> usize {
        let due = self.dirty.borrow().union(&self.writing.borrow()).count();
        let unverified = self.unverified.borrow();
        due + unverified
            .keys()
            .filter(|page| !self.is_due(**page))
            .count()
    }

    /// Returns the number of pages that the device has not taken as they are now.
    pub(in crate::layers::mirror::store) fn due_pages(&self) -> usize {
        let writing = self.writing.borrow();
        let both = self.dirty.borrow().intersection(&writing).count();
        self.dirty.borrow().len() + writing.len() - both
    }

    /// Returns the number of writes to the device since the start.
    pub(in crate::layers::mirror::store) fn writes(&self) -> u64 {
        self.writes.get()
    }

    /// Marks the few pages between two that are due as due too, on a rotational device and if they
    /// are `ready`: writing them takes less time than waiting for the next write.
    pub(in crate::layers::mirror::store) fn bridge(&self, ready: impl Fn(u64) -> bool) {
        if !self.device.geometry().rotational {
            return;
        }
        let due: Vec<u64> = self.dirty.borrow().iter().copied().collect();
        for pair in due.windows(2) {
            let gap = pair[0] + 1..pair[1];
            let short = gap.end - gap.start <= BRIDGED_PAGES_MAX;
            if short && gap.clone().all(&ready) {
                gap.for_each(|page| self.mark(page));
            }
        }
    }

    /// Writes all pages that are due at the call, in order; `fill` fills in the entries of each as
    /// they are at that moment. The pages are durable after a flush of the device, which is up to
    /// the caller. The future must run to completion: an abandoned write may take effect after a
    /// later one.
    ///
    /// # Errors
    /// The first error of the device. Pages that were not written are still due.
    pub(in crate::layers::mirror::store) async fn run(
        &self,
        fill: impl Fn(u64, &mut [u8]),
    ) -> Result<(), IoError> {
        let turn = self.turn.acquire(1).await;
        let run_pages_max = Area::run_pages_max(&*self.device);
        let runs = runs(self.dirty.borrow().iter().copied(), run_pages_max);
        let mut runs = runs.into_iter();
        let mut writes = FuturesUnordered::new();
        let mut result = Ok(());
        loop {
            while result.is_ok()
                && writes.len() < WRITES_IN_FLIGHT_MAX
                && let Some(run) = runs.next()
            {
                writes.push(self.write(run, &fill));
            }
            match writes.next().await {
                Some(written) => result = result.and(written),
                None => break,
            }
        }
        drop(turn);
        result
    }

    /// Reads back the pages written since the last call, and returns those that are not as they
    /// were written.
    ///
    /// # Errors
    /// Those of the device; pages that were not read are read the next time.
    pub(in crate::layers::mirror::store) async fn verify(&self) -> Result<Vec<u64>, IoError> {
        let _turn = self.turn.acquire(1).await;
        let run_pages_max = Area::run_pages_max(&*self.device);
        let pages: Vec<u64> = self.unverified.borrow().keys().copied().collect();
        let mut lost = Vec::new();
        for run in runs(pages, run_pages_max) {
            let found = self.area.read(&*self.device, run.clone()).await?;
            for (page, digest) in run.zip(digests(&found)) {
                if self.unverified.borrow_mut().remove(&page) != Some(digest) {
                    self.written.forget(page);
                    lost.push(page);
                }
            }
        }
        Ok(lost)
    }

    async fn write(&self, run: Range<u64>, fill: &impl Fn(u64, &mut [u8])) -> Result<(), IoError> {
        let write = self.area.write(&self.rt, &run, fill);
        for page in run.clone() {
            let dirty = self.dirty.borrow_mut().remove(&page);
            let idle = self.writing.borrow_mut().insert(page);
            assert!(dirty && idle, "page {page} is due, and not in flight");
        }
        let mut in_flight = InFlight {
            of: self,
            run,
            taken: false,
        };
        self.writes.set(self.writes.get() + 1);
        let digests = digests(&write.payload);
        self.device.submit(write).await?;
        let written = in_flight.run.clone().zip(digests);
        self.unverified.borrow_mut().extend(written);
        in_flight
            .run
            .clone()
            .for_each(|page| self.written.note(page));
        in_flight.taken = true;
        Ok(())
    }
}
