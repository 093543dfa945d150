//! Tests with unknown clients ("strangers"): which resources they can make a server hold and for
//! how long, and whether the server continues to serve others while many strangers connect (a
//! "storm").
//!
//! `BIMETAL_STORM` is the number of strangers in the storms; `docs/export.md` has the command for
//! ten thousand.

mod common;
mod common_tls;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bimetal_block::Device;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_client::{Options, Session, TlsOptions};
use bimetal_export::{ExportConfig, Limits, Protocol, Server, TlsFiles};
use bimetal_proto::brp::{Hello, Outbound, Purpose};
use bimetal_rt::net::{Address, Stream};
use bimetal_rt::{Rng, Rt, UringOptions};
use common::{Raw, SIZE, address, assert_clean, connect, virtual_rt};
use common_tls::Authority;

/// Maximum number of clients at an address that have not chosen an export.
const GUESTS_MAX: usize = 64;
/// Pool memory that the server holds for each client that has not chosen an export: its receive
/// buffer.
const GUEST_BYTES: usize = 4096;
/// Pool memory that a connection thread holds: one page for its doorbell.
const BELL_BYTES: usize = 4096;
/// Number of unknown clients that try to stay connected at the same time. It exceeds the number
/// that the server admits.
const HELD: usize = 200;
/// Maximum growth of the process while strangers (unknown clients) connect and disconnect. The
/// memory held for them is freed, but the allocator and the ring allocate memory in larger units.
const GROWTH_BYTES_MAX: u64 = 4 << 20;

/// Lets only one test run at a time, because the tests measure the memory of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(protocol: Protocol, listen: Address) -> ExportConfig {
    ExportConfig {
        protocol,
        ..ExportConfig::new("vol", "dev", listen)
    }
}

fn memory(rt: &Rt) -> Rc<dyn Device> {
    Rc::new(MemoryDevice::new(rt, SIZE))
}

fn hello() -> Vec<u8> {
    let hello = Hello {
        version_min: 1,
        version_max: 1,
        features: 0,
        session: [5; 16],
        path: 1,
        purpose: Purpose::Open,
        name: "vol".to_owned(),
    };
    let (mut bytes, mut outbound) = (Vec::new(), Outbound::new());
    hello.encode(&mut outbound, &mut bytes);
    bytes
}

#[test]
fn a_crowd_of_half_open_connections_holds_what_is_stated_and_no_more() {
    let _alone = alone();
    for protocol in [Protocol::Nbd, Protocol::Brp] {
        let rt = virtual_rt();
        let server = Server::new(&rt, vec![(config(protocol, address()), memory(&rt))]);
        rt.block_on(async {
            let crowd: Vec<Raw> = (0..HELD).map(|_| connect(&rt, &server)).collect();
            for stranger in &crowd {
                // The server may already have disconnected the clients that connected first.
                let _ = stranger.stream.send(rt.pool().copy_of(&[0]).into()).await;
            }
            while server.connections() > GUESTS_MAX {
                bimetal_rt::yield_now().await;
            }
            let pool = rt.pool();
            let held = pool.heap_bytes_used() + pool.region_bytes_used();
            assert_eq!(held, GUESTS_MAX * GUEST_BYTES, "{protocol:?}");
            assert_eq!(rt.now().as_ns(), 0);
            // They leave without any further action.
            rt.sleep(Duration::from_secs(10)).await;
            bimetal_rt::yield_now().await;
            assert_eq!(server.connections(), 0);
            assert_eq!(pool.heap_bytes_used() + pool.region_bytes_used(), 0);
            drop(crowd);
            server.stop().await;
        });
        assert_clean(&rt);
    }
}

