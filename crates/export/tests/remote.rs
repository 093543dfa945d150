//! The remote medium against the server of this crate, and against a scripted server, in virtual
//! time.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::media::remote::{Connector, RemoteConfig, RemoteDevice};
use bimetal_block::units::Time;
use bimetal_block::{Device, Extent, Flags, IoError, Op, Request, Statistic};
use bimetal_export::{ExportConfig, Server};
use bimetal_rt::net::{PipeOptions, Stream};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Instant, Rt};

/// A route from a client to a server. It can be cut, blocked, or redirected to another server.
struct Way {
    server: RefCell<Server>,
    blocked: Cell<bool>,
    /// The two ends that the relay holds of every connection.
    middles: RefCell<Vec<(Rc<Stream>, Rc<Stream>)>>,
    made: Cell<u32>,
}

impl Way {
    fn to(server: Server) -> Rc<Way> {
        Rc::new(Way {
            server: RefCell::new(server),
            blocked: Cell::new(false),
            middles: RefCell::default(),
            made: Cell::new(0),
        })
    }

    fn server(&self) -> Server {
        self.server.borrow().clone()
    }

    fn connector(self: &Rc<Way>, rt: &Rt) -> Connector {
        let (way, rt) = (Rc::clone(self), rt.clone());
        Rc::new(move || {
            let (way, rt) = (Rc::clone(&way), rt.clone());
            Box::pin(async move {
                if way.blocked.get() {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                way.made.set(way.made.get() + 1);
                let (ours, near) = Stream::pair(&rt, PipeOptions::default());
                let (far, theirs) = Stream::pair(&rt, PipeOptions::default());
                way.server.borrow().serve(&address(), theirs);
                let (near, far) = (Rc::new(near), Rc::new(far));
                relay(&rt, &near, &far);
                relay(&rt, &far, &near);
                way.middles.borrow_mut().push((near, far));
                Ok(ours)
            })
        })
    }

    /// Cuts every connection, regardless of requests in flight.
    fn cut(&self) {
        for (near, far) in self.middles.take() {
            near.shutdown();
            far.shutdown();
        }
    }
}

/// Forwards bytes from one stream to another until one of the streams ends.
fn relay(rt: &Rt, from: &Rc<Stream>, to: &Rc<Stream>) {
    let (rt2, from, to) = (rt.clone(), Rc::clone(from), Rc::clone(to));
    let pass = async move {
        loop {
            let (count, buf) = from.recv(rt2.pool().alloc_now(5000), 0).await;
            let count = count.unwrap_or(0);
            let passed = to.send(buf.freeze().slice(0..count).into()).await;
            if count == 0 || passed.is_err() {
                to.shutdown();
                from.shutdown();
                return;
            }
        }
    };
    rt.spawn(pass).detach();
}

fn config(connections: u32) -> RemoteConfig {
    RemoteConfig {
        connections,
        reconnect: Time(Duration::from_secs(5)),
        ..RemoteConfig::new(address())
    }
}

async fn open(rt: &Rt, way: &Rc<Way>, connections: u32) -> RemoteDevice {
    let config = config(connections);
    let opened = RemoteDevice::over(rt, way.connector(rt), &config).await;
    opened.unwrap_or_else(|e| panic!("{e}"))
}

fn write(rt: &Rt, offset: u64, data: &[u8], flags: Flags) -> Request {
    Request::write(offset, rt.pool().copy_of(data), flags)
}

async fn read(device: &dyn Device, offset: u64, len: u64) -> Vec<u8> {
    let reply = device.submit(Request::read(offset, len)).await;
    reply.expect("the read succeeds").into_data().to_vec()
}

#[test]
fn every_operation_arrives() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_millis(1));
    let way = Way::to(server(&rt, slow.clone()));
    rt.block_on(async {
        let remote = open(&rt, &way, 1).await;
        let geometry = remote.geometry();
        assert_eq!((geometry.size_bytes, geometry.block_bytes), (SIZE, 1));
        assert!(geometry.writable && !geometry.discard_zeroes);
        let data: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        remote
            .submit(write(&rt, 4096, &data, Flags::NONE))
            .await
            .unwrap();
        assert!(read(&remote, 4096, 300_000).await == data);
        remote
            .submit(write(&rt, 0, &[1; 4096], Flags::FUA))
            .await
            .unwrap();
        let kept = Flags {
            keep_allocated: true,
            ..Flags::NONE
        };
        for (op, flags) in [(Op::WriteZeroes, kept), (Op::Discard, Flags::NONE)] {
            let request = Request::without_data(op, 0, 4096, flags);
            remote.submit(request).await.unwrap();
        }
        remote.submit(Request::flush()).await.unwrap();
        let extents = Request::without_data(Op::Extents, 0, SIZE, Flags::NONE);
        let extents = remote.submit(extents).await.unwrap().into_extents();
        // 304096 bytes were written. The device allocates chunks of 64 KiB, so five chunks hold
        // data.
        let expected = [(5 << 16, true), (SIZE - (5 << 16), false)];
        assert_eq!(extents, expected.map(|(len, data)| Extent { len, data }));
        let beyond = remote.submit(Request::read(SIZE, 4096)).await;
        assert_eq!(beyond.err(), Some(IoError::OutOfRange));
        remote.close().await.unwrap();
        way.server().stop().await;
    });
    let seen = slow.seen.borrow();
    assert!(seen.iter().any(|r| r.op == Op::Write && r.flags.fua));
    assert!(
        seen.iter()
            .any(|r| r.op == Op::WriteZeroes && r.flags.keep_allocated)
    );
    assert!(seen.iter().any(|r| r.op == Op::Discard) && seen.iter().any(|r| r.op == Op::Flush));
    drop(seen);
    drop(way);
    assert_clean(&rt);
}

