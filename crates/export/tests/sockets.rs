//! Tests of the server over real UNIX and TCP sockets, in real time.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::rc::Rc;

use bimetal_block::Device;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_export::{ExportConfig, Limits, Server, StartError};
use bimetal_rt::net::{Address, Stream};
use bimetal_rt::{Rt, UringOptions};
use common::*;

fn real_rt() -> Rt {
    Rt::real_time(UringOptions::default()).expect("a ring")
}

fn memory(rt: &Rt) -> Rc<dyn Device> {
    Rc::new(MemoryDevice::new(rt, SIZE))
}

/// A directory for a socket, which is removed when the value is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("bimetal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Directory(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("vol.sock")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("the directory is ours");
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("proc is mounted")
        .count()
}

async fn client(rt: &Rt, address: &Address) -> Raw {
    Raw::over(
        rt,
        Stream::connect(rt, address)
            .await
            .expect("the server listens"),
    )
}

/// Numbers of connection threads to test. With 0, the server's own thread carries the connections.
const CONNECTION_THREADS: [u32; 2] = [0, 2];

async fn start(rt: &Rt, listen: &Address) -> Result<Server, StartError> {
    start_on(rt, listen, 0).await
}

async fn start_on(
    rt: &Rt,
    listen: &Address,
    connection_threads: u32,
) -> Result<Server, StartError> {
    let config = ExportConfig::new("vol", "dev", listen.clone());
    Server::start_within(
        rt,
        vec![(config, memory(rt))],
        Limits {
            connection_threads,
            ..Limits::default()
        },
    )
    .await
}

#[test]
fn both_kinds_of_sockets_serve_one_device() {
    CONNECTION_THREADS.into_iter().for_each(serve_over_both);
}

fn serve_over_both(connection_threads: u32) {
    let directory = Directory::new("both");
    let rt = real_rt();
    let unix = Address::Unix(directory.socket());
    let tcp: Address = "tcp:127.0.0.1:0".parse().unwrap();
    let device = memory(&rt);
    let exports = [("a", &unix), ("b", &tcp)].map(|(name, listen)| {
        (
            ExportConfig::new(name, "dev", listen.clone()),
            device.clone(),
        )
    });
    rt.block_on(async {
        let server = Server::start_within(
            &rt,
            exports.to_vec(),
            Limits {
                connection_threads,
                ..Limits::default()
            },
        )
        .await
        .unwrap();
        let mode = std::fs::metadata(directory.socket())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let addresses = server.addresses();
        let bound = addresses
            .iter()
            .find(|a| matches!(a, Address::Tcp(_)))
            .unwrap();
        let mut over_unix = client(&rt, &unix).await;
        let mut over_tcp = client(&rt, bound).await;
        over_unix.enter().await;
        over_tcp.enter().await;
        let data: Vec<u8> = (0..900_000u32).map(|i| (i % 241) as u8).collect();
        over_unix.write(0, 1, 100, &data).await;
        over_unix.expect(1, 0).await;
        assert!(over_tcp.read(100, data.len() as u32).await == data);
        server.stop().await;
        assert!(over_unix.at_end().await && over_tcp.at_end().await);
        assert!(!directory.socket().exists());
    });
    assert_eq!(rt.live_tasks(), 0);
}

#[test]
fn a_socket_file_is_taken_over_only_from_the_dead() {
    let directory = Directory::new("stale");
    let rt = real_rt();
    let address = Address::Unix(directory.socket());
    drop(UnixListener::bind(directory.socket()).unwrap());
    rt.block_on(async {
        let server = start(&rt, &address)
            .await
            .expect("nobody answers at the file");
        let second = start(&rt, &address).await;
        assert!(matches!(second, Err(StartError::InUse { .. })));
        let mut still = client(&rt, &address).await;
        still.enter().await;
        server.stop().await;
        std::fs::write(directory.socket(), b"precious").unwrap();
        let error = start(&rt, &address).await.err().unwrap();
        assert!(error.to_string().contains("is not a socket"), "{error}");
        assert_eq!(std::fs::read(directory.socket()).unwrap(), b"precious");
    });
}

/// After two hundred clients have connected and disconnected in various ways, no open file and no
/// buffer remains.
#[test]
fn connects_and_drops_leave_nothing() {
    CONNECTION_THREADS.into_iter().for_each(connect_and_drop);
}

fn connect_and_drop(connection_threads: u32) {
    let directory = Directory::new("drops");
    let rt = real_rt();
    let address = Address::Unix(directory.socket());
    rt.block_on(async {
        let server = start_on(&rt, &address, connection_threads).await.unwrap();
        // Each connection thread has a doorbell buffer.
        let (files, held) = (open_files(), rt.pool().region_bytes_used());
        assert_eq!(held, connection_threads as usize * 4096);
        for round in 0..200u32 {
            let mut client = client(&rt, &address).await;
            match round % 4 {
                0 => {}
                1 => drop(client.take(18).await),
                2 => {
                    client.enter().await;
                }
                _ => {
                    client.enter().await;
                    client.send(&request(0, WRITE, 1, 0, 300_000)).await;
                    client.send(&[1; 100_000]).await;
                }
            }
        }
        while server.connections() > 0 || open_files() > files {
            bimetal_rt::yield_now().await;
        }
        assert_eq!(rt.pool().region_bytes_used(), held);
        assert_eq!(rt.pool().heap_bytes_used(), 0);
        server.stop().await;
    });
    assert_eq!(rt.pool().region_bytes_used(), 0);
    assert_eq!(rt.live_tasks(), 0);
    drop(rt);
}
