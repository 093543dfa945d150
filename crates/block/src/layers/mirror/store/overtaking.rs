//! Overtaking: what the device is late with is appended again, so that what is behind it does not
//! wait for it.
//!
//! A stall of an SSD concerns one command. If the log waited for the stalled entry, so would every
//! write of the volume that no other side stores sooner. So the content of the late entry, and of
//! those in flight behind it, is written again in entries that *overtake* them: the first of these
//! says behind which position it follows, and the log counts as a prefix without what is in
//! between. An opening that does not find an overtaken entry goes on with the one that has
//! overtaken it, and one that finds it reads the same changes twice.
//!
//! The space of an overtaken entry must never be used again before its write has ended, since the
//! write may take effect until then. All entries in flight must lie within one in-flight window,
//! in which an opening searches.

use std::rc::Rc;

use super::append::Append;
use super::digests::Digests;
use super::entry::{HEADER_BYTES, Kind, RECORDS_MAX};
use super::flying::Flying;
use super::log::Log;
use crate::error::IoError;

impl Log {
    /// Waits for the write of the entry at `position`. The entry is overtaken when it is late.
    pub(super) async fn or_overtaken(
        self: &Rc<Self>,
        position: u64,
        writing: impl Future<Output = Result<(), IoError>>,
    ) -> Result<(), IoError> {
        let overtaking = &self.overtaking;
        if !overtaking.is_allowed() {
            return writing.await;
        }
        let mut writing = std::pin::pin!(writing);
        let began = self.rt.now();
        let in_time = self.rt.timeout(overtaking.late_after(), writing.as_mut());
        if let Ok(written) = in_time.await {
            overtaking.note_time(self.rt.now().since(began));
            return written;
        }
        let _late = overtaking.begin_late();
        self.overtake(position);
        writing.await
    }

    /// Overtakes the late entry at `position` and those in flight behind it, if the log has room.
    fn overtake(self: &Rc<Self>, position: u64) {
        let has_ended = self.broken.get() || self.halted.get().is_some();
        if has_ended || self.overtaking.has_waiting() || !self.has_room_to_overtake(position) {
            return;
        }
        self.overtaking.begin();
        let mut count = 0;
        let mut flying = self.flying.borrow_mut();
        for late in flying.iter_mut().filter(|entry| !entry.is_overtaken) {
            late.is_overtaken = true;
            count += 1;
            self.overtaking.repeat(late, self.appends_of(late));
        }
        drop(flying);
        self.count(|counts| counts.overtaken += count);
        self.pump();
    }

    /// Returns true when the entry at `position` is in flight and not overtaken, and it and those
    /// behind it may be written again.
    fn has_room_to_overtake(&self, position: u64) -> bool {
        let flying = self.flying.borrow();
        let late = flying.iter().filter(|entry| !entry.is_overtaken);
        let is_late = |entry: &Flying| entry.header.position == position && entry.outcome.is_none();
        if !late.clone().any(is_late) {
            return false;
        }
        let data_bytes: u64 = late.clone().map(|entry| entry.data.len() as u64).sum();
        let records: usize = late.clone().map(|entry| entry.header.records.len()).sum();
        // An entry ends when it is full, and at the end of a segment.
        let entries = 5 + records / RECORDS_MAX;
        let bytes = data_bytes + entries as u64 * HEADER_BYTES;
        let is_free = |free| free >= bytes;
        self.free_bytes(true).is_some_and(is_free) && self.bytes_left_in_window() >= bytes
    }

    /// Returns the changes of an entry in flight, to be put into an entry again. An entry without
    /// changes states up to which number the log is complete.
    fn appends_of(&self, late: &Flying) -> Vec<Append> {
        let (mut at, mut first) = (0, 0);
        let records = late.header.records.iter();
        let mut appends: Vec<Append> = records
            .map(|record| {
                let range = record.offset..record.offset + record.bytes();
                match record.kind {
                    Kind::Write => {
                        let (start, digest) = (at, first);
                        at += record.bytes() as usize;
                        first += record.blocks as usize;
                        let digests = late.header.digests[digest..first].to_vec();
                        let digests = Digests::new(self.digest, digests);
                        let data = late.data.slice(start..at);
                        Append::known(range, data, Some(digests), record.number)
                    }
                    Kind::Zeroes(space) => Append::zeroes(range, space, record.number),
                    Kind::Lost => Append::lost(range, record.number),
                }
            })
            .collect();
        if appends.is_empty() {
            appends.push(Append::nothing());
        }
        appends
    }

    /// Handles the end of the write of an entry that is stored elsewhere, whether it succeeded or
    /// not. Its space may be used again.
    pub(super) fn overtaken_is_over(self: &Rc<Self>, position: u64) {
        self.overtaking.is_over(position);
        self.changed.notify();
        // Changes may wait for the space.
        self.take_up();
    }
}
