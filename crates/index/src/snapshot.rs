//! Snapshots: the content of the index at one point in time, kept readable as long as a reader
//! needs it.

use crate::commit::Shared;
use crate::error::Error;
use crate::node::Seq;
use crate::tree::AsOf;
use std::sync::Arc;

/// Content of the index at one point in time.
pub struct Snapshot {
    pub(crate) shared: Arc<Shared>,
    pub(crate) seq: Seq,
}

impl Snapshot {
    /// Returns the value of a key in the snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`] if a version that the snapshot needs may have been dropped.
    /// Another error if a needed node cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Replaces the content of `value` with the value of a key in the snapshot. Returns false if
    /// the key had no value; the content of `value` is unspecified then.
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get).
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let found = self.shared.tree.get(key, AsOf::Held(self.seq), value)?;
        found.ok_or(Error::SnapshotTooOld)
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        self.shared.readers.hold_at(self.seq);
        Snapshot {
            shared: Arc::clone(&self.shared),
            seq: self.seq,
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.shared.readers.release(self.seq);
    }
}