#[test]
fn a_greeting_that_comes_in_drops_has_ten_seconds_like_any_other() {
    let _alone = alone();
    let rt = virtual_rt();
    let server = Server::new(&rt, vec![(config(Protocol::Brp, address()), memory(&rt))]);
    rt.block_on(async {
        for (interval_ms, is_taken) in [(100, true), (1000, false)] {
            let began = rt.now();
            let mut slow = connect(&rt, &server);
            for byte in hello() {
                rt.sleep(Duration::from_millis(interval_ms)).await;
                if slow
                    .stream
                    .send(rt.pool().copy_of(&[byte]).into())
                    .await
                    .is_err()
                {
                    break;
                }
            }
            // WELCOME has kind 2 and is 96 bytes long, including its head.
            let answer = slow.take(96).await;
            assert_eq!(
                (answer.len(), answer.first()),
                if is_taken { (96, Some(&2)) } else { (0, None) }
            );
            let elapsed_ns = rt.now().as_ns() - began.as_ns();
            // The greeting has 59 bytes including its head and the name. Sent at one byte each 100
            // ms, it is complete after 5.9 s. At one byte each second, the connection is dropped at
            // the deadline of ten seconds.
            let bounds = if is_taken {
                5_900_000_000..=5_900_000_000
            } else {
                10_000_000_000..=11_000_000_000
            };
            assert!(bounds.contains(&elapsed_ns), "{elapsed_ns}");
        }
        server.stop().await;
    });
    assert_clean(&rt);
}

/// Returns the number of bytes that a local TCP port has received and the server has not read yet
/// (`/proc/net/tcp`, column `rx_queue`).
fn unreceived_bytes(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("proc is mounted");
    let local = format!(":{port:04X}");
    let rows = table.lines().skip(1).filter_map(|row| {
        let mut columns = row.split_whitespace();
        let is_ours = columns.nth(1)?.ends_with(&local);
        let (_, received) = columns.nth(2)?.split_once(':')?;
        is_ours.then(|| u64::from_str_radix(received, 16).expect("a number"))
    });
    rows.sum()
}

/// Starts a server. Returns the server and the number of buffer bytes that it holds without
/// clients: one doorbell buffer for each connection thread.
async fn begin(rt: &Rt, config: ExportConfig, connection_threads: u32) -> (Server, usize) {
    let exports = vec![(config, memory(rt))];
    let server = Server::start_within(
        rt,
        exports,
        Limits {
            connection_threads,
            ..Limits::default()
        },
    )
    .await
    .unwrap();
    let held_bytes = buffer_bytes(rt);
    assert_eq!(held_bytes, connection_threads as usize * BELL_BYTES);
    (server, held_bytes)
}

