//! Results for an initiator, and their encoding in as few frames as possible.

use bimetal_proto::brp::frame::{check_appended, check_of};
use bimetal_proto::brp::response::encode_response;
use bimetal_proto::brp::wire::{DATA_BYTES_MAX, ENTRIES_MAX, FENCE_BYTES, kind};
use bimetal_proto::brp::{Completion, Outbound, Status};
use bimetal_rt::{Payload, Rt};

use crate::link::Reply;

/// A message to be sent.
pub(crate) enum Outgoing {
    /// The result of a request.
    Result {
        tag: u32,
        status: Status,
        data: Payload,
    },
    /// Answer to a fence: no request of the path with this number is in progress any more.
    Fenced(u32),
}

impl Reply for Outgoing {
    fn data_bytes(&self) -> usize {
        match self {
            Outgoing::Result { data, .. } => data.len(),
            Outgoing::Fenced(_) => 0,
        }
    }
}

/// Encoder of batches of results into frames, for one direction of one path.
pub(super) struct Frames {
    outbound: Outbound,
    entries_max: usize,
    heads: Vec<u8>,
    /// Data of the results in the batch. Each payload has the offset in `heads` at which the
    /// payload is inserted.
    data: Vec<(usize, Payload)>,
}

impl Frames {
    pub(super) fn new(outbound: Outbound, merges: bool) -> Frames {
        Frames {
            outbound,
            entries_max: if merges { ENTRIES_MAX } else { 1 },
            heads: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Encodes a batch as one payload. All heads are slices of one buffer. The data of results is
    /// included without copying.
    pub(super) fn gather(&mut self, rt: &Rt, batch: &mut [Outgoing]) -> Payload {
        self.heads.clear();
        let mut rest = batch;
        while let Some((first, _)) = rest.split_first() {
            if let Outgoing::Fenced(path) = first {
                let body = u64::from(*path).to_le_bytes();
                const { assert!(FENCE_BYTES == size_of::<u64>()) };
                self.outbound.control(&mut self.heads, kind::FENCED, &body);
                rest = &mut rest[1..];
                continue;
            }
            let count = self.frame(rest);
            rest = &mut rest[count..];
        }
        let heads = rt.pool().copy_of(&self.heads);
        let mut payload = Payload::empty();
        let mut start = 0;
        for (place, data) in self.data.drain(..) {
            payload.push(heads.slice(start..place));
            payload.append(data);
            start = place;
        }
        payload.push(heads.slice(start..heads.len()));
        payload
    }

    /// Encodes the results at the front of the batch as one frame, and returns the number of
    /// encoded results.
    fn frame(&mut self, batch: &mut [Outgoing]) -> usize {
        let crc = self.outbound.has_checks();
        let mut completions = Vec::with_capacity(batch.len().min(self.entries_max));
        let mut data_bytes = 0;
        let first = self.data.len();
        for outgoing in batch.iter_mut().take(self.entries_max) {
            let Outgoing::Result { tag, status, data } = outgoing else {
                break;
            };
            data_bytes += data.len();
            if data_bytes > DATA_BYTES_MAX as usize {
                break;
            }
            completions.push(Completion {
                tag: *tag,
                status: *status,
                length_bytes: data.len() as u32,
                check: if crc { check(data) } else { 0 },
            });
            if !data.is_empty() {
                self.data.push((0, std::mem::take(data)));
            }
        }
        encode_response(&mut self.outbound, &mut self.heads, &completions);
        let place = self.heads.len();
        for (at, _) in &mut self.data[first..] {
            *at = place;
        }
        completions.len()
    }
}

/// Returns the CRC-32C of a payload. The result for an empty payload is 0, which means that there
/// is no checksum.
pub(super) fn check(payload: &Payload) -> u32 {
    let mut slices = payload.slices().iter();
    let first = slices.next().map_or(0, |slice| check_of(slice));
    slices.fold(first, |check, slice| check_appended(check, slice))
}
