//! A volume that is larger than what its sides have room for: writes without room are refused and
//! lose nothing, what was discarded makes room, and no side ever holds more than it has room for.

use std::collections::BTreeMap;
use std::rc::Rc;

use bimetal_block::layers::fault::{Fault, FaultPlan};
use bimetal_block::layers::mirror::superblock::{Asked, Reserve, SideKind, SideLayout};
use bimetal_block::layers::mirror::{Layouts, OpenOptions, Room};
use bimetal_block::units::Size;
use bimetal_block::{Device, Flags, Geometry, IoError, Op, Request, Statistic};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rng, Rt};

use crate::common::sides::{blank, blank_of};
use crate::common::volume::{OpenVolume, Volume};
use crate::common::{ending_rt, write};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Size of the volume. Its sides have 64 MiB.
const VOLUME_BYTES: u64 = 256 * MIB;

async fn volume(rt: &Rt) -> Volume {
    let mut volume = Volume::unformatted(rt, 2);
    volume.config.layout = Layouts::All(SideKind::Log);
    volume.config.size = Some(Size(VOLUME_BYTES));
    volume.try_format("vol").await.expect("the sides are fit");
    volume
}

/// The blocks that have content, each with its byte.
struct Model {
    rng: Rng,
    bytes: BTreeMap<u64, u8>,
}

impl Model {
    fn new() -> Model {
        Model {
            rng: Rng::labelled(1, "room"),
            bytes: BTreeMap::new(),
        }
    }

    /// Writes a block, which the volume may refuse for lack of room.
    async fn put(&mut self, mirror: &OpenVolume, rt: &Rt, block: u64) -> Result<(), IoError> {
        let byte = 1 + self.rng.below(255) as u8;
        let written = mirror.submit(write(rt, block * BLOCK, BLOCK as usize, byte));
        written.await?;
        self.bytes.insert(block, byte);
        Ok(())
    }

    /// Writes random blocks without content until one is refused.
    async fn fill(&mut self, mirror: &OpenVolume, rt: &Rt) {
        self.fill_in(mirror, rt, 0..VOLUME_BYTES / BLOCK).await;
    }

    /// Writes random blocks of a range without content until one is refused.
    async fn fill_in(&mut self, mirror: &OpenVolume, rt: &Rt, range: std::ops::Range<u64>) {
        loop {
            let block = self.rng.between(range.start, range.end - 1);
            if self.bytes.contains_key(&block) {
                continue;
            }
            match self.put(mirror, rt, block).await {
                Ok(()) => {}
                Err(error) => return assert_eq!(error, IoError::NoSpace),
            }
        }
    }

    fn some_block(&mut self) -> u64 {
        let at = self.rng.below(self.bytes.len() as u64);
        let (block, _) = self.bytes.iter().nth(at as usize).expect("it is inside");
        *block
    }

    async fn discard(&mut self, mirror: &OpenVolume, range: std::ops::Range<u64>) {
        let (start, len) = (range.start * BLOCK, (range.end - range.start) * BLOCK);
        let discard = Request::without_data(Op::Discard, start, len, Flags::NONE);
        mirror.submit(discard).await.expect("it needs no room");
        self.bytes.retain(|block, _| !range.contains(block));
    }

    /// Reads every block with content, and some without.
    async fn check(&mut self, mirror: &OpenVolume) {
        for (block, byte) in &self.bytes {
            assert_eq!(
                mirror.byte_at(block * BLOCK).await,
                Ok(*byte),
                "block {block}"
            );
        }
        for _ in 0..500 {
            let block = self.rng.below(VOLUME_BYTES / BLOCK);
            let expected = self.bytes.get(&block).copied().unwrap_or(0);
            assert_eq!(mirror.byte_at(block * BLOCK).await, Ok(expected));
        }
        assert_eq!(room(mirror).content_bytes, self.bytes.len() as u64 * BLOCK);
    }
}

fn room(mirror: &OpenVolume) -> Room {
    mirror.status().room.expect("its room is limited")
}

