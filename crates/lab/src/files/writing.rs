//! Writing of files: into the page cache, and from the page cache to the device by writers, the
//! flusher, the timer and the journal.

use std::time::Duration;

use bimetal_policy::write_back::{Step, Throttle, WriteMode};
use bimetal_rt::Instant;

use super::disk::BLOCK_BYTES;
use super::journal::Transaction;
use super::layout::FileSystemKind;
use super::pages::{FileId, METADATA, PageState};
use super::reading::{Run, runs};
use super::{FLUSHER_TASK, Files, JOURNAL_TASK, NoSpace, Program};

/// Maximum pause of a flusher while the device is congested.
const CONGESTION_WAIT: Duration = Duration::from_millis(100);

impl Files {
    /// Writes a range of a file in one call. A write past the end grows the file, and must not
    /// leave a hole.
    ///
    /// # Errors
    /// If the device is full.
    pub async fn write(
        &self,
        file: FileId,
        offset: u64,
        bytes: u64,
        program: &mut Program,
    ) -> Result<(), NoSpace> {
        self.spend(program, self.0.config.cpu.call_ns).await;
        if bytes == 0 {
            return Ok(());
        }
        let old_bytes = self.size_bytes(file);
        let end = offset + bytes;
        self.until_journal_has_room().await;
        let mut touches = Vec::new();
        self.0
            .layout
            .borrow_mut()
            .grow(file, end, program.task, &mut touches)?;
        self.touch_all(touches, program).await;
        if let (Some(journal), true) = (&self.0.journal, end > old_bytes) {
            journal.borrow_mut().order(file);
        }
        for page in (offset / BLOCK_BYTES) as u32..=((end - 1) / BLOCK_BYTES) as u32 {
            let from = u64::from(page) * BLOCK_BYTES;
            let is_whole = offset <= from && end >= from + BLOCK_BYTES;
            let has_old = from < old_bytes && !(offset <= from && end >= old_bytes);
            self.change_page(file, page, has_old && !is_whole, program)
                .await;
            self.spend(program, self.0.config.cpu.page_ns).await;
        }
        if self.0.config.write_mode == WriteMode::Through {
            self.sync_file(file, program).await;
        }
        Ok(())
    }

    /// Changes a page. If `has_old` is true and the page is not in memory, first reads the old
    /// content of the page.
    async fn change_page(&self, file: FileId, page: u32, has_old: bool, program: &mut Program) {
        loop {
            let state = self.0.cache.borrow().state(file, page);
            match state {
                None if has_old => self.bring_page(file, page, program).await,
                None => {
                    self.take_in(file, page, PageState::Clean).await;
                }
                Some(PageState::Reading) => self.until_read(file, page).await,
                Some(_) => break,
            }
        }
        if self.0.layout.borrow().block_of(file, page).is_none() {
            // The page is a tail: its bytes are in a leaf of the metadata tree, and that leaf has
            // already been marked as changed.
            return;
        }
        let is_due = {
            let mut cache = self.0.cache.borrow_mut();
            let is_new = cache.change(file, page, self.0.rt.now().as_ns(), false);
            let counts = cache.counts();
            let mut write_back = self.0.write_back.borrow_mut();
            is_new && write_back.dirtied(program.task, 1, &counts)
        };
        if is_due {
            self.throttle(program).await;
        }
    }

    /// Throttles a program while too many pages are dirty: the program must write dirty pages
    /// itself, or wait.
    async fn throttle(&self, program: &mut Program) {
        let mut throttle = Throttle::default();
        loop {
            let counts = self.0.cache.borrow().counts();
            let step = {
                let mut write_back = self.0.write_back.borrow_mut();
                write_back.next_step(program.task, &counts, &mut throttle)
            };
            match step {
                Step::Go { wake_flusher } => {
                    if wake_flusher {
                        self.wake_flusher();
                    }
                    return;
                }
                Step::Write { pages } => {
                    self.pay(program).await;
                    throttle.written_pages += self.write_oldest(pages, program.task).await;
                }
                Step::Wait { ns } => {
                    self.pay(program).await;
                    self.until_less_is_under_way(Duration::from_nanos(ns)).await;
                }
            }
        }
    }

    /// Waits until the number of pages being written decreases, but no longer than `most`.
    async fn until_less_is_under_way(&self, most: Duration) {
        let before = self.0.cache.borrow().counts().under_way;
        let less = || self.0.cache.borrow().counts().under_way < before;
        // This wait ends by a change or by the timeout. In both cases, the caller checks the counts
        // again.
        let _ = self.0.rt.timeout(most, self.0.changed.until(less)).await;
    }

    /// Starts to write up to `pages` dirty pages. Starts with the file that has had dirty pages for
    /// the longest time. Returns the number of pages.
    async fn write_oldest(&self, pages: u64, task: u32) -> u64 {
        let mut left = pages;
        while left > 0 {
            let oldest = self.0.cache.borrow().oldest_dirty().next();
            let Some((_, file)) = oldest else { break };
            let taken = self.0.cache.borrow_mut().take_dirty(file, left);
            left -= taken.len() as u64;
            self.write_pages(file, &taken, task).await;
        }
        pages - left
    }

