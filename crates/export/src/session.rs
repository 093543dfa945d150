//! What every protocol's connection is to the server, and the bounds of one.

use std::rc::Rc;
use std::time::Duration;

use crate::account::Bounds;
use crate::input::End;
use crate::link::{Link, Reply};

/// Requests of one connection that have not been answered, at most; the next is not received
/// before.
pub const REQUESTS_IN_FLIGHT_MAX: u32 = 256;
/// Data of those requests in bytes, at most: two of the largest.
pub const BYTES_IN_FLIGHT_MAX: u64 = 64 << 20;
/// What one connection may hold.
pub(crate) const BOUNDS: Bounds = Bounds {
    requests: REQUESTS_IN_FLIGHT_MAX,
    bytes: BYTES_IN_FLIGHT_MAX,
};
/// A client has this long for its handshake.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// A connection after its handshake. It must never give up a request that it has started: when the
/// client is gone, requests in flight still complete, only their replies are dropped.
pub(crate) trait Conversation {
    /// How replies look.
    type Reply: Reply;

    /// The client's stream and its account.
    fn link(&self) -> &Rc<Link<Self::Reply>>;

    /// Sends replies until the link is finished.
    async fn send(&self);

    /// Receives and starts requests until the client ends it. `early` is what came behind the
    /// handshake.
    async fn receive(self: &Rc<Self>, early: &[u8]) -> End;

    /// True when somebody else has ended the connection: nothing more may be taken from it, not
    /// even what has been received.
    fn is_revoked(&self) -> bool {
        false
    }
}
