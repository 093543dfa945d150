//! Counters of a drive, and the total time of the counted operations when executed sequentially.
//!
//! Counters only grow. Each is incremented in one place, where the flash is changed, so that it
//! cannot disagree with the state: `verify` compares them with the array.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a drive since it was created, in pages unless stated otherwise.
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

            /// Returns the difference between a later and an earlier reading.
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
    /// Host reads of pages that were never written or were trimmed; the flash is not read.
    unmapped_reads,
    /// Host reads answered by the write buffer.
    buffer_hits,
    /// Host writes that replaced a page still in the write buffer.
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
    /// Flash reads of the SLC buffer, for the host or to move pages to the main flash.
    reads_buffer,
    /// Programs, all but those of the SLC buffer: host + copy + padding + map.
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
    /// Merges that made a log block the data block, without a copy.
    merges_switch,
    /// Merges that completed a log block and made it the data block.
    merges_partial,
    /// Merges that gathered a data block from several blocks.
    merges_full,
    /// Blocks cleaned while a write waited (log blocks reclaimed, for log-block layers).
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
    /// Returns the programs per page written by the host, including those of the SLC buffer; 0
    /// without writes.
    pub fn write_amplification(&self) -> f64 {
        if self.host_writes == 0 {
            return 0.0;
        }
        (self.programs + self.programs_buffer) as f64 / self.host_writes as f64
    }

    /// Returns all reads of the flash except those of the SLC buffer.
    pub fn reads(&self) -> u64 {
        self.reads_host + self.reads_copy + self.reads_map + self.reads_prefetch
    }

    /// Returns the number of merges of all kinds.
    pub fn merges(&self) -> u64 {
        self.merges_switch + self.merges_partial + self.merges_full
    }
}

/// Time of each operation. It is configurable because the ratio of program to read decides which
/// buffer policy is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Reading a page, in microseconds.
    pub read_us: u32,
    /// Programming a page, in microseconds.
    pub program_us: u32,
    /// Erasing a block, in microseconds.
    pub erase_us: u32,
    /// Reading a page of the SLC buffer, in microseconds.
    pub buffer_read_us: u32,
    /// Programming a page of the SLC buffer, in microseconds.
    pub buffer_program_us: u32,
}

impl Default for Costs {
    /// Returns the times of SLC flash of 2008: 25 us, 200 us and 1.5 ms (data sheets of that time;
    /// BAST, FAST and DFTL assume these).
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
    /// Returns the total time of all counted operations, executed sequentially, in microseconds.
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

/// Distribution of wear, in erases per block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Wear {
    /// Erases of the least worn block.
    pub min_erases: u32,
    /// Erases of the most worn block.
    pub max_erases: u32,
    /// Mean number of erases over all blocks.
    pub mean_erases: f64,
}
