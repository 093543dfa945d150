//! Where to read the content that cleaning moves: on the side that is cleaned, or on another side
//! that has the same content.
//!
//! Neither is always cheaper. A disk reads a whole segment in sequence, and an SSD is asked for
//! each block by itself: a slow SSD can take longer for a segment that is mostly live. So the cost
//! of both is measured with every piece that is moved, and the cheaper one is used. From time to
//! time the other one is used, because costs change with the load.

/// Number of pieces after which the dearer source is tried again.
const TRIED_EVERY: u32 = 32;
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
}

impl Sources {
    /// Returns the source of the next piece, when another side can be asked. An unmeasured source
    /// is tried first, beginning with the other side.
    pub fn choose(&mut self) -> Choice {
        let trial = |source| Choice {
            source,
            is_trial: true,
        };
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
            return Choice {
                source: cheaper,
                is_trial: false,
            };
        }
        self.chosen = 0;
        trial(dearer)
    }

    /// Records that reading `blocks` blocks from a source took `time_ns`.
    pub fn note(&mut self, source: Source, blocks: u64, time_ns: u64) {
        let mean = match source {
            Source::Own => &mut self.own_ns,
            Source::Peer => &mut self.peer_ns,
        };
        let now = time_ns as f64 / blocks.max(1) as f64;
        *mean = Some(mean.map_or(now, |mean| mean + WEIGHT * (now - mean)));
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
