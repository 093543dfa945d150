//! A history of operations on an index, compared with an ordered map.
//!
//! The history has all actions that a program can take and all failures: batches, snapshots,
//! transactions, maintenance, openings, power cuts (also during opening), failed operations, and a
//! full disk.

use super::Input;
use crate::storage::memory::Faults;
use crate::world::{Change, Disk, Draw, Map, World, check_scan, collect, small_options};
use crate::{Db, Durability, Error, Snapshot, Transaction};
use std::ops::Bound;
use std::sync::Arc;

/// Maximum number of operations.
const OPERATIONS_MAX: usize = 400;
/// Maximum number of open snapshots, and of open transactions.
const OPEN_MAX: usize = 3;

/// An open transaction, and the state that its results are compared with.
struct Begun {
    transaction: Transaction,
    /// Number of batches when the transaction began.
    at: usize,
    changes: Vec<Change>,
    /// Keys that no other writer may change before the commit; otherwise the commit is refused.
    keys: Vec<Vec<u8>>,
}

struct Life {
    world: World,
    snapshots: Vec<(Snapshot, usize, Map)>,
    transactions: Vec<Begun>,
}

/// Runs the operations that the bytes encode.
pub fn operations(data: &[u8]) {
    let mut input = Input::new(data);
    let mut options = small_options(&mut Draw::new(u64::from(input.byte())));
    if input.below(4) == 0 {
        options.snapshot_batches_max = 5;
    }
    let mut life = Life {
        world: World::new(options).expect("an index on an empty disk"),
        snapshots: Vec::new(),
        transactions: Vec::new(),
    };
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        if let Err(error) = life.step(&mut input) {
            life.after_error(&error, &mut input);
        }
    }
    life.close();
}

fn key(input: &mut Input<'_>) -> Vec<u8> {
    let number = input.byte();
    match number {
        0 => Vec::new(),
        1..=9 => vec![b'k'; usize::from(number) * 400],
        10..=99 => u64::from(number).to_be_bytes().to_vec(),
        _ => format!("key/{:02}/{}", number % 12, number).into_bytes(),
    }
}

fn value(input: &mut Input<'_>) -> Vec<u8> {
    let len = match input.byte() {
        len @ 0..=200 => usize::from(len % 20),
        len @ 201..=240 => usize::from(len) * 4,
        len => usize::from(len - 240) * 1500,
    };
    let first = input.byte();
    (0..len).map(|index| first ^ (index / 3) as u8).collect()
}

fn one_change(input: &mut Input<'_>) -> Change {
    match input.below(8) {
        0..=4 => Change::Put(key(input), value(input)),
        5 | 6 => Change::Delete(key(input)),
        _ => {
            let (a, b) = (key(input), key(input));
            let end = (input.below(8) > 0).then(|| a.clone().max(b.clone()));
            Change::DeleteRange(a.min(b), end)
        }
    }
}

fn durability(input: &mut Input<'_>) -> Durability {
    match input.below(2) {
        0 => Durability::Durable,
        _ => Durability::Relaxed,
    }
}

impl Life {
    fn step(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        match input.below(32) {
            0..=9 => self.write(1, input),
            10..=12 => {
                let count = input.below(40);
                self.write(count, input)
            }
            13 | 14 => self.world.check_get(&key(input)),
            15 => self.scan(input),
            16 => {
                self.begin_snapshot();
                Ok(())
            }
            17 => self.look_at_snapshot(input),
            18 => {
                self.begin_transaction();
                Ok(())
            }
            19 | 20 => self.go_on_with_transaction(input),
            21 => self.end_transaction(input),
            22 => self.world.db.checkpoint(),
            23 => self.world.db.write_back(),
            24 => self.world.db.compact(|_| {}),
            25 => {
                self.world.db.sync()?;
                self.world.history.synced();
                Ok(())
            }
            26 => {
                self.set_faults(input);
                Ok(())
            }
            27 | 28 => {
                self.cut_power(input);
                Ok(())
            }
            29 => {
                self.kill();
                Ok(())
            }
            _ => {
                self.close();
                Ok(())
            }
        }
    }

