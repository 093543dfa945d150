//! Tests of the server with an NBD client that sends raw bytes, in virtual time.

use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use bimetal_block::Device;
use bimetal_block::Op;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_export::{ExportConfig, REQUESTS_IN_FLIGHT_MAX, Server};
use bimetal_rt::Rt;
use bimetal_rt::net::PipeOptions;
use bimetal_rt::sync::TaskGroup;

fn memory(rt: &Rt) -> Rc<dyn Device> {
    Rc::new(MemoryDevice::new(rt, SIZE))
}

#[test]
fn simple_replies_carry_every_command() {
    let rt = virtual_rt();
    let server = server(&rt, memory(&rt));
    rt.block_on(async {
        let mut client = connect(&rt, &server);
        // The bits are HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES and
        // CAN_MULTI_CONN.
        let flags = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;
        assert_eq!(client.enter().await, (SIZE, flags));
        client.write(0, 1, 4096, &[7; 8192]).await;
        client.expect(1, 0).await;
        assert_eq!(client.read(4096, 8192).await, [7; 8192]);
        // The server writes exactly the given bytes, not whole blocks: the adjacent bytes are
        // unchanged.
        client.write(1, 2, 5000, &[8; 10]).await;
        client.expect(2, 0).await;
        let around = client.read(4999, 12).await;
        assert_eq!(around, [&[7][..], &[8; 10], &[7]].concat());
        client.request(0, FLUSH, 3, 0, 0).await;
        client.expect(3, 0).await;
        client.request(0, ZEROES, 4, 4096, 100).await;
        client.expect(4, 0).await;
        client.request(0, TRIM, 5, 8192, 4096).await;
        client.expect(5, 0).await;
        let rest = client.read(4096, 8192).await;
        assert!(rest[..100].iter().all(|&b| b == 0) && rest[4096..].iter().all(|&b| b == 0));
        assert_eq!(rest[100..904], [7; 804]);
        assert_eq!(statistic(&server, "writes"), 2);
        assert_eq!(statistic(&server, "written_bytes"), 8202);
        client.request(0, DISC, 6, 0, 0).await;
        assert!(client.at_end().await);
        server.stop().await;
    });
    drop(server);
    assert_clean(&rt);
}

#[test]
fn structured_replies_carry_data_errors_and_block_status() {
    let rt = virtual_rt();
    let server = server(&rt, memory(&rt));
    rt.block_on(async {
        let mut client = connect(&rt, &server);
        client.enter_structured().await;
        client.write(0, 1, 0, &[5; 4096]).await;
        client.expect(1, 0).await;
        client.request(0, READ, 2, 4000, 200).await;
        let data = [&[5; 96][..], &[0; 104]].concat();
        let payload = [&4000u64.to_be_bytes()[..], &data].concat();
        let answer = Answer::Chunk {
            flags: 1,
            kind: 1,
            cookie: 2,
            payload,
        };
        assert_eq!(client.answer().await, answer);
        // A read beyond the end is answered with an error chunk, which has EINVAL and an empty
        // message.
        client.request(0, READ, 3, SIZE, 1).await;
        let payload = vec![0, 0, 0, 22, 0, 0];
        let answer = Answer::Chunk {
            flags: 1,
            kind: 0x8001,
            cookie: 3,
            payload,
        };
        assert_eq!(client.answer().await, answer);
        // The memory device allocates 64 KiB at a time, so one extent of data is followed by a hole
        // that reads as zeroes (flags 1 | 2).
        client.request(0, STATUS, 4, 0, 131_072).await;
        let words = [1u32, 65_536, 0, 65_536, 3];
        let payload = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let answer = Answer::Chunk {
            flags: 1,
            kind: 5,
            cookie: 4,
            payload,
        };
        assert_eq!(client.answer().await, answer);
        // With REQ_ONE, the server reports only the first extent, cut to the request.
        client.request(1 << 3, STATUS, 5, 100, 200).await;
        let words = [1u32, 200, 0];
        let payload = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let answer = Answer::Chunk {
            flags: 1,
            kind: 5,
            cookie: 5,
            payload,
        };
        assert_eq!(client.answer().await, answer);
        server.stop().await;
    });
    drop(server);
    assert_clean(&rt);
}

