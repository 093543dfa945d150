//! A stream on which all data is encrypted and authenticated.
//!
//! Received data is stored in one buffer of ciphertext, from which as much as fits is decrypted
//! directly into the receiver's buffer. Sent data is encrypted in pieces. The TLS connection is
//! never borrowed across an await, so the task that receives and the task that sends do not
//! conflict.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice, Read, Write};
use std::pin::pin;
use std::task::{Context, Waker};

use bimetal_rt::net::{Layer, Peer, RecvFuture, SendFuture, Stream};
use bimetal_rt::{BufMut, Payload, Rt};
use rustls::Connection;

/// Maximum number of bytes of ciphertext received at a time: `HANDSHAKE_BYTES` during the
/// handshake, `RECEIVE_BYTES` after it.
const HANDSHAKE_BYTES: usize = 4096;
const RECEIVE_BYTES: usize = 64 << 10;
/// `SEND_BYTES`: number of plaintext bytes that are encrypted at a time. `SEND_OVERHEAD_BYTES`:
/// maximum number of bytes that the encryption adds to `SEND_BYTES` bytes of plaintext: 22 bytes
/// for each record of 16 KiB, and the answer to a key update.
const SEND_BYTES: usize = 64 << 10;
const SEND_OVERHEAD_BYTES: usize = 1024;
/// Maximum number of payload slices that are encrypted together.
const SLICES_MAX: usize = 64;

/// Received ciphertext. The bytes `start..end` have not been consumed.
struct Incoming {
    buf: BufMut,
    start: usize,
    end: usize,
}

/// An encrypted stream: a TLS connection over the stream `below`.
pub(crate) struct Encrypted {
    rt: Rt,
    below: Stream,
    connection: RefCell<Connection>,
    incoming: RefCell<Option<Incoming>>,
    /// True while a piece of ciphertext is being sent. Later ciphertext must not overtake this
    /// piece.
    sending: Cell<bool>,
}

