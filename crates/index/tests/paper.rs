//! Tests of the paper's rules: an index under these rules behaves like a map, keeps its clusters
//! within their sizes, and stores nodes as the paper describes.

use crate::world::{Disk, Draw};
use bimetal_index::node::Image;
use bimetal_index::{Batch, Clusters, Db, Durability, Error, Options, PaperRules, verify};
use std::collections::BTreeMap;
use std::ops::Bound;

const NODE_BYTES: usize = 4096;
const SEGMENT_BYTES: u32 = 64 << 10;

fn options(clusters: Clusters, fill: f64) -> Options {
    Options {
        log_bytes: 1 << 20,
        segment_bytes: SEGMENT_BYTES,
        node_bytes: NODE_BYTES,
        paper: Some(PaperRules { clusters, fill }),
        ..Options::default()
    }
}

const TWO: Clusters = Clusters::HotAndCold {
    hot_segments: 12,
    cold_segments: 24,
};

type Model = BTreeMap<u64, u64>;

fn load(db: &Db, keys: u64) -> Model {
    let mut model = Model::new();
    for chunk in (0..keys).collect::<Vec<_>>().chunks(1000) {
        let mut batch = Batch::new();
        for key in chunk {
            batch.put(&key.to_be_bytes(), &(key * 100).to_le_bytes());
            model.insert(*key, key * 100);
        }
        db.write(&batch, Durability::Relaxed).unwrap();
    }
    model
}

/// Makes insertions and deletions in equal numbers, two thirds of them in the lower third of the
/// keys.
fn change(db: &Db, model: &mut Model, changes: u64, keys: u64) {
    let mut draw = Draw::new(7);
    for number in 0..changes {
        let key = match draw.below(3) {
            0 => keys / 3 + draw.below(keys / 3 * 2),
            _ => draw.below(keys / 3),
        };
        let mut batch = Batch::new();
        if draw.once_in(2) {
            batch.put(&key.to_be_bytes(), &number.to_le_bytes());
            model.insert(key, number);
        } else {
            batch.delete(&key.to_be_bytes());
            model.remove(&key);
        }
        db.write(&batch, Durability::Relaxed).unwrap();
    }
}

fn content(db: &Db) -> Model {
    let mut all = Model::new();
    let mut rows = db.scan((Bound::Unbounded, Bound::Unbounded));
    while let Some((key, value)) = rows.next().unwrap() {
        let number = |bytes: &[u8]| bytes.try_into().unwrap();
        all.insert(
            u64::from_be_bytes(number(key)),
            u64::from_le_bytes(number(value)),
        );
    }
    all
}

#[test]
fn an_index_under_the_papers_rules_has_what_a_map_has_also_when_it_is_opened_again() {
    for clusters in [TWO, Clusters::One { segments: 36 }] {
        let disk = Disk::default();
        let options = options(clusters, 0.69);
        let db = Db::create(disk.clone(), 1, &options).unwrap();
        let mut model = load(&db, 60_000);
        change(&db, &mut model, 10_000, 60_000);
        assert_eq!(content(&db), model, "{clusters:?}");
        assert!(
            db.statistics().maintenance.cleaned_segments > 0,
            "{clusters:?}"
        );
        assert_eq!(
            db.statistics().delta_bytes,
            0,
            "changes are in nodes at once"
        );
        db.sync().unwrap();
        drop(db);
        let db = Db::open(disk.clone(), &options).unwrap();
        assert_eq!(content(&db), model, "{clusters:?}");
        change(&db, &mut model, 1_000, 60_000);
        assert_eq!(content(&db), model, "{clusters:?}");
        db.checkpoint().unwrap();
        drop(db);
        let verified = verify(&disk, &mut |_, _| {}).unwrap();
        assert!(verified.problems.is_empty(), "{:?}", verified.problems);
    }
}