/// The room of the sides by the format page: 64 MiB have segments of 256 KiB, of which 63 blocks
/// are used, 251 of them: they begin at 1 MiB and end before the last block. The log of 4 MiB takes
/// 21 with its quarter, and 12 are reserved: 218 are left, each with 62 blocks beside the
/// descriptions, of which four fifths are 10,812 blocks. The pages of 256 MiB take 2 x (65 + 2) =
/// 134 of these, and as many as the volume has pages.
#[test]
fn the_room_is_that_of_the_format_page() {
    let asked = |volume_bytes, reserve| Asked {
        kind: SideKind::Log,
        volume_bytes,
        reserve,
        ..Asked::default()
    };
    let of = |volume_bytes, reserve| {
        let geometry = Geometry::of_size(64 * MIB);
        SideLayout::of(&geometry, asked(volume_bytes, reserve)).map_err(|error| error.to_string())
    };
    let fifth = Reserve::default();
    let made = of(Some(VOLUME_BYTES), fifth).unwrap();
    let segments = made.segments.unwrap();
    assert_eq!(
        (segments.segment_bytes, segments.segments()),
        (256 << 10, 251)
    );
    let room = |segments: u64, free: u64, pages: u64| {
        let blocks = (segments - 21 - 12) * 62;
        let left = blocks * BLOCK - blocks * BLOCK * free / 1000;
        (left - pages * BLOCK) / BLOCK * BLOCK
    };
    assert_eq!(segments.room_bytes, Some(room(251, 200, 134)));
    assert_eq!(made.data.1, VOLUME_BYTES);
    // A volume for which there is room has no limit.
    let small = of(Some(40 * MIB), fifth).unwrap();
    assert_eq!(small, of(None, fifth).unwrap());
    assert_eq!(small.segments.unwrap().room_bytes, None);
    let half = of(Some(VOLUME_BYTES), Reserve::try_from(0.5).unwrap()).unwrap();
    assert_eq!(half.segments.unwrap().room_bytes, Some(room(251, 500, 134)));
    let refused = of(Some(1 << 46), fifth).unwrap_err();
    assert!(refused.contains("too small"), "{refused}");
    for wrong in [0.0, 0.95, f64::NAN, -1.0] {
        assert!(Reserve::try_from(wrong).unwrap_err().contains("`reserve`"));
    }
}

/// Fills the volume, writes over its content for long enough that every segment is cleaned, makes
/// room with discards, and opens the volume after a stop, a death, and without a side.
#[test]
fn a_full_volume_takes_what_has_room_and_nothing_else() {
    let rt = ending_rt(31);
    rt.block_on(async {
        let mut volume = volume(&rt).await;
        let mut mirror = volume.open().await;
        let mut model = Model::new();
        model.fill(&mirror, &rt).await;
        let full = room(&mirror);
        assert_eq!(full.content_bytes, full.room_bytes);
        assert_eq!(full.refused_writes, 1);
        for round in 0..6 {
            for _ in 0..model.bytes.len() / 2 {
                let block = model.some_block();
                let written = model.put(&mirror, &rt, block).await;
                assert_eq!(written, Ok(()), "it has content");
            }
            model.check(&mirror).await;
            let freed = model.bytes.len();
            model
                .discard(&mirror, round * 3000..(round + 1) * 3000)
                .await;
            let freed = freed - model.bytes.len();
            assert!(freed > 100, "{freed}");
            mirror.flush().await;
            match round {
                0 | 3 => mirror.close().await,
                1 | 4 => volume.kill(&rt).await,
                _ => {
                    mirror.close().await;
                    let alone = volume.open_alone(round as usize % 2).await;
                    model.check(&alone).await;
                    model.fill(&alone, &rt).await;
                    model.discard(&alone, 30_000..40_000).await;
                    alone.close().await;
                }
            }
            mirror = volume.open().await;
            mirror.until_complete(2).await;
            model.check(&mirror).await;
            model.fill(&mirror, &rt).await;
            assert_eq!(room(&mirror).content_bytes, full.room_bytes);
        }
        mirror.close().await;
        for side in [0, 1] {
            let alone = volume.open_alone(side).await;
            model.check(&alone).await;
            alone.close().await;
        }
    });
}

/// While a side is absent, all of the content is replaced by other content of the same length. The
/// side has no room for both when it is rebuilt.
#[test]
fn a_side_returns_to_a_full_volume_of_which_everything_was_replaced() {
    let rt = ending_rt(32);
    rt.block_on(async {
        let volume = volume(&rt).await;
        let mirror = volume.open().await;
        let mut model = Model::new();
        let half = VOLUME_BYTES / BLOCK / 2;
        model.fill_in(&mirror, &rt, half..2 * half).await;
        mirror.close().await;
        let alone = volume.open_alone(0).await;
        model.discard(&alone, 0..VOLUME_BYTES / BLOCK).await;
        // A rebuild in the order of the volume comes to it first.
        model.fill_in(&alone, &rt, 0..half).await;
        alone.close().await;
        let mirror = volume.open_as(&OpenOptions::default()).await;
        mirror.until_complete(2).await;
        model.check(&mirror).await;
        mirror.close().await;
        let alone = volume.open_alone(1).await;
        model.check(&alone).await;
    });
}

