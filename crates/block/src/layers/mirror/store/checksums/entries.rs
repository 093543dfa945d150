//! Entries of a checksum page, and verification of blocks against these entries.

use std::ops::Range;

use bimetal_rt::Payload;

use crate::layers::mirror::digest::BlockDigest;
use crate::layers::mirror::superblock::areas::{CHECKSUM_ENTRY_BYTES, PAGE_BLOCKS};
use crate::request::BLOCK_BYTES;

const NEVER_WRITTEN: u32 = 0;
const UNKNOWN: u32 = 1;
const LOST: u32 = 2;

/// Checksum entry of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layers::mirror::store) enum Expected {
    /// The block was never written: it reads as zeroes, whatever its home location holds.
    NeverWritten,
    /// The checksum is unknown: the content of the home location is accepted.
    Unknown,
    /// When the side was rebuilt, no side of the volume had the content of the block. Reads fail
    /// until it is written.
    Lost,
    /// The block has this digest. The values 0, 1 and 2 of an entry are reserved, so the digests 0,
    /// 1 and 2 are stored as 0xFFFFFFFF, 0xFFFFFFFE and 0xFFFFFFFD. A check of a block therefore
    /// does not distinguish 0 from 0xFFFFFFFF, 1 from 0xFFFFFFFE, or 2 from 0xFFFFFFFD.
    Digest(u32),
}

/// Returns a digest in its stored form, in which three reserved values are replaced.
fn spelled(digest: u32) -> u32 {
    match digest {
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
            digest => Expected::Digest(digest),
        }
    }

    /// Returns the entry of a block with this digest, as it is read back from a page.
    pub(in crate::layers::mirror::store) fn digest(digest: u32) -> Expected {
        Expected::Digest(spelled(digest))
    }

    pub(super) fn entry(self) -> u32 {
        match self {
            Expected::NeverWritten => NEVER_WRITTEN,
            Expected::Unknown => UNKNOWN,
            Expected::Lost => LOST,
            Expected::Digest(digest) => spelled(digest),
        }
    }
}

/// Returns the kind of a checksum entry. Every digest, whatever its value, is returned as
/// `Digest(0)`.
pub(super) fn kind_of(entry: u32) -> Expected {
    match Expected::of_entry(entry) {
        Expected::Digest(_) => Expected::Digest(0),
        other => other,
    }
}

/// Computes the checksum entries of the blocks of `payload` with the algorithm `made_by`.
///
/// # Panics
/// When the payload is not a whole number of blocks.
pub(in crate::layers::mirror::store) fn expected_of(
    made_by: BlockDigest,
    payload: &Payload,
) -> Vec<Expected> {
    let digests = made_by.of_each(payload).into_iter();
    digests
        .map(|digest| Expected::Digest(spelled(digest)))
        .collect()
}

/// Compares each block of `payload` with its entry, and returns the numbers of the blocks that do
/// not match. The first block of `payload` has the number `first_block`. A lost block never
/// matches, whatever its content. An unknown block always matches, and so does a block that was
/// never written, which the caller replaces with zeroes.
///
/// # Panics
/// When the payload and the entries differ in length.
pub(in crate::layers::mirror::store) fn verify(
    made_by: BlockDigest,
    payload: &Payload,
    first_block: u64,
    expected: &[Expected],
) -> Vec<Range<u64>> {
    assert_eq!(
        payload.len() as u64,
        expected.len() as u64 * BLOCK_BYTES,
        "something is expected of each block"
    );
    let mut wrong: Vec<Range<u64>> = Vec::new();
    let found = made_by.of_each(payload);
    for ((block, expected), found) in (first_block..).zip(expected).zip(found) {
        let right = match expected {
            Expected::Digest(digest) => spelled(found) == spelled(*digest),
            Expected::Unknown | Expected::NeverWritten => true,
            Expected::Lost => false,
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

/// Returns the entries of a page in which all blocks are unknown.
pub(super) fn unknown_entries() -> Entries {
    vec![UNKNOWN; PAGE_BLOCKS as usize].into()
}

/// Returns the entries of a page that was never written. In the data area, the first
/// `unknown_blocks` blocks are unknown, and the other blocks were never written.
pub(super) fn first_entries(page: u64, unknown_blocks: u64) -> Entries {
    let unknown = unknown_blocks.saturating_sub(page * PAGE_BLOCKS);
    let unknown = unknown.min(PAGE_BLOCKS) as usize;
    let mut entries = vec![NEVER_WRITTEN; PAGE_BLOCKS as usize];
    entries[..unknown].fill(UNKNOWN);
    entries.into()
}

/// Encodes the entries of a page.
pub(super) fn encode(entries: &[u32], bytes: &mut [u8]) {
    for (entry, bytes) in entries
        .iter()
        .zip(bytes.chunks_exact_mut(CHECKSUM_ENTRY_BYTES))
    {
        bytes.copy_from_slice(&entry.to_le_bytes());
    }
}

/// Decodes the entries of a page.
pub(super) fn decode(bytes: &[u8]) -> Entries {
    let entries = bytes.chunks_exact(CHECKSUM_ENTRY_BYTES);
    entries
        .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
        .collect()
}
