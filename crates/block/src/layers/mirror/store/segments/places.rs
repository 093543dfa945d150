//! The map of a logged side in memory: the place of each block of the virtual range, in pages.
//!
//! Only a bounded number of pages is in memory. What has changed since a page was written is known
//! apart from the page, so a change needs no page: it goes into the journal, and the page is read
//! when it is written next. What the page on the device says about the block is *superseded* then,
//! and known only then.
//!
//! Pages that were written by an earlier program are *uncounted* until they are read for the first
//! time: their places do not count as live yet.
//!
//! A place that is only in a page on the device must never be taken for no place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::layers::mirror::planted::{Bug, is_planted};
use crate::layers::mirror::store::changes::{Changes, Since};
use crate::layers::mirror::store::deltas::Deltas;
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

/// Returns true when a page of a side with `blocks` blocks in its segments may have this entry.
pub(super) fn is_entry(entry: u32, blocks: u64) -> bool {
    match Place::of_entry(entry) {
        Place::At(at) => u64::from(at) < blocks,
        Place::Nowhere | Place::Lost => true,
    }
}

type Entries = [u32; PAGE_ENTRIES];

/// A page of the map.
enum Page {
    /// The page was never written, and apart from what has changed its blocks have no place.
    Empty,
    /// The page is only on the device.
    OnDevice,
    /// The page is only on the device, and was not read since the side was opened.
    Uncounted,
    InMemory(Box<Resident>),
}

/// What follows from reading a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Loaded {
    /// Places in the page that changes have superseded, and which were counted as live until now.
    pub(super) superseded: Vec<u32>,
    /// Places in the page that do not count as live yet, because the page was uncounted.
    pub(super) uncounted: Vec<u32>,
    /// Whether places of the page are lost, which was not known until now.
    pub(super) has_new_lost: bool,
}

/// A page in memory.
struct Resident {
    entries: Entries,
    /// Whether the page was ever written.
    is_written: bool,
    /// Whether the page was used since the hand of the CLOCK eviction last passed it.
    used: bool,
}

/// The map; see the module documentation.
pub(super) struct Places {
    pages: Vec<Page>,
    deltas: Deltas,
    changes: Changes,
    /// Pages that had blocks with a lost place when they were read. They stay in memory.
    with_lost: BTreeSet<u64>,
    /// Pages that stay in memory for some time, each with the number of holders.
    held: BTreeMap<u64, usize>,
    /// Number of pages at the start of the map that stay in memory.
    kept: u64,
    resident: usize,
    resident_max: usize,
    /// Number of pages that are only on the device, and of the uncounted ones among them.
    on_device: usize,
    uncounted: usize,
    /// Pages in memory, in the order in which the hand of the clock reaches them.
    clock: VecDeque<u64>,
    /// What pages that have left the memory held, for tests that ask for places at any time; `None`
    /// if there are no such tests.
    shadows: Option<BTreeMap<u64, Entries>>,
}

impl Places {
    /// Creates the map of a virtual range with `blocks` blocks, without any place. At most
    /// `resident_max` pages stay in memory, beside those of the first `kept_blocks` blocks.
    pub(super) fn new(blocks: u64, kept_blocks: u64, resident_max: usize) -> Places {
        let pages = blocks.div_ceil(PAGE_BLOCKS) as usize;
        let kept = kept_blocks.div_ceil(PAGE_BLOCKS);
        Places {
            pages: (0..pages).map(|_| Page::Empty).collect(),
            deltas: Deltas::default(),
            changes: Changes::default(),
            with_lost: BTreeSet::new(),
            held: BTreeMap::new(),
            kept,
            resident: 0,
            on_device: 0,
            uncounted: 0,
            resident_max: resident_max + kept as usize,
            clock: VecDeque::new(),
            shadows: None,
        }
    }

    /// Makes [`peek`](Self::peek) know every place. No page may have left the memory; `pages` are
    /// the pages that are only on the device, with their entries as the format page draws them.
    pub(super) fn watch(&mut self, pages: impl IntoIterator<Item = (u64, Vec<u8>)>) {
        let pages = pages.into_iter();
        self.shadows = Some(pages.map(|(page, bytes)| (page, decode(&bytes))).collect());
    }

