//! The tree as readers see it: from a key down to its leaf, and the content of the leaf.
//!
//! Any number of threads read; one at a time writes ([`crate::writer`]). A reader holds a node's
//! lock only while it inspects the node. The version of the structure is odd while the structure
//! changes (a split, a removed node), and even otherwise. A reader compares the version when it
//! holds the lock of the leaf, and descends again if the version has changed; while the lock is
//! held, no change of that leaf can begin. A reader must never answer from a leaf that no longer
//! covers the key, and never do I/O with a lock held.

mod ahead;
pub(crate) mod blob;
pub(crate) mod deletions;
pub(crate) mod inner;
mod load;
mod memory;
pub(crate) mod patch;
pub(crate) mod slots;

use crate::error::Error;
use crate::layout::Geometry;
use crate::node::{Delta, Found, Image, Kind, NodeId, Rows, Seq, View, view};
use crate::planted::{Bug, is_planted};
use crate::segments::{Generations, Spot};
use crate::storage::Storage;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use deletions::{Deletions, Seen};
use inner::Inner;
use load::{ATTEMPTS_MAX, AtHand, Loaded};
pub(crate) use memory::Memory;
use patch::placed;
use slots::{Content, Node, Slot, Slots};
use std::sync::{Arc, OnceLock};

/// Maximum number of levels of a tree; more indicate a cycle.
const LEVELS_MAX: usize = 16;

/// Maximum memory of a delta, as a multiple of the length of a leaf image; a larger delta is
/// written back early.
const DELTA_NODES_MAX: usize = 8;

/// The tree.
pub(crate) struct Tree {
    pub storage: Arc<dyn Storage>,
    pub geometry: Geometry,
    pub slots: Slots,
    pub generations: Arc<Generations>,
    root: AtomicU32,
    /// Exclusive upper bound of the node ids.
    nodes: AtomicU32,
    /// Version of the structure. It is odd while the structure changes, and stays odd forever once
    /// a change has panicked.
    structure: AtomicU64,
    /// Message of the panic that a thread raised while it changed the index.
    poison: OnceLock<String>,
    /// Sequence number below which readers can lack versions, because the leaves that had these
    /// versions were removed.
    floor: AtomicU64,
    /// Range deletions that some leaves have not applied yet.
    pub deletions: Deletions,
    pub memory: Memory,
    /// Number of images read from the storage.
    image_reads: AtomicU64,
}

/// Result of looking up a key in a leaf.
enum Answer {
    Value,
    Nothing,
    /// The image at this spot, one of several images of a leaf with patches, has to be read first.
    Unread(Spot),
    /// The value is out of line; the reference to it is in the buffer.
    OutOfLine,
    /// The version that this reader would see has been dropped.
    TooOld,
}

/// Path from the root to a leaf: the inner nodes, and in each of them the index of the next child.
pub(crate) type Path = Vec<(NodeId, Arc<Inner>, usize)>;

