//! Helpers that several test files use: a server in virtual time, and a small client that defines
//! the layouts and numbers of NBD independently of the server's code.
#![allow(dead_code, reason = "each test file uses its part")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Geometry, IoFuture, Request, Statistic};
use bimetal_export::{ExportConfig, Server};
use bimetal_rt::net::{Address, PipeOptions, Stream};
use bimetal_rt::{Rt, VirtualOptions};

pub const SIZE: u64 = 1 << 20;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;

pub fn virtual_rt() -> Rt {
    Rt::virtual_time(VirtualOptions {
        seed: 11,
        shuffle: true,
    })
}

/// Returns a counter of the server's only export.
pub fn statistic(server: &Server, name: &str) -> u64 {
    let mut statistics = Vec::new();
    server.statistics(&mut statistics);
    match statistics.iter().find(|(_, n, _)| n == name) {
        Some((_, _, Statistic::Counter(count))) => *count,
        other => panic!("{name}: {other:?}"),
    }
}

pub fn address() -> Address {
    Address::Unix("/virtual".into())
}

/// A memory device that delays every request, and records the requests.
pub struct Slow {
    rt: Rt,
    below: MemoryDevice,
    pub delay: Duration,
    pub seen: RefCell<Vec<Request>>,
    pub running: Cell<usize>,
    pub running_max: Cell<usize>,
    pub completed: Cell<usize>,
}

impl Slow {
    pub fn new(rt: &Rt, delay: Duration) -> Rc<Slow> {
        Rc::new(Slow {
            rt: rt.clone(),
            below: MemoryDevice::new(rt, SIZE),
            delay,
            seen: RefCell::new(Vec::new()),
            running: Cell::new(0),
            running_max: Cell::new(0),
            completed: Cell::new(0),
        })
    }
}

impl Device for Slow {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            let mut kept = request.clone();
            kept.payload = bimetal_rt::Payload::empty();
            self.seen.borrow_mut().push(kept);
            self.running.set(self.running.get() + 1);
            self.running_max
                .set(self.running_max.get().max(self.running.get()));
            self.rt.sleep(self.delay).await;
            self.running.set(self.running.get() - 1);
            self.completed.set(self.completed.get() + 1);
            self.below.submit(request).await
        })
    }
}

/// A server in virtual time, with the runtime that it runs on.
#[derive(Clone)]
pub struct Served {
    pub rt: Rt,
    pub server: Server,
}

impl Served {
    /// A server with the export `vol` over memory.
    pub fn memory() -> Served {
        Served::memory_as(|_| ())
    }

    /// A server with the export `vol` over memory, whose configuration `change` has changed.
    pub fn memory_as(change: impl FnOnce(&mut ExportConfig)) -> Served {
        let rt = virtual_rt();
        let mut config = ExportConfig::new("vol", "dev", address());
        change(&mut config);
        let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, SIZE));
        let server = Server::new(&rt, vec![(config, device)]);
        Served { rt, server }
    }

    /// A server with the export `vol` over a device that delays every request by `delay`, and that
    /// device.
    pub fn slow(delay: Duration) -> (Served, Rc<Slow>) {
        let rt = virtual_rt();
        let slow = Slow::new(&rt, delay);
        let server = server(&rt, slow.clone());
        (Served { rt, server }, slow)
    }

    /// Runs a test, which stops the server, and asserts that the server then holds no resources.
    pub fn run(self, test: impl AsyncFnOnce(&Served)) {
        self.rt.block_on(test(&self));
        let Served { rt, server } = self;
        drop(server);
        assert_clean(&rt);
    }

    /// Stops the server. Clients that are still connected are disconnected.
    pub async fn stop(&self) {
        self.server.stop().await;
    }

    /// Connects a client, which has not sent anything.
    pub fn connect(&self) -> Raw {
        connect(&self.rt, &self.server)
    }

    /// Connects a client, and enters the transmission phase without structured replies.
    pub async fn enter(&self) -> Raw {
        let mut client = self.connect();
        client.enter().await;
        client
    }

    /// Returns a counter of the only export.
    pub fn statistic(&self, name: &str) -> u64 {
        statistic(&self.server, name)
    }

    /// Waits until the server has `count` connections, at most for two minutes.
    pub async fn until_connections(&self, count: usize) {
        let reached = async {
            while self.server.connections() != count {
                self.rt.sleep(Duration::from_millis(1)).await;
            }
        };
        let limit = Duration::from_secs(120);
        let reached = self.rt.timeout(limit, reached).await;
        reached.unwrap_or_else(|_| panic!("{} connections", self.server.connections()));
    }
}

