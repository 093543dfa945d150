//! Fixtures for the tests of the areas: a device in memory that can be made to fail and that
//! records its requests, and a CRC that shares no code with the tested one.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::{Rt, VirtualOptions};
use futures_util::FutureExt;

use super::Area;
use crate::device::{Device, IoFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::layers::fault::{Choice, ErrorRule, Fault, FaultControl, FaultPlan};
use crate::media::memory::MemoryDevice;
use crate::request::{Flags, Op, Reply, Request};

/// Computes CRC32C as RFC 3720 defines it, bit by bit with the reflected polynomial.
pub(in crate::layers::mirror::store) fn crc_by_bit(bytes: &[u8]) -> u32 {
    let mut register = !0u32;
    for byte in bytes {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = register & 1;
            register = (register >> 1) ^ (carry * POLYNOMIAL);
        }
    }
    !register
}

/// The reflected polynomial of CRC32C.
pub(in crate::layers::mirror::store) const POLYNOMIAL: u32 = 0x82F6_3B78;

/// The area that the tests use: 600 pages in the middle of the device.
pub(in crate::layers::mirror::store) const AREA: Area = Area {
    offset: 64 << 10,
    len: 600 << 12,
    side: *b"\xA1\xB2\xC3\xD4-and-12-more",
    numbered_from: 0,
};

/// Builds a sector of a page according to the format specification.
pub(in crate::layers::mirror::store) fn sector_by_hand(
    entries: [u8; 504],
    reserved: [u8; 4],
    side: [u8; 16],
    page: u64,
    number: u32,
) -> Vec<u8> {
    let mut sealed = side.to_vec();
    sealed.extend(page.to_le_bytes());
    sealed.extend(number.to_le_bytes());
    sealed.extend(entries);
    sealed.extend(reserved);
    let crc = crc_by_bit(&sealed);
    let mut sector = sealed.split_off(16 + 8 + 4);
    sector.extend(crc.to_le_bytes());
    sector
}

/// Builds a page according to the format specification. Its entries begin with `entries`, followed
/// by zeroes.
pub(in crate::layers::mirror::store) fn page_by_hand(
    entries: &[u8],
    side: [u8; 16],
    page: u64,
) -> Vec<u8> {
    let mut entries = entries.to_vec();
    entries.resize(8 * 504, 0);
    let of_sector = |number: u32| {
        let start = number as usize * 504;
        let entries = entries[start..start + 504].try_into().expect("504 bytes");
        sector_by_hand(entries, [0; 4], side, page, number)
    };
    (0..8).flat_map(of_sector).collect()
}

/// Returns a page with the sectors of `new` where `mask` has a bit, and the sectors of `old`
/// elsewhere.
pub(in crate::layers::mirror::store) fn mixture(old: &[u8], new: &[u8], mask: u32) -> Vec<u8> {
    let mut page = old.to_vec();
    for sector in (0..8).filter(|sector| mask >> sector & 1 == 1) {
        let part = sector * 512..(sector + 1) * 512;
        page[part.clone()].copy_from_slice(&new[part]);
    }
    page
}

/// A device that passes every request on and records it.
///
/// # Panics
/// When two overlapping writes are in flight, since no device guarantees their order.
pub(in crate::layers::mirror::store) struct Recorder {
    below: Rc<dyn Device>,
    asked: RefCell<Vec<(Op, Range<u64>)>>,
    writing: RefCell<Vec<Range<u64>>>,
    writes_peak: Cell<usize>,
}

impl Device for Recorder {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            let range = request.offset..request.end();
            self.asked.borrow_mut().push((request.op, range.clone()));
            if request.op != Op::Write {
                return self.below.submit(request).await;
            }
            {
                let mut writing = self.writing.borrow_mut();
                let apart =
                    |other: &Range<u64>| other.end <= range.start || range.end <= other.start;
                assert!(writing.iter().all(apart), "{range:?} is being written");
                writing.push(range.clone());
                self.writes_peak
                    .set(self.writes_peak.get().max(writing.len()));
            }
            let result = self.below.submit(request).await;
            self.writing.borrow_mut().retain(|other| *other != range);
            result
        })
    }
}

/// The device of a test, with the layers under it.
pub(in crate::layers::mirror::store) struct Rig {
    pub(in crate::layers::mirror::store) rt: Rt,
    memory: Rc<MemoryDevice>,
    pub(in crate::layers::mirror::store) fault: Rc<FaultControl>,
    recorder: Rc<Recorder>,
    pub(in crate::layers::mirror::store) device: Rc<dyn Device>,
}

