//! The writer: appends batches to the log, applies them to the leaves, and does the maintenance.
//!
//! One thread at a time holds the writer; no background thread exists, so maintenance proceeds in
//! step with the batches that cause it. A batch is appended to the log, then applied to the deltas
//! of its leaves, then made visible to readers. All other work ([`maintenance`]) only moves
//! existing content: deltas into images, images out of nearly empty segments, and the tail of the
//! log. The writer must never show readers a change that is not in the log, and never let a
//! checkpoint name an image that is not on the storage.
//!
//! The state of the writer is divided among owners. Each owner alone changes its part and asserts
//! the invariants of that part: the [log with its superblocks](OpenLog), the [locations of
//! nodes](NodeTable), the [leaves with changes](DirtyLeaves), [checkpoints](Checkpointer) and
//! [cleaning](Cleaner). The writer itself does the work that needs several owners: no owner reaches
//! into another.

mod checkpoint;
mod checkpointer;
mod classes;
mod clean;
mod cleaner;
mod compact;
mod consolidate;
mod deletions;
mod dirty;
mod log_space;
mod maintenance;
mod nodes;
mod open_log;
mod paper;
pub(crate) mod patch;
mod relog;
mod room;
mod structure;
mod unsettled;

pub(crate) use checkpoint::{Stored, begins_checkpoint, take_up};
pub(crate) use compact::Compacting;
pub(crate) use maintenance::WritingBack;

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
use consolidate::Scratch;
use deletions::WaitingDeletions;
use dirty::DirtyLeaves;
use nodes::NodeTable;
use open_log::OpenLog;
use std::sync::Arc;

/// Point in time from which a batch survives a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The batch is durable when its write returns.
    #[default]
    Durable,
    /// The batch is durable when its write returns. The write waits up to
    /// [`Options::group_wait_us`] for batches of other threads, so that one flush serves several
    /// batches. This saves flushes, but each write takes a little longer.
    Group,
    /// The batch becomes durable some time after its write returns, together with all batches
    /// before it; at the latest with the next durable write.
    Relaxed,
}

/// Counters of maintenance work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceStatistics {
    /// Leaves written back as whole new images.
    pub consolidations: u64,
    /// Rows in the leaves written back.
    pub consolidated_rows: u64,
    /// Number of times that a leaf was written back as a patch, which has only the changes of the
    /// leaf.
    pub patches: u64,
    /// Leaves that were split into several.
    pub splits: u64,
    /// Leaves that were merged with a neighbour.
    pub joins: u64,
    /// Long values written as blobs, outside the image of their leaf.
    pub blobs: u64,
    /// Number of leaves that applied a range deletion later than its commit, because the deletion
    /// concerned too many leaves for the commit to wait.
    pub taken_in: u64,
    /// Leaves whose changes were relogged, because the log wrapped around.
    pub relogged: u64,
    /// Bytes of images that cleaning moved.
    pub moved_bytes: u64,
    /// Segments cleaned.
    pub cleaned_segments: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Bytes of the completed checkpoints.
    pub checkpoint_bytes: u64,
    /// Number of times that the log moved to another ring: to a longer one, or to the ring at the
    /// front of the storage.
    pub log_rings: u64,
}

/// Number of node ids that must be available before the tree changes. They suffice even for a
/// change that splits a leaf and every level above the leaf.
const IDS_SPARE: usize = 1 << 12;

/// The writer of an index.
pub(crate) struct Writer {
    /// The tree that readers see.
    pub tree: Arc<Tree>,
    /// The open readers, and the sequence number at which each of them reads.
    readers: Arc<Readers>,
    /// Options that the index was opened with.
    options: Options,
    /// The log, and the superblocks that locate it.
    pub log: OpenLog,
    /// Segments that images are written to, and how much of each is in use.
    pub segments: Segments,
    /// Location of each node, the leaves that have patches, and the inner nodes that are newer than
    /// their image.
    nodes: NodeTable,
    /// Leaves with changes, and the memory that the changes are allowed to take.
    dirty: DirtyLeaves,
    /// Range deletions that some leaves might not have applied yet.
    deletions: WaitingDeletions,
    /// The checkpoint in progress, and the changes since the last checkpoint.
    checkpointer: Checkpointer,
    /// The segment that is being cleaned, and the statistics by which the next cleaning is decided.
    cleaner: Cleaner,
    /// Classification of leaves as hot or cold.
    classes: Classes,
    /// Builder of images.
    builder: Builder,
    /// Rows of the leaves being rewritten.
    scratch: Scratch,
    /// Counters of the maintenance done.
    pub statistics: MaintenanceStatistics,
}

