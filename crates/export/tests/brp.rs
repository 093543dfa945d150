//! The BRP target and the BRP client, in virtual time and over sockets.

use crate::common;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{SIZE, Slow, address, assert_clean, statistic, virtual_rt};
use bimetal_block::media::brp::{BrpConfig, BrpDevice};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Flags, Geometry, IoError, IoFuture, Op as BlockOp, Request};
use bimetal_client::{
    Answer, BlockingSession, Call, ConnectError, Connector, Error, Job, Mode, Op, Options, Session,
    SessionThread, Status, list,
};
use bimetal_export::{ExportConfig, Persistence, Protocol, Server};
use bimetal_proto::brp::wire::feature;
use bimetal_proto::brp::{Hello, Outbound, Purpose};
use bimetal_rt::net::{Address, PipeOptions, Stream};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rng, Rt, UringOptions};
use futures_util::future::join_all;

const MODES: [Mode; 5] = [
    Mode::Short,
    Mode::Parallel,
    Mode::Merge { in_turn: false },
    Mode::Merge { in_turn: true },
    Mode::Adaptive,
];

fn config(listen: Address) -> ExportConfig {
    ExportConfig {
        protocol: Protocol::Brp,
        ..ExportConfig::new("vol", "dev", listen)
    }
}

fn server(rt: &Rt, device: Rc<dyn Device>) -> Server {
    Server::new(rt, vec![(config(address()), device)])
}

fn connector(rt: &Rt, server: &Server) -> Connector {
    let (rt, server) = (rt.clone(), server.clone());
    Rc::new(move || {
        let (ours, theirs) = Stream::pair(&rt, PipeOptions::default());
        server.serve(&address(), theirs);
        let connected: Pin<Box<dyn Future<Output = io::Result<Stream>>>> =
            Box::pin(async move { Ok(ours) });
        connected
    })
}

async fn connect(rt: &Rt, server: &Server, mode: Mode, crc: bool) -> Session {
    let options = Options {
        mode,
        crc,
        ..Options::new(address())
    };
    let connectors = vec![connector(rt, server)];
    Session::over(rt, connectors, options).await.unwrap()
}

/// Sends random requests of many sizes, many of them concurrently, and compares the results with a
/// copy of the content.
async fn exercise(rt: &Rt, session: &Session) {
    let (mut rng, mut content) = (Rng::new(5), vec![0_u8; SIZE as usize]);
    for round in 0..30 {
        let group = TaskGroup::new(rt);
        // The requests of one round do not overlap, so the content does not depend on their order.
        let area = SIZE as usize / 32;
        for index in 0..32 {
            let start = index * area + rng.below(area as u64 / 2) as usize;
            let len = match rng.below(3) {
                0 => 4096,
                1 => 1 + rng.below(4096) as usize,
                _ => 1 + rng.below(area as u64 / 2 - 1) as usize,
            };
            let session = session.clone();
            if rng.chance(0.5) {
                let data = vec![(round * 32 + index) as u8; len];
                content[start..start + len].copy_from_slice(&data);
                let payload = rt.pool().copy_of(&data);
                group.spawn(async move { session.write(start as u64, payload).await.unwrap() });
            } else {
                let expected = content[start..start + len].to_vec();
                group.spawn(async move {
                    let data = session.read(start as u64, len as u32).await.unwrap();
                    assert_eq!(data.to_vec(), expected);
                });
            }
        }
        group.join().await;
    }
    session.flush().await.unwrap();
    let all = session.read(0, SIZE as u32).await.unwrap();
    assert!(all.to_vec() == content, "the whole content");
}

#[test]
fn every_mode_reads_what_it_wrote() {
    for mode in MODES {
        for crc in [false, true] {
            let rt = virtual_rt();
            let device = Slow::new(&rt, Duration::from_micros(100));
            let server = server(&rt, device);
            rt.block_on(async {
                let session = connect(&rt, &server, mode, crc).await;
                exercise(&rt, &session).await;
                session.close().await;
                server.stop().await;
            });
            assert_clean(&rt);
        }
    }
}

