//! Tests of the file layer above a real queue: the numbers of bios in small scenarios are compared
//! with numbers computed by hand.

use std::rc::Rc;

use bimetal_block::layers::queue::{QueueConfig, QueueLayer};
use bimetal_block::media::null::NullDevice;
use bimetal_lab::files::{CpuCosts, FileSystemKind, Files, FilesConfig, Program};
use bimetal_policy::scheduler::QueueCounters;
use bimetal_policy::write_back::WriteMode;
use bimetal_rt::{Rt, VirtualOptions};

const MIB: u64 = 1 << 20;

struct Bench {
    rt: Rt,
    queue: Rc<QueueLayer>,
    files: Files,
}

impl Bench {
    /// Creates a file layer on a device of 1 GiB that completes requests immediately.
    fn new(config: FilesConfig) -> Bench {
        let rt = Rt::virtual_time(VirtualOptions {
            seed: 1,
            shuffle: false,
        });
        let below = Rc::new(NullDevice::new(&rt, 1 << 30));
        let queue: QueueConfig =
            toml::from_str("below = 'd'\nscheduler = 'noop'\ntags = 8192").unwrap();
        let queue = Rc::new(QueueLayer::new(&rt, below, &queue).unwrap());
        let files = Files::new(&rt, Rc::clone(&queue), config);
        Bench { rt, queue, files }
    }

    /// Returns the numbers of read bios and write bios that `story` causes.
    fn bios(&self, story: impl AsyncFnOnce(&Files, &mut Program)) -> (u64, u64) {
        let QueueCounters { reads, writes } = self.queue.counts();
        self.rt.block_on(async {
            let mut program = Program::new(0);
            story(&self.files, &mut program).await;
        });
        let now = self.queue.counts();
        (now.reads.bios - reads.bios, now.writes.bios - writes.bios)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.rt.end();
    }
}

fn config(kind: FileSystemKind) -> FilesConfig {
    FilesConfig {
        kind,
        memory_pages: 65_536,
        read_ahead_pages: 32,
        write_mode: WriteMode::Back,
        barriers: false,
        cpu: CpuCosts::default(),
    }
}

/// The scenario has one directory, and one file of 256 pages. Six metadata blocks change: the group
/// table, both bitmaps, the inode block, the directory block and the indirect block. The first
/// three must be read before they are changed. The indirect block separates the data pages 0 to 11
/// from the pages 12 to 255. Ext2 writes these two ranges in 1 and 2 bios of up to 128 pages. Ext3
/// writes all pages in 256 bios of one page, and its journal adds a descriptor, the six blocks, and
/// the commit block.
#[test]
fn a_file_is_written_in_long_bios_or_page_by_page() {
    for (kind, expected) in [
        (FileSystemKind::Ext2, (3, 3 + 6)),
        (FileSystemKind::Ext3, (3, 256 + 8 + 6)),
    ] {
        let bench = Bench::new(config(kind));
        let bios = bench.bios(async |files, program| {
            let directory = files.make_directory(program).await.unwrap();
            let file = files.create(directory, program).await.unwrap().file();
            files.write(file, 0, MIB, program).await.unwrap();
            files.sync(program).await;
        });
        assert_eq!(bios, expected, "{kind:?}");
    }
}

/// A sequential read of 32 MiB has read-ahead windows of 4, 8 and 16 pages, and then 256 windows of
/// 32 pages. An indirect block precedes page 12 and every 1,024th page after it, which splits 7 of
/// the windows; page 12 splits no window, because a window starts there. 10 bios read metadata: the
/// directory block, the inode block, and 8 indirect blocks. Without read-ahead, 8,192 bios read the
/// data.
#[test]
fn a_file_is_read_in_windows_or_page_by_page() {
    for (read_ahead_pages, expected) in [(32, 3 + 256 + 7 + 10), (0, 8192 + 10)] {
        let bench = Bench::new(FilesConfig {
            read_ahead_pages,
            ..config(FileSystemKind::Ext2)
        });
        let mut written = None;
        bench.bios(async |files, program| {
            let directory = files.make_directory(program).await.unwrap();
            let file = files.create(directory, program).await.unwrap().file();
            files.write(file, 0, 32 * MIB, program).await.unwrap();
            files.sync(program).await;
            files.drop_caches();
            written = Some(file);
        });
        let (reads, writes) = bench.bios(async |files, program| {
            let mut open = files.open(written.unwrap(), program).await;
            for page in 0..8192 {
                files.read(&mut open, page * 4096, 4096, program).await;
            }
            files.sync(program).await;
        });
        assert_eq!((reads, writes), (expected, 0), "{read_ahead_pages}");
    }
}

