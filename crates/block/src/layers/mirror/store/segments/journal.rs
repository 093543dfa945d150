//! The journal of a logged side: entries of pages that have changed since these pages were written.
//! `docs/format/logged-side.md` specifies the bytes.
//!
//! A commit appends a *run* to the journal, in two copies. An opening reads all runs and applies
//! them to the pages in order. A run is dropped when every page of which it has entries was written
//! after it.
//!
//! A run must never be taken for another one, and a block of it must never count before its
//! checksum was verified.

use std::collections::{BTreeMap, VecDeque};

use super::sealed;
use crate::BLOCK_BYTES;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::layers::mirror::store::entry::{put_u32, put_u64, u32_at, u64_at};
use crate::layers::mirror::superblock::Uuid;
use crate::layers::mirror::superblock::areas::PAGE_BLOCKS;

const MAGIC: [u8; 8] = *b"BMJRNL\0\x01";
const HEAD_BYTES: usize = 32;
const ITEM_HEAD_BYTES: usize = 10;
const ENTRY_BYTES: usize = 6;
const BYTES: usize = BLOCK_BYTES as usize;

/// A run of the journal on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// Counts the runs of the side.
    pub(super) sequence: u64,
    /// First block of each copy in the segments.
    pub(super) copies: [u32; 2],
    /// Number of blocks of a copy.
    pub(super) blocks: u32,
}

impl Run {
    /// Returns the blocks of both copies.
    pub(super) fn all_blocks(&self) -> impl Iterator<Item = u32> + use<> {
        let blocks = self.blocks;
        self.copies
            .into_iter()
            .flat_map(move |copy| copy..copy + blocks)
    }
}

/// What a run says about a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// The page was written: what the journal says about it before this is void.
    Written(u64),
    /// Entries of the page, each with its index and its value.
    Entries(u64, Vec<(u16, u32)>),
}

/// Packs items into blocks. [`seal`] completes the blocks.
pub(super) fn pack(items: impl IntoIterator<Item = Item>) -> Vec<Vec<u8>> {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    let mut put = |page: u64, entries: &[(u16, u32)]| {
        let mut left = entries;
        loop {
            let room = blocks.last().map_or(0, |block| BYTES - block.len());
            if room < ITEM_HEAD_BYTES + ENTRY_BYTES {
                blocks.push(vec![0; HEAD_BYTES]);
                continue;
            }
            let fit = left.len().min((room - ITEM_HEAD_BYTES) / ENTRY_BYTES);
            let (now, rest) = left.split_at(fit);
            let block = blocks.last_mut().expect("a block was begun");
            block.extend_from_slice(&page.to_le_bytes());
            block.extend_from_slice(&(now.len() as u16).to_le_bytes());
            for (index, value) in now {
                block.extend_from_slice(&index.to_le_bytes());
                block.extend_from_slice(&value.to_le_bytes());
            }
            left = rest;
            if left.is_empty() {
                return;
            }
        }
    };
    for item in items {
        match item {
            Item::Written(page) => put(page, &[]),
            Item::Entries(page, entries) => put(page, &entries),
        }
    }
    blocks
}

/// Completes a packed block: the block number `index` of the run `sequence`.
pub(super) fn seal(side: &Uuid, (sequence, index): (u64, u32), packed: &[u8]) -> Vec<u8> {
    let mut block = packed.to_vec();
    block.resize(BYTES, 0);
    put_u32(&mut block, 12, packed.len() as u32);
    put_u64(&mut block, 16, sequence);
    put_u32(&mut block, 24, index);
    sealed::seal(side, &MAGIC, &mut block);
    block
}

