//! A simulated log-structured side: it counts the blocks that are written and moved, without data
//! and without time.

use crate::cleaning::heat::{Heat, SegmentAge, Stream};
use crate::cleaning::victims::{Candidate, Yield, choose, expected_yield};

const NONE: u32 = u32::MAX;

/// Number of free segments that cleaning keeps: one for each stream, and one.
pub const RESERVE: usize = Stream::ALL.len() + 1;

#[derive(Clone, Copy)]
struct Segment {
    stream: Stream,
    /// Time of sealing in appended blocks; `None` while the segment is open or free.
    sealed_at: Option<u64>,
    live: u32,
    filled: u32,
}

/// A victim whose live blocks are being moved.
struct Victim {
    id: u32,
    /// The next slot to look at.
    slot: u32,
    stream: Stream,
    /// What the segment promised when it was chosen.
    promised: Yield,
    moved: u64,
}

/// The side: segments, the place of each block, and the counts.
pub struct Side {
    segments: Vec<Segment>,
    segment_blocks: u32,
    /// The slot of each block; `NONE` before its first write.
    place: Vec<u32>,
    /// The block in each slot. It is alive if the block's place is this slot.
    content: Vec<u32>,
    free: Vec<u32>,
    open: [Option<u32>; 4],
    heat: Heat,
    victim: Option<Victim>,
    /// Blocks that were appended because they were written.
    pub written: u64,
    /// Blocks that were appended because cleaning moved them.
    pub moved: u64,
}

impl Side {
    /// Returns an empty side for `blocks` blocks.
    pub fn new(segments: u32, segment_blocks: u32, blocks: u32) -> Side {
        let segment = Segment {
            stream: Stream::WrittenCold,
            sealed_at: None,
            live: 0,
            filled: 0,
        };
        Side {
            segments: vec![segment; segments as usize],
            segment_blocks,
            place: vec![NONE; blocks as usize],
            content: vec![NONE; (segments * segment_blocks) as usize],
            free: (0..segments).rev().collect(),
            open: [None; 4],
            heat: Heat::new(),
            victim: None,
            written: 0,
            moved: 0,
        }
    }

    fn now(&self) -> u64 {
        self.written + self.moved
    }

