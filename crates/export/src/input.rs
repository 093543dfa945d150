//! What has been received and not been consumed, and why receiving ended. It knows of no protocol.

use std::io;

use bimetal_proto::{brp, nbd};
use bimetal_rt::net::Stream;
use bimetal_rt::{BufMut, Payload, Rt};

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

/// Received bytes: those from `start` to `end` have not been consumed.
pub(crate) struct Input {
    /// Away while the kernel fills it.
    buf: Option<BufMut>,
    start: usize,
    end: usize,
}

impl Input {
    pub(crate) fn new(buf: BufMut) -> Input {
        Input {
            buf: Some(buf),
            start: 0,
            end: 0,
        }
    }

    pub(crate) fn unread(&self) -> &[u8] {
        let buf = self
            .buf
            .as_ref()
            .expect("the buffer is here between receives");
        &buf[self.start..self.end]
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "only received bytes are consumed");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Puts what came behind a handshake in front.
    ///
    /// # Panics
    /// When something has been received already, or it does not fit.
    pub(crate) fn put(&mut self, early: &[u8]) {
        assert!(self.unread().is_empty(), "it came before everything else");
        if let Some(buf) = &mut self.buf {
            buf[..early.len()].copy_from_slice(early);
            self.end = early.len();
        }
    }

    /// Receives the next header of `bytes` and nothing behind it; false at the end of the stream.
    /// For a stream of large writes: what follows can then be received into its own buffer.
    pub(crate) async fn receive_header(
        &mut self,
        rt: &Rt,
        stream: &Stream,
        bytes: usize,
    ) -> io::Result<bool> {
        assert!(self.unread().is_empty(), "a header is received on its own");
        let (result, head) = stream.recv(rt.pool().alloc_now(bytes), 0).await;
        let count = result?;
        let buf = self
            .buf
            .as_mut()
            .expect("the buffer is here between receives");
        buf[..count].copy_from_slice(&head[..count]);
        (self.start, self.end) = (0, count);
        Ok(count > 0)
    }

    /// Receives behind what is unread; false at the end of the stream.
    pub(crate) async fn receive(&mut self, stream: &Stream) -> io::Result<bool> {
        let mut buf = self.buf.take().expect("one receive at a time");
        if self.start > 0 {
            buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let (result, buf) = stream.recv(buf, self.end).await;
        self.buf = Some(buf);
        let count = result?;
        self.end += count;
        Ok(count > 0)
    }

    /// Takes the next `len` bytes into a buffer of their own, receiving what is not here yet.
    pub(crate) async fn take<R: Reply>(
        &mut self,
        rt: &Rt,
        link: &Link<R>,
        len: usize,
    ) -> Result<Payload, End> {
        if len == 0 {
            return Ok(Payload::empty());
        }
        let mut buf = rt.pool().alloc(len).await;
        let here = len.min(self.unread().len());
        buf[..here].copy_from_slice(&self.unread()[..here]);
        self.consume(here);
        let mut filled = here;
        while filled < len {
            link.set_receiving(true);
            let (result, back) = link.stream.recv(buf, filled).await;
            link.set_receiving(false);
            buf = back;
            match result? {
                0 => return Err(End::Broken),
                count => filled += count,
            }
        }
        Ok(buf.freeze().into())
    }

    /// Drops the next `left` bytes.
    pub(crate) async fn skip<R: Reply>(
        &mut self,
        link: &Link<R>,
        mut left: usize,
    ) -> Result<(), End> {
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