    /// Returns the place of a block as [`get`](Self::get) does, even if only its page on the device
    /// says it, if the map is [watched](Self::watch).
    pub(super) fn peek(&self, block: u64) -> Option<Place> {
        let of_shadow = || {
            let shadow = self.shadows.as_ref()?.get(&(block / PAGE_BLOCKS))?;
            Some(Place::of_entry(shadow[(block % PAGE_BLOCKS) as usize]))
        };
        self.get(block).or_else(of_shadow)
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
        blocks.filter(|block| self.get(*block) == Some(Place::Lost))
    }

    /// Returns true when places of blocks are lost, or were when a page was read.
    pub(super) fn has_lost(&self) -> bool {
        !self.with_lost.is_empty()
    }

    /// Returns the number of pages.
    pub(super) fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Returns true when no page has left the memory.
    pub(super) fn are_all_known(&self) -> bool {
        self.on_device == 0
    }

    /// Returns the number of uncounted pages.
    pub(super) fn uncounted(&self) -> usize {
        self.uncounted
    }

    /// Returns the uncounted pages in a range.
    pub(super) fn uncounted_in(&self, pages: Range<u64>) -> impl Iterator<Item = u64> {
        let is_uncounted = |page: &u64| matches!(self.pages[*page as usize], Page::Uncounted);
        pages.filter(is_uncounted)
    }

    /// Returns the number of pages at the start of the map that stay in memory.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// Returns the number of pages in memory.
    pub(super) fn resident(&self) -> usize {
        self.resident
    }

    /// Returns true when no page has to be read before the places of all of its blocks are known.
    pub(super) fn is_known(&self, page: u64) -> bool {
        !matches!(self.pages[page as usize], Page::OnDevice | Page::Uncounted)
    }

    /// Returns the place of a block; `None` if only its page on the device says it.
    pub(super) fn get(&self, block: u64) -> Option<Place> {
        let (page, index) = (block / PAGE_BLOCKS, block % PAGE_BLOCKS);
        let entry = match &self.pages[page as usize] {
            Page::InMemory(resident) => Some(resident.entries[index as usize]),
            of => match (self.deltas.get(page, index as u16), of) {
                (None, Page::Empty) => Some(0),
                (entry, _) => entry,
            },
        };
        entry.map(Place::of_entry)
    }

    /// Returns whether a block is at a place, if this is known without its page.
    pub(super) fn is_at(&self, block: u64, at: u32) -> Option<bool> {
        self.get(block).map(|place| place == Place::At(at))
    }

    /// Sets the place of a block. Returns the previous one, which no longer counts as live; `None`
    /// if only the page on the device says it. `before` is that place, if the caller knows it.
    pub(super) fn set(&mut self, block: u64, place: Place, before: Option<Place>) -> Option<Place> {
        let (number, index) = (block / PAGE_BLOCKS, (block % PAGE_BLOCKS) as u16);
        let known = self.get(block).or(before);
        if (known, place) == (Some(Place::Nowhere), Place::Nowhere) {
            return known;
        }
        if number < self.kept && matches!(self.pages[number as usize], Page::Empty) {
            let entries = self.entries(number);
            self.put(number, entries, false);
        }
        let entry = place.entry();
        // What an uncounted page says about the block does not count.
        let is_uncounted = matches!(self.pages[number as usize], Page::Uncounted);
        let is_settled = known.is_some() || is_uncounted;
        self.deltas.set(number, index, entry, is_settled);
        if let Page::InMemory(resident) = &mut self.pages[number as usize] {
            resident.entries[usize::from(index)] = entry;
        }
        self.changes.note(number, index..index + 1);
        known
    }

    /// Sets an entry of a page, as the journal says, before it is known where the page is. The
    /// caller counts the live blocks, see [`changed_places`](Self::changed_places).
    pub(super) fn replay(&mut self, page: u64, (index, entry): (u16, u32)) {
        self.deltas.set(page, index, entry, true);
    }

    /// Returns the places of the blocks of a page whose entries have changed since it was written.
    pub(super) fn changed_places(&self, page: u64) -> Vec<u32> {
        let indices = self.deltas.indices(page).into_iter();
        let entries = indices.filter_map(|index| self.deltas.get(page, index));
        places_in(entries).collect()
    }