/// Converts a TLS error to an I/O error.
pub(crate) fn to_io(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Encrypted {
    pub(crate) fn new(rt: &Rt, below: Stream, mut connection: Connection) -> Encrypted {
        connection.set_buffer_limit(Some(SEND_BYTES));
        Encrypted {
            rt: rt.clone(),
            below,
            connection: RefCell::new(connection),
            incoming: RefCell::new(None),
            sending: Cell::new(false),
        }
    }

    pub(crate) fn with_connection<T>(&self, probe: impl FnOnce(&Connection) -> T) -> T {
        probe(&self.connection.borrow())
    }

    /// Sends the pending ciphertext, such as messages of the handshake and alerts.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        while let Some(piece) = self.ciphertext(SEND_BYTES)? {
            self.send_below(piece).await?;
        }
        Ok(())
    }

    /// Receives bytes of the handshake and processes them. Data that arrived after the handshake is
    /// kept for the receiver of the stream.
    pub(crate) async fn advance(&self) -> io::Result<()> {
        if self.incoming.borrow().is_none() && !self.receive_below(HANDSHAKE_BYTES).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while self.is_handshaking() && self.feed()? {}
        Ok(())
    }

    fn is_handshaking(&self) -> bool {
        self.connection.borrow().is_handshaking()
    }

    /// Receives ciphertext. Returns false at the end of the stream `below`.
    async fn receive_below(&self, bytes: usize) -> io::Result<bool> {
        let (result, buf) = self.below.recv(self.rt.pool().alloc_now(bytes), 0).await;
        let end = result?;
        if end == 0 {
            return Ok(false);
        }
        let start = 0;
        *self.incoming.borrow_mut() = Some(Incoming { buf, start, end });
        Ok(true)
    }

    /// Feeds received ciphertext to the connection. Returns false when there is no received
    /// ciphertext to feed.
    fn feed(&self) -> io::Result<bool> {
        let mut incoming = self.incoming.borrow_mut();
        let Some(here) = incoming.as_mut() else {
            return Ok(false);
        };
        let mut connection = self.connection.borrow_mut();
        let mut unread = &here.buf[here.start..here.end];
        let taken = connection.read_tls(&mut unread)?;
        connection.process_new_packets().map_err(to_io)?;
        here.start += taken;
        // The connection takes no bytes after the peer has announced its end of data. The remaining
        // ciphertext is dropped.
        if taken == 0 || here.start == here.end {
            *incoming = None;
        }
        Ok(true)
    }

    /// Decrypts as much of the received ciphertext as fits into `out`. Returns the number of bytes,
    /// or `None` when more ciphertext is needed. Zero bytes mean that the peer has announced its
    /// end of data.
    fn take(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let mut filled = 0;
        while filled < out.len() {
            let read = self
                .connection
                .borrow_mut()
                .reader()
                .read(&mut out[filled..]);
            match read {
                Ok(0) => return Ok(Some(filled)),
                Ok(count) => filled += count,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                // Return the data that was decrypted so far, even if an error follows the data. A
                // later call returns the error.
                Err(_) if filled > 0 && self.incoming.borrow().is_none() => break,
                Err(_) => match self.feed() {
                    Ok(true) => {}
                    Ok(false) => return Ok(None),
                    Err(_) if filled > 0 => break,
                    Err(error) => return Err(error),
                },
            }
        }
        Ok(Some(filled))
    }

    async fn receive(&self, mut buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        assert!(from < buf.len(), "there is room to receive into");
        loop {
            match self.take(&mut buf[from..]) {
                Ok(Some(count)) => return (Ok(count), buf),
                Ok(None) => {}
                Err(error) => return (Err(error), buf),
            }
            match self.receive_below(RECEIVE_BYTES).await {
                Ok(true) => {}
                // The connection ended before the peer announced the end of its data, so an
                // attacker might have cut the connection.
                Ok(false) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Err(error) => return (Err(error), buf),
            }
        }
    }

    /// Takes the ciphertext that waits to be sent, or returns `None` if no ciphertext waits.
    /// `plain_bytes` is the number of plaintext bytes that the ciphertext encrypts.
    fn ciphertext(&self, plain_bytes: usize) -> io::Result<Option<Payload>> {
        let mut connection = self.connection.borrow_mut();
        if !connection.wants_write() {
            return Ok(None);
        }
        let mut buf = self.rt.pool().alloc_now(plain_bytes + SEND_OVERHEAD_BYTES);
        let mut filled = 0;
        while connection.wants_write() && filled < buf.len() {
            filled += connection.write_tls(&mut &mut buf[filled..])?;
        }
        buf.truncate(filled);
        Ok(Some(buf.freeze().into()))
    }

    async fn send_below(&self, piece: Payload) -> io::Result<()> {
        self.sending.set(true);
        let result = self.below.send(piece).await;
        self.sending.set(false);
        result
    }

    async fn encrypt_and_send(&self, payload: Payload) -> io::Result<()> {
        let slices: Vec<&[u8]> = payload.slices().iter().map(|slice| &slice[..]).collect();
        for group in slices.chunks(SLICES_MAX) {
            let mut vectors = [IoSlice::new(&[]); SLICES_MAX];
            for (vector, slice) in vectors.iter_mut().zip(group) {
                *vector = IoSlice::new(slice);
            }
            let mut left = &mut vectors[..group.len()];
            let mut left_bytes: usize = group.iter().map(|slice| slice.len()).sum();
            while left_bytes > 0 {
                let taken = self.connection.borrow_mut().writer().write_vectored(left)?;
                if taken == 0 {
                    // The connection accepts no data although no ciphertext is pending. The only
                    // reason for this is that the connection has ended.
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                IoSlice::advance_slices(&mut left, taken);
                left_bytes -= taken;
                while let Some(piece) = self.ciphertext(taken.min(SEND_BYTES))? {
                    self.send_below(piece).await?;
                }
            }
        }
        Ok(())
    }

    /// Announces the end of data to the peer, without waiting. If the announcement cannot be sent
    /// immediately, it is not sent.
    fn say_goodbye(&self) {
        self.connection.borrow_mut().send_close_notify();
        if self.sending.get() {
            return;
        }
        if let Ok(Some(goodbye)) = self.ciphertext(0) {
            let send = pin!(self.below.send(goodbye));
            // A single poll sends the part that the socket accepts without waiting. The rest is
            // dropped.
            let _ = send.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        // Without the shutdown, a receive whose future was dropped would keep the connection open.
        self.below.shutdown();
    }
}

impl Layer for Encrypted {
    fn recv(&self, buf: BufMut, from: usize) -> RecvFuture<'_> {
        Box::pin(self.receive(buf, from))
    }

    fn send(&self, payload: Payload) -> SendFuture<'_> {
        Box::pin(self.encrypt_and_send(payload))
    }

    fn peer(&self) -> io::Result<Option<Peer>> {
        self.below.peer()
    }

    fn shutdown(&self) {
        self.say_goodbye();
        self.below.shutdown();
    }
}
