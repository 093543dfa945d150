//! Tests of an index on devices of the stack. On a mirror of two files, in real time, the index
//! must also be there when the volume is opened again. On a mirror of simulated drives, in virtual
//! time, every run must give the same result.

use crate::world::{Draw, Map, Shape, check_scan};
use bimetal_block::Device;
use bimetal_block::graph::{FormatOptions, Graph, OpenOptions, Stack, format, read_graph};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{self, Mirror, MirrorConfig, SideToOpen};
use bimetal_index::storage::device::{DeviceStorage, Opened};
use bimetal_index::storage::{Storage, StorageError};
use bimetal_index::{Db, Durability, Error, Options, verify};
use bimetal_rt::{Rt, UringOptions, VirtualOptions};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

const SHAPE: Shape = Shape {
    keys: 300,
    integers: false,
    long_values: true,
    ranges: true,
};

fn small() -> Options {
    Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 16 << 10,
        log_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 1024,
        ..Options::default()
    }
}

/// A folder that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("bimetal-index-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Scratch(folder)
    }

    /// Returns the configuration of a mirror of two files in the folder of the test.
    fn graph(&self) -> Graph {
        let text = "[device.a]\ntype = \"file\"\npath = \"a.img\"\nsize = \"32MiB\"\n\
                    [device.b]\ntype = \"file\"\npath = \"b.img\"\nsize = \"32MiB\"\n\
                    [device.vol]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\n\
                    layout = \"home\"\n";
        read_graph(&self.0.join("vol.toml"), text).expect("a configuration")
    }

    fn format(&self) {
        let rt = Rt::real_time(UringOptions::default()).expect("a runtime");
        let formatted = rt.block_on(format(&rt, &self.graph(), FormatOptions::default()));
        formatted.expect("the sides are fit");
    }

    fn volume(&self) -> DeviceStorage {
        let graph = self.graph();
        let open = async move |rt: &Rt| opened(rt, &graph).await;
        DeviceStorage::start(UringOptions::default(), open).expect("the volume opens")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The files of a failed test are not needed either.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn opened(rt: &Rt, graph: &Graph) -> Result<Opened, String> {
    let stack = Stack::open(rt, graph, &["vol"], &OpenOptions::default()).await;
    let stack = stack.map_err(|error| error.to_string())?;
    let device = Rc::clone(stack.get("vol").expect("it is the root"));
    let close = async move { stack.close().await.expect("the volume closes") };
    Ok(Opened {
        device,
        close: Box::pin(close),
    })
}

/// Writes batches, starting from the content `map`, and checks the content of the index. Returns
/// the new content.
fn fill(db: &Db, seed: u64, batches: u64, mut map: Map) -> Map {
    let mut draw = Draw::new(seed);
    for number in 0..batches {
        let changes = SHAPE.batch(&mut draw);
        let durability = draw.one_of(&[Durability::Durable, Durability::Relaxed]);
        let batch = bimetal_index::model::batch_of(&changes);
        db.write(&batch, durability).expect("a write");
        changes.iter().for_each(|change| change.make(&mut map));
        if number == batches / 2 {
            db.write_back().expect("a write-back");
        }
    }
    db.sync().expect("a sync");
    // Leaves must have been written and read, even if the last range deletion has left few of them.
    assert!(
        db.statistics().maintenance.consolidations > 20,
        "{:?}",
        db.statistics()
    );
    map
}

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

#[test]
fn an_index_on_a_mirror_of_files_is_there_when_the_volume_is_opened_again() {
    let scratch = Scratch::new("mirror");
    scratch.format();
    let mut map = Map::new();
    for life in 0..3 {
        let db = Db::open_or_create(scratch.volume(), &small()).expect("an index");
        check_scan(&db, &map, ALL).expect("a scan");
        map = fill(&db, life, 400, map);
        check_scan(&db, &map, ALL).expect("a scan");
    }
    let verified = verify(&scratch.volume(), &mut |_, _| {}).expect("an index");
    assert_eq!(verified.problems, []);
    assert!(verified.leaves > 0, "{verified:?}");
}

#[test]
fn threads_use_an_index_on_a_mirror_at_the_same_time() {
    let scratch = Scratch::new("threads");
    scratch.format();
    let db = Db::open_or_create(scratch.volume(), &small()).expect("an index");
    std::thread::scope(|scope| {
        for thread in 0u64..4 {
            let db = db.clone();
            scope.spawn(move || {
                for number in 0u64..50 {
                    let key = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    db.put(&key, &key).expect("a put");
                    assert_eq!(db.get(&key).expect("a get"), Some(key));
                }
            });
        }
    });
    let mut rows = db.scan(ALL);
    let mut count = 0;
    while rows.next().expect("a scan").is_some() {
        count += 1;
    }
    assert_eq!(count, 200);
}

#[test]
fn a_device_is_as_long_as_it_is() {
    let scratch = Scratch::new("length");
    scratch.format();
    let storage = Arc::new(scratch.volume());
    let len_bytes = storage.len_bytes();
    assert!((20 << 20..32 << 20).contains(&len_bytes), "{len_bytes}");
    assert_eq!(storage.resize(len_bytes), Ok(()));
    assert_eq!(storage.resize(len_bytes + 1), Err(StorageError::Full));
    let mut block = vec![0; 4096];
    assert_eq!(
        storage.read(len_bytes, &mut block),
        Err(StorageError::OutOfRange)
    );
    // A write that does not fit is refused, and the index continues to work.
    let db = Db::open_or_create(Arc::clone(&storage), &small()).expect("an index");
    let value = vec![7; 8000];
    let full = (0u64..10_000).find_map(|number| db.put(&number.to_be_bytes(), &value).err());
    assert!(matches!(full, Some(Error::Full { .. })), "{full:?}");
    assert_eq!(db.get(&0u64.to_be_bytes()), Ok(Some(value)));
}

#[test]
fn a_device_with_something_on_it_is_not_taken_for_an_index() {
    let scratch = Scratch::new("foreign");
    scratch.format();
    let storage = Arc::new(scratch.volume());
    let block = vec![1; 4096];
    storage.write_durable(64 << 10, &block).expect("a write");
    let refused = Db::open_or_create(Arc::clone(&storage), &small()).err();
    assert!(
        matches!(refused, Some(Error::NotAnIndex { .. })),
        "{refused:?}"
    );
}

/// Final state of a life on simulated drives in virtual time.
#[derive(Debug, PartialEq, Eq)]
struct Virtual {
    virtual_ns: u64,
    requests: u64,
    map: Map,
}

/// Makes a mirror of a simulated SSD and a simulated disk.
async fn modelled_mirror(rt: &Rt) -> Mirror {
    let text = "[device.fast]\ntype = \"memory\"\nsize = \"32MiB\"\n\
                [device.ssd]\ntype = \"ssd\"\nbelow = \"fast\"\nprofile = \"qlc-sata\"\n\
                [device.slow]\ntype = \"memory\"\nsize = \"32MiB\"\n\
                [device.hdd]\ntype = \"hdd\"\nbelow = \"slow\"\nprofile = \"hdd-7200\"\n";
    let graph = read_graph(Path::new("vol.toml"), text).expect("a configuration");
    let names = ["ssd", "hdd"];
    let stack = Stack::open(rt, &graph, &names, &OpenOptions::default()).await;
    let stack = stack.unwrap_or_else(|error| panic!("{error}"));
    let sides = names.map(|name| Candidate {
        name: name.to_owned(),
        device: Rc::clone(stack.get(name).expect("it is a root")),
    });
    let formatted = formatting::format(rt, "vol", &sides, &Formatting::with_homes()).await;
    formatted.unwrap_or_else(|error| panic!("{error}"));
    let there = sides.iter().map(|side| SideToOpen {
        name: side.name.clone(),
        device: Ok(Rc::clone(&side.device)),
    });
    let config = MirrorConfig::of(names.map(str::to_owned).to_vec());
    let options = mirror::OpenOptions::default();
    let opened = Mirror::open(rt, &config, there.collect(), &options).await;
    opened.unwrap_or_else(|error| panic!("{error}"))
}

fn live_virtually(seed: u64) -> Virtual {
    let (storage_sent, storage) = std::sync::mpsc::sync_channel(1);
    let shard = std::thread::spawn(move || {
        let rt = Rt::virtual_time(VirtualOptions {
            seed,
            shuffle: true,
        });
        let mirror = rt.block_on(modelled_mirror(&rt));
        let device: Rc<dyn Device> = Rc::new(mirror.clone());
        let (storage, serving) = DeviceStorage::new(device.geometry()).expect("a mailbox");
        storage_sent.send(storage).expect("somebody waits");
        serving.serve_virtually(&rt, &device);
        let closed = rt.block_on(mirror.close());
        closed.expect("the mirror closes");
        rt.now().as_ns()
    });
    let storage = Arc::new(storage.recv().expect("the device opens"));
    let db = Db::create(Arc::clone(&storage), 1, &small()).expect("an index");
    let map = fill(&db, seed, 200, Map::new());
    check_scan(&db, &map, ALL).expect("a scan");
    drop(db);
    let db = Db::open(Arc::clone(&storage), &small()).expect("it opens");
    check_scan(&db, &map, ALL).expect("a scan");
    let requests = db.statistics().image_reads;
    drop((db, storage));
    Virtual {
        virtual_ns: shard.join().expect("the shard ends"),
        requests,
        map,
    }
}

#[test]
fn in_virtual_time_a_life_on_a_mirror_of_drives_replays() {
    let first = live_virtually(5);
    assert_eq!(first, live_virtually(5));
    assert_ne!(first.virtual_ns, live_virtually(6).virtual_ns);
    // A hundred durable batches take time on the drives. Virtual time advances only by the time of
    // the drives.
    assert!(first.virtual_ns > 10_000_000, "{} ns", first.virtual_ns);
    assert!(!first.map.is_empty());
}
