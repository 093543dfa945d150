//! Reference model of an index: an ordered map, the history of its batches, and changes drawn from
//! a seed.
//!
//! The tests of this crate and the simulation use the same model, and also the same disk
//! ([`MemoryStorage`](crate::storage::memory::MemoryStorage)). Other programs do not need the
//! model. The model must never ask the index for its state: it knows only the writes and their
//! answers.

mod draw;
mod history;

pub use draw::{Draw, Shape, small_growing_options, small_options, small_paper_options};
pub use history::{Found, History, NUMBER_KEY, Survivors};

use crate::error::Error;
use crate::scan::{Scan, ScanBounds};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Content of an index as a map.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys and values in the order of a scan.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets the value of a key.
    Put(Vec<u8>, Vec<u8>),
    /// Deletes a key.
    Delete(Vec<u8>),
    /// Deletes all keys from the first key up to, but not including, the second key. Without a
    /// second key, deletes all keys from the first key on.
    DeleteRange(Vec<u8>, Option<Vec<u8>>),
}

impl Change {
    /// Applies the change to a map.
    pub fn make(&self, map: &mut Map) {
        match self {
            Change::Put(key, value) => {
                map.insert(key.clone(), value.clone());
            }
            Change::Delete(key) => {
                map.remove(key);
            }
            Change::DeleteRange(..) => map.retain(|key, _| !self.concerns(key)),
        }
    }

    /// Returns true if the change puts or deletes this key, or deletes a range that contains it.
    pub fn concerns(&self, key: &[u8]) -> bool {
        match self {
            Change::Put(own, _) | Change::Delete(own) => own == key,
            Change::DeleteRange(start, end) => {
                &start[..] <= key && end.as_ref().is_none_or(|end| key < &end[..])
            }
        }
    }
}

/// Returns a batch of these changes.
pub fn batch_of(changes: &[Change]) -> crate::Batch {
    let mut batch = crate::Batch::new();
    for change in changes {
        match change {
            Change::Put(key, value) => batch.put(key, value),
            Change::Delete(key) => batch.delete(key),
            Change::DeleteRange(start, end) => batch.delete_range(start, end.as_deref()),
        }
    }
    batch
}

/// Returns true if a key is within two bounds.
pub fn is_within(key: &[u8], bounds: ScanBounds<'_>) -> bool {
    let is_above = match bounds.0 {
        Bound::Unbounded => true,
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
    };
    let is_below = match bounds.1 {
        Bound::Unbounded => true,
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
    };
    is_above && is_below
}

/// Returns the rows that a scan should return.
pub fn rows_within(map: &Map, bounds: ScanBounds<'_>, is_reverse: bool) -> Pairs {
    let within = map.iter().filter(|(key, _)| is_within(key, bounds));
    let mut rows: Pairs = within
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if is_reverse {
        rows.reverse();
    }
    rows
}

/// Returns all remaining rows of a scan.
///
/// # Errors
///
/// The errors of the scan.
pub fn collect(scan: &mut Scan) -> Result<Pairs, Error> {
    let mut all = Vec::new();
    while let Some((key, value)) = scan.next()? {
        all.push((key.to_vec(), value.to_vec()));
    }
    Ok(all)
}
