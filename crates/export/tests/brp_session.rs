//! A BRP session in virtual time over connections that are cut and delayed, against a target that
//! dies and loses its unflushed data. The test uses the real client and the real server, and
//! transfers every byte between them.
//!
//! The test checks that a read returns the data that was last submitted before it, that a
//! successful flush covers every change that was answered before the flush, and that no
//! acknowledged data is missing at the end. A relay between client and server can suppress the
//! fence (the message that stops requests of an old connection), or make the client believe that no
//! request has to be sent again. The checks must then fail.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use crate::common::address;
use bimetal_block::{Device, Geometry, IoError, IoFuture, Op, Reply, Request};
use bimetal_client::{Connector, Error, Mode, Options, Session, right};
use bimetal_export::{ExportConfig, Persistence, Protocol, Server};
use bimetal_proto::brp::Outbound;
use bimetal_proto::brp::frame::Head;
use bimetal_proto::brp::wire::{HEAD_BYTES, kind};
use bimetal_rt::net::{PipeOptions, Stream};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rng, Rt, VirtualOptions};

const BLOCK_BYTES: u64 = 4096;
const BLOCKS: usize = 12;
const OPERATIONS: usize = 250;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Nothing,
    FenceLeftOut,
    ReplayLeftOut,
}

/// A disk whose blocks hold version numbers. `content` has the current versions; `durable` has the
/// versions that remain when the target dies.
#[derive(Default)]
struct Disk {
    content: [u64; BLOCKS],
    durable: [u64; BLOCKS],
}

/// Access of one instance of the target to the disk. After the instance has died, its writes no
/// longer reach the disk.
struct Life {
    rt: Rt,
    disk: Rc<RefCell<Disk>>,
    rng: RefCell<Rng>,
    dead: Cell<bool>,
    geometry: Geometry,
}

impl Life {
    fn answer(&self, request: &Request) -> Result<Reply, IoError> {
        if self.dead.get() {
            return Err(IoError::Closed);
        }
        let mut disk = self.disk.borrow_mut();
        let first = (request.offset / BLOCK_BYTES) as usize;
        let blocks = first..first + (request.len / BLOCK_BYTES) as usize;
        match request.op {
            Op::Read => {
                let mut data = self.rt.pool().alloc_now(request.len as usize);
                for (chunk, block) in data.chunks_exact_mut(BLOCK_BYTES as usize).zip(blocks) {
                    chunk.fill(0);
                    chunk[..8].copy_from_slice(&disk.content[block].to_le_bytes());
                }
                Ok(Reply::Data(data.freeze().into()))
            }
            Op::Write => {
                let bytes = request.payload.to_vec();
                for (chunk, block) in bytes.chunks_exact(BLOCK_BYTES as usize).zip(blocks) {
                    disk.content[block] = u64::from_le_bytes(chunk[..8].try_into().unwrap());
                    if request.flags.fua {
                        disk.durable[block] = disk.content[block];
                    }
                }
                Ok(Reply::Done)
            }
            Op::Flush => {
                disk.durable = disk.content;
                Ok(Reply::Done)
            }
            _ => Err(IoError::Unsupported),
        }
    }
}

impl Device for Life {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            let delay_us = self.rng.borrow_mut().below(3000);
            self.rt.sleep(Duration::from_micros(delay_us)).await;
            self.answer(&request)
        })
    }
}

struct World {
    rt: Rt,
    plant: Plant,
    disk: Rc<RefCell<Disk>>,
    rng: RefCell<Rng>,
    server: RefCell<Server>,
    life: RefCell<Rc<Life>>,
    /// The client's end of each connection that is not cut.
    links: RefCell<Vec<Rc<Stream>>>,
    boxes: TaskGroup,
    cuts: Cell<u32>,
    deaths: Cell<u32>,
}

