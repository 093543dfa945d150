//! Tests of range deletions over far more leaves than a single commit is allowed to process. The
//! cost of each commit is counted, and the content is compared with the model at every step, also
//! after stops and rebuilds.

use crate::world::lives::{key_of, long_deletions, many_leaves, small, value_of};
use crate::world::{Change, Disk, Draw, Map, World, collect};
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Batch, Db, Durability, Options, rebuild};
use std::ops::Bound;
use std::sync::Arc;

const KEYS: u64 = 30_000;

/// Returns an index of some three thousand leaves, all of which have been written.
fn loaded() -> World {
    let world = many_leaves(KEYS);
    assert!(
        world.db.statistics().nodes > 2500,
        "{:?}",
        world.db.statistics()
    );
    world
}

fn everything() -> Change {
    Change::DeleteRange(Vec::new(), None)
}

/// A range deletion is applied to at most 16 leaves in each commit. This work is in addition to the
/// work for the commit's own changes. The limit holds for the commit that deletes everything and
/// for the following commits.
#[test]
fn no_commit_waits_for_the_leaves_of_a_long_range() {
    let mut world = loaded();
    let before = world.db.snapshot();
    let nodes = u64::from(world.db.statistics().nodes);
    let (mut commits, mut last) = (0, world.db.statistics());
    let mut changes = vec![everything()];
    loop {
        world.write(&changes, Durability::Durable).expect("a write");
        let now = world.db.statistics();
        let taken_in = now.maintenance.taken_in - last.maintenance.taken_in;
        let written = now.maintenance.consolidations + now.maintenance.patches
            - last.maintenance.consolidations
            - last.maintenance.patches;
        assert!(
            taken_in <= 16,
            "{taken_in} leaves took it in with one commit"
        );
        // Applied deletions take memory, and writing a leaf frees memory. One written leaf frees at
        // least as much as about sixteen applied deletions take, so a commit has to write only a
        // few leaves.
        assert!(
            written <= 64,
            "{written} leaves were written with one commit"
        );
        // An image is read only for a leaf that is written. The write needs the old versions,
        // because the snapshot keeps all of them.
        let read = now.image_reads - last.image_reads;
        assert!(
            read <= 64 * 17 + 16,
            "{read} images were read with one commit"
        );
        let delta_bytes_max = world.options.buffer_bytes + 64 * 1024;
        assert!(
            now.delta_bytes <= delta_bytes_max,
            "{} bytes of changes",
            now.delta_bytes
        );
        if taken_in == 0 && commits > 0 {
            break;
        }
        commits += 1;
        // Keys are put into the deleted range again, both in leaves that have applied the deletion
        // and in leaves that have not.
        let number = commits * 7919 % KEYS;
        changes = vec![Change::Put(key_of(number), value_of(commits))];
        if commits % 50 == 1 {
            world.check_all().expect("it can be read");
        }
        world.check_get(&key_of(number)).expect("it can be read");
        world
            .check_get(&key_of(number + 1))
            .expect("it can be read");
        last = world.db.statistics();
    }
    // A commit applies the deletion to at most 16 leaves, so about `nodes / 16` commits are needed.
    // The test requires only half as many, because not every node counts: about three in a hundred
    // are inner nodes, and some leaves were merged before they applied the deletion.
    assert!(
        commits * 16 > nodes / 2,
        "{commits} commits for {nodes} nodes"
    );
    world.check_all().expect("it can be read");
    let all = (Bound::Unbounded, Bound::Unbounded);
    let seen = collect(&mut before.scan(all)).expect("a scan");
    assert_eq!(
        seen.len() as u64,
        KEYS + 1,
        "a snapshot sees all that there was"
    );
}

/// The index is stopped at random times while it still applies long deletions. After each stop, the
/// opened index has the right content, and so has a rebuild from the disk as it was at that stop.
#[test]
fn a_long_deletion_goes_on_after_any_stop() {
    let mut at_stop = |world: &World| {
        let found = rebuilt(&world.disk.content(), &world.options);
        let differs = |key: &&Vec<u8>| found.get(*key) != world.now().get(*key);
        let differing: Vec<_> = found
            .keys()
            .chain(world.now().keys())
            .filter(differs)
            .collect();
        assert_eq!(
            differing,
            Vec::<&Vec<u8>>::new(),
            "what a rebuild finds, of {}",
            found.len()
        );
    };
    let taken_in = [1, 2].map(|seed| long_deletions(seed, KEYS, &mut at_stop));
    assert!(taken_in.iter().all(|leaves| *leaves > 3000), "{taken_in:?}");
}

