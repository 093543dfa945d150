//! A disk with content, presented as a device that also has room for the metadata of a mirror's
//! side. An existing disk can thus become a side, and its content stays in place.
//!
//! The presented device consists of the head of a small metadata device, the whole disk, and the
//! last block of the metadata device. The format of a side needs no exception: its superblocks and
//! areas are on the metadata device, and its data area is the disk, from byte 0 on. A clean stop
//! empties the log into the data area, so the disk alone is then the volume. This layer must never
//! write to the disk except for requests to the disk's part of the presented device.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Payload;
use serde::Deserialize;

use crate::device::{Device, IoFuture, Statistic, StatisticVisitor};
use crate::error::OpenError;
use crate::extents::ExtentList;
use crate::geometry::Geometry;
use crate::request::{BLOCK_BYTES, IoResult, Op, Reply, Request};
use crate::units::show_size;

/// Alignment in bytes of the length of the head, which is the part of the metadata device that
/// precedes the disk. The data area of every side is aligned in the same way.
pub const HEAD_ALIGNMENT: u64 = 1 << 20;

/// The configuration of `type = "adopted"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptedConfig {
    /// Name of the disk with the content, as in the configuration.
    pub data: String,
    /// Name of the device for the metadata of the side, as in the configuration.
    pub metadata: String,
}

/// The device that holds a byte of the presented device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The metadata device.
    Metadata,
    /// The disk itself.
    Data,
}

/// Address mapping of an adopted disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptedLayout {
    /// Length of the head, and so the offset of the disk on the presented device.
    pub head_bytes: u64,
    /// Length of the disk.
    pub data_bytes: u64,
    /// Offset of the tail on the metadata device.
    pub tail_offset: u64,
}

/// A run of bytes of the presented device that lies on only one of the two devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Device of the run.
    pub on: On,
    /// Offset of the run on that device.
    pub offset: u64,
    /// Range of the run on the presented device.
    pub range: Range<u64>,
}

impl AdoptedLayout {
    /// Returns the layout for a disk and a metadata device of these sizes. Returns `None` if the
    /// metadata device has no room for a head (placed before the disk) and a tail (placed after the
    /// disk).
    pub fn of(data_bytes: u64, metadata_bytes: u64) -> Option<AdoptedLayout> {
        let whole = |bytes: u64| bytes - bytes % BLOCK_BYTES;
        let tail_offset = whole(metadata_bytes).checked_sub(BLOCK_BYTES)?;
        let head_bytes = tail_offset - tail_offset % HEAD_ALIGNMENT;
        (head_bytes > 0).then_some(AdoptedLayout {
            head_bytes,
            data_bytes: whole(data_bytes),
            tail_offset,
        })
    }

    /// Returns the size of the presented device, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.head_bytes + self.data_bytes + BLOCK_BYTES
    }

    /// Splits a range into at most three runs, in order of their offsets.
    pub fn pieces(self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let data_end = self.head_bytes + self.data_bytes;
        let areas = [
            (On::Metadata, 0, 0..self.head_bytes),
            (On::Data, 0, self.head_bytes..data_end),
            (On::Metadata, self.tail_offset, data_end..self.size_bytes()),
        ];
        areas.into_iter().filter_map(move |(on, base, area)| {
            let (start, end) = (range.start.max(area.start), range.end.min(area.end));
            (start < end).then(|| Piece {
                on,
                offset: base + start - area.start,
                range: start..end,
            })
        })
    }
}

/// An adopted disk; see the module.
pub struct Adopted {
    data: Rc<dyn Device>,
    metadata: Rc<dyn Device>,
    layout: AdoptedLayout,
    geometry: Geometry,
    requests: Cell<u64>,
    split_requests: Cell<u64>,
}