#[test]
fn requests_are_pipelined_over_all_connections() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_millis(10));
    let way = Way::to(server(&rt, slow.clone()));
    rt.block_on(async {
        let remote = Rc::new(open(&rt, &way, 4).await);
        let group = TaskGroup::new(&rt);
        let begun = rt.now();
        for i in 0..100u64 {
            let (remote, rt2) = (Rc::clone(&remote), rt.clone());
            group.spawn(async move {
                let data = vec![i as u8; 4096];
                remote
                    .submit(write(&rt2, i * 4096, &data, Flags::NONE))
                    .await
                    .unwrap();
            });
        }
        group.join().await;
        // The hundred requests run concurrently, so together they take one device delay.
        assert_eq!(rt.now().since(begun), Duration::from_millis(10));
        assert_eq!(slow.running_max.get(), 100);
        assert_eq!(way.made.get(), 4);
        for i in 0..100u64 {
            assert_eq!(read(&*remote, i * 4096, 1).await, [i as u8]);
        }
        remote.close().await.unwrap();
        way.server().stop().await;
    });
    drop(way);
    assert_clean(&rt);
}

/// While the server repeatedly stops and is restarted, every request is answered, and reads return
/// the data that was written.
#[test]
fn a_server_that_comes_back_is_taken_up_again() {
    let rt = virtual_rt();
    let disk: Rc<dyn Device> = Slow::new(&rt, Duration::from_millis(3));
    let way = Way::to(server(&rt, disk.clone()));
    rt.block_on(async {
        let remote = Rc::new(open(&rt, &way, 2).await);
        let group = TaskGroup::new(&rt);
        for i in 0..64u64 {
            let (remote, rt2) = (Rc::clone(&remote), rt.clone());
            group.spawn(async move {
                for round in 0..20u64 {
                    let data = vec![(i + round) as u8; 8192];
                    remote
                        .submit(write(&rt2, i * 8192, &data, Flags::NONE))
                        .await
                        .unwrap();
                    assert_eq!(read(&*remote, i * 8192, 8192).await, data);
                }
            });
        }
        for round in 1..=6u32 {
            // Wait until the two new connections of this round have been made, and let some
            // requests use them.
            while way.made.get() < 2 * round {
                rt.sleep(Duration::from_millis(1)).await;
            }
            rt.sleep(Duration::from_micros(10_000 + 700 * u64::from(round)))
                .await;
            if round % 2 == 0 {
                way.cut();
            } else {
                restart(&rt, &way, &disk).await;
            }
        }
        group.join().await;
        assert!(way.made.get() >= 14, "{} connections", way.made.get());
        // When the connection broke, some completed changes had not been covered by a flush. They
        // may be lost, so the next flush fails. Only one flush reports this.
        let flush = || remote.submit(Request::flush());
        assert_eq!(flush().await.err(), Some(IoError::Transport));
        assert!(flush().await.is_ok());
        remote.close().await.unwrap();
        way.server().stop().await;
    });
    drop(way);
    drop(disk);
    assert_clean(&rt);
}

