//! Content of a disk of the tester, which outlives the program that uses the disk. Power cuts, bit
//! rot and the return of an older copy of a side change this content. A platter knows which of its
//! blocks are corrupt; the code under test never sees this and must detect corruption by itself.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use bimetal_block::BLOCK_BYTES;
use bimetal_rt::sync::Event;
use bimetal_rt::{Payload, Rng, Rt};

/// Content of a block; `None` means zeroes.
pub type Block = Option<Payload>;

/// Size in bytes of the sectors into which a power cut can tear a block.
const SECTOR_BYTES: usize = 512;

#[derive(Clone)]
struct Version {
    write: u64,
    content: Block,
    corrupt: bool,
    /// Whether a failed flush has lost this version, so that no later flush makes it durable.
    lost: bool,
}

/// Content of a disk; see the module.
#[derive(Clone)]
pub struct Platter {
    blocks: Vec<Block>,
    /// Versions of each block that can remain after a power cut: the durable version first, then
    /// the others from old to new.
    versions: BTreeMap<usize, Vec<Version>>,
    /// Blocks whose present content is corrupt: it differs from the content last written to the
    /// block.
    corrupt: BTreeSet<usize>,
    /// Whether a failed flush has lost versions, and no flush has succeeded since then.
    unrepaired: bool,
    writes: u64,
    zeroes: Payload,
    power_cuts: u64,
    /// Number of requests of dead programs that can still be applied.
    old_requests: u64,
    arrived_late: u64,
    idle: Rc<Event>,
}

/// Effects of a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Number of blocks that lost their newest version.
    pub lost: u64,
    /// Number of torn blocks, whose sectors have different versions.
    pub torn: u64,
}

impl Platter {
    /// Creates a platter of durable zeroes.
    pub fn new(rt: &Rt, size_bytes: u64) -> Rc<RefCell<Platter>> {
        Rc::new(RefCell::new(Platter {
            blocks: vec![None; (size_bytes / BLOCK_BYTES) as usize],
            versions: BTreeMap::new(),
            corrupt: BTreeSet::new(),
            unrepaired: false,
            writes: 0,
            zeroes: rt.pool().zeroed(BLOCK_BYTES as usize).into(),
            power_cuts: 0,
            old_requests: 0,
            arrived_late: 0,
            idle: Rc::new(Event::new()),
        }))
    }

    /// Returns an independent copy. Requests that dead programs still have in flight are applied to
    /// the original only.
    pub fn fork(&self) -> Platter {
        Platter {
            old_requests: 0,
            arrived_late: 0,
            idle: Rc::new(Event::new()),
            ..self.clone()
        }
    }

    /// Returns a copy with only the durable content, as after a power cut that loses everything
    /// else.
    pub fn durable_copy(&self) -> Platter {
        let mut copy = self.fork();
        for (index, versions) in std::mem::take(&mut copy.versions) {
            let durable = versions.into_iter().next();
            let durable = durable.expect("a block with versions has a durable one");
            copy.hold(index, durable.content, durable.corrupt);
        }
        copy
    }

    /// Returns a copy of the platter. A block that has a corrupt version has that version in the
    /// copy; any other block has its durable content. So the copy contains every undetected error
    /// of the disk.
    pub fn worst_copy(&self) -> Platter {
        self.worst_but_for(|_| 0)
    }

    /// Returns a copy of the present content, in which each block that has a corrupt version holds
    /// that version.
    pub fn worst_present_copy(&self) -> Platter {
        self.worst_but_for(|versions| versions.len() - 1)
    }

    /// Returns a copy that a power cut can leave, chosen so that errors of the disk become visible.
    /// Each block has the newest of its correct versions that are not durable, even if a corrupt
    /// version is newer. A block without such a version has its newest version.
    pub fn revealing_copy(&self) -> Platter {
        let mut copy = self.fork();
        for (index, mut versions) in std::mem::take(&mut copy.versions) {
            let written = versions.iter().rposition(|version| !version.corrupt);
            let newest = versions.len() - 1;
            let kept = versions.swap_remove(written.filter(|&at| at > 0).unwrap_or(newest));
            copy.hold(index, kept.content, kept.corrupt);
        }
        copy
    }

