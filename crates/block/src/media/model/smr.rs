//! The shingled part of a drive-managed SMR disk: it decides which writes go to the media cache,
//! and which band is cleaned next.
//!
//! A shingled band can only be rewritten as a whole. Random writes are therefore appended to a
//! persistent cache area on the same platters, and the drive later merges them into their bands by
//! reading and rewriting each band (Aghayev and Desnoyers, Skylight, FAST 2015).

use std::collections::{BTreeMap, VecDeque};

/// Destination of a write on a shingled disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// The band that contains the write. This destination is chosen if the write is part of a run
    /// that writes the band from its start, or if the write is larger than the media cache.
    Band,
    /// The media cache, to which the write is appended.
    MediaCache,
    /// Not decided yet, because the media cache is full. The write is placed after a band has been
    /// cleaned.
    AfterCleaning,
}

/// The state of the media cache, and of the bands that have data in the media cache.
#[derive(Debug)]
pub(super) struct Shingles {
    band_bytes: u64,
    cache_bytes: u64,
    used_bytes: u64,
    /// Number of bytes in the media cache for each dirty band, by band number.
    dirty: BTreeMap<u64, u64>,
    /// The dirty bands, in the order in which they became dirty.
    order: VecDeque<u64>,
    /// Start of the current run of contiguous writes; the end of the run is `run_end`.
    run_start: u64,
    run_end: u64,
}

impl Shingles {
    pub(super) fn new(band_bytes: u64, cache_bytes: u64) -> Self {
        Shingles {
            band_bytes,
            cache_bytes,
            used_bytes: 0,
            dirty: BTreeMap::new(),
            order: VecDeque::new(),
            run_start: u64::MAX,
            run_end: u64::MAX,
        }
    }

    /// Returns the destination of a write of `len` bytes at `offset`, without changing the state.
    pub(super) fn placement(&self, offset: u64, len: u64) -> Placement {
        let run_start = if offset == self.run_end {
            self.run_start
        } else {
            offset
        };
        let band_start = offset - offset % self.band_bytes;
        // A run that covers its band from the start needs no merge. A write that is larger than the
        // whole media cache does not fit into it, so such a write is also made directly to its
        // bands.
        if run_start <= band_start || len > self.cache_bytes {
            Placement::Band
        } else if self.used_bytes + len > self.cache_bytes {
            Placement::AfterCleaning
        } else {
            Placement::MediaCache
        }
    }

    /// Records a write to the destination `placement`, which [`placement`](Self::placement) has
    /// returned for this write.
    pub(super) fn record(&mut self, offset: u64, len: u64, placement: Placement) {
        assert!(
            placement != Placement::AfterCleaning,
            "cleaning makes room before the write"
        );
        if offset != self.run_end {
            self.run_start = offset;
        }
        self.run_end = offset.saturating_add(len);
        if placement == Placement::Band {
            return;
        }
        self.used_bytes += len;
        let mut at = offset;
        let end = offset.saturating_add(len);
        while at < end {
            let band = at / self.band_bytes;
            let piece_end = end.min((band + 1).saturating_mul(self.band_bytes));
            let bytes = self.dirty.entry(band).or_insert_with(|| {
                self.order.push_back(band);
                0
            });
            *bytes += piece_end - at;
            at = piece_end;
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.order.is_empty()
    }

    /// Merges the band that has been dirty longest, and frees its bytes in the media cache. Returns
    /// the offset of the band, or `None` when no band is dirty.
    pub(super) fn clean_oldest(&mut self) -> Option<u64> {
        let band = self.order.pop_front()?;
        let freed = self.dirty.remove(&band).unwrap_or(0);
        assert!(
            freed <= self.used_bytes,
            "a band holds part of the media cache"
        );
        self.used_bytes -= freed;
        Some(band * self.band_bytes)
    }
}
