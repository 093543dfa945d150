//! A device in memory, in both worlds. Sparse: what was never written takes no space and reads as
//! zeroes. Its content ends with the process; a flush is nothing.
//!
//! A read answers with the memory itself. A write to what an answer still holds takes new memory, so an
//! answer never changes after it was given.

use std::cell::RefCell;
use std::ops::Range;

use bimetal_rt::turn::{count_steps, give_way};
use bimetal_rt::{Buf, BufPool, Payload, Rt};
use serde::Deserialize;

use crate::device::{Device, IoFuture};
use crate::error::IoError;
use crate::extents::ExtentList;
use crate::geometry::Geometry;
use crate::request::{BorrowedWrite, Extent, IoResult, Op, Reply, Request};
use crate::units::Size;

/// Memory is taken in pieces of this size. An answer of one block keeps one of them.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks that are looked at or cleared without giving way: a zeroed one costs much more than a
/// step.
const CHUNKS_AT_ONCE: usize = 256;

/// From this size on the content is on areas of 2 MiB, one of which a smaller device would take for a few chunks.
const LARGE_BYTES: u64 = 64 << 20;

/// The configuration of `type = "memory"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {
    /// Size of the device, a multiple of 4 KiB.
    pub size: Size,
}

/// See the module.
pub struct MemoryDevice {
    rt: Rt,
    geometry: Geometry,
    /// The content has memory of its own: the buffers of the runtime's pool are for transfers.
    memory: BufPool,
    chunks: RefCell<Vec<Option<Buf>>>,
}

/// A run of bytes inside one chunk.
struct Piece {
    chunk: usize,
    start: usize,
    len: usize,
}

impl Piece {
    /// The bytes of the chunk.
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

impl MemoryDevice {
    /// A device of `size_bytes`, a multiple of 4 KiB, all zeroes.
    pub fn new(rt: &Rt, size_bytes: u64) -> MemoryDevice {
        let chunks = size_bytes.div_ceil(CHUNK_BYTES as u64) as usize;
        let memory = match size_bytes {
            LARGE_BYTES.. => BufPool::for_content(CHUNK_BYTES),
            _ => BufPool::unregistered(),
        };
        MemoryDevice {
            rt: rt.clone(),
            geometry: Geometry::of_size(size_bytes),
            memory,
            chunks: RefCell::new(vec![None; chunks]),
        }
    }

    fn answer(&self, request: &Request) -> IoResult {
        self.geometry.check(request)?;
        Ok(match request.op {
            Op::Read => self.read(request),
            Op::Write => self.write(request)?,
            Op::Discard | Op::WriteZeroes => self.clear(request)?,
            Op::Flush => Reply::Done,
            Op::Extents => self.extents(request),
        })
    }

    fn read(&self, request: &Request) -> Reply {
        let chunks = self.chunks.borrow();
        let mut data = Payload::empty();
        for piece in pieces(request) {
            data.push(match &chunks[piece.chunk] {
                Some(chunk) => chunk.slice(piece.range()),
                None => self.rt.pool().zeroed(piece.len),
            });
        }
        Reply::Data(data)
    }

    fn write(&self, request: &Request) -> Result<Reply, IoError> {
        let mut offset = request.offset;
        for slice in request.payload.slices() {
            self.store(offset, slice)?;
            offset += slice.len() as u64;
        }
        Ok(Reply::Done)
    }

    /// Copies bytes to a range.
    fn store(&self, offset: u64, mut bytes: &[u8]) -> Result<(), IoError> {
        let mut chunks = self.chunks.borrow_mut();
        for piece in pieces_of(offset, bytes.len() as u64) {
            let (part, rest) = bytes.split_at(piece.len);
            self.to_change(&mut chunks[piece.chunk])?[piece.range()].copy_from_slice(part);
            bytes = rest;
        }
        Ok(())
    }

    /// The bytes of a chunk, which takes other memory where answers still hold its own.
    ///
    /// # Errors
    /// What a client can be told when memory has run out.
    fn to_change<'c>(&self, chunk: &'c mut Option<Buf>) -> Result<&'c mut [u8], IoError> {
        if chunk.as_mut().and_then(Buf::unshared).is_none() {
            let mut own = self.memory.try_heap(CHUNK_BYTES).ok_or(IoError::NoSpace)?;
            if let Some(shared) = chunk {
                own.copy_from_slice(shared);
            }
            *chunk = Some(own.freeze());
        }
        let own = chunk.as_mut().and_then(Buf::unshared);
        Ok(own.expect("nobody else has a slice of it"))
    }

    fn clear(&self, request: &Request) -> Result<Reply, IoError> {
        let mut chunks = self.chunks.borrow_mut();
        for piece in pieces(request) {
            let chunk = &mut chunks[piece.chunk];
            if piece.len == CHUNK_BYTES && !request.flags.keep_allocated {
                *chunk = None;
            } else if chunk.is_some() {
                self.to_change(chunk)?[piece.range()].fill(0);
            }
        }
        Ok(Reply::Done)
    }

    fn extents(&self, request: &Request) -> Reply {
        let chunks = self.chunks.borrow();
        let mut extents = ExtentList::new(request.extents_max);
        for piece in pieces(request).take(CHUNKS_AT_ONCE) {
            let (len, data) = (piece.len as u64, chunks[piece.chunk].is_some());
            extents.push(Extent { len, data });
            if extents.is_full() {
                break;
            }
        }
        extents.into_reply()
    }

    /// Clears a long range piece by piece, so that the thread has other turns in between.
    async fn clear_long(&self, request: Request) -> IoResult {
        self.geometry.check(&request)?;
        let piece_bytes = (CHUNKS_AT_ONCE * CHUNK_BYTES) as u64;
        let mut start = request.offset;
        while start < request.end() {
            give_way().await;
            let end = request.end().min(start - start % piece_bytes + piece_bytes);
            self.clear(&request.part(start, end, start))?;
            start = end;
        }
        Ok(Reply::Done)
    }
}

