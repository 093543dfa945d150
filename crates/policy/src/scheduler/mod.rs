//! The queue in front of a device: it decides which requests are merged, which one is issued next,
//! and when waiting is better.
//!
//! A [`RequestQueue`] takes bios, merges them into requests, holds them back while it is plugged, and
//! issues requests to the device in the order that a [`Scheduler`] decides. The same objects run in
//! a live stack and in virtual time, so the contract is narrow:
//!
//! - **The caller owns tags.** A bio is known by a tag below the bound given to [`RequestQueue::new`]; the
//!   request that it starts has the same tag. A tag is free again when the request that contains
//!   its bio has completed. So the number of tags bounds every list here, arrays have their size
//!   from the start, and adding a request allocates nothing once the sorted arrays have grown. A
//!   tag out of bounds or in use is a bug of the caller, and panics.
//! - **Time is an argument.** Every call gets the time in nanoseconds since any fixed start, never
//!   less than the time of the previous call. If a decision is deferred, [`RequestQueue::wake_at_ns`]
//!   returns until when; the caller asks again then, and after every bio and completion.
//! - **The caller handles flushes.** A flush waits until the queue is empty; no request overtakes
//!   it here.
//!
//! A scheduler must never do I/O, read a clock, or lose a request: every request that is added is
//! dispatched once, or absorbed by a request that is, provided that time advances.
//!
//! The rules, parameters and sources of every scheduler are in `docs/schedulers.md`.

mod anticipatory;
mod bfq;
mod cfq;
mod choice;
mod deadline;
mod dispatch;
mod flash;
mod head;
mod kyber;
mod lanes;
mod means;
mod mq_deadline;
mod noop;
mod queue;
mod queues;
mod requests;
mod sorted;

pub use anticipatory::{Anticipatory, AnticipatoryParameters};
pub use bfq::{Bfq, BfqParameters};
pub use cfq::{Cfq, CfqParameters};
pub use choice::{Parameter, SchedulerChoice};
pub use deadline::{Deadline, DeadlineParameters};
pub use dispatch::DispatchList;
pub use flash::{Flash, FlashParameters};
pub use kyber::{Kyber, KyberParameters};
pub use mq_deadline::{MqDeadline, MqDeadlineParameters};
pub use noop::Noop;
pub use queue::{Added, DirectionCounters, Plugging, QueueCounters, QueueParameters, RequestQueue};
pub use requests::{Bio, Bios, Direction, Priority, Request, Requests};

/// A bio's number, assigned by the caller, and the number of the request that it starts.
pub type Tag = u32;

/// The dense number of a task that submits bios. Per-task arrays grow to the largest one seen.
pub type Task = u32;

/// Nanoseconds in a millisecond, the unit in which the kernel's parameters are known.
const MS_NS: u64 = 1_000_000;

/// A policy that decides the order of requests. The contract is at the head of the module.
pub trait Scheduler: Send {
    /// Returns the scheduler's name.
    fn name(&self) -> &'static str;

    /// Adds a new request.
    fn add(&mut self, tag: Tag, requests: &Requests, now_ns: u64);

    /// Returns the request to which `bio` could be prepended: of the same direction, and starting
    /// where the bio ends. The queue checks sizes.
    fn front_candidate(&self, bio: &Bio, requests: &Requests) -> Option<Tag> {
        let _ = (bio, requests);
        None
    }

    /// Returns false if `bio` must not be merged into the request, though their sectors are
    /// adjacent.
    fn may_merge(&self, tag: Tag, bio: &Bio, requests: &Requests) -> bool {
        let _ = (tag, bio, requests);
        true
    }

    /// Returns the request before `tag` in this scheduler's order, which may absorb it.
    fn former(&self, tag: Tag, requests: &Requests) -> Option<Tag>;

    /// Returns the request after `tag` in this scheduler's order, which it may absorb.
    fn latter(&self, tag: Tag, requests: &Requests) -> Option<Tag>;

    /// Records that a bio was prepended to `tag`, which had started at `old_start_sector`.
    fn grew_in_front(&mut self, tag: Tag, old_start_sector: u64, requests: &Requests) {
        let _ = (tag, old_start_sector, requests);
    }

    /// Records that a bio of `sectors` sectors was appended to `tag`.
    fn grew_behind(&mut self, tag: Tag, sectors: u32, requests: &Requests) {
        let _ = (tag, sectors, requests);
    }

    /// Removes `absorbed`, which follows `survivor` and is being absorbed by it. The call comes
    /// before the merge, so both requests still have their old contents.
    fn absorbed(&mut self, survivor: Tag, absorbed: Tag, requests: &Requests);

    /// Moves the next requests to the list for the device; returns false if none should be issued
    /// now.
    fn dispatch(&mut self, requests: &Requests, now_ns: u64, list: &mut DispatchList) -> bool;

    /// Records that `tag` was issued from the list to the device.
    fn issued(&mut self, tag: Tag, requests: &Requests) {
        let _ = (tag, requests);
    }

    /// Records that the device has completed `tag`.
    fn completed(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        let _ = (tag, requests, now_ns);
    }

    /// Records that `task` will make no more requests.
    fn task_exited(&mut self, task: Task) {
        let _ = task;
    }

    /// Returns the time at which to call `dispatch` again even if no request has arrived or
    /// completed; `None` if there is none.
    fn wake_at_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the number of requests added and not yet moved to the list or absorbed.
    fn waiting(&self) -> usize;
}

#[cfg(test)]
mod tests;
