//! NBD replies: their headers, and the encoding of a batch of replies as one payload.

use bimetal_proto::nbd::Errno;
use bimetal_proto::nbd::reply::{error_chunk, offset_data_head, simple_reply};
use bimetal_rt::{Payload, Rt};

use crate::link::Reply;

/// Size of the longest reply header in bytes: the header of a data chunk.
const HEAD_BYTES_MAX: usize = 28;

/// A reply that is ready to be sent.
pub(crate) struct Outgoing {
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: u8,
    data: Payload,
}

impl Outgoing {
    fn with_head<const N: usize>(bytes: [u8; N], data: Payload) -> Outgoing {
        const { assert!(N <= HEAD_BYTES_MAX) };
        let mut head = [0; HEAD_BYTES_MAX];
        head[..N].copy_from_slice(&bytes);
        Outgoing {
            head,
            head_bytes: N as u8,
            data,
        }
    }

    /// Builds a success reply without data.
    ///
    /// The protocol allows a simple reply to every request except a read, even when structured
    /// replies were negotiated (NBD, section "Simple reply message"). A simple reply is shorter
    /// than a structured one.
    pub(crate) fn done(cookie: u64) -> Outgoing {
        Outgoing::with_head(simple_reply(cookie, None), Payload::empty())
    }

    /// Builds an error reply: an error chunk if structured replies were negotiated, otherwise a
    /// simple reply.
    pub(crate) fn error(cookie: u64, structured: bool, error: Errno) -> Outgoing {
        if structured {
            Outgoing::with_head(error_chunk(cookie, error), Payload::empty())
        } else {
            Outgoing::with_head(simple_reply(cookie, Some(error)), Payload::empty())
        }
    }

    /// Builds the reply to a read of `data` at `offset`.
    pub(crate) fn data(cookie: u64, structured: bool, offset: u64, data: Payload) -> Outgoing {
        if structured {
            let head = offset_data_head(cookie, offset, data.len() as u32, true);
            Outgoing::with_head(head, data)
        } else {
            Outgoing::with_head(simple_reply(cookie, None), data)
        }
    }

    /// Wraps a message that is already encoded.
    pub(crate) fn encoded(message: Payload) -> Outgoing {
        Outgoing::with_head([], message)
    }
}

impl Reply for Outgoing {
    fn data_bytes(&self) -> usize {
        self.data.len()
    }
}

/// Encodes a batch as one payload. All headers are slices of one buffer, the data of replies is
/// included without copying, and adjacent headers share one slice.
pub(crate) fn gather(rt: &Rt, batch: &mut [Outgoing]) -> Payload {
    let heads_bytes = batch
        .iter()
        .map(|reply| usize::from(reply.head_bytes))
        .sum();
    let mut heads = rt.pool().alloc_now(heads_bytes);
    let mut filled = 0;
    for reply in batch.iter() {
        let head = &reply.head[..usize::from(reply.head_bytes)];
        heads[filled..filled + head.len()].copy_from_slice(head);
        filled += head.len();
    }
    let heads = heads.freeze();
    let mut payload = Payload::empty();
    let (mut start, mut end) = (0, 0);
    for reply in batch {
        end += usize::from(reply.head_bytes);
        if !reply.data.is_empty() {
            payload.push(heads.slice(start..end));
            payload.append(std::mem::take(&mut reply.data));
            start = end;
        }
    }
    payload.push(heads.slice(start..end));
    payload
}
