//! The cleaner of a logged side: empties segments, a piece at a time and as fast as the pace of the
//! side demands, and commits the map, which frees them. What is free is discarded on the device.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::cleaning::source::{Choice, Source, Sources};
use bimetal_rt::{Instant, Payload};

use super::Store;
use super::checksums::{self, Expected};
use super::destage::RETRY_AFTER;
use super::segments::{Batch, FromPeer, Live, Segments};
use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::error::IoError;

/// Number of blocks that are moved together at least, so that a disk seeks rarely.
const PIECE_BLOCKS_MIN: u64 = 512;
/// Number of blocks of a piece with which a source is tried.
const TRIAL_BLOCKS: u64 = 32;
/// Maximum time for which another side is waited for in each piece. Most stalls of flash end
/// earlier, and in less time than a disk needs to read a piece.
const PEER_PATIENCE: Duration = Duration::from_millis(500);
/// Number of blocks that are read from a disk before its log has a turn.
const READ_TOGETHER: usize = 32;
/// Number of blocks that are written to a disk before its log has a turn.
const WRITTEN_TOGETHER: usize = 1024;
/// Maximum time for which cleaning waits for the log to have its turn.
const TURN_MAX: Duration = Duration::from_millis(50);

impl Store {
    /// Starts the tasks of a logged side that work beside others until the store ends.
    pub(super) fn begin_cleaning(self: &Rc<Self>, segments: &Rc<Segments>) {
        let of = || (Rc::clone(self), Rc::clone(segments));
        let (counter, cleaner, discarder, orderer) = (of(), of(), of(), of());
        self.tasks
            .spawn(async move { counter.0.count_map_beside_others(&counter.1).await });
        self.tasks
            .spawn(async move { cleaner.0.clean_for_ever(&cleaner.1).await });
        self.tasks.spawn(async move {
            let (store, segments) = discarder;
            while segments.discard_next(|| store.ending.get()).await {}
        });
        if self.uses_idle_time() {
            self.tasks
                .spawn(async move { orderer.0.order_for_ever(&orderer.1).await });
        }
    }