    /// Returns a copy with one version of each block: its oldest corrupt version, or if it has
    /// none, the version whose index `chosen` returns.
    fn worst_but_for(&self, chosen: impl Fn(&[Version]) -> usize) -> Platter {
        let mut copy = self.fork();
        for (index, mut versions) in std::mem::take(&mut copy.versions) {
            let corrupt = versions.iter().position(|version| version.corrupt);
            let kept = versions.swap_remove(corrupt.unwrap_or_else(|| chosen(&versions)));
            copy.hold(index, kept.content, kept.corrupt);
        }
        copy
    }

    /// Replaces the content with the content of another platter, as if the other disk had been
    /// installed in place of this one.
    pub fn become_copy_of(&mut self, other: &Platter) {
        self.blocks.clone_from(&other.blocks);
        self.versions.clone_from(&other.versions);
        self.corrupt.clone_from(&other.corrupt);
        self.writes = self.writes.max(other.writes) + 1;
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES
    }

    /// Returns the number of changes of blocks so far.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Returns the content of the block at an offset.
    pub fn block_at(&self, offset: u64) -> Option<&Payload> {
        self.block(offset / BLOCK_BYTES)
    }

    /// Returns the content of the block with this number.
    pub fn block(&self, index: u64) -> Option<&Payload> {
        self.blocks[index as usize].as_ref()
    }

    /// Changes the content of a block, which stays volatile until a flush.
    pub fn set(&mut self, index: usize, content: Block) {
        self.push(index, content, false);
    }

    /// Changes a block to corrupt content, which stays volatile until a flush.
    pub fn set_corrupt(&mut self, index: usize, content: Block) {
        self.push(index, content, true);
    }

    fn push(&mut self, index: usize, content: Block, corrupt: bool) {
        self.writes += 1;
        let durable = Version {
            write: 0,
            content: self.blocks[index].clone(),
            corrupt: self.corrupt.contains(&index),
            lost: false,
        };
        let versions = self.versions.entry(index);
        let versions = versions.or_insert_with(|| vec![durable]);
        versions.push(Version {
            write: self.writes,
            content: content.clone(),
            corrupt,
            lost: false,
        });
        self.hold(index, content, corrupt);
    }

    fn hold(&mut self, index: usize, content: Block, corrupt: bool) {
        self.blocks[index] = content;
        if corrupt {
            self.corrupt.insert(index);
        } else if !self.corrupt.is_empty() {
            self.corrupt.remove(&index);
        }
    }

    /// Corrupts a durable block at rest. The corrupt content is durable immediately.
    pub fn decay(&mut self, index: usize, content: Block) {
        assert!(self.is_durable(index), "only what is at rest decays");
        self.hold(index, content, true);
    }

    /// Returns true if a power cut cannot change the block.
    pub fn is_durable(&self, index: usize) -> bool {
        !self.versions.contains_key(&index)
    }

    /// Returns true if the block is corrupt.
    pub fn is_corrupt(&self, index: usize) -> bool {
        self.corrupt.contains(&index)
    }

    /// Returns true if the block is corrupt, or can become corrupt by a power cut or by its
    /// eviction from the cache.
    pub fn may_become_corrupt(&self, index: usize) -> bool {
        let versions = self.versions.get(&index);
        self.is_corrupt(index)
            || self.is_lost(index)
            || versions.is_some_and(|all| all.iter().any(|v| v.corrupt))
    }

    /// Returns the corrupt blocks.
    pub fn corrupt_blocks(&self) -> impl Iterator<Item = usize> {
        self.corrupt.iter().copied()
    }

