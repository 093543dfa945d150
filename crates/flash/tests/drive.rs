//! Tests of the parts of a drive against values computed by hand: cached table, trim, wear
//! levelling, write buffers, read-ahead, idle time, power cuts and device time.

mod common;

use bimetal_flash::{
    Action, BufferConfig, Capacity, Cleaning, Costs, Drive, DriveConfig, FtlConfig, Geometry,
    PageConfig, Purpose, Streams, WearLevelling,
};
use common::{Load, alpha, fill, greedy_wa, page_mapped, uniform};

fn page_drive(page: PageConfig, geometry: Geometry, pages: u32) -> DriveConfig {
    DriveConfig::new(
        geometry,
        Capacity::LogicalPages(pages),
        FtlConfig::Page(page),
    )
}

fn made(config: &DriveConfig) -> Drive {
    Drive::new(config).expect("a valid drive")
}

fn write(drive: &mut Drive, lpns: &[u32]) {
    for lpn in lpns {
        drive.write(&[*lpn]).expect("within the drive");
    }
}

/// A table page of 16 bytes holds 4 entries of the table, and two entries are cached in memory.
#[test]
fn a_cached_table_costs_what_its_misses_cost() {
    let page = PageConfig {
        cached_map_entries: 2,
        ..PageConfig::default()
    };
    let mut drive = made(&page_drive(page, Geometry::one_die(64, 8, 16), 64));
    write(&mut drive, &[0, 1]);
    let c = drive.counters();
    assert_eq!((c.map_misses, c.reads_map, c.programs_map), (2, 0, 0));
    // Entry 0 is evicted. It has changed, so its table page is programmed; the table page has no
    // old version that would have to be read. Entry 2 is then read from the new table page.
    write(&mut drive, &[2]);
    let c = drive.counters();
    assert_eq!((c.map_misses, c.reads_map, c.programs_map), (3, 1, 1));
    drive.read(2).expect("within the drive");
    assert_eq!(drive.counters().map_hits, 1);
    // Entry 1 is evicted, which reads and programs table page 0. Entry 0 is then loaded, which
    // reads table page 0.
    drive.read(0).expect("within the drive");
    let c = drive.counters();
    assert_eq!((c.map_misses, c.reads_map, c.programs_map), (4, 3, 2));
    // Entry 2 has changed and is evicted. Entry 4 is in table page 1, which does not exist yet.
    drive.read(4).expect("within the drive");
    let c = drive.counters();
    assert_eq!((c.map_misses, c.reads_map, c.programs_map), (5, 4, 3));
    // Entry 0 has not changed, so its eviction costs nothing.
    drive.read(5).expect("within the drive");
    assert_eq!(drive.counters().programs_map, 3);
    assert_eq!(drive.counters().unmapped_reads, 2);
    drive.verify().expect("a consistent drive");
}

/// A cache that can hold every entry misses each entry only once.
#[test]
fn a_cached_table_that_is_large_enough_costs_nothing() {
    let page = PageConfig {
        cached_map_entries: 1000,
        ..PageConfig::default()
    };
    let mut drive = made(&page_drive(page, Geometry::one_die(128, 16, 4096), 1000));
    fill(&mut drive);
    uniform(&mut drive, &mut Load(3), 20_000);
    let c = drive.counters();
    assert_eq!((c.map_misses, c.programs_map, c.reads_map), (1000, 0, 0));
    assert_eq!(c.map_hits, 20_000);
}

