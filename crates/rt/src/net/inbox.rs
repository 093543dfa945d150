//! A receive buffer for a stream, which holds bytes that were received and not yet consumed. This
//! module must not depend on a protocol.

use std::io;

use super::Stream;
use crate::buf::BufMut;
use crate::executor::Rt;

/// Received bytes; the bytes from `start` to `end` have not been consumed.
pub struct Inbox {
    /// The buffer; `None` while the kernel fills it.
    buf: Option<BufMut>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Creates an empty inbox whose capacity is the length of `buf`.
    pub fn new(buf: BufMut) -> Inbox {
        Inbox {
            buf: Some(buf),
            start: 0,
            end: 0,
        }
    }

    /// Returns the bytes that have not been consumed.
    pub fn unread(&self) -> &[u8] {
        let buf = self
            .buf
            .as_ref()
            .expect("the buffer is here between receives");
        &buf[self.start..self.end]
    }

    /// Consumes the next `count` bytes.
    ///
    /// # Panics
    /// If fewer than `count` bytes are unread.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "only received bytes are consumed");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Puts `early` into the inbox. These are bytes that arrived directly after a handshake, before
    /// the inbox received any data.
    ///
    /// # Panics
    /// If there are unread bytes, or if `early` does not fit.
    pub fn put(&mut self, early: &[u8]) {
        assert!(self.unread().is_empty(), "it came before everything else");
        let buf = self
            .buf
            .as_mut()
            .expect("the buffer is here between receives");
        buf[..early.len()].copy_from_slice(early);
        (self.start, self.end) = (0, early.len());
    }

    /// Receives once and appends to the unread bytes; returns false at the end of the stream.
    ///
    /// # Errors
    /// The errors of `recv(2)`.
    ///
    /// # Panics
    /// If the buffer is full of unread bytes.
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

    /// Receives at most `bytes` bytes, the size of a header, and leaves all later bytes to the next
    /// receive. Returns false at the end of the stream. Protocols with large messages use this
    /// function, so that the payload after the header can be received directly into its own buffer.
    ///
    /// # Errors
    /// The errors of `recv(2)`.
    ///
    /// # Panics
    /// If there are unread bytes.
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

    /// Fills `buf` with the next bytes: first the unread bytes, then bytes received directly into
    /// `buf`. Returns `None` when the stream ends before `buf` is full. Calls `progress(true)`
    /// before each receive and `progress(false)` after it.
    ///
    /// # Errors
    /// The errors of `recv(2)`.
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
