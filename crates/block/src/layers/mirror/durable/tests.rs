//! Tests with devices on which a failed flush drops content, as the page cache of Linux does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Payload, Rng, Rt, VirtualOptions};

use super::{Durable, UNFLUSHED_BYTES_MAX};
use crate::device::{Device, IoFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::layers::mirror::formatting::{Formatting, format};
use crate::layers::mirror::superblock::Candidate;
use crate::layers::mirror::{Mirror, MirrorConfig, OpenOptions, SideToOpen};
use crate::layers::timing::Timing;
use crate::media::model::{ModelType, Parameters};
use crate::media::null::NullDevice;
use crate::request::{BLOCK_BYTES, Flags, IoResult, Op, Reply, Request};

type Blocks = BTreeMap<u64, Payload>;

/// A device with a volatile cache. After a failed flush, some blocks count as durable although they
/// are not, so no later flush writes them. Some of these blocks also return to their old content.
/// Blocks that are not in the maps read as zeroes.
struct Dropping {
    rt: Rt,
    geometry: Geometry,
    cached: RefCell<Blocks>,
    durable: RefCell<Blocks>,
    /// Blocks that are not durable, each with the numbers of its first and its last write since the
    /// block was last durable.
    dirty: RefCell<BTreeMap<u64, (u64, u64)>>,
    writes: Cell<u64>,
    flushes: Cell<u64>,
    /// Number of upcoming flushes that must fail. `fails` is the probability that any later flush
    /// fails.
    failing: Cell<u32>,
    fails: Cell<f64>,
    /// Maximum latency of a request.
    latency_us_max: Cell<u64>,
    rng: RefCell<Rng>,
}

impl Dropping {
    fn new(rt: &Rt, size_bytes: u64) -> Rc<Dropping> {
        Rc::new(Dropping {
            rt: rt.clone(),
            geometry: Geometry::of_size(size_bytes),
            cached: RefCell::default(),
            durable: RefCell::default(),
            dirty: RefCell::default(),
            writes: Cell::new(0),
            flushes: Cell::new(0),
            failing: Cell::new(0),
            fails: Cell::new(0.0),
            latency_us_max: Cell::new(0),
            rng: RefCell::new(Rng::new(17)),
        })
    }

    /// Returns a device with the content that remains after a power cut.
    fn after_power_cut(&self) -> Rc<Dropping> {
        let left = Dropping::new(&self.rt, self.geometry.size_bytes);
        left.cached.borrow_mut().clone_from(&self.durable.borrow());
        left.durable.borrow_mut().clone_from(&self.durable.borrow());
        left
    }

    fn put(blocks: &mut Blocks, index: u64, content: Option<Payload>) {
        match content {
            Some(content) => blocks.insert(index, content),
            None => blocks.remove(&index),
        };
    }

    fn change(&self, request: &Request) {
        self.writes.set(self.writes.get() + 1);
        for index in request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES {
            let at = (index * BLOCK_BYTES - request.offset) as usize;
            let slice = || request.payload.slice(at..at + BLOCK_BYTES as usize);
            let content = (request.op == Op::Write).then(slice);
            Dropping::put(&mut self.cached.borrow_mut(), index, content.clone());
            if request.flags.fua {
                Dropping::put(&mut self.durable.borrow_mut(), index, content);
                self.dirty.borrow_mut().remove(&index);
            } else {
                let number = self.writes.get();
                let mut dirty = self.dirty.borrow_mut();
                dirty.entry(index).or_insert((number, number)).1 = number;
            }
        }
    }

    fn flush(&self, covered: u64) -> IoResult {
        self.flushes.set(self.flushes.get() + 1);
        let (mut rng, mut dirty) = (self.rng.borrow_mut(), self.dirty.borrow_mut());
        let left = self.failing.get();
        let fails = left > 0 || rng.chance(self.fails.get());
        self.failing.set(left.saturating_sub(1));
        if fails {
            dirty.retain(|index, _| {
                let (lost, evicted) = (rng.chance(0.7), rng.chance(0.5));
                if lost && evicted {
                    let old = self.durable.borrow().get(index).cloned();
                    Dropping::put(&mut self.cached.borrow_mut(), *index, old);
                }
                !lost
            });
            return Err(IoError::Medium);
        }
        dirty.retain(|index, (first, last)| {
            if *first <= covered {
                let content = self.cached.borrow().get(index).cloned();
                Dropping::put(&mut self.durable.borrow_mut(), *index, content);
            }
            *first = *last;
            *last > covered
        });
        Ok(Reply::Done)
    }

    async fn run(&self, request: Request) -> IoResult {
        let covered = self.writes.get();
        let early = request.op.changes_content() && self.rng.borrow_mut().chance(0.3);
        if early {
            self.change(&request);
        }
        let us = self.rng.borrow_mut().below(self.latency_us_max.get() + 1);
        self.rt.sleep(Duration::from_micros(us)).await;
        match request.op {
            Op::Flush => self.flush(covered),
            Op::Read => {
                let mut data = Payload::empty();
                for index in request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES {
                    match self.cached.borrow().get(&index) {
                        Some(block) => data.append(block.clone()),
                        None => data.push(self.rt.pool().zeroed(BLOCK_BYTES as usize)),
                    }
                }
                Ok(Reply::Data(data))
            }
            Op::Extents => Err(IoError::Unsupported),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                // A change that was applied early is not applied again: a failed flush may have
                // dropped the change in the meantime.
                if !early {
                    self.change(&request);
                }
                Ok(Reply::Done)
            }
        }
    }
}

