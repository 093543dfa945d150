//! The request layer in front of any scheduler: it merges, plugs and counts requests.
//!
//! Source: `block/blk-core.c`, `block/blk-merge.c` and `block/elevator.c` of Linux 2.6.26
//! (`__make_request`, `elv_merge`, `attempt_merge`, `blk_plug_device`).

use super::requests::RequestState;
use super::sorted::Sorted;
use super::{Bio, Bios, Direction, DispatchList, MS_NS, Request, Requests, Scheduler, Tag, Task};

/// The rule for plugging a queue, which means to hold its requests back so that more of them can be
/// merged and sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugging {
    /// The queue is never plugged.
    Off,
    /// The first request into an empty queue plugs the queue. The queue is unplugged when
    /// `requests` requests wait, when `delay_ns` has passed, by a bio marked `sync`, and by
    /// [`RequestQueue::unplug`].
    Device {
        /// Number of waiting requests at which the queue is unplugged.
        requests: usize,
        /// Maximum time for which the queue remains plugged.
        delay_ns: u64,
    },
}

/// Parameters of a request queue. The defaults are those of Linux 2.6.26.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueParameters {
    /// Maximum length of a merged request, in sectors.
    pub request_sectors_max: u32,
    /// The plugging rule.
    pub plugging: Plugging,
}

impl Default for QueueParameters {
    /// Returns 512 KiB, and a plug of 4 requests and 3 ms.
    fn default() -> QueueParameters {
        QueueParameters {
            request_sectors_max: 1024,
            plugging: Plugging::Device {
                requests: 4,
                delay_ns: 3 * MS_NS,
            },
        }
    }
}

/// The result of adding a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// The bio started a request.
    New,
    /// The bio was appended to the request with this tag.
    Back(Tag),
    /// The bio was prepended to the request with this tag.
    Front(Tag),
}

/// Counters of a queue in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// Number of bios added, not counting the remainders of split bios.
    pub bios: u64,
    /// Number of remainders of split bios added.
    pub splits: u64,
    /// Bios appended to a request.
    pub back_merges: u64,
    /// Bios prepended to a request.
    pub front_merges: u64,
    /// Number of requests absorbed by another request.
    pub request_merges: u64,
    /// Requests issued to the device.
    pub issued: u64,
    /// Requests completed by the device.
    pub completed: u64,
}

impl DirectionCounters {
    /// Returns the number of merges of all three kinds.
    pub fn merges(&self) -> u64 {
        self.back_merges + self.front_merges + self.request_merges
    }

    /// Returns the number of requests that have been neither absorbed nor issued: bios - merges +
    /// splits - issued. An empty queue therefore has issued = bios - merges + splits.
    pub fn queued(&self) -> u64 {
        self.bios + self.splits - self.merges() - self.issued
    }
}

/// Counters of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Counters of reads.
    pub reads: DirectionCounters,
    /// Counters of writes.
    pub writes: DirectionCounters,
}

impl QueueCounters {
    fn of(&mut self, direction: Direction) -> &mut DirectionCounters {
        match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        }
    }

    /// Returns the number of requests in the queue, both reads and writes.
    pub fn queued(&self) -> u64 {
        self.reads.queued() + self.writes.queued()
    }
}

/// A scheduler with the request layer in front of it. The documentation of [the module](super)
/// contains the contract.
pub struct RequestQueue {
    scheduler: Box<dyn Scheduler>,
    parameters: QueueParameters,
    requests: Requests,
    list: DispatchList,
    /// Waiting requests of each direction, indexed by the sector at which a request ends, to find
    /// the request to which a bio can be appended.
    ends: [Sorted; 2],
    /// The request that the last bio was merged into, which is the first candidate for the next
    /// bio.
    last_merge: Option<Tag>,
    /// Time until which the queue is plugged; `None` if it is not plugged.
    plugged_until_ns: Option<u64>,
    counts: QueueCounters,
}

impl RequestQueue {
    /// Creates a queue for bios with tags below `tags`. The scheduler must have been created for
    /// the same number of tags.
    pub fn new(
        scheduler: Box<dyn Scheduler>,
        tags: usize,
        parameters: QueueParameters,
    ) -> RequestQueue {
        RequestQueue {
            scheduler,
            parameters,
            requests: Requests::new(tags),
            list: DispatchList::new(tags),
            ends: [Sorted::with_capacity(tags), Sorted::with_capacity(tags)],
            last_merge: None,
            plugged_until_ns: None,
            counts: QueueCounters::default(),
        }
    }

