//! TCP and UNIX stream sockets.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::op::{Gather, SocketAddress};
use super::sys::effective_user;
use super::{Handle, Owned, Request, file::count};
use crate::buf::{BufMut, Payload};
use crate::executor::Rt;
use crate::net::Peer;

/// Slices in one send; the kernel's `UIO_MAXIOV`.
const VECTORS_MAX: usize = 1024;
/// Slices in one send without waiting, whose list lives on the stack: 128 results with data, and
/// their heads.
const VECTORS_NOW_MAX: usize = 160;
/// Connections waiting to be accepted.
const BACKLOG: i32 = 128;
/// What the kernel may hold of a connection's unsent replies (UNIX sockets default to 208 KiB,
/// which a few large reads fill).
const SEND_BUFFER_BYTES: libc::c_int = 4 << 20;
/// Time between two attempts to connect to a UNIX listener that has no room.
const LISTENER_FULL_PAUSE: Duration = Duration::from_millis(10);
/// Groups of a peer that are asked for.
const GROUPS_MAX: usize = 1024;

/// Seconds without a word on a TCP connection after which the kernel asks whether the peer is
/// there, and how often it asks until it gives the connection up: after a minute in all.
const KEEPALIVE_IDLE_S: libc::c_int = 30;
const KEEPALIVE_INTERVAL_S: libc::c_int = 10;
const KEEPALIVE_PROBES: libc::c_int = 3;
/// How long a client may take nothing of what is sent to it: as long as a server waits for one
/// that does not read.
const ACCEPTED_SILENCE_MAX: Duration = Duration::from_secs(60);
/// The same for a server that was connected to, which may have stood still for a while.
const CONNECTED_SILENCE_MAX: Duration = Duration::from_secs(180);

/// A connected stream socket.
pub(crate) struct Socket {
    handle: Handle,
}

impl Socket {
    /// Connects to a UNIX socket.
    pub(crate) async fn connect_unix(rt: &Rt, path: &Path) -> io::Result<Socket> {
        let handle = Handle::new(rt, new_socket(libc::AF_UNIX)?)?;
        Socket::connect(rt, handle, unix_address(path)?).await
    }

    /// Connects to a TCP address.
    pub(crate) async fn connect_tcp(rt: &Rt, address: SocketAddr) -> io::Result<Socket> {
        let family = if address.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let handle = Handle::new(rt, new_socket(family)?)?;
        let socket = Socket::connect(rt, handle, tcp_address(address)).await?;
        set_tcp_options(socket.handle.fd(), CONNECTED_SILENCE_MAX)?;
        Ok(socket)
    }

    async fn connect(rt: &Rt, handle: Handle, address: SocketAddress) -> io::Result<Socket> {
        let mut owned = Owned::Address(Box::new(address));
        loop {
            let Owned::Address(address) = &owned else {
                unreachable!("an operation gives back what it owned")
            };
            let request = Request::Connect {
                address: (&raw const address.storage).cast::<libc::sockaddr>(),
                len: address.len,
            };
            let (result, back) = handle.ask(request, owned).await;
            owned = back;
            // A UNIX listener has no room, and nothing tells when it has.
            if result == -libc::EAGAIN {
                rt.sleep(LISTENER_FULL_PAUSE).await;
                continue;
            }
            count(result)?;
            set_send_buffer(handle.fd());
            return Ok(Socket { handle });
        }
    }

    /// Receives into `buf[from..]`; zero bytes mean that the peer has closed.
    pub(crate) async fn recv(&self, mut buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        assert!(from < buf.len(), "there is room to receive into");
        let len = (buf.len() - from) as u32;
        // SAFETY: `from` is inside the buffer.
        let start = unsafe { buf.start().add(from) };
        match self
            .handle
            .ask(Request::Receive { start, len }, Owned::Fill(buf))
            .await
        {
            (result, Owned::Fill(buf)) => (count(result), buf),
            _ => unreachable!("an operation gives back what it owned"),
        }
    }

