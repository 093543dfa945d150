//! How a side that is being rebuilt follows the changes of clients.
//!
//! The side is given a change where it already has what is around it. When much waits for it, it is
//! not: the range is out of sync again, and the rebuild brings it. That undoes what the rebuild has
//! done, so it is allowed only as long as the rebuild is ahead of its floor by as much. Otherwise
//! the change waits, before it is admitted, until less waits for the side.
//!
//! So what waits for the side is bounded in memory and in time: when it becomes whole and counts,
//! clients must not wait for what has gathered meanwhile. And a volume must never stay degraded
//! because its clients are faster than the side.

use std::ops::Range;

use super::lifecycle::Life;
use super::share::COST_BYTES_MIN;
use super::shared::{Shared, VolumeState};
use super::side::Side;

/// A side that is being rebuilt has at most this much to store that was admitted, and at most as
/// much as its log bounds the exposure to. 256 blocks are enough to put them in order.
const FOLLOWING_BYTES_MAX: u64 = 1 << 20;
/// What is out of sync again costs a disk this much at least: so much passes below its head in the
/// time in which it finds a block and, after its log has been there, the next one.
const COST_SEEKING_BYTES_MIN: u64 = 256 << 10;

impl Side {
    /// True when the side is given a change of a range. One that is being rebuilt and lacks all of
    /// the range is not: the rebuild brings the change along, and the log of the side is spared.
    /// Nor is one for which too much waits. Where the queue of the side still has an older change,
    /// the newer one follows it in order.
    pub(super) fn takes(&self, range: &Range<u64>) -> bool {
        let is_passed = self.may_be_passed(range) && !self.follows(range);
        self.is_active() && !is_passed
    }

    /// True when nothing but the rebuild need bring a change of a range to the side.
    fn may_be_passed(&self, range: &Range<u64>) -> bool {
        self.life.get() == Life::Resyncing && self.queue.borrow().is_current(range)
    }

    /// True when the side has a part of the range and little enough waits for it.
    fn follows(&self, range: &Range<u64>) -> bool {
        !self.out_of_sync.covers(range) && self.has_room_for(range)
    }

    fn has_room_for(&self, range: &Range<u64>) -> bool {
        let queue = self.queue.borrow();
        let bytes = queue.waiting_bytes() + queue.flying_bytes();
        let by_log = self.store().map(|store| store.backlog_bytes_max());
        let bytes_max = by_log.unwrap_or(u64::MAX).min(FOLLOWING_BYTES_MAX);
        bytes == 0 || bytes + (range.end - range.start) <= bytes_max
    }

    /// True when a change of the range takes room in what may wait for the side.
    fn needs_room_for(&self, range: &Range<u64>) -> bool {
        self.may_be_passed(range) && !self.out_of_sync.covers(range)
    }

    /// True when a change of the range would undo what a rebuild has done.
    fn would_fall_back(&self, range: &Range<u64>) -> bool {
        self.needs_room_for(range) && !self.has_room_for(range)
    }
}

impl Shared {
    /// Waits until every side that is being rebuilt can be given a change of a range, lacks all of
    /// it, or is so far ahead of its floor that it may be passed. Changes that take room of a side
    /// have it in the order of arrival; the others wait for nobody.
    pub(super) async fn until_rebuilds_follow(&self, range: &Range<u64>) {
        let needs_room = |side: &Side| side.needs_room_for(range);
        if !self.sides.iter().any(needs_room) {
            return;
        }
        let follow = || {
            let behind = |side: &Side| side.would_fall_back(range);
            self.state.get() != VolumeState::Open
                || self.repair.share.is_ahead()
                || !self.sides.iter().any(behind)
        };
        let waiting = &self.repair.following;
        if waiting.is_empty() && follow() {
            return;
        }
        waiting.in_turn(|| follow().then_some(())).await;
    }

    /// Notes that a side is not given a change of a range, and lacks it from now on.
    pub(super) fn pass_over(&self, side: &Side, range: &Range<u64>) {
        if side.would_fall_back(range) {
            let cost_bytes_min = match side.device.geometry().rotational {
                true => COST_SEEKING_BYTES_MIN,
                false => COST_BYTES_MIN,
            };
            let bytes = range.end - range.start;
            self.repair.share.fell_back(bytes.max(cost_bytes_min));
        }
        side.note_lack(range.clone());
    }
}
