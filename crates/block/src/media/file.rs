//! A file or block device, by `io_uring`, around the page cache where the file system allows.
//!
//! Exclusive: the file is locked (`flock`) while it is open, so that two servers never write one
//! side. Never creates or grows a file; `bimetal format` does that, once, when asked to.

use std::path::PathBuf;
use std::time::Duration;

use bimetal_rt::turn::count_steps;
use bimetal_rt::uring::{File, OpenOptions};
use bimetal_rt::{Payload, Rt};
use serde::Deserialize;

use crate::device::{Device, IoFuture};
use crate::error::{IoError, OpenError};
use crate::extents::ExtentList;
use crate::geometry::Geometry;
use crate::request::{BLOCK_BYTES, Flags, IoResult, Op, Reply, Request};
use crate::units::Size;

/// The configuration of `type = "file"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// The file or block device; relative to the configuration file.
    pub path: PathBuf,
    /// The size `bimetal format` creates the file with when it does not exist.
    pub size: Option<Size>,
    /// Whether to bypass the page cache. By default it is bypassed where that is possible.
    pub direct: Option<bool>,
    /// Refuse every change.
    #[serde(default)]
    pub read_only: bool,
}

/// How long, and how often, a lock that is taken is tried again.
/// Looks for the next data or hole that one request takes, at most.
const LOOKS_MAX: usize = 64;
/// What a look counts for: it is two system calls, during which the thread does nothing else.
const LOOK_STEPS: u64 = 32;
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_RETRY: Duration = Duration::from_millis(20);

fn in_use(config: &FileConfig) -> OpenError {
    OpenError::new(format!(
        "{}: in use by another process (its lock is taken)",
        config.path.display()
    ))
}

/// See the module.
pub struct FileDevice {
    rt: Rt,
    file: File,
    geometry: Geometry,
    direct: bool,
}

impl FileDevice {
    /// Opens and locks the file.
    ///
    /// # Errors
    /// When it is missing, in use, too small for one block, or cannot be opened.
    pub fn open(rt: &Rt, config: &FileConfig) -> Result<FileDevice, OpenError> {
        FileDevice::try_open(rt, config)?.ok_or_else(|| in_use(config))
    }

    /// As [`FileDevice::open`], with patience for the lock of a process that has just died: its
    /// ring lets go of the file only once the kernel has taken the ring down, which happens after
    /// the process is gone (50 ms were measured).
    ///
    /// # Errors
    /// As of `open`.
    pub async fn open_when_free(rt: &Rt, config: &FileConfig) -> Result<FileDevice, OpenError> {
        let deadline = rt.now() + LOCK_PATIENCE;
        loop {
            match FileDevice::try_open(rt, config)? {
                Some(device) => return Ok(device),
                None if rt.now() >= deadline => return Err(in_use(config)),
                None => rt.sleep(LOCK_RETRY).await,
            }
        }
    }

    /// The device, or `None` when another process holds the lock.
    fn try_open(rt: &Rt, config: &FileConfig) -> Result<Option<FileDevice>, OpenError> {
        let fail = |what: String| OpenError::new(format!("{}: {what}", config.path.display()));
        let write = !config.read_only;
        let open = |direct| File::open(rt, &config.path, OpenOptions { write, direct });
        let (file, direct) = match config.direct {
            Some(direct) => (open(direct), direct),
            None => match open(true) {
                // The file system has no direct I/O (EINVAL of open(2)).
                Err(e) if e.raw_os_error() == Some(22) => (open(false), false),
                result => (result, true),
            },
        };
        let file = file.map_err(|e| fail(format!("cannot open: {e}")))?;
        let locked = file
            .try_lock_exclusive()
            .map_err(|e| fail(format!("cannot lock: {e}")))?;
        if !locked {
            return Ok(None);
        }
        let size = file
            .size_bytes()
            .map_err(|e| fail(format!("cannot tell its size: {e}")))?;
        let size = size - size % BLOCK_BYTES;
        if size == 0 {
            return Err(fail("smaller than one block of 4 KiB".to_owned()));
        }
        let geometry = Geometry {
            writable: write,
            ..Geometry::of_size(size)
        };
        Ok(Some(FileDevice {
            rt: rt.clone(),
            file,
            geometry,
            direct,
        }))
    }

