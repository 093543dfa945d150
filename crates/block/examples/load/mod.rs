//! A load, and a measurement of the CPU time of the thread. Both are used by the examples that
//! measure layers.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_block::{Device, Flags, Origin, Request};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Payload, Rt};

const BLOCK_BYTES: u64 = 4096;

/// Returns the CPU time in ns of this thread, which is the only thread of the process. Linux counts
/// it in the first field of `/proc/self/schedstat`.
///
/// # Errors
/// A message if the file cannot be read.
pub fn cpu_ns() -> Result<u64, String> {
    let path = "/proc/self/schedstat";
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let first = text.split_whitespace().next().unwrap_or_default();
    first.parse().map_err(|e| format!("{path}: {e}"))
}

/// Sends random requests of 4 KiB, half of them writes. Each of `depth` tasks has one request in
/// flight at a time.
pub async fn send(rt: &Rt, top: &Rc<dyn Device>, requests: u64, depth: u32) {
    let left = Rc::new(Cell::new(requests));
    let group = TaskGroup::new(rt);
    for number in 1..=depth {
        let (left, top) = (Rc::clone(&left), Rc::clone(top));
        let mut rng = rt.rng(&format!("load {number}"));
        let blocks = top.geometry().size_bytes / BLOCK_BYTES;
        let payload = Payload::from(rt.pool().zeroed(BLOCK_BYTES as usize));
        group.spawn(async move {
            while left.get() > 0 {
                left.set(left.get() - 1);
                let offset = rng.below(blocks) * BLOCK_BYTES;
                let request = if rng.chance(0.5) {
                    Request::write(offset, payload.clone(), Flags::NONE)
                } else {
                    Request::read(offset, BLOCK_BYTES)
                };
                let request = request.from_origin(Origin::of_task(number));
                top.submit(request)
                    .await
                    .expect("models and media without faults do not fail");
            }
        });
    }
    group.join().await;
}
