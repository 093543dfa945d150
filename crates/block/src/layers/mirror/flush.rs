//! Flush: when a flush completes, every change acknowledged before the flush is durable.
//!
//! With logs, one durable side is enough by default: a flush completes when this side has all
//! changes before the flush and has flushed them. The other sides follow at their own pace, and
//! their superblocks say that a peer may be ahead. A hanging side therefore does not delay the
//! flush. After a crash, bare devices cannot show which of them is ahead, so over bare devices a
//! flush waits for all healthy sides.

use std::cell::RefCell;
use std::rc::Rc;

use super::config::Acknowledge;
use super::shared::Shared;
use super::side::{Side, add};
use super::store::Store;
use crate::error::IoError;
use crate::request::{IoResult, Reply};

impl Shared {
    /// Makes every change that was admitted before the call durable.
    ///
    /// If a side stops being healthy during the flush, the flush no longer waits for that side. A
    /// side whose flush fails has lost an unknown part of its unflushed content, so it is ejected;
    /// but if it is the last healthy side, the client gets the error.
    pub(super) async fn flush(self: &Rc<Self>) -> IoResult {
        self.check_readable()?;
        if self.is_logged() {
            self.flush_up_to(self.admission.next_number()).await?;
            return Ok(Reply::Done);
        }
        self.drain_and_flush().await
    }

    /// Makes every change below the sequence number `boundary` durable on the first side that can
    /// do so, or, if so configured, on all healthy and joining sides.
    pub(super) async fn flush_up_to(self: &Rc<Self>, boundary: u64) -> Result<(), IoError> {
        let failures = |side: &Side| side.failed_flushes.get();
        let failed_before: Vec<u64> = self.sides.numbered().map(failures).collect();
        let _waiting = self.flushes.wait(boundary, self.rt.now());
        for side in 0..self.sides.len() {
            self.want_flushed(side, boundary);
            self.pump(side);
        }
        self.flushes
            .changed
            .until_some(|| self.outcome_of_flush(boundary, &failed_before))
            .await?;
        self.flushes.done_below(boundary);
        Ok(())
    }

    /// Returns the outcome of a flush up to `boundary`; `None` while it is not yet known. `before`
    /// holds the number of failed flushes of each side when this flush began.
    fn outcome_of_flush(&self, boundary: u64, before: &[u64]) -> Option<Result<(), IoError>> {
        if self.is_durable(boundary) {
            return Some(Ok(()));
        }
        // A side that was added after the flush began is not in `before`. Its number of failures
        // was 0 at that time.
        let has_failed = |side: &Side| {
            let failed = before.get(side.index).copied().unwrap_or(0);
            side.failed_flushes.get() != failed
        };
        let may_succeed =
            |side: &&Side| side.durable.get() && side.is_healthy() && !has_failed(side);
        if self.sides.iter().any(|side| may_succeed(&side)) {
            return None;
        }
        let failed = |side: &&Side| has_failed(side);
        let failed = self.sides.iter().find(failed);
        Some(Err(
            failed.map_or(IoError::Offline, |side| side.flush_error.get())
        ))
    }

    /// Returns true when every change below the sequence number `boundary` will be found after any
    /// crash from now on (T2).
    fn is_durable(&self, boundary: u64) -> bool {
        let has = |side: &Side| {
            let store = side.store();
            store.is_some_and(|store| store.complete_durable() >= boundary)
        };
        let holds = |side: &&Side| {
            let counts = side.durable.get() && side.is_healthy();
            counts && has(side) && self.would_be_asked(side.index)
        };
        // A side with ranges known to be out of sync must not be the only holder of a change.
        let is_sound = |side: &Side| side.out_of_sync.is_empty();
        let first = self.sides.iter().filter(holds).any(is_sound);
        let any = self.sides.iter().any(|side| holds(&side));
        let all = || {
            let mut counted_on = self.sides.iter().filter(|side| side.is_counted_on());
            counted_on.all(|side| has(side) || !side.durable.get())
        };
        let early = self.acknowledge == Acknowledge::First && self.peers_know();
        self.membership.is_marked() && (first && early || any && all())
    }

    /// Returns true when recovery after a crash would use the content of a side. This is false for
    /// a side that has just joined, because its superblock still says that the side is being
    /// rebuilt. Its superblock is rewritten after those of the other sides, and then names the side
    /// as a member.
    pub(super) fn would_be_asked(&self, index: usize) -> bool {
        let volume = self.membership.superblocks.as_ref();
        volume.is_none_or(|volume| volume.is_established(index))
    }

