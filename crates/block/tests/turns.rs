//! No operation may monopolize the thread: whatever the stack and however large the range, the
//! number of steps between two polls of the ring (io_uring) is bounded. The data structures count
//! the steps (`bimetal_rt::turn`), not the code that iterates over them, so these tests also detect
//! a loop that forgets to yield.

use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{blank_of, open_these};
use crate::common::{open, virtual_rt, write};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, OpenOptions};
use bimetal_block::{Device, Extent, Flags, Op, Request};
use bimetal_rt::Rt;
use bimetal_rt::turn::TURN_STEPS_MAX;
use futures_util::stream::{FuturesUnordered, StreamExt};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Maximum number of steps in a turn. It is twice the steps of a turn's budget, because the last
/// task can exceed the budget, and because polls of the tasks are counted as steps too.
const STEPS_MAX: u64 = 2 * TURN_STEPS_MAX;

/// Returns all extents of a range. Each request continues at the end of the last answer, as clients
/// do.
async fn extents_of(device: &dyn Device, range: std::ops::Range<u64>) -> Vec<Extent> {
    let (mut all, mut position) = (Vec::new(), range.start);
    while position < range.end {
        let ask = Request::without_data(Op::Extents, position, range.end - position, Flags::NONE);
        let reply = device.submit(ask).await.expect("it answers");
        let found = reply.into_extents();
        let answered: u64 = found.iter().map(|extent| extent.len).sum();
        assert!(answered > 0 && answered <= range.end - position, "a prefix");
        position += answered;
        all.extend(found);
    }
    all
}

/// Runs requests concurrently, and asserts that every turn of the executor meanwhile has at most
/// `STEPS_MAX` steps.
async fn in_short_turns(rt: &Rt, what: &str, device: &dyn Device, requests: Vec<Request>) {
    rt.forget_longest_turn();
    let running = requests.into_iter().map(|request| device.submit(request));
    for reply in futures_util::future::join_all(running).await {
        reply.expect("it is done");
    }
    until_turn_ends(rt).await;
    let steps = rt.longest_turn().steps;
    assert!(steps <= STEPS_MAX, "{what}: a turn of {steps} steps");
}

/// Ends the current turn of the executor, so that its steps are included in the longest turn.
async fn until_turn_ends(rt: &Rt) {
    rt.sleep(Duration::from_nanos(1)).await;
}

fn ranged(op: Op, offset: u64, len: u64) -> Request {
    Request::without_data(op, offset, len, Flags::NONE)
}

/// Returns a mirror of two sides of `size_bytes`, each with a log of `log_bytes`.
async fn mirror(rt: &Rt, size_bytes: u64, log_bytes: u64) -> Mirror {
    let sides: Vec<Candidate> = ["a", "b"].map(|name| blank_of(rt, name, size_bytes)).into();
    let formatting = Formatting {
        log_bytes: Some(log_bytes),
        ..Formatting::with_homes()
    };
    let made = formatting::format(rt, "vol", &sides, &formatting).await;
    made.expect("the sides are fit");
    let sides: Vec<&Candidate> = sides.iter().collect();
    let opened = open_these(rt, &sides, &OpenOptions::default()).await;
    opened.expect("the volume opens")
}

/// An extents request over a log with many extents must take only short turns of the executor. The
/// data is written to every second block, so the log holds a separate extent for each written
/// block.
#[test]
fn many_extents_in_a_log_are_told_in_short_turns() {
    const EXTENTS: u64 = 12_000;
    let rt = virtual_rt(1);
    rt.block_on(async {
        let mirror = mirror(&rt, 512 * MIB, 128 * MIB).await;
        for block in 0..EXTENTS {
            let request = write(&rt, 2 * block * BLOCK, BLOCK as usize, 1);
            mirror.submit(request).await.expect("it is written");
        }
        let len = 2 * EXTENTS * BLOCK;
        let asks = (0..32).map(|_| ranged(Op::Extents, 0, len)).collect();
        in_short_turns(&rt, "extents in a log", &mirror, asks).await;
        let found = extents_of(&mirror, 0..len).await;
        assert_eq!(found.len() as u64, 2 * EXTENTS);
        for (index, extent) in found.iter().enumerate() {
            assert_eq!((extent.len, extent.data), (BLOCK, index % 2 == 0));
        }
        mirror.close().await.expect("it closes");
    });
}