    /// Records that the place of a block in its page on the device no longer counts as live, if the
    /// block has changed since. Returns true if it counted until now.
    pub(super) fn settle(&mut self, block: u64) -> bool {
        let (page, index) = (block / PAGE_BLOCKS, (block % PAGE_BLOCKS) as u16);
        self.deltas.settle_entry(page, index)
    }

    /// Returns the blocks that a page describes and that are in the segments, each with the number
    /// of its block there.
    ///
    /// # Panics
    /// When the page is not [known](Self::is_known).
    pub(super) fn stored_in_page(&self, page: u64) -> Vec<(u64, u32)> {
        let entries = self.entries(page);
        let stored = (page * PAGE_BLOCKS..).zip(entries);
        let stored = stored.filter_map(|(block, entry)| match Place::of_entry(entry) {
            Place::At(at) => Some((block, at)),
            Place::Nowhere | Place::Lost => None,
        });
        stored.collect()
    }

    /// Returns the blocks that a page describes and that have a place, or whose place is lost.
    ///
    /// # Panics
    /// When the page is not [known](Self::is_known).
    pub(super) fn with_content(&self, page: u64) -> Vec<u64> {
        let first = page * PAGE_BLOCKS;
        // Most pages of a large volume may be empty.
        if matches!(self.pages[page as usize], Page::Empty) {
            let changed = self.deltas.indices(page).into_iter();
            let placed = changed.filter(|index| self.deltas.get(page, *index) != Some(0));
            return placed.map(|index| first + u64::from(index)).collect();
        }
        let entries = (first..).zip(self.entries(page));
        let placed = entries.filter(|(_, entry)| *entry != 0);
        placed.map(|(block, _)| block).collect()
    }

    fn entries(&self, page: u64) -> Entries {
        match &self.pages[page as usize] {
            Page::InMemory(resident) => resident.entries,
            Page::Empty => {
                let mut entries = [0; PAGE_ENTRIES];
                self.deltas.apply(page, &mut entries);
                entries
            }
            Page::OnDevice | Page::Uncounted => panic!("page {page} of the map was not read"),
        }
    }

