//! State that all parts of a run share: an index, its disk, and its expected content.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bimetal_index::model::{Change, Draw, History, Map, NUMBER_KEY, rows_within};
use bimetal_index::storage::memory::{Faults, MemoryStorage, StorageCounters};
use bimetal_index::{Durability, Error, MaintenanceStatistics, Scan, ScanBounds};

use super::report::{Finding, Report, Trace};
use super::scenario::{Life, Scenario};

/// Result of a check; the error describes a violation.
pub type Checked<T = ()> = Result<T, String>;

/// The disk and the expected content of an index, which outlive each program.
pub struct World<'a> {
    /// Scenario that the seed drew.
    pub scenario: &'a Scenario,
    /// Random numbers for the steps of the program.
    pub draw: Draw,
    /// The disk, which outlives the index.
    pub disk: Arc<MemoryStorage>,
    /// The model: the batches that were written, and the content that the index must have.
    pub history: History,
    /// Trace of all events.
    pub trace: Trace,
    /// Counters of the disk at the start of the current life.
    pub(super) at_start: StorageCounters,
    /// Whether the index has become read-only, so that it must refuse all writes from now on.
    pub(super) is_read_only: bool,
    /// Whether the disk is full, so that it cannot grow.
    pub(super) is_full: bool,
    /// Whether the disk was full at the last change. Changes can then still be in memory, because
    /// the disk had no space for them.
    pub(super) was_full: bool,
    pub(super) operations: BTreeMap<String, u64>,
    reached: BTreeMap<String, u64>,
    /// Counters of the disks that power cuts have replaced.
    earlier: StorageCounters,
}

/// Bounds of a range of keys, with owned keys.
pub(super) type Between = (Bound<Vec<u8>>, Bound<Vec<u8>>);

pub(super) fn lend(bounds: &Between) -> ScanBounds<'_> {
    (
        bounds.0.as_ref().map(|key| &key[..]),
        bounds.1.as_ref().map(|key| &key[..]),
    )
}

impl<'a> World<'a> {
    /// Creates the state of a run before its first event.
    pub fn new(scenario: &'a Scenario, verbose: bool) -> World<'a> {
        World {
            draw: Draw::new(!scenario.seed),
            scenario,
            disk: Arc::new(MemoryStorage::new()),
            history: History::new(),
            trace: Trace::new(verbose),
            at_start: StorageCounters::default(),
            is_read_only: false,
            is_full: false,
            was_full: false,
            operations: BTreeMap::new(),
            reached: BTreeMap::new(),
            earlier: StorageCounters::default(),
        }
    }

    /// Counts one occurrence of a state of the run.
    pub fn reach(&mut self, state: &str) {
        self.reach_times(state, 1);
    }

    fn reach_times(&mut self, state: &str, times: u64) {
        if times > 0 {
            *self.reached.entry(state.to_owned()).or_default() += times;
        }
    }

    /// Replaces the disk, and adds the counters of the old disk to the totals.
    pub fn replace_disk(&mut self, disk: MemoryStorage) {
        self.retire();
        self.disk = Arc::new(disk);
    }

    fn retire(&mut self) {
        let counts = self.disk.counts();
        self.earlier.operations += counts.operations;
        self.earlier.failures += counts.failures;
        self.earlier.lost_sectors += counts.lost_sectors;
    }

    /// Returns the report of the run.
    pub fn report(mut self, finding: Option<String>) -> Report {
        self.retire();
        let at_event = self.trace.events();
        let hits = self.disk.hits().len() as u64;
        Report {
            seed: self.scenario.seed,
            hash: self.trace.hash(),
            events: self.trace.events(),
            finding: finding.map(|what| Finding { at_event, what }),
            operations: self.operations,
            disk_requests: self.earlier.operations,
            faults: BTreeMap::from([
                ("failed calls", self.earlier.failures),
                ("lost sectors", self.earlier.lost_sectors),
                ("places that are not as written", hits),
            ]),
            reached: self.reached,
            scenario: self.scenario.clone(),
            log: self.trace.take_log(),
        }
    }

    /// Returns true if bytes of the disk can differ from the bytes written.
    pub fn is_disk_wrong(&self) -> bool {
        self.disk.counts().lost_sectors > self.at_start.lost_sectors || self.has_hits()
    }

    /// Returns true if bit rot, a lost write or a misdirected operation may have made bytes of the
    /// disk differ from the bytes written.
    pub fn has_hits(&self) -> bool {
        !self.disk.hits().is_empty()
    }

    /// Checks that an error of a reading call has an explanation: a fault of the disk, or a
    /// snapshot that is too old. `failures` is the number of failures of the disk before the call,
    /// and `since` is the number of the last batch that the reader sees.
    pub fn judge_read(&self, error: &Error, failures: u64, since: usize) -> Checked {
        let is_right = match error {
            Error::Storage { .. } => self.disk.counts().failures > failures,
            Error::Damaged { .. } => self.is_disk_wrong(),
            Error::SnapshotTooOld => self.may_be_too_old(since),
            _ => false,
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("nothing explains this answer to a reader: {error}")),
        }
    }

    /// Returns true if the index may have invalidated a snapshot whose last visible batch is
    /// `since`.
    fn may_be_too_old(&self, since: usize) -> bool {
        let batches = (self.history.given() - since) as u64;
        let options = &self.scenario.options;
        batches > options.snapshot_batches_max
            || self.history.most_bytes_of_a_key(since) > options.segment_bytes as usize / 8
    }

