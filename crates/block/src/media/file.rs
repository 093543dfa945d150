//! A file or block device, accessed by `io_uring`, and with direct I/O if the file system supports
//! it.
//!
//! Access is exclusive: the file or device is claimed ([`crate::disk::claim`]) while it is open, so
//! that two servers never write to one side and no process mounts it. This medium never creates or
//! grows a file; `bimetal format` does that, once, on request.

use std::fs::Metadata;
use std::io::{Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use bimetal_rt::buf::BLOCK_BYTES_MAX;
use bimetal_rt::real_time::{File, OpenOptions};
use bimetal_rt::turn::count_steps;
use bimetal_rt::{Buf, Payload, Rt};
use futures_util::future::try_join_all;
use serde::Deserialize;

use crate::device::{Device, IoFuture};
use crate::disk::claim::Claim;
use crate::disk::failure;
use crate::disk::limits::Limits;
use crate::disk::locker::{self, Locker};
use crate::disk::{System, place, usage};
use crate::error::{IoError, OpenError};
use crate::extents::ExtentList;
use crate::geometry::{Geometry, TRANSFER_BYTES_MAX};
use crate::request::{BLOCK_BYTES, Flags, IoResult, Op, Reply, Request};
use crate::units::Size;

/// The configuration of `type = "file"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// Path of the file or block device; relative to the configuration file.
    pub path: PathBuf,
    /// Size with which `bimetal format` creates a missing file.
    #[serde(default, deserialize_with = "crate::units::device_size_if_any")]
    pub size: Option<Size>,
    /// Whether to bypass the page cache. The default is to bypass it if possible.
    pub direct: Option<bool>,
    /// Whether every change of the content is refused.
    #[serde(default)]
    pub read_only: bool,
    /// Whether the device has moving heads. This key and the following keys down to `zoned`
    /// override the values that the kernel reports.
    pub rotational: Option<bool>,
    /// Physical block size of the device.
    pub physical_block: Option<Size>,
    /// Preferred request size of the device.
    pub optimal_io: Option<Size>,
    /// Whether the device can zero ranges without receiving zeroes.
    pub zeroing: Option<bool>,
    /// Whether discards are sent to the device.
    pub discards: Option<bool>,
    /// Whether the device has zones that only accept sequential writes.
    pub zoned: Option<bool>,
    /// Permits a size that is not a multiple of 4 KiB. The bytes after the last whole block are
    /// then not accessible.
    #[serde(default)]
    pub drop_tail: bool,
}

/// Maximum number of searches for the next data or hole that one extents request makes.
const LOOKS_MAX: usize = 64;
/// Cost of one search for data or a hole, in the steps that [`count_steps`] counts. The cost is
/// high, because a search makes two system calls, which block the thread.
const LOOK_STEPS: u64 = 32;
/// Time for which opening is retried while another process has locked the file.
/// `LOCK_PATIENCE_OF_DEAD` applies if that process has already ended, and `LOCK_RETRY` is the pause
/// between attempts.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PATIENCE_OF_DEAD: Duration = Duration::from_secs(30);
const LOCK_RETRY: Duration = Duration::from_millis(20);
/// `EINVAL` and `EBUSY` of open(2).
const INVALID: i32 = 22;
const BUSY: i32 = 16;
/// `EOPNOTSUPP` of fallocate(2).
const NOT_SUPPORTED: i32 = 95;
/// Largest plausible physical block size; a larger reported value is ignored as a mistake of the
/// device.
const PHYSICAL_BYTES_MAX: u64 = 1 << 20;

/// Properties of a file or block device, determined before it is opened for service.
#[derive(Clone, Debug)]
pub struct Looked {
    /// Geometry that the open device will have.
    pub geometry: Geometry,
    /// Limits from the kernel, with the overrides of the configuration applied.
    pub limits: Limits,
    /// Whether discards are sent to the device.
    pub discards: bool,
    found: Metadata,
}

