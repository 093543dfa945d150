//! Completion times of operations: a drive's channels and dies as queues on the caller's clock.
//!
//! A die does one operation at a time, in the order in which the layer issued them; reads of the
//! host may overtake. A read occupies the die for the cells and then, for the transfer, the
//! channel; a program occupies the channel and then the cells; an erase occupies only the die.
//! Copies within a die can bypass the channel (copy-back). A channel serves its dies in the order
//! of their requests.
//!
//! The schedule must never read a clock or depend on how late it is called: everything happens at
//! the times of its own events, in their order, and at one instant in the order of causation. Its
//! queues hold the issued operations that are not done; the caller bounds their number.
//!
//! Not modelled: operations on several planes at once, cache programs, suspended programs, and the
//! wait of a copy between two dies for its read.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::geometry::Geometry;
use crate::operation::{Action, Operation, Purpose};

/// Times of operations, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationTimes {
    /// Reading a page from the cells into the page register.
    pub read_ns: u64,
    /// Programming a page from the page register into the cells.
    pub program_ns: u64,
    /// Erasing a block.
    pub erase_ns: u64,
    /// Reading a page of the SLC buffer.
    pub buffer_read_ns: u64,
    /// Programming a page of the SLC buffer.
    pub buffer_program_ns: u64,
    /// Transferring a page over the channel.
    pub transfer_ns: u64,
    /// Whether copies stay within the die. If false, they cross the channel twice, for the error
    /// correction in the controller.
    pub copy_back: bool,
    /// Whether reads of the host overtake all other operations that wait for a die.
    pub reads_first: bool,
}

impl OperationTimes {
    /// Returns the time that an operation spends in the cells, in ns.
    pub fn cells_ns(&self, action: Action, purpose: Purpose) -> u64 {
        match (action, purpose) {
            (Action::Read, Purpose::Buffer) => self.buffer_read_ns,
            (Action::Read, _) => self.read_ns,
            (Action::Program, Purpose::Buffer) => self.buffer_program_ns,
            (Action::Program, _) => self.program_ns,
            (Action::Erase, _) => self.erase_ns,
        }
    }
}

/// An operation of a command.
#[derive(Debug, Clone, Copy)]
struct Job {
    action: Action,
    purpose: Purpose,
    tag: u64,
}

#[derive(Debug, Default)]
struct Die {
    urgent: VecDeque<Job>,
    jobs: VecDeque<Job>,
    current: Option<Job>,
}

#[derive(Debug, Default)]
struct Channel {
    is_busy: bool,
    waiting: VecDeque<u32>,
}

/// The part of an operation that ends at an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Cells,
    Transfer,
}

/// The channels and dies of a drive. See the module head.
#[derive(Debug)]
pub struct Schedule {
    times: OperationTimes,
    dies: Vec<Die>,
    channels: Vec<Channel>,
    /// Pending events: (time, order of causation, die, phase).
    events: BinaryHeap<Reverse<(u64, u64, u32, Phase)>>,
    seq: u64,
    pending: usize,
}

impl Schedule {
    /// Creates idle channels and dies for a valid geometry.
    pub fn new(geometry: &Geometry, times: OperationTimes) -> Self {
        let dies = (0..geometry.total_dies()).map(|_| Die::default());
        let channels = (0..geometry.channels).map(|_| Channel::default());
        Schedule {
            times,
            dies: dies.collect(),
            channels: channels.collect(),
            events: BinaryHeap::new(),
            seq: 0,
            pending: 0,
        }
    }

    /// Returns the number of operations that are issued and not done.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Issues an operation to its die at `now_ns`, which must not lie before an event that has run.
    /// The end of the operation will be reported with `tag`.
    pub fn add(&mut self, now_ns: u64, operation: &Operation, tag: u64) {
        self.pending += 1;
        let job = Job {
            action: operation.action,
            purpose: operation.purpose,
            tag,
        };
        let die = &mut self.dies[operation.die as usize];
        let host_read = job.action == Action::Read && job.purpose == Purpose::Host;
        if host_read && self.times.reads_first {
            die.urgent.push_back(job);
        } else {
            die.jobs.push_back(job);
        }
        if die.current.is_none() {
            self.start_next(now_ns, operation.die);
        }
    }

