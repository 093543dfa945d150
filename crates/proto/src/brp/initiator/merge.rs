//! Temporal merge: divides the queue of requests into frames when the link is ready to send
//! (section "Temporal merge"). This module must never make a request wait for another request to
//! arrive.

use std::collections::VecDeque;

use crate::brp::wire::{ENTRIES_MAX, feature};

/// Minimum number of small requests that the adaptive mode merges. Fewer requests get a frame each:
/// a few requests gain little from a common head, and if all of them were in a single frame, one
/// end would be idle while the other end works.
const ADAPTIVE_MIN: usize = 8;
/// Maximum number of requests in a frame of the adaptive mode if at most half of the requests are
/// writes. The results of reads then carry most of the data. Because frames are small, the target
/// begins to send results while the next frame is on its way.
const ADAPTIVE_MAX: usize = 16;
/// Minimum for the limit on the number of requests in a frame, in the adaptive mode if most of the
/// requests are writes. The limit is half of the number of waiting requests, but at least this
/// number. The waiting requests are divided evenly into frames within the limit. Frames must not be
/// small: copying the data of the writes into the link is the initiator's largest cost, and each
/// further send wakes the target for little work. Many requests are divided among several frames,
/// so that both ends work at the same time.
const ADAPTIVE_WRITES_MIN: usize = 32;
/// If a send has this number of data bytes or more, no further frame is added to it.
const SEND_BYTES: u64 = 4 << 20;

/// Decides how requests are merged into frames, and whether the target handles requests one at a
/// time or concurrently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// BRP-1: one request per frame and one frame per send; the target handles requests one at a
    /// time.
    Short,
    /// BRP-2: one request per frame and one frame per send; the target handles requests
    /// concurrently.
    Parallel,
    /// BRP-3T: all queued requests are merged.
    Merge {
        /// True when the target handles the requests of one frame one at a time.
        in_turn: bool,
    },
    /// Requests are merged if the queue is long enough for merging to be worthwhile. The frame size
    /// is chosen so that both ends are busy at the same time.
    #[default]
    Adaptive,
}

impl Mode {
    /// Returns the features that a path in this mode requests from the target.
    pub fn features(self) -> u32 {
        match self {
            Mode::Short => feature::SERIAL,
            Mode::Parallel => 0,
            Mode::Merge { .. } | Mode::Adaptive => feature::MERGE,
        }
    }

    pub(super) fn in_turn(self) -> bool {
        matches!(self, Mode::Merge { in_turn: true })
    }
}

/// A request that waits to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) tag: u32,
    pub(super) data_bytes: u32,
    pub(super) may_merge: bool,
    /// True for a write, whose data is sent with the request. The data of a read is sent with its
    /// result.
    pub(super) carries_data: bool,
}

/// Frames of the next send. Each frame is represented by the number of requests that it takes from
/// the front of the queue.
#[derive(Debug, Default)]
pub(super) struct Cut {
    pub(super) frames: Vec<usize>,
}

/// Returns the frames of the next send, taken from the front of the queue: at most `requests_max`
/// requests with at most `data_bytes_max` bytes. The result is empty only if the queue is empty or
/// these limits leave no room.
pub(super) fn cut(
    mode: Mode,
    merges: bool,
    queue: &VecDeque<Waiting>,
    requests_max: usize,
    data_bytes_max: u64,
) -> Cut {
    let (mut cut, mut data_bytes) = (Cut::default(), 0);
    let fits = |waiting: &&Waiting| {
        data_bytes += u64::from(waiting.data_bytes);
        data_bytes <= data_bytes_max
    };
    let room = queue.iter().take(requests_max).take_while(fits).count();
    let mut start = 0;
    data_bytes = 0;
    while start < room && data_bytes < SEND_BYTES {
        let small = queue
            .range(start..room)
            .take_while(|waiting| waiting.may_merge)
            .count();
        let writes = queue
            .range(start..start + small)
            .filter(|waiting| waiting.carries_data)
            .count();
        let (frame, more) = frame(mode, merges, small, writes);
        data_bytes += queue
            .range(start..start + frame)
            .map(|waiting| u64::from(waiting.data_bytes))
            .sum::<u64>();
        cut.frames.push(frame);
        start += frame;
        if !more {
            break;
        }
    }
    cut
}