impl Rig {
    fn with_plans(seed: u64, plans: [FaultPlan; 2]) -> Rig {
        let rt = Rt::virtual_time(VirtualOptions {
            seed,
            shuffle: true,
        });
        let memory = Rc::new(MemoryDevice::new(&rt, 8 << 20));
        let empty = AREA.fill(&rt, &*memory, |_, _: &mut [u8]| ());
        rt.block_on(empty).expect("memory does not fail");
        let [inner, outer] = plans;
        let inner: Rc<dyn Device> = Rc::new(Fault::new(&rt, memory.clone(), inner, seed));
        let outer = Rc::new(Fault::new(&rt, inner, outer, seed + 1));
        let fault = outer.control();
        let recorder = Rc::new(Recorder {
            below: outer,
            asked: RefCell::default(),
            writing: RefCell::default(),
            writes_peak: Cell::new(0),
        });
        Rig {
            rt,
            memory,
            fault,
            device: recorder.clone(),
            recorder,
        }
    }

    /// Creates a device on which each read and write takes a millisecond.
    pub(in crate::layers::mirror::store) fn new(seed: u64) -> Rig {
        let rig = Rig::with_plans(seed, Default::default());
        for op in [Op::Read, Op::Write] {
            rig.fault.set_delay(op, Duration::from_millis(1));
        }
        rig
    }

    /// Creates a device of varying speed, on which one in five reads and writes fails. Half of the
    /// failed requests take effect nevertheless.
    pub(in crate::layers::mirror::store) fn failing(seed: u64) -> Rig {
        let plan = |late| {
            let mut plan = FaultPlan {
                jitter: Duration::from_millis(1),
                rule: Some(ErrorRule {
                    error: Some(IoError::Medium),
                    ops: vec![Op::Read, Op::Write],
                    choice: Choice::Probability(0.1),
                    range: None,
                    after: Duration::ZERO,
                    lasting: Duration::MAX,
                    hang: None,
                    late,
                }),
                ..FaultPlan::default()
            };
            plan.delays[Op::Read] = Duration::from_micros(1);
            plan.delays[Op::Write] = Duration::from_micros(1);
            plan
        };
        Rig::with_plans(seed, [plan(false), plan(true)])
    }

    /// Returns the content of the device. The read is not added to the recorded requests.
    pub(in crate::layers::mirror::store) fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        let read = Request::read(range.start, range.end - range.start);
        self.answer(read).into_data().to_vec()
    }

    /// Changes the content of the device, without a recorded request.
    pub(in crate::layers::mirror::store) fn set_bytes(&self, offset: u64, bytes: &[u8]) {
        let bytes = self.rt.pool().copy_of(bytes);
        self.answer(Request::write(offset, bytes, Flags::NONE));
    }

    fn answer(&self, request: Request) -> Reply {
        let reply = self.memory.submit(request).now_or_never();
        reply
            .expect("memory answers at once")
            .expect("memory does not fail")
    }

    /// Returns a page of [`AREA`] as stored on the device.
    pub(in crate::layers::mirror::store) fn page(&self, page: u64) -> Vec<u8> {
        let offset = AREA.offset + page * 4096;
        self.bytes(offset..offset + 4096)
    }

    pub(in crate::layers::mirror::store) fn set_page(&self, page: u64, bytes: &[u8]) {
        self.set_bytes(AREA.offset + page * 4096, bytes);
    }

    /// Returns the pages of [`AREA`] that each request with operation `op` covered, for the
    /// requests since the last call: the first page, and the page after the last one.
    pub(in crate::layers::mirror::store) fn asked(&self, op: Op) -> Vec<[u64; 2]> {
        let asked = std::mem::take(&mut *self.recorder.asked.borrow_mut());
        let page = |offset: u64| (offset - AREA.offset) / 4096;
        let of_kind = asked.into_iter().filter(|(kind, _)| *kind == op);
        of_kind.map(|(_, r)| [page(r.start), page(r.end)]).collect()
    }

    /// Returns the highest number of writes that were in flight together.
    pub(in crate::layers::mirror::store) fn writes_peak(&self) -> usize {
        self.recorder.writes_peak.get()
    }
}

#[test]
fn the_crc_of_the_tests_is_that_of_rfc_3720() {
    // Test vectors of RFC 3720, B.4: 32 bytes of zeroes, of ones, and of ascending values.
    assert_eq!(crc_by_bit(&[0; 32]), 0x8A91_36AA);
    assert_eq!(crc_by_bit(&[0xFF; 32]), 0x62A8_AB43);
    let counted: Vec<u8> = (0..32).collect();
    assert_eq!(crc_by_bit(&counted), 0x46DD_794E);
}