/// Creates a server with one export over `device`.
pub fn server(rt: &Rt, device: Rc<dyn Device>) -> Server {
    let config = ExportConfig::new("vol", "dev", address());
    Server::new(rt, vec![(config, device)])
}

pub fn connect(rt: &Rt, server: &Server) -> Raw {
    connect_with(rt, server, PipeOptions::default())
}

pub fn connect_with(rt: &Rt, server: &Server, options: PipeOptions) -> Raw {
    let (ours, theirs) = Stream::pair(rt, options);
    server.serve(&address(), theirs);
    Raw {
        rt: rt.clone(),
        stream: ours,
        held: Vec::new(),
    }
}

/// An NBD client that sends and receives raw bytes.
pub struct Raw {
    rt: Rt,
    pub stream: Stream,
    held: Vec<u8>,
}

/// A simple reply, or one chunk of a structured reply.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Simple {
        error: u32,
        cookie: u64,
    },
    Chunk {
        flags: u16,
        kind: u16,
        cookie: u64,
        payload: Vec<u8>,
    },
}

impl Raw {
    pub fn over(rt: &Rt, stream: Stream) -> Raw {
        Raw {
            rt: rt.clone(),
            stream,
            held: Vec::new(),
        }
    }

    pub async fn send(&self, bytes: &[u8]) {
        let payload = self.rt.pool().copy_of(bytes).into();
        self.stream.send(payload).await.expect("the server listens");
    }

    /// Receives exactly `count` bytes, or fewer if the stream ends first.
    pub async fn take(&mut self, count: usize) -> Vec<u8> {
        while self.held.len() < count {
            let buf = self.rt.pool().alloc_now(64 << 10);
            let (result, buf) = self.stream.recv(buf, 0).await;
            match result {
                Ok(0) | Err(_) => return std::mem::take(&mut self.held),
                Ok(got) => self.held.extend_from_slice(&buf[..got]),
            }
        }
        let rest = self.held.split_off(count);
        std::mem::replace(&mut self.held, rest)
    }

    pub async fn at_end(&mut self) -> bool {
        self.take(1).await.is_empty()
    }

