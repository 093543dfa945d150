//! Tests of the decisions of an opening, and of whether the next opening agrees with them.

use super::super::Mirror;
use super::super::formatting::{self, Formatting};
use super::super::store::Append;
use super::*;
use crate::media::memory::MemoryDevice;
use crate::request::Request;
use bimetal_rt::{Payload, VirtualOptions};

const BLOCK: u64 = crate::BLOCK_BYTES;

fn full_of(rt: &Rt, byte: u8) -> Payload {
    let mut block = rt.pool().alloc_now(BLOCK as usize);
    block.fill(byte);
    Payload::from(block.freeze())
}

/// Opens the volume with only those sides for whose index `there` returns true.
async fn open_some(
    rt: &Rt,
    sides: &[Candidate],
    there: impl Fn(usize) -> bool,
    force: Option<Force>,
) -> Result<Mirror, String> {
    let config = MirrorConfig::of(sides.iter().map(|side| side.name.clone()).collect());
    let side = |(index, side): (usize, &Candidate)| SideToOpen {
        name: side.name.clone(),
        device: match there(index) {
            true => Ok(Rc::clone(&side.device)),
            false => Err(OpenError::new("unplugged")),
        },
    };
    let sides = sides.iter().enumerate().map(side).collect();
    let options = OpenOptions {
        force,
        ..OpenOptions::default()
    };
    let opened = Mirror::open(rt, &config, sides, &options).await;
    opened.map_err(|error| error.to_string())
}

async fn first_byte(mirror: &Mirror) -> u8 {
    let read = mirror.submit(Request::read(0, BLOCK)).await;
    read.expect("it reads").into_data().to_vec()[0]
}

/// Appends a change to the log of a side that lacks the change with the previous sequence number. A
/// crash can leave such a log, because a side can store changes out of order.
async fn keep_out_of_turn(rt: &Rt, side: &Candidate, byte: u8) {
    let superblock = side.superblock().await.expect("readable").expect("there");
    let config = MirrorConfig::of(vec![side.name.clone()]);
    let on = store_device(&side.device, &superblock, &config);
    let store = Store::open(rt, &on).await.expect("it opens");
    store.set_epoch(superblock.history.current().number);
    store.begin().await.expect("it begins");
    let number = store.found().next_number + 1;
    let change = Append::of(0..BLOCK, full_of(rt, byte), number);
    store.append(change).wait().await.expect("stored");
    store.flush(0).await.expect("flushed");
    assert!(store.complete() < number, "one is missing before it");
    store.end().await;
}

/// When all sides are present, every change that any side has is valid, and a change that was read
/// once is final (T3 and T4 in docs/trust.md). A side that is started alone treats a change as
/// valid only if the side has all earlier changes (T6). Even so, a change that was read must be
/// found on each side that is started alone later.
#[test]
fn what_an_opening_has_answered_is_found_on_each_side_alone() {
    let rt = Rt::virtual_time(VirtualOptions::default());
    rt.block_on(async {
        let side = |index| Candidate {
            name: format!("side{index}"),
            device: Rc::new(MemoryDevice::new(&rt, 64 << 20)),
        };
        let sides: Vec<Candidate> = (0..2).map(side).collect();
        let formatted = formatting::format(&rt, "vol", &sides, &Formatting::with_homes()).await;
        formatted.expect("the sides are fit");
        let killed = open_some(&rt, &sides, |_| true, None).await.expect("fresh");
        let write = Request::write(0, full_of(&rt, 1), crate::request::Flags::NONE);
        killed.submit(write).await.expect("written");
        killed.submit(Request::flush()).await.expect("flushed");
        drop(killed);
        keep_out_of_turn(&rt, &sides[0], 2).await;

        let killed = open_some(&rt, &sides, |_| true, None).await;
        let killed = killed.expect("it recovers");
        assert_eq!(first_byte(&killed).await, 2, "all members are there");
        drop(killed);
        for alone in 0..2 {
            let there = |index| index == alone;
            let examined = open_some(&rt, &sides, there, Some(Force::ReadOnly)).await;
            let examined = examined.expect("it is forced");
            assert_eq!(first_byte(&examined).await, 2, "side {alone} alone");
            examined.close().await.expect("closed");
        }
    });
}

/// Rewrites both superblock copies of a side so that they state that the side is complete up to
/// `number`. The state of the side is unchanged.
async fn claim_complete(rt: &Rt, side: &Candidate, number: u64) {
    let found = side.superblock().await.expect("readable").expect("there");
    let claiming = Superblock {
        complete_below: number,
        generation: found.generation + 1,
        ..found
    };
    let block = rt.pool().copy_of(&claiming.encode());
    let last = side.device.geometry().size_bytes - BLOCK;
    for offset in [0, last] {
        let write = Request::write(offset, block.clone(), crate::request::Flags::NONE);
        side.device.submit(write).await.expect("memory");
    }
}

