//! Tests of the superblock against the tables of the format specification, and against damage.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::{Buf, Rt, VirtualOptions};

use super::*;
use crate::device::{Device, IoFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::media::memory::MemoryDevice;
use crate::request::{Flags, Op, Request};

fn epoch(number: u64) -> Epoch {
    Epoch {
        number,
        id: [0x40 + number as u8; 16],
        first_change: 100 * number,
        members: 0b11,
        began_s: 5_000 + number,
    }
}

/// Returns these unfinished operations: a scrub runs, a command has added the side at place 2, and
/// the side at place 0 leaves once the side at place 2 is healthy.
fn remembered() -> Remembered {
    let mut remembered = Remembered::default();
    remembered.revision = 0x0506;
    remembered.scrub = Some(ScrubRecord {
        started_s: 0x11,
        position_bytes: 0x12,
        read_bytes: 0x13,
        skipped_bytes: 0x14,
        found: 0x15,
        repaired: 0x16,
        unrepairable: 0x17,
    });
    remembered.set_leaving(0, Some(Leaving::OnceComplete(2)));
    remembered.set_added(2, true);
    remembered.note_left(&[0x71; 16]);
    remembered.note_left(&[0x72; 16]);
    remembered
}

fn sample() -> Superblock {
    let mut table = [None; SIDES_MAX];
    table[0] = Some(Listed::new([2; 16]));
    table[2] = Some(Listed {
        side: [3; 16],
        acknowledged: Acknowledged::one_of(Some([0x51; 16]), Some([0x52; 16])),
    });
    Superblock {
        volume: [1; 16],
        side: [3; 16],
        table,
        state: SideState::Dirty,
        flags: SideFlags {
            not_durable: true,
            no_checksums: false,
        },
        generation: 7,
        complete_below: 11,
        volume_bytes: 900 << 20,
        layout: SideLayout::of_device(1 << 30, None).unwrap(),
        digest: BlockDigest::Xxh3,
        unknown_blocks: 0x0102_0304,
        created_s: 1_000,
        written_s: 2_000,
        name: "vol".to_owned(),
        history: History::of(vec![epoch(8), epoch(9)]).unwrap(),
        remembered: remembered(),
    }
}

/// Returns the block of the sample with some bytes replaced and a matching checksum.
fn altered(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut block = sample().encode();
    block[at..at + bytes.len()].copy_from_slice(bytes);
    let checksum = crc32c::crc32c(&block[..4092]);
    block[4092..].copy_from_slice(&checksum.to_le_bytes());
    block
}

#[test]
fn a_superblock_survives_and_every_damaged_bit_is_noticed() {
    let mut full = sample();
    full.history = History::of((1..=64).map(epoch).collect()).unwrap();
    full.table = std::array::from_fn(|place| Some(Listed::new([place as u8 + 1; 16])));
    full.name = "n".repeat(64);
    for superblock in [sample(), full] {
        let block = superblock.encode();
        assert_eq!(Superblock::decode(&block), Ok(Some(superblock)));
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let decoded = Superblock::decode(&damaged);
            assert!(!matches!(decoded, Ok(Some(_))), "bit {bit}");
        }
    }
}

