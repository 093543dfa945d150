//! Readers that see an earlier state of the index: snapshots, slow scans, and transactions.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bimetal_index::model::{Change, Map, Pairs, rows_within};
use bimetal_index::{Db, Durability, Error, Scan, Snapshot, Transaction};

use super::world::{Between, Checked, World, check_scan, lend, same, short};

/// Maximum number of open readers of each kind.
const OPEN_MAX: usize = 4;

/// A snapshot and its expected content.
struct Moment {
    snapshot: Snapshot,
    map: Rc<Map>,
    /// Number of the last batch that the snapshot sees.
    since: usize,
}

/// A scan in progress, and the rows that it must still return.
struct SlowScan {
    scan: Scan,
    rows: VecDeque<(Vec<u8>, Vec<u8>)>,
    since: usize,
}

/// An open transaction.
struct Open {
    transaction: Transaction,
    map: Map,
    since: usize,
    changes: Vec<Change>,
    /// Changes that the transaction itself has written.
    own: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Keys for which a change by another writer makes the commit fail with a conflict.
    expects: Vec<Vec<u8>>,
}

/// All readers of a program.
#[derive(Default)]
pub struct Readers {
    moments: Vec<Moment>,
    scans: Vec<SlowScan>,
    transactions: Vec<Open>,
}

impl Readers {
    /// Takes a snapshot, reads from an open snapshot, or drops one.
    pub fn look_back(&mut self, db: &Db, world: &mut World<'_>) -> Checked {
        let open = self.moments.len();
        let choice = world.draw.below(6);
        if open == 0 || (choice == 0 && open < OPEN_MAX) {
            self.moments.push(Moment {
                snapshot: db.snapshot(),
                map: Rc::new(world.history.now().clone()),
                since: world.history.visible(),
            });
            return Ok(());
        }
        let index = world.draw.below(open as u64) as usize;
        if choice == 1 {
            self.moments.swap_remove(index);
            return Ok(());
        }
        if choice == 2 && open < OPEN_MAX {
            let Moment {
                snapshot,
                map,
                since,
            } = &self.moments[index];
            let copy = Moment {
                snapshot: snapshot.clone(),
                map: Rc::clone(map),
                since: *since,
            };
            self.moments.push(copy);
            return Ok(());
        }
        look_into(&self.moments[index], world)
    }