#[test]
fn flags_reach_the_device() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_millis(1));
    let server = server(&rt, slow.clone());
    rt.block_on(async {
        let mut client = connect(&rt, &server);
        client.enter().await;
        client.write(1, 1, 0, &[1; 4096]).await;
        client.request(1 | 2, ZEROES, 2, 4096, 4096).await;
        client.request(1, TRIM, 3, 8192, 4096).await;
        for _ in 0..3 {
            assert!(matches!(
                client.answer().await,
                Answer::Simple { error: 0, .. }
            ));
        }
        server.stop().await;
    });
    let seen = slow.seen.borrow();
    let flags: Vec<_> = seen
        .iter()
        .map(|r| (r.op, r.flags.fua, r.flags.keep_allocated))
        .collect();
    assert_eq!(
        flags,
        [
            (Op::Write, true, false),
            (Op::WriteZeroes, true, true),
            (Op::Discard, true, false)
        ]
    );
}

/// The same conversation is sent in fragments of various small sizes, with payloads below and above
/// the size up to which payloads are copied.
#[test]
fn fragments_make_no_difference() {
    for buffer_bytes in [1, 7, 29, 4097, 70_000] {
        let rt = virtual_rt();
        let server = server(&rt, memory(&rt));
        let options = PipeOptions {
            buffer_bytes,
            latency: Duration::ZERO,
        };
        rt.block_on(async {
            let mut client = connect_with(&rt, &server, options);
            client.enter().await;
            let large: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
            let small = &large[..if buffer_bytes < 29 { 999 } else { 60_000 }];
            let wire = [
                request(0, WRITE, 1, 3, large.len() as u32),
                large.clone(),
                request(0, WRITE, 2, 300_000, small.len() as u32),
                small.to_vec(),
                request(0, FLUSH, 3, 0, 0),
            ]
            .concat();
            client.send(&wire).await;
            let mut cookies = Vec::new();
            for _ in 0..3 {
                match client.answer().await {
                    Answer::Simple { error: 0, cookie } => cookies.push(cookie),
                    other => panic!("{other:?}"),
                }
            }
            cookies.sort_unstable();
            assert_eq!(cookies, [1, 2, 3]);
            assert!(client.read(3, large.len() as u32).await == large);
            assert!(client.read(300_000, small.len() as u32).await == small);
            server.stop().await;
        });
        drop(server);
        assert_clean(&rt);
    }
}

#[test]
fn refused_requests_are_answered_and_the_stream_goes_on() {
    let rt = virtual_rt();
    let mut config = ExportConfig::new("vol", "dev", address());
    config.read_only = true;
    let frozen = Server::new(&rt, vec![(config, memory(&rt))]);
    let open = server(&rt, memory(&rt));
    rt.block_on(async {
        let mut client = connect(&rt, &open);
        client.enter().await;
        // The payload exceeds the maximum payload of 32 MiB (and the end of the device), but not
        // the size from which the server ends the connection. The server discards the payload and
        // processes the next request.
        client.request(0, WRITE, 1, 0, (32 << 20) + 1).await;
        for _ in 0..32 {
            client.send(&vec![0; 1 << 20]).await;
        }
        client.send(&[0]).await;
        client.expect(1, 28).await;
        assert_eq!(client.read(0, 1).await, [0]);
        assert_eq!(statistic(&open, "requests_refused"), 1);
        let mut client = connect(&rt, &open);
        client.enter().await;
        for (cookie, flags, command, offset, len, error) in [
            (1, 0, WRITE, SIZE, 10, 28),
            (2, 0, READ, SIZE - 1, 2, 22),
            (3, 0, READ, 0, 0, 22),
            (4, 0, CACHE, 0, 4096, 22),
            (5, 0, 99, 0, 4096, 22),
            (6, 1 << 4, ZEROES, 0, 4096, 22),
            (7, 0, STATUS, 0, 4096, 22),
            (8, 0, ZEROES, u64::MAX, 4096, 28),
            (9, 0, FLUSH, 1, 0, 22),
        ] {
            client.request(flags, command, cookie, offset, len).await;
            if command == WRITE {
                client.send(&vec![1; len as usize]).await;
            }
            client.expect(cookie, error).await;
        }
        let mut client = connect(&rt, &frozen);
        let (_, flags) = client.enter().await;
        assert_eq!(flags & 2, 2, "READ_ONLY");
        client.write(0, 1, 0, &[1; 100_000]).await;
        client.expect(1, 1).await;
        assert_eq!(client.read(0, 4).await, [0; 4]);
        open.stop().await;
        frozen.stop().await;
    });
    drop((open, frozen));
    assert_clean(&rt);
}

