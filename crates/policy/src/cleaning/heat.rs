//! The stream to which a block is appended, so that blocks that die at about the same time share a
//! segment.
//!
//! Without streams, every segment holds the same mixture of blocks that are overwritten often and
//! blocks that are not, so every choice of victims moves the same number of blocks. The rule is
//! that of SepBIT (Wang and others, FAST 2022), without its queue of recent writes. It infers from
//! how long the *old* version of a block lived how long the new version will live:
//!
//! - A written block is **hot** if its old version lies in a segment of written data that is
//!   younger than the mean life of the last 16 cleaned hot segments. A block that is written for
//!   the first time is cold. So is a block whose old version was moved, because that version
//!   outlived a whole segment.
//! - A moved block is **hot** if it comes from a segment of hot written data, of any age, or from a
//!   segment of hot moved data that is younger than four mean lives. All other moved blocks are
//!   cold. Most blocks in a cleaned hot segment are hot: they are only the ones that chance spared.
//!   A block that chance spares for four mean lives more is no longer expected to die soon. (Four
//!   is SepBIT's bound for its youngest class of moved blocks.)
//!
//! The age and the life of a segment count from its sealing, in blocks appended to the side. An
//! open segment has age 0. A hot segment that became free because all of its blocks died counts as
//! cleaned. Until the first one is cleaned, no life is known, and any age counts as young.
//!
//! A mean of what was cleaned alone could get stuck: if the load changes so that no block is
//! younger than the mean life, no hot segments would be filled, none would be cleaned, and the mean
//! would never change. The mean life is therefore never taken to be shorter than the time since a
//! hot segment was last cleaned.
//!
//! The rule needs no memory for each block, only the stream and the time of sealing of each
//! segment. It must never be asked about the segment of a new version of a block, only about that
//! of the old version.

/// Number of cleaned hot segments over which the mean life is taken.
const LIVES: usize = 16;

/// Age, in mean lives of a hot segment, below which a segment of hot moved data still counts as
/// hot.
const MOVED_HOT_LIVES: u64 = 4;

/// A stream of appended blocks. Each stream fills an open segment of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Written blocks that are expected to be overwritten soon.
    WrittenHot,
    /// All other written blocks.
    WrittenCold,
    /// Blocks that cleaning moves and that are still expected to be overwritten soon.
    MovedHot,
    /// All other blocks that cleaning moves.
    MovedCold,
}

impl Stream {
    /// All streams.
    pub const ALL: [Stream; 4] = [
        Stream::WrittenHot,
        Stream::WrittenCold,
        Stream::MovedHot,
        Stream::MovedCold,
    ];

    /// Returns the position of the stream in [`Stream::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns true if the stream holds written blocks, false if it holds moved ones.
    pub fn is_written(self) -> bool {
        matches!(self, Stream::WrittenHot | Stream::WrittenCold)
    }
}

/// What is known about the segment in which a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentAge {
    /// The stream that filled the segment.
    pub stream: Stream,
    /// Time at which the segment was sealed, in blocks appended to the side; `None` if it is open.
    pub sealed_at_blocks: Option<u64>,
}

impl SegmentAge {
    fn age_blocks(&self, now_blocks: u64) -> u64 {
        self.sealed_at_blocks
            .map_or(0, |sealed| now_blocks.saturating_sub(sealed))
    }
}

/// The rule that separates blocks; see the module.
#[derive(Clone, Debug, Default)]
pub struct Heat {
    /// The lives of the last cleaned hot segments, in blocks; a ring in which `next` is the oldest.
    lives_blocks: [u64; LIVES],
    /// Number of entries of `lives_blocks` that are set.
    known: usize,
    next: usize,
    /// Time at which a hot segment was last cleaned.
    cleaned_at_blocks: u64,
}

impl Heat {
    /// Creates the rule of a side from which no hot segment has been cleaned.
    pub fn new() -> Heat {
        Heat::default()
    }

    /// Creates the rule of a side that was opened again at the time `now_blocks`, with the mean
    /// life that [`Heat::mean_life_blocks`] returned before; `None` if it was unknown.
    pub fn resumed(mean_life_blocks: Option<u64>, now_blocks: u64) -> Heat {
        match mean_life_blocks {
            None => Heat::new(),
            Some(life) => Heat {
                lives_blocks: [life; LIVES],
                known: LIVES,
                next: 0,
                cleaned_at_blocks: now_blocks,
            },
        }
    }

    /// Records at the time `now_blocks` that a segment is free again, because it was cleaned or
    /// because its last block died. `stream` filled the segment, and `sealed_at_blocks` is the time
    /// at which the segment was sealed.
    pub fn note_cleaned(&mut self, stream: Stream, sealed_at_blocks: u64, now_blocks: u64) {
        if stream != Stream::WrittenHot {
            return;
        }
        self.lives_blocks[self.next] = now_blocks.saturating_sub(sealed_at_blocks);
        self.next = (self.next + 1) % LIVES;
        self.known = (self.known + 1).min(LIVES);
        self.cleaned_at_blocks = now_blocks;
    }

    /// Returns the mean life of the last 16 cleaned hot segments, in blocks; `None` if none has
    /// been cleaned.
    pub fn mean_life_blocks(&self) -> Option<u64> {
        let sum: u128 = self.lives_blocks[..self.known]
            .iter()
            .map(|life| u128::from(*life))
            .sum();
        (self.known > 0).then(|| (sum / self.known as u128) as u64)
    }

