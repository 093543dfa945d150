//! Why receiving ended, and bytes that are taken on account of a link. It knows of no protocol.

use std::io;

use bimetal_proto::{brp, nbd};
use bimetal_rt::buf::BLOCK_BYTES_MAX;
use bimetal_rt::net::Inbox;
use bimetal_rt::{Payload, Rt};

use crate::link::{Link, Reply};

/// Received at a time: more than a UNIX socket holds by default.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// Received at a time during the handshake.
pub(crate) const HANDSHAKE_BUFFER_BYTES: usize = 4096;
/// A payload up to this size (with its header) is copied out of the receive buffer once it is
/// complete; the rest of a larger one is received into its own buffer.
pub(crate) const COPIED_BYTES_MAX: usize = 64 << 10;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client said so, or went away between messages.
    Client,
    /// The connection broke, also in the middle of a message.
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

/// Takes bytes out of an inbox into buffers of their own, on account of a link: their request was
/// admitted before.
pub(crate) trait Take {
    /// Takes the next `len` bytes, receiving what is not here yet.
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
            // Its admission has reserved the memory. A larger piece would come from the heap.
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
