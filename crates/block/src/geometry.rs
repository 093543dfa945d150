//! Size, limits and abilities of a device. The geometry of a stack is computed from that of its
//! children, as the kernel stacks queue limits.

use std::cell::OnceCell;

use crate::error::{IoError, OpenError};
use crate::request::{BLOCK_BYTES, BorrowedWrite, Op, Request};

/// Size, alignment and abilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Unit of the offsets and lengths of requests, in bytes; a power of two from 1 to 4096.
    pub block_bytes: u32,
    /// Size in bytes of a physical block, a power of two. For a shorter write, the device itself
    /// has to do a read-modify-write.
    pub physical_bytes: u32,
    /// Size of the requests that the device executes best (a stripe unit, a flash page), in bytes;
    /// a power of two.
    pub preferred_bytes: u32,
    /// Maximum length in bytes of a read or write.
    pub transfer_bytes_max: u32,
    /// False when the device refuses changes.
    pub writable: bool,
    /// True when a discarded range reads as zeroes afterwards.
    pub discard_zeroes: bool,
    /// True when the device gains from being told which content is no longer needed, as flash does.
    /// Without this, a discard is accepted, but it may do nothing, or cost more than it gains.
    pub wants_discards: bool,
    /// True when the device has moving heads, so that sequential access is faster than random
    /// access.
    pub rotational: bool,
    /// Whether a write may fail because the device has no room for its content, although its range
    /// lies inside the device.
    pub limited_room: bool,
    /// Start of content that existed before the device became a side of a mirror; `None` if there
    /// is no such content, so that a side can place its areas anywhere. The content ends before the
    /// last block. The areas of the side must fit before this offset, except for the copy of the
    /// superblock in the last block.
    pub content_offset_bytes: Option<u64>,
    /// Number of bytes of the device after its last whole block of 4 KiB, which are not accessible.
    /// A device with such bytes must not be exported as a whole.
    pub tail_bytes: u64,
}

/// Length of the longest transfer that a layer must accept, unless its geometry gives a smaller
/// limit.
pub const TRANSFER_BYTES_MAX: u32 = 32 << 20;

impl Geometry {
    /// Returns the geometry of a writable device of whole 4-KiB blocks.
    pub fn of_size(size_bytes: u64) -> Geometry {
        Geometry {
            size_bytes,
            block_bytes: BLOCK_BYTES as u32,
            physical_bytes: BLOCK_BYTES as u32,
            preferred_bytes: BLOCK_BYTES as u32,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            writable: true,
            discard_zeroes: true,
            wants_discards: true,
            rotational: false,
            limited_room: false,
            content_offset_bytes: None,
            tail_bytes: 0,
        }
    }

    /// Returns the geometry of a device of `size_bytes` bytes of which only whole blocks of 4 KiB
    /// are presented. The bytes after the last whole block are counted as `tail_bytes`.
    pub fn of_whole_blocks(size_bytes: u64) -> Geometry {
        let tail_bytes = size_bytes % BLOCK_BYTES;
        Geometry {
            tail_bytes,
            ..Geometry::of_size(size_bytes - tail_bytes)
        }
    }

    /// Checks that all bytes of the device are accessible, including its last bytes.
    ///
    /// # Errors
    /// One line that says which bytes would be missing, and the remedy.
    pub fn check_whole(&self) -> Result<(), OpenError> {
        if self.tail_bytes == 0 {
            return Ok(());
        }
        let (tail, all) = (self.tail_bytes, self.size_bytes + self.tail_bytes);
        Err(OpenError::new(format!(
            "has {all} bytes, which is not a multiple of 4 KiB, so its last {tail} bytes would be \
            unreachable; resize it, or set `drop_tail = true` on its medium if these bytes hold no \
            data (a GPT has its backup at the end)"
        )))
    }