/// Many writes at once near the end of the room: as many succeed as there is room for.
#[test]
fn writes_at_once_share_the_last_room() {
    let rt = ending_rt(33);
    rt.block_on(async {
        let volume = volume(&rt).await;
        let mirror = Rc::new(volume.open().await);
        let mut model = Model::new();
        model.fill(&mirror, &rt).await;
        let (first, _) = model.bytes.first_key_value().expect("it is full");
        let first = *first;
        // The range without content lies between two blocks that have some.
        model.discard(&mirror, first..first + 3000).await;
        let left = (room(&mirror).room_bytes - room(&mirror).content_bytes) / BLOCK;
        assert!(left > 100, "{left}");
        let results = Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks = TaskGroup::new(&rt);
        for block in first..first + 2 * left {
            let (mirror, results, rt) = (Rc::clone(&mirror), Rc::clone(&results), rt.clone());
            tasks.spawn(async move {
                let written = mirror.submit(write(&rt, block * BLOCK, BLOCK as usize, 7));
                let written = written.await.map(drop);
                results.borrow_mut().push(written);
            });
        }
        tasks.join().await;
        let results = results.borrow();
        let stored = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(stored as u64, left);
        let refused = Err(IoError::NoSpace);
        assert_eq!(
            results.iter().filter(|result| **result == refused).count() as u64,
            left
        );
        assert_eq!(room(&mirror).content_bytes, room(&mirror).room_bytes);
    });
}

/// What the sides of such a volume must be is checked before anything is written.
#[test]
fn sides_that_cannot_hold_the_volume_are_refused() {
    let rt = ending_rt(34);
    rt.block_on(async {
        let mut mixed = Volume::unformatted(&rt, 2);
        mixed.config.size = Some(Size(VOLUME_BYTES));
        mixed.config.layout = Layouts::Each([("side0".to_owned(), SideKind::Log)].into());
        let refused = mixed.try_format("vol").await.unwrap_err();
        assert!(
            refused.contains("only on sides with layout = \"log\""),
            "{refused}"
        );
        // A side with homes has room for 50 MiB, and a logged one does not.
        mixed.config.size = Some(Size(50 * MIB));
        let refused = mixed.try_format("vol").await.unwrap_err();
        assert!(
            refused.contains("every side needs layout = \"log\""),
            "{refused}"
        );

        let mut volume = volume(&rt).await;
        let mirror = volume.open().await;
        let small = blank_of(&rt, "small", 32 * MIB);
        let refused = mirror.add_side(small, None, false).await.unwrap_err();
        assert!(refused.contains("has room for"), "{refused}");
        let other = blank(&rt, "other");
        mirror
            .add_side(other, None, false)
            .await
            .expect("it has room");
        mirror.until_complete(3).await;
        let converted = mirror.convert_side("side0", SideKind::Home).await;
        let refused = converted.unwrap_err();
        assert!(refused.contains("only on sides with"), "{refused}");
        mirror.close().await;
        volume.config.layout = Layouts::All(SideKind::Home);
        let mirror = volume.open().await;
        let large = blank_of(&rt, "large", 300 * MIB);
        let refused = mirror.add_side(large, None, false).await.unwrap_err();
        assert!(refused.contains("cannot have homes"), "{refused}");
    });
}

/// A discard that one side lacks after a death of the server is given to it as a record. As data,
/// it would need as much room on this side as the content that it has replaced.
#[test]
fn an_opening_gives_a_side_a_discard_and_not_its_zeroes() {
    let rt = ending_rt(35);
    rt.block_on(async {
        let mut volume = Volume::unformatted(&rt, 2);
        volume.config.layout = Layouts::All(SideKind::Log);
        volume.try_format("vol").await.expect("the sides are fit");
        let mirror = volume.open().await;
        mirror.fill(0..MIB / 2, 7).await;
        mirror.close().await;
        let bare = Rc::clone(&volume.sides[1].device);
        let fault = volume.put_over(1, |below| Fault::new(&rt, below, FaultPlan::default(), 1));
        let mirror = volume.open().await;
        // The first change marks the sides as active; the side must take part in that.
        mirror.put(8 * MIB, 1).await;
        mirror.flush().await;
        fault.control().set_frozen(true);
        let discard = Request::without_data(Op::Discard, 0, MIB / 2, Flags::NONE);
        mirror.submit(discard).await.expect("one side takes it");
        mirror.flush().await;
        volume.sides[1].device = bare;
        volume.kill(&rt).await;
        let mirror = volume.open().await;
        let mut all: Vec<(String, String, Statistic)> = Vec::new();
        mirror.statistics(&mut all);
        let given = |(part, name, value): &(String, String, Statistic)| match value {
            Statistic::Counter(bytes) if part == "side1" && name == "log_written_bytes" => {
                Some(*bytes)
            }
            _ => None,
        };
        let given_bytes = all.iter().find_map(given).expect("the side has a log");
        assert!(given_bytes > 0, "the side lacked the discard");
        assert!(given_bytes < MIB / 8, "{given_bytes}");
        assert_eq!(mirror.byte_at(0).await, Ok(0));
        mirror.close().await;
        let alone = volume.open_alone(1).await;
        assert_eq!(alone.byte_at(0).await, Ok(0));
        assert_eq!(alone.byte_at(8 * MIB).await, Ok(1));
    });
}
