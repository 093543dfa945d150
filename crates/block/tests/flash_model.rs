//! Tests of the model of a flash drive: its timing, compared with times computed by hand from its
//! parameters, and the causes of its freezes.

use bimetal_block::media::model::{
    Command, CommandKind, ModelError, ModelType, Parameters, TimingModel,
};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

type Model = Box<dyn TimingModel + Send>;

/// Parameters of a drive with one die. A page takes 4.096 us on the channel and 4.096 us on the
/// interface, 100 us to program and 50 us to read. A block of 16 pages takes 1 ms to erase. Every
/// command takes 10 us more.
const PLAIN: &str = "
    channels = 1
    dies = 1
    pages_per_block = 16
    program_ns = 100000
    read_ns = 50000
    erase_ns = 1000000
    command_ns = 10000
    flush_ns = 7000
    channel_rate_bytes_per_s = 1000000000
    interface_rate_bytes_per_s = 1000000000
    write_cache_pages = 0
    background_free_blocks = 0
    over_provisioning = 0.25
";

fn parameters(overrides: &str) -> Result<Parameters, ModelError> {
    let text = format!("{PLAIN}\n{overrides}");
    let mut table = toml::Table::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        // A parameter in a later line replaces the same parameter of an earlier line.
        table.extend(line.trim().parse::<toml::Table>().expect("a line of TOML"));
    }
    Parameters::from_profile(ModelType::Flash, "flash-tlc", table)
}

fn model(overrides: &str, capacity_bytes: u64) -> Model {
    let parameters = parameters(overrides).expect("valid parameters");
    parameters.build(capacity_bytes, 1).expect("a valid device")
}

fn command(id: u64, kind: CommandKind, page: u64, pages: u64) -> Command {
    Command {
        id,
        kind,
        offset: page * PAGE,
        len: pages * PAGE,
        fua: false,
    }
}

fn write(id: u64, page: u64, pages: u64) -> Command {
    command(id, CommandKind::Write, page, pages)
}

fn read(id: u64, page: u64, pages: u64) -> Command {
    command(id, CommandKind::Read, page, pages)
}

/// Advances the model until no command is pending. Returns the id and the completion time of each
/// command, in order of completion.
fn run_dry(model: &mut Model) -> Vec<(u64, u64)> {
    let mut done = Vec::new();
    while let Some(event_ns) = model.next_event_ns() {
        model.advance_timed(event_ns, &mut done);
    }
    done
}

/// Returns the completion times, sorted, of commands that are all submitted at `now_ns`.
fn times(model: &mut Model, now_ns: u64, commands: &[Command]) -> Vec<u64> {
    for command in commands {
        model.submit(now_ns, *command);
    }
    let mut done = run_dry(model);
    done.sort_unstable();
    done.into_iter().map(|(_, done_ns)| done_ns).collect()
}

/// Generator of the random pages of a load (SplitMix64).
struct Load(u64);

