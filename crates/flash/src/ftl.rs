//! The interface between a flash translation layer and the drive around it.
//!
//! A layer decides where pages are stored and which flash operations are needed for that. It must
//! never do I/O, read a clock, or allocate memory during an operation: all tables are dense and
//! allocated once. It counts the operations of the flash; the [`Drive`](crate::Drive) around it
//! counts the commands of the host.

use std::fmt::Debug;

use crate::counters::{Counters, Wear};
use crate::geometry::FlashError;
use crate::nand::Inconsistent;
use crate::operation::{Purpose, Recorder};

/// A flash translation layer. The trait is object-safe, so that a simulator can use any layer, or
/// the [`Ideal`](crate::Ideal) drive without a layer.
///
/// An access to a page at or beyond [`logical_pages`](Self::logical_pages) is an error and changes
/// nothing.
pub trait Ftl: Debug + Send {
    /// Returns the number of logical pages, which the host can use. Logical pages are numbered
    /// from 0.
    fn logical_pages(&self) -> u32;

    /// Reads a page from the flash. Returns false if the page was never written, or was trimmed.
    fn fetch(&mut self, lpn: u32, purpose: Purpose) -> Result<bool, FlashError>;

    /// Writes pages in the given order. A layer that rewrites whole blocks works more efficiently
    /// if pages of the same block are written in one call. `class` is the write stream of the
    /// pages; it is 0 for drives without write streams.
    fn store(&mut self, lpns: &[u32], class: u8) -> Result<(), FlashError>;

    /// Trims a page, whose content is no longer needed.
    fn trim(&mut self, lpn: u32) -> Result<(), FlashError>;

    /// Makes the translation table durable if it would not survive a power cut.
    fn save_map(&mut self);

    /// Returns the physical page that holds the newest version of a logical page, numbered as in
    /// [`Operation::page`](crate::Operation::page); `None` if the logical page has no version.
    fn locate(&self, lpn: u32) -> Option<u32>;

    /// Returns whether there is work for [`clean_in_background`](Self::clean_in_background).
    fn wants_cleaning(&self) -> bool;

    /// Does one step of cleaning in idle time: cleans a block or merges a log block. Returns false
    /// if no step would be useful.
    fn clean_in_background(&mut self) -> bool;

    /// Simulates a sudden loss of power between two commands, and the return of power. State in
    /// volatile memory is lost or reconstructed, as each layer documents.
    fn cut_power(&mut self);

    /// Returns the counters of the flash operations.
    fn counters(&self) -> Counters;

    /// Returns the distribution of wear over the blocks.
    fn wear(&self) -> Wear;

    /// Returns the recorder for the flash operations.
    fn recorder(&mut self) -> &mut Recorder;

    /// Checks the consistency of the layer. Every logical page must map to the only valid physical
    /// page that holds it, every block must have exactly one use, and the counters must agree with
    /// the array: programs = host + copied + padded + map, and erases = the sum over the blocks.
    /// The time is linear in the number of pages.
    fn verify(&self) -> Result<(), Inconsistent>;
}
