//! Flushes: the cache writes its unwritten pages to the device, then flushes the device.

use std::rc::Rc;

use super::Shared;
use crate::error::IoError;
use crate::request::{IoResult, Reply, Request};

impl Shared {
    /// Flushes the cache: destages all dirty pages and flushes the device below. See promises 2 to
    /// 4 in `docs/layers/cache.md`.
    ///
    /// # Errors
    /// The reason why an earlier write is not durable.
    pub(super) async fn flush(self: &Rc<Self>) -> IoResult {
        let until = self.state.borrow_mut().clean_all();
        self.wake_destaging();
        let over = || self.state.borrow().ended_below(until);
        self.waits.ended.at(until, over).await;
        {
            let state = self.state.borrow();
            if state.has_failed() {
                return Err(state.error);
            }
        }
        let covers = self.state.borrow_mut().begin_flush();
        let known = self.below.interruptions();
        let flushed = self.below.submit(Request::flush()).await;
        let mut flushed = flushed.map(|_| ());
        if self.interruptions.get() != known || self.below.interruptions() != known {
            // An interruption can have lost writes that the device had accepted but not made
            // durable, even if the flush itself succeeded.
            self.interruptions.set(self.below.interruptions());
            flushed = flushed.and(Err(IoError::Offline));
        }
        let mut state = self.state.borrow_mut();
        match flushed {
            Ok(()) => state.flushed(covers),
            Err(error) => {
                state.counts.errors += 1;
                state.not_flushed(covers, error);
            }
        }
        let lost = state.lost.map_or(Ok(()), Err);
        drop(state);
        // After a failure, a write for which there is no room fails instead of waiting, so waiting
        // writes are woken.
        self.waits.room_changed();
        flushed.and(lost).map(|()| Reply::Done)
    }
}