    /// Sends pages of a file to the device. The pages must be marked as being written.
    async fn write_pages(&self, file: FileId, pages: &[u32], task: u32) {
        let runs = {
            let layout = self.0.layout.borrow();
            // Find the blocks before the first wait, because the file can be removed during a wait.
            let at = |page: &u32| match file {
                METADATA => (*page, *page),
                _ => {
                    let block = layout.block_of(file, *page);
                    (*page, block.expect("a dirty page has a block"))
                }
            };
            let most = match file {
                METADATA => 1,
                _ => layout.kind().write_bio_pages(),
            };
            runs(sorted(pages).iter().map(at), most, |_| false)
        };
        for run in runs {
            self.start_write(file, run, task).await;
        }
    }

    async fn start_write(&self, file: FileId, run: Run, task: u32) {
        let place = self.0.disk.place_for_write().await;
        let files = self.clone();
        let write = async move {
            files.0.disk.write(run.block, run.pages, task).await;
            drop(place);
            let now_ns = files.0.rt.now().as_ns();
            let mut cache = files.0.cache.borrow_mut();
            for page in run.page..run.page + run.pages {
                cache.has_been_written(file, page, now_ns);
            }
            drop(cache);
            files.0.changed.notify();
        };
        self.0.rt.spawn_eager(write).detach();
    }

    /// Task of the flusher: whenever it is woken, writes dirty pages until few pages are dirty.
    pub(super) async fn flush_when_woken(self) {
        loop {
            let wanted = &self.0.flusher_wanted;
            self.0.flusher.until(|| wanted.replace(false)).await;
            loop {
                let counts = self.0.cache.borrow().counts();
                let Some(pages) = self.0.write_back.borrow().background_pages(&counts) else {
                    break;
                };
                if self.0.disk.is_congested() {
                    self.until_less_is_under_way(CONGESTION_WAIT).await;
                }
                self.write_oldest(pages, FLUSHER_TASK).await;
            }
        }
    }

    /// Task of the flusher's timer: periodically writes pages that have been dirty for long.
    pub(super) async fn flush_by_timer(self) {
        let mut next_ns = self.0.write_back.borrow().next_timer_ns(0, 0);
        loop {
            self.0.rt.sleep_until(Instant::from_ns(next_ns)).await;
            let rung_at_ns = self.0.rt.now().as_ns();
            let (before_ns, pass) = {
                let write_back = self.0.write_back.borrow();
                (
                    write_back.expired_before_ns(rung_at_ns),
                    write_back.pass_pages(),
                )
            };
            if let Some(before_ns) = before_ns {
                self.write_older_than(before_ns, pass).await;
            }
            let now_ns = self.0.rt.now().as_ns();
            next_ns = self.0.write_back.borrow().next_timer_ns(rung_at_ns, now_ns);
        }
    }

    async fn write_older_than(&self, before_ns: u64, pass_pages: u64) {
        loop {
            let oldest = self.0.cache.borrow().oldest_dirty().next();
            let Some((_, file)) = oldest.filter(|(since_ns, _)| *since_ns <= before_ns) else {
                return;
            };
            let taken = self.0.cache.borrow_mut().take_dirty(file, pass_pages);
            self.write_pages(file, &taken, FLUSHER_TASK).await;
            if self.0.disk.is_congested() {
                self.until_less_is_under_way(CONGESTION_WAIT).await;
            }
        }
    }

    /// Waits until the open transaction of the journal accepts more blocks.
    pub(super) async fn until_journal_has_room(&self) {
        let Some(journal) = &self.0.journal else {
            return;
        };
        if journal.borrow().is_full() {
            self.want_commit();
            let has_room = || !journal.borrow().is_full();
            self.0.changed.until(has_room).await;
        }
    }

    /// Task of the journal: commits every 5 seconds (for ReiserFS every 30 seconds), and on
    /// request.
    pub(super) async fn commit_by_timer(self) {
        let interval = match self.0.config.kind {
            FileSystemKind::Reiserfs => Duration::from_secs(30),
            _ => Duration::from_secs(5),
        };
        loop {
            let wanted = &self.0.commit_wanted;
            let asked = self.0.committer.until(|| wanted.replace(false));
            // Commit in both cases: if a commit was requested, and at the end of the interval.
            let _ = self.0.rt.timeout(interval, asked).await;
            self.commit().await;
        }
    }

