//! The queue in front of a device: it decides which requests are merged, which request is issued
//! next, and when the device is kept idle.
//!
//! A [`RequestQueue`] accepts bios, merges them into requests, holds requests back while it is
//! plugged, and issues requests to the device in the order that a [`Scheduler`] decides. The same
//! objects run in a live stack and in virtual time, so the contract is narrow:
//!
//! - **The caller owns tags.** A bio is identified by a tag below the bound given to
//!   [`RequestQueue::new`]; the request that the bio starts has the same tag. The tag is free again
//!   when the request that contains the bio has completed. The number of tags therefore bounds
//!   every list in this module, arrays are allocated at their full size, and adding a request
//!   allocates nothing once the sorted arrays have grown. A tag that is out of bounds or in use is
//!   a bug of the caller and causes a panic.
//! - **Time is an argument.** Every call is given the time in nanoseconds since any fixed start,
//!   which must not be less than the time of the previous call. If a decision is deferred,
//!   [`RequestQueue::wake_at_ns`] returns the time until which it is deferred. The caller asks for
//!   the next request at that time, and after every bio and every completion.
//! - **The caller handles flushes.** The caller delays a flush until the queue is empty; the queue
//!   itself knows no flushes.
//!
//! A scheduler must never do I/O, read a clock, or lose a request: every added request is either
//! dispatched once or absorbed by another request that is dispatched, provided that time advances.
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

/// The number of a bio, assigned by the caller. A request has the tag of the bio that started it.
pub type Tag = u32;

/// The number of a task that submits bios. Tasks should be numbered densely from 0, since per-task
/// arrays grow to the largest number.
pub type Task = u32;

/// Number of nanoseconds in a millisecond, the unit of the kernel's parameters.
const MS_NS: u64 = 1_000_000;

/// A policy that decides the order of requests. The documentation of the module contains the
/// contract.
pub trait Scheduler: Send {
    /// Returns the scheduler's name.
    fn name(&self) -> &'static str;

    /// Adds a new request.
    fn add(&mut self, tag: Tag, requests: &Requests, now_ns: u64);

    /// Returns a request to which `bio` could be prepended: a request of the same direction that
    /// starts where the bio ends. The queue checks the length of the merged request.
    fn front_candidate(&self, bio: &Bio, requests: &Requests) -> Option<Tag> {
        let _ = (bio, requests);
        None
    }

    /// Returns false if `bio` must not be merged into the request `tag`, although their sectors are
    /// adjacent.
    fn may_merge(&self, tag: Tag, bio: &Bio, requests: &Requests) -> bool {
        let _ = (tag, bio, requests);
        true
    }

    /// Returns the request before `tag` in the scheduler's order: the request that can absorb
    /// `tag`.
    fn former(&self, tag: Tag, requests: &Requests) -> Option<Tag>;

    /// Returns the request after `tag` in the scheduler's order: the request that `tag` can absorb.
    fn latter(&self, tag: Tag, requests: &Requests) -> Option<Tag>;

    /// Records that a bio was prepended to the request `tag`. `old_start_sector` is the sector at
    /// which the request started until then.
    fn grew_in_front(&mut self, tag: Tag, old_start_sector: u64, requests: &Requests) {
        let _ = (tag, old_start_sector, requests);
    }

    /// Records that a bio of `sectors` sectors was appended to the request `tag`.
    fn grew_behind(&mut self, tag: Tag, sectors: u32, requests: &Requests) {
        let _ = (tag, sectors, requests);
    }

    /// Removes the request `absorbed`, which starts where `survivor` ends and is about to be merged
    /// into `survivor`. Both requests still have their contents from before the merge.
    fn absorbed(&mut self, survivor: Tag, absorbed: Tag, requests: &Requests);

    /// Moves one or more requests to the list for the device; returns false if no request should be
    /// issued now.
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
    /// completed; `None` if there is no such time.
    fn wake_at_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the number of requests that were added, but have not been moved to the list for the
    /// device and have not been absorbed (merged into another request).
    fn waiting(&self) -> usize;
}

#[cfg(test)]
mod tests;
