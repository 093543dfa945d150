//! The operations that a translation layer issues to the flash, for code that schedules or checks
//! them.
//!
//! Recording is off by default, because a cost model needs only the counters. A recorded list
//! belongs to one command; the reader empties it before the next, so the operations of one command
//! bound it.

/// What the flash does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A page leaves the cells.
    Read,
    /// A page goes into erased cells.
    Program,
    /// A block becomes erased.
    Erase,
}

/// The reason for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The host asked for this page.
    Host,
    /// Cleaning, merging or wear levelling moves it.
    Copy,
    /// A page programmed only because pages of a block are programmed in order.
    Padding,
    /// The translation table.
    Map,
    /// The drive's own SLC buffer.
    Buffer,
    /// Read ahead of the host.
    Prefetch,
}

/// One operation of the flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// What is done.
    pub action: Action,
    /// Why.
    pub purpose: Purpose,
    /// The physical page: block x stride + page, the stride being the pages of a block rounded up
    /// to a power of two. An erase names the block's first page, an operation of the SLC buffer
    /// its slot.
    pub page: u32,
    /// The die that is busy.
    pub die: u32,
    /// The logical page that is read or stored, [`NONE`](crate::NONE) for erases and padding; table
    /// pages are numbered from the end of the logical pages.
    pub lpn: u32,
}

/// Recorder of operations, in the order in which the flash must execute them.
#[derive(Debug, Default)]
pub struct Recorder {
    recording: bool,
    operations: Vec<Operation>,
}

impl Recorder {
    /// Turns recording on or off. Off also forgets what was recorded.
    pub fn record(&mut self, recording: bool) {
        self.recording = recording;
        self.operations.clear();
    }

    /// What was recorded since the last [`clear`](Self::clear).
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Forgets what was recorded and keeps the memory.
    pub fn clear(&mut self) {
        self.operations.clear();
    }

    #[inline]
    pub(crate) fn push(&mut self, operation: impl FnOnce() -> Operation) {
        if self.recording {
            self.operations.push(operation());
        }
    }
}
