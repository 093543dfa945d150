//! Scans: keys and values in order, read from one leaf at a time, so that concurrent changes do not
//! wait for the scan and are not seen by it. A scan keeps the image of its current leaf, even after
//! the tree has dropped that image.

use crate::error::Error;
use crate::node::{Kind, Rows, View};
use crate::snapshot::Snapshot;
use crate::tree::{LeafQuery, LeafScan, Next};
use std::cell::Cell;
use std::ops::Bound;

/// Lower and upper bound of the keys of a scan.
pub type ScanBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// A key and its value.
pub type KeyValue<'a> = (&'a [u8], &'a [u8]);

/// Number of pieces (runs of rows, and changed rows) that a scan reads the first time. The number
/// doubles each further time, up to [`PIECES_MAX`].
const PIECES_FIRST: usize = 128;
const PIECES_MAX: usize = 1024;
const BYTES_MAX: usize = 256 << 10;

type OwnedBound = Bound<Box<[u8]>>;

thread_local! {
    /// Memory of the last scan that ended in this thread, for reuse by the next scan.
    static SPARE: Cell<Rows> = const { Cell::new(Rows::new()) };
}

/// A scan in progress. It holds a snapshot of the content at the time when the scan began.
pub struct Scan {
    snapshot: Snapshot,
    from: OwnedBound,
    to: OwnedBound,
    is_reverse: bool,
    rows: Rows,
    pieces_max: usize,
    is_over: bool,
    /// Buffer for a value that was out of line.
    value: Vec<u8>,
}

fn own(bound: Bound<&[u8]>) -> OwnedBound {
    bound.map(Box::from)
}

fn lend(bound: &OwnedBound) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &**key)
}

/// Returns true if no key can lie between the bounds.
fn is_empty(from: &OwnedBound, to: &OwnedBound) -> bool {
    match (from, to) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) => from >= to,
    }
}

impl Snapshot {
    /// Returns a scan of this snapshot. The scan yields the keys between two bounds, each with its
    /// value, in ascending order of keys.
    pub fn scan(&self, bounds: ScanBounds<'_>) -> Scan {
        Scan::new(self.clone(), bounds, false)
    }

    /// Returns a scan like [`scan`](Self::scan), but in descending order of keys.
    pub fn scan_reverse(&self, bounds: ScanBounds<'_>) -> Scan {
        Scan::new(self.clone(), bounds, true)
    }
}

impl Scan {
    pub(crate) fn new(snapshot: Snapshot, bounds: ScanBounds<'_>, is_reverse: bool) -> Scan {
        let (from, to) = (own(bounds.0), own(bounds.1));
        Scan {
            is_over: is_empty(&from, &to),
            snapshot,
            from,
            to,
            is_reverse,
            rows: SPARE
                .try_with(Cell::take)
                .map_or_else(|_| Rows::new(), Rows::emptied),
            pieces_max: PIECES_FIRST,
            value: Vec::new(),
        }
    }

    /// Returns the next key and its value; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`], or the error of reading a node that is needed.
    #[expect(
        clippy::should_implement_trait,
        reason = "what is given is borrowed from the scan"
    )]
    pub fn next(&mut self) -> Result<Option<KeyValue<'_>>, Error> {
        while !self.rows.advance() {
            if self.is_over {
                return Ok(None);
            }
            self.fill()?;
        }
        if self.rows.kind() != Kind::Blob {
            return Ok(Some(self.rows.row()));
        }
        self.value.clear();
        self.value.extend_from_slice(self.rows.row().1);
        if !self.snapshot.shared.tree.read_blob(&mut self.value)? {
            return Err(Error::SnapshotTooOld);
        }
        Ok(Some((self.rows.row().0, &self.value)))
    }

    /// Reads rows of the next leaf, or further rows of the current leaf.
    fn fill(&mut self) -> Result<(), Error> {
        let place = match (self.is_reverse, &self.from, &self.to) {
            (false, Bound::Included(key) | Bound::Excluded(key), _) => LeafQuery::Of(key),
            (false, Bound::Unbounded, _) => LeafQuery::Of(&[]),
            (true, _, Bound::Included(key)) => LeafQuery::Of(key),
            (true, _, Bound::Excluded(key)) => LeafQuery::Before(key),
            (true, _, Bound::Unbounded) => LeafQuery::Last,
        };
        let view = View {
            seq: self.snapshot.seq,
            from: lend(&self.from),
            to: lend(&self.to),
            is_reverse: self.is_reverse,
            pieces_max: self.pieces_max,
            bytes_max: BYTES_MAX,
        };
        let leaf = LeafScan { place, view };
        let next = self.snapshot.shared.tree.scan_leaf(&leaf, &mut self.rows)?;
        self.pieces_max = (self.pieces_max * 2).min(PIECES_MAX);
        match next {
            Next::Here => {
                let mut last = Vec::new();
                let is_any = self.rows.last_key(&mut last);
                assert!(is_any, "what is cut short has a beginning");
                self.go_on(Bound::Excluded(last.into()));
            }
            Next::Beyond(edge) if self.is_reverse => self.go_on(Bound::Excluded(edge)),
            Next::Beyond(edge) => self.go_on(Bound::Included(edge)),
            Next::Nothing => self.is_over = true,
            Next::TooOld => return Err(Error::SnapshotTooOld),
        }
        Ok(())
    }

    fn go_on(&mut self, beyond: OwnedBound) {
        if self.is_reverse {
            self.to = beyond;
        } else {
            self.from = beyond;
        }
        self.is_over = is_empty(&self.from, &self.to);
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        // The error is ignored: it means that the thread is ending and has already dropped its
        // spare memory.
        let _ending = SPARE.try_with(|spare| spare.set(std::mem::take(&mut self.rows)));
    }
}
