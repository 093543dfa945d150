//! A complete drive as a cost model: it takes the host's commands, and reports counters and device
//! time.
//!
//! The drive consists of a translation layer with a write buffer and a read-ahead window in front
//! of it. It counts the host's commands, and adds up the times of all operations as if they were
//! executed sequentially. It holds no data, reads no clock and starts no work without a call: the
//! caller gives it idle time.

use crate::buffer::WriteBuffer;
use crate::config::{BufferConfig, DriveConfig, FtlConfig};
use crate::counters::{Costs, Counters, Wear};
use crate::ftl::Ftl;
use crate::geometry::{FlashError, check_page, check_range};
use crate::nand::{Inconsistent, require};
use crate::operation::{Action, Operation, Purpose, Recorder};
use crate::prefetch::Prefetch;

/// Maximum size of the write buffer in pages.
const BUFFER_PAGES_MAX: u32 = 1 << 28;

/// Maximum number of pages read ahead.
const PREFETCH_PAGES_MAX: u32 = 1 << 16;

/// A drive; see the module documentation.
#[derive(Debug)]
pub struct Drive {
    ftl: Box<dyn Ftl>,
    logical_pages: u32,
    classes: u8,
    dies: u32,
    pages_per_block: u32,
    buffer: Option<WriteBuffer>,
    prefetch: Option<Prefetch>,
    costs: Costs,
    /// Counters of the host's commands and of the write buffer.
    host: Counters,
    background_us: u64,
}

impl Drive {
    /// Creates an empty drive. Errors: an invalid value; the error names the parameter.
    pub fn new(config: &DriveConfig) -> Result<Self, FlashError> {
        Self::around(config.build_ftl()?, config)
    }

    /// Creates a drive around a translation layer that the caller supplies. The translation layer
    /// and the capacity in `config` are ignored. Errors: the geometry is invalid, or the size of
    /// the buffer or of the read-ahead is out of range.
    pub fn around(ftl: Box<dyn Ftl>, config: &DriveConfig) -> Result<Self, FlashError> {
        config.geometry.validate()?;
        let logical_pages = ftl.logical_pages();
        let buffer = match config.buffer {
            BufferConfig::None => None,
            BufferConfig::Memory(pages) | BufferConfig::Slc(pages) => {
                check_range("buffer", pages, BUFFER_PAGES_MAX)?;
                let appends = matches!(config.buffer, BufferConfig::Slc(_));
                Some(WriteBuffer::new(pages, logical_pages, appends))
            }
        };
        if config.prefetch_pages > 0 {
            check_range("prefetch_pages", config.prefetch_pages, PREFETCH_PAGES_MAX)?;
        }
        let classes = match config.ftl {
            FtlConfig::Page(page) => page.streams.count(),
            _ => u8::MAX,
        };
        Ok(Drive {
            ftl,
            logical_pages,
            classes,
            dies: config.geometry.total_dies(),
            pages_per_block: config.geometry.pages_per_block,
            buffer,
            prefetch: (config.prefetch_pages > 0).then(|| Prefetch::new(config.prefetch_pages)),
            costs: config.costs,
            host: Counters::default(),
            background_us: 0,
        })
    }

    /// Returns the number of pages that the host can use.
    pub fn logical_pages(&self) -> u32 {
        self.logical_pages
    }

    /// Reads a page for the host. Errors: a page beyond the end of the drive.
    pub fn read(&mut self, lpn: u32) -> Result<(), FlashError> {
        check_page(lpn, self.logical_pages)?;
        self.host.host_reads += 1;
        let in_buffer = self.buffer.as_ref().and_then(|b| b.slot_of(lpn));
        if let Some(slot) = in_buffer {
            self.host.buffer_hits += 1;
            self.read_buffer(slot, lpn);
        } else if self.prefetch.as_ref().is_some_and(|p| p.holds(lpn)) {
            self.host.prefetch_hits += 1;
        } else if !self.ftl.fetch(lpn, Purpose::Host)? {
            self.host.unmapped_reads += 1;
        }
        self.read_ahead(lpn)
    }

    fn read_ahead(&mut self, lpn: u32) -> Result<(), FlashError> {
        let Some(prefetch) = &mut self.prefetch else {
            return Ok(());
        };
        for ahead in prefetch.after_read(lpn, self.logical_pages) {
            self.ftl.fetch(ahead, Purpose::Prefetch)?;
        }
        Ok(())
    }

    /// Writes pages for the host, in the given order, in write stream 0. If one of the pages is
    /// beyond the end of the drive, returns an error and writes no page.
    #[inline]
    pub fn write(&mut self, lpns: &[u32]) -> Result<(), FlashError> {
        self.write_class(lpns, 0)
    }

