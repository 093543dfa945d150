//! The buffer cache over a device that separates flushed from merely written data, has random
//! latencies, and fails on request. The device also checks that no two changes of a page are in
//! flight at the same time. The promises of the cache are numbered in `docs/layers/cache.md`.

use crate::common;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use crate::common::{refusal, statistic, virtual_rt};
use bimetal_block::layers::cache::{Cache, CacheConfig};
use bimetal_block::{Device, Flags, Geometry, IoError, IoFuture, Op, Reply, Request};
use bimetal_policy::replacement::{
    Access, Build, Evictions, Outcome, PageAddress, Replacement, Spec,
};
use bimetal_policy::replacement::{PageId, catalogue};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Payload, Rng, Rt};

const PAGE: u64 = 4096;
const PAGES: u64 = 400;

/// A device of pages. Each page is filled with one number, its stamp.
struct Platter {
    rt: Rt,
    geometry: Geometry,
    pages: RefCell<Vec<u64>>,
    durable: RefCell<Vec<u64>>,
    changing: RefCell<Vec<Range<u64>>>,
    rng: RefCell<Rng>,
    latency_us_max: Cell<u64>,
    failing: Cell<Option<IoError>>,
    failing_flushes: Cell<u32>,
    reads: Cell<u64>,
    writes: Cell<u64>,
    written_pages: Cell<u64>,
}

impl Platter {
    fn new(rt: &Rt) -> Rc<Platter> {
        Rc::new(Platter {
            rt: rt.clone(),
            geometry: Geometry::of_size(PAGES * PAGE),
            pages: vec![0; PAGES as usize].into(),
            durable: vec![0; PAGES as usize].into(),
            changing: RefCell::default(),
            rng: rt.rng("platter").into(),
            latency_us_max: Cell::new(0),
            failing: Cell::new(None),
            failing_flushes: Cell::new(0),
            reads: Cell::new(0),
            writes: Cell::new(0),
            written_pages: Cell::new(0),
        })
    }

    fn change(&self, request: &Request) {
        let first = request.offset / PAGE;
        for page in first..request.end() / PAGE {
            let stamp = match request.op {
                Op::Write => stamp_of(&request.payload, page - first),
                _ => 0,
            };
            self.pages.borrow_mut()[page as usize] = stamp;
            if request.flags.fua {
                self.durable.borrow_mut()[page as usize] = stamp;
            }
        }
    }

    async fn serve(&self, request: Request) -> Result<Reply, IoError> {
        let range = request.offset..request.end();
        if request.op.changes_content() {
            let clear = |other: &Range<u64>| other.end <= range.start || range.end <= other.start;
            assert!(
                self.changing.borrow().iter().all(clear),
                "two changes of one page are on their way together"
            );
            self.changing.borrow_mut().push(range.clone());
        }
        // A read returns the content at the time of its submission, although later changes may
        // complete before the read does.
        let found: Vec<u64> = match request.op {
            Op::Read => {
                let pages = (range.start / PAGE) as usize..(range.end / PAGE) as usize;
                self.pages.borrow()[pages].to_vec()
            }
            _ => Vec::new(),
        };
        let slow = if request.op == Op::Read { 8 } else { 1 };
        let most = self.latency_us_max.get() * slow;
        if most > 0 {
            let us = self.rng.borrow_mut().below(most);
            self.rt.sleep(Duration::from_micros(us)).await;
        }
        if request.op.changes_content() {
            self.changing.borrow_mut().retain(|other| *other != range);
        }
        if let Some(error) = self.failing.get()
            && request.op != Op::Read
        {
            return Err(error);
        }
        Ok(match request.op {
            Op::Read => {
                self.reads.set(self.reads.get() + 1);
                let mut data = Payload::empty();
                found
                    .iter()
                    .for_each(|stamp| data.append(content(&self.rt, *stamp)));
                Reply::Data(data)
            }
            Op::Flush if self.failing_flushes.get() > 0 => {
                self.failing_flushes.set(self.failing_flushes.get() - 1);
                // In the worst case of a failed flush, none of the unflushed writes becomes
                // durable, and the device returns the old content.
                let durable = self.durable.borrow().clone();
                *self.pages.borrow_mut() = durable;
                return Err(IoError::Medium);
            }
            Op::Flush => {
                *self.durable.borrow_mut() = self.pages.borrow().clone();
                Reply::Done
            }
            Op::Extents => Reply::Extents(vec![bimetal_block::Extent {
                len: request.len,
                data: false,
            }]),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                self.writes.set(self.writes.get() + 1);
                self.written_pages
                    .set(self.written_pages.get() + request.len / PAGE);
                self.change(&request);
                Reply::Done
            }
        })
    }
}