    fn write(&mut self, count: usize, input: &mut Input<'_>) -> Result<(), Error> {
        let changes: Vec<Change> = (0..count).map(|_| one_change(input)).collect();
        self.world.write(&changes, durability(input))
    }

    fn scan(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        let (a, b) = (key(input), key(input));
        let bounds = match input.below(4) {
            0 => (Bound::Included(&a[..]), Bound::Excluded(&b[..])),
            1 => (Bound::Excluded(&a[..]), Bound::Included(&b[..])),
            2 => (Bound::Excluded(&a[..]), Bound::Unbounded),
            _ => (Bound::Unbounded, Bound::Included(&b[..])),
        };
        check_scan(&self.world.db, self.world.now(), bounds)
    }

    fn begin_snapshot(&mut self) {
        if self.snapshots.len() < OPEN_MAX {
            let at = self.world.history.given();
            let snapshot = self.world.db.snapshot();
            self.snapshots
                .push((snapshot, at, self.world.now().clone()));
        }
    }

    /// Returns true if a snapshot that is `batches` batches old can have ended: because it is too
    /// old, or because versions of one long key can fill a quarter of a segment.
    fn may_be_too_old(&self, batches: u64) -> bool {
        let keys = self.world.history.keys();
        batches > self.world.options.snapshot_batches_max || keys.iter().any(|key| key.len() > 400)
    }

    /// Checks that a snapshot still has its original content. A snapshot is allowed to fail with
    /// `SnapshotTooOld` only if it is old enough for this.
    fn look_at_snapshot(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let number = input.below(self.snapshots.len());
        let (snapshot, at, map) = &self.snapshots[number];
        let batches = (self.world.history.given() - at) as u64;
        let is_old = self.may_be_too_old(batches);
        let too_old = |error| match error {
            Error::SnapshotTooOld => {
                assert!(is_old, "a snapshot of {batches} batches is not that old");
                Ok(())
            }
            error => Err(error),
        };
        let key = key(input);
        match snapshot.get(&key) {
            Ok(value) => assert_eq!(value.as_ref(), map.get(&key)),
            Err(error) => too_old(error)?,
        }
        match collect(&mut snapshot.scan((Bound::Unbounded, Bound::Unbounded))) {
            Ok(all) => assert!(all.into_iter().eq(map.clone()), "a snapshot has changed"),
            Err(error) => too_old(error)?,
        }
        if input.below(2) == 0 {
            self.snapshots.remove(number);
        }
        Ok(())
    }

    fn begin_transaction(&mut self) {
        if self.transactions.len() < OPEN_MAX {
            self.transactions.push(Begun {
                transaction: self.world.db.transaction(),
                at: self.world.history.given(),
                changes: Vec::new(),
                keys: Vec::new(),
            });
        }
    }

    fn go_on_with_transaction(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        if self.transactions.is_empty() {
            return Ok(());
        }
        let number = input.below(self.transactions.len());
        let begun = &mut self.transactions[number];
        let key = key(input);
        match input.below(3) {
            0 => {
                let value = value(input);
                begun.transaction.put(&key, &value);
                begun.changes.push(Change::Put(key.clone(), value));
            }
            1 => {
                begun.transaction.delete(&key);
                begun.changes.push(Change::Delete(key.clone()));
            }
            _ => match begun.transaction.get_for_update(&key) {
                Ok(found) => {
                    let mut map = self.world.history.at(begun.at);
                    begun
                        .changes
                        .iter()
                        .for_each(|change| change.make(&mut map));
                    assert_eq!(found.as_ref(), map.get(&key));
                }
                Err(Error::SnapshotTooOld) => {}
                Err(error) => return Err(error),
            },
        }
        begun.keys.push(key);
        Ok(())
    }

