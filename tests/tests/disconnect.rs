//! Clients that disconnect abruptly, and clients that send invalid data. The server must lose no
//! acknowledged data because of such a client, must leak neither a descriptor nor memory, and must
//! keep serving its other clients.

use bimetal_tests::deadline::eventually;
use bimetal_tests::nbd::{
    FUA, IHAVEOPT, Request, Wire, cmd, context_data, errno, go_data, is_closed, opt, rep,
};
use bimetal_tests::procfs;
use bimetal_tests::server::Server;
use bimetal_tests::volume::{MIB, Volume};
use std::path::PathBuf;

const SIZE_BYTES: u64 = 64 * MIB;

/// A served memory volume with a client that stays connected (`bystander`). The server must
/// continue to serve this client, whatever other clients do.
struct Stage {
    server: Server,
    socket: PathBuf,
    bystander: Wire,
    _volume: Volume,
}

impl Stage {
    fn new(name: &str) -> Self {
        let volume = Volume::memory(name, SIZE_BYTES);
        let (server, socket) = (volume.serve(), volume.socket());
        let (mut bystander, export) = Wire::attached(&socket, "vol");
        assert_eq!(export.size_bytes, SIZE_BYTES);
        bystander.write(0, &[0x5a; 4096]);
        Self {
            server,
            socket,
            bystander,
            _volume: volume,
        }
    }

    fn attached(&self) -> Wire {
        Wire::attached(&self.socket, "vol").0
    }

    /// Asserts that the server runs, serves the connected client, and accepts a new client.
    fn still_serves(&mut self) {
        self.server.assert_alive();
        assert_eq!(self.bystander.read(0, 4096), [0x5a; 4096]);
        assert_eq!(self.attached().read(0, 512), [0x5a; 512]);
    }
}

/// Returns the bytes of a block in a generation. They differ between blocks and between
/// generations, and no byte is zero.
fn pattern(block: u64, generation: u8) -> Vec<u8> {
    (0..4096u64)
        .map(|i| ((i * 31 + block * 7 + u64::from(generation) * 13) % 255) as u8 + 1)
        .collect()
}

#[test]
fn what_was_acknowledged_survives_a_client_that_leaves_mid_write() {
    let volume = Volume::mirror("leave", 64 * MIB);
    let server = volume.serve();
    for round in 0..20u8 {
        let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
        for block in 0..16 {
            wire.write(block * 4096, &pattern(block, round));
        }
        // The client sends the header of another write and a part of its data, and disconnects.
        let torn = Request::new(cmd::WRITE, 0, 16 * 4096);
        wire.request(torn).expect("send a header");
        wire.send(&pattern(99, round)[..usize::from(round) * 200])
            .expect("send a part");
        drop(wire);
        let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
        for block in 0..16 {
            // A request that did not arrive completely must have no effect.
            assert_eq!(
                wire.read(block * 4096, 4096),
                pattern(block, round),
                "round {round}"
            );
        }
    }
    server.stop();
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for block in 0..16 {
        assert_eq!(
            wire.read(block * 4096, 4096),
            pattern(block, 19),
            "after a restart"
        );
    }
    drop(wire);
    server.stop();
}

#[test]
fn a_client_that_leaves_with_writes_in_flight() {
    let volume = Volume::mirror("in-flight", 64 * MIB);
    let server = volume.serve();
    for generation in 1..=10u8 {
        let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
        // The client sends 64 writes without waiting, receives only the first replies, and
        // disconnects.
        for block in 0..64u64 {
            let mut request = Request::new(cmd::WRITE, block * 4096, 4096);
            request.cookie = block;
            let mut bytes = request.bytes();
            bytes.extend(pattern(block, generation));
            wire.send(&bytes).expect("send a write");
        }
        let known: Vec<u64> = (0..usize::from(generation) * 3)
            .map(|_| wire.simple_reply().expect("a reply"))
            .map(|(error, block)| {
                (error == 0)
                    .then_some(block)
                    .expect("an acknowledged write")
            })
            .collect();
        drop(wire);
        let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
        for block in 0..64u64 {
            let found = wire.read(block * 4096, 4096);
            let new = found == pattern(block, generation);
            let old = found == pattern(block, generation - 1) || generation == 1;
            assert!(
                new || (old && !known.contains(&block)),
                "block {block}, round {generation}"
            );
        }
        // Overwrite all blocks, so that writes of this round that are still in progress cannot take
        // effect during the next round.
        for block in 0..64u64 {
            wire.write(block * 4096, &pattern(block, generation));
        }
    }
    server.stop();
}

