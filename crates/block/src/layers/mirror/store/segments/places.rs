//! The map of a logged side in memory: the place of each block of the virtual range, in pages. What
//! has changed goes into the journal, or is written to the segments page by page.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::layers::mirror::store::changes::Changes;
use crate::layers::mirror::superblock::areas::{ENTRIES_BYTES, PAGE_BLOCKS};

/// Place of a block in the segments. The blocks of all segments are numbered in the order of their
/// offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The block was never written, or was discarded: it reads as zeroes.
    Nowhere,
    /// The page of the map with the place of the block was damaged.
    Lost,
    /// The block with this number in the segments.
    At(u32),
}

/// Entry of a block whose place is unknown.
const LOST: u32 = u32::MAX;
const PAGE_ENTRIES: usize = PAGE_BLOCKS as usize;

impl Place {
    fn of_entry(entry: u32) -> Place {
        match entry {
            0 => Place::Nowhere,
            LOST => Place::Lost,
            other => Place::At(other - 1),
        }
    }

    fn entry(self) -> u32 {
        match self {
            Place::Nowhere => 0,
            Place::Lost => LOST,
            Place::At(block) => block + 1,
        }
    }
}

/// The map; see the module documentation. A page without any place takes no memory.
pub(super) struct Places {
    pages: Vec<Option<Box<[u32; PAGE_ENTRIES]>>>,
    /// Pages that had blocks with a lost place when they were read.
    with_lost: BTreeSet<u64>,
    pub(super) changes: Changes,
}

impl Places {
    /// Creates the map of a virtual range with `blocks` blocks, without any place.
    pub(super) fn new(blocks: u64) -> Places {
        let pages = blocks.div_ceil(PAGE_BLOCKS) as usize;
        Places {
            pages: (0..pages).map(|_| None).collect(),
            with_lost: BTreeSet::new(),
            changes: Changes::default(),
        }
    }

    /// Returns the number of blocks that the pages describe.
    pub(super) fn blocks(&self) -> u64 {
        self.pages() * PAGE_BLOCKS
    }

    /// Returns the blocks whose places are lost: because a page is damaged, or because it was when
    /// an earlier program read it.
    pub(super) fn lost(&self) -> impl Iterator<Item = u64> {
        let pages = self.with_lost.iter();
        let blocks = pages.flat_map(|page| page * PAGE_BLOCKS..(page + 1) * PAGE_BLOCKS);
        blocks.filter(|block| self.get(*block) == Place::Lost)
    }

    /// Returns the number of pages.
    pub(super) fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Returns the place of a block.
    pub(super) fn get(&self, block: u64) -> Place {
        let page = &self.pages[(block / PAGE_BLOCKS) as usize];
        let entry = page
            .as_ref()
            .map_or(0, |page| page[(block % PAGE_BLOCKS) as usize]);
        Place::of_entry(entry)
    }

    /// Sets the place of a block, and returns the previous one.
    pub(super) fn set(&mut self, block: u64, place: Place) -> Place {
        let number = block / PAGE_BLOCKS;
        let page = &mut self.pages[number as usize];
        if page.is_none() && place == Place::Nowhere {
            return Place::Nowhere;
        }
        let page = page.get_or_insert_with(|| Box::new([0; PAGE_ENTRIES]));
        let entry = &mut page[(block % PAGE_BLOCKS) as usize];
        let before = std::mem::replace(entry, place.entry());
        let at = (block % PAGE_BLOCKS) as u16;
        self.changes.note(number, at..at + 1);
        Place::of_entry(before)
    }

    /// Sets an entry of a page, as the journal says. Returns the place before and the place now.
    pub(super) fn replay(&mut self, page: u64, (index, entry): (u16, u32)) -> [Place; 2] {
        let entries = self.pages[page as usize].get_or_insert_with(|| Box::new([0; PAGE_ENTRIES]));
        let before = std::mem::replace(&mut entries[usize::from(index)], entry);
        [before, entry].map(Place::of_entry)
    }

    /// Returns an entry of a page, as the format page draws it.
    pub(super) fn entry(&self, page: u64, index: u16) -> u32 {
        let entries = self.pages[page as usize].as_ref();
        entries.map_or(0, |entries| entries[usize::from(index)])
    }

    /// Returns the blocks that a page describes and that are in the segments, each with the number
    /// of its block there.
    pub(super) fn stored_in_page(&self, page: u64) -> impl Iterator<Item = (u64, u32)> {
        let entries = self.pages[page as usize].as_deref();
        let entries = entries.map_or(&[][..], |entries| &entries[..]);
        (page * PAGE_BLOCKS..)
            .zip(entries)
            .filter_map(|(block, entry)| match Place::of_entry(*entry) {
                Place::At(at) => Some((block, at)),
                Place::Nowhere | Place::Lost => None,
            })
    }