async fn restart(rt: &Rt, way: &Rc<Way>, disk: &Rc<dyn Device>) {
    let old = way.server();
    way.blocked.set(true);
    old.stop().await;
    *way.server.borrow_mut() = server(rt, disk.clone());
    way.blocked.set(false);
}

#[test]
fn a_flush_fails_once_exactly_when_something_may_be_lost() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_millis(5));
    let disk: Rc<dyn Device> = slow.clone();
    let way = Way::to(server(&rt, disk.clone()));
    rt.block_on(async {
        let remote = Rc::new(open(&rt, &way, 1).await);
        let flush = || remote.submit(Request::flush());
        // If no change was made, or every change was flushed or written with FUA, no data is lost.
        restart(&rt, &way, &disk).await;
        assert!(flush().await.is_ok());
        remote
            .submit(write(&rt, 0, &[1; 4096], Flags::NONE))
            .await
            .unwrap();
        flush().await.unwrap();
        remote
            .submit(write(&rt, 0, &[2; 4096], Flags::FUA))
            .await
            .unwrap();
        restart(&rt, &way, &disk).await;
        assert!(flush().await.is_ok());
        // A completed write that no flush has covered.
        remote
            .submit(write(&rt, 0, &[3; 4096], Flags::NONE))
            .await
            .unwrap();
        restart(&rt, &way, &disk).await;
        assert_eq!(read(&*remote, 0, 1).await, [3]);
        assert_eq!(flush().await.err(), Some(IoError::Transport));
        assert!(flush().await.is_ok());
        // The connection breaks during the flush itself. The flush must fail: a restarted server
        // might have lost the write, but would answer a repeated flush with success.
        remote
            .submit(write(&rt, 0, &[4; 4096], Flags::NONE))
            .await
            .unwrap();
        let flushing = {
            let remote = Rc::clone(&remote);
            rt.spawn(async move { remote.submit(Request::flush()).await.err() })
        };
        while slow.running.get() == 0 {
            bimetal_rt::yield_now().await;
        }
        way.cut();
        assert_eq!(flushing.await, Some(IoError::Transport));
        assert!(flush().await.is_ok());
        remote.close().await.unwrap();
        way.server().stop().await;
    });
    drop((way, disk, slow));
    assert_clean(&rt);
}

#[test]
fn a_server_that_stays_away_fails_requests_after_the_deadline() {
    let rt = virtual_rt();
    let disk: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, SIZE));
    let way = Way::to(server(&rt, disk.clone()));
    rt.block_on(async {
        let remote = open(&rt, &way, 1).await;
        way.blocked.set(true);
        let old = way.server();
        old.stop().await;
        let begun = rt.now();
        let result = remote.submit(Request::read(0, 4096)).await;
        assert_eq!(result.err(), Some(IoError::Transport));
        let waited = rt.now().since(begun);
        assert!(
            waited <= Duration::from_secs(5) && waited >= Duration::from_secs(3),
            "{waited:?}"
        );
        // Later requests fail immediately.
        let begun = rt.now();
        let result = remote.submit(Request::read(0, 4096)).await;
        assert_eq!(result.err(), Some(IoError::Offline));
        assert_eq!(rt.now(), begun);
        // The medium still tries to reconnect, but rejects a server with another size.
        let smaller: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, SIZE / 2));
        *way.server.borrow_mut() = server(&rt, smaller);
        way.blocked.set(false);
        rt.sleep(Duration::from_secs(10)).await;
        assert!(remote.submit(Request::read(0, 4096)).await.is_err());
        restart(&rt, &way, &disk).await;
        rt.sleep(Duration::from_secs(3)).await;
        assert_eq!(read(&remote, 0, 4096).await, [0; 4096]);
        remote.close().await.unwrap();
        way.server().stop().await;
    });
    drop((way, disk));
    assert_clean(&rt);
}

