//! Checks that every kind of device fulfils the contract of `device.rs`. A new kind of device needs
//! one more line in [`KINDS`].

use crate::common;
use std::path::Path;
use std::rc::Rc;

use crate::common::virtual_rt;
use bimetal_block::graph::{Node, OpenOptions, Stack, read_graph};
use bimetal_block::layers::mirror::{Mirror, SideDevice};
use bimetal_block::{BLOCK_BYTES, Device, Flags, IoError, IoResult, Op, Reply, Request};
use bimetal_rt::{Rng, Rt, UringOptions};

/// Configuration of the devices below the device under test: three memory devices of about 1 MiB.
/// The size of the last one is not a whole number of stripe rows.
const MEDIA: &str = r#"
[device.a]
type = "memory"
size = "1MiB"
[device.b]
type = "memory"
size = "1MiB"
[device.c]
type = "memory"
size = "1020KiB"
"#;

/// All kinds of devices: a name for messages, and the configuration of the device `top` over
/// [`MEDIA`].
const KINDS: &[(&str, &str)] = &[
    ("memory", "[device.top]\ntype = 'memory'\nsize = '1MiB'"),
    (
        "passthrough",
        "[device.top]\ntype = 'passthrough'\nbelow = 'a'",
    ),
    (
        "stripe of 3",
        "[device.top]\ntype = 'stripe'\ndevices = ['a', 'b', 'c']\nunit = '16KiB'",
    ),
    (
        "stripe of 1",
        "[device.top]\ntype = 'stripe'\ndevices = ['a']\nunit = '4KiB'",
    ),
    (
        "queue",
        "[device.top]\ntype = 'queue'\nbelow = 'a'\ndepth = 2\ntags = 8",
    ),
    (
        "queue of cfq",
        "[device.top]\ntype = 'queue'\nbelow = 'a'\nscheduler = 'cfq'\ndepth = 2\nrequest_max = '8KiB'",
    ),
    (
        "queue of anticipatory",
        "[device.top]\ntype = 'queue'\nbelow = 'a'\nscheduler = 'anticipatory'\ndepth = 1\nplug = {}",
    ),
    (
        "ssd",
        "[device.top]\ntype = 'ssd'\nprofile = 'sata-2009'\nbelow = 'a'",
    ),
    (
        "nvme",
        "[device.top]\ntype = 'ssd'\nprofile = 'nvme-tlc'\nbelow = 'a'",
    ),
    (
        "hdd",
        "[device.top]\ntype = 'hdd'\nprofile = 'hdd-7200'\nbelow = 'a'",
    ),
    ("network", "[device.top]\ntype = 'network'\nbelow = 'a'"),
    ("flash", "[device.top]\ntype = 'flash'\nbelow = 'a'"),
    (
        "flash with log blocks",
        "[device.top]\ntype = 'flash'\nprofile = 'flash-2009'\nbelow = 'a'",
    ),
    (
        "delay of nothing",
        "[device.top]\ntype = 'delay'\nbelow = 'a'",
    ),
    (
        "delay",
        "[device.top]\ntype = 'delay'\nbelow = 'a'\nread = '1ms'\nwrite = '2ms'\njitter = '1ms'",
    ),
    (
        "error, never",
        "[device.top]\ntype = 'error'\nbelow = 'a'\ncode = 'medium'\nprobability = 0.0",
    ),
    (
        "hang for a while",
        "[device.top]\ntype = 'error'\nbelow = 'a'\nhang = '1s'\nnth = 7",
    ),
    (
        "rate",
        "[device.top]\ntype = 'rate'\nbelow = 'a'\nbytes_per_s = '10MB'\nburst_bytes = '100kB'",
    ),
    (
        "log",
        "[device.top]\ntype = 'log'\nbelow = 'a'\npath = 'unused.log'",
    ),
    (
        "cache",
        "[device.top]\ntype = 'cache'\nbelow = 'a'\nsize = '256KiB'\ndirty_age = '1ms'",
    ),
    (
        "write-through cache of clusters",
        "[device.top]\ntype = 'cache'\nbelow = 'a'\nsize = '256KiB'\nmode = 'write-through'\npolicy = 'abm-lru-clc'",
    ),
    (
        "mirror",
        "[device.top]\ntype = 'mirror'\nsides = ['a', 'c']",
    ),
    (
        "mirror of three, one of them slow",
        "[device.slow]\ntype = 'delay'\nbelow = 'b'\nwrite = '1s'\nread = '1s'\n[device.top]\ntype = 'mirror'\nsides = ['a', 'slow', 'c']",
    ),
    (
        "mirror of an ssd and an hdd",
        "[device.s]\ntype = 'ssd'\nbelow = 'a'\n[device.h]\ntype = 'hdd'\nbelow = 'b'\n[device.top]\ntype = 'mirror'\nsides = ['s', 'h']",
    ),
    (
        "adopted",
        "[device.notes]\ntype = 'memory'\nsize = '1028KiB'\n[device.top]\ntype = 'adopted'\ndata = 'c'\nmetadata = 'notes'",
    ),
    (
        "shard, which has no thread in virtual time",
        "[device.top]\ntype = 'shard'\nbelow = 'a'",
    ),
    ("stats", "[device.top]\ntype = 'stats'\nbelow = 'a'"),
];