impl Device for Dropping {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(self.run(request))
    }
}

fn virtual_rt(seed: u64) -> Rt {
    Rt::virtual_time(VirtualOptions {
        seed,
        shuffle: true,
    })
}

fn write(rt: &Rt, offset: u64, blocks: u64, stamp: u8, flags: Flags) -> Request {
    let bytes = vec![stamp; (blocks * BLOCK_BYTES) as usize];
    Request::write(offset, rt.pool().copy_of(&bytes), flags)
}

fn stamp_of(block: Option<&Payload>) -> u8 {
    block.map_or(0, |block| block.to_vec()[0])
}

/// Stamps that a client has written to a block, in order; the stamp 0 means zeroes.
#[derive(Default)]
struct Past {
    stamps: Vec<u8>,
    /// Number of these writes that have completed.
    completed: usize,
}

const BLOCKS_OF_CLIENT: u64 = 8;

/// A client that changes its own blocks at random. Every read must return the newest content.
async fn client(rt: Rt, durable: Rc<Durable>, pasts: Rc<RefCell<Vec<Past>>>, number: u64) {
    let mut rng = Rng::labelled(3, &format!("client {number}"));
    for _ in 0..400 {
        let first = rng.below(BLOCKS_OF_CLIENT);
        let blocks = 1 + rng.below(BLOCKS_OF_CLIENT - first);
        let first = number * BLOCKS_OF_CLIENT + first;
        let range = first as usize..(first + blocks) as usize;
        let (offset, len) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
        let stamp = 1 + rng.below(255) as u8;
        let flags = match rng.chance(0.1) {
            true => Flags::FUA,
            false => Flags::NONE,
        };
        let (stamp, request) = match rng.below(5) {
            0 => (0, Request::without_data(Op::Discard, offset, len, flags)),
            1 => (
                0,
                Request::without_data(Op::WriteZeroes, offset, len, flags),
            ),
            _ => (stamp, write(&rt, offset, blocks, stamp, flags)),
        };
        for past in &mut pasts.borrow_mut()[range.clone()] {
            past.stamps.push(stamp);
        }
        if durable.submit(request).await.is_err() {
            // The change needed room, and the flush that would have made room failed. So nothing
            // was written.
            for past in &mut pasts.borrow_mut()[range] {
                past.stamps.pop();
            }
            continue;
        }
        for past in &mut pasts.borrow_mut()[range.clone()] {
            past.completed = past.stamps.len();
        }
        let read = durable.submit(Request::read(offset, len)).await;
        let data = read.expect("reads do not fail").into_data().to_vec();
        assert!(data.iter().all(|byte| *byte == stamp), "the newest is read");
    }
}

