//! The interface of every flash translation layer to the drive around it.
//!
//! A layer decides where pages are stored and which operations that takes. It must never do I/O,
//! read a time, or allocate for an operation: all tables are dense and allocated once. It counts
//! the operations of the flash; the [`Drive`](crate::Drive) around it counts the commands of the
//! host.

use std::fmt::Debug;

use crate::counters::{Counters, Wear};
use crate::geometry::FlashError;
use crate::nand::Inconsistent;
use crate::operation::{Purpose, Recorder};

/// A flash translation layer. Object-safe, so that a simulator can use any layer or none
/// ([`Ideal`](crate::Ideal)).
///
/// A page at or beyond [`logical_pages`](Self::logical_pages) is an error that changes nothing.
pub trait Ftl: Debug + Send {
    /// Returns the number of pages that the host can use; they are numbered from 0.
    fn logical_pages(&self) -> u32;

    /// Reads a page from the flash. Returns false if it was never written, or was trimmed.
    fn fetch(&mut self, lpn: u32, purpose: Purpose) -> Result<bool, FlashError>;

    /// Writes pages that belong together, in this order. A layer that writes whole blocks profits
    /// from pages of one block in one call. `class` names the write stream for drives that have
    /// them; 0 otherwise.
    fn store(&mut self, lpns: &[u32], class: u8) -> Result<(), FlashError>;

    /// Trims a page, whose content is no longer needed.
    fn trim(&mut self, lpn: u32) -> Result<(), FlashError>;

    /// Makes the translation table durable, if it would not survive a power cut.
    fn save_map(&mut self);

    /// Returns the physical page with the page's newest version, numbered like
    /// [`Operation::page`](crate::Operation::page).
    fn locate(&self, lpn: u32) -> Option<u32>;

    /// Returns whether [`clean_in_background`](Self::clean_in_background) has anything to do.
    fn wants_cleaning(&self) -> bool;

    /// Does one step of idle cleaning: cleans a block or merges a log block. Returns false if there
    /// is no worthwhile step.
    fn clean_in_background(&mut self) -> bool;

    /// Simulates a sudden loss of power between two commands, and its return. State that was only
    /// in volatile memory is lost or reconstructed, as the layer documents.
    fn cut_power(&mut self);

    /// Returns the counters of the flash.
    fn counters(&self) -> Counters;

    /// Returns the distribution of wear.
    fn wear(&self) -> Wear;

    /// Returns the recorder of operations.
    fn recorder(&mut self) -> &mut Recorder;

    /// Checks that every logical page maps to the one valid physical page that holds it, that
    /// every block is in one place, and that the counters balance with the array: programs = host +
    /// copied + padded + map, and erases = the sum over the blocks. Takes time linear in the pages.
    fn verify(&self) -> Result<(), Inconsistent>;
}
