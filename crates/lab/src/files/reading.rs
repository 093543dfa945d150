//! Reading of files in the virtual file layer: from the page cache, from the device, and by
//! read-ahead.

use bimetal_policy::read_ahead::Window;

use super::disk::BLOCK_BYTES;
use super::layout::BIO_PAGES_MAX;
use super::pages::{FileId, PageState};
use super::{Files, OpenFile, Program};

/// Consecutive pages of a file whose blocks are contiguous on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub page: u32,
    pub block: u32,
    pub pages: u32,
}

/// Groups these pairs of a page and its block, in order, into the smallest number of runs. A run
/// ends if the next page or block is not adjacent, after `pages_max` pages, and before a page for
/// which `breaks_before` returns true.
pub(super) fn runs(
    pages: impl Iterator<Item = (u32, u32)>,
    pages_max: u32,
    breaks_before: impl Fn(u32) -> bool,
) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for (page, block) in pages {
        let goes_on = |run: &&mut Run| {
            run.page + run.pages == page
                && run.block + run.pages == block
                && run.pages < pages_max
                && !breaks_before(page)
        };
        match all.last_mut().filter(goes_on) {
            Some(run) => run.pages += 1,
            None => all.push(Run {
                page,
                block,
                pages: 1,
            }),
        }
    }
    all
}

impl Files {
    /// Reads a range of a file in one call. The range is truncated at the end of the file.
    pub async fn read(&self, open: &mut OpenFile, offset: u64, bytes: u64, program: &mut Program) {
        let end = (offset + bytes).min(self.size_bytes(open.file));
        self.spend(program, self.0.config.cpu.call_ns).await;
        if offset >= end {
            return;
        }
        let (first, last) = (offset / BLOCK_BYTES, (end - 1) / BLOCK_BYTES);
        for page in first..=last {
            self.read_page(open, page, last + 1 - page, program).await;
            open.ahead.has_read(page);
            self.spend(program, self.0.config.cpu.page_ns).await;
        }
    }

    /// Reads one page of a request. `requested` is the number of pages of the request that remain,
    /// including this page.
    async fn read_page(
        &self,
        open: &mut OpenFile,
        page: u64,
        requested: u64,
        program: &mut Program,
    ) {
        let (file, at) = (open.file, page as u32);
        loop {
            let state = self.0.cache.borrow().state(file, at);
            if state.is_none() {
                self.pay(program).await;
                let window = open.ahead.missed(page, requested);
                self.start_reading(file, window, Some(at), program).await;
                continue;
            }
            if self.0.cache.borrow_mut().touch(file, at) {
                let hole = |page, within| self.0.cache.borrow().hole(file, page, within);
                if let Some(window) = open.ahead.marked(page, requested, hole) {
                    self.pay(program).await;
                    self.start_reading(file, window, None, program).await;
                }
            }
            if state != Some(PageState::Reading) {
                return;
            }
            self.pay(program).await;
            self.until_read(file, at).await;
        }
    }

    /// Starts to read the pages of a read-ahead window that are not in memory. Waits for a free
    /// slot for the page `needed`; skips other pages if no slot is free.
    async fn start_reading(
        &self,
        file: FileId,
        window: Window,
        needed: Option<u32>,
        program: &mut Program,
    ) {
        let pages = self.size_bytes(file).div_ceil(BLOCK_BYTES);
        let end = (window.first_page + window.pages).min(pages) as u32;
        let mut reads = Vec::new();
        for page in window.first_page as u32..end {
            self.bring_map_of(file, page, program).await;
            let block = self.0.layout.borrow().block_of(file, page);
            let state = match block {
                Some(_) => PageState::Reading,
                // The page is a tail, whose content is in a leaf that is already in memory.
                None => PageState::Clean,
            };
            let is_in = match needed == Some(page) {
                true => self.take_in(file, page, state).await,
                false => self.take_in_at_once(file, page, state),
            };
            if let (true, Some(block)) = (is_in, block) {
                reads.push((page, block));
            }
        }
        if let Some(marked) = window.marked_page {
            self.0.cache.borrow_mut().mark(file, marked as u32);
        }
        let runs = {
            let layout = self.0.layout.borrow();
            runs(reads.into_iter(), BIO_PAGES_MAX, |page| {
                layout.breaks_before(page)
            })
        };
        for run in runs {
            let read = self.clone().read_run(file, run, program.task);
            self.0.rt.spawn_eager(read).detach();
        }
    }

    async fn bring_map_of(&self, file: FileId, page: u32, program: &mut Program) {
        let mut touches = Vec::new();
        self.0.layout.borrow().touch_map(file, page, &mut touches);
        for touch in touches {
            self.bring(touch, program).await;
        }
    }

    fn take_in_at_once(&self, file: FileId, page: u32, state: PageState) -> bool {
        let mut cache = self.0.cache.borrow_mut();
        cache.state(file, page).is_none() && cache.insert(file, page, state)
    }

    async fn read_run(self, file: FileId, run: Run, task: u32) {
        self.0.disk.read(run.block, run.pages, task).await;
        let mut cache = self.0.cache.borrow_mut();
        for page in run.page..run.page + run.pages {
            cache.has_been_read(file, page);
        }
        drop(cache);
        self.0.changed.notify();
    }

    /// Reads a page into memory and waits for it, so that a part of the page can be changed.
    pub(super) async fn bring_page(&self, file: FileId, page: u32, program: &mut Program) {
        while self.0.cache.borrow().state(file, page).is_none() {
            self.pay(program).await;
            let alone = Window {
                first_page: u64::from(page),
                pages: 1,
                marked_page: None,
            };
            self.start_reading(file, alone, Some(page), program).await;
        }
        self.until_read(file, page).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_pages_or_blocks_do_and_at_borders() {
        let run = |page, block, pages| Run { page, block, pages };
        let of = |pages: &[(u32, u32)], most| runs(pages.iter().copied(), most, |page| page == 12);
        assert_eq!(
            of(&[(0, 50), (1, 51), (2, 60)], 9),
            [run(0, 50, 2), run(2, 60, 1)]
        );
        assert_eq!(of(&[(0, 50), (2, 51)], 9), [run(0, 50, 1), run(2, 51, 1)]);
        assert_eq!(
            of(&[(11, 50), (12, 51), (13, 52)], 9),
            [run(11, 50, 1), run(12, 51, 2)]
        );
        assert_eq!(
            of(&[(0, 5), (1, 6), (2, 7)], 2),
            [run(0, 5, 2), run(2, 7, 1)]
        );
        assert_eq!(of(&[(0, 5), (1, 6)], 1), [run(0, 5, 1), run(1, 6, 1)]);
    }
}
