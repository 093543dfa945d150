//! Assignment of pages to write streams (classes).
//!
//! Pages with the same rewrite rate should share blocks: a block of hot pages is nearly empty when
//! it is cleaned, and a block of cold pages is rarely cleaned. Either the caller names the class of
//! each page, or the drive measures it. To measure, the drive counts the writes of each page, and
//! halves all counts each time the host has written as many pages as the drive has. Pages that are
//! written more than twice as often as the mean are hot.

use crate::config::Streams;

/// Where the class (the write stream) of a page comes from: the caller gives it, or the drive
/// measures how often the page is written.
#[derive(Debug)]
pub(super) enum Classes {
    Given,
    Measured(Vec<u8>, Decay),
}

/// State of the periodic halving: the number of writes until the counts are halved, and the sum of
/// all counts.
#[derive(Debug)]
pub(super) struct Decay {
    writes_left: u32,
    sum: u64,
}

const HOT: u8 = 0;
const COLD: u8 = 1;

impl Classes {
    pub fn new(streams: Streams, logical_pages: u32) -> Self {
        match streams {
            Streams::One | Streams::Given(_) => Classes::Given,
            Streams::Measured => Classes::Measured(
                vec![0; logical_pages as usize],
                Decay {
                    writes_left: logical_pages,
                    sum: 0,
                },
            ),
        }
    }

    /// Returns the class of a page that the host writes. If classes are measured, counts the write.
    #[inline]
    pub fn of_write(&mut self, lpn: u32, given: u8) -> u8 {
        let Classes::Measured(counts, decay) = self else {
            return given;
        };
        let count = &mut counts[lpn as usize];
        decay.sum += u64::from(*count < u8::MAX);
        *count = count.saturating_add(1);
        decay.writes_left -= 1;
        if decay.writes_left == 0 {
            decay.writes_left = counts.len() as u32;
            decay.sum = 0;
            for count in counts.iter_mut() {
                *count /= 2;
                decay.sum += u64::from(*count);
            }
        }
        self.measured(lpn)
    }

    /// Returns the class of a page that cleaning moves out of a block of the class `current`.
    #[inline]
    pub fn of_copy(&self, lpn: u32, current: u8) -> u8 {
        match self {
            Classes::Given => current,
            Classes::Measured(..) => self.measured(lpn),
        }
    }

    fn measured(&self, lpn: u32) -> u8 {
        let Classes::Measured(counts, decay) = self else {
            return HOT;
        };
        let count = u64::from(counts[lpn as usize]);
        if count * counts.len() as u64 > 2 * decay.sum {
            HOT
        } else {
            COLD
        }
    }
}
