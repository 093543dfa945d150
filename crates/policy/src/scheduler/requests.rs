//! The requests of a queue, with one slot for each tag, and the bios of which each request
//! consists.

use super::{Tag, Task};
use crate::lists::NONE;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// The I/O priority of a task, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// The class that is served before all other classes. Level 0 is the most urgent, 7 the least.
    RealTime(u8),
    /// The usual class. Level 0 is the most urgent, 7 the least.
    BestEffort(u8),
    /// The class that is served only when no other class has requests.
    Idle,
}

impl Priority {
    /// The default priority of a task: best effort, level 4.
    pub const NORMAL: Priority = Priority::BestEffort(4);
}

impl Default for Priority {
    fn default() -> Priority {
        Priority::NORMAL
    }
}

/// A unit of I/O from the upper layers: a range of 512-byte sectors that is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bio {
    /// First sector.
    pub start_sector: u64,
    /// Length, at least 1.
    pub sectors: u32,
    /// The direction of the transfer.
    pub direction: Direction,
    /// True when a task waits for the bio. Every read is treated as sync, whatever the value of
    /// this field is.
    pub sync: bool,
    /// True for the file system's own metadata.
    pub metadata: bool,
    /// The task that submitted the bio.
    pub task: Task,
    /// The priority of the task.
    pub priority: Priority,
    /// True for the remainder of a bio that was split. It is counted as a split, not as a bio.
    pub continued: bool,
}

impl Bio {
    /// Returns a read of `task` at normal priority.
    pub fn read(task: Task, start_sector: u64, sectors: u32) -> Bio {
        Bio {
            start_sector,
            sectors,
            direction: Direction::Read,
            sync: true,
            metadata: false,
            task,
            priority: Priority::NORMAL,
            continued: false,
        }
    }

    /// Returns an async write of `task` at normal priority: no task waits for it.
    pub fn write(task: Task, start_sector: u64, sectors: u32) -> Bio {
        Bio {
            direction: Direction::Write,
            sync: false,
            ..Bio::read(task, start_sector, sectors)
        }
    }

    /// Returns the first sector after the bio.
    pub fn end_sector(&self) -> u64 {
        self.start_sector + u64::from(self.sectors)
    }

    /// Returns true if a task waits for the bio.
    pub fn is_sync(&self) -> bool {
        self.sync || self.direction == Direction::Read
    }

    /// Returns a bio of the first `sectors_max` sectors, and a bio of the remaining sectors, if
    /// any. The caller adds both to the queue, the first one first.
    pub fn split(&self, sectors_max: u32) -> (Bio, Option<Bio>) {
        let sectors = self.sectors.min(sectors_max.max(1));
        let rest = Bio {
            start_sector: self.start_sector + u64::from(sectors),
            sectors: self.sectors - sectors,
            continued: true,
            ..*self
        };
        let rest = (rest.sectors > 0).then_some(rest);
        (Bio { sectors, ..*self }, rest)
    }
}

/// The state of a tag and its bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    /// The tag is not in use.
    Free,
    /// The bio started a request that waits in the scheduler.
    Waiting,
    /// The bio's request is on the list for the device.
    Listed,
    /// The bio's request is with the device.
    Issued,
    /// The bio is part of another tag's request.
    Merged,
}

/// The unit of work for the device: one bio, or several bios with consecutive sectors.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// A bio whose sector range is that of the whole request. Its other attributes are those of the
    /// bio that started the request.
    pub bio: Bio,
    /// Time at which the request was added. If the request has absorbed other requests, this is the
    /// earliest time at which any of them was added.
    pub arrived_ns: u64,
    /// The first and the last bio of the request in order of sector.
    first: Tag,
    last: Tag,
    pub(super) state: RequestState,
    /// True when an attempted merge would have made the request too long. No further bio or request
    /// can then be merged with the request.
    pub(super) complete: bool,
}

/// All requests of a queue.
#[derive(Clone, Debug)]
pub struct Requests {
    slots: Vec<Request>,
    /// For each bio, the next bio of the same request in order of sector.
    next: Vec<Tag>,
}

