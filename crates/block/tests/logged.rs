//! Sides that are a log and nothing else: what was written is read back however often segments were
//! cleaned, after a stop and after the death of the server, and damage is found and repaired.

use std::time::Duration;

use bimetal_block::layers::fault::{Choice, ErrorRule, Fault, FaultPlan};
use bimetal_block::layers::mirror::Layouts;
use bimetal_block::layers::mirror::superblock::{SideKind, SideLayout};
use bimetal_block::{Device, Flags, IoError, Op, Request, Statistic};
use bimetal_rt::{Rng, Rt};

use crate::common::ending_rt;
use crate::common::segments::{pages_of, runs_of, spoil_map};
use crate::common::volume::{OpenVolume, Volume};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Formats two sides of 64 MiB with these layouts.
async fn formatted(rt: &Rt, layouts: Layouts) -> Volume {
    let mut volume = Volume::unformatted(rt, 2);
    volume.config.layout = layouts;
    volume.try_format("vol").await.expect("the sides are fit");
    volume
}

async fn logged(rt: &Rt) -> Volume {
    formatted(rt, Layouts::All(SideKind::Log)).await
}

/// Returns a layout for `side0` that is a log, while the blocks of `side1` have a home.
fn mixed() -> Layouts {
    Layouts::Each([("side0".to_owned(), SideKind::Log)].into())
}

/// Returns the values of a statistic, one for each side that has it.
fn statistics(mirror: &OpenVolume, wanted: &str) -> Vec<Statistic> {
    let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
    mirror.statistics(&mut statistics);
    let of = statistics.into_iter().filter(|(_, name, _)| name == wanted);
    of.map(|(_, _, value)| value).collect()
}

/// Returns the sum of a counter over both sides.
fn counter(mirror: &OpenVolume, wanted: &str) -> u64 {
    let values = statistics(mirror, wanted).into_iter();
    let count = |value| match value {
        Statistic::Counter(count) => count,
        other => panic!("{wanted} is {other:?}"),
    };
    values.map(count).sum()
}

/// Returns a gauge of each side that has it.
fn gauges(mirror: &OpenVolume, wanted: &str) -> Vec<f64> {
    let values = statistics(mirror, wanted).into_iter();
    let now = |value| match value {
        Statistic::Gauge(now) => now,
        other => panic!("{wanted} is {other:?}"),
    };
    values.map(now).collect()
}

/// Blocks that are overwritten at random, each with what it should hold.
struct Model {
    rng: Rng,
    bytes: Vec<u8>,
}

impl Model {
    fn new(blocks: u64) -> Model {
        Model {
            rng: Rng::labelled(1, "logged"),
            bytes: vec![0; blocks as usize],
        }
    }

    /// Overwrites `count` random blocks; one in 50 is discarded.
    async fn overwrite(&mut self, mirror: &OpenVolume, count: u64) {
        for _ in 0..count {
            let block = self.rng.below(self.bytes.len() as u64);
            let byte = match self.rng.below(50) {
                0 => 0,
                _ => 1 + self.rng.below(255) as u8,
            };
            self.bytes[block as usize] = byte;
            if byte == 0 {
                let discard = Request::without_data(Op::Discard, block * BLOCK, BLOCK, Flags::NONE);
                mirror.submit(discard).await.expect("a side takes it");
            } else {
                mirror.put(block * BLOCK, byte).await;
            }
        }
    }

    /// Reads every block.
    async fn check(&self, mirror: &OpenVolume) {
        for (block, byte) in (0..).zip(&self.bytes) {
            let found = mirror.byte_at(block * BLOCK).await;
            assert_eq!(found, Ok(*byte), "block {block}");
        }
    }
}