impl Looked {
    /// Returns true for a block device.
    pub fn is_device(&self) -> bool {
        place::block_device(&self.found).is_some()
    }
}

impl FileConfig {
    /// Creates a configuration for the device at this path, with no overrides.
    pub fn at(path: PathBuf) -> FileConfig {
        FileConfig {
            path,
            size: None,
            direct: None,
            read_only: false,
            rotational: None,
            physical_block: None,
            optimal_io: None,
            zeroing: None,
            discards: None,
            zoned: None,
            drop_tail: false,
        }
    }

    /// Checks constraints that the types of the keys cannot express.
    ///
    /// # Errors
    /// A message that names the wrong value.
    pub fn check(&self) -> Result<(), String> {
        if let Some(size) = self.size
            && (size.0 == 0 || !size.0.is_multiple_of(BLOCK_BYTES))
        {
            return Err(format!("size {} is not a multiple of 4 KiB", size.0));
        }
        for (key, size, max) in [
            ("physical_block", self.physical_block, PHYSICAL_BYTES_MAX),
            ("optimal_io", self.optimal_io, u64::from(TRANSFER_BYTES_MAX)),
        ] {
            if let Some(size) = size
                && !(size.0.is_power_of_two() && (512..=max).contains(&size.0))
            {
                return Err(format!(
                    "{key} {} is not a power of two from 512 to {max} bytes",
                    size.0
                ));
            }
        }
        Ok(())
    }

    fn error(&self, what: impl std::fmt::Display) -> OpenError {
        OpenError::new(format!("{}: {what}", self.path.display()))
    }

    /// Examines the device without claiming it. `serve`, `format` and `check` all begin with this
    /// examination, so they refuse the same devices with the same messages.
    ///
    /// # Errors
    /// When the path is missing, cannot be opened for reading, or is neither a file nor a block
    /// device; or when the device is already in use, or has a size, sectors or zones that this
    /// medium does not support.
    pub fn look(&self, system: &System) -> Result<Looked, OpenError> {
        let found = std::fs::metadata(&self.path);
        let found = found.map_err(|error| self.error(error))?;
        let is_device = place::block_device(&found).is_some();
        if !is_device && !found.is_file() {
            let what = if found.is_dir() {
                "a directory"
            } else {
                "something else"
            };
            return Err(self.error(format!("is {what}, not a file or block device")));
        }
        let uses = usage::of(&self.path, system).map_err(|error| self.error(error))?;
        if let Some(words) = usage::in_words(&uses) {
            return Err(self.error(format!(
                "in use: {words}; stop that first (--force does not override it)"
            )));
        }
        let size_bytes = self.size_now(&found).map_err(|error| self.error(error))?;
        let mut limits = Limits::of_found(&found, system);
        self.overrule(&mut limits);
        let geometry = self.geometry(size_bytes, &limits)?;
        Ok(Looked {
            geometry,
            discards: limits.can_discard.unwrap_or(true),
            limits,
            found,
        })
    }

    fn size_now(&self, found: &Metadata) -> std::io::Result<u64> {
        if place::block_device(found).is_none() {
            return Ok(found.len());
        }
        // `stat(2)` does not report the length of a block device.
        std::fs::File::open(&self.path)?.seek(SeekFrom::End(0))
    }

    /// Replaces limits reported by the device with the values that the configuration gives.
    fn overrule(&self, limits: &mut Limits) {
        limits.rotational = self.rotational.or(limits.rotational);
        let said = |size: Option<Size>| size.map(|size| size.0);
        limits.physical_bytes = said(self.physical_block).or(limits.physical_bytes);
        limits.optimal_bytes = said(self.optimal_io).or(limits.optimal_bytes);
        limits.can_zero = self.zeroing.or(limits.can_zero);
        limits.can_discard = self.discards.or(limits.can_discard);
        match self.zoned {
            Some(true) => limits.zoned = Some("host-managed".to_owned()),
            Some(false) => limits.zoned = None,
            None => {}
        }
    }

