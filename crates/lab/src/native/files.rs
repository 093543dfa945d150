//! Real files on a mounted file system, and the blocks of a real device, as the file layer of a
//! load.
//!
//! File calls are ordinary system calls through the page cache. Calls on the device itself bypass
//! the page cache (`O_DIRECT`) and use io_uring. The layer computes file sizes from its own writes,
//! so that a load makes no system call to query sizes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bimetal_rt::real_time;
use bimetal_rt::{Buf, Payload, Rng, Rt};
use rustix::fs::Advice;

use super::programs::{Programs, Threads};
use crate::files::{FileId, Program};
use crate::layer::{FileLayer, LoadError};

/// Maximum number of bytes of one system call; longer calls are split.
const CALL_BYTES_MAX: u64 = 4 << 20;

/// The device itself, for loads that run without a file system.
pub(super) struct RawDevice {
    pub file: real_time::File,
    pub blocks: u32,
    /// Whether each write must be durable when it completes.
    pub write_through: bool,
}

/// Real files; see the module. Clones refer to the same files.
#[derive(Clone)]
pub(super) struct RealFiles(Rc<Inner>);

struct Inner {
    rt: Rt,
    root: PathBuf,
    device: Option<RawDevice>,
    programs: Programs,
    stop: Arc<AtomicBool>,
    /// Content that is used for all writes, generated from the seed.
    bytes: Arc<Vec<u8>>,
    payload: Buf,
    next: Cell<u32>,
    files: RefCell<BTreeMap<FileId, Known>>,
    /// For each program, the file that it opened last.
    last: RefCell<BTreeMap<u32, OpenFile>>,
}

#[derive(Clone, Copy)]
struct Known {
    directory: u32,
    size_bytes: u64,
}

/// An open file.
#[derive(Clone)]
pub(super) struct OpenFile {
    number: FileId,
    file: Arc<File>,
}

/// Parameters for the creation of a layer of real files.
pub(super) struct LayerParameters {
    /// The root of the mounted file system.
    pub root: PathBuf,
    /// The device, for loads without a file system.
    pub device: Option<RawDevice>,
    /// Whether the load has many programs, each of which needs a thread for its calls.
    pub has_many_programs: bool,
    /// Flag that is set when the run must stop.
    pub stop: Arc<AtomicBool>,
    /// Seed from which the content of writes is generated.
    pub seed: u64,
}

impl RealFiles {
    pub(super) fn new(rt: &Rt, place: LayerParameters) -> io::Result<RealFiles> {
        let mut bytes = vec![0; CALL_BYTES_MAX as usize];
        Rng::labelled(place.seed, "content").fill(&mut bytes);
        let programs = match place.has_many_programs {
            true => Programs::Many(Threads::new(rt)?),
            false => Programs::One,
        };
        let payload = match place.device {
            Some(_) => {
                // The memory of the buffer pool is aligned as the device requires.
                let mut own = rt.pool().alloc_now(CALL_BYTES_MAX as usize);
                own.copy_from_slice(&bytes);
                own.freeze()
            }
            None => rt.pool().zeroed(1),
        };
        Ok(RealFiles(Rc::new(Inner {
            rt: rt.clone(),
            root: place.root,
            device: place.device,
            programs,
            stop: place.stop,
            bytes: Arc::new(bytes),
            payload,
            next: Cell::new(1),
            files: RefCell::default(),
            last: RefCell::default(),
        })))
    }

    /// Closes every open file, so that the file system can be unmounted.
    pub(super) fn close(&self) {
        self.0.programs.close();
        self.0.last.borrow_mut().clear();
    }

    async fn call<T: Send + 'static>(
        &self,
        program: &Program,
        what: &str,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, LoadError> {
        self.go_on()?;
        let outcome = self.0.programs.call(program.task(), call).await;
        outcome.map_err(|source| failed(what, source))
    }

    fn go_on(&self) -> Result<(), LoadError> {
        match self.0.stop.load(Ordering::Relaxed) {
            true => Err(LoadError::Interrupted),
            false => Ok(()),
        }
    }