    /// Makes the next commit write pages.
    pub(super) fn mark(&mut self, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| self.changes.mark(page));
    }

    /// Records that run `run` of the journal has entries of a page, see [`Changes::owe`].
    pub(super) fn owe(&mut self, page: u64, run: u64) {
        self.changes.owe(page, run);
    }

    /// Returns the changes of the pages.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Takes the pages that a commit writes now, see [`Changes::take_pages`].
    pub(super) fn take_pages(&mut self, more: usize) -> Vec<u64> {
        self.changes.take_pages(more)
    }

    /// Makes the next commit write a page that was [taken](Self::take_pages) and cannot be read
    /// now. Its changed entries go into the journal, however many there are.
    pub(super) fn put_back(&mut self, page: u64) {
        self.changes.put_back(page, self.deltas.indices(page));
    }

    /// Records that a page could not be read, see [`Changes::is_unreadable_again`].
    pub(super) fn is_unreadable_again(&mut self, page: u64) -> bool {
        self.changes.is_unreadable_again(page)
    }

    /// Keeps pages in memory, once they are there, until [`release`](Self::release).
    pub(super) fn hold(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            *self.held.entry(page).or_default() += 1;
            if let Page::InMemory(resident) = &mut self.pages[page as usize] {
                resident.used = true;
            }
        }
    }

    /// Undoes one [`hold`](Self::hold).
    pub(super) fn release(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            let holders = self.held.get_mut(&page).expect("it is held");
            *holders -= 1;
            if *holders == 0 {
                self.held.remove(&page);
            }
        }
        self.trim();
    }

    /// Makes a page in memory independent of the page on the device, which is damaged, and makes
    /// the next commit write it.
    pub(super) fn rescue(&mut self, page: u64) {
        self.changes.mark(page);
        if let Page::InMemory(resident) = &self.pages[page as usize] {
            for (index, entry) in (0..).zip(resident.entries) {
                self.deltas.set(page, index, entry, true);
            }
        }
    }

    /// Returns what the journal must say with the next commit: the pages that were written, and
    /// the changed entries of pages.
    pub(super) fn take_changes(&mut self) -> Since {
        self.changes.take()
    }

    /// Returns the value of an entry that the journal must have; `None` if the page was written
    /// with it for the same commit.
    pub(super) fn changed_entry(&self, page: u64, index: u16) -> Option<u32> {
        self.deltas.get(page, index)
    }

    /// Records that a commit has succeeded, see [`Changes::committed`].
    pub(super) fn committed(&mut self, run: u64) {
        self.changes.committed(run);
    }

    /// Fills in the entries of a page, as the format page draws them.
    ///
    /// # Panics
    /// When the page is not [known](Self::is_known).
    pub(super) fn encode(&self, page: u64, bytes: &mut [u8; ENTRIES_BYTES]) {
        let entries = self.entries(page);
        for (bytes, entry) in bytes.chunks_exact_mut(4).zip(entries) {
            bytes.copy_from_slice(&entry.to_le_bytes());
        }
    }

    /// Records that a page is being written as it is now.
    pub(super) fn begin_write(&mut self, page: u64) {
        if matches!(self.pages[page as usize], Page::Empty) {
            let entries = self.entries(page);
            self.put(page, entries, false);
        }
        self.deltas.begin_write(page);
    }

    /// Records that the write of a page has ended. If it has failed, the next commit writes the
    /// page.
    pub(super) fn end_write(&mut self, page: u64, is_written: bool) {
        self.deltas.end_write(page, is_written);
        if !is_written {
            self.changes.mark(page);
            return;
        }
        self.changes.note_written([page]);
        match &mut self.pages[page as usize] {
            Page::InMemory(resident) => resident.is_written = true,
            _ => panic!("page {page} is held while it is written"),
        }
    }

    /// Records that a page is on the device, where an earlier program has written it.
    pub(super) fn note_uncounted(&mut self, page: u64) {
        self.pages[page as usize] = Page::Uncounted;
        self.on_device += 1;
        self.uncounted += 1;
    }

    /// Puts a page into memory that was read from the device: `bytes` are its entries.
    pub(super) fn load(&mut self, page: u64, bytes: &[u8]) -> Loaded {
        let mut entries = decode(bytes);
        self.changes.note_readable(page);
        let mut superseded = Vec::new();
        self.deltas
            .settle(page, |index| superseded.push(entries[usize::from(index)]));
        let has_changed = |index: &u16| self.deltas.get(page, *index).is_some();
        let unchanged = (0..PAGE_ENTRIES as u16).filter(|index| !has_changed(index));
        let uncounted = match self.pages[page as usize] {
            Page::Uncounted => unchanged.map(|index| entries[usize::from(index)]).collect(),
            _ => Vec::new(),
        };
        if !is_planted(Bug::ReadsPageAlone) {
            self.deltas.apply(page, &mut entries);
        }
        let loaded = Loaded {
            superseded: places_in(superseded).collect(),
            uncounted: places_in(uncounted).collect(),
            has_new_lost: entries.contains(&LOST) && !self.with_lost.contains(&page),
        };
        self.put(page, entries, true);
        loaded
    }

    /// Puts a page into memory whose places are lost, apart from those that have changed.
    pub(super) fn lose(&mut self, page: u64) {
        self.deltas.settle(page, |_| {});
        let mut entries = [LOST; PAGE_ENTRIES];
        self.deltas.apply(page, &mut entries);
        self.put(page, entries, false);
    }

    fn put(&mut self, page: u64, entries: Entries, is_written: bool) {
        if entries.contains(&LOST) {
            self.with_lost.insert(page);
        }
        let resident = Resident {
            entries,
            is_written,
            used: true,
        };
        let before = std::mem::replace(
            &mut self.pages[page as usize],
            Page::InMemory(Box::new(resident)),
        );
        match before {
            Page::InMemory(_) => return,
            Page::OnDevice => self.on_device -= 1,
            Page::Uncounted => {
                self.on_device -= 1;
                self.uncounted -= 1;
            }
            Page::Empty => {}
        }
        self.resident += 1;
        self.clock.push_back(page);
    }

    /// Drops pages from memory until at most as many are left as may be, or until all others must
    /// stay.
    pub(super) fn trim(&mut self) {
        let mut steps = 2 * self.clock.len();
        while self.resident > self.resident_max && steps > 0 {
            steps -= 1;
            let Some(page) = self.clock.pop_front() else {
                return;
            };
            let must_stay =
                page < self.kept || self.held.contains_key(&page) || self.with_lost.contains(&page);
            let Page::InMemory(resident) = &mut self.pages[page as usize] else {
                unreachable!("what is on the clock is in memory");
            };
            if must_stay || std::mem::take(&mut resident.used) {
                self.clock.push_back(page);
                continue;
            }
            if let Some(shadows) = &mut self.shadows {
                shadows.insert(page, resident.entries);
            }
            self.resident -= 1;
            self.pages[page as usize] = match resident.is_written {
                true => {
                    self.on_device += 1;
                    Page::OnDevice
                }
                false => Page::Empty,
            };
        }
    }
}