    /// Adds `bio` under `tag`. The caller must [split](Bio::split) a bio that is longer than the
    /// maximum length of a request.
    ///
    /// # Panics
    /// If the tag is in use, or the bio is empty, too long, or exceeds the largest possible sector.
    pub fn add(&mut self, tag: Tag, bio: Bio, now_ns: u64) -> Added {
        let fits = (1..=self.parameters.request_sectors_max).contains(&bio.sectors);
        assert!(fits, "a bio of {} sectors", bio.sectors);
        let ends = bio.start_sector.checked_add(u64::from(bio.sectors));
        assert!(ends.is_some(), "a bio behind the last sector");
        self.requests.take(tag, bio);
        let counts = self.counts.of(bio.direction);
        let arrivals = if bio.continued {
            &mut counts.splits
        } else {
            &mut counts.bios
        };
        *arrivals += 1;
        let added = self.merge(tag, &bio).unwrap_or_else(|| {
            self.start(tag, &bio, now_ns);
            Added::New
        });
        if bio.sync {
            self.unplug();
        }
        added
    }

    /// Removes and returns the next request to issue to the device; `None` if no request should be
    /// issued now.
    pub fn next(&mut self, now_ns: u64) -> Option<Tag> {
        if self.plugged_until_ns.is_some_and(|until| now_ns < until) {
            return None;
        }
        self.unplug();
        while self.list.is_empty() {
            if !self
                .scheduler
                .dispatch(&self.requests, now_ns, &mut self.list)
            {
                return None;
            }
            self.note_listed();
        }
        let tag = self.list.pop(&self.requests)?;
        self.issue(tag);
        Some(tag)
    }

    /// Completes the request `tag`: appends the tags of its bios to `out` in ascending order of
    /// sector, and frees these tags.
    ///
    /// # Panics
    /// If the request is not at the device.
    pub fn complete(&mut self, tag: Tag, now_ns: u64, out: &mut Vec<Tag>) {
        self.requests
            .step(tag, RequestState::Issued, RequestState::Merged);
        self.counts.of(self.requests[tag].bio.direction).completed += 1;
        self.scheduler.completed(tag, &self.requests, now_ns);
        self.requests.free(tag, out);
    }

    /// Unplugs the queue, because a task waits.
    pub fn unplug(&mut self) {
        self.plugged_until_ns = None;
    }

    /// Returns the time at which the caller must call [`RequestQueue::next`] even if no bio has
    /// arrived and no request has completed; `None` if there is no such time.
    pub fn wake_at_ns(&self) -> Option<u64> {
        self.plugged_until_ns
            .or_else(|| self.scheduler.wake_at_ns())
    }

    /// Records that `task` will make no more requests.
    pub fn task_exited(&mut self, task: Task) {
        self.scheduler.task_exited(task);
    }

    /// Returns the current state of the request that began with the bio `tag`.
    pub fn request(&self, tag: Tag) -> &Request {
        &self.requests[tag]
    }

