//! The one that changes: takes batches into the log and the leaves, and keeps house.
//!
//! One thread at a time has it; there is no other, so that what it does is in step with the batches
//! that make the work. A batch goes to the log, then to the deltas of its leaves, then readers see
//! it. Everything else ([`upkeep`]) only moves what is there: deltas into images, images out of
//! segments that are nearly empty, and the log's tail. It must never make readers see what is not
//! in the log, and never let a checkpoint name what is not on the storage.
//!
//! What it has to know for that is kept by owners, each of which alone changes its part and asserts
//! what must hold of it: the [log with its superblocks](OpenLog), [where nodes are](NodeTable),
//! [which leaves have changes](DirtyLeaves), [checkpoints](Checkpointer) and [cleaning](Cleaner).
//! What needs several of them is done by the one that changes: none of them reaches into another.

mod carry;
mod checkpoint;
mod checkpointer;
mod classes;
mod clean;
mod cleaner;
mod compact;
mod deletions;
mod dirty;
mod fold;
mod log_space;
mod nodes;
mod open_log;
mod paper;
pub(crate) mod patch;
mod room;
mod structure;
mod unsettled;
mod upkeep;

pub(crate) use checkpoint::{Stored, begins_checkpoint, take_up};
pub(crate) use compact::Compacting;
pub(crate) use upkeep::WritingBack;

use crate::batch::{Operation, Operations};
use crate::error::Error;
use crate::footer::About;
use crate::layout::Superblock;
use crate::log::Frame;
use crate::node::{Builder, Delta, Kind, NodeId, Row, Seq};
use crate::options::Options;
use crate::readers::Readers;
use crate::segments::{Class, Location, NewImage, Segments};
use crate::storage::Storage;
use crate::tree::Tree;
use crate::tree::deletions::Deletion;
use checkpointer::Checkpointer;
use classes::Classes;
use cleaner::Cleaner;
use deletions::WaitingDeletions;
use dirty::DirtyLeaves;
use fold::Scratch;
use nodes::NodeTable;
use open_log::OpenLog;
use std::sync::Arc;

/// When a batch survives a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When its write returns.
    #[default]
    Durable,
    /// When its write returns, which waits up to [`Options::group_wait_us`] for batches of other
    /// threads, so that one flush is for several: fewer flushes, each a little later.
    Group,
    /// Some time later, with everything before it; at the latest with the next durable one.
    Relaxed,
}

/// Counts of what was done to keep house.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpkeepFigures {
    /// Leaves written back.
    pub folds: u64,
    /// Rows in them.
    pub folded_rows: u64,
    /// Leaves of which only the changes were written, as patches.
    pub patches: u64,
    /// Leaves that were cut into several.
    pub splits: u64,
    /// Leaves that were joined with a neighbour.
    pub joins: u64,
    /// Values written out of line.
    pub blobs: u64,
    /// Leaves that took in deletions of ranges in their turn, because those touched too many leaves
    /// to wait for.
    pub taken_in: u64,
    /// Leaves whose changes were logged again, since the log came round.
    pub carried: u64,
    /// Bytes of images that cleaning moved.
    pub moved_bytes: u64,
    /// Segments cleaned.
    pub cleaned_segments: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Bytes of them.
    pub checkpoint_bytes: u64,
    /// How often the log went on in another ring: a longer one, or that at the front of the
    /// storage.
    pub log_rings: u64,
}

/// Numbers that one change of the tree may need: an even split of a leaf and of every level above.
const IDS_SPARE: usize = 1 << 12;

/// The one that changes.
pub(crate) struct Writer {
    /// What readers see.
    pub tree: Arc<Tree>,
    /// Who reads, and as of which batch.
    readers: Arc<Readers>,
    /// What the index was opened with.
    options: Options,
    /// The log, and the superblocks that say where it is.
    pub log: OpenLog,
    /// Where images are written, and how much of it is in use.
    pub segments: Segments,
    /// Where each node is, and what of it no image has.
    nodes: NodeTable,
    /// Leaves with changes, and how much memory these may take.
    dirty: DirtyLeaves,
    /// Deletions of ranges that leaves may lack.
    deletions: WaitingDeletions,
    /// The checkpoint that is on its way, and what has happened since the last.
    checkpointer: Checkpointer,
    /// The segment that is being cleaned, and what says whether one should be.
    cleaner: Cleaner,
    /// Which leaves are hot.
    classes: Classes,
    /// Makes images.
    builder: Builder,
    /// Rows between two images.
    scratch: Scratch,
    /// Counts of what was done.
    pub figures: UpkeepFigures,
}

