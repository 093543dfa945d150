//! A medium for experiments that write far more than memory can hold. Blocks of zeroes take no
//! memory, and blocks of generated content take eight bytes each. All other blocks, such as the
//! metadata of a mirror, are stored, because a mirror must be able to read them back: without the
//! zeroes at their end, since the header of an entry of a log has a few bytes for each record.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bimetal_block::request::{Extent, IoResult, Op, Reply, Request};
use bimetal_block::{BLOCK_BYTES, Device, Geometry, IoFuture};
use bimetal_rt::{Buf, Payload, Rng, Rt};

const BLOCK: usize = BLOCK_BYTES as usize;
/// First bytes of a block of generated content.
const MAGIC: u64 = 0x6269_6d65_7461_6c21;
/// Number of blocks whose stamps are kept together.
const GROUP_BLOCKS: u64 = 256;

/// Fills `block` with generated content. The blocks of different stamps differ, and a block cannot
/// be compressed much. The stamp must not be zero.
pub fn fill_block(block: &mut [u8], stamp: u64) {
    assert!(stamp != 0 && block.len() == BLOCK);
    block[..8].copy_from_slice(&MAGIC.to_le_bytes());
    block[8..16].copy_from_slice(&stamp.to_le_bytes());
    Rng::new(stamp).fill(&mut block[16..]);
}

/// Returns the stamp of a block of generated content; `None` for any other block.
fn stamp_of(block: &Payload) -> Option<u64> {
    let [slice] = block.slices() else {
        return None;
    };
    if slice[..8] != MAGIC.to_le_bytes() {
        return None;
    }
    let stamp = u64::from_le_bytes(*slice[8..].first_chunk()?);
    if stamp == 0 {
        return None;
    }
    let mut expected = [0; BLOCK];
    fill_block(&mut expected, stamp);
    (slice[..] == expected).then_some(stamp)
}

/// Returns the bytes of a block without the zeroes at its end.
fn without_last_zeroes(block: &Payload) -> Box<[u8]> {
    let bytes = block.to_vec();
    let used = bytes.iter().rposition(|&byte| byte != 0);
    bytes[..used.map_or(0, |last| last + 1)].into()
}

/// Bytes that a medium has received and returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
}

/// Sparse medium; see the module. It completes requests immediately; a timing model above it adds
/// latency.
pub struct Sparse {
    rt: Rt,
    geometry: Geometry,
    /// Stamps of blocks, by the number of the group of blocks. The stamp of a block without
    /// generated content is zero.
    stamps: RefCell<BTreeMap<u64, Box<[u64; GROUP_BLOCKS as usize]>>>,
    /// Blocks that are neither zeroes nor generated, by offset, without the zeroes at their end. A
    /// copy of the bytes: a reference would keep the memory of the whole request.
    blocks: RefCell<BTreeMap<u64, Box<[u8]>>>,
    zeroes: Buf,
    traffic: Cell<Traffic>,
}

impl Sparse {
    /// Creates a medium of this size that contains only zeroes.
    pub fn new(rt: &Rt, size_bytes: u64) -> Sparse {
        Sparse {
            rt: rt.clone(),
            geometry: Geometry::of_size(size_bytes),
            stamps: RefCell::default(),
            blocks: RefCell::default(),
            zeroes: rt.pool().zeroed(BLOCK),
            traffic: Cell::default(),
        }
    }