#[test]
fn requests_that_touch_nothing_common_run_side_by_side_except_where_asked_otherwise() {
    for (mode, side_by_side) in [
        (Mode::Short, 1),
        (Mode::Parallel, 32),
        (Mode::Merge { in_turn: false }, 32),
        (Mode::Merge { in_turn: true }, 1),
        (Mode::Adaptive, 32),
    ] {
        let rt = virtual_rt();
        let device = Slow::new(&rt, Duration::from_millis(1));
        let server = server(&rt, Rc::clone(&device) as Rc<dyn Device>);
        rt.block_on(async {
            let session = connect(&rt, &server, mode, false).await;
            let calls = (0..32).map(|block| session.read(block * 4096, 4096));
            for read in join_all(calls).await {
                read.unwrap();
            }
            session.close().await;
            server.stop().await;
        });
        assert_eq!(device.running_max.get(), side_by_side, "{mode:?}");
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let rt = virtual_rt();
    let server = {
        let config = ExportConfig {
            read_only: true,
            ..config(address())
        };
        let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, SIZE));
        Server::new(&rt, vec![(config, device)])
    };
    rt.block_on(async {
        let session = connect(&rt, &server, Mode::Adaptive, false).await;
        let status = |answer: Result<Answer, Error>| match answer {
            Err(Error::Target(status)) => status,
            other => panic!("{other:?}"),
        };
        let data = rt.pool().zeroed(512);
        let write = session.call(Call::write(0, data)).await;
        assert_eq!(status(write), Status::ReadOnly);
        let read = session.call(Call::read(SIZE, 1)).await;
        assert_eq!(status(read), Status::OutOfRange);
        let extents = session.call(Call::new(Op::Extents, 0, SIZE as u32)).await;
        match extents {
            Ok(Answer::Runs(runs)) => assert!(runs.iter().all(|run| !run.data)),
            other => panic!("{other:?}"),
        }
        let options = Options {
            export: "other".to_owned(),
            ..Options::new(address())
        };
        let refused = Session::over(&rt, vec![connector(&rt, &server)], options).await;
        assert!(matches!(refused.err(), Some(ConnectError::Refused(_))));
        session.close().await;
        server.stop().await;
    });
    assert_clean(&rt);
}

#[test]
fn a_target_that_stays_away_is_given_up_with_its_name_the_cause_and_the_time() {
    let rt = virtual_rt();
    let server = RefCell::new(Some(server(&rt, Rc::new(MemoryDevice::new(&rt, SIZE)))));
    let held = Rc::new(server);
    rt.block_on(async {
        let (rt2, from) = (rt.clone(), Rc::clone(&held));
        let connector: Connector = Rc::new(move || {
            let connected = from.borrow().as_ref().map(|server| {
                let (ours, theirs) = Stream::pair(&rt2, PipeOptions::default());
                server.serve(&address(), theirs);
                ours
            });
            Box::pin(async move { connected.ok_or(io::ErrorKind::ConnectionRefused.into()) })
        });
        let options = Options {
            patience: Duration::from_secs(3),
            ..Options::new(address())
        };
        let session = Session::over(&rt, vec![connector], options).await.unwrap();
        let gone = held.borrow_mut().take().unwrap();
        gone.stop().await;
        let before = rt.now();
        let error = session.read(0, 4096).await.unwrap_err();
        let waited = rt.now().since(before);
        assert!(waited <= Duration::from_secs(4), "{waited:?}");
        let words = error.to_string();
        for word in ["/virtual", "3 s", "connection refused"] {
            assert!(words.contains(word), "{words}");
        }
        // Later requests do not wait again.
        let before = rt.now();
        assert!(session.read(0, 4096).await.is_err());
        assert_eq!(rt.now(), before);
        session.close().await;
    });
    assert_clean(&rt);
}

