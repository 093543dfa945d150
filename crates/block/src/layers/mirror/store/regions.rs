//! In which epoch each region of the volume was last changed while a side was missing: the map
//! area, one page of 4 KiB for 504 regions of 1 MiB, all of it in memory. The bytes are those of
//! `docs/format/mirror-side.md`.
//!
//! When the side comes back, what is marked is all it needs to be given besides the log. So the map
//! must never mark less than was changed: a damaged page counts as changed after everything.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Rt;
use bimetal_rt::turn::count_entries;

use super::check::CheckedAreas;
use super::checksums::pages::{Area, ENTRIES_BYTES, PAGE_BYTES, PageError, WriteBack};
use crate::device::Device;
use crate::error::IoError;

/// A region of the volume in bytes.
pub(super) const REGION_BYTES: u64 = 1 << 20;
const ENTRY_BYTES: usize = 8;
/// Regions that a page describes.
const PAGE_REGIONS: u64 = (ENTRIES_BYTES / ENTRY_BYTES) as u64;
/// Bytes of the volume that a page describes.
pub(in crate::layers::mirror) const PAGE_COVERS_BYTES: u64 = PAGE_REGIONS * REGION_BYTES;
/// The region was changed after every epoch there is.
const ALWAYS: u64 = u64::MAX;

fn encode(entries: &[u64], bytes: &mut [u8]) {
    // The volume may end in the middle of the last page.
    bytes.fill(0);
    for (entry, bytes) in entries.iter().zip(bytes.chunks_exact_mut(ENTRY_BYTES)) {
        bytes.copy_from_slice(&entry.to_le_bytes());
    }
}

fn decode(bytes: &[u8]) -> Vec<u64> {
    let entries = bytes.chunks_exact(ENTRY_BYTES);
    entries
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
        .collect()
}

/// The map of a side that is in use.
pub(super) struct Regions {
    entries: RefCell<Vec<u64>>,
    write_back: WriteBack,
    damaged: Vec<(u64, PageError)>,
}

impl Regions {
    /// Reads the map of a volume of `volume_bytes`.
    ///
    /// # Errors
    /// Those of the device. A page that cannot be believed is no error: it is
    /// [counted](Self::damaged), all of its regions are always stale, and it is due to be written
    /// so.
    ///
    /// # Panics
    /// When the area is too short for the volume.
    pub(super) async fn load(
        rt: &Rt,
        device: &Rc<dyn Device>,
        area: Area,
        volume_bytes: u64,
    ) -> Result<Regions, IoError> {
        let regions = volume_bytes.div_ceil(REGION_BYTES);
        let pages_end = regions.div_ceil(PAGE_REGIONS);
        assert!(
            pages_end <= area.pages(),
            "the map has room for {regions} regions"
        );
        let mut entries = Vec::with_capacity((pages_end * PAGE_REGIONS) as usize);
        let mut damaged = Vec::new();
        let run_pages_max = Area::run_pages_max(&**device);
        for start in (0..pages_end).step_by(run_pages_max as usize) {
            let run = start..pages_end.min(start + run_pages_max);
            let payload = area.read(&**device, run.clone()).await?;
            for (index, page) in run.enumerate() {
                let at = index * PAGE_BYTES as usize;
                let bytes = payload.slice(at..at + PAGE_BYTES as usize).to_vec();
                match area.entries(page, &bytes) {
                    Ok(bytes) => entries.extend(decode(&bytes)),
                    Err(why) => {
                        damaged.push((page, why));
                        entries.extend([ALWAYS; PAGE_REGIONS as usize]);
                    }
                }
            }
        }
        entries.truncate(regions as usize);
        let write_back = WriteBack::new(rt, device, area);
        for (page, _) in &damaged {
            // It may be whole when it is read again, and then it must not be the old one: what is
            // marked from now on is no news here.
            write_back.mark(*page);
        }
        Ok(Regions {
            entries: RefCell::new(entries),
            write_back,
            damaged,
        })
    }

    /// Pages that could not be believed when the map was read, and why.
    pub(super) fn damaged(&self) -> &[(u64, PageError)] {
        &self.damaged
    }

    /// Notes that a range of the volume (in bytes) is changed in an epoch, and says whether that is
    /// news. It is on the device after the next [`write_back`](Self::write_back): what is no news
    /// may still be on its way there.
    ///
    /// # Panics
    /// When the range leaves the volume.
    pub(super) fn mark(&self, range: Range<u64>, epoch: u64) -> bool {
        if range.is_empty() {
            return false;
        }
        let mut entries = self.entries.borrow_mut();
        let regions = range.start / REGION_BYTES..range.end.div_ceil(REGION_BYTES);
        assert!(
            regions.end <= entries.len() as u64,
            "the range {range:?} lies in the volume"
        );
        let mut changed = false;
        count_entries((regions.end - regions.start) as usize);
        for region in regions {
            let entry = &mut entries[region as usize];
            if *entry < epoch {
                *entry = epoch;
                self.write_back.mark(region / PAGE_REGIONS);
                changed = true;
            }
        }
        changed
    }

