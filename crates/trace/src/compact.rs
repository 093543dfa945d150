//! The compact format: a parsed trace that can be read again at the speed of memory.
//!
//! The format is defined byte by byte in docs/format/trace.md. Each chunk has a CRC, and the end of
//! the trace is marked, so damage and truncation are reported as errors and never read as a shorter
//! trace.

use crate::format::COMPACT_MAGIC;
use crate::layouts::length_is_possible;
use crate::{Op, Record};
use std::io::{self, Write};

/// Maximum number of records in a chunk.
const CHUNK_RECORDS: u32 = 1 << 16;
/// Maximum number of bytes of a chunk: a record takes at most 1 + 3 * 10 bytes.
pub(crate) const CHUNK_BYTES_MAX: usize = CHUNK_RECORDS as usize * 31;
/// Number of bytes of a chunk's head: the number of records, the number of bytes, and the CRC.
pub(crate) const HEAD_BYTES: usize = 12;

const OP_MASK: u8 = 3;
const CONTINUES: u8 = 4;
const SAME_LENGTH: u8 = 8;
const SAME_TIME: u8 = 16;

fn zigzag(value: u64, from: u64) -> u64 {
    let delta = value.wrapping_sub(from) as i64;
    ((delta << 1) ^ (delta >> 63)) as u64
}

fn unzigzag(coded: u64, from: u64) -> u64 {
    let delta = (coded >> 1) as i64 ^ -((coded & 1) as i64);
    from.wrapping_add(delta as u64)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The fields of the previous record, relative to which the next record is encoded. At the start of
/// a chunk all fields are zero.
#[derive(Clone, Copy, Debug, Default)]
struct Previous {
    time_ns: u64,
    end_bytes: u64,
    length_bytes: u64,
}

impl Previous {
    fn follow(&mut self, record: &Record) {
        *self = Previous {
            time_ns: record.time_ns,
            end_bytes: record.offset_bytes.wrapping_add(record.length_bytes),
            length_bytes: record.length_bytes,
        };
    }
}

/// Writes a compact trace.
pub struct CompactWriter<W: Write> {
    out: W,
    chunk: Vec<u8>,
    in_chunk: u32,
    records: u64,
    previous: Previous,
}

impl<W: Write> CompactWriter<W> {
    /// Creates a writer, and writes the magic number of the format to `out`.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn new(mut out: W) -> io::Result<CompactWriter<W>> {
        out.write_all(COMPACT_MAGIC)?;
        Ok(CompactWriter {
            out,
            chunk: Vec::with_capacity(CHUNK_BYTES_MAX),
            in_chunk: 0,
            records: 0,
            previous: Previous::default(),
        })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        let same_time = record.time_ns == self.previous.time_ns;
        let continues = record.offset_bytes == self.previous.end_bytes;
        let same_length = record.length_bytes == self.previous.length_bytes;
        let op = match record.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Trim => 2,
        };
        let flags = [
            (continues, CONTINUES),
            (same_length, SAME_LENGTH),
            (same_time, SAME_TIME),
        ];
        let set = flags.into_iter().filter(|(is, _)| *is);
        self.chunk.push(set.fold(op, |bits, (_, flag)| bits | flag));
        if !same_time {
            put_varint(
                &mut self.chunk,
                zigzag(record.time_ns, self.previous.time_ns),
            );
        }
        if !continues {
            put_varint(
                &mut self.chunk,
                zigzag(record.offset_bytes, self.previous.end_bytes),
            );
        }
        if !same_length {
            put_varint(&mut self.chunk, record.length_bytes);
        }
        self.previous.follow(record);
        self.in_chunk += 1;
        self.records += 1;
        if self.in_chunk == CHUNK_RECORDS {
            self.write_chunk()?;
        }
        Ok(())
    }

    fn write_chunk(&mut self) -> io::Result<()> {
        self.out.write_all(&self.in_chunk.to_le_bytes())?;
        self.out
            .write_all(&(self.chunk.len() as u32).to_le_bytes())?;
        self.out
            .write_all(&crc32c::crc32c(&self.chunk).to_le_bytes())?;
        self.out.write_all(&self.chunk)?;
        self.chunk.clear();
        self.in_chunk = 0;
        self.previous = Previous::default();
        Ok(())
    }

    /// Writes the end mark, flushes the output and returns it.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn finish(mut self) -> io::Result<W> {
        if self.in_chunk > 0 {
            self.write_chunk()?;
        }
        self.chunk.extend(self.records.to_le_bytes());
        self.write_chunk()?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// A chunk that has been read and checked.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    at: usize,
    left: u32,
    previous: Previous,
}

impl Chunk {
    /// Creates a chunk with `records` records encoded in `bytes`. The caller has checked the CRC.
    pub(crate) fn new(records: u32, bytes: Vec<u8>) -> Chunk {
        Chunk {
            bytes,
            at: 0,
            left: records,
            previous: Previous::default(),
        }
    }

    /// Returns the next record; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, &'static str> {
        if self.left == 0 {
            return if self.at == self.bytes.len() {
                Ok(None)
            } else {
                Err("bytes after the last record of a chunk")
            };
        }
        self.left -= 1;
        let record = self.decode().ok_or("an invalid record")?;
        self.previous.follow(&record);
        Ok(Some(record))
    }

    fn decode(&mut self) -> Option<Record> {
        let bits = *self.bytes.get(self.at)?;
        self.at += 1;
        let op = match bits & OP_MASK {
            0 => Op::Read,
            1 => Op::Write,
            2 => Op::Trim,
            _ => return None,
        };
        let Previous {
            mut time_ns,
            end_bytes: mut offset_bytes,
            mut length_bytes,
        } = self.previous;
        if bits & SAME_TIME == 0 {
            time_ns = unzigzag(take_varint(&self.bytes, &mut self.at)?, time_ns);
        }
        if bits & CONTINUES == 0 {
            offset_bytes = unzigzag(take_varint(&self.bytes, &mut self.at)?, offset_bytes);
        }
        if bits & SAME_LENGTH == 0 {
            length_bytes = take_varint(&self.bytes, &mut self.at)?;
        }
        offset_bytes.checked_add(length_bytes)?;
        let possible = length_is_possible(length_bytes).is_ok();
        (possible && bits < 32).then_some(Record {
            time_ns,
            op,
            offset_bytes,
            length_bytes,
        })
    }
}
