//! Where to read the content that cleaning moves: on the side that is cleaned, or on another side
//! that has the same content.
//!
//! Neither is always cheaper. A disk reads a whole segment in sequence, and an SSD is asked for
//! each block by itself: a slow SSD can take longer for a segment that is mostly live. So the cost
//! of both is measured with every piece that is moved, and the cheaper one is used. From time to
//! time the other one is used, because costs change with the load. If it was cheaper then, it is
//! used again at once, so that one piece that met a stall does not keep it away for long.

/// Number of pieces after which the dearer source is tried again.
const TRIED_EVERY: u32 = 32;
/// Number of pieces in a row of which the other side supplies nothing, after which it is given up.
/// An SSD that stalls for some 100 ms must not be given up.
const FAILED_MAX: u32 = 16;
/// Number of pieces after which a side that was given up is tried again.
const RETRIED_EVERY: u32 = 4;
/// Weight of a new measurement in the mean.
const WEIGHT: f64 = 0.25;

/// A source of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The side that is cleaned.
    Own,
    /// Another side.
    Peer,
}

/// The source of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The source.
    pub source: Source,
    /// Whether the source is only tried, to measure what it costs. The piece should be short then:
    /// the dearer source can cost a hundred times as much.
    pub is_trial: bool,
}

/// The measured costs of both sources, and the choice between them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources {
    /// Mean time for a block, in nanoseconds; `None` before the first measurement.
    own_ns: Option<f64>,
    peer_ns: Option<f64>,
    /// Number of choices since the dearer source was chosen.
    chosen: u32,
    /// Number of pieces in a row of which the other side supplied nothing.
    failed: u32,
    /// Whether the other side was given up.
    given_up: bool,
}

impl Sources {
    /// Returns the source of the next piece, when another side can be asked. An unmeasured source
    /// is tried first, beginning with the other side.
    pub fn choose(&mut self) -> Choice {
        let trial = |source| Choice {
            source,
            is_trial: true,
        };
        if self.given_up {
            self.chosen += 1;
            if self.chosen >= RETRIED_EVERY {
                self.chosen = 0;
                return trial(Source::Peer);
            }
            return Choice {
                source: Source::Own,
                is_trial: false,
            };
        }
        let (Some(own), Some(peer)) = (self.own_ns, self.peer_ns) else {
            return trial(match self.peer_ns {
                None => Source::Peer,
                Some(_) => Source::Own,
            });
        };
        let (cheaper, dearer) = match own < peer {
            true => (Source::Own, Source::Peer),
            false => (Source::Peer, Source::Own),
        };
        self.chosen += 1;
        if self.chosen < TRIED_EVERY {
            // What the other side does not supply is read from the dearer source.
            return Choice {
                source: cheaper,
                is_trial: cheaper == Source::Peer && self.failed > 0,
            };
        }
        self.chosen = 0;
        trial(dearer)
    }

    /// Records that reading `blocks` blocks from a source took `time_ns`.
    pub fn note(&mut self, source: Source, blocks: u64, time_ns: u64) {
        let mean = match source {
            Source::Own => &mut self.own_ns,
            Source::Peer => {
                self.failed = 0;
                if std::mem::take(&mut self.given_up) {
                    self.peer_ns = None;
                }
                &mut self.peer_ns
            }
        };
        let now = time_ns as f64 / blocks.max(1) as f64;
        *mean = Some(mean.map_or(now, |mean| mean + WEIGHT * (now - mean)));
        let other = match source {
            Source::Own => self.peer_ns,
            Source::Peer => self.own_ns,
        };
        let is_dearer = match source {
            Source::Own => self.own_ns > self.peer_ns,
            Source::Peer => self.peer_ns >= self.own_ns,
        };
        if is_dearer && other.is_some_and(|other| now < other) {
            self.chosen = TRIED_EVERY - 1;
        }
    }

    /// Records that the other side supplied nothing of a piece.
    pub fn note_nothing(&mut self) {
        self.failed += 1;
        if self.failed >= FAILED_MAX {
            self.failed = 0;
            self.chosen = 0;
            self.given_up = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves `pieces` pieces, whose blocks cost `own_ns` and `peer_ns`. Returns how many were read
    /// from the other side.
    fn from_peer(sources: &mut Sources, pieces: u32, own_ns: u64, peer_ns: u64) -> u32 {
        let mut count = 0;
        for _ in 0..pieces {
            let source = sources.choose().source;
            let (each_ns, peer) = match source {
                Source::Own => (own_ns, 0),
                Source::Peer => (peer_ns, 1),
            };
            sources.note(source, 100, 100 * each_ns);
            count += peer;
        }
        count
    }

    #[test]
    fn another_side_that_stalls_is_asked_again_at_once_with_short_pieces() {
        let mut sources = Sources::default();
        from_peer(&mut sources, 4, 100_000, 2_000);
        for _ in 0..15 {
            sources.note_nothing();
            let next = sources.choose();
            assert_eq!((next.source, next.is_trial), (Source::Peer, true));
        }
        sources.note(Source::Peer, 100, 100 * 2_000);
        let next = sources.choose();
        assert_eq!((next.source, next.is_trial), (Source::Peer, false));
        // It stays away, and is asked with one piece in four. What it cost before counts no more.
        (0..16).for_each(|_| sources.note_nothing());
        let next: Vec<Source> = (0..8).map(|_| sources.choose().source).collect();
        let four = [Source::Own, Source::Own, Source::Own, Source::Peer];
        assert_eq!(next, [four, four].concat());
        sources.note(Source::Peer, 100, 100 * 50_000);
        let next = sources.choose();
        assert_eq!((next.source, next.is_trial), (Source::Peer, false));
    }

    /// A piece of 32 blocks from the other side meets a stall of 400 ms. Each block has then cost
    /// more than one of the own side, which takes 2 ms.
    #[test]
    fn one_stall_does_not_keep_the_cheaper_source_away() {
        let mut sources = Sources::default();
        from_peer(&mut sources, 100, 2_000_000, 5_000);
        sources.note(Source::Peer, 32, 400_000_000);
        let first = sources.choose();
        assert_eq!((first.source, first.is_trial), (Source::Own, false));
        let of_peer = from_peer(&mut sources, 100, 2_000_000, 5_000);
        assert!(of_peer >= 60, "{of_peer}");
    }

    #[test]
    fn the_cheaper_source_is_used_and_the_other_is_tried_now_and_then() {
        let mut sources = Sources::default();
        let first = sources.choose();
        assert_eq!((first.source, first.is_trial), (Source::Peer, true));
        let cheap_peer = from_peer(&mut sources, 320, 50_000, 8_000);
        assert!((300..320).contains(&cheap_peer), "{cheap_peer}");
        let next = sources.choose();
        assert_eq!((next.source, next.is_trial), (Source::Peer, false));
        let cheap_own = from_peer(&mut sources, 320, 5_000, 80_000);
        assert!((5..60).contains(&cheap_own), "{cheap_own}");
    }
}
