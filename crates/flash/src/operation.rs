//! The operations that a translation layer issues to the flash, for code that schedules or checks
//! them.
//!
//! Recording is off by default, because a cost model needs only the counters. The recorded list
//! contains the operations of one command: the reader clears the list before the next command, so
//! its length is bounded by the operations of one command.

/// Kind of a flash operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read of a page from the cells.
    Read,
    /// Program of a page into erased cells.
    Program,
    /// Erase of a block.
    Erase,
}

/// Reason for a flash operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The host reads or writes the page.
    Host,
    /// Cleaning, merging or wear levelling moves the page.
    Copy,
    /// The page has no content. It is programmed only because the pages of a block must be
    /// programmed in order.
    Padding,
    /// The page belongs to the translation table.
    Map,
    /// The page belongs to the drive's own SLC buffer.
    Buffer,
    /// The page is read before the host requests it.
    Prefetch,
}

/// One operation of the flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Kind of the operation.
    pub action: Action,
    /// Reason for the operation.
    pub purpose: Purpose,
    /// The physical page: block x stride + page, where the stride is the number of pages of a block
    /// rounded up to a power of two. For an erase, this is the first page of the block; for an
    /// operation of the SLC buffer, it is the slot.
    pub page: u32,
    /// The die that executes the operation.
    pub die: u32,
    /// The logical page that is read or stored; [`NONE`](crate::NONE) for erases and padding. The
    /// numbers of table pages follow those of the logical pages.
    pub lpn: u32,
}

/// Records operations in the order in which the flash must execute them.
#[derive(Debug, Default)]
pub struct Recorder {
    recording: bool,
    operations: Vec<Operation>,
}

impl Recorder {
    /// Turns recording on or off. In both cases, all recorded operations are discarded.
    pub fn record(&mut self, recording: bool) {
        self.recording = recording;
        self.operations.clear();
    }

    /// Returns the operations recorded since the last [`clear`](Self::clear).
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Discards the recorded operations, and keeps the memory of the list for later operations.
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
