//! Tests of the server with an NBD client that sends raw bytes, in virtual time.

use std::time::Duration;

use crate::common::*;
use bimetal_block::Op;
use bimetal_export::REQUESTS_IN_FLIGHT_MAX;
use bimetal_rt::net::PipeOptions;
use bimetal_rt::sync::TaskGroup;

#[test]
fn simple_replies_carry_every_command() {
    Served::memory().run(async |served| {
        let mut client = served.connect();
        // HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES, CAN_MULTI_CONN.
        let flags = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;
        assert_eq!(client.enter().await, (SIZE, flags));
        client.store(1, 4096, &[7; 8192]).await;
        assert_eq!(client.read(4096, 8192).await, [7; 8192]);
        // The server writes exactly the given bytes, not whole blocks: the adjacent bytes are
        // unchanged.
        client.write(1, 2, 5000, &[8; 10]).await;
        client.expect(2, 0).await;
        let around = client.read(4999, 12).await;
        assert_eq!(around, [&[7][..], &[8; 10], &[7]].concat());
        client.call(FLUSH, 3, 0, 0).await;
        client.call(ZEROES, 4, 4096, 100).await;
        client.call(TRIM, 5, 8192, 4096).await;
        let rest = client.read(4096, 8192).await;
        assert!(rest[..100].iter().all(|&b| b == 0) && rest[4096..].iter().all(|&b| b == 0));
        assert_eq!(rest[100..904], [7; 804]);
        assert_eq!(served.statistic("writes"), 2);
        assert_eq!(served.statistic("written_bytes"), 8202);
        client.request(0, DISC, 6, 0, 0).await;
        assert!(client.at_end().await);
        served.stop().await;
    });
}

#[test]
fn structured_replies_carry_data_errors_and_block_status() {
    Served::memory().run(async |served| {
        let mut client = served.connect();
        client.enter_structured().await;
        client.store(1, 0, &[5; 4096]).await;
        client.request(0, READ, 2, 4000, 200).await;
        let data = [&[5; 96][..], &[0; 104]].concat();
        let payload = [&4000u64.to_be_bytes()[..], &data].concat();
        client.expect_chunk(2, 1, &payload).await;
        // A read beyond the end is answered with an error chunk, which has EINVAL and an empty
        // message.
        client.request(0, READ, 3, SIZE, 1).await;
        client.expect_chunk(3, 0x8001, &[0, 0, 0, 22, 0, 0]).await;
        // The memory device allocates 64 KiB at a time, so one extent of data is followed by a hole
        // that reads as zeroes (flags 1 | 2).
        client.request(0, STATUS, 4, 0, 131_072).await;
        let words = [1, 65_536, 0, 65_536, 3].map(u32::to_be_bytes);
        client.expect_chunk(4, 5, &words.concat()).await;
        // With REQ_ONE, the server reports only the first extent, cut to the request.
        client.request(1 << 3, STATUS, 5, 100, 200).await;
        let words = [1, 200, 0].map(u32::to_be_bytes);
        client.expect_chunk(5, 5, &words.concat()).await;
        served.stop().await;
    });
}

#[test]
fn flags_reach_the_device() {
    let (served, slow) = Served::slow(Duration::from_millis(1));
    served.run(async |served| {
        let mut client = served.enter().await;
        client.write(1, 1, 0, &[1; 4096]).await;
        client.request(1 | 2, ZEROES, 2, 4096, 4096).await;
        client.request(1, TRIM, 3, 8192, 4096).await;
        for _ in 0..3 {
            client.success().await;
        }
        served.stop().await;
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
        let options = PipeOptions {
            buffer_bytes,
            latency: Duration::ZERO,
        };
        Served::memory().run(async |served| {
            let mut client = connect_with(&served.rt, &served.server, options);
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
                cookies.push(client.success().await);
            }
            cookies.sort_unstable();
            assert_eq!(cookies, [1, 2, 3]);
            assert!(client.read(3, large.len() as u32).await == large);
            assert!(client.read(300_000, small.len() as u32).await == small);
            served.stop().await;
        });
    }
}

#[test]
fn refused_requests_are_answered_and_the_stream_goes_on() {
    Served::memory().run(async |served| {
        let mut client = served.enter().await;
        // The payload exceeds the maximum payload of 32 MiB (and the end of the device), but it is
        // smaller than a payload at which the server ends the connection. The server discards the
        // payload and processes the next request.
        client.request(0, WRITE, 1, 0, (32 << 20) + 1).await;
        for _ in 0..32 {
            client.send(&vec![0; 1 << 20]).await;
        }
        client.send(&[0]).await;
        client.expect(1, 28).await;
        assert_eq!(client.read(0, 1).await, [0]);
        assert_eq!(served.statistic("requests_refused"), 1);
        let mut client = served.enter().await;
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
        served.stop().await;
    });
    Served::memory_as(|config| config.read_only = true).run(async |served| {
        let mut client = served.connect();
        let (_, flags) = client.enter().await;
        assert_eq!(flags & 2, 2, "READ_ONLY");
        client.write(0, 1, 0, &[1; 100_000]).await;
        client.expect(1, 1).await;
        assert_eq!(client.read(0, 4).await, [0; 4]);
        served.stop().await;
    });
}