impl Tree {
    /// Creates a tree; the caller sets its root.
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        geometry: Geometry,
        memory: Memory,
        generations: Generations,
    ) -> Tree {
        Tree {
            storage,
            geometry,
            slots: Slots::default(),
            generations: Arc::new(generations),
            root: AtomicU32::new(0),
            nodes: AtomicU32::new(0),
            structure: AtomicU64::new(0),
            poison: OnceLock::new(),
            floor: AtomicU64::new(0),
            deletions: Deletions::default(),
            memory,
            image_reads: AtomicU64::new(0),
        }
    }

    pub(crate) fn root(&self) -> NodeId {
        self.root.load(Ordering::Acquire)
    }

    pub(crate) fn set_root(&self, root: NodeId) {
        self.root.store(root, Ordering::Release);
    }

    /// Returns true if a node with this id may exist. Because of this check, an id that was read
    /// from damaged bytes gets no slot.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        node < self.nodes.load(Ordering::Acquire)
    }

    /// Sets the exclusive upper bound of the node ids.
    pub(crate) fn set_nodes(&self, nodes: NodeId) {
        self.nodes.store(nodes, Ordering::Release);
    }

    /// Returns the number of images read from the storage so far.
    pub(crate) fn image_reads(&self) -> u64 {
        self.image_reads.load(Ordering::Relaxed)
    }

    /// Changes the structure: readers that are descending start again.
    pub(crate) fn restructure<T>(&self, change: impl FnOnce() -> T) -> T {
        let before = self.structure.fetch_add(1, Ordering::AcqRel);
        assert!(before.is_multiple_of(2), "one change at a time");
        let result = change();
        self.structure.fetch_add(1, Ordering::AcqRel);
        result
    }

    /// Notes that the versions of a removed leaf are lost: a reader at a sequence number below
    /// `floor` might not find them. Must be called during the change of the tree structure that
    /// removes the leaf.
    pub(crate) fn forget_before(&self, floor: Seq) {
        self.floor.fetch_max(floor, Ordering::AcqRel);
    }

    /// Returns true if a leaf still has all versions that a reader at `seq` sees. If this leaf has
    /// replaced other leaves, it must also have the versions of those leaves.
    fn is_kept(&self, node: &Node, seq: Seq) -> bool {
        let delta_floor = node.delta.as_ref().map_or(0, |delta| delta.floor());
        let floor = self.floor.load(Ordering::Acquire);
        seq >= node.floor.max(delta_floor).max(floor)
    }

    /// Changes the delta of a leaf, and accounts for the delta's memory. A delta may become empty,
    /// because the image already has the deletions of all keys of the delta. An empty delta is
    /// removed: it has nothing to write, and no key that leads to the leaf. Returns true if the
    /// delta has become too long for fast lookups and insertions, given images of `node_bytes`.
    /// Only the writer calls this.
    pub(crate) fn change_delta(
        &self,
        node: &mut Node,
        node_bytes: usize,
        change: impl FnOnce(&mut Delta),
    ) -> bool {
        let before = node.delta.as_ref().map_or(0, |delta| delta.memory_bytes());
        let mut delta = node.delta.take().unwrap_or_default();
        change(&mut delta);
        let after = match delta.is_empty() {
            true => {
                node.floor = node.floor.max(delta.floor());
                0
            }
            false => {
                let bytes = delta.memory_bytes();
                node.delta = Some(delta);
                bytes
            }
        };
        self.memory.change_delta(before, after);
        let limit = node_bytes * DELTA_NODES_MAX;
        before <= limit && limit < after
    }

    /// Marks the tree as poisoned, because a thread panicked while it changed the index: from now
    /// on every call fails. Readers that are descending find that the structure has changed.
    pub(crate) fn poison(&self, reason: &str) {
        // Only the first reason counts.
        let _ = self.poison.set(reason.to_owned());
        self.structure.fetch_or(1, Ordering::AcqRel);
    }

    /// Returns an error once a change has panicked.
    pub(crate) fn check_sound(&self) -> Result<(), Error> {
        match self.poison.get() {
            Some(reason) => Err(Error::Poisoned {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Waits until the structure is not being changed, and returns its version.
    fn settled(&self) -> Result<u64, Error> {
        loop {
            let version = self.structure.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                return Ok(version);
            }
            self.check_sound()?;
            crate::sync::spin_loop();
        }
    }

    /// Calls `look` with the inner node of this id; returns `None` for a leaf. Reads the node if it
    /// is not in memory.
    fn at_inner<T>(
        &self,
        id: NodeId,
        mut look: impl FnMut(&Arc<Inner>) -> T,
    ) -> Result<Option<T>, Error> {
        let slot = self.slots.get(id);
        loop {
            {
                let node = slot.node.read();
                match &node.content {
                    Content::Inner(inner) => {
                        slot.touch();
                        return Ok(Some(look(inner)));
                    }
                    Content::Leaf(_) => return Ok(None),
                    // This is a leaf: an inner node that is not in memory always has an image and
                    // never has a delta.
                    Content::Absent if node.location.is_nowhere() || node.delta.is_some() => {
                        return Ok(None);
                    }
                    Content::Absent => {}
                }
            }
            match self.load(id, slot)?.map(|loaded| loaded.content) {
                Some(Content::Inner(inner)) => return Ok(Some(look(&inner))),
                Some(Content::Leaf(_)) => return Ok(None),
                Some(Content::Absent) | None => {}
            }
        }
    }

    /// Descends to the leaf that `place` designates, and calls `look` with the leaf while holding
    /// the lock of the leaf.
    pub(crate) fn at_leaf<T>(
        &self,
        place: LeafQuery<'_>,
        mut look: impl FnMut(NodeId, &Slot, &Node) -> T,
    ) -> Result<T, Error> {
        loop {
            let version = self.settled()?;
            let Some(id) = self.descend(place, version, &mut |_, _| {})? else {
                continue;
            };
            let slot = self.slots.get(id);
            let node = slot.node.read();
            if self.structure.load(Ordering::Acquire) == version || is_planted(Bug::LooksOnce) {
                return Ok(look(id, slot, &node));
            }
        }
    }

    /// Returns the leaf that `place` designates, or `None` if the structure has changed during the
    /// descent. Calls `step` with every inner node on the path, and with the index of that node's
    /// child on the path.
    fn descend(
        &self,
        place: LeafQuery<'_>,
        version: u64,
        step: &mut dyn FnMut(&Inner, usize),
    ) -> Result<Option<NodeId>, Error> {
        let mut id = self.root();
        let mut level = None;
        for _ in 0..LEVELS_MAX {
            // The children of an inner node of level 1 are leaves, so they need not be read.
            if level == Some(1) {
                return Ok(Some(id));
            }
            let mut down = |inner: &Arc<Inner>| {
                let is_right = level.is_none_or(|above| inner.level() + 1 == above);
                is_right.then(|| {
                    let index = place.index(inner);
                    step(inner, index);
                    (inner.level(), inner.child(index))
                })
            };
            let (own, child) = match self.at_inner(id, &mut down) {
                Ok(Some(Some(next))) => next,
                Ok(None) if level.is_none() => return Ok(Some(id)),
                Ok(_) => return self.unless_changed(version, wrong_level(id)),
                Err(error) => return self.unless_changed(version, error),
            };
            (level, id) = (Some(own), child);
        }
        self.unless_changed(version, wrong_level(id))
    }

    fn unless_changed<T>(&self, version: u64, error: Error) -> Result<Option<T>, Error> {
        if self.structure.load(Ordering::Acquire) == version {
            Err(error)
        } else {
            Ok(None)
        }
    }

    /// Returns the path to the leaf of `key`, and the leaf. Only the writer calls this.
    pub(crate) fn path(&self, key: &[u8]) -> Result<(Path, NodeId), Error> {
        let mut path = Path::new();
        let mut id = self.root();
        while path.last().is_none_or(|(_, inner, _)| inner.level() > 1) {
            let level = path.last().map(|(_, inner, _)| inner.level());
            let inner = match self.at_inner(id, Arc::clone)? {
                Some(inner) if level.is_none_or(|above| inner.level() + 1 == above) => inner,
                None if level.is_none() => break,
                _ => return Err(wrong_level(id)),
            };
            let index = inner.find(key);
            let child = inner.child(index);
            path.push((id, inner, index));
            id = child;
        }
        Ok((path, id))
    }

    /// Returns the leaf of `key`. Only the writer calls this.
    pub(crate) fn leaf_of(&self, key: &[u8]) -> Result<NodeId, Error> {
        let version = self.settled()?;
        let leaf = self.descend(LeafQuery::Of(key), version, &mut |_, _| {})?;
        Ok(leaf.expect("only the one that changes changes the structure"))
    }

    /// Returns the least key above the leaf of `key`, or `None` for the last leaf. Only the writer
    /// calls this.
    pub(crate) fn upper_edge(&self, key: &[u8]) -> Result<Option<Box<[u8]>>, Error> {
        let mut edge = None;
        for (_, inner, index) in &self.path(key)?.0 {
            if index + 1 < inner.len() {
                edge = Some(inner.separator(index + 1).into());
            }
        }
        if edge.as_deref().is_some_and(|edge: &[u8]| edge <= key) {
            return Err(out_of_order());
        }
        Ok(edge)
    }

    /// Returns the image of a leaf, or `None` if the leaf has no image. Only the writer calls this.
    pub(crate) fn leaf_image(&self, id: NodeId) -> Result<Option<Image>, Error> {
        let slot = self.slots.get(id);
        loop {
            {
                let node = slot.node.read();
                match &node.content {
                    Content::Leaf(image) => return Ok(Some(image.clone())),
                    Content::Absent if node.location.is_nowhere() => return Ok(None),
                    Content::Absent => {}
                    Content::Inner(_) => {
                        return Err(Error::Damaged {
                            what: format!("node {id}, which should be a leaf"),
                            offset: self.offset(node.location),
                        });
                    }
                }
            }
            if let Some(Loaded {
                content: Content::Leaf(image),
                ..
            }) = self.load(id, slot)?
            {
                return Ok(Some(image));
            }
        }
    }

    /// Reads the value of `key` as `reader` sees it. The value replaces the content of `out`.
    /// Returns whether the key has a value, or `Ok(None)` if the version that the reader would see
    /// has been dropped.
    pub(crate) fn get(
        &self,
        key: &[u8],
        reader: AsOf,
        out: &mut Vec<u8>,
    ) -> Result<Option<bool>, Error> {
        let mut at_hand = AtHand::new(&self.generations);
        for _ in 0..ATTEMPTS_MAX {
            let (id, answer) = self.at_leaf(LeafQuery::Of(key), |id, slot, node| {
                slot.touch();
                let answer = match self.is_kept(node, reader.seq()) {
                    true => {
                        let deleted = self.deletions.seen_at(reader.seq()).of_key(key);
                        look_up(node, key, (reader, deleted), &at_hand, out)
                    }
                    false => Answer::TooOld,
                };
                (id, answer)
            })?;
            match answer {
                Answer::Value => return Ok(Some(true)),
                Answer::Nothing => return Ok(Some(false)),
                Answer::TooOld => return Ok(None),
                Answer::Unread(spot) => self.fetch(id, spot, &mut at_hand)?,
                Answer::OutOfLine => {
                    if self.read_blob(out)? {
                        return Ok(Some(true));
                    }
                    // The value was freed meanwhile, so the key has a newer version: the lookup is
                    // retried.
                }
            }
        }
        Err(Error::Damaged {
            what: "a value out of line, which cannot be read".to_owned(),
            offset: 0,
        })
    }

    /// Returns true if a batch after `since` has changed `key`. Returns `None` if the versions
    /// needed for the answer have been dropped. The result can be false for a key that was absent
    /// at `since`, existed in between, and is absent now.
    pub(crate) fn has_changed(&self, key: &[u8], since: Seq) -> Result<Option<bool>, Error> {
        let mut at_hand = AtHand::new(&self.generations);
        loop {
            let looked = self.at_leaf(LeafQuery::Of(key), |id, _, node| {
                let is_kept = self.is_kept(node, since);
                let deleted = self.deletions.seen_at(Seq::MAX).of_key(key);
                let newest = newest_in(node, key, deleted, &at_hand).ok_or(id)?;
                Ok(is_kept.then_some(newest > since))
            })?;
            match looked {
                Ok(changed) => return Ok(changed),
                Err(id) => at_hand.whole = self.load(id, self.slots.get(id))?,
            }
        }
    }

    /// Appends to `out` the rows of one leaf that a scan sees, and returns where the scan
    /// continues.
    pub(crate) fn scan_leaf(&self, scan: &LeafScan<'_>, out: &mut Rows) -> Result<Next, Error> {
        let mut at_hand = AtHand::new(&self.generations);
        loop {
            let version = self.settled()?;
            let mut edge = None;
            let mut step = |inner: &Inner, index: usize| {
                let beside = if scan.view.is_reverse {
                    index
                } else {
                    index + 1
                };
                if beside > 0 && beside < inner.len() {
                    edge = Some(Box::from(inner.separator(beside)));
                }
            };
            let Some(id) = self.descend(scan.place, version, &mut step)? else {
                continue;
            };
            let slot = self.slots.get(id);
            let looked = {
                let node = slot.node.read();
                let is_changed = self.structure.load(Ordering::Acquire) != version;
                if is_changed && !is_planted(Bug::LooksOnce) {
                    continue;
                }
                slot.touch();
                if !self.is_kept(&node, scan.view.seq) {
                    return Ok(Next::TooOld);
                }
                let deletions = self.deletions.seen_at(scan.view.seq);
                view_leaf(&node, scan, &deletions, &at_hand, out)
            };
            match looked {
                Some(true) => return Ok(Next::Here),
                Some(false) => {
                    return match edge {
                        None => Ok(Next::Nothing),
                        Some(edge) if scan.place.goes_on(&edge, scan.view.is_reverse) => {
                            Ok(Next::Beyond(edge))
                        }
                        Some(_) => Err(out_of_order()),
                    };
                }
                None => at_hand.whole = self.load(id, slot)?,
            }
        }
    }
}

fn wrong_level(id: NodeId) -> Error {
    Error::Damaged {
        what: format!("node {id}, which has a wrong level"),
        offset: 0,
    }
}

/// Error for separators that would lead a scan in a cycle.
fn out_of_order() -> Error {
    Error::Damaged {
        what: "inner nodes whose keys do not fit those above them".to_owned(),
        offset: 0,
    }
}

/// Sequence number at which a reader reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AsOf {
    /// A snapshot: all versions that it sees are kept.
    Held(Seq),
    /// A reader that only loaded the visible sequence number and holds no snapshot. When a leaf is
    /// rewritten, the writer can drop versions that are visible only at this sequence number.
    Passing(Seq),
}

impl AsOf {
    fn seq(self) -> Seq {
        match self {
            AsOf::Held(seq) | AsOf::Passing(seq) => seq,
        }
    }
}

/// Designation of a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeafQuery<'a> {
    /// The leaf that this key belongs to.
    Of(&'a [u8]),
    /// The leaf that covers the greatest possible key below this key.
    Before(&'a [u8]),
    /// The leaf with the greatest keys.
    Last,
}

impl LeafQuery<'_> {
    fn index(&self, inner: &Inner) -> usize {
        match self {
            LeafQuery::Of(key) => inner.find(key),
            LeafQuery::Before(key) => {
                let index = inner.find(key);
                // The first separator is never compared.
                let is_at = index > 0 && inner.separator(index) == *key;
                index - usize::from(is_at)
            }
            LeafQuery::Last => inner.len() - 1,
        }
    }

    /// Returns true if a scan makes progress when it continues at `edge`, the upper end of the leaf
    /// that this query designates (in reverse, the lower end). In a damaged tree the ends can be
    /// out of order. Without this check the scan would then loop.
    fn goes_on(&self, edge: &[u8], is_reverse: bool) -> bool {
        match self {
            LeafQuery::Of(key) if is_reverse => edge <= *key,
            LeafQuery::Of(key) => edge > *key,
            LeafQuery::Before(key) => edge < *key,
            LeafQuery::Last => true,
        }
    }
}

/// Query of a scan to one leaf.
pub(crate) struct LeafScan<'a> {
    pub place: LeafQuery<'a>,
    pub view: View<'a>,
}