    /// Cleans segments when it is due, until the store ends.
    async fn clean_for_ever(self: &Rc<Self>, segments: &Segments) {
        let mut sources = Sources::default();
        while !self.ending.get() {
            let is_called = || self.ending.get() || self.log.waits_for_room();
            segments.until_due(is_called).await;
            let moment = segments.moment();
            let cleaned = self.help_log(segments, &mut sources).await;
            match cleaned {
                Ok(true) => {}
                // Nothing can be freed before the log is folded or content dies, and a commit
                // follows both.
                Ok(false) => {
                    segments.until_after(moment, || self.ending.get()).await;
                }
                Err(error) => {
                    // While few segments are free, nothing is folded before cleaning has freed
                    // some. Changes that wait for space would wait forever if no cleaning succeeds.
                    if segments.must_clean_first() {
                        self.log.fail_waiting(error);
                    }
                    self.rt.sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// Does what is most likely to free segments, or to lengthen the log. Returns false when
    /// nothing could be done.
    async fn help_log(
        self: &Rc<Self>,
        segments: &Segments,
        sources: &mut Sources,
    ) -> Result<bool, IoError> {
        if self.a_commit_helps(segments) {
            self.write_pages().await?;
            return Ok(true);
        }
        if segments.due_blocks() > 0 && self.clean_batch(segments, sources).await? {
            return Ok(true);
        }
        // Folding tells which blocks are dead. A chunk that is being folded may wait for a rebuild
        // that waits for the cleaner.
        let folds = self.destaging.free() > 0 && !self.ending.get();
        Ok(folds && self.make_space().await?)
    }

    /// Returns true when changes wait for room in the log, and a commit would lengthen the log or
    /// free segments, or when few segments are free and a commit would free some.
    fn a_commit_helps(&self, segments: &Segments) -> bool {
        if segments.is_cramped() && segments.has_dead() {
            return true;
        }
        let is_at_end = || self.log.open_bytes().1 < self.log.area.window();
        let lengthens = || is_at_end() && segments.log_is_short(self.log.floor());
        self.log.waits_for_room() && (lengthens() || segments.log_waits_for_dead())
    }

    /// Empties some segments and commits the map. Returns false when there was nothing to empty and
    /// nothing to free.
    async fn clean_batch(
        self: &Rc<Self>,
        segments: &Segments,
        sources: &mut Sources,
    ) -> Result<bool, IoError> {
        // While a commit is under way, blocks count as live that nothing refers to.
        let no_commit = self.no_commit().await;
        let batch = segments.begin_batch(self.gives_up());
        drop(no_commit);
        let Some(mut batch) = batch else {
            let has_dead = segments.has_dead();
            if has_dead {
                self.write_pages().await?;
            }
            return Ok(has_dead);
        };
        while !batch.is_over() {
            if batch.wants_more() {
                self.read_next_victims(segments, &mut batch).await?;
                continue;
            }
            let is_called = || self.ending.get() || self.a_commit_helps(segments);
            segments.until_due(is_called).await;
            if self.ending.get() {
                return Ok(true);
            }
            if self.a_commit_helps(segments) {
                self.write_pages().await?;
            }
            let choice = self.choose_source(sources);
            let blocks = match choice.is_trial {
                true => TRIAL_BLOCKS,
                false => segments.due_blocks().max(PIECE_BLOCKS_MIN),
            };
            let piece = batch.take(blocks);
            let moved = self
                .move_piece(segments, &mut batch, (piece, choice.source), sources)
                .await;
            if moved == Err(IoError::NoSpace) {
                self.give_up_rest(segments, &mut batch).await?;
                break;
            }
            moved?;
            segments.release_emptied(&mut batch);
            // The log may append more.
            self.log.pump();
        }
        let has_moved = batch.has_moved();
        segments.end_batch(batch);
        let free = segments.free();
        self.write_pages().await?;
        Ok(has_moved || segments.free() > free)
    }

    /// Gives up what may be given up of the rest of a batch, and moves nothing: there is no room.
    async fn give_up_rest(
        &self,
        segments: &Segments,
        batch: &mut Batch<'_>,
    ) -> Result<(), IoError> {
        while self.gives_up() && !batch.is_over() {
            if batch.wants_more() {
                match self.read_next_victims(segments, batch).await {
                    // Pages of the checksums have no room either, and stay where they are.
                    Err(IoError::NoSpace) => {}
                    other => other?,
                }
            }
            let piece = batch.take(PIECE_BLOCKS_MIN);
            self.without_outdated(segments, piece).await?;
            segments.release_emptied(batch);
        }
        Ok(())
    }

    async fn read_next_victims(
        &self,
        segments: &Segments,
        batch: &mut Batch<'_>,
    ) -> Result<(), IoError> {
        let no_commit = self.no_commit().await;
        let pages = segments.read_next_victims(batch).await?;
        drop(no_commit);
        match &self.checksums {
            Some(checksums) => checksums.write_again(pages).await.map(|_written| ()),
            None => Ok(()),
        }
    }

    /// Chooses where to read the next piece.
    fn choose_source(&self, sources: &mut Sources) -> Choice {
        match self.peer.borrow().is_some() {
            true => sources.choose(),
            false => Choice {
                source: Source::Own,
                is_trial: false,
            },
        }
    }

    async fn move_piece(
        self: &Rc<Self>,
        segments: &Segments,
        batch: &mut Batch<'_>,
        (piece, from): (Vec<Live>, Source),
        sources: &mut Sources,
    ) -> Result<(), IoError> {
        let blocks = piece.len() as u64;
        let piece = self.without_outdated(segments, piece).await?;
        let from_peer = from == Source::Peer;
        let (mut content, left) = match from_peer {
            true => {
                let began = self.rt.now();
                let until = began + PEER_PATIENCE;
                let ask =
                    |range, digests| Box::pin(self.content_for_move(range, digests, until)) as _;
                let (content, left) = segments.read_from(&ask, piece).await;
                let time_ns = self.rt.now().since(began).as_nanos() as u64;
                match content.is_empty() {
                    true if left.is_empty() => {}
                    true => sources.note_nothing(),
                    false => sources.note(Source::Peer, content.len() as u64, time_ns),
                }
                (content, left)
            }
            false => (Vec::new(), piece),
        };
        if !left.is_empty() {
            let began = self.rt.now();
            let own = self.read_own(segments, &left).await?;
            if !from_peer {
                let time_ns = self.rt.now().since(began).as_nanos() as u64;
                sources.note(Source::Own, own.len() as u64, time_ns);
            }
            self.suspect_unread(segments, &left, &own);
            content.extend(own);
        }
        self.move_content(segments, batch, (blocks, content)).await
    }

    /// Records that blocks of a piece must be checked which are not in its content, because they
    /// could not be read.
    pub(super) fn suspect_unread(
        &self,
        segments: &Segments,
        piece: &[Live],
        content: &[(Live, Payload)],
    ) {
        let mut suspect = self.suspect.borrow_mut();
        for offset in segments.unread(piece, content) {
            suspect.insert(offset..offset + BLOCK_BYTES);
        }
    }

    /// Reads blocks of a piece on this side. On a disk, the log has a turn now and then: a disk
    /// that orders its requests by position would serve all these reads before the next entry.
    async fn read_own(
        &self,
        segments: &Segments,
        piece: &[Live],
    ) -> Result<Vec<(Live, Payload)>, IoError> {
        if !self.noticed.geometry().rotational {
            return segments.read_own(piece).await;
        }
        let mut content = Vec::with_capacity(piece.len());
        for some in piece.chunks(READ_TOGETHER) {
            let turn = self.turn_beside_commits().await;
            content.extend(segments.read_own(some).await?);
            drop(turn);
            self.log_has_turn().await;
        }
        Ok(content)
    }

    /// Appends content of a piece of `blocks` blocks. On a disk, it is appended in parts, each
    /// without entries of the log or a commit in between.
    async fn move_content(
        &self,
        segments: &Segments,
        batch: &mut Batch<'_>,
        (blocks, content): (u64, Vec<(Live, Payload)>),
    ) -> Result<(), IoError> {
        if !self.noticed.geometry().rotational {
            return segments.move_content(batch, blocks, content).await;
        }
        let mut left = blocks;
        for part in segments.in_parts(content, WRITTEN_TOGETHER) {
            let _no_commit = self.turn_for_commit().await;
            let given_way = self.log_gives_way();
            let done = part.len() as u64;
            segments.move_content(batch, done, part).await?;
            left -= done;
            // The log begins its next entries, which the disk serves before or among the next part.
            drop(given_way);
        }
        segments.move_content(batch, left, Vec::new()).await
    }

    /// Waits until the log has written an entry, if it is writing one.
    async fn log_has_turn(&self) {
        let (log, stored) = (&self.log, self.log.stored());
        let had_turn = || !log.is_writing() || log.stored() != stored;
        // The wait has a timeout, since the write in flight may hang on the device.
        let _ = self.rt.timeout(TURN_MAX, log.changed.until(had_turn)).await;
    }

    /// Returns the content of a range from another side, if it supplies this before `until`, and
    /// the blocks of the range whose content there is not what this side has, because they do not
    /// match their digests. `digests` are those of the content as its segment describes it; else
    /// the checksums have them.
    pub(super) async fn content_for_move(
        &self,
        range: Range<u64>,
        digests: Option<Vec<u32>>,
        until: Instant,
    ) -> Option<FromPeer> {
        if until <= self.rt.now() {
            return None;
        }
        let ask = self.peer.borrow().clone()?;
        let first = range.start / BLOCK_BYTES;
        let expected = match digests {
            Some(digests) => digests.into_iter().map(Expected::digest).collect(),
            None => {
                let blocks = first..range.end / BLOCK_BYTES;
                self.checksums.as_ref()?.expected(blocks).await.ok()?
            }
        };
        let is_known = |expected: &Expected| matches!(expected, Expected::Digest(_));
        if !expected.iter().all(is_known) {
            return None;
        }
        let patience = until.since(self.rt.now());
        let asked = self.rt.timeout(patience, ask(range, true)).await;
        let data = asked.ok()??;
        let differing = checksums::verify(self.digest, &data, first, &expected);
        Some(FromPeer { data, differing })
    }
}