impl Writer {
    /// Creates a writer from a superblock and the content of its checkpoint. The caller replays the
    /// log next.
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
            statistics: MaintenanceStatistics::default(),
        }
    }

    fn storage(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.tree.storage)
    }

    /// Returns the number of existing nodes, including the parts of long values.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.count()
    }

    /// Returns the sequence number of the last batch accepted.
    pub(crate) fn seq(&self) -> Seq {
        self.log.seq()
    }

    /// Makes room in the log for batches of `bytes` bytes in total.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if the log has no room and no room can be made. In this case nothing has
    /// changed.
    pub(crate) fn begin_group(&mut self, bytes: usize) -> Result<(), Error> {
        self.make_log_room(bytes)
    }

    /// Appends a batch to the log. [`begin_group`](Self::begin_group) must have made room for the
    /// batch. The batch is neither durable nor visible when this function returns.
    pub(crate) fn append_to_log(&mut self, operations: &[u8]) -> Result<Seq, Error> {
        self.log.append(&*self.tree.storage, operations)
    }

    /// Writes out all appended batches, and makes them durable if `durable` is true.
    pub(crate) fn write_log(&mut self, durable: bool) -> Result<(), Error> {
        self.log.write_out(&*self.tree.storage, durable)
    }

    /// Makes everything durable before the index is closed, and records in a superblock where the
    /// log ends. A later opening can then tell whether the log is complete.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.log.end(&*self.tree.storage)
    }

    /// Appends an image of a node to a stream; returns the location that the image will have. The
    /// changes in an image are durable in the log before the image reaches the storage. So a
    /// rebuild from images alone never finds part of a lost batch. While the log is not durable,
    /// images stay in memory as long as possible.
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

    /// Makes the log durable before an image is written to the storage. Under the paper's rules,
    /// segments have no footers and a rebuild cannot use the images, so nothing is done.
    pub(super) fn log_before_images(&mut self) -> Result<(), Error> {
        match self.options.paper {
            Some(_) => Ok(()),
            None => self.write_log(true),
        }
    }

    /// Applies the operations of a batch to the leaves. The record of the batch in the log begins
    /// at `position` or at a later position.
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
            // A relogged deletion is not applied: the checkpoint has it, or the log has it in its
            // original form.
            Operation::RangeDeleted { .. } | Operation::End => {}
        }
        Ok(())
    }

    /// Applies a range deletion from the log again during replay, before any reader exists.
    ///
    /// Two kinds of deletions concerned only a few leaves, and are applied to them immediately: a
    /// relogged deletion, and a deletion before the checkpoint that the checkpoint does not list.
    /// Neither can be applied later, because the sequence numbers of images would not show which
    /// leaves lack the deletion: an image of the checkpoint that is newer than the deletion
    /// includes it, but an image written since the replay began also looks newer and may lack it.
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
        match frame.is_relogged || had_few_leaves {
            true => self.delete_at_once(&deletion, frame.position),
            false => self.delete_range(seq, (start, end), frame.position),
        }
    }

    /// Notes that the log was replayed up to the batch `seq` and to the end of `frame`.
    pub(crate) fn replayed(&mut self, seq: Seq, frame: &Frame<'_>) {
        self.log.replayed(seq, frame.end, frame.durable_below);
        self.readers.publish(self.log.seq());
    }

    /// Keeps memory within its bound while the log is replayed. If the storage has no space to
    /// write leaves back, the changes are allowed to exceed the bound, and no error is returned: a
    /// full disk must not prevent reading and deleting.
    pub(crate) fn maintain_in_replay(&mut self) -> Result<(), Error> {
        if self.options.paper.is_none() {
            self.dirty.lend(self.options.memory_bytes / 4 * 3);
        }
        self.dirty.order_by_log(&self.tree.slots);
        self.release_memory();
        unless_full(self.consolidate_beyond_budget())
    }

    /// Ends the replay of the log. All changes since the last checkpoint are in memory again, and
    /// can take more memory than the buffer allows. Later groups of batches write these changes
    /// back, so that opening does not wait for this work.
    pub(crate) fn end_replay(&mut self) -> Result<(), Error> {
        self.maintain_in_replay()?;
        self.dirty.lend(match self.options.paper {
            Some(_) => 0,
            None => self.tree.memory.delta_bytes(),
        });
        self.release_memory();
        self.tree.memory.give_up_kept(&self.tree.slots);
        self.show_deletions();
        Ok(())
    }

    /// Begins a new incarnation of the log after the replayed part. The process that wrote the
    /// replayed part may have been killed before it made that part durable. Readers see the part
    /// from now on, so it is made durable first: a later durable batch must not follow a part of
    /// the log that a power cut can destroy.
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

    /// Applies a change to the delta of a leaf. The change is in the log at `position`, which can
    /// be before the log positions of changes that were applied earlier.
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

    /// Applies replayed changes to one leaf. `rows` are the newest changes of each key, which are
    /// in the log at `position` or later. No reader exists yet.
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

    /// Makes all batches up to `seq` visible to readers.
    pub(crate) fn publish(&self, seq: Seq) {
        self.readers.publish(seq);
    }

    /// Returns an error if the node ids might run out during the next change of the tree.
    fn has_ids_left(&self) -> Result<(), Error> {
        match self.nodes.has_ids_left(IDS_SPARE) {
            true => Ok(()),
            false => Err(Error::Full {
                len_bytes: self.tree.storage.len_bytes(),
            }),
        }
    }

    /// Allocates an id for a new node. The caller must have called
    /// [`has_ids_left`](Self::has_ids_left).
    fn new_id(&mut self) -> NodeId {
        let id = self.nodes.take_id();
        self.tree.set_nodes(self.nodes.end());
        id
    }

    /// Removes a node: empties its slot, and frees its location and its id.
    fn forget(&mut self, id: NodeId) {
        self.empty(id);
        self.nodes.free_id(id);
    }

    /// Drops the image, the delta and the patches of a node.
    fn empty(&mut self, id: NodeId) {
        let before = std::mem::take(&mut *self.tree.slots.get(id).node.write());
        self.tree.memory.drop_content(before.content_bytes());
        if let Some(delta) = &before.delta {
            self.tree.memory.change_delta(delta.memory_bytes(), 0);
        }
        self.relocate(id, Location::NOWHERE);
        self.release_patches(id, &before);
    }

    /// Records the new location of a node's image, and releases the old one.
    fn relocate(&mut self, id: NodeId, location: Location) {
        let before = self.nodes.relocate(id, location);
        self.segments.release(before);
    }

    /// Evicts nodes that can be read again, until memory is within its bound. Code that writes many
    /// nodes calls `release_memory` in between: otherwise each of these nodes stays in memory until
    /// the next batch ends.
    pub(crate) fn release_memory(&mut self) {
        self.unpin_flushed();
        self.tree.memory.evict(&self.tree.slots);
    }

    /// Unpins nodes whose images have reached the storage: such nodes can be read again.
    fn unpin_flushed(&mut self) {
        for (id, location) in self.segments.take_flushed() {
            if self.nodes.is_changed(id) {
                continue;
            }
            self.patch_flushed(id, location);
            let mut node = self.tree.slots.get(id).node.write();
            if node.location == location {
                node.is_pinned = false;
            }
        }
    }
}

/// Error for bytes in the log that are not a valid batch.
fn not_a_batch() -> Error {
    Error::Damaged {
        what: "a batch in the log".to_owned(),
        offset: crate::layout::LOG_OFFSET,
    }
}

/// Turns [`Error::Full`] into success, for a caller that can do without the failed work if the
/// storage has no space.
pub(crate) fn unless_full(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Full { .. }) => Ok(()),
        other => other,
    }
}