/// An opening writes leaves because the log has more changes than fit into memory, and then replays
/// older changes into these leaves. The leaves then look newer than a range deletion, although the
/// replayed changes are older and bring deleted keys back. The deletion must still take effect.
#[test]
fn a_long_deletion_stays_made_where_an_opening_writes_leaves() {
    let options = Options {
        memory_bytes: 256 << 10,
        buffer_bytes: 128 << 10,
        log_bytes: 1 << 20,
        ..small()
    };
    let mut written_in_openings = 0;
    for seed in 0..SEEDS {
        let mut draw = Draw::new(seed);
        let mut world = World::new(options.clone()).expect("an index");
        for round in 0..10 {
            change_some(&mut world, &mut draw, 800);
            let first = draw.below(REPLAYED_KEYS / 2);
            let end = key_of(first + REPLAYED_KEYS / 3);
            let change = Change::DeleteRange(key_of(first), Some(end));
            world
                .write(&[change], Durability::Durable)
                .expect("a write");
            change_some(&mut world, &mut draw, 400);
            if round % 2 == 0 {
                world.db.checkpoint().expect("a checkpoint");
            }
            change_some(&mut world, &mut draw, 400);
            let disk = world.disk.clone();
            world.reopen(disk).expect("it opens");
            let maintenance = world.db.statistics().maintenance;
            written_in_openings += maintenance.consolidations + maintenance.patches;
        }
    }
    assert!(written_in_openings > 100, "{written_in_openings}");
}

const SEEDS: u64 = 6;
const REPLAYED_KEYS: u64 = 3000;

/// Writes up to `puts_max` puts, several in a batch.
fn change_some(world: &mut World, draw: &mut Draw, puts_max: u64) {
    let mut left = draw.below(puts_max);
    while left > 0 {
        let count = left.min(draw.below(20) + 1);
        let mut put = || {
            let key = key_of(draw.below(REPLAYED_KEYS));
            Change::Put(key, vec![draw.below(256) as u8; 150])
        };
        let puts: Vec<Change> = (0..count).map(|_| put()).collect();
        world.write(&puts, Durability::Durable).expect("a write");
        left -= count;
    }
}

/// Rebuilds the index from a disk whose superblocks were erased, and returns its keys and values.
fn rebuilt(content: &[u8], options: &Options) -> Map {
    let mut content = content.to_vec();
    content[..8192].fill(0);
    let from = MemoryStorage::with_content(content);
    let made = Disk::default();
    let found = rebuild(&from, None, made.clone(), 8, options, &mut |_, _, _| {});
    assert_eq!(found.expect("parts of an index").lost, []);
    let db = Db::open(made, options).expect("it opens");
    let rows = collect(&mut db.scan((Bound::Unbounded, Bound::Unbounded)));
    rows.expect("a scan").into_iter().collect()
}

/// A list has room for a limited number of range deletions that leaves have not applied, so that
/// memory is bounded. A thread that adds a further deletion waits until there is room.
#[test]
fn deletions_that_pile_up_wait_for_their_turn() {
    let world = loaded();
    let nodes = u64::from(world.db.statistics().nodes);
    let mut batch = Batch::new();
    for number in 0..500 {
        batch.clear();
        batch.delete_range(&key_of(number), Some(&key_of(KEYS - number)));
        world
            .db
            .write(&batch, Durability::Relaxed)
            .expect("a write");
    }
    // A checkpoint lists at most 64 deletions that some leaves might not have applied, each with
    // two keys of 16 bytes. The first call of `checkpoint` might only complete a checkpoint that is
    // in progress, so the second call is measured.
    world.db.checkpoint().expect("a checkpoint");
    let before = world.db.statistics().maintenance.checkpoint_bytes;
    world.db.checkpoint().expect("a checkpoint");
    let statistics = world.db.statistics();
    let listed = statistics.maintenance.checkpoint_bytes - before;
    // A checkpoint has a location for every node id that was ever used.
    let places = nodes * 9 + u64::from(statistics.space.segments) * 4;
    assert!(
        listed <= places + 64 * 32,
        "{listed} bytes, {places} for places: {statistics:?}"
    );
    let end = key_of(KEYS);
    let all = (Bound::Unbounded, Bound::Excluded(&end[..]));
    assert_eq!(collect(&mut world.db.scan(all)).expect("a scan"), []);
}

/// Threads that delete long ranges run concurrently with threads that write, and all threads
/// finish.
#[test]
fn threads_that_delete_long_ranges_come_to_an_end() {
    let db = Arc::new(loaded().db);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let db = Arc::clone(&db);
            scope.spawn(move || {
                for round in 0..100 {
                    let mut batch = Batch::new();
                    batch.delete_range(
                        &key_of(thread * 1000),
                        (thread % 2 == 0).then_some(&key_of(KEYS)),
                    );
                    batch.put(&key_of(KEYS + thread), &value_of(round));
                    db.write(&batch, Durability::Relaxed).expect("a write");
                }
            });
        }
    });
    let all = (Bound::Included(&key_of(KEYS)[..]), Bound::Unbounded);
    let left = collect(&mut db.scan(all)).expect("a scan").len();
    // A deletion up to the end of all keys also deletes the keys that other threads have put, but
    // not the key that its own batch puts after it.
    assert!((1..=4).contains(&left), "{left} keys");
}