/// Finds every image of a node on a disk, live or not.
fn images(disk: &Disk) -> Vec<(u8, usize, usize)> {
    let content = disk.content();
    let mut images = Vec::new();
    let mut at = 0;
    while at < content.len() {
        let peek = Image::peek(&content[at..]);
        let image = peek.filter(|peek| at + peek.len_bytes <= content.len());
        let image = image.and_then(|peek| {
            let bytes = content[at..at + peek.len_bytes].to_vec();
            Image::parse(&bytes, peek.seal).ok()
        });
        match image {
            Some(image) => {
                images.push((image.level(), image.rows(), image.bytes().len()));
                at += image.bytes().len();
            }
            None => at += 64,
        }
    }
    images
}

#[test]
fn a_plain_tree_has_nodes_of_one_length_and_is_loaded_as_full_as_it_was_asked_to_be() {
    for fill in [0.69, 0.97] {
        let disk = Disk::default();
        let db = Db::create(
            disk.clone(),
            1,
            &options(Clusters::One { segments: 100 }, fill),
        )
        .unwrap();
        load(&db, 60_000);
        db.checkpoint().unwrap();
        let images = images(&disk);
        assert!(images.iter().all(|(_, _, bytes)| *bytes == NODE_BYTES));
        // A node has room for (4096 - 64) / 16 rows with a key of 8 bytes and a value of 8 bytes.
        let rows = (252.0 * fill) as usize;
        let leaves = db.statistics().nodes as usize;
        let expected = 60_000 / rows;
        assert!(
            leaves.abs_diff(expected) <= expected / 20,
            "{leaves} nodes, {expected} expected"
        );
    }
}

#[test]
fn of_a_chc_tree_hot_leaves_alone_are_not_packed_and_clusters_keep_to_their_sizes() {
    let disk = Disk::default();
    let options = options(TWO, 0.69);
    let db = Db::create(disk.clone(), 1, &options).unwrap();
    let mut model = load(&db, 60_000);
    assert_eq!(
        db.statistics().space.hot_segments,
        0,
        "nothing has changed yet"
    );
    change(&db, &mut model, 20_000, 60_000);
    let space = db.statistics().space;
    assert!((1..=12).contains(&space.hot_segments), "{space:?}");
    assert!(space.used_segments <= 36, "{space:?}");
    db.checkpoint().unwrap();
    let images = images(&disk);
    let (plain, packed): (Vec<_>, Vec<_>) = images
        .iter()
        .partition(|(_, _, bytes)| *bytes == NODE_BYTES);
    assert!(!plain.is_empty() && !packed.is_empty());
    assert!(
        plain.iter().all(|(level, _, _)| *level == 0),
        "inner nodes are packed"
    );
    // A packed leaf must not have more rows than fit into an unpacked one.
    assert!(
        images
            .iter()
            .all(|(level, rows, _)| *level > 0 || *rows <= 252)
    );
}

#[test]
fn every_node_on_the_way_is_read_each_time() {
    let options = options(Clusters::One { segments: 100 }, 0.69);
    let db = Db::create(Disk::default(), 1, &options).unwrap();
    load(&db, 60_000);
    db.checkpoint().unwrap();
    for _ in 0..2 {
        let before = db.statistics().image_reads;
        assert!(db.get(&30_000u64.to_be_bytes()).unwrap().is_some());
        // The index has 60,000 / 173 leaves, more than the 336 children of one inner node, so it
        // has two levels of inner nodes. A get therefore reads 3 images.
        assert_eq!(db.statistics().image_reads - before, 3);
    }
    assert_eq!(db.statistics().content_bytes, 0);
}

#[test]
fn rules_that_cannot_be_are_refused() {
    let few = Clusters::HotAndCold {
        hot_segments: 3,
        cold_segments: 24,
    };
    for options in [
        options(few, 0.69),
        options(TWO, 0.4),
        options(TWO, f64::NAN),
    ] {
        let refused = Db::create(Disk::default(), 1, &options).err();
        assert!(matches!(
            refused,
            Some(Error::Option {
                option: "paper",
                ..
            })
        ));
    }
}
