//! The atomic unit: accepts requests of any offset and length over a device of 4-KiB blocks.
//!
//! Only this layer turns a smaller or unaligned change into a read-modify-write. A range lock is
//! held during the read-modify-write, so that two such changes of one block never lose each other's
//! bytes. All other changes take the lock too, because a read-modify-write would undo a whole-block
//! write that happens between its read and its write. Every export puts this layer on top of the
//! device that it serves.
//!
//! The layer must never make a read wait: a read that overlaps a change in flight can see each
//! block before or after the change.

use std::rc::Rc;

use bimetal_rt::{Payload, Rt};

use crate::device::{Device, IoFuture, StatisticVisitor};
use crate::error::IoError;
use crate::extents::ExtentList;
use crate::geometry::{Geometry, GrowingGeometry};
use crate::range_lock::RangeLock;
use crate::request::{BLOCK_BYTES, BorrowedWrite, Extent, IoResult, Op, Origin, Reply, Request};

/// The atomic unit over a device; see the module.
pub struct AtomicUnit {
    rt: Rt,
    below: Rc<dyn Device>,
    geometry: GrowingGeometry,
    changes: Rc<RangeLock>,
}

impl AtomicUnit {
    /// Creates a byte-granular device over `below`.
    pub fn new(rt: &Rt, below: Rc<dyn Device>) -> AtomicUnit {
        let geometry = Geometry {
            block_bytes: 1,
            ..*below.geometry()
        };
        AtomicUnit {
            rt: rt.clone(),
            below,
            geometry: GrowingGeometry::new(geometry),
            changes: RangeLock::new(),
        }
    }

    async fn read(&self, request: Request) -> IoResult {
        let (start, end) = whole_blocks(&request);
        let data = self
            .below
            .submit(Request::read(start, end - start).from_origin(request.origin))
            .await?
            .into_data();
        let skip = (request.offset - start) as usize;
        Ok(Reply::Data(data.slice(skip..skip + request.len as usize)))
    }

