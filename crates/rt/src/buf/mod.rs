//! Buffers for direct I/O: aligned, pooled, shared without copying, and safe to hand to the kernel.
//!
//! A [`BufMut`] is the only handle to its bytes and can be filled. Freezing a `BufMut` gives a
//! [`Buf`], an immutable slice that is cloned by reference counting. A [`Payload`] is a list of
//! such slices, so that a layer can split, merge and keep data without copying it. All three types
//! stay on their thread; a [`DetachedBuf`] is a copy that can move to another thread.
//!
//! The pool allocates power-of-two blocks from one region that is registered with the ring (a buddy
//! allocator). [`BufPool::alloc_now`] never waits and falls back to the heap. The components at the
//! edge of the process, such as exports, reserve memory for a request's data before they admit the
//! request. The memory used by the layers is therefore bounded by the admitted requests. A layer
//! must not wait for memory while it holds buffers, since it could wait for its own buffers.
//! [`BufPool::alloc`] waits for room in the region and is meant for edge components that hold no
//! buffers.
//!
//! A pool may [begin with a part](BufPool::growing) of its region and get the rest when it is used
//! ([`crate::growth`]). Components that admit requests must count on the part that is there only.
//!
//! This module may use `unsafe`: it owns raw memory. It must never hand out two handles that can
//! write the same bytes, and never free memory while an operation still owns it.

mod areas;
mod buddy;
mod detached;
mod payload;
mod region;

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use crate::sync::{Event, WaitQueue};
use areas::Areas;
use buddy::Buddy;
pub use detached::DetachedBuf;
pub use payload::Payload;
use region::Region;
pub(crate) use region::{map_piece, unmap_piece};

/// Alignment of every buffer and size of the pool's smallest block: one page, which satisfies the
/// direct-I/O alignment of every device with 512-byte or 4-KiB sectors.
pub const ALIGNMENT: usize = 4096;

/// Size of the largest block that the pool allocates from its region; larger buffers come from the
/// heap.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;

/// Part of the region that is present, in quarters, from which more of it is wanted when it is
/// allocated.
const WANTS_MORE_AT: usize = 3;

/// A component whose bounds depend on how much of the region of a pool is there.
pub trait Resized {
    /// Called when `present_bytes` of the region are there, after they were more or fewer.
    fn resized(&self, present_bytes: usize);
}

/// State that the handles to a pool share: the region, its allocator, and the amount of memory in
/// use.
struct PoolState {
    region: Region,
    /// Whether the region has each of its pieces of [`BLOCK_BYTES_MAX`].
    present: RefCell<Vec<bool>>,
    /// Number of bytes of the region that are there, at the start and now.
    initial_bytes: usize,
    present_bytes: Cell<usize>,
    /// Number of allocated pages from which more of the region is wanted.
    wants_more_pages: Cell<usize>,
    /// Whether more of the region was wanted since it last grew.
    is_more_wanted: Cell<bool>,
    more_wanted: Event,
    resized: RefCell<Vec<Weak<dyn Resized>>>,
    /// Bytes that all users of [`BufPool::deferred_share`] together may want; 0 if that is unknown.
    deferred_bytes: Cell<usize>,
    buddy: RefCell<Buddy>,
    heap_bytes: Cell<usize>,
    /// Allocator for blocks of one size, which would otherwise come from the heap. Only a pool [for
    /// content](BufPool::for_content) has this allocator.
    areas: Option<RefCell<Areas>>,
    /// Tasks that wait for room in the region, in order of arrival.
    waiting: WaitQueue,
}

/// A pool of aligned buffers. A clone is another handle to the same pool.
#[derive(Clone)]
pub struct BufPool(Rc<PoolState>);

/// One block of memory, allocated from the pool's region, the heap or an area.
struct Block {
    start: NonNull<u8>,
    capacity: usize,
    pool: Rc<PoolState>,
    home: Home,
}

/// The origin of a block's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Home {
    Region,
    Heap,
    Area,
}

impl Drop for Block {
    fn drop(&mut self) {
        let pool = &self.pool;
        if self.home != Home::Region {
            pool.heap_bytes.set(pool.heap_bytes.get() - self.capacity);
        }
        match self.home {
            // SAFETY: allocated by `BufPool::try_heap` or `Payload::detached` with the same layout,
            // and this is the last handle.
            Home::Heap => unsafe {
                std::alloc::dealloc(self.start.as_ptr(), heap_layout(self.capacity));
            },
            Home::Area => {
                let areas = pool.areas.as_ref().expect("the block came from them");
                areas.borrow_mut().give_back(self.start);
            }
            Home::Region => {
                let offset = self.start.as_ptr() as usize - pool.region.address();
                let mut buddy = pool.buddy.borrow_mut();
                buddy.free(offset / ALIGNMENT, self.capacity / ALIGNMENT);
            }
        }
        self.pool.waiting.wake_first();
    }
}

