//! Flush: everything acknowledged before it is durable on all healthy sides when it completes.

use std::cell::RefCell;
use std::rc::Rc;

use super::Shared;
use super::side::Health;
use crate::error::IoError;
use crate::request::{IoResult, Reply};

impl Shared {
    /// Waits until every healthy side has what was admitted before, then flushes them all.
    ///
    /// A side that stops being healthy meanwhile is no longer waited for. A side whose flush fails
    /// has lost an unknown part of what it held, so it is given up; when it is the last healthy
    /// one, the client is told.
    pub(super) async fn flush(self: &Rc<Self>) -> IoResult {
        self.check_readable()?;
        self.drain_and_flush().await
    }

    /// The same whatever state the volume is in.
    pub(super) async fn drain_and_flush(self: &Rc<Self>) -> IoResult {
        let before = self.next_seq.get();
        self.flushes_waiting.set(self.flushes_waiting.get() + 1);
        for side in 0..self.sides.len() {
            self.pump(side);
        }
        for side in &self.sides {
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
        self.flushes_waiting.set(self.flushes_waiting.get() - 1);
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
                Some(Ok(())) if side.health.get() == Health::Healthy => outcome = Ok(Reply::Done),
                None | Some(Ok(())) => {}
                Some(Err(error)) if self.another_is_healthy(index) => {
                    self.lost_since_last_flush(index, error);
                }
                Some(Err(error)) if outcome.is_err() => outcome = Err(error),
                Some(Err(_)) => {}
            }
        }
        self.exposure_changed.until(|| self.is_marked()).await;
        outcome
    }

    /// A flush counts as work in flight, so that a side that hangs in it is noticed.
    pub(super) async fn flush_one(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let operation = side.start(self.rt.now());
        let result = side.flush().await;
        side.finish(operation, self.rt.now());
        side.changed.notify();
        // What was admitted meanwhile may have waited for the side to be idle.
        self.pump(index);
        result
    }

    /// What the side held unflushed is unknown: all of it is copied again.
    fn lost_since_last_flush(self: &Rc<Self>, index: usize, error: IoError) {
        let side = &self.sides[index];
        super::side::add(&side.counts.errors, 1);
        if side.health.get() == Health::Healthy {
            self.give_up(index, error);
        }
        side.stale
            .borrow_mut()
            .insert(0..self.geometry.size_bytes, ());
        self.stale_added.notify();
    }
}