/// Continuation of a scan after a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The same leaf has more rows after the last one returned.
    Here,
    /// The scan continues in the neighbouring leaf: from this key on, or, in reverse, below this
    /// key.
    Beyond(Box<[u8]>),
    /// This was the last leaf.
    Nothing,
    /// The version that this reader would see has been dropped.
    TooOld,
}

/// Looks up a key in a leaf for a reader. `deleted` is the sequence number of a range deletion that
/// covers the key and that the leaf might not have applied. The deletion hides each version in the
/// delta that is older than the deletion, and all versions in an image that is older.
fn look_up(
    node: &Node,
    key: &[u8],
    (reader, deleted): (AsOf, Option<Seq>),
    at_hand: &AtHand<'_>,
    out: &mut Vec<u8>,
) -> Answer {
    if matches!(reader, AsOf::Passing(seq) if seq < node.consolidated_at) {
        return Answer::TooOld;
    }
    let seq = reader.seq();
    if let Some(delta) = &node.delta {
        let is_older = |deleted| delta.seq_of(key, seq).is_some_and(|own| own < deleted);
        match delta.find(key, seq) {
            Found::Put(_) | Found::Deleted if deleted.is_some_and(is_older) => {
                return Answer::Nothing;
            }
            Found::Put(value) => {
                out.clear();
                out.extend_from_slice(value);
                return Answer::Value;
            }
            Found::Deleted => return Answer::Nothing,
            Found::Nothing => {}
        }
    }
    let asked = Asked { key, seq, deleted };
    match at_hand.image_of(node) {
        Some(Some(image)) => look_in(image, &asked, out).unwrap_or(Answer::Nothing),
        Some(None) => Answer::Nothing,
        None => look_in_pieces(node, &asked, at_hand, out),
    }
}

