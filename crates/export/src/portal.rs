//! A portal: an address with its exports. This module starts to listen at the address and decides
//! which clients are admitted.
//!
//! The server must never listen without TLS at a TCP address that is reachable from other machines.
//! RDMA has no TLS; an RDMA address that is reachable from other machines is permitted only if
//! every export at the address is marked `unprotected`. If an address uses TLS, no information
//! about an export may be given before the client is identified.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fs::Permissions;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bimetal_proto::Escaped;
use bimetal_rt::Rt;
use bimetal_rt::net::{Address, Stream};
use bimetal_rt::sync::Event;
use bimetal_tls::{ServerTls, TlsError, TlsFiles};
use rustix::fs::{FileType, Mode, OFlags};

use crate::access::Client;
use crate::config::{OPEN, OPEN_RDMA, Protocol, is_open};
use crate::export::{Served, Shown, shown_to};
use crate::input::End;
use crate::listening::Listening;

/// Maximum number of clients at one address that have not chosen an export yet. The maximum is
/// lower over RDMA, where each client holds registered memory from the start.
const GUESTS_MAX: usize = 64;
const RDMA_GUESTS_MAX: usize = 8;
/// Mode of a socket file whose exports admit other users. Connecting requires write permission.
const SHARED_MODE: u32 = 0o666;

/// Reason why a server could not start. Its text is one line for the operator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another server answers at the address.
    #[error("export {export}: {address} is in use by another server")]
    InUse {
        /// The first export that wants the address.
        export: String,
        /// The address.
        address: Address,
    },
    /// The path of a UNIX socket holds a file that is not a socket.
    #[error("export {export}: {} exists and is not a socket", path.display())]
    NotASocket {
        /// The first export that wants the path.
        export: String,
        /// The path.
        path: PathBuf,
    },
    /// Listening failed.
    #[error("export {export}: cannot listen on {address}: {error}")]
    Listen {
        /// The first export that wants the address.
        export: String,
        /// The address.
        address: Address,
        /// The error from the kernel.
        error: io::Error,
    },
    /// The address is reachable from other machines and has no protection: every client that
    /// reaches the address could eavesdrop and connect.
    #[error("export {export}: {address}: {}", open_words(address))]
    Open {
        /// The first export that wants the address.
        export: String,
        /// The address.
        address: Address,
    },
    /// The TLS files are missing or invalid.
    #[error("export {export}: tls: {error}")]
    Tls {
        /// The first export that uses the files.
        export: String,
        /// The error that was found.
        error: TlsError,
    },
    /// A thread for connections could not be started.
    #[error("cannot start a thread for connections: {0}")]
    Thread(#[from] io::Error),
}

fn open_words(address: &Address) -> &'static str {
    match address {
        Address::Rdma(_) => OPEN_RDMA,
        Address::Unix(_) | Address::Tcp(_) => OPEN,
    }
}

/// An address with its exports.
pub(crate) struct Portal {
    pub(crate) address: Address,
    pub(crate) protocol: Protocol,
    /// Exports at the address, the default one first.
    pub(crate) exports: Vec<Rc<Served>>,
    tls_files: Option<TlsFiles>,
    /// TLS configuration, loaded when the server starts to listen at the address.
    tls: OnceCell<ServerTls>,
    /// Clients that have not chosen an export yet, in order of arrival.
    guests: RefCell<VecDeque<Rc<Guest>>>,
}

/// A client that has not chosen an export yet. Its access to an export has therefore not been
/// authorized.
#[derive(Default)]
pub(crate) struct Guest {
    must_leave: Cell<bool>,
    changed: Event,
}

impl Guest {
    /// Waits until the client must be disconnected because newer clients need its slot.
    pub(crate) async fn must_leave(&self) {
        self.changed.until(|| self.must_leave.get()).await;
    }
}

/// The slot of a guest. Dropping the slot frees it.
pub(crate) struct GuestSlot {
    portal: Rc<Portal>,
    guest: Rc<Guest>,
}