impl Adopted {
    /// Combines the disk `data` with its metadata device.
    ///
    /// # Errors
    /// When the metadata device has no room for a head and a tail, or when the disk does not end
    /// with a whole block of 4 KiB, so that the volume would not cover the whole disk.
    pub fn new(data: Rc<dyn Device>, metadata: Rc<dyn Device>) -> Result<Adopted, OpenError> {
        let (of_data, of_metadata) = (data.geometry(), metadata.geometry());
        let whole = of_data.check_whole();
        whole.map_err(|error| OpenError::new(format!("its data device {}", error.message)))?;
        let layout = AdoptedLayout::of(of_data.size_bytes, of_metadata.size_bytes);
        let layout = layout.ok_or_else(|| {
            OpenError::new(format!(
                "its metadata device has {}, but needs more than {}",
                show_size(of_metadata.size_bytes),
                show_size(HEAD_ALIGNMENT)
            ))
        })?;
        let geometry = Geometry {
            size_bytes: layout.size_bytes(),
            content_offset_bytes: Some(layout.head_bytes),
            ..Geometry::stacked([of_data, of_metadata])
        };
        Ok(Adopted {
            data,
            metadata,
            layout,
            geometry,
            requests: Cell::new(0),
            split_requests: Cell::new(0),
        })
    }

    fn device(&self, on: On) -> &Rc<dyn Device> {
        match on {
            On::Data => &self.data,
            On::Metadata => &self.metadata,
        }
    }

    /// Queries the devices in the order of their parts until the list of extents is full or the
    /// range is covered.
    async fn extents(&self, request: Request) -> IoResult {
        let mut extents = ExtentList::new(request.extents_max);
        for piece in self.layout.pieces(request.offset..request.end()) {
            let part = request.part(piece.range.start, piece.range.end, piece.offset);
            let part = Request {
                extents_max: extents.asks_for(),
                ..part
            };
            let found = self.device(piece.on).submit(part).await?.into_extents();
            found.into_iter().for_each(|run| extents.push(run));
            if extents.is_full() || extents.covered_bytes() < piece.range.end - request.offset {
                break;
            }
        }
        Ok(extents.into_reply())
    }

    /// Executes a request that concerns both devices, or neither (such as a read of 0 bytes).
    async fn run_split(&self, request: Request) -> IoResult {
        let parts: Vec<IoFuture<'_>> = match request.op {
            Op::Flush => [On::Metadata, On::Data]
                .map(|on| self.device(on).submit(request.clone()))
                .into(),
            Op::Extents => return self.extents(request).await,
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => {
                let pieces = self.layout.pieces(request.offset..request.end());
                let part = |p: Piece| request.part(p.range.start, p.range.end, p.offset);
                pieces
                    .map(|piece| self.device(piece.on).submit(part(piece)))
                    .collect()
            }
        };
        // The request completes only when all its parts have ended, so that no part writes after
        // the answer.
        let results = futures_util::future::join_all(parts).await;
        let replies = results.into_iter().collect::<Result<Vec<Reply>, _>>()?;
        Ok(joined(request.op, replies))
    }
}

/// Joins the answers of the parts, in order, into the answer of the request.
fn joined(op: Op, replies: Vec<Reply>) -> Reply {
    match op {
        Op::Read => {
            let mut data = Payload::empty();
            replies
                .into_iter()
                .for_each(|reply| data.append(reply.into_data()));
            Reply::Data(data)
        }
        Op::Extents => unreachable!("one device after the other was asked"),
        Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => Reply::Done,
    }
}

impl Device for Adopted {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, mut request: Request) -> IoFuture<'_> {
        if let Err(error) = self.geometry.check(&request) {
            return IoFuture::ready(Err(error));
        }
        self.requests.set(self.requests.get() + 1);
        if request.op != Op::Flush {
            // A request inside one part, the common case, is forwarded without splitting.
            let mut pieces = self.layout.pieces(request.offset..request.end());
            if let (Some(only), None) = (pieces.next(), pieces.next()) {
                request.offset = only.offset;
                return self.device(only.on).submit(request);
            }
        }
        self.split_requests.set(self.split_requests.get() + 1);
        IoFuture::new(self.run_split(request))
    }

    fn interruptions(&self) -> Option<u64> {
        let known = [&self.data, &self.metadata].map(|device| device.interruptions());
        known.into_iter().flatten().reduce(|sum, more| sum + more)
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        out.statistic("", "requests", Statistic::Counter(self.requests.get()));
        let split = self.split_requests.get();
        out.statistic("", "split_requests", Statistic::Counter(split));
    }
}