    /// Sends the whole payload.
    ///
    /// What the socket takes without waiting goes out at once, by a plain system call. A send
    /// through the driver would complete just as fast, but its completion would end the wait for
    /// the next request as soon as it had begun: one more turn of the executor for every send.
    pub(crate) async fn send(&self, payload: Payload) -> io::Result<()> {
        let mut sent = self.send_now(&payload)?;
        while sent < payload.len() {
            let gather = Gather::new(payload.clone(), sent, VECTORS_MAX);
            let wanted = gather.bytes();
            let request = Request::Send {
                message: &raw const gather.message,
            };
            let (result, _) = self.handle.ask(request, Owned::Gather(gather)).await;
            let done = count(result)?;
            if done == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            assert!(done <= wanted, "the kernel sends no more than it was given");
            sent += done;
        }
        Ok(())
    }

    /// Sends what the socket takes without waiting and says how much that was.
    fn send_now(&self, payload: &Payload) -> io::Result<usize> {
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; VECTORS_NOW_MAX];
        let slices = payload.slices().iter().take(VECTORS_NOW_MAX);
        let count = slices.len();
        for (vector, slice) in vectors.iter_mut().zip(slices) {
            vector.write(libc::iovec {
                iov_base: slice.start().cast_mut().cast(),
                iov_len: slice.len(),
            });
        }
        // SAFETY: all-zero is a valid `msghdr`; the vectors counted were written above and point
        // into the payload, all of which lives through the call, and the kernel only reads.
        let result = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = vectors.as_mut_ptr().cast();
            message.msg_iovlen = count;
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            libc::sendmsg(self.handle.fd().as_raw_fd(), &raw const message, flags)
        };
        match usize::try_from(result) {
            Ok(sent) => Ok(sent),
            Err(_negative) => match io::Error::last_os_error() {
                e if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
                {
                    Ok(0)
                }
                e => Err(e),
            },
        }
    }

    /// Ends both directions; whoever waits on the socket gets an end or an error.
    pub(crate) fn shutdown(&self) {
        // SAFETY: takes integers. The only errors say that the peer is gone already, which is
        // what this call is for.
        unsafe { libc::shutdown(self.handle.fd().as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// The process at the other end of a UNIX socket (`SO_PEERCRED`, `SO_PEERGROUPS`).
    pub(crate) fn peer(&self) -> io::Result<Option<Peer>> {
        let mut domain: libc::c_int = 0;
        let of_socket = |name| (libc::SOL_SOCKET, name);
        let domain_value = std::slice::from_mut(&mut domain);
        get_option(self.handle.fd(), of_socket(libc::SO_DOMAIN), domain_value)?;
        if domain != libc::AF_UNIX {
            return Ok(None);
        }
        let mut process = [libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        }];
        get_option(self.handle.fd(), of_socket(libc::SO_PEERCRED), &mut process)?;
        let [process] = process;
        let mut groups: [libc::gid_t; GROUPS_MAX] = [0; GROUPS_MAX];
        let count = get_option(
            self.handle.fd(),
            of_socket(libc::SO_PEERGROUPS),
            &mut groups,
        )?;
        let mut gids = vec![process.gid];
        gids.extend(groups[..count].iter().filter(|gid| **gid != process.gid));
        Ok(Some(Peer {
            uid: process.uid,
            gids,
            is_own_user: process.uid == effective_user(),
        }))
    }
}

/// A listening socket.
pub(crate) struct SocketListener {
    handle: Handle,
    tcp: bool,
}

impl SocketListener {
    /// Listens on a UNIX path that does not exist yet. The socket file is its owner's alone: the
    /// mode is set before the name exists, so there is no moment at which others could connect.
    pub(crate) fn bind_unix(rt: &Rt, path: &Path) -> io::Result<SocketListener> {
        let fd = new_socket(libc::AF_UNIX)?;
        let address = unix_address(path)?;
        let start = (&raw const address.storage).cast::<libc::sockaddr>();
        // SAFETY: the descriptor is ours; the pointer and the length describe `address`, which
        // lives through the calls.
        let bound = unsafe {
            libc::fchmod(fd.as_raw_fd(), 0o600) == 0
                && libc::bind(fd.as_raw_fd(), start, address.len) == 0
        };
        if !bound {
            return Err(io::Error::last_os_error());
        }
        Ok(SocketListener {
            handle: Handle::new(rt, deepen(fd)?)?,
            tcp: false,
        })
    }

    /// Listens on a TCP address.
    pub(crate) fn bind_tcp(rt: &Rt, address: SocketAddr) -> io::Result<SocketListener> {
        let listener = TcpListener::bind(address)?;
        Ok(SocketListener {
            handle: Handle::new(rt, deepen(listener.into())?)?,
            tcp: true,
        })
    }

    /// The address that was bound, with the port the kernel chose when it was asked to.
    pub(crate) fn tcp_address(&self) -> io::Result<Option<SocketAddr>> {
        if !self.tcp {
            return Ok(None);
        }
        TcpListener::from(self.handle.fd().try_clone()?)
            .local_addr()
            .map(Some)
    }

    /// Waits for the next connection.
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        let (result, _) = self.handle.ask(Request::Accept, Owned::Accept).await;
        let fd = count(result)? as i32;
        // SAFETY: the kernel just gave us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_send_buffer(&fd);
        let socket = Socket {
            handle: Handle::of(self.handle.real_time(), fd),
        };
        if self.tcp {
            set_tcp_options(socket.handle.fd(), ACCEPTED_SILENCE_MAX)?;
        }
        Ok(socket)
    }
}