/// Kinds of devices that have threads of their own. For this reason they are tested in real time,
/// not in virtual time.
const THREADED: &[(&str, &str)] = &[
    ("shard", "[device.top]\ntype = 'shard'\nbelow = 'a'"),
    (
        "shard in a shard",
        "[device.inner]\ntype = 'shard'\nbelow = 'a'\n[device.top]\ntype = 'shard'\nbelow = 'inner'",
    ),
    (
        "stripe of two shards",
        "[device.s]\ntype = 'shard'\nbelow = 'a'\n[device.t]\ntype = 'shard'\nbelow = 'c'\n\
         [device.top]\ntype = 'stripe'\ndevices = ['s', 't']\nunit = '16KiB'",
    ),
    (
        "cache and queue on a shard",
        "[device.q]\ntype = 'queue'\nbelow = 'a'\ndepth = 2\n\
         [device.d]\ntype = 'cache'\nbelow = 'q'\nsize = '256KiB'\n\
         [device.top]\ntype = 'shard'\nbelow = 'd'",
    ),
    (
        "mirror over a shard",
        "[device.s]\ntype = 'shard'\nbelow = 'a'\n\
         [device.top]\ntype = 'mirror'\nsides = ['s', 'c']",
    ),
];

fn real_rt() -> Rt {
    let options = UringOptions {
        pool_bytes: 4 << 20,
        ..UringOptions::default()
    };
    Rt::real_time(options).expect("a ring")
}

/// A device under test and its stack.
struct Opened {
    top: Rc<dyn Device>,
    stack: Stack,
    top_is_in_stack: bool,
}

impl Opened {
    async fn new(rt: &Rt, text: &str) -> Opened {
        let text = format!("{MEDIA}{text}\n");
        let graph = read_graph(Path::new("test.toml"), &text).expect("the configuration is right");
        let node = &graph.nodes()["top"];
        // Create a mirror without superblocks, because the memory devices have not been formatted.
        let mirror = match node {
            Node::Mirror(config) => Some(config),
            _ => None,
        };
        let roots = mirror.map_or(vec!["top"], |_| node.children());
        let stack = Stack::open(rt, &graph, &roots, &OpenOptions::default()).await;
        let stack = stack.expect("the stack opens");
        let device = |name: &str| Rc::clone(stack.get(name).expect("the device is open"));
        let top: Rc<dyn Device> = match mirror {
            None => device("top"),
            Some(config) => {
                let sides = roots.iter().map(|&name| SideDevice {
                    name: name.to_owned(),
                    device: device(name),
                    data_offset: 0,
                    out_of_sync: false,
                });
                let sizes = roots.iter().map(|&name| device(name).geometry().size_bytes);
                let size_bytes = sizes.min().expect("a mirror has sides");
                Rc::new(Mirror::new(rt, config, sides.collect(), size_bytes))
            }
        };
        Opened {
            top,
            stack,
            top_is_in_stack: mirror.is_none(),
        }
    }

    async fn close(&self) {
        if !self.top_is_in_stack {
            self.top.close().await.expect("the device closes");
        }
        self.stack.close().await.expect("the stack closes");
    }
}

/// Expected content: for each block the byte that fills it, or `None` if the block is allowed to
/// have any content.
struct Model {
    blocks: Vec<Option<u8>>,
    discard_zeroes: bool,
}

impl Model {
    fn range(&self, request: &Request) -> std::ops::Range<usize> {
        (request.offset / BLOCK_BYTES) as usize..(request.end() / BLOCK_BYTES) as usize
    }

    fn apply(&mut self, request: &Request) {
        let range = self.range(request);
        match request.op {
            Op::Write => {
                for (index, block) in range.enumerate() {
                    let at = index * BLOCK_BYTES as usize;
                    let first = request.payload.slice(at..at + 1).to_vec()[0];
                    self.blocks[block] = Some(first);
                }
            }
            Op::WriteZeroes => self.blocks[range].fill(Some(0)),
            Op::Discard => self.blocks[range].fill(self.discard_zeroes.then_some(0)),
            Op::Read | Op::Flush | Op::Extents => {}
        }
    }