impl Load {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// Returns the sorted latencies of writes to single random pages, with `pause_ns` from the
/// submission of one write to that of the next.
fn latencies(model: &mut Model, start_ns: u64, writes: u64, pages: u64, pause_ns: u64) -> Vec<u64> {
    let mut load = Load(3);
    let mut begun = Vec::new();
    let mut done = Vec::new();
    for id in 0..writes {
        let now_ns = start_ns + id * pause_ns;
        begun.push(now_ns);
        model.advance_timed(now_ns, &mut done);
        model.submit(now_ns, write(id, load.below(pages), 1));
    }
    done.extend(run_dry(model));
    let mut latencies: Vec<u64> = done
        .iter()
        .map(|(id, ns)| ns - begun[*id as usize])
        .collect();
    latencies.sort_unstable();
    latencies
}

#[test]
fn a_write_passes_interface_channel_and_cells() {
    let mut drive = model("", MIB);
    // The write takes 4.096 us on the interface, 4.096 us on the channel, 100 us to program and 10
    // us for the command.
    assert_eq!(times(&mut drive, 0, &[write(1, 5, 1)]), [118_192]);
    // A read of the page takes 50 + 4.096 + 4.096 + 10 us.
    assert_eq!(times(&mut drive, MS, &[read(2, 5, 1)]), [MS + 68_192]);
    // A page that was never written is not read from the flash. Its read takes 4.096 us on the
    // interface and 10 us for the command.
    assert_eq!(
        times(&mut drive, 2 * MS, &[read(3, 9, 1)]),
        [2 * MS + 14_096]
    );
    let counters = drive.counters();
    assert_eq!((counters.flash_programs, counters.freezes), (1, 0));
}

/// Two pages on the same die are programmed sequentially, two pages on different dies at the same
/// time.
#[test]
fn dies_work_at_the_same_time() {
    let one = times(&mut model("", MIB), 0, &[write(1, 0, 2)]);
    // The interface transfers both pages in 8.192 us. Each page then takes 4.096 us on the channel
    // and 100 us to program, and the second page waits for the first. The command takes 10 us.
    assert_eq!(one, [226_384]);
    let two = times(&mut model("channels = 2", MIB), 0, &[write(1, 0, 2)]);
    assert_eq!(two, [8_192 + 104_096 + 10_000]);
    let ways = times(&mut model("ways = 2", MIB), 0, &[write(1, 0, 2)]);
    // Two dies share one channel: the second transfer on the channel follows the first.
    assert_eq!(ways, [8_192 + 2 * 4_096 + 100_000 + 10_000]);
}

/// With a write cache of two pages, the first two writes complete when their data are in the cache.
/// The third write waits until the first page is programmed.
#[test]
fn a_write_cache_answers_until_it_is_full() {
    let mut drive = model("write_cache_pages = 2", MIB);
    let commands = [write(1, 0, 1), write(2, 1, 1), write(3, 2, 1)];
    let first_programmed = 4_096 + 104_096;
    assert_eq!(
        times(&mut drive, 0, &commands),
        [14_096, 18_192, first_programmed + 4_096 + 10_000]
    );
    // A FUA write takes the time to program its page, and then 7 us for a flush.
    let fua = Command {
        fua: true,
        ..write(4, 3, 1)
    };
    assert_eq!(times(&mut drive, MS, &[fua]), [MS + 118_192 + 7_000]);
}

/// A flush completes after all earlier writes, including those in the write cache, are programmed.
#[test]
fn a_flush_waits_for_the_cells() {
    let mut drive = model("write_cache_pages = 8", MIB);
    let flush = command(2, CommandKind::Flush, 0, 0);
    assert_eq!(
        times(&mut drive, 0, &[write(1, 0, 1), flush]),
        [14_096, 108_192 + 7_000]
    );
    assert_eq!(times(&mut drive, MS, &[flush]), [MS + 7_000]);
}

/// A write of a part of a page first reads the page, if the page has content. This read takes 50 +
/// 4.096 us.
#[test]
fn part_of_a_page_is_read_first() {
    let mut drive = model("", MIB);
    let part = Command {
        len: 512,
        ..write(1, 0, 1)
    };
    let interface_ns = 512;
    let plain_ns = interface_ns + 104_096 + 10_000;
    assert_eq!(times(&mut drive, 0, &[part]), [plain_ns]);
    assert_eq!(times(&mut drive, MS, &[part]), [MS + plain_ns + 54_096]);
}

/// A read overtakes the programs that wait for its die, but not a program in progress.
#[test]
fn reads_pass_waiting_programs() {
    let run = |overrides: &str| {
        let mut drive = model(overrides, MIB);
        times(&mut drive, 0, &[write(1, 0, 1)]);
        times(&mut drive, MS, &[write(2, 1, 4), read(3, 0, 1)])[1] - MS
    };
    // The read arrives while the data of the write are still in transfer on the interface. The
    // program starts only after the transfer, so the die is free.
    assert_eq!(
        run("reads_first = true"),
        50_000 + 4_096 + 16_384 - 4_096 + 10_000 - 8_192
    );
}

/// An empty drive never freezes. A full drive that was overwritten does. The amount of its cleaning
/// depends on its spare flash: with 25 % spare flash and 16 pages in a block, greedy cleaning
/// programs 2.349 pages for each page written (docs/flash.md has the formula).
#[test]
fn freezes_come_from_cleaning() {
    let pages = 16 * MIB / PAGE;
    let mut fresh = model("", 16 * MIB);
    let quick = latencies(&mut fresh, 0, 2000, pages, 5 * MS);
    assert_eq!(*quick.last().expect("writes"), 118_192);
    assert_eq!(fresh.counters().freezes, 0);

    let mut aged = model("filled_share = 1\noverwritten_times = 3", 64 * MIB);
    let slow = latencies(&mut aged, 0, 60_000, 4 * pages, 5 * MS);
    let counters = aged.counters();
    let amplification = counters.flash_programs as f64 / counters.writes as f64;
    assert!(
        (amplification / 2.349 - 1.0).abs() < 0.02,
        "{amplification}"
    );
    // The erases free as many pages as were programmed (16 pages in a block), except for the pages
    // of the blocks that are being filled.
    assert!((counters.flash_programs / 16).abs_diff(counters.flash_erases) <= 2);
    assert!(counters.freezes > 1000);
    // Most writes do not wait for cleaning. The slowest write waits at least for an erase and for
    // the page copies that precede the erase.
    assert_eq!(slow[slow.len() / 2], 118_192);
    assert!(*slow.last().expect("writes") > MS + 118_192);
}

/// During idle time the drive cleans blocks in advance, so that no write has to wait for cleaning.
#[test]
fn quiet_time_takes_the_freezes_away() {
    let aged = "filled_share = 1\noverwritten_times = 3\nbackground_idle_ns = 1000000";
    let pages = 16 * MIB / PAGE;
    let run = |free_blocks: u32| {
        let mut drive = model(
            &format!("{aged}\nbackground_free_blocks = {free_blocks}"),
            16 * MIB,
        );
        let latencies = latencies(&mut drive, 1000 * MS, 5000, pages, 30 * MS);
        let counters = drive.counters();
        assert_eq!(counters.flash_background_cleanings > 0, free_blocks > 0);
        (counters.freezes, *latencies.last().expect("writes"))
    };
    let (freezes, slowest_ns) = run(4);
    assert_eq!((freezes, slowest_ns), (0, 118_192));
    assert!(run(0).0 > 100);
}

/// Cleaning need not copy discarded pages.
#[test]
fn discards_make_cleaning_cheap() {
    let pages = 16 * MIB / PAGE;
    let run = |discards: bool| {
        let mut drive = model("filled_share = 1\noverwritten_times = 3", 16 * MIB);
        if discards {
            times(
                &mut drive,
                0,
                &[command(0, CommandKind::Discard, pages / 2, pages / 2)],
            );
        }
        latencies(&mut drive, 1000 * MS, 10_000, pages / 2, 5 * MS);
        drive.counters().flash_copied_pages
    };
    assert!(run(true) * 4 < run(false));
}

/// In a drive with log blocks, random writes cause merges, and the drive freezes during a merge. In
/// the mapping scheme BAST, a merge takes 16 programs and two erases.
#[test]
fn log_blocks_freeze_by_merging() {
    for layer in ["bast", "fast", "block"] {
        let overrides =
            format!("layer = \"{layer}\"\nfilled_share = 1\nbackground_idle_ns = \"1h\"");
        let mut drive = model(&overrides, 16 * MIB);
        let slowest = latencies(&mut drive, 0, 3000, 16 * MIB / PAGE, 50 * MS);
        let counters = drive.counters();
        assert!(counters.freezes > 100, "{layer}");
        assert_eq!(counters.flash_merges > 0, layer != "block", "{layer}");
        assert!(*slowest.last().expect("writes") > 2 * MS, "{layer}");
    }
}

/// A write is first programmed into the SLC buffer, with the latency of SLC. When the host is idle,
/// the content of the buffer is moved to its final pages.
#[test]
fn an_slc_buffer_takes_the_writes_first() {
    let slc =
        "slc_pages = 64\nslc_program_ns = 30000\nslc_read_ns = 20000\nbackground_idle_ns = 5000000";
    let mut drive = model(slc, MIB);
    drive.submit(0, write(1, 5, 1));
    let mut done = Vec::new();
    drive.advance_timed(MS, &mut done);
    assert_eq!(done, [(1, 4_096 + 4_096 + 30_000 + 10_000)]);
    assert_eq!(drive.counters().flash_programs, 1);
    // After 5 ms of idle time the page is read from the SLC buffer and programmed again.
    drive.advance_timed(20 * MS, &mut done);
    assert_eq!(drive.counters().flash_programs, 2);
}

#[test]
fn impossible_drives_are_refused_by_name() {
    for (overrides, named) in [
        ("channels = 0", "channels = 0"),
        ("pages_per_block = 100000", "pages_per_block"),
        ("over_provisioning = -1.0", "over_provisioning"),
        ("log_share = 2.0", "log_share"),
        ("filled_share = 1.5", "filled_share"),
        ("channel_rate_bytes_per_s = 0", "channel_rate_bytes_per_s"),
        ("erase_ns = 4000000000000", "erase_ns"),
        ("cleaning = \"choices\"\ncleaning_choices = 0", "choices"),
        ("layer = \"fast\"\nwear_spread_erases = 5", "spread_erases"),
        ("layer = \"magic\"", "magic"),
        ("slots = 3", "slots"),
    ] {
        let error = parameters(overrides).expect_err(overrides).to_string();
        assert!(error.contains(named), "{overrides}: {error}");
    }
    let huge = parameters("").expect("valid").build(1 << 60, 1);
    assert!(
        huge.err()
            .expect("refused")
            .to_string()
            .contains("page_bytes")
    );
}