#[test]
fn a_malformed_message_ends_its_connection_alone() {
    let rt = virtual_rt();
    let server = server(&rt, memory(&rt));
    rt.block_on(async {
        let mut good = connect(&rt, &server);
        good.enter().await;
        // A wrong request magic, a request with an extended header, and a payload that is never
        // permitted.
        let mut extended = request(0, READ, 1, 0, 4096);
        extended[..4].copy_from_slice(&0x21e4_1c71u32.to_be_bytes());
        for bad in [
            vec![0; 28],
            extended,
            request(0, WRITE, 1, 0, (64 << 20) + 1),
        ] {
            let mut client = connect(&rt, &server);
            client.enter().await;
            client.send(&bad).await;
            assert!(client.at_end().await);
        }
        // The server closes the connection after unknown flags, a wrong magic, or the name of an
        // export that does not exist.
        let flags = [0, 0, 0, 3];
        for bad in [
            vec![0xff; 4],
            [&flags[..], b"IHAVEOPX", &[0; 8]].concat(),
            [&flags[..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 1, b'x']].concat(),
        ] {
            let mut client = connect(&rt, &server);
            client.take(18).await;
            client.send(&bad).await;
            assert!(client.at_end().await);
        }
        assert_eq!(statistic(&server, "protocol_errors"), 6);
        // The server refuses TLS, and the handshake continues.
        let mut client = connect(&rt, &server);
        client.take(18).await;
        client.send(&flags).await;
        client.option(5, &[]).await;
        assert_eq!(client.reply().await.0, 0x8000_0001);
        client.option(3, &[]).await;
        assert_eq!(client.reply().await, (2, b"\0\0\0\x03vol".to_vec()));
        good.write(0, 9, 0, &[3; 4096]).await;
        good.expect(9, 0).await;
        server.stop().await;
    });
    drop(server);
    assert_clean(&rt);
}

#[test]
fn a_client_that_leaves_in_the_middle_loses_nothing_and_leaves_nothing() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_millis(5));
    let server = server(&rt, slow.clone());
    rt.block_on(async {
        for sent in [0, 10, 28, 50, 4000] {
            let client = connect(&rt, &server);
            let mut client = client;
            client.enter().await;
            client.write(0, 1, 0, &[sent as u8 + 1; 4096]).await;
            client.write(0, 2, 4096, &[sent as u8 + 1; 4096]).await;
            let cut = [request(0, WRITE, 3, 8192, 200_000), vec![9; 100_000]].concat();
            client.send(&cut[..sent]).await;
            while slow.running.get() < 2 {
                bimetal_rt::yield_now().await;
            }
            drop(client);
            let started = slow.completed.get();
            while server.connections() > 0 {
                rt.sleep(Duration::from_millis(1)).await;
            }
            // Both complete writes were executed, even after the client had disconnected. The
            // incomplete third write was not started.
            assert_eq!(slow.completed.get(), started + 2);
            let mut client = connect(&rt, &server);
            client.enter().await;
            assert_eq!(client.read(0, 8192).await, vec![sent as u8 + 1; 8192]);
            assert_eq!(client.read(8192, 1).await, [0]);
        }
        server.stop().await;
    });
    drop(server);
    assert_clean(&rt);
}