/// The volume is four fifths of what the segments have room for, and all of it is written, so that
/// every segment is cleaned several times.
#[test]
fn what_was_written_is_there_however_often_segments_were_cleaned() {
    for layouts in [Layouts::All(SideKind::Log), mixed()] {
        let rt = ending_rt(11);
        rt.block_on(async {
            let mut volume = formatted(&rt, layouts).await;
            let mirror = volume.open().await;
            let blocks = mirror.geometry().size_bytes / BLOCK;
            let mut model = Model::new(blocks);
            let mut cleaned = 0;
            model.overwrite(&mirror, 3 * blocks).await;
            model.check(&mirror).await;
            cleaned += counter(&mirror, "segments_cleaned");
            // Summaries say what is live in the segments that are cleaned.
            assert_eq!(counter(&mirror, "map_searches"), 0);
            mirror.close().await;

            let mirror = volume.open().await;
            model.check(&mirror).await;
            model.overwrite(&mirror, blocks).await;
            mirror.flush().await;
            cleaned += counter(&mirror, "segments_cleaned");
            volume.kill(&rt).await;
            let mirror = volume.open().await;
            model.check(&mirror).await;
            model.overwrite(&mirror, blocks / 2).await;
            model.check(&mirror).await;
            mirror.close().await;
            let mirror = volume.open_alone(0).await;
            model.check(&mirror).await;
            mirror.close().await;
            assert!(cleaned > 64, "{cleaned} segments were cleaned");
        });
    }
}

/// Each opening begins new segments and leaves the rest of the old ones behind. So a server that
/// dies again and again, before it has cleaned any, uses up what is kept free for cleaning.
#[test]
fn a_full_side_goes_on_after_many_deaths_in_a_row() {
    let rt = ending_rt(12);
    rt.block_on(async {
        let mut volume = logged(&rt).await;
        let mut mirror = volume.open().await;
        let blocks = mirror.geometry().size_bytes / BLOCK;
        let mut model = Model::new(blocks);
        model.overwrite(&mirror, 2 * blocks).await;
        for _ in 0..32 {
            model.overwrite(&mirror, 4).await;
            mirror.flush().await;
            volume.kill(&rt).await;
            mirror = volume.open().await;
        }
        let overwritten = rt.timeout(Duration::from_secs(600), model.overwrite(&mirror, blocks));
        overwritten.await.expect("it goes on");
        model.check(&mirror).await;
        mirror.close().await;
    });
}

/// A write that fails takes many changes with it: those of its entry, and those of the entries
/// behind it. It is one failure all the same, and a side is ejected after five in a row.
#[test]
fn a_write_that_fails_once_ejects_no_side_however_many_changes_are_in_flight() {
    for kind in [SideKind::Log, SideKind::Home] {
        let rt = ending_rt(15);
        rt.block_on(async {
            let mut volume = formatted(&rt, Layouts::All(kind)).await;
            let fault = volume.put_over(1, |below| Fault::new(&rt, below, FaultPlan::default(), 1));
            let faults = fault.control();
            let mirror = volume.open().await;
            faults.set_delay(Op::Write, Duration::from_millis(5));
            faults.fail_next(Op::Write, IoError::Medium);
            let writes = (0..64).map(|block| mirror.put(block * BLOCK, 7));
            futures_util::future::join_all(writes).await;
            rt.sleep(Duration::from_secs(1)).await;
            let status = mirror.status();
            let side = &status.sides[1];
            assert!(side.errors > 5, "{} changes failed", side.errors);
            assert_eq!(side.health, "healthy", "{kind:?}");
            assert_eq!(status.exposed_bytes, 0, "the side has them now");

            // A device that fails every write is ejected after 100, 200, 400 and 800 ms.
            faults.set_error(Some(IoError::Medium));
            mirror.put(0, 8).await;
            rt.sleep(Duration::from_secs(2)).await;
            assert_eq!(mirror.status().sides[1].health, "absent", "{kind:?}");
            faults.set_error(None);
            mirror.close().await;
        });
    }
}

/// Returns the faults of a device on which each read fails that touches a sector.
fn unreadable_sector(offset: u64) -> FaultPlan {
    FaultPlan {
        rule: Some(ErrorRule {
            error: Some(IoError::Medium),
            ops: vec![Op::Read],
            choice: Choice::All,
            range: Some(offset..offset + 512),
            after: Duration::ZERO,
            lasting: Duration::MAX,
            hang: None,
            late: false,
        }),
        ..FaultPlan::default()
    }
}