#[test]
fn what_cannot_be_a_medium_is_refused() {
    let rt = virtual_rt();
    rt.block_on(async {
        let disk: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, SIZE));
        let way = Way::to(server(&rt, disk));
        let mut unknown = config(1);
        unknown.export = "none".to_owned();
        let error = RemoteDevice::over(&rt, way.connector(&rt), &unknown).await;
        let message = error.err().expect("there is no such export").to_string();
        assert!(message.contains("refused"), "{message}");
        way.blocked.set(true);
        let error = RemoteDevice::over(&rt, way.connector(&rt), &config(1)).await;
        assert!(error.is_err());
        way.server().stop().await;
    });
}

#[test]
fn a_read_only_export_is_a_read_only_medium() {
    let rt = virtual_rt();
    let disk: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, SIZE));
    let mut frozen = ExportConfig::new("vol", "dev", address());
    frozen.read_only = true;
    let way = Way::to(Server::new(&rt, vec![(frozen, disk)]));
    rt.block_on(async {
        let remote = open(&rt, &way, 1).await;
        let result = remote.submit(write(&rt, 0, &[1; 4096], Flags::NONE)).await;
        assert_eq!(result.err(), Some(IoError::ReadOnly));
        remote.close().await.unwrap();
        way.server().stop().await;
    });
}

/// Flags, command and length of the requests that a server has received.
type Seen = Rc<RefCell<Vec<(u16, u16, u32)>>>;

/// Returns a connector to a scripted server, which has one export of 1 MiB with these transmission
/// flags. The server answers every request with a simple success reply, and records the commands.
fn plain(rt: &Rt, flags: u16, seen: &Seen) -> Connector {
    let (rt, seen) = (rt.clone(), Rc::clone(seen));
    Rc::new(move || {
        let (ours, theirs) = Stream::pair(&rt, PipeOptions::default());
        let (mut server, seen) = (Raw::over(&rt, theirs), Rc::clone(&seen));
        let serve = async move {
            // The server does not offer fixed newstyle negotiation, so the client falls back to
            // EXPORT_NAME (16 bytes, empty name).
            server.send(b"NBDMAGICIHAVEOPT\0\x00").await;
            server.take(4 + 16).await;
            server
                .send(&[&SIZE.to_be_bytes()[..], &flags.to_be_bytes(), &[0; 124]].concat())
                .await;
            loop {
                let head = server.take(28).await;
                if head.len() < 28 || head[6..8] == DISC.to_be_bytes() {
                    return;
                }
                let flags = u16::from_be_bytes([head[4], head[5]]);
                let command = u16::from_be_bytes([head[6], head[7]]);
                let len = u32::from_be_bytes(head[24..28].try_into().unwrap());
                if command == WRITE {
                    server.take(len as usize).await;
                }
                seen.borrow_mut().push((flags, command, len));
                server
                    .send(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &head[8..16]].concat())
                    .await;
            }
        };
        rt.spawn(serve).detach();
        Box::pin(async move { Ok(ours) })
    })
}

#[test]
fn what_a_server_does_not_offer_is_made_of_what_it_does() {
    let rt = virtual_rt();
    let seen: Seen = Rc::default();
    // HAS_FLAGS and SEND_FLUSH alone.
    let connector = plain(&rt, 1 | 1 << 2, &seen);
    rt.block_on(async {
        let remote = RemoteDevice::over(&rt, connector, &config(4)).await;
        let remote = remote.unwrap_or_else(|e| panic!("{e}"));
        // The server advertised no block sizes, so the protocol's default of 512 bytes applies.
        assert_eq!(remote.geometry().block_bytes, 512);
        remote
            .submit(write(&rt, 0, &[1; 4096], Flags::FUA))
            .await
            .unwrap();
        let request = |op, len| Request::without_data(op, 0, len, Flags::NONE);
        remote.submit(request(Op::WriteZeroes, SIZE)).await.unwrap();
        remote.submit(request(Op::Discard, SIZE)).await.unwrap();
        let runs = remote
            .submit(request(Op::Extents, SIZE))
            .await
            .unwrap()
            .into_extents();
        assert_eq!(
            runs,
            [Extent {
                len: SIZE,
                data: true
            }]
        );
        remote.close().await.unwrap();
    });
    let expected = [
        (0, WRITE, 4096),
        (0, FLUSH, 0),
        (0, WRITE, SIZE as u32),
        (0, FLUSH, 0),
    ];
    assert_eq!(*seen.borrow(), expected);
    assert_clean(&rt);
}

