//! Tests of an index in a file of the operating system.

use bimetal_index::storage::Storage;
use bimetal_index::storage::file::{FileStorage, Presence};
use bimetal_index::{Batch, Db, Durability, Error, Options};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("bimetal-index-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn small() -> Options {
    Options {
        memory_bytes: 4 << 20,
        buffer_bytes: 1 << 20,
        log_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        ..Options::default()
    }
}

#[test]
fn what_was_written_is_there_when_the_file_is_opened_again() {
    let folder = Folder::new("again");
    let path = folder.0.join("db");
    let db = Db::open_path(&path, &small()).expect("a new index");
    let mut batch = Batch::new();
    for number in 0..20_000_u32 {
        batch.put(&number.to_be_bytes(), &number.to_le_bytes());
        if number % 100 == 99 {
            db.write(&batch, Durability::Relaxed).expect("a write");
            batch.clear();
        }
    }
    assert!(
        matches!(Db::open_path(&path, &small()), Err(Error::Open { .. })),
        "it is in use"
    );
    db.sync().expect("a sync");
    drop(db);
    let db = Db::open_path(&path, &small()).expect("it opens");
    for number in (0..20_000_u32).step_by(7) {
        let value = db.get(&number.to_be_bytes()).expect("a get");
        assert_eq!(value.as_deref(), Some(&number.to_le_bytes()[..]));
    }
    assert_eq!(db.statistics().snapshots.open, 0);
}

#[test]
fn a_file_that_is_no_index_is_not_touched() {
    let folder = Folder::new("foreign");
    let path = folder.0.join("letter.txt");
    let content = vec![b'x'; 200_000];
    std::fs::write(&path, &content).expect("a file");
    assert!(matches!(
        Db::open_path(&path, &small()),
        Err(Error::NotAnIndex { .. })
    ));
    assert_eq!(std::fs::read(&path).expect("the file"), content);
}

#[test]
fn space_is_set_aside_and_given_back() {
    let folder = Folder::new("space");
    let path = folder.0.join("db");
    let storage = FileStorage::open(&path, Presence::Any).expect("a file");
    storage.resize(8 << 20).expect("it grows");
    let metadata = std::fs::metadata(&path).expect("the file");
    assert_eq!(metadata.len(), 8 << 20);
    // On a file system without preallocation the new space is a hole, and `has_space` is false.
    let has_space = metadata.blocks() * 512 >= 8 << 20;
    storage.resize(1 << 20).expect("it shrinks");
    let after = std::fs::metadata(&path).expect("the file");
    assert_eq!((after.len(), storage.len_bytes()), (1 << 20, 1 << 20));
    assert!(!has_space || after.blocks() * 512 < 2 << 20);
}
