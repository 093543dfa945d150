//! A trace decoded once for many runs: one word an access, pages as dense numbers.
//!
//! Memory is four bytes an access and some for each distinct page, taken in pieces, so that growing
//! never needs twice of it.

use crate::{Interner, Op, Reader, Record, TraceError};

/// What is one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Every page that a record touches.
    Page {
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// A record, whatever its length: an object named by its offset (the way oracle tables count).
    Record,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads a page.
    Read,
    /// Writes a page, all or a part of it.
    Write,
    /// Gives a page up.
    Trim,
}

const KIND_SHIFT: u32 = 30;
const ID_MASK: u32 = (1 << KIND_SHIFT) - 1;
/// Accesses in a piece.
const PIECE: usize = 1 << 18;

/// A decoded trace.
#[derive(Debug)]
pub struct Accesses {
    pieces: Vec<Vec<u32>>,
    pages: Vec<u64>,
    counts: [u64; 3],
}

impl Accesses {
    /// Reads all of a trace.
    ///
    /// # Errors
    /// Those of the reader, and when there are too many pages.
    pub fn collect(reader: &mut Reader, key: Key) -> Result<Accesses, TraceError> {
        let mut collector = Collector::new(key);
        while let Some(record) = reader.next_record()? {
            if !collector.push(&record) {
                return Err(TraceError::TooManyPages {
                    file: reader.file().to_owned(),
                    limit: u64::from(ID_MASK),
                });
            }
        }
        Ok(collector.finish())
    }

    /// The accesses in order: page number and kind.
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

    /// The address of each page number, in pages (or in bytes, when records are counted).
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Reads, writes and trims.
    pub fn counts(&self) -> [u64; 3] {
        self.counts
    }

    /// Reads and writes, which is what a hit ratio is of.
    pub fn len(&self) -> u64 {
        self.counts[0] + self.counts[1]
    }

    /// True without a read or write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Decodes records one by one.
#[derive(Debug)]
pub struct Collector {
    key: Key,
    interner: Interner,
    accesses: Accesses,
}

impl Collector {
    /// Nothing so far.
    pub fn new(key: Key) -> Collector {
        let interner = match key {
            Key::Page { .. } => Interner::for_pages(),
            Key::Record => Interner::for_keys(),
        };
        Collector {
            key,
            interner,
            accesses: Accesses {
                pieces: Vec::new(),
                pages: Vec::new(),
                counts: [0; 3],
            },
        }
    }

    /// Adds a record. False when it has a page more than can be numbered.
    pub fn push(&mut self, record: &Record) -> bool {
        let kind = match record.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Trim => Kind::Trim,
        };
        match self.key {
            Key::Record => self.access(record.offset_bytes, kind),
            Key::Page { page_bytes } => {
                let page_bytes = page_bytes.max(1);
                let first = record.offset_bytes / page_bytes;
                let last = (record.offset_bytes + (record.length_bytes - 1)) / page_bytes;
                (first..=last).all(|page| self.access(page, kind))
            }
        }
    }

    fn access(&mut self, page: u64, kind: Kind) -> bool {
        let Some(id) = self.interner.intern(page, ID_MASK as usize) else {
            return false;
        };
        let pieces = &mut self.accesses.pieces;
        if pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            pieces.push(Vec::with_capacity(PIECE));
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push(id | (kind as u32) << KIND_SHIFT);
        }
        self.accesses.counts[kind as usize] += 1;
        true
    }

    /// The decoded trace.
    pub fn finish(self) -> Accesses {
        Accesses {
            pages: self.interner.into_pages(),
            ..self.accesses
        }
    }
}
