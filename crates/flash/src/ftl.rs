//! What every flash translation layer offers to the drive around it.
//!
//! A layer decides where pages are and which operations that takes. It must never do I/O, know a
//! time, or allocate for an operation: all tables are dense and made once. It counts what the flash
//! does; what the host asked for is counted by the [`Drive`](crate::Drive) around it.

use std::fmt::Debug;

use crate::counters::{Counters, Wear};
use crate::geometry::FlashError;
use crate::nand::Inconsistent;
use crate::operation::{Purpose, Recorder};

/// A flash translation layer. Object-safe, so that a simulator can take any or none
/// ([`Ideal`](crate::Ideal)).
///
/// Pages are checked by the drive: a page at or beyond [`logical_pages`](Self::logical_pages)
/// is an error, and nothing has changed.
pub trait Ftl: Debug + Send {
    /// Pages the host can use, numbered from 0.
    fn logical_pages(&self) -> u32;

    /// Reads a page of the flash. False when there is none: never written, or trimmed.
    fn fetch(&mut self, lpn: u32, purpose: Purpose) -> Result<bool, FlashError>;

    /// Writes pages that belong together, in this order. A layer that writes whole blocks profits
    /// from pages of one block in one call. `class` names the write stream for drives that have
    /// them; 0 otherwise.
    fn store(&mut self, lpns: &[u32], class: u8) -> Result<(), FlashError>;

    /// The page's content is no longer needed.
    fn trim(&mut self, lpn: u32) -> Result<(), FlashError>;

    /// Makes the translation table durable, where it would not survive a power cut.
    fn save_map(&mut self);

    /// Where the page's newest version is, as [`Operation::page`](crate::Operation::page) counts.
    fn locate(&self, lpn: u32) -> Option<u32>;

    /// Whether [`clean_in_background`](Self::clean_in_background) would do anything.
    fn wants_cleaning(&self) -> bool;

    /// One step of cleaning in idle time: a block cleaned, a log block merged. False when there is
    /// nothing worth doing.
    fn clean_in_background(&mut self) -> bool;

    /// Sudden loss of power between two commands. Afterwards the layer is as it is when the power
    /// is back: what it had only in volatile memory is gone or found again, by its documentation.
    fn cut_power(&mut self);

    /// What the flash has done.
    fn counters(&self) -> Counters;

    /// How evenly it is worn.
    fn wear(&self) -> Wear;

    /// Where operations are recorded, if they are.
    fn recorder(&mut self) -> &mut Recorder;

    /// Checks that every logical page maps to the one valid physical page that holds it, that
    /// every block is in one place, and that the counters balance with the array: programs = host +
    /// copied + padded + map, and erases = the sum over the blocks. Takes time linear in the pages.
    fn verify(&self) -> Result<(), Inconsistent>;
}
