//! Where requests wait that the device has no turn for yet.
//!
//! They are taken from the kernel all the same, since what needs no device comes behind them. What
//! they hold is bounded. Where that is full, whoever comes next waits, and with him everything
//! behind him; so when the device stands still besides, he is sent away. This module must never
//! send anybody away while the device gets on.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::units::show_size;
use bimetal_rt::sync::{Permit, Semaphore};
use bimetal_rt::{Instant, Rt};

/// What all that wait hold at most.
const ROOM_BYTES: u64 = 64 << 20;
/// What one of them holds beside its data, rounded up.
const REQUEST_BYTES: u64 = 1 << 10;
/// How long a device that begins and ends nothing is waited for where the room is full.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Room {
    rt: Rt,
    /// Who it is to the operator.
    subject: String,
    free_bytes: Rc<Semaphore>,
    /// When a request of the device began or ended last.
    progress: Cell<Instant>,
}

impl Room {
    /// An empty room of what the operator knows as `subject`.
    pub(super) fn new(rt: &Rt, subject: String) -> Room {
        Room {
            rt: rt.clone(),
            subject,
            free_bytes: Semaphore::new(ROOM_BYTES),
            progress: Cell::new(rt.now()),
        }
    }

    /// A request of the device has begun or ended.
    pub(super) fn note_progress(&self) {
        self.progress.set(self.rt.now());
    }

    /// A place for a request with so many bytes of data, held until what is returned is dropped;
    /// `None` when there is none and the device stands still.
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
            "the device has answered nothing for {} s, and no more can wait than the {} that do: further requests \
             fail until it answers; `bimetal status` shows which side is late",
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
            // 63 times 1 MiB and 1 KiB; of one more a part is there.
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
    fn a_device_that_stands_still_is_told_and_whoever_finds_no_room_is_sent_away() {
        in_virtual_time(async |rt| {
            let room = Room::new(rt, "m/vol".to_owned());
            let mut held = Vec::new();
            while held.len() < 63 {
                held.push(room.take(MIB).await.expect("there is room"));
            }
            let began = rt.now();
            assert!(room.take(MIB).await.is_none());
            assert_eq!(rt.now().since(began), PATIENCE);
            // The next one need not wait as long, and what is small finds the rest.
            assert!(room.take(MIB).await.is_none());
            assert_eq!(rt.now().since(began), PATIENCE);
            assert!(room.take(4096).await.is_some());
            let told = rt.notices().take(rt.now());
            assert_eq!(told.len(), 1);
            assert_eq!((told[0].kind, &*told[0].subject), ("mount-full", "m/vol"));
            assert!(told[0].message.contains("for 10 s"), "{}", told[0]);
            // It moves again: they are waited for again.
            room.note_progress();
            drop(held);
            assert!(room.take(MIB).await.is_some());
        });
    }
}
