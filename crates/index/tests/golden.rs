//! Golden test: an index of each version of the format, written by the first program with that
//! version, must be readable forever. The expected content is computed by a rule in this test, not
//! read from an index.
//!
//! `BIMETAL_GOLDEN=write` makes the file of the current version; an existing file is never
//! rewritten. The file omits runs of zeroes. It starts with the length of the index (8 bytes).
//! Pieces follow, each with an offset (8 bytes), a length (8 bytes), and the bytes. Numbers are
//! little-endian.

use crate::world::{Disk, Map, collect};
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Batch, Db, Durability, Error, Options, rebuild, verify};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

const VERSION: u32 = 6;
/// All versions that must be readable.
const VERSIONS: [u32; 5] = [2, 3, 4, 5, VERSION];
const BLOCK_BYTES: usize = 4096;

fn file(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/version-{version}.index"))
}

fn options() -> Options {
    Options {
        memory_bytes: 256 << 10,
        buffer_bytes: 4 << 10,
        log_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        inline_value_bytes: 100,
        ..Options::default()
    }
}

/// Returns the key and the value with a given number. Keys are numbers and words, and values have
/// all lengths, some of them out of line (outside their leaf).
fn pair(number: u64) -> (Vec<u8>, Vec<u8>) {
    let key = match number % 3 {
        0 => number.to_be_bytes().to_vec(),
        1 => format!("word {number}").into_bytes(),
        _ => vec![b'z'; (number % 40) as usize + 1],
    };
    let len = if number.is_multiple_of(50) {
        150
    } else {
        number % 9
    };
    (
        key,
        (0..len).map(|at| (number * 31 + at * 7) as u8).collect(),
    )
}

/// Returns the changes in order. Each change is written as a batch of its own.
fn changes() -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let puts = (0..400).map(|number| {
        let (key, value) = pair(number);
        (key, Some(value))
    });
    let deletions = (0..400).step_by(7).map(|number| (pair(number).0, None));
    let again = (0..60).map(|number| (pair(number * 5).0, Some(b"again".to_vec())));
    puts.chain(deletions).chain(again).collect()
}

/// First version whose file contains a range deletion that many leaves have not applied yet, and a
/// key that was put after this deletion.
const DELETES_LATER: u32 = 6;

fn late_key(number: u64) -> Vec<u8> {
    format!("x {number:04}").into_bytes()
}

fn expected(version: u32) -> Map {
    let mut map = Map::new();
    for (key, value) in changes() {
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }
    map.retain(|key, _| !(b"word 30".to_vec()..b"word 31".to_vec()).contains(key));
    if version >= DELETES_LATER {
        map.insert(late_key(300), b"since".to_vec());
    }
    map
}

/// Makes the index. Most of its changes are in nodes, some in patches, and the last ones only in
/// the log.
fn written() -> Vec<u8> {
    let disk = Disk::default();
    let mut db = Db::create(disk.clone(), 0x676F_6C64, &options()).expect("an index");
    for (number, (key, value)) in changes().into_iter().enumerate() {
        let mut batch = Batch::new();
        match value {
            Some(value) => batch.put(&key, &value),
            None => batch.delete(&key),
        }
        db.write(&batch, Durability::Durable).expect("a write");
        if number == 440 {
            db.write_back().expect("a write-back");
            drop(db);
            db = Db::open(disk.clone(), &options()).expect("it opens");
        }
        if number == 455 {
            db.write_back().expect("a write-back");
        }
    }
    let mut batch = Batch::new();
    batch.delete_range(b"word 30", Some(b"word 31"));
    db.write(&batch, Durability::Durable).expect("a write");
    delete_later(&db);
    drop(db);
    disk.content()
}

/// Writes some sixty leaves, deletes all of them with one range deletion, and ends while most of
/// the leaves have not applied the deletion.
fn delete_later(db: &Db) {
    let mut batch = Batch::new();
    for number in 0..600 {
        batch.put(&late_key(number), &pair(number * 3).1.repeat(8));
        if batch.len() == 200 {
            db.write(&batch, Durability::Durable).expect("a write");
            batch.clear();
        }
    }
    db.write_back().expect("a write-back");
    let before = db.statistics().maintenance.taken_in;
    batch.clear();
    batch.delete_range(b"x ", Some(b"y"));
    batch.put(&late_key(300), b"since");
    db.write(&batch, Durability::Durable).expect("a write");
    assert_eq!(
        db.statistics().maintenance.taken_in,
        before + 16,
        "and not more"
    );
    db.checkpoint().expect("a checkpoint");
}

fn packed(content: &[u8]) -> Vec<u8> {
    let mut out = (content.len() as u64).to_le_bytes().to_vec();
    let granules = content.chunks(64).enumerate();
    for (number, granule) in granules.filter(|(_, g)| g.iter().any(|byte| *byte != 0)) {
        out.extend((number as u64 * 64).to_le_bytes());
        out.extend((granule.len() as u64).to_le_bytes());
        out.extend(granule);
    }
    out
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let number = |at: usize| u64::from_le_bytes(packed[at..at + 8].try_into().expect("8 bytes"));
    let mut content = vec![0; number(0) as usize];
    let mut at = 8;
    while at < packed.len() {
        let (offset, len) = (number(at) as usize, number(at + 8) as usize);
        content[offset..offset + len].copy_from_slice(&packed[at + 16..at + 16 + len]);
        at += 16 + len;
    }
    content
}

fn golden(version: u32) -> Vec<u8> {
    let is_asked = version == VERSION && std::env::var_os("BIMETAL_GOLDEN").is_some();
    let file = file(version);
    if is_asked && !file.exists() {
        std::fs::write(&file, packed(&written())).expect("the golden file");
    }
    unpacked(&std::fs::read(file).expect("the golden file"))
}

