//! A device in memory, in real and in virtual time. It is sparse: a range that was never written
//! takes no memory, not even for bookkeeping, and reads as zeroes. Its content is lost when the
//! process ends, so a flush does nothing.
//!
//! A reply to a read holds references to the device's memory. If a reply still references the
//! memory of a chunk, a write to this chunk goes to new memory, so the data of a reply never
//! changes.

use std::cell::RefCell;
use std::collections::BTreeMap;
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

/// Size of a chunk, the allocation unit. A reply that references one block keeps its whole chunk
/// allocated.
const CHUNK_BYTES: usize = 64 << 10;
/// Number of chunks that are examined or cleared without yielding. The number is small, because
/// zeroing a chunk costs much more than a step that [`count_steps`] counts.
const CHUNKS_AT_ONCE: usize = 256;
/// Maximum number of chunks that one extents request examines.
const CHUNKS_LOOKED_AT: usize = 2048;

/// Number of chunks in a group of the index. A group with a single chunk takes 6 KiB of bookkeeping
/// in addition to the 64 KiB of the chunk; a group without chunks is not stored.
const GROUP_CHUNKS: u64 = 256;
/// Bytes of the device that a group covers.
const GROUP_BYTES: u64 = GROUP_CHUNKS * CHUNK_BYTES as u64;

/// Device size from which memory is allocated in areas of 2 MiB. On a smaller device, a few chunks
/// would leave most of such an area unused.
const LARGE_BYTES: u64 = 64 << 20;

/// The configuration of `type = "memory"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {
    /// Size of the device, a multiple of 4 KiB.
    #[serde(deserialize_with = "crate::units::device_size")]
    pub size: Size,
}

/// A device in memory; see the module.
pub struct MemoryDevice {
    rt: Rt,
    geometry: Geometry,
    /// Memory for the content of the device; the runtime's buffer pool is only for transfers.
    memory: BufPool,
    chunks: RefCell<Chunks>,
}

/// The chunks that have been written, by chunk number. The memory for bookkeeping is proportional
/// to the number of written chunks, not to the size of the device.
#[derive(Default)]
struct Chunks {
    groups: BTreeMap<u64, Group>,
}

/// The chunks of one group. At least one of them exists.
struct Group {
    chunks: Box<[Option<Buf>]>,
    used: usize,
}

impl Group {
    fn empty() -> Group {
        Group {
            chunks: vec![None; GROUP_CHUNKS as usize].into(),
            used: 0,
        }
    }
}

/// Returns the group of a chunk, and its index in the group.
fn place_of(chunk: u64) -> (u64, usize) {
    (chunk / GROUP_CHUNKS, (chunk % GROUP_CHUNKS) as usize)
}

impl Chunks {
    fn get(&self, chunk: u64) -> Option<&Buf> {
        let (group, at) = place_of(chunk);
        self.groups.get(&group)?.chunks[at].as_ref()
    }

    /// Returns the bytes of a chunk if the chunk exists and no reply references it.
    fn unshared(&mut self, chunk: u64) -> Option<&mut [u8]> {
        let (group, at) = place_of(chunk);
        let buf = self.groups.get_mut(&group)?.chunks[at].as_mut()?;
        buf.unshared()
    }

    fn set(&mut self, chunk: u64, buf: Buf) {
        let (number, at) = place_of(chunk);
        let group = self.groups.entry(number).or_insert_with(Group::empty);
        let before = group.chunks[at].replace(buf);
        group.used += usize::from(before.is_none());
    }

    fn remove(&mut self, chunk: u64) {
        let (number, at) = place_of(chunk);
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        let before = group.chunks[at].take();
        group.used -= usize::from(before.is_some());
        if group.used == 0 {
            self.groups.remove(&number);
        }
    }

    /// Returns the first part of the range from `position` to `end` that lies in an existing group,
    /// or `None` if there is no such part.
    fn next_part(&self, position: u64, end: u64) -> Option<Range<u64>> {
        if position >= end {
            return None;
        }
        let groups = position / GROUP_BYTES..=(end - 1) / GROUP_BYTES;
        let (number, _) = self.groups.range(groups).next()?;
        let start = number * GROUP_BYTES;
        Some(start.max(position)..(start + (GROUP_BYTES - 1)).min(end - 1) + 1)
    }
}

/// A run of bytes inside one chunk.
struct Piece {
    chunk: u64,
    start: usize,
    len: usize,
}

impl Piece {
    /// Returns the piece's byte range in its chunk.
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

impl MemoryDevice {
    /// Creates a device of `size_bytes`, a multiple of 4 KiB, all zeroes.
    pub fn new(rt: &Rt, size_bytes: u64) -> MemoryDevice {
        let memory = match size_bytes {
            LARGE_BYTES.. => BufPool::for_content(CHUNK_BYTES),
            _ => BufPool::unregistered(),
        };
        MemoryDevice {
            rt: rt.clone(),
            geometry: Geometry::of_size(size_bytes),
            memory,
            chunks: RefCell::new(Chunks::default()),
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
            data.push(match chunks.get(piece.chunk) {
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
            self.to_change(&mut chunks, piece.chunk)?[piece.range()].copy_from_slice(part);
            bytes = rest;
        }
        Ok(())
    }

    /// Returns the bytes of a chunk for writing. If replies still reference the chunk, it is copied
    /// to new memory first.
    ///
    /// # Errors
    /// `NoSpace` when memory has run out.
    fn to_change<'c>(&self, chunks: &'c mut Chunks, chunk: u64) -> Result<&'c mut [u8], IoError> {
        if chunks.unshared(chunk).is_none() {
            let mut own = self.memory.try_heap(CHUNK_BYTES).ok_or(IoError::NoSpace)?;
            if let Some(shared) = chunks.get(chunk) {
                own.copy_from_slice(shared);
            }
            chunks.set(chunk, own.freeze());
        }
        Ok(chunks
            .unshared(chunk)
            .expect("nobody else has a slice of it"))
    }