#[test]
fn a_new_instance_of_a_volume_in_memory_is_another_volume() {
    let rt = virtual_rt();
    let start = |rt: &Rt| {
        let config = ExportConfig {
            persistence: Persistence::Ephemeral,
            ..config(address())
        };
        let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, SIZE));
        Server::new(rt, vec![(config, device)])
    };
    let held = Rc::new(RefCell::new(start(&rt)));
    rt.block_on(async {
        let (rt2, from) = (rt.clone(), Rc::clone(&held));
        let connect: Connector = Rc::new(move || connector(&rt2, &from.borrow())());
        let options = Options::new(address());
        let session = Session::over(&rt, vec![connect], options).await.unwrap();
        session
            .write(0, rt.pool().copy_of(&[7; 4096]))
            .await
            .unwrap();
        let old = held.replace(start(&rt));
        old.stop().await;
        let error = session.read(0, 4096).await.unwrap_err();
        assert!(matches!(error, Error::Unusable(_)), "{error}");
        session.close().await;
        let new = held.borrow().clone();
        new.stop().await;
    });
    assert_clean(&rt);
}

fn real_rt() -> Rt {
    Rt::real_time(UringOptions {
        pool_bytes: 16 << 20,
        seed: 1,
        ..UringOptions::default()
    })
    .unwrap()
}

#[test]
fn both_kinds_of_sockets_serve_it_and_say_what_they_have() {
    let folder = std::env::temp_dir().join(format!("bimetal-brp-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let rt = real_rt();
    for listen in [
        Address::Unix(folder.join("a.sock")),
        Address::Tcp("127.0.0.1:0".parse().unwrap()),
    ] {
        let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, SIZE));
        let mut config = config(listen);
        config.description = "for tests".to_owned();
        rt.block_on(async {
            let server = Server::start(&rt, vec![(config, device)]).await.unwrap();
            let at = server.addresses().remove(0);
            let listed = list(&rt, &at, None).await.unwrap();
            assert_eq!(listed.len(), 1);
            assert_eq!((&listed[0].name[..], listed[0].size_bytes), ("vol", SIZE));
            for mode in MODES {
                let options = Options {
                    mode,
                    paths: 3,
                    ..Options::new(at.clone())
                };
                let session = Session::connect(&rt, options).await.unwrap();
                let zeroes = Call::new(Op::WriteZeroes, 0, SIZE as u32);
                session.call(zeroes).await.unwrap();
                exercise(&rt, &session).await;
                session.close().await;
            }
            server.stop().await;
        });
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Creates a folder for the test `test`, and returns the folder and the address of a socket in it.
fn folder_with_socket(test: &str) -> (PathBuf, Address) {
    let folder = std::env::temp_dir().join(format!("bimetal-brp-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let listen = Address::Unix(folder.join("a.sock"));
    (folder, listen)
}

/// Starts a server for a memory device at the address `listen`. Clients on other threads connect to
/// the server.
fn listening(rt: &Rt, listen: &Address) -> Server {
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, SIZE));
    let exports = vec![(config(listen.clone()), device)];
    rt.block_on(Server::start(rt, exports)).unwrap()
}

#[test]
fn ordinary_threads_share_a_session() {
    let (folder, listen) = folder_with_socket("threads");
    let rt = real_rt();
    let server = listening(&rt, &listen);
    let finished = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let done = std::sync::Arc::clone(&finished);
    let clients = std::thread::spawn(move || {
        let session = BlockingSession::connect(Options::new(listen)).unwrap();
        assert_eq!(session.export().size_bytes, SIZE);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let session = &session;
                scope.spawn(move || {
                    for round in 0..50_u8 {
                        let data = vec![round ^ thread as u8; 4096];
                        session.write(thread * 4096, data.clone(), false).unwrap();
                        assert_eq!(session.read(thread * 4096, 4096).unwrap(), data);
                    }
                    session.flush().unwrap();
                });
            }
        });
        assert!(session.read(SIZE, 1).is_err());
        drop(session);
        done.store(true, std::sync::atomic::Ordering::Release);
    });
    rt.block_on(async {
        while !finished.load(std::sync::atomic::Ordering::Acquire) && !clients.is_finished() {
            rt.sleep(Duration::from_millis(5)).await;
        }
        server.stop().await;
    });
    clients.join().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A job that writes zeroes to the block with this number. It fails for a block beyond the end of
/// the device.
struct ZeroBlock(u64);

impl Job for ZeroBlock {
    fn call(&self) -> Call {
        Call::new(Op::WriteZeroes, self.0 * 4096, 4096)
    }

    fn fill(&self, _into: &mut [u8]) {
        panic!("nothing but a write has data");
    }
}

