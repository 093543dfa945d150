//! Counters of a drive, and the total time of the counted operations if they are executed
//! sequentially.
//!
//! Counters never decrease. Each is incremented at one place in the code, together with the change
//! of the flash, so that it cannot disagree with the state. `verify` compares the counters with the
//! flash array.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a drive since its creation, in pages unless stated otherwise.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Add for Counters {
            type Output = Counters;

            /// Adds the counters of two parts of a drive.
            fn add(self, other: Counters) -> Counters {
                Counters { $($name: self.$name + other.$name,)* }
            }
        }

        impl Sub for Counters {
            type Output = Counters;

            /// Returns the increase of the counters since the reading `earlier`.
            fn sub(self, earlier: Counters) -> Counters {
                Counters { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Pages the host read.
    host_reads,
    /// Pages the host wrote.
    host_writes,
    /// Pages the host trimmed.
    host_trims,
    /// Flush commands.
    flushes,
    /// Host reads of pages that were never written or were trimmed. Such reads do not access the
    /// flash.
    unmapped_reads,
    /// Host reads answered by the write buffer.
    buffer_hits,
    /// Host writes that replaced a page in the write buffer.
    buffer_overwrites,
    /// Host reads answered from pages that were read ahead.
    prefetch_hits,
    /// Flash reads for the host.
    reads_host,
    /// Flash reads to move pages.
    reads_copy,
    /// Flash reads of the translation table.
    reads_map,
    /// Flash reads ahead of the host.
    reads_prefetch,
    /// Flash reads of the SLC buffer, to answer host reads or to move pages to the main flash.
    reads_buffer,
    /// Number of page programs, not counting those of the SLC buffer: the sum of host, copy,
    /// padding and map programs.
    programs,
    /// Programs of pages the host wrote.
    programs_host,
    /// Programs that moved a page.
    programs_copy,
    /// Programs of pages without content.
    programs_padding,
    /// Programs of the translation table.
    programs_map,
    /// Programs into the SLC buffer.
    programs_buffer,
    /// Blocks erased, all but those of the SLC buffer.
    erases,
    /// Blocks of the SLC buffer erased.
    erases_buffer,
    /// Merges in which a log block became the data block without copies.
    merges_switch,
    /// Merges in which missing pages were copied to a log block, which then became the data block.
    merges_partial,
    /// Merges in which the pages of a data block were copied from several blocks to a new block.
    merges_full,
    /// Blocks cleaned while a write waited. For layers with log blocks: reclaimed log blocks.
    cleanings_blocking,
    /// Blocks cleaned in idle time.
    cleanings_background,
    /// Blocks moved only to even out wear.
    wear_moves,
    /// Table look-ups answered by the cached map.
    map_hits,
    /// Table look-ups that had to read the flash.
    map_misses,
    /// Pages whose newest version was lost in a power cut.
    lost_pages,
    /// Power cuts.
    power_cuts,
}

impl Counters {
    /// Returns the number of programs for each page that the host has written, including programs
    /// of the SLC buffer; 0 if the host has written no page.
    pub fn write_amplification(&self) -> f64 {
        if self.host_writes == 0 {
            return 0.0;
        }
        (self.programs + self.programs_buffer) as f64 / self.host_writes as f64
    }

    /// Returns the number of flash reads, without reads of the SLC buffer.
    pub fn reads(&self) -> u64 {
        self.reads_host + self.reads_copy + self.reads_map + self.reads_prefetch
    }

    /// Returns the number of merges of all kinds.
    pub fn merges(&self) -> u64 {
        self.merges_switch + self.merges_partial + self.merges_full
    }
}

/// Time of each kind of operation. The times are configurable because the ratio of program time to
/// read time decides which buffer policy is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Time to read a page, in microseconds.
    pub read_us: u32,
    /// Time to program a page, in microseconds.
    pub program_us: u32,
    /// Time to erase a block, in microseconds.
    pub erase_us: u32,
    /// Time to read a page of the SLC buffer, in microseconds.
    pub buffer_read_us: u32,
    /// Time to program a page of the SLC buffer, in microseconds.
    pub buffer_program_us: u32,
}

impl Default for Costs {
    /// Returns the times of SLC flash of 2008: 25 us, 200 us and 1.5 ms. They are from data sheets
    /// of that time, and the papers on BAST, FAST and DFTL assume them.
    fn default() -> Self {
        Costs {
            read_us: 25,
            program_us: 200,
            erase_us: 1500,
            buffer_read_us: 25,
            buffer_program_us: 200,
        }
    }
}

impl Costs {
    /// Returns the sum of the times of all counted operations in microseconds.
    pub fn time_us(&self, counters: &Counters) -> u64 {
        let priced = [
            (counters.reads(), self.read_us),
            (counters.programs, self.program_us),
            (counters.erases + counters.erases_buffer, self.erase_us),
            (counters.reads_buffer, self.buffer_read_us),
            (counters.programs_buffer, self.buffer_program_us),
        ];
        priced.iter().fold(0, |sum, (n, us)| {
            sum.saturating_add(n.saturating_mul(u64::from(*us)))
        })
    }
}

/// Distribution of wear: numbers of erases over the blocks of a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Wear {
    /// Number of erases of the least worn block.
    pub min_erases: u32,
    /// Number of erases of the most worn block.
    pub max_erases: u32,
    /// Mean number of erases over all blocks.
    pub mean_erases: f64,
}