/// Returns the items of a block that was read as the block number `index` of the run `sequence`;
/// `None` when it is not that block.
pub(super) fn items(side: &Uuid, (sequence, index): (u64, u32), block: &[u8]) -> Option<Vec<Item>> {
    let is_whole = sealed::is_sealed(side, &MAGIC, block)
        && (u64_at(block, 16), u32_at(block, 24)) == (sequence, index);
    let end = is_whole.then(|| u32_at(block, 12) as usize)?;
    let mut left = block.get(HEAD_BYTES..end)?;
    let mut items = Vec::new();
    while !left.is_empty() {
        let (head, rest) = left.split_at_checked(ITEM_HEAD_BYTES)?;
        let page = u64_at(head, 0);
        let count = usize::from(u16::from_le_bytes([head[8], head[9]]));
        let (entries, rest) = rest.split_at_checked(count * ENTRY_BYTES)?;
        left = rest;
        let entries = entries.chunks_exact(ENTRY_BYTES).map(|entry| {
            let index = u16::from_le_bytes([entry[0], entry[1]]);
            (index, u32_at(entry, 2))
        });
        let entries: Vec<(u16, u32)> = entries.collect();
        if entries
            .iter()
            .any(|(index, _)| u64::from(*index) >= PAGE_BLOCKS)
        {
            return None;
        }
        items.push(match count {
            0 => Item::Written(page),
            _ => Item::Entries(page, entries),
        });
    }
    Some(items)
}

/// The entries of the pages of the map, or of the checksums, that an opening found in the journal,
/// by page: the number of the oldest run with entries of the page, and the entries in order.
pub(in super::super) type Replayed = BTreeMap<u64, (u64, Vec<(u16, u32)>)>;

/// Applies the items of a run to what the runs before it say.
pub(super) fn replay(into: &mut Replayed, sequence: u64, items: Vec<Item>) {
    for item in items {
        match item {
            Item::Written(_) if is_planted(Bug::ForgetsWritten) => {}
            Item::Written(page) => {
                into.remove(&page);
            }
            Item::Entries(page, entries) => {
                let (_, all) = into.entry(page).or_insert((sequence, Vec::new()));
                match is_planted(Bug::ReplaysBackwards) {
                    true => _ = all.splice(..0, entries),
                    false => all.extend(entries),
                }
            }
        }
    }
}

/// The runs of the journal; see the module documentation.
#[derive(Default)]
pub(super) struct Journal {
    /// Runs to which the last record refers.
    pub(super) runs: VecDeque<Run>,
    /// Runs that were written for the commit under way.
    pub(super) pending: Vec<Run>,
    /// Number of the next run.
    pub(super) next: u64,
    /// Number of blocks of runs by segment.
    live: BTreeMap<u32, u32>,
}

impl Journal {
    /// Creates an empty journal whose next run has the number `next`.
    pub(super) fn beginning_with(next: u64) -> Journal {
        Journal {
            next,
            ..Journal::default()
        }
    }