    /// Executes a change of whole blocks. If no other change holds a lock on the blocks and the
    /// device below answers immediately, the returned future is ready.
    fn change_whole(&self, request: Request) -> IoFuture<'_> {
        let Some(guard) = self.changes.try_lock(request.offset..request.end()) else {
            return IoFuture::new(self.change(request));
        };
        match self.below.submit(request) {
            IoFuture::Ready(result) => IoFuture::Ready(result),
            future => IoFuture::new(async move {
                let result = future.await;
                drop(guard);
                result
            }),
        }
    }

    async fn change(&self, request: Request) -> IoResult {
        let (start, end) = whole_blocks(&request);
        let guard = self.changes.lock(start..end).await;
        let result = if is_aligned(&request) {
            self.below.submit(request).await
        } else {
            self.change_partly(request).await
        };
        drop(guard);
        result
    }

    async fn change_partly(&self, request: Request) -> IoResult {
        match request.op {
            Op::Write => self.write_partly(request).await,
            Op::WriteZeroes => {
                let (inner_start, inner_end) = inner_blocks(&request);
                self.zero_ends(&request, inner_start, inner_end).await?;
                self.submit_inner(&request, inner_start, inner_end).await
            }
            // A discard is only advice, so the partial blocks at its ends are kept. If the device
            // promises zeroes after a discard, the partial blocks are zeroed too.
            Op::Discard => {
                let (inner_start, inner_end) = inner_blocks(&request);
                if self.geometry().discard_zeroes {
                    self.zero_ends(&request, inner_start, inner_end).await?;
                }
                self.submit_inner(&request, inner_start, inner_end).await
            }
            Op::Read | Op::Flush | Op::Extents => unreachable!("these change nothing"),
        }
    }

    async fn submit_inner(&self, request: &Request, start: u64, end: u64) -> IoResult {
        if start >= end {
            return Ok(Reply::Done);
        }
        self.below.submit(request.part(start, end, start)).await
    }

    /// Zeroes the parts of the request before and after its whole blocks. The whole blocks are the
    /// range `start..end`. A part that reads as zeroes is not written: its block may have no
    /// content, and the device below may have no room for it.
    async fn zero_ends(&self, request: &Request, start: u64, end: u64) -> Result<(), IoError> {
        let ends = if start >= end {
            // The request lies in one block, or in two, and has no whole one.
            let middle = request.offset.next_multiple_of(BLOCK_BYTES);
            let middle = middle.clamp(request.offset, request.end());
            [request.offset..middle, middle..request.end()]
        } else {
            [request.offset..start, end..request.end()]
        };
        let mut must_flush = false;
        for range in ends.into_iter().filter(|range| !range.is_empty()) {
            let block = range.start - range.start % BLOCK_BYTES;
            let mut content = self.block_at(block, request.origin).await?.to_vec();
            let part = &mut content[(range.start - block) as usize..(range.end - block) as usize];
            if part.iter().all(|&byte| byte == 0) {
                must_flush |= request.flags.fua;
                continue;
            }
            part.fill(0);
            let content = self.rt.pool().copy_of(&content);
            let write = Request::write(block, content, request.flags);
            self.below.submit(write.from_origin(request.origin)).await?;
        }
        if must_flush {
            let flush = Request::flush().from_origin(request.origin);
            self.below.submit(flush).await?;
        }
        Ok(())
    }

    /// Executes a write with partial blocks at its ends: reads these blocks, completes them, and
    /// writes whole blocks.
    async fn write_partly(&self, request: Request) -> IoResult {
        let (start, end) = whole_blocks(&request);
        let mut whole = Payload::empty();
        let head = (request.offset - start) as usize;
        let tail = (end - request.end()) as usize;
        if head > 0 {
            let first = self.block_at(start, request.origin).await?;
            whole.append(first.slice(0..head));
        }
        whole.append(request.payload);
        if tail > 0 {
            let last = self.block_at(end - BLOCK_BYTES, request.origin).await?;
            whole.append(last.slice(last.len() - tail..last.len()));
        }
        // The slices are copied into one contiguous buffer, because direct I/O does not accept
        // slices whose lengths are not multiples of the block size.
        let whole = whole.contiguous(self.rt.pool());
        self.below
            .submit(Request::write(start, whole, request.flags).from_origin(request.origin))
            .await
    }

    async fn block_at(&self, offset: u64, origin: Origin) -> Result<Payload, IoError> {
        Ok(self
            .below
            .submit(Request::read(offset, BLOCK_BYTES).from_origin(origin))
            .await?
            .into_data())
    }

    async fn extents(&self, request: Request) -> IoResult {
        let (start, end) = whole_blocks(&request);
        let whole =
            Request::extents(start, end - start, request.extents_max).from_origin(request.origin);
        let runs = self.below.submit(whole).await?.into_extents();
        Ok(clip(&runs, request.offset - start, &request).into_reply())
    }
}

/// Clips a list of runs to a request that begins `skip` bytes after the start of the first run.
fn clip(runs: &[Extent], skip: u64, request: &Request) -> ExtentList {
    let mut clipped = ExtentList::new(request.extents_max);
    let mut position = 0;
    for run in runs {
        let from = position.max(skip);
        let to = (position + run.len).min(skip + request.len);
        let len = to.saturating_sub(from);
        clipped.push(Extent { len, ..*run });
        position += run.len;
    }
    clipped
}

/// Returns the smallest range of whole blocks that contains a request.
fn whole_blocks(request: &Request) -> (u64, u64) {
    (
        request.offset - request.offset % BLOCK_BYTES,
        request.end().next_multiple_of(BLOCK_BYTES),
    )
}

/// Returns the largest range of whole blocks inside a request. The range is empty if its start is
/// not below its end.
fn inner_blocks(request: &Request) -> (u64, u64) {
    (
        request.offset.next_multiple_of(BLOCK_BYTES),
        request.end() - request.end() % BLOCK_BYTES,
    )
}

/// Returns true if the request and the memory of its payload consist of whole blocks.
fn is_aligned(request: &Request) -> bool {
    let aligned_slice = |slice: &bimetal_rt::Buf| {
        (slice.as_ptr() as u64 | slice.len() as u64).is_multiple_of(BLOCK_BYTES)
    };
    (request.offset | request.len).is_multiple_of(BLOCK_BYTES)
        && request.payload.slices().iter().all(aligned_slice)
}