    fn end_transaction(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        let Some(begun) = self.transactions.pop() else {
            return Ok(());
        };
        let history = &self.world.history;
        let is_written = |key: &&Vec<u8>| history.has_changed(key, begun.at);
        let written: Vec<&Vec<u8>> = begun.keys.iter().filter(is_written).collect();
        // A key that did not exist at the beginning and does not exist now is treated as unchanged.
        let (then, now) = (history.at(begun.at), self.world.now());
        let is_lost = written
            .iter()
            .any(|key| then.contains_key(*key) || now.contains_key(*key));
        let batches = (history.given() - begun.at) as u64;
        let durability = durability(input);
        let mut transaction = begun.transaction;
        // The batch also puts its number, like every other batch. The number goes directly into the
        // batch, so that it takes no part in the conflict check.
        let changes = history.numbered(&begun.changes);
        if let Some(Change::Put(key, number)) = changes.last() {
            transaction.batch.put(key, number);
        }
        let answer = transaction.commit(durability);
        let has_conflict = !written.is_empty();
        let history = &mut self.world.history;
        history.wrote(changes, durability, answer.as_ref().err());
        match answer {
            Ok(()) => {
                assert!(!is_lost, "a write of somebody else is lost");
                Ok(())
            }
            Err(Error::Conflict) => {
                assert!(has_conflict, "nobody has written these keys");
                Ok(())
            }
            Err(Error::SnapshotTooOld) => {
                assert!(self.may_be_too_old(batches), "{batches} batches old");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn set_faults(&mut self, input: &mut Input<'_>) {
        let from = self.world.disk.counts().operations;
        let at = Some(from + u64::from(input.byte()) / 4);
        let faults = match input.below(4) {
            0 => Faults {
                power_cut_at: at,
                ..Faults::default()
            },
            1 => Faults {
                fail_at: at,
                fails_for_good: input.below(2) == 0,
                ..Faults::default()
            },
            2 => Faults {
                len_bytes_max: Some(
                    self.world.options.log_bytes + (64 << 10) * (4 + input.below(16) as u64),
                ),
                ..Faults::default()
            },
            _ => Faults::default(),
        };
        self.world.disk.set_faults(faults);
    }

    fn forget_readers(&mut self) {
        self.snapshots.clear();
        self.transactions.clear();
    }

    /// Cuts the power and opens the index; sometimes the power is cut once more during that
    /// opening.
    fn cut_power(&mut self, input: &mut Input<'_>) {
        self.forget_readers();
        let mut disk = cut(&self.world.disk, input);
        if input.below(3) == 0 {
            disk.set_faults(Faults {
                power_cut_at: Some(u64::from(input.byte()) % 12),
                ..Faults::default()
            });
            let opened = Db::open(disk.clone(), &self.world.options);
            if let Err(error) = opened {
                assert!(matches!(error, Error::Storage { .. }), "{error}");
            }
            disk = cut(&disk, input);
        }
        disk.set_faults(Faults::default());
        self.open(disk);
    }

    /// Makes all writes durable, ends the program, and opens the index again. No data must be lost.
    /// If the index has failed, so that the writes cannot be made durable, the power is cut
    /// instead.
    fn close(&mut self) {
        if self.world.db.sync().is_ok() {
            self.world.history.synced();
            self.kill();
        } else {
            self.cut_power(&mut Input::new(&[]));
        }
    }

    /// Ends the program without closing the index, and starts it again. The disk keeps all its
    /// data, including its volatile cache.
    fn kill(&mut self) {
        self.world.disk.set_faults(Faults::default());
        if self.world.disk.is_off() {
            return self.cut_power(&mut Input::new(&[]));
        }
        self.forget_readers();
        let disk = self.world.disk.clone();
        self.open(disk);
    }

    fn open(&mut self, disk: Disk) {
        self.forget_readers();
        self.world.reopen(disk).expect("it opens");
    }

    /// Continues after an error. If the storage has no space, or a batch or a key is too long, the
    /// operation has changed nothing. After any other failure the index accepts no writes until it
    /// is opened again, so the power is cut.
    fn after_error(&mut self, error: &Error, input: &mut Input<'_>) {
        match error {
            Error::Full { .. } | Error::BatchTooLong { .. } | Error::KeyTooLong { .. } => {}
            Error::Storage { .. } | Error::ReadOnly { .. } => self.cut_power(input),
            error => panic!("{error}"),
        }
    }
}

fn cut(disk: &Disk, input: &mut Input<'_>) -> Disk {
    let keeps = input.below(3);
    let mut draw = Draw::new(u64::from(input.byte()));
    let mut choose = || match keeps {
        0 => 0,
        1 => draw.number(),
        _ => draw.below(2) * 1_000_000_007,
    };
    Arc::new(disk.after_power_cut(&mut choose))
}
