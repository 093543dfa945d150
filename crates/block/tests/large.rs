//! Cost of sides of 20 TiB, counted in bytes and requests. The cost must depend on the written
//! data, not on the capacity. The devices of these tests store only written blocks.

use crate::common;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{byte_at, open_these, put};
use crate::common::virtual_rt;
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, OpenOptions};
use bimetal_block::request::Reply;
use bimetal_block::{Device, Geometry, IoError, IoFuture, Op, Request};
use bimetal_rt::{Payload, Rt};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const SIDE_BYTES: u64 = 20 << 40;

/// Sums of counters over all devices of a test.
#[derive(Default)]
struct Counters {
    read_bytes: Cell<u64>,
    written_bytes: Cell<u64>,
    requests: Cell<u64>,
    /// Number of reads in flight on each device.
    reading: [Cell<u64>; 2],
    /// Maximum number of reads in flight on both devices together. Only moments at which each
    /// device has at least one read in flight are included.
    both_peak: Cell<u64>,
}

impl Counters {
    fn take(&self) -> [u64; 3] {
        let counts = [&self.read_bytes, &self.written_bytes, &self.requests];
        counts.map(|count| count.replace(0))
    }
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

/// A device that stores only the blocks that were written, and takes a millisecond for a read.
struct Sparse {
    rt: Rt,
    geometry: Geometry,
    blocks: RefCell<BTreeMap<u64, Box<[u8]>>>,
    counts: Rc<Counters>,
    number: usize,
}

impl Device for Sparse {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            let blocks = request.offset / BLOCK..request.end() / BLOCK;
            add(&self.counts.requests, 1);
            match request.op {
                Op::Read => {
                    add(&self.counts.read_bytes, request.len);
                    let reading = &self.counts.reading;
                    add(&reading[self.number], 1);
                    let [one, other] = [reading[0].get(), reading[1].get()];
                    if one > 0 && other > 0 {
                        let peak = &self.counts.both_peak;
                        peak.set(peak.get().max(one + other));
                    }
                    self.rt.sleep(Duration::from_millis(1)).await;
                    reading[self.number].set(reading[self.number].get() - 1);
                    let mut bytes = vec![0; request.len as usize];
                    for (block, content) in self.blocks.borrow().range(blocks.clone()) {
                        let at = ((block - blocks.start) * BLOCK) as usize;
                        bytes[at..at + BLOCK as usize].copy_from_slice(content);
                    }
                    return Ok(Reply::Data(Payload::from(self.rt.pool().copy_of(&bytes))));
                }
                Op::Write => {
                    add(&self.counts.written_bytes, request.len);
                    let bytes = request.payload.to_vec();
                    let content = bytes.chunks_exact(BLOCK as usize).map(Box::from);
                    self.blocks.borrow_mut().extend(blocks.zip(content));
                }
                Op::WriteZeroes => {
                    add(&self.counts.written_bytes, request.len);
                    self.blocks
                        .borrow_mut()
                        .retain(|block, _| !blocks.contains(block));
                }
                Op::Discard | Op::Flush => {}
                Op::Extents => return Err(IoError::Unsupported),
            }
            Ok(Reply::Done)
        })
    }
}

/// Returns two formatted sides, and the counters of their devices.
async fn formatted(rt: &Rt) -> ([Candidate; 2], Rc<Counters>) {
    let counts = Rc::new(Counters::default());
    let sides = [0, 1].map(|number| Candidate {
        name: ["one", "two"][number].to_owned(),
        device: Rc::new(Sparse {
            rt: rt.clone(),
            geometry: Geometry::of_size(SIDE_BYTES),
            blocks: RefCell::default(),
            counts: Rc::clone(&counts),
            number,
        }),
    });
    let made = formatting::format(rt, "large", &sides, &Formatting::with_homes()).await;
    made.expect("the sides are fit");
    (sides, counts)
}

async fn open(rt: &Rt, sides: &[Candidate; 2]) -> Mirror {
    let opened = open_these(rt, &[&sides[0], &sides[1]], &OpenOptions::default()).await;
    opened.unwrap_or_else(|error| panic!("it opens: {error}"))
}

/// Scrubs the volume, and returns the number of bytes that the scrub reports as read.
async fn scrub(rt: &Rt, mirror: &Mirror) -> u64 {
    let status = common::sides::scrub(rt, mirror).await;
    assert_eq!(status.state, "done");
    assert_eq!(status.position_bytes, mirror.geometry().size_bytes);
    assert_eq!((status.found, status.skipped_bytes), (0, 0));
    status.read_bytes
}

/// A side has a bit for each page of the dirty-region bitmap (41,616) and of the checksums
/// (5,326,336). The bits are 167 pages, and are stored twice on each of two sides, so formatting
/// writes 2.6 MiB of bits. Checkpoints and superblocks are a few blocks more.
#[test]
fn formatting_writes_the_bits_and_little_else() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (_, counts) = formatted(&rt).await;
        let [_, written_bytes, requests] = counts.take();
        let bits = 2 * 2 * 167 * BLOCK;
        assert!(
            (bits..bits + 64 * BLOCK).contains(&written_bytes),
            "{written_bytes}"
        );
        assert!(requests < 64, "{requests}");
    });
}

/// After a kill, opening the volume reads only the bits of written pages and the start of the logs,
/// on both sides concurrently.
#[test]
fn opening_reads_both_sides_at_once_and_little_of_each() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        let (sides, counts) = formatted(&rt).await;
        let mirror = open(&rt, &sides).await;
        let end = mirror.geometry().size_bytes - BLOCK;
        put(&rt, &mirror, end, 7).await;
        mirror.submit(Request::flush()).await.expect("flushed");
        // The volume is not closed, as if the program had been killed.
        drop(mirror);
        counts.take();
        counts.both_peak.set(0);
        let mirror = open(&rt, &sides).await;
        let [read_bytes, written_bytes, requests] = counts.take();
        assert!(read_bytes < 2 * 16 * MIB, "{read_bytes}");
        assert!(
            written_bytes < MIB && requests < 100,
            "{written_bytes} {requests}"
        );
        assert!(counts.both_peak.get() >= 4, "{}", counts.both_peak.get());
        assert_eq!(byte_at(&mirror, end).await, Ok(7));
        mirror.close().await.expect("closed");
    });
}

#[test]
fn a_scrub_reads_what_was_written() {
    let rt = virtual_rt(3);
    rt.block_on(async {
        let (sides, counts) = formatted(&rt).await;
        let mirror = open(&rt, &sides).await;
        counts.take();
        // A scrub of an unwritten volume reads only the superblocks and the bits that record the
        // written pages. It reads both copies of these bits on each side.
        let bits = 2 * 2 * 167 * BLOCK;
        assert!(scrub(&rt, &mirror).await < bits + 64 * BLOCK);
        assert!(counts.take()[0] < bits + 64 * BLOCK);
        let end = mirror.geometry().size_bytes - BLOCK;
        put(&rt, &mirror, end, 7).await;
        put(&rt, &mirror, 0, 8).await;
        mirror.close().await.expect("closed");
        let mirror = open(&rt, &sides).await;
        counts.take();
        // The two writes are in different MiB. Apart from the bits, the scrub reads two pages of
        // checksums and one block in each of these MiB.
        assert!(scrub(&rt, &mirror).await < bits + 64 * BLOCK);
        assert!(counts.take()[0] < bits + 128 * BLOCK);
        assert_eq!(byte_at(&mirror, end).await, Ok(7));
        assert_eq!(byte_at(&mirror, end / 2 / BLOCK * BLOCK).await, Ok(0));
        mirror.close().await.expect("closed");
    });
}