    /// Writes pages as [`write`](Self::write) does, in the write stream `class`. Errors: those of
    /// `write`, and a write stream that the drive does not have.
    pub fn write_class(&mut self, lpns: &[u32], class: u8) -> Result<(), FlashError> {
        if self.buffer.is_none() && self.prefetch.is_none() {
            self.ftl.store(lpns, class)?;
            self.host.host_writes += lpns.len() as u64;
            return Ok(());
        }
        if class >= self.classes {
            return Err(FlashError::UnknownClass {
                class,
                classes: self.classes,
            });
        }
        for lpn in lpns {
            check_page(*lpn, self.logical_pages)?;
        }
        self.host.host_writes += lpns.len() as u64;
        if let Some(prefetch) = &mut self.prefetch {
            lpns.iter().for_each(|lpn| prefetch.forget(*lpn));
        }
        if self.buffer.is_none() {
            return self.ftl.store(lpns, class);
        }
        lpns.iter()
            .try_for_each(|lpn| self.buffer_page(*lpn, class))
    }

    fn buffer_page(&mut self, lpn: u32, class: u8) -> Result<(), FlashError> {
        while self.buffer.as_ref().is_some_and(WriteBuffer::is_full)
            && !self.buffer.as_mut().is_some_and(|b| b.rewrite(lpn, class))
        {
            self.destage()?;
        }
        let Some(buffer) = &mut self.buffer else {
            return Ok(());
        };
        self.host.buffer_overwrites += u64::from(buffer.slot_of(lpn).is_some());
        if !buffer.rewrite(lpn, class) {
            let slot = buffer.push(lpn, class);
            if buffer.is_log() {
                self.host.programs_buffer += 1;
                self.record_buffer(Action::Program, slot, lpn);
            }
        }
        Ok(())
    }

    /// Makes space in the write buffer. A buffer in memory writes its oldest page to the
    /// translation layer, and a log writes all pages of its oldest block and erases the block.
    fn destage(&mut self) -> Result<(), FlashError> {
        if !self.buffer.as_ref().is_some_and(WriteBuffer::is_log) {
            self.destage_slot()?;
            return Ok(());
        }
        while let Some(slot) = self.destage_slot()? {
            if self.ends_block(slot) {
                // The pages of the block were durable in the log. They must be durable in the layer
                // below before the log erases the block.
                self.ftl.save_map();
                self.host.erases_buffer += 1;
                self.record_buffer(Action::Erase, slot, crate::NONE);
                return Ok(());
            }
        }
        self.ftl.save_map();
        Ok(())
    }

    /// Returns whether the slot is the last one of an erase block of the log.
    fn ends_block(&self, slot: u32) -> bool {
        let slots = self.buffer.as_ref().map_or(0, WriteBuffer::slots);
        (slot + 1).is_multiple_of(self.pages_per_block) || slot + 1 == slots
    }

    /// Writes the page in the oldest slot of the buffer to the translation layer and frees the
    /// slot. Returns the slot, or `None` if the buffer is empty.
    fn destage_slot(&mut self) -> Result<Option<u32>, FlashError> {
        let Some((slot, page)) = self.buffer.as_mut().and_then(WriteBuffer::pop) else {
            return Ok(None);
        };
        if let Some((lpn, class)) = page {
            self.read_buffer(slot, lpn);
            if let Some(prefetch) = &mut self.prefetch {
                prefetch.forget(lpn);
            }
            self.ftl.store(&[lpn], class)?;
        }
        Ok(Some(slot))
    }

    /// Counts the read of a page in the write buffer. A read costs nothing if the buffer is memory.
    fn read_buffer(&mut self, slot: u32, lpn: u32) {
        if self.buffer.as_ref().is_some_and(WriteBuffer::is_log) {
            self.host.reads_buffer += 1;
            self.record_buffer(Action::Read, slot, lpn);
        }
    }

    fn record_buffer(&mut self, action: Action, slot: u32, lpn: u32) {
        let die = slot % self.dies;
        self.ftl.recorder().push(|| Operation {
            action,
            purpose: Purpose::Buffer,
            page: slot,
            die,
            lpn,
        });
    }

