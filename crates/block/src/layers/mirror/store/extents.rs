//! Determines which parts of a side hold data, as far as this is known without reading the data.
//!
//! The search proceeds through the log part by part, and through the checksums page by page. It
//! ends when the answer has its maximum number of extents or covers the range, or when `PAGES_MAX`
//! checksum pages have been examined.

use std::ops::Range;

use bimetal_rt::turn::give_way;

use super::Store;
use super::checksums::Expected;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::extents::ExtentList;
use crate::request::{Extent, Reply, Request};

/// Maximum number of checksum pages examined for one answer; they describe 252 MiB of the volume.
const PAGES_MAX: usize = 64;

/// State of the search for extents: the answer so far, and the bounds on the remaining work.
struct Walk {
    range: Range<u64>,
    found: ExtentList,
    pages_left: usize,
}

impl Walk {
    fn position(&self) -> u64 {
        self.range.start + self.found.covered_bytes()
    }

    fn is_over(&self) -> bool {
        self.found.is_full() || self.position() >= self.range.end || self.pages_left == 0
    }

    fn push(&mut self, len: u64, data: bool) {
        self.found.push(Extent { len, data });
    }
}

impl Store {
    /// Returns the extents of data and of holes in a prefix of a range, at most `extents_max`
    /// extents. Unless the range is empty, the prefix has at least one block.
    ///
    /// # Errors
    /// Errors of the device; `Corrupt` when a checksum page is damaged.
    pub(in super::super) async fn extents(
        &self,
        range: Range<u64>,
        extents_max: u32,
    ) -> Result<ExtentList, IoError> {
        let mut walk = Walk {
            range,
            found: ExtentList::new(extents_max),
            pages_left: PAGES_MAX,
        };
        while !walk.is_over() {
            give_way().await;
            let rest = walk.position()..walk.range.end;
            let logged = self.log.index.borrow().first_in(&rest);
            match logged {
                Some((part, data)) if part.start == rest.start => {
                    walk.push(part.end - part.start, data);
                }
                Some((part, _)) => {
                    self.extents_at_home(rest.start..part.start, &mut walk)
                        .await?
                }
                None => self.extents_at_home(rest, &mut walk).await?,
            }
        }
        Ok(walk.found)
    }

    /// Adds the extents of a range without records in the log, page by page.
    async fn extents_at_home(&self, range: Range<u64>, walk: &mut Walk) -> Result<(), IoError> {
        let Some(checksums) = &self.checksums else {
            walk.push(range.end - range.start, true);
            return Ok(());
        };
        while walk.position() < range.end && !walk.is_over() {
            walk.pages_left -= 1;
            let blocks = walk.position() / BLOCK_BYTES..range.end / BLOCK_BYTES;
            let mut end = walk.position();
            for (kind, blocks) in checksums.kinds_in_page(blocks).await? {
                let place = end..end + blocks * BLOCK_BYTES;
                end = place.end;
                self.extents_of_kind(kind, place, walk).await;
                if walk.found.is_full() || walk.position() < end {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Adds the extents of a part of the data area whose blocks all have the same kind of checksum
    /// entry.
    async fn extents_of_kind(&self, kind: Expected, place: Range<u64>, walk: &mut Walk) {
        let settled = self.unsettled.borrow().is_clear(&place);
        match kind {
            Expected::Unknown if settled => self.extents_on_device(place, walk).await,
            Expected::NeverWritten if settled => walk.push(place.end - place.start, false),
            Expected::NeverWritten => {
                let unsettled = self.unsettled.borrow();
                let mut end = place.start;
                for part in unsettled.overlapping(&place) {
                    let start = part.start.max(place.start);
                    walk.push(start - end, false);
                    end = part.end.min(place.end);
                    walk.push(end - start, true);
                }
                walk.push(place.end - end, false);
            }
            Expected::Unknown | Expected::Lost | Expected::Digest(_) => {
                walk.push(place.end - place.start, true);
            }
        }
    }

    /// Adds the extents that the device reports for a part of the data area without known
    /// checksums. If the device cannot report extents, the whole part is reported as data.
    async fn extents_on_device(&self, place: Range<u64>, walk: &mut Walk) {
        let (start, len) = (self.data_offset + place.start, place.end - place.start);
        let ask = Request::extents(start, len, walk.found.asks_for());
        let found = self.device.submit(ask).await.map(Reply::into_extents);
        match found {
            Ok(found) if !found.is_empty() => {
                found.into_iter().for_each(|run| walk.found.push(run));
            }
            // If the device cannot report its extents, the request does not fail: the whole part is
            // reported as data.
            Ok(_) | Err(_) => walk.push(len, true),
        }
    }
}
