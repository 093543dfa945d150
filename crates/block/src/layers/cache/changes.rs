//! Changes of content: writes into memory or through to the device, discards and zeroing.

use std::rc::Rc;

use bimetal_rt::sync::OnceValue;
use bimetal_rt::{Buf, Payload};

use super::{Mode, Shared};
use crate::BLOCK_BYTES;
use crate::device::IoFuture;
use crate::request::{IoResult, Op, Reply, Request};

impl Shared {
    /// Returns true for a write that completes only when its data is on the device.
    pub(super) fn goes_through(&self, request: &Request) -> bool {
        self.mode == Mode::WriteThrough || request.flags.fua
    }

    /// Executes a change of the device's content to completion, even if the returned future is
    /// dropped. This is required because the next change of the same range must not begin before
    /// the device has completed this change.
    pub(super) fn to_its_end(self: &Rc<Self>, request: Request) -> IoFuture<'static> {
        let (shared, outcome) = (Rc::clone(self), Rc::new(OnceValue::default()));
        let ended = Rc::clone(&outcome);
        IoFuture::new(async move {
            let changing = Rc::clone(&shared);
            shared.tasks.spawn(async move {
                let result = match request.op {
                    Op::Write => changing.write_through(request).await,
                    _ => changing.clear(request).await,
                };
                ended.set(result.map(|_| ()));
            });
            outcome.wait().await.map(|()| Reply::Done)
        })
    }

    /// Writes into memory.
    ///
    /// # Errors
    /// When the limit on unwritten pages is reached and destaging them has failed.
    pub(super) async fn write_back(self: &Rc<Self>, request: Request) -> IoResult {
        let pages = (request.len / BLOCK_BYTES) as usize;
        // While this write holds the permit `_turn`, no other write checks the limit on unwritten
        // pages.
        let _turn = self.until_there_is_room(pages).await?;
        let frames = self.framed(&request.payload);
        let now_ns = self.rt.now().as_ns();
        let mut state = self.state.borrow_mut();
        for (page, frame) in (request.offset / BLOCK_BYTES..).zip(frames) {
            state.write(page, frame, true, now_ns);
        }
        drop(state);
        // The write might have replaced a version that could not be destaged. That version no
        // longer counts against the limit on unwritten pages, so there might be room for other
        // writes.
        self.waits.room_changed();
        self.keep_dirty_low();
        Ok(Reply::Done)
    }

    /// Writes to the device and keeps the written pages, clean.
    async fn write_through(self: &Rc<Self>, request: Request) -> IoResult {
        let range = request.offset..request.end();
        let frames = self.framed(&request.payload);
        let _in_turn = self.below_lock.lock(range.clone()).await;
        let result = self.below.submit(request).await;
        let mut state = self.state.borrow_mut();
        for (page, frame) in (range.start / BLOCK_BYTES..).zip(frames) {
            match &result {
                Ok(_) => {
                    state.write(page, frame, false, 0);
                }
                // After the error, the device can hold all of the write, a part of it, or nothing
                // of it.
                Err(_) => state.unsettled(page),
            }
        }
        drop(state);
        self.wake_destaging();
        self.waits.room_changed();
        result
    }

    /// Discards or zeroes a range: first on the device, then in the cache.
    ///
    /// # Errors
    /// The errors of the device.
    async fn clear(self: &Rc<Self>, request: Request) -> IoResult {
        let range = request.offset..request.end();
        let _in_turn = self.below_lock.lock(range.clone()).await;
        let result = self.below.submit(request).await;
        let mut state = self.state.borrow_mut();
        for page in range.start / BLOCK_BYTES..range.end / BLOCK_BYTES {
            match &result {
                Ok(_) => state.remove(page),
                Err(_) => state.unsettled(page),
            }
        }
        drop(state);
        self.wake_destaging();
        self.waits.room_changed();
        result
    }

    /// Copies content into pages of the cache's own memory, so that cached pages do not keep the
    /// larger buffers of requests alive.
    pub(super) fn framed(&self, data: &Payload) -> Vec<Buf> {
        let page_bytes = BLOCK_BYTES as usize;
        let count = data.len() / page_bytes;
        let page = |index: usize| {
            let mut frame = self.frames.alloc_now(page_bytes);
            data.slice(index * page_bytes..(index + 1) * page_bytes)
                .copy_to(&mut frame);
            frame.freeze()
        };
        (0..count).map(page).collect()
    }
}