/// Query for a key in the images of a leaf.
struct Asked<'a> {
    key: &'a [u8],
    seq: Seq,
    /// Sequence number of the newest range deletion that covers the key and that the image might
    /// not have applied; `None` if there is none.
    deleted: Option<Seq>,
}

fn look_in_pieces(
    node: &Node,
    asked: &Asked<'_>,
    at_hand: &AtHand<'_>,
    out: &mut Vec<u8>,
) -> Answer {
    for location in node.places_of(asked.key) {
        let image = match placed(node.unflushed(), location) {
            Some(image) => image,
            None => match at_hand.piece(location) {
                Ok(image) => image,
                Err(spot) => return Answer::Unread(spot),
            },
        };
        if let Some(answer) = look_in(image, asked, out) {
            return answer;
        }
    }
    Answer::Nothing
}

/// Looks up a key in an image; returns `None` if the image does not have the key.
fn look_in(image: &Image, asked: &Asked<'_>, out: &mut Vec<u8>) -> Option<Answer> {
    let (kind, value) = image.find(asked.key, asked.seq)?;
    if asked.deleted.is_some_and(|deleted| image.lsn() < deleted) {
        return Some(Answer::Nothing);
    }
    out.clear();
    out.extend_from_slice(value.as_slice());
    Some(match kind {
        Kind::Put => Answer::Value,
        Kind::Blob => Answer::OutOfLine,
        Kind::Delete => Answer::Nothing,
    })
}