/// Trimmed pages are spare flash. Alpha is the ratio of physical to logical pages; with a fifth of
/// the pages trimmed, the effective ratio is alpha / 0.8.
#[test]
fn trimmed_pages_count_as_spare() {
    let layer = page_mapped(Cleaning::Greedy, Streams::One);
    let mut drive = common::drive(2048, 64, 0.15, layer);
    let pages = drive.logical_pages();
    fill(&mut drive);
    let kept = pages / 5 * 4;
    for lpn in kept..pages {
        drive.trim(lpn).expect("within the drive");
    }
    let mut load = Load(17);
    let mut before = drive.counters();
    for n in 0..11 * kept {
        if n == 3 * kept {
            before = drive.counters();
        }
        drive.write(&[load.below(kept)]).expect("within the drive");
    }
    let measured = (drive.counters() - before).write_amplification();
    let all = alpha(&drive, 2048, 64, 1) * f64::from(pages) / f64::from(kept);
    assert!(
        (measured / greedy_wa(all, 64) - 1.0).abs() < 0.02,
        "{measured}"
    );
    assert_eq!(drive.counters().host_trims, u64::from(pages - kept));
    assert_eq!(drive.locate(pages - 1), None);
    drive.verify().expect("a consistent drive");
}

/// Returns a drive after many writes to a few hot pages. Most of its blocks hold cold content.
fn worn(wear: WearLevelling) -> Drive {
    let mut config = page_drive(PageConfig::default(), Geometry::one_die(64, 16, 4096), 900);
    config.wear = wear;
    let mut drive = made(&config);
    fill(&mut drive);
    let mut load = Load(9);
    for _ in 0..60_000 {
        drive.write(&[load.below(30)]).expect("within the drive");
    }
    drive.verify().expect("a consistent drive");
    drive
}

#[test]
fn static_wear_levelling_moves_cold_content() {
    let without = worn(WearLevelling::default());
    assert_eq!(without.wear().min_erases, 0);
    assert_eq!(without.counters().wear_moves, 0);
    let with = worn(WearLevelling {
        least_worn_first: true,
        spread_erases: 20,
    });
    let wear = with.wear();
    assert!(wear.max_erases - wear.min_erases <= 40, "{wear:?}");
    assert!(with.counters().wear_moves > 0);
    let mean = with.counters().erases as f64 / 64.0;
    assert!((wear.mean_erases - mean).abs() < 1e-9);
}

#[test]
fn memory_absorbs_rewrites_until_it_is_full() {
    let mut config = page_drive(PageConfig::default(), Geometry::one_die(64, 16, 4096), 500);
    config.buffer = BufferConfig::Memory(4);
    let mut drive = made(&config);
    write(&mut drive, &[1, 2, 3, 1, 2, 1]);
    let c = drive.counters();
    assert_eq!((c.host_writes, c.buffer_overwrites, c.programs), (6, 3, 0));
    drive.read(3).expect("within the drive");
    assert_eq!(drive.counters().buffer_hits, 1);
    // The fifth page evicts the page that arrived first.
    write(&mut drive, &[4, 5]);
    assert_eq!(drive.counters().programs_host, 1);
    assert!(drive.locate(1).is_some() && drive.locate(2).is_none());
    // A page that is trimmed in the buffer is never written to the flash.
    drive.trim(2).expect("within the drive");
    drive.flush().expect("a flush");
    assert_eq!(drive.counters().programs_host, 4);
    assert_eq!(drive.locate(2), None);
}

#[test]
fn an_slc_log_is_folded_in_idle_time() {
    let mut config = page_drive(PageConfig::default(), Geometry::one_die(64, 16, 4096), 500);
    config.buffer = BufferConfig::Slc(32);
    config.costs = Costs {
        buffer_program_us: 50,
        ..Costs::default()
    };
    let mut drive = made(&config);
    write(&mut drive, &[7, 7, 8]);
    assert_eq!(drive.device_time_us(), 3 * 50);
    // Two current pages are moved: each is read in 25 us and programmed in 200 us.
    assert_eq!(drive.idle(10_000), Ok(2 * 225));
    assert_eq!(drive.background_us(), 450);
    assert_eq!(drive.device_time_us(), 150);
    // The log has 32 slots in blocks of 16 slots. When it is full, it makes space by moving the
    // pages of its oldest block: reads, programs and one erase. Three slots of that block were used
    // before, so only 13 of the new pages are in the block and are moved.
    let before = drive.counters();
    write(&mut drive, &(100..133).collect::<Vec<u32>>());
    let done = drive.counters() - before;
    assert_eq!((done.programs_buffer, done.erases_buffer), (33, 1));
    assert_eq!((done.reads_buffer, done.programs_host), (13, 13));
    drive.verify().expect("a consistent drive");
}

