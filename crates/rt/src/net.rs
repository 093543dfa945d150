//! Byte streams: TCP and UNIX sockets in real time, in-memory pipes in both worlds.
//!
//! A stream is used by one receiving and one sending task at a time. It must never be the place
//! where a protocol is understood.

mod inbox;
mod pipe;

use std::future::Future;
use std::pin::Pin;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::buf::{BufMut, Payload};
use crate::executor::Rt;
use crate::uring::{Socket, SocketListener};
pub use inbox::Inbox;
pub use pipe::{Pipe, PipeOptions};

/// Where a server listens or a client connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A UNIX stream socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl std::str::FromStr for Address {
    type Err = String;

    /// Reads `unix:PATH` or `tcp:ADDRESS:PORT`; an IPv6 address stands in brackets, and
    /// `localhost` means 127.0.0.1. Names are not resolved.
    fn from_str(text: &str) -> Result<Address, String> {
        let expected = "expected \"unix:PATH\" or \"tcp:ADDRESS:PORT\"";
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(PathBuf::from(path))),
            Some(("tcp", address)) => match address.strip_prefix("localhost:") {
                Some(port) => format!("127.0.0.1:{port}").parse(),
                None => address.parse(),
            }
            .map(Address::Tcp)
            .map_err(|_| format!("\"{text}\" is no address, {expected}")),
            _ => Err(format!("\"{text}\" is no address, {expected}")),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// The process at the other end of a UNIX socket, as the kernel knows it from the moment of connecting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user, by number.
    pub uid: u32,
    /// Its groups, by number: the effective one and the others.
    pub gids: Vec<u32>,
    /// Whether its user is the one as whom this process acts.
    pub is_own_user: bool,
}

/// A connected stream of bytes.
pub struct Stream(Kind);

enum Kind {
    Socket(Socket),
    Pipe(Pipe),
    Layered(Box<dyn Layer>),
}

/// What a [`Layer`] received, and the buffer that it was given.
pub type RecvFuture<'a> = Pin<Box<dyn Future<Output = (io::Result<usize>, BufMut)> + 'a>>;
/// Whether a [`Layer`] has sent everything.
pub type SendFuture<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;

/// A stream that is made of another one, as encryption is. What its functions promise, and what they take,
/// is as of those of [`Stream`] with the same names.
pub trait Layer {
    /// As [`Stream::recv`].
    fn recv(&self, buf: BufMut, from: usize) -> RecvFuture<'_>;

    /// As [`Stream::send`].
    fn send(&self, payload: Payload) -> SendFuture<'_>;

    /// As [`Stream::peer`].
    ///
    /// # Errors
    /// As of that.
    fn peer(&self) -> io::Result<Option<Peer>>;

    /// As [`Stream::shutdown`].
    fn shutdown(&self);
}

impl Stream {
    /// Connects to a listening server.
    ///
    /// # Errors
    /// Those of `connect(2)`; `Unsupported` in virtual time.
    pub async fn connect(rt: &Rt, address: &Address) -> io::Result<Stream> {
        let socket = match address {
            Address::Unix(path) => Socket::connect_unix(rt, path).await?,
            Address::Tcp(address) => Socket::connect_tcp(rt, *address).await?,
        };
        Ok(Stream(Kind::Socket(socket)))
    }

    /// Two ends of an in-memory connection.
    pub fn pair(rt: &Rt, options: PipeOptions) -> (Stream, Stream) {
        let (a, b) = Pipe::pair(rt, options);
        (Stream(Kind::Pipe(a)), Stream(Kind::Pipe(b)))
    }

    /// A stream on top of another.
    pub fn layered(layer: impl Layer + 'static) -> Stream {
        Stream(Kind::Layered(Box::new(layer)))
    }

    /// Takes over a connected UNIX stream.
    ///
    /// # Errors
    /// `Unsupported` in virtual time.
    pub fn from_unix(rt: &Rt, stream: UnixStream) -> io::Result<Stream> {
        Ok(Stream(Kind::Socket(Socket::from_unix(rt, stream)?)))
    }

    /// Takes over a connected TCP stream.
    ///
    /// # Errors
    /// `Unsupported` in virtual time; those of `setsockopt(2)`.
    pub fn from_tcp(rt: &Rt, stream: TcpStream) -> io::Result<Stream> {
        Ok(Stream(Kind::Socket(Socket::from_tcp(rt, stream)?)))
    }

    /// Receives at least one byte into `buf[from..]` and says how many; zero means that the peer
    /// has closed. The buffer comes back either way.
    ///
    /// # Errors
    /// Those of `recv(2)`.
    pub async fn recv(&self, buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        match &self.0 {
            Kind::Socket(socket) => socket.recv(buf, from).await,
            Kind::Pipe(pipe) => pipe.recv(buf, from).await,
            Kind::Layered(layer) => layer.recv(buf, from).await,
        }
    }

    /// Receives until `buf[from..]` is full.
    ///
    /// # Errors
    /// Those of `recv(2)`; `UnexpectedEof` when the peer closes before.
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
    /// Those of `sendmsg(2)`.
    pub async fn send(&self, payload: Payload) -> io::Result<()> {
        match &self.0 {
            Kind::Socket(socket) => socket.send(payload).await,
            Kind::Pipe(pipe) => pipe.send(payload).await,
            Kind::Layered(layer) => layer.send(payload).await,
        }
    }

    /// The process at the other end of a UNIX socket; other streams do not tell.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`: `ERANGE` when the process is in more than 1024 groups.
    pub fn peer(&self) -> io::Result<Option<Peer>> {
        match &self.0 {
            Kind::Socket(socket) => socket.peer(),
            Kind::Pipe(_) => Ok(None),
            Kind::Layered(layer) => layer.peer(),
        }
    }

    /// Ends both directions; whoever waits on either end is woken.
    pub fn shutdown(&self) {
        match &self.0 {
            Kind::Socket(socket) => socket.shutdown(),
            Kind::Pipe(pipe) => pipe.shutdown(),
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
    /// Those of `bind(2)`; `Unsupported` in virtual time.
    pub fn bind(rt: &Rt, address: &Address) -> io::Result<Listener> {
        let (socket, address) = match address {
            Address::Unix(path) => (SocketListener::bind_unix(rt, path)?, address.clone()),
            Address::Tcp(wanted) => {
                let socket = SocketListener::bind_tcp(rt, *wanted)?;
                let bound = socket.tcp_address()?.unwrap_or(*wanted);
                (socket, Address::Tcp(bound))
            }
        };
        Ok(Listener { socket, address })
    }

    /// The address in use, with the port that was chosen when port 0 was asked for.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The path, for a UNIX socket.
    pub fn unix_path(&self) -> Option<&Path> {
        match &self.address {
            Address::Unix(path) => Some(path),
            Address::Tcp(_) => None,
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Those of `accept(2)`.
    pub async fn accept(&self) -> io::Result<Stream> {
        Ok(Stream(Kind::Socket(self.socket.accept().await?)))
    }
}