/// Connects the maximum number of unknown clients, and sends 60,000 bytes of an incomplete message
/// from each. Returns the growth of the process's resident memory in bytes.
async fn hoard(rt: &Rt, config: ExportConfig, words: &[u8], connection_threads: u32) -> u64 {
    let (server, held_bytes) = begin(rt, config, connection_threads).await;
    let address = server.addresses().remove(0);
    let Address::Tcp(bound) = &address else {
        panic!("it listens on TCP");
    };
    let resident = resident_bytes();
    let mut crowd = Vec::new();
    for _ in 0..GUESTS_MAX {
        let stranger = Stream::connect(rt, &address).await.unwrap();
        stranger
            .send(rt.pool().copy_of(words).into())
            .await
            .unwrap();
        crowd.push(stranger);
    }
    while unreceived_bytes(bound.port()) > 0 {
        rt.sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(server.connections(), GUESTS_MAX, "nobody was refused");
    let grown = resident_bytes().saturating_sub(resident);
    drop(crowd);
    settle(rt, server, held_bytes).await;
    grown
}

#[test]
fn as_many_strangers_as_there_are_places_hold_no_more_than_is_stated() {
    let _alone = alone();
    let authority = Authority::new("hoard");
    let rt = real_rt();
    rt.block_on(async {
        let listen: Address = "tcp:127.0.0.1:0".parse().unwrap();
        // A ClientHello of 65,535 bytes in records of 15,000 bytes. The fifth record is never sent.
        let mut hello = vec![1, 0, 0xff, 0xfb];
        hello.resize(60_000, 0);
        let records = hello.chunks(15_000);
        let tls: Vec<u8> = records
            .flat_map(|part| [&b"\x16\x03\x01\x3a\x98"[..], part].concat())
            .collect();
        let with_tls = ExportConfig {
            tls: Some(authority.files("server", "IP:127.0.0.1")),
            ..config(Protocol::Brp, listen.clone())
        };
        // GO with 64,000 bytes of data.
        let nbd = [&b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\xfa\0"[..], &[0; 60_000]].concat();
        let plain = config(Protocol::Nbd, listen);
        for (kind, config, words, stated_bytes) in [
            ("TLS", with_tls, tls, 260 << 10),
            ("NBD", plain, nbd, 132 << 10),
        ] {
            // With connection threads, a part of each message is held twice: by the connection
            // thread and by the server's thread. So the allowed memory is larger.
            for (threads, besides_bytes) in [(0, 0), (2, 128 << 10)] {
                let grown = hoard(&rt, config.clone(), &words, threads).await;
                println!(
                    "{kind}, {threads} threads: 64 strangers hold {} KiB",
                    grown >> 10
                );
                assert!(grown <= 64 * (stated_bytes + besides_bytes), "{grown}");
            }
        }
    });
    assert_eq!(rt.live_tasks(), 0);
}

/// Returns the number of strangers in a storm.
fn storm() -> usize {
    match std::env::var("BIMETAL_STORM") {
        Ok(count) => count.parse().expect("BIMETAL_STORM is a number"),
        Err(_) => 400,
    }
}

/// Returns the resident memory of the process in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages = statm.split(' ').nth(1).expect("the second field");
    pages.parse::<u64>().expect("a number of pages") * 4096
}

/// Returns the bytes that a stranger (an unknown client) sends: no bytes, half a greeting, garbage,
/// or the complete greeting of a client without rights.
fn words(rng: &mut Rng, protocol: Protocol) -> Vec<u8> {
    let (whole, half) = match protocol {
        Protocol::Brp => (hello(), 20),
        // Client flags, and an option of 60 KiB. Only the first bytes of the option are sent.
        Protocol::Nbd => (
            b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\xf0\0\0\0\0\x03vo".to_vec(),
            9,
        ),
    };
    match rng.below(5) {
        0 => Vec::new(),
        1 => whole[..half].to_vec(),
        2 => (0..rng.below(3000)).map(|_| rng.below(256) as u8).collect(),
        3 => {
            let mut damaged = whole;
            let at = rng.below(damaged.len() as u64) as usize;
            damaged[at] ^= 1 << rng.below(8);
            damaged
        }
        // The beginning of a ClientHello.
        _ => [&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..], &[7; 32]].concat(),
    }
}

