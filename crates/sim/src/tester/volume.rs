//! The model of the volume, which decides whether the answer of a read is correct.
//!
//! Each unit of the volume (a block, or a sector under the layer of the atomic unit) is an atomic
//! register, and every write gives the unit a unique value. For each value, `first_end` is the
//! earliest end of an operation that wrote or read the value, and `last_start` is the latest start
//! of such an operation. A history is linearizable exactly when no two values a, b have both
//! `a.first_end < b.last_start` and `b.first_end < a.last_start`: with both relations, a would have
//! to precede b, and b would have to precede a. Source: Gibbons and Korach, "Testing shared
//! memories" (SIAM J. Comput. 26, 1997), section 4. Times are numbers of events, so no two events
//! have the same time.
//!
//! A failed write ends when it fails. By then, the write has either taken effect or it never takes
//! effect. So if a later read returns the value of the failed write, the unit cannot revert to an
//! older value. A write that its client has abandoned never ends. Zeroes are not unique: a read
//! that returns zeroes is correct if any one write of zeroes explains it.
//!
//! After a crash, a unit is allowed to hold any value that is not certainly older than a durable
//! value. The first read of the unit settles its value.

use std::collections::BTreeMap;
use std::ops::Range;

use super::content::stamp_of;

/// Stamp of a unit of zeroes.
pub const ZEROES: u64 = 0;
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
struct Value {
    write: u64,
    stamp: u64,
    first_end: u64,
    last_start: u64,
    /// Time at which the write of this value failed; `NEVER` otherwise. After a failure it is not
    /// known whether the value is stored, so this time has an effect only after a read has returned
    /// the value.
    failed_at: u64,
    durable: bool,
    /// Number of the last crash that the value has survived; the first crash has number 1. The
    /// number is 0 if the value was written after the last crash.
    left_by: u64,
}

impl Value {
    fn read(&mut self, start: u64, end: u64) {
        self.first_end = self.first_end.min(end).min(self.failed_at);
        self.last_start = self.last_start.max(start);
    }

    fn before(&self, other: &Value) -> bool {
        self.first_end < other.last_start
    }

    fn conflicts(&self, other: &Value) -> bool {
        self.before(other) && other.before(self)
    }
}

#[derive(Clone, Debug)]
struct Unit {
    values: Vec<Value>,
    writers: u32,
    /// The only value that the unit can have; `None` if several values are possible.
    settled: Option<u64>,
    overlapped: bool,
    /// Number of values at which old values are dropped.
    forget_at: usize,
}

/// The model of the volume; see the module.
#[derive(Clone)]
pub struct Volume {
    units: Vec<Unit>,
    clock: u64,
    writes: u64,
    /// Acknowledged writes that no flush has covered. Each entry consists of the time of the
    /// acknowledgement, the number of the write, and the units of the write.
    unflushed: Vec<(u64, u64, Range<usize>)>,
    crashes: u64,
    /// Whether a value that was read after a crash must survive later crashes until it is
    /// overwritten.
    first_answer_is_final: bool,
    /// All writes of the current life, by number.
    history: BTreeMap<u64, Past>,
}

/// A write of the current life.
#[derive(Clone, Debug)]
struct Past {
    units: Range<usize>,
    start: u64,
    /// Time of the acknowledgement; `NEVER` if the write was not acknowledged.
    end: u64,
    zeroes: bool,
}

/// A write in flight.
#[derive(Clone, Debug)]
pub struct Writing {
    /// Number of the write, from 1.
    pub write: u64,
    units: Range<usize>,
}

/// Obsolete values of a unit are dropped only when the unit has at least this number of values. A
/// unit keeps more values if they are not obsolete.
const VALUES_MAX: usize = 64;

