//! The layouts and numbers of the kernel's `linux/fuse.h`: what comes through `/dev/fuse`, and what
//! is answered.
//!
//! All of it is in the machine's order of bytes. This module must never do I/O, and takes nothing
//! that the kernel says for granted: a message that is too short for what it claims to be is no
//! message.

/// The protocol's version that is spoken (`FUSE_KERNEL_VERSION`).
pub(super) const MAJOR: u32 = 7;
/// The oldest minor version with everything that is used here (Linux 5.4).
pub(super) const MINOR_MIN: u32 = 31;
/// The newest minor version that is spoken.
const MINOR_MAX: u32 = 38;
/// The inode of the folder (`FUSE_ROOT_ID`).
pub(super) const FOLDER: u64 = 1;
/// The inode of the file in it.
pub(super) const FILE: u64 = 2;
/// Bytes of `struct fuse_in_header`.
const IN_HEADER_BYTES: usize = 40;
/// Bytes of the longest head in front of data: `fuse_in_header` and `fuse_write_in`.
pub(super) const HEAD_BYTES: usize = IN_HEADER_BYTES + 40;
/// Bytes of `struct fuse_out_header`.
pub(super) const OUT_HEADER_BYTES: usize = 16;
/// The page in which the kernel counts the length of a request.
pub(super) const PAGE_BYTES: u32 = 4096;
/// The smallest buffer that the kernel lets a message be read into (`FUSE_MIN_READ_BUFFER`).
pub(super) const READ_BYTES_MIN: usize = 8192;
/// How long the kernel may keep what it was told of the file and its name, in seconds: nothing of
/// it changes.
const VALID_S: u64 = 1 << 30;
/// The name's length that `statfs` tells.
const NAME_BYTES_MAX: u32 = 255;

/// Error numbers of `errno(3)` that are answered here.
pub(super) mod errno {
    pub(in super::super) const EPERM: i32 = 1;
    pub(in super::super) const ENOENT: i32 = 2;
    pub(in super::super) const ENXIO: i32 = 6;
    pub(in super::super) const EINVAL: i32 = 22;
    pub(in super::super) const ENOSPC: i32 = 28;
    pub(in super::super) const EROFS: i32 = 30;
    pub(in super::super) const ENOSYS: i32 = 38;
    pub(in super::super) const EOPNOTSUPP: i32 = 95;
    pub(in super::super) const ETIMEDOUT: i32 = 110;
}

/// Bits of `fuse_init_out.flags`.
mod init_flag {
    pub(super) const ASYNC_READ: u32 = 1 << 0;
    pub(super) const BIG_WRITES: u32 = 1 << 5;
    pub(super) const ASYNC_DIO: u32 = 1 << 15;
    pub(super) const PARALLEL_DIROPS: u32 = 1 << 18;
    pub(super) const MAX_PAGES: u32 = 1 << 22;

    /// What the server asks for.
    pub(super) const WANTED: u32 =
        ASYNC_READ | BIG_WRITES | ASYNC_DIO | PARALLEL_DIROPS | MAX_PAGES;
    /// What it cannot do without: requests of more than a few pages.
    pub(super) const NEEDED: u32 = BIG_WRITES | MAX_PAGES;
}

/// Bits of `fuse_open_out.open_flags`.
mod open_flag {
    /// Past the page cache: the volume has caches of its own, and what is on it must be what was
    /// written.
    pub(super) const DIRECT_IO: u32 = 1 << 0;
    /// Nothing to do when a descriptor is closed.
    pub(super) const NO_FLUSH: u32 = 1 << 5;
    pub(super) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of `fuse_setattr_in.valid` for what cannot be changed: mode, owner, group and size.
const SET_MODE_OR_OWNER: u32 = 0b111;
const SET_SIZE: u32 = 1 << 3;

/// Bits of the mode of `fallocate(2)`.
mod fallocate_mode {
    pub(super) const KEEP_SIZE: u32 = 0x01;
    pub(super) const PUNCH_HOLE: u32 = 0x02;
    pub(super) const ZERO_RANGE: u32 = 0x10;
}

/// Types of inodes, as in `st_mode` and, shifted, in a directory's entries.
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// `N` bytes of `bytes` from `at` on, if they are there.
fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    part(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    part(bytes, at).map(u64::from_ne_bytes)
}

/// What is asked of every request: `struct fuse_in_header`, as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of the whole message.
    pub(super) len: u32,
    opcode: u32,
    /// What the answer is told by.
    pub(super) unique: u64,
    /// The inode.
    pub(super) node: u64,
}

