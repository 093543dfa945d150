//! A listener at an address of any kind. Callers must not depend on the kind of the address.

use std::io;

use bimetal_rt::Rt;
use bimetal_rt::net::{Address, Listener, Stream};
use bimetal_rt::sync::TaskGroup;

use crate::config::{ONLY_BRP, Protocol};

/// A listener.
pub(crate) enum Listening {
    /// A listening socket.
    Socket(Listener),
    /// A listener of the RDMA connection manager.
    Rdma(bimetal_rdma::Listener),
}

impl Listening {
    /// Listens at an address for clients that will use `protocol`.
    ///
    /// # Errors
    /// The errors of `bind(2)`; for an RDMA address, an error that names the missing component.
    pub(crate) fn bind(rt: &Rt, address: &Address, protocol: Protocol) -> io::Result<Listening> {
        match (address, protocol) {
            (Address::Rdma(address), Protocol::Brp) => {
                bimetal_rdma::Listener::bind(rt, *address).map(Listening::Rdma)
            }
            (Address::Rdma(_), Protocol::Nbd) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, ONLY_BRP))
            }
            _ => Listener::bind(rt, address).map(Listening::Socket),
        }
    }

    /// Returns the address in use. If port 0 was requested, it contains the port that was assigned.
    pub(crate) fn address(&self) -> Address {
        match self {
            Listening::Socket(listener) => listener.address().clone(),
            Listening::Rdma(listener) => Address::Rdma(listener.address()),
        }
    }

    /// Waits for the next connection and accepts it.
    ///
    /// # Errors
    /// If the connection could not be accepted. A later call can succeed.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listening::Socket(listener) => listener.accept().await,
            Listening::Rdma(listener) => listener.accept().await,
        }
    }

    /// Returns the tasks of connections that have been shut down and are still sending their last
    /// bytes. Returns `None` for a listener on sockets, because there the kernel sends the last
    /// bytes.
    pub(crate) fn closings(&self) -> Option<TaskGroup> {
        match self {
            Listening::Socket(_) => None,
            Listening::Rdma(listener) => Some(listener.closings()),
        }
    }
}
