//! Reads: content that is in memory is returned immediately, and the rest is read in runs of
//! adjacent pages from the device below.

use std::ops::Range;
use std::rc::Rc;

use bimetal_policy::replacement::DeviceCost;
use bimetal_rt::turn::give_way;
use bimetal_rt::{Buf, Payload};

use super::Shared;
use super::state::Found;
use crate::BLOCK_BYTES;
use crate::device::IoFuture;
use crate::error::IoError;
use crate::extents::ExtentList;
use crate::request::{Extent, IoResult, Op, Origin, Reply, Request};

/// Minimum number of pages in the first window of an extents request. A window is a part of the
/// range; the cache looks up the pages of one window at a time.
const WINDOW_PAGES_MIN: u64 = 16;
/// Maximum number of pages in a window of an extents request. A window is a part of the range; the
/// cache looks up the pages of one window at a time.
const WINDOW_PAGES_MAX: u64 = 1024;
/// Maximum number of windows that one extents request processes. A window is a part of the range;
/// the answer ends after the last window, even if the range is longer.
const WINDOWS_MAX: usize = 64;

/// State of a page that a read request needs.
#[derive(Clone, Copy)]
enum Wanted {
    /// The page is in memory.
    Held,
    /// Another request is reading the page. The value is the number of the fill, which is the read
    /// of this page by that request.
    Awaited(u64),
    /// This read request has to read the page. The value is the number of the fill (a read of this
    /// page from the device).
    Missing(u64),
}

/// A run of adjacent pages that is being read from the device. If this value is dropped before the
/// read has succeeded, the cache treats the read as failed.
pub(super) struct Fill {
    pub(super) shared: Rc<Shared>,
    pub(super) first_page: u64,
    /// Fill numbers of the pages, in page order.
    pub(super) fills: Vec<u64>,
}

impl Fill {
    /// Returns the page after the run.
    pub(super) fn end_page(&self) -> u64 {
        self.first_page + self.fills.len() as u64
    }
}

/// Pages that a read request still waits for.
struct Rest {
    first: u64,
    wanted: Vec<Wanted>,
    fills: Vec<(u64, Vec<u64>)>,
    origin: Origin,
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.shared.end_fills(self.first_page, &self.fills, None);
    }
}

