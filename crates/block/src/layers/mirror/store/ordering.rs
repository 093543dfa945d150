//! The orderer of a logged disk: while clients are idle, appends again what lies in many pieces, in
//! the order of the volume. What was written at random lies in the order of its writing, and a disk
//! reads that in sequence at the rate of its seeks.
//!
//! It gives way to clients between two requests of at most 1 MiB, and to everything else that the
//! side has to do. It must never take space that the log or cleaning may need. When everything is
//! in order, it must do no I/O, so that the disk can sleep.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Payload;

use super::Store;
use super::destage::RETRY_AFTER;
use super::segments::{Live, Segments, Window};
use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::error::IoError;

/// Number of blocks that are put in order between two commits, 64 MiB.
const UNCOMMITTED_BLOCKS_MAX: u64 = 16 << 10;
/// Maximum time for which a window that is being put in order waits for clients to be idle again.
/// Meanwhile its segments cannot become free.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time for which another side is waited for with each part of a window.
const PEER_PATIENCE: Duration = Duration::from_millis(500);
/// Number of commits in a row, and the time, after which cleaning is given up that gains no
/// segment. A disk may need minutes to empty the segments of a batch.
const IN_VAIN_MAX: u32 = 3;
const IN_VAIN_TIME_MAX: Duration = Duration::from_secs(600);
/// Interval at which the orderer checks whether the side has other work, and, while a window waits,
/// whether clients are idle and space is short.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Function that returns for how long clients have been idle, and no other work of the volume has
/// used the sides.
type IdleTime = dyn Fn() -> Duration;

/// When idle time is used.
pub(super) struct Idle {
    /// Idle time that must have passed; `None` if it is never used. With 0, for tests, the side is
    /// put in order beside clients and other work, too.
    after: Option<Duration>,
    ask: RefCell<Rc<IdleTime>>,
}

impl Idle {
    /// Uses idle time after `after`, but not before there is a function that says how long it has
    /// lasted.
    pub(super) fn after(after: Option<Duration>) -> Idle {
        Idle {
            after,
            ask: RefCell::new(Rc::new(|| Duration::ZERO)),
        }
    }
}

impl Store {
    /// Registers the function that returns for how long clients have been idle, and no other work
    /// of the volume has used the sides.
    pub(in super::super) fn ask_for_idle_time(&self, ask: Rc<IdleTime>) {
        *self.idle.ask.borrow_mut() = ask;
    }

    /// Returns true when idle time is used to put the side in order: it is a disk, and its
    /// configuration allows that.
    pub(super) fn uses_idle_time(&self) -> bool {
        self.idle.after.is_some() && self.noticed.geometry().rotational
    }

    /// Puts the windows of the volume in order whenever clients are idle, until the store ends.
    pub(super) async fn order_for_ever(self: &Rc<Self>, segments: &Segments) {
        let mut uncommitted_blocks = 0;
        while !self.ending.get() {
            if uncommitted_blocks == 0 {
                segments.until_unjudged().await;
            }
            while let Some(wait) = self.idle_in().filter(|_| !self.ending.get()) {
                self.rt.sleep(wait).await;
            }
            let moment = segments.moment();
            let is_over = || self.ending.get();
            match self.order_more(segments, &mut uncommitted_blocks).await {
                Ok(true) => {}
                Ok(false) => self.make_room_for_order(segments).await,
                // A commit may free segments.
                Err(IoError::NoSpace) if uncommitted_blocks > 0 => {
                    uncommitted_blocks = UNCOMMITTED_BLOCKS_MAX;
                }
                Err(IoError::NoSpace) => segments.until_after(moment, is_over).await,
                Err(_) => self.rt.sleep(RETRY_AFTER).await,
            }
        }
    }

    /// Waits until there may be room for a window, and has segments cleaned while clients are idle,
    /// as long as that gains something. Otherwise returns after something was committed.
    async fn make_room_for_order(&self, segments: &Segments) {
        let is_over = || self.ending.get() || segments.may_order() || segments.dead_have_room();
        let mut most = segments.free_or_dead();
        let (mut in_vain, mut gained) = (0, self.rt.now());
        while in_vain < IN_VAIN_MAX && !is_over() {
            if self.rt.now().since(gained) >= IN_VAIN_TIME_MAX {
                break;
            }
            if self.idle_in().is_some() {
                return;
            }
            let Some(cleaning) = segments.clean_for_order() else {
                break;
            };
            let moment = segments.moment();
            let committed = segments
                .freed
                .until(|| is_over() || segments.moment() != moment);
            let committed = self.rt.timeout(PROBE_INTERVAL, committed).await.is_ok();
            drop(cleaning);
            // Each commit writes pages, and so leaves blocks to clean.
            if segments.free_or_dead() > most {
                most = segments.free_or_dead();
                (in_vain, gained) = (0, self.rt.now());
            } else if committed {
                in_vain += 1;
            }
        }
        if !is_over() {
            let moment = segments.moment();
            segments.until_after(moment, is_over).await;
        }
    }

