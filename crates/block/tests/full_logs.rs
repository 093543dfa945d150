//! Mirrors whose logs are full: a side whose log is full may wait for the other side, but never
//! forever.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{open, virtual_rt, write};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, MirrorConfig, OpenOptions, SideToOpen};
use bimetal_block::{Device, Flags, Op, Request};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rng, Rt};

const MIB: u64 = 1 << 20;
/// Size of a side in bytes. The log of a side is a sixteenth of this.
const SIDE_BYTES: u64 = 64 * MIB;
/// Number of bytes that the load writes: ten times the size of a log.
const WRITTEN_BYTES: u64 = 40 * MIB;

/// Returns the configuration of a medium: an SSD that takes 200 us for a write and 100 us for a
/// read, or a disk of 7,200 revolutions a minute.
fn medium(kind: &str) -> String {
    let timing = match kind {
        "ssd" => "type = \"delay\"\nwrite = \"200us\"\nread = \"100us\"",
        _ => "type = \"hdd\"\nprofile = \"hdd-7200\"",
    };
    format!(
        "[device.memory]\ntype = \"memory\"\nsize = \"64MiB\"\n\
         [device.top]\nbelow = \"memory\"\n{timing}\n"
    )
}

/// Writes `WRITTEN_BYTES` in requests of `request_bytes`, sequentially or at random offsets and
/// without any flush. Returns when all requests are acknowledged.
async fn load(rt: &Rt, mirror: &Mirror, depth: u64, request_bytes: u64, random: bool) {
    let tasks = TaskGroup::new(rt);
    let next = Rc::new(Cell::new(0));
    for task in 0..depth {
        let (rt, mirror, next) = (rt.clone(), mirror.clone(), Rc::clone(&next));
        let mut rng = Rng::new(task);
        tasks.spawn(async move {
            while next.get() < WRITTEN_BYTES / request_bytes {
                let turn = next.get();
                next.set(turn + 1);
                let places = 32 * MIB / request_bytes;
                let place = if random {
                    rng.below(places)
                } else {
                    turn % places
                };
                let request = write(&rt, place * request_bytes, request_bytes as usize, 7);
                mirror.submit(request).await.expect("both sides are well");
            }
        });
    }
    tasks.join().await;
}

/// No client submits a flush. In the end no client can submit one, because every client waits until
/// a log has room. The side with the full log waits until the other side has made its own stored
/// writes durable. The mirror must make these writes durable without a flush from a client.
#[test]
fn a_full_log_never_waits_for_a_flush_that_nobody_asks_for() {
    for kinds in [
        ["ssd", "disk"],
        ["disk", "ssd"],
        ["ssd", "ssd"],
        ["disk", "disk"],
    ] {
        for (depth, request_bytes, random) in [
            (1, MIB, false),
            (4, MIB, false),
            (16, 256 << 10, false),
            (16, 64 << 10, true),
        ] {
            let rt = virtual_rt(depth);
            // The limit is generous: even a disk that seeks for every request writes five requests
            // of 64 KiB each second.
            let limit = Duration::from_secs(2 * WRITTEN_BYTES / (64 << 10) / 5);
            let what = format!("{kinds:?}, depth {depth}, {request_bytes} bytes, {random}");
            let run = async {
                let mut stacks = Vec::new();
                let mut sides = Vec::new();
                for (kind, name) in kinds.into_iter().zip(["first", "second"]) {
                    let (stack, top) = open(&rt, &medium(kind)).await;
                    stacks.push(stack);
                    sides.push(Candidate {
                        name: name.to_owned(),
                        device: top as Rc<dyn Device>,
                    });
                }
                let made = formatting::format(&rt, "vol", &sides, &Formatting::with_homes()).await;
                made.expect("the sides are fit");
                let names = sides.iter().map(|side| side.name.clone()).collect();
                let sides = sides.into_iter().map(|side| SideToOpen {
                    name: side.name,
                    device: Ok(side.device),
                });
                let config = MirrorConfig::of(names);
                let options = OpenOptions::default();
                let opened = Mirror::open(&rt, &config, sides.collect(), &options).await;
                let mirror = opened.expect("it opens");
                // First turn much of the volume into zeroes, as mkfs does.
                for part in 0..8 {
                    let zeroes = Request::without_data(
                        Op::WriteZeroes,
                        part * 4 * MIB,
                        4 * MIB,
                        Flags::NONE,
                    );
                    mirror.submit(zeroes).await.expect("both sides are well");
                }
                let loaded = load(&rt, &mirror, depth, request_bytes, random);

                let ended = rt.timeout(limit / 2, loaded).await;
                assert!(ended.is_ok(), "{what}: it stands: {:?}", mirror.status());

                let status = mirror.status();
                assert!(!status.degraded, "{what}: a side was given up: {status:?}");
                mirror.close().await.expect("it closes");
                drop(mirror);
                for stack in stacks {
                    stack.close().await.expect("it closes");
                }
            };
            let ended = rt.block_on(async { rt.timeout(limit, run).await });
            assert!(ended.is_ok(), "{what}: it does not end");
        }
    }
}

const _: () = assert!(SIDE_BYTES / 16 < WRITTEN_BYTES / 8, "logs go round");
