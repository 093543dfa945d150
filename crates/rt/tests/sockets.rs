//! Tests of sockets with the driver that the environment variable `BIMETAL_DRIVER` names. An
//! operation that cannot complete at once must wait, and must complete when the peer lets it.

use std::io::ErrorKind;
use std::rc::Rc;

use bimetal_rt::net::{Address, Listener, Stream};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Payload, Rt, UringOptions, yield_now};

fn real_time() -> Rt {
    Rt::real_time(UringOptions::default()).expect("a runtime")
}

/// Opens more connections than fit in the listener's backlog (128). The remaining connections are
/// established as room becomes free.
#[test]
fn connections_wait_for_a_listener_without_room() {
    const CONNECTIONS: usize = 300;
    let rt = real_time();
    let name = format!("bimetal-full-{}.sock", std::process::id());
    let address = Address::Unix(std::env::temp_dir().join(name));
    let listener = Listener::bind(&rt, &address).unwrap();
    let connected = TaskGroup::new(&rt);
    for _ in 0..CONNECTIONS {
        let (rt, address) = (rt.clone(), address.clone());
        let connect = async move { Stream::connect(&rt, &address).await.map(drop).unwrap() };
        connected.spawn(connect);
    }
    rt.block_on(async {
        yield_now().await;
        for _ in 0..CONNECTIONS {
            listener.accept().await.unwrap();
        }
        connected.join().await;
    });
    std::fs::remove_file(listener.unix_path().unwrap()).unwrap();
}

/// Tests a connection on which both ends send at the same time. Each end sends 24 pieces of 1 MiB,
/// which together are more than the kernel buffers for a connection.
#[test]
fn a_send_waits_for_room_and_everything_arrives_in_order() {
    const PIECE: usize = 1 << 20;
    const PIECES: u8 = 24;
    let rt = real_time();
    let listener = Listener::bind(&rt, &"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
    rt.block_on(async {
        let near = Stream::connect(&rt, listener.address()).await.unwrap();
        let far = listener.accept().await.unwrap();
        let ends = [Rc::new(near), Rc::new(far)];
        let group = TaskGroup::new(&rt);
        for end in &ends {
            let (sender, pool) = (Rc::clone(end), rt.pool().clone());
            group.spawn(async move {
                for number in 0..PIECES {
                    let mut piece = pool.alloc_now(PIECE);
                    piece.fill(number);
                    sender.send(Payload::from(piece.freeze())).await.unwrap();
                }
            });
        }
        // No task receives until the senders of both directions have filled the kernel's buffers.
        for _ in 0..100 {
            yield_now().await;
        }
        assert!(!group.is_empty(), "the kernel does not keep 24 MiB");
        for end in &ends {
            let (receiver, pool) = (Rc::clone(end), rt.pool().clone());
            group.spawn(async move {
                for number in 0..PIECES {
                    let (all, piece) = receiver.recv_exact(pool.alloc_now(PIECE), 0).await;
                    all.unwrap();
                    assert!(piece.iter().all(|&byte| byte == number));
                }
            });
        }
        group.join().await;
    });
}

#[test]
fn a_refused_connection_says_so() {
    let rt = real_time();
    let listener = Listener::bind(&rt, &"tcp:127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().clone();
    drop(listener);
    let error = rt.block_on(Stream::connect(&rt, &address)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

/// Tests that the end of a connection wakes the receiver, whichever of the two ends closes it.
#[test]
fn a_receive_ends_with_the_connection() {
    let rt = real_time();
    for here in [true, false] {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let stream = Rc::new(Stream::from_unix(&rt, ours).unwrap());
        let (receiver, pool) = (Rc::clone(&stream), rt.pool().clone());
        let receive = rt.spawn(async move { receiver.recv(pool.alloc_now(4096), 0).await.0 });
        rt.block_on(yield_now());
        assert!(!receive.is_finished());
        match here {
            true => stream.shutdown(),
            false => drop(theirs),
        }
        assert_eq!(rt.block_on(receive).unwrap(), 0);
    }
}