/// After a successful flush, every block durably has the content from the start of that flush or
/// newer content, no matter what failed flushes have dropped and when. No read returns content
/// older than the content of the last write.
#[test]
fn a_flush_that_succeeds_covers_all_before_it_whatever_failed_flushes_have_dropped() {
    for (seed, fails, latency_us_max) in [(1, 0.0, 50), (2, 0.3, 5), (3, 0.3, 50), (4, 0.7, 500)] {
        let rt = virtual_rt(seed);
        let clients = 4;
        let disk = Dropping::new(&rt, clients * BLOCKS_OF_CLIENT * BLOCK_BYTES);
        disk.latency_us_max.set(latency_us_max);
        // The bound is so low that it is reached all the time.
        let bytes_max = 10 * BLOCK_BYTES;
        let durable = Durable::bounded(&rt, Rc::clone(&disk) as Rc<dyn Device>, bytes_max);
        let durable = Rc::new(durable);
        let pasts = (0..clients * BLOCKS_OF_CLIENT).map(|_| Past {
            stamps: vec![0],
            completed: 1,
        });
        let pasts: Rc<RefCell<Vec<Past>>> = Rc::new(RefCell::new(pasts.collect()));
        let (mut good, mut bad) = (0, 0);
        rt.block_on(async {
            durable
                .submit(Request::flush())
                .await
                .expect("the first one");
            disk.fails.set(fails);
            let group = TaskGroup::new(&rt);
            for number in 0..clients {
                let (rt, durable, pasts) = (rt.clone(), Rc::clone(&durable), Rc::clone(&pasts));
                group.spawn(client(rt, durable, pasts, number));
            }
            while !group.is_empty() {
                rt.sleep(Duration::from_micros(1 + latency_us_max)).await;
                let before: Vec<usize> = pasts.borrow().iter().map(|p| p.completed).collect();
                match durable.submit(Request::flush()).await {
                    Ok(_) => good += 1,
                    Err(_) => {
                        bad += 1;
                        continue;
                    }
                }
                for (block, before) in before.into_iter().enumerate() {
                    let held = stamp_of(disk.durable.borrow().get(&(block as u64)));
                    let stamps = &pasts.borrow()[block].stamps;
                    let newest = stamps.iter().rposition(|stamp| *stamp == held);
                    assert!(newest.is_some_and(|at| at + 1 >= before), "block {block}");
                }
            }
        });
        assert!(good > 20, "{good} flushes have succeeded");
        assert_eq!(bad > 0, fails > 0.0, "{bad} flushes have failed");
    }
}

#[test]
fn every_flush_fails_until_what_was_dropped_is_on_the_device_again() {
    let rt = virtual_rt(5);
    rt.block_on(async {
        let disk = Dropping::new(&rt, 64 * BLOCK_BYTES);
        let durable = Durable::over(&rt, Rc::clone(&disk) as Rc<dyn Device>);
        let flush = || async { durable.submit(Request::flush()).await.map(|_done| ()) };
        flush().await.expect("nothing was written");
        let zeroes =
            Request::without_data(Op::WriteZeroes, 8 * BLOCK_BYTES, BLOCK_BYTES, Flags::NONE);
        for request in [
            write(&rt, 0, 4, 1, Flags::NONE),
            write(&rt, 8 * BLOCK_BYTES, 1, 9, Flags::FUA),
            zeroes,
        ] {
            durable.submit(request).await.expect("it is taken");
        }
        // Three flushes of the disk fail. The first request makes two of them: its flush fails, it
        // writes everything again, and its next flush fails too. The second request first writes
        // everything again.
        disk.failing.set(3);
        let writes = disk.writes.get();
        assert_eq!(flush().await, Err(IoError::Medium));
        assert_eq!(flush().await, Err(IoError::Medium));
        assert_eq!((disk.flushes.get(), disk.writes.get() - writes), (4, 4));
        flush().await.expect("the device has recovered");
        let stamps: Vec<u8> = (0..9)
            .map(|block| stamp_of(disk.durable.borrow().get(&block)))
            .collect();
        assert_eq!(stamps, [1, 1, 1, 1, 0, 0, 0, 0, 0]);
    });
}

