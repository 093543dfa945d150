//! The interface that the connections of every protocol have to the server, and the bounds of one
//! connection.

use std::rc::Rc;
use std::time::Duration;

use crate::account::Bounds;
use crate::input::End;
use crate::link::{Link, Reply};

/// Maximum number of unanswered requests of one connection. The next request is not received until
/// one of them has been answered.
pub const REQUESTS_IN_FLIGHT_MAX: u32 = 256;
/// Maximum number of data bytes of these requests: two of the largest requests.
pub const BYTES_IN_FLIGHT_MAX: u64 = 64 << 20;
/// Bounds of what one connection may hold.
pub(crate) const BOUNDS: Bounds = Bounds {
    requests: REQUESTS_IN_FLIGHT_MAX,
    bytes: BYTES_IN_FLIGHT_MAX,
};
/// Time limit for the handshake of a client.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// A connection after its handshake. It must never abandon a request that it has started: when the
/// client is gone, requests in flight still complete, and only their replies are dropped.
pub(crate) trait Conversation {
    /// Type of a reply.
    type Reply: Reply;

    /// Returns the link: the client's stream and its account.
    fn link(&self) -> &Rc<Link<Self::Reply>>;

    /// Sends replies until the link is finished.
    async fn send(&self);

    /// Receives and starts requests until the client ends the connection. `early` holds the bytes
    /// that were received behind the handshake.
    async fn receive(self: &Rc<Self>, early: &[u8]) -> End;

    /// Whether the connection has been ended from elsewhere. If so, no further request may be taken
    /// from it, not even one that has been received.
    fn is_revoked(&self) -> bool {
        false
    }
}