#[test]
fn two_hundred_connects_and_drops_leave_nothing_behind() {
    let mut stage = Stage::new("drops");
    let pid = stage.server.pid();
    let come_and_go = |socket: &PathBuf, index: u32| {
        let mut wire = match index % 5 {
            0 => Wire::connect(socket),
            1 => Wire::greeted(socket),
            _ => Wire::attached(socket, "vol").0,
        };
        match index % 5 {
            // The client sends half an option, half a write, or a read whose data it does not
            // receive, or it sends no request.
            1 => wire.option_head(IHAVEOPT, opt::GO, 100).expect("send"),
            2 => wire
                .request(Request::new(cmd::WRITE, 8192, 65536))
                .expect("send"),
            3 => wire
                .request(Request::new(cmd::READ, 0, 1 << 20))
                .expect("send"),
            _ => {}
        }
    };
    let files = procfs::open_files(pid);
    let settled = |what: &str| {
        eventually(20, what, || {
            (procfs::open_files(pid) <= files).then_some(())
        });
        procfs::resident_bytes(pid)
    };
    // The first connections can fill pools that are kept for later connections, so they are not
    // measured.
    (0..50).for_each(|i| come_and_go(&stage.socket, i));
    let before = settled("descriptors closed after 50 drops");
    (0..200).for_each(|i| come_and_go(&stage.socket, i));
    let after = settled("descriptors closed after 200 drops");
    // 200 leaked sessions with only one buffer of 64 KiB each would be 12.5 MiB.
    assert!(
        after <= before + 4 * MIB,
        "resident memory grew from {before} to {after} bytes"
    );
    stage.still_serves();
    stage.server.stop();
}

/// One malformed message of the option phase, and the types that the final reply can have.
struct Malformed {
    what: &'static str,
    option: u32,
    data: Vec<u8>,
    replies: &'static [u32],
}

fn malformed_options() -> Vec<Malformed> {
    let case = |what, option, data: Vec<u8>, replies| Malformed {
        what,
        option,
        data,
        replies,
    };
    let name_beyond_the_data = [&[0, 0, 16, 0][..], b"vol", &[0, 0]].concat();
    let missing_info = [&[0, 0, 0, 3][..], b"vol", &[0, 9, 0, 3]].concat();
    let surplus = [go_data("vol", &[]), vec![1]].concat();
    let many_queries = [&[0, 0, 0, 3][..], b"vol", &[0xff, 0xff, 0xff, 0xff]].concat();
    let bad = &[rep::ERR_INVALID][..];
    let long = &[rep::ERR_INVALID, rep::ERR_TOO_BIG, rep::ERR_UNKNOWN][..];
    let tls = &[rep::ERR_UNSUP, rep::ERR_POLICY][..];
    vec![
        case("an unknown option", 0x4242, vec![], &[rep::ERR_UNSUP]),
        case(
            "an unknown option with data",
            0x4242,
            vec![7; 100],
            &[rep::ERR_UNSUP],
        ),
        case("a list with data", opt::LIST, vec![1], bad),
        case("TLS", opt::STARTTLS, vec![], tls),
        case("go without data", opt::GO, vec![], bad),
        case(
            "go with a name beyond its data",
            opt::GO,
            name_beyond_the_data,
            bad,
        ),
        case(
            "go with fewer requests than told",
            opt::GO,
            missing_info.clone(),
            bad,
        ),
        case(
            "info with fewer requests than told",
            opt::INFO,
            missing_info,
            bad,
        ),
        case("go with a byte too many", opt::GO, surplus, bad),
        case(
            "go to no export",
            opt::GO,
            go_data("none", &[]),
            &[rep::ERR_UNKNOWN],
        ),
        case(
            "info on no export",
            opt::INFO,
            go_data("none", &[]),
            &[rep::ERR_UNKNOWN],
        ),
        case(
            "a name of 5,000 bytes",
            opt::GO,
            go_data(&"x".repeat(5000), &[]),
            long,
        ),
        case(
            "structured replies with data",
            opt::STRUCTURED_REPLY,
            vec![1],
            bad,
        ),
        case(
            "contexts before structured replies",
            opt::SET_META_CONTEXT,
            context_data("vol", &["base:allocation"]),
            bad,
        ),
        case(
            "2^32 - 1 queries",
            opt::LIST_META_CONTEXT,
            many_queries,
            bad,
        ),
    ]
}

