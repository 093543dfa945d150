//! The content of the volatile disk: the durable content, and the content that is only in the
//! volatile cache.
//!
//! A write stays in the cache until a flush covers it. The backing file holds the durable content,
//! which survives every power cut. After a power cut, each block of 4 KiB holds either the durable
//! content or the content of one later write. The later write can be completed or in flight at the
//! power cut. If the power cut tears blocks, the same holds for each sector of 512 bytes by itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::random::Random;

/// Size of a block in bytes. A power cut keeps or loses a version of a block as a whole, unless it
/// tears blocks ([`Keep::Sectors`]).
pub const BLOCK_BYTES: u64 = 4096;
/// Size of a sector in bytes. A power cut never tears a sector.
pub const SECTOR_BYTES: u64 = 512;

/// Maximum number of cached versions of one block. A power cut chooses one of these versions or the
/// durable content. If a block gets more versions, its oldest version is forgotten, as if a real
/// disk had overwritten it.
const VERSIONS_MAX: usize = 8;

/// Fate of the unflushed writes in a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All unflushed writes are lost.
    Nothing,
    /// All completed writes are kept.
    Everything,
    /// Each block keeps the durable content or one of its later versions, which can be the version
    /// of a write in flight. The value is the seed of the random choice.
    Blocks(u64),
    /// As with `Blocks`, each block keeps one version, but some blocks are torn: each of their
    /// sectors keeps a version that is chosen for this sector alone.
    Sectors(u64),
}

type Block = Box<[u8]>;

/// The backing file, and the volatile cache in front of it.
#[derive(Debug)]
pub struct Content {
    file: File,
    size_bytes: u64,
    /// The unflushed versions of each block, oldest first. The key is the number of the block.
    cache: BTreeMap<u64, Vec<Block>>,
}