impl World {
    fn new(rt: &Rt, seed: u64, plant: Plant) -> Rc<World> {
        let disk = Rc::new(RefCell::new(Disk::default()));
        let (server, life) = start(rt, &disk);
        Rc::new(World {
            rt: rt.clone(),
            plant,
            disk,
            rng: RefCell::new(Rng::labelled(seed, "links")),
            server: RefCell::new(server),
            life: RefCell::new(life),
            links: RefCell::default(),
            boxes: TaskGroup::new(rt),
            cuts: Cell::new(0),
            deaths: Cell::new(0),
        })
    }

    /// Creates a connection through a relay with a random latency.
    fn link(self: &Rc<World>) -> Stream {
        let (client, near) = Stream::pair(&self.rt, PipeOptions::default());
        let (far, server) = Stream::pair(&self.rt, PipeOptions::default());
        self.server.borrow().serve(&address(), server);
        let latency = Duration::from_micros(self.rng.borrow_mut().below(40_000));
        let (near, far) = (Rc::new(near), Rc::new(far));
        self.links.borrow_mut().push(Rc::clone(&near));
        let back = Rc::new(RefCell::new(Outbound::new()));
        let there = Carrier {
            world: Rc::clone(self),
            from: Rc::clone(&near),
            to: Rc::clone(&far),
            outbound: Rc::default(),
            back: Rc::clone(&back),
            latency,
        };
        let here = Carrier {
            world: Rc::clone(self),
            from: far,
            to: near,
            outbound: back,
            back: Rc::default(),
            latency: Duration::ZERO,
        };
        self.boxes.spawn(there.carry());
        self.boxes.spawn(here.carry());
        client
    }

    fn cut(&self) {
        let links = std::mem::take(&mut *self.links.borrow_mut());
        for link in links {
            if self.rng.borrow_mut().chance(0.7) {
                // The client notices the cut immediately. Bytes in flight still arrive at the
                // target, which continues as if the connection were intact.
                link.shutdown();
                self.cuts.set(self.cuts.get() + 1);
            } else {
                self.links.borrow_mut().push(link);
            }
        }
    }

    /// Kills the instance of the target and starts another one.
    fn die(&self) {
        self.deaths.set(self.deaths.get() + 1);
        self.life.borrow().dead.set(true);
        {
            let mut disk = self.disk.borrow_mut();
            disk.content = disk.durable;
        }
        for link in self.links.borrow_mut().drain(..) {
            link.shutdown();
        }
        let (server, life) = start(&self.rt, &self.disk);
        *self.life.borrow_mut() = life;
        let old = self.server.replace(server);
        self.boxes.spawn(async move { old.stop().await });
    }
}

fn start(rt: &Rt, disk: &Rc<RefCell<Disk>>) -> (Server, Rc<Life>) {
    let life = Rc::new(Life {
        rt: rt.clone(),
        disk: Rc::clone(disk),
        rng: RefCell::new(rt.rng("device")),
        dead: Cell::new(false),
        geometry: Geometry::of_size(BLOCKS as u64 * BLOCK_BYTES),
    });
    let config = ExportConfig {
        protocol: Protocol::Brp,
        persistence: Persistence::Volatile,
        ..ExportConfig::new("vol", "dev", address())
    };
    let device = Rc::clone(&life) as Rc<dyn Device>;
    (Server::new(rt, vec![(config, device)]), life)
}

/// One direction of a relay. It decodes frames and encodes them again.
struct Carrier {
    world: Rc<World>,
    from: Rc<Stream>,
    to: Rc<Stream>,
    outbound: Rc<RefCell<Outbound>>,
    /// Encoder of the other direction. With it, the relay can answer a message itself, in place of
    /// the target.
    back: Rc<RefCell<Outbound>>,
    latency: Duration,
}

