//! What a volume does by itself while clients write little or nothing: saying that nobody is ahead,
//! keeping the logs moving, and repairing what the sides have found wrong with themselves.

use std::rc::Rc;
use std::time::Duration;

use super::shared::{Shared, VolumeState};
use super::side::Side;

/// A volume is quiet when nothing has been written for so long.
const QUIET_AFTER: Duration = Duration::from_secs(2);
/// How often a side is flushed, at least, while logs fill.
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// Whether a side has found something wrong with itself is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Shared {
    /// Something was admitted: whoever says that nobody is ahead must be told better.
    pub(super) fn is_not_quiet(self: &Rc<Self>) {
        if self.membership.quiet.replace(false) {
            for index in self.healthy() {
                self.mark_side(index);
            }
        }
        self.admission.tell();
    }

    /// Whenever nothing has been written for a while, lets all members say that nobody is ahead, so
    /// that each of them can be started alone.
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
                self.membership.quiet.set(true);
                done = Some(number);
                for index in self.healthy() {
                    self.mark_side(index);
                }
            }
        }
    }

    /// While changes come in, flushes all sides now and then even when no client does: only what is
    /// durable everywhere can leave the logs.
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
                // One after the other, so that one of them always takes changes at once.
                flushed = self.admission.next_number();
                self.want_flushed(turn, flushed);
                turn = (turn + 1) % self.sides.len();
            }
        }
    }

    /// What the sides find wrong with themselves while they bring changes home is repaired as well.
    pub(super) async fn look_for_suspects(self: Rc<Self>) {
        loop {
            self.rt.sleep(LOOK_EVERY).await;
            for index in 0..self.sides.len() {
                self.note_suspects(index);
            }
        }
    }
}