/// Some sectors of a side cannot be read. What clients write goes on, what was in these sectors is
/// copied from the other side, and the segments with them are never filled again.
#[test]
fn unreadable_sectors_take_their_segments_out_of_use_and_nothing_else() {
    const UNREADABLE: [u64; 3] = [25, 90, 160];
    const RETIRED: [f64; 2] = [0.0, UNREADABLE.len() as f64];
    let rt = ending_rt(21);
    rt.block_on(async {
        let mut volume = logged(&rt).await;
        let layout = volume.superblock(1).await.layout;
        let segments = layout.segments.expect("it is logged");
        for segment in UNREADABLE {
            let at = segments.area.0 + segment * segments.segment_bytes + 20 * BLOCK;
            volume.put_over(1, |below| Fault::new(&rt, below, unreadable_sector(at), 1));
        }
        let mirror = volume.open().await;
        let blocks = mirror.geometry().size_bytes / BLOCK;
        let mut model = Model::new(blocks);
        let mut rounds = 0;
        while gauges(&mirror, "segments_retired") != RETIRED {
            model.overwrite(&mirror, blocks / 4).await;
            rounds += 1;
            assert!(rounds < 40, "{:?}", gauges(&mirror, "segments_retired"));
        }
        model.overwrite(&mirror, blocks).await;
        model.check(&mirror).await;
        mirror.until_complete(2).await;
        let status = mirror.status();
        assert!(status.sides.iter().all(|side| side.health == "healthy"));
        assert_eq!((status.degraded, status.lost_reads), (false, 0));
        mirror.scrub().await;
        mirror.close().await;

        let mirror = volume.open().await;
        assert_eq!(gauges(&mirror, "segments_retired"), RETIRED);
        model.overwrite(&mirror, 2 * blocks).await;
        model.check(&mirror).await;
        assert_eq!(gauges(&mirror, "segments_retired"), RETIRED);
        mirror.scrub().await;
        mirror.close().await;
        // The side with the bad sectors has everything.
        let alone = volume.open_alone(1).await;
        model.check(&alone).await;
        alone.close().await;
    });
}

/// A logged side that is started alone has all content, and cleans itself without the other side.
#[test]
fn a_side_alone_cleans_itself() {
    let rt = ending_rt(12);
    rt.block_on(async {
        let volume = logged(&rt).await;
        let mirror = volume.open().await;
        let blocks = mirror.geometry().size_bytes / BLOCK;
        let mut model = Model::new(blocks);
        model.overwrite(&mirror, blocks).await;
        mirror.close().await;
        let mirror = volume.open_alone(1).await;
        model.check(&mirror).await;
        model.overwrite(&mirror, 3 * blocks).await;
        model.check(&mirror).await;
        assert!(counter(&mirror, "segments_cleaned") > 32);
        mirror.close().await;
        // The other side is behind, and is brought up to date.
        let mirror = volume.open().await;
        mirror.until_complete(2).await;
        model.check(&mirror).await;
        mirror.close().await;
        let alone = volume.open_alone(0).await;
        model.check(&alone).await;
    });
}

/// A discard of everything frees all segments, whose number then is that of a new side.
#[test]
fn discarded_space_is_free_at_once() {
    let rt = ending_rt(13);
    rt.block_on(async {
        let volume = logged(&rt).await;
        let mirror = volume.open().await;
        let size = mirror.geometry().size_bytes;
        let fresh = gauges(&mirror, "segments_free");
        for at in 0..size / MIB {
            mirror.fill(at * MIB..(at + 1) * MIB, 7).await;
        }
        mirror.close().await;
        let mirror = volume.open().await;
        let full = gauges(&mirror, "segments_free");
        assert!(full.iter().zip(&fresh).all(|(full, fresh)| full < fresh));
        let all = Request::without_data(Op::Discard, 0, size, Flags::NONE);
        mirror.submit(all).await.expect("a side takes it");
        mirror.close().await;
        let mirror = volume.open().await;
        // The last segments are free once the map was read, and a commit followed. Each of the
        // three lives has begun a segment of pages, and one of the journal.
        let is_free = |(free, fresh): (&f64, &f64)| *free >= fresh - 6.0;
        let are_free = || {
            let free = gauges(&mirror, "segments_free");
            free.iter().zip(&fresh).all(is_free)
        };
        let all_free = async {
            while !are_free() {
                rt.sleep(Duration::from_millis(1)).await;
            }
        };
        let freed = rt.timeout(Duration::from_secs(60), all_free).await;
        assert!(
            freed.is_ok(),
            "{:?} {fresh:?}",
            gauges(&mirror, "segments_free")
        );
        // Only pages of the map and of the checksums are left.
        let live = gauges(&mirror, "live_bytes");
        assert!(live.iter().all(|bytes| *bytes < MIB as f64), "{live:?}");
        assert_eq!(mirror.byte_at(0).await, Ok(0));
    });
}