/// A page whose file is removed before the page is written is never written. The 256 pages and the
/// indirect block of the file are dropped, and the other five changed metadata blocks are written.
#[test]
fn what_is_removed_in_time_is_never_written() {
    let bench = Bench::new(config(FileSystemKind::Ext2));
    let bios = bench.bios(async |files, program| {
        let directory = files.make_directory(program).await.unwrap();
        let file = files.create(directory, program).await.unwrap().file();
        files.write(file, 0, MIB, program).await.unwrap();
        files.remove(file, program).await;
        files.sync(program).await;
    });
    assert_eq!(bios, (3, 5));
}

/// A file of 6,000 bytes has one page of data, and a tail in a leaf of the tree. The changed
/// metadata blocks are the bitmap, the directory block, the leaf, and the inner node above the
/// leaf. A commit adds a descriptor and a commit block. A file of 20,000 bytes has five pages and
/// no tail.
#[test]
fn small_files_have_their_tails_in_the_tree() {
    for (bytes, pages) in [(6_000, 1), (20_000, 5)] {
        let bench = Bench::new(config(FileSystemKind::Reiserfs));
        let bios = bench.bios(async |files, program| {
            let directory = files.make_directory(program).await.unwrap();
            let file = files.create(directory, program).await.unwrap().file();
            files.write(file, 0, bytes, program).await.unwrap();
            files.sync(program).await;
        });
        assert_eq!(bios, (1, pages + (1 + 4 + 1) + 4), "{bytes}");
    }
}

/// With write-through, the data and the inode block of each of four writes are on the device when
/// the write returns. With write-back, nothing is on the device before the sync.
#[test]
fn a_write_through_is_on_the_device_when_it_returns() {
    for (write_mode, expected) in [(WriteMode::Through, 4 * 2), (WriteMode::Back, 0)] {
        let bench = Bench::new(FilesConfig {
            write_mode,
            ..config(FileSystemKind::Ext2)
        });
        let mut made = None;
        bench.bios(async |files, program| {
            let directory = files.make_directory(program).await.unwrap();
            made = Some(files.create(directory, program).await.unwrap().file());
        });
        let (_, writes) = bench.bios(async |files, program| {
            for page in 0..4 {
                let file = made.unwrap();
                files.write(file, page * 4096, 4096, program).await.unwrap();
            }
        });
        assert_eq!(writes, expected, "{write_mode:?}");
    }
}

/// On every file system, a file that is sixteen times as large as memory can be written, and all of
/// it reaches the device.
#[test]
fn memory_is_bounded() {
    for (_, kind) in FileSystemKind::ALL {
        let bench = Bench::new(FilesConfig {
            memory_pages: 1024,
            ..config(kind)
        });
        bench.bios(async |files, program| {
            let directory = files.make_directory(program).await.unwrap();
            let mut open = files.create(directory, program).await.unwrap();
            let file = open.file();
            for chunk in 0..64 {
                files.write(file, chunk * MIB, MIB, program).await.unwrap();
            }
            for chunk in 0..64 {
                files.read(&mut open, chunk * MIB, MIB, program).await;
            }
            files.sync(program).await;
            assert_eq!(files.size_bytes(file), 64 * MIB);
        });
        let QueueCounters { reads, writes } = bench.queue.counts();
        for counts in [reads, writes] {
            assert_eq!(counts.issued + counts.merges(), counts.bios + counts.splits);
        }
        let (_, read_bytes, written_bytes) = bench.files.device_traffic();
        assert!(
            written_bytes >= 64 * MIB && read_bytes >= 63 * MIB,
            "{kind:?}"
        );
    }
}

/// A write to a full device fails with an error.
#[test]
fn a_full_device_refuses() {
    for (_, kind) in FileSystemKind::ALL {
        let bench = Bench::new(config(kind));
        bench.bios(async |files, program| {
            let directory = files.make_directory(program).await.unwrap();
            let file = files.create(directory, program).await.unwrap().file();
            assert!(files.write(file, 0, 1 << 30, program).await.is_err());
        });
    }
}