/// The server admits every client, and disconnects each one at its first request. The request must
/// fail after a bounded number of connections.
#[test]
fn a_request_that_breaks_every_connection_fails_in_the_end() {
    let rt = virtual_rt();
    let made = Rc::new(Cell::new(0));
    let connector: Connector = {
        let (rt, made) = (rt.clone(), Rc::clone(&made));
        Rc::new(move || {
            let (ours, theirs) = Stream::pair(&rt, PipeOptions::default());
            let mut server = Raw::over(&rt, theirs);
            made.set(made.get() + 1);
            let serve = async move {
                server.send(b"NBDMAGICIHAVEOPT\0\x00").await;
                server.take(4 + 16).await;
                server
                    .send(&[&SIZE.to_be_bytes()[..], &[0, 1], &[0; 124]].concat())
                    .await;
                server.take(28).await;
            };
            rt.spawn(serve).detach();
            Box::pin(async move { Ok(ours) })
        })
    };
    rt.block_on(async {
        let remote = RemoteDevice::over(&rt, connector, &config(1)).await;
        let remote = remote.unwrap_or_else(|e| panic!("{e}"));
        let result = remote.submit(Request::read(0, 4096)).await;
        assert_eq!(result.err(), Some(IoError::Transport));
        // Eight connections broke with the request in flight, and then the request failed. A ninth
        // connection may already have been made.
        assert!((8..=9).contains(&made.get()), "{} connections", made.get());
        remote.close().await.unwrap();
    });
    assert_clean(&rt);
}

/// Transmission flags: `FLAGS` is `HAS_FLAGS` and `SEND_FLUSH`, `MULTI_CONN` is `CAN_MULTI_CONN`.
const FLAGS: u16 = 1 | 1 << 2;
const MULTI_CONN: u16 = 1 << 8;

/// A server that can have another size and other transmission flags for each new connection.
struct Changing {
    size: Cell<u64>,
    flags: Cell<u16>,
    middles: RefCell<Vec<(Rc<Stream>, Rc<Stream>)>>,
}

impl Changing {
    /// Replaces the server by another one: cuts all connections, and gives later connections
    /// another size and other flags.
    fn become_another(&self, size: u64, flags: u16) {
        self.size.set(size);
        self.flags.set(flags);
        for (near, far) in self.middles.take() {
            near.shutdown();
            far.shutdown();
        }
    }

    fn connector(self: &Rc<Changing>, rt: &Rt) -> Connector {
        let (this, rt) = (Rc::clone(self), rt.clone());
        Rc::new(move || {
            let (ours, near) = Stream::pair(&rt, PipeOptions::default());
            let (far, theirs) = Stream::pair(&rt, PipeOptions::default());
            let (near, far) = (Rc::new(near), Rc::new(far));
            relay(&rt, &near, &far);
            relay(&rt, &far, &near);
            this.middles.borrow_mut().push((near, far));
            let server = Raw::over(&rt, theirs);
            rt.spawn(answer_all(server, this.size.get(), this.flags.get()))
                .detach();
            Box::pin(async move { Ok(ours) })
        })
    }
}

/// Answers every request except reads with success.
async fn answer_all(mut server: Raw, size: u64, flags: u16) {
    // The server does not offer fixed newstyle negotiation, so the client falls back to EXPORT_NAME
    // (16 bytes, empty name).
    server.send(b"NBDMAGICIHAVEOPT\0\x00").await;
    server.take(4 + 16).await;
    let export = [&size.to_be_bytes()[..], &flags.to_be_bytes(), &[0; 124]].concat();
    server.send(&export).await;
    loop {
        let head = server.take(28).await;
        if head.len() < 28 || head[6..8] == DISC.to_be_bytes() {
            return;
        }
        if head[6..8] == WRITE.to_be_bytes() {
            let len = u32::from_be_bytes(head[24..28].try_into().unwrap());
            server.take(len as usize).await;
        }
        let reply = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &head[8..16]].concat();
        server.send(&reply).await;
    }
}

