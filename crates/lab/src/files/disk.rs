//! The way down: bios of whole blocks into a queue over a device, and what is counted there.
//!
//! Models do not fail; a device of this machine may. A load goes on over that, as if what it asked
//! for had been done, and whoever runs it must not take its figures for any.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_block::IoError;
use bimetal_block::device::Device;
use bimetal_block::layers::queue::Queue;
use bimetal_block::request::{Flags, Op, Origin, Request};
use bimetal_rt::sync::{Event, Permit, Semaphore};
use bimetal_rt::{Buf, Instant, Payload, Rt};

use crate::latency::{Latencies, Recorder};

/// Bytes of a block, and of a page.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Bios of writes that may be in the queue. The kernel bounds requests, after merging (128 in each
/// direction); the queue bounds bios, and so many of 4 KiB are 32 requests of the greatest length.
pub(crate) const WRITE_BIOS_MAX: u64 = 4096;

/// See the module.
pub(crate) struct Disk {
    queue: Rc<Queue>,
    zeroes: Buf,
    writes: Rc<Semaphore>,
    bios: Cell<u64>,
    counts: Cell<DiskCounts>,
    idle: Event,
    failure: Cell<Option<IoError>>,
    rt: Rt,
    made: Instant,
    latency: RefCell<Recorder>,
}

/// What has been asked of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskCounts {
    pub flushes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

impl Disk {
    pub(crate) fn new(rt: &Rt, queue: Rc<Queue>) -> Disk {
        Disk {
            queue,
            zeroes: rt.pool().zeroed(1 << 20),
            writes: Semaphore::new(WRITE_BIOS_MAX),
            bios: Cell::new(0),
            counts: Cell::default(),
            idle: Event::new(),
            failure: Cell::new(None),
            rt: rt.clone(),
            made: rt.now(),
            latency: RefCell::new(Recorder::new()),
        }
    }

    /// What bios took so far.
    pub(crate) fn latencies(&self) -> Latencies {
        self.latency.borrow().latencies()
    }

    /// Why the device refused something, the first time.
    pub(crate) fn failure(&self) -> Option<IoError> {
        self.failure.get()
    }

    /// Blocks of the device.
    pub(crate) fn blocks(&self) -> u32 {
        let blocks = self.queue.geometry().size_bytes / BLOCK_BYTES;
        u32::try_from(blocks).unwrap_or(u32::MAX - 1)
    }

    pub(crate) fn counts(&self) -> DiskCounts {
        self.counts.get()
    }

    fn count(&self, change: impl FnOnce(&mut DiskCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// A place for a bio of a write; whoever writes more than the device takes waits here.
    pub(crate) async fn place_for_write(&self) -> Permit {
        self.writes.acquire(1).await
    }

    /// True when most places for writes are taken, so that a flusher had better rest.
    pub(crate) fn is_congested(&self) -> bool {
        self.writes.free() < WRITE_BIOS_MAX / 8
    }

    /// Reads blocks for a task.
    pub(crate) async fn read(&self, block: u32, blocks: u32, task: u32) {
        let bytes = u64::from(blocks) * BLOCK_BYTES;
        self.count(|counts| counts.read_bytes += bytes);
        let request = Request::read(u64::from(block) * BLOCK_BYTES, bytes);
        self.submit(request, task).await;
    }

    /// Writes blocks for a task.
    pub(crate) async fn write(&self, block: u32, blocks: u32, task: u32) {
        let bytes = u64::from(blocks) * BLOCK_BYTES;
        self.count(|counts| counts.written_bytes += bytes);
        let offset = u64::from(block) * BLOCK_BYTES;
        let request = Request::write(offset, self.zeroes(bytes), Flags::NONE);
        self.submit(request, task).await;
    }

    /// Makes durable what has been written.
    pub(crate) async fn flush(&self, task: u32) {
        self.count(|counts| counts.flushes += 1);
        self.submit(Request::flush(), task).await;
    }

    async fn submit(&self, request: Request, task: u32) {
        self.bios.set(self.bios.get() + 1);
        let origin = Origin::of_task(task);
        let is_write = match request.op {
            Op::Read => Some(false),
            Op::Write => Some(true),
            _ => None,
        };
        let begun_ns = self.rt.now().ns_since(self.made);
        self.latency.borrow_mut().begin(begun_ns);
        let answer = self.queue.submit(request.from_origin(origin)).await;
        let now_ns = self.rt.now().ns_since(self.made);
        self.latency.borrow_mut().end(begun_ns, now_ns, is_write);
        if let Err(error) = answer {
            self.failure.set(self.failure.get().or(Some(error)));
        }
        self.bios.set(self.bios.get() - 1);
        if self.bios.get() == 0 {
            self.idle.notify();
        }
    }

    /// Waits until nothing is with the device.
    pub(crate) async fn until_idle(&self) {
        self.idle.until(|| self.bios.get() == 0).await;
    }

    fn zeroes(&self, bytes: u64) -> Payload {
        bimetal_block::media::null::zero_payload(&self.zeroes, bytes)
    }
}