/// Returns the sequence number of the newest change of `key`: the newest change in the leaf, or the
/// range deletion `deleted` if that is newer and not in the leaf yet. Returns `None` if the image
/// has to be read first.
fn newest_in(node: &Node, key: &[u8], deleted: Option<Seq>, at_hand: &AtHand<'_>) -> Option<Seq> {
    let in_delta = node.delta.as_ref().and_then(|delta| delta.newest_seq(key));
    if in_delta.is_some() {
        return in_delta.max(deleted);
    }
    let Some(image) = at_hand.image_of(node)? else {
        return Some(deleted.unwrap_or(0));
    };
    let row = image.lower_bound(key);
    let is_there = row < image.rows() && image.compare_key(row, key).is_eq();
    let deleted = deleted.filter(|deleted| image.lsn() < *deleted);
    let in_image = if is_there { image.seq(row) } else { 0 };
    Some(in_image.max(deleted.unwrap_or(0)))
}

/// Adds the rows of a leaf to a scan. Returns whether the leaf has more rows, or `None` if the
/// image has to be read first.
fn view_leaf(
    node: &Node,
    scan: &LeafScan<'_>,
    deletions: &Seen,
    at_hand: &AtHand<'_>,
    out: &mut Rows,
) -> Option<bool> {
    let image = at_hand.image_of(node)?;
    let delta = deletions.over(node.delta.as_deref(), image);
    Some(view(image, delta.as_deref(), &scan.view, out))
}
