//! An in-memory connection with bounded buffering and latency, which either end can shut down.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use crate::buf::{BufMut, Payload};
use crate::executor::Rt;
use crate::sync::Event;
use crate::time::Instant;

/// Options of an in-memory connection.
#[derive(Clone, Copy, Debug)]
pub struct PipeOptions {
    /// Number of bytes that each direction buffers before the sender waits.
    pub buffer_bytes: usize,
    /// Time from the send of a byte until the byte can be received.
    pub latency: Duration,
}

impl Default for PipeOptions {
    fn default() -> Self {
        PipeOptions {
            buffer_bytes: 256 << 10,
            latency: Duration::ZERO,
        }
    }
}

/// One direction of a connection.
struct Direction {
    chunks: RefCell<VecDeque<(Instant, Vec<u8>)>>,
    held_bytes: Cell<usize>,
    changed: Event,
}

struct Shared {
    rt: Rt,
    options: PipeOptions,
    directions: [Direction; 2],
    closed: Cell<bool>,
}

/// One end of an in-memory connection. Dropping it closes the connection.
pub struct Pipe {
    shared: Rc<Shared>,
    side: usize,
}

impl Pipe {
    /// Returns the two ends of a new connection.
    pub(crate) fn pair(rt: &Rt, options: PipeOptions) -> (Pipe, Pipe) {
        let direction = || Direction {
            chunks: RefCell::new(VecDeque::new()),
            held_bytes: Cell::new(0),
            changed: Event::new(),
        };
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            options,
            directions: [direction(), direction()],
            closed: Cell::new(false),
        });
        (
            Pipe {
                shared: Rc::clone(&shared),
                side: 0,
            },
            Pipe { shared, side: 1 },
        )
    }

    pub(crate) async fn recv(&self, mut buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        assert!(from < buf.len(), "there is room to receive into");
        let incoming = &self.shared.directions[1 - self.side];
        let arrival = incoming
            .changed
            .until_some(|| match incoming.chunks.borrow().front() {
                Some((arrival, _)) => Some(Some(*arrival)),
                None => self.shared.closed.get().then_some(None),
            })
            .await;
        let Some(arrival) = arrival else {
            return (Ok(0), buf);
        };
        self.shared.rt.sleep_until(arrival).await;
        let count = incoming.take_into(&mut buf[from..], self.shared.rt.now());
        incoming.changed.notify();
        (Ok(count), buf)
    }

    pub(crate) async fn send(&self, payload: Payload) -> io::Result<()> {
        let outgoing = &self.shared.directions[self.side];
        let limit = self.shared.options.buffer_bytes;
        for slice in payload.slices() {
            for chunk in slice.chunks(limit.max(1)) {
                let room = || {
                    let held = outgoing.held_bytes.get();
                    self.shared.closed.get() || held == 0 || held + chunk.len() <= limit
                };
                outgoing.changed.until(room).await;
                if self.shared.closed.get() {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                let arrival = self.shared.rt.now() + self.shared.options.latency;
                outgoing
                    .chunks
                    .borrow_mut()
                    .push_back((arrival, chunk.to_vec()));
                outgoing
                    .held_bytes
                    .set(outgoing.held_bytes.get() + chunk.len());
                outgoing.changed.notify();
            }
        }
        Ok(())
    }

    pub(crate) fn shutdown(&self) {
        self.shared.closed.set(true);
        for direction in &self.shared.directions {
            direction.changed.notify();
        }
    }
}

impl Direction {
    /// Moves as much of the data that has arrived by `now` as fits into `out`, and returns the
    /// number of bytes.
    fn take_into(&self, out: &mut [u8], now: Instant) -> usize {
        let mut chunks = self.chunks.borrow_mut();
        let mut filled = 0;
        while filled < out.len() {
            let Some((arrival, chunk)) = chunks.front_mut() else {
                break;
            };
            if *arrival > now {
                break;
            }
            let count = chunk.len().min(out.len() - filled);
            out[filled..filled + count].copy_from_slice(&chunk[..count]);
            filled += count;
            if count == chunk.len() {
                chunks.pop_front();
            } else {
                chunk.drain(..count);
            }
        }
        self.held_bytes.set(self.held_bytes.get() - filled);
        filled
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VirtualOptions;
    use crate::net::Stream;

    #[test]
    fn bytes_arrive_in_order_after_the_latency_and_then_the_end() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let options = PipeOptions {
            buffer_bytes: 1000,
            latency: Duration::from_millis(3),
        };
        let (a, b) = Stream::pair(&rt, options);
        let sent: Vec<u8> = (0..50_000u32).map(|i| (i % 251) as u8).collect();
        let sender = {
            let payload = Payload::from(rt.pool().copy_of(&sent));
            rt.spawn(async move { a.send(payload).await.is_ok() })
        };
        let received = rt.block_on(async {
            let mut received = Vec::new();
            loop {
                let (count, buf) = b.recv(rt.pool().alloc_now(700), 0).await;
                match count.unwrap() {
                    0 => return received,
                    count => received.extend_from_slice(&buf[..count]),
                }
            }
        });
        assert!(rt.block_on(sender));
        assert_eq!(received, sent);
        // There are 50 chunks of 1000 bytes. Each chunk takes one latency of 3 ms, since the buffer
        // holds only one chunk at a time.
        assert_eq!(rt.now().as_ns(), 50 * 3_000_000);
    }

    #[test]
    fn a_cut_connection_wakes_both_ends() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let (a, b) = Stream::pair(&rt, PipeOptions::default());
        let reader = {
            let buf = rt.pool().alloc_now(10);
            rt.spawn(async move { b.recv(buf, 0).await.0.unwrap() })
        };
        rt.block_on(crate::yield_now());
        a.shutdown();
        assert_eq!(rt.block_on(reader), 0);
        let sent = rt.block_on(a.send(rt.pool().zeroed(1).into()));
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