#[test]
fn sequential_reads_are_read_ahead_once() {
    let mut config = page_drive(PageConfig::default(), Geometry::one_die(64, 16, 4096), 500);
    config.prefetch_pages = 4;
    let mut drive = made(&config);
    fill(&mut drive);
    for lpn in 0..10 {
        drive.read(lpn).expect("within the drive");
    }
    let c = drive.counters();
    // Pages 0 and 1 are read from flash. Pages 2..6 and 6..10 are then read ahead, and the read of
    // page 9 reads 10..14 ahead.
    assert_eq!(
        (c.reads_host, c.prefetch_hits, c.reads_prefetch),
        (2, 8, 12)
    );
    drive.read(300).expect("within the drive");
    assert_eq!(drive.counters().reads_host, 3);
}

/// With enough idle time, no write ever waits for cleaning.
#[test]
fn idle_time_takes_cleaning_off_the_writes() {
    let run = |idle_us: u64| {
        let config = page_drive(
            PageConfig::default(),
            Geometry::one_die(128, 16, 4096),
            1700,
        );
        let mut drive = made(&config);
        fill(&mut drive);
        let mut load = Load(2);
        for n in 0..20_000 {
            drive.write(&[load.below(1700)]).expect("within the drive");
            if n % 16 == 0 {
                drive.idle(idle_us).expect("idle time");
            }
        }
        drive
    };
    let (busy, rested) = (run(0), run(1_000_000));
    assert!(busy.counters().cleanings_blocking > 1000);
    assert_eq!(busy.background_us(), 0);
    assert_eq!(rested.counters().cleanings_blocking, 0);
    // The host waits only for its own programs: 1700 + 20,000 programs of 200 us.
    assert_eq!(rested.device_time_us(), 21_700 * 200);
}

#[test]
fn a_power_cut_takes_what_only_memory_had() {
    let mut config = page_drive(PageConfig::default(), Geometry::one_die(64, 16, 4096), 500);
    config.buffer = BufferConfig::Memory(8);
    let mut drive = made(&config);
    write(&mut drive, &[1, 2]);
    drive.flush().expect("a flush");
    let durable = drive.locate(1);
    write(&mut drive, &[1, 3, 4]);
    drive.cut_power();
    assert_eq!(drive.counters().lost_pages, 3);
    assert_eq!(drive.locate(1), durable);
    assert_eq!((drive.locate(3), drive.buffered(3)), (None, None));
    drive.verify().expect("a consistent drive");
}

#[test]
fn a_power_cut_takes_a_volatile_table_back_to_the_flush() {
    let page = PageConfig {
        volatile_map: true,
        ..PageConfig::default()
    };
    let mut drive = made(&page_drive(page, Geometry::one_die(64, 16, 4096), 500));
    write(&mut drive, &[1, 2]);
    drive.flush().expect("a flush");
    // The two changed entries fit in one table page.
    assert_eq!(drive.counters().programs_map, 1);
    let durable = drive.locate(1);
    write(&mut drive, &[1, 1, 3]);
    drive.cut_power();
    assert_eq!(drive.locate(1), durable);
    assert_eq!(drive.locate(3), None);
    assert_eq!(drive.counters().lost_pages, 2);
    drive.verify().expect("a consistent drive");
    write(&mut drive, &[1]);
    drive.flush().expect("a flush");
    let durable = drive.locate(1);
    drive.cut_power();
    assert_eq!(drive.locate(1), durable);
}

