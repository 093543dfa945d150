//! Prints the time of large transactions of several concurrent writers, and of the same
//! transactions one after the other: `transactions FILE`.
//!
//! There are eight transactions of 20,000 puts each, either on disjoint keys or all on the same
//! keys. In the latter case one transaction is committed and seven are refused. The time of
//! concurrent transactions is measured from the moment when all of them are ready to commit until
//! the last one has its result. In sequence, each transaction begins when the previous one has its
//! result, and only the commits are measured. The two modes alternate, and the median of the rounds
//! is printed.

use bimetal_index::{Db, Durability, Error, Options, Transaction};
use std::sync::Barrier;
use std::time::Duration;

const WRITERS: u64 = 8;
const PUTS: u64 = 20_000;
const ROUNDS: u64 = 11;

fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).expect("it is after the start")
}

fn prepared(db: &Db, round: u64, writer: u64) -> Transaction {
    let mut transaction = db.transaction();
    for number in 0..PUTS {
        // The factor is odd, so all keys differ, and keys of successive numbers are far apart.
        let id = (writer * PUTS + number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        transaction.put(&id.to_be_bytes(), &[round as u8; 100]);
    }
    transaction
}

/// Commits a transaction. Returns true if it was committed, false if a conflicting transaction was
/// committed first.
fn commit(transaction: Transaction) -> bool {
    match transaction.commit(Durability::Durable) {
        Ok(()) => true,
        Err(Error::Conflict) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Runs the transactions concurrently. Returns the time taken, and the number of committed
/// transactions.
fn at_once(db: &Db, round: u64, writers: &[u64]) -> (Duration, usize) {
    let ready = Barrier::new(writers.len());
    std::thread::scope(|scope| {
        let write = |writer: u64| {
            let (ready, transaction) = (&ready, prepared(db, round, writer));
            scope.spawn(move || {
                ready.wait();
                let start = now();
                (start, commit(transaction), now())
            })
        };
        // All transactions begin before any ends.
        let threads: Vec<_> = writers.iter().map(|writer| write(*writer)).collect();
        let done = threads.into_iter().map(|thread| thread.join());
        let done: Vec<_> = done.map(|done| done.expect("no panic")).collect();
        let start = done.iter().map(|(start, ..)| *start).min();
        let end = done.iter().map(|(.., end)| *end).max();
        let took = end.zip(start).map(|(end, start)| end - start);
        let made = done.iter().filter(|(_, is_made, _)| *is_made).count();
        (took.expect("there are writers"), made)
    })
}

fn one_by_one(db: &Db, round: u64, writers: &[u64]) -> (Duration, usize) {
    let mut took = Duration::ZERO;
    let mut made = 0;
    for writer in writers {
        let transaction = prepared(db, round, *writer);
        let start = now();
        made += usize::from(commit(transaction));
        took += now() - start;
    }
    (took, made)
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn main() {
    let path = std::env::args().nth(1).expect("a file that is to be made");
    let options = Options {
        log_bytes: 256 << 20,
        ..Options::default()
    };
    let db = Db::open_path(std::path::Path::new(&path), &options).expect("an index");
    let disjoint: Vec<u64> = (0..WRITERS).collect();
    let same = vec![0; WRITERS as usize];
    for (name, writers) in [("disjoint", disjoint), ("all on the same keys", same)] {
        let (mut together, mut apart) = (Vec::new(), Vec::new());
        let mut made = 0;
        for round in 0..ROUNDS {
            let (took, count) = at_once(&db, round, &writers);
            together.push(took);
            made += count;
            let (took, count) = one_by_one(&db, round, &writers);
            apart.push(took);
            assert_eq!(count, writers.len(), "nobody else writes");
        }
        let ratio = |at: usize| together[at].as_secs_f64() / apart[at].as_secs_f64();
        let mut ratios: Vec<f64> = (0..together.len()).map(ratio).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        println!(
            "{name}: {:.3} s at once, of {} transactions {made} made; {:.3} s one by one; {:.2} times as long",
            median(together).as_secs_f64(),
            ROUNDS * WRITERS,
            median(apart).as_secs_f64(),
            ratios[ratios.len() / 2],
        );
    }
    db.close().expect("it can be closed");
}