/// Connects unknown clients one after another. Each stays connected until the test holds too many
/// streams or the server disconnects it. `serve` is called regularly to check that the server
/// continues to serve.
async fn rage(
    rt: &Rt,
    server: &Server,
    (address, protocol): (&Address, Protocol),
    mut serve: impl AsyncFnMut(usize),
) {
    let (mut rng, mut held) = (Rng::new(14), VecDeque::new());
    let mut resident = 0;
    let count = storm();
    for round in 0..count {
        let stranger = Stream::connect(rt, address)
            .await
            .expect("the server accepts");
        let words = words(&mut rng, protocol);
        if !words.is_empty() {
            // The server may have disconnected the stranger in the meantime.
            let _ = stranger.send(rt.pool().copy_of(&words).into()).await;
        }
        if rng.chance(0.7) {
            held.push_back(stranger);
        }
        if held.len() > HELD {
            held.pop_front();
        }
        // The connections are those of the strangers (unknown clients), of the permanent good
        // client, and of the client that is connecting.
        assert!(
            server.connections() <= GUESTS_MAX + 3,
            "{}",
            server.connections()
        );
        if round % 25 == 0 {
            serve(round).await;
        }
        if round == count / 4 {
            resident = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(resident);
    println!(
        "{protocol:?}: {count} strangers, grown by {} KiB of {} KiB",
        grown >> 10,
        resident >> 10
    );
    assert!(grown <= GROWTH_BYTES_MAX, "{grown} bytes");
    drop(held);
}

/// Returns the number of buffer bytes in use.
fn buffer_bytes(rt: &Rt) -> usize {
    rt.pool().heap_bytes_used() + rt.pool().region_bytes_used()
}

/// Stops a server after its clients have disconnected. The server must then hold no more buffer
/// bytes than the initial `held_bytes`.
async fn settle(rt: &Rt, server: Server, held_bytes: usize) {
    while server.connections() > 0 {
        rt.sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(buffer_bytes(rt), held_bytes);
    server.stop().await;
    assert_eq!(buffer_bytes(rt), 0);
}

fn real_rt() -> Rt {
    Rt::real_time(UringOptions::default()).expect("a ring")
}

#[test]
fn nbd_is_served_through_a_storm() {
    let _alone = alone();
    let rt = real_rt();
    rt.block_on(async {
        let listen = "tcp:127.0.0.1:0".parse().unwrap();
        let (server, held_bytes) = begin(&rt, config(Protocol::Nbd, listen), 0).await;
        let address = server.addresses().remove(0);
        let mut steady = Raw::over(&rt, Stream::connect(&rt, &address).await.unwrap());
        steady.enter().await;
        rage(&rt, &server, (&address, Protocol::Nbd), async |round| {
            let byte = (round / 25) as u8;
            steady.write(0, 1, 4096, &[byte; 4096]).await;
            steady.expect(1, 0).await;
            let mut comer = Raw::over(&rt, Stream::connect(&rt, &address).await.unwrap());
            comer.enter().await;
            assert_eq!(comer.read(4096, 4096).await, [byte; 4096]);
        })
        .await;
        drop(steady);
        settle(&rt, server, held_bytes).await;
    });
    assert_eq!(rt.live_tasks(), 0);
}

async fn brp_storm(rt: &Rt, config: ExportConfig, tls: Option<TlsFiles>, connection_threads: u32) {
    let (server, held_bytes) = begin(rt, config, connection_threads).await;
    let address = server.addresses().remove(0);
    let options = Options {
        export: "vol".to_owned(),
        tls: tls.map(|files| TlsOptions { files, name: None }),
        ..Options::new(address.clone())
    };
    let steady = Session::connect(rt, options.clone()).await.unwrap();
    rage(rt, &server, (&address, Protocol::Brp), async |round| {
        let byte = (round / 25) as u8;
        let data = rt.pool().copy_of(&[byte; 4096]);
        steady.write(4096, data).await.unwrap();
        let comer = Session::connect(rt, options.clone()).await.unwrap();
        let read = comer.read(4096, 4096).await.unwrap();
        assert_eq!(read.to_vec(), [byte; 4096]);
        comer.close().await;
    })
    .await;
    assert_eq!(steady.statistics().paths_broken, 0);
    steady.close().await;
    settle(rt, server, held_bytes).await;
}

#[test]
fn brp_is_served_through_a_storm() {
    let _alone = alone();
    let rt = real_rt();
    rt.block_on(async {
        let listen = "tcp:127.0.0.1:0".parse().unwrap();
        brp_storm(&rt, config(Protocol::Brp, listen), None, 0).await;
    });
    assert_eq!(rt.live_tasks(), 0);
}

#[test]
fn tls_is_served_through_a_storm() {
    tls_storm(0);
}

/// Many TLS clients connect at once; the server handles connections and TLS on separate threads.
#[test]
fn connection_threads_serve_through_a_storm() {
    tls_storm(2);
}

fn tls_storm(connection_threads: u32) {
    let _alone = alone();
    let authority = Authority::new("storm");
    let rt = real_rt();
    rt.block_on(async {
        let config = ExportConfig {
            tls: Some(authority.files("server", "IP:127.0.0.1")),
            ..config(Protocol::Brp, "tcp:127.0.0.1:0".parse().unwrap())
        };
        let own = authority.files("box", "DNS:box");
        brp_storm(&rt, config, Some(own), connection_threads).await;
    });
    assert_eq!(rt.live_tasks(), 0);
}