    fn check(&self, request: &Request, reply: Reply) {
        let blocks = &self.blocks[self.range(request)];
        match request.op {
            Op::Read => {
                let data = reply.into_data().to_vec();
                assert_eq!(data.len() as u64, request.len);
                for (got, expected) in data.chunks(BLOCK_BYTES as usize).zip(blocks) {
                    let ok = expected.is_none_or(|byte| got.iter().all(|&b| b == byte));
                    assert!(ok, "{request:?}: {} for {expected:?}", got[0]);
                }
            }
            Op::Extents => {
                let runs = reply.into_extents();
                let total: u64 = runs.iter().map(|run| run.len).sum();
                assert_eq!(total, request.len, "extents cover the range exactly");
                let mut position = 0;
                for run in runs {
                    assert!(run.len > 0);
                    let end = position + run.len;
                    let first = (position / BLOCK_BYTES) as usize;
                    let hole = &blocks[first..end.div_ceil(BLOCK_BYTES) as usize];
                    let zero = hole.iter().all(|byte| byte.is_none_or(|b| b == 0));
                    assert!(run.data || zero, "a hole reads as zeroes");
                    position = end;
                }
            }
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                assert!(
                    matches!(reply, Reply::Done),
                    "{:?} gave {reply:?}",
                    request.op
                );
            }
        }
    }
}

fn random_request(rt: &Rt, rng: &mut Rng, blocks: std::ops::Range<u64>) -> Request {
    let flags = Flags {
        fua: rng.chance(0.2),
        keep_allocated: rng.chance(0.3),
        ..Flags::NONE
    };
    let (offset, len) = (
        blocks.start * BLOCK_BYTES,
        (blocks.end - blocks.start) * BLOCK_BYTES,
    );
    match rng.below(10) {
        0..4 => {
            // Each block of a write has different content, and the payload consists of several
            // slices.
            let mut payload = bimetal_rt::Payload::empty();
            for _ in blocks {
                let mut buf = rt.pool().alloc_now(BLOCK_BYTES as usize);
                buf.fill(1 + rng.below(255) as u8);
                payload.push(buf.freeze());
            }
            Request::write(offset, payload, flags)
        }
        4..7 => Request::read(offset, len),
        7 => Request::without_data(Op::WriteZeroes, offset, len, flags),
        8 => Request::without_data(Op::Discard, offset, len, Flags::NONE),
        _ => Request::without_data(Op::Extents, offset, len, Flags::NONE),
    }
}

/// Returns up to eight random requests to ranges that do not overlap, sometimes with a flush, to be
/// submitted together.
fn random_batch(rt: &Rt, rng: &mut Rng, blocks: u64) -> Vec<Request> {
    let count = 1 + rng.below(8);
    let mut cuts: Vec<u64> = (0..2 * count).map(|_| rng.below(blocks + 1)).collect();
    cuts.sort_unstable();
    let ranges = cuts.chunks(2).map(|pair| pair[0]..pair[1]);
    let mut batch: Vec<Request> = ranges
        .filter(|range| !range.is_empty())
        .map(|range| random_request(rt, rng, range))
        .collect();
    if rng.chance(0.1) {
        batch.push(Request::flush());
    }
    batch
}

async fn run_batch(top: &Rc<dyn Device>, batch: &[Request]) -> Vec<IoResult> {
    futures_util::future::join_all(batch.iter().map(|request| top.submit(request.clone()))).await
}

fn each_stores_what_it_was_given(kinds: &[(&str, &str)], runtime: impl Fn(u64) -> Rt) {
    for (number, (name, text)) in kinds.iter().enumerate() {
        let rt = runtime(number as u64);
        let mut rng = Rng::labelled(number as u64, "contract");
        rt.block_on(async {
            let opened = Opened::new(&rt, text).await;
            let top = &opened.top;
            let geometry = *top.geometry();
            let mut model = Model {
                blocks: vec![Some(0); (geometry.size_bytes / BLOCK_BYTES) as usize],
                discard_zeroes: geometry.discard_zeroes,
            };
            for _ in 0..300 {
                let batch = random_batch(&rt, &mut rng, model.blocks.len() as u64);
                let results = run_batch(top, &batch).await;
                for (request, result) in batch.iter().zip(results) {
                    let reply = result.unwrap_or_else(|e| panic!("{name}: {request:?}: {e}"));
                    model.check(request, reply);
                    model.apply(request);
                }
            }
            let all = Request::read(0, geometry.size_bytes);
            let reply = top.submit(all.clone()).await.unwrap();
            model.check(&all, reply);
            opened.close().await;
        });
        assert_eq!(
            rt.live_timers(),
            0,
            "{name}: closing leaves no timer behind"
        );
    }
}

