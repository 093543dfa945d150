//! mq-deadline: the rules of Deadline, applied within each priority class.
//!
//! Source: `block/mq-deadline.c` of Linux 6.1. Unlike in Linux 2.6.26, a seek does not end a batch.
//! Requests of a lower class wait while a higher class has requests in the queue or at the device,
//! but no longer than `prio_aging_expire`.

use super::lanes::{Expiries, Lane};
use super::{
    Bio, DeadlineParameters, Direction, DispatchList, MS_NS, Priority, Requests, Scheduler, Tag,
};

/// Parameters of mq-deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqDeadlineParameters {
    /// Parameters shared with Deadline.
    pub deadline: DeadlineParameters,
    /// Age at which a request of a lower priority class is dispatched before the requests of the
    /// higher classes.
    pub prio_aging_expire_ns: u64,
}

impl Default for MqDeadlineParameters {
    /// Returns the default parameters of Deadline, and a `prio_aging_expire_ns` of 10 s.
    fn default() -> MqDeadlineParameters {
        MqDeadlineParameters {
            deadline: DeadlineParameters::default(),
            prio_aging_expire_ns: 10_000 * MS_NS,
        }
    }
}

/// Requests of one class.
#[derive(Clone, Debug)]
struct Class {
    lanes: [Lane; 2],
    /// The request that follows the last dispatched request in ascending sector order, with its
    /// direction.
    next: Option<(Direction, Tag)>,
    /// Number of requests of the class that wait or are at the device.
    unfinished: usize,
}

impl Class {
    fn new(tags: usize) -> Class {
        Class {
            lanes: [Lane::new(tags), Lane::new(tags)],
            next: None,
            unfinished: 0,
        }
    }

    fn lane(&self, direction: Direction) -> &Lane {
        &self.lanes[direction as usize]
    }

    fn swept(&self, direction: Direction) -> Option<Tag> {
        let next = self.next.filter(|(of, _)| *of == direction);
        next.map(|(_, tag)| tag)
    }

    fn waiting(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }
}

/// Linux 6.1's mq-deadline.
#[derive(Clone, Debug)]
pub struct MqDeadline {
    parameters: MqDeadlineParameters,
    /// The classes: real time, best effort, idle.
    classes: [Class; 3],
    expiries: Expiries,
    /// Direction and length of the current batch, shared by all classes.
    direction: Direction,
    batching: u64,
    /// Number of batches of reads that were dispatched while writes were waiting.
    starved: u64,
}

impl MqDeadline {
    /// Creates the scheduler for `tags` tags.
    pub fn new(tags: usize, parameters: MqDeadlineParameters) -> MqDeadline {
        MqDeadline {
            parameters,
            classes: std::array::from_fn(|_| Class::new(tags)),
            expiries: Expiries::new(tags),
            direction: Direction::Read,
            batching: 0,
            starved: 0,
        }
    }

    /// Returns the request that `class` would dispatch next, if that request arrived no later than
    /// `arrived_ns_max`.
    fn choose(&mut self, class: usize, now_ns: u64, arrived_ns_max: u64) -> Option<Tag> {
        let swept = self.classes[class].swept(self.direction);
        let goes_on = self.batching < self.parameters.deadline.fifo_batch;
        let tag = match swept.filter(|_| goes_on) {
            Some(tag) => tag,
            None => self.begin(class, now_ns)?,
        };
        let expire_ns = self.parameters.deadline.expire_ns(self.direction);
        let arrived_ns = self.expiries.expires_ns(tag).saturating_sub(expire_ns);
        (arrived_ns <= arrived_ns_max).then_some(tag)
    }

    /// Begins a batch in `class` and returns its first request: the oldest request if it has
    /// expired or no sweep is in progress, otherwise the next request of the sweep.
    fn begin(&mut self, class: usize, now_ns: u64) -> Option<Tag> {
        let direction = self.turn(class)?;
        let class = &self.classes[class];
        let lane = class.lane(direction);
        // mq-deadline treats a request as expired at its expiry time. Deadline of Linux 2.6.26
        // treats it as expired only after that time.
        let due = lane.expired(&self.expiries, now_ns.saturating_add(1));
        let tag = due.or(class.swept(direction)).or(lane.oldest())?;
        self.direction = direction;
        self.batching = 0;
        Some(tag)
    }