impl Device for Platter {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(self.serve(request))
    }
}

/// Returns the content of a page that is filled with one stamp.
fn content(rt: &Rt, stamp: u64) -> Payload {
    let mut buf = rt.pool().alloc_now(PAGE as usize);
    for word in buf.chunks_mut(8) {
        word.copy_from_slice(&stamp.to_le_bytes());
    }
    buf.freeze().into()
}

fn stamp_of(data: &Payload, page: u64) -> u64 {
    let from = (page * PAGE) as usize;
    let bytes = data.slice(from..from + PAGE as usize).to_vec();
    let mut words = bytes.chunks(8);
    let stamp = words.next().expect("a page has words");
    assert!(words.all(|word| word == stamp), "a page is of one write");
    u64::from_le_bytes(stamp.try_into().expect("eight bytes"))
}

fn write(rt: &Rt, pages: Range<u64>, stamp: u64) -> Request {
    let mut data = Payload::empty();
    for _ in pages.clone() {
        data.append(content(rt, stamp));
    }
    Request::write(pages.start * PAGE, data, Flags::NONE)
}

async fn read(device: &Rc<dyn Device>, pages: Range<u64>) -> Result<Vec<u64>, IoError> {
    let len = (pages.end - pages.start) * PAGE;
    let reply = device
        .submit(Request::read(pages.start * PAGE, len))
        .await?;
    let data = reply.into_data();
    Ok((0..pages.end - pages.start)
        .map(|page| stamp_of(&data, page))
        .collect())
}

/// Returns the configuration of a cache of `pages` pages; `more` holds additional lines.
fn config(pages: u64, more: &str) -> CacheConfig {
    let text = format!(
        "[device.disk]\ntype = \"null\"\nsize = \"1MiB\"\n[device.top]\ntype = \"cache\"\n\
         below = \"disk\"\nsize = \"{}KiB\"\n{more}",
        pages * 4
    );
    let graph = bimetal_block::graph::read_graph("test.toml".as_ref(), &text);
    let graph = graph.expect("the configuration is right");
    match graph.nodes().get("top") {
        Some(bimetal_block::graph::Node::Cache(config)) => config.clone(),
        other => panic!("not a cache: {other:?}"),
    }
}

fn cache(rt: &Rt, below: &Rc<Platter>, config: &CacheConfig) -> (Rc<Cache>, Rc<dyn Device>) {
    let below = Rc::clone(below) as Rc<dyn Device>;
    let cache = Rc::new(Cache::new(rt, below, config).expect("it opens"));
    let device = Rc::clone(&cache) as Rc<dyn Device>;
    (cache, device)
}

/// Configuration in which the age at which the cache destages a dirty page is longer than any test.
const LAZY: &str = "dirty_age = \"1000s\"\n";

#[test]
fn what_is_held_is_answered_at_once() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let platter = Platter::new(&rt);
        let (_, top) = cache(&rt, &platter, &config(128, LAZY));
        top.submit(write(&rt, 3..5, 7))
            .await
            .expect("memory takes it");
        assert_eq!(read(&top, 2..6).await, Ok(vec![0, 7, 7, 0]));
        let before = platter.reads.get();
        let mut held = top.submit(Request::read(2 * PAGE, 4 * PAGE));
        assert!(matches!(held, IoFuture::Ready(_)), "no task, no wait");
        assert!(!common::starts(&mut held).await);
        assert_eq!(platter.reads.get(), before);
        assert_eq!(platter.writes.get(), 0, "it is in memory only");
        assert_eq!(statistic(&top, "no_side_bytes"), 2.0 * 4096.0);
    });
}