impl Content {
    /// Opens the disk over the backing file `path`, which holds the durable content. The size of
    /// the disk is that of the file, rounded down to whole blocks.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let size_bytes = file.metadata()?.len() / BLOCK_BYTES * BLOCK_BYTES;
        Ok(Self {
            file,
            size_bytes,
            cache: BTreeMap::new(),
        })
    }

    /// Returns the size of the disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the number of blocks that a power cut could lose.
    pub fn unflushed_blocks(&self) -> usize {
        self.cache.len()
    }

    /// Returns the newest content of a range, which must be inside the disk.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset)?;
        let end = offset + length as u64;
        for (&number, versions) in self.cache.range(offset / BLOCK_BYTES..) {
            let start = number * BLOCK_BYTES;
            if start >= end {
                break;
            }
            let newest = versions.last().expect("a cached block has a version");
            let (from, to) = (start.max(offset), (start + BLOCK_BYTES).min(end));
            bytes[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&newest[(from - start) as usize..(to - start) as usize]);
        }
        Ok(bytes)
    }

    /// Puts a write into the cache. The written range must be inside the disk.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        for (number, block) in self.with_blocks(offset, bytes)? {
            let versions = self.cache.entry(number).or_default();
            if versions.len() == VERSIONS_MAX {
                versions.remove(0);
            }
            versions.push(block);
        }
        Ok(())
    }

    /// Returns each block that a write of `bytes` at `offset` would change, with its number and its
    /// complete new content.
    fn with_blocks(&self, offset: u64, bytes: &[u8]) -> Result<Vec<(u64, Block)>> {
        let end = offset + bytes.len() as u64;
        let numbers = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let block = |number: u64| {
            let start = number * BLOCK_BYTES;
            let (from, to) = (start.max(offset), (start + BLOCK_BYTES).min(end));
            let new = &bytes[(from - offset) as usize..(to - offset) as usize];
            if new.len() as u64 == BLOCK_BYTES {
                return Ok((number, new.into()));
            }
            let mut whole = self.read(start, BLOCK_BYTES as usize)?;
            whole[(from - start) as usize..(to - start) as usize].copy_from_slice(new);
            Ok((number, whole.into()))
        };
        numbers.map(block).collect()
    }

    /// Makes the newest versions of all blocks that overlap a range durable.
    pub fn flush_range(&mut self, offset: u64, length: u64) -> Result<()> {
        let numbers = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES);
        let found: Vec<u64> = self.cache.range(numbers).map(|(&n, _)| n).collect();
        for number in found {
            let versions = self.cache.remove(&number).expect("it was just found");
            let newest = versions.last().expect("a cached block has a version");
            self.file.write_all_at(newest, number * BLOCK_BYTES)?;
        }
        Ok(())
    }

    /// Makes all completed writes durable.
    pub fn flush(&mut self) -> Result<()> {
        self.flush_range(0, self.size_bytes)
    }

    /// Cuts the power. The cache is lost, except for the part of the cached writes and of
    /// `under_way` that `keep` selects. `under_way` holds the offsets and bytes of the writes in
    /// flight, which have no reply yet.
    pub fn cut(&mut self, keep: Keep, under_way: &[(u64, Vec<u8>)]) -> Result<()> {
        match keep {
            Keep::Nothing => {}
            Keep::Everything => self.flush()?,
            Keep::Blocks(seed) | Keep::Sectors(seed) => {
                for (offset, bytes) in under_way {
                    self.write(*offset, bytes)?;
                }
                let tears = matches!(keep, Keep::Sectors(_));
                self.keep_some(&mut Random::new(seed), tears)?;
            }
        }
        self.cache.clear();
        Ok(())
    }

    fn keep_some(&mut self, random: &mut Random, tears: bool) -> Result<()> {
        for (number, versions) in std::mem::take(&mut self.cache) {
            let start = number * BLOCK_BYTES;
            let mut found = vec![0; BLOCK_BYTES as usize];
            self.file.read_exact_at(&mut found, start)?;
            // The durable content is one more choice beside the cached versions, and as likely as
            // each of them.
            let choices = versions.len() as u64 + 1;
            let tear = tears && random.chance(1, 2);
            let whole = random.below(choices);
            for (index, sector) in found.chunks_mut(SECTOR_BYTES as usize).enumerate() {
                let choice = if tear { random.below(choices) } else { whole };
                if let Some(version) = versions.get(choice as usize) {
                    let at = index * SECTOR_BYTES as usize;
                    sector.copy_from_slice(&version[at..at + sector.len()]);
                }
            }
            self.file.write_all_at(&found, start)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::collections::BTreeSet;

    const BLOCKS: u64 = 64;
    const LEN: usize = BLOCK_BYTES as usize;

    fn disk() -> (Scratch, Content) {
        let dir = Scratch::new("content");
        let path = dir.sparse("disk.img", BLOCKS * BLOCK_BYTES);
        let content = Content::open(&path).expect("open the disk");
        (dir, content)
    }

    fn fill(content: &mut Content, byte: u8) {
        let bytes = vec![byte; LEN * BLOCKS as usize];
        content.write(0, &bytes).expect("write");
    }

    fn all(content: &Content) -> Vec<u8> {
        content.read(0, LEN * BLOCKS as usize).expect("read")
    }

    #[test]
    fn a_cut_leaves_what_was_flushed() {
        let (_dir, mut content) = disk();
        fill(&mut content, 1);
        content.flush().expect("flush");
        fill(&mut content, 2);
        content.flush_range(LEN as u64, LEN as u64).expect("flush");
        assert_eq!(all(&content), vec![2; LEN * BLOCKS as usize]);
        content.cut(Keep::Nothing, &[]).expect("cut");
        let found = all(&content);
        assert!(found[..LEN].iter().all(|b| *b == 1));
        assert!(found[LEN..2 * LEN].iter().all(|b| *b == 2));
        assert!(found[2 * LEN..].iter().all(|b| *b == 1));
    }

    #[test]
    fn parts_of_blocks_join_what_was_there() {
        let (_dir, mut content) = disk();
        fill(&mut content, 1);
        content.write(LEN as u64 - 512, &[2; 1024]).expect("write");
        let found = all(&content);
        assert!(found[..LEN - 512].iter().all(|b| *b == 1));
        assert!(found[LEN - 512..LEN + 512].iter().all(|b| *b == 2));
        assert!(found[LEN + 512..].iter().all(|b| *b == 1));
        assert_eq!(content.read(LEN as u64 - 1, 2).expect("read"), [2, 2]);
    }

    /// Returns, for each block, the byte values that it holds after a power cut. Before the cut
    /// each block has four versions: 0 is durable, 1 and 2 are completed writes, and 3 is in
    /// flight.
    fn after_cut(keep: Keep) -> Vec<BTreeSet<u8>> {
        let (_dir, mut content) = disk();
        fill(&mut content, 1);
        fill(&mut content, 2);
        let under_way = [(0, vec![3; LEN * BLOCKS as usize])];
        content.cut(keep, &under_way).expect("cut");
        assert_eq!(content.unflushed_blocks(), 0);
        let whole_sectors = all(&content)
            .chunks(SECTOR_BYTES as usize)
            .all(|s| s.iter().all(|b| *b == s[0]));
        assert!(whole_sectors, "a sector was torn");
        let blocks = all(&content);
        blocks
            .chunks(LEN)
            .map(|b| b.iter().copied().collect())
            .collect()
    }

    #[test]
    fn a_cut_keeps_what_it_is_told_to() {
        let only = |byte| vec![BTreeSet::from([byte]); BLOCKS as usize];
        assert_eq!(after_cut(Keep::Nothing), only(0));
        assert_eq!(after_cut(Keep::Everything), only(2));
        let blocks = after_cut(Keep::Blocks(7));
        assert!(blocks.iter().all(|b| b.len() == 1), "a block was torn");
        let versions: BTreeSet<u8> = blocks.into_iter().flatten().collect();
        assert_eq!(versions, BTreeSet::from([0, 1, 2, 3]));
        let torn = after_cut(Keep::Sectors(7));
        let count = torn.iter().filter(|b| b.len() > 1).count();
        // Each of the 64 blocks is torn with probability 1/2. The number of torn blocks is outside
        // of these bounds for one seed in 10^7.
        assert!((12..=52).contains(&count), "{count} of {BLOCKS} torn");
        assert_eq!(torn, after_cut(Keep::Sectors(7)), "a seed repeats the cut");
        assert_ne!(torn, after_cut(Keep::Sectors(8)));
    }
}
