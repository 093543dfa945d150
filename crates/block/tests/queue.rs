//! `type = "queue"`: merging and ordering of the requests to a device.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{refusal, starts, virtual_rt, write};
use bimetal_block::layers::queue::{QueueConfig, QueueLayer};
use bimetal_block::{
    Device, Flags, Geometry, IoError, IoFuture, IoResult, Op, Origin, Reply, Request, Statistic,
};
use bimetal_policy::scheduler::Priority;
use bimetal_rt::{Payload, Rt};
use futures_util::future::join_all;
use std::time::Duration;

const BLOCK: u64 = 4096;

/// A device that takes a millisecond for each request, records the order of its requests, and fails
/// requests that contain `bad_block`. A read returns the number of each block in all bytes of that
/// block.
struct Slow {
    rt: Rt,
    geometry: Geometry,
    asked: RefCell<Vec<(Op, u64, u64, bool)>>,
    bad_block: Option<u64>,
}

impl Slow {
    async fn serve(&self, request: Request) -> IoResult {
        let range = (request.offset / BLOCK, request.len / BLOCK);
        let asked = (request.op, range.0, range.1, request.flags.fua);
        self.asked.borrow_mut().push(asked);
        self.rt.sleep(Duration::from_millis(1)).await;
        let blocks = range.0..range.0 + range.1;
        if self.bad_block.is_some_and(|bad| blocks.contains(&bad)) {
            return Err(IoError::Medium);
        }
        match request.op {
            Op::Read => {
                let mut data = Payload::empty();
                blocks.for_each(|n| data.push(self.rt.pool().copy_of(&[n as u8; 4096])));
                Ok(Reply::Data(data))
            }
            Op::Write => {
                let bytes = request.payload.to_vec();
                for (block, bytes) in blocks.zip(bytes.chunks(4096)) {
                    assert!(
                        bytes.iter().all(|b| *b == block as u8),
                        "bytes of block {block}"
                    );
                }
                Ok(Reply::Done)
            }
            Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => Ok(Reply::Done),
        }
    }
}

impl Device for Slow {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(self.serve(request))
    }
}

fn over(rt: &Rt, config: &str, bad_block: Option<u64>) -> (Rc<Slow>, Rc<dyn Device>) {
    let slow = Rc::new(Slow {
        rt: rt.clone(),
        geometry: Geometry::of_size(256 * BLOCK),
        asked: RefCell::default(),
        bad_block,
    });
    let config: QueueConfig =
        toml::from_str(&format!("below = 'slow'\n{config}")).expect("a configuration");
    let below: Rc<dyn Device> = Rc::<Slow>::clone(&slow);
    let queue = QueueLayer::new(rt, below, &config).expect("it opens");
    (slow, Rc::new(queue))
}

fn read(block: u64, count: u64) -> Request {
    Request::read(block * BLOCK, count * BLOCK)
}

fn write_of(rt: &Rt, block: u64) -> Request {
    write(rt, block * BLOCK, 4096, block as u8)
}

fn counter(device: &Rc<dyn Device>, part: &str, name: &str) -> u64 {
    let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
    device.statistics(&mut statistics);
    let found = statistics.iter().find(|(p, n, _)| p == part && n == name);
    match found {
        Some((_, _, Statistic::Counter(count))) => *count,
        other => panic!("no counter {part} {name}: {other:?}"),
    }
}

/// Returns the first block and the number of blocks of each request that the device received, in
/// order.
fn asked(slow: &Slow) -> Vec<(u64, u64)> {
    let asked = slow.asked.borrow();
    asked
        .iter()
        .map(|(_, from, count, _)| (*from, *count))
        .collect()
}

/// While the device is busy with block 100, four adjacent reads arrive. The queue merges them into
/// one request, and each read gets its own bytes.
#[test]
fn what_meets_while_the_device_is_busy_is_one_request() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (slow, queue) = over(&rt, "scheduler = 'noop'\ndepth = 1", None);
        let requests = vec![
            read(100, 1),
            read(8, 1),
            read(9, 2),
            read(7, 1),
            read(11, 1),
        ];
        let answers = join_all(requests.into_iter().map(|r| queue.submit(r))).await;
        let firsts: Vec<u8> = answers
            .into_iter()
            .map(|answer| answer.expect("it reads").into_data().to_vec()[0])
            .collect();
        assert_eq!(firsts, [100, 8, 9, 7, 11]);
        assert_eq!(asked(&slow), [(100, 1), (7, 5)]);
        assert_eq!(counter(&queue, "read", "bios"), 5);
        assert_eq!(counter(&queue, "read", "back_merges"), 2);
        assert_eq!(counter(&queue, "read", "front_merges"), 1);
        assert_eq!(counter(&queue, "read", "issued_requests"), 2);
        queue.close().await.expect("it closes");
    });
}

