//! Memory for images: blocks in chunks that the kernel can back with huge pages.
//!
//! A get descends from the root to a leaf, and the images on that path lie anywhere in the memory
//! of an index. With many small pages, most accesses miss the TLB, and the processor walks its page
//! tables. On a virtual machine that walk takes longer than reading the bytes. A general allocator
//! provides huge pages only if the whole program asks for them. So images have an allocator of
//! their own, one for all indexes of a process.
//!
//! This module is allowed to use `unsafe`, because it owns raw memory. [`Ranges`] tracks the free
//! ranges as numbers, outside the memory itself. Two blocks must never overlap. Bytes must not
//! change from the time they are shared until the last holder is dropped. A chunk must not be
//! unmapped while it contains a block.

mod kept;
mod ranges;

use kept::Kept;
use parking_lot::Mutex;
use ranges::{Range, Ranges};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::alloc::Layout;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Granularity of the lengths of blocks: a cache line.
const UNIT_BYTES: usize = 64;

/// Length of a huge page on x86-64 and, with pages of 4 KiB, on AArch64.
const HUGE_PAGE_BYTES: usize = 2 << 20;

const UNITS_PER_PAGE: u32 = (HUGE_PAGE_BYTES / UNIT_BYTES) as u32;

/// All memory for images. A thread never waits for another event while it holds this lock. The
/// result of an operation of the index does not depend on the state under the lock. So the tests of
/// interleavings need not control this lock.
static ARENA: Mutex<Arena> = Mutex::new(Arena {
    ranges: Ranges::new(),
    kept: Kept::new(),
    chunks: Vec::new(),
});

struct Arena {
    ranges: Ranges,
    /// Cache of freed ranges, which `ranges` counts as allocated.
    kept: Kept,
    /// Chunks by number; `None` where a chunk was unmapped.
    chunks: Vec<Option<Chunk>>,
}

/// Mapped memory of whole huge pages, aligned to a huge page.
struct Chunk {
    start: NonNull<u8>,
    units: u32,
}

// SAFETY: a chunk is plain memory that belongs to no thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Maps a chunk of `units` units of zeroes.
    fn map(units: u32) -> Chunk {
        let bytes = units as usize * UNIT_BYTES;
        // A chunk must begin at the boundary of a huge page, but the kernel may place a mapping at
        // any page. So the mapping is made longer than the chunk, and the excess is unmapped.
        let mapped_bytes = bytes + HUGE_PAGE_BYTES;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: this is a fresh private mapping at an address that the kernel chooses.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                access,
                MapFlags::PRIVATE,
            )
        };
        let Ok(mapped) = mapped else {
            let layout = Layout::from_size_align(bytes, HUGE_PAGE_BYTES);
            std::alloc::handle_alloc_error(layout.expect("a chunk fits the address space"))
        };
        let before = mapped.align_offset(HUGE_PAGE_BYTES);
        let start = mapped.wrapping_byte_add(before);
        unmap(mapped, before);
        unmap(start.wrapping_byte_add(bytes), HUGE_PAGE_BYTES - before);
        // Huge pages only make gets faster, so the result does not matter. SAFETY: the advice
        // applies to the mapping from above and keeps its content.
        let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxHugepage) };
        Chunk {
            start: NonNull::new(start.cast()).expect("a mapping is not at address 0"),
            units,
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let bytes = self.units as usize * UNIT_BYTES;
        unmap(self.start.as_ptr().cast(), bytes);
    }
}

/// Unmaps a part of a mapping of [`Chunk::map`]. The part must contain no block.
fn unmap(start: *mut c_void, bytes: usize) {
    if bytes > 0 {
        // The call fails if the process has reached its limit of mappings. The part then stays
        // mapped and unused, which is no reason to panic. SAFETY: the callers own the part, and it
        // contains no block.
        let _ = unsafe { rustix::mm::munmap(start, bytes) };
    }
}

impl Arena {
    fn take(&mut self, units: u32) -> (Range, NonNull<u8>) {
        let free = self.kept.take(units).or_else(|| self.ranges.take(units));
        let range = free.unwrap_or_else(|| {
            let chunk = Chunk::map(units.next_multiple_of(UNITS_PER_PAGE));
            let free = self.chunks.iter().position(Option::is_none);
            let number = free.unwrap_or(self.chunks.len());
            if free.is_none() {
                self.chunks.push(None);
            }
            self.ranges.add_chunk(number as u32, chunk.units);
            self.chunks[number] = Some(chunk);
            let taken = self.ranges.take(units);
            taken.expect("there is a chunk with that much")
        });
        let chunk = self.chunks[range.chunk as usize].as_ref();
        let start = chunk.expect("ranges are of chunks that are there").start;
        // SAFETY: the range is inside the chunk.
        let start = unsafe { start.add(range.at as usize * UNIT_BYTES) };
        (range, start)
    }

