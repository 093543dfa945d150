//! A virtual file layer: programs create, read, write and remove files, and the layer sends the
//! bios of a file system to the device below.
//!
//! The layer consists of a page cache with Linux's read-ahead and write-back (decided by
//! [`bimetal_policy`]), the layout of one of three file systems, and a journal if the file system
//! has one. Below the layer is the real `queue` layer of the stack. Pages have no content: the
//! layer models only the cost of an access, so no caller may request data from the layer.
//! `docs/lab.md` describes the rules, and their simplifications compared with a kernel.

mod disk;
mod journal;
mod layout;
mod pages;
mod reading;
mod space;
mod touch;
mod tree;
mod writing;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::IoError;
use bimetal_block::layers::queue::QueueLayer;
use bimetal_policy::read_ahead::ReadAhead;
use bimetal_policy::write_back::{WriteBack, WriteBackParameters, WriteMode};
use bimetal_rt::Rt;
use bimetal_rt::sync::Event;

use crate::latency::Latencies;
use disk::Disk;
use journal::Journal;
use layout::FileSystemLayout;
use pages::{METADATA, PageCache, PageState};
use touch::{Full, Touch};

pub use layout::FileSystemKind;
pub use pages::FileId;

/// Task number of journal commits, for schedulers that distinguish tasks.
const JOURNAL_TASK: u32 = 1;
/// Task number of the flusher, which writes dirty pages on behalf of all programs.
const FLUSHER_TASK: u32 = 0;
/// Task number of the first program of a workload.
pub const FIRST_TASK: u32 = 2;

/// CPU time of the calls of a program, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuCosts {
    /// CPU time of a call that reads or writes.
    pub call_ns: u64,
    /// CPU time of finding and copying one page in a call that reads or writes.
    pub page_ns: u64,
    /// CPU time of a call with a file name: open, create, remove.
    pub name_ns: u64,
    /// CPU time that a program spends on one character that it reads or writes individually.
    pub character_ns: u64,
}

impl CpuCosts {
    /// No modelled CPU time, for runs with a real clock, which already includes the CPU time.
    pub const NONE: CpuCosts = CpuCosts {
        call_ns: 0,
        page_ns: 0,
        name_ns: 0,
        character_ns: 0,
    };
}

impl Default for CpuCosts {
    /// Returns the CPU times on a processor of 2.4 GHz: about 5,000 cycles for a call, 4,000 for a
    /// page, 24,000 for a name, and 30 for a character.
    fn default() -> CpuCosts {
        CpuCosts {
            call_ns: 2_000,
            page_ns: 1_600,
            name_ns: 10_000,
            character_ns: 12,
        }
    }
}

/// Configuration of a file layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesConfig {
    /// Kind of file system, which determines the layout and the journal.
    pub kind: FileSystemKind,
    /// Size of the page cache in pages.
    pub memory_pages: u32,
    /// Maximum read-ahead window in pages; 0 disables read-ahead.
    pub read_ahead_pages: u64,
    /// When written data must reach the device.
    pub write_mode: WriteMode,
    /// Whether commits, syncs and write-through writes flush the cache of the device.
    pub barriers: bool,
    /// CPU times of the calls of programs.
    pub cpu: CpuCosts,
}

/// Error of an operation for which the device has no free block or inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device is too small for the workload")]
pub struct NoSpace;

impl From<Full> for NoSpace {
    fn from(_: Full) -> NoSpace {
        NoSpace
    }
}

/// A program of a workload, and its accumulated CPU time that the clock does not include yet.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    task: u32,
    owed_ns: u64,
}

impl Program {
    /// Creates program number `number` of a workload, counted from 0.
    pub fn new(number: u32) -> Program {
        Program {
            task: FIRST_TASK + number,
            owed_ns: 0,
        }
    }

    /// Returns the task number of the program.
    pub(crate) fn task(&self) -> u32 {
        self.task
    }
}

/// A file that is open for one reader.
#[derive(Clone, Debug)]
pub struct OpenFile {
    file: FileId,
    ahead: ReadAhead,
}

impl OpenFile {
    /// Returns the number of the file.
    pub fn file(&self) -> FileId {
        self.file
    }
}

/// CPU time in ns that a program accumulates before it sleeps for the accumulated time. Below this
/// amount the program does not sleep, so an access to a page in memory needs no timer.
const PAID_AT_ONCE_NS: u64 = 200_000;

/// Virtual file layer; see the module. Clones refer to the same file system.
#[derive(Clone)]
pub struct Files(Rc<Inner>);

struct Inner {
    rt: Rt,
    config: FilesConfig,
    disk: Disk,
    cache: RefCell<PageCache>,
    layout: RefCell<FileSystemLayout>,
    write_back: RefCell<WriteBack>,
    journal: Option<RefCell<Journal>>,
    /// Signalled when pages have been read or written, and when a commit begins or ends.
    changed: Event,
    flusher: Event,
    flusher_wanted: Cell<bool>,
    committer: Event,
    commit_wanted: Cell<bool>,
}