/// Sockets of another runtime, or of none.
impl Socket {
    /// The same connection for another runtime; its options are set.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub(crate) fn detached(&self) -> io::Result<OwnedFd> {
        self.handle.fd().try_clone()
    }

    /// Takes over what another runtime's socket has [given](Self::detached).
    pub(crate) fn attach(rt: &Rt, fd: OwnedFd) -> io::Result<Socket> {
        Ok(Socket {
            handle: Handle::new(rt, fd)?,
        })
    }

    /// Takes over a connected standard-library stream.
    pub(crate) fn from_unix(rt: &Rt, stream: UnixStream) -> io::Result<Socket> {
        Socket::attach(rt, stream.into())
    }

    /// Takes over a connected standard-library stream.
    pub(crate) fn from_tcp(rt: &Rt, stream: TcpStream) -> io::Result<Socket> {
        let fd = OwnedFd::from(stream);
        set_tcp_options(&fd, CONNECTED_SILENCE_MAX)?;
        Socket::attach(rt, fd)
    }
}

fn deepen(fd: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: takes integers; the descriptor is a listening socket.
    if unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

fn new_socket(family: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes integers; the result is checked before it is owned.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A larger send buffer spares wake-ups and nothing depends on it: the kernel caps it by its own
/// limit, and a refusal leaves the default.
fn set_send_buffer(fd: &OwnedFd) {
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES);
}

/// Sends without delay, and ends a connection whose peer has vanished without a word: one that
/// does not answer probes while nothing is said, or takes nothing of what is sent for
/// `silence_max`.
fn set_tcp_options(fd: &OwnedFd, silence_max: Duration) -> io::Result<()> {
    let silence_ms = silence_max.as_millis() as libc::c_int;
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    for (name, value) in [
        (libc::TCP_NODELAY, 1),
        (libc::TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (libc::TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (libc::TCP_KEEPCNT, KEEPALIVE_PROBES),
        (libc::TCP_USER_TIMEOUT, silence_ms),
    ] {
        set_option(fd, libc::IPPROTO_TCP, name, value)?;
    }
    Ok(())
}

fn set_option(fd: &OwnedFd, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Values that a caller of `getsockopt(2)` may have the kernel write over: plain numbers.
trait SocketValue: Copy {}
impl SocketValue for libc::c_int {}
impl SocketValue for libc::gid_t {}
impl SocketValue for libc::ucred {}

/// Reads an option of a level and says how many values the kernel wrote.
fn get_option<T: SocketValue>(
    fd: &OwnedFd,
    (level, name): (i32, i32),
    values: &mut [T],
) -> io::Result<usize> {
    let mut len = size_of_val(values) as libc::socklen_t;
    // SAFETY: the pointer and the length describe `values`, which lives through the call, and any
    // bytes are a value of its type.
    let result = unsafe {
        let start = values.as_mut_ptr().cast();
        libc::getsockopt(fd.as_raw_fd(), level, name, start, &raw mut len)
    };
    if result == 0 {
        Ok((len as usize / size_of::<T>()).min(values.len()))
    } else {
        Err(io::Error::last_os_error())
    }
}

fn zeroed_address() -> SocketAddress {
    // SAFETY: all-zero is a valid `sockaddr_storage` of no family.
    let storage = unsafe { std::mem::zeroed() };
    SocketAddress { storage, len: 0 }
}

fn unix_address(path: &Path) -> io::Result<SocketAddress> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    let mut address = zeroed_address();
    // SAFETY: the storage is larger than and aligned for every socket address.
    let unix = unsafe { &mut *(&raw mut address.storage).cast::<libc::sockaddr_un>() };
    if bytes.len() >= unix.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "socket path too long",
        ));
    }
    unix.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (target, byte) in unix.sun_path.iter_mut().zip(bytes) {
        *target = *byte as libc::c_char;
    }
    address.len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    Ok(address)
}

