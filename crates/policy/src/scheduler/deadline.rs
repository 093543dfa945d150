//! Deadline: requests are dispatched in sweeps of ascending sectors, reads before writes. A sweep
//! is interrupted for requests that have expired.
//!
//! Source: `block/deadline-iosched.c` of Linux 2.6.26.

use super::lanes::{Expiries, Lane};
use super::{Bio, Direction, DispatchList, MS_NS, Requests, Scheduler, Tag};

/// Parameters of Deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineParameters {
    /// Expiry age of a read. A new batch of reads begins with the oldest read if that read has
    /// expired.
    pub read_expire_ns: u64,
    /// Expiry age of a write. A new batch of writes begins with the oldest write if that write has
    /// expired.
    pub write_expire_ns: u64,
    /// Maximum number of requests in a batch.
    pub fifo_batch: u64,
    /// Maximum number of batches of reads that are dispatched while writes wait. The next batch is
    /// then a batch of writes.
    pub writes_starved: u64,
    /// True if a bio may be prepended to a waiting request.
    pub front_merges: bool,
}

impl Default for DeadlineParameters {
    /// Returns 500 ms for reads, 5 s for writes, batches of 16 requests, 2 batches of reads before
    /// a batch of writes, and front merges.
    fn default() -> DeadlineParameters {
        DeadlineParameters {
            read_expire_ns: 500 * MS_NS,
            write_expire_ns: 5000 * MS_NS,
            fifo_batch: 16,
            writes_starved: 2,
            front_merges: true,
        }
    }
}

impl DeadlineParameters {
    pub(super) fn expire_ns(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Read => self.read_expire_ns,
            Direction::Write => self.write_expire_ns,
        }
    }
}

/// Linux 2.6.26's Deadline.
#[derive(Clone, Debug)]
pub struct Deadline {
    parameters: DeadlineParameters,
    lanes: [Lane; 2],
    expiries: Expiries,
    /// The request that follows the last dispatched request in ascending sector order, with its
    /// direction.
    next: Option<(Direction, Tag)>,
    /// Number of requests dispatched in the current batch.
    batching: u64,
    /// Number of batches of reads that were dispatched while writes were waiting.
    starved: u64,
    /// The sector after the end of the last dispatched request.
    last_sector: u64,
}

impl Deadline {
    /// Creates the scheduler for `tags` tags.
    pub fn new(tags: usize, parameters: DeadlineParameters) -> Deadline {
        Deadline {
            parameters,
            lanes: [Lane::new(tags), Lane::new(tags)],
            expiries: Expiries::new(tags),
            next: None,
            batching: 0,
            starved: 0,
            last_sector: 0,
        }
    }

    fn lane(&self, direction: Direction) -> &Lane {
        &self.lanes[direction as usize]
    }

    /// Returns the request that continues the current batch; `None` if the batch is over or has no
    /// next request.
    fn continued(&mut self, requests: &Requests) -> Option<(Direction, Tag)> {
        let (direction, tag) = self.next?;
        if requests[tag].bio.start_sector != self.last_sector {
            // In Linux 2.6.26, a seek ends the batch.
            self.batching = self.batching.saturating_add(self.parameters.fifo_batch);
        }
        (self.batching < self.parameters.fifo_batch).then_some((direction, tag))
    }

    /// Returns the direction of the next batch.
    fn turn(&mut self) -> Option<Direction> {
        let waits = |direction| !self.lane(direction).is_empty();
        match (waits(Direction::Read), waits(Direction::Write)) {
            (false, false) => None,
            (true, false) => Some(Direction::Read),
            (true, true) if self.starved < self.parameters.writes_starved => {
                self.starved += 1;
                Some(Direction::Read)
            }
            (_, true) => {
                self.starved = 0;
                Some(Direction::Write)
            }
        }
    }

    /// Returns the first request of a new batch: the oldest request if it has expired or no sweep
    /// is in progress, otherwise the next request of the sweep.
    fn first(&mut self, now_ns: u64) -> Option<(Direction, Tag)> {
        let direction = self.turn()?;
        let lane = self.lane(direction);
        let swept = self.next.filter(|(of, _)| *of == direction);
        let swept = swept.map(|(_, tag)| tag);
        let tag = lane
            .expired(&self.expiries, now_ns)
            .or(swept)
            .or(lane.oldest())?;
        self.batching = 0;
        Some((direction, tag))
    }

    fn forget(&mut self, tag: Tag, requests: &Requests) {
        let bio = requests[tag].bio;
        if self.next == Some((bio.direction, tag)) {
            let next = self.lane(bio.direction).sorted.after(bio.start_sector, tag);
            self.next = next.map(|next| (bio.direction, next));
        }
    }
}

impl Scheduler for Deadline {
    fn name(&self) -> &'static str {
        "deadline"
    }

    fn add(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        let bio = requests[tag].bio;
        let expires_ns = now_ns.saturating_add(self.parameters.expire_ns(bio.direction));
        let lane = &mut self.lanes[bio.direction as usize];
        lane.add(tag, bio.start_sector, &mut self.expiries, expires_ns);
    }

    fn front_candidate(&self, bio: &Bio, _: &Requests) -> Option<Tag> {
        let sorted = &self.lane(bio.direction).sorted;
        self.parameters
            .front_merges
            .then(|| sorted.at(bio.end_sector()))?
    }

    fn former(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        let bio = requests[tag].bio;
        self.lane(bio.direction)
            .sorted
            .before(bio.start_sector, tag)
    }

    fn latter(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        let bio = requests[tag].bio;
        self.lane(bio.direction).sorted.after(bio.start_sector, tag)
    }

    fn grew_in_front(&mut self, tag: Tag, old_start_sector: u64, requests: &Requests) {
        let bio = requests[tag].bio;
        self.lanes[bio.direction as usize].moved(tag, old_start_sector, bio.start_sector);
    }

    fn absorbed(&mut self, survivor: Tag, absorbed: Tag, requests: &Requests) {
        self.forget(absorbed, requests);
        let bio = requests[absorbed].bio;
        let lane = &mut self.lanes[bio.direction as usize];
        lane.absorbed(survivor, absorbed, bio.start_sector, &mut self.expiries);
    }

    fn dispatch(&mut self, requests: &Requests, now_ns: u64, list: &mut DispatchList) -> bool {
        let chosen = self.continued(requests);
        let Some((direction, tag)) = chosen.or_else(|| self.first(now_ns)) else {
            return false;
        };
        self.batching += 1;
        let bio = requests[tag].bio;
        self.last_sector = bio.end_sector();
        let lane = &mut self.lanes[direction as usize];
        self.next = lane
            .sorted
            .after(bio.start_sector, tag)
            .map(|next| (direction, next));
        lane.remove(tag, bio.start_sector, &mut self.expiries);
        list.push(tag, requests);
        true
    }

    fn waiting(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }
}
