//! Restoring the map of a logged side after pages of it were damaged, from what the segments say
//! about their blocks. This is for a side without which the volume cannot be had whole: else the
//! blocks are copied from another side, which takes less time.
//!
//! The checksums decide which content is the valid one. So content that was overwritten or
//! discarded never comes back: its digest is not the expected one, or none is expected. A block
//! whose checksum is unknown too stays lost.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Store;
use super::checksums::{Checksums, Expected};
use super::destage::RETRY_AFTER;
use super::segments::{Found, Segments, take_some};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::range_set::RangeSet;

/// Number of lost blocks that one search through the segments looks for, so that the candidates fit
/// into memory: 16 GiB of the volume.
const SEARCHED_BLOCKS: u64 = 4 << 20;

impl Store {
    /// Returns true when this opening has found damaged pages of the map, so that places of blocks
    /// can be found again. Places that were lost before stay lost: the segments with the blocks
    /// have been searched, or filled again.
    pub(in super::super) fn has_lost_pages(&self) -> bool {
        let segments = self.segments.as_ref();
        segments.is_some_and(|segments| segments.has_lost_pages())
    }

    /// Reads all pages of the map of a logged side, so that it is known which of them are damaged.
    /// Calls `told` with the number of bytes read so far, and that of all that are to be read.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn count_map(&self, told: &dyn Fn(u64, u64)) -> Result<(), IoError> {
        match &self.segments {
            Some(segments) => segments.count_map(told).await,
            None => Ok(()),
        }
    }

    /// Reads the map of a logged side in use as [`count_map`](Self::count_map) does, but leaves the
    /// device to others most of the time. Until all is read, no segment is cleaned. Then frees the
    /// segments that are dead.
    pub(super) async fn count_map_beside_others(&self, segments: &Segments) {
        // A device that fails for long is left out by the mirror, which ends this task.
        while segments.count_map_beside_others().await.is_err() {
            self.rt.sleep(RETRY_AFTER).await;
        }
        // Segments that were dead when the program before ended are free after a commit. If this
        // one fails, the next one frees them.
        if segments.has_dead() {
            let _ = self.write_pages().await;
        }
    }

    /// Finds blocks again whose places are lost, as far as the segments have their content. Must be
    /// called before the store begins, and after [`count_map`](Self::count_map). Calls `told` with
    /// the length of the segments that were searched, and that of all segments, in bytes. Writes
    /// nothing.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn restore_places(
        &self,
        told: &dyn Fn(u64, u64),
    ) -> Result<(), IoError> {
        let (Some(segments), Some(checksums)) = (&self.segments, &self.checksums) else {
            return Ok(());
        };
        let first = segments.first_volume_block();
        let lost = segments.lost_places();
        // The pages of the checksums come first, because the others depend on them.
        let end = first + self.volume_bytes.get() / BLOCK_BYTES;
        let head = self.log.head.get();
        for range in [0..first, first..end] {
            let mut left = RangeSet::new();
            left.extend(lost.parts_in(&range));
            while !left.is_empty() {
                let wanted = take_some(&mut left, SEARCHED_BLOCKS);
                let mut found = segments.find(&wanted, told).await?;
                // The log is about to write there, so what an earlier generation left there must
                // not be referred to.
                found.retain(|found| !segments.is_ahead_of_log(found, head));
                match range.start {
                    0 => restore_checksum_pages(segments, found).await?,
                    _ => restore_blocks(segments, checksums, &wanted, found).await?,
                }
            }
        }
        let mut suspect = self.suspect.borrow_mut();
        suspect.clear();
        suspect.extend(segments.lost_ranges(self.volume_bytes.get()).iter());
        Ok(())
    }
}

/// Gives pages of the checksums the place of their newest version. If its content is damaged, the
/// page stays lost: an older version would call newer content corrupt.
async fn restore_checksum_pages(segments: &Segments, found: Vec<Found>) -> Result<(), IoError> {
    let mut newest: BTreeMap<u64, Vec<Found>> = BTreeMap::new();
    for one in found {
        let of_page = newest.entry(one.block).or_default();
        match of_page.first().map(|known| known.birth) {
            Some(known) if known > one.birth => continue,
            Some(known) if known < one.birth => of_page.clear(),
            _ => {}
        }
        of_page.push(one);
    }
    let candidates = newest.into_values().flatten().collect();
    let intact = segments.intact(candidates).await?;
    intact.iter().for_each(|found| segments.restore(found));
    Ok(())
}

/// Gives blocks of the volume their places again: the newest intact content with the expected
/// digest, or none where none is expected.
async fn restore_blocks(
    segments: &Segments,
    checksums: &Checksums,
    wanted: &RangeSet,
    mut found: Vec<Found>,
) -> Result<(), IoError> {
    let first = segments.first_volume_block();
    let mut digests = BTreeMap::new();
    for range in wanted.iter() {
        for blocks in pages_of(range.start - first..range.end - first) {
            let expected = match checksums.expected(blocks.clone()).await {
                // The page is damaged.
                Err(IoError::Corrupt) => continue,
                other => other?,
            };
            for (block, expected) in (first + blocks.start..).zip(expected) {
                match expected {
                    Expected::NeverWritten => segments.restore_nowhere(block),
                    Expected::Digest(digest) => {
                        digests.insert(block, digest);
                    }
                    Expected::Unknown | Expected::Lost => {}
                }
            }
        }
    }
    found.retain(|one| {
        let expected = digests.get(&one.block);
        expected.is_some_and(|expected| Expected::Digest(*expected) == Expected::digest(one.digest))
    });
    let mut intact = segments.intact(found).await?;
    // The first one that is given counts.
    intact.sort_unstable_by_key(|found| std::cmp::Reverse((found.birth, found.moved_in)));
    intact.iter().for_each(|found| segments.restore(found));
    Ok(())
}

/// Divides blocks of the volume into parts that one page of the checksums describes.
fn pages_of(blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut left = blocks;
    std::iter::from_fn(move || {
        let page_end = Checksums::blocks_of(Checksums::page_of(left.start)).end;
        let part = left.start..left.end.min(page_end);
        left.start = part.end;
        (!part.is_empty()).then_some(part)
    })
}