    /// Returns how long to wait before it is checked again whether clients have been idle for long
    /// enough, and the side has no other work; `None` when both is so now.
    fn idle_in(&self) -> Option<Duration> {
        let after = self.idle.after.unwrap_or_default();
        if after.is_zero() {
            return self.mixes.get().then_some(PROBE_INTERVAL);
        }
        let idle = Rc::clone(&self.idle.ask.borrow())();
        let unused = self.rt.now().since(self.wanted.get());
        let left = after.saturating_sub(idle.min(unused));
        if !left.is_zero() {
            return Some(left);
        }
        let is_folded = self.log.index.borrow().entries().is_empty();
        let is_busy = !is_folded || self.log.is_busy() || self.mixes.get();
        is_busy.then_some(PROBE_INTERVAL)
    }

    /// Puts the next window in order if that is worth it, or commits what was put in order. Returns
    /// false when there is no room.
    async fn order_more(
        &self,
        segments: &Segments,
        uncommitted_blocks: &mut u64,
    ) -> Result<bool, IoError> {
        let may_order = segments.may_order();
        let is_some = *uncommitted_blocks > 0;
        let commits = match may_order {
            true if segments.has_unjudged() => *uncommitted_blocks >= UNCOMMITTED_BLOCKS_MAX,
            true => is_some,
            false => is_some || segments.dead_have_room(),
        };
        if commits {
            self.write_pages().await?;
            *uncommitted_blocks = 0;
            return Ok(true);
        }
        if may_order && let Some(window) = segments.judge_window().await? {
            self.order_window(segments, window, uncommitted_blocks)
                .await?;
        }
        Ok(may_order)
    }

    /// Puts a window in order. It is judged again if clients have kept the side busy meanwhile.
    async fn order_window(
        &self,
        segments: &Segments,
        window: Window<'_>,
        ordered_blocks: &mut u64,
    ) -> Result<(), IoError> {
        let is_newest = |live: &&Live| {
            let offset = segments.volume_offset(live);
            self.why_outdated(&(offset..offset + BLOCK_BYTES)).is_none()
        };
        let mut left: Vec<Live> = window.live.iter().filter(is_newest).copied().collect();
        let mut supplied = self.peer.borrow().is_some();
        while supplied && !left.is_empty() {
            if !self.goes_on(segments).await {
                return Ok(());
            }
            let count = left.len().min(segments.moved_together_max());
            let part = left.drain(..count).collect();
            let until = self.rt.now() + PEER_PATIENCE;
            let ask = |range, digests| Box::pin(self.content_for_move(range, digests, until)) as _;
            let (content, missing) = segments.read_from(&ask, part).await;
            supplied = !content.is_empty();
            // What the other side lacks is read at the end.
            left.extend(missing);
            *ordered_blocks += content.len() as u64;
            self.append_in_order(segments, content).await?;
        }
        let Some(content) = self.read_window(segments, left).await? else {
            return Ok(());
        };
        for part in segments.in_parts(content, segments.moved_together_max()) {
            if !self.goes_on(segments).await {
                return Ok(());
            }
            *ordered_blocks += part.len() as u64;
            self.append_in_order(segments, part).await?;
        }
        window.done();
        Ok(())
    }

    /// Waits until clients are idle. Returns false when that takes too long, or the store ends, or
    /// less space is free than cleaning aims for: it may need the segments of the window.
    async fn goes_on(&self, segments: &Segments) -> bool {
        let began = self.rt.now();
        loop {
            let waited = self.rt.now().since(began);
            if self.ending.get() || segments.is_below_target() || waited >= PATIENCE {
                return false;
            }
            match self.idle_in() {
                Some(wait) => self.rt.sleep(wait.min(PROBE_INTERVAL)).await,
                None => return true,
            }
        }
    }

    /// Reads blocks of a window on this side, in the order of the device. Returns `None` when
    /// clients have kept the side busy meanwhile.
    async fn read_window(
        &self,
        segments: &Segments,
        live: Vec<Live>,
    ) -> Result<Option<Vec<(Live, Payload)>>, IoError> {
        let mut content = Vec::with_capacity(live.len());
        for run in segments.runs_on_device(live) {
            if !self.goes_on(segments).await {
                return Ok(None);
            }
            let turn = self.turn_beside_commits().await;
            let read = segments.read_run(&run).await?;
            drop(turn);
            self.suspect_unread(segments, &run, &read);
            // A run is mostly gaps. Its memory must not be kept for a few blocks.
            let copies = read.into_iter().map(|(live, data)| {
                let copy = self.rt.pool().copy_of(&data.to_vec());
                (live, Payload::from(copy))
            });
            content.extend(copies);
        }
        Ok(Some(content))
    }

    /// Appends a part of a window, without entries of the log or a commit at the same time.
    async fn append_in_order(
        &self,
        segments: &Segments,
        part: Vec<(Live, Payload)>,
    ) -> Result<(), IoError> {
        let _no_commit = self.turn_for_commit().await;
        let _given_way = self.log_gives_way();
        segments.put_in_order(part).await
    }
}
