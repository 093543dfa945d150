//! The shard's thread: it opens the devices below, executes requests, and closes the devices once
//! its incoming mailbox is closed. The thread must close its outgoing mailbox when it ends for any
//! reason, because the requester learns of the end only in this way.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use bimetal_rt::Rt;
use bimetal_rt::mailbox::{Messages, Receiver, SendBatch, Sender};
use bimetal_rt::sync::Event;

use super::crossing::{Answered, Asked, Opened, Told, What};
use super::{LOOK_EVERY, Seen, Subtree};
use crate::device::Device;
use crate::error::OpenError;
use crate::request::Reply;

/// Latest snapshot of the devices below. The lock is held only to store a snapshot or to clone a
/// handle.
pub(super) type Shown = Arc<Mutex<Arc<Vec<Seen>>>>;

/// Main function of the thread.
pub(super) fn run<S: Subtree + 'static>(
    rt: io::Result<Rt>,
    asked: Receiver<Asked>,
    told: Arc<Sender<Told>>,
    shown: &Shown,
    open: impl AsyncFnOnce(&Rt) -> Result<S, OpenError>,
) {
    // `last` is declared before `rt`, so it is dropped after the runtime. Therefore no work remains
    // on this thread when the requester sees that the mailbox is closed and joins the thread.
    let last = Last(told);
    let rt = match rt {
        Ok(rt) => rt,
        Err(error) => {
            let why = OpenError::new(format!("its thread: io_uring: {error}"));
            return last.say(Told::Opened(Err(why)));
        }
    };
    let serving = || rt.block_on(serve(&rt, asked, &last, shown, open));
    // After a panic, no state of the thread is used again: all of it is dropped.
    if catch_unwind(AssertUnwindSafe(serving)).is_err() {
        // The mailbox is closed first, so that waiting requesters learn of the failure.
        last.0.close();
        rt.end();
    }
}

/// The sending end of the thread's outgoing mailbox. Dropping it closes the mailbox.
struct Last(Arc<Sender<Told>>);

impl Last {
    /// Sends a message immediately, without a batch.
    fn say(&self, told: Told) {
        // If the receiver was dropped, no task needs the message.
        let _ = self.0.send(told);
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// State shared by the tasks of the thread.
struct Far {
    rt: Rt,
    subtree: Rc<dyn Subtree>,
    top: Rc<dyn Device>,
    send_batch: SendBatch<Told>,
    under_way: Cell<usize>,
    changed: Event,
}

async fn serve<S: Subtree + 'static>(
    rt: &Rt,
    asked: Receiver<Asked>,
    last: &Last,
    shown: &Shown,
    open: impl AsyncFnOnce(&Rt) -> Result<S, OpenError>,
) {
    let subtree: Rc<dyn Subtree> = match open(rt).await {
        Ok(subtree) => Rc::new(subtree),
        Err(error) => return last.say(Told::Opened(Err(error))),
    };
    let asked = match asked.listen(rt) {
        Ok(asked) => asked,
        Err(error) => {
            // The error of `listen` is reported. An error of the close is ignored, because it is
            // only a consequence.
            let _ = subtree.close().await;
            let why = OpenError::new(format!("its thread: {error}"));
            return last.say(Told::Opened(Err(why)));
        }
    };
    show(shown, subtree.as_ref());
    let top = subtree.top();
    last.say(Told::Opened(Ok(Opened {
        geometry: *top.geometry(),
        interruptions: top.interruptions(),
    })));
    let far = Rc::new(Far {
        rt: rt.clone(),
        subtree: Rc::clone(&subtree),
        top,
        send_batch: SendBatch::new(Arc::clone(&last.0)),
        under_way: Cell::new(0),
        changed: Event::new(),
    });
    let sending = Rc::clone(&far);
    let sends = rt.spawn(async move { sending.send_batch.carry().await });
    let looks = rt.spawn(keep_showing(
        rt.clone(),
        Arc::clone(shown),
        Rc::clone(&subtree),
    ));
    far.answer_all(asked).await;
    looks.cancel().await;
    let closed = subtree.close().await;
    show(shown, subtree.as_ref());
    sends.cancel().await;
    far.send_batch.put(Told::Closed(closed));
    far.send_batch.send();
}

/// Replaces the shared snapshot by a new snapshot of the devices below.
fn show(shown: &Shown, subtree: &dyn Subtree) {
    let seen = Arc::new(subtree.look());
    let before = {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *shown, seen)
    };
    drop(before);
}

async fn keep_showing(rt: Rt, shown: Shown, subtree: Rc<dyn Subtree>) {
    loop {
        rt.sleep(LOOK_EVERY).await;
        show(&shown, subtree.as_ref());
    }
}

impl Far {
    /// Executes requests as they arrive until the incoming mailbox is closed, and then waits until
    /// all requests have ended.
    async fn answer_all(self: &Rc<Far>, mut asked: Messages<Asked>) {
        while let Some(asked) = asked.next().await {
            for asked in asked {
                self.under_way.set(self.under_way.get() + 1);
                let far = Rc::clone(self);
                // A request that needs no waiting is executed and answered before the next request
                // starts.
                self.rt
                    .spawn_eager(async move { far.run(asked).await })
                    .detach();
            }
        }
        self.changed.until(|| self.under_way.get() == 0).await;
    }

    async fn run(&self, asked: Asked) {
        let result = match asked.what {
            What::Request(copy) => {
                let request = copy.into_request(self.rt.pool());
                self.top.submit(request).await
            }
            What::AcceptLoss(name) => {
                self.subtree.accept_loss(&name);
                Ok(Reply::Done)
            }
        };
        let size_bytes = self.top.geometry().size_bytes;
        // The number of interruptions is read after the answer, so it includes any interruption
        // that affects the answer.
        let interruptions = self.top.interruptions();
        let answered = Answered::new(asked.key, result, interruptions, size_bytes);
        self.send_batch.put(Told::Answered(answered));
        self.under_way.set(self.under_way.get() - 1);
        self.changed.notify();
    }
}
