//! The path to the device of a side, from one opening of the side to the next. Every request of the
//! mirror to a side with superblocks goes through a path.
//!
//! When the path is interrupted, completed requests that were not flushed may be lost, and the disk
//! at the other end may have been replaced. The mirror's knowledge of the side is then void: an
//! answer received after an interruption must never reach the store that was opened before. The
//! side is ejected and opened again, unless it is the last healthy side.
//!
//! The path also makes sure that changes become durable even after a failed flush ([`Durable`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Rt;

use super::durable::Durable;
use crate::device::{Device, IoFuture, LocalFuture, StatisticVisitor};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{IoResult, Request};

/// Timeout of a request while the volume is being opened, since the sides are not monitored then.
const PATIENCE: Duration = Duration::from_secs(30);

/// Callback that decides what happens to a side when the path to its device was interrupted. It
/// returns true when the side must not be used before it has been opened again.
pub(super) type Decide = Rc<dyn Fn() -> bool>;

/// The path to the device of a side; see the module.
pub(super) struct DevicePath {
    passage: Rc<Passage>,
    durable: Durable,
}

/// Gate that passes requests on to the device until the path is cut.
struct Passage {
    rt: Rt,
    below: Rc<dyn Device>,
    /// Whether the volume is being opened.
    opening: Rc<Cell<bool>>,
    /// The device's count of interruptions when the side was opened. It is updated when an
    /// interruption is accepted without cutting the path. `None` for a device that does not count
    /// interruptions.
    known: Cell<Option<u64>>,
    /// True once the path is cut, so that every request is refused.
    cut: Cell<bool>,
    decide: RefCell<Option<Decide>>,
}

impl DevicePath {
    /// Creates the path to a device. Requests have a timeout while `opening` is set.
    pub(super) fn new(rt: &Rt, below: Rc<dyn Device>, opening: &Rc<Cell<bool>>) -> Rc<DevicePath> {
        let passage = Rc::new(Passage {
            rt: rt.clone(),
            known: Cell::new(below.interruptions()),
            below,
            opening: Rc::clone(opening),
            cut: Cell::new(false),
            decide: RefCell::new(None),
        });
        let durable = Durable::over(rt, Rc::clone(&passage) as Rc<dyn Device>);
        Rc::new(DevicePath { passage, durable })
    }

    /// Registers `decide`, which is called at each later interruption. Without a callback, an
    /// interruption cuts the path.
    pub(super) fn monitor(&self, decide: Decide) {
        *self.passage.decide.borrow_mut() = Some(decide);
    }

    /// Opens the path again for a side that is being reopened. The caller must not use any earlier
    /// knowledge of the side, and no request must be in flight. When this returns, all content that
    /// is read is durable. If the path was not interrupted, content that a failed flush may have
    /// dropped has been written to the device again.
    ///
    /// # Errors
    /// When the device cannot be flushed: content that was read could then still be lost.
    pub(super) async fn begin_anew(&self) -> Result<(), IoError> {
        if self.passage.begin_anew() {
            self.durable.forget();
        }
        self.durable.settle().await
    }

    /// Reports the statistics of the content that is not durable yet.
    pub(super) fn statistics(&self, part: &str, out: &mut dyn StatisticVisitor) {
        self.durable.statistics(part, out);
    }
}

impl Passage {
    /// Lets requests pass again. Returns true when the path was interrupted since the side was
    /// opened.
    fn begin_anew(&self) -> bool {
        let now = self.below.interruptions();
        let interrupted = self.known.replace(now) != now;
        self.cut.replace(false) || interrupted
    }

    /// Returns true when the path is cut, so that an answer that has just arrived must be
    /// discarded. After each new interruption of the device, the callback `decide` determines
    /// whether the path is cut.
    fn is_cut(&self) -> bool {
        let now = self.below.interruptions();
        if self.cut.get() || now == self.known.get() {
            return self.cut.get();
        }
        let decide = self.decide.borrow().clone();
        let cut = decide.is_none_or(|given_up| given_up());
        if cut {
            self.cut.set(true);
        } else {
            self.known.set(now);
        }
        cut
    }

