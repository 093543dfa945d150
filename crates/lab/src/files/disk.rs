//! The path from the file layer to the device: sends bios of whole blocks to a queue above the
//! device, and counts them.
//!
//! A modelled device never fails, but a real device can fail. After an error, the load continues as
//! if its requests had succeeded, and the caller must discard the results.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_block::IoError;
use bimetal_block::device::Device;
use bimetal_block::layers::queue::QueueLayer;
use bimetal_block::request::{Flags, Op, Origin, Request};
use bimetal_rt::sync::{Event, Permit, Semaphore};
use bimetal_rt::{Buf, Instant, Payload, Rt};

use crate::latency::{Latencies, Recorder};

/// Size in bytes of a block, and also of a page.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Maximum number of write bios in the queue. The kernel limits requests after merging, to 128 in
/// each direction. This queue limits bios before merging instead: 4096 bios of 4 KiB can merge into
/// 32 requests of the maximum length.
pub(crate) const WRITE_BIOS_MAX: u64 = 4096;

/// The path from the file layer to the device; see the module.
pub(crate) struct Disk {
    queue: Rc<QueueLayer>,
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

/// Counters of the requests to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskCounts {
    pub flushes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

impl Disk {
    pub(crate) fn new(rt: &Rt, queue: Rc<QueueLayer>) -> Disk {
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

    /// Returns the latencies of all bios so far.
    pub(crate) fn latencies(&self) -> Latencies {
        self.latency.borrow().latencies()
    }

    /// Returns the first error of the device, if there is one.
    pub(crate) fn failure(&self) -> Option<IoError> {
        self.failure.get()
    }

    /// Returns the number of blocks of the device.
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

    /// Reserves a slot for a write bio, and waits for a slot if the queue is full.
    pub(crate) async fn place_for_write(&self) -> Permit {
        self.writes.acquire(1).await
    }

    /// Returns true if more than seven eighths of the slots for write bios are in use, so that a
    /// flusher should pause.
    pub(crate) fn is_congested(&self) -> bool {
        self.writes.free() < WRITE_BIOS_MAX / 8
    }

    /// Reads blocks on behalf of a task.
    pub(crate) async fn read(&self, block: u32, blocks: u32, task: u32) {
        let bytes = u64::from(blocks) * BLOCK_BYTES;
        self.count(|counts| counts.read_bytes += bytes);
        let request = Request::read(u64::from(block) * BLOCK_BYTES, bytes);
        self.submit(request, task).await;
    }

    /// Writes blocks on behalf of a task.
    pub(crate) async fn write(&self, block: u32, blocks: u32, task: u32) {
        let bytes = u64::from(blocks) * BLOCK_BYTES;
        self.count(|counts| counts.written_bytes += bytes);
        let offset = u64::from(block) * BLOCK_BYTES;
        let request = Request::write(offset, self.zeroes(bytes), Flags::NONE);
        self.submit(request, task).await;
    }

    /// Makes all completed writes durable, on behalf of a task.
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

    /// Waits until no request is in flight.
    pub(crate) async fn until_idle(&self) {
        self.idle.until(|| self.bios.get() == 0).await;
    }

    fn zeroes(&self, bytes: u64) -> Payload {
        bimetal_block::media::null::zero_payload(&self.zeroes, bytes)
    }
}