    fn number(&self) -> u32 {
        let number = self.0.next.get();
        self.0.next.set(number + 1);
        number
    }

    fn directory_path(&self, directory: u32) -> PathBuf {
        self.0.root.join(format!("d{directory}"))
    }

    fn path_of(&self, file: FileId) -> Result<PathBuf, LoadError> {
        let files = self.0.files.borrow();
        let known = files.get(&file);
        let known = known.ok_or_else(|| failed("open", io::ErrorKind::NotFound.into()))?;
        Ok(self
            .directory_path(known.directory)
            .join(format!("f{file}")))
    }

    fn remember(&self, open: &OpenFile, program: &Program) {
        let before = self
            .0
            .last
            .borrow_mut()
            .insert(program.task(), open.clone());
        drop(before);
    }

    /// Returns `file`, open for a write. Opens the file unless it is the file that the program
    /// opened last.
    async fn at_hand(&self, file: FileId, program: &mut Program) -> Result<OpenFile, LoadError> {
        let last = self.0.last.borrow().get(&program.task()).cloned();
        match last {
            Some(open) if open.number == file => Ok(open),
            _ => self.open(file, program).await,
        }
    }

    fn device(&self) -> Result<&RawDevice, LoadError> {
        let none = || failed("the device itself", io::ErrorKind::Unsupported.into());
        self.0.device.as_ref().ok_or_else(none)
    }
}

fn failed(what: &str, source: io::Error) -> LoadError {
    LoadError::Io {
        what: what.to_owned(),
        error: source,
    }
}

/// Splits a range into pieces of the maximum length of one system call.
fn pieces(offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..bytes).step_by(CALL_BYTES_MAX as usize);
    starts.map(move |at| (offset + at, CALL_BYTES_MAX.min(bytes - at)))
}

fn read_range(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; bytes.min(CALL_BYTES_MAX) as usize];
    for (at, length) in pieces(offset, bytes) {
        file.read_exact_at(&mut buffer[..length as usize], at)?;
    }
    Ok(())
}

fn forget_pages(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
}

impl FileLayer for RealFiles {
    type Open = OpenFile;

    fn device_blocks(&self) -> u32 {
        self.0.device.as_ref().map_or(0, |device| device.blocks)
    }

    async fn read_device(
        &self,
        block: u32,
        blocks: u32,
        _program: &mut Program,
    ) -> Result<(), LoadError> {
        self.go_on()?;
        let device = self.device()?;
        for (at, length) in pieces(u64::from(block) * 4096, u64::from(blocks) * 4096) {
            let buffer = self.0.rt.pool().alloc(length as usize).await;
            let (outcome, _) = device.file.read_at(at, buffer).await;
            whole(outcome, length).map_err(|source| failed("reading the device", source))?;
        }
        Ok(())
    }

    async fn write_device(
        &self,
        block: u32,
        blocks: u32,
        _program: &mut Program,
    ) -> Result<(), LoadError> {
        self.go_on()?;
        let device = self.device()?;
        for (at, length) in pieces(u64::from(block) * 4096, u64::from(blocks) * 4096) {
            let payload = Payload::from(self.0.payload.slice(0..length as usize));
            let outcome = device
                .file
                .write_at(at, payload, device.write_through)
                .await;
            whole(outcome, length).map_err(|source| failed("writing the device", source))?;
        }
        Ok(())
    }

    async fn use_characters(&self, count: u64, _program: &mut Program) {
        // Load each character separately, like a program that processes one character at a time.
        // `black_box` keeps the compiler from removing the loop.
        for character in self.0.bytes.iter().cycle().take(count as usize) {
            std::hint::black_box(*character);
        }
    }

    async fn pay(&self, _program: &mut Program) {}

    async fn make_directory(&self, program: &mut Program) -> Result<u32, LoadError> {
        let directory = self.number();
        let path = self.directory_path(directory);
        self.call(program, "making a directory", move || fs::create_dir(path))
            .await?;
        Ok(directory)
    }