/// An advisory discard takes no room, and what it concerns is not written again after a failed
/// flush, since nothing relies on it.
#[test]
fn advice_is_not_kept() {
    let rt = virtual_rt(8);
    rt.block_on(async {
        let disk = Dropping::new(&rt, 64 * BLOCK_BYTES);
        let durable = Durable::over(&rt, Rc::clone(&disk) as Rc<dyn Device>);
        let submit = async |request| durable.submit(request).await.map(|_done| ());
        submit(Request::flush()).await.expect("nothing was written");
        for block in 0..3 {
            let written = submit(write(&rt, block * BLOCK_BYTES, 1, 7, Flags::NONE)).await;
            written.expect("it is taken");
        }
        let (at, len) = (BLOCK_BYTES, 8 * BLOCK_BYTES);
        let advice = Request::without_data(Op::Discard, at, len, Flags::ADVISORY);
        submit(advice).await.expect("it is taken");
        assert_eq!(durable.unflushed.borrow().parts(), 1);
        disk.failing.set(1);
        let writes = disk.writes.get();
        submit(Request::flush()).await.expect("it is written again");
        assert_eq!(disk.writes.get() - writes, 1);
        assert_eq!(stamp_of(disk.durable.borrow().get(&0)), 7);
    });
}

/// Before the first successful flush, the device may hold content that another program wrote, of
/// which no copy is kept. If a flush fails then, writing the kept changes again would not be
/// enough, so later flushes fail until the content is read again.
#[test]
fn a_failed_flush_is_not_mended_while_the_device_may_hold_the_changes_of_others() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let disk = Dropping::new(&rt, 64 * BLOCK_BYTES);
        let durable = Durable::over(&rt, Rc::clone(&disk) as Rc<dyn Device>);
        disk.failing.set(1);
        for _ in 0..3 {
            let flushed = durable.submit(Request::flush()).await;
            assert_eq!(flushed.err(), Some(IoError::Medium));
        }
        assert_eq!(disk.flushes.get(), 1);
        durable.settle().await.expect("all of it is read anew");
        durable
            .submit(Request::flush())
            .await
            .expect("the device works");
    });
}

/// The kept bytes stay within their bound: a change that would exceed the bound waits for a flush.
#[test]
fn a_change_that_would_exceed_the_bound_waits_for_a_flush() {
    let rt = virtual_rt(7);
    rt.block_on(async {
        let blocks = 2 * UNFLUSHED_BYTES_MAX / BLOCK_BYTES;
        let disk: Rc<dyn Device> = Rc::new(NullDevice::new(&rt, blocks * BLOCK_BYTES));
        let durable = Durable::over(&rt, disk);
        let data = rt.pool().zeroed(1 << 20);
        for mib in 0..130 {
            let at = (mib % 128) << 20;
            let request = Request::write(at, data.clone(), Flags::NONE);
            durable
                .submit(request)
                .await
                .expect("the null device takes it");
            assert!(durable.unflushed.borrow().data_bytes() <= UNFLUSHED_BYTES_MAX);
        }
        // 64 MiB of unflushed writes reach the bound, so the 65th write of 1 MiB waits for a flush,
        // and so does the 129th.
        assert_eq!(durable.flushes.get(), 2);
        assert_eq!(durable.unflushed.borrow().data_bytes(), 2 << 20);
    });
}

async fn open(rt: &Rt, disk: &Rc<Dropping>) -> Mirror {
    let config = MirrorConfig::of(vec!["alone".to_owned()]);
    let sides = vec![SideToOpen {
        name: "alone".to_owned(),
        device: Ok(Rc::clone(disk) as Rc<dyn Device>),
    }];
    let opened = Mirror::open(rt, &config, sides, &OpenOptions::default()).await;
    opened.unwrap_or_else(|error| panic!("{}", error.message))
}