    /// Requests that a side flush all changes below the sequence number `boundary`, once the side
    /// has all of them.
    pub(super) fn want_flushed(self: &Rc<Self>, index: usize, boundary: u64) {
        let side = &self.sides[index];
        side.flush_wanted.set(side.flush_wanted.get().max(boundary));
        let enough = side
            .store()
            .is_none_or(|store| store.complete_durable() >= boundary);
        if enough || !side.is_counted_on() {
            return;
        }
        if side.flushing.replace(true) {
            // The task that flushes the side possibly has to wait for a lower sequence number now.
            side.changed.notify();
            return;
        }
        let shared = Rc::clone(self);
        self.tasks.spawn(async move {
            shared.keep_flushing(index).await;
            shared.sides[index].flushing.set(false);
            shared.flushes.changed.notify();
        });
    }

    /// Returns the sequence number below which a side flushes all changes next. If flushes wait for
    /// the side, this is the lowest number for which one of them waits. So no flush waits for
    /// changes that only later flushes need. The result is at most the highest number requested of
    /// the side, and equals it if no flush waits.
    fn next_flush_of(&self, side: &Side) -> u64 {
        let durable = side.store().map_or(0, |store| store.complete_durable());
        let wanted = side.flush_wanted.get();
        let first = self.flushes.first_above(durable);
        first.map_or(wanted, |first| first.min(wanted))
    }

    async fn keep_flushing(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        loop {
            let has_all = |wanted: u64| {
                let oldest = side.queue.borrow().oldest_seq();
                side.holds_all() && oldest.is_none_or(|oldest| oldest >= wanted)
            };
            // While the side catches up, the sequence number up to which it will flush does not
            // increase. Otherwise, new changes would keep a lagging side from ever flushing.
            let most = self.next_flush_of(side);
            let wanted = || self.next_flush_of(side).min(most);
            side.changed
                .until(|| !side.is_counted_on() || has_all(wanted()))
                .await;
            let Some(store) = side.store().filter(|_| side.is_counted_on()) else {
                return;
            };
            let operation = side.start(self.rt.now());
            let flushed = store.flush(wanted()).await;
            side.finish(operation, self.rt.now());
            side.changed.notify();
            match flushed {
                Ok(()) => self.release_logs(),
                Err(error) => {
                    self.flush_failed(index, error);
                    // Changes that were admitted during the flush can still be queued, because they
                    // waited for the side to become idle. So they are sent now.
                    self.pump(index);
                    return;
                }
            }
            self.flushes.changed.notify();
            self.pump(index);
            if side.flush_wanted.get() <= store.complete_durable() {
                return;
            }
        }
    }

    /// Tells the logs which changes are now durable. If the log of side `index` is short of space
    /// because it keeps entries that other sides have not made durable, those sides flush the
    /// changes that they have stored. This flush must not depend on a flush of a client: when a log
    /// is full, every client may be waiting for space.
    pub(super) fn make_room_in_log(self: &Rc<Self>, index: usize) {
        self.release_logs();
        let waits = |store: Rc<Store>| store.waits_for_peers();
        if !self.sides[index].store().is_some_and(waits) {
            return;
        }
        for other in self.sides.iter().filter(|other| other.index != index) {
            let unflushed = other.store().is_some_and(|store| store.has_unflushed());
            if unflushed && other.is_counted_on() && !other.flushing_stored.replace(true) {
                let (shared, other) = (Rc::clone(self), other.index);
                self.tasks.spawn(async move {
                    let flushed = shared.flush_one(other).await;
                    shared.sides[other].flushing_stored.set(false);
                    match flushed {
                        Ok(()) => shared.release_logs(),
                        Err(error) => shared.flush_failed(other, error),
                    }
                    shared.flushes.changed.notify();
                });
            }
        }
    }

    fn flush_failed(self: &Rc<Self>, index: usize, error: IoError) {
        let side = &self.sides[index];
        side.flush_error.set(error);
        add(&side.failed_flushes, 1);
        add(&side.counts.errors, 1);
        if side.is_counted_on() && self.another_is_healthy(index) {
            self.lost_since_last_flush(index, error);
        }
        self.flushes.changed.notify();
    }