/// Returns the number of requests in the next frame, and whether one more frame is allowed in the
/// same send. `small` is the number of mergeable requests at the front of the queue, and `writes`
/// is the number of writes among them.
fn frame(mode: Mode, merges: bool, small: usize, writes: usize) -> (usize, bool) {
    match mode {
        Mode::Short | Mode::Parallel => (1, false),
        // A target without merging gets one request per frame. Several frames are still sent
        // together, since fewer sends cost less.
        _ if !merges => (1, true),
        Mode::Merge { .. } => (small.clamp(1, ENTRIES_MAX), true),
        Mode::Adaptive if small < ADAPTIVE_MIN => (1, true),
        Mode::Adaptive => {
            let mostly_writes = 2 * writes > small;
            let piece_max = if mostly_writes {
                (small / 2).clamp(ADAPTIVE_WRITES_MIN, ENTRIES_MAX)
            } else {
                ADAPTIVE_MAX
            };
            (small.div_ceil(small.div_ceil(piece_max)), false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(small: usize) -> VecDeque<Waiting> {
        mixed_queue(small, 0)
    }

    /// Creates a queue of `small` requests that can be merged. The first `writes` of them are
    /// writes.
    fn mixed_queue(small: usize, writes: usize) -> VecDeque<Waiting> {
        let waiting = |tag| Waiting {
            tag,
            data_bytes: 4096,
            may_merge: true,
            carries_data: (tag as usize) < writes,
        };
        (0..small as u32).map(waiting).collect()
    }

    /// Returns all sends until the queue is empty.
    fn sends(mode: Mode, mut queue: VecDeque<Waiting>) -> Vec<Vec<usize>> {
        let mut sends = Vec::new();
        while !queue.is_empty() {
            let cut = cut(mode, true, &queue, 256, 64 << 20);
            let sent: usize = cut.frames.iter().sum();
            queue.drain(..sent);
            sends.push(cut.frames);
        }
        sends
    }

    #[test]
    fn each_mode_frames_what_is_queued_as_it_says() {
        assert_eq!(sends(Mode::Parallel, queue(3)), [[1], [1], [1]]);
        let merge = Mode::Merge { in_turn: false };
        assert_eq!(sends(merge, queue(70)), [[64, 6]]);
        assert_eq!(sends(merge, queue(2)), [[2]]);
        assert_eq!(sends(Mode::Adaptive, queue(7)), [vec![1; 7]]);
        assert_eq!(sends(Mode::Adaptive, queue(8)), [[8]]);
        assert_eq!(sends(Mode::Adaptive, queue(17)), [vec![9], vec![8]]);
        for depth in 8..=256 {
            for send in sends(Mode::Adaptive, queue(depth)) {
                assert!(send.len() == 1 && (8..=16).contains(&send[0]), "{depth}");
            }
        }
    }

    #[test]
    fn pieces_of_writes_are_larger() {
        let adaptive = |writes, small| sends(Mode::Adaptive, mixed_queue(small, writes));
        assert_eq!(adaptive(32, 32), [[32]]);
        assert_eq!(adaptive(33, 33), [[17], [16]]);
        // The limit of a frame is half of the requests that wait when the frame is formed, but at
        // least 32 requests. The waiting requests are divided evenly into the smallest number of
        // frames within this limit.
        assert_eq!(adaptive(64, 64), [[32], [32]]);
        assert_eq!(adaptive(96, 96), [[48], [24], [24]]);
        assert_eq!(adaptive(128, 128), [[64], [32], [32]]);
        assert_eq!(adaptive(7, 7), [vec![1; 7]]);
        // Half of the requests are writes. This is not the majority, so a frame has at most 16
        // requests. With one write more, a frame can have 32 requests.
        assert_eq!(adaptive(16, 32), [[16], [16]]);
        assert_eq!(adaptive(17, 32), [[32]]);
        for depth in 8..=256 {
            for send in adaptive(depth, depth) {
                assert!(send.len() == 1 && (8..=64).contains(&send[0]), "{depth}");
            }
        }
    }

    #[test]
    fn large_requests_travel_alone_and_within_the_room() {
        let mut queue = queue(9);
        let large = Waiting {
            tag: 99,
            data_bytes: 1 << 20,
            may_merge: false,
            carries_data: true,
        };
        queue.push_front(large);
        let merge = Mode::Merge { in_turn: true };
        assert_eq!(cut(merge, true, &queue, 256, 64 << 20).frames, [1, 9]);
        assert_eq!(cut(merge, true, &queue, 4, 64 << 20).frames, [1, 3]);
        assert_eq!(cut(merge, true, &queue, 256, 1 << 20).frames, [1]);
        assert!(cut(merge, true, &queue, 256, 1000).frames.is_empty());
        assert!(cut(merge, true, &queue, 0, 64 << 20).frames.is_empty());
    }
}