/// A power cut loses nothing in a drive with a reconstructed table, with a cached table, or with a
/// block-mapped layer.
#[test]
fn a_power_cut_leaves_durable_layers_as_they_are() {
    let cached = PageConfig {
        cached_map_entries: 4,
        ..PageConfig::default()
    };
    let layers = [
        FtlConfig::Page(PageConfig::default()),
        FtlConfig::Page(cached),
        FtlConfig::Block,
        FtlConfig::Bast { log_blocks: 4 },
        FtlConfig::Fast { log_blocks: 4 },
    ];
    for layer in layers {
        let geometry = Geometry::one_die(64, 16, 4096);
        let mut drive = made(&DriveConfig::new(
            geometry,
            Capacity::LogicalPages(500),
            layer,
        ));
        uniform(&mut drive, &mut Load(8), 300);
        let before: Vec<Option<u32>> = (0..500).map(|lpn| drive.locate(lpn)).collect();
        drive.cut_power();
        let after: Vec<Option<u32>> = (0..500).map(|lpn| drive.locate(lpn)).collect();
        assert_eq!(before, after);
        assert_eq!(drive.counters().lost_pages, 0);
        uniform(&mut drive, &mut Load(8), 300);
        drive.verify().expect("a consistent drive");
    }
}

/// Device time is the sum of the times of the operations: 7 us for a read, 100 us for a program and
/// 1000 us for an erase.
#[test]
fn time_is_the_sum_of_the_operations() {
    let mut config = DriveConfig::new(
        Geometry::one_die(3, 2, 4096),
        Capacity::LogicalPages(2),
        FtlConfig::Block,
    );
    config.costs = Costs {
        read_us: 7,
        program_us: 100,
        erase_us: 1000,
        ..Costs::default()
    };
    let mut drive = made(&config);
    drive.write(&[0, 1]).expect("within the drive");
    assert_eq!(drive.device_time_us(), 200);
    drive.write(&[0, 1]).expect("within the drive");
    assert_eq!(drive.device_time_us(), 200 + 200 + 1000);
    drive.write(&[1]).expect("within the drive");
    // In a block-mapped drive, a write of page 1 also copies page 0 to a new block: a read, two
    // programs and an erase.
    assert_eq!(drive.device_time_us(), 1400 + 7 + 200 + 1000);
    drive.read(0).expect("within the drive");
    assert_eq!(drive.device_time_us(), 2607 + 7);
}

/// Pages are distributed over the dies in turn. Dies with successive numbers are on different
/// channels.
#[test]
fn operations_name_their_die() {
    let geometry = Geometry {
        channels: 2,
        ways: 2,
        ..Geometry::one_die(16, 8, 4096)
    };
    let mut drive = made(&page_drive(PageConfig::default(), geometry, 200));
    drive.recorder().record(true);
    drive.write(&[0, 1, 2, 3, 4]).expect("within the drive");
    drive.read(6).expect("within the drive");
    drive.read(2).expect("within the drive");
    let seen: Vec<(Action, Purpose, u32, u32)> = drive
        .recorder()
        .operations()
        .iter()
        .map(|o| (o.action, o.purpose, o.die, o.lpn))
        .collect();
    let program = |lpn: u32| (Action::Program, Purpose::Host, lpn % 4, lpn);
    let mut expected: Vec<_> = (0..5).map(program).collect();
    expected.push((Action::Read, Purpose::Host, 2, 2));
    assert_eq!(seen, expected);
    assert_eq!(geometry.channel_of(0), geometry.channel_of(2));
    assert_ne!(geometry.channel_of(0), geometry.channel_of(1));
}