    /// Returns true if a segment is younger than `lives` times the mean life of hot segments.
    fn is_younger(&self, segment: &SegmentAge, lives: u64, now_blocks: u64) -> bool {
        let since_cleaned = now_blocks.saturating_sub(self.cleaned_at_blocks);
        let is_below = |life: u64| {
            segment.age_blocks(now_blocks) < life.max(since_cleaned).saturating_mul(lives)
        };
        self.mean_life_blocks().is_none_or(is_below)
    }

    /// Returns the stream of a block that a client writes at the time `now_blocks`. `old` is the
    /// segment of the version that is overwritten; `None` if the block has no content yet or was
    /// discarded.
    pub fn stream_of_write(&self, old: Option<SegmentAge>, now_blocks: u64) -> Stream {
        let is_hot = |segment: &SegmentAge| {
            segment.stream.is_written() && self.is_younger(segment, 1, now_blocks)
        };
        match old.is_some_and(|segment| is_hot(&segment)) {
            true => Stream::WrittenHot,
            false => Stream::WrittenCold,
        }
    }

    /// Returns the stream of a live block that cleaning moves out of the segment `from` at the time
    /// `now_blocks`. All blocks of a victim that is cleaned at once have the same stream.
    pub fn stream_of_move(&self, from: SegmentAge, now_blocks: u64) -> Stream {
        match from.stream {
            Stream::WrittenHot => Stream::MovedHot,
            Stream::MovedHot if self.is_younger(&from, MOVED_HOT_LIVES, now_blocks) => {
                Stream::MovedHot
            }
            _ => Stream::MovedCold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(stream: Stream, at: u64) -> SegmentAge {
        SegmentAge {
            stream,
            sealed_at_blocks: Some(at),
        }
    }

    /// Returns a rule with a mean life of 100 blocks, learnt until the time 1000.
    fn taught() -> Heat {
        let mut heat = Heat::new();
        heat.note_cleaned(Stream::WrittenHot, 850, 950);
        heat.note_cleaned(Stream::WrittenHot, 850, 990);
        heat.note_cleaned(Stream::WrittenHot, 940, 1000);
        assert_eq!(heat.mean_life_blocks(), Some((100 + 140 + 60) / 3));
        heat
    }

    #[test]
    fn a_block_is_hot_if_its_old_version_was_written_within_the_mean_life() {
        let heat = taught();
        let of = |old| heat.stream_of_write(old, 1000);
        assert_eq!(of(None), Stream::WrittenCold);
        for stream in [Stream::WrittenHot, Stream::WrittenCold] {
            assert_eq!(of(Some(sealed(stream, 901))), Stream::WrittenHot);
            assert_eq!(of(Some(sealed(stream, 900))), Stream::WrittenCold);
        }
        for stream in [Stream::MovedHot, Stream::MovedCold] {
            assert_eq!(of(Some(sealed(stream, 1000))), Stream::WrittenCold);
        }
        let open = SegmentAge {
            stream: Stream::WrittenCold,
            sealed_at_blocks: None,
        };
        assert_eq!(of(Some(open)), Stream::WrittenHot);
    }

    #[test]
    fn a_moved_block_stays_hot_for_four_mean_lives_after_its_hot_segment() {
        let heat = taught();
        let of = |stream, at| heat.stream_of_move(sealed(stream, at), 1000);
        assert_eq!(of(Stream::WrittenHot, 0), Stream::MovedHot);
        assert_eq!(of(Stream::MovedHot, 601), Stream::MovedHot);
        assert_eq!(of(Stream::MovedHot, 600), Stream::MovedCold);
        for stream in [Stream::WrittenCold, Stream::MovedCold] {
            assert_eq!(of(stream, 1000), Stream::MovedCold);
        }
    }

    #[test]
    fn any_age_is_young_until_a_hot_segment_was_cleaned() {
        let mut heat = Heat::new();
        heat.note_cleaned(Stream::WrittenCold, 0, 500);
        heat.note_cleaned(Stream::MovedHot, 0, 500);
        assert_eq!(heat.mean_life_blocks(), None);
        let old = Some(sealed(Stream::WrittenCold, 0));
        assert_eq!(heat.stream_of_write(old, 1 << 40), Stream::WrittenHot);
    }

    #[test]
    fn only_the_last_sixteen_lives_count() {
        let mut heat = taught();
        (0..16).for_each(|_| heat.note_cleaned(Stream::WrittenHot, 1000, 1007));
        assert_eq!(heat.mean_life_blocks(), Some(7));
        assert_eq!(Heat::resumed(Some(7), 50).mean_life_blocks(), Some(7));
        assert_eq!(Heat::resumed(None, 50).mean_life_blocks(), None);
    }

    /// The mean life is 100 blocks, but no hot segment has been cleaned for 5000 blocks. A version
    /// that is 4000 blocks old must count as young, or hot segments would never be filled again.
    #[test]
    fn the_mean_life_grows_while_no_hot_segment_is_cleaned() {
        let heat = taught();
        let old = Some(sealed(Stream::WrittenCold, 2000));
        assert_eq!(heat.stream_of_write(old, 6000), Stream::WrittenHot);
        assert_eq!(heat.stream_of_write(old, 2100), Stream::WrittenHot);
        let older = Some(sealed(Stream::WrittenCold, 900));
        assert_eq!(heat.stream_of_write(older, 6000), Stream::WrittenCold);
    }
}
