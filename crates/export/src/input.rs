//! The receiving side of a connection: the reasons why receiving ends, and the transfer of received
//! bytes into buffers of requests. This module does not depend on the protocol.

use std::io;

use bimetal_proto::{brp, nbd};
use bimetal_rt::buf::BLOCK_BYTES_MAX;
use bimetal_rt::net::Inbox;
use bimetal_rt::{Payload, Rt};

use crate::link::{Link, Reply};

/// Size of the receive buffer. It is larger than the default buffer of a UNIX socket.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// Size of the receive buffer during the handshake.
pub(crate) const HANDSHAKE_BUFFER_BYTES: usize = 4096;
/// Maximum size, including the header, of a payload that is received completely into the receive
/// buffer and then copied. The rest of a larger payload is received directly into a buffer of its
/// own.
pub(crate) const COPIED_BYTES_MAX: usize = 64 << 10;

/// Reason why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client ended the connection in order: by a message of the protocol, or by closing the
    /// connection between two messages.
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

/// Extraction of a request's data from a receive buffer. The request must have been admitted
/// before. Waiting for data is recorded in the link, so that a stalled client can be detected.
pub(crate) trait Take {
    /// Moves the next `len` bytes into buffers of their own. Bytes that have not arrived yet are
    /// received into these buffers.
    async fn take<R: Reply>(&mut self, rt: &Rt, link: &Link<R>, len: usize)
    -> Result<Payload, End>;

    /// Discards the next `left` bytes. If some of these bytes have not arrived yet, receives them
    /// first.
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
            // The admission of the request has reserved the memory, so the allocation need not
            // wait. A piece is no longer than the longest block of the pool, because a longer piece
            // would come from the heap.
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
