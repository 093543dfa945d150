//! A drive without a translation layer, which shows the cost of a drive without cleaning.
//!
//! A read is one flash read and a write is one program; no page is copied and no block is erased.
//! The cost is a lower bound for all translation layers. It is not a model of real flash.

use crate::counters::{Counters, Wear};
use crate::ftl::Ftl;
use crate::geometry::{FlashError, Geometry, check_page};
use crate::nand::{Inconsistent, require};
use crate::operation::{Action, Operation, Purpose, Recorder};

/// A drive without a translation layer; see the module documentation.
#[derive(Debug)]
pub struct Ideal {
    dies: u32,
    written: Vec<bool>,
    counters: Counters,
    recorder: Recorder,
}

impl Ideal {
    pub(crate) fn new(geometry: Geometry, logical_pages: u32) -> Self {
        Ideal {
            dies: geometry.total_dies(),
            written: vec![false; logical_pages as usize],
            counters: Counters::default(),
            recorder: Recorder::default(),
        }
    }

    fn record(&mut self, action: Action, purpose: Purpose, lpn: u32) {
        let die = lpn % self.dies;
        self.recorder.push(|| Operation {
            action,
            purpose,
            page: lpn,
            die,
            lpn,
        });
    }
}

impl Ftl for Ideal {
    fn logical_pages(&self) -> u32 {
        self.written.len() as u32
    }

    fn fetch(&mut self, lpn: u32, purpose: Purpose) -> Result<bool, FlashError> {
        check_page(lpn, self.logical_pages())?;
        let written = self.written[lpn as usize];
        if written {
            match purpose {
                Purpose::Prefetch => self.counters.reads_prefetch += 1,
                _ => self.counters.reads_host += 1,
            }
            self.record(Action::Read, purpose, lpn);
        }
        Ok(written)
    }

    fn store(&mut self, lpns: &[u32], _class: u8) -> Result<(), FlashError> {
        for lpn in lpns {
            check_page(*lpn, self.logical_pages())?;
        }
        for lpn in lpns {
            self.written[*lpn as usize] = true;
            self.counters.programs += 1;
            self.counters.programs_host += 1;
            self.record(Action::Program, Purpose::Host, *lpn);
        }
        Ok(())
    }

    fn trim(&mut self, lpn: u32) -> Result<(), FlashError> {
        check_page(lpn, self.logical_pages())?;
        self.written[lpn as usize] = false;
        Ok(())
    }

    fn save_map(&mut self) {}

    fn locate(&self, lpn: u32) -> Option<u32> {
        let written = self.written.get(lpn as usize).copied();
        written.unwrap_or(false).then_some(lpn)
    }

    fn wants_cleaning(&self) -> bool {
        false
    }

    fn clean_in_background(&mut self) -> bool {
        false
    }

    fn cut_power(&mut self) {}

    fn counters(&self) -> Counters {
        self.counters
    }

    fn wear(&self) -> Wear {
        Wear::default()
    }

    fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    fn verify(&self) -> Result<(), Inconsistent> {
        let c = &self.counters;
        require(c.programs == c.programs_host && c.erases == 0, || {
            "a layer without cleaning copied or erased".to_owned()
        })
    }
}
