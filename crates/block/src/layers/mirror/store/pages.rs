//! Pages of the dirty-region bitmap and of the checksums: the position of a page, how its sectors
//! are sealed (given a checksum that includes their side and place), and how changed pages are
//! written back to the device. `docs/format/mirror-side.md` specifies the bytes.
//!
//! A write may be torn between any two sectors. Each sector therefore has its own checksum, and a
//! page with old and new sectors is valid: the changes in the page stay in the log until the page
//! is durable.
//!
//! This module must never trust a sector before its checksum is verified, never have two writes of
//! one page in flight (a device guarantees no order between them), and never drop the record that a
//! page has changed before the device has written the page.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::sync::Semaphore;
use bimetal_rt::{Payload, Rt};
use futures_util::stream::{self, FuturesUnordered, StreamExt};

use crate::device::Device;
use crate::error::IoError;
use crate::layers::mirror::superblock::Uuid;
use crate::layers::mirror::superblock::areas::{
    ENTRIES_BYTES, PAGE_BYTES, SECTOR_BYTES, SECTOR_ENTRIES_BYTES,
};
use crate::request::{Flags, Request};

/// Offset in bytes of the checksum in a sector.
const CHECKSUM_AT: usize = 508;

/// Maximum number of bytes of adjacent pages that are read or written with one request.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of unchanged pages that are also written so that one request can write the
/// changed pages before and after them. About this number of pages pass below the head of a disk in
/// a tenth of a rotation.
const BRIDGED_PAGES_MAX: u64 = 32;
/// Maximum number of writes that one write-back has in flight.
const WRITES_IN_FLIGHT_MAX: usize = 8;
/// Maximum number of reads that one verification has in flight.
const READS_IN_FLIGHT_MAX: usize = 8;

/// Reason why a page is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::layers::mirror) enum PageError {
    /// The page does not have 4096 bytes, but this number.
    #[error("it has {0} bytes")]
    Length(usize),
    /// The checksum of the sector with this number does not match: the sector is corrupt, or was
    /// written for another side or place.
    #[error("the checksum of its sector {0} is wrong")]
    Checksum(u32),
}

/// Returns a digest of each page of a payload, which distinguishes the page from other versions of
/// it: the CRC32C of the page without the checksums of its sectors. With these checksums included,
/// all sealed versions of a page would have the same CRC, like any content that ends with its own
/// CRC.
pub(in crate::layers::mirror::store) fn digests(pages: &Payload) -> Vec<u32> {
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

/// An area of pages on a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layers::mirror) struct Area {
    /// Offset in bytes of the area on the device.
    pub(in crate::layers::mirror) offset: u64,
    /// Length of the area in bytes, a multiple of 4 KiB.
    pub(in crate::layers::mirror) len: u64,
    /// UUID of the side.
    pub(in crate::layers::mirror) side: Uuid,
    /// Number of the first page. The checksums of a page include its number, so the pages of an
    /// area with other numbers have wrong checksums in this area.
    pub(in crate::layers::mirror) numbered_from: u64,
}

impl Area {
    /// Returns the number of pages in the area.
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

    /// Computes the checksum of a sector of a page. The checksum also covers the side and the place
    /// of the sector, which are not stored. So a sector written for another side or place has a
    /// wrong checksum.
    fn checksum(&self, page: u64, number: u32, sector: &[u8]) -> u32 {
        let crc = crc32c::crc32c(&self.side);
        let crc = crc32c::crc32c_append(crc, &(self.numbered_from + page).to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
        crc32c::crc32c_append(crc, &sector[..CHECKSUM_AT])
    }

    /// Seals a page: distributes its entries over the sectors and adds the checksums.
    ///
    /// # Panics
    /// When `entries` does not hold the entries of exactly one page, or `bytes` is not one page
    /// long.
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

    /// Returns the entries of a page, in order. `bytes` are the page as it was read. Each entry is
    /// as old as the last write of its sector; after a torn write, some entries are older than
    /// others.
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

    /// Returns, for each sector of the bytes that were read as a page, its entries or the reason
    /// why it is not valid.
    ///
    /// # Panics
    /// When the bytes do not have the length of a page.
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

    /// Divides a range of pages into runs, each of which one request can read or write.
    pub(in crate::layers::mirror::store) fn runs(
        &self,
        pages: Range<u64>,
        device: &dyn Device,
    ) -> Vec<Range<u64>> {
        runs(pages, Area::run_pages_max(device))
    }

    /// Returns the maximum number of pages that one request can read or write.
    pub(in crate::layers::mirror::store) fn run_pages_max(device: &dyn Device) -> u64 {
        let transfer = u64::from(device.geometry().transfer_bytes_max);
        (RUN_BYTES_MAX.min(transfer) / PAGE_BYTES).max(1)
    }

    /// Reads pages with one request.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in crate::layers::mirror::store) async fn read(
        &self,
        device: &dyn Device,
        pages: Range<u64>,
    ) -> Result<Payload, IoError> {
        let bytes = self.bytes_of(&pages);
        let read = Request::read(bytes.start, bytes.end - bytes.start);
        Ok(device.submit(read).await?.into_data())
    }