impl Deref for GuestSlot {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl Drop for GuestSlot {
    fn drop(&mut self) {
        let mut guests = self.portal.guests.borrow_mut();
        guests.retain(|guest| !Rc::ptr_eq(guest, &self.guest));
    }
}

impl Portal {
    /// Assigns a slot to a new guest (a client that has not chosen an export yet). If no slot is
    /// free, the guest that has been connected for the longest time is disconnected. A legitimate
    /// client chooses its export quickly, so idle clients cannot block the address.
    pub(crate) fn place(self: &Rc<Portal>) -> GuestSlot {
        let guest = Rc::new(Guest::default());
        let mut guests = self.guests.borrow_mut();
        if guests.len() == self.guests_max()
            && let Some(longest) = guests.pop_front()
        {
            self.exports[0].refuse("it had not selected an export, and other clients were waiting");
            longest.must_leave.set(true);
            longest.changed.notify();
        }
        guests.push_back(Rc::clone(&guest));
        GuestSlot {
            portal: Rc::clone(self),
            guest,
        }
    }

    /// Returns the number of clients that have not chosen an export.
    #[cfg(test)]
    pub(crate) fn guests(&self) -> usize {
        self.guests.borrow().len()
    }

    fn guests_max(&self) -> usize {
        match self.address {
            Address::Rdma(_) => RDMA_GUESTS_MAX,
            Address::Unix(_) | Address::Tcp(_) => GUESTS_MAX,
        }
    }

    fn first_name(&self) -> String {
        self.exports[0].config.name.clone()
    }

    /// Starts to listen at the address.
    ///
    /// # Errors
    /// The reason why the server cannot listen at the address.
    pub(crate) async fn listen(&self, rt: &Rt) -> Result<Listening, StartError> {
        let unprotected = self.exports.iter().all(|export| export.config.unprotected);
        if is_open(&self.address, self.tls_files.as_ref(), unprotected) {
            return Err(StartError::Open {
                export: self.first_name(),
                address: self.address.clone(),
            });
        }
        if let (Some(files), None) = (&self.tls_files, self.tls.get()) {
            let loaded = ServerTls::load(files).map_err(|error| StartError::Tls {
                export: self.first_name(),
                error,
            })?;
            // No other task can have set the TLS configuration since the check, because there was
            // no `await` in between.
            self.tls.get_or_init(|| loaded);
        }
        bind(rt, self).await
    }

    /// Whether a client must start TLS before it sends anything else.
    pub(crate) fn speaks_tls(&self) -> bool {
        self.tls_files.is_some()
    }

    /// Performs the TLS handshake with a client. Returns the stream and the exports that the client
    /// may see. There is at least one such export.
    ///
    /// # Errors
    /// The reason why the connection has to end.
    pub(crate) async fn secure(&self, rt: &Rt, stream: Cut) -> Result<(Cut, Vec<Shown>), End> {
        let first = &self.exports[0];
        let tls = self.tls.get().ok_or(End::Broken)?;
        let accepted = match stream.carried() {
            Some(carried) => {
                let tls = tls.clone();
                let accept = async move |rt: &Rt, below| tls.accept(rt, below).await;
                carried.raise(accept).await.map(|names| (stream, names))
            }
            None => {
                let accepted = tls.accept(rt, stream.keep()).await;
                accepted.map(|(stream, names)| (Cut::new(stream), names))
            }
        };
        let (stream, names) = accepted.inspect_err(|error| {
            first.refuse(format_args!("TLS: {}", Escaped(&error.to_string())));
        })?;
        let client = Client::Certified(names);
        let exports = shown_to(&client, &self.exports);
        if exports.is_empty() {
            first.refuse(format_args!("`clients` gives {client} no access"));
            return Err(End::Broken);
        }
        Ok((stream, exports))
    }
}

/// A stream that is shut down when this value is dropped, even while a receive on the stream is in
/// progress.
pub(crate) struct Cut(Option<Stream>);

impl Cut {
    pub(crate) fn new(stream: Stream) -> Cut {
        Cut(Some(stream))
    }

    /// Returns the stream; its new owner must shut it down.
    pub(crate) fn keep(mut self) -> Stream {
        self.0.take().expect("it is kept once")
    }
}

impl Deref for Cut {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        self.0.as_ref().expect("it has not been kept")
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        if let Some(stream) = &self.0 {
            stream.shutdown();
        }
    }
}

