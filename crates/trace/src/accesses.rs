//! A trace that is decoded once for many runs: each access is one word, and pages have dense
//! numbers.
//!
//! Memory use is four bytes for each access, and some bytes for each distinct page. Memory is
//! allocated in pieces, so that growth never needs twice the memory.

use crate::reader::Span;
use crate::{Full, Interner, Op, Reader, Record, Sample, TraceError};

/// The unit that counts as one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// One access for each page that a record touches.
    Page {
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// One access for each record, whatever its length. The record's offset is the name of an
    /// object, as in published tables for oracle traces.
    Record,
}

/// Operation of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads a page.
    Read,
    /// Writes a page, all or a part of it.
    Write,
    /// Discards a page.
    Trim,
}

const KIND_SHIFT: u32 = 30;
const ID_MASK: u32 = (1 << KIND_SHIFT) - 1;
/// Maximum number of accesses, which take 8 GiB.
const ACCESSES_MAX: u64 = 1 << 31;
/// Number of accesses in a piece.
const PIECE: usize = 1 << 18;

/// A decoded trace.
#[derive(Debug)]
pub struct Accesses {
    pieces: Vec<Vec<u32>>,
    pages: Vec<u64>,
    counts: [u64; 3],
    seen: [u64; 3],
}

impl Accesses {
    /// Reads all records of a trace.
    ///
    /// # Errors
    /// The errors of the reader, and an error when there are too many pages or accesses.
    pub fn collect(reader: &mut Reader, key: Key) -> Result<Accesses, TraceError> {
        Accesses::collect_by(reader, Collector::new(key))
    }

    /// Reads all records of a trace, and keeps only the accesses to pages of a sample.
    ///
    /// # Errors
    /// The errors of [`Accesses::collect`].
    pub fn collect_sampled(
        reader: &mut Reader,
        key: Key,
        sample: Sample,
    ) -> Result<Accesses, TraceError> {
        Accesses::collect_by(reader, Collector::sampled(key, sample))
    }

    fn collect_by(reader: &mut Reader, mut collector: Collector) -> Result<Accesses, TraceError> {
        while let Some(span) = reader.next_span()? {
            collector
                .push_span(&span)
                .map_err(|full| TraceError::Full {
                    file: reader.file().to_owned(),
                    full,
                })?;
        }
        Ok(collector.finish())
    }

    /// Returns the accesses in order: page number and kind.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, Kind)> + '_ {
        let words = self.pieces.iter().flatten();
        words.map(|word| {
            let kind = match word >> KIND_SHIFT {
                0 => Kind::Read,
                1 => Kind::Write,
                _ => Kind::Trim,
            };
            (word & ID_MASK, kind)
        })
    }

    /// Returns the addresses of the pages, indexed by page number. An address is in pages. With
    /// [`Key::Record`], a page stands for an object, and its address is in bytes.
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Returns the numbers of reads, writes and trims.
    pub fn counts(&self) -> [u64; 3] {
        self.counts
    }

    /// Returns the numbers of reads, writes and trims of the whole trace, including accesses to
    /// pages outside the sample.
    pub fn seen(&self) -> [u64; 3] {
        self.seen
    }

    /// Returns the number of reads and writes, which is the base of a hit ratio.
    pub fn len(&self) -> u64 {
        self.counts[0] + self.counts[1]
    }

    /// Returns true when the trace has no reads and no writes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Collects the accesses of records that are added one at a time.
#[derive(Debug)]
pub struct Collector {
    key: Key,
    sample: Option<Sample>,
    interner: Interner,
    accesses: Accesses,
}

impl Collector {
    /// Creates an empty collector.
    pub fn new(key: Key) -> Collector {
        let key = match key {
            Key::Page { page_bytes } => Key::Page {
                page_bytes: page_bytes.max(1),
            },
            Key::Record => Key::Record,
        };
        let interner = match key {
            Key::Page { .. } => Interner::for_pages(),
            Key::Record => Interner::for_keys(),
        };
        Collector {
            key,
            sample: None,
            interner,
            accesses: Accesses {
                pieces: Vec::new(),
                pages: Vec::new(),
                counts: [0; 3],
                seen: [0; 3],
            },
        }
    }

    /// Creates an empty collector that keeps only accesses to the pages of a sample.
    pub fn sampled(key: Key, sample: Sample) -> Collector {
        Collector {
            sample: Some(sample),
            ..Collector::new(key)
        }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// When there is no room for all pages of the record.
    pub fn push(&mut self, record: &Record) -> Result<(), Full> {
        let end = record.offset_bytes + (record.length_bytes - 1);
        match self.key {
            Key::Record => self.access(record.offset_bytes, record.offset_bytes, record.op),
            Key::Page { page_bytes } => {
                let (first, last) = match page_bytes.is_power_of_two() {
                    true => {
                        let bits = page_bytes.trailing_zeros();
                        (record.offset_bytes >> bits, end >> bits)
                    }
                    false => (record.offset_bytes / page_bytes, end / page_bytes),
                };
                self.access(first, last, record.op)
            }
        }
    }

    /// Adds the records of a span.
    pub(crate) fn push_span(&mut self, span: &Span) -> Result<(), Full> {
        let Span { first, count } = *span;
        let unit = first.length_bytes;
        let is_page = matches!(self.key, Key::Page { page_bytes } if page_bytes == unit);
        if is_page && first.offset_bytes.is_multiple_of(unit) {
            let page = first.offset_bytes / unit;
            return self.access(page, page + (count - 1), first.op);
        }
        (0..count).try_for_each(|number| {
            self.push(&Record {
                offset_bytes: first.offset_bytes + number * unit,
                ..first
            })
        })
    }

    /// Counts accesses to the pages from `first` to `last`, and keeps the accesses to sampled
    /// pages.
    fn access(&mut self, first: u64, last: u64, op: Op) -> Result<(), Full> {
        let kind = match op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Trim => Kind::Trim,
        };
        let seen = &mut self.accesses.seen[kind as usize];
        *seen = seen.saturating_add(last - first + 1);
        let Some(sample) = self.sample else {
            return self.keep(first, last, kind);
        };
        let mut taken = (first..=last).filter(|page| sample.takes(*page));
        taken.try_for_each(|page| self.keep(page, page, kind))
    }

    /// Keeps accesses to the pages from `first` to `last`.
    fn keep(&mut self, first: u64, last: u64, kind: Kind) -> Result<(), Full> {
        let so_far = self.accesses.counts.iter().sum::<u64>();
        if so_far + (last - first) >= ACCESSES_MAX {
            return Err(Full::Accesses);
        }
        let (pieces, word) = (&mut self.accesses.pieces, (kind as u32) << KIND_SHIFT);
        let numbered = self
            .interner
            .intern_all(first, last, ID_MASK as usize, |id| {
                match pieces.last_mut() {
                    Some(piece) if piece.len() < PIECE => piece.push(id | word),
                    _ => {
                        let mut piece = Vec::with_capacity(PIECE);
                        piece.push(id | word);
                        pieces.push(piece);
                    }
                }
            });
        self.accesses.counts[kind as usize] += numbered;
        if numbered < last - first + 1 {
            return Err(Full::Pages);
        }
        Ok(())
    }

    /// Returns the decoded trace.
    pub fn finish(self) -> Accesses {
        Accesses {
            pages: self.interner.into_pages(),
            ..self.accesses
        }
    }
}