    fn give_back(&mut self, range: Range) {
        if self.kept.keep(range) {
            return;
        }
        for range in self.kept.drain().chain([range]) {
            if let Some(chunk) = self.ranges.give_back(range) {
                self.chunks[chunk as usize] = None;
            }
        }
    }
}

/// Memory with one owner, freed when the block is dropped.
struct Block {
    start: NonNull<u8>,
    range: Range,
}

impl Block {
    /// Allocates at least `bytes` bytes. Their content is unknown.
    fn of(bytes: usize) -> Block {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES));
        let units = units.expect("images are shorter than 256 GiB").max(1);
        let (range, start) = ARENA.lock().take(units);
        Block { start, range }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        ARENA.lock().give_back(self.range);
    }
}

/// Reference-counted value with bytes after it, in one block of the memory for images. Holders are
/// counted as in [`Arc`](std::sync::Arc). The value and the bytes are adjacent because they are
/// read together, which also saves following a pointer.
pub(super) struct Shared<T> {
    head: NonNull<Head<T>>,
    owned: PhantomData<Head<T>>,
}

/// Start of the block. The tail begins where the head ends.
#[repr(C)]
struct Head<T> {
    holders: AtomicU32,
    tail_len: u32,
    value: T,
    /// Block that contains this head and its tail.
    block: Block,
}

// SAFETY: holders on several threads share the value by reference, and the last holder drops it on
// its own thread, as with `Arc`. The tail is only read until the value is dropped.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as for `Send`: the value is shared by reference, and the tail is only read.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

/// Limit on the number of holders; a higher count means that references were leaked.
const HOLDERS_MAX: u32 = i32::MAX as u32;

impl<T> Shared<T> {
    /// Copies `bytes` into a block, followed by `padding` zeroes. Then calls `make` with the copied
    /// bytes and the zeroes; `make` returns the value to be shared.
    ///
    /// # Errors
    ///
    /// Returns the error of `make`.
    pub fn new<E>(
        bytes: &[u8],
        padding: usize,
        make: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<Shared<T>, E> {
        const {
            assert!(
                align_of::<Head<T>>() <= UNIT_BYTES,
                "blocks begin with units"
            );
        }
        let len = bytes.len() + padding;
        let tail_len = u32::try_from(len).expect("images are shorter than 4 GiB");
        let block = Block::of(size_of::<Head<T>>() + len);
        let start = block.start;
        // SAFETY: the block has no other user, and has room for the head and `len` bytes after it.
        // `bytes` has another owner, so it cannot overlap the block.
        let tail = unsafe {
            let tail = start.add(size_of::<Head<T>>());
            tail.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            tail.add(bytes.len()).write_bytes(0, padding);
            std::slice::from_raw_parts(tail.as_ptr(), len)
        };
        let value = make(tail)?;
        let head = start.cast::<Head<T>>();
        let holders = AtomicU32::new(1);
        // SAFETY: the start of the block is aligned to a unit, which suffices for the head. The
        // block has room for the head, and the head does not overlap the tail.
        unsafe {
            head.write(Head {
                holders,
                tail_len,
                value,
                block,
            });
        }
        Ok(Shared {
            head,
            owned: PhantomData,
        })
    }

    #[inline(always)]
    fn head(&self) -> &Head<T> {
        // SAFETY: the head exists as long as there are holders, and `self` is a holder.
        unsafe { self.head.as_ref() }
    }

    /// Returns the bytes after the value, and the padding.
    #[inline(always)]
    pub fn tail(&self) -> &[u8] {
        let len = self.head().tail_len as usize;
        // SAFETY: `tail_len` bytes were written directly behind the head before the head was made.
        // These bytes never change.
        unsafe {
            let tail = self.head.cast::<u8>().add(size_of::<Head<T>>());
            std::slice::from_raw_parts(tail.as_ptr(), len)
        }
    }

    /// Prefetches the first cache lines of the value and of the bytes after it, without waiting for
    /// one line before the next. Otherwise a search would wait for each line before it knows which
    /// line it needs next. If the lines are in the cache already, the call slows nothing down.
    #[inline(always)]
    pub fn fetch_ahead(&self) {
        let start = self.head.as_ptr().cast::<u8>();
        for line in 0..AHEAD_LINES {
            fetch(start.wrapping_add(line * UNIT_BYTES));
        }
    }

    /// Returns the memory of the whole block in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.head().block.range.units as usize * UNIT_BYTES
    }
}