impl Carrier {
    async fn carry(self) {
        let rt = &self.world.rt;
        let mut held = Vec::new();
        loop {
            let (count, buf) = self.from.recv(rt.pool().alloc_now(64 << 10), 0).await;
            match count {
                Ok(count) if count > 0 => held.extend_from_slice(&buf[..count]),
                _ => break,
            }
            rt.sleep(self.latency).await;
            let (there, back) = self.frames(&mut held);
            if !back.is_empty() {
                // The connection may have been cut in the meantime, which does not affect the test.
                let _ = self.from.send(rt.pool().copy_of(&back).into()).await;
            }
            if self
                .to
                .send(rt.pool().copy_of(&there).into())
                .await
                .is_err()
            {
                break;
            }
        }
        self.to.shutdown();
    }

    /// Removes the complete frames from the front of `held`. Returns the bytes to forward to the
    /// target, and the bytes with which the relay answers in place of the target.
    fn frames(&self, held: &mut Vec<u8>) -> (Vec<u8>, Vec<u8>) {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        while let Some(head) = Head::decode(held) {
            let whole = HEAD_BYTES + head.body_bytes as usize;
            if held.len() < whole {
                break;
            }
            let mut body: Vec<u8> = held.drain(..whole).skip(HEAD_BYTES).collect();
            if head.kind == kind::FENCE && self.world.plant == Plant::FenceLeftOut {
                self.back
                    .borrow_mut()
                    .control(&mut back, kind::FENCED, &body);
                continue;
            }
            if head.kind == kind::WELCOME && self.world.plant == Plant::ReplayLeftOut {
                const RIGHTS: usize = 72;
                body[RIGHTS] &= !(right::VOLATILE as u8);
            }
            let what = (head.kind, head.count, head.flags);
            self.outbound.borrow_mut().frame(&mut there, what, &body, 0);
        }
        (there, back)
    }
}

/// Record of the client's requests and their answers.
#[derive(Default)]
struct Book {
    next_version: u64,
    submitted: [u64; BLOCKS],
    answered: [u64; BLOCKS],
    wrong: Vec<String>,
    lost: u32,
}

async fn operate(world: Rc<World>, session: Session, book: Rc<RefCell<Book>>, seed: u64) {
    let mut rng = Rng::labelled(seed, "operation");
    world
        .rt
        .sleep(Duration::from_micros(rng.below(400_000)))
        .await;
    let first = rng.below(BLOCKS as u64) as usize;
    let count = 1 + rng.below(3.min((BLOCKS - first) as u64)) as usize;
    let (offset, len) = (first as u64 * BLOCK_BYTES, count * BLOCK_BYTES as usize);
    match rng.below(10) {
        0 => {
            let answered = book.borrow().answered;
            match session.flush().await {
                Ok(()) => {
                    let disk = world.disk.borrow();
                    for (block, version) in answered.into_iter().enumerate() {
                        if disk.durable[block] < version {
                            let wrong = format!("flushed block {block} is gone");
                            book.borrow_mut().wrong.push(wrong);
                        }
                    }
                }
                Err(Error::Lost) => book.borrow_mut().lost += 1,
                Err(other) => panic!("a flush failed: {other}"),
            }
        }
        1..=3 => {
            let expected = book.borrow().submitted[first..first + count].to_vec();
            let data = session.read(offset, len as u32).await.unwrap().to_vec();
            let seen: Vec<u64> = data
                .chunks_exact(BLOCK_BYTES as usize)
                .map(|chunk| u64::from_le_bytes(chunk[..8].try_into().unwrap()))
                .collect();
            if seen != expected {
                let wrong = format!("read {seen:?} of block {first}, not {expected:?}");
                book.borrow_mut().wrong.push(wrong);
            }
        }
        _ => {
            let version = {
                let mut book = book.borrow_mut();
                book.next_version += 1;
                let version = book.next_version;
                book.submitted[first..first + count].fill(version);
                version
            };
            let mut data = world.rt.pool().alloc_now(len);
            for chunk in data.chunks_exact_mut(BLOCK_BYTES as usize) {
                chunk[..8].copy_from_slice(&version.to_le_bytes());
            }
            session.write(offset, data.freeze()).await.unwrap();
            book.borrow_mut().answered[first..first + count].fill(version);
        }
    }
}

