//! Byte streams over RDMA, for BRP. A reliable connection of RDMA CM carries a stream in messages.
//!
//! With this transport a jumbo command (several requests merged into one command), or a merged
//! response, is one work request and one completion. `docs/brp.md`, section "RDMA", specifies the
//! wire format.
//!
//! - [`flow`] decides when a message is allowed to be sent. It does no I/O, so that it can be
//!   tested without a device.
//! - [`terms`] are the terms that both ends exchange when they connect.
//! - The verbs (the interface to RDMA devices) need the feature `verbs`. Without this feature,
//!   [`connect`] and [`Listener::bind`] return an error that names the missing feature.
//!
//! This crate must never send a message for which the other end has no receive, and it must know
//! nothing of BRP.

#[cfg(feature = "verbs")]
mod connection;
pub mod flow;
#[cfg(feature = "verbs")]
mod listener;
pub mod terms;
#[cfg(feature = "verbs")]
#[allow(
    unsafe_code,
    reason = "hands memory to a device through libraries of C"
)]
mod verbs;

use std::io;
use std::net::SocketAddr;

use bimetal_rt::Rt;
use bimetal_rt::net::Stream;
use bimetal_rt::sync::TaskGroup;

/// Maximum registered memory of a connection in bytes: its receive and send buffers.
pub const CONNECTION_BYTES: u64 = 14 * (264 << 10);

/// Connects to a listening end at an address of RDMA CM.
///
/// # Errors
/// `Unsupported` if the program was built without RDMA, the libraries are not installed, or the
/// machine has no device; otherwise the reason why the other end cannot be reached. The text says
/// what the operator can do.
pub async fn connect(rt: &Rt, address: SocketAddr) -> io::Result<Stream> {
    #[cfg(feature = "verbs")]
    return connection::connect(rt, address).await;
    #[cfg(not(feature = "verbs"))]
    {
        let _ = (rt, address);
        Err(not_built())
    }
}

/// A listener at an address of RDMA CM.
pub struct Listener(Inner);

#[cfg(feature = "verbs")]
type Inner = listener::Bound;
#[cfg(not(feature = "verbs"))]
type Inner = std::convert::Infallible;

impl Listener {
    /// Listens at an address. With port 0, a free port is chosen.
    ///
    /// # Errors
    /// The errors of [`connect`], and the reason why the address cannot be used.
    pub fn bind(rt: &Rt, address: SocketAddr) -> io::Result<Listener> {
        #[cfg(feature = "verbs")]
        return listener::Bound::bind(rt, address).map(Listener);
        #[cfg(not(feature = "verbs"))]
        {
            let _ = (rt, address);
            Err(not_built())
        }
    }

    /// Returns the address at which this listens, with the port that was chosen if port 0 was
    /// requested.
    pub fn address(&self) -> SocketAddr {
        #[cfg(feature = "verbs")]
        return self.0.address();
        #[cfg(not(feature = "verbs"))]
        match self.0 {}
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// If the next connection could not be accepted. A later call can succeed.
    pub async fn accept(&self) -> io::Result<Stream> {
        #[cfg(feature = "verbs")]
        return self.0.accept().await;
        #[cfg(not(feature = "verbs"))]
        match self.0 {}
    }
}

/// Accepted connections are ended in the background. When a stream is dropped, sent data can still
/// be in flight, so the connection of the stream ends later.
impl Listener {
    /// Returns the group of tasks that end the accepted connections after their shutdown. Each task
    /// waits until the sent data of its connection has arrived, for at most five seconds.
    pub fn closings(&self) -> TaskGroup {
        #[cfg(feature = "verbs")]
        return self.0.closings().clone();
        #[cfg(not(feature = "verbs"))]
        match self.0 {}
    }
}

#[cfg(not(feature = "verbs"))]
fn not_built() -> io::Error {
    let words = "this program was built without RDMA; build it with `--features rdma`";
    io::Error::new(io::ErrorKind::Unsupported, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_rt::UringOptions;

    /// 10 receives and 4 sends of 264 KiB are 3,784,704 bytes.
    #[test]
    fn what_a_connection_holds_is_what_the_page_says() {
        assert_eq!(CONNECTION_BYTES, 3_784_704);
    }

    #[cfg(not(feature = "verbs"))]
    #[test]
    fn without_the_feature_it_is_said_how_to_have_it() {
        let rt = Rt::real_time(UringOptions::default()).unwrap();
        let address = "127.0.0.1:9".parse().unwrap();
        let bound = Listener::bind(&rt, address).err().unwrap();
        let connected = rt.block_on(connect(&rt, address)).err().unwrap();
        for error in [bound, connected] {
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            assert!(error.to_string().contains("--features rdma"), "{error}");
        }
    }

    /// Tests the error of a connection attempt that must fail, because no server listens at this
    /// port, or because the machine has no RDMA device, like most machines. In both cases the error
    /// must name the missing part.
    #[cfg(feature = "verbs")]
    #[test]
    fn what_is_missing_is_named() {
        let rt = Rt::real_time(UringOptions::default()).unwrap();
        let address = "127.0.0.1:9".parse().unwrap();
        let error = rt.block_on(connect(&rt, address)).err().unwrap();
        let words = error.to_string();
        let names = ["RDMA", "rdma", "cannot resolve"];
        assert!(names.iter().any(|name| words.contains(name)), "{words}");
    }
}
