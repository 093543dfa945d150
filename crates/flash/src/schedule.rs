//! Completion times of flash operations: the channels and dies of a drive as queues on the caller's
//! clock.
//!
//! A die executes one operation at a time, in the order in which the layer issued them. With
//! `reads_first`, reads of the host overtake the operations that wait. A read occupies the die
//! while the cells are read and then, during the transfer, also the channel. A program occupies the
//! channel and then the cells. An erase occupies only the die. Copies within a die can bypass the
//! channel (copy-back). A channel serves its dies in the order of their requests.
//!
//! The schedule must never read a clock, and its results must not depend on how late it is called.
//! Every event is processed at its own time, in the order of these times, and events at the same
//! time in the order in which they were caused. The queues hold the issued operations that have not
//! completed; the caller must bound their number.
//!
//! The following is not modelled: operations on several planes together, cache programs, suspended
//! programs, and the time that a copy between two dies waits for its read.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::geometry::Geometry;
use crate::operation::{Action, Operation, Purpose};

/// Times of the parts of operations, in nanoseconds, and rules for their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationTimes {
    /// Time to read a page from the cells into the page register.
    pub read_ns: u64,
    /// Time to program a page from the page register into the cells.
    pub program_ns: u64,
    /// Time to erase a block.
    pub erase_ns: u64,
    /// Time to read a page of the SLC buffer.
    pub buffer_read_ns: u64,
    /// Time to program a page of the SLC buffer.
    pub buffer_program_ns: u64,
    /// Time to transfer a page over the channel.
    pub transfer_ns: u64,
    /// Whether copies within a die bypass the channel. If false, a copy crosses the channel twice,
    /// because the error correction is in the controller.
    pub copy_back: bool,
    /// Whether reads of the host overtake all other operations that wait for the same die.
    pub reads_first: bool,
}

impl OperationTimes {
    /// Returns the time in ns that an operation occupies the cells.
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

/// An operation that waits for its die or is being executed.
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

/// Part of an operation. An event marks the end of one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Cells,
    Transfer,
}

/// The channels and dies of a drive; see the module documentation.
#[derive(Debug)]
pub struct Schedule {
    times: OperationTimes,
    dies: Vec<Die>,
    channels: Vec<Channel>,
    /// Pending events, each with its time, the value of `seq`, the die and the phase. `seq` orders
    /// events at the same time by the order in which they were caused.
    events: BinaryHeap<Reverse<(u64, u64, u32, Phase)>>,
    seq: u64,
    pending: usize,
}

impl Schedule {
    /// Creates a schedule without operations. The geometry must be valid.
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

    /// Returns the number of operations that have been issued and have not completed.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Issues an operation to its die at the time `now_ns`, which must not be before an event that
    /// has been processed. [`step`](Self::step) reports the completion of the operation with `tag`.
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

    /// Returns the time of the next event in ns; `None` if no operation is pending.
    pub fn next_ns(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((time_ns, ..))| *time_ns)
    }

    /// Processes the next event. If the event completes an operation, returns the tag of the
    /// operation.
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

    /// Processes events until no operation is pending. Returns the tag and the time of each
    /// completion.
    fn ends(schedule: &mut Schedule) -> Vec<(u64, u64)> {
        let mut ends = Vec::new();
        while let Some(now_ns) = schedule.next_ns() {
            ends.extend(schedule.step().map(|tag| (tag, now_ns)));
        }
        assert_eq!(schedule.pending(), 0);
        ends
    }

    /// If two dies share a channel, their transfers are sequential, and their cells work in
    /// parallel.
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

    /// A read of the host waits for the erase in progress, and overtakes the program that was
    /// issued before it.
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

    /// A copy crosses the channel twice. With copy-back, it stays within the die.
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