    fn geometry(&self, size_bytes: u64, limits: &Limits) -> Result<Geometry, OpenError> {
        if size_bytes < BLOCK_BYTES {
            return Err(self.error("smaller than one block of 4 KiB"));
        }
        if limits.zoned.as_deref() == Some("host-managed") {
            return Err(self.error(
                "is a host-managed zoned disk, which accepts only sequential writes; `zoned = \
                false` overrides what the kernel reports",
            ));
        }
        let sector = limits.logical_bytes.filter(|_| limits.is_device);
        if let Some(sector) = sector.filter(|sector| *sector > BLOCK_BYTES) {
            return Err(self.error(format!(
                "has sectors of {sector} bytes; at most 4096 can be used"
            )));
        }
        let whole = Geometry::of_whole_blocks(size_bytes);
        let usable = |bytes: Option<u64>, max: u64| {
            let usable = bytes.filter(|bytes| bytes.is_power_of_two() && *bytes <= max);
            usable.and_then(|bytes| u32::try_from(bytes).ok())
        };
        let physical = usable(limits.physical_bytes, PHYSICAL_BYTES_MAX);
        // A reported value that is not a power of two is ignored. A stripe over three disks reports
        // such a value, and some adapters report arbitrary values.
        let optimal = usable(limits.optimal_bytes, u64::from(TRANSFER_BYTES_MAX));
        let physical_bytes = physical.unwrap_or(whole.physical_bytes);
        let preferred_bytes = optimal.unwrap_or(0).max(physical_bytes);
        let can_discard = limits.can_discard.unwrap_or(true);
        let discard_zeroes = can_discard && limits.can_zero.unwrap_or(true);
        Ok(Geometry {
            writable: !self.read_only,
            physical_bytes,
            preferred_bytes: preferred_bytes.max(whole.preferred_bytes),
            rotational: limits.rotational.unwrap_or(false),
            discard_zeroes,
            // A hole in a file costs an allocation when it is written again, and its space may be
            // given to another file until then.
            wants_discards: discard_zeroes && limits.can_discard == Some(true),
            tail_bytes: if self.drop_tail { 0 } else { whole.tail_bytes },
            ..whole
        })
    }
}

/// Reason why a device cannot be opened now, although it might become free soon.
enum Busy {
    /// The file is locked. Holds the process that has locked it, if the kernel reports the process.
    Locked(Option<Locker>),
    Claimed,
}

impl Busy {
    /// Returns the time for which opening is retried.
    fn patience(&self) -> Duration {
        match self {
            Busy::Locked(Some(locker)) if !locker.is_running => LOCK_PATIENCE_OF_DEAD,
            Busy::Locked(_) | Busy::Claimed => LOCK_PATIENCE,
        }
    }
}

/// A file or block device; see the module.
pub struct FileDevice {
    rt: Rt,
    /// Path, for notices to the operator.
    path: String,
    file: File,
    geometry: Geometry,
    direct: bool,
    discards: bool,
    zeroes: bool,
    _claim: Claim,
}

impl FileDevice {
    /// Opens and claims the file or device. Retries while it is locked or claimed, because a
    /// process that has just died can hold the lock: the kernel releases the file only when it has
    /// torn down the process's ring, after the end of the process (50 ms were measured; with a
    /// hanging disk it takes as long as the disk hangs).
    ///
    /// # Errors
    /// When the file or device is missing, in use, too small for one block, or cannot be opened or
    /// used.
    pub async fn open_when_free(rt: &Rt, config: &FileConfig) -> Result<FileDevice, OpenError> {
        let began = rt.now();
        loop {
            match FileDevice::try_open(rt, config)? {
                Ok(device) => return Ok(device),
                Err(busy) if rt.now().since(began) < busy.patience() => {
                    rt.sleep(LOCK_RETRY).await;
                }
                Err(Busy::Locked(locker)) => {
                    let who = locker::in_words(locker.as_ref());
                    return Err(config.error(format!("in use by {who} (its lock is taken)")));
                }
                Err(Busy::Claimed) => {
                    return Err(config.error(
                        "in use by another process or by the kernel (claimed by a server, a mount \
                        elsewhere or a tool)",
                    ));
                }
            }
        }
    }