/// Returns the statistics `health` and `connections`.
fn health(remote: &RemoteDevice) -> (String, f64) {
    let mut seen: Vec<(String, String, Statistic)> = Vec::new();
    remote.statistics(&mut seen);
    let of = |wanted: &str| seen.iter().find(|(_, name, _)| name == wanted).cloned();
    match (of("health"), of("connections")) {
        (Some((_, _, Statistic::State(word))), Some((_, _, Statistic::Gauge(count)))) => {
            (word, count)
        }
        other => panic!("no figures: {other:?}"),
    }
}

/// Returns the text of the pending reports to the operator that have the kind `kind`.
fn told(rt: &Rt, kind: &str) -> String {
    let notices = rt.notices().take(Instant::MAX);
    let of_kind = notices.iter().filter(|notice| notice.kind == kind);
    of_kind.map(ToString::to_string).collect()
}

/// A server that returns with different properties is used as far as possible, and the differences
/// are reported. If the server cannot be used, the medium reports this and waits until the server
/// can be used again.
#[test]
fn a_server_that_comes_back_different_is_used_as_far_as_that_goes() {
    let rt = virtual_rt();
    let server = Rc::new(Changing {
        size: Cell::new(SIZE),
        flags: Cell::new(FLAGS | MULTI_CONN),
        middles: RefCell::default(),
    });
    rt.block_on(async {
        let remote = RemoteDevice::over(&rt, server.connector(&rt), &config(3)).await;
        let remote = Rc::new(remote.unwrap_or_else(|e| panic!("{e}")));
        let change = async || {
            let write =
                |block: u64| remote.submit(write(&rt, block * 4096, &[1; 4096], Flags::NONE));
            let writes = futures_util::future::join_all((0..12).map(write)).await;
            let written: Result<Vec<_>, IoError> = writes.into_iter().collect();
            written?;
            remote.submit(Request::flush()).await.map(|_| ())
        };
        let wait = async |ms| rt.sleep(Duration::from_millis(ms)).await;
        change().await.expect("all is well");
        assert_eq!(health(&remote), ("healthy".to_owned(), 3.0));
        assert_eq!(told(&rt, "connection-lost"), "");

        // The export has become larger, and a flush on one connection no longer covers the other
        // connections.
        server.become_another(2 * SIZE, FLAGS);
        change().await.expect("the first connection goes on");
        wait(1_000).await;
        change().await.expect("so it stays");
        assert_eq!(health(&remote), ("healthy".to_owned(), 1.0));
        assert_eq!(remote.geometry().size_bytes, SIZE);
        let words = told(&rt, "connection-changed");
        assert!(
            words.contains("has grown") && words.contains("one connection"),
            "{words}"
        );

        // The flags are the initial flags again.
        server.become_another(2 * SIZE, FLAGS | MULTI_CONN);
        change().await.expect("and again");
        wait(1_000).await;
        assert_eq!(health(&remote), ("healthy".to_owned(), 3.0));
        let words = told(&rt, "connection-back");
        assert!(words.contains("connected again"), "{words}");

        // The layers above rely on three properties of the export: its size, permission to write,
        // and support for flushes. If the export has lost one of these properties, the medium must
        // not use the server.
        for (size, flags, why) in [
            (SIZE / 2, FLAGS, "has shrunk"),
            (SIZE, FLAGS | 1 << 1, "read-only"),
            (SIZE, 1, "no longer supports flushes"),
        ] {
            server.become_another(size, flags);
            let failed = change().await;
            assert_eq!(failed, Err(IoError::Transport), "{why}");
            assert_eq!(health(&remote).0, "offline", "{why}");
            let words = told(&rt, "connection-refused");
            assert!(words.contains(why), "{words}");
            // The client uses the server again once the properties of its export are acceptable
            // again.
            server.become_another(2 * SIZE, FLAGS | MULTI_CONN);
            wait(3_000).await;
            change().await.expect("it is back");
            assert_eq!(health(&remote), ("healthy".to_owned(), 3.0), "{why}");
        }
        remote.close().await.expect("everything is flushed");
    });
    assert_clean(&rt);
}