/// Groups the exports by address, the default export of each address first.
pub(crate) fn portals(served: &[Rc<Served>]) -> Vec<Rc<Portal>> {
    let mut by_address: BTreeMap<String, Vec<Rc<Served>>> = BTreeMap::new();
    for export in served {
        let address = export.config.listen.to_string();
        by_address
            .entry(address)
            .or_default()
            .push(Rc::clone(export));
    }
    by_address
        .into_values()
        .map(|mut exports| {
            exports.sort_by(|a, b| {
                let key = |e: &Served| (!e.config.default, e.config.name.clone());
                key(a).cmp(&key(b))
            });
            Rc::new(Portal {
                address: exports[0].config.listen.clone(),
                protocol: exports[0].config.protocol,
                tls_files: exports[0].config.tls.clone(),
                tls: OnceCell::new(),
                exports,
                guests: RefCell::default(),
            })
        })
        .collect()
}

async fn bind(rt: &Rt, portal: &Portal) -> Result<Listening, StartError> {
    let (export, address) = (portal.first_name(), &portal.address);
    if let Address::Unix(path) = address {
        clear_path(rt, &export, address, path).await?;
    }
    let bound = Listening::bind(rt, address, portal.protocol).and_then(|listener| {
        open_up(portal)?;
        Ok(listener)
    });
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => StartError::InUse {
            export,
            address: address.clone(),
        },
        _ => StartError::Listen {
            export,
            address: address.clone(),
            error,
        },
    })
}

/// Lets every user of the machine connect to the UNIX socket of a portal if the rules of one of its
/// exports admit clients other than the server's own user and root. The rules then decide the
/// rights of each user.
fn open_up(portal: &Portal) -> io::Result<()> {
    let is_for_others = portal.exports.iter().any(|e| e.config.is_for_others());
    match &portal.address {
        Address::Unix(path) if is_for_others => share_socket(path),
        _ => Ok(()),
    }
}

/// Sets the mode of a socket file so that other users can connect. After the socket was created,
/// its path may have been replaced by a symbolic link or another file, whose mode must not change.
/// The file is therefore checked and changed through one descriptor.
///
/// # Errors
/// The errors of `open(2)` and `chmod(2)`; `InvalidInput` if the file is not a socket of this user.
fn share_socket(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if !is_socket || found.st_uid != rustix::process::geteuid().as_raw() {
        let words = "the socket was replaced by another file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
    }
    // `fchmod(2)` fails on a descriptor that was opened with `O_PATH`, so the mode is changed
    // through the descriptor's path in `/proc`.
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(by_descriptor, Permissions::from_mode(SHARED_MODE))
}

/// Removes the socket file if no server answers at it any more.
async fn clear_path(
    rt: &Rt,
    export: &str,
    address: &Address,
    path: &Path,
) -> Result<(), StartError> {
    match std::fs::symlink_metadata(path) {
        // The call of `bind(2)` will report the fault of the path.
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(StartError::NotASocket {
                export: export.to_owned(),
                path: path.to_owned(),
            });
        }
        Ok(_) => {}
    }
    let listen_error = |error| StartError::Listen {
        export: export.to_owned(),
        address: address.clone(),
        error,
    };
    match Stream::connect(rt, address).await {
        Ok(_) => Err(StartError::InUse {
            export: export.to_owned(),
            address: address.clone(),
        }),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(listen_error)
        }
        Err(error) => Err(listen_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_socket_itself_is_opened_to_others() {
        let name = format!("bimetal-portal-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        let mode = |name: &str| std::fs::metadata(at(name)).unwrap().mode() & 0o777;
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::fs::write(at("file"), "secret").unwrap();
        for name in ["socket", "file"] {
            std::fs::set_permissions(at(name), Permissions::from_mode(0o600)).unwrap();
        }
        symlink(at("file"), at("to-file")).unwrap();
        symlink(at("socket"), at("to-socket")).unwrap();
        let refused = ["file", "to-file", "to-socket"].map(|name| share_socket(&at(name)).is_err());
        let kept = (mode("file"), mode("socket"));
        let shared = share_socket(&at("socket"));
        let opened = mode("socket");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((refused, kept), ([true; 3], (0o600, 0o600)));
        shared.unwrap();
        assert_eq!(opened, 0o666);
    }
}
