//! A device in memory, in both worlds. Sparse: what was never written takes no space and reads as
//! zeroes. Its content ends with the process; a flush is nothing.

use std::cell::RefCell;

use bimetal_rt::Rt;
use serde::Deserialize;

use crate::device::{Device, IoFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{Extent, IoResult, Op, Reply, Request, push_extent};
use crate::units::Size;

/// Memory is taken in pieces of this size.
const CHUNK_BYTES: usize = 64 << 10;

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
    chunks: RefCell<Vec<Option<Box<[u8]>>>>,
}

/// A run of bytes inside one chunk.
struct Piece {
    chunk: usize,
    start: usize,
    len: usize,
}

impl MemoryDevice {
    /// A device of `size_bytes`, a multiple of 4 KiB, all zeroes.
    pub fn new(rt: &Rt, size_bytes: u64) -> MemoryDevice {
        let chunks = size_bytes.div_ceil(CHUNK_BYTES as u64) as usize;
        MemoryDevice {
            rt: rt.clone(),
            geometry: Geometry::of_size(size_bytes),
            chunks: RefCell::new(vec![None; chunks]),
        }
    }

    fn answer(&self, request: &Request) -> IoResult {
        self.geometry.check(request)?;
        Ok(match request.op {
            Op::Read => self.read(request),
            Op::Write => self.write(request)?,
            Op::Discard | Op::WriteZeroes => self.clear(request),
            Op::Flush => Reply::Done,
            Op::Extents => self.extents(request),
        })
    }

    fn read(&self, request: &Request) -> Reply {
        let mut buf = self.rt.pool().alloc_now(request.len as usize);
        let chunks = self.chunks.borrow();
        let mut filled = 0;
        for piece in pieces(request) {
            let target = &mut buf[filled..filled + piece.len];
            match &chunks[piece.chunk] {
                Some(bytes) => {
                    target.copy_from_slice(&bytes[piece.start..piece.start + piece.len]);
                }
                None => target.fill(0),
            }
            filled += piece.len;
        }
        Reply::Data(buf.freeze().into())
    }

    fn write(&self, request: &Request) -> Result<Reply, IoError> {
        let mut chunks = self.chunks.borrow_mut();
        let mut offset = request.offset;
        for slice in request.payload.slices() {
            let mut done = 0;
            for piece in pieces_of(offset, slice.len() as u64) {
                let bytes = match &mut chunks[piece.chunk] {
                    Some(bytes) => bytes,
                    empty => empty.insert(new_chunk()?),
                };
                bytes[piece.start..piece.start + piece.len]
                    .copy_from_slice(&slice[done..done + piece.len]);
                done += piece.len;
            }
            offset += slice.len() as u64;
        }
        Ok(Reply::Done)
    }

    fn clear(&self, request: &Request) -> Reply {
        let mut chunks = self.chunks.borrow_mut();
        for piece in pieces(request) {
            let chunk = &mut chunks[piece.chunk];
            if piece.len == CHUNK_BYTES && !request.flags.keep_allocated {
                *chunk = None;
            } else if let Some(bytes) = chunk {
                bytes[piece.start..piece.start + piece.len].fill(0);
            }
        }
        Reply::Done
    }

    fn extents(&self, request: &Request) -> Reply {
        let chunks = self.chunks.borrow();
        let mut extents = Vec::new();
        for piece in pieces(request) {
            let data = chunks[piece.chunk].is_some();
            push_extent(
                &mut extents,
                Extent {
                    len: piece.len as u64,
                    data,
                },
            );
        }
        Reply::Extents(extents)
    }
}

/// A chunk of zeroes, or the error a client can be told when memory has run out.
fn new_chunk() -> Result<Box<[u8]>, IoError> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(CHUNK_BYTES)
        .map_err(|_| IoError::NoSpace)?;
    bytes.resize(CHUNK_BYTES, 0);
    Ok(bytes.into_boxed_slice())
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
        Some(piece)
    })
}

impl Device for MemoryDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::ready(self.answer(&request))
    }
}