/// The deadline scheduler begins with the oldest request and serves upwards (20, 60, 90), and then
/// returns to the lowest offset (3). The noop scheduler keeps the order of arrival.
#[test]
fn the_scheduler_decides_the_order() {
    for (scheduler, order) in [
        ("deadline", [50, 20, 60, 90, 3]),
        ("noop", [50, 20, 90, 3, 60]),
    ] {
        let rt = virtual_rt(1);
        rt.block_on(async {
            let config = format!("scheduler = '{scheduler}'\ndepth = 1");
            let (slow, queue) = over(&rt, &config, None);
            let writes = [50, 20, 90, 3, 60].map(|block| write_of(&rt, block));
            for answer in join_all(writes.map(|w| queue.submit(w))).await {
                answer.expect("it writes");
            }
            let found: Vec<u64> = asked(&slow).iter().map(|(from, _)| *from).collect();
            assert_eq!(found, order, "{scheduler}");
        });
    }
}

/// Four reads are merged, and one of their blocks is bad. Only the read of the bad block fails.
#[test]
fn a_bad_block_fails_nobody_else() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (slow, queue) = over(&rt, "scheduler = 'noop'\ndepth = 1", Some(6));
        let reads = [100, 4, 5, 6, 7].map(|block| queue.submit(read(block, 1)));
        let answers = join_all(reads).await;
        let wrong: Vec<bool> = answers.iter().map(IoResult::is_err).collect();
        assert_eq!(wrong, [false, false, false, true, false]);
        assert_eq!(
            asked(&slow),
            [(100, 1), (4, 4), (4, 1), (5, 1), (6, 1), (7, 1)]
        );
    });
}

/// If one of the writes in a merged write has FUA, the whole merged write has FUA. A flush does not
/// wait for requests that have not completed.
#[test]
fn fua_holds_for_the_whole_and_a_flush_passes() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (slow, queue) = over(&rt, "scheduler = 'noop'\ndepth = 1", None);
        let mut fua = write_of(&rt, 11);
        fua.flags = Flags::FUA;
        let requests = vec![write_of(&rt, 50), write_of(&rt, 10), fua, Request::flush()];
        let all = join_all(requests.into_iter().map(|r| queue.submit(r))).await;
        assert!(all.iter().all(IoResult::is_ok));
        let asked = slow.asked.borrow();
        let expected = [
            (Op::Write, 50, 1, false),
            (Op::Flush, 0, 0, false),
            (Op::Write, 10, 2, true),
        ];
        assert_eq!(*asked, expected);
    });
}

/// A read of 600 KiB is split into requests of 512 KiB and 88 KiB, which counts as one split. The
/// bytes of both are returned in order.
#[test]
fn what_is_too_long_is_split() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (slow, queue) = over(&rt, "", None);
        let data = queue
            .submit(read(0, 150))
            .await
            .expect("it reads")
            .into_data()
            .to_vec();
        assert!(
            data.chunks(4096)
                .enumerate()
                .all(|(n, bytes)| bytes == [n as u8; 4096])
        );
        assert_eq!(asked(&slow), [(0, 128), (128, 22)]);
        assert_eq!(counter(&queue, "read", "bios"), 1);
        assert_eq!(counter(&queue, "read", "splits"), 1);
    });
}

/// A plug holds the first write back for 3 ms, or until two writes wait. A read ends the plug.
#[test]
fn a_plug_waits_for_company_and_not_for_longer() {
    let config = "scheduler = 'noop'\nplug = { requests = 2, delay = '3ms' }";
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (_slow, queue) = over(&rt, config, None);
        let begun = rt.now();
        queue.submit(write_of(&rt, 1)).await.expect("it writes");
        assert_eq!(
            rt.now().ns_since(begun),
            4_000_000,
            "3 ms held, 1 ms written"
        );
        let begun = rt.now();
        let two = [write_of(&rt, 1), write_of(&rt, 9)].map(|w| queue.submit(w));
        assert!(join_all(two).await.iter().all(IoResult::is_ok));
        assert_eq!(rt.now().ns_since(begun), 1_000_000, "two begin at once");
        let begun = rt.now();
        let mixed = [write_of(&rt, 1), read(9, 1)].map(|r| queue.submit(r));
        assert!(join_all(mixed).await.iter().all(IoResult::is_ok));
        assert_eq!(
            rt.now().ns_since(begun),
            1_000_000,
            "somebody waits for a read"
        );
        queue.close().await.expect("it closes");
    });
}

/// Requests beyond the number of tags wait, and all requests complete.
#[test]
fn places_bound_what_is_here() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (slow, queue) = over(&rt, "tags = 2\ndepth = 1", None);
        let reads = (0..10).map(|n| queue.submit(read(n * 2, 1)));
        assert!(join_all(reads).await.iter().all(IoResult::is_ok));
        assert_eq!(slow.asked.borrow().len(), 10);
        assert_eq!(counter(&queue, "", "waited_for_a_tag"), 8);
    });
}