    /// Returns the blocks of all runs, of both copies.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> {
        let runs = self.runs.iter().chain(&self.pending);
        runs.flat_map(Run::all_blocks)
    }

    /// Returns the number of bytes of all runs, of one copy.
    pub(super) fn bytes(&self) -> u64 {
        let blocks: u64 = self.runs.iter().map(|run| u64::from(run.blocks)).sum();
        blocks * BLOCK_BYTES
    }

    /// Returns the runs to which the next record refers, if no run before `floor` is needed: those
    /// from `floor` on, and those of the commit under way.
    pub(super) fn listed(&self, floor: u64) -> Vec<Run> {
        let needed = self.runs.iter().filter(|run| run.sequence >= floor);
        needed.chain(&self.pending).copied().collect()
    }

    /// Returns true when a segment holds blocks of the journal that are needed.
    pub(super) fn is_in(&self, segment: u32) -> bool {
        self.live.contains_key(&segment)
    }

    /// Counts the blocks of a run as live.
    pub(super) fn count(&mut self, run: &Run, segment_blocks: u32) {
        for copy in run.copies {
            *self.live.entry(copy / segment_blocks).or_default() += run.blocks;
        }
    }

    /// Counts the blocks of a run as dead.
    pub(super) fn discount(&mut self, run: &Run, segment_blocks: u32) {
        for copy in run.copies {
            let segment = copy / segment_blocks;
            let live = self.live.get_mut(&segment).expect("its blocks were live");
            *live -= run.blocks;
            if *live == 0 {
                self.live.remove(&segment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: Uuid = *b"0123456789abcdef";

    fn some() -> Vec<Item> {
        vec![
            Item::Written(5),
            Item::Entries(1 << 61, vec![(0, 0x1234), (1007, u32::MAX)]),
        ]
    }

    /// Returns the bytes of a block with these items, put together by hand from the format page.
    fn golden() -> Vec<u8> {
        let mut block = vec![0; 4096];
        block[..8].copy_from_slice(b"BMJRNL\0\x01");
        block[12] = 32 + 10 + 10 + 12;
        block[16] = 9;
        block[24] = 2;
        block[32] = 5;
        block[49] = 0x20;
        block[50] = 2;
        block[54..56].copy_from_slice(&[0x34, 0x12]);
        block[58..64].copy_from_slice(&[0xEF, 0x03, 0xFF, 0xFF, 0xFF, 0xFF]);
        let mut checked = SIDE.to_vec();
        checked.extend_from_slice(&block[12..]);
        block[8..12].copy_from_slice(&crc32c::crc32c(&checked).to_le_bytes());
        block
    }

    #[test]
    fn a_block_is_as_the_format_page_draws_it() {
        let packed = pack(some());
        assert_eq!(packed.len(), 1);
        assert_eq!(seal(&SIDE, (9, 2), &packed[0]), golden());
        assert_eq!(items(&SIDE, (9, 2), &golden()), Some(some()));
        assert_eq!(items(&SIDE, (9, 1), &golden()), None);
        assert_eq!(items(&SIDE, (8, 2), &golden()), None);
        assert_eq!(items(&[0; 16], (9, 2), &golden()), None);
    }

    #[test]
    fn no_byte_can_change_unnoticed() {
        for byte in 0..4096 {
            let mut bad = golden();
            bad[byte] ^= 1 << (byte % 8);
            assert_eq!(items(&SIDE, (9, 2), &bad), None, "byte {byte}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        // An end behind the block, an item cut off, more entries than fit, an index beyond a page.
        for (at, bytes) in [
            (12, [0, 0x11]),
            (12, [63, 0]),
            (50, [0, 3]),
            (58, [0xF0, 3]),
        ] {
            let mut bad = golden();
            bad[at..at + 2].copy_from_slice(&bytes);
            let mut checked = SIDE.to_vec();
            checked.extend_from_slice(&bad[12..]);
            bad[8..12].copy_from_slice(&crc32c::crc32c(&checked).to_le_bytes());
            assert_eq!(items(&SIDE, (9, 2), &bad), None, "byte {at}");
        }
    }

    #[test]
    fn many_items_fill_several_blocks_and_read_back_in_order() {
        let long =
            |page| Item::Entries(page, (0..252).map(|at| (at, u32::from(at) << 9)).collect());
        let all: Vec<Item> = (0..20).map(long).collect();
        let packed = pack(all.clone());
        let mut replayed = Replayed::new();
        for (index, block) in (0..).zip(&packed) {
            let sealed = seal(&SIDE, (1, index), block);
            let found = items(&SIDE, (1, index), &sealed).expect("it is intact");
            replay(&mut replayed, 1, found);
        }
        assert_eq!(
            packed.len(),
            (20 * (252 * 6 + 10) + 10 * 8_usize).div_ceil(4096 - 32)
        );
        let read = replayed
            .into_iter()
            .map(|(page, (_, entries))| Item::Entries(page, entries));
        assert_eq!(read.collect::<Vec<_>>(), all);
    }

    #[test]
    fn a_written_page_voids_what_was_said_before() {
        let mut replayed = Replayed::new();
        let one = |value| Item::Entries(3, vec![(0, value)]);
        replay(&mut replayed, 1, vec![one(1)]);
        replay(
            &mut replayed,
            2,
            vec![one(2), Item::Entries(4, vec![(9, 9)])],
        );
        replay(&mut replayed, 3, vec![Item::Written(3), one(3)]);
        let expected = [(3, (3, vec![(0, 3)])), (4, (2, vec![(9, 9)]))];
        assert_eq!(replayed, Replayed::from(expected));
    }
}
