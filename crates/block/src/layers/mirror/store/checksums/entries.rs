//! What a page says of each block, and how a block is held against it.

use std::ops::Range;

use bimetal_rt::{Buf, Payload};

use crate::layers::mirror::superblock::areas::{CHECKSUM_ENTRY_BYTES, PAGE_BLOCKS};
use crate::request::BLOCK_BYTES;

const NEVER_WRITTEN: u32 = 0;
const UNKNOWN: u32 = 1;
const LOST: u32 = 2;

/// What is expected of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layers::mirror::store) enum Expected {
    /// Nothing was ever written there; it reads as zeroes, whatever the home holds.
    NeverWritten,
    /// The home counts as it is.
    Unknown,
    /// Nobody had it when the side was rebuilt: reads fail until it is written.
    Lost,
    /// A block with this CRC. 0, 1 and 2 mean the same as 0xFFFFFFFF, 0xFFFFFFFE and 0xFFFFFFFD,
    /// which is what they come back as.
    Crc(u32),
}

/// A CRC as it is written: the places of three of them are taken.
fn spelled(crc: u32) -> u32 {
    match crc {
        NEVER_WRITTEN => 0xFFFF_FFFF,
        UNKNOWN => 0xFFFF_FFFE,
        LOST => 0xFFFF_FFFD,
        other => other,
    }
}

impl Expected {
    pub(super) fn of_entry(entry: u32) -> Expected {
        match entry {
            NEVER_WRITTEN => Expected::NeverWritten,
            UNKNOWN => Expected::Unknown,
            LOST => Expected::Lost,
            crc => Expected::Crc(crc),
        }
    }

    pub(super) fn entry(self) -> u32 {
        match self {
            Expected::NeverWritten => NEVER_WRITTEN,
            Expected::Unknown => UNKNOWN,
            Expected::Lost => LOST,
            Expected::Crc(crc) => spelled(crc),
        }
    }
}

/// What kind of thing an entry expects: of all checksums the same one.
pub(super) fn kind_of(entry: u32) -> Expected {
    match Expected::of_entry(entry) {
        Expected::Crc(_) => Expected::Crc(0),
        other => other,
    }
}

/// Walks over a payload block by block, wherever its slices end.
struct Blocks<'p> {
    slices: std::slice::Iter<'p, Buf>,
    rest: &'p [u8],
}

impl<'p> Blocks<'p> {
    fn of(payload: &'p Payload) -> Blocks<'p> {
        Blocks {
            slices: payload.slices().iter(),
            rest: &[],
        }
    }

    /// Passes the parts of the next block.
    fn next(&mut self, mut each: impl FnMut(&[u8])) {
        let mut wanted = BLOCK_BYTES as usize;
        while wanted > 0 {
            if self.rest.is_empty() {
                self.rest = self.slices.next().expect("the payload is whole blocks");
            }
            let (part, rest) = self.rest.split_at(wanted.min(self.rest.len()));
            each(part);
            self.rest = rest;
            wanted -= part.len();
        }
    }

    fn next_crc(&mut self) -> u32 {
        let mut crc = 0;
        self.next(|part| crc = crc32c::crc32c_append(crc, part));
        crc
    }
}

/// What is to be expected of blocks that hold `payload`.
///
/// # Panics
/// When the payload is not whole blocks.
pub(in crate::layers::mirror::store) fn expected_of(payload: &Payload) -> Vec<Expected> {
    assert!(
        (payload.len() as u64).is_multiple_of(BLOCK_BYTES),
        "a payload is whole blocks"
    );
    let mut blocks = Blocks::of(payload);
    let count = payload.len() as u64 / BLOCK_BYTES;
    (0..count)
        .map(|_| Expected::Crc(spelled(blocks.next_crc())))
        .collect()
}

/// Which blocks of `payload`, read from `first_block` on, are not what was expected, as numbers of
/// blocks. One that is lost is among them, whatever is there. A block of which nothing is known is taken as it is. So is one that was never written:
/// the caller puts zeroes in its place.
///
/// # Panics
/// When the payload is not as long as what was expected.
pub(in crate::layers::mirror::store) fn verify(
    payload: &Payload,
    first_block: u64,
    expected: &[Expected],
) -> Vec<Range<u64>> {
    assert_eq!(
        payload.len() as u64,
        expected.len() as u64 * BLOCK_BYTES,
        "something is expected of each block"
    );
    let mut blocks = Blocks::of(payload);
    let mut wrong: Vec<Range<u64>> = Vec::new();
    for (block, expected) in (first_block..).zip(expected) {
        let right = match expected {
            Expected::Crc(crc) => spelled(blocks.next_crc()) == spelled(*crc),
            Expected::Unknown | Expected::NeverWritten => {
                blocks.next(|_| ());
                true
            }
            Expected::Lost => {
                blocks.next(|_| ());
                false
            }
        };
        match wrong.last_mut() {
            _ if right => {}
            Some(run) if run.end == block => run.end += 1,
            _ => wrong.push(block..block + 1),
        }
    }
    wrong
}

/// The entries of a page.
pub(super) type Entries = Box<[u32]>;

/// A page of which nothing is known.
pub(super) fn unknown_entries() -> Entries {
    vec![UNKNOWN; PAGE_BLOCKS as usize].into()
}

/// The entries of a page that was never written: nothing is known of the first `unknown_blocks`
/// blocks of the data, and the others were never written.
pub(super) fn first_entries(page: u64, unknown_blocks: u64) -> Entries {
    let unknown = unknown_blocks.saturating_sub(page * PAGE_BLOCKS);
    let unknown = unknown.min(PAGE_BLOCKS) as usize;
    let mut entries = vec![NEVER_WRITTEN; PAGE_BLOCKS as usize];
    entries[..unknown].fill(UNKNOWN);
    entries.into()
}

/// Writes entries as they lie in a page.
pub(super) fn encode(entries: &[u32], bytes: &mut [u8]) {
    for (entry, bytes) in entries
        .iter()
        .zip(bytes.chunks_exact_mut(CHECKSUM_ENTRY_BYTES))
    {
        bytes.copy_from_slice(&entry.to_le_bytes());
    }
}

/// Reads the entries of a page.
pub(super) fn decode(bytes: &[u8]) -> Entries {
    let entries = bytes.chunks_exact(CHECKSUM_ENTRY_BYTES);
    entries
        .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
        .collect()
}