#[test]
fn bounds_push_back_on_the_client() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_millis(1));
    let server = server(&rt, slow.clone());
    rt.block_on(async {
        let mut client = connect(&rt, &server);
        client.enter().await;
        let flood: Vec<u8> = (0..2000)
            .flat_map(|i| request(0, READ, i, (i % 256) * 4096, 4096))
            .collect();
        client.send(&flood).await;
        // The client does not read the replies. The pipe holds some of the replies. The requests of
        // the remaining replies stay in flight, so no further request is started.
        rt.sleep(Duration::from_secs(5)).await;
        let started = slow.seen.borrow().len();
        assert!(started < 2000, "{started} started");
        assert!(slow.running_max.get() <= REQUESTS_IN_FLIGHT_MAX as usize);
        for _ in 0..2000 {
            assert!(matches!(
                client.answer().await,
                Answer::Simple { error: 0, .. }
            ));
            client.take(4096).await;
        }
        server.stop().await;
    });
    drop(server);
    assert_clean(&rt);
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let rt = virtual_rt();
    let server = server(&rt, memory(&rt));
    rt.block_on(async {
        let mut client = connect(&rt, &server);
        client.enter().await;
        client.request(0, READ, 1, 0, SIZE as u32).await;
        let begun = rt.now();
        while server.connections() > 0 {
            rt.sleep(Duration::from_secs(1)).await;
        }
        assert!(rt.now().since(begun) >= Duration::from_secs(60));
        // An idle client stays connected.
        let mut client = connect(&rt, &server);
        client.enter().await;
        rt.sleep(Duration::from_secs(1000)).await;
        assert_eq!(client.read(0, 1).await, [0]);
        server.stop().await;
    });
    drop(server);
    assert_clean(&rt);
}

#[test]
fn silent_clients_and_crowds_are_turned_away() {
    let rt = virtual_rt();
    let mut config = ExportConfig::new("vol", "dev", address());
    config.connections_max = 2;
    let server = Server::new(&rt, vec![(config, memory(&rt))]);
    rt.block_on(async {
        let mut silent = connect(&rt, &server);
        silent.take(18).await;
        assert!(silent.at_end().await);
        assert_eq!(rt.now().as_ns(), 10_000_000_000);
        let mut first = connect(&rt, &server);
        let mut second = connect(&rt, &server);
        first.enter().await;
        second.enter().await;
        let mut third = connect(&rt, &server);
        third.take(18).await;
        third.send(&[0, 0, 0, 3]).await;
        third.option(1, &[]).await;
        assert!(third.at_end().await, "it is not told that it is let in");
        assert_eq!(first.read(0, 1).await, [0]);
        // At most 64 clients can be in their handshake at the same time. When a further client
        // connects, the server disconnects the client that connected first.
        let mut crowd: Vec<Raw> = (0..65).map(|_| connect(&rt, &server)).collect();
        for waiting in &mut crowd {
            assert_eq!(waiting.take(18).await.len(), 18);
        }
        assert!(crowd[0].at_end().await);
        assert_eq!(server.connections(), 2 + 64);
        drop(second);
        while server.connections() != 1 + 64 {
            rt.sleep(Duration::from_millis(1)).await;
        }
        crowd[64].send(&[0, 0, 0, 3]).await;
        crowd[64].option(1, b"vol").await;
        assert_eq!(crowd[64].take(10).await.len(), 10);
        assert_eq!(first.read(0, 1).await, [0]);
        drop(crowd);
        server.stop().await;
    });
    drop(server);
    assert_clean(&rt);
}