    /// The volume has become larger. What is new of it was never changed.
    ///
    /// # Panics
    /// When the area is too short for the volume.
    pub(super) fn grow(&self, volume_bytes: u64) {
        let regions = volume_bytes.div_ceil(REGION_BYTES) as usize;
        let pages_end = (regions as u64).div_ceil(PAGE_REGIONS);
        assert!(
            pages_end <= self.write_back.area().pages(),
            "the map has room for {regions} regions"
        );
        let mut entries = self.entries.borrow_mut();
        let first_page = (entries.len() as u64).div_ceil(PAGE_REGIONS);
        if regions > entries.len() {
            entries.resize(regions, 0);
            // What lies in their places has not been read, and need not be whole.
            (first_page..pages_end).for_each(|page| self.write_back.mark(page));
        }
    }

    /// True when there is a page that the device has not taken as it is now.
    pub(super) fn dirty(&self) -> bool {
        self.write_back.due_pages() > 0
    }

    /// Writes all pages that have changed before the call, and does not flush. Must be run to its
    /// end.
    ///
    /// # Errors
    /// The first of the device. What was not written is written the next time.
    pub(super) async fn write_back(&self) -> Result<(), IoError> {
        let fill = |page: u64, bytes: &mut [u8]| {
            let entries = self.entries.borrow();
            let first = page * PAGE_REGIONS;
            let end = (first + PAGE_REGIONS).min(entries.len() as u64);
            encode(&entries[first as usize..end as usize], bytes);
        };
        self.write_back.run(fill).await
    }

    /// Reads what was written since the last call, and says whether all of it is as it was written.
    /// What is not is due again.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) async fn verify(&self) -> Result<bool, IoError> {
        let lost = self.write_back.verify().await?;
        lost.iter().for_each(|page| self.write_back.mark(*page));
        Ok(lost.is_empty())
    }

    /// Reads all pages as they lie on the device. Those that are not what memory says are due to be
    /// written again.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) async fn check(&self) -> Result<CheckedAreas, IoError> {
        let pages_end = (self.entries.borrow().len() as u64).div_ceil(PAGE_REGIONS);
        let mut checked = CheckedAreas::default();
        for page in 0..pages_end {
            checked.read_bytes += PAGE_BYTES;
            // The first time it may have been on its way.
            if !self.is_right(page).await? && !self.is_right(page).await? {
                checked.wrong_pages += 1;
                self.write_back.mark(page);
            }
        }
        Ok(checked)
    }

    async fn is_right(&self, page: u64) -> Result<bool, IoError> {
        let (area, device) = (self.write_back.area(), self.write_back.device());
        let bytes = area.read(device, page..page + 1).await?.to_vec();
        let found = area.entries(page, &bytes).map(|bytes| decode(&bytes));
        let like = found.is_ok_and(|found| self.is_like(page, &found));
        Ok(like || self.write_back.is_due(page))
    }

    fn is_like(&self, page: u64, found: &[u64]) -> bool {
        let entries = self.entries.borrow();
        let first = (page * PAGE_REGIONS) as usize;
        let of_page = &entries[first..entries.len().min(first + PAGE_REGIONS as usize)];
        found[..of_page.len()] == *of_page
    }

    /// The ranges in bytes, in order and merged, of the first `volume_bytes` of the volume that
    /// a side may lack whose newest epoch is `epoch`.
    ///
    /// # Panics
    /// When the map is of a smaller volume.
    pub(super) fn stale_since(&self, epoch: u64, volume_bytes: u64) -> Vec<Range<u64>> {
        let entries = self.entries.borrow();
        let regions = volume_bytes.div_ceil(REGION_BYTES) as usize;
        let mut stale: Vec<Range<u64>> = Vec::new();
        for (region, entry) in (0..).zip(&entries[..regions]) {
            if *entry <= epoch && *entry != ALWAYS {
                continue;
            }
            let start = region * REGION_BYTES;
            let end = volume_bytes.min(start + REGION_BYTES);
            match stale.last_mut() {
                Some(run) if run.end == start => run.end = end,
                _ => stale.push(start..end),
            }
        }
        stale
    }
}
