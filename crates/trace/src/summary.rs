//! Counters over a whole trace, computed while the trace is read as a stream.

use crate::{Interner, Op, Record};

/// Counts of a trace.
#[derive(Debug, Default)]
pub struct Summary {
    page_bytes: u64,
    interner: Interner,
    was_written: Vec<bool>,
    /// Number of requests: reads, writes, trims.
    pub requests: [u64; 3],
    /// Number of bytes of these requests.
    pub bytes: [u64; 3],
    /// Number of page accesses after splitting.
    pub page_accesses: [u64; 3],
    /// Number of distinct pages written.
    pub written_pages: u64,
    /// Times of the first and of the last record.
    pub times_ns: Option<(u64, u64)>,
    /// Number of page accesses that were not counted, because the trace has too many distinct
    /// pages.
    pub uncounted: u64,
}

impl Summary {
    /// Creates an empty summary for pages of `page_bytes`.
    pub fn new(page_bytes: u64) -> Summary {
        Summary {
            page_bytes: page_bytes.max(1),
            interner: Interner::for_pages(),
            ..Summary::default()
        }
    }

    /// Counts a record.
    pub fn add(&mut self, record: &Record) {
        let op = match record.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Trim => 2,
        };
        self.requests[op] += 1;
        self.bytes[op] = self.bytes[op].saturating_add(record.length_bytes);
        let (first, _) = self.times_ns.unwrap_or((record.time_ns, 0));
        self.times_ns = Some((first, record.time_ns));
        let from = record.offset_bytes / self.page_bytes;
        let to = (record.offset_bytes + (record.length_bytes - 1)) / self.page_bytes;
        self.page_accesses[op] = self.page_accesses[op].saturating_add(to - from + 1);
        for page in from..=to {
            let Some(id) = self.interner.intern(page, 1 << 30) else {
                self.uncounted = self.uncounted.saturating_add(to - page + 1);
                return;
            };
            if id as usize >= self.was_written.len() {
                self.was_written.push(false);
            }
            let was = &mut self.was_written[id as usize];
            if record.op == Op::Write && !*was {
                *was = true;
                self.written_pages += 1;
            }
        }
    }

    /// Returns the number of distinct pages.
    pub fn footprint_pages(&self) -> u64 {
        self.interner.pages().len() as u64
    }
}
