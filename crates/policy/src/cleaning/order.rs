//! Whether the blocks of a window of the volume lie on a disk in an order that is worth changing.
//!
//! The window is judged by its *runs*: the pieces in which a disk reads it in the order of the
//! volume, with a seek before each. A window must never be judged disordered as it lies after it
//! was put in order, because it would be appended again and again.

/// Mean number of blocks of a run from which on a window is read fast enough: 512 KiB, which take a
/// disk about half as long as the seek before them.
const RUN_BLOCKS_ENOUGH: u64 = 128;
/// Number of runs of a window, as a multiple of those that it would have in order, from which on it
/// is worth moving.
const RUNS_FACTOR_MIN: u64 = 2;
/// Number of blocks of a run for each block of gaps between them. A run that begins goes on over
/// the descriptions of its blocks: two blocks for 254, and a summary for each segment.
const BLOCKS_PER_GAP: u64 = 16;

/// The runs of a window, whose blocks are added in the order of the volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs {
    /// Number of blocks, and of their runs.
    blocks: u64,
    runs: u64,
    /// Place that would continue the last run.
    next: u64,
    /// Number of blocks of the last run, and of the gaps in it.
    run_blocks: u64,
    gap_blocks: u64,
}

impl Runs {
    /// Adds the next block of the volume, which lies at the block `at` of the device.
    pub fn add(&mut self, at: u64) {
        self.blocks += 1;
        let gap_blocks = at.checked_sub(self.next).map(|gap| gap + self.gap_blocks);
        let goes_on = |gap: &u64| *gap * BLOCKS_PER_GAP <= self.run_blocks;
        match gap_blocks.filter(goes_on).filter(|_| self.runs > 0) {
            Some(gap_blocks) => {
                self.gap_blocks = gap_blocks;
                self.run_blocks += 1;
            }
            None => {
                self.runs += 1;
                self.run_blocks = 1;
                self.gap_blocks = 0;
            }
        }
        self.next = at + 1;
    }

    /// Returns true when the blocks should be appended again in the order of the volume, to
    /// segments with `segment_blocks` blocks of content each.
    pub fn are_disordered(&self, segment_blocks: u64) -> bool {
        // The blocks in order may begin and end in the middle of a segment.
        let in_order = self.blocks.div_ceil(segment_blocks) + 1;
        self.runs * RUN_BLOCKS_ENOUGH > self.blocks && self.runs >= RUNS_FACTOR_MIN * in_order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_BLOCKS: u64 = 16_000;

    fn runs(places: impl IntoIterator<Item = u64>) -> Runs {
        let mut runs = Runs::default();
        places.into_iter().for_each(|at| runs.add(at));
        runs
    }

    fn are_disordered(places: impl IntoIterator<Item = u64>) -> bool {
        runs(places).are_disordered(SEGMENT_BLOCKS)
    }

    #[test]
    fn blocks_at_random_and_backwards_are_disordered() {
        assert!(are_disordered((0..4096).map(|block| block * 77 % 4096)));
        assert!(are_disordered((0..4096).rev()));
        assert!(!are_disordered(0..4096));
        assert!(!are_disordered([]));
    }

    /// Chunks of 254 blocks begin with two blocks of descriptions, and a segment of 64 MiB ends
    /// with 115 blocks of its summary.
    #[test]
    fn what_was_put_in_order_is_one_run_for_each_segment() {
        let in_chunks = |block: u64| 7 + block / 254 * 256 + block % 254;
        let over_the_end = |block: u64| match block < 3000 {
            true => in_chunks(block),
            false => in_chunks(block) + 115,
        };
        assert_eq!(runs((0..4096).map(in_chunks)).runs, 1);
        assert_eq!(runs((0..4096).map(over_the_end)).runs, 1);
        // On a small side a segment has 62 blocks of content, and the next one may be anywhere.
        let in_segments = |block: u64| 10_000 - block / 62 * 64 + block % 62;
        let runs = runs((0..620).map(in_segments));
        assert_eq!(runs.runs, 10);
        assert!(!runs.are_disordered(62));
    }

    /// Each block of a slow sequential writer has a header before it. A disk loses a rotation
    /// between two reads that are not adjacent.
    #[test]
    fn blocks_with_many_gaps_are_disordered() {
        assert!(are_disordered((0..4096).map(|block| 2 * block)));
        assert_eq!(runs((0..4096).map(|block| 2 * block)).runs, 4096);
        // The gaps are not paid for again by the blocks before the first one.
        let later = (0..160).chain((0..100).map(|block| 161 + 2 * block));
        assert_eq!(runs(later).runs, 1 + 90, "ten gaps fit the first run");
    }

    #[test]
    fn a_small_gain_is_not_worth_moving() {
        let in_pieces = |length: u64| {
            let piece = move |block: u64| 10_000_000 - block / length * 1000 + block % length;
            (0..4096).map(piece)
        };
        assert!(are_disordered(in_pieces(1)));
        assert!(are_disordered(in_pieces(64)), "256 KiB");
        assert!(!are_disordered(in_pieces(128)), "512 KiB");
        // Three blocks in three runs need two runs in order.
        assert!(!are_disordered([100, 50, 10]));
        assert!(are_disordered([100, 50, 10, 0]));
    }
}
