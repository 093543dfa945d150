//! A small NBD client that assembles every byte itself.
//!
//! The client is written from the public protocol text (the NBD project's doc/proto.md) and is
//! independent of the crates under test, so that it can also send invalid requests. All calls are
//! blocking, [`Wire::run`] has one request in flight, and no call retries a request. The caller
//! judges an unexpected reply.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// First eight bytes of the greeting, "NBDMAGIC".
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of the greeting, and the first eight bytes of every option, "IHAVEOPT".
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Head of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Head of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Head of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Head of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Client flags of the handshake: fixed newstyle, and no padding (124 zero bytes) after the reply
/// to NBD_OPT_EXPORT_NAME.
pub const CLIENT_FLAGS: u32 = 3;

/// Option numbers.
pub mod opt {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Option reply types.
pub mod rep {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Command numbers.
pub mod cmd {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flag: the data must be durable before the reply.
pub const FUA: u16 = 1;

/// Error numbers of a reply.
pub mod errno {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOVERFLOW: u32 = 75;
}

/// Properties of an export as the server reports them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Export {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Minimum, preferred and maximum block size in bytes, if the server reports them.
    pub block_bytes: Option<(u32, u32, u32)>,
}

/// Header of a request; the caller chooses every field.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// [`REQUEST_MAGIC`], unless the test sends a wrong magic.
    pub magic: u32,
    /// Command flags.
    pub flags: u16,
    /// Command number.
    pub command: u16,
    /// Identifier that the client chooses and that the server returns unchanged in the reply.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

impl Request {
    /// Creates a request with the right magic and no flags.
    pub fn new(command: u16, offset: u64, length: u32) -> Self {
        // The value of the cookie has no meaning; it identifies the request in a failure message.
        let cookie = (u64::from(command) << 48) ^ offset ^ (u64::from(length) << 20);
        Self {
            magic: REQUEST_MAGIC,
            flags: 0,
            command,
            cookie,
            offset,
            length,
        }
    }

    /// Returns the 28 bytes of the header.
    pub fn bytes(self) -> Vec<u8> {
        let mut out = self.magic.to_be_bytes().to_vec();
        out.extend(self.flags.to_be_bytes());
        out.extend(self.command.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(self.offset.to_be_bytes());
        out.extend(self.length.to_be_bytes());
        out
    }
}

/// A connection to an NBD server.
#[derive(Debug)]
pub struct Wire {
    stream: UnixStream,
}

impl Wire {
    /// Connects to a server and sends no bytes. Reads and writes on the connection time out after
    /// 20 s, so that a silent server fails the test instead of hanging it.
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket)
            .unwrap_or_else(|e| panic!("connect to {}: {e}", socket.display()));
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("a read timeout");
        stream.set_write_timeout(patience).expect("a write timeout");
        Self { stream }
    }

    /// Connects, receives the greeting, and sends the client flags. After that, the caller can send
    /// options.
    pub fn greeted(socket: &Path) -> Self {
        let mut wire = Self::connect(socket);
        let flags = wire.greeting().expect("the greeting");
        // Every server of the last decade offers fixed newstyle and no-zeroes.
        assert_eq!(
            u32::from(flags) & CLIENT_FLAGS,
            CLIENT_FLAGS,
            "handshake flags {flags:#x}"
        );
        wire.send(&CLIENT_FLAGS.to_be_bytes())
            .expect("send the client flags");
        wire
    }

    /// Connects, selects `export` by NBD_OPT_GO, and enters the transmission phase with simple
    /// replies. Returns the connection and the properties of the export.
    pub fn attached(socket: &Path, export: &str) -> (Self, Export) {
        let mut wire = Self::greeted(socket);
        let found = wire.go(export);
        (wire, found)
    }

    /// Reads the server's 18-byte greeting and returns the handshake flags.
    pub fn greeting(&mut self) -> Result<u16> {
        let head = self.recv(18)?;
        assert_eq!(
            be64(&head[..8]),
            NBDMAGIC,
            "the greeting starts with NBDMAGIC"
        );
        assert_eq!(
            be64(&head[8..16]),
            IHAVEOPT,
            "a newstyle server says IHAVEOPT"
        );
        Ok(u16::from_be_bytes([head[16], head[17]]))
    }

