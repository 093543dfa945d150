//! Encoding and decoding of results. A frame carries one result, or all finished results merged
//! (section "Responses").

use super::command::Request;
use super::frame::{Head, Outbound};
use super::wire::{
    COMPLETION_BYTES, DATA_BYTES_MAX, ENTRIES_MAX, Op, ProtocolError, RUN_BYTES, RUNS_MAX, Status,
    kind, u32_at,
};

/// The result of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Tag of the request.
    pub tag: u32,
    /// Status of the request.
    pub status: Status,
    /// Length of the response data in bytes.
    pub length_bytes: u32,
    /// CRC-32C of the response data, if checks were negotiated.
    pub check: u32,
}

impl Completion {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tag.to_le_bytes());
        out.extend_from_slice(&[self.status as u8, 0, 0, 0]);
        out.extend_from_slice(&self.length_bytes.to_le_bytes());
        out.extend_from_slice(&self.check.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Completion, ProtocolError> {
        let status = Status::from_wire(bytes[4]).ok_or(ProtocolError::BadField("status"))?;
        if bytes[5..8] != [0; 3] {
            return Err(ProtocolError::BadField("reserved"));
        }
        Ok(Completion {
            tag: u32_at(bytes, 0),
            status,
            length_bytes: u32_at(bytes, 8),
            check: u32_at(bytes, 12),
        })
    }

    /// Checks that the length of the result's data is possible for the request that the result
    /// answers.
    ///
    /// # Errors
    /// [`ProtocolError::WrongLength`] if the request cannot have a result of this length.
    pub fn check_against(&self, request: &Request) -> Result<(), ProtocolError> {
        let length = self.length_bytes;
        let right = match (self.status, request.op) {
            (Status::Ok, Op::Read) => length == request.length_bytes,
            (Status::Ok, Op::Extents) => {
                let runs = length as usize / RUN_BYTES;
                (1..=RUNS_MAX).contains(&runs) && runs * RUN_BYTES == length as usize
            }
            _ => length == 0,
        };
        if right {
            Ok(())
        } else {
            Err(ProtocolError::WrongLength(length))
        }
    }
}

/// Appends the head and the entries of a response to `out`. The caller must send the data of the
/// results after them, in the order of the entries.
///
/// # Panics
/// If the response is invalid: no or too many results, or too much data.
pub fn encode_response(outbound: &mut Outbound, out: &mut Vec<u8>, completions: &[Completion]) {
    let data_bytes: u64 = completions.iter().map(|c| u64::from(c.length_bytes)).sum();
    assert!(
        (1..=ENTRIES_MAX).contains(&completions.len()) && data_bytes <= u64::from(DATA_BYTES_MAX),
        "only a valid response is sent"
    );
    let mut entries = Vec::with_capacity(completions.len() * COMPLETION_BYTES);
    completions.iter().for_each(|c| c.encode(&mut entries));
    let head = (kind::RESPONSE, completions.len() as u8, 0);
    outbound.frame(out, head, &entries, data_bytes as u32);
}

/// Checks the head of a response, and returns the length of its entries in bytes. The entries need
/// not have arrived. `merge` is true when merging was negotiated.
pub(super) fn entries_bytes(head: &Head, merge: bool) -> Result<usize, ProtocolError> {
    head.entries_bytes(COMPLETION_BYTES, merge, 0)
}

/// Decodes and checks the entries of a response, and stores them in `completions`. `crc` is true
/// when checks were negotiated.
pub(super) fn decode_entries(
    head: &Head,
    entries: &[u8],
    crc: bool,
    completions: &mut Vec<Completion>,
) -> Result<(), ProtocolError> {
    completions.clear();
    let mut data_bytes = 0_u64;
    for entry in entries.chunks_exact(COMPLETION_BYTES) {
        let completion = Completion::decode(entry)?;
        if completion.check != 0 && (!crc || completion.length_bytes == 0) {
            return Err(ProtocolError::BadField("check"));
        }
        data_bytes += u64::from(completion.length_bytes);
        completions.push(completion);
    }
    head.check_length(entries.len(), data_bytes)
}

/// A range of which every byte is data, or every byte is in a hole. It is part of the response to
/// an extents request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Length of the run.
    pub length_bytes: u32,
    /// True when the run holds data; false for a hole, which reads as zeroes.
    pub data: bool,
}

/// Encodes the data of an extents response. Only the first [`RUNS_MAX`] runs are encoded.
pub fn encode_runs(runs: &[Run]) -> Vec<u8> {
    let mut out = Vec::with_capacity(runs.len().min(RUNS_MAX) * RUN_BYTES);
    for run in runs.iter().take(RUNS_MAX) {
        out.extend_from_slice(&run.length_bytes.to_le_bytes());
        out.extend_from_slice(&u32::from(run.data).to_le_bytes());
    }
    out
}

/// Decodes the data of an extents response, a list of runs.
///
/// # Errors
/// A length that is not the length of 1 to [`RUNS_MAX`] runs; a run of length 0; a run of an
/// unknown kind; runs that exceed the requested range.
pub fn decode_runs(request: &Request, data: &[u8]) -> Result<Vec<Run>, ProtocolError> {
    let count = data.len() / RUN_BYTES;
    if !(1..=RUNS_MAX).contains(&count) || count * RUN_BYTES != data.len() {
        return Err(ProtocolError::WrongLength(data.len() as u32));
    }
    let mut left_bytes = request.length_bytes;
    let mut runs = Vec::with_capacity(count);
    for run in data.chunks_exact(RUN_BYTES) {
        let (length_bytes, state) = (u32_at(run, 0), u32_at(run, 4));
        if length_bytes == 0 || length_bytes > left_bytes || state > 1 {
            return Err(ProtocolError::BadField("run"));
        }
        left_bytes -= length_bytes;
        let data = state == 1;
        runs.push(Run { length_bytes, data });
    }
    Ok(runs)
}
