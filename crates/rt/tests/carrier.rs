//! Tests of connections that another thread carries. Bytes arrive as with any stream, only
//! requested bytes are received until read-ahead is allowed, and the end of a connection is always
//! reported.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::task::{Context, Waker};

use bimetal_rt::net::{
    AHEAD_MAX, Carrier, Layer, PIECE_BYTES, Peer, RecvFuture, SEND_BYTES, SendFuture, Stream,
};
use bimetal_rt::{BufMut, BufPool, Payload, Rt, UringOptions};

fn real_rt() -> Rt {
    Rt::real_time(UringOptions::default()).expect("a ring")
}

/// A carried connection, and its peer.
fn carried(rt: &Rt, carrier: &Carrier) -> (Stream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let stream = Stream::from_unix(rt, ours).expect("a ring");
    let stream = carrier.carry(stream);
    assert!(stream.carried().is_some());
    (stream, theirs)
}

/// Returns `len` bytes; the value of each byte is its position modulo 251.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

async fn receive(rt: &Rt, stream: &Stream, len: usize) -> io::Result<Vec<u8>> {
    let (result, buf) = stream.recv(rt.pool().alloc_now(len), 0).await;
    result.map(|count| buf[..count].to_vec())
}

fn payload(rt: &Rt, bytes: &[u8]) -> Payload {
    rt.pool().copy_of(bytes).into()
}

/// Runs a test with a carrier (a thread that carries connections). The carrier's thread has ended
/// when this function returns.
fn with_carrier(test: impl AsyncFnOnce(&Rt, &Carrier)) {
    let rt = real_rt();
    rt.block_on(async {
        let carrier = Carrier::start(&rt, "carrier").await.expect("a thread");
        test(&rt, &carrier).await;
        carrier.close().await;
        assert!(!carrier.is_alive());
        assert_eq!(carrier.connections(), 0);
    });
    assert_eq!(rt.live_tasks(), 0);
    assert_eq!(rt.pool().heap_bytes_used(), 0);
}

#[test]
fn bytes_cross_in_order_whatever_their_number() {
    with_carrier(async |rt, carrier| {
        let (stream, peer) = carried(rt, carrier);
        stream.carried().unwrap().read_ahead();
        // The length is not a multiple of the piece size, and the payload has more than one slice.
        let sent = bytes(3 * SEND_BYTES + 4321);
        let echo = std::thread::spawn(move || {
            let mut peer = peer;
            let mut seen = vec![0; 3 * SEND_BYTES + 4321];
            peer.read_exact(&mut seen).expect("all of it");
            peer.write_all(&seen).expect("somebody takes it");
            seen
        });
        let mut parts = payload(rt, &sent[..70_001]);
        parts.append(payload(rt, &sent[70_001..]));
        stream.send(parts).await.expect("it takes all");
        let buf = rt.pool().alloc_now(sent.len());
        let (result, back) = stream.recv_exact(buf, 0).await;
        result.expect("all comes back");
        assert!(back[..] == sent[..], "in the same order");
        assert!(echo.join().expect("the peer ends") == sent);
        assert_eq!(receive(rt, &stream, 1).await.expect("an orderly end"), []);
    });
}

/// Tests that a receive of ten bytes takes exactly ten bytes from the socket, although the peer has
/// already sent more.
#[test]
fn without_reading_ahead_no_more_is_received_than_was_asked_for() {
    with_carrier(async |rt, carrier| {
        let (stream, mut peer) = carried(rt, carrier);
        peer.write_all(&bytes(30)).expect("there is room");
        assert_eq!(receive(rt, &stream, 10).await.unwrap(), bytes(30)[..10]);
        // Next, a layer is put on the connection. This layer receives the remaining bytes.
        let said = stream.carried().unwrap().raise(async |rt: &Rt, below| {
            let taken = receive(rt, &below, 5).await?;
            Ok((Stream::layered(Inverted(below)), taken))
        });
        assert_eq!(said.await.expect("it is put on"), bytes(30)[10..15]);
        let through_the_layer = [!15, !16, !17, !18];
        assert_eq!(receive(rt, &stream, 4).await.unwrap(), through_the_layer);
        stream.send(payload(rt, &[7, 8])).await.expect("it is sent");
        let mut seen = [0; 2];
        peer.read_exact(&mut seen).expect("through the layer");
        assert_eq!(seen, [!7, !8]);
    });
}

