//! The file layer over a real queue: the bios of small stories, counted by hand.

use std::rc::Rc;

use bimetal_block::layers::queue::{Queue, QueueConfig};
use bimetal_block::media::null::NullDevice;
use bimetal_lab::files::{CpuCosts, FileSystemKind, Files, FilesConfig, Program};
use bimetal_policy::scheduler::Counts;
use bimetal_policy::write_back::WriteMode;
use bimetal_rt::{Rt, VirtualOptions};

const MIB: u64 = 1 << 20;

struct Bench {
    rt: Rt,
    queue: Rc<Queue>,
    files: Files,
}

impl Bench {
    /// A device of 1 GiB that takes no time.
    fn new(config: FilesConfig) -> Bench {
        let rt = Rt::virtual_time(VirtualOptions {
            seed: 1,
            shuffle: false,
        });
        let below = Rc::new(NullDevice::new(&rt, 1 << 30));
        let queue: QueueConfig =
            toml::from_str("below = 'd'\nscheduler = 'noop'\nplaces = 8192").unwrap();
        let queue = Rc::new(Queue::new(&rt, below, &queue).unwrap());
        let files = Files::new(&rt, Rc::clone(&queue), config);
        Bench { rt, queue, files }
    }

    /// Bios of reads and of writes while `story` happens.
    fn bios(&self, story: impl AsyncFnOnce(&Files, &mut Program)) -> (u64, u64) {
        let Counts { reads, writes } = self.queue.counts();
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

/// One directory, one file of 256 pages. Metadata that changes: the table of groups, both bitmaps,
/// the block of inodes, the directory's block, the indirect block; of these, the first three are
/// read before. Data: pages 0 to 11, then, behind the indirect block, 12 to 255: 1, 1 and 1 bios of
/// up to 128 pages, or 256 single ones. With a journal: a descriptor, the six blocks, and the end.
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

/// 32 MiB in sequence: windows of 4, 8, 16 and then 256 of 32 pages, 7 of which are cut where an
/// indirect block begins (at 12 and 1,024 more each; the first of these is the start of a window).
/// Before that the directory's block, the inode's, and in between 8 indirect blocks. Page by page:
/// 8,192 and these.
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

/// What is removed before it is written never is: of the file's 256 pages and its indirect block
/// nothing is left, the other five blocks of metadata have changed.
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

/// A file of 6,000 bytes: one page of data, and its tail in the leaf. Metadata: the bitmap, the
/// directory's block, the leaf, and the node over it. A commit adds a descriptor and an end. 20,000
/// bytes are five pages without a tail.
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

/// Written through, each of four writes has its data, and the inode's block, on the device when it
/// returns; written back, nothing is there before the sync.
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

/// A file sixteen times as large as memory passes through it, on every file system, and everything
/// is on the device.
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
        let Counts { reads, writes } = bench.queue.counts();
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

/// A device that is full says so, and goes on.
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