    fn clear(&self, request: &Request) -> Result<Reply, IoError> {
        let mut chunks = self.chunks.borrow_mut();
        let (mut position, end) = (request.offset, request.offset + request.len);
        while let Some(part) = chunks.next_part(position, end) {
            position = part.end;
            for piece in pieces_of(part.start, part.end - part.start) {
                if piece.len == CHUNK_BYTES && !request.flags.keep_allocated {
                    chunks.remove(piece.chunk);
                } else if chunks.get(piece.chunk).is_some() {
                    self.to_change(&mut chunks, piece.chunk)?[piece.range()].fill(0);
                }
            }
        }
        Ok(Reply::Done)
    }

    fn extents(&self, request: &Request) -> Reply {
        let chunks = self.chunks.borrow();
        let mut extents = ExtentList::new(request.extents_max);
        let (mut position, end) = (request.offset, request.offset + request.len);
        let mut looked = 0;
        while let Some(part) = chunks.next_part(position, end) {
            if position < part.start {
                let len = part.start - position;
                extents.push(Extent { len, data: false });
            }
            position = part.end;
            for piece in pieces_of(part.start, part.end - part.start) {
                if extents.is_full() || looked == CHUNKS_LOOKED_AT {
                    return extents.into_reply();
                }
                looked += 1;
                let (len, data) = (piece.len as u64, chunks.get(piece.chunk).is_some());
                extents.push(Extent { len, data });
            }
        }
        if position < end && !extents.is_full() {
            let len = end - position;
            extents.push(Extent { len, data: false });
        }
        extents.into_reply()
    }

    /// Clears a long range group by group, and yields in between so that other tasks can run.
    async fn clear_long(&self, request: Request) -> IoResult {
        self.geometry.check(&request)?;
        let (mut position, end) = (request.offset, request.end());
        loop {
            give_way().await;
            let part = self.chunks.borrow().next_part(position, end);
            let Some(part) = part else {
                return Ok(Reply::Done);
            };
            self.clear(&request.part(part.start, part.end, part.start))?;
            position = part.end;
        }
    }
}

/// Returns true for a discard or write-zeroes that would clear too many chunks without yielding.
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
            chunk: position / CHUNK_BYTES as u64,
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

    /// Returns the value that all bytes of the data have; panics if they differ.
    fn byte_in(data: &Payload) -> u8 {
        let bytes = data.to_vec();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }

    #[test]
    fn an_answer_stays_what_it_was_whatever_is_done_to_its_range() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let device = MemoryDevice::new(&rt, LARGE_BYTES);
        // The range crosses a boundary between chunks, so that a reply references two of them.
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
        let discard = Request::without_data(Op::Discard, 0, LARGE_BYTES, Flags::NONE);
        rt.block_on(device.submit(discard)).expect("no error");
        let held = [never_written, first, second, third, fourth];
        assert_eq!(held.each_ref().map(byte_in), [0, 1, 2, 0, 4]);
        assert_eq!(byte_in(&read()), 0);
    }

    #[test]
    fn memory_is_taken_anew_only_where_an_answer_holds_it() {
        // The first size uses memory of the heap, the second uses areas of 2 MiB.
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
        // The write got new memory for the chunk, because the reply `held` still used the old
        // memory. The unwritten bytes of the chunk were copied to the new memory.
        let beside = ask(&device, Request::read(0, 4096)).into_data();
        assert_eq!(byte_in(&beside), 9);
    }

    /// The size of a device costs no memory. Written chunks cost memory, and clearing them frees
    /// it.
    #[test]
    fn bookkeeping_is_in_proportion_to_what_was_written() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        for size_bytes in [1 << 40, 1 << 46, 1 << 62] {
            let device = MemoryDevice::new(&rt, size_bytes);
            // Two writes to the first group, one to the last.
            let written = [0, 3 * CHUNK_BYTES as u64, size_bytes - 4096];
            for offset in written {
                ask(&device, write(&rt, offset, 4096, 7));
            }
            assert_eq!(device.chunks.borrow().groups.len(), 2);
            assert_eq!(device.memory.heap_bytes_used(), 3 * CHUNK_BYTES);
            for offset in written {
                let data = ask(&device, Request::read(offset, 4096)).into_data();
                assert_eq!(byte_in(&data), 7);
            }
            let all = |op| Request::without_data(op, 0, size_bytes, Flags::NONE);
            let Reply::Extents(extents) = ask(&device, all(Op::Extents)) else {
                panic!("extents are asked for");
            };
            let chunk = CHUNK_BYTES as u64;
            let expected = [
                (chunk, true),
                (2 * chunk, false),
                (chunk, true),
                (size_bytes - 5 * chunk, false),
                (chunk, true),
            ];
            let found: Vec<_> = extents.iter().map(|e| (e.len, e.data)).collect();
            assert_eq!(found, expected);
            rt.block_on(device.submit(all(Op::Discard)))
                .expect("no error");
            assert_eq!(device.chunks.borrow().groups.len(), 0);
            assert_eq!(device.memory.heap_bytes_used(), 0);
        }
    }
}