    /// Returns the tags of the bios of the request `tag`, in ascending order of sector.
    pub fn bios(&self, tag: Tag) -> Bios<'_> {
        self.requests.bios(tag)
    }

    /// Returns the counters.
    pub fn counts(&self) -> QueueCounters {
        self.counts
    }

    /// Returns the name of the scheduler.
    pub fn scheduler(&self) -> &'static str {
        self.scheduler.name()
    }

    fn start(&mut self, tag: Tag, bio: &Bio, now_ns: u64) {
        let was_empty = self.list.is_empty() && self.scheduler.waiting() == 0;
        self.requests.start(tag, now_ns);
        self.ends[bio.direction as usize].insert(bio.end_sector(), tag);
        self.last_merge = self.last_merge.or(Some(tag));
        self.scheduler.add(tag, &self.requests, now_ns);
        let Plugging::Device { requests, delay_ns } = self.parameters.plugging else {
            return;
        };
        if was_empty && self.plugged_until_ns.is_none() {
            self.plugged_until_ns = Some(now_ns.saturating_add(delay_ns));
        }
        if self.counts.queued() >= requests as u64 {
            self.unplug();
        }
    }

    /// Marks the requests that the scheduler has just dispatched, so that they are not merged any
    /// more.
    fn note_listed(&mut self) {
        assert!(!self.list.is_empty(), "a dispatch of nothing");
        while let Some(tag) = self.list.take_new() {
            self.requests
                .step(tag, RequestState::Waiting, RequestState::Listed);
            self.forget_end(tag);
        }
    }

    fn issue(&mut self, tag: Tag) {
        self.requests
            .step(tag, RequestState::Listed, RequestState::Issued);
        let direction = self.requests[tag].bio.direction;
        let counts = self.counts.of(direction);
        counts.issued += 1;
        self.scheduler.issued(tag, &self.requests);
        let here = self.scheduler.waiting() + self.list.len();
        assert_eq!(
            self.counts.queued(),
            here as u64,
            "issued = bios - merges + splits"
        );
    }

    /// Merges the bio into a waiting request, if a suitable request exists. The candidates, in this
    /// order, are the request that the last bio was merged into, the request that ends where the
    /// bio starts, and the request that starts where the bio ends.
    fn merge(&mut self, tag: Tag, bio: &Bio) -> Option<Added> {
        let (into, behind) = self.merge_candidate(bio)?;
        if self.is_too_large(into, bio.sectors) {
            return None;
        }
        if behind {
            self.merge_back(into, tag);
            Some(Added::Back(into))
        } else {
            self.merge_front(into, tag);
            Some(Added::Front(into))
        }
    }

    /// Returns the candidate request for merging `bio`, and true if the bio would be appended,
    /// false if prepended.
    fn merge_candidate(&self, bio: &Bio) -> Option<(Tag, bool)> {
        let allowed = |into: &Tag| self.may_merge(*into, bio);
        if let Some(last) = self.last_merge.filter(allowed) {
            if self.requests[last].bio.end_sector() == bio.start_sector {
                return Some((last, true));
            }
            if self.requests[last].bio.start_sector == bio.end_sector() {
                return Some((last, false));
            }
        }
        let ends = &self.ends[bio.direction as usize];
        if let Some(into) = ends.at(bio.start_sector).filter(allowed) {
            return Some((into, true));
        }
        let front = self.scheduler.front_candidate(bio, &self.requests);
        front.filter(allowed).map(|into| (into, false))
    }

    fn may_merge(&self, into: Tag, bio: &Bio) -> bool {
        let request = &self.requests[into];
        request.state == RequestState::Waiting
            && !request.complete
            && request.bio.direction == bio.direction
            && self.scheduler.may_merge(into, bio, &self.requests)
    }

    /// Returns true if the request `into` would become too long with `sectors` more sectors; in
    /// this case, excludes the request from further merges.
    fn is_too_large(&mut self, into: Tag, sectors: u32) -> bool {
        let sectors = self.requests[into].bio.sectors.saturating_add(sectors);
        let too_large = sectors > self.parameters.request_sectors_max;
        if too_large {
            self.close(into);
        }
        too_large
    }

    fn close(&mut self, tag: Tag) {
        self.forget_end(tag);
        self.requests.close(tag);
    }

    /// Removes the request `tag` from the indexes of merge candidates.
    fn forget_end(&mut self, tag: Tag) {
        let bio = self.requests[tag].bio;
        self.ends[bio.direction as usize].remove(bio.end_sector(), tag);
        self.last_merge = self.last_merge.filter(|last| *last != tag);
    }

    fn merge_back(&mut self, into: Tag, tag: Tag) {
        let direction = self.requests[into].bio.direction;
        self.forget_end(into);
        self.requests.append(into, tag);
        let sectors = self.requests[tag].bio.sectors;
        self.scheduler.grew_behind(into, sectors, &self.requests);
        self.ends[direction as usize].insert(self.requests[into].bio.end_sector(), into);
        self.last_merge = Some(into);
        self.counts.of(direction).back_merges += 1;
        if let Some(latter) = self.scheduler.latter(into, &self.requests) {
            self.merge_requests(into, latter);
        }
    }

    fn merge_front(&mut self, into: Tag, tag: Tag) {
        let old = self.requests[into].bio;
        self.requests.prepend(into, tag);
        self.scheduler
            .grew_in_front(into, old.start_sector, &self.requests);
        self.last_merge = Some(into);
        self.counts.of(old.direction).front_merges += 1;
        if let Some(former) = self.scheduler.former(into, &self.requests) {
            self.merge_requests(former, into);
        }
    }

    /// Merges the request `second` into `first`, if `second` starts where `first` ends and the
    /// merged request is not too long.
    fn merge_requests(&mut self, first: Tag, second: Tag) {
        let (a, b) = (self.requests[first], self.requests[second]);
        let meet = a.bio.direction == b.bio.direction && a.bio.end_sector() == b.bio.start_sector;
        let sectors = a.bio.sectors.saturating_add(b.bio.sectors);
        let fits = sectors <= self.parameters.request_sectors_max;
        if !meet || !fits || a.complete || b.complete {
            return;
        }
        self.forget_end(first);
        self.forget_end(second);
        self.scheduler.absorbed(first, second, &self.requests);
        self.requests.absorb(first, second);
        self.ends[a.bio.direction as usize].insert(self.requests[first].bio.end_sector(), first);
        self.last_merge = Some(first);
        self.counts.of(a.bio.direction).request_merges += 1;
    }
}