    /// Makes the first `mark` changes durable, except versions that a failed flush has lost.
    pub fn flushed(&mut self, mark: u64) {
        self.unrepaired = false;
        self.versions.retain(|_, versions| {
            let taken = |version: &Version| version.write <= mark && !version.lost;
            let newest = versions.iter().rposition(taken);
            versions.drain(..newest.unwrap_or(0));
            versions.len() > 1
        });
    }

    /// Makes the present content of blocks durable.
    pub fn flushed_blocks(&mut self, indices: Range<u64>) {
        for index in indices {
            self.versions.remove(&(index as usize));
        }
    }

    /// Fails a flush. Each block loses, with the chance `chance`, all its versions that are not
    /// durable: no later flush makes these versions durable. Reads can still return them until
    /// [`evict`](Self::evict). Returns the number of blocks that lost versions.
    pub fn fail_flush(&mut self, rng: &mut Rng, chance: f64) -> u64 {
        let mut blocks = 0;
        for versions in self.versions.values_mut() {
            let newest = versions.last_mut().expect("a block has a version");
            if !newest.lost && rng.chance(chance) {
                versions.iter_mut().skip(1).for_each(|v| v.lost = true);
                blocks += 1;
            }
        }
        self.unrepaired |= blocks > 0;
        blocks
    }

    /// Returns true if a failed flush has lost versions and no flush has succeeded since then.
    /// Before the next flush, the volume must write again all lost data that it still needs.
    pub fn is_unrepaired(&self) -> bool {
        self.unrepaired
    }

    /// Returns true if a failed flush has lost the newest content of the block.
    pub fn is_lost(&self, index: usize) -> bool {
        let newest = self.versions.get(&index).and_then(|all| all.last());
        newest.is_some_and(|newest| newest.lost)
    }

    /// Returns true if a failed flush has lost the newest content of any block.
    pub fn has_lost(&self) -> bool {
        self.lost_blocks(u64::MAX).next().is_some()
    }

    /// Returns the blocks whose newest content was lost by a failed flush, if this content comes
    /// from one of the first `below` changes.
    pub fn lost_blocks(&self, below: u64) -> impl Iterator<Item = usize> {
        let lost = move |all: &Vec<Version>| all.last().is_some_and(|v| v.lost && v.write <= below);
        let blocks = self.versions.iter().filter(move |(_, all)| lost(all));
        blocks.map(|(&index, _)| index)
    }

    /// Evicts from the cache a block whose newest content was lost by a failed flush. From now on,
    /// reads return a random older version of the block. The disk holds that version, so the failed
    /// flush has not lost it, and the next successful flush makes it durable. Otherwise a program
    /// that begins after the failure would read content that no flush of its own makes durable.
    pub fn evict(&mut self, index: usize, rng: &mut Rng) {
        assert!(self.is_lost(index), "only what was given up is evicted");
        let mut versions = self.versions.remove(&index).expect("it has versions");
        versions.pop();
        versions.truncate(1 + rng.below(versions.len() as u64) as usize);
        versions.iter_mut().for_each(|version| version.lost = false);
        let newest = versions.last().expect("the durable version is left");
        let (content, corrupt) = (newest.content.clone(), newest.corrupt);
        if versions.len() > 1 {
            self.versions.insert(index, versions);
        }
        self.hold(index, content, corrupt);
    }

    /// Cuts the power. Each block keeps a random version, which is its durable version or a later
    /// one. If `torn` is true, each sector of a block can keep a different version. Requests in
    /// flight of dead programs are dropped.
    pub fn cut_power(&mut self, rng: &mut Rng, torn: bool) -> Cut {
        self.power_cuts += 1;
        let mut cut = Cut::default();
        for (index, versions) in std::mem::take(&mut self.versions) {
            let kept = rng.below(versions.len() as u64) as usize;
            if torn && rng.chance(0.5) {
                cut.torn += u64::from(self.tear(index, &versions, rng));
                continue;
            }
            cut.lost += u64::from(kept + 1 < versions.len());
            let kept = versions.into_iter().nth(kept);
            let kept = kept.expect("the number is below the length");
            self.hold(index, kept.content, kept.corrupt);
        }
        cut
    }