#[test]
fn a_malformed_message_ends_its_connection_alone() {
    Served::memory().run(async |served| {
        let mut good = served.enter().await;
        // The three messages have a wrong request magic, an extended header, and a payload that is
        // larger than is ever permitted.
        let mut extended = request(0, READ, 1, 0, 4096);
        extended[..4].copy_from_slice(&0x21e4_1c71u32.to_be_bytes());
        for bad in [
            vec![0; 28],
            extended,
            request(0, WRITE, 1, 0, (64 << 20) + 1),
        ] {
            let mut client = served.enter().await;
            client.send(&bad).await;
            assert!(client.at_end().await);
        }
        // Handshakes with unknown flags, with a wrong magic, and for an export that does not exist.
        let flags = [0, 0, 0, 3];
        for bad in [
            vec![0xff; 4],
            [&flags[..], b"IHAVEOPX", &[0; 8]].concat(),
            [&flags[..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 1, b'x']].concat(),
        ] {
            let mut client = served.connect();
            client.take(18).await;
            client.send(&bad).await;
            assert!(client.at_end().await);
        }
        assert_eq!(served.statistic("protocol_errors"), 6);
        // The server refuses TLS, and the handshake continues.
        let mut client = served.connect();
        client.take(18).await;
        client.send(&flags).await;
        client.option(5, &[]).await;
        assert_eq!(client.reply().await.0, 0x8000_0001);
        client.option(3, &[]).await;
        assert_eq!(client.reply().await, (2, b"\0\0\0\x03vol".to_vec()));
        good.store(9, 0, &[3; 4096]).await;
        served.stop().await;
    });
}

#[test]
fn a_client_that_leaves_in_the_middle_loses_nothing_and_leaves_nothing() {
    let (served, slow) = Served::slow(Duration::from_millis(5));
    served.run(async |served| {
        for sent in [0, 10, 28, 50, 4000] {
            let client = served.enter().await;
            client.write(0, 1, 0, &[sent as u8 + 1; 4096]).await;
            client.write(0, 2, 4096, &[sent as u8 + 1; 4096]).await;
            let cut = [request(0, WRITE, 3, 8192, 200_000), vec![9; 100_000]].concat();
            client.send(&cut[..sent]).await;
            while slow.running.get() < 2 {
                bimetal_rt::yield_now().await;
            }
            drop(client);
            let started = slow.completed.get();
            served.until_connections(0).await;
            // The client disconnected before its two complete writes had finished. Both were
            // executed nevertheless. The incomplete third write was not started.
            assert_eq!(slow.completed.get(), started + 2);
            let mut client = served.enter().await;
            assert_eq!(client.read(0, 8192).await, vec![sent as u8 + 1; 8192]);
            assert_eq!(client.read(8192, 1).await, [0]);
        }
        served.stop().await;
    });
}

#[test]
fn bounds_push_back_on_the_client() {
    let (served, slow) = Served::slow(Duration::from_millis(1));
    served.run(async |served| {
        let mut client = served.enter().await;
        let flood: Vec<u8> = (0..2000)
            .flat_map(|i| request(0, READ, i, (i % 256) * 4096, 4096))
            .collect();
        client.send(&flood).await;
        // The client does not read the replies. The pipe holds only some of them. The requests
        // whose replies do not fit stay in flight, so no further request is started.
        served.rt.sleep(Duration::from_secs(5)).await;
        let started = slow.seen.borrow().len();
        assert!(started < 2000, "{started} started");
        assert!(slow.running_max.get() <= REQUESTS_IN_FLIGHT_MAX as usize);
        for _ in 0..2000 {
            client.success().await;
            client.take(4096).await;
        }
        served.stop().await;
    });
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    Served::memory().run(async |served| {
        let client = served.enter().await;
        client.request(0, READ, 1, 0, SIZE as u32).await;
        let begun = served.rt.now();
        served.until_connections(0).await;
        assert!(served.rt.now().since(begun) >= Duration::from_secs(60));
        // An idle client stays connected.
        let mut client = served.enter().await;
        served.rt.sleep(Duration::from_secs(1000)).await;
        assert_eq!(client.read(0, 1).await, [0]);
        served.stop().await;
    });
}