#[test]
fn jobs_of_one_call_leave_together() {
    const JOBS: u64 = 64;
    let (folder, listen) = folder_with_socket("jobs");
    let rt = real_rt();
    let server = listening(&rt, &listen);
    let clients = std::thread::spawn(move || {
        let (ended, heard) = std::sync::mpsc::channel();
        let session = SessionThread::connect(Options::new(listen), move |batch| {
            for (ZeroBlock(block), result) in batch {
                ended.send((block, result.is_ok())).unwrap();
            }
        });
        let session = session.unwrap();
        let beyond = SIZE / 4096;
        session
            .submit((1..JOBS).chain([beyond]).map(ZeroBlock))
            .unwrap();
        session.submit([]).unwrap();
        // Requests that are in flight when the session is dropped are still answered.
        drop(session);
        let mut answers: Vec<_> = heard.iter().collect();
        answers.sort_unstable();
        let expected: Vec<_> = (1..JOBS).map(|block| (block, true)).collect();
        assert_eq!(answers, [expected, vec![(beyond, false)]].concat());
    });
    rt.block_on(async {
        while !clients.is_finished() {
            rt.sleep(Duration::from_millis(5)).await;
        }
        server.stop().await;
    });
    clients.join().unwrap();
    let receives = statistic(&server, "receives");
    // On average a command has at least 8 requests. Two more receives are for the goodbye and the
    // end of the connection. Unmerged requests would need one receive each.
    assert!(receives <= JOBS / 8 + 2, "{receives}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_client_that_sends_anything_else_is_disconnected_and_leaves_nothing() {
    let rt = virtual_rt();
    let server = server(&rt, Rc::new(MemoryDevice::new(&rt, SIZE)));
    rt.block_on(async {
        let good = connect(&rt, &server, Mode::Adaptive, true).await;
        good.read(0, 4096).await.unwrap();
        let before = rt.pool().heap_bytes_used();
        let mut rng = Rng::new(3);
        let hello = {
            let (mut out, mut outbound) = (Vec::new(), Outbound::new());
            Hello {
                version_min: 1,
                version_max: 1,
                features: feature::MERGE,
                session: [9; 16],
                path: 1,
                purpose: Purpose::Open,
                name: String::new(),
            }
            .encode(&mut outbound, &mut out);
            out
        };
        for round in 0..300_u64 {
            let (ours, theirs) = Stream::pair(&rt, PipeOptions::default());
            server.serve(&address(), theirs);
            let mut bytes = hello.clone();
            match round % 4 {
                // Half of a greeting, and nothing more.
                0 => bytes.truncate(rng.below(hello.len() as u64) as usize),
                // A greeting with one wrong bit.
                1 => bytes[rng.below(hello.len() as u64) as usize] ^= 1 << rng.below(8),
                // Invalid commands.
                2 => {
                    bytes.extend((0..200).map(|_| rng.below(256) as u8));
                    let kind = hello.len();
                    bytes[kind] = 16;
                }
                _ => bytes.fill(0xff),
            }
            let sent = ours.send(rt.pool().copy_of(&bytes).into()).await;
            // The target may have closed already.
            drop((sent, ours));
            good.read(0, 4096).await.unwrap();
        }
        // Only the connection `good` remains: the handshake deadline of the last bad connection has
        // passed, so the server has ended all of the bad ones.
        rt.sleep(Duration::from_secs(20)).await;
        assert_eq!(server.connections(), 1);
        assert_eq!(rt.pool().heap_bytes_used(), before);
        good.close().await;
        server.stop().await;
    });
    assert_clean(&rt);
}

#[test]
fn a_half_open_connection_holds_one_small_buffer_and_not_for_long() {
    let rt = virtual_rt();
    let server = server(&rt, Rc::new(MemoryDevice::new(&rt, SIZE)));
    rt.block_on(async {
        let mut held = Vec::new();
        for _ in 0..200 {
            let (ours, theirs) = Stream::pair(&rt, PipeOptions::default());
            server.serve(&address(), theirs);
            held.push(ours);
        }
        rt.sleep(Duration::from_secs(5)).await;
        // 64 clients at one address, with 4 KiB each. The server has disconnected the other clients
        // to admit later ones.
        assert_eq!(server.connections(), 64);
        assert_eq!(rt.pool().heap_bytes_used(), 64 * 4096);
        rt.sleep(Duration::from_secs(6)).await;
        assert_eq!(server.connections(), 0);
        server.stop().await;
    });
    assert_clean(&rt);
}

#[test]
fn an_export_is_a_medium_that_does_not_notice_another_instance_of_a_durable_server() {
    let rt = virtual_rt();
    let below: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, SIZE));
    let held = Rc::new(RefCell::new(server(&rt, Rc::clone(&below))));
    rt.block_on(async {
        let (rt2, from) = (rt.clone(), Rc::clone(&held));
        let connect: Connector = Rc::new(move || connector(&rt2, &from.borrow())());
        let config = BrpConfig {
            connections: 2,
            ..BrpConfig::new(address())
        };
        let medium = BrpDevice::over(&rt, vec![connect], &config).await.unwrap();
        assert_eq!(medium.geometry().size_bytes, SIZE);
        let data = rt.pool().copy_of(&[7; 8192]);
        let write = Request::write(4096, data, Flags::FUA);
        medium.submit(write).await.unwrap();

        let old = held.replace(server(&rt, Rc::clone(&below)));
        old.stop().await;
        let read = medium.submit(Request::read(4096, 8192)).await.unwrap();
        assert_eq!(read.into_data().to_vec(), [7; 8192]);
        assert_eq!(medium.interruptions(), Some(1));
        medium.submit(Request::flush()).await.unwrap();

        let extents = Request::without_data(BlockOp::Extents, 0, SIZE, Flags::NONE);
        let runs = medium.submit(extents).await.unwrap().into_extents();
        assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), SIZE);
        assert!(runs[0].data && !runs[runs.len() - 1].data);
        let zeroes = Request::without_data(BlockOp::WriteZeroes, 0, SIZE, Flags::NONE);
        medium.submit(zeroes).await.unwrap();
        let read = medium.submit(Request::read(4096, 8192)).await.unwrap();
        assert_eq!(read.into_data().to_vec(), [0; 8192]);
        let beyond = medium.submit(Request::read(SIZE, 4096)).await;
        assert_eq!(beyond.err(), Some(IoError::OutOfRange));
        medium.close().await.unwrap();
        let new = held.borrow().clone();
        new.stop().await;
    });
    assert_clean(&rt);
}

