//! What has been received over a stream and not been taken. It knows of no protocol.

use std::io;

use super::Stream;
use crate::buf::BufMut;
use crate::executor::Rt;

/// Received bytes; those from `start` to `end` have not been taken.
pub struct Inbox {
    /// Away while the kernel fills it.
    buf: Option<BufMut>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Nothing yet; at most the buffer's length is held.
    pub fn new(buf: BufMut) -> Inbox {
        Inbox {
            buf: Some(buf),
            start: 0,
            end: 0,
        }
    }

    /// What has not been taken.
    pub fn unread(&self) -> &[u8] {
        let buf = self
            .buf
            .as_ref()
            .expect("the buffer is here between receives");
        &buf[self.start..self.end]
    }

    /// Takes the next `count` bytes.
    ///
    /// # Panics
    /// When so many are not here.
    pub fn consume(&mut self, count: usize) {
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
    pub fn put(&mut self, early: &[u8]) {
        assert!(self.unread().is_empty(), "it came before everything else");
        let buf = self
            .buf
            .as_mut()
            .expect("the buffer is here between receives");
        buf[..early.len()].copy_from_slice(early);
        (self.start, self.end) = (0, early.len());
    }

    /// Receives behind what is unread; false at the end of the stream.
    ///
    /// # Errors
    /// Those of `recv(2)`.
    ///
    /// # Panics
    /// When the buffer is full of unread bytes.
    pub async fn receive(&mut self, stream: &Stream) -> io::Result<bool> {
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

    /// Receives the next header of `bytes` and nothing behind it; false at the end of the stream.
    /// For a stream of large messages: what follows can then be received into its own buffer.
    ///
    /// # Errors
    /// Those of `recv(2)`.
    ///
    /// # Panics
    /// When something is unread.
    pub async fn receive_header(
        &mut self,
        rt: &Rt,
        stream: &Stream,
        bytes: usize,
    ) -> io::Result<bool> {
        assert!(self.unread().is_empty(), "a header is received on its own");
        let (result, head) = stream.recv(rt.pool().alloc_now(bytes), 0).await;
        let count = result?;
        self.put(&head[..count]);
        Ok(count > 0)
    }

    /// Fills `buf` with the next bytes: what is here, and then what comes, straight into it. False
    /// at the end of the stream before that. `progress` is told of every wait that begins and ends.
    ///
    /// # Errors
    /// Those of `recv(2)`.
    pub async fn fill(
        &mut self,
        stream: &Stream,
        buf: BufMut,
        progress: impl Fn(bool),
    ) -> io::Result<Option<BufMut>> {
        let mut buf = buf;
        let mut filled = buf.len().min(self.unread().len());
        buf[..filled].copy_from_slice(&self.unread()[..filled]);
        self.consume(filled);
        while filled < buf.len() {
            progress(true);
            let (result, back) = stream.recv(buf, filled).await;
            progress(false);
            buf = back;
            match result? {
                0 => return Ok(None),
                count => filled += count,
            }
        }
        Ok(Some(buf))
    }
}