impl Files {
    /// Creates an empty file system on the device below `queue`. The caller must not use the device
    /// in any other way.
    pub fn new(rt: &Rt, queue: Rc<QueueLayer>, config: FilesConfig) -> Files {
        let disk = Disk::new(rt, queue);
        let layout = FileSystemLayout::new(config.kind, disk.blocks());
        let ring = layout.journal();
        let journal = match config.kind {
            FileSystemKind::Ext2 => None,
            FileSystemKind::Ext3 => Some(Journal::new(ring, usize::MAX)),
            FileSystemKind::Reiserfs => Some(Journal::new(ring, REISERFS_TRANSACTION_BLOCKS)),
        };
        let parameters =
            WriteBackParameters::for_memory(u64::from(config.memory_pages), PROCESSORS);
        let inner = Inner {
            rt: rt.clone(),
            cache: RefCell::new(PageCache::new(config.memory_pages)),
            layout: RefCell::new(layout),
            write_back: RefCell::new(WriteBack::new(parameters)),
            journal: journal.map(RefCell::new),
            config,
            disk,
            changed: Event::new(),
            flusher: Event::new(),
            flusher_wanted: Cell::new(false),
            committer: Event::new(),
            commit_wanted: Cell::new(false),
        };
        let files = Files(Rc::new(inner));
        // These tasks end only with the runtime. The creator of the file layer must end the runtime
        // after it has read the counters.
        rt.spawn(files.clone().flush_when_woken()).detach();
        rt.spawn(files.clone().flush_by_timer()).detach();
        if files.0.journal.is_some() {
            rt.spawn(files.clone().commit_by_timer()).detach();
        }
        files
    }

    /// Returns the number of flushes, of bytes read from the device, and of bytes written to the
    /// device so far.
    pub fn device_traffic(&self) -> (u64, u64, u64) {
        let counts = self.0.disk.counts();
        (counts.flushes, counts.read_bytes, counts.written_bytes)
    }

    /// Returns the latencies of the bios sent to the device.
    pub fn device_latencies(&self) -> Latencies {
        self.0.disk.latencies()
    }

    /// Waits until the device has no request in flight.
    pub(crate) async fn until_idle(&self) {
        self.0.disk.until_idle().await;
    }

    /// Returns the first error of the device, if there is one. After an error, no result is
    /// meaningful.
    pub fn device_failure(&self) -> Option<IoError> {
        self.0.disk.failure()
    }

    /// Returns the size of the device in blocks of 4 KiB.
    pub fn device_blocks(&self) -> u32 {
        self.0.disk.blocks()
    }

    /// Reads blocks of the device directly, bypassing the file system.
    pub async fn read_device(&self, block: u32, blocks: u32, program: &mut Program) {
        self.spend(program, self.0.config.cpu.call_ns).await;
        self.pay(program).await;
        self.0.disk.read(block, blocks, program.task).await;
    }

    /// Writes blocks of the device directly, which overwrites any content of the file system.
    pub async fn write_device(&self, block: u32, blocks: u32, program: &mut Program) {
        self.spend(program, self.0.config.cpu.call_ns).await;
        self.pay(program).await;
        self.0.disk.write(block, blocks, program.task).await;
    }

    /// Returns the CPU time in ns that a program spends on one character that it reads or writes
    /// individually.
    pub fn character_ns(&self) -> u64 {
        self.0.config.cpu.character_ns
    }

    /// Charges the program with `ns` of CPU time. Waits only if the accumulated CPU time has
    /// reached `PAID_AT_ONCE_NS`.
    pub async fn spend(&self, program: &mut Program, ns: u64) {
        program.owed_ns += ns;
        if program.owed_ns >= PAID_AT_ONCE_NS {
            self.pay(program).await;
        }
    }