#[test]
fn closing_waits_for_a_target_that_stands_still_no_longer_than_it_may_be_away() {
    let rt = virtual_rt();
    // The device accepts requests, but completes each of them only after an hour.
    let server = server(&rt, Slow::new(&rt, Duration::from_secs(3600)));
    rt.block_on(async {
        let session = connect(&rt, &server, Mode::Adaptive, false).await;
        let patience = Options::new(address()).patience;
        let reading = {
            let session = session.clone();
            rt.spawn(async move { session.read(0, 4096).await })
        };
        rt.sleep(Duration::from_secs(1)).await;
        let began = rt.now();
        let limit = patience + Duration::from_secs(1);
        let closed = rt.timeout(limit, session.close()).await;
        assert!(closed.is_ok(), "closing has a limit");
        assert!(rt.now() >= began + patience, "a slow target has its time");
        match reading.await {
            Err(Error::Unreachable(why)) => assert!(why.cause.contains("did not answer"), "{why}"),
            other => panic!("{other:?}"),
        }
        server.stop().await;
    });
    assert_clean(&rt);
}

#[test]
fn a_goodbye_that_nobody_takes_does_not_keep_a_session() {
    let rt = virtual_rt();
    let server = server(&rt, Slow::new(&rt, Duration::ZERO));
    rt.block_on(async {
        // A relay between client and server that forwards bytes until it is told to stop.
        let still = Rc::new(Cell::new(false));
        let boxes = TaskGroup::new(&rt);
        let connector: Connector = {
            let (rt, server, still, boxes) =
                (rt.clone(), server.clone(), Rc::clone(&still), boxes.clone());
            Rc::new(move || {
                let narrow = PipeOptions {
                    buffer_bytes: 8,
                    ..PipeOptions::default()
                };
                let (client, near) = Stream::pair(&rt, narrow);
                let (far, target) = Stream::pair(&rt, narrow);
                server.serve(&address(), target);
                boxes.spawn(carry(rt.clone(), Rc::clone(&still), near, far));
                Box::pin(async move { Ok(client) })
            })
        };
        let session = Session::over(&rt, vec![connector], Options::new(address()));
        let session = session.await.unwrap();
        session.read(0, 4096).await.unwrap();
        still.set(true);
        let closed = rt.timeout(Duration::from_secs(31), session.close()).await;
        assert!(closed.is_ok(), "closing has a limit");
        boxes.cancel().await;
        server.stop().await;
    });
    assert_clean(&rt);
}