    /// Opens the device, or returns why it is busy.
    fn try_open(rt: &Rt, config: &FileConfig) -> Result<Result<FileDevice, Busy>, OpenError> {
        let fail = |what: String| config.error(what);
        let system = System::default();
        let looked = config.look(&system)?;
        let claim = Claim::behind(&config.path, &system);
        let claim = claim.map_err(|e| fail(format!("cannot claim: {e}")))?;
        let Some(claim) = claim else {
            return Ok(Err(Busy::Claimed));
        };
        let write = !config.read_only;
        let open = |direct| {
            let options = OpenOptions { write, direct };
            match looked.is_device() {
                true => File::open_claimed(rt, &config.path, options),
                false => File::open(rt, &config.path, options),
            }
        };
        let (file, direct) = match config.direct {
            Some(direct) => (open(direct), direct),
            None => match open(true) {
                // The file system does not support direct I/O.
                Err(e) if e.raw_os_error() == Some(INVALID) => (open(false), false),
                result => (result, true),
            },
        };
        let file = match file {
            Err(e) if looked.is_device() && e.raw_os_error() == Some(BUSY) => {
                return Ok(Err(Busy::Claimed));
            }
            file => file.map_err(|e| fail(format!("cannot open: {e}")))?,
        };
        let locked = file
            .try_lock_exclusive()
            .map_err(|e| fail(format!("cannot lock: {e}")))?;
        if !locked {
            let locker = locker::of_lock(&looked.found, &system);
            return Ok(Err(Busy::Locked(locker)));
        }
        // The device might have changed between the first examination and the claim, so it is
        // examined again.
        let looked = config.look(&system)?;
        Ok(Ok(FileDevice {
            rt: rt.clone(),
            path: config.path.display().to_string(),
            file,
            geometry: looked.geometry,
            direct,
            discards: looked.discards,
            zeroes: looked.limits.can_zero.unwrap_or(true),
            _claim: claim,
        }))
    }