/// Promise 2 in docs/layers/cache.md: a flush and FUA make data durable. In the mode
/// `write-through`, a write leaves no dirty page behind.
#[test]
fn a_flush_and_fua_make_durable() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        let platter = Platter::new(&rt);
        let (_, top) = cache(&rt, &platter, &config(128, LAZY));
        top.submit(write(&rt, 0..3, 1))
            .await
            .expect("memory takes it");
        let fua = Request {
            flags: Flags::FUA,
            ..write(&rt, 1..2, 2)
        };
        top.submit(fua).await.expect("it is written");
        assert_eq!(platter.durable.borrow()[..3], [0, 2, 0]);
        top.submit(Request::flush()).await.expect("it is flushed");
        assert_eq!(platter.durable.borrow()[..3], [1, 2, 1]);
        assert_eq!(
            platter.written_pages.get(),
            3,
            "page 1 had not to be written again"
        );
        assert_eq!(statistic(&top, "no_side_bytes"), 0.0);
        assert_eq!(statistic(&top, "unflushed_bytes"), 0.0);

        let through = config(128, "mode = \"write-through\"\n");
        let (_, top) = cache(&rt, &platter, &through);
        top.submit(write(&rt, 0..2, 3))
            .await
            .expect("it is written");
        assert_eq!(platter.pages.borrow()[..3], [3, 3, 1]);
        assert_eq!(statistic(&top, "no_side_bytes"), 0.0);
        let before = platter.reads.get();
        assert_eq!(read(&top, 0..2).await, Ok(vec![3, 3]));
        assert_eq!(platter.reads.get(), before, "what was written is held");
    });
}

/// Promise 3 of the cache: if writing back a page fails, no flush succeeds on any connection until
/// that page has been written.
#[test]
fn a_failed_write_below_fails_every_flush_until_it_is_written() {
    let rt = virtual_rt(3);
    rt.block_on(async {
        let platter = Platter::new(&rt);
        let (_, top) = cache(&rt, &platter, &config(128, LAZY));
        platter.failing.set(Some(IoError::Medium));
        top.submit(write(&rt, 10..12, 5))
            .await
            .expect("memory takes it");
        for _ in 0..3 {
            assert_eq!(
                top.submit(Request::flush()).await.err(),
                Some(IoError::Medium)
            );
        }
        assert_eq!(statistic(&top, "failed_bytes"), 2.0 * 4096.0);
        assert_eq!(read(&top, 10..12).await, Ok(vec![5, 5]), "it is held");
        // Once the limit of 32 unwritten pages is reached, writes fail immediately.
        let mut refused = None;
        for page in 20..80 {
            if let Err(error) = top.submit(write(&rt, page..page + 1, 6)).await {
                refused = refused.or(Some((page, error)));
            }
        }
        let (page, error) = refused.expect("the bound is full");
        assert!((40..=52).contains(&page), "{page}");
        assert_eq!(error, IoError::Medium);
        assert_eq!(read(&top, 100..101).await, Ok(vec![0]), "reads go on");
        platter.failing.set(None);
        top.submit(Request::flush()).await.expect("all is written");
        assert_eq!(platter.durable.borrow()[10..12], [5, 5]);
        assert_eq!(platter.durable.borrow()[20..40], [6; 20]);
        assert_eq!(statistic(&top, "failed_bytes"), 0.0);
    });
}

/// Promise 3 of the cache (see docs/layers/cache.md), while no client makes requests: failed pages
/// are retried, and a newer version of a page replaces the failed one.
#[test]
fn what_failed_is_tried_again_and_may_be_replaced() {
    let rt = virtual_rt(4);
    rt.block_on(async {
        let platter = Platter::new(&rt);
        let (_, top) = cache(&rt, &platter, &config(128, "dirty_age = \"100ms\"\n"));
        platter.failing.set(Some(IoError::NoSpace));
        top.submit(write(&rt, 10..12, 5))
            .await
            .expect("memory takes it");
        rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(statistic(&top, "failed_bytes"), 2.0 * 4096.0);
        top.submit(write(&rt, 10..11, 6))
            .await
            .expect("memory takes it");
        platter.failing.set(None);
        rt.sleep(Duration::from_secs(3)).await;
        assert_eq!(statistic(&top, "no_side_bytes"), 0.0);
        assert_eq!(platter.pages.borrow()[10..12], [6, 5]);
    });
}