    /// Tears a block: each sector keeps a random version. Returns true if the sectors have
    /// different versions.
    fn tear(&mut self, index: usize, versions: &[Version], rng: &mut Rng) -> bool {
        let mut content = Payload::empty();
        let (mut corrupt, mut first, mut torn) = (false, None, false);
        for sector in 0..BLOCK_BYTES as usize / SECTOR_BYTES {
            let kept = rng.below(versions.len() as u64) as usize;
            torn |= *first.get_or_insert(kept) != kept;
            let bytes = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
            let whole = versions[kept].content.as_ref().unwrap_or(&self.zeroes);
            content.append(whole.slice(bytes));
            corrupt |= versions[kept].corrupt;
        }
        self.hold(index, Some(content), corrupt);
        torn
    }

    /// Registers a request of a dead program that is still in flight.
    pub fn leave(&mut self) -> OldRequest {
        self.old_requests += 1;
        OldRequest {
            power_cuts: self.power_cuts,
        }
    }

    /// Ends a request in flight of a dead program. Returns true if the request must be applied, and
    /// false if a power cut has dropped it.
    pub fn end_old(&mut self, old: OldRequest) -> bool {
        self.old_requests -= 1;
        self.idle.notify();
        let arrives = old.power_cuts == self.power_cuts;
        self.arrived_late += u64::from(arrives);
        arrives
    }

    /// Returns the number of requests that were applied after the death of their program.
    pub fn arrived_late(&self) -> u64 {
        self.arrived_late
    }
}

/// A request of a dead program that can still be applied.
pub struct OldRequest {
    power_cuts: u64,
}

/// Waits until no request of a dead program is in flight.
pub async fn until_idle(platter: &Rc<RefCell<Platter>>) {
    if platter.borrow().old_requests == 0 {
        return;
    }
    let idle = Rc::clone(&platter.borrow().idle);
    idle.until(|| platter.borrow().old_requests == 0).await;
}

#[cfg(test)]
mod tests {
    use bimetal_rt::VirtualOptions;

    use super::*;

    const BLOCK: usize = 3;

    /// Fails two flushes, each after the same block was written, and then evicts the block.
    fn evicted_after_two_failed_flushes(rt: &Rt, rng: &mut Rng) -> Platter {
        let mut platter = Platter::new(rt, 8 * BLOCK_BYTES).borrow().fork();
        for byte in [1, 2] {
            let content = rt.pool().copy_of(&[byte; BLOCK_BYTES as usize]);
            platter.set(BLOCK, Some(content.into()));
            assert_eq!(platter.fail_flush(rng, 1.0), 1);
        }
        platter.evict(BLOCK, rng);
        platter
    }

    /// The present content of the block and the content after a power cut, each as its first byte.
    fn present_and_durable(platter: &Platter) -> (u8, u8) {
        let first = |platter: &Platter| {
            let block = platter.block(BLOCK as u64);
            block.map_or(0, |block| block.to_vec()[0])
        };
        (first(platter), first(&platter.durable_copy()))
    }

    /// After an eviction, a read returns an older version. A flush that succeeds makes this version
    /// durable, and no further eviction can replace it.
    #[test]
    fn a_flush_makes_durable_what_is_read_after_an_eviction() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let mut seen = BTreeSet::new();
        for seed in 0..16 {
            let mut rng = Rng::labelled(seed, "test");
            let mut platter = evicted_after_two_failed_flushes(&rt, &mut rng);
            assert!(!platter.is_lost(BLOCK));
            let (read, durable) = present_and_durable(&platter);
            assert_eq!(durable, 0, "no flush has succeeded yet");
            platter.flushed(platter.writes());
            assert_eq!(present_and_durable(&platter), (read, read));
            seen.insert(read);
        }
        assert_eq!(seen, BTreeSet::from([0, 1]), "the newest version is lost");
    }
}