/// A range of the file in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// What a range is made by `fallocate(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allocate {
    /// Zeroes, without space.
    PunchHole,
    /// Zeroes, with space.
    ZeroRange,
}

/// What is looked for from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seek {
    Data,
    Hole,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Init(Init),
    /// The inode of a name.
    Lookup(Vec<u8>),
    GetAttributes,
    /// `true` when something is to change that cannot: the mode, the owner, or the size, but for
    /// the one that is named.
    SetAttributes {
        mode_or_owner: bool,
        size: Option<u64>,
    },
    Open,
    OpenFolder,
    Read(Range),
    /// The data comes behind the head.
    Write(Range),
    FileSystem,
    /// A descriptor, of the file or the folder, is gone.
    Release,
    Sync,
    /// The entries of the folder from an offset on, in at most so many bytes.
    ReadFolder(Range),
    /// `None` is a way that is not offered.
    Allocate(Option<Allocate>, Range),
    Seek(Seek, u64),
    /// The end of the file system.
    Destroy,
    /// What takes no answer: an inode is forgotten.
    Forget,
    /// Everything else. The kernel asks for most of it once and never again.
    Other,
}

impl Asked {
    /// True of what only the device can answer.
    pub(super) fn needs_device(&self) -> bool {
        match self {
            Asked::Read(_)
            | Asked::Write(_)
            | Asked::Sync
            | Asked::Allocate(..)
            | Asked::Seek(..) => true,
            Asked::Init(_)
            | Asked::Lookup(_)
            | Asked::GetAttributes
            | Asked::SetAttributes { .. }
            | Asked::Open
            | Asked::OpenFolder
            | Asked::FileSystem
            | Asked::Release
            | Asked::ReadFolder(_)
            | Asked::Destroy
            | Asked::Forget
            | Asked::Other => false,
        }
    }
}

/// What the kernel says at first: `struct fuse_init_in`, as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Init {
    pub(super) major: u32,
    pub(super) minor: u32,
    read_ahead_bytes: u32,
    flags: u32,
}

impl Init {
    /// The kernel has what the server cannot do without.
    pub(super) fn suffices(&self) -> bool {
        let recent = self.major == MAJOR && self.minor >= MINOR_MIN;
        recent && self.flags & init_flag::NEEDED == init_flag::NEEDED
    }
}

/// Decodes the header of a message of `len` bytes, of which `head` are the first.
pub(super) fn decode_header(head: &[u8], len: usize) -> Option<Header> {
    let head = head.get(..len.min(head.len()))?;
    let header = Header {
        len: u32_at(head, 0)?,
        opcode: u32_at(head, 4)?,
        unique: u64_at(head, 8)?,
        node: u64_at(head, 16)?,
    };
    // The whole header is there, although not all of it is used.
    part::<IN_HEADER_BYTES>(head, 0)?;
    (header.len as usize == len).then_some(header)
}

/// Decodes what a message asks for. `head` and `rest` are its bytes, cut after `HEAD_BYTES`; `None`
/// when they are not what the header says.
pub(super) fn decode(header: &Header, head: &[u8], rest: &[u8]) -> Option<Asked> {
    const WRITE: u32 = 16;
    let first = head.get(IN_HEADER_BYTES..)?;
    if header.opcode == WRITE {
        // Its data is long, and stays where it is.
        let range = read_or_write(first)?;
        return (range.len == rest.len() as u64).then_some(Asked::Write(range));
    }
    if rest.is_empty() {
        return decode_arguments(header.opcode, first);
    }
    decode_arguments(header.opcode, &[first, rest].concat())
}

fn decode_arguments(opcode: u32, bytes: &[u8]) -> Option<Asked> {
    Some(match opcode {
        1 => Asked::Lookup(bytes.split_last().filter(|(end, _)| **end == 0)?.1.to_vec()),
        2 | 42 => Asked::Forget,
        3 => Asked::GetAttributes,
        4 => set_attributes(bytes)?,
        14 => Asked::Open,
        15 => Asked::Read(read_or_write(bytes)?),
        17 => Asked::FileSystem,
        18 | 29 => Asked::Release,
        20 => Asked::Sync,
        26 => Asked::Init(Init {
            major: u32_at(bytes, 0)?,
            minor: u32_at(bytes, 4)?,
            read_ahead_bytes: u32_at(bytes, 8)?,
            flags: u32_at(bytes, 12)?,
        }),
        27 => Asked::OpenFolder,
        28 => Asked::ReadFolder(read_or_write(bytes)?),
        38 => Asked::Destroy,
        43 => allocate(bytes)?,
        46 => seek(bytes)?,
        _ => Asked::Other,
    })
}