    /// Returns the geometry of a layer that spreads requests over several children: the strictest
    /// of the children's limits, and the smallest of their sizes.
    ///
    /// # Panics
    /// When there are no children.
    pub fn stacked<'a>(children: impl IntoIterator<Item = &'a Geometry>) -> Geometry {
        children
            .into_iter()
            .copied()
            .reduce(|a, b| Geometry {
                size_bytes: a.size_bytes.min(b.size_bytes),
                block_bytes: a.block_bytes.max(b.block_bytes),
                physical_bytes: a.physical_bytes.max(b.physical_bytes),
                preferred_bytes: a.preferred_bytes.max(b.preferred_bytes),
                transfer_bytes_max: a.transfer_bytes_max.min(b.transfer_bytes_max),
                writable: a.writable && b.writable,
                discard_zeroes: a.discard_zeroes && b.discard_zeroes,
                wants_discards: a.wants_discards && b.wants_discards,
                rotational: a.rotational || b.rotational,
                limited_room: a.limited_room || b.limited_room,
                content_offset_bytes: None,
                tail_bytes: 0,
            })
            .map(|all| Geometry {
                // `content_offset_bytes` and `tail_bytes` are reset even for a single child,
                // because the layer places its data differently on the child.
                content_offset_bytes: None,
                tail_bytes: 0,
                ..all
            })
            .expect("a layer has a child")
    }

    /// Checks a request against this geometry. The edges of a stack, such as exports, make this
    /// check, so a device can rely on it.
    ///
    /// # Errors
    /// `OutOfRange`, `Misaligned`, `ReadOnly`, or `Resource` when the request is longer than
    /// `transfer_bytes_max`.
    pub fn check(&self, request: &Request) -> Result<(), IoError> {
        self.check_range(request.op, request.offset, request.len)?;
        if request.op == Op::Write && request.payload.len() as u64 != request.len {
            return Err(IoError::Misaligned);
        }
        Ok(())
    }

    /// Checks a write of borrowed bytes against this geometry.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check).
    pub fn check_borrowed(&self, write: &BorrowedWrite<'_>) -> Result<(), IoError> {
        self.check_range(Op::Write, write.offset, write.bytes.len() as u64)
    }

    fn check_range(&self, op: Op, offset: u64, len: u64) -> Result<(), IoError> {
        if op == Op::Flush {
            return Ok(());
        }
        let end = offset.checked_add(len).ok_or(IoError::OutOfRange)?;
        if end > self.size_bytes {
            return Err(IoError::OutOfRange);
        }
        let mask = u64::from(self.block_bytes) - 1;
        if (offset | len) & mask != 0 {
            return Err(IoError::Misaligned);
        }
        if op.changes_content() && !self.writable {
            return Err(IoError::ReadOnly);
        }
        let transfers = matches!(op, Op::Read | Op::Write);
        if transfers && len > u64::from(self.transfer_bytes_max) {
            return Err(IoError::Resource);
        }
        Ok(())
    }
}

/// The geometry of a device that can grow while it is open. A reference returned earlier keeps its
/// old value.
pub struct GrowingGeometry {
    geometry: Geometry,
    next: OnceCell<Box<GrowingGeometry>>,
}

impl GrowingGeometry {
    /// Creates a geometry with the given initial value.
    pub fn new(geometry: Geometry) -> GrowingGeometry {
        GrowingGeometry {
            geometry,
            next: OnceCell::new(),
        }
    }

    fn newest(&self) -> &GrowingGeometry {
        let mut newest = self;
        while let Some(next) = newest.next.get() {
            newest = next;
        }
        newest
    }

    /// Returns the current geometry.
    pub fn get(&self) -> &Geometry {
        &self.newest().geometry
    }

    /// Raises the size to at least `size_bytes` and returns the resulting geometry.
    pub fn grow_to(&self, size_bytes: u64) -> &Geometry {
        let newest = self.newest();
        if size_bytes <= newest.geometry.size_bytes {
            return &newest.geometry;
        }
        let grown = Geometry {
            size_bytes,
            ..newest.geometry
        };
        let next = || Box::new(GrowingGeometry::new(grown));
        &newest.next.get_or_init(next).geometry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Flags;

    #[test]
    fn stacking_takes_the_strictest() {
        let flash = Geometry {
            block_bytes: 512,
            ..Geometry::of_size(1 << 20)
        };
        let disk = Geometry {
            rotational: true,
            discard_zeroes: false,
            physical_bytes: 16384,
            ..Geometry::of_whole_blocks((9 << 20) + 512)
        };
        assert_eq!((disk.size_bytes, disk.tail_bytes), (9 << 20, 512));
        let both = Geometry::stacked([&flash, &disk]);
        assert_eq!((both.size_bytes, both.block_bytes), (1 << 20, 4096));
        assert!(both.rotational && !both.discard_zeroes && both.writable);
        // A device made of several children has no tail of its own, so the tails of the children
        // are ignored.
        assert_eq!((both.physical_bytes, both.tail_bytes), (16384, 0));
    }

    #[test]
    fn a_size_only_grows() {
        let growing = GrowingGeometry::new(Geometry::of_size(8192));
        let before = growing.get();
        for (asked, size_bytes) in [
            (4096, 8192),
            (12288, 12288),
            (8192, 12288),
            (1 << 20, 1 << 20),
        ] {
            assert_eq!(growing.grow_to(asked).size_bytes, size_bytes);
            assert_eq!(*growing.get(), Geometry::of_size(size_bytes));
        }
        assert_eq!(before.size_bytes, 8192);
    }

    #[test]
    fn requests_are_checked() {
        let geometry = Geometry {
            transfer_bytes_max: 8192,
            ..Geometry::of_size(64 << 10)
        };
        let check =
            |op, offset, len| geometry.check(&Request::without_data(op, offset, len, Flags::NONE));
        assert_eq!(check(Op::Read, 0, 4096), Ok(()));
        assert_eq!(check(Op::Read, 1, 4096), Err(IoError::Misaligned));
        assert_eq!(check(Op::Read, 60 << 10, 8192), Err(IoError::OutOfRange));
        assert_eq!(
            check(Op::Read, u64::MAX - 4095, 4096),
            Err(IoError::OutOfRange)
        );
        assert_eq!(check(Op::Read, 0, 12288), Err(IoError::Resource));
        assert_eq!(check(Op::Discard, 0, 64 << 10), Ok(()));
        let frozen = Geometry {
            writable: false,
            ..geometry
        };
        let zeroes = Request::without_data(Op::WriteZeroes, 0, 4096, Flags::NONE);
        assert_eq!(frozen.check(&zeroes), Err(IoError::ReadOnly));
    }
}
