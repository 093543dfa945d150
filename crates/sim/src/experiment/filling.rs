//! Fills a volume before a load, so that the load overwrites.

use std::rc::Rc;

use bimetal_block::device::Device;
use bimetal_block::request::{Flags, Request};
use bimetal_rt::sync::{Semaphore, TaskGroup};
use bimetal_rt::{Buf, Rt};

/// Maximum length of a write that fills a volume.
pub(super) const FILL_BYTES: u64 = 1 << 20;
/// Number of writes in flight that fill a volume.
const FILL_DEPTH: u64 = 8;

/// Writes to the first `span_bytes` of the device in sequence, and flushes: `write_bytes` at each
/// multiple of `step_bytes`. `content` returns content of the given length, which is at most
/// `write_bytes`. `told` is called with the offset of each write before it starts.
pub(super) async fn fill(
    rt: &Rt,
    device: &Rc<dyn Device>,
    (span_bytes, step_bytes, write_bytes): (u64, u64, u64),
    content: impl Fn(u64) -> Buf,
    told: impl Fn(u64),
) {
    let slots = Semaphore::new(FILL_DEPTH);
    let writers = TaskGroup::new(rt);
    for offset in (0..span_bytes).step_by(step_bytes as usize) {
        let slot = slots.acquire(1).await;
        told(offset);
        let data = content(write_bytes.min(span_bytes - offset));
        let device = Rc::clone(device);
        writers.spawn(async move {
            submit(&device, Request::write(offset, data, Flags::NONE)).await;
            drop(slot);
        });
    }
    drop(slots.acquire(FILL_DEPTH).await);
    submit(device, Request::flush()).await;
}

async fn submit(device: &Rc<dyn Device>, request: Request) {
    let result = device.submit(request).await;
    assert!(result.is_ok(), "the devices of this experiment do not fail");
}