    /// Makes the next commit write pages.
    pub(super) fn mark(&mut self, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| self.changes.mark(page));
    }

    /// Fills in the entries of a page, as the format page draws them.
    pub(super) fn encode(&self, page: u64, bytes: &mut [u8; ENTRIES_BYTES]) {
        let Some(entries) = &self.pages[page as usize] else {
            bytes.fill(0);
            return;
        };
        for (bytes, entry) in bytes.chunks_exact_mut(4).zip(entries.iter()) {
            bytes.copy_from_slice(&entry.to_le_bytes());
        }
    }

    /// Puts a page that was read into the map. `entries` are its entries; `None` if the page is
    /// damaged, so that all its places are lost.
    pub(super) fn load(&mut self, page: u64, entries: Option<&[u8]>) {
        let mut loaded = Box::new([LOST; PAGE_ENTRIES]);
        if let Some(entries) = entries {
            for (entry, bytes) in loaded.iter_mut().zip(entries.chunks_exact(4)) {
                *entry = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
            }
        }
        if loaded.contains(&LOST) {
            self.with_lost.insert(page);
        }
        self.pages[page as usize] = Some(loaded);
    }
}

/// Joins the places of adjacent blocks that lie one behind the other in the segments, or that are
/// all nowhere, or all lost. Returns each run with its number of blocks. A run does not cross the
/// end of a segment of `segment_blocks` blocks.
pub(super) fn runs(places: &Places, blocks: Range<u64>, segment_blocks: u32) -> Vec<(Place, u64)> {
    let mut runs: Vec<(Place, u64)> = Vec::new();
    for block in blocks {
        let place = places.get(block);
        let follows = |last: &(Place, u64)| match (last.0, place) {
            (Place::At(start), Place::At(at)) => {
                u64::from(start) + last.1 == u64::from(at) && !at.is_multiple_of(segment_blocks)
            }
            (one, other) => one == other,
        };
        match runs.last_mut().filter(|last| follows(last)) {
            Some(last) => last.1 += 1,
            None => runs.push((place, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_reads_back_as_it_was_written() {
        let mut places = Places::new(3 * PAGE_BLOCKS);
        assert_eq!(places.set(1010, Place::At(7)), Place::Nowhere);
        assert_eq!(places.set(1011, Place::At(u32::MAX - 3)), Place::Nowhere);
        assert_eq!(places.set(0, Place::Nowhere), Place::Nowhere);
        let since = places.changes.take();
        assert_eq!(
            since.entries.into_iter().collect::<Vec<_>>(),
            [(1, vec![2, 3])]
        );
        let mut bytes = [0; ENTRIES_BYTES];
        places.encode(1, &mut bytes);
        assert_eq!(bytes[8..16], [8, 0, 0, 0, 0xFD, 0xFF, 0xFF, 0xFF]);
        let mut read = Places::new(3 * PAGE_BLOCKS);
        read.load(1, Some(&bytes));
        read.load(2, None);
        assert_eq!(read.get(1010), Place::At(7));
        assert_eq!(read.get(1012), Place::Nowhere);
        assert_eq!(read.get(2 * PAGE_BLOCKS), Place::Lost);
        read.set(2 * PAGE_BLOCKS + 1, Place::At(9));
        assert_eq!(read.lost().count() as u64, PAGE_BLOCKS - 1);
        // What was lost is in the page when it is written again.
        read.encode(2, &mut bytes);
        let mut again = Places::new(3 * PAGE_BLOCKS);
        again.load(2, Some(&bytes));
        assert!(again.lost().eq(read.lost()));
        let stored: Vec<_> = read.stored_in_page(1).collect();
        assert_eq!(stored, [(1010, 7), (1011, u32::MAX - 3)]);
    }

    #[test]
    fn runs_end_where_places_jump_and_at_segments() {
        let mut places = Places::new(16);
        let at = [(0, 5), (1, 6), (2, 7), (3, 8), (4, 20), (6, 21)];
        for (block, at) in at {
            places.set(block, Place::At(at));
        }
        places.set(7, Place::Lost);
        let expected = [
            (Place::At(5), 3),
            (Place::At(8), 1),
            (Place::At(20), 1),
            (Place::Nowhere, 1),
            (Place::At(21), 1),
            (Place::Lost, 1),
        ];
        assert_eq!(runs(&places, 0..8, 8), expected);
    }
}