fn tcp_address(from: SocketAddr) -> SocketAddress {
    let mut address = zeroed_address();
    match from {
        SocketAddr::V4(v4) => {
            // SAFETY: as above.
            let inet = unsafe { &mut *(&raw mut address.storage).cast::<libc::sockaddr_in>() };
            inet.sin_family = libc::AF_INET as libc::sa_family_t;
            inet.sin_port = v4.port().to_be();
            inet.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            address.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let inet = unsafe { &mut *(&raw mut address.storage).cast::<libc::sockaddr_in6>() };
            inet.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            inet.sin6_port = v6.port().to_be();
            inet.sin6_addr.s6_addr = v6.ip().octets();
            inet.sin6_scope_id = v6.scope_id();
            address.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        }
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UringOptions;

    /// Options of TCP and whether it is kept alive, as the kernel has them.
    fn options(socket: &Socket) -> [libc::c_int; 6] {
        let tcp = |name| (libc::IPPROTO_TCP, name);
        [
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            tcp(libc::TCP_NODELAY),
            tcp(libc::TCP_KEEPIDLE),
            tcp(libc::TCP_KEEPINTVL),
            tcp(libc::TCP_KEEPCNT),
            tcp(libc::TCP_USER_TIMEOUT),
        ]
        .map(|option| {
            let mut value = [0];
            get_option(socket.handle.fd(), option, &mut value).unwrap();
            value[0]
        })
    }

    #[test]
    fn every_tcp_connection_ends_when_its_peer_vanishes() {
        let rt = Rt::real_time(UringOptions::default()).unwrap();
        let local = "127.0.0.1:0".parse().unwrap();
        let listener = SocketListener::bind_tcp(&rt, local).unwrap();
        let address = listener.tcp_address().unwrap().unwrap();
        rt.block_on(async {
            let connected = Socket::connect_tcp(&rt, address).await.unwrap();
            let accepted = listener.accept().await.unwrap();
            assert_eq!(options(&connected), [1, 1, 30, 10, 3, 180_000]);
            assert_eq!(options(&accepted), [1, 1, 30, 10, 3, 60_000]);
            let taken_over = TcpStream::connect(address).unwrap();
            let taken_over = Socket::from_tcp(&rt, taken_over).unwrap();
            assert_eq!(options(&taken_over), [1, 1, 30, 10, 3, 180_000]);
            let carried = Socket::attach(&rt, accepted.detached().unwrap()).unwrap();
            assert_eq!(options(&carried), options(&accepted));
        });
    }
}