/// Tests that no layer can be put on a connection with bytes that were read ahead, since the layer
/// would not see them.
#[test]
fn a_layer_over_bytes_that_were_received_already_is_refused() {
    with_carrier(async |rt, carrier| {
        let (stream, mut peer) = carried(rt, carrier);
        stream.carried().unwrap().read_ahead();
        peer.write_all(&[1, 2]).expect("there is room");
        assert_eq!(receive(rt, &stream, 1).await.unwrap(), [1]);
        let raise = stream
            .carried()
            .unwrap()
            .raise(async |_: &Rt, below| Ok((below, ())));
        assert_eq!(raise.await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    });
}

#[test]
fn a_layer_that_fails_ends_the_connection() {
    with_carrier(async |rt, carrier| {
        let (stream, mut peer) = carried(rt, carrier);
        let raise = stream
            .carried()
            .unwrap()
            .raise(async |_: &Rt, _below| Err::<(Stream, ()), _>(io::ErrorKind::Other.into()));
        assert_eq!(raise.await.unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(peer.read(&mut [0]).expect("an end"), 0);
        assert!(receive(rt, &stream, 1).await.is_err());
        assert!(stream.send(payload(rt, &[1])).await.is_err());
    });
}

/// Tests two limits: the sender blocks if its peer does not receive, and the peer blocks if the
/// connection is not read.
#[test]
fn both_directions_are_bounded() {
    with_carrier(async |rt, carrier| {
        let (stream, peer) = carried(rt, carrier);
        let stream = Rc::new(stream);
        stream.carried().unwrap().read_ahead();
        let sent = Rc::new(Cell::new(false));
        let large = payload(rt, &bytes(64 << 20));
        let before = rt.pool().heap_bytes_used();
        let sending = (Rc::clone(&stream), Rc::clone(&sent), large);
        let task = rt.spawn(async move {
            let (stream, sent, payload) = sending;
            let result = stream.send(payload).await;
            sent.set(true);
            result
        });
        // The data is larger than all buffers of the connection together, so the peer's thread
        // blocks in its write.
        let whole = bytes(64 << 20);
        let writing = std::thread::spawn({
            let mut peer = peer.try_clone().expect("a descriptor");
            move || peer.write_all(&whole)
        });
        let mut received = 0;
        for _ in 0..100 {
            received += receive(rt, &stream, 1000)
                .await
                .expect("there is more")
                .len();
        }
        assert!(!sent.get(), "64 MiB fit nowhere on the way");
        assert!(!writing.is_finished(), "nor in the other direction");
        assert!(received <= 100_000);
        let held = rt.pool().heap_bytes_used() - before;
        assert!(held <= AHEAD_MAX * PIECE_BYTES, "{held} bytes are held");
        stream.shutdown();
        assert!(task.await.is_err(), "it was cut off");
        assert!(writing.join().expect("the peer ends").is_err());
    });
}

#[test]
fn shutting_down_wakes_both_ends_and_dropping_closes() {
    with_carrier(async |rt, carrier| {
        let (stream, mut peer) = carried(rt, carrier);
        let stream = Rc::new(stream);
        let (receiving, clock) = (Rc::clone(&stream), rt.clone());
        let waits = rt.spawn(async move { receive(&clock, &receiving, 1).await });
        stream.shutdown();
        assert_eq!(waits.await.expect("an end"), []);
        assert_eq!(peer.read(&mut [0]).expect("an end"), 0);
        drop(stream);
        // A receive whose future was dropped must not keep the connection open.
        let (stream, peer) = carried(rt, carrier);
        {
            let mut given_up = std::pin::pin!(receive(rt, &stream, 1));
            assert!(
                given_up
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
        }
        stream.send(payload(rt, &[9])).await.expect("it is sent");
        drop(stream);
        // This thread must not block in a read of `peer`: its messages to the carrier's thread are
        // sent only when its executor runs. Therefore the test receives through a stream of the
        // runtime.
        let peer = Stream::from_unix(rt, peer).expect("a ring");
        let seen = receive(rt, &peer, 2).await.expect("what was sent");
        assert_eq!(seen, [9]);
        assert_eq!(receive(rt, &peer, 1).await.expect("an end"), []);
    });
}

/// Tests a panic of the carrier's thread, caused by a layer of one connection. All connections of
/// the carrier break, and later connections are not carried.
#[test]
fn when_the_thread_dies_its_connections_break() {
    let rt = real_rt();
    rt.block_on(async {
        let carrier = Carrier::start(&rt, "carrier").await.expect("a thread");
        let (one, mut peer) = carried(&rt, &carrier);
        let (other, _peer) = carried(&rt, &carrier);
        let raise = one
            .carried()
            .unwrap()
            .raise::<()>(async |_: &Rt, _below| panic!("what the test has planted"));
        assert!(raise.await.is_err());
        assert!(receive(&rt, &one, 1).await.is_err());
        assert!(receive(&rt, &other, 1).await.is_err());
        assert!(other.send(payload(&rt, &[1])).await.is_err());
        assert_eq!(peer.read(&mut [0]).expect("an end"), 0);
        assert!(!carrier.is_alive());
        let (ours, _theirs) = UnixStream::pair().expect("sockets");
        let stream = carrier.carry(Stream::from_unix(&rt, ours).expect("a ring"));
        assert!(stream.carried().is_none());
        carrier.close().await;
    });
}

/// A layer that inverts every bit in both directions.
struct Inverted(Stream);

impl Layer for Inverted {
    fn recv(&self, buf: BufMut, from: usize) -> RecvFuture<'_> {
        Box::pin(async move {
            let (result, mut buf) = self.0.recv(buf, from).await;
            if let Ok(count) = &result {
                buf[from..from + count]
                    .iter_mut()
                    .for_each(|byte| *byte = !*byte);
            }
            (result, buf)
        })
    }

    fn send(&self, payload: Payload) -> SendFuture<'_> {
        let inverted: Vec<u8> = payload.to_vec().iter().map(|byte| !byte).collect();
        let inverted = BufPool::unregistered().copy_of(&inverted);
        Box::pin(async move { self.0.send(inverted.into()).await })
    }

    fn peer(&self) -> io::Result<Option<Peer>> {
        self.0.peer()
    }

    fn shutdown(&self) {
        self.0.shutdown();
    }
}
