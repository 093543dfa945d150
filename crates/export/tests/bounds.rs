//! The resources that clients can make a server hold, and their release, in virtual time. The
//! clients never read their answers, do not receive their welcome, or disconnect in the middle of a
//! message.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{
    READ, Raw, address, assert_clean, connect_with, request, statistic, virtual_rt,
};
use bimetal_block::{BLOCK_BYTES, Device, Geometry, IoFuture, Op, Reply, Request};
use bimetal_export::{BYTES_IN_FLIGHT_MAX, ExportConfig, Protocol, Server};
use bimetal_proto::brp::command::encode_command;
use bimetal_proto::brp::frame::Head;
use bimetal_proto::brp::wire::{HEAD_BYTES, Op as WireOp, kind};
use bimetal_proto::brp::{Hello, Outbound, Purpose, Request as WireRequest};
use bimetal_rt::Rt;
use bimetal_rt::net::PipeOptions;

const READ_BYTES: u32 = 32 << 20;
const CLIENTS: u32 = 30;
const READS: u32 = 40;
/// Memory that a connection holds in addition to the data of its requests: its receive buffer (256
/// KiB) and the heads of its replies.
const CONNECTION_BYTES: u64 = (256 << 10) + (8 << 10);

/// A device that allocates memory from the pool for every read, in pieces of up to 4 MiB.
struct Hungry {
    rt: Rt,
    geometry: Geometry,
    reads: Cell<u32>,
}

impl Hungry {
    fn new(rt: &Rt) -> Rc<Hungry> {
        Rc::new(Hungry {
            rt: rt.clone(),
            geometry: Geometry::of_size(1 << 30),
            reads: Cell::new(0),
        })
    }
}

impl Device for Hungry {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.rt.sleep(Duration::from_millis(1)).await;
            if request.op != Op::Read {
                return Ok(Reply::Done);
            }
            self.reads.set(self.reads.get() + 1);
            let mut data = bimetal_rt::Payload::empty();
            while (data.len() as u64) < request.len {
                let piece_bytes = (request.len - data.len() as u64).min(4 << 20);
                let piece = self.rt.pool().alloc_now(piece_bytes as usize);
                data.push(piece.freeze());
            }
            Ok(Reply::Data(data))
        })
    }
}

fn serve(rt: &Rt, protocol: Protocol, connections_max: u32) -> Server {
    let config = ExportConfig {
        protocol,
        connections_max,
        ..ExportConfig::new("vol", "dev", address())
    };
    Server::new(rt, vec![(config, Hungry::new(rt) as Rc<dyn Device>)])
}

fn hello(session: u8, path: u32, outbound: &mut Outbound) -> Vec<u8> {
    let hello = Hello {
        version_min: 1,
        version_max: 1,
        features: 0,
        session: [session; 16],
        path,
        purpose: Purpose::Open,
        name: String::new(),
    };
    let mut out = Vec::new();
    hello.encode(outbound, &mut out);
    out
}

/// Connects to the server and sends an initiator's greeting.
async fn greet(rt: &Rt, server: &Server, session: u8, path: u32, options: PipeOptions) -> Raw {
    let raw = connect_with(rt, server, options);
    raw.send(&hello(session, path, &mut Outbound::new())).await;
    raw
}

/// Returns the kind of the frame that the target sends in answer to a greeting; `None` if the
/// connection ends first.
async fn answer_kind(raw: &mut Raw) -> Option<u8> {
    let head = raw.take(HEAD_BYTES).await;
    Head::decode(&head).map(|head| head.kind)
}

/// Whether the server serves a read of one block to a client that has not sent a request before.
async fn reads_a_block(raw: &mut Raw) -> bool {
    raw.enter().await;
    let data = raw.read(0, BLOCK_BYTES as u32).await;
    data.len() as u64 == BLOCK_BYTES
}

/// Connects NBD clients that send many reads and never receive a reply.
async fn deaf_clients_of(rt: &Rt, server: &Server, count: u32) -> Vec<Raw> {
    let mut deaf = Vec::new();
    for _ in 0..count {
        let mut raw = connect_with(rt, server, PipeOptions::default());
        raw.enter().await;
        for cookie in 0..READS {
            raw.send(&request(0, READ, u64::from(cookie), 0, READ_BYTES))
                .await;
        }
        deaf.push(raw);
    }
    deaf
}

fn held_bytes(rt: &Rt) -> u64 {
    (rt.pool().heap_bytes_used() + rt.pool().region_bytes_used()) as u64
}

#[test]
fn clients_that_never_read_hold_no_more_than_the_memory_for_data() {
    for protocol in [Protocol::Nbd, Protocol::Brp] {
        let rt = virtual_rt();
        let server = serve(&rt, protocol, CLIENTS);
        rt.block_on(async {
            let mut clients = Vec::new();
            for client in 0..CLIENTS {
                let mut raw = connect_with(&rt, &server, PipeOptions::default());
                if protocol == Protocol::Nbd {
                    raw.enter().await;
                    for cookie in 0..READS {
                        raw.send(&request(0, READ, u64::from(cookie), 0, READ_BYTES))
                            .await;
                    }
                } else {
                    let mut outbound = Outbound::new();
                    let mut out = hello(client as u8 + 1, 1, &mut outbound);
                    outbound.open(0);
                    for tag in 0..READS {
                        let read = WireRequest {
                            tag,
                            ..WireRequest::new(WireOp::Read, 0, READ_BYTES)
                        };
                        encode_command(&mut outbound, &mut out, &[read], false);
                    }
                    raw.send(&out).await;
                }
                clients.push(raw);
            }
            let bound = BYTES_IN_FLIGHT_MAX + u64::from(CLIENTS) * CONNECTION_BYTES;
            let mut most = 0;
            for _ in 0..1000 {
                rt.sleep(Duration::from_millis(10)).await;
                most = most.max(held_bytes(&rt));
            }
            assert!(
                most <= bound,
                "{most} bytes are held, of {bound} ({protocol:?})"
            );
            assert!(most >= u64::from(READ_BYTES), "something was read");
            drop(clients);
            server.stop().await;
        });
        assert_clean(&rt);
        assert_eq!(held_bytes(&rt), 0, "{protocol:?}");
    }
}