    /// Returns true if the page cache is bypassed.
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
            Op::Flush => self.sync().await.map(|()| Reply::Done),
            // If the device does not promise that discarded ranges read as zeroes, a discard does
            // nothing. A disk without this promise might be unable to zero ranges by itself, and
            // the server would have to write zeroes to the whole range.
            Op::Discard if !self.geometry.discard_zeroes => Ok(Reply::Done),
            Op::Discard if request.flags.advisory => self.free(&request).await,
            Op::Discard => self.clear(&request, true).await,
            Op::WriteZeroes => {
                let may_free = self.discards && !request.flags.keep_allocated;
                self.clear(&request, may_free).await
            }
            Op::Extents => self.extents(&request),
        }
    }

    /// Reads in pieces that fit the memory region of the buffer pool, because a larger buffer would
    /// always be allocated from the heap. An export has reserved memory for these pieces
    /// ([`bimetal_rt::BufPool::footprint_bytes`]).
    async fn read(&self, offset: u64, len: u64) -> IoResult {
        if len <= BLOCK_BYTES_MAX as u64 {
            return Ok(Reply::Data(self.read_piece(offset, len).await?.into()));
        }
        let starts = (0..len).step_by(BLOCK_BYTES_MAX);
        let pieces = starts.map(|start| {
            let piece_bytes = (len - start).min(BLOCK_BYTES_MAX as u64);
            self.read_piece(offset + start, piece_bytes)
        });
        let mut data = Payload::empty();
        for piece in try_join_all(pieces).await? {
            data.push(piece);
        }
        Ok(Reply::Data(data))
    }

    async fn read_piece(&self, offset: u64, len: u64) -> Result<Buf, IoError> {
        let buf = self.rt.pool().alloc_now(len as usize);
        let (count, mut buf) = self.file.read_at(offset, buf).await;
        let mut filled = self.told("a read", count)?;
        while filled < buf.len() {
            // A read can return fewer bytes than requested, for example because of a signal or at a
            // page boundary. This is rare. The remaining bytes are read separately.
            let rest = self.rt.pool().alloc_now(buf.len() - filled);
            let (count, rest) = self.file.read_at(offset + filled as u64, rest).await;
            let count = self.told("a read", count)?;
            if count == 0 {
                let end = "is shorter than it was when it was opened";
                self.rt.notices().post(&self.path, "device-failed", end);
                return Err(IoError::Medium);
            }
            buf[filled..filled + count].copy_from_slice(&rest[..count]);
            filled += count;
        }
        Ok(buf.freeze())
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
                .await;
            let count = self.told("a write", count)?;
            if count == 0 {
                return Err(IoError::NoSpace);
            }
            written += count;
        }
        Ok(Reply::Done)
    }

    async fn free(&self, request: &Request) -> IoResult {
        let freed = self.file.punch_hole(request.offset, request.len).await;
        self.told("freeing", freed).map(|()| Reply::Done)
    }

    async fn clear(&self, request: &Request, may_free: bool) -> IoResult {
        let (offset, len) = (request.offset, request.len);
        if len == 0 {
            return Ok(Reply::Done);
        }
        let attempt = match (self.zeroes, may_free) {
            (false, _) => Err(IoError::Unsupported),
            (true, true) => self.free(request).await.map(|_| ()),
            (true, false) => {
                let zeroed = self.file.zero_range(offset, len).await;
                self.told("zeroing", zeroed)
            }
        };
        match attempt {
            Ok(()) => {}
            Err(IoError::Unsupported) => self.write_zeroes_by_hand(offset, len).await?,
            Err(e) => return Err(e),
        }
        if request.flags.fua {
            self.sync().await?;
        }
        Ok(Reply::Done)
    }

    async fn sync(&self) -> Result<(), IoError> {
        let synced = self.file.sync_data().await;
        self.told("a flush", synced)
    }

    /// Maps an error of the kernel to an error for the layers above. Posts a notice to the
    /// operator, unless the error only says that the device does not support the operation.
    fn told<T>(&self, what: &str, answer: std::io::Result<T>) -> Result<T, IoError> {
        answer.map_err(|error| match error.raw_os_error() {
            Some(NOT_SUPPORTED) => IoError::Unsupported,
            _ => failure::tell(&self.rt, &self.path, what, error).into(),
        })
    }

    /// Writes zeroes as data, for a device or file system that can neither punch holes nor zero
    /// ranges.
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
            // `end` is a block boundary of the file system, whose blocks can be smaller than 4 KiB.
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

#[cfg(test)]
mod tests {
    use bimetal_rt::UringOptions;

    use super::*;