#[test]
fn stopping_finishes_what_has_begun() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_millis(50));
    let server = server(&rt, slow.clone());
    rt.block_on(async {
        let mut clients = Vec::new();
        for i in 0..20u8 {
            let mut client = connect(&rt, &server);
            client.enter().await;
            client
                .write(0, u64::from(i), u64::from(i) * 8192, &[i + 1; 4096])
                .await;
            clients.push(client);
        }
        while slow.running.get() < 20 {
            bimetal_rt::yield_now().await;
        }
        let stopping = {
            let server = server.clone();
            rt.spawn(async move { server.stop().await })
        };
        for (i, client) in clients.iter_mut().enumerate() {
            client.expect(i as u64, 0).await;
            assert!(client.at_end().await);
        }
        stopping.await;
        // A stopped server accepts no client.
        assert!(connect(&rt, &server).at_end().await);
    });
    drop(server);
    assert_clean(&rt);
}

#[test]
fn a_flush_covers_the_writes_of_other_connections() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_millis(1));
    let server = server(&rt, slow.clone());
    rt.block_on(async {
        let (mut a, mut b) = (connect(&rt, &server), connect(&rt, &server));
        a.enter().await;
        b.enter().await;
        a.write(0, 1, 0, &[1; 4096]).await;
        a.expect(1, 0).await;
        b.request(0, FLUSH, 2, 0, 0).await;
        b.expect(2, 0).await;
        assert_eq!(b.read(0, 4096).await, [1; 4096]);
        server.stop().await;
    });
    // The device received the write of one connection and, after its completion, the flush of the
    // other connection.
    let ops: Vec<Op> = slow.seen.borrow().iter().map(|r| r.op).collect();
    assert_eq!(ops, [Op::Write, Op::Flush, Op::Read]);
}

/// Concurrent unaligned writes of many connections to the same blocks do not overwrite each other's
/// bytes.
#[test]
fn many_clients_share_blocks() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_micros(10));
    let server = server(&rt, slow);
    let group = TaskGroup::new(&rt);
    for i in 0..64u64 {
        let mut client = connect(&rt, &server);
        group.spawn(async move {
            client.enter().await;
            for round in 0..4u64 {
                // The byte ranges of the connections interleave over four blocks.
                let offset = (i * 4 + round) * 64;
                client.write(0, round, offset, &[i as u8 + 1; 64]).await;
            }
            for _ in 0..4 {
                assert!(matches!(
                    client.answer().await,
                    Answer::Simple { error: 0, .. }
                ));
            }
            client.request(0, DISC, 9, 0, 0).await;
        });
    }
    rt.block_on(async {
        group.join().await;
        let mut client = connect(&rt, &server);
        client.enter().await;
        let all = client.read(0, 16_384).await;
        for (at, &byte) in all.iter().enumerate() {
            assert_eq!(usize::from(byte), at / 256 + 1);
        }
        server.stop().await;
    });
    drop((server, group));
    assert_clean(&rt);
}

/// A connection gets the lowest free client number, and all requests of the connection carry this
/// number, including the reads of partial blocks. After the connection has ended, the server
/// assigns its number again.
#[test]
fn requests_carry_the_number_of_their_connection() {
    let rt = virtual_rt();
    let slow = Slow::new(&rt, Duration::from_millis(1));
    let server = server(&rt, slow.clone());
    let asked = || -> Vec<u32> { slow.seen.take().iter().map(|r| r.origin.task).collect() };
    rt.block_on(async {
        let mut first = connect(&rt, &server);
        first.enter().await;
        let mut second = connect(&rt, &server);
        second.enter().await;
        second.write(0, 1, 0, &[1; 4096]).await;
        second.expect(1, 0).await;
        first.write(0, 1, 100, &[2; 10]).await;
        first.expect(1, 0).await;
        // The write of ten bytes becomes three requests: reads of the bytes before and after the
        // ten bytes in their block, and a write of the block.
        assert_eq!(asked(), [2, 1, 1, 1]);
        first.request(0, DISC, 2, 0, 0).await;
        assert!(first.at_end().await);
        while server.connections() > 1 {
            rt.sleep(Duration::from_millis(1)).await;
        }
        let mut third = connect(&rt, &server);
        third.enter().await;
        third.read(0, 4096).await;
        second.read(0, 4096).await;
        assert_eq!(asked(), [1, 2]);
        server.stop().await;
    });
    drop(server);
    assert_clean(&rt);
}