/// Returns the entries of a page, given as the format page draws them.
fn decode(bytes: &[u8]) -> Entries {
    let mut entries = [0; PAGE_ENTRIES];
    for (entry, bytes) in entries.iter_mut().zip(bytes.chunks_exact(4)) {
        *entry = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    }
    entries
}

/// Returns the blocks of the segments that entries of pages refer to.
fn places_in(entries: impl IntoIterator<Item = u32>) -> impl Iterator<Item = u32> {
    let places = entries.into_iter().map(Place::of_entry);
    places.filter_map(|place| match place {
        Place::At(at) => Some(at),
        Place::Nowhere | Place::Lost => None,
    })
}

/// Joins the places of adjacent blocks that lie one behind the other in the segments, or that are
/// all nowhere, or all lost. Returns each run with its number of blocks. A run does not cross the
/// end of a segment of `segment_blocks` blocks.
///
/// # Panics
/// When the place of a block is not known.
pub(super) fn runs(places: &Places, blocks: Range<u64>, segment_blocks: u32) -> Vec<(Place, u64)> {
    let mut runs: Vec<(Place, u64)> = Vec::new();
    for block in blocks {
        let place = places.get(block).expect("the page of the block was read");
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

    fn map() -> Places {
        Places::new(3 * PAGE_BLOCKS, 0, 1)
    }

    fn written(places: &mut Places, page: u64) -> [u8; ENTRIES_BYTES] {
        let mut bytes = [0; ENTRIES_BYTES];
        places.encode(page, &mut bytes);
        places.begin_write(page);
        places.end_write(page, true);
        bytes
    }

    #[test]
    fn a_page_reads_back_as_it_was_written() {
        let mut places = map();
        assert_eq!(places.set(1010, Place::At(7), None), Some(Place::Nowhere));
        places.set(1011, Place::At(u32::MAX - 3), None);
        places.set(0, Place::Nowhere, None);
        let since = places.take_changes();
        assert_eq!(
            since.entries.into_iter().collect::<Vec<_>>(),
            [(1, vec![2, 3])]
        );
        let bytes = written(&mut places, 1);
        assert_eq!(bytes[8..16], [8, 0, 0, 0, 0xFD, 0xFF, 0xFF, 0xFF]);
        let mut read = map();
        assert_eq!(read.load(1, &bytes), Loaded::default());
        read.lose(2);
        assert_eq!(read.get(1010), Some(Place::At(7)));
        assert_eq!(read.get(1012), Some(Place::Nowhere));
        assert_eq!(read.get(2 * PAGE_BLOCKS), Some(Place::Lost));
        read.set(2 * PAGE_BLOCKS + 1, Place::At(9), None);
        assert_eq!(read.lost().count() as u64, PAGE_BLOCKS - 1);
        // What was lost is in the page when it is written again.
        let bytes = written(&mut read, 2);
        let mut again = map();
        again.load(2, &bytes);
        assert!(again.lost().eq(read.lost()));
        assert_eq!(read.stored_in_page(1), [(1010, 7), (1011, u32::MAX - 3)]);
    }

    #[test]
    fn a_page_that_left_the_memory_is_asked_for_and_a_change_is_not() {
        let mut places = map();
        places.set(5, Place::At(50), None);
        places.set(6, Place::At(60), None);
        let bytes = written(&mut places, 0);
        (1..3).for_each(|page| drop(places.load(page, &bytes)));
        places.trim();
        assert!(!places.is_known(0), "nothing but the page says it now");
        assert_eq!((places.get(5), places.is_at(5, 50)), (None, None));
        // Neither the place before, nor that it was nowhere, is known.
        assert_eq!(places.set(5, Place::At(51), None), None);
        assert_eq!(places.set(7, Place::Nowhere, None), None);
        assert_eq!(places.set(5, Place::At(52), None), Some(Place::At(51)));
        assert_eq!(places.get(5), Some(Place::At(52)));
        // Cleaning knows where the block was.
        let before = Some(Place::At(60));
        assert_eq!(places.set(6, Place::At(61), before), before);
        let loaded = places.load(0, &bytes);
        assert_eq!((loaded.superseded, loaded.uncounted), (vec![50], vec![]));
        assert_eq!(places.stored_in_page(0), [(5, 52), (6, 61)]);
        assert!(!places.settle(5), "its place in the page was returned");
    }

    #[test]
    fn the_places_of_an_uncounted_page_are_returned_once_unless_they_have_changed() {
        let mut places = map();
        for index in 5..8 {
            places.set(index, Place::At(10 * index as u32), None);
        }
        let bytes = written(&mut places, 0);
        let mut read = map();
        read.replay(0, (6, 62));
        read.note_uncounted(0);
        assert!(!read.is_known(0) && read.uncounted() == 1);
        assert_eq!(read.set(7, Place::At(71), None), None, "70 does not count");
        assert_eq!(read.changed_places(0), [61, 71]);
        assert_eq!(read.set(7, Place::At(72), None), Some(Place::At(71)));
        let loaded = read.load(0, &bytes);
        assert_eq!((loaded.superseded, loaded.uncounted), (vec![], vec![50]));
        assert_eq!(read.uncounted(), 0);
        assert_eq!(read.stored_in_page(0), [(5, 50), (6, 61), (7, 72)]);
        written(&mut read, 1);
        read.begin_write(0);
        read.end_write(0, true);
        written(&mut read, 2);
        read.trim();
        assert!(!read.is_known(0) && read.uncounted() == 0);
        assert_eq!(read.load(0, &bytes), Loaded::default());
    }

    #[test]
    fn pages_leave_the_memory_with_what_has_changed_unless_they_are_held() {
        let mut places = map();
        let empty = [0; ENTRIES_BYTES];
        (0..3).for_each(|page| assert_eq!(places.load(page, &empty), Loaded::default()));
        places.set(5, Place::At(50), None);
        places.hold([1]);
        places.hold([1]);
        places.release([1]);
        assert_eq!(places.resident(), 1);
        assert!(places.is_known(1), "it is held");
        assert_eq!(places.get(5), Some(Place::At(50)));
        assert_eq!(places.get(6), None);
        places.load(0, &empty);
        places.release([1]);
        assert_eq!(places.resident(), 1);
        assert!(!places.is_known(1));
    }

    #[test]
    fn a_page_whose_write_fails_keeps_its_changes() {
        let mut places = map();
        places.set(5, Place::At(50), None);
        places.begin_write(0);
        places.set(5, Place::At(51), None);
        places.end_write(0, false);
        assert_eq!(places.get(5), Some(Place::At(51)));
        assert_eq!(places.take_pages(0), [0], "the next commit writes it");
        assert_eq!(places.changed_entry(0, 5), Some(52));
        written(&mut places, 0);
        assert_eq!(places.changed_entry(0, 5), None);
    }

    #[test]
    fn runs_end_where_places_jump_and_at_segments() {
        let mut places = Places::new(16, 0, 1);
        let at = [(0, 5), (1, 6), (2, 7), (3, 8), (4, 20), (6, 21)];
        for (block, at) in at {
            places.set(block, Place::At(at), None);
        }
        places.set(7, Place::Lost, None);
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