    async fn checked(&self, answer: IoFuture<'_>) -> IoResult {
        let answer = if self.opening.get() {
            let answer = self.rt.timeout(PATIENCE, answer).await;
            answer.unwrap_or(Err(IoError::Timeout))
        } else {
            answer.await
        };
        if self.is_cut() {
            return Err(IoError::Transport);
        }
        answer
    }
}

impl Device for Passage {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if self.cut.get() {
            return IoFuture::ready(Err(IoError::Transport));
        }
        let answer = self.below.submit(request);
        if self.opening.get() || self.known.get().is_some() {
            return IoFuture::new(self.checked(answer));
        }
        answer
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.below.close()
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }
}

impl Device for DevicePath {
    fn geometry(&self) -> &Geometry {
        self.passage.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        self.durable.submit(request)
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.durable.close()
    }

    fn interruptions(&self) -> Option<u64> {
        self.passage.interruptions()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::null::NullDevice;

    /// A disk behind a path that a test can interrupt.
    struct Remote {
        disk: NullDevice,
        interruptions: Cell<u64>,
        interrupted_by_next: Cell<bool>,
    }

    impl Device for Remote {
        fn geometry(&self) -> &Geometry {
            self.disk.geometry()
        }

        fn submit(&self, request: Request) -> IoFuture<'_> {
            IoFuture::new(async move {
                if self.interrupted_by_next.take() {
                    self.interruptions.set(self.interruptions.get() + 1);
                }
                self.disk.submit(request).await
            })
        }

        fn interruptions(&self) -> Option<u64> {
            Some(self.interruptions.get())
        }
    }

    fn remote(rt: &Rt) -> (Rc<Remote>, Rc<DevicePath>) {
        let remote = Rc::new(Remote {
            disk: NullDevice::new(rt, 1 << 20),
            interruptions: Cell::new(3),
            interrupted_by_next: Cell::new(false),
        });
        let below: Rc<dyn Device> = Rc::clone(&remote) as Rc<dyn Device>;
        let device_path = DevicePath::new(rt, below, &Rc::new(Cell::new(false)));
        (remote, device_path)
    }

    #[test]
    fn nothing_goes_through_a_cut_way_before_it_is_begun_anew() {
        let rt = Rt::virtual_time(bimetal_rt::VirtualOptions::default());
        let (remote, device_path) = remote(&rt);
        let flush = || {
            rt.block_on(device_path.submit(Request::flush()))
                .map(|_done| ())
        };
        assert_eq!(flush(), Ok(()));
        remote.interrupted_by_next.set(true);
        assert_eq!(flush(), Err(IoError::Transport));
        assert_eq!(flush(), Err(IoError::Transport));
        assert_eq!(rt.block_on(device_path.begin_anew()), Ok(()));
        assert_eq!(flush(), Ok(()));
        // If a callback is registered after the path was cut, the path stays cut.
        remote.interrupted_by_next.set(true);
        assert_eq!(flush(), Err(IoError::Transport));
        device_path.monitor(Rc::new(|| false));
        assert_eq!(flush(), Err(IoError::Transport));
    }

    #[test]
    fn each_interruption_is_decided_once() {
        let rt = Rt::virtual_time(bimetal_rt::VirtualOptions::default());
        let (remote, device_path) = remote(&rt);
        let (asked, given_up) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (asked_too, given_up_too) = (Rc::clone(&asked), Rc::clone(&given_up));
        device_path.monitor(Rc::new(move || {
            asked_too.set(asked_too.get() + 1);
            given_up_too.get()
        }));
        let flush = || {
            rt.block_on(device_path.submit(Request::flush()))
                .map(|_done| ())
        };
        // After this flush all earlier content is durable, so the reopening need not write anything
        // again.
        assert_eq!(flush(), Ok(()));
        for expected in [Ok(()), Err(IoError::Transport)] {
            remote.interrupted_by_next.set(true);
            assert_eq!(flush(), expected);
            assert_eq!(flush(), expected);
            given_up.set(true);
        }
        assert_eq!(asked.get(), 2);
    }
}
