//! Tests of snapshot isolation: many threads run transactions, and the observations of all threads
//! are combined and checked afterwards.
//!
//! Every write records the value that it replaces, so the versions of a key form a chain. The
//! observations then give an order of events. The commit of a version comes before the beginning of
//! a transaction that sees the version, and this beginning comes before the commit of the next
//! version. If the order has no cycle, there is a timeline in which every transaction has seen the
//! state of a single moment (Adya 1999; Cerone and Gotsman 2018: if the first committer wins, that
//! is snapshot isolation).

use crate::world;
use crate::world::{Disk, Draw, small_paper_options};
use bimetal_index::{Db, Durability, Error, Options, Snapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

const KEYS: u64 = 12;
/// Initial value of every key.
const FIRST: u64 = 0;

/// Value of a key: 8 * id + step + 1. `id` is the number of the transaction that wrote the value,
/// and `step` is the number of the step in which the transaction wrote it.
type Value = u64;

/// What one transaction or snapshot has read and written. The items of one thread are in the order
/// in which they happened.
#[derive(Clone, Debug, Default)]
struct Seen {
    thread: usize,
    reads: BTreeMap<u64, Value>,
    /// Values that the transaction wrote to each key. The last value remains; the earlier ones were
    /// overwritten by the transaction itself.
    writes: BTreeMap<u64, Vec<Value>>,
    is_committed: bool,
}

fn key(number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    // Keys are long, so that few of them fill a leaf.
    key.resize(100, b'k');
    key
}

fn number(value: &[u8]) -> Value {
    u64::from_le_bytes(value[..8].try_into().expect("a number"))
}

/// Encodes a value in a number of bytes that is large enough to fill several leaves.
fn bytes(value: Value) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(60 + value as usize % 60, 7);
    bytes
}

fn small(draw: &mut Draw) -> Options {
    Options {
        buffer_bytes: 4 << 10,
        ..world::small_options(draw)
    }
}

/// Reads all keys of a snapshot.
fn look(thread: usize, snapshot: &Snapshot, is_reverse: bool) -> Result<Seen, Error> {
    let all = (Bound::Unbounded, Bound::Unbounded);
    let mut scan = match is_reverse {
        true => snapshot.scan_reverse(all),
        false => snapshot.scan(all),
    };
    let mut seen = Seen {
        thread,
        is_committed: true,
        ..Seen::default()
    };
    while let Some((key, value)) = scan.next()? {
        let key = u64::from_be_bytes(key[..8].try_into().expect("a key"));
        seen.reads.insert(key, number(value));
    }
    assert_eq!(seen.reads.len() as u64, KEYS, "no key is ever missing");
    Ok(seen)
}

/// Reads some keys and writes some of them.
fn transact(db: &Db, thread: usize, id: u64, draw: &mut Draw) -> Result<Seen, Error> {
    let mut seen = Seen {
        thread,
        ..Seen::default()
    };
    let mut transaction = db.transaction();
    for step in 0..2 + draw.below(4) {
        let number_of_key = draw.below(KEYS);
        let found = match draw.once_in(2) {
            true => transaction.get_for_update(&key(number_of_key))?,
            false => transaction.get(&key(number_of_key))?,
        };
        let found = number(&found.expect("no key is ever missing"));
        let own = seen.writes.get(&number_of_key).and_then(|all| all.last());
        match own {
            Some(own) => assert_eq!(found, *own, "a transaction sees its own changes"),
            None => _ = seen.reads.insert(number_of_key, found),
        }
        if draw.below(3) > 0 {
            let value = id * 8 + step + 1;
            transaction.put(&key(number_of_key), &bytes(value));
            seen.writes.entry(number_of_key).or_default().push(value);
        }
    }
    let durability = [Durability::Durable, Durability::Relaxed, Durability::Group];
    match transaction.commit(durability[draw.below(3) as usize]) {
        Ok(()) => seen.is_committed = true,
        Err(Error::Conflict) => {}
        Err(error) => return Err(error),
    }
    Ok(seen)
}

fn live(db: &Db, thread: usize, turns: u64) -> Result<Vec<Seen>, Error> {
    let mut draw = Draw::new(thread as u64);
    let mut all = Vec::new();
    for turn in 0..turns {
        all.push(match draw.below(8) {
            0 => look(thread, &db.snapshot(), draw.once_in(2))?,
            _ => transact(db, thread, thread as u64 * turns + turn + 1, &mut draw)?,
        });
        match draw.below(60) {
            0 => db.write_back()?,
            1 => db.checkpoint()?,
            _ => {}
        }
    }
    Ok(all)
}

