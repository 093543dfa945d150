//! A device on a separate thread (a shard): the bounds of its queue, the order of requests, the
//! death of the thread, closing, and the state that the caller's thread knows. Its behavior as
//! storage is tested together with all other devices in `contract.rs`.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use crate::common::{byte_of, open, refusal, starts, statistic, write};
use bimetal_block::device::{LocalFuture, StatisticVisitor};
use bimetal_block::graph::{OpenError, OpenOptions, Stack, read_graph};
use bimetal_block::layers::shard::{BYTES_MAX, REQUESTS_MAX, Seen, Shard, Subtree};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Flags, Geometry, IoError, IoFuture, IoResult, Op, Request, Statistic};
use bimetal_rt::mailbox::{Receiver, Sender, mailbox};
use bimetal_rt::sync::Event;
use bimetal_rt::{Rt, UringOptions};
use futures_util::future::join_all;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Offset of a trap: a read at this offset makes the shard's thread panic.
const TRAP: u64 = 63 * MIB;

fn real_rt() -> Rt {
    let options = UringOptions {
        pool_bytes: 4 << 20,
        ..UringOptions::default()
    };
    Rt::real_time(options).expect("a ring")
}

/// An event on the thread of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happened {
    Came(Op, u64, u64),
    Done(Op, u64, u64),
    Closed,
    Gone,
}

#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<Happened>>>);

impl Journal {
    fn note(&self, event: Happened) {
        self.0.lock().unwrap().push(event);
    }

    fn events(&self) -> Vec<Happened> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the maximum numbers of requests and of bytes that were in flight on the shard's
    /// thread.
    fn peaks(&self) -> (u64, u64) {
        let (mut now, mut peaks) = ((0, 0), (0, 0));
        for event in self.events() {
            match event {
                Happened::Came(_, _, len) => now = (now.0 + 1, now.1 + len),
                Happened::Done(_, _, len) => now = (now.0 - 1, now.1 - len),
                Happened::Closed | Happened::Gone => {}
            }
            peaks = (peaks.0.max(now.0), peaks.1.max(now.1));
        }
        peaks
    }
}

/// A device in memory whose requests wait until the test opens a gate. Each write increases the
/// count `interruptions` of the device, and makes the device larger by a block.
struct Gated {
    memory: MemoryDevice,
    geometries: Box<[Geometry]>,
    is_open: Cell<bool>,
    opened: Event,
    writes: Cell<u64>,
    journal: Journal,
}

/// Number of writes after which the device stops growing.
const GROWTHS: usize = 16;

impl Gated {
    fn new(rt: &Rt, journal: Journal) -> Gated {
        let sizes = (0..=GROWTHS as u64).map(|blocks| 64 * MIB + blocks * BLOCK);
        Gated {
            memory: MemoryDevice::new(rt, 65 * MIB),
            geometries: sizes.map(Geometry::of_size).collect(),
            is_open: Cell::new(false),
            opened: Event::new(),
            writes: Cell::new(0),
            journal,
        }
    }

    async fn run(&self, request: Request) -> IoResult {
        let (op, offset, len) = (request.op, request.offset, request.len);
        self.journal.note(Happened::Came(op, offset, len));
        assert!(op != Op::Read || offset != TRAP, "the trap of the test");
        self.opened.until(|| self.is_open.get()).await;
        let result = self.memory.submit(request).await;
        if op == Op::Write {
            self.writes.set(self.writes.get() + 1);
        }
        self.journal.note(Happened::Done(op, offset, len));
        result
    }
}

impl Device for Gated {
    fn geometry(&self) -> &Geometry {
        &self.geometries[(self.writes.get() as usize).min(GROWTHS)]
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(self.run(request))
    }

    fn interruptions(&self) -> Option<u64> {
        Some(self.writes.get())
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        out.statistic("", "writes", Statistic::Counter(self.writes.get()));
    }
}

