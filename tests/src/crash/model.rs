//! The possible content of a volume after a crash, block by block.
//!
//! Each write has a stamp, a unique number that every sector of the write contains. After a crash a
//! block can hold the content that the last flush made durable, or that of any later write. Once a
//! block has been read after a crash, it must keep the content that was read.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::random::Random;
use crate::volatile_disk::{BLOCK_BYTES, SECTOR_BYTES};

/// Number of sectors in a block.
const SECTORS: usize = (BLOCK_BYTES / SECTOR_BYTES) as usize;

/// Content of a block: the stamp of each of its sectors. Stamp 0 is a sector of zeroes.
type Stamps = [u64; SECTORS];

/// A write whose content a block can hold.
#[derive(Clone, Debug)]
struct Version {
    stamps: Stamps,
    /// Time on the model's own clock at which the write was acknowledged. `None` while the write is
    /// in flight.
    acknowledged: Option<u64>,
}

/// Model of a volume: the possible versions of every block.
#[derive(Clone, Debug)]
pub struct Model {
    /// Possible versions of each block, oldest first; the oldest one is durable.
    blocks: Vec<Vec<Version>>,
    /// Blocks with more than one version.
    open: BTreeSet<u64>,
    next_stamp: u64,
    clock: u64,
}

/// A violation of the model: a block whose content is not possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Number of the block.
    pub block: u64,
    /// States which content was found in the block, and which contents would have been correct.
    pub words: String,
}

/// Result of a crash for the blocks that had more than one possible version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Number of blocks that hold their newest write.
    pub newest: u64,
    /// Number of blocks that hold an older version.
    pub older: u64,
}

impl Model {
    /// Creates the model of a volume that holds only zeroes.
    pub fn new(blocks: u64) -> Self {
        let certain = Version {
            stamps: [0; SECTORS],
            acknowledged: Some(0),
        };
        Self {
            blocks: vec![vec![certain]; blocks as usize],
            open: BTreeSet::new(),
            next_stamp: 1,
            clock: 1,
        }
    }

    /// Returns the number of blocks of the volume.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Returns a stamp for a new write.
    pub fn stamp(&mut self) -> u64 {
        self.next_stamp += 1;
        self.next_stamp - 1
    }

    /// Records a write of `blocks` that is about to be sent; `stamp` 0 writes zeroes.
    pub fn sent(&mut self, blocks: Range<u64>, stamp: u64) {
        for block in blocks {
            self.open.insert(block);
            let versions = &mut self.blocks[block as usize];
            let newest = versions.last().expect("a block has a version");
            assert!(newest.acknowledged.is_some(), "one write at a time");
            versions.push(Version {
                stamps: [stamp; SECTORS],
                acknowledged: None,
            });
        }
    }

    /// Records that the newest write of `blocks` was acknowledged; with `fua` the write is durable.
    pub fn acknowledged(&mut self, blocks: Range<u64>, fua: bool) {
        self.clock += 1;
        for block in blocks {
            let versions = &mut self.blocks[block as usize];
            let newest = versions.last_mut().expect("a block has a version");
            newest.acknowledged = Some(self.clock);
            if fua {
                versions.drain(..versions.len() - 1);
                self.open.remove(&block);
            }
        }
    }

    /// Returns the present time of the model's own clock. A caller that is about to send a flush
    /// keeps the time for [`Model::flushed`].
    pub fn flush_sent(&self) -> u64 {
        self.clock
    }

    /// Records the acknowledgement of a flush. `sent` is the time on the model's clock at which the
    /// flush was sent. Writes that were acknowledged up to that time are now durable.
    pub fn flushed(&mut self, sent: u64) {
        let blocks = &mut self.blocks;
        self.open.retain(|&block| {
            let versions = &mut blocks[block as usize];
            let covered = |v: &Version| v.acknowledged.is_some_and(|at| at <= sent);
            // If the flush covers no version, the oldest version stays. The oldest version is
            // always durable. If it became durable by FUA after the flush was sent, the flush does
            // not cover it.
            let certain = versions.iter().rposition(covered).unwrap_or(0);
            versions.drain(..certain);
            versions.len() > 1
        });
    }

    /// Compares data read from `first_block` on with the newest writes. The caller must ensure that
    /// no request to these blocks was in flight during the read.
    ///
    /// # Errors
    /// The breach for the first block that holds other data.
    pub fn check_newest(&self, first_block: u64, bytes: &[u8]) -> Result<(), Breach> {
        for (block, found) in (first_block..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
            let stamps = read_stamps(block, found)?;
            let newest = self.blocks[block as usize].last();
            let newest = newest.expect("a block has a version").stamps;
            if stamps != newest {
                return Err(self.breach(block, &stamps, "the newest acknowledged"));
            }
        }
        Ok(())
    }

    /// Compares data read from `first_block` on after a crash with the possible content. From then
    /// on, the content found is the only possible content of these blocks: the first read after a
    /// crash is final.
    ///
    /// # Errors
    /// If a block holds data that is not possible; the error describes the first such block.
    pub fn settle(&mut self, first_block: u64, bytes: &[u8]) -> Result<Settled, Breach> {
        let mut settled = Settled::default();
        for (block, found) in (first_block..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
            let stamps = read_stamps(block, found)?;
            let versions = &self.blocks[block as usize];
            let whole = versions.iter().rposition(|v| v.stamps == stamps);
            match whole {
                None => return Err(self.breach(block, &stamps, "one of the possible")),
                Some(_) if versions.len() == 1 => {}
                Some(index) if index + 1 == versions.len() => settled.newest += 1,
                Some(_) => settled.older += 1,
            }
            self.open.remove(&block);
            self.blocks[block as usize] = vec![Version {
                stamps,
                acknowledged: Some(0),
            }];
        }
        Ok(settled)
    }