    /// Begins a scan, or reads more rows of an open scan.
    pub fn go_on_scanning(&mut self, db: &Db, world: &mut World<'_>) -> Checked {
        let open = self.scans.len();
        if open == 0 || (open < OPEN_MAX && world.draw.once_in(4)) {
            self.scans.push(begin_scan(db, world));
            return Ok(());
        }
        let index = world.draw.below(open as u64) as usize;
        let rows = 1 + world.draw.magnitude(9);
        for _ in 0..rows {
            if !self.scans[index].go_on(world)? {
                self.scans.swap_remove(index);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Begins a transaction, or runs an operation of an open transaction, or ends one.
    pub fn transact(&mut self, db: &Db, world: &mut World<'_>) -> Checked {
        let open = self.transactions.len();
        if open == 0 || (open < OPEN_MAX && world.draw.once_in(8)) {
            self.transactions.push(Open {
                transaction: db.transaction(),
                map: world.history.now().clone(),
                since: world.history.visible(),
                changes: Vec::new(),
                own: BTreeMap::new(),
                expects: Vec::new(),
            });
            return Ok(());
        }
        let index = world.draw.below(open as u64) as usize;
        match world.draw.below(12) {
            0 => {
                self.transactions.swap_remove(index);
                Ok(())
            }
            1..=3 => self.transactions.swap_remove(index).commit(db, world),
            4..=7 => self.transactions[index].read(world),
            _ => {
                self.transactions[index].change(world);
                Ok(())
            }
        }
    }
}

fn look_into(moment: &Moment, world: &mut World<'_>) -> Checked {
    if world.draw.once_in(2) {
        let key = world.key();
        let failures = world.disk.counts().failures;
        return match moment.snapshot.get(&key) {
            Ok(value) => same(&key, value.as_ref(), moment.map.get(&key)),
            Err(error) => world.judge_read(&error, failures, moment.since),
        };
    }
    let bounds = world.between();
    let is_reverse = world.draw.once_in(2);
    let rows_max = world.draw.magnitude(13) as usize;
    let scan = match is_reverse {
        true => moment.snapshot.scan_reverse(lend(&bounds)),
        false => moment.snapshot.scan(lend(&bounds)),
    };
    check_scan(
        world,
        scan,
        &moment.map,
        moment.since,
        &bounds,
        is_reverse,
        rows_max,
    )
}

fn begin_scan(db: &Db, world: &mut World<'_>) -> SlowScan {
    let bounds: Between = world.between();
    let is_reverse = world.draw.once_in(2);
    let rows: Pairs = rows_within(world.history.now(), lend(&bounds), is_reverse);
    let scan = match is_reverse {
        true => db.scan_reverse(lend(&bounds)),
        false => db.scan(lend(&bounds)),
    };
    SlowScan {
        scan,
        rows: rows.into(),
        since: world.history.visible(),
    }
}

impl SlowScan {
    /// Reads the next row and compares it with the expected row. Returns false if the scan has
    /// ended, either after its last row or because of an error.
    fn go_on(&mut self, world: &World<'_>) -> Checked<bool> {
        let failures = world.disk.counts().failures;
        let expected = self.rows.pop_front();
        match (self.scan.next(), expected) {
            (Ok(None), None) => Ok(false),
            (Ok(Some((key, value))), Some((expected, should))) if key == expected => {
                same(key, Some(&value.to_vec()), Some(&should)).map(|()| true)
            }
            (Ok(found), expected) => {
                let since = self.since;
                let told = |key: &[u8]| {
                    let changed = world.history.has_changed(key, since);
                    format!("{} (changed since: {changed})", short(key))
                };
                Err(format!(
                    "of batch {since}, key {:?} where key {:?} should be",
                    found.map(|(key, _)| told(key)),
                    expected.map(|(key, _)| told(&key))
                ))
            }
            (Err(error), _) => world
                .judge_read(&error, failures, self.since)
                .map(|()| false),
        }
    }
}

impl Open {
    fn read(&mut self, world: &mut World<'_>) -> Checked {
        let key = world.key();
        let failures = world.disk.counts().failures;
        let answer = match world.draw.once_in(2) {
            true => {
                self.expects.push(key.clone());
                self.transaction.get_for_update(&key)
            }
            false => self.transaction.get(&key),
        };
        let should = match self.own.get(&key) {
            Some(own) => own.as_ref(),
            None => self.map.get(&key),
        };
        match answer {
            Ok(value) => same(&key, value.as_ref(), should),
            Err(error) => world.judge_read(&error, failures, self.since),
        }
    }

    fn change(&mut self, world: &mut World<'_>) {
        let key = world.key();
        let change = world.change_of(key.clone());
        let value = match &change {
            Change::Put(_, value) => {
                self.transaction.put(&key, value);
                Some(value.clone())
            }
            _ => {
                self.transaction.delete(&key);
                None
            }
        };
        self.own.insert(key.clone(), value);
        self.expects.push(key);
        self.changes.push(change);
    }

    fn commit(self, db: &Db, world: &mut World<'_>) -> Checked {
        let durability = world.durability();
        let failures = world.disk.counts().failures;
        let written = |key: &&Vec<u8>| world.history.has_changed(key, self.since);
        let may_conflict = self.expects.iter().any(|key| written(&key));
        // If a key was absent at the start of the transaction and is absent now, the index is not
        // required to notice a value that the key had in between. So a conflict is allowed but not
        // required.
        let is_traced =
            |key: &&Vec<u8>| self.map.contains_key(*key) || world.history.now().contains_key(*key);
        let must_conflict = self
            .expects
            .iter()
            .filter(written)
            .any(|key| is_traced(&key));
        let answer = self.transaction.commit(durability);
        match &answer {
            Err(Error::Conflict) if may_conflict => {
                world.reach("transactions in conflict");
                return Ok(());
            }
            Err(Error::Conflict) => return Err("a conflict without another writer".to_owned()),
            Err(error @ Error::SnapshotTooOld) => {
                world.reach("transactions that took too long");
                return world.judge_read(error, failures, self.since);
            }
            Ok(()) if must_conflict => return Err("it did not see the writes of others".to_owned()),
            Err(Error::Storage { .. } | Error::Damaged { .. }) if !is_read_only(db, world)? => {
                // The index refused the commit because a read error kept it from checking whether
                // another writer has changed a key.
                let error = answer.expect_err("it was one");
                world.reach("transaction refused: its keys cannot be read");
                return world.judge_read(&error, failures, self.since);
            }
            _ => {}
        }
        world.judge_write(&answer, failures)?;
        world
            .history
            .wrote(self.changes, durability, answer.as_ref().err());
        Ok(())
    }
}

/// Returns true if the index is read-only. Finds this out by an attempt to write an empty batch.
fn is_read_only(db: &Db, world: &mut World<'_>) -> Checked<bool> {
    let failures = world.disk.counts().failures;
    let nothing = bimetal_index::Batch::new();
    let answer = db.write(&nothing, Durability::Relaxed);
    match &answer {
        Ok(()) => {
            world.history.wrote(Vec::new(), Durability::Relaxed, None);
            Ok(false)
        }
        Err(Error::ReadOnly { .. }) => Ok(true),
        Err(_) => world.judge_write(&answer, failures).map(|()| true),
    }
}