#[cfg(test)]
mod tests {
    use bimetal_rt::{Rng, Rt, VirtualOptions};

    use super::*;
    use crate::error::IoError;
    use crate::layers::fault::{Fault, FaultPlan};
    use crate::media::memory::MemoryDevice;
    use crate::request::{Extent, Flags};

    const MIB: u64 = 1 << 20;
    const KIB: u64 = 1 << 10;

    /// Creates an adopted disk with a metadata device of 2 MiB and 8 KiB: a head of 2 MiB, 4 KiB
    /// unused, and a tail of 4 KiB.
    fn adopted(rt: &Rt) -> (Rc<MemoryDevice>, Rc<MemoryDevice>, Adopted) {
        let data = Rc::new(MemoryDevice::new(rt, 256 * KIB));
        let metadata = Rc::new(MemoryDevice::new(rt, 2 * MIB + 8 * KIB));
        let over = Adopted::new(
            Rc::clone(&data) as Rc<dyn Device>,
            Rc::clone(&metadata) as Rc<dyn Device>,
        );
        (data, metadata, over.expect("there is room"))
    }

    fn virtual_rt() -> Rt {
        Rt::virtual_time(VirtualOptions::default())
    }

    #[test]
    fn the_disk_lies_between_a_whole_number_of_mib_and_the_tail() {
        let layout = AdoptedLayout::of(100 * KIB, 5 * MIB).expect("there is room");
        // The last block of the 5 MiB is the tail. The head has a whole number of MiB, so it has 4
        // MiB.
        assert_eq!(layout.head_bytes, 4 * MIB);
        assert_eq!(layout.tail_offset, 5 * MIB - 4 * KIB);
        assert_eq!(layout.size_bytes(), 4 * MIB + 104 * KIB);
        assert_eq!(AdoptedLayout::of(100 * KIB, MIB), None);
        assert!(AdoptedLayout::of(100 * KIB, MIB + 4 * KIB).is_some());
        assert_eq!(AdoptedLayout::of(100 * KIB, 100), None);
        // Incomplete blocks are not used.
        let odd = AdoptedLayout::of(4 * KIB + 17, 2 * MIB + 5 * KIB).expect("there is room");
        assert_eq!((odd.data_bytes, odd.tail_offset), (4 * KIB, 2 * MIB));
        let pieces: Vec<_> = layout
            .pieces(4 * MIB - 8 * KIB..layout.size_bytes())
            .map(|p| (p.on, p.offset, p.range.end - p.range.start))
            .collect();
        let expected = [
            (On::Metadata, 4 * MIB - 8 * KIB, 8 * KIB),
            (On::Data, 0, 100 * KIB),
            (On::Metadata, 5 * MIB - 4 * KIB, 4 * KIB),
        ];
        assert_eq!(pieces, expected);
    }

