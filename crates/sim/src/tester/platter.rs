//! What a disk of the tester holds. It outlives the program that uses the disk, and it is where a
//! power cut, rot and an older copy of a side have their effect. It knows which of its blocks are
//! corrupt, which the code under test must find out for itself.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use bimetal_block::BLOCK_BYTES;
use bimetal_rt::sync::Event;
use bimetal_rt::{Payload, Rng, Rt};

/// The content of a block; `None` is zeroes.
pub type Block = Option<Payload>;

/// A power cut tears blocks here.
const SECTOR_BYTES: usize = 512;

#[derive(Clone)]
struct Version {
    write: u64,
    content: Block,
    corrupt: bool,
    /// A flush that failed has taken it out of the cache: no later flush makes it durable.
    lost: bool,
}

/// See the module.
#[derive(Clone)]
pub struct Platter {
    blocks: Vec<Block>,
    /// The versions a power cut may leave of each block: first the durable one.
    versions: BTreeMap<usize, Vec<Version>>,
    /// Blocks that hold now what nobody wrote there, or not what was written there last.
    corrupt: BTreeSet<usize>,
    /// A flush has given something up, and none has succeeded since.
    unmended: bool,
    writes: u64,
    zeroes: Payload,
    power_cuts: u64,
    /// Requests of dead programs that may still land.
    old_requests: u64,
    landed_late: u64,
    quiet: Rc<Event>,
}

/// What a power cut has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Blocks that lost their newest version.
    pub lost: u64,
    /// Blocks of several versions.
    pub torn: u64,
}

impl Platter {
    /// An empty platter: all zeroes, durable.
    pub fn new(rt: &Rt, size_bytes: u64) -> Rc<RefCell<Platter>> {
        Rc::new(RefCell::new(Platter {
            blocks: vec![None; (size_bytes / BLOCK_BYTES) as usize],
            versions: BTreeMap::new(),
            corrupt: BTreeSet::new(),
            unmended: false,
            writes: 0,
            zeroes: rt.pool().zeroed(BLOCK_BYTES as usize).into(),
            power_cuts: 0,
            old_requests: 0,
            landed_late: 0,
            quiet: Rc::new(Event::new()),
        }))
    }

    /// A copy that goes its own way; requests under way do not reach it.
    pub fn fork(&self) -> Platter {
        Platter {
            old_requests: 0,
            landed_late: 0,
            quiet: Rc::new(Event::new()),
            ..self.clone()
        }
    }

    /// A copy of what is durable: what a power cut leaves in any case.
    pub fn durable_copy(&self) -> Platter {
        let mut copy = self.fork();
        for (index, versions) in std::mem::take(&mut copy.versions) {
            let durable = versions.into_iter().next();
            let durable = durable.expect("a block with versions has a durable one");
            copy.hold(index, durable.content, durable.corrupt);
        }
        copy
    }

    /// A copy of what a power cut leaves in any case, except that each block is corrupt that may
    /// turn out to be: what the disk has done wrong and nobody has noticed is in it.
    pub fn worst_copy(&self) -> Platter {
        self.worst_but_for(|_| 0)
    }

    /// The same of what is there as long as no power is cut.
    pub fn worst_present_copy(&self) -> Platter {
        self.worst_but_for(|versions| versions.len() - 1)
    }

    /// A copy of what a power cut may leave that shows what the disk has done wrong: content that
    /// was durable is corrupt where it may be, and newer content that was not durable is as it was
    /// written, also where the disk has overwritten it since.
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

    /// A copy with a corrupt version of each block that has one, and of the others the version that
    /// is `chosen`.
    fn worst_but_for(&self, chosen: impl Fn(&[Version]) -> usize) -> Platter {
        let mut copy = self.fork();
        for (index, mut versions) in std::mem::take(&mut copy.versions) {
            let corrupt = versions.iter().position(|version| version.corrupt);
            let kept = versions.swap_remove(corrupt.unwrap_or_else(|| chosen(&versions)));
            copy.hold(index, kept.content, kept.corrupt);
        }
        copy
    }

    /// Takes the content of another platter, as if that disk had been put in its place.
    pub fn become_copy_of(&mut self, other: &Platter) {
        self.blocks.clone_from(&other.blocks);
        self.versions.clone_from(&other.versions);
        self.corrupt.clone_from(&other.corrupt);
        self.writes = self.writes.max(other.writes) + 1;
    }

