//! Why receiving ended, and how bytes are taken from a stream on the account of a link. This module
//! is independent of the protocol.

use std::io;

use bimetal_proto::{brp, nbd};
use bimetal_rt::buf::BLOCK_BYTES_MAX;
use bimetal_rt::net::Inbox;
use bimetal_rt::{Payload, Rt};

use crate::link::{Link, Reply};

/// Size of the receive buffer: more than a UNIX socket holds by default.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// Size of the receive buffer during the handshake.
pub(crate) const HANDSHAKE_BUFFER_BYTES: usize = 4096;
/// Maximum size of a payload, with its header, that is copied out of the receive buffer once it is
/// complete. The rest of a larger payload is received into a buffer of its own.
pub(crate) const COPIED_BYTES_MAX: usize = 64 << 10;

/// Reason why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client ended the connection, or closed it between messages.
    Client,
    /// The connection broke, possibly in the middle of a message.
    Broken,
    /// The client breached the protocol.
    Protocol,
}

impl From<nbd::ProtocolError> for End {
    fn from(_: nbd::ProtocolError) -> End {
        End::Protocol
    }
}

impl From<brp::ProtocolError> for End {
    fn from(_: brp::ProtocolError) -> End {
        End::Protocol
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Broken
    }
}

/// Takes bytes out of an inbox into separate buffers, on the account of a link. The request that
/// the bytes belong to has been admitted before.
pub(crate) trait Take {
    /// Takes the next `len` bytes, and receives those that have not arrived yet.
    async fn take<R: Reply>(&mut self, rt: &Rt, link: &Link<R>, len: usize)
    -> Result<Payload, End>;

    /// Drops the next `left` bytes.
    async fn skip<R: Reply>(&mut self, link: &Link<R>, left: usize) -> Result<(), End>;
}

impl Take for Inbox {
    async fn take<R: Reply>(
        &mut self,
        rt: &Rt,
        link: &Link<R>,
        len: usize,
    ) -> Result<Payload, End> {
        let mut payload = Payload::empty();
        while payload.len() < len {
            // The admission has reserved the memory. A piece larger than a block would come from
            // the heap.
            let piece_bytes = (len - payload.len()).min(BLOCK_BYTES_MAX);
            let buf = rt.pool().alloc_now(piece_bytes);
            let progress = |waiting| link.set_receiving(waiting);
            let filled = self.fill(&link.stream, buf, progress).await?;
            payload.push(filled.ok_or(End::Broken)?.freeze());
        }
        Ok(payload)
    }

    async fn skip<R: Reply>(&mut self, link: &Link<R>, mut left: usize) -> Result<(), End> {
        loop {
            let here = left.min(self.unread().len());
            self.consume(here);
            left -= here;
            if left == 0 {
                return Ok(());
            }
            link.set_receiving(true);
            let more = self.receive(&link.stream).await?;
            link.set_receiving(false);
            if !more {
                return Err(End::Broken);
            }
        }
    }
}
