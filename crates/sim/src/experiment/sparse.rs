//! A medium that stores only blocks that are not zero. An experiment writes terabytes of zeroes,
//! which need no memory, but a mirror must be able to read its own metadata back.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bimetal_block::media::null::zero_payload;
use bimetal_block::request::{Extent, IoResult, Op, Reply, Request};
use bimetal_block::{BLOCK_BYTES, Device, Geometry, IoFuture};
use bimetal_rt::{Buf, Payload, Rt};

/// Sparse medium; see the module. It completes requests immediately; a timing model above it adds
/// latency.
pub struct Sparse {
    geometry: Geometry,
    blocks: RefCell<BTreeMap<u64, Payload>>,
    zeroes: Buf,
}

impl Sparse {
    /// Creates a medium of this size that contains only zeroes.
    pub fn new(rt: &Rt, size_bytes: u64) -> Sparse {
        Sparse {
            geometry: Geometry::of_size(size_bytes),
            blocks: RefCell::default(),
            zeroes: rt.pool().zeroed(1 << 20),
        }
    }

    fn read(&self, offset: u64, len: u64) -> Payload {
        let (mut data, mut position) = (Payload::empty(), offset);
        for (&at, block) in self.blocks.borrow().range(offset..offset + len) {
            data.append(zero_payload(&self.zeroes, at - position));
            data.append(block.clone());
            position = at + BLOCK_BYTES;
        }
        data.append(zero_payload(&self.zeroes, offset + len - position));
        data
    }

    fn clear(&self, offset: u64, len: u64) {
        let mut blocks = self.blocks.borrow_mut();
        let within: Vec<u64> = blocks
            .range(offset..offset + len)
            .map(|(at, _)| *at)
            .collect();
        for at in within {
            blocks.remove(&at);
        }
    }

    fn write(&self, offset: u64, data: &Payload) {
        self.clear(offset, data.len() as u64);
        let mut position = 0;
        while position < data.len() {
            let block = data.slice(position..position + BLOCK_BYTES as usize);
            let written = block
                .slices()
                .iter()
                .any(|slice| slice.iter().any(|byte| *byte != 0));
            if written {
                self.blocks
                    .borrow_mut()
                    .insert(offset + position as u64, block);
            }
            position += BLOCK_BYTES as usize;
        }
    }

    fn answer(&self, request: &Request) -> IoResult {
        self.geometry.check(request)?;
        match request.op {
            Op::Read => return Ok(Reply::Data(self.read(request.offset, request.len))),
            Op::Write => self.write(request.offset, &request.payload),
            Op::Discard | Op::WriteZeroes => self.clear(request.offset, request.len),
            Op::Flush => {}
            Op::Extents => {
                let (len, data) = (request.len, true);
                return Ok(Reply::Extents(vec![Extent { len, data }]));
            }
        }
        Ok(Reply::Done)
    }
}

impl Device for Sparse {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::ready(self.answer(&request))
    }
}