    async fn create(&self, directory: u32, program: &mut Program) -> Result<OpenFile, LoadError> {
        let number = self.number();
        let known = Known {
            directory,
            size_bytes: 0,
        };
        self.0.files.borrow_mut().insert(number, known);
        let path = self.path_of(number)?;
        let make = move || {
            let options = &mut File::options();
            options.read(true).write(true).create_new(true).open(path)
        };
        let file = self.call(program, "making a file", make).await?;
        let open = OpenFile {
            number,
            file: Arc::new(file),
        };
        self.remember(&open, program);
        Ok(open)
    }

    async fn open(&self, file: FileId, program: &mut Program) -> Result<OpenFile, LoadError> {
        let path = self.path_of(file)?;
        let open = move || File::options().read(true).write(true).open(path);
        let opened = self.call(program, "opening a file", open).await?;
        let open = OpenFile {
            number: file,
            file: Arc::new(opened),
        };
        self.remember(&open, program);
        Ok(open)
    }

    fn file_of(&self, open: &OpenFile) -> FileId {
        open.number
    }

    fn size_bytes(&self, file: FileId) -> u64 {
        self.0
            .files
            .borrow()
            .get(&file)
            .map_or(0, |known| known.size_bytes)
    }

    async fn read(
        &self,
        open: &mut OpenFile,
        offset: u64,
        bytes: u64,
        program: &mut Program,
    ) -> Result<(), LoadError> {
        let length = self.size_bytes(open.number);
        let end = (offset + bytes).min(length);
        if offset >= end {
            return Ok(());
        }
        let file = Arc::clone(&open.file);
        let read = move || read_range(&file, offset, end - offset);
        self.call(program, "reading a file", read).await
    }

    async fn write(
        &self,
        file: FileId,
        offset: u64,
        bytes: u64,
        program: &mut Program,
    ) -> Result<(), LoadError> {
        let open = self.at_hand(file, program).await?;
        let content = Arc::clone(&self.0.bytes);
        let write = move || {
            for (at, length) in pieces(offset, bytes) {
                open.file.write_all_at(&content[..length as usize], at)?;
            }
            Ok(())
        };
        self.call(program, "writing a file", write).await?;
        if let Some(known) = self.0.files.borrow_mut().get_mut(&file) {
            known.size_bytes = known.size_bytes.max(offset + bytes);
        }
        Ok(())
    }

    async fn sync_file(&self, file: FileId, program: &mut Program) -> Result<(), LoadError> {
        let open = self.at_hand(file, program).await?;
        self.call(program, "syncing a file", move || open.file.sync_all())
            .await
    }

    async fn sync(&self, program: &mut Program) -> Result<(), LoadError> {
        let root = self.0.root.clone();
        let sync = move || Ok(rustix::fs::syncfs(File::open(root)?)?);
        self.call(program, "syncing the file system", sync).await
    }

    async fn remove(&self, file: FileId, program: &mut Program) -> Result<(), LoadError> {
        let path = self.path_of(file)?;
        {
            // Close the file before its removal: removing an open file costs more, and the kernel
            // frees its blocks only when the file is closed.
            let mut last = self.0.last.borrow_mut();
            if last
                .get(&program.task())
                .is_some_and(|open| open.number == file)
            {
                last.remove(&program.task());
            }
        }
        self.0.files.borrow_mut().remove(&file);
        self.call(program, "removing a file", move || fs::remove_file(path))
            .await
    }

    fn drop_caches(&self) -> Result<(), LoadError> {
        let files: Vec<FileId> = self.0.files.borrow().keys().copied().collect();
        for file in files {
            let path = self.path_of(file)?;
            forget_pages(&path).map_err(|source| failed("forgetting pages", source))?;
        }
        Ok(())
    }
}

/// Converts the result of a call to an error if fewer than `bytes` bytes were transferred.
fn whole(outcome: io::Result<usize>, bytes: u64) -> io::Result<()> {
    match outcome? as u64 == bytes {
        true => Ok(()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