/// Promise 4 of the cache: data that a failed flush has lost are written again or reported as lost.
/// On a failed flush, the device of this test loses all data that no earlier flush has covered.
#[test]
fn what_a_failed_flush_has_lost_is_written_again_or_reported_for_ever() {
    let rt = virtual_rt(5);
    rt.block_on(async {
        let platter = Platter::new(&rt);
        let (cache, top) = cache(&rt, &platter, &config(64, "policy = \"lru\"\n"));
        top.submit(write(&rt, 0..4, 1))
            .await
            .expect("memory takes it");
        platter.failing_flushes.set(1);
        assert_eq!(
            top.submit(Request::flush()).await.err(),
            Some(IoError::Medium)
        );
        assert_eq!(
            platter.pages.borrow()[..4],
            [0; 4],
            "the device has forgotten it"
        );
        rt.sleep(Duration::from_secs(3)).await;
        top.submit(Request::flush())
            .await
            .expect("it was written again");
        assert_eq!(platter.durable.borrow()[..4], [1; 4]);

        // The pages are written back, and reads of other pages evict them from the cache. Then a
        // flush fails. The cache cannot write the pages again, because their content is no longer
        // in the cache.
        top.submit(write(&rt, 0..4, 2))
            .await
            .expect("memory takes it");
        rt.sleep(Duration::from_secs(10)).await;
        assert_eq!(platter.pages.borrow()[..4], [2; 4]);
        for page in 100..250 {
            read(&top, page..page + 1).await.expect("it reads");
        }
        platter.failing_flushes.set(1);
        for _ in 0..3 {
            assert_eq!(
                top.submit(Request::flush()).await.err(),
                Some(IoError::Medium)
            );
        }
        assert!(cache.accept_loss());
        top.submit(Request::flush())
            .await
            .expect("the loss is known");
        assert!(!cache.accept_loss());
    });
}

/// Promise 5 of the cache: as long as the device accepts writes, the data that are only in memory
/// are bounded in size and in age.
#[test]
fn what_is_in_memory_only_is_bounded_in_bytes_and_in_time() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let platter = Platter::new(&rt);
        let bounded = config(
            256,
            "dirty = \"80KiB\"\ndirty_age = \"2s\"\ncluster = \"16KiB\"\n",
        );
        let (_, top) = cache(&rt, &platter, &bounded);
        platter.latency_us_max.set(500);
        for page in 0..PAGES {
            let at = page * 7 % PAGES;
            top.submit(write(&rt, at..at + 1, page + 1))
                .await
                .expect("it is taken");
            let dirty = statistic(&top, "no_side_bytes");
            assert!(dirty <= 80.0 * 1024.0, "{dirty}");
        }
        rt.sleep(Duration::from_millis(2_500)).await;
        assert_eq!(statistic(&top, "no_side_bytes"), 0.0);
    });
}