    /// Returns the number of bytes written and read so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    fn stamp_at(&self, offset: u64) -> u64 {
        let number = offset / BLOCK_BYTES;
        let stamps = self.stamps.borrow();
        let group = stamps.get(&(number / GROUP_BLOCKS));
        group.map_or(0, |group| group[(number % GROUP_BLOCKS) as usize])
    }

    fn set_stamp(&self, offset: u64, stamp: u64) {
        let number = offset / BLOCK_BYTES;
        let mut stamps = self.stamps.borrow_mut();
        if stamp == 0 && !stamps.contains_key(&(number / GROUP_BLOCKS)) {
            return;
        }
        let group = stamps.entry(number / GROUP_BLOCKS);
        let group = group.or_insert_with(|| Box::new([0; GROUP_BLOCKS as usize]));
        group[(number % GROUP_BLOCKS) as usize] = stamp;
    }

    fn read_block(&self, offset: u64) -> Payload {
        match self.stamp_at(offset) {
            0 => match self.blocks.borrow().get(&offset) {
                Some(stored) => {
                    let mut block = [0; BLOCK];
                    block[..stored.len()].copy_from_slice(stored);
                    self.rt.pool().copy_of(&block).into()
                }
                None => self.zeroes.slice(0..BLOCK).into(),
            },
            stamp => {
                let mut block = [0; BLOCK];
                fill_block(&mut block, stamp);
                self.rt.pool().copy_of(&block).into()
            }
        }
    }

    fn read(&self, offset: u64, len: u64) -> Payload {
        let mut data = Payload::empty();
        for at in (offset..offset + len).step_by(BLOCK) {
            data.append(self.read_block(at));
        }
        data
    }

    fn clear(&self, offset: u64, len: u64) {
        let numbers = offset / BLOCK_BYTES..(offset + len) / BLOCK_BYTES;
        // The work depends on the stored content, not on the length: a range can be a whole disk.
        let groups = numbers.start / GROUP_BLOCKS..numbers.end.div_ceil(GROUP_BLOCKS);
        for (group, stamps) in self.stamps.borrow_mut().range_mut(groups) {
            let first = group * GROUP_BLOCKS;
            for (number, stamp) in (first..).zip(stamps.iter_mut()) {
                if numbers.contains(&number) {
                    *stamp = 0;
                }
            }
        }
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
        for position in (0..data.len()).step_by(BLOCK) {
            let block = data.slice(position..position + BLOCK);
            let at = offset + position as u64;
            let stamp = stamp_of(&block);
            self.set_stamp(at, stamp.unwrap_or(0));
            // A comparison of slices is much faster than one of each byte.
            let is_zero = |slice: &Buf| slice[..] == self.zeroes[..slice.len()];
            let mut blocks = self.blocks.borrow_mut();
            match stamp.is_some() || block.slices().iter().all(is_zero) {
                true => blocks.remove(&at),
                false => blocks.insert(at, without_last_zeroes(&block)),
            };
        }
    }

    fn answer(&self, request: &Request) -> IoResult {
        self.geometry.check(request)?;
        let mut traffic = self.traffic.get();
        match request.op {
            Op::Read => {
                traffic.read_bytes += request.len;
                self.traffic.set(traffic);
                return Ok(Reply::Data(self.read(request.offset, request.len)));
            }
            Op::Write => {
                traffic.written_bytes += request.len;
                self.traffic.set(traffic);
                self.write(request.offset, &request.payload);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_block::request::Flags;
    use bimetal_rt::VirtualOptions;

    /// Submits a write of these blocks at the block `at`.
    fn write(rt: &Rt, device: &Sparse, at: u64, blocks: &[[u8; BLOCK]]) {
        let data = rt.pool().copy_of(&blocks.concat());
        let request = Request::write(at * BLOCK_BYTES, data, Flags::NONE);
        rt.block_on(device.submit(request)).expect("it is written");
    }

    fn read(rt: &Rt, device: &Sparse, at: u64, blocks: u64) -> Vec<u8> {
        let request = Request::read(at * BLOCK_BYTES, blocks * BLOCK_BYTES);
        let reply = rt.block_on(device.submit(request)).expect("it is read");
        reply.into_data().to_vec()
    }

    fn generated(stamp: u64) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        fill_block(&mut block, stamp);
        block
    }

    #[test]
    fn what_is_written_is_read_and_only_other_content_is_stored() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let device = Sparse::new(&rt, 1 << 40);
        let (zeroes, mut other) = ([0; BLOCK], [7; BLOCK]);
        other[100..].fill(0);
        other[50] = 0;
        // It differs from the generated block in its last byte.
        let mut nearly = generated(5);
        nearly[BLOCK - 1] ^= 1;
        let blocks = [generated(5), zeroes, other, nearly, generated(u64::MAX)];
        let at = (1 << 28) - 7;
        write(&rt, &device, at, &blocks);
        assert_eq!(read(&rt, &device, at, 5), blocks.concat());
        assert_eq!(device.blocks.borrow().len(), 2);
        // Each kind is replaced by another kind.
        let blocks = [other, generated(6), generated(7), zeroes, nearly];
        write(&rt, &device, at, &blocks);
        assert_eq!(read(&rt, &device, at, 5), blocks.concat());
        assert_eq!(device.blocks.borrow().len(), 2);
        // A discard of the middle keeps both ends.
        device.clear((at + 1) * BLOCK_BYTES, 3 * BLOCK_BYTES);
        let kept = [other, zeroes, zeroes, zeroes, nearly];
        assert_eq!(read(&rt, &device, at, 5), kept.concat());
        device.clear(0, 1 << 40);
        assert_eq!(read(&rt, &device, at, 5), [zeroes; 5].concat());
        let traffic = device.traffic();
        let expected = (10 * BLOCK_BYTES, 20 * BLOCK_BYTES);
        assert_eq!((traffic.written_bytes, traffic.read_bytes), expected);
    }
}
