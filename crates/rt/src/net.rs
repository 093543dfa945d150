//! Byte streams: TCP and UNIX sockets in real time, in-memory pipes in real and virtual time. The
//! crates of other transports, such as RDMA, implement [`Layer`] to provide a [`Stream`].
//!
//! A stream is used by one receiving and one sending task at a time. This module must never
//! interpret a protocol.

mod carrier;
mod inbox;
mod pipe;

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::buf::{BufMut, Payload};
use crate::executor::Rt;
use crate::real_time::{Socket, SocketListener};
pub use carrier::{AHEAD_MAX, Carried, Carrier, PIECE_BYTES, SEND_BYTES, SENDS_MAX};
pub use inbox::Inbox;
pub use pipe::{Pipe, PipeOptions};

/// The address on which a server listens or to which a client connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A UNIX stream socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
    /// An RDMA CM address. The crate `bimetal-rdma` makes the streams over RDMA; this module
    /// cannot.
    Rdma(SocketAddr),
}

/// Returns the error for an address that this module does not support.
fn not_a_socket() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "RDMA is not spoken here")
}

impl std::str::FromStr for Address {
    type Err = String;

    /// Parses `unix:PATH`, `tcp:ADDRESS:PORT` or `rdma:ADDRESS:PORT`; an IPv6 address is enclosed
    /// in brackets, and `localhost` means 127.0.0.1. Names are not resolved.
    fn from_str(text: &str) -> Result<Address, String> {
        let expected = "expected \"unix:PATH\", \"tcp:ADDRESS:PORT\" or \"rdma:ADDRESS:PORT\"";
        let inet = |address: &str| match address.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}").parse::<SocketAddr>(),
            None => address.parse(),
        };
        let address = match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Some(Address::Unix(PathBuf::from(path))),
            Some(("tcp", address)) => inet(address).ok().map(Address::Tcp),
            Some(("rdma", address)) => inet(address).ok().map(Address::Rdma),
            _ => None,
        };
        address.ok_or_else(|| format!("\"{text}\" is no address, {expected}"))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
            Address::Rdma(address) => write!(f, "rdma:{address}"),
        }
    }
}

/// The process at the other end of a UNIX socket, as the kernel recorded it at the time of
/// connecting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process's user, by number.
    pub uid: u32,
    /// Group identifiers of the process: the effective group and the supplementary groups.
    pub gids: Vec<u32>,
    /// True when the user of the process at the other end is the effective user of our own process.
    pub is_own_user: bool,
}

/// Counters of the work requests and completions of streams. Only a stream over a device that
/// transfers whole messages, such as RDMA, has work requests; a socket has none.
#[derive(Debug, Default)]
pub struct WorkCounters {
    /// Work requests that send a message.
    pub sends: Cell<u64>,
    /// Number of messages received. Each of them has consumed one work request.
    pub receives: Cell<u64>,
    /// Work completions that were processed.
    pub completions: Cell<u64>,
    /// Completion events of the device.
    pub notices: Cell<u64>,
}

impl WorkCounters {
    /// Moves all counts to `other`.
    pub fn move_to(&self, other: &WorkCounters) {
        for (from, to) in [
            (&self.sends, &other.sends),
            (&self.receives, &other.receives),
            (&self.completions, &other.completions),
            (&self.notices, &other.notices),
        ] {
            to.set(to.get() + from.take());
        }
    }
}

/// A connected stream of bytes.
pub struct Stream(Kind);

enum Kind {
    Socket(Socket),
    Pipe(Pipe),
    /// A socket on another thread.
    Carried(Carried),
    Layered(Box<dyn Layer>),
}

/// Future of [`Layer::recv`]. Its output is the number of received bytes, and the buffer that was
/// passed to the call.
pub type RecvFuture<'a> = Pin<Box<dyn Future<Output = (io::Result<usize>, BufMut)> + 'a>>;
/// The result of a [`Layer`]'s send.
pub type SendFuture<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;

/// A stream that is layered on another stream, such as an encrypted stream. Each function has the
/// same contract as the function of [`Stream`] with the same name.
pub trait Layer {
    /// Receives like [`Stream::recv`].
    fn recv(&self, buf: BufMut, from: usize) -> RecvFuture<'_>;