/// The device on the thread of a shard, with the journal of its events.
struct Tree {
    top: Rc<Gated>,
    journal: Journal,
}

impl Subtree for Tree {
    fn top(&self) -> Rc<dyn Device> {
        Rc::clone(&self.top) as Rc<dyn Device>
    }

    fn look(&self) -> Vec<Seen> {
        let mut statistics = Vec::new();
        self.top.statistics(&mut statistics);
        vec![Seen {
            name: "gated".to_owned(),
            kind: "memory",
            children: Vec::new(),
            size_bytes: self.top.geometry().size_bytes,
            statistics,
        }]
    }

    fn accept_loss(&self, _name: &str) {}

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.journal.note(Happened::Closed);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.journal.note(Happened::Gone);
    }
}

/// A shard over a gated device, the sender that opens the gate, and the journal of the events.
struct Rig {
    shard: Rc<dyn Device>,
    gate: Sender<()>,
    journal: Journal,
}

impl Rig {
    async fn new(rt: &Rt) -> Rig {
        let (gate, opening) = mailbox().unwrap();
        let journal = Journal::default();
        let noted = journal.clone();
        let open = async move |rt: &Rt| open_tree(rt, opening, noted);
        let shard = Shard::start(rt, "test", open).await.unwrap();
        Rig {
            shard: Rc::new(shard),
            gate,
            journal,
        }
    }

    /// Creates a rig whose gate is open from the start.
    async fn open(rt: &Rt) -> Rig {
        let rig = Rig::new(rt).await;
        rig.open_gate();
        rig
    }

    fn open_gate(&self) {
        self.gate.send(()).unwrap();
    }

    /// Waits until the events on the shard's thread satisfy a condition; other tasks run meanwhile.
    async fn until(&self, holds: impl Fn(&[Happened]) -> bool) {
        while !holds(&self.journal.events()) {
            bimetal_rt::yield_now().await;
        }
    }
}

fn open_tree(rt: &Rt, gate: Receiver<()>, journal: Journal) -> Result<Tree, OpenError> {
    let top = Rc::new(Gated::new(rt, journal.clone()));
    let gated = Rc::clone(&top);
    let mut gate = gate.listen(rt).unwrap();
    rt.spawn(async move {
        while gate.next().await.is_some() {
            gated.is_open.set(true);
            gated.opened.notify();
        }
    })
    .detach();
    Ok(Tree { top, journal })
}

fn came(events: &[Happened]) -> Vec<(Op, u64)> {
    let came = events.iter().filter_map(|event| match event {
        Happened::Came(op, offset, _) => Some((*op, *offset)),
        Happened::Done(..) | Happened::Closed | Happened::Gone => None,
    });
    came.collect()
}

#[test]
fn requests_beyond_the_bound_wait_on_this_side() {
    let rt = real_rt();
    rt.block_on(async {
        let rig = Rig::new(&rt).await;
        let count = REQUESTS_MAX + 200;
        let reads = (0..count).map(|at| rig.shard.submit(Request::read(at * BLOCK, BLOCK)));
        let reads = join_all(reads);
        let gate = async {
            rig.until(|events| came(events).len() as u64 == REQUESTS_MAX)
                .await;
            assert_eq!(
                statistic(&rig.shard, "in_flight_requests"),
                REQUESTS_MAX as f64
            );
            assert_eq!(statistic(&rig.shard, "waited_for_a_tag"), 200.0);
            rig.open_gate();
        };
        let (answers, ()) = futures_util::future::join(reads, gate).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(rig.journal.peaks().0, REQUESTS_MAX);
        let expected: Vec<(Op, u64)> = (0..count).map(|at| (Op::Read, at * BLOCK)).collect();
        assert_eq!(
            came(&rig.journal.events()),
            expected,
            "in the order of arrival"
        );
        assert_eq!(statistic(&rig.shard, "in_flight_bytes"), 0.0);
        rig.shard.close().await.unwrap();
    });
}