    /// Returns the time of the next event in ns, or `None` if no operation is pending.
    pub fn next_ns(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((time_ns, ..))| *time_ns)
    }

    /// Runs the next event. Returns the tag of the operation that ended with it, if any.
    pub fn step(&mut self) -> Option<u64> {
        let Reverse((now_ns, _, die, phase)) = self.events.pop()?;
        let job = self.dies[die as usize].current?;
        if phase == Phase::Transfer {
            self.release_channel(now_ns, die);
        }
        match (job.action, phase) {
            (Action::Read, Phase::Cells) if !self.stays_in_die(&job) => {
                self.request_channel(now_ns, die);
                None
            }
            (Action::Program, Phase::Transfer) => {
                self.occupy_cells(now_ns, die, &job);
                None
            }
            _ => {
                self.dies[die as usize].current = None;
                self.pending -= 1;
                self.start_next(now_ns, die);
                Some(job.tag)
            }
        }
    }

    fn stays_in_die(&self, job: &Job) -> bool {
        self.times.copy_back && job.purpose == Purpose::Copy
    }

    fn start_next(&mut self, now_ns: u64, die: u32) {
        let queues = &mut self.dies[die as usize];
        let Some(job) = queues
            .urgent
            .pop_front()
            .or_else(|| queues.jobs.pop_front())
        else {
            return;
        };
        queues.current = Some(job);
        if job.action == Action::Program && !self.stays_in_die(&job) {
            self.request_channel(now_ns, die);
        } else {
            self.occupy_cells(now_ns, die, &job);
        }
    }

    fn occupy_cells(&mut self, now_ns: u64, die: u32, job: &Job) {
        let cells_ns = self.times.cells_ns(job.action, job.purpose);
        self.push_event(now_ns + cells_ns, die, Phase::Cells);
    }

    fn push_event(&mut self, time_ns: u64, die: u32, phase: Phase) {
        self.seq += 1;
        self.events.push(Reverse((time_ns, self.seq, die, phase)));
    }

    fn channel_of(&self, die: u32) -> usize {
        die as usize % self.channels.len()
    }

    fn request_channel(&mut self, now_ns: u64, die: u32) {
        let at = self.channel_of(die);
        let channel = &mut self.channels[at];
        if channel.is_busy {
            channel.waiting.push_back(die);
        } else {
            channel.is_busy = true;
            self.push_event(now_ns + self.times.transfer_ns, die, Phase::Transfer);
        }
    }

    fn release_channel(&mut self, now_ns: u64, die: u32) {
        let at = self.channel_of(die);
        match self.channels[at].waiting.pop_front() {
            Some(next) => {
                self.push_event(now_ns + self.times.transfer_ns, next, Phase::Transfer);
            }
            None => self.channels[at].is_busy = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: OperationTimes = OperationTimes {
        read_ns: 50,
        program_ns: 200,
        erase_ns: 1000,
        buffer_read_ns: 20,
        buffer_program_ns: 80,
        transfer_ns: 10,
        copy_back: false,
        reads_first: true,
    };

    fn schedule(channels: u32, ways: u32, times: OperationTimes) -> Schedule {
        let geometry = Geometry {
            channels,
            ways,
            ..Geometry::one_die(4, 4, 4096)
        };
        Schedule::new(&geometry, times)
    }

    fn operation(action: Action, purpose: Purpose, die: u32) -> Operation {
        Operation {
            action,
            purpose,
            page: 0,
            die,
            lpn: 0,
        }
    }

    /// Runs until no operation is pending, and returns the tag and the time of each completion.
    fn ends(schedule: &mut Schedule) -> Vec<(u64, u64)> {
        let mut ends = Vec::new();
        while let Some(now_ns) = schedule.next_ns() {
            ends.extend(schedule.step().map(|tag| (tag, now_ns)));
        }
        assert_eq!(schedule.pending(), 0);
        ends
    }

    /// Two dies share a channel: their transfers are sequential, and their cells work in parallel.
    #[test]
    fn dies_of_a_channel_overlap_but_for_the_transfers() {
        let mut one = schedule(1, 2, TIMES);
        one.add(0, &operation(Action::Program, Purpose::Host, 0), 1);
        one.add(0, &operation(Action::Program, Purpose::Host, 1), 2);
        assert_eq!(ends(&mut one), [(1, 210), (2, 220)]);
        let mut two = schedule(2, 1, TIMES);
        two.add(0, &operation(Action::Program, Purpose::Host, 0), 1);
        two.add(0, &operation(Action::Program, Purpose::Host, 1), 2);
        assert_eq!(ends(&mut two), [(1, 210), (2, 210)]);
        let mut reads = schedule(1, 2, TIMES);
        reads.add(5, &operation(Action::Read, Purpose::Host, 0), 1);
        reads.add(5, &operation(Action::Read, Purpose::Host, 1), 2);
        assert_eq!(ends(&mut reads), [(1, 65), (2, 75)]);
    }

    /// A host's read waits for the erase in progress and passes the program behind it.
    #[test]
    fn a_read_of_the_host_goes_first() {
        let run = |reads_first| {
            let mut dies = schedule(
                1,
                1,
                OperationTimes {
                    reads_first,
                    ..TIMES
                },
            );
            dies.add(0, &operation(Action::Erase, Purpose::Copy, 0), 1);
            dies.add(0, &operation(Action::Program, Purpose::Host, 0), 2);
            dies.add(0, &operation(Action::Read, Purpose::Host, 0), 3);
            ends(&mut dies)
        };
        assert_eq!(run(true), [(1, 1000), (3, 1060), (2, 1270)]);
        assert_eq!(run(false), [(1, 1000), (2, 1210), (3, 1270)]);
    }

    /// A copy crosses the channel twice; with copy-back it stays in the die.
    #[test]
    fn copies_stay_in_the_die_with_copy_back() {
        let run = |copy_back| {
            let mut dies = schedule(1, 1, OperationTimes { copy_back, ..TIMES });
            dies.add(0, &operation(Action::Read, Purpose::Copy, 0), 1);
            dies.add(0, &operation(Action::Program, Purpose::Copy, 0), 2);
            ends(&mut dies)
        };
        assert_eq!(run(false), [(1, 60), (2, 270)]);
        assert_eq!(run(true), [(1, 50), (2, 250)]);
    }

    #[test]
    fn the_slc_buffer_has_times_of_its_own() {
        let mut dies = schedule(1, 1, TIMES);
        dies.add(0, &operation(Action::Program, Purpose::Buffer, 0), 1);
        dies.add(0, &operation(Action::Read, Purpose::Buffer, 0), 2);
        assert_eq!(ends(&mut dies), [(1, 90), (2, 120)]);
    }
}