/// Runs all operations concurrently under every policy, and drops requests in flight. Each page
/// must read as its last write, and must have the same content on the device after a flush. No two
/// clients write the same page, so the last write is known.
#[test]
fn random_clients_read_what_they_wrote_under_every_policy() {
    let names = catalogue()
        .map(|(name, _)| name)
        .filter(|name| *name != "belady");
    let pairs = [
        "abm-lru-clc",
        "abm-arc-fab",
        "abm-lirs-clc",
        "abm-s3fifo-lru:4-marginal",
        "abm-s3fifo-clc+pad-marginal",
        "abm-clockpro-best:1-marginal",
        "abm-clockpro-best+pad-marginal",
    ];
    for (seed, name) in names.chain(pairs).enumerate() {
        for (mode, ahead) in [("write-back", "32KiB"), ("write-through", "0B")] {
            let rt = virtual_rt(seed as u64);
            let more = format!(
                "policy = \"{name}\"\nmode = \"{mode}\"\ncluster = \"32KiB\"\nread_ahead = \"{ahead}\"\n"
            );
            let platter = Platter::new(&rt);
            platter.latency_us_max.set(800);
            let (_, top) = cache(&rt, &platter, &config(64, &more));
            rt.block_on(async {
                let group = TaskGroup::new(&rt);
                let truth = Rc::new(RefCell::new(vec![0; PAGES as usize]));
                for client in 0..8 {
                    let (rt, top, truth) = (rt.clone(), Rc::clone(&top), Rc::clone(&truth));
                    group.spawn(async move { live(&rt, &top, client, &truth).await });
                }
                for reader in 0..2 {
                    let (rt, top) = (rt.clone(), Rc::clone(&top));
                    group.spawn(async move { look_on(&rt, &top, reader).await });
                }
                let (walker, walked) = (rt.clone(), Rc::clone(&top));
                group.spawn(async move { walk(&walker, &walked).await });
                group.join().await;
                assert_eq!(statistic(&top, "read_ahead_pages") > 0.0, ahead != "0B");
                top.submit(Request::flush()).await.expect("it is flushed");
                assert_eq!(*platter.durable.borrow(), *truth.borrow(), "{name} {mode}");
                let all = read(&top, 0..PAGES).await;
                assert_eq!(all, Ok(truth.borrow().clone()), "{name} {mode}");
                top.close().await.expect("it closes");
            });
        }
    }
}

