//! Scans: the rows of a leaf that one reader sees.
//!
//! An image never changes, so a scan holds the image and records runs of its rows as row numbers. A
//! row is unpacked when it is read. Only rows of the delta are copied, because the delta may change
//! as soon as the lock of the leaf is released.

use super::image::RowMemory;
use super::merge::{Merge, Shared};
use super::{Delta, Image, Kind, Seq};
use std::ops::{Bound, Range};

/// Rows of a leaf that a reader sees: runs of rows of the image, and copied rows of the delta. The
/// rows can be read only once, from first to last. The memory of the list can be reused.
#[derive(Debug, Default)]
pub struct Rows {
    image: Option<Image>,
    is_reverse: bool,
    pieces: Vec<Piece>,
    /// Keys and values of the copied rows.
    bytes: Vec<u8>,
    /// Number of pieces whose reading has begun.
    begun: usize,
    /// Unread rows of the run that was begun last.
    run: Range<usize>,
    at: At,
    memory: RowMemory,
    /// Buffer for a key.
    key: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Piece {
    /// Rows of the image.
    Run(Range<usize>),
    Copied(Copied),
}

/// Position of a copied row in the copied bytes.
#[derive(Clone, Copy, Debug)]
struct Copied {
    at: usize,
    key_len: usize,
    value_len: usize,
}

/// Reading position in [`Rows`].
#[derive(Clone, Copy, Debug, Default)]
enum At {
    #[default]
    Start,
    Image(usize),
    Copied(Copied),
}

impl Rows {
    /// Creates an empty list of rows that owns no memory.
    pub const fn new() -> Self {
        Self {
            image: None,
            is_reverse: false,
            pieces: Vec::new(),
            bytes: Vec::new(),
            begun: 0,
            run: 0..0,
            at: At::Start,
            memory: RowMemory::new(),
            key: Vec::new(),
        }
    }

    /// Removes all rows, and returns the list so that its memory can be reused.
    pub fn emptied(mut self) -> Self {
        self.clear();
        self
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.image = None;
        self.pieces.clear();
        self.bytes.clear();
        self.begun = 0;
        self.run = 0..0;
        self.at = At::Start;
    }

    /// Moves to the next row. Returns false if there is none.
    #[inline]
    pub fn advance(&mut self) -> bool {
        loop {
            let next = match self.is_reverse {
                false => self.run.next(),
                true => self.run.next_back(),
            };
            if let Some(row) = next {
                self.at = At::Image(row);
                return true;
            }
            let Some(piece) = self.pieces.get(self.begun) else {
                return false;
            };
            self.begun += 1;
            match piece {
                Piece::Run(run) => self.run = run.clone(),
                Piece::Copied(copied) => {
                    self.at = At::Copied(*copied);
                    return true;
                }
            }
        }
    }

    /// Returns the kind of the current row, to which [`advance`](Self::advance) has moved. The kind
    /// is never a deletion.
    ///
    /// # Panics
    /// If there is no current row.
    #[inline]
    pub fn kind(&self) -> Kind {
        match (self.at, &self.image) {
            (At::Image(row), Some(image)) => image.kind(row),
            (At::Copied(_), _) => Kind::Put,
            _ => panic!("there is no row"),
        }
    }

    /// Returns key and value of the current row, to which [`advance`](Self::advance) has moved.
    ///
    /// # Panics
    /// If there is no current row.
    #[inline]
    pub fn row(&mut self) -> (&[u8], &[u8]) {
        match (self.at, &self.image) {
            (At::Image(row), Some(image)) => image.unpack(row, &mut self.memory),
            (
                At::Copied(Copied {
                    at,
                    key_len,
                    value_len,
                }),
                _,
            ) => {
                let (key, rest) = self.bytes[at..].split_at(key_len);
                (key, &rest[..value_len])
            }
            _ => panic!("there is no row"),
        }
    }

    /// Returns the number of copied bytes.
    pub fn copied_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of runs and copied rows.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Writes the key of the last row to `out`, independent of the reading position. Returns false
    /// if there are no rows.
    pub fn last_key(&self, out: &mut Vec<u8>) -> bool {
        out.clear();
        match (self.pieces.last(), &self.image) {
            (Some(Piece::Run(run)), Some(image)) => {
                let last = if self.is_reverse {
                    run.start
                } else {
                    run.end - 1
                };
                image.key(last, out);
            }
            (Some(Piece::Copied(copied)), _) => {
                out.extend_from_slice(&self.bytes[copied.at..][..copied.key_len]);
            }
            _ => return false,
        }
        true
    }
}

/// Request of a reader for the rows of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Sequence number of the reader.
    pub seq: Seq,
    /// Lower bound of the keys.
    pub from: Bound<&'a [u8]>,
    /// Upper bound of the keys.
    pub to: Bound<&'a [u8]>,
    /// True to read downwards from the upper bound.
    pub is_reverse: bool,
    /// Limit on the number of runs and copied rows.
    pub pieces_max: usize,
    /// Limit on the copied bytes; one row is copied even if it is longer.
    pub bytes_max: usize,
}

