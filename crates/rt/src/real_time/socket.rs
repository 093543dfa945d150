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

/// Maximum number of slices in one send; the kernel's `UIO_MAXIOV`.
const VECTORS_MAX: usize = 1024;
/// Maximum number of slices that one non-blocking send passes to the kernel. The list of slices is
/// on the stack, and has room for the slices of 128 replies with data, and for their headers.
const VECTORS_NOW_MAX: usize = 160;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Send buffer size requested from the kernel (UNIX sockets default to 208 KiB, which the replies
/// to a few large reads fill).
const SEND_BUFFER_BYTES: libc::c_int = 4 << 20;
/// Time between two attempts to connect to a UNIX listener whose backlog is full.
const LISTENER_FULL_PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of groups of a peer that are read.
const GROUPS_MAX: usize = 1024;

/// Keepalive settings of TCP connections. The kernel probes the peer after [`KEEPALIVE_IDLE_S`]
/// seconds without data, and repeats the probe every [`KEEPALIVE_INTERVAL_S`] seconds. It ends the
/// connection after [`KEEPALIVE_PROBES`] unanswered probes: after one minute in total.
const KEEPALIVE_IDLE_S: libc::c_int = 30;
const KEEPALIVE_INTERVAL_S: libc::c_int = 10;
const KEEPALIVE_PROBES: libc::c_int = 3;
/// Maximum time for which data sent over an accepted connection can stay unacknowledged; the kernel
/// then ends the connection. A server waits for the same time for a client that does not read its
/// replies.
const ACCEPTED_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Maximum time for which data sent over an outgoing connection can stay unacknowledged by the
/// server; the kernel then ends the connection. The time is longer than for an accepted connection,
/// since the server might have stalled for a while.
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
            // The backlog of a UNIX listener is full. No event reports that it has room again, so
            // try again after a pause.
            if result == -libc::EAGAIN {
                rt.sleep(LISTENER_FULL_PAUSE).await;
                continue;
            }
            count(result)?;
            set_send_buffer(handle.fd());
            return Ok(Socket { handle });
        }
    }

    /// Receives into `buf[from..]`; zero bytes mean that the peer has closed the connection.
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
    /// The part that the socket accepts without waiting is sent immediately, with a plain system
    /// call. A send through the driver would be just as fast, but its completion would end the
    /// thread's wait for the next request. This would cost one more turn of the executor for each
    /// send.
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

    /// Sends the part that the socket accepts without waiting, and returns its size in bytes.
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
        // SAFETY: all-zero is a valid `msghdr`. The first `count` vectors were written above and
        // point into the payload. The vectors and the payload live through the call, and the kernel
        // only reads them.
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

    /// Shuts down both directions; operations that wait on the socket complete with an end of
    /// stream or an error.
    pub(crate) fn shutdown(&self) {
        // SAFETY: the call takes integers. It fails only when the connection has already ended, so
        // errors are ignored.
        unsafe { libc::shutdown(self.handle.fd().as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Returns the process at the other end of a UNIX socket (`SO_PEERCRED`, `SO_PEERGROUPS`);
    /// `None` for TCP.
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
    /// Listens on a UNIX path that must not exist. Only the owner is allowed to access the socket
    /// file. The mode of the file is set before the file gets its name, so other users can never
    /// connect.
    pub(crate) fn bind_unix(rt: &Rt, path: &Path) -> io::Result<SocketListener> {
        let fd = new_socket(libc::AF_UNIX)?;
        let address = unix_address(path)?;
        let start = (&raw const address.storage).cast::<libc::sockaddr>();
        // SAFETY: this function owns the descriptor; the pointer and the length describe `address`,
        // which lives through the calls.
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

    /// Returns the address of a TCP listener, with the port that the kernel chose if none was
    /// requested; `None` for a UNIX listener.
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
    /// Returns a duplicate of the connection's descriptor, from which another runtime makes a
    /// socket. The options of the socket in the kernel are already set.
    ///
    /// # Errors
    /// If no more descriptors can be opened.
    pub(crate) fn detached(&self) -> io::Result<OwnedFd> {
        self.handle.fd().try_clone()
    }

    /// Creates a socket from a descriptor that another runtime's socket has
    /// [duplicated](Self::detached).
    pub(crate) fn attach(rt: &Rt, fd: OwnedFd) -> io::Result<Socket> {
        Ok(Socket {
            handle: Handle::new(rt, fd)?,
        })
    }

    /// Takes ownership of a connected standard-library stream.
    pub(crate) fn from_unix(rt: &Rt, stream: UnixStream) -> io::Result<Socket> {
        Socket::attach(rt, stream.into())
    }

    /// Takes ownership of a connected standard-library stream.
    pub(crate) fn from_tcp(rt: &Rt, stream: TcpStream) -> io::Result<Socket> {
        let fd = OwnedFd::from(stream);
        set_tcp_options(&fd, CONNECTED_SILENCE_MAX)?;
        Socket::attach(rt, fd)
    }
}

fn deepen(fd: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes integers; the descriptor is a listening socket.
    if unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

fn new_socket(family: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes integers; the result is checked before it is owned.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Requests a larger send buffer, so that a send waits for room less often. Errors are ignored,
/// because the larger buffer is optional: after an error, the kernel keeps the default size. The
/// kernel can also limit the size that is requested.
fn set_send_buffer(fd: &OwnedFd) {
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES);
}

/// Disables the send delay, and makes the kernel end the connection when the peer vanishes
/// silently: when it does not answer keepalive probes, or acknowledges no sent data for
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

/// Types that are plain integers. Any bytes are a valid value of such a type, so `getsockopt(2)`
/// can safely overwrite a value.
trait SocketValue: Copy {}
impl SocketValue for libc::c_int {}
impl SocketValue for libc::gid_t {}
impl SocketValue for libc::ucred {}

/// Reads the socket option `name` of `level` into `values`, and returns the number of values that
/// the kernel wrote.
fn get_option<T: SocketValue>(
    fd: &OwnedFd,
    (level, name): (i32, i32),
    values: &mut [T],
) -> io::Result<usize> {
    let mut len = size_of_val(values) as libc::socklen_t;
    // SAFETY: the pointer and the length describe `values`, which lives through the call. Every bit
    // pattern is a valid `T`.
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
    // SAFETY: the storage is large enough and suitably aligned for every socket address.
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
            // SAFETY: the storage is large enough and suitably aligned for every socket address.
            let inet = unsafe { &mut *(&raw mut address.storage).cast::<libc::sockaddr_in>() };
            inet.sin_family = libc::AF_INET as libc::sa_family_t;
            inet.sin_port = v4.port().to_be();
            inet.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            address.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        }
        SocketAddr::V6(v6) => {
            // SAFETY: the storage is large enough and suitably aligned for every socket address.
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

    /// Returns the keepalive option and the TCP options that are set on the socket in the kernel.
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