    /// Tells the log of each side which of its entries the other sides no longer need.
    pub(super) fn release_logs(&self) {
        // A side that joins gets its superblock after its peers have theirs. Until then, no log is
        // allowed to state that this side has been a member: after a crash in between, the side
        // still has to join, and must not be mistaken for an outdated member.
        let joined = |side: &Side| side.is_counted_on() && self.would_be_asked(side.index);
        let missing = self.sides.iter().any(|side| !joined(side));
        for side in self.sides.iter() {
            let Some(store) = side.store() else { continue };
            let others = self
                .sides
                .iter()
                .filter(|other| other.index != side.index && other.is_counted_on());
            if let Some(volume) = &self.membership.superblocks {
                let acknowledged = volume.has_current_epoch(side.index);
                // As long as the superblock of this side does not durably exclude the side ejected
                // last, that side would still be a member after a crash. It would then get the
                // changes that it lacks from the log of this side, so this log must keep them.
                if volume.is_established(side.index) && !acknowledged {
                    if !store.is_full() {
                        continue;
                    }
                    // The log is full, so no change can become durable, and the epoch that excludes
                    // the ejected side could never begin. Therefore the log drops changes although
                    // the ejected side lacks them.
                    store.keep_from(None);
                } else if acknowledged {
                    store.keep_from(Some(volume.history().current().first_change));
                }
            }
            let durable = others.filter_map(|other| other.store().map(|s| s.complete_durable()));
            store.release(
                durable.min().unwrap_or(u64::MAX),
                missing || self.incomplete_table(),
            );
        }
    }

    /// Waits until every healthy or joining side has all changes that were admitted before the
    /// call, then flushes these sides. Used for bare devices. Works in every state of the volume.
    pub(super) async fn drain_and_flush(self: &Rc<Self>) -> IoResult {
        let before = self.admission.next_number();
        let waiting = self.flushes.wait(before, self.rt.now());
        for side in 0..self.sides.len() {
            self.pump(side);
        }
        for side in self.sides.iter() {
            let caught_up = || {
                !side.is_counted_on()
                    || side
                        .queue
                        .borrow()
                        .oldest_seq()
                        .is_none_or(|oldest| oldest >= before)
            };
            side.changed.until(caught_up).await;
        }
        drop(waiting);
        self.flush_sides().await
    }

    async fn flush_sides(self: &Rc<Self>) -> IoResult {
        let counted_on: Vec<usize> = self
            .sides
            .iter()
            .filter(|side| side.is_counted_on())
            .map(|side| side.index)
            .collect();
        let outcomes = Rc::new(RefCell::new(vec![None; self.sides.len()]));
        for &index in &counted_on {
            let (shared, outcomes) = (Rc::clone(self), Rc::clone(&outcomes));
            self.tasks.spawn(async move {
                let flushed = shared.flush_one(index).await;
                outcomes.borrow_mut()[index] = Some(flushed);
                shared.sides[index].changed.notify();
            });
        }
        let mut outcome = Err(IoError::Offline);
        for index in counted_on {
            let side = &self.sides[index];
            // If a side is ejected during its flush, the wait for the flush ends, since the side
            // might never answer.
            let ended = || !side.is_counted_on() || outcomes.borrow()[index].is_some();
            side.changed.until(ended).await;
            let flushed: Option<Result<(), IoError>> = outcomes.borrow()[index];
            match flushed {
                Some(Ok(())) if side.is_healthy() => outcome = Ok(Reply::Done),
                None | Some(Ok(())) => {}
                Some(Err(error)) if self.another_is_healthy(index) => {
                    add(&side.counts.errors, 1);
                    self.lost_since_last_flush(index, error);
                }
                Some(Err(error)) if outcome.is_err() => outcome = Err(error),
                Some(Err(_)) => {}
            }
        }
        self.membership
            .changed
            .until(|| self.membership.is_marked())
            .await;
        outcome
    }

    /// Flushes one side. The flush is registered as an operation in flight, so that a side that
    /// hangs in a flush is detected.
    pub(super) async fn flush_one(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let operation = side.start(self.rt.now());
        let result = match side.store() {
            // A flush to a number above 0 also ensures that a log entry states that the log is
            // complete up to this sequence number. This flush needs no such entry, so the number is
            // 0.
            Some(store) => store.flush(0).await,
            None => side.flush().await,
        };
        side.finish(operation, self.rt.now());
        side.changed.notify();
        // Changes admitted during the flush may have waited for the side to become idle, so they
        // are sent now.
        self.pump(index);
        result
    }

    /// Handles a flush that failed on a side. Some content of the side is now unknown: on a side
    /// with a log, the content written since the last successful flush; on a bare device, possibly
    /// all content. The side is ejected, even if it is only joining. The unknown ranges must be
    /// copied again, and operations in flight on these ranges must have ended before that.
    pub(super) fn lost_since_last_flush(self: &Rc<Self>, index: usize, error: IoError) {
        let side = &self.sides[index];
        if side.is_active() {
            self.give_up(index, error);
        }
        if !self.is_logged() {
            side.note_lack(0..self.size_bytes());
        }
    }
}