    /// Writes all pages of the area, without a flush; `entries` fills in the entries of each page.
    ///
    /// # Errors
    /// Errors of the device; the content is then unknown.
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

    /// Builds the write request of a run of pages; `fill` fills in the entries of each page.
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

/// Joins adjacent pages, given in ascending order, into runs of at most `pages_max`.
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

/// Bits that record which pages of a side were ever written. A page is identified by its number
/// among all pages that have bits.
pub(in crate::layers::mirror::store) trait PageBits {
    /// Returns true when the device has acknowledged a write of the page.
    fn is_written(&self, page: u64) -> bool;

    /// Returns the first page in a range that has been written, or the end of the range if no page
    /// in the range has been written.
    fn first_written(&self, pages: Range<u64>) -> u64;

    /// Records that the device has acknowledged a write of the page.
    fn note(&self, page: u64);

    /// Undoes [`note`](Self::note), because the content read back from the page differs from the
    /// content written. The page is then treated as never written, unless its bit was set earlier.
    fn forget(&self, page: u64);
}

/// View of the written bits for the pages of one area: the dirty-region bitmap or the checksums.
#[derive(Clone, Default)]
pub(in crate::layers::mirror::store) struct WrittenIn {
    /// The bits that record which pages of the side were ever written; `None` when formatting wrote
    /// all pages.
    of: Option<Rc<dyn PageBits>>,
    /// Index of the bit of the first page in this area.
    first_bit: u64,
}

impl WrittenIn {
    /// Creates the view of one area in `of`, the bits of all areas. `first_bit` is the number of
    /// the bit of the area's first page.
    pub(in crate::layers::mirror::store) fn new(
        of: Option<Rc<dyn PageBits>>,
        first_bit: u64,
    ) -> WrittenIn {
        WrittenIn { of, first_bit }
    }

    /// Returns true when the page was ever written. Otherwise, the content on the device is not
    /// used.
    pub(in crate::layers::mirror::store) fn is_written(&self, page: u64) -> bool {
        let of = self.of.as_ref();
        of.is_none_or(|of| of.is_written(self.first_bit + page))
    }

    /// Returns the first page in a range that has been written, or the end of the range if no page
    /// in the range has been written.
    pub(in crate::layers::mirror::store) fn first_written(&self, pages: Range<u64>) -> u64 {
        let Some(of) = &self.of else {
            return pages.start;
        };
        let bits = self.first_bit + pages.start..self.first_bit + pages.end;
        of.first_written(bits) - self.first_bit
    }

    /// Records that the device has acknowledged a write of the page.
    pub(in crate::layers::mirror::store) fn note(&self, page: u64) {
        if let Some(of) = &self.of {
            of.note(self.first_bit + page);
        }
    }

    /// Records that the content read back from the page differs from the content written. If the
    /// written bit of the page is not set yet, the page is treated as never written.
    pub(in crate::layers::mirror::store) fn forget(&self, page: u64) {
        if let Some(of) = &self.of {
            of.forget(self.first_bit + page);
        }
    }
}

/// Write-back of an area: the set of changed pages that are not on the device, and the writes of
/// these pages.
pub(in crate::layers::mirror::store) struct WriteBack {
    rt: Rt,
    device: Rc<dyn Device>,
    area: Area,
    dirty: RefCell<BTreeSet<u64>>,
    /// Pages whose write is in flight.
    writing: RefCell<BTreeSet<u64>>,
    /// Pages that were written and not read back yet, each with its digest.
    unverified: RefCell<BTreeMap<u64, u32>>,
    /// Semaphore that lets one write-back run at a time, so that no page has two writes in flight.
    turn: Rc<Semaphore>,
    writes: Cell<u64>,
    /// Written bits, updated for each page that the device has written or has lost.
    written: WrittenIn,
}

/// A run of pages in flight. Unless the write succeeds, dropping this guard records that the pages
/// are again due to be written.
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