    /// Sleeps for the CPU time that the program has accumulated, so that the clock includes this
    /// time.
    pub async fn pay(&self, program: &mut Program) {
        let ns = std::mem::take(&mut program.owed_ns);
        if ns > 0 {
            self.0.rt.sleep(Duration::from_nanos(ns)).await;
        }
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// If the device is full.
    pub async fn make_directory(&self, program: &mut Program) -> Result<u32, NoSpace> {
        self.spend(program, self.0.config.cpu.name_ns).await;
        self.until_journal_has_room().await;
        let mut touches = Vec::new();
        let directory = self.0.layout.borrow_mut().make_directory(&mut touches)?;
        self.touch_all(touches, program).await;
        Ok(directory)
    }

    /// Creates an empty file in a directory.
    ///
    /// # Errors
    /// If the device is full.
    pub async fn create(&self, directory: u32, program: &mut Program) -> Result<OpenFile, NoSpace> {
        self.spend(program, self.0.config.cpu.name_ns).await;
        self.until_journal_has_room().await;
        let mut touches = Vec::new();
        let file = self.0.layout.borrow_mut().create(directory, &mut touches)?;
        self.touch_all(touches, program).await;
        if self.0.config.write_mode == WriteMode::Through {
            self.sync_metadata(file, program).await;
        }
        Ok(self.opened(file))
    }

    /// Opens a file for a reader whose access pattern is not known yet.
    pub async fn open(&self, file: FileId, program: &mut Program) -> OpenFile {
        self.spend(program, self.0.config.cpu.name_ns).await;
        let mut touches = Vec::new();
        self.0.layout.borrow().look_up(file, &mut touches);
        self.touch_all(touches, program).await;
        self.opened(file)
    }

    fn opened(&self, file: FileId) -> OpenFile {
        OpenFile {
            file,
            ahead: ReadAhead::new(self.0.config.read_ahead_pages),
        }
    }

    /// Returns the length of a file in bytes.
    pub fn size_bytes(&self, file: FileId) -> u64 {
        self.0.layout.borrow().size_bytes(file)
    }

    /// Removes a file. Dirty pages of the file that are not being written yet are never written.
    pub async fn remove(&self, file: FileId, program: &mut Program) {
        self.spend(program, self.0.config.cpu.name_ns).await;
        self.until_journal_has_room().await;
        let mut touches = Vec::new();
        self.0.layout.borrow().look_up(file, &mut touches);
        let gone = self.0.layout.borrow_mut().remove(file, &mut touches);
        // While this program waits for memory, another one may have to write dirty pages, and the
        // pages of this file have no blocks any more.
        self.0.cache.borrow_mut().drop_file(file);
        if let Some(journal) = &self.0.journal {
            journal.borrow_mut().forget_file(file);
        }
        self.touch_all(touches, program).await;
        loop {
            self.0.cache.borrow_mut().drop_file(file);
            if !self.0.cache.borrow().is_under_way(file) {
                break;
            }
            let rest = || !self.0.cache.borrow().is_under_way(file);
            self.0.changed.until(rest).await;
        }
        if self.0.journal.is_none() {
            let mut cache = self.0.cache.borrow_mut();
            gone.iter()
                .for_each(|block| cache.drop_page(METADATA, *block));
        }
        self.0.layout.borrow_mut().forget(file);
        if self.0.config.write_mode == WriteMode::Through {
            self.sync_changed_metadata(program).await;
        }
    }

    /// Drops every clean page from the page cache, as between two passes of a benchmark.
    pub fn drop_caches(&self) {
        self.0.cache.borrow_mut().drop_clean();
    }

    /// Reads the metadata blocks of an operation into memory, and marks the blocks that the
    /// operation changes.
    async fn touch_all(&self, mut touches: Vec<Touch>, program: &mut Program) {
        touches.sort_by_key(|touch| (touch.block, !touch.is_new, !touch.changes));
        touches.dedup_by(|next, first| {
            let same = next.block == first.block;
            first.changes |= same && next.changes;
            same
        });
        for touch in touches {
            self.bring(touch, program).await;
            if touch.changes {
                self.change_metadata(touch.block);
            }
        }
    }

    fn change_metadata(&self, block: u32) {
        let held = self.0.journal.is_some();
        let now_ns = self.0.rt.now().as_ns();
        let mut cache = self.0.cache.borrow_mut();
        cache.change(METADATA, block, now_ns, held);
        if let Some(journal) = &self.0.journal {
            journal.borrow_mut().join(block);
        }
    }

    /// Waits until a block of metadata is in memory.
    async fn bring(&self, touch: Touch, program: &mut Program) {
        let block = touch.block;
        loop {
            let state = self.0.cache.borrow().state(METADATA, block);
            match state {
                Some(PageState::Reading) => self.until_read(METADATA, block).await,
                Some(_) => {
                    self.0.cache.borrow_mut().touch(METADATA, block);
                    return;
                }
                None if touch.is_new => {
                    if self.take_in(METADATA, block, PageState::Clean).await {
                        return;
                    }
                }
                None => {
                    self.pay(program).await;
                    if self.take_in(METADATA, block, PageState::Reading).await {
                        self.0.disk.read(block, 1, program.task).await;
                        self.0.cache.borrow_mut().has_been_read(METADATA, block);
                        self.0.changed.notify();
                    }
                }
            }
        }
    }

    async fn until_read(&self, file: FileId, page: u32) {
        let is_here = || self.0.cache.borrow().state(file, page) != Some(PageState::Reading);
        self.0.changed.until(is_here).await;
    }

    /// Adds a page to the cache, and waits while the cache has no room for it. Returns false if the
    /// page is already in the cache.
    async fn take_in(&self, file: FileId, page: u32, state: PageState) -> bool {
        loop {
            {
                let mut cache = self.0.cache.borrow_mut();
                if cache.state(file, page).is_some() {
                    return false;
                }
                if cache.insert(file, page, state) {
                    return true;
                }
            }
            self.wake_flusher();
            self.want_commit();
            let before = self.0.cache.borrow().counts();
            self.0
                .changed
                .until(|| self.0.cache.borrow().counts() != before)
                .await;
        }
    }

    fn wake_flusher(&self) {
        self.0.flusher_wanted.set(true);
        self.0.flusher.notify();
    }

    fn want_commit(&self) {
        self.0.commit_wanted.set(true);
        self.0.committer.notify();
    }
}

/// Number of processors of the modelled machine.
const PROCESSORS: u64 = 4;
/// Number of blocks from which a ReiserFS transaction is considered full and must be committed.
const REISERFS_TRANSACTION_BLOCKS: usize = 900;
