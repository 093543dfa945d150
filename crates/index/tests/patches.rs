//! Tests of patches: changes of a leaf that is not in memory are stored next to the leaf's image.
//! Several images of a leaf can then be on the storage, some of them outdated, and every answer
//! must come from the right one.

use crate::world::{Disk, Draw};
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Batch, Db, Durability, Error, Options, verify};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

const RECORDS: u64 = 20_000;
/// Number of keys that change: a few in every leaf.
const CHANGING: u64 = 2_000;

struct World {
    disk: Disk,
    db: Db,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    options: Options,
    draw: Draw,
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:08}").into_bytes()
}

impl World {
    /// Creates an index with ten times as much data as memory, and opens it with no leaf in memory.
    fn new(inline_value_bytes: usize) -> World {
        let options = Options {
            memory_bytes: 256 << 10,
            buffer_bytes: 24 << 10,
            log_bytes: 1 << 20,
            segment_bytes: 64 << 10,
            node_bytes: 4096,
            inline_value_bytes,
            ..Options::default()
        };
        let disk = Disk::default();
        let db = Db::create(disk.clone(), 7, &options).expect("an index on an empty disk");
        let mut world = World {
            disk,
            db,
            map: BTreeMap::new(),
            options,
            draw: Draw::new(1),
        };
        for start in (0..RECORDS).step_by(1000) {
            world.change(start..start + 1000, |_| false);
        }
        world.db.write_back().expect("a write-back");
        world.reopen();
        world
    }

    /// Puts new values for the given keys, or deletes the keys.
    fn change(
        &mut self,
        numbers: impl Iterator<Item = u64>,
        mut is_deleted: impl FnMut(&mut Draw) -> bool,
    ) {
        let mut batch = Batch::new();
        for number in numbers {
            let key = key(number);
            if is_deleted(&mut self.draw) {
                batch.delete(&key);
                self.map.remove(&key);
            } else {
                let len = 40 + self.draw.below(100) as usize;
                let value = vec![self.draw.number() as u8; len];
                batch.put(&key, &value);
                self.map.insert(key, value);
            }
        }
        let written = self.db.write(&batch, Durability::Relaxed);
        written.expect("a batch is taken");
    }

    /// Changes a few keys, distributed over the whole index.
    fn change_some(&mut self) {
        let few = 50;
        let numbers: Vec<u64> = (0..few)
            .map(|_| self.draw.below(CHANGING) * (RECORDS / CHANGING))
            .collect();
        self.change(numbers.into_iter(), |draw| draw.once_in(3));
    }

    fn check_some(&mut self, gets: u64) {
        for _ in 0..gets {
            let near = self.draw.below(CHANGING) * (RECORDS / CHANGING);
            let key = key(near + self.draw.below(2));
            let found = self.db.get(&key).expect("a get");
            assert_eq!(found.as_ref(), self.map.get(&key), "{}", key.escape_ascii());
        }
    }

    fn check_all(&self) {
        let mut scan = self
            .db
            .scan((std::ops::Bound::Unbounded, std::ops::Bound::Unbounded));
        let mut expected = self.map.iter();
        while let Some((key, value)) = scan.next().expect("a scan") {
            let (their_key, their_value) = expected.next().expect("no more than there are");
            assert_eq!((key, value), (&their_key[..], &their_value[..]));
        }
        assert!(expected.next().is_none(), "no less than there are");
    }

    fn reopen(&mut self) {
        self.db.sync().expect("a sync");
        self.db.clone().abandon();
        self.db = Db::open(self.disk.clone(), &self.options).expect("it opens");
    }

    fn patches(&self) -> u64 {
        self.db.statistics().maintenance.patches
    }
}

#[test]
fn every_answer_is_the_newest() {
    let mut world = World::new(1024);
    let mut written = 0;
    for turn in 0..400 {
        world.change_some();
        world.check_some(20);
        if turn % 100 == 99 {
            written += world.patches();
            // A checkpoint taken here contains the filters; without it, the opening computes the
            // filters again.
            if turn % 200 == 199 {
                world.db.checkpoint().expect("a checkpoint");
            }
            world.reopen();
            world.check_some(200);
        }
    }
    written += world.patches();
    assert!(written > 4_000, "{written} patches");
    world.check_all();
    world.db.write_back().expect("a write-back");
    let found = verify(&*world.disk, &mut |_, _| {}).expect("an index");
    assert_eq!(found.problems, [], "all is where it should be");
    assert!(found.patches > found.leaves, "{found:?}");
}

#[test]
fn a_lookup_reads_one_image() {
    let mut world = World::new(1024);
    while world.patches() < 1000 {
        world.change_some();
    }
    world.db.write_back().expect("a write-back");
    world.reopen();
    let patched = verify(&*world.disk, &mut |_, _| {}).expect("an index");
    assert!(patched.patches > patched.leaves / 2, "{patched:?}");
    // Every inner node is read once, and then stays in memory.
    for number in (0..RECORDS).step_by(40) {
        world.db.get(&key(number)).expect("a get");
    }
    let before = world.db.statistics().image_reads;
    let gets = 5000;
    for turn in 0..gets {
        let number = turn * 7919 % RECORDS;
        let found = world.db.get(&key(number)).expect("a get");
        assert_eq!(found.as_ref(), world.map.get(&key(number)));
    }
    let reads = world.db.statistics().image_reads - before;
    assert!(reads < gets * 11 / 10, "{reads} reads for {gets} gets");
    assert!(reads > gets / 2, "{reads} reads: the index fits the memory");
}