#[test]
fn bytes_beyond_the_bound_wait_on_this_side() {
    let rt = real_rt();
    rt.block_on(async {
        let rig = Rig::new(&rt).await;
        let fitting = BYTES_MAX / MIB;
        let writes = (0..fitting + 8).map(|at| {
            let write = write(&rt, at * MIB, MIB as usize, at as u8);
            rig.shard.submit(write)
        });
        let writes = join_all(writes);
        let gate = async {
            rig.until(|events| came(events).len() as u64 == fitting)
                .await;
            rig.open_gate();
        };
        let (answers, ()) = futures_util::future::join(writes, gate).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(rig.journal.peaks().1, BYTES_MAX);
        // The longest permitted transfer is as long as the limit on bytes in flight. A longer
        // transfer is refused.
        let longest = rig.shard.submit(Request::read(0, BYTES_MAX)).await;
        assert_eq!(longest.unwrap().into_data().len() as u64, BYTES_MAX);
        let longer = rig.shard.submit(Request::read(0, BYTES_MAX + BLOCK)).await;
        assert_eq!(longer.unwrap_err(), IoError::Resource);
        for at in 0..fitting + 8 {
            assert_eq!(byte_of(&rig.shard, at * MIB).await, at as u8);
        }
        rig.shard.close().await.unwrap();
    });
}

#[test]
fn a_flush_comes_after_every_write_that_was_answered() {
    let rt = real_rt();
    rt.block_on(async {
        let rig = Rig::open(&rt).await;
        for round in 0..50_u64 {
            let at = |block: u64| (round * 8 + block) * BLOCK;
            let writes = (0..8).map(|block| {
                let write = write(&rt, at(block), BLOCK as usize, 1);
                rig.shard.submit(write)
            });
            assert!(join_all(writes).await.iter().all(Result::is_ok));
            rig.shard.submit(Request::flush()).await.unwrap();
        }
        let events = rig.journal.events();
        let (mut done, mut flushes) = (0, 0);
        for event in events {
            match event {
                Happened::Done(Op::Write, ..) => done += 1,
                Happened::Came(Op::Flush, ..) => {
                    flushes += 1;
                    assert_eq!(done, 8 * flushes, "of the flush {flushes}");
                }
                _ => {}
            }
        }
        assert_eq!(flushes, 50);
        rig.shard.close().await.unwrap();
    });
}

#[test]
fn what_an_answer_depends_on_is_known_before_it() {
    let rt = real_rt();
    rt.block_on(async {
        let rig = Rig::open(&rt).await;
        assert_eq!(rig.shard.interruptions(), Some(0));
        assert_eq!(rig.shard.geometry().size_bytes, 64 * MIB);
        for count in 1..=GROWTHS as u64 {
            let write = write(&rt, 0, BLOCK as usize, 1);
            rig.shard.submit(write).await.unwrap();
            assert_eq!(rig.shard.interruptions(), Some(count));
            let grown = 64 * MIB + count * BLOCK;
            assert_eq!(rig.shard.geometry().size_bytes, grown);
            // The block by which the write has enlarged the device must be readable immediately.
            let last = Request::read(grown - BLOCK, BLOCK);
            rig.shard.submit(last).await.unwrap();
        }
        rig.shard.close().await.unwrap();
    });
}