/// A log of tens of thousands of records is destaged, and its entries are freed, without a long
/// turn of the executor.
#[test]
fn a_log_of_many_records_goes_home_in_short_turns() {
    const RECORDS: u64 = 24_000;
    let rt = virtual_rt(4);
    rt.block_on(async {
        let mirror = mirror(&rt, 512 * MIB, 192 * MIB).await;
        rt.forget_longest_turn();
        let mut flying = FuturesUnordered::new();
        for block in 0..RECORDS {
            let request = write(&rt, 2 * block * BLOCK, BLOCK as usize, 1);
            flying.push(mirror.submit(request));
            if flying.len() == 32 {
                let written = flying.next().await.expect("one is under way");
                written.expect("it is written");
            }
        }
        while let Some(written) = flying.next().await {
            written.expect("it is written");
        }
        mirror.close().await.expect("everything goes home");
        until_turn_ends(&rt).await;
        let steps = rt.longest_turn().steps;
        assert!(steps <= STEPS_MAX, "a turn of {steps} steps");
    });
}

/// A range of 4 GiB has a million checksums. A request for a range that was never written must not
/// iterate over all of them in one turn.
#[test]
fn large_ranges_are_told_and_cleared_in_short_turns() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        let mirror = mirror(&rt, 40 * GIB, 64 * MIB).await;
        let asks = (0..8).map(|at| ranged(Op::Extents, at * 4 * GIB, 4 * GIB));
        in_short_turns(&rt, "extents of 4 GiB", &mirror, asks.collect()).await;
        let found = extents_of(&mirror, 0..4 * GIB).await;
        assert!(
            found.iter().all(|extent| !extent.data),
            "nothing was written"
        );
        for op in [Op::Discard, Op::WriteZeroes] {
            let clears = (0..8).map(|at| ranged(op, at * 4 * GIB, 4 * GIB));
            in_short_turns(&rt, op.name(), &mirror, clears.collect()).await;
        }
        mirror.close().await.expect("it closes");
    });
}

#[test]
fn layers_over_memory_keep_their_turns_short() {
    let stacks = [
        (
            "memory",
            "[device.top]\ntype = \"memory\"\nsize = \"64GiB\"\n",
        ),
        (
            "stripe",
            "[device.a]\ntype = \"memory\"\nsize = \"32GiB\"\n\
             [device.b]\ntype = \"memory\"\nsize = \"32GiB\"\n\
             [device.top]\ntype = \"stripe\"\ndevices = [\"a\", \"b\"]\nunit = \"16KiB\"\n",
        ),
        (
            "cache",
            "[device.a]\ntype = \"memory\"\nsize = \"64GiB\"\n\
             [device.top]\ntype = \"cache\"\nbelow = \"a\"\nsize = \"128MiB\"\ndirty = \"64MiB\"\n",
        ),
    ];
    for (what, text) in stacks {
        let rt = virtual_rt(3);
        rt.block_on(async {
            let (stack, top): (_, Rc<dyn Device>) = open(&rt, text).await;
            for block in 0..8192 {
                let request = write(&rt, 2 * block * BLOCK, BLOCK as usize, 1);
                top.submit(request).await.expect("it is written");
            }
            for op in [Op::Extents, Op::Discard, Op::WriteZeroes] {
                let requests = (0..8).map(|at| ranged(op, at * 4 * GIB, 4 * GIB)).collect();
                in_short_turns(&rt, &format!("{what}, {}", op.name()), &*top, requests).await;
            }
            stack.close().await.expect("it closes");
        });
    }
}
