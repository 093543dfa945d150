//! Buffers that belong to no pool, so that they can move to another thread.
//!
//! A [`Buf`](super::Buf) has a reference count without locks and refers to its pool, so it must
//! stay on its thread. Data that crosses between threads is copied once, into heap memory that has
//! a single owner and no other reference. The receiving thread's pool takes over this memory
//! without a copy. The memory is aligned like every buffer, so direct I/O can use it.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::rc::Rc;

use super::{Block, BufMut, BufPool, Home, Payload, heap_bytes, heap_layout};

/// Heap buffer that has a single owner and belongs to no pool, so it can move to another thread.
pub struct DetachedBuf {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `DetachedBuf` is the only handle to its memory, which comes from the global allocator,
// so any thread may use and free it. No pool, no count of handles and no operation of a ring refers
// to this memory.
unsafe impl Send for DetachedBuf {}

impl DetachedBuf {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true when the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for DetachedBuf {
    fn drop(&mut self) {
        let layout = heap_layout(heap_bytes(self.len));
        // SAFETY: `DetachedBuf::gather` allocated the memory with the layout for `len`, which never
        // changes. `BufPool::attach` takes over the memory without running this drop.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
    }
}

impl std::fmt::Debug for DetachedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DetachedBuf({} bytes)", self.len)
    }
}

impl DetachedBuf {
    /// Returns a copy of `bytes`, or `None` when no memory can be allocated.
    pub fn copy_of(bytes: &[u8]) -> Option<DetachedBuf> {
        DetachedBuf::gather(bytes.len(), std::iter::once(bytes))
    }

    /// Copies `slices`, whose total length must be `len` bytes, into a new buffer; returns `None`
    /// when no memory can be allocated.
    fn gather<'a>(len: usize, slices: impl Iterator<Item = &'a [u8]>) -> Option<DetachedBuf> {
        // SAFETY: the layout has a size above zero.
        let start = unsafe { std::alloc::alloc(heap_layout(heap_bytes(len))) };
        let start = NonNull::new(start)?;
        let mut at = 0;
        for slice in slices {
            assert!(slice.len() <= len - at, "the slices are as long as all");
            // SAFETY: the new allocation has at least `len` bytes. The slice fits into the
            // allocation from offset `at` on. No other code refers to the allocation.
            unsafe {
                let to = start.as_ptr().add(at);
                std::ptr::copy_nonoverlapping(slice.as_ptr(), to, slice.len());
            }
            at += slice.len();
        }
        // The slices must have filled the whole allocation, since uninitialised bytes must never be
        // read.
        assert_eq!(at, len, "the slices are as long as all");
        Some(DetachedBuf { start, len })
    }
}

impl Payload {
    /// Copies the payload into one buffer that can move to another thread; returns `None` when no
    /// memory can be allocated.
    pub fn detached(&self) -> Option<DetachedBuf> {
        DetachedBuf::gather(self.len(), self.slices().iter().map(|slice| &slice[..]))
    }
}

impl BufPool {
    /// Turns `detached` into a buffer of this pool without copying the bytes. The pool counts the
    /// buffer as heap memory.
    pub fn attach(&self, detached: DetachedBuf) -> BufMut {
        // The new block takes over the memory, so the drop of `detached` must not free the memory.
        let detached = ManuallyDrop::new(detached);
        let capacity = heap_bytes(detached.len);
        self.0.heap_bytes.set(self.0.heap_bytes.get() + capacity);
        let block = Block {
            start: detached.start,
            capacity,
            pool: Rc::clone(&self.0),
            home: Home::Heap,
        };
        BufMut {
            block: Rc::new(block),
            len: detached.len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ALIGNMENT;
    use super::*;

    fn payload_of(pool: &BufPool, parts: &[&[u8]]) -> Payload {
        let mut payload = Payload::empty();
        for part in parts {
            payload.push(pool.copy_of(part));
        }
        payload
    }

    #[test]
    fn bytes_cross_to_a_pool_of_another_thread_and_back() {
        let here = BufPool::new(1).unwrap();
        let payload = payload_of(&here, &[&[1; 5], &[2; 4096], &[3; 1]]);
        let there = payload.detached().unwrap();
        drop(payload);
        assert_eq!((here.region_bytes_used(), here.heap_bytes_used()), (0, 0));
        let crossing = std::thread::spawn(move || {
            let pool = BufPool::unregistered();
            assert_eq!(there.len(), 4102);
            let mut buf = pool.attach(there);
            assert!(buf.as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert_eq!(pool.heap_bytes_used(), 2 * ALIGNMENT);
            buf[0] = 9;
            let back = Payload::from(buf.freeze()).detached().unwrap();
            assert_eq!(pool.heap_bytes_used(), 0);
            back
        });
        let back = here.attach(crossing.join().unwrap()).freeze();
        assert_eq!(here.heap_bytes_used(), 2 * ALIGNMENT);
        let expected = [&[9][..], &[1; 4], &[2; 4096], &[3; 1]].concat();
        assert_eq!(back.to_vec(), expected);
        drop(back);
        assert_eq!(here.heap_bytes_used(), 0);
    }

    #[test]
    fn no_bytes_and_bytes_that_nobody_takes_are_given_back() {
        let pool = BufPool::unregistered();
        let none = Payload::empty().detached().unwrap();
        assert!(none.is_empty());
        assert!(pool.attach(none).is_empty());
        drop(payload_of(&pool, &[&[7; 9000]]).detached());
        assert_eq!(pool.heap_bytes_used(), 0);
    }
}
