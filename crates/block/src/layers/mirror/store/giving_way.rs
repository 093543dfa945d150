//! Giving way: the log of a disk pauses while a commit or a piece of cleaning is written.
//!
//! A disk that orders its requests by position finds the next entry of a log directly behind the
//! last one, and so leaves every request elsewhere waiting for hundreds of milliseconds. A commit
//! has several such requests in a row, and the log of every side waits for the commit in the end.
//!
//! What the log gives way to must never wait for the log.

use std::rc::Rc;

use super::Store;
use super::log::Log;
use crate::device::Device;

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

impl Store {
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