    /// Trims a page, whose content the host no longer needs. Errors: a page beyond the end of the
    /// drive.
    pub fn trim(&mut self, lpn: u32) -> Result<(), FlashError> {
        check_page(lpn, self.logical_pages)?;
        self.host.host_trims += 1;
        if let Some(buffer) = &mut self.buffer {
            buffer.forget(lpn);
        }
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.forget(lpn);
        }
        self.ftl.trim(lpn)
    }

    /// Makes every earlier write durable. Writes out the write buffer if the buffer is in volatile
    /// memory, and saves the translation table if the table is in volatile memory. Errors: none in
    /// a valid drive.
    pub fn flush(&mut self) -> Result<(), FlashError> {
        self.host.flushes += 1;
        while self
            .buffer
            .as_ref()
            .is_some_and(|b| !b.is_log() && !b.is_empty())
        {
            self.destage()?;
        }
        self.ftl.save_map();
        Ok(())
    }

    /// Gives the drive idle time, in which it empties its write buffer and cleans blocks. Returns
    /// the time used in microseconds, as computed from the costs. The last step is completed even
    /// if it exceeds `budget_us`. Errors: none in a valid drive.
    pub fn idle(&mut self, budget_us: u64) -> Result<u64, FlashError> {
        let start_us = self.costs.time_us(&self.counters());
        let mut used_us = 0;
        while used_us < budget_us && self.work_in_background()? {
            used_us = self.costs.time_us(&self.counters()) - start_us;
        }
        self.background_us += used_us;
        Ok(used_us)
    }

    /// Returns whether there is work for [`work_in_background`](Self::work_in_background).
    pub fn wants_background_work(&self) -> bool {
        self.buffer.as_ref().is_some_and(|b| !b.is_empty()) || self.ftl.wants_cleaning()
    }

    /// Does one step of background work. Returns false if there is no background work.
    pub fn work_in_background(&mut self) -> Result<bool, FlashError> {
        if self.buffer.as_ref().is_some_and(|b| !b.is_empty()) {
            self.destage()?;
            return Ok(true);
        }
        Ok(self.ftl.clean_in_background())
    }

    /// Simulates a sudden loss of power between two commands, and the return of power.
    ///
    /// Pages in a write buffer in volatile memory are lost. If the translation table is in volatile
    /// memory, every change of the table since its last save is lost as well: a read then returns
    /// the version of the page that was durable at the last save. All content that was written
    /// before the last [`flush`](Self::flush) survives. A trim that was not flushed can be undone.
    /// A non-volatile table, a cached table and the tables of layers with log blocks lose nothing.
    /// A block that was partly programmed can take further pages.
    pub fn cut_power(&mut self) {
        self.host.power_cuts += 1;
        if let Some(buffer) = self.buffer.as_mut().filter(|b| !b.is_log()) {
            self.host.lost_pages += u64::from(buffer.live());
            while !buffer.is_empty() {
                buffer.pop();
            }
        }
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.clear();
        }
        self.ftl.cut_power();
    }

    /// Returns the counters of the drive, its buffer and its layer.
    pub fn counters(&self) -> Counters {
        self.host + self.ftl.counters()
    }

    /// Returns the distribution of wear over the blocks.
    pub fn wear(&self) -> Wear {
        self.ftl.wear()
    }

    /// Returns the sum of the times of the drive's operations in microseconds, without the
    /// operations of background work.
    pub fn device_time_us(&self) -> u64 {
        let all_us = self.costs.time_us(&self.counters());
        all_us.saturating_sub(self.background_us)
    }

    /// Returns the sum of the times of background work in microseconds.
    pub fn background_us(&self) -> u64 {
        self.background_us
    }

    /// Returns the time of each operation.
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// Returns the recorder for the operations of the drive.
    pub fn recorder(&mut self) -> &mut Recorder {
        self.ftl.recorder()
    }

    /// Returns the physical page with the newest version of a logical page. Returns `None` if the
    /// logical page has no version, or if its newest version is in the write buffer.
    pub fn locate(&self, lpn: u32) -> Option<u32> {
        let buffered = self.buffer.as_ref().and_then(|b| b.slot_of(lpn)).is_some();
        if buffered { None } else { self.ftl.locate(lpn) }
    }

    /// Returns the slot of the write buffer with the newest version of a logical page; `None` if it
    /// is not in the buffer.
    pub fn buffered(&self, lpn: u32) -> Option<u32> {
        self.buffer.as_ref().and_then(|b| b.slot_of(lpn))
    }

    /// Checks the complete state of the drive; see [`Ftl::verify`].
    pub fn verify(&self) -> Result<(), Inconsistent> {
        self.ftl.verify()?;
        let c = self.counters();
        require(c.programs_host <= c.host_writes, || {
            format!("{} host programs of {}", c.programs_host, c.host_writes)
        })
    }
}