/// Clients that send many reads and never receive the data do not delay the small requests of other
/// clients, regardless of the number of these clients. They delay the large requests of other
/// clients only until the server has cut all of them off.
#[test]
fn others_are_served_beside_any_number_of_clients_that_never_read() {
    for deaf_clients in [8, CLIENTS, 2 * CLIENTS] {
        let rt = virtual_rt();
        let server = serve(&rt, Protocol::Nbd, 3 * CLIENTS);
        rt.block_on(async {
            let deaf = deaf_clients_of(&rt, &server, deaf_clients).await;
            let mut raw = connect_with(&rt, &server, PipeOptions::default());
            let served = rt.timeout(Duration::from_secs(1), reads_a_block(&mut raw));
            assert_eq!(served.await.ok(), Some(true), "{deaf_clients} others");
            // The clients that do not read hold the memory one after another. The first of them is
            // cut off after at most three checks, 15 s apart. Each later one is cut off after two
            // of the shorter check intervals, which are 2 s.
            let patience = Duration::from_secs(3 * 15 + u64::from(deaf_clients) * 2 * 2);
            let large = rt.timeout(patience, raw.read(0, 1 << 20));
            let bytes = large.await.map(|data| data.len());
            assert_eq!(bytes.ok(), Some(1 << 20), "{deaf_clients} others");
            drop((deaf, raw));
            server.stop().await;
        });
        assert_clean(&rt);
        assert_eq!(held_bytes(&rt), 0);
    }
}

#[test]
fn a_client_that_reads_is_served_though_others_hold_all_the_memory() {
    let rt = virtual_rt();
    let server = serve(&rt, Protocol::Nbd, CLIENTS);
    rt.block_on(async {
        let deaf = deaf_clients_of(&rt, &server, 4).await;
        rt.sleep(Duration::from_secs(1)).await;
        let mut raw = connect_with(&rt, &server, PipeOptions::default());
        // The two clients that hold the memory are cut off after two checks without progress. The
        // two clients whose requests are queued before this client's request are cut off after at
        // most another three checks.
        let served = rt.timeout(Duration::from_secs(75), reads_a_block(&mut raw));
        assert_eq!(served.await.ok(), Some(true));
        drop((deaf, raw));
        server.stop().await;
    });
    assert_clean(&rt);
    assert_eq!(held_bytes(&rt), 0);
}

#[test]
fn no_more_clients_are_welcomed_than_may_be_connected() {
    let rt = virtual_rt();
    let server = serve(&rt, Protocol::Brp, 2);
    rt.block_on(async {
        // A welcome message does not fit in the pipe, and the clients do not read. So all 60
        // greetings stay in progress at the same time.
        let narrow = PipeOptions {
            buffer_bytes: 16,
            ..PipeOptions::default()
        };
        let mut clients = Vec::new();
        for client in 1..=60 {
            clients.push(greet(&rt, &server, client, 1, narrow).await);
        }
        rt.sleep(Duration::from_millis(10)).await;
        let mut welcomed = 0;
        for raw in &mut clients {
            welcomed += u32::from(answer_kind(raw).await == Some(kind::WELCOME));
        }
        assert_eq!(welcomed, 2);
        assert_eq!(statistic(&server, "connections_refused"), 58);
        drop(clients);
        server.stop().await;
    });
    assert_clean(&rt);
}

#[test]
fn nbd_tells_no_more_clients_that_they_are_let_in_than_may_be_connected() {
    let rt = virtual_rt();
    let server = serve(&rt, Protocol::Nbd, 2);
    rt.block_on(async {
        let mut clients = Vec::new();
        let mut let_in = 0;
        for _ in 0..10 {
            let mut raw = connect_with(&rt, &server, PipeOptions::default());
            raw.take(18).await;
            raw.send(&[0, 0, 0, 3]).await;
            raw.option(1, &[]).await;
            let_in += u32::from(raw.take(10).await.len() == 10);
            clients.push(raw);
        }
        assert_eq!(let_in, 2);
        drop(clients);
        server.stop().await;
    });
    assert_clean(&rt);
}

#[test]
fn a_guest_that_is_crowded_out_leaves_no_path_behind() {
    let rt = virtual_rt();
    let server = serve(&rt, Protocol::Brp, 1000);
    rt.block_on(async {
        let narrow = PipeOptions {
            buffer_bytes: 16,
            ..PipeOptions::default()
        };
        let mut guests = Vec::new();
        for path in 1..=300 {
            guests.push(greet(&rt, &server, 1, path, narrow).await);
            rt.sleep(Duration::from_millis(1)).await;
        }
        drop(guests);
        rt.sleep(Duration::from_secs(1)).await;
        // The session accepts the maximum number of paths again.
        let mut paths = Vec::new();
        for path in 1001..1065 {
            let mut raw = greet(&rt, &server, 1, path, PipeOptions::default()).await;
            assert_eq!(
                answer_kind(&mut raw).await,
                Some(kind::WELCOME),
                "path {path}"
            );
            paths.push(raw);
        }
        drop(paths);
        server.stop().await;
    });
    assert_clean(&rt);
}