/// Either copy of the segment record is enough. Without both, the side is not opened from what it
/// may have been.
#[test]
fn a_segment_record_has_two_copies() {
    let rt = ending_rt(14);
    rt.block_on(async {
        let volume = logged(&rt).await;
        volume.fill(4).await;
        let superblock = volume.superblock(0).await;
        let record = superblock.layout.segments.expect("it is logged").record;
        let copies = [record.0, record.0 + record.1 / 2 / BLOCK * BLOCK];
        for copy in copies {
            volume.spoil(0, copy).await;
            let mirror = volume.open_alone(0).await;
            assert_eq!(mirror.byte_at(3 * MIB).await, Ok(4));
            // The next commit writes both copies again.
            mirror.put(9 * MIB, 9).await;
            mirror.close().await;
        }
        for copy in copies {
            volume.spoil(0, copy).await;
        }
        let refusal = volume.refusal_alone(0).await;
        assert!(refusal.contains("side0"), "{refusal}");
    });
}

/// Changes that were folded are in the journal alone. Either copy of it is enough, and a side whose
/// journal is damaged in both is refused, since it is unknown what it lacks.
#[test]
fn a_journal_has_two_copies() {
    let rt = ending_rt(16);
    rt.block_on(async {
        let volume = logged(&rt).await;
        let mut model = Model::new(4096);
        let mirror = volume.open().await;
        model.overwrite(&mirror, 1000).await;
        mirror.close().await;
        for copy in [0, 1] {
            let runs = runs_of(&volume, 0).await;
            assert!(!runs.is_empty(), "what was folded is in the journal");
            for run in runs {
                volume.spoil(0, run[copy]).await;
            }
            let mirror = volume.open_alone(0).await;
            model.check(&mirror).await;
            // The next commit writes the pages, so that nothing depends on the damaged runs.
            mirror.put(9 * MIB, 9).await;
            model.bytes[(9 * MIB / BLOCK) as usize] = 9;
            mirror.close().await;
        }
        let runs = runs_of(&volume, 0).await;
        for copy in [0, 1] {
            volume.spoil(0, runs[0][copy]).await;
        }
        let refusal = volume.refusal_alone(0).await;
        assert!(refusal.contains("side0"), "{refusal}");
    });
}

/// A block that has changed on one side is read from the other, and repaired.
#[test]
fn a_corrupt_block_is_found_and_repaired() {
    let rt = ending_rt(15);
    rt.block_on(async {
        let volume = logged(&rt).await;
        volume.fill(8).await;
        let mirror = volume.open().await;
        let place = volume.place(&mirror, 0, 5 * MIB);
        volume.spoil(0, place).await;
        let scrubbed = mirror.scrub().await;
        assert_eq!((scrubbed.found, scrubbed.repaired), (1, 1), "{scrubbed:?}");
        assert_eq!(mirror.scrub().await.found, 0);
        mirror.close().await;
        let mirror = volume.open_alone(0).await;
        assert_eq!(mirror.byte_at(5 * MIB).await, Ok(6));
    });
}