#[test]
fn silent_clients_and_crowds_are_turned_away() {
    Served::memory_as(|config| config.connections_max = 2).run(async |served| {
        let mut silent = served.connect();
        silent.take(18).await;
        assert!(silent.at_end().await);
        assert_eq!(served.rt.now().as_ns(), 10_000_000_000);
        let mut first = served.enter().await;
        let second = served.enter().await;
        let mut third = served.connect();
        third.take(18).await;
        third.send(&[0, 0, 0, 3]).await;
        third.option(1, &[]).await;
        assert!(third.at_end().await, "it is not told that it is let in");
        assert_eq!(first.read(0, 1).await, [0]);
        // At most 64 clients can be in their handshake at the same time. When a further client
        // connects, the server disconnects the client that connected first.
        let mut crowd: Vec<Raw> = (0..65).map(|_| served.connect()).collect();
        for waiting in &mut crowd {
            assert_eq!(waiting.take(18).await.len(), 18);
        }
        assert!(crowd[0].at_end().await);
        assert_eq!(served.server.connections(), 2 + 64);
        drop(second);
        served.until_connections(1 + 64).await;
        crowd[64].send(&[0, 0, 0, 3]).await;
        crowd[64].option(1, b"vol").await;
        assert_eq!(crowd[64].take(10).await.len(), 10);
        assert_eq!(first.read(0, 1).await, [0]);
        drop(crowd);
        served.stop().await;
    });
}

#[test]
fn stopping_finishes_what_has_begun() {
    let (served, slow) = Served::slow(Duration::from_millis(50));
    served.run(async |served| {
        let mut clients = Vec::new();
        for i in 0..20u8 {
            let client = served.enter().await;
            client
                .write(0, u64::from(i), u64::from(i) * 8192, &[i + 1; 4096])
                .await;
            clients.push(client);
        }
        while slow.running.get() < 20 {
            bimetal_rt::yield_now().await;
        }
        let server = served.server.clone();
        let stopping = served.rt.spawn(async move { server.stop().await });
        for (i, client) in clients.iter_mut().enumerate() {
            client.expect(i as u64, 0).await;
            assert!(client.at_end().await);
        }
        stopping.await;
        // A stopped server accepts no client.
        assert!(served.connect().at_end().await);
    });
}

#[test]
fn a_flush_covers_the_writes_of_other_connections() {
    let (served, slow) = Served::slow(Duration::from_millis(1));
    served.run(async |served| {
        let (mut a, mut b) = (served.enter().await, served.enter().await);
        a.store(1, 0, &[1; 4096]).await;
        b.call(FLUSH, 2, 0, 0).await;
        assert_eq!(b.read(0, 4096).await, [1; 4096]);
        served.stop().await;
    });
    // The same device received the write and, after its completion, the flush.
    let ops: Vec<Op> = slow.seen.borrow().iter().map(|r| r.op).collect();
    assert_eq!(ops, [Op::Write, Op::Flush, Op::Read]);
}

/// Concurrent unaligned writes of many connections to the same blocks do not overwrite each other's
/// bytes.
#[test]
fn many_clients_share_blocks() {
    let (served, _) = Served::slow(Duration::from_micros(10));
    served.run(async |served| {
        let group = TaskGroup::new(&served.rt);
        for i in 0..64u64 {
            let mut client = served.connect();
            group.spawn(async move {
                client.enter().await;
                for round in 0..4u64 {
                    // The four writes of a connection cover 256 adjacent bytes, so 16 connections
                    // write to the same block.
                    let offset = (i * 4 + round) * 64;
                    client.write(0, round, offset, &[i as u8 + 1; 64]).await;
                }
                for _ in 0..4 {
                    client.success().await;
                }
                client.request(0, DISC, 9, 0, 0).await;
            });
        }
        group.join().await;
        let mut client = served.enter().await;
        let all = client.read(0, 16_384).await;
        for (at, &byte) in all.iter().enumerate() {
            assert_eq!(usize::from(byte), at / 256 + 1);
        }
        served.stop().await;
    });
}

/// A connection gets the lowest free client number, and all requests of the connection carry this
/// number, including the reads of partial blocks. After the connection has ended, the server
/// assigns its number again.
#[test]
fn requests_carry_the_number_of_their_connection() {
    let (served, slow) = Served::slow(Duration::from_millis(1));
    let asked = || -> Vec<u32> { slow.seen.take().iter().map(|r| r.origin.task).collect() };
    served.run(async |served| {
        let mut first = served.enter().await;
        let mut second = served.enter().await;
        second.store(1, 0, &[1; 4096]).await;
        first.store(1, 100, &[2; 10]).await;
        // The write of ten bytes becomes three requests: reads of the bytes before and after the
        // ten bytes in their block, and a write of the block.
        assert_eq!(asked(), [2, 1, 1, 1]);
        first.request(0, DISC, 2, 0, 0).await;
        assert!(first.at_end().await);
        served.until_connections(1).await;
        let mut third = served.enter().await;
        third.read(0, 4096).await;
        second.read(0, 4096).await;
        assert_eq!(asked(), [1, 2]);
        served.stop().await;
    });
}