#[test]
fn values_out_of_line_that_patches_replace_are_freed() {
    // All loaded values are out of line (outside their leaves). A put that replaces such a value
    // cannot be a patch, but a deletion can.
    let mut world = World::new(39);
    let before = blobs(&world);
    assert!(before > RECORDS - 100, "{before} values out of line");
    for start in 0..20 {
        world.change((start..RECORDS).step_by(40), |_| true);
        world.check_some(50);
    }
    assert!(world.patches() > 200, "{} patches", world.patches());
    world.db.compact(|_| {}).expect("there is space");
    world.check_all();
    let found = verify(&*world.disk, &mut |_, _| {}).expect("an index");
    assert_eq!(found.problems, [], "nothing is left that nothing leads to");
    assert_eq!(found.patches, 0, "compact puts all together");
    assert_eq!(blobs(&world), world.map.len() as u64);
}

fn blobs(world: &World) -> u64 {
    let found = verify(&*world.disk, &mut |_, _| {}).expect("an index");
    found.blobs
}

#[test]
fn a_leaf_of_which_patches_leave_nothing_goes() {
    let mut world = World::new(1024);
    for start in 0..40 {
        world.change((start..RECORDS).step_by(40), |_| true);
    }
    assert!(world.patches() > 500, "{} patches", world.patches());
    world.check_all();
    world.db.compact(|_| {}).expect("there is space");
    let found = verify(&*world.disk, &mut |_, _| {}).expect("an index");
    assert_eq!((found.rows, found.problems.len()), (0, 0));
    // No row is left. Each inner node still keeps one empty leaf: only the image of that leaf
    // proves that older images of its key range are obsolete.
    assert!(found.leaves <= found.inner_nodes.max(1), "{found:?}");
}

/// Changes every byte of every patch, one at a time: the result is an error or the right answer,
/// never a wrong answer.
#[test]
fn damage_in_a_patch_is_never_an_answer() {
    let mut world = World::new(1024);
    while world.patches() < 200 {
        world.change_some();
    }
    world.db.write_back().expect("a write-back");
    let content = world.disk.content();
    let mut damaged = 0;
    for (at, _) in patches_in(&content) {
        let mut content = content.clone();
        content[at + 64] ^= 1;
        let disk = Arc::new(MemoryStorage::with_content(content));
        let db = Db::open(disk, &world.options).expect("it opens");
        for number in (0..RECORDS).step_by((RECORDS / CHANGING) as usize) {
            match db.get(&key(number)) {
                Ok(found) => assert_eq!(found.as_ref(), world.map.get(&key(number))),
                Err(Error::Damaged { .. }) => damaged += 1,
                Err(error) => panic!("{error}"),
            }
        }
        if damaged > 30 {
            return;
        }
    }
    panic!("damage was met {damaged} times");
}

/// Returns the offset and the sort byte of the header of each patch. Patches are found by the magic
/// number of an image and the sort 2.
fn patches_in(content: &[u8]) -> impl Iterator<Item = (usize, u8)> + '_ {
    let places = (0..content.len() - 64).step_by(64);
    let headers = places.filter(|at| content[at + 4..at + 8] == *b"bmIN");
    headers
        .map(|at| (at, content[at + 9]))
        .filter(|(_, sort)| *sort == 2)
}

/// Keys with a common prefix of 4 KiB are packed into a few bytes each, until a patch adds a key
/// without the prefix to the leaf. In memory, the merged leaf is then longer than the maximum
/// length of an image on the storage. It must still be readable.
#[test]
fn a_patch_may_spoil_what_packed_well() {
    let disk = Disk::default();
    let options = Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 64 << 10,
        log_bytes: 4 << 20,
        ..Options::default()
    };
    let key = |number: u32| {
        let mut key = vec![b'p'; 4088];
        key.extend(number.to_be_bytes());
        key
    };
    let db = Db::create(disk.clone(), 3, &options).expect("an index");
    // The index must have more than one leaf. A single leaf would be the root, and the root is read
    // to find out whether it is an inner node.
    for number in 0..3000 {
        let mut batch = Batch::new();
        batch.put(&key(number), b"");
        db.write(&batch, Durability::Relaxed).expect("a write");
    }
    db.write_back().expect("a write-back");
    drop(db);
    let db = Db::open(disk, &options).expect("it opens");
    db.put(b"a", b"short").expect("a put");
    db.write_back().expect("a write-back");
    assert_eq!(db.statistics().maintenance.patches, 1);
    let rows = |db: &Db| {
        let mut scan = db.scan((Bound::Unbounded, Bound::Unbounded));
        let mut rows = 0;
        while scan.next().expect("a row").is_some() {
            rows += 1;
        }
        rows
    };
    assert_eq!(rows(&db), 3001);
    db.compact(|_| {}).expect("a compaction");
    assert_eq!(rows(&db), 3001);
    assert_eq!(db.get(&key(7)), Ok(Some(Vec::new())));
}