/// Runs the scenario with this seed. Returns the number of cut connections, the number of deaths of
/// the target, the number of reported losses, and all violations.
fn run(seed: u64, plant: Plant, deaths: bool, keep_bytes: u64) -> (u32, u32, u32, Vec<String>) {
    let rt = Rt::virtual_time(VirtualOptions {
        seed,
        shuffle: true,
    });
    let world = World::new(&rt, seed, plant);
    let book = Rc::new(RefCell::new(Book::default()));
    let outcome = rt.block_on(async {
        let from = Rc::clone(&world);
        let connector: Connector = Rc::new(move || {
            let stream = from.link();
            let connected: Pin<Box<dyn Future<Output = io::Result<Stream>>>> =
                Box::pin(async move { Ok(stream) });
            connected
        });
        let modes = [
            Mode::Adaptive,
            Mode::Parallel,
            Mode::Merge { in_turn: true },
            Mode::Short,
        ];
        let options = Options {
            paths: 1 + (seed % 3) as u32,
            mode: modes[seed as usize % modes.len()],
            keep_bytes,
            ..Options::new(address())
        };
        let session = Session::over(&rt, vec![connector], options).await.unwrap();
        let operations = TaskGroup::new(&rt);
        for index in 0..OPERATIONS as u64 {
            let (world, session) = (Rc::clone(&world), session.clone());
            let seed = seed * OPERATIONS as u64 + index;
            operations.spawn(operate(world, session, Rc::clone(&book), seed));
        }
        for _ in 0..8 {
            rt.sleep(Duration::from_millis(45)).await;
            if deaths && world.rng.borrow_mut().chance(0.4) {
                world.die();
            } else {
                world.cut();
            }
        }
        operations.join().await;
        let last = session.flush().await;
        let mut book = book.borrow_mut();
        book.lost += u32::from(matches!(last, Err(Error::Lost)));
        let disk = world.disk.borrow();
        if book.lost == 0 && disk.durable != book.submitted {
            let wrong = format!("{:?} in the end, not {:?}", disk.durable, book.submitted);
            book.wrong.push(wrong);
        }
        (
            world.cuts.get(),
            world.deaths.get(),
            book.lost,
            std::mem::take(&mut book.wrong),
        )
    });
    rt.end();
    outcome
}

#[test]
fn nothing_is_lost_or_undone_when_links_are_cut() {
    let mut cuts = 0;
    for seed in 0..40 {
        let (cut, _, lost, wrong) = run(seed, Plant::Nothing, false, 1 << 20);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        assert_eq!(lost, 0, "seed {seed}");
        cuts += cut;
    }
    assert!(cuts > 100, "links were cut: {cuts}");
}

#[test]
fn nothing_is_lost_when_the_target_dies() {
    let mut died = 0;
    for seed in 0..40 {
        // `keep_bytes` alternates between ample memory for copies of unflushed changes, and so
        // little memory that changes must wait for flushes.
        let keep_bytes = if seed % 2 == 0 { 1 << 20 } else { 40_000 };
        let (_, deaths, lost, wrong) = run(seed, Plant::Nothing, true, keep_bytes);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        assert_eq!(lost, 0, "seed {seed}");
        died += deaths;
    }
    assert!(died > 50, "targets died: {died}");
}

#[test]
fn what_was_not_kept_is_lost_with_an_error() {
    let told = (0..10).map(|seed| run(seed, Plant::Nothing, true, 0).2);
    assert!(told.sum::<u32>() > 0, "a flush says that something is gone");
}

#[test]
fn a_fence_that_is_left_out_is_found() {
    let found = (0..40).any(|seed| !run(seed, Plant::FenceLeftOut, false, 1 << 20).3.is_empty());
    assert!(found);
}

#[test]
fn a_replay_that_is_left_out_is_found() {
    let found = (0..40).any(|seed| !run(seed, Plant::ReplayLeftOut, true, 1 << 20).3.is_empty());
    assert!(found);
}