/// The place in `struct fuse_read_in` and `struct fuse_write_in`, which have it at the same bytes.
fn read_or_write(bytes: &[u8]) -> Option<Range> {
    part::<40>(bytes, 0)?;
    Some(Range {
        offset: u64_at(bytes, 8)?,
        len: u64::from(u32_at(bytes, 16)?),
    })
}

/// `struct fuse_setattr_in`.
fn set_attributes(bytes: &[u8]) -> Option<Asked> {
    part::<88>(bytes, 0)?;
    let valid = u32_at(bytes, 0)?;
    let size = u64_at(bytes, 16)?;
    Some(Asked::SetAttributes {
        mode_or_owner: valid & SET_MODE_OR_OWNER != 0,
        size: (valid & SET_SIZE != 0).then_some(size),
    })
}

/// `struct fuse_fallocate_in`.
fn allocate(bytes: &[u8]) -> Option<Asked> {
    use fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
    part::<32>(bytes, 0)?;
    let range = Range {
        offset: u64_at(bytes, 8)?,
        len: u64_at(bytes, 16)?,
    };
    let how = match u32_at(bytes, 24)? & !KEEP_SIZE {
        PUNCH_HOLE => Some(Allocate::PunchHole),
        ZERO_RANGE => Some(Allocate::ZeroRange),
        _ => None,
    };
    Some(Asked::Allocate(how, range))
}

/// `struct fuse_lseek_in`.
fn seek(bytes: &[u8]) -> Option<Asked> {
    const SEEK_DATA: u32 = 3;
    const SEEK_HOLE: u32 = 4;
    part::<24>(bytes, 0)?;
    let offset = u64_at(bytes, 8)?;
    Some(match u32_at(bytes, 16)? {
        SEEK_DATA => Asked::Seek(Seek::Data, offset),
        SEEK_HOLE => Asked::Seek(Seek::Hole, offset),
        _ => Asked::Other,
    })
}

/// The bytes of an answer.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u16(mut self, value: u16) -> Out {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Out {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Out {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Out {
        self.0.extend(bytes);
        self
    }

    fn zeroes(mut self, count: usize) -> Out {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

/// `struct fuse_out_header` of an answer with so many bytes behind it, or with an error number.
pub(super) fn out_header(unique: u64, result: Result<usize, i32>) -> [u8; OUT_HEADER_BYTES] {
    let (bytes, error) = match result {
        Ok(bytes) => (bytes, 0),
        Err(errno) => (0, -errno),
    };
    let mut out = [0; OUT_HEADER_BYTES];
    out[0..4].copy_from_slice(&((OUT_HEADER_BYTES + bytes) as u32).to_ne_bytes());
    out[4..8].copy_from_slice(&error.to_ne_bytes());
    out[8..16].copy_from_slice(&unique.to_ne_bytes());
    out
}

/// What the server is and may be asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The longest read or write in bytes: whole pages.
    pub(super) transfer_bytes_max: u32,
    /// Requests that nobody waits for one by one, under way at most.
    pub(super) background_max: u16,
}

/// `struct fuse_init_out` as the answer to a kernel with what [suffices](Init::suffices).
pub(super) fn init_answer(init: &Init, limits: &Limits) -> Vec<u8> {
    let out = Out::default()
        .u32(MAJOR)
        .u32(init.minor.min(MINOR_MAX))
        .u32(init.read_ahead_bytes)
        .u32(init.flags & init_flag::WANTED)
        .u16(limits.background_max)
        .u16(limits.background_max)
        .u32(limits.transfer_bytes_max)
        // Times are in nanoseconds.
        .u32(1)
        .u16((limits.transfer_bytes_max / PAGE_BYTES) as u16)
        .u16(0)
        .u32(0)
        .zeroes(28);
    out.0
}

/// The answer to a kernel with a newer major version: it asks again with ours.
pub(super) fn other_major_answer() -> Vec<u8> {
    Out::default().u32(MAJOR).u32(MINOR_MAX).zeroes(56).0
}