/// A drive that is created for a capacity always has enough blocks for its flash translation layer,
/// even if the capacity is a single page.
#[test]
fn a_drive_for_a_capacity_always_fits() {
    let page = PageConfig {
        streams: Streams::Given(3),
        cached_map_entries: 3,
        ..PageConfig::default()
    };
    let layers = [
        FtlConfig::None,
        FtlConfig::Page(page),
        FtlConfig::Block,
        FtlConfig::Bast { log_blocks: 3 },
        FtlConfig::Fast { log_blocks: 3 },
    ];
    let shape = Geometry {
        channels: 3,
        planes: 2,
        ..Geometry::one_die(1, 5, 64)
    };
    for layer in layers {
        for pages in [1, 2, 14, 15, 16, 1000] {
            for spare in [0.0, 0.07, 3.0] {
                let config = DriveConfig::for_capacity(shape, pages, spare, layer);
                let config = config.expect("a geometry");
                let physical = config.geometry.total_pages() as f64;
                assert!(physical >= f64::from(pages) * (1.0 + spare));
                let mut drive = made(&config);
                assert_eq!(drive.logical_pages(), pages);
                fill(&mut drive);
                uniform(&mut drive, &mut Load(4), 2 * u64::from(pages));
                drive.verify().expect("a consistent drive");
            }
        }
    }
}

/// When cleaning moves the pages of a block, it writes each table page that has entries of the
/// moved pages. It writes such a table page only once. An entry in memory causes no table write.
/// The drive keeps one entry in memory. For every write, the test computes the expected number of
/// table writes from the operations that the drive recorded.
#[test]
fn cleaning_writes_the_table_once_for_each_table_page() {
    let page = PageConfig {
        cached_map_entries: 1,
        ..PageConfig::default()
    };
    let (pages, entries) = (600, 8);
    // The table has 75 pages, which fill 10 blocks. The layer sets aside 2 * 10 + 3 = 23 blocks for
    // the table: the last blocks of the die.
    let data_blocks = 120 - 23;
    let mut drive = made(&page_drive(
        page,
        Geometry::one_die(120, 8, 4 * entries),
        pages,
    ));
    fill(&mut drive);
    drive.recorder().record(true);
    let mut load = Load(6);
    let mut cached = pages - 1;
    let mut moved_in_all = 0;
    for _ in 0..5000 {
        let lpn = load.below(pages);
        drive.recorder().clear();
        drive.write(&[lpn]).expect("within the drive");
        let mut expected = usize::from(lpn != cached);
        let mut moved: Vec<u32> = Vec::new();
        for operation in drive.recorder().operations() {
            let is_copy = operation.purpose == Purpose::Copy;
            if is_copy && operation.action == Action::Program && operation.lpn < pages {
                moved_in_all += 1;
                if operation.lpn != cached {
                    moved.push(operation.lpn / entries);
                }
            } else if operation.action == Action::Erase && operation.page / 8 < data_blocks {
                moved.sort_unstable();
                moved.dedup();
                expected += moved.len();
                moved.clear();
            }
        }
        let map_programs = drive
            .recorder()
            .operations()
            .iter()
            .filter(|o| o.action == Action::Program && o.purpose == Purpose::Map);
        assert_eq!(map_programs.count(), expected);
        cached = lpn;
    }
    assert!(moved_in_all > 1000);
}

/// After a power cut, the cache of the table is empty.
#[test]
fn a_power_cut_empties_the_cached_table() {
    let page = PageConfig {
        cached_map_entries: 100,
        ..PageConfig::default()
    };
    let mut drive = made(&page_drive(page, Geometry::one_die(64, 16, 4096), 100));
    fill(&mut drive);
    drive.read(5).expect("within the drive");
    assert_eq!(drive.counters().map_misses, 100);
    drive.cut_power();
    drive.read(5).expect("within the drive");
    assert_eq!(drive.counters().map_misses, 101);
}

