//! Memory for images: blocks out of chunks that the kernel may back with huge pages.
//!
//! A get goes from the root to a leaf whose bytes lie anywhere in the memory of an index. Where
//! that is many small pages, the processor does not know most of them when it is asked for one, and
//! walks its page tables, which on a virtual machine takes longer than the bytes themselves. A
//! general allocator gives no such pages unless the whole program asks for them; so images have
//! memory of their own, one for all indexes of a process, like the allocator's.
//!
//! This module may use `unsafe`: it owns raw memory. Which ranges are free is reckoned in numbers,
//! beside the memory ([`Ranges`]). Two blocks must never overlap; bytes never change from when they
//! are shared until the last holder has gone; and no chunk goes back to the kernel while a block in
//! it is left.

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

/// What lengths of blocks are rounded up to: a line of the processor's caches.
const UNIT_BYTES: usize = 64;

/// A huge page of x86-64 and, with pages of 4 KiB, of AArch64.
const HUGE_PAGE_BYTES: usize = 2 << 20;

const UNITS_PER_PAGE: u32 = (HUGE_PAGE_BYTES / UNIT_BYTES) as u32;

/// All memory for images. Nobody waits with this lock held, and what it guards changes no answer,
/// so tests of interleavings need not see it.
static ARENA: Mutex<Arena> = Mutex::new(Arena {
    ranges: Ranges::new(),
    kept: Kept::new(),
    chunks: Vec::new(),
});

struct Arena {
    ranges: Ranges,
    /// Taken, as far as `ranges` knows.
    kept: Kept,
    /// By number; `None` where one was given back.
    chunks: Vec<Option<Chunk>>,
}

/// Mapped memory of whole huge pages, beginning with one.
struct Chunk {
    start: NonNull<u8>,
    units: u32,
}

// SAFETY: a chunk is plain memory that belongs to no thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Memory of zeroes.
    fn map(units: u32) -> Chunk {
        let bytes = units as usize * UNIT_BYTES;
        // A mapping begins with any page: this one is longer, and what is too much goes back.
        let mapped_bytes = bytes + HUGE_PAGE_BYTES;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping, at no address that is asked for.
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
        // Without huge pages gets are slower and nothing else changes, so it does not matter if the
        // kernel has none. SAFETY: the advice concerns the mapping from above and keeps its
        // content.
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

/// Gives a part of a mapping of [`Chunk::map`] back that nothing is in.
fn unmap(start: *mut c_void, bytes: usize) {
    if bytes > 0 {
        // Where a process has as many mappings as it may have, the part stays mapped and unused:
        // nothing to die for. SAFETY: the callers own the part, and no block is in it.
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
        // SAFETY: the range is inside of the chunk.
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

/// Memory of somebody's own, until it is dropped.
struct Block {
    start: NonNull<u8>,
    range: Range,
}

impl Block {
    /// Memory of at least that many bytes. What is in it is unknown.
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

/// A value with bytes behind it, in one piece of the memory for images, and counted as
/// [`Arc`](std::sync::Arc) counts: what is looked at together lies together, and there is one
/// address less to wait for.
pub(super) struct Shared<T> {
    head: NonNull<Head<T>>,
    owned: PhantomData<Head<T>>,
}

/// What the block begins with. The tail begins where it ends.
#[repr(C)]
struct Head<T> {
    holders: AtomicU32,
    tail_len: u32,
    value: T,
    /// The memory that all this is in.
    block: Block,
}

// SAFETY: holders on several threads share the value by reference, and any of them may drop it, as
// with `Arc`; the tail is only read until then.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

/// More holders than this are references that were forgotten.
const HOLDERS_MAX: u32 = i32::MAX as u32;

impl<T> Shared<T> {
    /// A copy of `bytes` with `padding` zeroes behind them, and the value that is made of the bytes
    /// and the padding.
    ///
    /// # Errors
    ///
    /// Those of `make`.
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
        // SAFETY: the block is nobody else's and has room for the head and `len` bytes behind it;
        // and bytes of somebody else cannot be in it.
        let tail = unsafe {
            let tail = start.add(size_of::<Head<T>>());
            tail.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            tail.add(bytes.len()).write_bytes(0, padding);
            std::slice::from_raw_parts(tail.as_ptr(), len)
        };
        let value = make(tail)?;
        let head = start.cast::<Head<T>>();
        let holders = AtomicU32::new(1);
        // SAFETY: the block is aligned to a unit, which is enough, and has room for the head, which
        // the tail is not in.
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
        // SAFETY: it is there as long as there are holders, and this is one.
        unsafe { self.head.as_ref() }
    }

    /// The bytes behind the value, and the padding.
    #[inline(always)]
    pub fn tail(&self) -> &[u8] {
        let len = self.head().tail_len as usize;
        // SAFETY: that many bytes were written behind the head when it was made, and nobody changes
        // them.
        unsafe {
            let tail = self.head.cast::<u8>().add(size_of::<Head<T>>());
            std::slice::from_raw_parts(tail.as_ptr(), len)
        }
    }

    /// Has the processor fetch the first lines of the value and the bytes behind it, all at once: a
    /// search would wait for each before it knows which it needs next. Nothing is slower by it
    /// where they are at hand.
    #[inline(always)]
    pub fn fetch_ahead(&self) {
        let start = self.head.as_ptr().cast::<u8>();
        for line in 0..AHEAD_LINES {
            fetch(start.wrapping_add(line * UNIT_BYTES));
        }
    }

    /// Bytes of memory that it takes, all in all.
    pub fn memory_bytes(&self) -> usize {
        self.head().block.range.units as usize * UNIT_BYTES
    }
}

/// Lines that are fetched ahead: with half as many gets of records of 16+100 bytes were a tenth
/// slower, with half as many again no faster.
const AHEAD_LINES: usize = 12;

/// Tells the processor of a line that may be needed.
#[inline(always)]
fn fetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is part of SSE, which x86-64 has, and does nothing where no memory
    // is.
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
        // Whoever has a holder can make another without seeing what others have done.
        let before = self.head().holders.fetch_add(1, Ordering::Relaxed);
        if before > HOLDERS_MAX {
            // A panic could be caught, and the count would go on.
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
        // What the others did with the value has happened before it goes.
        fence(Ordering::Acquire);
        // SAFETY: this was the last holder. The head is moved out before it is dropped, because its
        // block gives the memory back that it is in.
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