impl Volume {
    /// Creates a volume of zeroes.
    pub fn new(units: usize) -> Volume {
        let zeroes = Value {
            write: 0,
            stamp: ZEROES,
            first_end: 0,
            last_start: 0,
            failed_at: NEVER,
            durable: true,
            left_by: 0,
        };
        let unit = Unit {
            values: vec![zeroes],
            writers: 0,
            settled: Some(ZEROES),
            overlapped: false,
            forget_at: VALUES_MAX,
        };
        Volume {
            units: vec![unit; units],
            clock: 1,
            writes: 0,
            unflushed: Vec::new(),
            crashes: 0,
            first_answer_is_final: false,
            history: BTreeMap::new(),
        }
    }

    /// Requires that a value read after a crash is also found after every later crash, until it is
    /// overwritten.
    pub fn demand_final_answers(&mut self) {
        self.first_answer_is_final = true;
    }

    /// Starts recording the writes of a new life, and drops the writes of earlier lives.
    pub fn begin_history(&mut self) {
        self.history.clear();
    }

    /// Checks that the content of a side is a consistent point-in-time image of the volume in this
    /// life: if it includes a change, it must include every change that was acknowledged before the
    /// start of that change.
    ///
    /// # Errors
    /// The message names a unit that lacks a change which the image must include.
    pub fn check_moment(&self, held: &[u64]) -> Result<(), String> {
        // `moment` is the latest start time of all changes that the content includes. The content
        // must include every change that ended before `moment`.
        let shown = |stamp: u64| self.history.get(&(stamp >> 24)).filter(|_| stamp != ZEROES);
        let latest = held
            .iter()
            .filter_map(|stamp| Some((shown(*stamp)?.start, *stamp)));
        let Some((moment, witness)) = latest.max() else {
            return Ok(());
        };
        let zeroed = self.zeroed_until();
        for (write, past) in self.history.iter().filter(|(_, past)| past.end < moment) {
            for unit in past.units.clone() {
                let stamp = held[unit];
                let fits = match shown(stamp) {
                    Some(other) => other.end >= past.start,
                    None => stamp == ZEROES && zeroed[unit] >= past.start,
                };
                if !fits {
                    return Err(format!(
                        "unit {unit} is write {}, older than write {write}, although write {} \
                         that began later is there",
                        stamp >> 24,
                        witness >> 24
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that no unit has become older. `before` lists units with their earlier stamps, and
    /// `after` has the later stamps of the same units.
    ///
    /// # Errors
    /// A unit that has reverted to an older version.
    pub fn check_not_older(&self, before: &[(usize, u64)], after: &[u64]) -> Result<(), String> {
        let shown = |stamp: u64| self.history.get(&(stamp >> 24)).filter(|_| stamp != ZEROES);
        let zeroed = self.zeroed_until();
        for (&(unit, before), &after) in before.iter().zip(after) {
            let Some(past) = shown(before).filter(|_| before != after) else {
                continue;
            };
            let fits = match shown(after) {
                Some(other) => other.end >= past.start,
                None => after == ZEROES && zeroed[unit] >= past.start,
            };
            if !fits {
                return Err(format!(
                    "unit {unit} was write {}, and is write {} again",
                    before >> 24,
                    after >> 24
                ));
            }
        }
        Ok(())
    }

    /// Returns, for each unit, the latest end of the changes of this life that zero the unit; 0 if
    /// there is no such change.
    fn zeroed_until(&self) -> Vec<u64> {
        let mut zeroed = vec![0; self.unit_count()];
        for past in self.history.values().filter(|past| past.zeroes) {
            for end in &mut zeroed[past.units.clone()] {
                *end = past.end.max(*end);
            }
        }
        zeroed
    }

    /// Advances the clock by one event, and returns the new time.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Starts a change of the units. `zeroes` tells that the change writes zeroes instead of
    /// stamps. `oldest_start` is the start of the oldest operation in flight.
    pub fn start_write(&mut self, units: Range<usize>, zeroes: bool, oldest_start: u64) -> Writing {
        let start = self.tick();
        self.writes += 1;
        let write = self.writes;
        let past = Past {
            units: units.clone(),
            start,
            end: NEVER,
            zeroes,
        };
        self.history.insert(write, past);
        for index in units.clone() {
            let unit = &mut self.units[index];
            unit.forget_old(oldest_start);
            unit.values.push(Value {
                write,
                stamp: if zeroes {
                    ZEROES
                } else {
                    stamp_of(write, index)
                },
                first_end: NEVER,
                last_start: start,
                failed_at: NEVER,
                durable: false,
                left_by: 0,
            });
            unit.overlapped = unit.writers > 0;
            unit.writers += 1;
            unit.settled = None;
        }
        Writing { write, units }
    }

    /// Ends a change; `stored` tells whether it succeeded.
    ///
    /// # Errors
    /// Earlier reads that contradict the model now that the change has ended.
    pub fn end_write(&mut self, writing: &Writing, stored: bool, fua: bool) -> Result<(), String> {
        let end = self.tick();
        for index in writing.units.clone() {
            let unit = &mut self.units[index];
            unit.writers -= 1;
            let at = unit.values.iter().rposition(|v| v.write == writing.write);
            let at = at.expect("a value in flight is not forgotten");
            let value = &mut unit.values[at];
            if stored {
                value.first_end = value.first_end.min(end);
                value.durable = fua;
                if unit.writers == 0 && !unit.overlapped {
                    unit.settled = Some(unit.values[at].stamp);
                }
            } else {
                value.failed_at = end;
                value.first_end = match value.first_end {
                    NEVER => NEVER,
                    seen => seen.min(end),
                };
            }
            unit.check(at)
                .map_err(|why| format!("unit {index}: {why}"))?;
        }
        if stored && let Some(past) = self.history.get_mut(&writing.write) {
            past.end = end;
        }
        if stored && !fua {
            let entry = (end, writing.write, writing.units.clone());
            self.unflushed.push(entry);
        }
        Ok(())
    }

    /// Records that a flush that started at `start` has succeeded.
    pub fn flushed(&mut self, start: u64) {
        self.tick();
        let units = &mut self.units;
        self.unflushed.retain(|(end, write, range)| {
            if *end > start {
                return true;
            }
            for unit in &mut units[range.clone()] {
                for value in unit.values.iter_mut().filter(|v| v.write == *write) {
                    value.durable = true;
                }
            }
            false
        });
    }

    /// Checks a read that started at `start`, ends now, and returned these stamps for the units
    /// from `first` on.
    ///
    /// # Errors
    /// A stamp that the read must not return.
    pub fn check_read(&mut self, first: usize, found: &[u64], start: u64) -> Result<(), String> {
        let end = self.tick();
        for (unit, stamp) in found.iter().enumerate() {
            let index = first + unit;
            self.units[index]
                .check_read(*stamp, start, end)
                .map_err(|why| format!("unit {index}: {why}"))?;
        }
        Ok(())
    }

    /// Records a crash: all requests in flight end, and any write that was not durable can be lost.
    pub fn crash(&mut self) {
        let now = self.tick();
        self.crashes += 1;
        self.unflushed.clear();
        for unit in &mut self.units {
            if self.first_answer_is_final {
                unit.settle_answers();
            }
            unit.crash(now, self.crashes);
        }
    }

    /// Returns true if a read of the unit that starts now is allowed to return this stamp.
    pub fn allows(&self, unit: usize, stamp: u64) -> bool {
        let (start, end) = (self.clock + 1, self.clock + 2);
        self.units[unit]
            .clone()
            .check_read(stamp, start, end)
            .is_ok()
    }

    /// Returns the only value that the unit can have; `None` if several values are possible or a
    /// write is in flight.
    pub fn settled(&self, unit: usize) -> Option<u64> {
        let unit = &self.units[unit];
        unit.settled.filter(|_| unit.writers == 0)
    }

    /// Returns true if there has been a crash.
    pub fn has_crashed(&self) -> bool {
        self.crashes > 0
    }

    /// Returns the number of units.
    pub fn unit_count(&self) -> usize {
        self.units.len()
    }
}

impl Unit {
    fn check(&self, at: usize) -> Result<(), String> {
        let value = &self.values[at];
        let other = self.values.iter().enumerate();
        let conflict = other
            .filter(|(index, _)| *index != at)
            .find(|(_, other)| other.conflicts(value));
        match conflict {
            None => Ok(()),
            Some((_, other)) => Err(format!(
                "write {} and write {} would each have to come before the other",
                value.write, other.write
            )),
        }
    }

    fn check_read(&mut self, stamp: u64, start: u64, end: u64) -> Result<(), String> {
        // Search from the newest value, because reads mostly return one of the newest values.
        let Some(first) = self.values.iter().rposition(|v| v.stamp == stamp) else {
            return Err(format!(
                "read {}, which {}",
                name_of(stamp),
                "no write there, or overwritten long ago"
            ));
        };
        let older = &self.values[..first];
        let only = stamp != ZEROES || older.iter().all(|v| v.stamp != stamp);
        if only {
            self.values[first].read(start, end);
            return self.check(first).map_err(|why| {
                let newest = self.values.iter().map(|v| v.write).max().unwrap_or(0);
                format!("read {}, newest is write {newest}: {why}", name_of(stamp))
            });
        }
        let mut zeroes = self.values.iter().rev().filter(|v| v.stamp == stamp);
        let explained = zeroes.any(|zero| {
            let mut zero = zero.clone();
            zero.read(start, end);
            let mut others = self.values.iter().rev().filter(|v| v.stamp != stamp);
            !others.any(|other| other.conflicts(&zero))
        });
        if explained {
            Ok(())
        } else {
            Err("read zeroes that no write of zeroes explains".to_owned())
        }
    }

    /// Drops obsolete values. A value is obsolete if a newer durable value was written before the
    /// oldest operation in flight started, so no read is allowed to return it any longer. Runs only
    /// if the number of values has doubled since the last run.
    fn forget_old(&mut self, oldest_start: u64) {
        if self.values.len() < self.forget_at {
            return;
        }
        let ended = |v: &&Value| v.durable && v.first_end < oldest_start;
        let newest = self.values.iter().filter(ended);
        let newest = newest.map(|v| (v.last_start, v.write)).max();
        let second = self.values.iter().filter(ended);
        let second = second.filter(|v| Some(v.write) != newest.map(|n| n.1));
        let second = second.map(|v| (v.last_start, v.write)).max();
        self.values.retain(|value| {
            // A value cannot be replaced by itself, so the newest value is compared with the second
            // newest.
            let other = newest.filter(|n| n.1 != value.write).or(second);
            other.is_none_or(|(last_start, _)| value.first_end >= last_start)
        });
        self.forget_at = VALUES_MAX.max(2 * self.values.len());
    }

    /// Settles the value of a unit before a crash. If an earlier crash left several possible values
    /// and one of them has been read since, the value that was read becomes durable, and the other
    /// values are dropped.
    fn settle_answers(&mut self) {
        let read = |v: &Value| v.left_by > 0 && v.first_end < NEVER;
        let Some(at) = self.values.iter().position(read) else {
            return;
        };
        self.values[at].durable = true;
        let (write, crash) = (self.values[at].write, self.values[at].left_by);
        self.values
            .retain(|v| v.left_by != crash || v.write == write);
    }

    fn crash(&mut self, now: u64, crash: u64) {
        let values = std::mem::take(&mut self.values);
        let lost = |value: &Value| {
            let newer = |v: &Value| v.durable && v.write != value.write && value.before(v);
            values.iter().any(newer)
        };
        let mut left: Vec<Value> = values.iter().filter(|v| !lost(v)).cloned().collect();
        let mut zeroes = false;
        left.retain(|v| v.stamp != ZEROES || !std::mem::replace(&mut zeroes, true));
        let only = left.len() == 1;
        for value in &mut left {
            value.durable = only;
            value.last_start = now;
            value.first_end = if only { now } else { NEVER };
            value.failed_at = if only { NEVER } else { now };
            value.left_by = crash;
        }
        assert!(!left.is_empty(), "a unit has a value");
        self.settled = only.then_some(left[0].stamp);
        self.values = left;
        self.writers = 0;
        self.overlapped = false;
    }
}

fn name_of(stamp: u64) -> String {
    if stamp == ZEROES {
        "zeroes".to_owned()
    } else {
        format!("write {} of unit {}", stamp >> 24, stamp & 0xff_ffff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(volume: &mut Volume) -> u64 {
        let writing = volume.start_write(0..1, false, u64::MAX);
        volume.end_write(&writing, true, false).unwrap();
        stamp_of(writing.write, 0)
    }

    fn read(volume: &mut Volume, stamp: u64) -> Result<(), String> {
        let start = volume.tick();
        volume.check_read(0, &[stamp], start)
    }

    #[test]
    fn the_newest_is_read_and_nothing_older() {
        let mut volume = Volume::new(1);
        let (old, new) = (write(&mut volume), write(&mut volume));
        assert!(read(&mut volume, new).is_ok());
        assert!(read(&mut volume, old).is_err());
    }

    #[test]
    fn a_write_in_flight_may_be_seen_but_not_taken_back() {
        let mut volume = Volume::new(1);
        let old = write(&mut volume);
        let flying = volume.start_write(0..1, false, u64::MAX);
        assert!(read(&mut volume, old).is_ok());
        assert!(read(&mut volume, stamp_of(flying.write, 0)).is_ok());
        assert!(read(&mut volume, old).is_err());
    }

    #[test]
    fn a_failed_write_is_final() {
        let mut volume = Volume::new(1);
        let old = write(&mut volume);
        let failed = volume.start_write(0..1, false, u64::MAX);
        volume.end_write(&failed, false, false).unwrap();
        assert!(read(&mut volume, old).is_ok());
        assert!(read(&mut volume, stamp_of(failed.write, 0)).is_err());
    }

    #[test]
    fn a_crash_keeps_what_was_flushed_and_the_first_read_settles_the_rest() {
        let mut volume = Volume::new(1);
        let (lost, kept) = (write(&mut volume), write(&mut volume));
        let start = volume.tick();
        volume.flushed(start);
        let later = write(&mut volume);
        volume.crash();
        assert!(read(&mut volume, kept).is_ok());
        assert!(read(&mut volume, later).is_err());
        assert!(read(&mut volume, lost).is_err());
    }

    #[test]
    fn the_first_answer_after_a_crash_is_final_when_that_is_demanded() {
        for demanded in [false, true] {
            let mut volume = Volume::new(1);
            if demanded {
                volume.demand_final_answers();
            }
            let (old, new) = (write(&mut volume), write(&mut volume));
            volume.crash();
            assert!(volume.allows(0, old) && volume.allows(0, new));
            assert!(read(&mut volume, old).is_ok());
            assert!(!volume.allows(0, new));
            volume.crash();
            assert_eq!(volume.allows(0, new), !demanded);
            assert!(volume.allows(0, old));
        }
    }

    #[test]
    fn zeroes_need_a_write_of_zeroes_that_fits() {
        let mut volume = Volume::new(1);
        let zero = volume.start_write(0..1, true, u64::MAX);
        volume.end_write(&zero, true, false).unwrap();
        assert!(read(&mut volume, ZEROES).is_ok());
        write(&mut volume);
        assert!(read(&mut volume, ZEROES).is_err());
    }
}