    fn breach(&self, block: u64, found: &Stamps, wanted: &str) -> Breach {
        let versions = &self.blocks[block as usize];
        let words = format!("holds {found:?}, which is not {wanted} of {versions:?}");
        Breach { block, words }
    }
}

/// Returns the data of a write of `blocks` with the stamp `stamp`.
pub fn content(blocks: Range<u64>, stamp: u64) -> Vec<u8> {
    let sectors = blocks.start * SECTORS as u64..blocks.end * SECTORS as u64;
    let mut bytes = Vec::with_capacity(((sectors.end - sectors.start) * SECTOR_BYTES) as usize);
    for sector in sectors {
        put_sector(sector, stamp, &mut bytes);
    }
    bytes
}

/// Appends the content of a sector to `bytes`: the stamp, then numbers that are unique to the stamp
/// and the sector. Stamp 0 appends zeroes.
fn put_sector(sector: u64, stamp: u64, bytes: &mut Vec<u8>) {
    let end = bytes.len() + SECTOR_BYTES as usize;
    if stamp != 0 {
        let mut random = Random::new(sector << 32 ^ stamp);
        bytes.extend(stamp.to_le_bytes());
        while bytes.len() < end {
            bytes.extend(random.draw().to_le_bytes());
        }
    }
    bytes.resize(end, 0);
}

/// Returns the stamp of each sector of a block.
///
/// # Errors
/// The stamp and the position of a sector determine the content of the whole sector. The error is a
/// breach if a sector has different content.
fn read_stamps(block: u64, bytes: &[u8]) -> Result<Stamps, Breach> {
    let mut stamps = [0; SECTORS];
    let mut expected = Vec::with_capacity(SECTOR_BYTES as usize);
    for (index, found) in bytes.chunks(SECTOR_BYTES as usize).enumerate() {
        let stamp = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
        expected.clear();
        put_sector(block * SECTORS as u64 + index as u64, stamp, &mut expected);
        if found != expected {
            let words = format!("its sector {index} says stamp {stamp} and is not that write");
            return Err(Breach { block, words });
        }
        stamps[index] = stamp;
    }
    Ok(stamps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torn(blocks: Range<u64>, old: u64, new: u64) -> Vec<u8> {
        let mut bytes = content(blocks.clone(), old);
        let middle = SECTOR_BYTES as usize;
        bytes[middle..].copy_from_slice(&content(blocks, new)[middle..]);
        bytes
    }

    /// Returns a model of four blocks. Blocks 0 and 1 have three writes each: the write with stamp
    /// 1 is flushed, the write with stamp 2 is acknowledged, and the write with stamp 3 is in
    /// flight.
    fn model() -> Model {
        let mut model = Model::new(4);
        let stamps = [model.stamp(), model.stamp(), model.stamp()];
        assert_eq!(stamps, [1, 2, 3]);
        model.sent(0..2, 1);
        model.acknowledged(0..2, false);
        let flush = model.flush_sent();
        model.sent(0..2, 2);
        model.acknowledged(0..2, false);
        model.flushed(flush);
        model.sent(0..2, 3);
        model
    }

    #[test]
    fn what_a_flush_covered_is_certain_and_what_came_since_is_possible() {
        for stamp in [1, 2, 3] {
            let mut model = model();
            let settled = model.settle(0, &content(0..2, stamp)).expect("possible");
            let (newest, older) = if stamp == 3 { (2, 0) } else { (0, 2) };
            assert_eq!(settled, Settled { newest, older });
        }
        let lost = model().settle(0, &content(0..2, 0));
        assert_eq!(lost.expect_err("it was flushed").block, 0);
    }

    #[test]
    fn the_first_answer_is_final() {
        let mut model = model();
        model.settle(0, &content(0..2, 2)).expect("possible");
        assert!(model.clone().settle(0, &content(0..2, 3)).is_err());
        assert!(model.clone().settle(0, &content(0..2, 1)).is_err());
        assert!(model.settle(0, &content(0..2, 2)).is_ok());
    }

    #[test]
    fn a_block_is_never_torn() {
        assert!(model().settle(0, &torn(0..1, 2, 3)).is_err());
    }

    #[test]
    fn fua_makes_a_write_certain_and_a_late_flush_does_not() {
        let mut model = Model::new(1);
        let flush = model.flush_sent();
        model.sent(0..1, 1);
        model.acknowledged(0..1, false);
        model.flushed(flush);
        assert!(model.clone().settle(0, &content(0..1, 0)).is_ok());
        model.sent(0..1, 2);
        let flush = model.flush_sent();
        model.acknowledged(0..1, true);
        assert!(model.clone().settle(0, &content(0..1, 1)).is_err());
        assert!(model.clone().settle(0, &content(0..1, 2)).is_ok());
        // The flush was sent before the FUA write was acknowledged, and before the write with stamp
        // 3 was sent. The flush therefore does not make the write with stamp 3 durable.
        model.sent(0..1, 3);
        model.flushed(flush);
        assert!(model.clone().settle(0, &content(0..1, 2)).is_ok());
        assert!(model.settle(0, &content(0..1, 3)).is_ok());
    }

    #[test]
    fn other_bytes_than_those_written_are_found() {
        let mut model = model();
        let mut flipped = content(0..1, 1);
        flipped[700] ^= 1;
        assert!(model.settle(0, &flipped).is_err());
        // Content written to block 1 is valid there, but is an error when it is found in block 0.
        assert!(model.settle(0, &content(1..2, 1)).is_err());
        assert!(model.check_newest(2, &content(2..3, 0)).is_ok());
        assert!(model.check_newest(0, &content(0..1, 2)).is_err());
        assert!(model.check_newest(0, &content(0..1, 3)).is_ok());
    }
}