#[test]
fn what_was_asked_of_a_thread_that_dies_fails() {
    let rt = real_rt();
    rt.block_on(async {
        let rig = Rig::new(&rt).await;
        let count = REQUESTS_MAX + 20;
        let mut asked: Vec<Request> = (0..count)
            .map(|at| Request::read(at * BLOCK, BLOCK))
            .collect();
        // One of the requests makes the thread panic. At that time every other request either waits
        // on the thread, for the gate, or still waits for a permit to be sent to the thread.
        asked[REQUESTS_MAX as usize - 1] = Request::read(TRAP, BLOCK);
        let answers = join_all(asked.into_iter().map(|request| rig.shard.submit(request))).await;
        assert_eq!(answers.len() as u64, count);
        for answer in answers {
            assert_eq!(answer.unwrap_err(), IoError::Offline);
        }
        for request in [Request::read(0, BLOCK), Request::flush()] {
            let answer = rig.shard.submit(request).await;
            assert_eq!(answer.unwrap_err(), IoError::Offline);
        }
        let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
        rig.shard.statistics(&mut statistics);
        let health = statistics.into_iter().find(|(_, name, _)| name == "health");
        assert_eq!(health.unwrap().2, Statistic::State("failed".to_owned()));
        assert_eq!(statistic(&rig.shard, "in_flight_requests"), 0.0);
        assert_eq!(rig.shard.close().await, Err(IoError::Offline));
        // The thread has freed its resources.
        rig.until(|events| events.contains(&Happened::Gone)).await;
        assert!(!rig.journal.events().contains(&Happened::Closed));
    });
}

#[test]
fn closing_waits_for_what_is_there_and_takes_no_more() {
    let rt = real_rt();
    rt.block_on(async {
        let rig = Rig::new(&rt).await;
        let count = REQUESTS_MAX + 50;
        let writes = (0..count).map(|at| {
            let write = write(&rt, at * BLOCK, BLOCK as usize, at as u8);
            rig.shard.submit(write)
        });
        let writes = join_all(writes);
        let close = async {
            rig.until(|events| !events.is_empty()).await;
            let mut close = rig.shard.close();
            let pending = std::future::poll_fn(|context| {
                std::task::Poll::Ready(close.as_mut().poll(context).is_pending())
            });
            assert!(pending.await);
            let late = rig.shard.submit(Request::read(0, BLOCK)).await;
            assert_eq!(late.unwrap_err(), IoError::Closed);
            assert!(!rig.journal.events().contains(&Happened::Closed));
            rig.open_gate();
            close.await
        };
        let (answers, closed) = futures_util::future::join(writes, close).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(closed, Ok(()));
        let events = rig.journal.events();
        let done = events.iter().filter(|e| matches!(e, Happened::Done(..)));
        assert_eq!(done.count() as u64, count);
        assert!(events.ends_with(&[Happened::Closed, Happened::Gone]));
        assert_eq!(rig.shard.close().await, Ok(()), "once more");
        let late = rig.shard.submit(Request::flush()).await;
        assert_eq!(late.unwrap_err(), IoError::Closed);
    });
    assert_eq!((rt.live_tasks(), rt.operations_in_flight()), (0, 0));
}

#[test]
fn a_dropped_request_goes_on_and_keeps_its_room_until_it_is_done() {
    let rt = real_rt();
    rt.block_on(async {
        let rig = Rig::new(&rt).await;
        let mut dropped = rig.shard.submit(write(&rt, 0, BLOCK as usize, 7));
        assert!(starts(&mut dropped).await);
        drop(dropped);
        assert_eq!(statistic(&rig.shard, "in_flight_bytes"), BLOCK as f64);
        // A request that waits because of the limit on bytes in flight has not been sent to the
        // thread, so dropping it has no effect.
        let long = Request::read(0, BYTES_MAX);
        let mut waiting = rig.shard.submit(long);
        assert!(starts(&mut waiting).await);
        drop(waiting);
        rig.open_gate();
        assert_eq!(byte_of(&rig.shard, BLOCK).await, 0);
        // Replies arrive in the order in which the thread sent them. The reply to this read has
        // arrived, so the reply to the dropped write has arrived too.
        assert_eq!(statistic(&rig.shard, "in_flight_requests"), 0.0);
        assert_eq!(byte_of(&rig.shard, 0).await, 7);
        rig.shard.close().await.unwrap();
        let reads = came(&rig.journal.events());
        let expected = [(Op::Write, 0), (Op::Read, BLOCK), (Op::Read, 0)];
        assert_eq!(reads, expected);
    });
}