    /// Sends like [`Stream::send`].
    fn send(&self, payload: Payload) -> SendFuture<'_>;

    /// Returns the peer like [`Stream::peer`].
    ///
    /// # Errors
    /// The errors of [`Stream::peer`].
    fn peer(&self) -> io::Result<Option<Peer>>;

    /// Shuts the stream down like [`Stream::shutdown`].
    fn shutdown(&self);

    /// Counts in `_counters` like [`Stream::count_in`].
    fn count_in(&self, _counters: &Rc<WorkCounters>) {}
}

impl Stream {
    /// Connects to a listening server.
    ///
    /// # Errors
    /// The errors of `connect(2)`; `Unsupported` in virtual time, and for an RDMA address.
    pub async fn connect(rt: &Rt, address: &Address) -> io::Result<Stream> {
        let socket = match address {
            Address::Unix(path) => Socket::connect_unix(rt, path).await?,
            Address::Tcp(address) => Socket::connect_tcp(rt, *address).await?,
            Address::Rdma(_) => return Err(not_a_socket()),
        };
        Ok(Stream(Kind::Socket(socket)))
    }

    /// Returns the two ends of a new in-memory connection.
    pub fn pair(rt: &Rt, options: PipeOptions) -> (Stream, Stream) {
        let (a, b) = Pipe::pair(rt, options);
        (Stream(Kind::Pipe(a)), Stream(Kind::Pipe(b)))
    }

    /// Creates a stream from a layer on top of another stream.
    pub fn layered(layer: impl Layer + 'static) -> Stream {
        Stream(Kind::Layered(Box::new(layer)))
    }

    /// Makes a stream from a connected UNIX stream, and takes ownership of it.
    ///
    /// # Errors
    /// `Unsupported` in virtual time.
    pub fn from_unix(rt: &Rt, stream: UnixStream) -> io::Result<Stream> {
        Ok(Stream(Kind::Socket(Socket::from_unix(rt, stream)?)))
    }

    /// Makes a stream from a connected TCP stream, and takes ownership of it.
    ///
    /// # Errors
    /// `Unsupported` in virtual time; the errors of `setsockopt(2)`.
    pub fn from_tcp(rt: &Rt, stream: TcpStream) -> io::Result<Stream> {
        Ok(Stream(Kind::Socket(Socket::from_tcp(rt, stream)?)))
    }

    /// Receives at least one byte into `buf[from..]` and returns the number of bytes; zero means
    /// that the peer has closed the connection. Returns the buffer in every case.
    ///
    /// # Errors
    /// The errors of `recv(2)`.
    pub async fn recv(&self, buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        match &self.0 {
            Kind::Socket(socket) => socket.recv(buf, from).await,
            Kind::Pipe(pipe) => pipe.recv(buf, from).await,
            Kind::Carried(carried) => carried.recv(buf, from).await,
            Kind::Layered(layer) => layer.recv(buf, from).await,
        }
    }