    /// Random requests around the borders between the three parts give the same answers as on a
    /// single memory device.
    #[test]
    fn it_is_one_device() {
        let rt = virtual_rt();
        rt.block_on(async {
            let (data, metadata, over) = adopted(&rt);
            let size_bytes = over.geometry().size_bytes;
            let model = MemoryDevice::new(&rt, size_bytes);
            let mut rng = Rng::new(7);
            let first_block = (2 * MIB - 128 * KIB) / BLOCK_BYTES;
            let blocks = size_bytes / BLOCK_BYTES - first_block;
            for step in 0..3000u64 {
                let (start, len) = (rng.below(blocks), rng.below(80) + 1);
                let offset = (first_block + start) * BLOCK_BYTES;
                let len = len.min(blocks - start) * BLOCK_BYTES;
                let request = match rng.below(6) {
                    0 | 1 => {
                        let bytes: Vec<u8> =
                            (0..len).map(|at| (step + at / BLOCK_BYTES) as u8).collect();
                        Request::write(offset, rt.pool().copy_of(&bytes), Flags::NONE)
                    }
                    2 => Request::without_data(Op::WriteZeroes, offset, len, Flags::FUA),
                    3 => Request::without_data(Op::Discard, offset, len, Flags::NONE),
                    4 => Request::without_data(Op::Extents, offset, len, Flags::NONE),
                    _ => Request::read(offset, len),
                };
                let (ours, expected) = (over.submit(request.clone()), model.submit(request));
                match (ours.await.expect("taken"), expected.await.expect("taken")) {
                    (Reply::Data(ours), Reply::Data(expected)) => {
                        assert_eq!(ours.to_vec(), expected.to_vec(), "step {step}");
                    }
                    (Reply::Extents(ours), Reply::Extents(expected)) => {
                        // Memory is allocated in chunks. The tail lies in a different chunk here
                        // than in the model, so its extents can differ from those of the model.
                        let total = |runs: &[Extent]| runs.iter().map(|run| run.len).sum::<u64>();
                        assert_eq!(total(&ours), total(&expected));
                        let in_tail = offset + len == size_bytes;
                        assert!(in_tail || ours == expected, "step {step}");
                    }
                    (Reply::Done, Reply::Done) => {}
                    (ours, expected) => panic!("{ours:?} is no answer like {expected:?}"),
                }
            }
            // The content of each device is read directly, without the layer.
            let part = |offset, len| model.submit(Request::read(offset, len));
            let flat = part(2 * MIB, 256 * KIB).await.expect("memory").into_data();
            let disk = data.submit(Request::read(0, 256 * KIB)).await;
            let disk = disk.expect("memory").into_data();
            assert_eq!(disk.to_vec(), flat.to_vec());
            let flat = part(size_bytes - BLOCK_BYTES, BLOCK_BYTES).await;
            let flat = flat.expect("memory").into_data();
            let tail = Request::read(2 * MIB + 4 * KIB, BLOCK_BYTES);
            let tail = metadata.submit(tail).await.expect("memory").into_data();
            assert_eq!(tail.to_vec(), flat.to_vec());
            let unused = metadata.submit(Request::read(2 * MIB, 4 * KIB)).await;
            let unused = unused.expect("memory").into_data().to_vec();
            assert!(unused.iter().all(|byte| *byte == 0), "nothing is there");
        });
    }

    #[test]
    fn a_flush_reaches_both_and_fails_with_either() {
        for broken in [On::Data, On::Metadata] {
            let rt = virtual_rt();
            rt.block_on(async {
                let (data, metadata, _) = adopted(&rt);
                let fault = |below: Rc<MemoryDevice>| {
                    let fault = Fault::new(&rt, below, FaultPlan::default(), 1);
                    let control = fault.control();
                    (Rc::new(fault), control)
                };
                let ((data, of_data), (metadata, of_metadata)) = (fault(data), fault(metadata));
                let over = Adopted::new(data, metadata).expect("there is room");
                over.submit(Request::flush()).await.expect("both are well");
                let control = match broken {
                    On::Data => &of_data,
                    On::Metadata => &of_metadata,
                };
                control.set_error(Some(IoError::Medium));
                let failed = over.submit(Request::flush()).await;
                assert_eq!(failed.err(), Some(IoError::Medium), "{broken:?}");
                // A request to the part on the other device does not fail.
                let offset = match broken {
                    On::Data => 0,
                    On::Metadata => 2 * MIB,
                };
                let elsewhere = over.submit(Request::read(offset, BLOCK_BYTES)).await;
                elsewhere.expect("the other device is well");
            });
        }
    }
}
