//! Background work of a volume while clients write little or nothing: marking the sides clean-idle
//! (no peer is ahead), freeing space in the logs, and scheduling the repair of content that the
//! sides have found corrupt.

use std::rc::Rc;
use std::time::Duration;

use super::shared::{Shared, VolumeState};
use super::side::Side;

/// Time without a write after which the sides of a volume are marked clean-idle.
const QUIET_AFTER: Duration = Duration::from_secs(2);
/// Interval at which a flush is requested while a log is at least half full.
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// Interval at which the sides are queried for content that they have found corrupt.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

impl Shared {
    /// Records that the volume is busy, because a change was admitted. If the sides were marked
    /// clean-idle (no peer is ahead), marks the healthy sides dirty again.
    pub(super) fn is_busy(self: &Rc<Self>) {
        if self.membership.idle.replace(false) {
            for index in self.healthy() {
                self.mark_side(index);
            }
        }
        self.admission.tell();
    }

    /// Marks all members clean-idle (no peer is ahead) whenever no change was admitted for a while,
    /// so that each member can be started alone.
    pub(super) async fn settle(self: Rc<Self>) {
        let mut done = None;
        loop {
            let number = self.admission.next_number();
            if done == Some(number) {
                self.admission
                    .admitted
                    .until(|| self.admission.next_number() != number)
                    .await;
                continue;
            }
            self.rt.sleep(QUIET_AFTER).await;
            if self.admission.next_number() != number || self.state.get() == VolumeState::Closed {
                continue;
            }
            if !self.all_are_healthy() {
                continue;
            }
            for index in 0..self.sides.len() {
                self.want_flushed(index, number);
            }
            let all = || self.sides.iter().all(|side| side.has_durably(number));
            if self
                .rt
                .timeout(QUIET_AFTER, self.flushes.changed.until(all))
                .await
                .is_err()
            {
                continue;
            }
            if self.admission.next_number() == number && self.exposure.is_empty() {
                self.membership.idle.set(true);
                done = Some(number);
                for index in self.healthy() {
                    self.mark_side(index);
                }
            }
        }
    }

    /// While changes are admitted and a log is at least half full, flushes one side after another,
    /// even if no client requests a flush. This frees space in the logs, because only changes that
    /// are durable on all sides can leave them.
    pub(super) async fn keep_logs_moving(self: Rc<Self>) {
        let (mut flushed, mut turn) = (self.admission.next_number(), 0);
        loop {
            self.admission
                .admitted
                .until(|| self.admission.next_number() != flushed)
                .await;
            self.rt.sleep(FLUSH_EVERY).await;
            let stores = self.sides.iter().filter_map(Side::store);
            if stores.into_iter().any(|store| store.is_half_full()) {
                // One side is flushed at a time, round robin, so that another side can always take
                // changes immediately.
                flushed = self.admission.next_number();
                self.want_flushed(turn, flushed);
                turn = (turn + 1) % self.sides.len();
            }
        }
    }

    /// Checks the sides at a fixed interval, without end, and schedules the repair of blocks that a
    /// side has found corrupt while it destaged changes.
    pub(super) async fn find_suspects(self: Rc<Self>) {
        loop {
            self.rt.sleep(PROBE_INTERVAL).await;
            for index in 0..self.sides.len() {
                self.note_suspects(index);
            }
        }
    }
}