    /// Bytes it holds.
    pub fn size_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES
    }

    /// Changes so far.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// The block at an offset.
    pub fn block_at(&self, offset: u64) -> Option<&Payload> {
        self.block(offset / BLOCK_BYTES)
    }

    /// A block by number.
    pub fn block(&self, index: u64) -> Option<&Payload> {
        self.blocks[index as usize].as_ref()
    }

    /// Changes a block.
    pub fn set(&mut self, index: usize, content: Block) {
        self.push(index, content, false);
    }

    /// Changes a block to what it should not be.
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

    /// Changes a block at rest, past every cache.
    pub fn decay(&mut self, index: usize, content: Block) {
        assert!(self.is_durable(index), "only what is at rest decays");
        self.hold(index, content, true);
    }

    /// True when a power cut leaves the block as it is.
    pub fn is_durable(&self, index: usize) -> bool {
        !self.versions.contains_key(&index)
    }

    /// True when the block holds what it should not.
    pub fn is_corrupt(&self, index: usize) -> bool {
        self.corrupt.contains(&index)
    }

    /// True when it does, or would after a power cut or once it leaves the cache.
    pub fn may_become_corrupt(&self, index: usize) -> bool {
        let versions = self.versions.get(&index);
        self.is_corrupt(index)
            || self.is_lost(index)
            || versions.is_some_and(|all| all.iter().any(|v| v.corrupt))
    }

    /// Blocks that hold what they should not.
    pub fn corrupt_blocks(&self) -> impl Iterator<Item = usize> {
        self.corrupt.iter().copied()
    }

    /// Makes everything durable that was written up to `mark`.
    pub fn flushed(&mut self, mark: u64) {
        self.unmended = false;
        self.versions.retain(|_, versions| {
            let taken = |version: &Version| version.write <= mark && !version.lost;
            let newest = versions.iter().rposition(taken);
            versions.drain(..newest.unwrap_or(0));
            versions.len() > 1
        });
    }

    /// Makes blocks durable.
    pub fn flushed_blocks(&mut self, indices: Range<u64>) {
        for index in indices {
            self.versions.remove(&(index as usize));
        }
    }

    /// A flush has failed. Of each block that it or a later flush would have made durable, the disk
    /// gives up what is not durable with this chance: no later flush covers that any more. It may
    /// be read as before until [`evict`](Self::evict). Returns how many blocks that are.
    pub fn fail_flush(&mut self, rng: &mut Rng, chance: f64) -> u64 {
        let mut blocks = 0;
        for versions in self.versions.values_mut() {
            let newest = versions.last_mut().expect("a block has a version");
            if !newest.lost && rng.chance(chance) {
                versions.iter_mut().skip(1).for_each(|v| v.lost = true);
                blocks += 1;
            }
        }
        self.unmended |= blocks > 0;
        blocks
    }

    /// True from a flush that gave something up until one succeeds, before which all that is needed
    /// must have been written again.
    pub fn is_unmended(&self) -> bool {
        self.unmended
    }

    /// True when the newest content of the block was given up by a flush that failed.
    pub fn is_lost(&self, index: usize) -> bool {
        let newest = self.versions.get(&index).and_then(|all| all.last());
        newest.is_some_and(|newest| newest.lost)
    }

    /// True when there is such a block.
    pub fn has_lost(&self) -> bool {
        self.lost_blocks(u64::MAX).next().is_some()
    }

    /// The blocks that were given up and whose newest content is one of the first `below` changes.
    pub fn lost_blocks(&self, below: u64) -> impl Iterator<Item = usize> {
        let lost = move |all: &Vec<Version>| all.last().is_some_and(|v| v.lost && v.write <= below);
        let blocks = self.versions.iter().filter(move |(_, all)| lost(all));
        blocks.map(|(&index, _)| index)
    }

    /// A block that was given up leaves the cache: one of its older versions is read from now on.
    pub fn evict(&mut self, index: usize, rng: &mut Rng) {
        assert!(self.is_lost(index), "only what was given up is evicted");
        let mut versions = self.versions.remove(&index).expect("it has versions");
        versions.pop();
        versions.truncate(1 + rng.below(versions.len() as u64) as usize);
        let newest = versions.last().expect("the durable version is left");
        let (content, corrupt) = (newest.content.clone(), newest.corrupt);
        if versions.len() > 1 {
            self.versions.insert(index, versions);
        }
        self.hold(index, content, corrupt);
    }

    /// Cuts the power: of each block any version since the last flush is left, with `torn` any of
    /// them for each of its sectors. Requests of dead programs that were still under way are gone.
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

    /// Leaves any version of each sector; true when they differ.
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

    /// A request of a dead program is left in the disk.
    pub fn leave(&mut self) -> OldRequest {
        self.old_requests += 1;
        OldRequest {
            power_cuts: self.power_cuts,
        }
    }

    /// The request ends; true when it takes effect, which it does not after a power cut.
    pub fn end_old(&mut self, old: OldRequest) -> bool {
        self.old_requests -= 1;
        self.quiet.notify();
        let lands = old.power_cuts == self.power_cuts;
        self.landed_late += u64::from(lands);
        lands
    }

    /// Writes of dead programs that have landed.
    pub fn landed_late(&self) -> u64 {
        self.landed_late
    }
}

/// A request of a dead program that may still land.
pub struct OldRequest {
    power_cuts: u64,
}

/// Waits until no request of a dead program is under way.
pub async fn until_quiet(platter: &Rc<RefCell<Platter>>) {
    if platter.borrow().old_requests == 0 {
        return;
    }
    let quiet = Rc::clone(&platter.borrow().quiet);
    quiet.until(|| platter.borrow().old_requests == 0).await;
}