fn map_of(db: &Db) -> Map {
    let pairs = collect(&mut db.scan((Bound::Unbounded, Bound::Unbounded)));
    pairs.expect("a scan").into_iter().collect()
}

#[test]
fn the_golden_index_of_every_version_is_read() {
    for version in VERSIONS {
        let golden = golden(version);
        let disk = Arc::new(MemoryStorage::with_content(golden.clone()));
        assert_eq!(version_of(&golden), version);
        let found = verify(&disk, &mut |_, _| {}).expect("an index");
        assert_eq!(found.problems, []);
        assert!(found.leaves > 10 && found.inner_nodes > 0, "{found:?}");
        assert!(
            found.blobs > 0 && found.patches > 0 && found.log_frames > 0,
            "{found:?}"
        );
        let read_only = Db::open_read_only(disk.clone(), &options()).expect("it opens");
        assert_eq!(map_of(&read_only), expected(version));
        let refused = read_only.put(b"a", b"b");
        assert!(
            matches!(refused, Err(Error::ReadOnly { .. })),
            "{refused:?}"
        );
        assert_eq!(disk.content(), golden, "nothing was written");
        let db = Db::open(disk.clone(), &options()).expect("it opens");
        assert_eq!(map_of(&db), expected(version));
        assert_eq!(version_of(&disk.content()), VERSION);
        // A checkpoint that was written in an old version of the format remains in that version
        // until the next checkpoint is taken.
        drop(db);
        let db = Db::open(disk.clone(), &options()).expect("it opens");
        db.put(b"one more", b"change").expect("it can be written");
        db.write_back().expect("beside images of its version");
        drop(db);
        let db = Db::open(disk.clone(), &options()).expect("it opens");
        db.compact(|_| {}).expect("it is compacted");
        assert_eq!(map_of(&db).len(), expected(version).len() + 1);
        drop(db);
        let found = verify(&disk, &mut |_, _| {}).expect("an index");
        assert_eq!(found.problems, []);
    }
}

/// Returns the version in the valid superblock.
fn version_of(content: &[u8]) -> u32 {
    let number =
        |block: &[u8], at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8"));
    let blocks = content[..2 * BLOCK_BYTES].chunks(BLOCK_BYTES);
    let newest = blocks.max_by_key(|block| number(block, 32)).expect("two");
    number(newest, 8) as u32
}

#[test]
fn the_golden_index_is_built_anew_without_superblocks() {
    for version in VERSIONS {
        let mut content = golden(version);
        content[..2 * BLOCK_BYTES].fill(0);
        let made = Disk::default();
        let from = MemoryStorage::with_content(content);
        let rebuilt = rebuild(&from, None, made.clone(), 1, &options(), &mut |_, _, _| {});
        assert_eq!(rebuilt.expect("parts of an index").lost, []);
        assert_eq!(
            map_of(&Db::open(made, &options()).expect("it opens")),
            expected(version)
        );
    }
}

/// Damages the footers of segments, one at a time. Since version 4, each image contains its key
/// range, so the rebuild loses nothing. In older versions, the rebuild without the footer cannot
/// prove that all rebuilt keys are current. It lists the keys that could be outdated as lost.
#[test]
fn the_golden_index_is_built_anew_without_a_footer() {
    for version in VERSIONS {
        let expected = expected(version);
        let whole = golden(version);
        let footers = (0..whole.len()).step_by(64);
        let footers: Vec<usize> = footers
            .filter(|at| &whole[at + 4..at + 8] == b"bmSF")
            .collect();
        assert!(footers.len() > 3, "{} footers", footers.len());
        let mut lost = 0;
        for at in footers {
            let mut content = whole.clone();
            content[..2 * BLOCK_BYTES].fill(0);
            content[at + 70] ^= 1;
            let made = Disk::default();
            let from = MemoryStorage::with_content(content);
            let rebuilt = rebuild(&from, None, made.clone(), 1, &options(), &mut |_, _, _| {});
            let rebuilt = rebuilt.expect("parts of an index");
            let map = map_of(&Db::open(made, &options()).expect("it opens"));
            let is_listed = |key: &[u8]| {
                let mut ranges = rebuilt.lost.iter();
                ranges.any(|l| *l.from <= *key && l.to.as_deref().is_none_or(|to| key < to))
            };
            for key in map.keys().chain(expected.keys()) {
                let is_right = map.get(key) == expected.get(key);
                assert!(is_right || is_listed(key), "{version}, {at}: {key:?}");
            }
            lost += rebuilt.lost_found;
        }
        assert_eq!(lost == 0, version >= 4, "version {version}: {lost} ranges");
    }
}

/// Checks that an index is refused if this program does not know its format version, whether the
/// version is older or newer than the program's own version.
#[test]
fn another_version_is_refused_by_its_number() {
    for version in [1, VERSION + 1, u32::MAX] {
        let mut content = golden(VERSION);
        for block in content[..2 * BLOCK_BYTES].chunks_mut(BLOCK_BYTES) {
            block[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c::crc32c(&block[..BLOCK_BYTES - 4]);
            block[BLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        }
        let expected = Error::Version {
            found: version,
            known: VERSION,
        };
        let disk = Arc::new(MemoryStorage::with_content(content));
        assert_eq!(
            Db::open(disk.clone(), &options()).err(),
            Some(expected.clone())
        );
        assert_eq!(verify(&disk, &mut |_, _| {}).err(), Some(expected.clone()));
        let made = Disk::default();
        let rebuilt = rebuild(&disk, None, made, 1, &options(), &mut |_, _, _| {});
        assert_eq!(rebuilt.err(), Some(expected));
    }
}