impl Device for AtomicUnit {
    fn geometry(&self) -> &Geometry {
        self.geometry.grow_to(self.below.geometry().size_bytes)
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if let Err(e) = self.geometry().check(&request) {
            return IoFuture::ready(Err(e));
        }
        match request.op {
            Op::Flush => self.below.submit(request),
            Op::Read if is_aligned(&request) => self.below.submit(request),
            Op::Extents if is_aligned(&request) => self.below.submit(request),
            Op::Read => IoFuture::new(self.read(request)),
            Op::Extents => IoFuture::new(self.extents(request)),
            Op::Write | Op::Discard | Op::WriteZeroes if is_aligned(&request) => {
                self.change_whole(request)
            }
            Op::Write | Op::Discard | Op::WriteZeroes => IoFuture::new(self.change(request)),
        }
    }

    /// Answers a request of whole blocks immediately, if possible. A change that is answered here
    /// completes before any other task runs, so it takes no lock. If another change holds or waits
    /// for a lock on the range, the request is returned unchanged.
    fn try_answer(&self, request: Request) -> Result<IoResult, Request> {
        if let Err(error) = self.geometry().check(&request) {
            return Ok(Err(error));
        }
        let whole = request.op == Op::Flush || is_aligned(&request);
        let free = || self.changes.is_free(&(request.offset..request.end()));
        if whole && (!request.op.changes_content() || free()) {
            self.below.try_answer(request)
        } else {
            Err(request)
        }
    }

    fn try_write(&self, write: BorrowedWrite<'_>) -> Option<IoResult> {
        if let Err(error) = self.geometry().check_borrowed(&write) {
            return Some(Err(error));
        }
        let range = write.range();
        let is_whole = (range.start | range.end).is_multiple_of(BLOCK_BYTES);
        match is_whole && self.changes.is_free(&range) {
            true => self.below.try_write(write),
            false => None,
        }
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        self.below.statistics(out);
    }
}

#[cfg(test)]
mod tests {
    use bimetal_rt::VirtualOptions;

    use super::*;
    use crate::media::memory::MemoryDevice;
    use crate::request::Flags;

    #[test]
    fn at_once_is_answered_what_needs_neither_a_lock_nor_a_part_of_a_block() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let below = Rc::new(MemoryDevice::new(&rt, 1 << 20));
        let unit = AtomicUnit::new(&rt, below);
        let bytes = |len| rt.pool().zeroed(len);
        let write = |offset, len| Request::write(offset, bytes(len), Flags::NONE);
        let at_once = |request| unit.try_answer(request).is_ok();
        assert!(at_once(write(4096, 4096)));
        assert!(at_once(Request::read(4096, 8192)) && at_once(Request::flush()));
        assert!(!at_once(Request::read(4000, 4096)));
        assert!(!at_once(write(4096, 100)));
        let guard = unit.changes.try_lock(4096..8192).unwrap();
        assert!(!at_once(write(0, 8192)), "somebody changes a part of it");
        assert!(at_once(write(8192, 4096)) && at_once(Request::read(0, 8192)));
        let bytes = [7; 8192];
        let borrowed = |offset, len: usize| {
            unit.try_write(BorrowedWrite {
                offset,
                // The bytes are at an odd address, which is permitted.
                bytes: &bytes[1..][..len],
                flags: Flags::NONE,
            })
        };
        assert!(borrowed(0, 4096).is_some() && borrowed(8192, 4096).is_some());
        assert!(borrowed(4096, 4096).is_none() && borrowed(4000, 4096).is_none());
        assert!(borrowed(4096, 100).is_none());
        assert!(matches!(
            borrowed(1 << 20, 4096),
            Some(Err(IoError::OutOfRange))
        ));
        drop(guard);
        assert!(at_once(write(0, 8192)));
        // An invalid request is refused immediately and leaves no lock behind.
        let beyond = unit.try_answer(write(1 << 20, 4096));
        assert!(matches!(beyond, Ok(Err(IoError::OutOfRange))));
        assert!(unit.changes.is_empty());
    }
}
