//! The queue in front of a device: which requests become one, which goes next, and when it is
//! better to wait.
//!
//! A [`Queue`] takes bios, merges them into requests, holds them back while it is plugged, and
//! hands requests to the device in the order that a [`Scheduler`] decides. The same objects run in
//! a live stack and in virtual time, so the contract is narrow:
//!
//! - **Tags are the caller's.** A bio is known by a tag below the bound given to [`Queue::new`];
//!   the request that it starts has the same tag. A tag is free again when the request that its bio
//!   went into is completed. So the number of tags bounds every list here, arrays have their size
//!   from the start, and adding a request allocates nothing once the sorted arrays have grown. A
//!   tag out of bounds or in use is a bug of the caller, and panics.
//! - **Time is told.** Every call has the time in nanoseconds since any fixed start, never less
//!   than the time of the call before. Where a decision is put off, [`Queue::wake_at_ns`] says
//!   until when; the caller asks again then, and after every bio and completion.
//! - **A flush is the caller's.** It waits until the queue is empty; no request passes it here.
//!
//! A scheduler must never do I/O, read a clock, or lose a request: whatever is added is dispatched
//! once, or absorbed by a request that is, provided that time goes on.
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
pub use queue::{Added, Counts, DirectionCounts, Plugging, Queue, QueueParameters};
pub use requests::{Bio, Bios, Direction, Priority, Request, Requests};

/// A bio's number, given by the caller, and the number of the request that it starts.
pub type Tag = u32;

/// A task's dense number: who asks. Per-task arrays grow to the largest that was seen.
pub type Task = u32;

/// Nanoseconds in a millisecond, the unit in which the kernel's parameters are known.
const MS_NS: u64 = 1_000_000;

/// What decides the order of requests. The contract is at the head of the module.
pub trait Scheduler: Send {
    /// Its name in lists of schedulers.
    fn name(&self) -> &'static str;

    /// Takes a new request.
    fn add(&mut self, tag: Tag, requests: &Requests, now_ns: u64);

    /// The request in front of which `bio` could be put: of the same direction, and starting where
    /// the bio ends. The queue checks sizes.
    fn front_candidate(&self, bio: &Bio, requests: &Requests) -> Option<Tag> {
        let _ = (bio, requests);
        None
    }

    /// False if `bio` must not become part of the request, though their sectors meet.
    fn may_merge(&self, tag: Tag, bio: &Bio, requests: &Requests) -> bool {
        let _ = (tag, bio, requests);
        true
    }

    /// The request before `tag` in this scheduler's order, which may absorb it.
    fn former(&self, tag: Tag, requests: &Requests) -> Option<Tag>;

    /// The request after `tag` in this scheduler's order, which it may absorb.
    fn latter(&self, tag: Tag, requests: &Requests) -> Option<Tag>;

    /// A bio was put in front of `tag`, which had started at `old_start_sector`.
    fn grew_in_front(&mut self, tag: Tag, old_start_sector: u64, requests: &Requests) {
        let _ = (tag, old_start_sector, requests);
    }

    /// A bio of so many sectors was put behind `tag`.
    fn grew_behind(&mut self, tag: Tag, sectors: u32, requests: &Requests) {
        let _ = (tag, sectors, requests);
    }

    /// `survivor` has absorbed the request that follows it, which is to be forgotten. `absorbed` is
    /// still readable as it was.
    fn absorbed(&mut self, survivor: Tag, absorbed: Tag, requests: &Requests);

    /// Moves what is to go next to the list for the device; false if nothing is to go now.
    fn dispatch(&mut self, requests: &Requests, now_ns: u64, list: &mut DispatchList) -> bool;

    /// The device was given `tag` from the list.
    fn issued(&mut self, tag: Tag, requests: &Requests) {
        let _ = (tag, requests);
    }

    /// The device has done `tag`.
    fn completed(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        let _ = (tag, requests, now_ns);
    }

    /// `task` will ask for nothing any more.
    fn task_exited(&mut self, task: Task) {
        let _ = task;
    }

    /// When to ask again though nothing has arrived or completed; `None` without such a time.
    fn wake_at_ns(&self) -> Option<u64> {
        None
    }

    /// Requests added and not yet moved to the list, nor absorbed.
    fn waiting(&self) -> usize;
}

#[cfg(test)]
mod tests;