#[test]
fn every_malformed_option_is_refused_and_the_next_one_is_served() {
    let mut stage = Stage::new("options");
    for case in malformed_options() {
        let mut wire = Wire::greeted(&stage.socket);
        let reply = wire.ask(case.option, &case.data);
        let reply = reply.unwrap_or_else(|e| panic!("{}: no reply: {e}", case.what));
        assert!(
            case.replies.contains(&reply),
            "{}: answered {reply:#x}",
            case.what
        );
        // The server has consumed all data of the option, so the connection stays usable.
        assert_eq!(wire.go("vol").size_bytes, SIZE_BYTES, "{}", case.what);
        assert_eq!(wire.read(0, 512), [0x5a; 512], "{}", case.what);
        stage.still_serves();
    }
    stage.server.stop();
}

#[test]
fn a_greeting_that_is_none_ends_the_connection() {
    let mut stage = Stage::new("greeting");
    let open = || {
        let mut wire = Wire::connect(&stage.socket);
        wire.greeting().expect("the greeting");
        wire
    };
    // The client flags are not defined: the protocol requires the server to close the connection.
    let mut wire = open();
    wire.send(&0xffff_ffffu32.to_be_bytes()).expect("send");
    assert!(wire.drained().is_empty(), "unknown client flags");
    // Each of these messages follows valid client flags, and the server cannot answer it.
    type Nonsense = fn(&mut Wire) -> std::io::Result<()>;
    let nonsense: [(&str, Nonsense); 3] = [
        ("an option with a wrong magic", |w| {
            w.option_head(IHAVEOPT ^ 1, opt::LIST, 0)
        }),
        ("an export name that is not there", |w| {
            w.option(opt::EXPORT_NAME, b"none")
        }),
        ("a text protocol", |w| {
            w.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        }),
    ];
    for (what, send) in nonsense {
        let mut wire = Wire::greeted(&stage.socket);
        send(&mut wire).expect("send");
        assert!(
            wire.drained().is_empty(),
            "{what} must end the connection without a word"
        );
    }
    // The client announces 4 GiB of option data. The server must refuse the option or disconnect;
    // it must neither wait for the data nor allocate memory for them.
    let resident = procfs::resident_bytes(stage.server.pid());
    let mut wire = Wire::greeted(&stage.socket);
    wire.option_head(IHAVEOPT, opt::GO, u32::MAX).expect("send");
    wire.half_close();
    // The server can send at most one error reply: a header of 20 bytes and a message.
    assert!(wire.drained().len() < 4096);
    assert!(procfs::resident_bytes(stage.server.pid()) < resident + 64 * MIB);
    let mut wire = Wire::greeted(&stage.socket);
    assert_eq!(wire.ask(opt::ABORT, &[]).expect("a reply"), rep::ACK);
    assert!(wire.drained().is_empty(), "after an abort");
    stage.still_serves();
    stage.server.stop();
}

