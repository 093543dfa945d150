//! Bound on the memory of requests that wait for the device.
//!
//! Requests are read from the kernel even while too many device requests are in flight: further
//! back in the kernel's queue, there can be requests that need no device. The memory of the waiting
//! requests is bounded. When the bound is reached, the next request must wait for memory, and all
//! messages after it wait as well. If the device makes no progress in the meantime, the request is
//! refused. This module must never refuse a request while the device makes progress.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::units::show_size;
use bimetal_rt::sync::{Permit, Semaphore};
use bimetal_rt::{Instant, Rt};

/// Maximum memory of all waiting requests, in bytes.
const ROOM_BYTES: u64 = 64 << 20;
/// Memory that one waiting request holds besides its data, in bytes, rounded up.
const REQUEST_BYTES: u64 = 1 << 10;
/// Requests that find no free memory are refused once the device has made no progress for this
/// time. Progress is a device request that begins or ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bound on the memory of waiting requests; see the module documentation.
pub(super) struct Room {
    rt: Rt,
    /// Name of the mount in reports to the operator.
    subject: String,
    free_bytes: Rc<Semaphore>,
    /// Time at which a device request last began or ended.
    progress: Cell<Instant>,
}

impl Room {
    /// Creates a bound with all memory free. `subject` is the name of the mount in reports to the
    /// operator.
    pub(super) fn new(rt: &Rt, subject: String) -> Room {
        Room {
            rt: rt.clone(),
            subject,
            free_bytes: Semaphore::new(ROOM_BYTES),
            progress: Cell::new(rt.now()),
        }
    }

    /// Records that a device request has begun or ended.
    pub(super) fn note_progress(&self) {
        self.progress.set(self.rt.now());
    }

    /// Reserves memory for a request with `data_bytes` bytes of data. Dropping the permit releases
    /// the memory. Returns `None` when too little memory is free and the device makes no progress.
    pub(super) async fn take(&self, data_bytes: usize) -> Option<Permit> {
        let bytes = REQUEST_BYTES + data_bytes as u64;
        if let Some(place) = self.free_bytes.try_acquire(bytes) {
            return Some(place);
        }
        loop {
            let since = self.rt.now().since(self.progress.get());
            let left = PATIENCE.saturating_sub(since);
            if left.is_zero() {
                self.tell_full();
                return None;
            }
            let place = self.rt.timeout(left, self.free_bytes.acquire(bytes)).await;
            if let Ok(place) = place {
                return Some(place);
            }
        }
    }

    fn tell_full(&self) {
        let message = format!(
            "the device has answered no request for {} s, and the maximum of {} requests are \
            waiting: further requests fail until it answers; `bimetal status` shows which side is \
            slow",
            PATIENCE.as_secs(),
            show_size(ROOM_BYTES)
        );
        self.rt.notices().post(&self.subject, "mount-full", message);
    }
}

#[cfg(test)]
mod tests {
    use bimetal_rt::VirtualOptions;

    use super::*;

    const MIB: usize = 1 << 20;

    fn in_virtual_time(body: impl AsyncFnOnce(&Rt)) {
        let rt = Rt::virtual_time(VirtualOptions::default());
        rt.block_on(body(&rt));
    }

    #[test]
    fn a_request_costs_its_data_and_a_little() {
        in_virtual_time(async |rt| {
            let room = Room::new(rt, "m/vol".to_owned());
            // 64 MiB are 65,536 times 1 KiB.
            let mut held = Vec::new();
            for _ in 0..65_536 {
                held.push(room.take(0).await.expect("there is room"));
            }
            assert!(room.take(0).await.is_none());
            held.clear();
            // 63 requests fit, each with 1 MiB of data and 1 KiB for the request itself. The
            // remaining memory is too small for another such request.
            for _ in 0..63 {
                held.push(room.take(MIB).await.expect("there is room"));
            }
            assert!(room.take(MIB).await.is_none());
        });
    }

    #[test]
    fn nobody_is_sent_away_while_the_device_gets_on() {
        in_virtual_time(async |rt| {
            let room = Rc::new(Room::new(rt, "m/vol".to_owned()));
            rt.sleep(Duration::from_secs(3600)).await;
            let mut held = Vec::new();
            while held.len() < 63 {
                held.push(room.take(MIB).await.expect("there is room"));
            }
            room.note_progress();
            let began = rt.now();
            let (mover, in_time) = (Rc::clone(&room), rt.clone());
            let moving = rt.spawn(async move {
                for _ in 0..4 {
                    in_time.sleep(Duration::from_secs(9)).await;
                    mover.note_progress();
                }
                in_time.sleep(Duration::from_secs(9)).await;
                held.pop();
                held
            });
            assert!(room.take(MIB).await.is_some());
            assert_eq!(rt.now().since(began), Duration::from_secs(45));
            let held = moving.await;
            assert_eq!(held.len(), 62);
        });
    }

    #[test]
    fn a_stalled_device_is_reported_and_a_client_without_a_slot_is_refused() {
        in_virtual_time(async |rt| {
            let room = Room::new(rt, "m/vol".to_owned());
            let mut held = Vec::new();
            while held.len() < 63 {
                held.push(room.take(MIB).await.expect("there is room"));
            }
            let began = rt.now();
            assert!(room.take(MIB).await.is_none());
            assert_eq!(rt.now().since(began), PATIENCE);
            // After the first refusal, a large request is refused immediately. A small request
            // still fits into the remaining memory.
            assert!(room.take(MIB).await.is_none());
            assert_eq!(rt.now().since(began), PATIENCE);
            assert!(room.take(4096).await.is_some());
            let told = rt.notices().take(rt.now());
            assert_eq!(told.len(), 1);
            assert_eq!((told[0].kind, &*told[0].subject), ("mount-full", "m/vol"));
            assert!(told[0].message.contains("for 10 s"), "{}", told[0]);
            // After progress of the device, requests wait again.
            room.note_progress();
            drop(held);
            assert!(room.take(MIB).await.is_some());
        });
    }
}
