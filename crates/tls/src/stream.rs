//! A stream on which everything is encrypted and authenticated.
//!
//! What is received goes through one buffer of ciphertext, and is decrypted straight from there as
//! far as the receiver has room. What is sent is encrypted a piece at a time. The connection is
//! never borrowed across a wait, so that the one task that receives and the one that sends do not
//! see each other.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice, Read, Write};
use std::pin::pin;
use std::task::{Context, Waker};

use bimetal_rt::net::{Layer, Peer, RecvFuture, SendFuture, Stream};
use bimetal_rt::{BufMut, Payload, Rt};
use rustls::Connection;

/// Ciphertext received at a time before both ends know each other, and from then on.
const HANDSHAKE_BYTES: usize = 4096;
const RECEIVE_BYTES: usize = 64 << 10;
/// Plaintext encrypted at a time, and what it becomes at most: 22 bytes more for each record of 16
/// KiB, and an answer to a change of keys.
const SEND_BYTES: usize = 64 << 10;
const SEND_OVERHEAD_BYTES: usize = 1024;
/// Slices of a payload that are encrypted together.
const SLICES_MAX: usize = 64;

/// Received ciphertext, of which `start..end` has not been taken.
struct Incoming {
    buf: BufMut,
    start: usize,
    end: usize,
}

/// See the module.
pub(crate) struct Encrypted {
    rt: Rt,
    below: Stream,
    connection: RefCell<Connection>,
    incoming: RefCell<Option<Incoming>>,
    /// A piece of ciphertext is on its way: nothing may be sent past it.
    sending: Cell<bool>,
}

/// An error of TLS as one of a stream.
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

    pub(crate) fn with_connection<T>(&self, look: impl FnOnce(&Connection) -> T) -> T {
        look(&self.connection.borrow())
    }

    /// Sends what TLS itself has to say.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        while let Some(piece) = self.ciphertext(SEND_BYTES)? {
            self.send_below(piece).await?;
        }
        Ok(())
    }

    /// Receives something of the handshake. What comes behind the handshake stays for the receiver.
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

    /// Receives ciphertext; false at the end of the stream below.
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

    /// Gives the connection some of the ciphertext that is here; false when there is none.
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
        // It takes nothing any more once the peer has said that it has ended.
        if taken == 0 || here.start == here.end {
            *incoming = None;
        }
        Ok(true)
    }

    /// Decrypts what is here into `out`, as far as it fits: how much, or `None` when more has to
    /// come. Zero is the peer's word that it has ended.
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
                // What is here is handed out before an error behind it is met.
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
                // Whoever cuts the connection is not the peer.
                Ok(false) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Err(error) => return (Err(error), buf),
            }
        }
    }

    /// Ciphertext that waits to be sent, if there is any.
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
                    // Nothing waits to be sent here, so it has ended.
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

    /// Says that nothing more will come, as far as that takes no time: a peer that does not receive
    /// has to do without.
    fn say_goodbye(&self) {
        self.connection.borrow_mut().send_close_notify();
        if self.sending.get() {
            return;
        }
        if let Ok(Some(goodbye)) = self.ciphertext(0) {
            let send = pin!(self.below.send(goodbye));
            // What the socket takes at once is sent by this; the rest is given up.
            let _ = send.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        // A receive that was given up would hold the connection open otherwise.
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
