//! The layouts and numbers of the kernel's `linux/fuse.h`: the messages that are read from
//! `/dev/fuse`, and their answers.
//!
//! All numbers are in the machine's byte order. This module must never do I/O, and does not trust
//! the kernel's input: it rejects a message whose length differs from the length that its header
//! states.

/// Major protocol version that this module implements (`FUSE_KERNEL_VERSION`).
pub(super) const MAJOR: u32 = 7;
/// Oldest minor protocol version that has all the features used by this module (Linux 5.4).
pub(super) const MINOR_MIN: u32 = 31;
/// Newest minor protocol version that this module implements.
const MINOR_MAX: u32 = 38;
/// The inode of the folder (`FUSE_ROOT_ID`).
pub(super) const FOLDER: u64 = 1;
/// The inode of the file in the folder.
pub(super) const FILE: u64 = 2;
/// Bytes of `struct fuse_in_header`.
const IN_HEADER_BYTES: usize = 40;
/// Size in bytes of the longest head before the data of a message: `fuse_in_header` and
/// `fuse_write_in`.
pub(super) const HEAD_BYTES: usize = IN_HEADER_BYTES + 40;
/// Bytes of `struct fuse_out_header`.
pub(super) const OUT_HEADER_BYTES: usize = 16;
/// Size in bytes of the pages in which the kernel counts the maximum length of a request.
pub(super) const PAGE_BYTES: u32 = 4096;
/// Minimum size of the buffer for a read from `/dev/fuse` (`FUSE_MIN_READ_BUFFER`).
pub(super) const READ_BYTES_MIN: usize = 8192;
/// Time in seconds for which the kernel may cache the attributes and the name of the file. The time
/// is long because the attributes and the name never change.
const VALID_S: u64 = 1 << 30;
/// Maximum name length that `statfs` reports.
const NAME_BYTES_MAX: u32 = 255;

/// Error numbers of `errno(3)` that the answers use.
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

    /// Flags that the server requests.
    pub(super) const WANTED: u32 =
        ASYNC_READ | BIG_WRITES | ASYNC_DIO | PARALLEL_DIROPS | MAX_PAGES;
    /// Flags that the server requires. They permit requests of more than a few pages.
    pub(super) const NEEDED: u32 = BIG_WRITES | MAX_PAGES;
}

/// Bits of `fuse_open_out.open_flags`.
mod open_flag {
    /// Bypasses the page cache. The volume has caches of its own, and a completed write must have
    /// reached the volume.
    pub(super) const DIRECT_IO: u32 = 1 << 0;
    /// Tells the kernel that closing a descriptor needs no request.
    pub(super) const NO_FLUSH: u32 = 1 << 5;
    pub(super) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of `fuse_setattr_in.valid`: the bits for a requested change of the mode, the owner or the
/// group, and the bit for a requested size. The server changes none of these attributes.
const SET_MODE_OR_OWNER: u32 = 0b111;
const SET_SIZE: u32 = 1 << 3;

/// Bits of the mode of `fallocate(2)`.
mod fallocate_mode {
    pub(super) const KEEP_SIZE: u32 = 0x01;
    pub(super) const PUNCH_HOLE: u32 = 0x02;
    pub(super) const ZERO_RANGE: u32 = 0x10;
}

/// Inode types, as in `st_mode`. Directory entries contain them shifted right by 12 bits.
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// Returns the `N` bytes of `bytes` at offset `at`, or `None` if `bytes` is too short.
fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    part(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    part(bytes, at).map(u64::from_ne_bytes)
}

/// The used fields of `struct fuse_in_header`, the header of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Length of the whole message in bytes.
    pub(super) len: u32,
    opcode: u32,
    /// Identifier of the request, which the answer must repeat.
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

/// Effect of a call of `fallocate(2)` on a range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allocate {
    /// The range becomes zeroes that occupy no space.
    PunchHole,
    /// The range becomes zeroes with allocated space.
    ZeroRange,
}

/// Kind of content for which `lseek(2)` searches from an offset on: data or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seek {
    Data,
    Hole,
}

/// A request of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Init(Init),
    /// Lookup of the inode of a file name.
    Lookup(Vec<u8>),
    GetAttributes,
    /// Change of attributes. `mode_or_owner` is true if the request changes the mode, the owner or
    /// the group, which cannot change. `size` is the requested size, if the request contains a
    /// size.
    SetAttributes {
        mode_or_owner: bool,
        size: Option<u64>,
    },
    Open,
    OpenFolder,
    Read(Range),
    /// Write of the data that follows the head of the message.
    Write(Range),
    FileSystem,
    /// A descriptor of the file or the folder has been closed.
    Release,
    Sync,
    /// Read of the folder's entries. The read starts at the entry number `offset` and returns at
    /// most `len` bytes.
    ReadFolder(Range),
    /// Change of the allocation of a range; `None` if the requested mode is not supported.
    Allocate(Option<Allocate>, Range),
    Seek(Seek, u64),
    /// End of the file system.
    Destroy,
    /// Notification that the kernel has forgotten an inode. It must not be answered.
    Forget,
    /// Any other request. After the first refusal of an operation, the kernel in most cases does
    /// not send this operation again.
    Other,
}

impl Asked {
    /// Whether the request can be answered only with a request to the device.
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

/// The used fields of `struct fuse_init_in`, the kernel's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Init {
    pub(super) major: u32,
    pub(super) minor: u32,
    read_ahead_bytes: u32,
    flags: u32,
}

impl Init {
    /// Whether the kernel has the version and the features that the server requires.
    pub(super) fn suffices(&self) -> bool {
        let recent = self.major == MAJOR && self.minor >= MINOR_MIN;
        recent && self.flags & init_flag::NEEDED == init_flag::NEEDED
    }
}