/// Number of cache lines to prefetch. With half this number, gets of records of 16+100 bytes were a
/// tenth slower. With one and a half times this number, gets were no faster.
const AHEAD_LINES: usize = 12;

/// Hints to the processor that a cache line may be needed.
#[inline(always)]
fn fetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is part of SSE, which x86-64 has, and does nothing if no memory is at
    // the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.head().value
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        // A holder can create another holder without seeing the writes of other holders, so relaxed
        // order is enough.
        let before = self.head().holders.fetch_add(1, Ordering::Relaxed);
        if before > HOLDERS_MAX {
            // Too many holders: the count could overflow. Abort the process, because a panic could
            // be caught, and then the count would continue to grow.
            std::process::abort();
        }
        Shared {
            head: self.head,
            owned: PhantomData,
        }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if self.head().holders.fetch_sub(1, Ordering::Release) > 1 {
            return;
        }
        // Every access to the value by another holder must happen before the value is dropped. The
        // fence ensures this.
        fence(Ordering::Acquire);
        // SAFETY: this was the last holder. The head is moved out of its block before it is
        // dropped, because dropping the head frees that block.
        drop(unsafe { self.head.read() });
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} and {} bytes", &**self, self.tail().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn shared<T>(bytes: &[u8], padding: usize, value: T) -> Shared<T> {
        let made = Shared::new(bytes, padding, |tail| match tail.len() {
            len if len == bytes.len() + padding => Ok(value),
            len => Err(len),
        });
        made.expect("bytes and padding are shown")
    }

    #[test]
    fn it_begins_with_a_line_and_ends_with_zeroes() {
        let leaf = shared(b"leaf", 8, 7_u64);
        assert_eq!((*leaf, leaf.tail()), (7, &b"leaf\0\0\0\0\0\0\0\0"[..]));
        assert_eq!(leaf.head.as_ptr() as usize % UNIT_BYTES, 0);
        assert_eq!(leaf.memory_bytes(), 64);
        assert_eq!(shared(&[], 0, ()).tail().len(), 0);
        let long = vec![7; 3 * HUGE_PAGE_BYTES];
        let shared = shared(&long, 8, ());
        assert_eq!(&shared.tail()[..long.len()], &long);
        assert_eq!(&shared.tail()[long.len()..], &[0; 8]);
    }

    #[test]
    fn the_last_holder_drops_it_and_a_failure_keeps_nothing() {
        let value = Arc::new(());
        let one = shared(b"image", 0, Arc::clone(&value));
        let other = one.clone();
        drop(one);
        assert_eq!(
            (Arc::strong_count(&value), other.tail()),
            (2, &b"image"[..])
        );
        drop(other);
        assert_eq!(Arc::strong_count(&value), 1);
        let failed: Result<Shared<()>, usize> = Shared::new(b"image", 1, |tail| Err(tail.len()));
        assert_eq!(failed.err(), Some(6));
    }

    proptest! {
        #[test]
        fn blocks_keep_their_bytes(
            steps in vec((0..40_usize, 0..200_000_usize, any::<u8>()), 0..300),
        ) {
            let mut blocks: Vec<Option<(Shared<usize>, u8)>> = (0..40).map(|_| None).collect();
            let is_whole = |(shared, byte): &(Shared<usize>, u8)| {
                let (bytes, padding) = shared.tail().split_at(**shared);
                bytes.iter().all(|b| b == byte) && padding == [0; 8]
            };
            for (slot, len, byte) in steps {
                let made = (shared(&vec![byte; len], 8, len), byte);
                let old = blocks[slot].replace(made);
                prop_assert!(old.as_ref().is_none_or(is_whole));
                if byte % 4 == 0 {
                    blocks[slot] = None;
                }
            }
            prop_assert!(blocks.iter().flatten().all(is_whole));
        }
    }

    #[test]
    fn threads_share_it() {
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                scope.spawn(move || {
                    let mut blocks = Vec::new();
                    for round in 0..2_000_usize {
                        let made = shared(&vec![thread; round * 7 % 5_000], 0, thread);
                        blocks.push(made.clone());
                        if round % 3 == 0 {
                            blocks.swap_remove(round % blocks.len());
                        }
                    }
                    let is_own = |made: &Shared<u8>| made.tail().iter().all(|byte| *byte == **made);
                    assert!(blocks.iter().all(is_own));
                });
            }
        });
    }
}
