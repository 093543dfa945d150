//! The rules by which a side that is being rebuilt is given the changes of clients.
//!
//! The side is given a change if it already has the surrounding content. When too many bytes wait
//! for the side, the change is not given to it: the range becomes out of sync again, and the
//! rebuild copies it. This undoes part of the rebuild, so it is allowed only while the rebuild is
//! ahead of the minimum rebuild rate (its floor). In this comparison, ranges that became out of
//! sync again count as not copied. If the rebuild is not ahead, the change waits, before it is
//! admitted, until fewer bytes wait for the side.
//!
//! These rules bound the bytes in memory that wait for the side: when the rebuild is complete and
//! acknowledgements depend on the side, clients must not wait for a large backlog. A volume must
//! never stay degraded because its clients are faster than the side.

use std::ops::Range;

use super::lifecycle::Life;
use super::share::COST_BYTES_MIN;
use super::shared::{Shared, VolumeState};
use super::side::Side;

/// Maximum number of admitted bytes that wait to be stored on a side that is being rebuilt. The
/// bound that the log of the side puts on the exposure applies as well. The maximum of 1 MiB is 256
/// blocks. That is enough for sorting the blocks by position to be useful.
const FOLLOWING_BYTES_MAX: u64 = 1 << 20;
/// Minimum cost, in bytes, of a range on a disk that becomes out of sync again. It is about the
/// number of bytes that pass below the head during two seeks: one to a block and, after a write to
/// the log, one to the next block.
const COST_SEEKING_BYTES_MIN: u64 = 256 << 10;

impl Side {
    /// Returns true when the side is to be given a change of a range. A side that is being rebuilt
    /// is not given the change in two cases: the side lacks the whole range (the rebuild then
    /// copies the content, without a write to the log), or too many bytes already wait for the
    /// side. But a change that overlaps an older change in the queue of the side is always given,
    /// so that the two apply in order.
    pub(super) fn takes(&self, range: &Range<u64>) -> bool {
        let is_passed = self.may_be_passed(range) && !self.follows(range);
        self.is_active() && !is_passed
    }

    /// Returns true when a change of the range need not be given to the side: the side is being
    /// rebuilt, and its queue holds no older change of the range.
    fn may_be_passed(&self, range: &Range<u64>) -> bool {
        self.life.get() == Life::Resyncing && self.queue.borrow().is_current(range)
    }

    /// Returns true if this side, which is being rebuilt, must be given a change of the range. This
    /// requires that the side already has a part of the range, and that the limit on waiting bytes
    /// has room for the change.
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

    /// Returns true when a change of the range is subject to the limit on the bytes that wait for
    /// the side.
    fn needs_room_for(&self, range: &Range<u64>) -> bool {
        self.may_be_passed(range) && !self.out_of_sync.covers(range)
    }

    /// Returns true when the limit on waiting bytes has no room for a change of the range. If the
    /// change is made now, the side lacks the range again, which undoes part of the rebuild.
    fn would_fall_back(&self, range: &Range<u64>) -> bool {
        self.needs_room_for(range) && !self.has_room_for(range)
    }
}

impl Shared {
    /// Waits until, for every side that is being rebuilt, one of these holds: the side can be given
    /// a change of the range; the side lacks the whole range; or the rebuild is ahead of the
    /// minimum rebuild rate, so that the side need not be given the change. Changes that are
    /// subject to the limit on the bytes waiting for a side are served in order of arrival; other
    /// changes do not wait.
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

    /// Records that a side lacks the range, because the side is not given a change of the range.
    pub(super) fn pass_over(&self, side: &Side, range: &Range<u64>) {
        if side.would_fall_back(range) {
            let cost_bytes_min = match side.seeks_for_copies() {
                true => COST_SEEKING_BYTES_MIN,
                false => COST_BYTES_MIN,
            };
            let bytes = range.end - range.start;
            self.repair.share.fell_back(bytes.max(cost_bytes_min));
        }
        side.note_lack(range.clone());
    }
}
