//! The operations that a translation layer issues to the flash, for code that schedules or checks
//! them.
//!
//! Recording is off by default, because a cost model needs only the counters. A recorded list
//! belongs to one command: the reader empties the list before the next command, so the operations
//! of one command bound its length.

/// Kind of an operation of the flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Reads a page from the cells.
    Read,
    /// Programs a page into erased cells.
    Program,
    /// Erases a block.
    Erase,
}

/// The reason for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The host reads or writes the page.
    Host,
    /// Cleaning, merging or wear levelling moves the page.
    Copy,
    /// The page has no content; it is programmed only because pages of a block are programmed in
    /// order.
    Padding,
    /// The page belongs to the translation table.
    Map,
    /// The page belongs to the drive's own SLC buffer.
    Buffer,
    /// The page is read ahead of the host.
    Prefetch,
}

/// One operation of the flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Kind of the operation.
    pub action: Action,
    /// Reason for the operation.
    pub purpose: Purpose,
    /// The physical page: block x stride + page. The stride is the number of pages of a block
    /// rounded up to a power of two. An erase names the first page of the block; an operation of
    /// the SLC buffer names the slot.
    pub page: u32,
    /// The die that executes the operation.
    pub die: u32,
    /// The logical page that is read or stored; [`NONE`](crate::NONE) for erases and padding. Table
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
    /// Turns recording on or off. Both discard all recorded operations.
    pub fn record(&mut self, recording: bool) {
        self.recording = recording;
        self.operations.clear();
    }

    /// Returns the operations recorded since the last [`clear`](Self::clear).
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Discards the recorded operations and keeps the memory.
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