/// Returns the number of committed transactions, or the reason why the history violates snapshot
/// isolation.
fn judge(history: &[Seen]) -> Result<usize, String> {
    let mut writers: BTreeMap<(u64, Value), usize> = BTreeMap::new();
    let mut nexts: BTreeMap<(u64, Value), usize> = BTreeMap::new();
    for (who, seen) in history.iter().enumerate().filter(|(_, s)| s.is_committed) {
        for (key, values) in &seen.writes {
            let last = values.last().expect("a write has a value");
            writers.insert((*key, *last), who);
            let replaced = *seen.reads.get(key).ok_or("a write without a read")?;
            if let Some(other) = nexts.insert((*key, replaced), who) {
                return Err(format!(
                    "{other} and {who} both replace {replaced} of {key}"
                ));
            }
        }
    }
    // Transaction n begins at graph node 2n and commits at graph node 2n + 1.
    let mut after: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); history.len() * 2];
    let mut last_of: BTreeMap<usize, usize> = BTreeMap::new();
    for (who, seen) in history.iter().enumerate() {
        after[2 * who].insert(2 * who + 1);
        if let Some(before) = last_of.insert(seen.thread, who) {
            after[2 * before + 1].insert(2 * who);
        }
        for (key, value) in &seen.reads {
            if *value != FIRST {
                let writer = writers.get(&(*key, *value));
                let writer = writer.ok_or(format!("{who} sees {value}, which nobody committed"))?;
                after[2 * writer + 1].insert(2 * who);
            }
            if let Some(next) = nexts.get(&(*key, *value)).filter(|next| **next != who) {
                after[2 * who].insert(2 * next + 1);
            }
        }
    }
    match has_order(&after) {
        true => Ok(history.iter().filter(|seen| seen.is_committed).count()),
        false => Err("somebody has seen what was not at one moment".to_owned()),
    }
}

/// Returns true if the graph has no cycle.
fn has_order(after: &[BTreeSet<usize>]) -> bool {
    let mut before = vec![0; after.len()];
    after.iter().flatten().for_each(|to| before[*to] += 1);
    let mut free: Vec<usize> = (0..after.len()).filter(|node| before[*node] == 0).collect();
    let mut ordered = 0;
    while let Some(node) = free.pop() {
        ordered += 1;
        for to in &after[node] {
            before[*to] -= 1;
            if before[*to] == 0 {
                free.push(*to);
            }
        }
    }
    ordered == after.len()
}

fn run(options: &Options) {
    const THREADS: usize = 6;
    const TURNS: u64 = 500;
    let db = Db::create(Disk::default(), 3, options).expect("an index");
    for number in 0..KEYS {
        db.put(&key(number), &bytes(FIRST)).expect("a put");
    }
    let history: Vec<Seen> = std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            let db = db.clone();
            scope.spawn(move || live(&db, thread, TURNS).expect("a whole disk"))
        });
        let threads: Vec<_> = threads.collect();
        let lives = threads.into_iter().map(|thread| thread.join());
        lives.flat_map(|life| life.expect("a thread")).collect()
    });
    let committed = judge(&history).unwrap_or_else(|why| panic!("{why}"));
    let refused = history.len() - committed;
    assert!(committed > 500 && refused > 20, "{committed} and {refused}");
}

#[test]
fn threads_see_one_moment_each_and_lose_nothing() {
    for seed in 0..4 {
        run(&small(&mut Draw::new(seed)));
    }
}

#[test]
fn threads_see_one_moment_each_under_the_papers_rules() {
    run(&small_paper_options(&mut Draw::new(1)));
}

fn seen(thread: usize, reads: &[(u64, Value)], writes: &[(u64, Value)]) -> Seen {
    let writes = writes.iter().map(|(key, value)| (*key, vec![*value]));
    Seen {
        thread,
        reads: reads.iter().copied().collect(),
        writes: writes.collect(),
        is_committed: true,
    }
}

/// Checks the answers of `judge` for known histories (Berenson et al. 1995).
#[test]
fn what_is_not_snapshot_isolation_is_refused() {
    let one = seen(1, &[(1, 0), (2, 0)], &[(1, 11), (2, 12)]);
    let after = seen(2, &[(1, 11), (2, 12)], &[]);
    let before = seen(3, &[(1, 0), (2, 0)], &[]);
    assert_eq!(judge(&[one.clone(), after, before]), Ok(3));
    // Write skew is allowed: each of the two transactions has read the key that the other
    // transaction writes.
    let skewed = [(1, 2), (2, 1)]
        .map(|(reads, writes)| seen(reads as usize, &[(1, 0), (2, 0)], &[(writes, 10 * writes)]));
    assert_eq!(judge(&skewed), Ok(2));

    let lost = seen(2, &[(1, 0)], &[(1, 21)]);
    assert!(judge(&[one.clone(), lost]).is_err(), "a lost update");
    let torn = seen(2, &[(1, 11), (2, 0)], &[]);
    assert!(judge(&[one.clone(), torn]).is_err(), "half of a batch");
    let mut aborted = one.clone();
    aborted.is_committed = false;
    let dirty = seen(2, &[(1, 11)], &[]);
    assert!(judge(&[aborted, dirty]).is_err(), "a dirty read");
    let mut twice = one.clone();
    twice.writes.insert(1, vec![10, 11]);
    let between = seen(2, &[(1, 10)], &[]);
    assert!(
        judge(&[twice, between]).is_err(),
        "a write that was written over"
    );
    let back = [seen(2, &[(1, 11)], &[]), seen(2, &[(1, 0)], &[])];
    let [new, old] = back;
    assert!(judge(&[one.clone(), new, old]).is_err(), "time goes back");
    let other = seen(2, &[(3, 0)], &[(3, 23)]);
    let forks = [
        seen(3, &[(1, 11), (3, 0)], &[]),
        seen(4, &[(1, 0), (3, 23)], &[]),
    ];
    let [here, there] = forks;
    assert!(
        judge(&[one, other, here, there]).is_err(),
        "two orders of time"
    );
}