/// What the folder and the file in it are.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The name of the file.
    pub(super) name: String,
    pub(super) size_bytes: u64,
    pub(super) read_only: bool,
    /// The read or write that suits the device best.
    pub(super) preferred_bytes: u32,
    /// The owner of both.
    pub(super) user: u32,
    pub(super) group: u32,
    /// All times of both, in seconds since 1970.
    pub(super) made_s: u64,
}

impl Facts {
    /// `struct fuse_attr` of an inode.
    fn attributes(&self, node: u64) -> Option<Vec<u8>> {
        let write = if self.read_only { 0 } else { 0o200 };
        let (mode, size_bytes, links) = match node {
            FOLDER => (S_IFDIR | 0o500, 0, 2),
            FILE => (S_IFREG | 0o400 | write, self.size_bytes, 1),
            _ => return None,
        };
        let out = Out::default()
            .u64(node)
            .u64(size_bytes)
            .u64(size_bytes / 512)
            .u64(self.made_s)
            .u64(self.made_s)
            .u64(self.made_s)
            .zeroes(12)
            .u32(mode)
            .u32(links)
            .u32(self.user)
            .u32(self.group)
            .u32(0)
            .u32(self.preferred_bytes)
            .u32(0);
        Some(out.0)
    }

    /// `struct fuse_attr_out`; `None` for an inode that there is not.
    pub(super) fn attributes_answer(&self, node: u64) -> Option<Vec<u8>> {
        let attributes = self.attributes(node)?;
        Some(Out::default().u64(VALID_S).zeroes(8).bytes(&attributes).0)
    }

    /// `struct fuse_entry_out`; `None` where there is no file of that name.
    pub(super) fn lookup_answer(&self, folder: u64, name: &[u8]) -> Option<Vec<u8>> {
        if folder != FOLDER || name != self.name.as_bytes() {
            return None;
        }
        let attributes = self.attributes(FILE)?;
        let out = Out::default()
            .u64(FILE)
            .u64(0)
            .u64(VALID_S)
            .u64(VALID_S)
            .zeroes(8)
            .bytes(&attributes);
        Some(out.0)
    }

    /// `struct fuse_statfs_out`: a full file system, of which all is the file.
    pub(super) fn file_system_answer(&self) -> Vec<u8> {
        let out = Out::default()
            .u64(self.size_bytes.div_ceil(u64::from(PAGE_BYTES)))
            .u64(0)
            .u64(0)
            .u64(2)
            .u64(0)
            .u32(PAGE_BYTES)
            .u32(NAME_BYTES_MAX)
            .u32(PAGE_BYTES)
            .zeroes(28);
        out.0
    }

    /// As many `struct fuse_dirent` from the one at `range.offset` on as fit in `range.len` bytes.
    pub(super) fn folder_answer(&self, range: Range) -> Vec<u8> {
        let entries = [
            (FOLDER, S_IFDIR, "."),
            (FOLDER, S_IFDIR, ".."),
            (FILE, S_IFREG, self.name.as_str()),
        ];
        let mut out = Out::default();
        for (next, (node, kind, name)) in (1..).zip(entries) {
            let bytes = (24 + name.len()).next_multiple_of(8);
            if next <= range.offset {
                continue;
            }
            if (out.0.len() + bytes) as u64 > range.len {
                break;
            }
            out = out
                .u64(node)
                .u64(next)
                .u32(name.len() as u32)
                .u32(kind >> 12)
                .bytes(name.as_bytes())
                .zeroes(bytes - 24 - name.len());
        }
        out.0
    }
}

/// `struct fuse_open_out` of the file.
pub(super) fn open_answer() -> Vec<u8> {
    let flags = open_flag::DIRECT_IO | open_flag::NO_FLUSH | open_flag::PARALLEL_DIRECT_WRITES;
    Out::default().u64(0).u32(flags).zeroes(4).0
}

/// `struct fuse_open_out` of the folder.
pub(super) fn open_folder_answer() -> Vec<u8> {
    Out::default().zeroes(16).0
}

/// `struct fuse_write_out`: so many bytes are written.
pub(super) fn write_answer(bytes: u64) -> Vec<u8> {
    Out::default().u32(bytes as u32).zeroes(4).0
}

/// `struct fuse_lseek_out`.
pub(super) fn seek_answer(offset: u64) -> Vec<u8> {
    Out::default().u64(offset).0
}

#[cfg(test)]
mod tests;
