//! Listening at an address of any kind. The caller must never have to know which kind it is.

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
    /// Listens at an address for clients that will speak `protocol`.
    ///
    /// # Errors
    /// Those of `bind(2)`; over RDMA, an error that names the missing component.
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

    /// Returns the address in use, with the port that was chosen.
    pub(crate) fn address(&self) -> Address {
        match self {
            Listening::Socket(listener) => listener.address().clone(),
            Listening::Rdma(listener) => Address::Rdma(listener.address()),
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The next connection could not be accepted. A later call may succeed.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listening::Socket(listener) => listener.accept().await,
            Listening::Rdma(listener) => listener.accept().await,
        }
    }

    /// Returns the tasks of connections that have been shut down and are still sending their last
    /// bytes. `None` where the kernel does this.
    pub(crate) fn closings(&self) -> Option<TaskGroup> {
        match self {
            Listening::Socket(_) => None,
            Listening::Rdma(listener) => Some(listener.closings()),
        }
    }
}
