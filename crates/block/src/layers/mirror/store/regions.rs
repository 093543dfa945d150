//! The dirty-region bitmap of a side, also called its map, whose entries are epochs: for each
//! region of the volume, the epoch in which it was last changed while a side was missing. A page of
//! 4 KiB describes 504 regions of 1 MiB; all pages are in memory, compressed.
//! `docs/format/mirror-side.md` specifies the bytes.
//!
//! When a side comes back, it is given the marked regions and the changes in the log, and nothing
//! else. So the map must never mark fewer regions than were changed: the regions of a damaged page
//! are treated as changed after every epoch.

mod marks;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Rt;
use bimetal_rt::turn::count_entries;
use futures_util::stream::{self, StreamExt};

use self::marks::{Marks, PageEntries};
use super::areas::CheckedAreas;
use super::pages::{Area, PageError, WriteBack, WrittenIn};
use crate::device::Device;
use crate::error::IoError;
use crate::layers::mirror::superblock::areas::{
    PAGE_BYTES, PAGE_REGIONS, REGION_BYTES, REGION_ENTRY_BYTES,
};

/// Bitmap entry that is higher than the number of every epoch: its region is out of sync for every
/// side, whatever the newest epoch of the side.
const ALWAYS: u64 = u64::MAX;
/// Maximum number of reads in flight while the map is loaded.
const READS_IN_FLIGHT_MAX: usize = 8;

fn encode(entries: &[u64], bytes: &mut [u8]) {
    for (entry, bytes) in entries
        .iter()
        .zip(bytes.chunks_exact_mut(REGION_ENTRY_BYTES))
    {
        bytes.copy_from_slice(&entry.to_le_bytes());
    }
}

/// Decodes the entries of a page, without the checksums of its sectors.
fn decode(bytes: &[u8]) -> PageEntries {
    let entry = |at: usize| bytes[at * REGION_ENTRY_BYTES..][..REGION_ENTRY_BYTES].try_into();
    std::array::from_fn(|at| u64::from_le_bytes(entry(at).expect("eight bytes")))
}

/// The dirty-region bitmap (map) of a side in use.
pub(super) struct Regions {
    marks: RefCell<Marks>,
    write_back: WriteBack,
    damaged: Vec<(u64, PageError)>,
}

impl Regions {
    /// Reads those pages of the bitmap that were ever written, for a volume of `volume_bytes`.
    ///
    /// # Errors
    /// Errors of the device. An invalid page is not an error: it is added to
    /// [`damaged`](Self::damaged), all of its regions are treated as changed after every epoch, and
    /// the page will be written again in this state.
    ///
    /// # Panics
    /// When the area is too short for the volume.
    pub(super) async fn load(
        rt: &Rt,
        device: &Rc<dyn Device>,
        area: Area,
        volume_bytes: u64,
        written: WrittenIn,
    ) -> Result<Regions, IoError> {
        let regions = volume_bytes.div_ceil(REGION_BYTES);
        let pages_end = regions.div_ceil(PAGE_REGIONS);
        assert!(
            pages_end <= area.pages(),
            "the map has room for {regions} regions"
        );
        let mut pages = 0..pages_end;
        let runs = std::iter::from_fn(|| {
            let start = written.first_written(pages.clone());
            let end_max = pages_end.min(start + Area::run_pages_max(&**device));
            let end = (start..end_max).find(|page| !written.is_written(*page));
            pages.start = end.unwrap_or(end_max);
            Some(start..pages.start).filter(|run| !run.is_empty())
        });
        let reads = stream::iter(runs).map(|run| async move {
            let payload = area.read(&**device, run.clone()).await;
            payload.map(|payload| (run, payload))
        });
        let mut reads = std::pin::pin!(reads.buffered(READS_IN_FLIGHT_MAX));
        let mut marks = Marks::new(regions);
        // If a page on the device differs from its state in memory, the page is due to be written.
        // A damaged page must be written, because a later read can find it valid, with its old
        // content. That content would lack the marks that were set since then: the state in memory
        // already includes them, so setting them does not write the page.
        let (mut damaged, mut due) = (Vec::new(), Vec::new());
        while let Some(read) = reads.next().await {
            let (run, payload) = read?;
            for (index, page) in run.enumerate() {
                let at = index * PAGE_BYTES as usize;
                let bytes = payload.slice(at..at + PAGE_BYTES as usize).to_vec();
                let entries = match area.entries(page, &bytes) {
                    Ok(bytes) => decode(&bytes),
                    Err(why) => {
                        damaged.push((page, why));
                        due.push(page);
                        [ALWAYS; PAGE_REGIONS as usize]
                    }
                };
                if !marks.set(page, &entries) {
                    due.push(page);
                }
            }
        }
        let write_back = WriteBack::new(rt, device, area).with_written(written.clone());
        due.into_iter().for_each(|page| write_back.mark(page));
        Ok(Regions {
            marks: RefCell::new(marks),
            write_back,
            damaged,
        })
    }

    /// Returns the pages that were not valid when the map was read, each with the kind of damage.
    pub(super) fn damaged(&self) -> &[(u64, PageError)] {
        &self.damaged
    }