    async fn commit(&self) {
        let Some(journal) = &self.0.journal else {
            return;
        };
        let Some(transaction) = journal.borrow_mut().begin_commit() else {
            return;
        };
        self.0.changed.notify();
        for file in &transaction.files {
            self.write_all_of(*file, JOURNAL_TASK).await;
        }
        for file in &transaction.files {
            self.until_written(*file).await;
        }
        let count = transaction.blocks.len();
        if journal.borrow().needs_checkpoint(count) {
            self.write_all_of(METADATA, JOURNAL_TASK).await;
            self.until_written(METADATA).await;
            journal.borrow_mut().has_been_checkpointed();
        }
        let places = journal.borrow_mut().places(count);
        self.write_journal(&places).await;
        self.release(&transaction);
        journal.borrow_mut().end_commit();
        self.0.changed.notify();
    }

    /// Writes a transaction to these blocks of the ring. The last block, the commit block, is
    /// written after all other writes have completed.
    async fn write_journal(&self, places: &[u32]) {
        let Some((last, others)) = places.split_last() else {
            return;
        };
        let group = bimetal_rt::sync::TaskGroup::new(&self.0.rt);
        for block in others {
            let (files, block) = (self.clone(), *block);
            group.spawn(async move { files.0.disk.write(block, 1, JOURNAL_TASK).await });
        }
        group.join().await;
        if self.0.config.barriers {
            self.0.disk.flush(JOURNAL_TASK).await;
        }
        self.0.disk.write(*last, 1, JOURNAL_TASK).await;
        if self.0.config.barriers {
            self.0.disk.flush(JOURNAL_TASK).await;
        }
    }

    /// Allows the blocks of a committed transaction to be written to their home locations, except
    /// blocks that the open transaction has changed again.
    fn release(&self, transaction: &Transaction) {
        let now_ns = self.0.rt.now().as_ns();
        let journal = self.0.journal.as_ref().map(|journal| journal.borrow());
        let mut cache = self.0.cache.borrow_mut();
        for block in &transaction.blocks {
            if !journal.as_ref().is_some_and(|journal| journal.has(*block)) {
                cache.release(METADATA, *block, now_ns);
            }
        }
    }

    async fn write_all_of(&self, file: FileId, task: u32) {
        let taken = self.0.cache.borrow_mut().take_dirty(file, u64::MAX);
        self.write_pages(file, &taken, task).await;
    }

    async fn until_written(&self, file: FileId) {
        let is_written = || !self.0.cache.borrow().is_under_way(file);
        self.0.changed.until(is_written).await;
    }

    /// Waits until the data of a file, and the metadata needed to find the data, are on the device
    /// (`fsync`).
    pub async fn sync_file(&self, file: FileId, program: &mut Program) {
        self.pay(program).await;
        self.write_all_of(file, program.task).await;
        self.until_written(file).await;
        self.sync_metadata(file, program).await;
    }

    /// Waits until the changed metadata of a file is on the device or in the journal.
    pub(super) async fn sync_metadata(&self, file: FileId, program: &mut Program) {
        if self.0.journal.is_some() {
            return self.sync_changed_metadata(program).await;
        }
        let mut touches = Vec::new();
        self.0.layout.borrow().touch_home(file, &mut touches);
        for touch in touches {
            let range = touch.block..touch.block + 1;
            let taken = self.0.cache.borrow_mut().take_dirty_in(METADATA, range);
            self.write_pages(METADATA, &taken, program.task).await;
            let is_written = || {
                let state = self.0.cache.borrow().state(METADATA, touch.block);
                !matches!(state, Some(PageState::Writing { again: false }))
            };
            self.0.changed.until(is_written).await;
        }
        if self.0.config.barriers {
            self.0.disk.flush(program.task).await;
        }
    }

    /// Waits until all changed metadata is on the device or in the journal.
    pub(super) async fn sync_changed_metadata(&self, program: &mut Program) {
        self.pay(program).await;
        let Some(journal) = &self.0.journal else {
            self.write_all_of(METADATA, program.task).await;
            return self.until_written(METADATA).await;
        };
        let awaited = journal.borrow().awaited_commit();
        self.want_commit();
        let is_done = || journal.borrow().commits() >= awaited;
        self.0.changed.until(is_done).await;
    }

    /// Waits until all dirty pages are on the device and no request is in flight (`sync`).
    pub async fn sync(&self, program: &mut Program) {
        self.pay(program).await;
        loop {
            self.sync_changed_metadata(program).await;
            self.write_oldest(u64::MAX, FLUSHER_TASK).await;
            let is_quiet = || self.0.cache.borrow().counts().under_way == 0;
            self.0.changed.until(is_quiet).await;
            let is_clean = self.0.cache.borrow().counts().dirty == 0;
            let journal = self.0.journal.as_ref().map(|journal| journal.borrow());
            if is_clean
                && journal.is_none_or(|journal| journal.awaited_commit() == journal.commits())
            {
                break;
            }
        }
        if self.0.config.barriers {
            self.0.disk.flush(program.task).await;
        }
        self.0.disk.until_idle().await;
    }
}

fn sorted(pages: &[u32]) -> Vec<u32> {
    let mut pages = pages.to_vec();
    pages.sort_unstable();
    pages
}