impl Shared {
    /// Reads a range. If all of its pages are in memory, the answer is ready immediately.
    pub(super) fn read(self: &Rc<Self>, request: &Request) -> IoFuture<'static> {
        let pages = request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES;
        let origin = request.origin;
        if self.is_choked() || !self.waits.unchoked.is_empty() {
            let shared = Rc::clone(self);
            return IoFuture::new(async move { shared.read_choked(pages, origin).await });
        }
        self.read_unchoked(pages, origin)
    }

    fn read_unchoked(self: &Rc<Self>, pages: Range<u64>, origin: Origin) -> IoFuture<'static> {
        let (mut data, mut wanted, mut state) =
            (Payload::empty(), Vec::new(), self.state.borrow_mut());
        for page in pages.clone() {
            let found = state.read(page);
            if wanted.is_empty()
                && let Found::Content(content) = found
            {
                data.push(content);
                continue;
            }
            wanted.push(match found {
                Found::Content(_) => Wanted::Held,
                Found::Filling(fill) => Wanted::Awaited(fill),
                Found::Missing(fill) => Wanted::Missing(fill),
            });
        }
        drop(state);
        self.wake_destaging();
        if wanted.is_empty() {
            return IoFuture::ready(Ok(Reply::Data(data)));
        }
        let first = pages.end - wanted.len() as u64;
        let rest = Rest {
            first,
            fills: self.fills_of(first, &wanted),
            wanted,
            origin,
        };
        let shared = Rc::clone(self);
        IoFuture::new(async move { shared.read_rest(data, rest).await })
    }

    /// Returns the runs of adjacent pages that this read has to read from the device. Each run is
    /// given by its first page, and by one fill number for each of its pages. A fill is the read of
    /// one page.
    fn fills_of(self: &Rc<Self>, first: u64, wanted: &[Wanted]) -> Vec<(u64, Vec<u64>)> {
        let mut runs: Vec<(u64, Vec<u64>)> = Vec::new();
        for (page, wanted) in (first..).zip(wanted) {
            let Wanted::Missing(fill) = wanted else {
                continue;
            };
            match runs.last_mut() {
                Some((start, fills)) if *start + fills.len() as u64 == page => fills.push(*fill),
                _ => runs.push((page, vec![*fill])),
            }
        }
        runs
    }

    async fn read_rest(self: &Rc<Self>, mut data: Payload, rest: Rest) -> IoResult {
        let Rest {
            first,
            wanted,
            fills,
            origin,
        } = rest;
        let reads = fills.into_iter().map(|(start, fills)| {
            let fill = Fill {
                shared: Rc::clone(self),
                first_page: start,
                fills,
            };
            self.fetch(fill, origin)
        });
        let fetched = futures_util::future::join_all(reads).await;
        let mut fetched_pages = Vec::new();
        for run in fetched {
            fetched_pages.extend(run?);
        }
        let mut fetched_pages = fetched_pages.into_iter();
        for (page, wanted) in (first..).zip(wanted) {
            let content = match wanted {
                Wanted::Missing(_) => fetched_pages.next().expect("each missing page was read"),
                Wanted::Held => self.content_of(page, origin).await?,
                Wanted::Awaited(fill) => {
                    let ended = || !self.state.borrow().is_filled_by(page, fill);
                    self.waits.filled.at(fill, ended).await;
                    self.content_of(page, origin).await?
                }
            };
            data.push(content);
        }
        Ok(Reply::Data(data))
    }

    /// Reads a run of adjacent pages from the device. A page that was read is stored in the cache
    /// only if the policy still holds it.
    pub(super) async fn fetch(&self, mut fill: Fill, origin: Origin) -> Result<Vec<Buf>, IoError> {
        let pages = fill.first_page..fill.end_page();
        let contents = self.read_below(&pages, origin).await?;
        let fills = std::mem::take(&mut fill.fills);
        self.end_fills(pages.start, &fills, Some(&contents));
        Ok(contents)
    }

    /// Ends the fills of a run of pages. A fill is the read of one page from the device. `contents`
    /// is `None` if the pages could not be read.
    fn end_fills(&self, first_page: u64, fills: &[u64], contents: Option<&[Buf]>) {
        let mut state = self.state.borrow_mut();
        for (index, (page, fill)) in (first_page..).zip(fills).enumerate() {
            let content = contents.map(|contents| contents[index].clone());
            state.filled(page, *fill, content);
        }
        drop(state);
        if !self.waits.filled.is_empty() {
            fills
                .iter()
                .for_each(|fill| self.waits.filled.wake_at(*fill));
        }
    }

    /// Reads pages from the device into the cache's own memory.
    async fn read_below(&self, pages: &Range<u64>, origin: Origin) -> Result<Vec<Buf>, IoError> {
        let count = pages.end - pages.start;
        let began = self.rt.now();
        let request = Request::read(pages.start * BLOCK_BYTES, count * BLOCK_BYTES);
        let data = self
            .below
            .submit(request.from_origin(origin))
            .await?
            .into_data();
        self.state.borrow_mut().cost(DeviceCost::Read {
            pages: count as u32,
            time_us: self.rt.now().ns_since(began) as f64 / 1e3,
        });
        Ok(self.framed(&data))
    }

    /// Returns the content of a page from memory, or from the device if the page is not in memory.
    /// Stores no page in the cache.
    async fn content_of(&self, page: u64, origin: Origin) -> Result<Buf, IoError> {
        let held = self.state.borrow().peek(page).cloned();
        match held {
            Some(content) => Ok(content),
            // If the page was evicted meanwhile, the device has the same content or a newer one.
            None => {
                let mut read = self.read_below(&(page..page + 1), origin).await?;
                Ok(read.remove(0))
            }
        }
    }

    /// Returns true while too many pages are being destaged, so that eviction is blocked.
    pub(super) fn is_choked(&self) -> bool {
        let state = self.state.borrow();
        state.leaving_pages() > self.leaving_pages_max
    }

    /// Waits, in order of arrival, until at most `leaving_pages_max` pages are being destaged.
    ///
    /// # Errors
    /// The error of a failed write, if a page waits to be written again while too many pages are
    /// being destaged.
    pub(super) async fn until_unchoked(&self) -> Result<(), IoError> {
        let over = || {
            let state = self.state.borrow();
            match state.leaving_pages() > self.leaving_pages_max {
                false => Some(Ok(())),
                true => state.has_failed().then_some(Err(state.error)),
            }
        };
        self.waits.unchoked.in_turn(over).await
    }

    /// Reads a range while too many pages are being destaged. Waits for the destager first. If this
    /// wait fails because pages cannot be written, the read stores no page in the cache: it takes
    /// pages that are in memory from there, and reads each other page from the device.
    async fn read_choked(self: &Rc<Self>, pages: Range<u64>, origin: Origin) -> IoResult {
        if self.until_unchoked().await.is_ok() {
            return self.read_unchoked(pages, origin).await;
        }
        let mut data = Payload::empty();
        for page in pages {
            data.push(self.content_of(page, origin).await?);
        }
        Ok(Reply::Data(data))
    }

    /// Reports which parts of a range hold data: the answer of the device, overlaid with unwritten
    /// pages. The cache has no list of unwritten pages in page order, so each page is looked up.
    /// The range is processed in windows, each twice as long as the previous one up to a maximum,
    /// so that the lookup examines little more than the answer covers.
    pub(super) async fn extents(&self, request: Request) -> IoResult {
        let mut extents = ExtentList::new(request.extents_max);
        let mut window_pages =
            u64::from(request.extents_max).clamp(WINDOW_PAGES_MIN, WINDOW_PAGES_MAX);
        for _ in 0..WINDOWS_MAX {
            let start = request.offset + extents.covered_bytes();
            if start >= request.end() || extents.is_full() {
                break;
            }
            give_way().await;
            let (end, unwritten) = self.unwritten_from(start..request.end(), window_pages);
            window_pages = (2 * window_pages).min(WINDOW_PAGES_MAX);
            // The device is queried after the lookup, so that a page that is destaged meanwhile is
            // in `unwritten` or in the device's answer, or in both.
            let extents_max = extents.asks_for();
            let window = Request {
                extents_max,
                ..request.part(start, end, start)
            };
            let found = self.below.submit(window).await?.into_extents();
            overlay(start, &found, &unwritten, &mut extents);
            if found.len() >= extents_max as usize {
                break;
            }
        }
        Ok(extents.into_reply())
    }

    /// Returns the end offset of the next window (the part of `range` to process next), and the
    /// unwritten pages in that window. The window begins at the start of `range` and has at most
    /// `pages` pages. If the cache has no unwritten page, the window is the whole range.
    fn unwritten_from(&self, range: Range<u64>, pages: u64) -> (u64, Vec<u64>) {
        let state = self.state.borrow();
        if state.unwritten_pages() == 0 {
            return (range.end, Vec::new());
        }
        let first = range.start / BLOCK_BYTES;
        let end = (first + pages).min(range.end / BLOCK_BYTES);
        (end * BLOCK_BYTES, state.unwritten_in(first..end))
    }

    /// Returns true for a request with an empty range, which the cache answers without the device.
    pub(super) fn is_empty(request: &Request) -> bool {
        request.op != Op::Flush && request.len == 0
    }
}

/// Adds to `extents` the runs that the device returned, overlaid with the unwritten pages `pages`,
/// which hold data. The first run begins at `start`.
fn overlay(start: u64, runs: &[Extent], pages: &[u64], extents: &mut ExtentList) {
    let (mut position, mut pages) = (start, pages.iter().peekable());
    let mut run_end = start;
    for run in runs {
        run_end += run.len;
        while let Some(page) = pages.next_if(|page| **page * BLOCK_BYTES < run_end) {
            let at = page * BLOCK_BYTES;
            let (len, data) = (at - position, run.data);
            extents.push(Extent { len, data });
            let (len, data) = (BLOCK_BYTES, true);
            extents.push(Extent { len, data });
            position = at + BLOCK_BYTES;
        }
        let (len, data) = (run_end.saturating_sub(position), run.data);
        extents.push(Extent { len, data });
        position = position.max(run_end);
    }
}