    /// Sets the written bits, for an area whose pages were not all written when the side was
    /// formatted.
    pub(in crate::layers::mirror::store) fn with_written(self, written: WrittenIn) -> WriteBack {
        WriteBack { written, ..self }
    }

    /// Returns the bits that record which pages of the area were ever written.
    pub(in crate::layers::mirror::store) fn written(&self) -> &WrittenIn {
        &self.written
    }

    /// Returns true when the newest version of every page is on the device and was verified by a
    /// read.
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

    /// Records that a page has changed, so that a write of it is due.
    pub(in crate::layers::mirror::store) fn mark(&self, page: u64) {
        self.dirty.borrow_mut().insert(page);
    }

    /// Returns true when a write of the newest version of the page is due or in flight.
    pub(in crate::layers::mirror::store) fn is_due(&self, page: u64) -> bool {
        self.dirty.borrow().contains(&page) || self.writing.borrow().contains(&page)
    }

    /// Returns true when the page must stay in memory: a write of its newest version is due or in
    /// flight, or the device may have lost that write, since the page was not read back yet.
    pub(in crate::layers::mirror::store) fn is_needed(&self, page: u64) -> bool {
        self.is_due(page) || self.unverified.borrow().contains_key(&page)
    }

    /// Returns the number of pages that must stay in memory.
    #[cfg(test)]
    pub(in crate::layers::mirror::store) fn needed_pages(&self) -> usize {
        let due = self.dirty.borrow().union(&self.writing.borrow()).count();
        let unverified = self.unverified.borrow();
        due + unverified
            .keys()
            .filter(|page| !self.is_due(**page))
            .count()
    }

    /// Returns the number of pages whose write is due or in flight.
    pub(in crate::layers::mirror::store) fn due_pages(&self) -> usize {
        let writing = self.writing.borrow();
        let both = self.dirty.borrow().intersection(&writing).count();
        self.dirty.borrow().len() + writing.len() - both
    }

    /// Returns the number of writes sent to the device.
    pub(in crate::layers::mirror::store) fn writes(&self) -> u64 {
        self.writes.get()
    }

    /// On a rotational device, makes the few pages between two due pages due as well, if all of
    /// them are `ready`. Writing these pages takes less time than waiting until the head reaches
    /// the second due page.
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

    /// Writes all pages that are due at the time of the call, in order; `fill` fills in the entries
    /// of each page in their newest version. The pages become durable with the next flush of the
    /// device, which the caller must request. The future must run to completion: if a write is
    /// abandoned, it might take effect after a later write of the same page.
    ///
    /// # Errors
    /// The first error of the device. Pages that were not written are still due.
    pub(in crate::layers::mirror::store) async fn run(
        &self,
        fill: impl Fn(u64, &mut [u8]),
    ) -> Result<(), IoError> {
        self.run_on(|_| true, fill).await
    }

    /// Writes pages as [`run`](Self::run) does, but only those of the due pages that are `chosen`.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(in crate::layers::mirror::store) async fn run_on(
        &self,
        chosen: impl Fn(u64) -> bool,
        fill: impl Fn(u64, &mut [u8]),
    ) -> Result<(), IoError> {
        let turn = self.turn.acquire(1).await;
        let run_pages_max = Area::run_pages_max(&*self.device);
        let runs = {
            let dirty = self.dirty.borrow();
            runs(
                dirty.iter().copied().filter(|page| chosen(*page)),
                run_pages_max,
            )
        };
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

    /// Reads back the pages that were written since the last call. Returns the pages whose content
    /// on the device differs from the content written.
    ///
    /// # Errors
    /// Errors of the device. Pages that were not read are read by the next call.
    pub(in crate::layers::mirror::store) async fn verify(&self) -> Result<Vec<u64>, IoError> {
        let _turn = self.turn.acquire(1).await;
        let run_pages_max = Area::run_pages_max(&*self.device);
        let pages: Vec<u64> = self.unverified.borrow().keys().copied().collect();
        // A disk needs a rotation for each read that is not in flight together with others.
        let reads = runs(pages, run_pages_max).into_iter().map(async |run| {
            let found = self.area.read(&*self.device, run.clone()).await?;
            Ok::<_, IoError>((run, found))
        });
        let mut reads = stream::iter(reads).buffer_unordered(READS_IN_FLIGHT_MAX);
        let mut lost = Vec::new();
        while let Some(read) = reads.next().await {
            let (run, found) = read?;
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
