//! Flush: what was acknowledged before it is durable when it completes.
//!
//! With logs, on the first durable side that is complete up to then; the others follow at their own
//! pace, marked as possibly behind. A frozen side never holds a flush. Over bare devices, which
//! cannot say afterwards who is ahead, on all healthy sides.

use std::cell::RefCell;
use std::rc::Rc;

use super::config::Acknowledge;
use super::shared::Shared;
use super::side::{Side, add};
use super::store::Store;
use crate::error::IoError;
use crate::request::{IoResult, Reply};

impl Shared {
    /// Makes everything durable that was admitted before.
    ///
    /// A side that stops being healthy meanwhile is no longer waited for. A side whose flush fails
    /// has lost an unknown part of what it held, so it is given up; when it is the last healthy
    /// one, the client is told.
    pub(super) async fn flush(self: &Rc<Self>) -> IoResult {
        self.check_readable()?;
        if self.is_logged() {
            self.flush_up_to(self.admission.next_number()).await?;
            return Ok(Reply::Done);
        }
        self.drain_and_flush().await
    }

    /// Makes every change below a number durable, on the first side that can, or on all of them
    /// where that is asked for.
    pub(super) async fn flush_up_to(self: &Rc<Self>, boundary: u64) -> Result<(), IoError> {
        let failures = |side: &Side| side.failed_flushes.get();
        let failed_before: Vec<u64> = self.sides.numbered().map(failures).collect();
        let _waiting = self.flushes.wait(boundary);
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

    /// What has come of a flush, as soon as that is known.
    fn outcome_of_flush(&self, boundary: u64, before: &[u64]) -> Option<Result<(), IoError>> {
        if self.is_durable(boundary) {
            return Some(Ok(()));
        }
        // A side that has come since has failed none.
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

    /// True when every change below a number will be found again, whatever stops from now on (T2).
    fn is_durable(&self, boundary: u64) -> bool {
        let has = |side: &Side| {
            let store = side.store();
            store.is_some_and(|store| store.complete_durable() >= boundary)
        };
        let holds = |side: &&Side| {
            let counts = side.durable.get() && side.is_healthy();
            counts && has(side) && self.would_be_asked(side.index)
        };
        // A side that is known to be wrong somewhere is not the only one to hold something.
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

    /// True when a side would be asked for what it holds after a crash. One that has just joined
    /// is marked as being rebuilt until its superblock says that it counts, which it is told last.
    pub(super) fn would_be_asked(&self, index: usize) -> bool {
        let volume = self.membership.superblocks.as_ref();
        volume.is_none_or(|volume| volume.is_established(index))
    }

    /// Has a side flush up to a number, once it has everything below it.
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
            // What it waits for may be less from now on.
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

    /// The number up to which a side flushes next: that of the first flush that waits, so that none
    /// waits for changes which only later ones cover; where none waits, all that is wanted.
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
            // It never becomes more while the side catches up, or one that lags would never flush.
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
                    // What was admitted meanwhile may have waited for the side to be idle.
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

    /// Tells the logs what is durable now. When the log of a side is short of space and keeps what
    /// the others have not made durable, has these flush what they have stored. No client need come
    /// to ask for that: with no room in a log, every client may be waiting.
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

    /// Tells every log which of its entries nobody else needs any more.
    pub(super) fn release_logs(&self) {
        // A side that has joined is told last. Until then no log may say that it has been a member:
        // after a crash it is one that is still to join, and not an older copy of itself.
        let joined = |side: &Side| side.is_counted_on() && self.would_be_asked(side.index);
        let missing = self.sides.iter().any(|side| !joined(side));
        for side in self.sides.iter() {
            let Some(store) = side.store() else { continue };
            let others = self
                .sides
                .iter()
                .filter(|other| other.index != side.index && other.is_counted_on());
            if let Some(volume) = &self.membership.superblocks {
                let told = volume.has_current_epoch(side.index);
                // Until the side says durably that the one given up last is no member, a crash
                // leaves that one a member, and it finds what it lacks in this log.
                if volume.is_established(side.index) && !told {
                    if !store.is_full() {
                        continue;
                    }
                    // Nothing can be made durable in a full log: the epoch would never begin.
                    store.keep_from(None);
                } else if told {
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

    /// Over bare devices: waits until every healthy side has what was admitted before, then
    /// flushes them all, whatever state the volume is in.
    pub(super) async fn drain_and_flush(self: &Rc<Self>) -> IoResult {
        let before = self.admission.next_number();
        let waiting = self.flushes.wait(before);
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
            // A side that is given up meanwhile is not waited for: it may never answer.
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

    /// A flush of one side. It counts as work in flight, so that a side that hangs in it is
    /// noticed.
    pub(super) async fn flush_one(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let operation = side.start(self.rt.now());
        let result = match side.store() {
            // What it says of itself is not changed by this.
            Some(store) => store.flush(0).await,
            None => side.flush().await,
        };
        side.finish(operation, self.rt.now());
        side.changed.notify();
        // What was admitted meanwhile may have waited for the side to be idle.
        self.pump(index);
        result
    }

    /// What the side held unflushed is unknown: with a log, that is what came since its last good
    /// flush; on a bare device it could be anything. So the side is given up, also one that only
    /// joins: what it still works on may lie in these ranges, and must have ended before they are
    /// copied.
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
