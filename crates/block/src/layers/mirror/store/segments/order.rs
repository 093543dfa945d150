//! The order of the volume on the device: finds the windows of the volume that lie in many pieces,
//! whose content is then appended again in the order of the volume, as cleaning appends what it
//! moves.
//!
//! A window is judged once after each change of the place of a block in it, and putting it in order
//! is no such change: else it could be appended again and again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use bimetal_policy::cleaning::order::Runs;
use bimetal_rt::Payload;
use bimetal_rt::sync::Event;
use bimetal_rt::turn::{count_entries, give_way};

use super::clean::Live;
use super::pace::Ahead;
use super::streams::Stream;
use super::{Pins, Place, Segments};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::layers::mirror::superblock::segmented::SEGMENTS_RESERVED;
use crate::layers::mirror::superblock::{SegmentLayout, SideLayout};

/// Number of blocks of a window, 16 MiB, and on a side that is too small for that, the part of its
/// segments that a window takes.
const WINDOW_BLOCKS_MAX: u64 = 4096;
const WINDOW_BLOCKS_MIN: u64 = 64;
const WINDOW_DIVISOR: u64 = 32;
/// Maximum gap between two blocks that are read with one request. A disk passes over such a gap of
/// 256 KiB faster than it seeks.
const READ_GAP_BLOCKS_MAX: u32 = 64;

/// Windows of the volume whose order is to be judged. A side that does not seek has none.
pub(super) struct Windows {
    /// A bit for each window, which is set while the window is to be judged.
    bits: Vec<u64>,
    /// Number of bits that are set.
    count: u64,
    window_blocks: u64,
    /// The window after the one that was taken last.
    next: u64,
    /// Notified when a window is to be judged, after none was.
    noted: Rc<Event>,
}

impl Windows {
    /// Returns the windows of a side on a device: all of them are to be judged.
    pub(super) fn of(device: &Geometry, segments: &SegmentLayout, layout: &SideLayout) -> Windows {
        let all_blocks = segments.segments() * segments.segment_blocks();
        let window_blocks = all_blocks / WINDOW_DIVISOR;
        let window_blocks = window_blocks.clamp(WINDOW_BLOCKS_MIN, WINDOW_BLOCKS_MAX);
        let volume_blocks = layout.data.1 / BLOCK_BYTES;
        let windows = match device.rotational {
            true => volume_blocks.div_ceil(window_blocks),
            false => 0,
        };
        let mut all = Windows {
            bits: vec![0; windows.div_ceil(64) as usize],
            count: 0,
            window_blocks,
            next: 0,
            noted: Rc::default(),
        };
        (0..windows).for_each(|window| all.note(window));
        all
    }

    fn note(&mut self, window: u64) {
        let Some(word) = self.bits.get_mut((window / 64) as usize) else {
            return;
        };
        let bit = 1 << (window % 64);
        if *word & bit == 0 {
            *word |= bit;
            self.count += 1;
            if self.count == 1 {
                self.noted.notify();
            }
        }
    }

    /// Removes and returns the next window in the order of the volume, and after the last one the
    /// first one.
    fn take(&mut self) -> Option<u64> {
        let words = self.bits.len() as u64;
        let first = self.next / 64;
        // The windows of the first word that were passed are looked at last.
        let mut steps = (0..=words).map(|step| (step, (first + step) % words.max(1)));
        let found = steps.find_map(|(step, word)| {
            let passed = match step {
                0 => (1_u64 << (self.next % 64)) - 1,
                _ => 0,
            };
            let left = self.bits.get(word as usize)? & !passed;
            (left != 0).then(|| 64 * word + u64::from(left.trailing_zeros()))
        })?;
        self.bits[(found / 64) as usize] &= !(1 << (found % 64));
        self.count -= 1;
        self.next = (found + 1) % (64 * words);
        Some(found)
    }

    /// Returns the number of bytes of all windows that are to be judged.
    pub(super) fn bytes(&self) -> u64 {
        self.count * self.window_blocks * BLOCK_BYTES
    }
}

/// A window that is to be put in order. It is judged again if it is dropped before that is
/// [done](Window::done).
pub(in super::super) struct Window<'s> {
    number: u64,
    /// The blocks of the window that have a place, in the order of the volume.
    pub(in super::super) live: Vec<Live>,
    is_done: bool,
    /// Keeps the segments of the blocks from being filled anew.
    pins: Pins<'s>,
}

impl Window<'_> {
    /// Records that the window was put in order, as far as its blocks could be read.
    pub(in super::super) fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.pins.of.unjudged.borrow_mut().note(self.number);
        }
    }
}