/// If the superblock of a side in use records that the side durably holds certain changes, its log
/// must still contain them. A log that ends before these changes has lost its end. Such a side must
/// not be treated as a side that merely lacks later changes.
#[test]
fn a_log_that_ends_before_what_its_superblock_says_has_lost_its_end() {
    let rt = Rt::virtual_time(VirtualOptions::default());
    rt.block_on(async {
        let side = |index| Candidate {
            name: format!("side{index}"),
            device: Rc::new(MemoryDevice::new(&rt, 64 << 20)),
        };
        let sides: Vec<Candidate> = (0..2).map(side).collect();
        let formatted = formatting::format(&rt, "vol", &sides, &Formatting::with_homes()).await;
        formatted.expect("the sides are fit");
        let killed = open_some(&rt, &sides, |_| true, None).await.expect("fresh");
        let write = Request::write(0, full_of(&rt, 1), crate::request::Flags::NONE);
        killed.submit(write).await.expect("written");
        killed.submit(Request::flush()).await.expect("flushed");
        drop(killed);
        claim_complete(&rt, &sides[0], 1_000).await;
        let refused = open_some(&rt, &sides, |_| true, None).await;
        let why = refused.err().expect("nobody has what it had");
        assert!(
            why.contains("the log of side0 has lost durable entries"),
            "{why}"
        );
    });
}

/// Returns the offset of the header of the log entry whose first data block is filled with `byte`.
async fn header_of(side: &Candidate, byte: u8) -> u64 {
    let superblock = side.superblock().await.expect("readable").expect("there");
    let (start, bytes) = superblock.layout.log;
    let read = side.device.submit(Request::read(start, bytes)).await;
    let log = read.expect("memory").into_data().to_vec();
    let blocks = log.chunks(BLOCK as usize);
    let found = blocks
        .into_iter()
        .position(|block| block.iter().all(|b| *b == byte));
    let data = found.expect("what was written is in the log") as u64;
    start + (data - 1) * BLOCK
}

async fn until_all_are_healthy(rt: &Rt, mirror: &Mirror) {
    let deadline = rt.now() + std::time::Duration::from_secs(600);
    let is_healthy = || mirror.status().sides.iter().all(|s| s.health == "healthy");
    while !is_healthy() {
        assert!(rt.now() < deadline, "a rebuild ends");
        rt.sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// Idle time after which a side begins to destage its log. The test must end the program before
/// this time has passed.
const IDLE_FOR_LESS_THAN: std::time::Duration = std::time::Duration::from_secs(1);

/// Returns two sides in this state: the log of the first side has lost a durable entry, the first
/// side was rebuilt from the second side, and the program was killed.
async fn rebuilt_after_a_damaged_log(rt: &Rt) -> Vec<Candidate> {
    let side = |index| Candidate {
        name: format!("side{index}"),
        device: Rc::new(MemoryDevice::new(rt, 64 << 20)),
    };
    let sides: Vec<Candidate> = (0..2).map(side).collect();
    let formatted = formatting::format(rt, "vol", &sides, &Formatting::with_homes()).await;
    formatted.expect("the sides are fit");
    let killed = open_some(rt, &sides, |_| true, None).await.expect("fresh");
    for byte in 1..=3 {
        let write = Request::write(0, full_of(rt, byte), crate::request::Flags::NONE);
        killed.submit(write).await.expect("written");
        killed.submit(Request::flush()).await.expect("flushed");
    }
    drop(killed);
    let lost = header_of(&sides[0], 1).await;
    let zeroes = Payload::from(rt.pool().zeroed(BLOCK as usize));
    let write = Request::write(lost, zeroes, crate::request::Flags::NONE);
    sides[0].device.submit(write).await.expect("memory");

    let opened_at = rt.now();
    let rebuilt = open_some(rt, &sides, |_| true, None).await;
    let rebuilt = rebuilt.expect("the other one has everything");
    assert_eq!(rebuilt.status().sides[0].health, "resyncing");
    until_all_are_healthy(rt, &rebuilt).await;
    let write = Request::write(0, full_of(rt, 4), crate::request::Flags::NONE);
    rebuilt.submit(write).await.expect("written");
    rebuilt.submit(Request::flush()).await.expect("flushed");
    // Wait until every side has all changes. The program must be killed before the idle side
    // destages its log, because destaging drops the log entries.
    while rebuilt.status().exposed_bytes > 0 {
        assert!(
            rt.now() < opened_at + IDLE_FOR_LESS_THAN,
            "the side is fast"
        );
        rt.sleep(std::time::Duration::from_millis(1)).await;
    }
    assert!(
        rt.now() < opened_at + IDLE_FOR_LESS_THAN,
        "the rebuild is fast"
    );
    drop(rebuilt);
    sides
}

/// After a side with lost log entries has been rebuilt, the loss no longer matters. The side can be
/// used like any other side, even as the only remaining one.
#[test]
fn a_side_that_was_rebuilt_after_its_log_was_damaged_starts_alone() {
    let rt = Rt::virtual_time(VirtualOptions::default());
    rt.block_on(async {
        let sides = rebuilt_after_a_damaged_log(&rt).await;
        let alone = open_some(&rt, &sides, |index| index == 0, Some(Force::Fork)).await;
        let alone = alone.expect("it was rebuilt, and holds everything");
        assert_eq!(first_byte(&alone).await, 4);
        alone.close().await.expect("closed");
    });
}

/// A side that was rebuilt because of lost log entries is not rebuilt again at each opening.
#[test]
fn a_side_that_was_rebuilt_after_its_log_was_damaged_is_not_rebuilt_again() {
    let rt = Rt::virtual_time(VirtualOptions::default());
    rt.block_on(async {
        let sides = rebuilt_after_a_damaged_log(&rt).await;
        let opened = open_some(&rt, &sides, |_| true, None).await;
        let opened = opened.expect("both hold everything");
        assert_eq!(opened.status().sides[0].health, "healthy");
        opened.close().await.expect("closed");
    });
}