    /// Returns the number of free segments.
    pub fn free_segments(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of blocks in free segments and in the rest of open ones.
    pub fn free_blocks(&self) -> u64 {
        let open = self.open.iter().flatten();
        let rest = open.map(|id| self.segment_blocks - self.segments[*id as usize].filled);
        self.free.len() as u64 * u64::from(self.segment_blocks) + u64::from(rest.sum::<u32>())
    }

    /// Returns the part of the space of the victim that is paid for by what was moved out of it.
    pub fn coming_blocks(&self) -> u64 {
        self.victim.as_ref().map_or(0, |victim| {
            let live = victim.promised.moved_blocks.max(1);
            (victim.moved * u64::from(self.segment_blocks) / live)
                .min(u64::from(self.segment_blocks))
        })
    }

    /// Writes a block.
    pub fn write(&mut self, block: u32) {
        let stream = self.heat.stream_of_write(self.age_of(block), self.now());
        self.kill(block);
        self.written += 1;
        self.append(block, stream);
    }

    fn age_of(&self, block: u32) -> Option<SegmentAge> {
        let place = self.place[block as usize];
        let segment = self.segments.get((place / self.segment_blocks) as usize)?;
        Some(SegmentAge {
            stream: segment.stream,
            sealed_at_blocks: segment.sealed_at,
        })
    }

    /// Removes the block from its place. A sealed segment without live blocks becomes free.
    fn kill(&mut self, block: u32) {
        let place = std::mem::replace(&mut self.place[block as usize], NONE);
        if place == NONE {
            return;
        }
        let id = place / self.segment_blocks;
        self.segments[id as usize].live -= 1;
        let is_victim = self.victim.as_ref().is_some_and(|victim| victim.id == id);
        if !is_victim {
            self.release_if_dead(id);
        }
    }

    fn release_if_dead(&mut self, id: u32) {
        let now = self.now();
        let segment = &mut self.segments[id as usize];
        if let (0, Some(sealed_at)) = (segment.live, segment.sealed_at) {
            self.heat.note_cleaned(segment.stream, sealed_at, now);
            segment.sealed_at = None;
            segment.filled = 0;
            self.free.push(id);
        }
    }

    fn append(&mut self, block: u32, stream: Stream) {
        let id = match self.open[stream.index()] {
            Some(id) => id,
            None => self.free.pop().expect("the reserve is enough"),
        };
        self.open[stream.index()] = Some(id);
        let now = self.now();
        let segment = &mut self.segments[id as usize];
        segment.stream = stream;
        let slot = id * self.segment_blocks + segment.filled;
        segment.filled += 1;
        segment.live += 1;
        self.content[slot as usize] = block;
        self.place[block as usize] = slot;
        if segment.filled == self.segment_blocks {
            segment.sealed_at = Some(now);
            self.open[stream.index()] = None;
        }
    }

    /// Cleans victims until more than the reserve is free.
    pub fn clean_to_reserve(&mut self) {
        while self.free.len() < RESERVE {
            self.clean_blocks(u64::from(self.segment_blocks));
        }
    }

    /// Moves blocks until `blocks` are moved or a victim is free; returns their number, and what
    /// the victim promised. `None` if there is no victim.
    pub fn clean_blocks(&mut self, blocks: u64) -> Option<(u64, Yield)> {
        let mut victim = match self.victim.take() {
            Some(victim) => victim,
            None => self.next_victim()?,
        };
        let before = victim.moved;
        while victim.slot < self.segment_blocks && victim.moved - before < blocks {
            let slot = victim.id * self.segment_blocks + victim.slot;
            let block = self.content[slot as usize];
            victim.slot += 1;
            if self.place[block as usize] == slot {
                self.segments[victim.id as usize].live -= 1;
                self.moved += 1;
                victim.moved += 1;
                self.append(block, victim.stream);
            }
        }
        let done = (victim.moved - before, victim.promised);
        match victim.slot == self.segment_blocks {
            true => self.release_if_dead(victim.id),
            false => self.victim = Some(victim),
        }
        Some(done)
    }

    fn next_victim(&mut self) -> Option<Victim> {
        let id = choose(self.candidates(), self.now())?;
        let segment = self.segments[id as usize];
        let from = SegmentAge {
            stream: segment.stream,
            sealed_at_blocks: segment.sealed_at,
        };
        Some(Victim {
            id,
            slot: 0,
            stream: self.heat.stream_of_move(from, self.now()),
            promised: self.candidate(id, &segment)?.cleaning_yield(),
            moved: 0,
        })
    }

    fn candidate(&self, id: u32, segment: &Segment) -> Option<Candidate> {
        Some(Candidate {
            id,
            live_blocks: segment.live,
            capacity_blocks: self.segment_blocks,
            sealed_at_blocks: segment.sealed_at?,
        })
    }

    fn candidates(&self) -> impl Iterator<Item = Candidate> {
        let in_work = self.victim.as_ref().map(|victim| victim.id);
        (0..)
            .zip(&self.segments)
            .filter(move |(id, _)| Some(*id) != in_work)
            .filter_map(|(id, segment)| self.candidate(id, segment))
    }

    /// Returns what the next victims cost and gain.
    pub fn expected(&self, count: usize) -> Yield {
        expected_yield(self.candidates(), self.now(), count)
    }

    /// Returns the number of blocks appended for each block written since the counts `written` and
    /// `moved`.
    pub fn amplification_since(&self, written: u64, moved: u64) -> f64 {
        1.0 + (self.moved - moved) as f64 / (self.written - written) as f64
    }
}
