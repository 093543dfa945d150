//! Drops a client's session at each of its await points in turn. All counted resources must then be
//! released.

use std::pin::Pin;
use std::task::{Context, Poll};

use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Geometry, IoFuture, Request};
use bimetal_proto::brp::command::encode_command;
use bimetal_proto::brp::wire::{Op, feature, kind};
use bimetal_proto::brp::{Hello, Outbound, Purpose, Request as WireRequest};
use bimetal_rt::VirtualOptions;
use bimetal_rt::net::PipeOptions;

use super::*;

const SIZE: u64 = 8 << 20;
/// Maximum number of polls of a session, far more than a session needs.
const POLLS_MAX: u32 = 5000;

/// Wrapper that polls a future the given number of times, and then drops it.
struct DropAfter {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    polls_left: u32,
    /// Set when the future has completed before it was dropped.
    ended: Rc<Cell<bool>>,
}

impl Future for DropAfter {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(future) = self.future.as_mut() else {
            return Poll::Ready(());
        };
        if let Poll::Ready(()) = future.as_mut().poll(context) {
            self.ended.set(true);
            self.future = None;
            return Poll::Ready(());
        }
        self.polls_left -= 1;
        if self.polls_left == 0 {
            self.future = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// A device that completes every request only after a delay.
struct Slow {
    rt: Rt,
    below: Rc<MemoryDevice>,
}

impl Device for Slow {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.rt.sleep(Duration::from_millis(5)).await;
            self.below.submit(request).await
        })
    }
}

fn address() -> Address {
    Address::Unix("/nowhere".into())
}

/// Creates a server whose data memory is large enough for two of the test's reads, so that a third
/// read waits.
fn serve(rt: &Rt, protocol: Protocol) -> Server {
    let config = ExportConfig {
        protocol,
        ..ExportConfig::new("vol", "dev", address())
    };
    let device = Slow {
        rt: rt.clone(),
        below: Rc::new(MemoryDevice::new(rt, SIZE)),
    };
    let limits = Limits {
        data_bytes: Some(256 << 10),
        ..Limits::default()
    };
    Server::with_limits(rt, vec![(config, Rc::new(device))], limits)
}

/// Starts a session that is dropped after `polls` polls. Returns the client's end of the stream,
/// and a flag that is set if the session ends before it is dropped.
fn connect(rt: &Rt, server: &Server, polls: u32) -> (Stream, Rc<Cell<bool>>) {
    // The buffer is small, so that sending takes several awaits.
    let options = PipeOptions {
        buffer_bytes: 1000,
        ..PipeOptions::default()
    };
    let (ours, theirs) = Stream::pair(rt, options);
    let state = &server.0;
    let portal = &state.portals[0];
    let exports = shown_to(&Client::Unknown, &portal.exports);
    let future = session(state, portal, Cut::new(theirs), Some(exports));
    let ended = Rc::new(Cell::new(false));
    state.connections.spawn(DropAfter {
        future: Some(Box::pin(future)),
        polls_left: polls,
        ended: Rc::clone(&ended),
    });
    (ours, ended)
}

/// Sends `parts` with a pause before each, and at the same time receives all bytes until the server
/// closes the stream.
async fn converse_with(rt: &Rt, stream: Stream, parts: Vec<Vec<u8>>) {
    let speak = async {
        for part in parts {
            rt.sleep(Duration::from_millis(2)).await;
            if stream.send(rt.pool().copy_of(&part).into()).await.is_err() {
                return;
            }
        }
    };
    let listen = async {
        loop {
            rt.sleep(Duration::from_millis(1)).await;
            let (result, _) = stream.recv(rt.pool().alloc_now(64 << 10), 0).await;
            if !matches!(result, Ok(1..)) {
                return;
            }
        }
    };
    futures_util::future::join(speak, listen).await;
}

/// Asserts that every counter of held resources is zero again.
fn assert_nothing_is_held(rt: &Rt, server: &Server, polls: u32) {
    let state = &server.0;
    let export = &state.exports[0];
    let counts = [
        (
            "connections of the export",
            export.counters.connections.get() as usize,
        ),
        ("tasks of connections", state.connections.len()),
        ("sessions", state.target.sessions()),
        ("guests", state.portals[0].guests()),
        ("watched", state.watched.borrow().len()),
        ("task numbers", state.tasks.in_use()),
        (
            "bytes of memory for data",
            state.memory.held_bytes() as usize,
        ),
        ("bytes of buffers", rt.pool().heap_bytes_used()),
    ];
    for (what, count) in counts {
        assert_eq!(count, 0, "{what}, dropped after {polls} polls");
    }
    assert!(!state.memory.is_short(), "dropped after {polls} polls");
}

/// Runs the conversation repeatedly, and drops each session one poll later than the previous one,
/// until a session completes before it is dropped. The complete session must take at least
/// `polls_min` polls.
fn drop_at_every_await(
    protocol: Protocol,
    polls_min: u32,
    conversation: impl AsyncFn(&Rt, &Server, Stream),
) {
    for polls in 1..POLLS_MAX {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let server = serve(&rt, protocol);
        let ended = rt.block_on(async {
            let (stream, ended) = connect(&rt, &server, polls);
            conversation(&rt, &server, stream).await;
            // Requests that have reached the device complete even after the session was dropped.
            rt.sleep(Duration::from_secs(1)).await;
            assert_nothing_is_held(&rt, &server, polls);
            server.stop().await;
            ended.get()
        });
        if ended {
            assert!(polls >= polls_min, "a conversation of {polls} polls");
            return;
        }
    }
    panic!("the conversation does not end");
}