/// The volume has only one side, so no other side can take over. Flushes of the side fail. A later
/// flush that succeeds must cover all content that the failed flushes have dropped, including
/// content that the destager has written in the meantime.
#[test]
fn what_the_last_side_has_flushed_survives_a_power_cut_after_failed_flushes() {
    let rt = virtual_rt(8);
    rt.block_on(async {
        let disk = Dropping::new(&rt, 16 << 20);
        let candidate = Candidate {
            name: "alone".to_owned(),
            device: Rc::clone(&disk) as Rc<dyn Device>,
        };
        let formatted = format(&rt, "vol", &[candidate], &Formatting::with_homes()).await;
        formatted.unwrap_or_else(|error| panic!("{}", error.message));
        let mut disk = disk.after_power_cut();
        for round in 1..=12u8 {
            let mirror = open(&rt, &disk).await;
            let mut rng = Rng::new(u64::from(round));
            for block in 0..64 {
                let change = write(&rt, block * BLOCK_BYTES, 1, round, Flags::NONE);
                mirror.submit(change).await.expect("the side takes it");
            }
            // An idle side destages after a second, and the sleep below takes up to three seconds.
            // So the failures hit flushes of the client in some rounds, and flushes of the destager
            // in others.
            disk.failing.set(2 + 2 * rng.below(3) as u32);
            rt.sleep(Duration::from_millis(rng.below(3_000))).await;
            let mut failed = 0;
            while let Err(error) = mirror.submit(Request::flush()).await {
                assert_eq!(error, IoError::Medium);
                failed += 1;
                assert!(failed < 10, "the device has recovered long ago");
            }
            let left = disk.after_power_cut();
            disk.failing.set(0);
            mirror.close().await.expect("it closes");
            disk = left;
            let mirror = open(&rt, &disk).await;
            for block in 0..64 {
                let read = mirror.submit(Request::read(block * BLOCK_BYTES, BLOCK_BYTES));
                let data = read.await.expect("it is whole").into_data().to_vec();
                assert!(data.iter().all(|byte| *byte == round), "round {round}");
            }
            mirror.close().await.expect("it closes");
        }
    });
}

/// Performs `count` writes of `bytes` bytes each on the model of a device. Up to 32 writes are in
/// flight, and the client requests no flush. The kept bytes are limited to `bytes_max`. Returns the
/// virtual time in milliseconds, and the number of flushes.
fn time_of_writes(
    (of, profile): (ModelType, &str),
    (count, bytes, random): (u64, u64, bool),
    bytes_max: u64,
) -> (f64, u64) {
    let rt = virtual_rt(9);
    let size_bytes = 4 << 30;
    let parameters = Parameters::from_profile(of, profile, toml::Table::new()).expect("it exists");
    let below: Rc<dyn Device> = Rc::new(NullDevice::new(&rt, size_bytes));
    let timing = Rc::new(Timing::new(&rt, below, &parameters, 1).expect("it works"));
    let durable = Rc::new(Durable::bounded(
        &rt,
        Rc::clone(&timing) as Rc<dyn Device>,
        bytes_max,
    ));
    let data = rt.pool().zeroed(bytes as usize);
    let mut rng = Rng::new(4);
    let ns = rt.block_on(async {
        let (group, begun) = (TaskGroup::new(&rt), rt.now());
        for number in 0..count {
            let place = match random {
                true => rng.below(size_bytes / bytes),
                false => number,
            };
            let request = Request::write(place * bytes, data.clone(), Flags::NONE);
            group.at_most(31).await;
            let durable = Rc::clone(&durable);
            group.spawn(async move {
                durable.submit(request).await.expect("the model takes it");
            });
        }
        group.join().await;
        durable
            .submit(Request::flush())
            .await
            .expect("it is flushed");
        let ns = rt.now().ns_since(begun);
        timing.close().await.expect("it closes");
        ns
    });
    (ns as f64 / 1e6, durable.flushes.get())
}

/// Measures the cost of the bound on unflushed bytes (`UNFLUSHED_BYTES_MAX`) on devices that no
/// client flushes. The result is for the table in `docs/layers/mirror.md`, and is shown with
/// `--nocapture`. The sequential load stands for log entries, which are long. Small random writes
/// gain most from the cache of a device, and each flush empties this cache.
#[test]
fn a_flush_for_each_64_mib_costs_little_on_a_disk_and_on_flash() {
    let (sequential, random) = ((512, 1 << 20, false), (40_000, 4096, true));
    for (device, load, at_most) in [
        ((ModelType::Hdd, "hdd-7200"), sequential, 1.1),
        ((ModelType::Hdd, "hdd-7200"), random, 1.1),
        ((ModelType::Ssd, "nvme-tlc"), sequential, 1.1),
        ((ModelType::Ssd, "nvme-tlc"), random, 2.0),
    ] {
        let (without_ms, one) = time_of_writes(device, load, u64::MAX);
        let (with_ms, flushes) = time_of_writes(device, load, UNFLUSHED_BYTES_MAX);
        println!(
            "{} {load:?}: {without_ms:.1} ms without, {with_ms:.1} ms with {flushes} flushes",
            device.1
        );
        assert!(one == 1 && flushes > 2, "the bound is reached");
        let ratio = with_ms / without_ms;
        assert!(ratio < at_most, "{ratio} times as long");
    }
}