impl Segments {
    /// Makes the window of a block of the volume be judged again.
    pub(super) fn note_unjudged(&self, volume_block: u64) {
        let mut unjudged = self.unjudged.borrow_mut();
        let window = volume_block / unjudged.window_blocks;
        unjudged.note(window);
    }

    /// Returns true when the order of windows is to be judged.
    pub(in super::super) fn has_unjudged(&self) -> bool {
        self.unjudged.borrow().count > 0
    }

    /// Waits until [`has_unjudged`](Self::has_unjudged) returns true.
    pub(in super::super) async fn until_unjudged(&self) {
        while !self.has_unjudged() {
            let noted = Rc::clone(&self.unjudged.borrow().noted);
            noted.until(|| self.has_unjudged()).await;
        }
    }

    /// Judges the next window of which that is to be done. Returns it when it should be put in
    /// order. Pages of the map that are not in memory are read.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn judge_window(&self) -> Result<Option<Window<'_>>, IoError> {
        let (number, window_blocks) = {
            let mut unjudged = self.unjudged.borrow_mut();
            let Some(number) = unjudged.take() else {
                return Ok(None);
            };
            (number, unjudged.window_blocks)
        };
        // Until its blocks are known, an error makes the window be judged again.
        let mut window = Window {
            number,
            live: Vec::new(),
            is_done: false,
            pins: Pins {
                of: self,
                segments: Vec::new(),
            },
        };
        give_way().await;
        count_entries(window_blocks as usize);
        let first = self.first_volume_block() + number * window_blocks;
        let end = (first + window_blocks).min(self.virtual_bytes / BLOCK_BYTES);
        let known = match self.know(first..end).await {
            Ok(known) => known,
            // The places of its blocks are lost, and they are copied from another side.
            Err(error) if error.is_of_a_block() => {
                window.done();
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        self.list_window(&mut window, first..end);
        drop(known);
        let mut runs = Runs::default();
        window.live.iter().for_each(|live| runs.add(live.at()));
        if runs.are_disordered(self.content_blocks()) {
            return Ok(Some(window));
        }
        window.done();
        Ok(None)
    }

    /// Puts the blocks of a window into it that have a place, and pins their segments.
    fn list_window(&self, window: &mut Window<'_>, blocks: Range<u64>) {
        // The log has no record of a block that is put in order, so its content is as old as the
        // newest record at most.
        let birth = (self.born.borrow())();
        let (places, mut usage) = (self.places.borrow(), self.usage.borrow_mut());
        let mut segments = BTreeSet::new();
        for block in blocks {
            if let Some(Place::At(at)) = places.get(block) {
                window.live.push(Live::of(block, at, birth));
                segments.insert(usage.segment_of(at));
            }
        }
        segments.iter().for_each(|segment| usage.pin(*segment));
        window.pins.segments = segments.into_iter().collect();
    }

    /// Divides blocks of a window into runs in the order of the device, each of which is read with
    /// one request.
    pub(in super::super) fn runs_on_device(&self, mut live: Vec<Live>) -> Vec<Vec<Live>> {
        live.sort_unstable();
        let runs = self.read_together(&live, READ_GAP_BLOCKS_MAX);
        runs.into_iter().map(<[Live]>::to_vec).collect()
    }

    /// Appends content of a window again, in the order of the volume.
    ///
    /// # Errors
    /// Errors of the device; `NoSpace` when too few segments are free.
    pub(in super::super) async fn put_in_order(
        &self,
        content: Vec<(Live, Payload)>,
    ) -> Result<(), IoError> {
        self.write_moved(Stream::Ordered, content).await
    }

    /// Returns true when cleaning has caught up, and so much is free that a window may be put in
    /// order.
    pub(in super::super) fn may_order(&self) -> bool {
        let window_blocks = self.unjudged.borrow().window_blocks;
        let taken = window_blocks.div_ceil(self.content_blocks()) + SEGMENTS_RESERVED;
        self.is_begun.get()
            && self.is_counted()
            && self.pace.owed_blocks() == 0
            && self.pace.may_order(window_blocks)
            && self.free() as u64 > taken
    }

    /// Returns true when the next commit frees room for a window.
    pub(in super::super) fn dead_have_room(&self) -> bool {
        let window_blocks = self.unjudged.borrow().window_blocks;
        self.dead_count() as u64 * self.content_blocks() >= window_blocks
    }

    /// Makes cleaning due while it gains enough, until the returned guard is dropped. `None` if it
    /// gains too little now.
    pub(in super::super) fn clean_for_order(&self) -> Option<Ahead<'_>> {
        let gains = self.pace.can_clean_for_order();
        gains.then(|| self.pace.clean_for_order())
    }

    /// Returns the number of segments that are free, or that the next commit frees.
    pub(in super::super) fn free_or_dead(&self) -> usize {
        self.free() + self.dead_count()
    }
}
