//! Options with which an index is created and opened.

use crate::error::Error;
use crate::geometry::{
    Geometry, MAX_LOG_BLOCKS, MAX_SEGMENT_BYTES, MIN_LOG_BLOCKS, MIN_SEGMENT_BYTES,
};
use crate::limits::row_bytes_max;
use crate::paper::PaperRules;
use crate::storage::BLOCK_BYTES;

/// Settings of an index. The defaults suit a program that has some hundred MiB of memory to spare.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Memory for nodes and changes, in bytes.
    pub memory_bytes: u64,
    /// Part of `memory_bytes` for changes that are not in nodes yet. The larger this part is, the
    /// fewer bytes are written for each change, and the longer opening takes after a crash.
    pub buffer_bytes: u64,
    /// Maximum length of the log, in bytes. The log begins short, grows when necessary, and shrinks
    /// again. A batch takes at most an eighth of the log. Only used when an index is created.
    pub log_bytes: u64,
    /// Length of a segment, a power of two from 64 KiB to 4 MiB: the size of an erase unit of the
    /// SSD, if that is known. Only used when an index is created.
    pub segment_bytes: u32,
    /// Approximate length of the image of a leaf: from 512 bytes to a quarter of a segment of the
    /// index.
    pub node_bytes: usize,
    /// Length of the longest value that is stored beside its key; longer values are stored out of
    /// line. The maximum is an eighth of a segment of the index, but at most 64 KiB.
    pub inline_value_bytes: usize,
    /// Share of the segments' space that must be in use before segments are added. Below this
    /// share, segments are cleaned instead. A lower share, but at least 0.7, is sufficient under
    /// two conditions: the segments take no more space than their rows would take unpacked, and the
    /// storage can grow.
    pub utilisation: f64,
    /// Share of all leaves that is classified as hot. In the paper, hot and cold leaves are in the
    /// ratio 1 to 2.
    pub hot_share: f64,
    /// Maximum time that a batch with `Durability::Group` waits for other batches, in microseconds.
    pub group_wait_us: u32,
    /// Maximum age of a snapshot, as a number of batches. Reads from an older snapshot can fail
    /// with [`Error::SnapshotTooOld`].
    pub snapshot_batches_max: u64,
    /// Rules of the paper in place of the engine's own rules, for the paper's experiment.
    pub paper: Option<PaperRules>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory_bytes: 256 << 20,
            buffer_bytes: 64 << 20,
            log_bytes: 64 << 20,
            segment_bytes: 1 << 20,
            node_bytes: 8192,
            inline_value_bytes: 1024,
            utilisation: 0.87,
            hot_share: 1.0 / 3.0,
            group_wait_us: 100,
            snapshot_batches_max: u64::MAX,
            paper: None,
        }
    }
}

fn refused(option: &'static str, reason: &str) -> Error {
    Error::Option {
        option,
        reason: reason.to_owned(),
    }
}

impl Options {
    /// Returns the geometry that these options give an index with this id.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if no index with this geometry is possible.
    pub(crate) fn geometry(&self, id: u64) -> Result<Geometry, Error> {
        let blocks = self.log_bytes / BLOCK_BYTES as u64;
        if !(MIN_LOG_BLOCKS..=MAX_LOG_BLOCKS).contains(&blocks) {
            return Err(refused("log_bytes", "256 KiB to 1 TiB are possible"));
        }
        let segments = MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES;
        if !self.segment_bytes.is_power_of_two() || !segments.contains(&self.segment_bytes) {
            return Err(refused(
                "segment_bytes",
                "a power of two from 64 KiB to 4 MiB",
            ));
        }
        Ok(Geometry::new(id, blocks, self.segment_bytes))
    }

    /// Returns an error if an index of this geometry cannot be used with these options. Options
    /// that are only used at creation are not checked: they were checked at that time.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), Error> {
        if self.memory_bytes < 256 << 10 {
            return Err(refused("memory_bytes", "at least 256 KiB are needed"));
        }
        if self.buffer_bytes > self.memory_bytes / 4 * 3 {
            return Err(refused(
                "buffer_bytes",
                "at most three quarters of the memory",
            ));
        }
        let segment_bytes = geometry.segment_bytes;
        let within = |option, least: usize, most: usize, value: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let reason = format!(
                "{value} bytes is impossible: with segments of {segment_bytes} bytes, {least} to \
                {most} are possible"
            );
            Err(refused(option, &reason))
        };
        let node_bytes_max = segment_bytes as usize / 4;
        within("node_bytes", 512, node_bytes_max, self.node_bytes)?;
        let row_bytes_max = row_bytes_max(segment_bytes);
        within(
            "inline_value_bytes",
            0,
            row_bytes_max,
            self.inline_value_bytes,
        )?;
        if !(0.1..=0.95).contains(&self.utilisation) {
            return Err(refused("utilisation", "0.1 to 0.95"));
        }
        if !(0.0..=1.0).contains(&self.hot_share) {
            return Err(refused("hot_share", "0 to 1"));
        }
        self.paper.iter().try_for_each(PaperRules::check)
    }
}