    /// Checks that the answer of a writing call is correct: success is wrong once the index is
    /// read-only, and a fault must explain an error. Updates whether the index is read-only.
    /// `failures` is the number of failures of the disk before the call.
    pub fn judge_write(&mut self, answer: &Result<(), Error>, failures: u64) -> Checked {
        let error = match answer {
            Ok(()) if self.is_read_only => {
                return Err("it accepts writes after one has failed".to_owned());
            }
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let has_failed = self.disk.counts().failures > failures;
        let failed_before = self.disk.counts().failures > self.at_start.failures;
        let is_right = match error {
            // Even a read-only index first checks the length of a batch. So it can return this
            // error instead of `ReadOnly`.
            Error::BatchTooLong { bytes, max } => bytes > max,
            Error::ReadOnly { .. } => self.is_read_only || failed_before || self.is_disk_wrong(),
            _ if self.is_read_only => false,
            Error::Full { .. } => self.is_full,
            Error::Storage { .. } => has_failed,
            Error::Damaged { .. } => self.is_disk_wrong(),
            _ => false,
        };
        match error {
            Error::Full { .. } => self.reach("refused: full"),
            Error::BatchTooLong { .. } => self.reach("refused: a batch that is too long"),
            _ => {
                if !self.is_read_only {
                    self.reach("read-only");
                }
                self.is_read_only = true;
            }
        }
        match is_right {
            true => Ok(()),
            false => Err(format!("nothing explains this answer to a writer: {error}")),
        }
    }

    pub(super) fn faults(&self, life: &Life, log_end: u64) -> Faults {
        let from = self.at_start.operations;
        let astray_in = match life.astray_in_segments {
            true => (log_end, u64::MAX),
            false => (0, log_end),
        };
        Faults {
            astray_in: Some(astray_in),
            power_cut_at: life.cut_after_operations.map(|after| from + after),
            fail_at: life.failure.map(|failure| from + failure.after_operations),
            fails_only: life.failure.map(|failure| failure.call),
            fails_for_good: life.failure.is_some_and(|failure| failure.for_good),
            astray_at: life.astray.map(|(after, astray)| (from + after, astray)),
            len_bytes_max: None,
        }
    }
}

/// Compares a scan with the expected rows within `bounds`, up to `rows_max` rows.
pub(super) fn check_scan(
    world: &World<'_>,
    mut scan: Scan,
    map: &Map,
    since: usize,
    bounds: &Between,
    is_reverse: bool,
    rows_max: usize,
) -> Checked {
    let expected = rows_within(map, lend(bounds), is_reverse);
    let failures = world.disk.counts().failures;
    for (key, value) in expected.iter().take(rows_max) {
        match scan.next() {
            Ok(Some((found, is))) if found == key => same(key, Some(&is.to_vec()), Some(value))?,
            Ok(Some((found, _))) => {
                let (key, found) = (short(key), short(found));
                return Err(format!("key {found} where key {key} should be"));
            }
            Ok(None) => return Err(format!("it ends before key {}", short(key))),
            Err(error) => return world.judge_read(&error, failures, since),
        }
    }
    if rows_max <= expected.len() {
        return Ok(());
    }
    match scan.next() {
        Ok(None) => Ok(()),
        Ok(Some((key, _))) => Err(format!("key {} should not be there", short(key))),
        Err(error) => world.judge_read(&error, failures, since),
    }
}

/// Checks that the value of a key is the expected value.
pub(super) fn same(key: &[u8], is: Option<&Vec<u8>>, should: Option<&Vec<u8>>) -> Checked {
    if is == should {
        return Ok(());
    }
    Err(format!(
        "key {} has {:?}, and should have {:?}",
        short(key),
        is.map(|value| short(value)),
        should.map(|value| short(value))
    ))
}

/// Returns the first bytes and the length of a key or value, as text.
pub(super) fn short(bytes: &[u8]) -> String {
    let first = bytes[..bytes.len().min(24)].escape_ascii();
    format!("{first} of {} bytes", bytes.len())
}

impl World<'_> {
    /// Draws a key. With a chance of one in eight, the key is `NUMBER_KEY`, under which each batch
    /// stores its own number.
    pub(super) fn key(&mut self) -> Vec<u8> {
        match self.draw.once_in(8) {
            true => NUMBER_KEY.to_vec(),
            false => self.scenario.shape.key(&mut self.draw),
        }
    }

    /// Draws a change of this key: a new value or a deletion.
    pub(super) fn change_of(&mut self, key: Vec<u8>) -> Change {
        match self.draw.once_in(3) {
            true => Change::Delete(key),
            false => Change::Put(key, self.scenario.shape.value(&mut self.draw)),
        }
    }

    /// Draws the two bounds of a range of keys.
    pub(super) fn between(&mut self) -> Between {
        let mut bound = || match self.draw.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.scenario.shape.key(&mut self.draw)),
            _ => Bound::Excluded(self.scenario.shape.key(&mut self.draw)),
        };
        (bound(), bound())
    }

    /// Draws the durability with which a batch is written.
    pub(super) fn durability(&mut self) -> Durability {
        match self.draw.below(16) < self.scenario.relaxed_of_16 {
            true => Durability::Relaxed,
            false => self.draw.one_of(&[Durability::Durable, Durability::Group]),
        }
    }

    pub(super) fn note_maintenance(&mut self, statistics: &MaintenanceStatistics) {
        for (state, times) in [
            ("leaf folded", statistics.consolidations),
            ("leaf patched", statistics.patches),
            ("leaf split", statistics.splits),
            ("leaves joined", statistics.joins),
            ("value out of line", statistics.blobs),
            ("changes carried", statistics.relogged),
            ("segment cleaned", statistics.cleaned_segments),
            ("checkpoint", statistics.checkpoints),
            ("log in another ring", statistics.log_rings),
        ] {
            self.reach_times(state, times);
        }
    }
}