/// True for a change without data that is too long for one turn.
fn clears_long(request: &Request) -> bool {
    let clears = matches!(request.op, Op::Discard | Op::WriteZeroes);
    clears && request.len > (CHUNKS_AT_ONCE * CHUNK_BYTES) as u64
}

fn pieces(request: &Request) -> impl Iterator<Item = Piece> {
    pieces_of(request.offset, request.len)
}

fn pieces_of(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let (mut position, end) = (offset, offset + len);
    std::iter::from_fn(move || {
        if position >= end {
            return None;
        }
        let start = (position % CHUNK_BYTES as u64) as usize;
        let len = (end - position).min((CHUNK_BYTES - start) as u64) as usize;
        let piece = Piece {
            chunk: (position / CHUNK_BYTES as u64) as usize,
            start,
            len,
        };
        position += len as u64;
        count_steps(1);
        Some(piece)
    })
}

impl Device for MemoryDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if clears_long(&request) {
            return IoFuture::new(self.clear_long(request));
        }
        IoFuture::ready(self.answer(&request))
    }

    fn try_answer(&self, request: Request) -> Result<IoResult, Request> {
        if clears_long(&request) {
            return Err(request);
        }
        Ok(self.answer(&request))
    }

    fn try_write(&self, write: BorrowedWrite<'_>) -> Option<IoResult> {
        let stored = self.geometry.check_borrowed(&write);
        let stored = stored.and_then(|()| self.store(write.offset, write.bytes));
        Some(stored.map(|()| Reply::Done))
    }
}

#[cfg(test)]
mod tests {
    use bimetal_rt::VirtualOptions;

    use super::*;
    use crate::request::Flags;

    const SIZE: u64 = 4 * CHUNK_BYTES as u64;

    fn ask(device: &MemoryDevice, request: Request) -> Reply {
        let answer = device.try_answer(request);
        answer.expect("memory answers at once").expect("no error")
    }

    fn write(rt: &Rt, offset: u64, len: usize, byte: u8) -> Request {
        let mut data = rt.pool().alloc_now(len);
        data.fill(byte);
        Request::write(offset, data.freeze(), Flags::NONE)
    }

    /// The bytes of a range, each of which must be the same.
    fn byte_in(data: &Payload) -> u8 {
        let bytes = data.to_vec();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }

    #[test]
    fn an_answer_stays_what_it_was_whatever_is_done_to_its_range() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let device = MemoryDevice::new(&rt, LARGE_BYTES);
        // Across a boundary of chunks, so that an answer is of two of them.
        let (offset, len) = (CHUNK_BYTES as u64 - 4096, 8192);
        let read = || ask(&device, Request::read(offset, len)).into_data();
        let never_written = read();
        ask(&device, write(&rt, offset, len as usize, 1));
        let first = read();
        ask(&device, write(&rt, offset, len as usize, 2));
        let second = read();
        let zero = |op| Request::without_data(op, offset, len, Flags::NONE);
        ask(&device, zero(Op::WriteZeroes));
        let third = read();
        ask(&device, write(&rt, offset, len as usize, 4));
        let fourth = read();
        ask(
            &device,
            Request::without_data(Op::Discard, 0, LARGE_BYTES, Flags::NONE),
        );
        let held = [never_written, first, second, third, fourth];
        assert_eq!(held.each_ref().map(byte_in), [0, 1, 2, 0, 4]);
        assert_eq!(byte_in(&read()), 0);
    }

    #[test]
    fn memory_is_taken_anew_only_where_an_answer_holds_it() {
        // With memory of the heap, and with areas.
        for size_bytes in [SIZE, LARGE_BYTES] {
            memory_is_taken_anew_of(size_bytes);
        }
    }

    fn memory_is_taken_anew_of(size_bytes: u64) {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let device = MemoryDevice::new(&rt, size_bytes);
        for byte in 0..10 {
            ask(&device, write(&rt, 0, 4096, byte));
            drop(ask(&device, Request::read(0, 4096)));
        }
        assert_eq!(device.memory.heap_bytes_used(), CHUNK_BYTES);
        let held = ask(&device, Request::read(0, 4096));
        ask(&device, write(&rt, 8192, 4096, 1));
        assert_eq!(device.memory.heap_bytes_used(), 2 * CHUNK_BYTES);
        drop(held);
        assert_eq!(device.memory.heap_bytes_used(), CHUNK_BYTES);
        // What was beside the write came along.
        let beside = ask(&device, Request::read(0, 4096)).into_data();
        assert_eq!(byte_in(&beside), 9);
    }
}