/// Forwards bytes in both directions until `still` is set.
async fn carry(rt: Rt, still: Rc<Cell<bool>>, near: Stream, far: Stream) {
    let one_way = async |from: &Stream, to: &Stream| {
        loop {
            let (result, buf) = from.recv(rt.pool().alloc_now(4096), 0).await;
            let Ok(count @ 1..) = result else { return };
            if still.get() {
                return std::future::pending().await;
            }
            let data = buf.freeze().slice(0..count);
            if to.send(data.into()).await.is_err() {
                return;
            }
        }
    };
    futures_util::future::join(one_way(&near, &far), one_way(&far, &near)).await;
}

#[test]
fn a_write_that_is_too_long_fails_alone() {
    let (folder, listen) = folder_with_socket("long");
    let rt = real_rt();
    let server = listening(&rt, &listen);
    let clients = std::thread::spawn(move || {
        let session = BlockingSession::connect(Options::new(listen)).unwrap();
        let longest = session.export().transfer_bytes_max as usize;
        // Both lengths are too long. The lower 32 bits of the second length alone would be a valid
        // length. The memory of the long buffers is never touched, so they cost no memory.
        for len in [longest + 1, (1 << 32) + 4096] {
            let refused = session.write(0, vec![0; len], false);
            assert!(matches!(refused, Err(Error::TooLong)), "{len}: {refused:?}");
        }
        session.write(0, vec![7; 4096], false).unwrap();
        assert_eq!(session.read(0, 4096).unwrap(), [7; 4096]);
    });
    until_finished(&rt, &clients);
    clients.join().unwrap();
    rt.block_on(server.stop());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Runs the server until a thread with clients has ended.
fn until_finished<T>(rt: &Rt, thread: &std::thread::JoinHandle<T>) {
    rt.block_on(async {
        while !thread.is_finished() {
            rt.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_target_that_takes_odd_lengths_is_served_on() {
    struct Odd(MemoryDevice, Geometry);
    impl Device for Odd {
        fn geometry(&self) -> &Geometry {
            &self.1
        }
        fn submit(&self, request: Request) -> IoFuture<'_> {
            self.0.submit(request)
        }
    }
    for (transfer_bytes_max, preferred_bytes) in [(5000, 4096), (13_000, 65_536)] {
        let rt = virtual_rt();
        let geometry = Geometry {
            transfer_bytes_max,
            preferred_bytes,
            ..Geometry::of_size(SIZE)
        };
        let target = server(&rt, Rc::new(Odd(MemoryDevice::new(&rt, SIZE), geometry)));
        rt.block_on(async {
            let connectors = vec![connector(&rt, &target)];
            let config = BrpConfig::new(address());
            let medium = BrpDevice::over(&rt, connectors, &config).await.unwrap();
            let medium = Rc::new(medium);
            let whole = transfer_bytes_max - transfer_bytes_max % 4096;
            assert_eq!(medium.geometry().transfer_bytes_max, whole);
            let proxy = common::server(&rt, Rc::clone(&medium) as Rc<dyn Device>);
            let mut client = common::connect(&rt, &proxy);
            client.enter_structured().await;
            client.request(0, common::READ, 1, 0, whole).await;
            assert!(matches!(
                client.answer().await,
                common::Answer::Chunk { kind: 1, .. }
            ));
            drop(client);
            proxy.stop().await;
            medium.close().await.unwrap();
            target.stop().await;
        });
        assert_clean(&rt);
    }
}
