//! The addresses of a pool's region, and the memory behind its pieces.
//!
//! All addresses are reserved at the start, so that a buffer's place tells whether the kernel knows
//! its memory. A piece without memory must never be handed out.

use std::io;
use std::ptr::NonNull;

use super::{ALIGNMENT, BLOCK_BYTES_MAX};

/// Reserved addresses of a region.
pub(super) struct Region {
    /// Start of the region; dangling when it is empty.
    start: NonNull<u8>,
    bytes: usize,
}

impl Region {
    /// Returns the region of a pool that has none.
    pub(super) fn none() -> Region {
        Region {
            start: NonNull::dangling(),
            bytes: 0,
        }
    }

    /// Reserves `bytes`, of which the first `usable_bytes` can be used. Both must be multiples of
    /// [`BLOCK_BYTES_MAX`].
    ///
    /// # Errors
    /// If the kernel refuses the memory.
    pub(super) fn new(bytes: usize, usable_bytes: usize) -> io::Result<Region> {
        assert!(usable_bytes <= bytes, "a region has what it begins with");
        if bytes == 0 {
            return Ok(Region::none());
        }
        // SAFETY: a fresh private mapping at no requested address; the result is checked.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping is not at address zero");
        let region = Region { start, bytes };
        if usable_bytes > 0 {
            replace(region.address(), usable_bytes, true)?;
        }
        Ok(region)
    }

    /// Returns the size of the region in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the first byte.
    pub(super) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Returns the address of a byte of the region.
    ///
    /// # Panics
    /// If the region has no such byte.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.bytes, "a buffer is inside the region");
        // SAFETY: the offset is inside the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: `Region::new` mapped the region with this length. Every block holds a
            // reference to the state that owns the region. That state is being dropped, so no block
            // exists any more.
            let result = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
            assert_eq!(result, 0, "unmapping the buffer region failed");
        }
    }
}

/// Replaces the mapping of a part of a region by a fresh one, whose bytes are zeroes if it is
/// usable, and otherwise take only addresses.
fn replace(address: usize, bytes: usize, is_usable: bool) -> io::Result<()> {
    let (protection, reserve) = match is_usable {
        true => (libc::PROT_READ | libc::PROT_WRITE, 0),
        false => (libc::PROT_NONE, libc::MAP_NORESERVE),
    };
    // SAFETY: the callers pass addresses inside a region, of which no buffer is in use.
    let result = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | reserve,
            -1,
            0,
        )
    };
    match result == libc::MAP_FAILED {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}

/// Gives memory to the piece of a region at `address`, and touches all of it, so that its use
/// causes no page fault. May wait for the kernel to free memory. The piece must not be part of the
/// pool, and the pool must exist until this returns.
///
/// # Errors
/// If the kernel has no memory, or a limit forbids it. The piece then has no memory.
pub(crate) fn map_piece(address: usize) -> io::Result<()> {
    replace(address, BLOCK_BYTES_MAX, true)?;
    // SAFETY: the piece was mapped above, and no buffer is in it.
    let populated = unsafe {
        let start = address as *mut libc::c_void;
        libc::madvise(start, BLOCK_BYTES_MAX, libc::MADV_POPULATE_WRITE)
    };
    if populated == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EINVAL) {
        unmap_piece(address)?;
        return Err(error);
    }
    // The kernel is older than 5.14.
    for offset in (0..BLOCK_BYTES_MAX).step_by(ALIGNMENT) {
        // SAFETY: the byte is in the piece that was mapped above.
        unsafe { ((address + offset) as *mut u8).write_volatile(0) };
    }
    Ok(())
}

/// Takes the memory from the piece of a region at `address`, which must have left the pool.
///
/// # Errors
/// If the kernel refuses; the piece then has its memory.
pub(crate) fn unmap_piece(address: usize) -> io::Result<()> {
    replace(address, BLOCK_BYTES_MAX, false)
}