/// Requests are dropped while they wait, while they are a part of a merged request, and while they
/// are in flight. The remaining parts of the merged request complete, no tag is lost, and the layer
/// closes.
#[test]
fn what_is_dropped_takes_nobody_with_it() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (slow, queue) = over(&rt, "scheduler = 'noop'\ndepth = 1\ntags = 4", None);
        let mut under_way = queue.submit(read(100, 1));
        let mut starter = queue.submit(read(10, 1));
        let mut part = queue.submit(read(11, 1));
        let mut kept = queue.submit(read(12, 1));
        for request in [&mut under_way, &mut starter, &mut part, &mut kept] {
            assert!(starts(request).await);
        }
        drop((under_way, starter, part));
        let data = kept.await.expect("it reads").into_data().to_vec();
        assert_eq!(data, [12; 4096]);
        assert!(asked(&slow).contains(&(10, 3)), "{:?}", slow.asked);
        // All four tags are free again.
        let again = (0..4).map(|n| queue.submit(read(n * 2, 1)));
        assert!(join_all(again).await.iter().all(IoResult::is_ok));
        queue.close().await.expect("it closes");
    });
}

#[test]
fn what_cannot_work_is_refused_in_words() {
    let with = |line: &str| {
        let data = "[device.data]\ntype = 'memory'\nsize = '1MiB'\n";
        refusal(&format!(
            "{data}[device.top]\ntype = 'queue'\nbelow = 'data'\n{line}"
        ))
    };
    for (line, words) in [
        (
            "scheduler = 'elevator'",
            "no scheduler `elevator`, expected one of noop, deadline",
        ),
        (
            "parameters = { fifo_batch = '3' }",
            "parameter `fifo_batch`: a whole number is expected",
        ),
        (
            "scheduler = 'cfq'\nparameters = { fifo_batch = 3 }",
            "`cfq` has no parameter `fifo_batch`; it has quantum, fifo_expire_sync",
        ),
        (
            "parameters = { read_expire = 10 }",
            "parameter `read_expire`: a time is expected",
        ),
        ("depth = 0", "`depth` must be at least 1"),
        ("tags = 0", "`tags` must be 1 to 65536"),
        (
            "request_max = '1000B'",
            "`request_max` must be a multiple of 4 KiB",
        ),
        (
            "plug = { requests = 0 }",
            "`plug.requests` must be at least 1",
        ),
    ] {
        let refused = with(line);
        assert!(refused.contains(words), "{line}: {refused}");
    }
}

/// Two clients under CFQ with slices of 10 ms each send their next read as soon as the last one has
/// completed. A read takes 1 ms. The slice of the first client begins with its first completion, at
/// 1 ms, and ends at 11 ms with its 11th. Then the second client has its turn: its slice begins at
/// 12 ms and ends at 22 ms with its 11th completion. If both clients were one task, their reads
/// would be served in the order of arrival.
#[test]
fn two_clients_of_cfq_have_slices() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let config = "scheduler = 'cfq'\ndepth = 1\nparameters = { slice_sync = '10ms' }";
        let (slow, queue) = over(&rt, config, None);
        let client = |task: u32, first: u64| {
            let queue = Rc::clone(&queue);
            async move {
                for block in first..first + 33 {
                    let request = read(block, 1).from_origin(Origin::of_task(task));
                    queue.submit(request).await.expect("it reads");
                }
            }
        };
        join_all([client(1, 0), client(2, 100)]).await;
        let turns: Vec<(u64, usize)> = asked(&slow)
            .chunk_by(|a, b| (a.0 < 100) == (b.0 < 100))
            .map(|turn| (turn[0].0, turn.len()))
            .collect();
        let expected = [(0, 11), (100, 11), (11, 11), (111, 11), (22, 11), (122, 11)];
        assert_eq!(turns, expected);
        queue.close().await.expect("it closes");
    });
}

/// A request of the idle class is served only when no request of another class waits.
#[test]
fn the_priority_of_a_request_reaches_the_scheduler() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (slow, queue) = over(&rt, "scheduler = 'mq-deadline'\ndepth = 1", None);
        let of = |block, priority| {
            let origin = Origin { task: 1, priority };
            queue.submit(read(block, 1).from_origin(origin))
        };
        let all = [
            of(50, Priority::NORMAL),
            of(10, Priority::Idle),
            of(20, Priority::NORMAL),
            of(30, Priority::RealTime(0)),
        ];
        assert!(join_all(all).await.iter().all(IoResult::is_ok));
        assert_eq!(asked(&slow), [(50, 1), (30, 1), (20, 1), (10, 1)]);
    });
}
