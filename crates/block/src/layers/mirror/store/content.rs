//! Finds out which blocks of the volume have content on a side.

use std::ops::Range;

use super::Store;
use super::entry::Space;
use super::index::Content;
use crate::error::IoError;
use crate::extents::ExtentList;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::layers::mirror::written_blocks::WrittenBlocks;
use crate::request::EXTENTS_MAX;

impl Store {
    /// Returns the blocks of the volume that have content on this side, by its map and its log. No
    /// change may be appended meanwhile. Calls `told` with the number of bytes of the map that were
    /// read, and that are to be read. Of a side with homes, returns no blocks.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn content(
        &self,
        told: &dyn Fn(u64, u64),
    ) -> Result<WrittenBlocks, IoError> {
        let Some(segments) = &self.segments else {
            return Ok(WrittenBlocks::default());
        };
        // The log may be folded while the map is read, so what it says is looked at before, and
        // counts more than the map.
        let logged = self
            .log
            .index
            .borrow()
            .newest_in(&(0..self.volume_bytes.get()));
        let mut content = segments.content(told).await?;
        let logged = match is_planted(Bug::CountsMapOnly) {
            true => Vec::new(),
            false => logged,
        };
        for (range, record) in logged {
            match record.content {
                Content::Data { .. } => content.insert(&range),
                Content::Zeroes(_) | Content::Lost => content.remove(&range),
            }
        }
        Ok(content)
    }

    /// Divides a range into parts that have content on this side, or may have some, and parts of
    /// zeroes, each with what happens to their space. The parts are in ascending order. A part of
    /// zeroes can be as long as the range.
    pub(in super::super) async fn parts_in(
        &self,
        range: &Range<u64>,
    ) -> Vec<(Range<u64>, Option<Space>)> {
        let logged = self.log.index.borrow().newest_in(range);
        let mut parts = Vec::new();
        let mut end = range.start;
        for (part, record) in logged {
            self.add_unlogged(end..part.start, &mut parts).await;
            end = part.end;
            parts.push(match record.content {
                Content::Data { .. } | Content::Lost => (part, None),
                Content::Zeroes(space) => (part, Some(space)),
            });
        }
        self.add_unlogged(end..range.end, &mut parts).await;
        parts
    }

    /// Adds the parts of a range of which the log has no record.
    async fn add_unlogged(&self, range: Range<u64>, parts: &mut Vec<(Range<u64>, Option<Space>)>) {
        let mut position = range.start;
        while position < range.end {
            let rest = position..range.end;
            let found = self.extents(rest.clone(), EXTENTS_MAX).await;
            let found = found.map_or_else(|_| Vec::new(), ExtentList::into_extents);
            if found.is_empty() {
                // What cannot be told now is found out when it is read.
                return parts.push((rest, None));
            }
            for extent in found {
                let part = position..position + extent.len;
                position = part.end;
                parts.push((part, (!extent.data).then_some(Space::Freed)));
            }
        }
    }
}