/// A side that was formatted by an older program has no feature bits, and its reserved bytes are
/// ignored.
#[test]
fn a_side_without_the_features_says_nothing_of_written_pages() {
    let mut older = sample();
    older.digest = BlockDigest::Crc32c;
    older.layout.written = None;
    older.unknown_blocks = 0;
    let mut block = older.encode();
    assert_eq!(
        (&block[16..24], &block[3848..3872]),
        (&[0; 8][..], &[0; 24][..])
    );
    assert_eq!(Superblock::decode(&block), Ok(Some(older.clone())));
    block[3848..3872].fill(7);
    let checksum = crc32c::crc32c(&block[..4092]);
    block[4092..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(Superblock::decode(&block), Ok(Some(older)));
}

/// Older programs wrote zeroes in the bytes that now hold the unfinished operations.
#[test]
fn zeroes_remember_nothing_and_a_side_that_is_not_listed_does_not_leave() {
    let zeroes = altered(3928, &[0; 160]);
    let found = Superblock::decode(&zeroes).unwrap().unwrap();
    assert_eq!(found.remembered, Remembered::default());
    for [place, leaving] in [[1, 255], [0, 1], [0, 2], [0, 17], [0, 254]] {
        let mut leaves = [0; 16];
        leaves[place] = leaving as u8;
        let found = Superblock::decode(&altered(3936, &leaves))
            .unwrap()
            .unwrap();
        assert_eq!(found.remembered.leaving(place), None, "{place}: {leaving}");
    }
    let now = Superblock::decode(&altered(3936, &[255])).unwrap().unwrap();
    assert_eq!(now.remembered.leaving(0), Some(Leaving::Now));
    for (code, kind) in [(254, SideKind::Log), (253, SideKind::Home)] {
        let block = altered(3936, &[code]);
        let found = Superblock::decode(&block).unwrap().unwrap();
        assert_eq!(found.remembered.converted_to(0), Some(kind));
        assert_eq!(found.encode(), block);
    }
}

/// The offsets are specified in `docs/format/mirror-side.md`.
#[test]
fn fields_lie_where_the_format_page_says() {
    let block = sample().encode();
    assert_eq!(block.len(), 4096);
    let mut expected = vec![0u8; 4096];
    let mut put = |at: usize, bytes: &[u8]| expected[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"BIMETAL\0");
    put(8, &[2, 0, 0, 0, 0, 0, 0, 0]);
    // Feature bits: the side records which pages were written, and its digests are XXH3.
    put(16, &[1 | 2]);
    put(40, &[1; 16]);
    put(56, &[3; 16]);
    // This side has place 2 of the table, and the volume has two sides.
    put(72, &[2, 0, 0, 0, 2, 0, 0, 0]);
    put(80, &[2, 0, 0, 0, 1, 0, 0, 0]);
    put(88, &[7]);
    put(96, &[11]);
    // 900 MiB.
    put(104, &[0, 0, 0x40, 0x38]);
    // The layout of a device of 1 GiB. Each line has the offset and the length of one area. Bitmap:
    // 64 KiB, 64 KiB. Checksums: 128 KiB, 1088 KiB. Log: 1280 KiB, 64 MiB. Data: 66 MiB, and 958
    // MiB minus 4 KiB.
    put(112, &[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    put(128, &[0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x11]);
    put(144, &[0, 0, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
    put(160, &[0, 0, 0x20, 4, 0, 0, 0, 0, 0, 0xf0, 0xdf, 0x3b]);
    put(176, &[0xe8, 3]);
    put(184, &[0xd0, 7]);
    put(192, b"vol");
    put(256, &[2; 16]);
    put(320, &[3; 16]);
    put(336, &[0x51; 8]);
    put(344, &[0x52; 8]);
    put(768, &[2]);
    // Epoch 8: begins with change 800; its members are the sides at places 0 and 1; began at time
    // 5008.
    put(776, &[8]);
    put(784, &[0x48; 16]);
    put(800, &[0x20, 3]);
    put(808, &[3]);
    put(816, &[0x90, 0x13]);
    // Epoch 9: begins with change 900, began at time 5009.
    put(824, &[9]);
    put(832, &[0x49; 16]);
    put(848, &[0x84, 3]);
    put(856, &[3]);
    put(864, &[0x91, 0x13]);
    // The area of the bits that record written pages is at 1216 KiB and has a length of 64 KiB. The
    // number of unknown blocks is 16,909,060.
    put(3848, &[0, 0, 0x13, 0, 0, 0, 0, 0, 0, 0, 1]);
    put(3864, &[4, 3, 2, 1]);
    // The unfinished operations: revision, leaving sides, added sides, the sides that have left
    // (latest first), and the scrub.
    put(3928, &[6, 5]);
    put(3936, &[3]);
    put(3952, &[4]);
    put(3960, &[0x72; 8]);
    put(3968, &[0x71; 8]);
    (0..7).for_each(|n| put(4024 + 8 * n, &[0x11 + n as u8]));
    let differing = (0..4092).find(|&at| block[at] != expected[at]);
    assert_eq!(differing, None, "the first byte that differs");
    let codes = [
        (SideState::Clean, 1),
        (SideState::Dirty, 2),
        (SideState::CleanIdle, 3),
        (SideState::Inconsistent, 4),
    ];
    for (state, code) in codes {
        let block = Superblock { state, ..sample() }.encode();
        assert_eq!(block[80], code);
        let found = Superblock::decode(&block).unwrap().unwrap();
        assert_eq!(found.state, state);
    }
}

#[test]
fn the_checksum_is_crc32c_of_everything_before_it() {
    // The CRC-32C of "123456789", from the catalogue of parametrised CRC algorithms.
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    let block = sample().encode();
    let stored = u32::from_le_bytes(block[4092..].try_into().unwrap());
    assert_eq!(stored, crc32c::crc32c(&block[..4092]));
}

/// The fields of a logged side, at the offsets of its format page.
#[test]
fn a_logged_side_says_where_its_segments_are() {
    let asked = Asked {
        kind: SideKind::Log,
        ..Asked::default()
    };
    let layout = SideLayout::of(&Geometry::of_size(1 << 30), asked).unwrap();
    let logged = Superblock {
        layout,
        volume_bytes: 512 << 20,
        ..sample()
    };
    let block = logged.encode();
    assert_eq!(block[16], 1 | 2 | 32 | 64);
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
    let segments = layout.segments.unwrap();
    // The checksums and the data have virtual addresses.
    assert_eq!(word(128), 1 << 60);
    assert_eq!(word(160), (1 << 60) + word(136));
    // The figures are computed by hand on the format page.
    assert_eq!((word(3872), word(3880)), segments.record);
    assert_eq!(segments.record.0, 192 << 10);
    assert_eq!((word(3888), word(3896)), (1 << 20, 2045 * (512 << 10)));
    assert_eq!(word(3904), 512 << 10);
    assert_eq!(word(168), 770_940_928);
    assert_eq!(Superblock::decode(&block).unwrap(), Some(logged.clone()));
    assert_eq!(logged.fits(&Geometry::of_size(1 << 30)), Ok(()));
    // A layout with other areas than a logged side has is refused.
    let altered = |change: fn(&mut SideLayout)| {
        let mut changed = logged.clone();
        change(&mut changed.layout);
        changed.fits(&Geometry::of_size(1 << 30))
    };
    assert!(altered(|l| l.data.0 += 4096).is_err());
    assert!(altered(|l| l.checksums.0 = 1 << 20).is_err());
    assert!(altered(|l| l.log.1 = 768 << 20).is_err());
    assert!(altered(|l| l.segments.as_mut().unwrap().segment_bytes = 0).is_err());
    assert!(altered(|l| l.segments.as_mut().unwrap().segment_bytes = 3 << 20).is_err());
    assert!(altered(|l| l.segments.as_mut().unwrap().record.1 = 4096).is_err());
    assert!(altered(|l| l.segments.as_mut().unwrap().area.1 *= 2).is_err());
    assert!(altered(|l| l.segments.as_mut().unwrap().area.0 = u64::MAX - 4095).is_err());
    assert!(altered(|l| l.written = None).is_err());
}

/// The room of a volume that is larger than its sides is where the format page has it, and only
/// logged sides can have one.
#[test]
fn a_logged_side_says_how_much_may_have_content() {
    let asked = Asked {
        kind: SideKind::Log,
        volume_bytes: Some(8 << 30),
        ..Asked::default()
    };
    let limited = Superblock {
        layout: SideLayout::of(&Geometry::of_size(1 << 30), asked).unwrap(),
        volume_bytes: 8 << 30,
        ..sample()
    };
    let block = limited.encode();
    assert_eq!(block[16], 1 | 2 | 32 | 64 | 128);
    let room = limited.layout.limited_room_bytes().unwrap();
    assert_eq!(block[3912..3920], room.to_le_bytes());
    assert_eq!(Superblock::decode(&block).unwrap(), Some(limited.clone()));
    assert_eq!(limited.fits(&Geometry::of_size(1 << 30)), Ok(()));
    let mut without = limited.clone();
    without.layout = without.layout.with_room(None);
    assert!(without.fits(&Geometry::of_size(1 << 30)).is_err());
    for room_bytes in [1 << 30, u64::MAX] {
        let mut more = limited.clone();
        more.layout = more.layout.with_room(Some(room_bytes));
        assert!(more.fits(&Geometry::of_size(1 << 30)).is_err());
    }
    let mut home = sample().encode();
    home[16] |= 128;
    let checksum = crc32c::crc32c(&home[..4092]);
    home[4092..].copy_from_slice(&checksum.to_le_bytes());
    let refused = Superblock::decode(&home).unwrap_err();
    assert!(refused.contains("features 0x80"), "{refused}");
}

#[test]
fn the_newest_good_copy_counts() {
    let old = sample();
    let new = Superblock {
        generation: old.generation + 1,
        ..sample()
    };
    let mut torn = new.encode();
    torn[90] ^= 1;
    let blank = vec![0; 4096];
    let of = |copies: Vec<Result<Vec<u8>, String>>| newest(copies);
    let unread = || Err("unread".to_owned());
    assert_eq!(
        of(vec![Ok(old.encode()), Ok(new.encode())]),
        Ok(Some(new.clone()))
    );
    assert_eq!(of(vec![Ok(new.encode()), Ok(old.encode())]), Ok(Some(new)));
    assert_eq!(
        of(vec![Ok(torn.clone()), Ok(old.encode())]),
        Ok(Some(old.clone()))
    );
    assert_eq!(of(vec![Ok(old.encode()), unread()]), Ok(Some(old)));
    assert_eq!(of(vec![Ok(blank.clone()), Ok(blank.clone())]), Ok(None));
    assert!(of(vec![Ok(torn), Ok(blank.clone())]).is_err());
    assert!(of(vec![unread(), Ok(blank)]).is_err());
}

#[test]
fn what_cannot_be_is_refused_whatever_its_checksum() {
    let refused = |at: usize, bytes: &[u8]| match Superblock::decode(&altered(at, bytes)) {
        Err(why) => why,
        other => panic!("bytes {bytes:?} at {at}: {other:?}"),
    };
    let old = refused(8, &[1]);
    assert!(old.contains("before crash safety"), "{old}");
    assert!(old.contains("format it again"), "{old}");
    assert!(refused(8, &[3]).contains("version 3"));
    assert!(refused(16, &[128]).contains("features 0x80"));
    for old in [4, 8, 16] {
        let reason = refused(16, &[1 | 2 | old]);
        assert!(reason.contains("logged side of an earlier version"));
    }
    assert!(refused(16, &[1 | 2 | 64]).contains("features 0x40"));
    for (at, bytes) in [
        (72, &[1u8][..]),   // A free place,
        (72, &[0]),         // another side's,
        (72, &[200]),       // no place.
        (76, &[0]),         // No sides,
        (76, &[3]),         // more than the table names.
        (80, &[0]),         // No state,
        (80, &[5]),         // an unknown one.
        (256, &[3; 16]),    // One side twice.
        (768, &[0]),        // No epochs,
        (768, &[65]),       // too many,
        (775, &[1]),        // far too many.
        (824, &[11]),       // A gap in the numbers,
        (832, &[0x48; 16]), // one epoch twice.
    ] {
        refused(at, bytes);
    }
    // Reserved bytes are ignored: in the table of sides, in an epoch, and after the history.
    for at in [304, 812, 3900] {
        let found = Superblock::decode(&altered(at, &[9])).unwrap();
        assert_eq!(found, Some(sample()));
    }
    let name = Superblock::decode(&altered(192, &[0xff, 0xfe])).unwrap();
    assert!(
        name.is_some(),
        "a name that is no text is not worth a volume"
    );
}

/// A disk on which a selected write fails and leaves garbage.
struct Tearing {
    disk: MemoryDevice,
    garbage: Buf,
    writes_until_struck: Cell<Option<u32>>,
}

impl Device for Tearing {
    fn geometry(&self) -> &Geometry {
        self.disk.geometry()
    }

    fn submit(&self, mut request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            let left = self.writes_until_struck.get();
            let struck = request.op == Op::Write && left == Some(0);
            if request.op == Op::Write {
                let left = left.and_then(|left| left.checked_sub(1));
                self.writes_until_struck.set(left);
            }
            if struck {
                request.payload = self.garbage.clone().into();
            }
            let done = self.disk.submit(request).await;
            if struck { Err(IoError::Medium) } else { done }
        })
    }
}

/// One copy of the superblock is lost, by corruption or by a failed write. Then the next superblock
/// write fails, or the power is cut during that write. The intact copy must survive this.
#[test]
fn a_copy_that_is_left_is_not_written_before_the_other_is_whole() {
    let rt = Rt::virtual_time(VirtualOptions::default());
    let bytes = 32 << 20;
    let mut superblock = sample();
    superblock.layout = SideLayout::of_device(bytes, Some(4 << 20)).unwrap();
    superblock.volume_bytes = 4 << 20;
    let garbage = rt.pool().copy_of(&[0xA5; SUPERBLOCK_BYTES as usize]);
    let places = [0, bytes - SUPERBLOCK_BYTES];
    for (lost, struck) in places.into_iter().flat_map(|lost| [(lost, 0), (lost, 1)]) {
        let disk = Rc::new(Tearing {
            disk: MemoryDevice::new(&rt, bytes),
            garbage: garbage.clone(),
            writes_until_struck: Cell::new(None),
        });
        let candidate = Candidate {
            name: "torn".to_owned(),
            device: Rc::clone(&disk) as Rc<dyn Device>,
        };
        rt.block_on(async {
            let mut superblock = superblock.clone();
            let spare = Cell::new(None);
            candidate.write(&superblock, &spare, &rt).await.unwrap();
            let lose = Request::write(lost, garbage.clone(), Flags::NONE);
            disk.submit(lose).await.unwrap();
            // The side is opened again, so which copy is spare is unknown.
            spare.set(None);
            let mut at_least = superblock.generation;
            for strike in [struck, 0, 1, 0] {
                superblock.generation += 1;
                disk.writes_until_struck.set(Some(strike));
                let written = candidate.write(&superblock, &spare, &rt).await;
                assert_eq!(written, Err(IoError::Medium));
                let found = candidate.inspect().await;
                let found = found.expect("a copy is whole").expect("it is a superblock");
                if strike == 1 {
                    // The first of the two writes has succeeded.
                    at_least = superblock.generation;
                }
                assert!(found.generation >= at_least, "{lost} {strike}");
            }
        });
    }
}