/// Returns requests that are framed correctly but invalid. For each request, also returns the
/// errors that the server may use in its answer.
fn wrong_requests() -> Vec<(&'static str, Request, &'static [u32])> {
    let (inval, past) = (&[errno::EINVAL][..], &[errno::ENOSPC, errno::EINVAL][..]);
    let big = &[errno::EINVAL, errno::EOVERFLOW][..];
    let request = Request::new;
    let flagged = |flags, r: Request| Request { flags, ..r };
    vec![
        ("an unknown command", request(0x77, 0, 4096), inval),
        (
            "a read past the end",
            request(cmd::READ, SIZE_BYTES, 4096),
            inval,
        ),
        (
            "a read across the end",
            request(cmd::READ, SIZE_BYTES - 512, 4096),
            inval,
        ),
        (
            "a read at the end of numbers",
            request(cmd::READ, u64::MAX - 511, 4096),
            inval,
        ),
        ("a read of 4 GiB", request(cmd::READ, 0, u32::MAX), big),
        (
            "a read with an unknown flag",
            flagged(0x8000, request(cmd::READ, 0, 4096)),
            inval,
        ),
        (
            "a trim past the end",
            request(cmd::TRIM, SIZE_BYTES, 4096),
            past,
        ),
        (
            "a trim across all numbers",
            request(cmd::TRIM, u64::MAX, u32::MAX),
            past,
        ),
        (
            "zeroes across the end",
            request(cmd::WRITE_ZEROES, SIZE_BYTES - 512, 4096),
            past,
        ),
        (
            "status that was not agreed on",
            request(cmd::BLOCK_STATUS, 0, 4096),
            inval,
        ),
    ]
}

#[test]
fn every_wrong_request_is_answered_and_the_connection_goes_on() {
    let mut stage = Stage::new("requests");
    let mut wire = stage.attached();
    for (what, request, errors) in wrong_requests() {
        let error = wire
            .run(request, &[])
            .unwrap_or_else(|e| panic!("{what}: no reply: {e}"));
        assert!(errors.contains(&error), "{what}: answered {error}");
        assert_eq!(wire.read(0, 512), [0x5a; 512], "after {what}");
    }
    // The data of a refused write must be read and discarded by the server, so that the connection
    // stays usable.
    for (what, offset) in [
        ("past", SIZE_BYTES),
        ("across", SIZE_BYTES - 512),
        ("far", u64::MAX - 511),
    ] {
        let request = Request::new(cmd::WRITE, offset, 4096);
        let error = wire.run(request, &[1; 4096]).expect("a reply");
        assert!(
            [errno::ENOSPC, errno::EINVAL].contains(&error),
            "a write {what} the end: {error}"
        );
        assert_eq!(
            wire.read(SIZE_BYTES - 512, 512),
            [0; 512],
            "nothing may be written"
        );
    }
    // A write of one sector with FUA is valid.
    let fua = Request {
        flags: FUA,
        ..Request::new(cmd::WRITE, 4096, 512)
    };
    assert_eq!(wire.run(fua, &[3; 512]).expect("a reply"), 0);
    assert_eq!(wire.read(4096, 513), [[3; 512].as_slice(), &[0]].concat());
    stage.still_serves();
    stage.server.stop();
}

#[test]
fn what_cannot_be_framed_ends_the_connection() {
    let mut stage = Stage::new("framing");
    let mut wire = stage.attached();
    let wrong = Request {
        magic: 0x1234_5678,
        ..Request::new(cmd::READ, 0, 4096)
    };
    wire.request(wrong).expect("send");
    assert!(wire.drained().is_empty(), "a request with a wrong magic");
    // The client announces a write of 4 GiB. The server must refuse the write or disconnect, and
    // must not hold all of its data in memory.
    let resident = procfs::resident_bytes(stage.server.pid());
    let mut wire = stage.attached();
    wire.request(Request::new(cmd::WRITE, 0, u32::MAX))
        .expect("send");
    let chunk = vec![9; 1 << 20];
    let cut = (0..64).find_map(|_| wire.send(&chunk).err());
    assert!(
        cut.is_none_or(|e| is_closed(&e)),
        "neither taken nor cut off"
    );
    assert!(procfs::resident_bytes(stage.server.pid()) < resident + 64 * MIB);
    drop(wire);
    stage.still_serves();
    stage.server.stop();
}