fn heap_layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, ALIGNMENT).expect("a buffer size fits a layout")
}

impl BufPool {
    /// Creates a pool over a region of `bytes`, rounded up to a multiple of [`BLOCK_BYTES_MAX`].
    ///
    /// # Errors
    /// If the kernel refuses the memory.
    pub fn new(bytes: usize) -> io::Result<BufPool> {
        BufPool::growing(bytes, bytes)
    }

    /// Creates a pool over a region of `bytes`, of which `bytes_at_start` are there from the start.
    /// Both are rounded up to a multiple of [`BLOCK_BYTES_MAX`]. The rest takes only addresses,
    /// until [`crate::growth`] gives it memory.
    ///
    /// # Errors
    /// If the kernel refuses the memory.
    pub fn growing(bytes: usize, bytes_at_start: usize) -> io::Result<BufPool> {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES_MAX);
        let at_start = bytes_at_start.min(bytes).next_multiple_of(BLOCK_BYTES_MAX);
        Ok(BufPool::over(Region::new(bytes, at_start)?, at_start, None))
    }

    /// Creates a pool without a region: every buffer comes from the heap.
    pub fn unregistered() -> BufPool {
        BufPool::over(Region::none(), 0, None)
    }

    /// Creates a pool for long-lived content. Buffers whose length, rounded up to whole pages, is
    /// `bytes` come from memory that the kernel can back with huge pages; all other buffers come
    /// from the heap. `bytes` must be a power of two from 4 KiB to 2 MiB.
    pub fn for_content(bytes: usize) -> BufPool {
        BufPool::over(Region::none(), 0, Some(Areas::new(bytes)))
    }

    fn over(region: Region, present_bytes: usize, areas: Option<Areas>) -> BufPool {
        let region_bytes = region.bytes();
        let pieces = region_bytes / BLOCK_BYTES_MAX;
        let present = (0..pieces).map(|piece| piece * BLOCK_BYTES_MAX < present_bytes);
        let pool = BufPool(Rc::new(PoolState {
            region,
            present: RefCell::new(present.collect()),
            initial_bytes: present_bytes,
            present_bytes: Cell::new(present_bytes),
            wants_more_pages: Cell::new(usize::MAX),
            is_more_wanted: Cell::new(false),
            more_wanted: Event::new(),
            resized: RefCell::default(),
            deferred_bytes: Cell::new(0),
            buddy: RefCell::new(Buddy::new(
                region_bytes / ALIGNMENT,
                present_bytes / ALIGNMENT,
                BLOCK_BYTES_MAX / ALIGNMENT,
            )),
            heap_bytes: Cell::new(0),
            areas: areas.map(RefCell::new),
            waiting: WaitQueue::new(),
        }));
        pool.note_size();
        pool
    }

    /// Allocates a buffer of `len` bytes from the region, and waits until there is room. Calls are
    /// served in order of arrival, so later calls for small buffers do not starve an earlier call
    /// for a large buffer. A buffer that never fits in the region is allocated from the heap
    /// without waiting. Only components at the edge of the process, such as exports, are allowed to
    /// call this, because they hold no buffers while they wait.
    pub async fn alloc(&self, len: usize) -> BufMut {
        if self.region_bytes() == 0 || block_bytes(len) > BLOCK_BYTES_MAX {
            return self.alloc_now(len);
        }
        self.0.waiting.in_turn(|| self.try_alloc(len)).await
    }

    /// Allocates a buffer of `len` bytes from the region; returns `None` when there is no room.
    pub fn try_alloc(&self, len: usize) -> Option<BufMut> {
        let capacity = block_bytes(len);
        if capacity > BLOCK_BYTES_MAX {
            return None;
        }
        let page = {
            let mut buddy = self.0.buddy.borrow_mut();
            let page = buddy.alloc(capacity / ALIGNMENT);
            if page.is_none() || buddy.used() >= self.0.wants_more_pages.get() {
                self.want_more();
            }
            page?
        };
        let start = self.0.region.at(page * ALIGNMENT);
        let block = Block {
            start,
            capacity,
            pool: Rc::clone(&self.0),
            home: Home::Region,
        };
        Some(BufMut {
            block: Rc::new(block),
            len,
        })
    }

    /// Allocates a buffer of `len` bytes, from the heap when the region is full. The content is
    /// unspecified but initialised: bytes of an earlier use, or zeroes.
    pub fn alloc_now(&self, len: usize) -> BufMut {
        self.try_alloc(len).unwrap_or_else(|| self.heap_block(len))
    }

    /// Returns a buffer of `len` zeroes.
    pub fn zeroed(&self, len: usize) -> Buf {
        let mut buf = self.alloc_now(len);
        buf.fill(0);
        buf.freeze()
    }

    /// Returns a buffer with a copy of `bytes`.
    pub fn copy_of(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.alloc_now(bytes.len());
        buf.copy_from_slice(bytes);
        buf.freeze()
    }

    /// Returns the number of bytes allocated from the region.
    pub fn region_bytes_used(&self) -> usize {
        self.0.buddy.borrow().used() * ALIGNMENT
    }

    /// Returns the number of bytes allocated outside the region, from the heap and from areas.
    pub fn heap_bytes_used(&self) -> usize {
        self.0.heap_bytes.get()
    }

    /// Returns the maximum size of the region in bytes.
    pub fn region_bytes(&self) -> usize {
        self.0.region.bytes()
    }

    /// Returns the number of bytes of the region that are there.
    pub fn present_bytes(&self) -> usize {
        self.0.present_bytes.get()
    }

    /// Returns the address of the region in memory and whether each of its pieces of
    /// [`BLOCK_BYTES_MAX`] is there, for their registration with the kernel.
    pub(crate) fn pieces(&self) -> (usize, Vec<bool>) {
        (self.0.region.address(), self.0.present.borrow().clone())
    }

    /// Says that more of the region is needed soon, if there is more of it.
    pub fn want_more(&self) {
        let pool = &self.0;
        let can_grow = pool.present_bytes.get() < self.region_bytes();
        if can_grow && !pool.is_more_wanted.replace(true) {
            pool.more_wanted.notify();
        }
    }

    /// Has a component called whenever the region has grown or shrunk, as long as it exists.
    pub fn when_resized(&self, component: Weak<dyn Resized>) {
        self.0.resized.borrow_mut().push(component);
    }

    /// Says how many bytes of buffers may be kept after their requests were answered, by all
    /// components together.
    pub fn set_deferred_bytes(&self, bytes: usize) {
        self.0.deferred_bytes.set(bytes);
    }

    /// Returns how many of the `wanted` bytes of buffers a component may keep now, after their
    /// requests were answered. A region that is not all there has room for a part of them only:
    /// for all components together at most a third of it.
    pub fn deferred_share(&self, wanted: u64) -> u64 {
        let pool = &self.0;
        let (present, all) = (pool.present_bytes.get(), pool.deferred_bytes.get() as u64);
        let third = present as u64 / 3;
        if present >= self.region_bytes() || all <= third {
            return wanted;
        }
        (u128::from(wanted) * u128::from(third) / u128::from(all)) as u64
    }

    /// Waits until more of the region is wanted.
    pub(crate) async fn more_wanted(&self) {
        let pool = &self.0;
        pool.more_wanted.until(|| pool.is_more_wanted.get()).await;
    }

    /// Returns the pieces by which the region grows next, as many as it has. Until they are
    /// [added](Self::add_piece), a further want counts.
    pub(crate) fn next_pieces(&self) -> Vec<usize> {
        let pool = &self.0;
        pool.is_more_wanted.set(false);
        let room_bytes = self.region_bytes() - pool.present_bytes.get();
        let count = pool.present_bytes.get().min(room_bytes) / BLOCK_BYTES_MAX;
        let present = pool.present.borrow();
        let absent = (0..present.len()).filter(|&piece| !present[piece]);
        absent.take(count).collect()
    }

    /// Returns the addresses of a piece of the region.
    pub(crate) fn piece_address(&self, piece: usize) -> usize {
        self.0.region.address() + piece * BLOCK_BYTES_MAX
    }

    /// Adds a piece that has [got memory](map_piece) to the region.
    pub(crate) fn add_piece(&self, piece: usize) {
        let was_present = std::mem::replace(&mut self.0.present.borrow_mut()[piece], true);
        assert!(!was_present, "a piece is added once");
        let page = piece * (BLOCK_BYTES_MAX / ALIGNMENT);
        self.0.buddy.borrow_mut().add(page);
        let present_bytes = self.present_bytes() + BLOCK_BYTES_MAX;
        self.0.present_bytes.set(present_bytes);
        self.was_resized();
        self.0.waiting.wake_first();
    }

    /// Takes those pieces out of the region that were not there from the start and that no buffer
    /// uses, if at most half of what was there at the start was in use since the last call. The
    /// caller must [unmap](unmap_piece) them, and may then add them again.
    pub(crate) fn take_idle_pieces(&self) -> Vec<usize> {
        let pool = &self.0;
        let initial = pool.initial_bytes / BLOCK_BYTES_MAX;
        let mut buddy = pool.buddy.borrow_mut();
        if buddy.forget_peak() * ALIGNMENT > pool.initial_bytes / 2 {
            return Vec::new();
        }
        let mut present = pool.present.borrow_mut();
        let mut taken = Vec::new();
        for piece in initial..present.len() {
            if present[piece] && buddy.remove(piece * (BLOCK_BYTES_MAX / ALIGNMENT)) {
                present[piece] = false;
                taken.push(piece);
            }
        }
        drop((buddy, present));
        if !taken.is_empty() {
            let left_bytes = self.present_bytes() - taken.len() * BLOCK_BYTES_MAX;
            pool.present_bytes.set(left_bytes);
            self.was_resized();
        }
        taken
    }

    /// Returns whether the region has more than at the start.
    pub(crate) fn has_grown(&self) -> bool {
        self.present_bytes() > self.0.initial_bytes
    }

    fn was_resized(&self) {
        self.note_size();
        let mut components = self.0.resized.borrow_mut();
        components.retain(|component| component.strong_count() > 0);
        let components = components.clone();
        for component in components.iter().filter_map(Weak::upgrade) {
            component.resized(self.present_bytes());
        }
    }

    /// Computes the use from which more of the region is wanted.
    fn note_size(&self) {
        let (present, max) = (self.present_bytes(), self.region_bytes());
        let pages = match present < max {
            true => present / ALIGNMENT / 4 * WANTS_MORE_AT,
            false => usize::MAX,
        };
        self.0.wants_more_pages.set(pages);
    }

    /// Returns the number of bytes of memory that `len` bytes of data occupy when they are split
    /// into buffers of at most [`BLOCK_BYTES_MAX`]. The size of each buffer is rounded up to a
    /// power of two, and to at least one page.
    pub fn footprint_bytes(len: u64) -> u64 {
        let whole = len / BLOCK_BYTES_MAX as u64 * BLOCK_BYTES_MAX as u64;
        let rest = (len - whole) as usize;
        whole
            + if rest > 0 {
                block_bytes(rest) as u64
            } else {
                0
            }
    }

    fn heap_block(&self, len: usize) -> BufMut {
        self.try_heap(len)
            .unwrap_or_else(|| std::alloc::handle_alloc_error(heap_layout(heap_bytes(len))))
    }

    /// Allocates a buffer of `len` zeroes outside the registered region. The buffer is taken from
    /// one of the pool's memory areas if its size, rounded up to whole pages, is the piece size of
    /// the areas. Otherwise it is taken from the heap. Returns `None` when there is no memory.
    pub fn try_heap(&self, len: usize) -> Option<BufMut> {
        let capacity = heap_bytes(len);
        let areas = self.0.areas.as_ref();
        let areas = areas.filter(|areas| areas.borrow().piece_bytes() == capacity);
        let (start, home) = match areas {
            Some(areas) => (areas.borrow_mut().take(), Home::Area),
            None => {
                // SAFETY: the layout has a size above zero.
                let start = unsafe { std::alloc::alloc_zeroed(heap_layout(capacity)) };
                (NonNull::new(start), Home::Heap)
            }
        };
        let start = start?;
        self.0.heap_bytes.set(self.0.heap_bytes.get() + capacity);
        let block = Block {
            start,
            capacity,
            pool: Rc::clone(&self.0),
            home,
        };
        Some(BufMut {
            block: Rc::new(block),
            len,
        })
    }
}

