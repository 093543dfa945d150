//! Giving way: the log of a disk pauses while a commit or a piece of cleaning is written.
//!
//! A disk that orders its requests by position finds the next entry of a log directly behind the
//! last one, and so leaves every request elsewhere waiting for hundreds of milliseconds. A commit
//! has several such requests in a row, and the log of every side waits for the commit in the end.
//!
//! While another side does not answer, clients wait for this log only. It gives way to nothing
//! then, since a commit takes as long as tens of entries, or as long as the freeze lasts.
//!
//! What the log gives way to must never wait for the log.

use std::rc::Rc;
use std::time::Duration;

use super::Store;
use super::log::Log;
use crate::device::Device;

/// Interval at which a log that pauses with waiting changes checks whether clients wait for it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Guard that keeps the log from beginning to write an entry until it is dropped.
pub(super) struct GivesWay(Rc<Log>);

impl Drop for GivesWay {
    fn drop(&mut self) {
        let log = &self.0;
        log.gives_way.set(log.gives_way.get() - 1);
        if log.gives_way.get() == 0 {
            log.take_up();
        }
    }
}

impl Log {
    /// Returns true while the log begins no entry.
    pub(super) fn pauses(&self) -> bool {
        let is_awaited = || {
            let is_awaited = Rc::clone(&self.is_awaited.borrow());
            is_awaited()
        };
        self.gives_way.get() > 0 && !is_awaited()
    }

    /// If the log pauses and changes wait to be written, makes sure that it begins its next entry
    /// when clients begin to wait for it.
    pub(super) fn look_while_paused(self: &Rc<Self>) {
        if !self.pauses() || !self.has_waiting() || self.looks.replace(true) {
            return;
        }
        let log = Rc::clone(self);
        self.tasks.spawn(async move {
            while log.pauses() {
                log.rt.sleep(LOOK_EVERY).await;
            }
            log.looks.set(false);
            log.take_up();
        });
    }
}

impl Store {
    /// Registers the function that returns true while clients wait for this side because another
    /// side does not answer.
    pub(in super::super) fn set_is_awaited(&self, is_awaited: Rc<dyn Fn() -> bool>) {
        *self.log.is_awaited.borrow_mut() = is_awaited;
    }

    /// Makes the log give way on a rotational device, until the returned guard is dropped. It
    /// writes its next entries then, before it can be made to give way again.
    pub(super) fn log_gives_way(&self) -> Option<GivesWay> {
        self.noticed.geometry().rotational.then(|| {
            let log = Rc::clone(&self.log);
            log.gives_way.set(log.gives_way.get() + 1);
            GivesWay(log)
        })
    }
}