    /// Marks a range of the volume (in bytes) as changed in an epoch, and returns true when an
    /// entry changed. The marks reach the device with the next [`write_back`](Self::write_back),
    /// which is needed even if no entry changed, since an earlier mark may not be on the device
    /// yet.
    ///
    /// # Panics
    /// When the range exceeds the volume.
    pub(super) fn mark(&self, range: Range<u64>, epoch: u64) -> bool {
        if range.is_empty() {
            return false;
        }
        let mut marks = self.marks.borrow_mut();
        let regions = range.start / REGION_BYTES..range.end.div_ceil(REGION_BYTES);
        assert!(
            regions.end <= marks.regions(),
            "the range {range:?} lies in the volume"
        );
        let mut changed = false;
        count_entries((regions.end - regions.start) as usize);
        for page in regions.start / PAGE_REGIONS..regions.end.div_ceil(PAGE_REGIONS) {
            let first = page * PAGE_REGIONS;
            let start = regions.start.max(first) - first;
            let end = regions.end.min(first + PAGE_REGIONS) - first;
            if marks.raise(page, start as usize..end as usize, epoch) {
                self.write_back.mark(page);
                changed = true;
            }
        }
        changed
    }

    /// Extends the bitmap for a volume of `volume_bytes`. The added regions are recorded as never
    /// changed.
    ///
    /// # Panics
    /// When the area is too short for the volume.
    pub(super) fn grow(&self, volume_bytes: u64) {
        let mut marks = self.marks.borrow_mut();
        let first_page = marks.pages_end();
        marks.grow(volume_bytes.div_ceil(REGION_BYTES));
        let pages_end = marks.pages_end();
        assert!(
            pages_end <= self.write_back.area().pages(),
            "the map has room for {} regions",
            marks.regions()
        );
        // The old content of these pages was not read and may be invalid, so they are written.
        let written = self.write_back.written();
        let unread = (first_page..pages_end).filter(|page| written.is_written(*page));
        unread.for_each(|page| self.write_back.mark(page));
    }

    /// Returns true when a write of a page is due or in flight.
    pub(super) fn dirty(&self) -> bool {
        self.write_back.due_pages() > 0
    }

    /// Writes all pages that were changed before the call, without a flush. The future must run to
    /// completion.
    ///
    /// # Errors
    /// The first error of the device. Pages that were not written are written by the next call.
    pub(super) async fn write_back(&self) -> Result<(), IoError> {
        let fill = |page: u64, bytes: &mut [u8]| {
            encode(&self.marks.borrow().entries(page), bytes);
        };
        self.write_back.run(fill).await
    }

    /// Reads back the pages that were written since the last call. Returns true when all of them
    /// have the written content on the device. A page with other content will be written again.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn verify(&self) -> Result<bool, IoError> {
        let lost = self.write_back.verify().await?;
        lost.iter().for_each(|page| self.write_back.mark(*page));
        Ok(lost.is_empty())
    }

    /// Reads all written pages from the device. A page that differs from its state in memory will
    /// be written again.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn check(&self) -> Result<CheckedAreas, IoError> {
        let pages_end = self.marks.borrow().pages_end();
        let mut checked = CheckedAreas::default();
        let written = self.write_back.written();
        let mut page = written.first_written(0..pages_end);
        while page < pages_end {
            checked.read_bytes += PAGE_BYTES;
            // The page may have been written during the first read, so it is read again.
            if !self.is_right(page).await? && !self.is_right(page).await? {
                checked.wrong_pages += 1;
                self.write_back.mark(page);
            }
            page = written.first_written(page + 1..pages_end);
        }
        Ok(checked)
    }

    async fn is_right(&self, page: u64) -> Result<bool, IoError> {
        let (area, device) = (self.write_back.area(), self.write_back.device());
        let bytes = area.read(device, page..page + 1).await?.to_vec();
        let found = area.entries(page, &bytes).map(|bytes| decode(&bytes));
        let inside = (self.marks.borrow().regions() - page * PAGE_REGIONS).min(PAGE_REGIONS);
        let is_like = |found: PageEntries| {
            let entries = self.marks.borrow().entries(page);
            found[..inside as usize] == entries[..inside as usize]
        };
        Ok(found.is_ok_and(is_like) || self.write_back.is_due(page))
    }

    /// Returns the ranges of the volume, in bytes, that a side possibly lacks if its newest epoch
    /// is `epoch`. The ranges are merged, in ascending order, and within the first `volume_bytes`.
    ///
    /// # Panics
    /// When the bitmap describes a smaller volume.
    pub(super) fn out_of_sync_since(&self, epoch: u64, volume_bytes: u64) -> Vec<Range<u64>> {
        let marks = self.marks.borrow();
        let regions = volume_bytes.div_ceil(REGION_BYTES);
        assert!(
            regions <= marks.regions(),
            "the map is of {} regions",
            marks.regions()
        );
        let mut out_of_sync: Vec<Range<u64>> = Vec::new();
        // A region with the entry `ALWAYS` is out of sync for every side. The limit is therefore
        // below `ALWAYS`, so that such an entry is always above the limit.
        for run in marks.above(epoch.min(ALWAYS - 1), regions) {
            let start = run.start * REGION_BYTES;
            let end = volume_bytes.min(run.end * REGION_BYTES);
            match out_of_sync.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => out_of_sync.push(start..end),
            }
        }
        out_of_sync
    }
}