impl Writer {
    /// Goes on from a superblock and what its checkpoint says. The log is to be replayed.
    pub(crate) fn new(
        tree: Arc<Tree>,
        readers: Arc<Readers>,
        options: Options,
        superblock: Superblock,
        stored: Stored,
        mut segments: Segments,
    ) -> Writer {
        match options.paper {
            Some(_) => segments.write_by_blocks(),
            None => segments.gather_within(options.memory_bytes as usize),
        }
        let patched = stored.patches.into_keys().collect();
        let classes = Classes::new(options.hot_share);
        Writer {
            tree,
            readers,
            options,
            segments,
            nodes: NodeTable::new(stored.locations, patched, stored.root),
            dirty: DirtyLeaves::new(),
            deletions: WaitingDeletions::of(stored.deletions, superblock.log_tail),
            log: OpenLog::new(superblock),
            checkpointer: Checkpointer::default(),
            cleaner: Cleaner::default(),
            classes,
            builder: Builder::new(false),
            scratch: Scratch::default(),
            figures: UpkeepFigures::default(),
        }
    }

    fn storage(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.tree.storage)
    }

    /// Nodes there are, parts of long values among them.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.count()
    }

    /// Number of the last batch taken.
    pub(crate) fn seq(&self) -> Seq {
        self.log.seq()
    }

    /// Makes the log have room for batches of so many bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if there is none and none can be made; nothing has changed then.
    pub(crate) fn begin_group(&mut self, bytes: usize) -> Result<(), Error> {
        self.make_log_room(bytes)
    }

    /// Puts a batch into the log, which was made to have room. It is neither durable nor visible
    /// yet.
    pub(crate) fn enlog(&mut self, operations: &[u8]) -> Result<Seq, Error> {
        self.log.append(&*self.tree.storage, operations)
    }

    /// Everything enlogged is written; durable if asked.
    pub(crate) fn write_log(&mut self, durable: bool) -> Result<(), Error> {
        self.log.write_out(&*self.tree.storage, durable)
    }

    /// Makes everything durable before the index is closed, and says where the log ends: so it can
    /// be told later whether all of it is there.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.log.end(&*self.tree.storage)
    }

    /// Writes an image of a node into a stream; returns where it will be. What an image has is
    /// durable in the log before the image reaches the storage, so that images, where nothing else
    /// is left, never have a part of a batch that is lost. While the log is not durable, images
    /// wait as long as they can.
    fn append(
        &mut self,
        class: Class,
        node: NodeId,
        lsn: Seq,
        bytes: &mut [u8],
        about: About,
    ) -> Result<Location, Error> {
        if self.segments.would_turn_over(class, bytes.len(), &about) {
            self.log_before_images()?;
        }
        let storage = self.storage();
        let may_write = self.options.paper.is_some() || self.log.is_durable();
        let image = NewImage {
            node,
            lsn,
            bytes,
            about,
        };
        self.segments.append(&*storage, class, image, may_write)
    }

    /// Makes the log durable, because an image is to reach the storage. Under the paper's rules
    /// segments have no footers, images prove nothing where all else is lost, and need not wait.
    pub(super) fn log_before_images(&mut self) -> Result<(), Error> {
        match self.options.paper {
            Some(_) => Ok(()),
            None => self.write_log(true),
        }
    }

    /// Changes the leaves as a batch says that is in the log at `position` or later.
    pub(crate) fn apply(
        &mut self,
        seq: Seq,
        operations: &[u8],
        position: u64,
    ) -> Result<(), Error> {
        let oldest = self.readers.oldest();
        let mut operations = Operations::new(operations);
        while let Some(operation) = operations.take().map_err(|_| not_a_batch())? {
            self.apply_one(seq, operation, position, oldest)?;
        }
        Ok(())
    }

    fn apply_one(
        &mut self,
        seq: Seq,
        operation: Operation<'_>,
        position: u64,
        oldest: Seq,
    ) -> Result<(), Error> {
        match operation {
            Operation::Put { key, value } => {
                let put = |delta: &mut Delta| delta.insert(key, seq, Kind::Put, value, oldest);
                self.change_leaf(key, position, put)?;
            }
            Operation::Delete { key } => {
                let delete = |delta: &mut Delta| delta.insert(key, seq, Kind::Delete, &[], oldest);
                self.change_leaf(key, position, delete)?;
            }
            Operation::DeleteRange { start, end } => {
                self.delete_range(seq, (start, end), position)?;
            }
            // The checkpoint has it, or it stands in the log as it was made.
            Operation::RangeDeleted { .. } | Operation::End => {}
        }
        Ok(())
    }

    /// Deletes a range again that is in the log, after a stop. Nobody has read yet. What is carried
    /// was of one leaf. What a batch before the checkpoint has deleted is in its list, or had few
    /// leaves then, and every image of the checkpoint that is newer has it. Images that were
    /// written since the replay began seem to be newer too and may lack it, so that no leaf is let
    /// wait for that.
    pub(crate) fn replay_deletion(
        &mut self,
        seq: Seq,
        (start, end): (&[u8], Option<&[u8]>),
        frame: &Frame<'_>,
    ) -> Result<(), Error> {
        let deletion = Deletion {
            seq,
            start: start.into(),
            end: end.map(Into::into),
        };
        let had_few_leaves = self.log.is_before_checkpoint(seq) && !self.deletions.has(&deletion);
        match frame.is_carried || had_few_leaves {
            true => self.delete_at_once(&deletion, frame.position),
            false => self.delete_range(seq, (start, end), frame.position),
        }
    }

    /// Everything up to this batch, and to the end of this frame of the log, has been taken from
    /// it.
    pub(crate) fn replayed(&mut self, seq: Seq, frame: &Frame<'_>) {
        self.log.replayed(seq, frame.end, frame.durable_below);
        self.readers.publish(self.log.seq());
    }

    /// Keeps the memory in bounds while the log is replayed. Where there is no space to write
    /// leaves back, it takes more: a full disk must not keep anybody from reading and deleting.
    pub(crate) fn keep_house_in_replay(&mut self) -> Result<(), Error> {
        if self.options.paper.is_none() {
            self.dirty.lend(self.options.memory_bytes / 4 * 3);
        }
        self.dirty.order_by_log(&self.tree.slots);
        self.give_memory_back();
        unless_full(self.fold_beyond_budget())
    }

    /// The log has been replayed. Changes may take more than the buffer now: what was written back
    /// since the last checkpoint is changes again. Writing them back is left to the groups to come,
    /// so that opening need not wait for it.
    pub(crate) fn end_replay(&mut self) -> Result<(), Error> {
        self.keep_house_in_replay()?;
        self.dirty.lend(match self.options.paper {
            Some(_) => 0,
            None => self.tree.memory.delta_bytes(),
        });
        self.give_memory_back();
        self.tree.memory.give_up_kept(&self.tree.slots);
        self.show_deletions();
        Ok(())
    }

    /// The log goes on after what was replayed, in a new opening. What was replayed may have been
    /// written by a process that was killed before it made it durable: readers see it from here on,
    /// and what is durable next must not stand behind a gap.
    pub(crate) fn begin_log(&mut self) -> Result<(), Error> {
        self.log.begin(&*self.tree.storage)
    }

    /// Changes the delta of the leaf of `key`.
    fn change_leaf(
        &mut self,
        key: &[u8],
        position: u64,
        change: impl FnOnce(&mut Delta),
    ) -> Result<(), Error> {
        let id = self.tree.leaf_of(key)?;
        self.change_delta(id, position, change);
        Ok(())
    }

    /// Changes the delta of a leaf.
    fn change_delta(&mut self, id: NodeId, position: u64, change: impl FnOnce(&mut Delta)) {
        let mut node = self.tree.slots.get(id).node.write();
        self.dirty.note(id, &mut node, position);
        let is_overgrown = self
            .tree
            .change_delta(&mut node, self.options.node_bytes, change);
        drop(node);
        self.note_change(id, is_overgrown);
    }

    /// Changes the delta of a leaf by something that stands earlier in the log, at `position`, than
    /// what other leaves have.
    fn change_late(&mut self, id: NodeId, position: u64, change: impl FnOnce(&mut Delta)) {
        let mut node = self.tree.slots.get(id).node.write();
        self.dirty.note_late(id, &mut node, position);
        let is_overgrown = self
            .tree
            .change_delta(&mut node, self.options.node_bytes, change);
        drop(node);
        self.note_change(id, is_overgrown);
    }

    fn note_change(&mut self, id: NodeId, is_overgrown: bool) {
        if is_overgrown {
            self.dirty.note_overgrown(id);
        }
        self.checkpointer.note_changes(1);
    }

    /// Makes changes of one leaf again that are in the log, the newest of each key, at `position`
    /// or later. Nobody has read yet.
    pub(crate) fn replay_rows(&mut self, leaf: NodeId, rows: &[Row<'_>], position: u64) {
        self.change_delta(leaf, position, |delta| {
            if delta.is_empty() {
                *delta = Delta::of_newest(rows);
                return;
            }
            for row in rows {
                delta.insert(row.key, row.seq, row.kind, row.value, row.seq);
            }
        });
        self.checkpointer.note_changes(rows.len() as u64 - 1);
    }

    /// Readers see everything up to `seq`.
    pub(crate) fn publish(&self, seq: Seq) {
        self.readers.publish(seq);
    }

    /// Refuses to go on when numbers of nodes may run out.
    fn has_ids_left(&self) -> Result<(), Error> {
        match self.nodes.has_ids_left(IDS_SPARE) {
            true => Ok(()),
            false => Err(Error::Full {
                len_bytes: self.tree.storage.len_bytes(),
            }),
        }
    }

    /// A number for a new node. [`has_ids_left`](Self::has_ids_left) was asked.
    fn new_id(&mut self) -> NodeId {
        let id = self.nodes.take_id();
        self.tree.set_nodes(self.nodes.end());
        id
    }

    /// A node is gone: its slot is empty, its place and its number are free.
    fn forget(&mut self, id: NodeId) {
        self.empty(id);
        self.nodes.free_id(id);
    }

    /// A node has nothing any more.
    fn empty(&mut self, id: NodeId) {
        let before = std::mem::take(&mut *self.tree.slots.get(id).node.write());
        self.tree.memory.drop_content(before.content_bytes());
        if let Some(delta) = &before.delta {
            self.tree.memory.change_delta(delta.memory_bytes(), 0);
        }
        self.relocate(id, Location::NOWHERE);
        self.release_patches(id, &before);
    }

    /// The image of a node is here now; where it was is free.
    fn relocate(&mut self, id: NodeId, location: Location) {
        let before = self.nodes.relocate(id, location);
        self.segments.release(before);
    }

    /// Gives up nodes that can be read again, until the memory is within its bound. Whatever writes
    /// many nodes calls this on the way: each of them stays in memory otherwise, until the next
    /// batch ends.
    pub(crate) fn give_memory_back(&mut self) {
        self.unpin_landed();
        self.tree.memory.evict(&self.tree.slots);
    }

    /// Nodes whose images are on the storage can be read again, so they need not stay in memory.
    fn unpin_landed(&mut self) {
        for (id, location) in self.segments.take_landed() {
            if self.nodes.is_changed(id) {
                continue;
            }
            self.patch_landed(id, location);
            let mut node = self.tree.slots.get(id).node.write();
            if node.location == location {
                node.is_pinned = false;
            }
        }
    }
}

/// What stands in the log where a batch should be is none.
fn not_a_batch() -> Error {
    Error::Damaged {
        what: "a batch in the log".to_owned(),
        offset: crate::layout::LOG_OFFSET,
    }
}

/// Takes a lack of space for a reason to do less.
pub(crate) fn unless_full(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Full { .. }) => Ok(()),
        other => other,
    }
}
