//! The requests of a queue, one place for each tag, and the bios that each is made of.

use super::{Tag, Task};
use crate::lists::NONE;

/// Which way data goes.
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
    /// Before everything else; level 0 is the most urgent, 7 the least.
    RealTime(u8),
    /// As most are; levels as above.
    BestEffort(u8),
    /// When nobody else wants the device.
    Idle,
}

impl Priority {
    /// What a task has that asked for nothing else: best effort, level 4.
    pub const NORMAL: Priority = Priority::BestEffort(4);
}

impl Default for Priority {
    fn default() -> Priority {
        Priority::NORMAL
    }
}

/// A piece of I/O as it comes from above: sectors of 512 bytes, all read or all written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bio {
    /// First sector.
    pub start_sector: u64,
    /// Length, at least 1.
    pub sectors: u32,
    /// Which way.
    pub direction: Direction,
    /// Somebody waits for it. Reads always count as such.
    pub sync: bool,
    /// It is the file system's own data.
    pub metadata: bool,
    /// Who asks.
    pub task: Task,
    /// How urgent that task is.
    pub priority: Priority,
    /// It is the rest of a bio that was split, and counts as a split and not as a bio.
    pub continued: bool,
}

impl Bio {
    /// A read of `task` at normal priority.
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

    /// A write of `task` at normal priority that nobody waits for.
    pub fn write(task: Task, start_sector: u64, sectors: u32) -> Bio {
        Bio {
            direction: Direction::Write,
            sync: false,
            ..Bio::read(task, start_sector, sectors)
        }
    }

    /// The first sector behind it.
    pub fn end_sector(&self) -> u64 {
        self.start_sector + u64::from(self.sectors)
    }

    /// True if somebody waits for it.
    pub fn is_sync(&self) -> bool {
        self.sync || self.direction == Direction::Read
    }

    /// The first `sectors_max` sectors, and what is left, if anything is, to be given in turn.
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

/// Where a tag's bio is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The tag is not in use.
    Free,
    /// It started a request that waits in the scheduler.
    Waiting,
    /// Its request is on the list for the device.
    Listed,
    /// Its request is with the device.
    Issued,
    /// It is part of another tag's request.
    Merged,
}

/// What the device is given at once: one bio or several that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// All of it, with the marks of the bio that started it.
    pub bio: Bio,
    /// When it was added, or when the oldest request was that it has absorbed.
    pub arrived_ns: u64,
    /// Its bios in order of sector: the first and the last.
    first: Tag,
    last: Tag,
    pub(super) state: State,
    /// No bio and no request may be merged with it any more: a merge would have been too large.
    pub(super) complete: bool,
}

/// All requests of a queue.
#[derive(Clone, Debug)]
pub struct Requests {
    slots: Vec<Request>,
    /// Of each bio, the next one of its request.
    next: Vec<Tag>,
}

impl Requests {
    /// Places for `tags` bios.
    pub(super) fn new(tags: usize) -> Requests {
        let free = Request {
            bio: Bio::read(0, 0, 0),
            arrived_ns: 0,
            first: NONE,
            last: NONE,
            state: State::Free,
            complete: false,
        };
        Requests {
            slots: vec![free; tags],
            next: vec![NONE; tags],
        }
    }

    /// Tags there are.
    pub fn tags(&self) -> usize {
        self.slots.len()
    }

    /// The bios of a request, in ascending order of sector.
    pub fn bios(&self, tag: Tag) -> Bios<'_> {
        Bios {
            requests: self,
            at: self[tag].first,
        }
    }

    /// Takes a bio under a free tag. It has no request yet.
    pub(super) fn take(&mut self, tag: Tag, bio: Bio) {
        let slot = &mut self.slots[tag as usize];
        assert_eq!(slot.state, State::Free, "tag {tag} is in use");
        slot.bio = bio;
        slot.state = State::Merged;
        self.next[tag as usize] = NONE;
    }

    /// Makes a request of the bio `tag`.
    pub(super) fn start(&mut self, tag: Tag, now_ns: u64) {
        let slot = &mut self.slots[tag as usize];
        (slot.first, slot.last) = (tag, tag);
        slot.arrived_ns = now_ns;
        slot.state = State::Waiting;
        slot.complete = false;
    }

    /// Puts the bio `bio` behind the request `tag`.
    pub(super) fn append(&mut self, tag: Tag, bio: Tag) {
        let sectors = self[bio].bio.sectors;
        let last = self[tag].last;
        self.next[last as usize] = bio;
        let slot = &mut self.slots[tag as usize];
        slot.last = bio;
        slot.bio.sectors += sectors;
    }

    /// Puts the bio `bio` in front of the request `tag`.
    pub(super) fn prepend(&mut self, tag: Tag, bio: Tag) {
        let front = self[bio].bio;
        self.next[bio as usize] = self[tag].first;
        let slot = &mut self.slots[tag as usize];
        slot.first = bio;
        slot.bio.start_sector = front.start_sector;
        slot.bio.sectors += front.sectors;
    }

    /// Makes the request `tag` one with the request `absorbed` behind it.
    pub(super) fn absorb(&mut self, tag: Tag, absorbed: Tag) {
        let other = self[absorbed];
        let last = self[tag].last;
        self.next[last as usize] = other.first;
        let slot = &mut self.slots[tag as usize];
        slot.last = other.last;
        slot.bio.sectors += other.bio.sectors;
        slot.arrived_ns = slot.arrived_ns.min(other.arrived_ns);
        self.slots[absorbed as usize].state = State::Merged;
    }

    /// Says that the request `tag` goes from one state to the next.
    pub(super) fn step(&mut self, tag: Tag, from: State, to: State) {
        let slot = &mut self.slots[tag as usize];
        assert_eq!(slot.state, from, "tag {tag} is not there");
        slot.state = to;
    }

    /// Nothing is merged with the request `tag` any more.
    pub(super) fn close(&mut self, tag: Tag) {
        self.slots[tag as usize].complete = true;
    }

    /// Appends the tags of the request's bios to `out`, which are free from now on.
    pub(super) fn free(&mut self, tag: Tag, out: &mut Vec<Tag>) {
        let from = out.len();
        out.extend(self.bios(tag));
        for bio in &out[from..] {
            self.slots[*bio as usize].state = State::Free;
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