/// Replaces the content of `out` with the rows of a leaf that a reader sees. Returns true if a
/// limit was reached: then at least one more row follows the last row in `out`.
pub fn view(base: Option<&Image>, delta: Option<&Delta>, view: &View<'_>, out: &mut Rows) -> bool {
    out.clear();
    out.image = base.cloned();
    out.is_reverse = view.is_reverse;
    if let Some(image) = base {
        image.prepare(&mut out.memory);
    }
    let delta = delta.filter(|delta| !delta.is_empty());
    let key = std::mem::take(&mut out.key);
    let mut merge = Merge::new(base, delta, view.from, view.to, view.is_reverse, key);
    let mut scan = Scan {
        base,
        delta,
        view,
        out,
    };
    let mut is_cut = false;
    while !is_cut && let Some(step) = merge.next() {
        is_cut = scan.alone(step.alone);
        if let (false, Some(shared)) = (is_cut, step.shared) {
            is_cut = scan.shared(&merge.key, &shared);
        }
    }
    scan.out.key = merge.key;
    is_cut
}

struct Scan<'a> {
    base: Option<&'a Image>,
    delta: Option<&'a Delta>,
    view: &'a View<'a>,
    out: &'a mut Rows,
}

impl Scan<'_> {
    /// Adds rows of the image whose keys have no version in the delta. Returns true if a limit was
    /// reached.
    fn alone(&mut self, rows: Range<usize>) -> bool {
        let Some(image) = self.base.filter(|_| !rows.is_empty()) else {
            return false;
        };
        let has_ranges = self.delta.is_some_and(|delta| !delta.ranges().is_empty());
        if has_ranges || image.is_versioned() || !image.says_values() {
            return self.versions(image, rows);
        }
        self.run(rows)
    }

    /// Adds those of the given rows of the image that are visible. Some of the rows may be older
    /// versions, deletions, or deleted by a range deletion. Returns true if a limit was reached.
    fn versions(&mut self, image: &Image, mut rows: Range<usize>) -> bool {
        while !rows.is_empty() {
            let run = if self.view.is_reverse {
                let run = image.run_start(rows.end - 1)..rows.end;
                rows.end = run.start;
                run
            } else {
                let run = rows.start..image.run_end(rows.start);
                rows.start = run.end;
                run
            };
            if let Some(row) = image.visible(run.start, self.view.seq)
                && !self.is_deleted(image, row)
                && self.row(image, row)
            {
                return true;
            }
        }
        false
    }

    /// Returns true if a range deletion hides a row.
    fn is_deleted(&mut self, image: &Image, row: usize) -> bool {
        let Some(delta) = self.delta.filter(|delta| !delta.ranges().is_empty()) else {
            return false;
        };
        image.key(row, &mut self.out.key);
        let deleted = delta.deleted_at(&self.out.key, self.view.seq);
        deleted.is_some_and(|deleted| deleted >= image.seq(row))
    }

    /// Adds the visible version of a key that has versions in the delta. Returns true if a limit
    /// was reached.
    fn shared(&mut self, key: &[u8], shared: &Shared) -> bool {
        let (delta, seq) = (self.delta, self.view.seq);
        let slot = delta.and_then(|delta| {
            let slot = delta.visible(shared.slots.clone(), seq)?;
            Some(delta.row(slot, key))
        });
        let deleted = delta.and_then(|delta| delta.deleted_at(key, seq));
        let image = self.base.filter(|_| !shared.rows.is_empty());
        let row = image.and_then(|image| Some((image, image.visible(shared.rows.start, seq)?)));
        // Within one batch, a version in the delta is newer than a range deletion, and both are
        // newer than a row of the image.
        let in_row = row.map(|(image, row)| image.seq(row));
        let in_slot = slot.map(|slot| slot.seq);
        match (slot, row) {
            (Some(slot), _) if in_slot >= deleted && in_slot >= in_row => {
                slot.kind == Kind::Put && self.copy(slot.key, slot.value)
            }
            (_, Some((image, row))) if in_row > deleted => self.row(image, row),
            _ => false,
        }
    }

    /// Adds a row of the image, unless the row is a deletion. Returns true if a limit was reached.
    fn row(&mut self, image: &Image, row: usize) -> bool {
        image.kind(row) != Kind::Delete && self.run(row..row + 1)
    }

    /// Adds rows of the image that are all visible. Returns true if a limit was reached.
    fn run(&mut self, rows: Range<usize>) -> bool {
        if let Some(Piece::Run(last)) = self.out.pieces.last_mut() {
            if last.end == rows.start {
                last.end = rows.end;
                return false;
            }
            if rows.end == last.start {
                last.start = rows.start;
                return false;
            }
        }
        if self.out.pieces.len() >= self.view.pieces_max {
            return true;
        }
        self.out.pieces.push(Piece::Run(rows));
        false
    }

    /// Adds a row of the delta. Returns true if a limit was reached.
    fn copy(&mut self, key: &[u8], value: &[u8]) -> bool {
        let at = self.out.bytes.len();
        let (key_len, value_len) = (key.len(), value.len());
        let is_long = at > 0 && at + key_len + value_len > self.view.bytes_max;
        if is_long || self.out.pieces.len() >= self.view.pieces_max {
            return true;
        }
        self.out.bytes.extend_from_slice(key);
        self.out.bytes.extend_from_slice(value);
        let copied = Copied {
            at,
            key_len,
            value_len,
        };
        self.out.pieces.push(Piece::Copied(copied));
        false
    }
}