/// Decodes the header of a message whose length is `len` bytes. `head` holds the first bytes of the
/// message. Returns `None` if the header is incomplete or states another length.
pub(super) fn decode_header(head: &[u8], len: usize) -> Option<Header> {
    let head = head.get(..len.min(head.len()))?;
    let header = Header {
        len: u32_at(head, 0)?,
        opcode: u32_at(head, 4)?,
        unique: u64_at(head, 8)?,
        node: u64_at(head, 16)?,
    };
    // The header must be complete, although not all of its fields are used.
    part::<IN_HEADER_BYTES>(head, 0)?;
    (header.len as usize == len).then_some(header)
}

/// Decodes the request of a message. `head` holds the first [`HEAD_BYTES`] bytes of the message,
/// and `rest` the remaining bytes. Returns `None` if the bytes do not match the operation in the
/// header.
pub(super) fn decode(header: &Header, head: &[u8], rest: &[u8]) -> Option<Asked> {
    const WRITE: u32 = 16;
    let first = head.get(IN_HEADER_BYTES..)?;
    if header.opcode == WRITE {
        // The data of a write can be long, so it is not copied.
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

/// Decodes the range in a `struct fuse_read_in` or `struct fuse_write_in`. Both structures have the
/// range at the same offsets.
fn read_or_write(bytes: &[u8]) -> Option<Range> {
    part::<40>(bytes, 0)?;
    Some(Range {
        offset: u64_at(bytes, 8)?,
        len: u64::from(u32_at(bytes, 16)?),
    })
}

/// Decodes `struct fuse_setattr_in`.
fn set_attributes(bytes: &[u8]) -> Option<Asked> {
    part::<88>(bytes, 0)?;
    let valid = u32_at(bytes, 0)?;
    let size = u64_at(bytes, 16)?;
    Some(Asked::SetAttributes {
        mode_or_owner: valid & SET_MODE_OR_OWNER != 0,
        size: (valid & SET_SIZE != 0).then_some(size),
    })
}

/// Decodes `struct fuse_fallocate_in`.
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

/// Decodes `struct fuse_lseek_in`.
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

/// Encodes the `struct fuse_out_header` of an answer. The answer either continues with the given
/// number of bytes, or reports an error number.
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

/// Limits of the server, which the kernel must respect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum length of a read or write in bytes, a multiple of the page size.
    pub(super) transfer_bytes_max: u32,
    /// Maximum number of background requests in flight. Background requests are requests for which
    /// no process waits individually.
    pub(super) background_max: u16,
}

/// Encodes `struct fuse_init_out`, the answer to the first message of a kernel that
/// [suffices](Init::suffices).
pub(super) fn init_answer(init: &Init, limits: &Limits) -> Vec<u8> {
    let out = Out::default()
        .u32(MAJOR)
        .u32(init.minor.min(MINOR_MAX))
        .u32(init.read_ahead_bytes)
        .u32(init.flags & init_flag::WANTED)
        .u16(limits.background_max)
        .u16(limits.background_max)
        .u32(limits.transfer_bytes_max)
        // Time stamps have a resolution of one nanosecond.
        .u32(1)
        .u16((limits.transfer_bytes_max / PAGE_BYTES) as u16)
        .u16(0)
        .u32(0)
        .zeroes(28);
    out.0
}

/// Encodes the answer to a kernel with a newer major version. The kernel then sends its first
/// message again, with the major version of this module.
pub(super) fn other_major_answer() -> Vec<u8> {
    Out::default().u32(MAJOR).u32(MINOR_MAX).zeroes(56).0
}

/// Attributes of the folder and of the file in the folder.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The name of the file.
    pub(super) name: String,
    pub(super) size_bytes: u64,
    pub(super) read_only: bool,
    /// Request size in bytes that the device handles best.
    pub(super) preferred_bytes: u32,
    /// Owner of the folder and the file.
    pub(super) user: u32,
    pub(super) group: u32,
    /// Value of all time stamps of the folder and the file, in seconds since 1970.
    pub(super) made_s: u64,
}

impl Facts {
    /// Encodes `struct fuse_attr` of an inode.
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

    /// Encodes `struct fuse_attr_out` of an inode; `None` if the inode does not exist.
    pub(super) fn attributes_answer(&self, node: u64) -> Option<Vec<u8>> {
        let attributes = self.attributes(node)?;
        Some(Out::default().u64(VALID_S).zeroes(8).bytes(&attributes).0)
    }

    /// Encodes `struct fuse_entry_out`, the answer to a lookup; `None` if no file has this name.
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

    /// Encodes `struct fuse_statfs_out` of a full file system that contains only the file.
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

    /// Encodes the entries of the folder as `struct fuse_dirent`, starting with the entry number
    /// `range.offset`. Only entries that fit in `range.len` bytes are included.
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

/// Encodes `struct fuse_open_out` of the file.
pub(super) fn open_answer() -> Vec<u8> {
    let flags = open_flag::DIRECT_IO | open_flag::NO_FLUSH | open_flag::PARALLEL_DIRECT_WRITES;
    Out::default().u64(0).u32(flags).zeroes(4).0
}

/// Encodes `struct fuse_open_out` of the folder.
pub(super) fn open_folder_answer() -> Vec<u8> {
    Out::default().zeroes(16).0
}

/// Encodes `struct fuse_write_out`, which reports the number of bytes written.
pub(super) fn write_answer(bytes: u64) -> Vec<u8> {
    Out::default().u32(bytes as u32).zeroes(4).0
}

/// Encodes `struct fuse_lseek_out`.
pub(super) fn seek_answer(offset: u64) -> Vec<u8> {
    Out::default().u64(offset).0
}

#[cfg(test)]
mod tests;
