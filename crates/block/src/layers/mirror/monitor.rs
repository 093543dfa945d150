//! Callbacks through which the store of a side, and the path to its device, query the mirror while
//! the volume is in use.

use std::rc::Rc;
use std::time::Duration;

use super::shared::{Shared, VolumeState};
use super::side::{Side, add};
use crate::error::IoError;
use crate::request::Origin;

impl Shared {
    /// Registers the callbacks of the store of a side.
    pub(super) fn monitor_store(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        let (Some(store), Some(volume)) = (side.store(), &self.membership.superblocks) else {
            return;
        };
        let weak = Rc::downgrade(self);
        let given_below = move |limit: u64| {
            let shared = weak.upgrade()?;
            let side = &shared.sides[index];
            let limit = limit.min(shared.admission.next_number());
            // While the side lacks a range, `None` is returned, so that the sequence number below
            // which the side has every change does not increase.
            let given_below = || side.queue.borrow().given_below(limit);
            side.holds_all().then(given_below)
        };
        let weak = Rc::downgrade(self);
        let held = move || {
            // The destager pauses while a flush waits, while the exposure exceeds an eighth of its
            // bound, or while any side is late. If the log is short of space, it does not pause. A
            // pause leaves the devices to clients and to the side that has to catch up.
            let busy = |shared: Rc<Shared>| {
                let exposed = shared.exposure.bytes();
                let behind = exposed > shared.rules().exposure_bytes_max / 8;
                let late = shared.sides.iter().any(|side| side.work.is_stuck());
                shared.flushes.are_waited_for() || behind || late
            };
            weak.upgrade().is_some_and(busy)
        };
        let weak = Rc::downgrade(self);
        store.tell_of_durability(Rc::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.make_room_in_log(index);
            }
        }));
        let weak = Rc::downgrade(self);
        store.ask_for_content(Rc::new(move |range, stuck| {
            let weak = weak.clone();
            Box::pin(async move {
                let shared = weak.upgrade()?;
                let mut others = shared.sides.iter().filter(|other| other.index != index);
                let asked = others.find(|other| {
                    let seeks = other.device.geometry().rotational;
                    !seeks && (stuck || !other.work.is_stuck()) && other.is_current(&range)
                });
                let reply = asked?.store()?.read(range, Origin::NONE).await;
                // If the read of the other side fails, this side still has the content in its own
                // log.
                Some(reply.ok()?.into_data())
            })
        }));
        let weak = Rc::downgrade(self);
        store.ask_for_outdated(Rc::new(move |range| {
            let shared = weak.upgrade()?;
            shared.sides[index].why_outdated(range)
        }));
        let weak = Rc::downgrade(self);
        store.set_is_awaited(Rc::new(move || {
            let shared = weak.upgrade();
            shared.is_some_and(|shared| shared.is_awaited(index))
        }));
        let weak = Rc::downgrade(self);
        store.ask_for_idle_time(Rc::new(move || {
            let shared = weak.upgrade();
            shared.map_or(Duration::ZERO, |shared| shared.idle_time())
        }));
        store.monitor(
            volume.epoch(),
            Rc::new(move |limit| given_below(limit).unwrap_or(0)),
            Rc::new(held),
        );
    }

    /// Returns for how long clients have been idle; none while the sides have other work, because a
    /// side is not healthy or a scrub is running.
    fn idle_time(&self) -> Duration {
        let is_open = self.state.get() == VolumeState::Open;
        let is_whole = self.sides.iter().all(Side::is_healthy);
        match is_open && is_whole && !self.repair.scrub.is_running() {
            true => self.repair.clients.idle_time(),
            false => Duration::ZERO,
        }
    }

    /// Registers the callback that decides what happens to a side when the path to its device is
    /// interrupted.
    pub(super) fn monitor_path(self: &Rc<Self>, index: usize) {
        if let Some(device_path) = &self.sides[index].device_path {
            let weak = Rc::downgrade(self);
            let decide = move || weak.upgrade().is_none_or(|shared| shared.is_cut_off(index));
            device_path.monitor(Rc::new(decide));
        }
    }

    /// Decides what happens to a side after the path to its device was interrupted. After an
    /// interruption, the mirror's knowledge of the content of the side is possibly outdated.
    /// Returns true when the side must not be used before it has been reopened. The last healthy
    /// side stays in use.
    fn is_cut_off(self: &Rc<Self>, index: usize) -> bool {
        let side = &self.sides[index];
        let was_active = side.is_active();
        if was_active && !self.another_is_healthy(index) {
            return false;
        }
        add(&side.counts.errors, 1);
        // At the end of a stop, no side is ejected any more; a side that fails then is simply not
        // marked clean.
        if was_active && self.state.get() != VolumeState::Closed {
            self.give_up(index, IoError::Transport);
        }
        true
    }
}