impl Requests {
    /// Creates slots for `tags` bios.
    pub(super) fn new(tags: usize) -> Requests {
        let free = Request {
            bio: Bio::read(0, 0, 0),
            arrived_ns: 0,
            first: NONE,
            last: NONE,
            state: RequestState::Free,
            complete: false,
        };
        Requests {
            slots: vec![free; tags],
            next: vec![NONE; tags],
        }
    }

    /// Returns the number of tags.
    pub fn tags(&self) -> usize {
        self.slots.len()
    }

    /// Returns the tags of the bios of the request `tag`, in ascending order of sector.
    pub fn bios(&self, tag: Tag) -> Bios<'_> {
        Bios {
            requests: self,
            at: self[tag].first,
        }
    }

    /// Stores a bio under a free tag. The bio is not part of a request yet.
    pub(super) fn take(&mut self, tag: Tag, bio: Bio) {
        let slot = &mut self.slots[tag as usize];
        assert_eq!(slot.state, RequestState::Free, "tag {tag} is in use");
        slot.bio = bio;
        slot.state = RequestState::Merged;
        self.next[tag as usize] = NONE;
    }

    /// Starts a request with the bio `tag`.
    pub(super) fn start(&mut self, tag: Tag, now_ns: u64) {
        let slot = &mut self.slots[tag as usize];
        (slot.first, slot.last) = (tag, tag);
        slot.arrived_ns = now_ns;
        slot.state = RequestState::Waiting;
        slot.complete = false;
    }

    /// Appends the bio `bio` to the request `tag`.
    pub(super) fn append(&mut self, tag: Tag, bio: Tag) {
        let sectors = self[bio].bio.sectors;
        let last = self[tag].last;
        self.next[last as usize] = bio;
        let slot = &mut self.slots[tag as usize];
        slot.last = bio;
        slot.bio.sectors += sectors;
    }

    /// Prepends the bio `bio` to the request `tag`.
    pub(super) fn prepend(&mut self, tag: Tag, bio: Tag) {
        let front = self[bio].bio;
        self.next[bio as usize] = self[tag].first;
        let slot = &mut self.slots[tag as usize];
        slot.first = bio;
        slot.bio.start_sector = front.start_sector;
        slot.bio.sectors += front.sectors;
    }

    /// Merges the request `absorbed`, which starts where the request `tag` ends, into the request
    /// `tag`.
    pub(super) fn absorb(&mut self, tag: Tag, absorbed: Tag) {
        let other = self[absorbed];
        let last = self[tag].last;
        self.next[last as usize] = other.first;
        let slot = &mut self.slots[tag as usize];
        slot.last = other.last;
        slot.bio.sectors += other.bio.sectors;
        slot.arrived_ns = slot.arrived_ns.min(other.arrived_ns);
        self.slots[absorbed as usize].state = RequestState::Merged;
    }

    /// Moves the request `tag` from one state to the next.
    pub(super) fn step(&mut self, tag: Tag, from: RequestState, to: RequestState) {
        let slot = &mut self.slots[tag as usize];
        assert_eq!(slot.state, from, "tag {tag} is not there");
        slot.state = to;
    }

    /// Prevents further merges with the request `tag`.
    pub(super) fn close(&mut self, tag: Tag) {
        self.slots[tag as usize].complete = true;
    }

    /// Appends the tags of the bios of the request `tag` to `out`, and frees these tags.
    pub(super) fn free(&mut self, tag: Tag, out: &mut Vec<Tag>) {
        let from = out.len();
        out.extend(self.bios(tag));
        for bio in &out[from..] {
            self.slots[*bio as usize].state = RequestState::Free;
        }
    }
}

impl std::ops::Index<Tag> for Requests {
    type Output = Request;

    fn index(&self, tag: Tag) -> &Request {
        &self.slots[tag as usize]
    }
}

/// The bios of a request, in ascending order of sector.
#[derive(Clone, Debug)]
pub struct Bios<'a> {
    requests: &'a Requests,
    at: Tag,
}

impl Iterator for Bios<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let tag = (self.at != NONE).then_some(self.at)?;
        self.at = self.requests.next[tag as usize];
        Some(tag)
    }
}