    /// Sends the bytes unchanged.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives exactly `count` bytes.
    pub fn recv(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Shuts down the sending half of the connection; the server can still answer.
    pub fn half_close(&mut self) {
        self.stream
            .shutdown(std::net::Shutdown::Write)
            .expect("shut down the sending half");
    }

    /// Sends an option and its data, with a valid magic and length.
    pub fn option(&mut self, number: u32, data: &[u8]) -> Result<()> {
        self.option_head(
            IHAVEOPT,
            number,
            u32::try_from(data.len()).expect("a small option"),
        )?;
        self.send(data)
    }

    /// Sends the head of an option with any magic, number and length.
    pub fn option_head(&mut self, magic: u64, number: u32, length: u32) -> Result<()> {
        let mut head = magic.to_be_bytes().to_vec();
        head.extend(number.to_be_bytes());
        head.extend(length.to_be_bytes());
        self.send(&head)
    }

    /// Receives the replies to option `number` up to the final one (an acknowledgement or an
    /// error) and returns their types and data.
    pub fn replies(&mut self, number: u32) -> Result<Vec<(u32, Vec<u8>)>> {
        let mut replies = Vec::new();
        loop {
            let head = self.recv(20)?;
            assert_eq!(
                be64(&head[..8]),
                OPTION_REPLY_MAGIC,
                "an option reply's magic"
            );
            assert_eq!(
                be32(&head[8..12]),
                number,
                "the reply names the option it answers"
            );
            let kind = be32(&head[12..16]);
            let length = be32(&head[16..20]) as usize;
            assert!(length < 1 << 20, "an option reply of {length} bytes");
            replies.push((kind, self.recv(length)?));
            if kind == rep::ACK || kind & (1 << 31) != 0 {
                return Ok(replies);
            }
        }
    }

    /// Sends an option and returns the type of its final reply.
    pub fn ask(&mut self, number: u32, data: &[u8]) -> Result<u32> {
        self.option(number, data)?;
        Ok(self.replies(number)?.last().expect("a final reply").0)
    }

    /// Sends NBD_OPT_GO for `export`, and returns the properties of the export that the server
    /// reports. Panics unless the server enters the transmission phase.
    pub fn go(&mut self, export: &str) -> Export {
        self.option(opt::GO, &go_data(export, &[3]))
            .expect("send NBD_OPT_GO");
        let replies = self.replies(opt::GO).expect("the replies to NBD_OPT_GO");
        let last = replies.last().expect("a final reply").0;
        assert_eq!(
            last,
            rep::ACK,
            "NBD_OPT_GO {export:?} was answered {last:#x}"
        );
        let mut found = Export::default();
        for (_, data) in replies.iter().filter(|(kind, _)| *kind == rep::INFO) {
            match u16::from_be_bytes([data[0], data[1]]) {
                0 => {
                    found.size_bytes = be64(&data[2..10]);
                    found.flags = u16::from_be_bytes([data[10], data[11]]);
                }
                3 => {
                    let sizes = (be32(&data[2..6]), be32(&data[6..10]), be32(&data[10..14]));
                    found.block_bytes = Some(sizes);
                }
                _ => {}
            }
        }
        found
    }

    /// Sends a request's header.
    pub fn request(&mut self, request: Request) -> Result<()> {
        self.send(&request.bytes())
    }

    /// Receives the header of a simple reply, and returns its error number and its cookie.
    pub fn simple_reply(&mut self) -> Result<(u32, u64)> {
        let head = self.recv(16)?;
        assert_eq!(
            be32(&head[..4]),
            SIMPLE_REPLY_MAGIC,
            "a simple reply's magic"
        );
        Ok((be32(&head[4..8]), be64(&head[8..16])))
    }

    /// Sends one command with its payload, and receives the header of the reply. Returns the error
    /// number of the reply, 0 for success. The caller receives the data of a read.
    pub fn run(&mut self, request: Request, payload: &[u8]) -> Result<u32> {
        let mut bytes = request.bytes();
        bytes.extend(payload);
        self.send(&bytes)?;
        let (error, cookie) = self.simple_reply()?;
        assert_eq!(
            cookie, request.cookie,
            "the reply carries the cookie of {request:?}"
        );
        Ok(error)
    }

    /// Writes data; panics unless the write succeeds.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let request = Request::new(cmd::WRITE, offset, u32::try_from(data.len()).expect("u32"));
        assert_eq!(
            self.run(request, data).expect("a reply to a write"),
            0,
            "{request:?}"
        );
    }

    /// Reads data; panics unless the read succeeds.
    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let request = Request::new(cmd::READ, offset, length);
        assert_eq!(
            self.run(request, &[]).expect("a reply to a read"),
            0,
            "{request:?}"
        );
        self.recv(length as usize).expect("the data of a read")
    }

    /// Flushes the export; panics unless the flush succeeds.
    pub fn flush(&mut self) {
        let request = Request::new(cmd::FLUSH, 0, 0);
        assert_eq!(self.run(request, &[]).expect("a reply to a flush"), 0);
    }

    /// Reads the remaining bytes and returns them once the server has closed the connection; panics
    /// if the server keeps it open.
    pub fn drained(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest,
            // If the server closes the connection before it has read all bytes sent to it, the
            // kernel resets the connection.
            Err(e) if e.kind() == ErrorKind::ConnectionReset => rest,
            Err(e) => panic!("the server neither answered nor closed: {e}"),
        }
    }
}

/// Returns the option data of NBD_OPT_GO and NBD_OPT_INFO: the name of the export and the numbers
/// of the requested information types.
pub fn go_data(export: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = u32::try_from(export.len())
        .expect("a short name")
        .to_be_bytes()
        .to_vec();
    data.extend(export.as_bytes());
    data.extend(
        u16::try_from(infos.len())
            .expect("few requests")
            .to_be_bytes(),
    );
    data.extend(infos.iter().flat_map(|i| i.to_be_bytes()));
    data
}

/// Returns the option data of NBD_OPT_SET_META_CONTEXT and NBD_OPT_LIST_META_CONTEXT: the name of
/// the export and the queries.
pub fn context_data(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    let mut put = |text: &str| {
        data.extend(
            u32::try_from(text.len())
                .expect("a short text")
                .to_be_bytes(),
        );
        data.extend(text.as_bytes());
    };
    put(export);
    let names = queries.iter().fold(Vec::new(), |mut all, query| {
        all.extend(
            u32::try_from(query.len())
                .expect("a short query")
                .to_be_bytes(),
        );
        all.extend(query.as_bytes());
        all
    });
    data.extend(
        u32::try_from(queries.len())
            .expect("few queries")
            .to_be_bytes(),
    );
    data.extend(names);
    data
}

/// Returns whether the error means that the server closed the connection: end of file on a read, or
/// a reset or broken pipe.
pub fn is_closed(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}