/// While the new version of a page is in the buffer, the drive can read the old version ahead. A
/// later read must not be answered with that old version.
#[test]
fn what_leaves_the_buffer_is_not_read_ahead() {
    let mut config = page_drive(PageConfig::default(), Geometry::one_die(64, 16, 4096), 500);
    config.prefetch_pages = 4;
    config.buffer = BufferConfig::Memory(4);
    let mut drive = made(&config);
    fill(&mut drive);
    drive.flush().expect("a flush");
    write(&mut drive, &[3]);
    drive.read(0).expect("within the drive");
    drive.read(1).expect("within the drive");
    drive.flush().expect("a flush");
    let before = drive.counters();
    drive.read(3).expect("within the drive");
    let done = drive.counters() - before;
    assert_eq!((done.reads_host, done.prefetch_hits), (1, 0));
}

/// The whole reserve must be free between any two writes, also when cleaning moves pages into the
/// open blocks of the streams. This matters most with measured streams, because the pages of one
/// cleaned block can move to both streams. The drives in this test have the minimum number of
/// blocks.
#[test]
fn streams_never_use_up_the_reserve() {
    let given = (2..6).map(Streams::Given);
    for streams in given.chain([Streams::Measured]) {
        for separate_copies in [false, true] {
            let page = PageConfig {
                streams,
                separate_copies,
                background_free_blocks: 1,
                ..PageConfig::default()
            };
            let blocks = 20 + 3 * u32::from(streams.count());
            let mut drive = made(&page_drive(page, Geometry::one_die(blocks, 4, 512), 83));
            churn(&mut drive, streams);
            drive.verify().expect("a consistent drive");
        }
    }
}

/// Writes single random pages in random classes, mostly within a moving window of pages.
fn churn(drive: &mut Drive, streams: Streams) {
    let mut load = Load(u64::from(streams.count()));
    let (pages, mut window) = (drive.logical_pages(), 0);
    for _ in 0..60_000 {
        let class = match streams {
            Streams::Given(classes) => load.below(u32::from(classes)) as u8,
            _ => 0,
        };
        let lpn = match load.below(4) {
            0 => load.below(pages),
            _ => (window + load.below(12)) % pages,
        };
        drive.write_class(&[lpn], class).expect("within the drive");
        if load.below(50) == 0 {
            window = load.below(pages);
            drive.idle(2000).expect("idle time");
        }
    }
}

/// A full merge of the block to which the sequential stream belongs also ends the stream, which
/// then needs no second merge.
#[test]
fn a_full_merge_ends_the_stream_of_its_block() {
    let ftl = FtlConfig::Fast { log_blocks: 1 };
    let config = DriveConfig::holding(12, 3, 4, 512, ftl).expect("a geometry");
    let mut drive = made(&config);
    fill(&mut drive);
    // Page 0 opens the stream. Page 2 does not continue the stream, so pages 2, 5, 6 and 7 are
    // appended to the log block, which is then full.
    write(&mut drive, &[0, 2, 5, 6, 7]);
    assert_eq!(drive.counters().merges(), 0);
    // The log block is reclaimed, which merges both data blocks. Page 8 then opens a stream for
    // block 2.
    write(&mut drive, &[9, 8]);
    assert_eq!(drive.counters().merges_full, 2);
    assert_eq!(drive.counters().merges(), 2);
    drive.verify().expect("a consistent drive");
}

/// A drive can be created around a flash translation layer that the caller supplies.
#[test]
fn a_layer_can_be_plugged_in() {
    let fast = FtlConfig::Fast { log_blocks: 4 };
    let config = DriveConfig::holding(500, 8, 16, 4096, fast).expect("a geometry");
    let layer = config.build_ftl().expect("a layer");
    let mut plugged = Drive::around(layer, &config).expect("a drive");
    let mut whole = made(&config);
    for drive in [&mut plugged, &mut whole] {
        fill(drive);
        uniform(drive, &mut Load(3), 2000);
    }
    assert_eq!(plugged.counters(), whole.counters());
    assert!(plugged.counters().merges_full > 0);
}