/// Returns the size of the heap allocation for a buffer of `len` bytes.
fn heap_bytes(len: usize) -> usize {
    len.max(1).next_multiple_of(ALIGNMENT)
}

/// Returns the size of the block that the region allocates for `len` bytes: a power of two of at
/// least one page.
fn block_bytes(len: usize) -> usize {
    len.max(ALIGNMENT)
        .checked_next_power_of_two()
        .unwrap_or(usize::MAX)
}

/// Exclusive handle to a buffer, through which its bytes can be written.
pub struct BufMut {
    block: Rc<Block>,
    len: usize,
}

impl BufMut {
    /// Makes the buffer immutable and shareable.
    pub fn freeze(self) -> Buf {
        let len = self.len;
        Buf {
            block: self.block,
            offset: 0,
            len,
        }
    }

    /// Shortens the buffer to `len` bytes.
    ///
    /// # Panics
    /// If `len` exceeds the buffer's length.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "a buffer cannot grow");
        self.len = len;
    }

    pub(crate) fn start(&mut self) -> *mut u8 {
        self.block.start.as_ptr()
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block is at least `len` long, was initialised when it was mapped or
        // allocated, and lives as long as this handle; no other handle writes to the block.
        unsafe { std::slice::from_raw_parts(self.block.start.as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block is initialised and at least `len` long, as in `deref`, and this handle
        // is the only one: a `BufMut` is neither cloned nor made from a `Buf` that shares its
        // block.
        unsafe { std::slice::from_raw_parts_mut(self.block.start.as_ptr(), self.len) }
    }
}

/// An immutable slice of a shared buffer.
#[derive(Clone)]
pub struct Buf {
    block: Rc<Block>,
    offset: usize,
    len: usize,
}

impl Buf {
    /// Returns the part of this slice in `range`. The part shares the memory of this slice.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a slice of a slice fits in it"
        );
        Buf {
            block: Rc::clone(&self.block),
            offset: self.offset + range.start,
            len: range.end - range.start,
        }
    }

    /// Returns the bytes for modification; `None` if another slice shares their memory.
    pub fn unshared(&mut self) -> Option<&mut [u8]> {
        let block = Rc::get_mut(&mut self.block)?;
        // SAFETY: `slice` keeps the range inside the block, and no other handle to the block
        // exists.
        unsafe {
            let start = block.start.as_ptr().add(self.offset);
            Some(std::slice::from_raw_parts_mut(start, self.len))
        }
    }

    /// Returns the address of the first byte, for the kernel.
    pub(crate) fn start(&self) -> *const u8 {
        self.as_ptr()
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `slice` keeps the range inside the block, and a frozen block has no writer.
        unsafe { std::slice::from_raw_parts(self.block.start.as_ptr().add(self.offset), self.len) }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rt, VirtualOptions};

    #[test]
    fn blocks_return_when_the_last_slice_goes() {
        let pool = BufPool::new(BLOCK_BYTES_MAX).unwrap();
        let mut buf = pool.try_alloc(10_000).unwrap();
        buf.fill(7);
        assert_eq!(pool.region_bytes_used(), 16_384);
        let part = buf.freeze().slice(4_000..5_000);
        assert!(part.len() == 1_000 && part.iter().all(|&b| b == 7));
        assert_eq!(pool.region_bytes_used(), 16_384);
        drop(part);
        assert_eq!(pool.region_bytes_used(), 0);
    }

    #[test]
    fn the_edges_wait_and_the_inside_overflows() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let pool = BufPool::new(BLOCK_BYTES_MAX).unwrap();
        let whole = pool.try_alloc(BLOCK_BYTES_MAX).unwrap();
        assert!(pool.try_alloc(1).is_none());
        let inside = pool.alloc_now(100);
        assert_eq!(pool.heap_bytes_used(), ALIGNMENT);
        let waiting = {
            let pool = pool.clone();
            rt.spawn(async move { pool.alloc(100).await })
        };
        rt.block_on(crate::yield_now());
        assert!(!waiting.is_finished());
        drop((whole, inside));
        let lent = rt.block_on(waiting);
        let used = (pool.heap_bytes_used(), pool.region_bytes_used());
        assert_eq!(used, (0, ALIGNMENT), "it came from the region");
        drop(lent);
        assert_eq!((pool.heap_bytes_used(), pool.region_bytes_used()), (0, 0));
    }

    #[test]
    fn a_footprint_is_what_the_pieces_take() {
        let piece = BLOCK_BYTES_MAX as u64;
        for (len, bytes) in [
            (0, 0),
            (1, 4096),
            (4097, 8192),
            (piece - 1, piece),
            (piece + 1, piece + 4096),
            (8 * piece, 8 * piece),
        ] {
            assert_eq!(BufPool::footprint_bytes(len), bytes, "of {len} bytes");
        }
        let pool = BufPool::new(2 * BLOCK_BYTES_MAX).unwrap();
        let held = [BLOCK_BYTES_MAX, 4097].map(|len| pool.alloc_now(len));
        let used = (pool.region_bytes_used() + pool.heap_bytes_used()) as u64;
        assert_eq!(used, BufPool::footprint_bytes(piece + 4097));
        drop(held);
    }

    #[test]
    fn every_buffer_is_aligned() {
        let pool = BufPool::new(BLOCK_BYTES_MAX).unwrap();
        for len in [0, 1, 4095, 4096, 4097, 1 << 20, BLOCK_BYTES_MAX + 1] {
            let mut buf = pool.alloc_now(len);
            assert_eq!((buf.start() as usize % ALIGNMENT, buf.len()), (0, len));
        }
    }
}
