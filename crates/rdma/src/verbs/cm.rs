//! RDMA CM: identifiers, which become connections, and the events of these identifiers.

use std::ffi::{CStr, c_int};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use bimetal_rt::real_time::set_nonblocking;

use super::abi::{self, ConnParam, PS_TCP};
use super::checked;
use super::library::{Library, the_library};

/// Timeout of the resolution of an address and of a route, in milliseconds.
const RESOLVE_MS: c_int = 4000;
/// Number of times that the transport sends a message again before the connection breaks: the
/// maximum that the protocol permits.
const RETRIES: u8 = 7;
/// Number of retries of a message that finds no receive posted at the other end. It is 0: the
/// credits ensure that a receive is always posted, so a message without a receive is an error of
/// one of the ends.
const RNR_RETRIES: u8 = 0;
/// Maximum length of the private data that RDMA CM can deliver, in bytes.
const PRIVATE_BYTES_MAX: usize = 255;

/// A channel from which the events of identifiers are read.
pub(crate) struct CmChannel {
    library: &'static Library,
    raw: NonNull<abi::CmChannel>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// The address belongs to a device.
    AddressResolved,
    /// The route is resolved.
    RouteResolved,
    /// A client requests a connection.
    Request,
    /// The connection is established.
    Established,
    /// The other end has ended the connection or is no longer reachable.
    Disconnected,
    /// The other end rejected the connection, or nothing listens at its address.
    Rejected,
    /// The connection or its setup has failed.
    Failed,
    /// An event that does not matter to this crate.
    Other,
}

/// An event.
pub(crate) struct CmEvent {
    pub(crate) happened: Happened,
    /// Description of the event.
    pub(crate) words: String,
    /// Private data of the other end.
    pub(crate) private: Vec<u8>,
    /// Identifier of the new connection; `None` unless the event is a connection request.
    pub(crate) request: Option<CmId>,
}

