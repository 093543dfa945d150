//! Recording in the superblocks which sides are members. Every change of the set of healthy sides
//! begins an epoch, which is written to the superblocks of the healthy sides, by at most one task
//! for each side.
//!
//! The superblock of a joining side must be written last. An epoch that excludes an ejected side
//! must begin only once a member of the epoch durably has the changes that were flushed before the
//! ejection.

use std::rc::Rc;
use std::time::Duration;

use super::shared::Shared;
use super::side::{Side, add};
use super::superblock::SideState;

/// Delay before the superblock of the last healthy side is written again after a failure.
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(50);

impl Shared {
    /// Begins an epoch that excludes the side just ejected, so that after a crash this side is not
    /// taken for complete. No request is acknowledged before a healthy side durably has the epoch.
    pub(super) fn announce_loss(self: &Rc<Self>) {
        if let Some(epoch) = self.begin_epoch() {
            self.membership.need(epoch);
        }
    }

    /// Begins an epoch whose members are the healthy sides, and starts writing the epoch to these
    /// sides. Returns the number of the epoch; `None` for a volume without superblocks.
    pub(super) fn begin_epoch(self: &Rc<Self>) -> Option<u64> {
        let volume = self.membership.superblocks.as_ref()?;
        let epoch = volume.begin_epoch(&self.healthy(), self.admission.next_number());
        // A side that is being rebuilt also receives the changes of the new epoch. Its log gets the
        // new epoch, too, because changes that the log records under the old epoch would be
        // invalid.
        for store in self.sides.iter().filter(|side| side.is_active()) {
            if let Some(store) = store.store() {
                store.set_epoch(epoch);
            }
        }
        for index in self.healthy() {
            self.mark_side(index);
        }
        Some(epoch)
    }

    /// Starts writing the newest epoch and state to the superblock of a side, unless a task already
    /// does so.
    pub(super) fn mark_side(self: &Rc<Self>, index: usize) {
        if self.membership.superblocks.is_some() && !self.sides[index].marking.replace(true) {
            let shared = Rc::clone(self);
            self.tasks
                .spawn(async move { shared.keep_marking(index).await });
        }
    }

    /// Returns true when the superblock of a side is allowed to be written now. The superblock of a
    /// joining side is written only after the superblocks of the other sides name the joining side
    /// as a member. Otherwise, after a crash, each side could consider itself the only complete
    /// side.
    fn may_be_marked(&self, index: usize) -> bool {
        let volume = self
            .membership
            .superblocks
            .as_ref()
            .expect("only these are marked");
        let mut others = self.healthy().into_iter().filter(|&other| other != index);
        volume.is_established(index)
            || others.all(|other| !volume.is_established(other) || volume.knows(other, index))
    }

    /// Returns true when an epoch that excludes the ejected sides is allowed to begin. The changes
    /// that were flushed before the ejection must first be durable on a member of the new epoch
    /// whose content recovery would use. If no such member can have all of these changes, it is
    /// enough that another member has them durably. If no member at all can have all of them, the
    /// epoch is allowed to begin without them.
    fn holds_what_was_flushed(&self) -> bool {
        let flushed = self.flushes.below();
        let members = || {
            let healthy = self.sides.iter().filter(|s| s.is_healthy());
            healthy.filter(|side| side.durable.get())
        };
        let asked = || members().filter(|side| self.would_be_asked(side.index));
        let holds = |side: &Side| {
            let store = side.store();
            store.is_some_and(|store| store.complete_durable() >= flushed)
        };
        if self.membership.is_marked() || asked().any(holds) {
            return true;
        }
        let any = members().any(holds) || !members().any(Side::holds_all);
        any && !asked().any(Side::holds_all)
    }

    /// Requests that every healthy side flush the changes that were flushed for clients, because
    /// some of them may be durable only on an ejected side.
    fn flush_before_epoch(self: &Rc<Self>) {
        for index in self.healthy() {
            self.want_flushed(index, self.flushes.below());
        }
    }

    async fn keep_marking(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        let volume = self
            .membership
            .superblocks
            .as_ref()
            .expect("only these are marked");
        while side.is_healthy() {
            let gone = || !side.is_healthy();
            let held = || gone() || self.holds_what_was_flushed();
            while !held() {
                // Requests the flush again, since the flush requested before has possibly failed.
                self.flush_before_epoch();
                self.release_logs();
                let moved = self.flushes.changed.until(held);
                let _ = self.rt.timeout(MARK_AGAIN_AFTER, moved).await;
            }
            let allowed = || gone() || self.may_be_marked(index);
            self.membership.changed.until(allowed).await;
            if !side.is_healthy() {
                break;
            }
            let (epoch, state) = (volume.epoch(), self.wanted_mark());
            // The superblock write is registered as an operation in flight, so that a side that
            // hangs in it is detected.
            let operation = side.start(self.rt.now());
            let complete = side.store().map_or(0, |store| store.complete_durable());
            let written = volume.mark_one(index, state, complete).await;
            side.finish(operation, self.rt.now());
            side.changed.notify();
            self.pump(index);
            match written {
                Ok(()) if side.is_healthy() => {
                    self.membership.marked(epoch);
                    self.release_logs();
                    self.flushes.changed.notify();
                    let is_newest = epoch == volume.epoch() && volume.has_remembered(index);
                    if is_newest && state == self.wanted_mark() {
                        break;
                    }
                }
                Ok(()) => break,
                Err(_) if !side.is_healthy() => {
                    // The side was ejected while its superblock was being written.
                    add(&side.counts.errors, 1);
                    break;
                }
                Err(error) if self.another_is_healthy(index) => {
                    add(&side.counts.errors, 1);
                    self.give_up(index, error);
                }
                Err(_) => {
                    add(&side.counts.errors, 1);
                    self.rt.sleep(MARK_AGAIN_AFTER).await;
                }
            }
        }
        side.marking.set(false);
    }

    /// Returns the state that the superblocks of the members should record: clean-idle or dirty.
    pub(super) fn wanted_mark(&self) -> SideState {
        if self.membership.idle.get() {
            SideState::CleanIdle
        } else {
            SideState::Dirty
        }
    }

    /// Returns true when every healthy or joining side durably records that it may be incomplete:
    /// its superblock says that a peer may be ahead of it, or that it is being rebuilt, and no
    /// superblock write in flight can change this. A joining side is marked as being rebuilt until
    /// its superblock is written again.
    pub(super) fn peers_know(&self) -> bool {
        let Some(volume) = &self.membership.superblocks else {
            return false;
        };
        let mut counted_on = self.sides.iter().filter(|side| side.is_counted_on());
        counted_on.all(|side| !volume.may_be_complete(side.index))
    }

    /// Returns true when a side that the table lists is not present.
    pub(super) fn incomplete_table(&self) -> bool {
        let volume = self.membership.superblocks.as_ref();
        volume.is_some_and(|volume| !volume.is_whole_table())
    }
}