    /// Receives until `buf[from..]` is full.
    ///
    /// # Errors
    /// The errors of `recv(2)`; `UnexpectedEof` if the peer closes the connection before the
    /// buffer is full.
    pub async fn recv_exact(&self, buf: BufMut, from: usize) -> (io::Result<()>, BufMut) {
        let (mut buf, mut filled) = (buf, from);
        while filled < buf.len() {
            let (result, back) = self.recv(buf, filled).await;
            buf = back;
            match result {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Ok(count) => filled += count,
                Err(e) => return (Err(e), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Sends the whole payload.
    ///
    /// # Errors
    /// The errors of `sendmsg(2)`.
    pub async fn send(&self, payload: Payload) -> io::Result<()> {
        match &self.0 {
            Kind::Socket(socket) => socket.send(payload).await,
            Kind::Pipe(pipe) => pipe.send(payload).await,
            Kind::Carried(carried) => carried.send(payload).await,
            Kind::Layered(layer) => layer.send(payload).await,
        }
    }

    /// Returns the process at the other end of a UNIX socket; `None` for other streams.
    ///
    /// # Errors
    /// The errors of `getsockopt(2)`: `ERANGE` when the process is in more than 1024 groups.
    pub fn peer(&self) -> io::Result<Option<Peer>> {
        match &self.0 {
            Kind::Socket(socket) => socket.peer(),
            Kind::Pipe(_) => Ok(None),
            Kind::Carried(carried) => Ok(carried.peer()),
            Kind::Layered(layer) => layer.peer(),
        }
    }

    /// Makes this stream count its work requests in `counters`, and adds its earlier counts to
    /// `counters`. A stream without work requests, such as a socket, adds nothing.
    pub fn count_in(&self, counters: &Rc<WorkCounters>) {
        if let Kind::Layered(layer) = &self.0 {
            layer.count_in(counters);
        }
    }

    /// Returns the carried connection, if a [`Carrier`] carries this stream.
    pub fn carried(&self) -> Option<&Carried> {
        match &self.0 {
            Kind::Carried(carried) => Some(carried),
            Kind::Socket(_) | Kind::Pipe(_) | Kind::Layered(_) => None,
        }
    }

    /// Shuts down both directions of the stream; tasks that wait on either end are woken.
    pub fn shutdown(&self) {
        match &self.0 {
            Kind::Socket(socket) => socket.shutdown(),
            Kind::Pipe(pipe) => pipe.shutdown(),
            Kind::Carried(carried) => carried.shutdown(),
            Kind::Layered(layer) => layer.shutdown(),
        }
    }
}

/// A socket that accepts connections.
pub struct Listener {
    socket: SocketListener,
    address: Address,
}

impl Listener {
    /// Listens on an address. A UNIX path must not exist.
    ///
    /// # Errors
    /// The errors of `bind(2)`; `Unsupported` in virtual time, and for an RDMA address.
    pub fn bind(rt: &Rt, address: &Address) -> io::Result<Listener> {
        let (socket, address) = match address {
            Address::Unix(path) => (SocketListener::bind_unix(rt, path)?, address.clone()),
            Address::Tcp(wanted) => {
                let socket = SocketListener::bind_tcp(rt, *wanted)?;
                let bound = socket.tcp_address()?.unwrap_or(*wanted);
                (socket, Address::Tcp(bound))
            }
            Address::Rdma(_) => return Err(not_a_socket()),
        };
        Ok(Listener { socket, address })
    }

    /// Returns the bound address, with the chosen port if port 0 was requested.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the path of a UNIX socket.
    pub fn unix_path(&self) -> Option<&Path> {
        match &self.address {
            Address::Unix(path) => Some(path),
            Address::Tcp(_) | Address::Rdma(_) => None,
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The errors of `accept(2)`.
    pub async fn accept(&self) -> io::Result<Stream> {
        Ok(Stream(Kind::Socket(self.socket.accept().await?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, address) in [
            ("unix:a:b", Address::Unix("a:b".into())),
            ("tcp:[::1]:7", Address::Tcp("[::1]:7".parse().unwrap())),
            (
                "rdma:192.0.2.1:10820",
                Address::Rdma("192.0.2.1:10820".parse().unwrap()),
            ),
        ] {
            assert_eq!(text.parse(), Ok(address.clone()));
            assert_eq!(address.to_string(), text);
        }
        let local = Address::Rdma("127.0.0.1:9".parse().unwrap());
        assert_eq!("rdma:localhost:9".parse(), Ok(local));
        for text in ["", "rdma:", "rdma:192.0.2.1", "rdma:host:1", "ib:1.2.3.4:5"] {
            let why = text.parse::<Address>().unwrap_err();
            assert!(why.contains("rdma:ADDRESS:PORT"), "{why}");
        }
    }

    #[test]
    fn what_was_counted_moves_once() {
        let (from, to) = (WorkCounters::default(), WorkCounters::default());
        from.sends.set(3);
        to.sends.set(4);
        from.move_to(&to);
        from.move_to(&to);
        assert_eq!((from.sends.get(), to.sends.get()), (0, 7));
    }
}