fn nbd_option(option: u32, data: &[u8]) -> Vec<u8> {
    let (option, len) = (option.to_be_bytes(), (data.len() as u32).to_be_bytes());
    [&b"IHAVEOPT"[..], &option, &len, data].concat()
}

/// Encodes a request as in the NBD specification, section "Request message".
fn nbd_request(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let magic = 0x2560_9513_u32.to_be_bytes();
    let (command, cookie) = (command.to_be_bytes(), cookie.to_be_bytes());
    [
        &magic[..],
        &[0, 0],
        &command,
        &cookie,
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

#[test]
fn an_nbd_session_that_is_dropped_at_any_await_gives_everything_back() {
    let read = |cookie| nbd_request(0, cookie, 4096 * cookie, 120 << 10);
    let parts = vec![
        vec![0, 0, 0, 3],
        nbd_option(8, &[]),
        nbd_option(7, &[0, 0, 0, 0, 0, 0]),
        [read(1), read(2), read(3), read(4)].concat(),
        // The data of a write arrives in two parts.
        [nbd_request(1, 5, 512, 100 << 10), vec![7; 1000]].concat(),
        vec![7; (100 << 10) - 1000],
        // A request that the server refuses, a flush, and a disconnect.
        nbd_request(0, 6, SIZE, 4096),
        nbd_request(3, 7, 0, 0),
        nbd_request(2, 8, 0, 0),
    ];
    drop_at_every_await(Protocol::Nbd, 20, async |rt: &Rt, _: &Server, stream| {
        converse_with(rt, stream, parts.clone()).await;
    });
}

fn hello(path: u32, features: u32, outbound: &mut Outbound) -> Vec<u8> {
    let hello = Hello {
        version_min: 1,
        version_max: 1,
        features,
        session: [9; 16],
        path,
        purpose: Purpose::Open,
        name: "vol".to_owned(),
    };
    let mut out = Vec::new();
    hello.encode(outbound, &mut out);
    out
}

fn command(outbound: &mut Outbound, requests: &[WireRequest], in_turn: bool) -> Vec<u8> {
    let mut out = Vec::new();
    encode_command(outbound, &mut out, requests, in_turn);
    let data_bytes: usize = requests.iter().map(|r| r.data_bytes() as usize).sum();
    out.resize(out.len() + data_bytes, 7);
    out
}

/// Returns the messages that an initiator sends over a path. One of these messages is a fence,
/// which stops the path `fenced`.
fn brp_parts(fenced: u32) -> Vec<Vec<u8>> {
    let mut outbound = Outbound::new();
    let mut parts = vec![hello(2, feature::MERGE, &mut outbound)];
    outbound.open(feature::MERGE);
    let request = |op, tag: u32, length_bytes| WireRequest {
        tag,
        ..WireRequest::new(op, u64::from(tag) * 4096, length_bytes)
    };
    for tag in 1..5 {
        let read = request(Op::Read, tag, 120 << 10);
        parts.push(command(&mut outbound, &[read], false));
    }
    let write = command(&mut outbound, &[request(Op::Write, 5, 100 << 10)], false);
    parts.extend([write[..1000].to_vec(), write[1000..].to_vec()]);
    let several = [
        request(Op::Read, 6, 4096),
        request(Op::Write, 7, 4096),
        request(Op::Read, 8, 512),
    ];
    for in_turn in [false, true] {
        parts.push(command(&mut outbound, &several, in_turn));
    }
    let mut fence = Vec::new();
    for path in [fenced, 1000] {
        let body = u64::from(path).to_le_bytes();
        outbound.control(&mut fence, kind::FENCE, &body);
    }
    let mut close = Vec::new();
    outbound.control(&mut close, kind::CLOSE, &[]);
    parts.extend([fence, close]);
    parts
}

/// Opens another path of the session. The path has a request in flight, and stays open until a
/// fence message stops it.
async fn other_path(rt: &Rt, server: &Server) -> Stream {
    let (stream, _) = connect(rt, server, POLLS_MAX);
    let mut outbound = Outbound::new();
    let mut out = hello(1, 0, &mut outbound);
    outbound.open(0);
    let flush = WireRequest::new(Op::Flush, 0, 0);
    out.extend(command(&mut outbound, &[flush], false));
    stream.send(rt.pool().copy_of(&out).into()).await.unwrap();
    stream
}

#[test]
fn a_brp_session_that_is_dropped_at_any_await_gives_everything_back() {
    drop_at_every_await(
        Protocol::Brp,
        20,
        async |rt: &Rt, server: &Server, stream| {
            let other = other_path(rt, server).await;
            converse_with(rt, stream, brp_parts(1)).await;
            drop(other);
        },
    );
}

#[test]
fn a_brp_path_that_is_dropped_while_it_is_fenced_gives_everything_back() {
    drop_at_every_await(
        Protocol::Brp,
        5,
        async |rt: &Rt, server: &Server, stream| {
            let fencing = async {
                let (other, _) = connect(rt, server, POLLS_MAX);
                let mut outbound = Outbound::new();
                let mut parts = vec![hello(3, 0, &mut outbound)];
                outbound.open(0);
                rt.sleep(Duration::from_millis(20)).await;
                let mut fence = Vec::new();
                outbound.control(&mut fence, kind::FENCE, &2_u64.to_le_bytes());
                let mut close = Vec::new();
                outbound.control(&mut close, kind::CLOSE, &[]);
                parts.extend([fence, close]);
                converse_with(rt, other, parts).await;
            };
            let spoken = converse_with(rt, stream, brp_parts(1000));
            futures_util::future::join(spoken, fencing).await;
        },
    );
}