#[test]
fn a_shard_that_is_dropped_closes_what_is_below() {
    let rt = real_rt();
    let journal = rt.block_on(async {
        let rig = Rig::open(&rt).await;
        rig.shard.submit(Request::flush()).await.unwrap();
        let journal = rig.journal.clone();
        drop(rig);
        journal
    });
    while !journal
        .events()
        .ends_with(&[Happened::Closed, Happened::Gone])
    {
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_that_cannot_open_says_why() {
    let rt = real_rt();
    rt.block_on(async {
        let refuses = async |_: &Rt| Err::<Tree, _>(OpenError::new("unplugged").of("disk"));
        let refused = Shard::start(&rt, "test", refuses).await.err().unwrap();
        assert_eq!(refused.to_string(), "device disk: unplugged");
        let dies = async |_: &Rt| -> Result<Tree, OpenError> { panic!("the trap of the test") };
        let died = Shard::start(&rt, "test", dies).await.err().unwrap();
        assert!(died.to_string().contains("died"), "{died}");
    });
    assert_eq!((rt.live_tasks(), rt.operations_in_flight()), (0, 0));
}

/// A file for a device on the thread of a shard. The file is removed when the value is dropped.
struct Image(PathBuf);

impl Image {
    fn new(name: &str) -> Image {
        let path =
            std::env::temp_dir().join(format!("bimetal-shard-{}-{name}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(16 * MIB).unwrap();
        Image(path)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Buffers that are passed to another thread are aligned for direct I/O, and the data must be in
/// the files when the stack has been closed.
#[test]
fn files_are_written_by_the_threads_of_a_stripe() {
    let images = ["a", "b"].map(Image::new);
    let [a, b] = images.each_ref().map(|image| image.0.display());
    let text = format!(
        "[device.a]\ntype = 'file'\npath = '{a}'\n[device.b]\ntype = 'file'\npath = '{b}'\n\
         [device.s]\ntype = 'shard'\nbelow = 'a'\n[device.t]\ntype = 'shard'\nbelow = 'b'\n\
         [device.top]\ntype = 'stripe'\ndevices = ['s', 't']\nunit = '64KiB'\n"
    );
    let rt = real_rt();
    rt.block_on(async {
        let (stack, top) = open(&rt, &text).await;
        assert_eq!(top.geometry().size_bytes, 32 * MIB);
        let writes = (0..32).map(|at| {
            let write = write(&rt, at * MIB, MIB as usize, 1 + at as u8);
            top.submit(write)
        });
        assert!(join_all(writes).await.iter().all(Result::is_ok));
        for at in 0..32 {
            assert_eq!(byte_of(&top, at * MIB + MIB / 2).await, 1 + at as u8);
        }
        assert!(stack.get("a").is_none(), "it is on another thread");
        let names: Vec<String> = stack.beyond().into_iter().map(|seen| seen.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(stack.shard_of("b").as_deref(), Some("t"));
        stack.close().await.unwrap();
    });
    let content = images
        .each_ref()
        .map(|image| std::fs::read(&image.0).unwrap());
    // The volume is striped in units of 64 KiB: unit k is unit k / 2 of file k % 2. Each 16 units
    // (1 MiB) have the same byte.
    for unit in 0..512 {
        let expected = 1 + (unit / 16) as u8;
        let start = unit / 2 * (64 << 10);
        let bytes = &content[unit % 2][start..start + (64 << 10)];
        assert!(bytes.iter().all(|byte| *byte == expected), "unit {unit}");
    }
}

/// Waits until a statistic of the cache `c`, which runs on another thread, has the value `wanted`.
async fn until_statistic(stack: &Stack, name: &str, wanted: Statistic) {
    let is_wanted = |statistics: Vec<(String, String, Statistic)>| {
        let found = statistics.into_iter().find(|(_, n, _)| n == name);
        found.expect("a cache has this figure").2 == wanted
    };
    while !is_wanted(stack.cache_statistics("c").unwrap()) {
        bimetal_rt::yield_now().await;
    }
}

/// After a cache has lost data, flushes fail until the operator accepts the loss. The operator must
/// also be able to accept the loss of a cache that runs on the thread of a shard.
#[test]
fn a_cache_on_a_shard_is_told_that_its_loss_is_known() {
    // Every second flush of the device below fails.
    let text = "[device.m]\ntype = 'memory'\nsize = '4MiB'\n\
                [device.e]\ntype = 'error'\nbelow = 'm'\ncode = 'medium'\nops = ['flush']\nnth = 2\n\
                [device.c]\ntype = 'cache'\nbelow = 'e'\nsize = '256KiB'\npolicy = 'lru'\ndirty_age = '1ms'\n\
                [device.top]\ntype = 'shard'\nbelow = 'c'\n";
    let rt = real_rt();
    rt.block_on(async {
        let (stack, top) = open(&rt, text).await;
        assert!(stack.cache("c").is_none(), "it is on another thread");
        assert_eq!(stack.accept_loss("m"), None, "it is no cache");
        assert_eq!(stack.accept_loss("c"), Some(false), "nothing was lost");
        top.submit(Request::flush()).await.unwrap();
        let block = BLOCK as usize;
        top.submit(write(&rt, 0, block, 3)).await.unwrap();
        until_statistic(&stack, "unflushed_bytes", Statistic::Gauge(BLOCK as f64)).await;
        until_statistic(&stack, "no_side_bytes", Statistic::Gauge(0.0)).await;
        for page in 100..250 {
            top.submit(Request::read(page * BLOCK, BLOCK))
                .await
                .unwrap();
        }
        for _ in 0..5 {
            assert!(top.submit(Request::flush()).await.is_err());
        }
        until_statistic(&stack, "health", Statistic::State("lost data".to_owned())).await;
        assert_eq!(stack.accept_loss("c"), Some(true));
        // The device fails every second flush, so one of these two flushes succeeds.
        let first = top.submit(Request::flush()).await;
        let second = top.submit(Request::flush()).await;
        assert!(first.is_ok() || second.is_ok());
        until_statistic(&stack, "health", Statistic::State("healthy".to_owned())).await;
        // Closing the stack flushes too. This flush may be one that fails, so the result is
        // ignored.
        let _ = stack.close().await;
    });
}

#[test]
fn what_cannot_be_on_the_thread_of_a_shard_is_refused() {
    let media = "[device.a]\ntype = 'memory'\nsize = '64MiB'\n\
                 [device.b]\ntype = 'memory'\nsize = '64MiB'\n";
    let mirror = "[device.m]\ntype = 'mirror'\nsides = ['a', 'b']\n\
                  [device.q]\ntype = 'queue'\nbelow = 'm'\n\
                  [device.top]\ntype = 'shard'\nbelow = 'q'\n";
    let adopted = "[device.m]\ntype = 'adopted'\ndata = 'a'\nmetadata = 'b'\n\
                   [device.top]\ntype = 'shard'\nbelow = 'm'\n";
    let shared = "[device.c]\ntype = 'memory'\nsize = '1MiB'\nshared = true\n\
                  [device.s]\ntype = 'shard'\nbelow = 'c'\n\
                  [device.top]\ntype = 'stripe'\ndevices = ['s', 'c']\n";
    let two = "[device.c]\ntype = 'memory'\nsize = '1MiB'\nshared = true\n\
               [device.s]\ntype = 'shard'\nbelow = 'c'\n\
               [device.top]\ntype = 'shard'\nbelow = 'c'\n";
    for (text, words) in [
        (mirror, ["device `m`", "a mirror is operated"]),
        (adopted, ["device `m`", "adopted disk"]),
        (shared, ["device `c`", "`top` cannot use it"]),
        (two, ["device `c`", "the shard `s`"]),
        ("[device.top]\ntype = 'shard'\n", ["test.toml", "below"]),
        (
            "[device.top]\ntype = 'shard'\nbelow = 'a'\ndepth = 3\n",
            ["test.toml", "depth"],
        ),
    ] {
        let why = refusal(&format!("{media}{text}"));
        let is_said = words.iter().all(|word| why.contains(word));
        assert!(is_said && !why.contains('\n'), "{why}");
    }
    // Parents on the same thread may share a device.
    let inside = "[device.c]\ntype = 'memory'\nsize = '1MiB'\nshared = true\n\
                  [device.p]\ntype = 'passthrough'\nbelow = 'c'\n\
                  [device.s]\ntype = 'stripe'\ndevices = ['p', 'c']\n\
                  [device.top]\ntype = 'shard'\nbelow = 's'\n";
    let rt = real_rt();
    rt.block_on(async {
        let (stack, top) = open(&rt, inside).await;
        let cleared = Request::without_data(Op::WriteZeroes, 0, MIB, Flags::NONE);
        top.submit(cleared).await.unwrap();
        stack.close().await.unwrap();
    });
}

#[test]
fn a_device_is_not_opened_on_two_threads() {
    let text = "[device.a]\ntype = 'memory'\nsize = '1MiB'\n\
                [device.top]\ntype = 'shard'\nbelow = 'a'\n";
    let graph = read_graph(std::path::Path::new("test.toml"), text).unwrap();
    let rt = real_rt();
    rt.block_on(async {
        let options = OpenOptions::default();
        let both = Stack::open(&rt, &graph, &["top", "a"], &options).await;
        let why = both.err().unwrap().to_string();
        assert!(
            why.contains("device a: is on the thread of the shard `top`"),
            "{why}"
        );
        // This stack does not contain the shard `top`, so `a` is opened as an ordinary device.
        let alone = Stack::open(&rt, &graph, &["a"], &options).await.unwrap();
        assert!(alone.get("a").is_some());
        alone.close().await.unwrap();
    });
}

/// A shard can be opened beside an open stack. This is needed when a side is added to an open
/// mirror.
#[test]
fn a_shard_is_opened_beside_what_is_open() {
    let text = "[device.a]\ntype = 'memory'\nsize = '1MiB'\n\
                [device.b]\ntype = 'memory'\nsize = '1MiB'\n\
                [device.s]\ntype = 'shard'\nbelow = 'a'\n\
                [device.new]\ntype = 'shard'\nbelow = 'b'\n";
    let graph = read_graph(std::path::Path::new("test.toml"), text).unwrap();
    let rt = real_rt();
    rt.block_on(async {
        let options = OpenOptions::default();
        let stack = Stack::open(&rt, &graph, &["s"], &options).await.unwrap();
        for used in ["s", "a"] {
            let why = stack
                .open_later(&rt, &graph, used, false)
                .await
                .err()
                .unwrap();
            assert!(why.to_string().contains("in use already"), "{why}");
        }
        for _twice in 0..2 {
            let new = stack.open_later(&rt, &graph, "new", false).await.unwrap();
            new.submit(write(&rt, 0, BLOCK as usize, 5)).await.unwrap();
            assert_eq!(byte_of(&new, 0).await, 5);
        }
        assert_eq!(stack.shard_of("b").as_deref(), Some("new"));
        let why = stack
            .open_later(&rt, &graph, "b", false)
            .await
            .err()
            .unwrap();
        assert!(
            why.to_string().contains("device b: is in use already"),
            "{why}"
        );
        stack.close().await.unwrap();
    });
    assert_eq!((rt.live_tasks(), rt.operations_in_flight()), (0, 0));
}