    /// Enters the transmission phase in the oldest way: with `EXPORT_NAME` (1), without structured
    /// replies.
    pub async fn enter(&mut self) -> (u64, u16) {
        let greeting = self.take(18).await;
        assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&[&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 0]].concat())
            .await;
        let answer = self.take(10).await;
        let size = u64::from_be_bytes(answer[..8].try_into().unwrap());
        (size, u16::from_be_bytes(answer[8..].try_into().unwrap()))
    }

    /// Enters the transmission phase with structured replies (8), `base:allocation` (10) and `GO`
    /// (7).
    pub async fn enter_structured(&mut self) {
        self.take(18).await;
        self.send(&[0, 0, 0, 3]).await;
        self.option(8, &[]).await;
        assert_eq!(self.reply().await.0, 1);
        let query = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
        self.option(10, query).await;
        assert_eq!(
            self.reply().await,
            (4, b"\0\0\0\x01base:allocation".to_vec())
        );
        assert_eq!(self.reply().await.0, 1);
        self.option(7, &[0, 0, 0, 0, 0, 0]).await;
        while self.reply().await.0 != 1 {}
    }

    pub async fn option(&self, option: u32, data: &[u8]) {
        let head = [
            &b"IHAVEOPT"[..],
            &option.to_be_bytes(),
            &(data.len() as u32).to_be_bytes(),
        ];
        self.send(&[&head.concat()[..], data].concat()).await;
    }

    /// Receives an option reply, and returns its type and data.
    pub async fn reply(&mut self) -> (u32, Vec<u8>) {
        let head = self.take(20).await;
        assert_eq!(head[..8], [0x00, 0x03, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9]);
        let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let (kind, len) = (field(12), field(16) as usize);
        (kind, self.take(len).await)
    }

    pub async fn request(&self, flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
        self.send(&request(flags, command, cookie, offset, len))
            .await;
    }

    pub async fn write(&self, flags: u16, cookie: u64, offset: u64, data: &[u8]) {
        let head = request(flags, WRITE, cookie, offset, data.len() as u32);
        self.send(&[&head[..], data].concat()).await;
    }

    pub async fn answer(&mut self) -> Answer {
        let magic = self.take(4).await;
        match magic[..] {
            [0x67, 0x44, 0x66, 0x98] => {
                let rest = self.take(12).await;
                Answer::Simple {
                    error: u32::from_be_bytes(rest[..4].try_into().unwrap()),
                    cookie: u64::from_be_bytes(rest[4..].try_into().unwrap()),
                }
            }
            [0x66, 0x8e, 0x33, 0xef] => {
                let rest = self.take(16).await;
                let len = u32::from_be_bytes(rest[12..].try_into().unwrap());
                Answer::Chunk {
                    flags: u16::from_be_bytes(rest[..2].try_into().unwrap()),
                    kind: u16::from_be_bytes(rest[2..4].try_into().unwrap()),
                    cookie: u64::from_be_bytes(rest[4..12].try_into().unwrap()),
                    payload: self.take(len as usize).await,
                }
            }
            _ => panic!("no reply: {magic:?}"),
        }
    }

    /// Receives a reply, which must be a simple reply with this error and cookie.
    pub async fn expect(&mut self, cookie: u64, error: u32) {
        assert_eq!(self.answer().await, Answer::Simple { error, cookie });
    }

    /// Receives a simple reply without an error, and returns its cookie.
    pub async fn success(&mut self) -> u64 {
        match self.answer().await {
            Answer::Simple { error: 0, cookie } => cookie,
            other => panic!("{other:?}"),
        }
    }

    /// Receives the only chunk of a structured reply, which must have this type and payload.
    pub async fn expect_chunk(&mut self, cookie: u64, kind: u16, payload: &[u8]) {
        let chunk = Answer::Chunk {
            flags: 1,
            kind,
            cookie,
            payload: payload.to_vec(),
        };
        assert_eq!(self.answer().await, chunk);
    }

    /// Sends a request without data, and receives its simple reply, which must have no error.
    pub async fn call(&mut self, command: u16, cookie: u64, offset: u64, len: u32) {
        self.request(0, command, cookie, offset, len).await;
        self.expect(cookie, 0).await;
    }

    /// Writes with a simple reply, which must have no error.
    pub async fn store(&mut self, cookie: u64, offset: u64, data: &[u8]) {
        self.write(0, cookie, offset, data).await;
        self.expect(cookie, 0).await;
    }

    /// Reads with simple replies.
    pub async fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        self.request(0, READ, 77, offset, len).await;
        self.expect(77, 0).await;
        self.take(len as usize).await
    }
}

pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    [
        &[0x25, 0x60, 0x95, 0x13][..],
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

/// Asserts that a stopped server holds no resources.
pub fn assert_clean(rt: &Rt) {
    rt.block_on(bimetal_rt::yield_now());
    assert_eq!(
        (rt.live_tasks(), rt.live_timers()),
        (0, 0),
        "tasks and timers"
    );
    assert_eq!(rt.pool().heap_bytes_used(), 0, "buffers");
    assert_eq!(rt.pool().region_bytes_used(), 0, "buffers");
}