    /// True when the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    async fn run(&self, request: Request) -> IoResult {
        self.geometry.check(&request)?;
        match request.op {
            Op::Read => self.read(request.offset, request.len).await,
            Op::Write => {
                self.write(request.offset, request.payload, request.flags)
                    .await
            }
            Op::Flush => Ok(self.file.sync_data().await.map(|()| Reply::Done)?),
            Op::Discard => self.clear(&request, true).await,
            Op::WriteZeroes => self.clear(&request, !request.flags.keep_allocated).await,
            Op::Extents => self.extents(&request),
        }
    }

    async fn read(&self, offset: u64, len: u64) -> IoResult {
        let buf = self.rt.pool().alloc_now(len as usize);
        let (count, mut buf) = self.file.read_at(offset, buf).await;
        let mut filled = count?;
        while filled < buf.len() {
            // A short read inside the device: rare (a signal, a page boundary), so simply the rest.
            let rest = self.rt.pool().alloc_now(buf.len() - filled);
            let (count, rest) = self.file.read_at(offset + filled as u64, rest).await;
            let count = count?;
            if count == 0 {
                return Err(IoError::Medium);
            }
            buf[filled..filled + count].copy_from_slice(&rest[..count]);
            filled += count;
        }
        Ok(Reply::Data(buf.freeze().into()))
    }

    async fn write(&self, offset: u64, payload: Payload, flags: Flags) -> IoResult {
        let mut written = 0;
        while written < payload.len() {
            let rest = if written == 0 {
                payload.clone()
            } else {
                payload.slice(written..payload.len())
            };
            let count = self
                .file
                .write_at(offset + written as u64, rest, flags.fua)
                .await?;
            if count == 0 {
                return Err(IoError::NoSpace);
            }
            written += count;
        }
        Ok(Reply::Done)
    }

    async fn clear(&self, request: &Request, may_free: bool) -> IoResult {
        let (offset, len) = (request.offset, request.len);
        if len == 0 {
            return Ok(Reply::Done);
        }
        let attempt = if may_free {
            self.file.punch_hole(offset, len).await
        } else {
            self.file.zero_range(offset, len).await
        };
        match attempt.map_err(IoError::from) {
            Ok(()) => {}
            Err(IoError::Unsupported) => self.write_zeroes_by_hand(offset, len).await?,
            Err(e) => return Err(e),
        }
        if request.flags.fua {
            self.file.sync_data().await?;
        }
        Ok(Reply::Done)
    }

    /// For file systems that can neither punch nor zero.
    async fn write_zeroes_by_hand(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let zeroes = self.rt.pool().zeroed(len.min(1 << 20) as usize);
        let mut position = offset;
        while position < offset + len {
            let count = (offset + len - position).min(zeroes.len() as u64);
            let part = zeroes.slice(0..count as usize);
            self.write(position, part.into(), Flags::NONE).await?;
            position += count;
        }
        Ok(())
    }

    fn extents(&self, request: &Request) -> IoResult {
        let mut extents = ExtentList::new(request.extents_max);
        let mut position = request.offset;
        for _ in 0..LOOKS_MAX {
            if position >= request.end() || extents.is_full() {
                break;
            }
            count_steps(LOOK_STEPS);
            let (data, end) = self.file.run_at(position, self.geometry.size_bytes)?;
            // Runs end at file-system blocks, which may be smaller than ours.
            position = end.clamp(position + 1, request.end());
            extents.push_until(position - request.offset, request.len, data);
        }
        Ok(extents.or_one_block(request.len).into_reply())
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(self.run(request))
    }
}
