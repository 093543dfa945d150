//! Listening at an address of any kind. Whoever asks must never have to know which one it is.

use std::io;

use bimetal_rt::Rt;
use bimetal_rt::net::{Address, Listener, Stream};
use bimetal_rt::sync::TaskGroup;

use crate::config::{ONLY_BRP, Protocol};

/// What listens.
pub(crate) enum Listening {
    /// A socket.
    Socket(Listener),
    /// RDMA CM.
    Rdma(bimetal_rdma::Listener),
}

impl Listening {
    /// Listens at an address, for clients that will speak `protocol`.
    ///
    /// # Errors
    /// Those of `bind(2)`, and of RDMA what is missing.
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

    /// The address in use, with the port that was chosen.
    pub(crate) fn address(&self) -> Address {
        match self {
            Listening::Socket(listener) => listener.address().clone(),
            Listening::Rdma(listener) => Address::Rdma(listener.address()),
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Why the next one could not be taken; the one after it may be.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listening::Socket(listener) => listener.accept().await,
            Listening::Rdma(listener) => listener.accept().await,
        }
    }

    /// Connections that have been shut down and whose last bytes are on their way, where that is
    /// not for the kernel to see to.
    pub(crate) fn closings(&self) -> Option<TaskGroup> {
        match self {
            Listening::Socket(_) => None,
            Listening::Rdma(listener) => Some(listener.closings()),
        }
    }
}
