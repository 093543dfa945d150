//! The interface between the server and the connections of each protocol, and the bounds of one
//! connection.

use std::rc::Rc;
use std::time::Duration;

use crate::account::Bounds;
use crate::input::End;
use crate::link::{Link, Reply};

/// Maximum number of unanswered requests of one connection. At this number, the server receives no
/// further request until a request has been answered.
pub const REQUESTS_IN_FLIGHT_MAX: u32 = 256;
/// Maximum number of data bytes of the unanswered requests of one connection: enough for two of the
/// largest requests.
pub const BYTES_IN_FLIGHT_MAX: u64 = 64 << 20;
/// Bounds on the requests and data bytes that one connection may have in flight.
pub(crate) const BOUNDS: Bounds = Bounds {
    requests: REQUESTS_IN_FLIGHT_MAX,
    bytes: BYTES_IN_FLIGHT_MAX,
};
/// Time limit for the handshake of a client.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// A connection after its handshake. It must never abandon a request that it has started: when the
/// client has disconnected, requests in flight still complete, and only their replies are dropped.
pub(crate) trait Conversation {
    /// Type of a reply.
    type Reply: Reply;

    /// Returns the link: the client's stream and its account.
    fn link(&self) -> &Rc<Link<Self::Reply>>;

    /// Sends replies until the link is finished.
    async fn send(&self);

    /// Receives and starts requests until the client ends the connection. `early` holds the bytes
    /// that were received after the end of the handshake message.
    async fn receive(self: &Rc<Self>, early: &[u8]) -> End;

    /// Whether another connection has revoked this connection, as a fence of a BRP path does. If it
    /// has, no further request of the connection may be started, not even a request that has
    /// already been received.
    fn is_revoked(&self) -> bool {
        false
    }
}