    /// Creates a file of 64 KiB of ones, opens it with the configuration `keys`, and clears all but
    /// the first block with `op`. Returns a byte read from the second block afterwards, and the
    /// number of bytes still allocated to the file.
    fn cleared(name: &str, op: Op, keep_allocated: bool, keys: &str) -> (u8, u64) {
        use std::os::unix::fs::MetadataExt;
        let rt = Rt::real_time(UringOptions::default()).expect("a ring");
        let file = format!("bimetal-file-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, vec![1; 64 << 10]).expect("a file");
        std::fs::File::open(&path)
            .and_then(|file| file.sync_all())
            .expect("its blocks are allocated");
        let text = format!("path = '{}'\n{keys}", path.display());
        let config: FileConfig = toml::from_str(&text).expect("keys");
        config.check().expect("keys");
        let read = rt.block_on(async {
            let device = FileDevice::open_when_free(&rt, &config).await;
            let device = device.expect("a file");
            let flags = Flags {
                keep_allocated,
                ..Flags::NONE
            };
            let clear = Request::without_data(op, BLOCK_BYTES, 60 << 10, flags);
            device.submit(clear).await.expect("taken");
            device.submit(Request::flush()).await.expect("flushed");
            let read = device.submit(Request::read(BLOCK_BYTES, BLOCK_BYTES)).await;
            read.expect("readable").into_data().to_vec()[0]
        });
        let taken = std::fs::metadata(&path).expect("a file").blocks() * 512;
        std::fs::remove_file(path).expect("a file");
        (read, taken)
    }

    #[test]
    fn what_the_device_cannot_do_is_written_or_left() {
        let (no_zeroing, no_discards) = ("zeroing = false", "discards = false");
        let whole = 64 << 10;
        // A hole is punched only if both the request and the configuration permit it.
        assert_eq!(cleared("punch", Op::Discard, false, ""), (0, 4096));
        assert_eq!(cleared("zero", Op::WriteZeroes, false, ""), (0, 4096));
        assert_eq!(cleared("keep", Op::WriteZeroes, true, ""), (0, whole));
        assert_eq!(
            cleared("zero-kept", Op::WriteZeroes, false, no_discards),
            (0, whole)
        );
        // On a device that does not promise zeroes, a discard leaves the content unchanged.
        assert_eq!(cleared("left", Op::Discard, false, no_discards), (1, whole));
        assert_eq!(cleared("hdd", Op::Discard, false, no_zeroing), (1, whole));
        assert_eq!(
            cleared("hdd-zero", Op::WriteZeroes, false, no_zeroing),
            (0, whole)
        );
    }

    #[test]
    fn the_words_of_the_kernel_become_a_geometry() {
        let config = FileConfig::at("disk".into());
        let disk = Limits {
            is_device: true,
            rotational: Some(true),
            logical_bytes: Some(512),
            physical_bytes: Some(4096),
            optimal_bytes: Some(1 << 20),
            can_zero: Some(false),
            can_discard: Some(false),
            zoned: None,
        };
        let of = |limits: &Limits| config.geometry((32 << 20) + 512, limits);
        let geometry = of(&disk).expect("a disk");
        assert!(geometry.rotational && !geometry.discard_zeroes);
        assert_eq!(
            (geometry.physical_bytes, geometry.preferred_bytes),
            (4096, 1 << 20)
        );
        assert_eq!((geometry.size_bytes, geometry.tail_bytes), (32 << 20, 512));
        // Optimal sizes that are too large or not a power of two are ignored. A stripe over three
        // disks and some adapters report such sizes.
        for optimal in [3 << 16, 33_553_920, 1 << 30] {
            let odd = Limits {
                optimal_bytes: Some(optimal),
                physical_bytes: Some(16384),
                ..disk.clone()
            };
            assert_eq!(of(&odd).expect("a disk").preferred_bytes, 16384);
        }
        let refused = [
            (
                "host-managed",
                Limits {
                    zoned: Some("host-managed".to_owned()),
                    ..disk.clone()
                },
            ),
            (
                "sectors of 16384 bytes",
                Limits {
                    logical_bytes: Some(16384),
                    ..disk.clone()
                },
            ),
        ];
        for (words, limits) in refused {
            let error = of(&limits).expect_err("it is refused");
            assert!(error.message.contains(words), "{}", error.message);
        }
        // Host-aware zones accept random writes, so a disk with such zones is accepted.
        let aware = Limits {
            zoned: Some("host-aware".to_owned()),
            ..disk
        };
        assert!(of(&aware).is_ok());
    }
}