    /// Returns the direction of the batch that begins in `class`.
    fn turn(&mut self, class: usize) -> Option<Direction> {
        let waits = |direction| !self.classes[class].lane(direction).is_empty();
        match (waits(Direction::Read), waits(Direction::Write)) {
            (false, false) => None,
            (true, false) => Some(Direction::Read),
            (true, true) if self.starved < self.parameters.deadline.writes_starved => {
                self.starved += 1;
                Some(Direction::Read)
            }
            (_, true) => {
                self.starved = 0;
                Some(Direction::Write)
            }
        }
    }

    /// Returns a request of a class below the highest one, if the request has waited longer than
    /// `prio_aging_expire_ns`.
    fn aged(&mut self, now_ns: u64) -> Option<Tag> {
        let waiting = self.classes.iter().filter(|c| c.unfinished > 0).count();
        let arrived_ns_max = now_ns.checked_sub(self.parameters.prio_aging_expire_ns)?;
        if waiting < 2 {
            return None;
        }
        (1..self.classes.len()).find_map(|class| self.choose(class, now_ns, arrived_ns_max))
    }

    /// Returns the next request of the highest class that has an unfinished request.
    fn highest(&mut self, now_ns: u64) -> Option<Tag> {
        let class = self.classes.iter().position(|c| c.unfinished > 0)?;
        self.choose(class, now_ns, now_ns)
    }
}

/// Returns the class of a bio's priority, 0 for the highest.
fn class_of(bio: &Bio) -> usize {
    match bio.priority {
        Priority::RealTime(_) => 0,
        Priority::BestEffort(_) => 1,
        Priority::Idle => 2,
    }
}

impl Scheduler for MqDeadline {
    fn name(&self) -> &'static str {
        "mq-deadline"
    }

    fn add(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        let bio = requests[tag].bio;
        let expire_ns = self.parameters.deadline.expire_ns(bio.direction);
        let class = &mut self.classes[class_of(&bio)];
        class.unfinished += 1;
        let lane = &mut class.lanes[bio.direction as usize];
        let expires_ns = now_ns.saturating_add(expire_ns);
        lane.add(tag, bio.start_sector, &mut self.expiries, expires_ns);
    }

    fn front_candidate(&self, bio: &Bio, _: &Requests) -> Option<Tag> {
        let lane = self.classes[class_of(bio)].lane(bio.direction);
        let merges = self.parameters.deadline.front_merges;
        merges.then(|| lane.sorted.at(bio.end_sector()))?
    }

    fn former(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        let bio = requests[tag].bio;
        let lane = self.classes[class_of(&bio)].lane(bio.direction);
        lane.sorted.before(bio.start_sector, tag)
    }

    fn latter(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        let bio = requests[tag].bio;
        let lane = self.classes[class_of(&bio)].lane(bio.direction);
        lane.sorted.after(bio.start_sector, tag)
    }

    fn grew_in_front(&mut self, tag: Tag, old_start_sector: u64, requests: &Requests) {
        let bio = requests[tag].bio;
        let lane = &mut self.classes[class_of(&bio)].lanes[bio.direction as usize];
        lane.moved(tag, old_start_sector, bio.start_sector);
    }

    fn absorbed(&mut self, survivor: Tag, absorbed: Tag, requests: &Requests) {
        let bio = requests[absorbed].bio;
        let latter = self.latter(absorbed, requests);
        let class = &mut self.classes[class_of(&bio)];
        if class.next == Some((bio.direction, absorbed)) {
            class.next = latter.map(|latter| (bio.direction, latter));
        }
        class.unfinished -= 1;
        let lane = &mut class.lanes[bio.direction as usize];
        lane.absorbed(survivor, absorbed, bio.start_sector, &mut self.expiries);
    }

    fn dispatch(&mut self, requests: &Requests, now_ns: u64, list: &mut DispatchList) -> bool {
        let Some(tag) = self.aged(now_ns).or_else(|| self.highest(now_ns)) else {
            return false;
        };
        self.batching += 1;
        let bio = requests[tag].bio;
        let latter = self.latter(tag, requests);
        let class = &mut self.classes[class_of(&bio)];
        class.next = latter.map(|latter| (bio.direction, latter));
        let lane = &mut class.lanes[bio.direction as usize];
        lane.remove(tag, bio.start_sector, &mut self.expiries);
        list.push(tag, requests);
        true
    }

    fn completed(&mut self, tag: Tag, requests: &Requests, _: u64) {
        self.classes[class_of(&requests[tag].bio)].unfinished -= 1;
    }

    fn waiting(&self) -> usize {
        self.classes.iter().map(Class::waiting).sum()
    }
}