/// The layout of the example on the format page, whose numbers are computed there by hand.
#[test]
fn of_a_larger_device_16_tib_are_used_and_a_log_can_be_too_long() {
    let asked = |log_bytes| bimetal_block::layers::mirror::superblock::Asked {
        kind: SideKind::Log,
        log_bytes,
        ..Default::default()
    };
    let of = |bytes: u64, log_bytes| {
        let geometry = bimetal_block::Geometry::of_size(bytes);
        SideLayout::of(&geometry, asked(log_bytes)).map_err(|error| error.to_string())
    };
    // Of 20 TB, 2^32 - 3 blocks of 4 KiB are in segments, rounded down to whole ones of 16,384
    // blocks: 262,143 segments. The log of 1 GiB and a quarter takes 21 of them, since 16,271
    // blocks of a segment are before its summary, and 12 are reserved.
    let whole = of(20_000_000_000_000, None).expect("it is used in part");
    let segments = whole.segments.expect("it is logged");
    assert_eq!(segments.segments(), 262_143);
    assert!(segments.area.0 + segments.area.1 < 20_000_000_000_000 - (1 << 30));
    let four_fifths = (262_143 - 33) * (64 << 20) / 5 * 4;
    assert!(whole.data.1 < four_fifths && whole.data.1 > four_fifths / 100 * 98);
    let refused = of(64 << 20, Some(40 << 20)).expect_err("there is no room for data");
    assert!(
        refused.contains("a log of 40 MiB does not fit"),
        "{refused}"
    );
    let made = of(250_000_000_000, None).expect("it fits");
    let segments = made.segments.expect("it is logged");
    assert_eq!(segments.segment_bytes, 64 << 20);
    assert_eq!(made.log.1, 1 << 30);
}

/// The map of a side that is alone is made again from its segments. What was discarded or
/// overwritten does not come back.
#[test]
fn a_lost_map_is_made_again_from_the_segments() {
    let rt = ending_rt(17);
    rt.block_on(async {
        let mut volume = logged(&rt).await;
        let mirror = volume.open().await;
        let blocks = mirror.geometry().size_bytes / BLOCK;
        let mut model = Model::new(blocks);
        model.overwrite(&mirror, 2 * blocks).await;
        mirror.close().await;
        for tables in [false, true] {
            spoil_map(&volume, 0, tables).await;
            let mirror = volume.open_alone(0).await;
            model.check(&mirror).await;
            // Segments are cleaned by the map that was made again.
            model.overwrite(&mirror, blocks / 2).await;
            model.check(&mirror).await;
            mirror.close().await;
        }
        // The server dies, so that some segments have no summary, and the log has gaps.
        for round in 1..=6 {
            let mirror = volume.open_alone(0).await;
            model.overwrite(&mirror, round * blocks / 12).await;
            mirror.flush().await;
            volume.kill(&rt).await;
            spoil_map(&volume, 0, false).await;
            let mirror = volume.open_alone(0).await;
            model.check(&mirror).await;
            volume.kill(&rt).await;
        }
    });
}

/// Either copy of a page of the page table is enough.
#[test]
fn a_page_table_has_two_copies() {
    let rt = ending_rt(18);
    rt.block_on(async {
        let volume = logged(&rt).await;
        volume.fill(4).await;
        for copy in [0, 1] {
            for table in pages_of(&volume, 0).await.tables {
                volume.spoil(0, table[copy]).await;
            }
            let mirror = volume.open_alone(0).await;
            assert_eq!(counter(&mirror, "map_tables_damaged"), 0);
            assert_eq!(mirror.byte_at(3 * MIB).await, Ok(4));
            // The next commit writes both copies again.
            mirror.put(9 * MIB, 9).await;
            mirror.close().await;
        }
    });
}

/// While another side has the blocks, a damaged map is healed by copying them.
#[test]
fn a_lost_map_is_healed_from_another_side() {
    let rt = ending_rt(19);
    rt.block_on(async {
        let volume = logged(&rt).await;
        let mirror = volume.open().await;
        let mut model = Model::new(4096);
        model.overwrite(&mirror, 4096).await;
        mirror.close().await;
        spoil_map(&volume, 0, false).await;
        let mirror = volume.open().await;
        model.check(&mirror).await;
        assert_eq!(mirror.scrub().await.unrepairable, 0);
        mirror.close().await;
        let mirror = volume.open_alone(0).await;
        model.check(&mirror).await;
    });
}