impl CmChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// `Unsupported` if the libraries are not installed or the machine has no RDMA; the text says
    /// which.
    pub(crate) fn new() -> io::Result<Rc<CmChannel>> {
        let library = the_library()?;
        // SAFETY: the call takes nothing; the result is checked.
        let raw = unsafe { (library.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let error = io::Error::last_os_error();
            let words = format!(
                "RDMA is not available on this machine: {error}; check for a device (rdma link) \
                and for the module rdma_ucm"
            );
            io::Error::new(io::ErrorKind::Unsupported, words)
        })?;
        let channel = CmChannel { library, raw };
        set_nonblocking(channel.fd())?;
        Ok(Rc::new(channel))
    }

    /// Returns the descriptor, which is readable when there is an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and the descriptor as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// Takes the next event; returns `None` if there is none.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn next(self: &Rc<CmChannel>) -> io::Result<Option<CmEvent>> {
        let mut event: *mut abi::CmEvent = ptr::null_mut();
        // SAFETY: the channel is alive, and only this call writes to the pointer.
        let result = unsafe { (self.library.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut event) };
        if result != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the call has returned an event, which does not change until it is acknowledged.
        let seen = unsafe { self.read(&*event) };
        // SAFETY: the call above has returned the event, which is acknowledged only once; no
        // reference to the event is left.
        unsafe { (self.library.rdma_ack_cm_event)(event) };
        Ok(Some(seen))
    }

    /// Converts an event of the library.
    ///
    /// # Safety
    /// `event` has just been returned by the library and has not been acknowledged.
    unsafe fn read(self: &Rc<CmChannel>, event: &abi::CmEvent) -> CmEvent {
        let happened = match event.event {
            0 => Happened::AddressResolved,
            2 => Happened::RouteResolved,
            4 => Happened::Request,
            8 => Happened::Rejected,
            9 => Happened::Established,
            10 => Happened::Disconnected,
            // Event numbers of failures: an error of the resolution of the address or of the route,
            // an error of the connection, an unreachable end, and the removal of the device.
            1 | 3 | 6 | 7 | 11 => Happened::Failed,
            _ => Happened::Other,
        };
        // SAFETY: the library returns a text for every event number, and never frees these texts.
        let name = unsafe { CStr::from_ptr((self.library.rdma_event_str)(event.event)) };
        let name = name.to_string_lossy();
        let name = name.trim_start_matches("RDMA_CM_EVENT_");
        let words = match event.status {
            0 => name.to_lowercase(),
            // Errors are negative numbers; the reasons that the fabric gives for a rejection are
            // positive numbers.
            status if status < 0 => {
                let error = io::Error::from_raw_os_error(-status);
                format!("{}: {error}", name.to_lowercase())
            }
            status => format!("{} ({status})", name.to_lowercase()),
        };
        let carries = matches!(happened, Happened::Request | Happened::Established);
        let (start, len) = (event.conn.private_data, event.conn.private_data_len);
        let private = if carries && !start.is_null() {
            // SAFETY: for these events the library guarantees that `len` bytes are stored at
            // `start`, in the event itself.
            unsafe { std::slice::from_raw_parts(start.cast::<u8>(), usize::from(len)) }.to_vec()
        } else {
            Vec::new()
        };
        let request = (happened == Happened::Request)
            .then(|| NonNull::new(event.id))
            .flatten();
        CmEvent {
            happened,
            words,
            private,
            request: request.map(|raw| CmId {
                channel: Rc::clone(self),
                raw,
            }),
        }
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // SAFETY: every identifier holds its channel, so no identifier is left; this is the last
        // use of the channel.
        unsafe { (self.library.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// An RDMA CM identifier, which listens, connects, or is connected.
pub(crate) struct CmId {
    channel: Rc<CmChannel>,
    raw: NonNull<abi::CmId>,
}

impl CmId {
    /// Creates an identifier whose events are read from `channel`.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn new(channel: &Rc<CmChannel>) -> io::Result<CmId> {
        let mut raw: *mut abi::CmId = ptr::null_mut();
        let create = channel.library.rdma_create_id;
        // SAFETY: the channel is alive, and only this call writes to the pointer.
        let result = unsafe { create(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), PS_TCP) };
        checked(result, "cannot create an RDMA identifier")?;
        let raw = NonNull::new(raw).expect("a call that succeeds gives an identifier");
        Ok(CmId {
            channel: Rc::clone(channel),
            raw,
        })
    }

    fn library(&self) -> &'static Library {
        self.channel.library
    }

    /// Returns the channel from which the identifier's events are read.
    pub(crate) fn channel(&self) -> &Rc<CmChannel> {
        &self.channel
    }

    /// Returns the raw identifier and its device. The device is null until it is known.
    pub(super) fn raw(&self) -> (*mut abi::CmId, *mut abi::Context) {
        // SAFETY: the identifier lives as long as `self`.
        (self.raw.as_ptr(), unsafe { self.raw.as_ref().verbs })
    }

    /// Listens at an address.
    ///
    /// # Errors
    /// The errors of the kernel: `ENODEV` if no device has this address.
    pub(crate) fn listen(&self, address: SocketAddr, backlog: c_int) -> io::Result<()> {
        let mut address = socket_address(address);
        let start = (&raw mut address).cast();
        // SAFETY: the identifier is alive, and the address is read during the call.
        let bound = unsafe { (self.library().rdma_bind_addr)(self.raw.as_ptr(), start) };
        checked(bound, "cannot bind")?;
        // SAFETY: the identifier is alive.
        let listens = unsafe { (self.library().rdma_listen)(self.raw.as_ptr(), backlog) };
        checked(listens, "cannot listen")
    }

    /// Returns the port that the identifier is bound to.
    pub(crate) fn port(&self) -> u16 {
        // SAFETY: the identifier is alive and has been bound.
        u16::from_be(unsafe { (self.library().rdma_get_src_port)(self.raw.as_ptr()) })
    }

    /// Starts the resolution of an address: the search for the local device through which the
    /// address is reachable. An event reports the result.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn resolve_address(&self, address: SocketAddr) -> io::Result<()> {
        let mut address = socket_address(address);
        let start = (&raw mut address).cast();
        let resolve = self.library().rdma_resolve_addr;
        // SAFETY: the identifier is alive, and the address is read during the call.
        let result = unsafe { resolve(self.raw.as_ptr(), ptr::null_mut(), start, RESOLVE_MS) };
        checked(result, "cannot resolve the address")
    }

    /// Starts to resolve the route.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn resolve_route(&self) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        let result = unsafe { (self.library().rdma_resolve_route)(self.raw.as_ptr(), RESOLVE_MS) };
        checked(result, "cannot resolve the route")
    }

    /// Starts to connect. The queues of the identifier must have been created.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn connect(&self, private: &[u8]) -> io::Result<()> {
        let mut param = conn_param(private);
        // SAFETY: the identifier is alive; the parameters and the private data are read only during
        // the call.
        let result = unsafe { (self.library().rdma_connect)(self.raw.as_ptr(), &raw mut param) };
        checked(result, "cannot connect")
    }

    /// Accepts a connection request. The queues of the identifier must have been created.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn accept(&self, private: &[u8]) -> io::Result<()> {
        let mut param = conn_param(private);
        // SAFETY: the identifier is alive; the parameters and the private data are read only during
        // the call.
        let result = unsafe { (self.library().rdma_accept)(self.raw.as_ptr(), &raw mut param) };
        checked(result, "cannot accept")
    }

    /// Rejects a connection request. Errors are ignored: they mean that the client has already
    /// disconnected.
    pub(crate) fn reject(&self) {
        // SAFETY: the identifier is alive; there is no private data.
        unsafe { (self.library().rdma_reject)(self.raw.as_ptr(), ptr::null(), 0) };
    }

    /// Ends the connection: all posted work requests are flushed, and the other end is notified.
    /// Errors are ignored: they mean that the connection has already ended.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the identifier is alive.
        unsafe { (self.library().rdma_disconnect)(self.raw.as_ptr()) };
    }

    /// Moves the events of the identifier to a new channel of its own.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn with_own_channel(mut self) -> io::Result<CmId> {
        let channel = CmChannel::new()?;
        let migrate = self.library().rdma_migrate_id;
        // SAFETY: the identifier and both channels are alive, and every event of the identifier has
        // been acknowledged, since `next` acknowledges each event.
        let result = unsafe { migrate(self.raw.as_ptr(), channel.raw.as_ptr()) };
        checked(result, "cannot move a connection to its own event channel")?;
        self.channel = channel;
        Ok(self)
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the identifier. Its queue pair has been destroyed before,
        // because `Queues` owns the identifier, and every event of the identifier has been
        // acknowledged. The result is ignored: an error could only mean that the identifier is not
        // valid.
        unsafe { (self.library().rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

/// Returns the parameters of a connection, which point to the private data without copying it.
fn conn_param(private: &[u8]) -> ConnParam {
    assert!(private.len() <= PRIVATE_BYTES_MAX, "the words are short");
    ConnParam {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RNR_RETRIES,
        srq: 0,
        qp_num: 0,
    }
}

/// Converts an address to its C form.
fn socket_address(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all-zero is a valid `sockaddr_storage` of no family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: the storage is large enough and suitably aligned for every socket address.
            let inet = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
            inet.sin_family = libc::AF_INET as libc::sa_family_t;
            inet.sin_port = v4.port().to_be();
            inet.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            // SAFETY: the storage is large enough and suitably aligned for every socket address.
            let inet = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
            inet.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            inet.sin6_port = v6.port().to_be();
            inet.sin6_addr.s6_addr = v6.ip().octets();
            inet.sin6_scope_id = v6.scope_id();
        }
    }
    storage
}