#[test]
fn every_kind_stores_what_it_was_given() {
    each_stores_what_it_was_given(KINDS, virtual_rt);
}

#[test]
fn every_kind_with_threads_stores_what_it_was_given() {
    each_stores_what_it_was_given(THREADED, |_| real_rt());
}

#[test]
fn every_kind_honours_its_geometry() {
    for (name, text) in KINDS {
        let rt = virtual_rt(1);
        rt.block_on(async {
            let opened = Opened::new(&rt, text).await;
            let top = &opened.top;
            let geometry = *top.geometry();
            assert!(geometry.size_bytes > 0, "{name}");
            assert!(geometry.block_bytes.is_power_of_two(), "{name}");
            assert!(
                geometry
                    .size_bytes
                    .is_multiple_of(geometry.block_bytes.into()),
                "{name}"
            );
            assert!(geometry.preferred_bytes.is_power_of_two(), "{name}");
            assert!(geometry.preferred_bytes >= geometry.block_bytes, "{name}");
            let size = geometry.size_bytes;
            let block = u64::from(geometry.block_bytes);
            for op in [Op::Read, Op::Discard, Op::WriteZeroes, Op::Extents] {
                for (offset, len, expected) in [
                    (size, block, IoError::OutOfRange),
                    (size - block, 2 * block, IoError::OutOfRange),
                    (u64::MAX - block + 1, block, IoError::OutOfRange),
                    (block / 2, block, IoError::Misaligned),
                    (0, block / 2, IoError::Misaligned),
                ] {
                    let request = Request::without_data(op, offset, len, Flags::NONE);
                    let error = top.submit(request).await.unwrap_err();
                    assert_eq!(error, expected, "{name}: {op:?} {offset} {len}");
                }
                // Requests for the last block, and requests of length 0, must succeed.
                for (offset, len) in [(size - block, block), (0, 0), (size, 0)] {
                    let request = Request::without_data(op, offset, len, Flags::NONE);
                    let result = top.submit(request).await;
                    assert!(result.is_ok(), "{name}: {op:?} {offset} {len}: {result:?}");
                }
            }
            let beyond = Request::write(size, rt.pool().zeroed(block as usize), Flags::NONE);
            let error = top.submit(beyond).await.unwrap_err();
            assert_eq!(error, IoError::OutOfRange, "{name}");
            opened.close().await;
        });
    }
}

fn each_survives_dropped_requests(kinds: &[(&str, &str)], runtime: impl Fn(u64) -> Rt) {
    for (number, (name, text)) in kinds.iter().enumerate() {
        let rt = runtime(number as u64);
        let mut rng = Rng::labelled(number as u64, "drops");
        rt.block_on(async {
            let opened = Opened::new(&rt, text).await;
            let top = &opened.top;
            let blocks = top.geometry().size_bytes / BLOCK_BYTES;
            for _ in 0..100 {
                let batch = random_batch(&rt, &mut rng, blocks);
                let limit = std::time::Duration::from_nanos(rng.below(4_000_000));
                // Depending on the time limit, the batch completes or is dropped; the test accepts
                // both.
                let _ = rt.timeout(limit, run_batch(top, &batch)).await;
            }
            let write = common::write(&rt, 0, 8192, 9);
            top.submit(write)
                .await
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let data = top
                .submit(Request::read(0, 8192))
                .await
                .unwrap()
                .into_data();
            assert_eq!(data.to_vec(), vec![9; 8192], "{name}");
            // Close the device while requests are in flight. `close` must not return before their
            // remaining work has ended.
            let batch = random_batch(&rt, &mut rng, blocks);
            let _ = rt
                .timeout(std::time::Duration::from_nanos(1), run_batch(top, &batch))
                .await;
            opened.close().await;
        });
        assert_eq!(rt.live_timers(), 0, "{name}");
    }
}

/// Requests that are dropped at any point after their start must neither keep a device from closing
/// nor disturb later requests.
#[test]
fn every_kind_survives_dropped_requests() {
    each_survives_dropped_requests(KINDS, virtual_rt);
}

#[test]
fn every_kind_with_threads_survives_dropped_requests() {
    each_survives_dropped_requests(THREADED, |_| real_rt());
}