/// Runs a client. The pages are divided into runs of five, and the client uses only every eighth
/// run. `truth` holds the last stamp of each page.
async fn live(rt: &Rt, top: &Rc<dyn Device>, client: u64, truth: &RefCell<Vec<u64>>) {
    let mut rng = rt.rng(&format!("client {client}"));
    for step in 0..120 {
        let first = (rng.below(PAGES / 40) * 8 + client) * 5;
        let pages = first..first + 1 + rng.below(5);
        let range = pages.start as usize..pages.end as usize;
        let stamp = (client << 32) | (step + 1);
        match rng.below(10) {
            0..4 => {
                let expected = truth.borrow()[range].to_vec();
                assert_eq!(read(top, pages).await, Ok(expected));
            }
            4..8 => {
                let fua = rng.below(6) == 0;
                let flags = if fua { Flags::FUA } else { Flags::NONE };
                let request = Request {
                    flags,
                    ..write(rt, pages, stamp)
                };
                top.submit(request).await.expect("it is taken");
                truth.borrow_mut()[range].fill(stamp);
            }
            8 => {
                let (offset, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
                let op = if rng.below(2) == 0 {
                    Op::Discard
                } else {
                    Op::WriteZeroes
                };
                let request = Request::without_data(op, offset, len, Flags::NONE);
                top.submit(request).await.expect("it is done");
                truth.borrow_mut()[range].fill(0);
            }
            _ => leave(rt, top, pages, &mut rng).await,
        }
    }
}

/// Reads pages that clients change at the same time. If such a read brings old content into the
/// cache, this content must not outlive the change; otherwise the client that owns the page would
/// find it.
async fn look_on(rt: &Rt, top: &Rc<dyn Device>, reader: u64) {
    let mut rng = rt.rng(&format!("reader {reader}"));
    for _ in 0..200 {
        let first = rng.below(PAGES - 8);
        let read = read(top, first..first + 1 + rng.below(8)).await;
        read.expect("the device can be read");
    }
}

/// Reads the whole device sequentially. This makes the cache read pages ahead while other clients
/// change these pages.
async fn walk(rt: &Rt, top: &Rc<dyn Device>) {
    let mut rng = rt.rng("walker");
    for _ in 0..3 {
        let mut at = 0;
        while at < PAGES {
            let end = PAGES.min(at + 1 + rng.below(3));
            let read = read(top, at..end).await;
            read.expect("the device can be read");
            at = end;
        }
    }
}

/// Submits a read or a flush, and drops it after a random time.
async fn leave(rt: &Rt, top: &Rc<dyn Device>, pages: Range<u64>, rng: &mut Rng) {
    let request = match rng.below(2) {
        0 => Request::flush(),
        _ => Request::read(pages.start * PAGE, (pages.end - pages.start) * PAGE),
    };
    let patience = Duration::from_micros(rng.below(600));
    let _ = rt.timeout(patience, top.submit(request)).await;
}

/// A client reads page by page from the start of the device. It waits for page 0, which is the only
/// miss. The cache reads ahead windows of 3 (4 with page 0), 8, 16 and 32 pages. It starts to read
/// each later window when the client reaches the previous window. The device gets no other reads.
#[test]
fn what_comes_next_is_read_ahead() {
    let rt = virtual_rt(21);
    rt.block_on(async {
        let platter = Platter::new(&rt);
        platter.latency_us_max.set(50);
        let more = format!("{LAZY}read_ahead = \"128KiB\"\n");
        let (_, top) = cache(&rt, &platter, &config(256, &more));
        for (page, stamp) in platter.pages.borrow_mut().iter_mut().enumerate() {
            *stamp = page as u64;
        }
        for page in 0..12 {
            assert_eq!(read(&top, page..page + 1).await, Ok(vec![page]));
        }
        // By now the cache has read page 0 for the client, and the pages 1..4, 4..12 and 12..28
        // ahead of the client. It started to read 12..28 when the client read page 4.
        assert_eq!(statistic(&top, "read_ahead_pages"), 27.0);
        assert_eq!(statistic(&top, "read_misses"), 1.0);
        for page in 12..28 {
            read(&top, page..page + 1).await.expect("it reads");
        }
        // From page 12 on the cache also reads the pages 28..60.
        assert_eq!(statistic(&top, "read_ahead_pages"), 59.0);
        assert_eq!(statistic(&top, "read_misses"), 1.0);
        assert_eq!(platter.reads.get(), 4, "the fifth is under way");
        assert_eq!(read(&top, 59..60).await, Ok(vec![59]));
        assert_eq!(platter.reads.get(), 5);
    });
}

/// The cache reads no pages beyond the end of the device, and reads no pages ahead of random reads.
#[test]
fn nothing_is_read_ahead_of_who_jumps_about_or_behind_the_end() {
    let rt = virtual_rt(22);
    rt.block_on(async {
        let platter = Platter::new(&rt);
        let more = format!("{LAZY}read_ahead = \"128KiB\"\n");
        let (_, top) = cache(&rt, &platter, &config(256, &more));
        for page in [300, 20, 250, 90] {
            read(&top, page..page + 2).await.expect("it reads");
        }
        assert_eq!(statistic(&top, "read_ahead_pages"), 0.0);
        // The second sequential read is for the third page from the end. The read-ahead window
        // would have this page and three more, but only two more pages exist.
        read(&top, PAGES - 4..PAGES - 3).await.expect("it reads");
        read(&top, PAGES - 3..PAGES - 2).await.expect("it reads");
        assert_eq!(statistic(&top, "read_ahead_pages"), 2.0);
    });
}

/// Counters that show the decisions of a replacement policy.
#[derive(Debug, Default, PartialEq)]
struct Decisions {
    read_hits: u64,
    read_misses: u64,
    write_hits: u64,
    write_misses: u64,
    evicted_pages: u64,
    dirty_pages: usize,
}

/// A replacement policy without a cache. The test calls the policy in the same way as the
/// simulator.
struct Simulated {
    policy: Box<dyn Replacement>,
    ids: Vec<Option<PageId>>,
    introduced: PageId,
    evictions: Evictions,
    decisions: Decisions,
}

impl Simulated {
    fn access(&mut self, page: u64, access: Access) {
        let id = *self.ids[page as usize].get_or_insert_with(|| {
            self.introduced += 1;
            let place = PageAddress {
                block: page as u32 / 8,
                offset: page as u32 % 8,
            };
            self.policy.introduce(self.introduced - 1, place);
            self.introduced - 1
        });
        let outcome = self.policy.access(id, access, &mut self.evictions);
        let count = match (access, outcome) {
            (Access::Read, Outcome::Hit) => &mut self.decisions.read_hits,
            (Access::Read, Outcome::Miss) => &mut self.decisions.read_misses,
            (Access::Write, Outcome::Hit) => &mut self.decisions.write_hits,
            (Access::Write, Outcome::Miss) => &mut self.decisions.write_misses,
        };
        *count += 1;
        for group in self.evictions.groups() {
            let left = group.pages.iter().filter(|page| !page.stays).count();
            self.decisions.evicted_pages += left as u64;
        }
        self.evictions.clear();
        self.decisions.dirty_pages = self.policy.occupancy().dirty;
    }
}

/// The cache and the simulator use the same implementation of a policy, so both must have the same
/// sequence of hits, misses and evictions.
#[test]
fn the_cache_decides_as_the_simulator_does() {
    for name in [
        "lru",
        "arc",
        "lirs",
        "s3-fifo",
        "cf-lru",
        "clc",
        "abm-lru-clc",
        "abm-lru-fab",
    ] {
        let rt = virtual_rt(9);
        rt.block_on(async {
            let platter = Platter::new(&rt);
            let more =
                format!("policy = \"{name}\"\ncluster = \"32KiB\"\ndirty = \"512KiB\"\n{LAZY}");
            let (_, top) = cache(&rt, &platter, &config(128, &more));
            let spec = Spec::from_str(name).expect("it is a policy");
            let policy = spec.build(&Build {
                capacity: 112,
                pages_per_block: 8,
                ..Build::default()
            });
            let mut simulated = Simulated {
                policy,
                ids: vec![None; PAGES as usize],
                introduced: 0,
                evictions: Evictions::new(),
                decisions: Decisions::default(),
            };
            let mut rng = rt.rng("trace");
            for step in 0..4_000 {
                let hot = rng.below(3) > 0;
                let page = rng.below(if hot { PAGES / 5 } else { PAGES });
                let access = if rng.below(3) == 0 {
                    Access::Write
                } else {
                    Access::Read
                };
                simulated.access(page, access);
                match access {
                    Access::Read => drop(read(&top, page..page + 1).await.expect("it reads")),
                    Access::Write => {
                        top.submit(write(&rt, page..page + 1, step))
                            .await
                            .expect("it is taken");
                    }
                }
                // Let the cache write back evicted pages before the next access. The simulator
                // writes them back immediately.
                rt.sleep(Duration::from_micros(1)).await;
                assert_eq!(decisions(&top), simulated.decisions, "{name}, step {step}");
            }
            assert!(
                simulated.decisions.evicted_pages > 500,
                "{:?}",
                simulated.decisions
            );
        });
    }
}

fn decisions(top: &Rc<dyn Device>) -> Decisions {
    let count = |name| statistic(top, name) as u64;
    Decisions {
        read_hits: count("read_hits"),
        read_misses: count("read_misses"),
        write_hits: count("write_hits"),
        write_misses: count("write_misses"),
        evicted_pages: count("evicted_pages"),
        dirty_pages: (statistic(top, "no_side_bytes") / 4096.0) as usize,
    }
}

#[test]
fn mistakes_in_the_configuration_are_named() {
    let refused = |line: &str| {
        refusal(&format!(
            "[device.disk]\ntype = \"null\"\nsize = \"1MiB\"\n[device.top]\ntype = \"cache\"\n\
             below = \"disk\"\n{line}"
        ))
    };
    for (line, why) in [
        ("", "size"),
        ("size = \"4KiB\"", "at least 256KiB"),
        ("size = \"1MiB\"\npolicy = \"lur\"", "no policy `lur`"),
        (
            "size = \"1MiB\"\npolicy = \"belady\"",
            "needs to know future accesses",
        ),
        ("size = \"1MiB\"\nmode = \"back\"", "write-back"),
        ("size = \"1MiB\"\ndirty = \"2MiB\"", "at most `size`"),
        ("size = \"1MiB\"\ndirty_age = \"0s\"", "at least 1ms"),
        ("size = \"1MiB\"\ncluster = \"5KiB\"", "whole blocks"),
        ("size = \"1MiB\"\ndepth = 0", "1 to 1024"),
        ("size = \"1MiB\"\nread_ahead = \"6KiB\"", "whole blocks"),
        ("size = \"1MiB\"\nread_ahead = \"256KiB\"", "an eighth"),
    ] {
        let message = refused(line);
        assert!(message.contains(why), "{line}: {message}");
    }
}
