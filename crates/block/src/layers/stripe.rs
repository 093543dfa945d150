//! RAID-0: the bytes of N devices are interleaved in units, so that large requests use all devices
//! and small requests are spread over the devices. A stripe adds no redundancy: the loss of one
//! child loses the device.
//!
//! A contiguous range of the stripe is contiguous on every child. So a request of any length
//! becomes at most one request for each child, whose payload consists of the slices for that child.
//! All parts run concurrently. The request completes when all parts have ended, even if one has
//! failed, because a parent must not assume that the request is over while a part is still writing.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Payload;
use bimetal_rt::turn::{count_steps, give_way};
use serde::Deserialize;

use crate::device::{Device, IoFuture, Statistic, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::extents::ExtentList;
use crate::geometry::{Geometry, TRANSFER_BYTES_MAX};
use crate::request::{BLOCK_BYTES, Extent, IoResult, Op, Reply, Request};
use crate::units::Size;

/// The configuration of `type = "stripe"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StripeConfig {
    /// Names of the devices below, as in the configuration, in the order of the layout.
    pub devices: Vec<String>,
    /// Stripe unit: number of contiguous bytes on one device before the next device follows; 64 KiB
    /// by default.
    #[serde(default = "default_unit")]
    pub unit: Size,
}

/// Maximum number of stripe rows in one window of an extents request. A window is the part of the
/// range that is queried in one step. A row is one unit on each child.
const WINDOW_ROWS_MAX: u64 = 256;
/// Maximum number of windows that one extents request processes. A window is the part of the range
/// that is queried in one step.
const WINDOWS_MAX: usize = 16;

fn default_unit() -> Size {
    Size(64 << 10)
}

impl StripeConfig {
    /// Checks that a stripe can be built with these parameters.
    ///
    /// # Errors
    /// A message that names the wrong value.
    pub fn check(&self) -> Result<(), String> {
        let unit = self.unit.0;
        if self.devices.is_empty() {
            return Err("`devices` is empty, a stripe needs at least one device".to_owned());
        }
        if !unit.is_power_of_two() || !(BLOCK_BYTES..=u64::from(TRANSFER_BYTES_MAX)).contains(&unit)
        {
            return Err(format!(
                "unit {unit} is not a power of two from 4 KiB to 32 MiB"
            ));
        }
        Ok(())
    }
}

/// Address mapping of a stripe: unit `k` of the stripe is unit `k / N` of child `k % N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeLayout {
    children: u64,
    unit_bytes: u64,
}

/// A run of bytes of the stripe inside one unit, and so on one child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the child, from 0.
    pub child: usize,
    /// Offset of the run on the child.
    pub child_offset: u64,
    /// Range of the run on the stripe.
    pub range: Range<u64>,
}

impl StripeLayout {
    /// Creates a layout over `children` devices with units of `unit_bytes`. There must be at least
    /// one child, and the unit must be a power of two.
    ///
    /// # Panics
    /// When there is no child or the unit is no power of two.
    pub fn new(children: usize, unit_bytes: u64) -> StripeLayout {
        assert!(children > 0 && unit_bytes.is_power_of_two());
        StripeLayout {
            children: children as u64,
            unit_bytes,
        }
    }

    /// Returns the size of a stripe whose smallest child has `child_bytes` bytes; an incomplete
    /// unit at the end of a child is not used.
    pub fn size_bytes(&self, child_bytes: u64) -> u64 {
        self.children * (child_bytes - child_bytes % self.unit_bytes)
    }

    /// Splits a range into runs that do not cross a unit boundary, in order.
    pub fn pieces(self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let mut position = range.start;
        std::iter::from_fn(move || {
            if position >= range.end {
                return None;
            }
            let (unit, within) = (position / self.unit_bytes, position % self.unit_bytes);
            let end = range.end.min(position - within + self.unit_bytes);
            let piece = Piece {
                child: (unit % self.children) as usize,
                child_offset: unit / self.children * self.unit_bytes + within,
                range: position..end,
            };
            position = end;
            count_steps(1);
            Some(piece)
        })
    }

    /// Returns the range of a child that a range of the stripe covers. The child's range is
    /// contiguous, and can be empty.
    pub fn child_range(&self, child: usize, range: &Range<u64>) -> Range<u64> {
        self.child_bytes_before(child, range.start)..self.child_bytes_before(child, range.end)
    }

    /// Returns the number of bytes of a child that lie before a position of the stripe.
    fn child_bytes_before(&self, child: usize, position: u64) -> u64 {
        let row_bytes = self.unit_bytes * self.children;
        let in_row = position % row_bytes;
        let own = in_row.saturating_sub(child as u64 * self.unit_bytes);
        position / row_bytes * self.unit_bytes + own.min(self.unit_bytes)
    }
}

/// A stripe; see the module.
pub struct Stripe {
    children: Vec<Rc<dyn Device>>,
    layout: StripeLayout,
    geometry: Geometry,
    requests: Cell<u64>,
    split_requests: Cell<u64>,
}

impl Stripe {
    /// Creates a stripe over at least one child.
    ///
    /// # Errors
    /// When a child is smaller than one unit.
    pub fn new(children: Vec<Rc<dyn Device>>, unit_bytes: u64) -> Result<Stripe, OpenError> {
        let layout = StripeLayout::new(children.len(), unit_bytes);
        let stacked = Geometry::stacked(children.iter().map(|child| child.geometry()));
        let geometry = Geometry {
            size_bytes: layout.size_bytes(stacked.size_bytes),
            preferred_bytes: stacked.preferred_bytes.max(unit_bytes as u32),
            ..stacked
        };
        if geometry.size_bytes == 0 {
            return Err(OpenError::new(format!(
                "its smallest device has {} bytes, less than one unit of {unit_bytes}",
                stacked.size_bytes
            )));
        }
        Ok(Stripe {
            children,
            layout,
            geometry,
            requests: Cell::new(0),
            split_requests: Cell::new(0),
        })
    }

    /// Executes an extents request. Queries the children for one window of the range after another.
    /// Each window is twice as long as the previous window, up to a maximum, so that the children
    /// examine little more than the answer covers.
    async fn extents(&self, request: Request) -> IoResult {
        let mut extents = ExtentList::new(request.extents_max);
        let row_bytes = self.layout.unit_bytes * self.layout.children;
        let mut window_bytes = row_bytes * u64::from(request.extents_max).min(WINDOW_ROWS_MAX);
        for _ in 0..WINDOWS_MAX {
            let start = request.offset + extents.covered_bytes();
            if start >= request.end() || extents.is_full() {
                break;
            }
            give_way().await;
            let end = request.end().min(start.saturating_add(window_bytes));
            window_bytes = (2 * window_bytes).min(row_bytes * WINDOW_ROWS_MAX);
            let window = Request {
                extents_max: extents.asks_for(),
                ..request.part(start, end, start)
            };
            if !self.stitch_window(&window, &mut extents).await? {
                break;
            }
        }
        Ok(extents.into_reply())
    }

    /// Queries the children for `window`, a part of the range of an extents request, and adds their
    /// answers to `extents`. Returns false if the answers do not cover the whole window.
    async fn stitch_window(
        &self,
        window: &Request,
        extents: &mut ExtentList,
    ) -> Result<bool, IoError> {
        let replies = self.ask_children(window).await?;
        let end = extents.covered_bytes() + window.len;
        self.stitch_extents(window.offset..window.end(), replies, extents);
        Ok(extents.covered_bytes() == end)
    }

    /// Executes a request that concerns several children, or none (such as a read of 0 bytes).
    async fn run_split(&self, request: Request) -> IoResult {
        if request.op == Op::Extents {
            return self.extents(request).await;
        }
        let range = request.offset..request.end();
        let replies = self.ask_children(&request).await?;
        Ok(match request.op {
            Op::Read => Reply::Data(self.stitch_data(range, replies)),
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => Reply::Done,
            Op::Extents => unreachable!("it was asked about window by window"),
        })
    }

    /// Submits the parts of a request to the children that the request concerns, and waits until
    /// all parts have ended.
    async fn ask_children(&self, request: &Request) -> Result<Vec<Reply>, IoError> {
        let parts = self.parts(request);
        let started = parts.into_iter().enumerate().map(|(child, part)| {
            part.map_or_else(
                || IoFuture::ready(Ok(Reply::Done)),
                |part| self.children[child].submit(part),
            )
        });
        let results = futures_util::future::join_all(started).await;
        results.into_iter().collect()
    }

    /// Returns the part of the request for each child, or `None` for a child that the request does
    /// not concern.
    fn parts(&self, request: &Request) -> Vec<Option<Request>> {
        let range = request.offset..request.end();
        let mut payloads = vec![Payload::empty(); self.children.len()];
        if request.op == Op::Write {
            for piece in self.layout.pieces(range.clone()) {
                let from = (piece.range.start - request.offset) as usize;
                let to = (piece.range.end - request.offset) as usize;
                for slice in request.payload.slice(from..to).slices() {
                    payloads[piece.child].push(slice.clone());
                }
            }
        }
        payloads
            .into_iter()
            .enumerate()
            .map(|(child, payload)| {
                let part = self.layout.child_range(child, &range);
                let concerned = request.op == Op::Flush || !part.is_empty();
                concerned.then(|| Request {
                    offset: part.start,
                    len: part.end - part.start,
                    payload,
                    ..*request
                })
            })
            .collect()
    }

    fn stitch_data(&self, range: Range<u64>, replies: Vec<Reply>) -> Payload {
        let mut data = Payload::empty();
        let children: Vec<Payload> = replies
            .into_iter()
            .map(|reply| match reply {
                Reply::Data(payload) => payload,
                Reply::Done | Reply::Extents(_) => Payload::empty(),
            })
            .collect();
        for piece in self.layout.pieces(range.clone()) {
            let start = self.layout.child_range(piece.child, &range).start;
            let from = (piece.child_offset - start) as usize;
            let to = from + (piece.range.end - piece.range.start) as usize;
            for slice in children[piece.child].slice(from..to).slices() {
                data.push(slice.clone());
            }
        }
        data
    }

    /// Adds the children's extents of a range to `extents`, up to the first position that a child's
    /// answer does not cover.
    fn stitch_extents(&self, range: Range<u64>, replies: Vec<Reply>, extents: &mut ExtentList) {
        let mut runs: Vec<std::vec::IntoIter<Extent>> = Vec::with_capacity(replies.len());
        for reply in replies {
            runs.push(match reply {
                Reply::Extents(extents) => extents.into_iter(),
                Reply::Done | Reply::Data(_) => Vec::new().into_iter(),
            });
        }
        // Unused rest of the current run of each child.
        let mut rest = vec![Extent { len: 0, data: true }; runs.len()];
        for piece in self.layout.pieces(range) {
            let mut wanted = piece.range.end - piece.range.start;
            let rest = &mut rest[piece.child];
            while wanted > 0 {
                if rest.len == 0 {
                    let Some(next) = runs[piece.child].next() else {
                        return;
                    };
                    *rest = next;
                }
                let len = rest.len.min(wanted);
                extents.push(Extent { len, ..*rest });
                if extents.is_full() {
                    return;
                }
                rest.len -= len;
                wanted -= len;
            }
        }
    }
}

impl Device for Stripe {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, mut request: Request) -> IoFuture<'_> {
        if let Err(error) = self.geometry.check(&request) {
            return IoFuture::ready(Err(error));
        }
        self.requests.set(self.requests.get() + 1);
        if request.op != Op::Flush {
            // A request inside one unit, the common case, is forwarded without splitting.
            let mut pieces = self.layout.pieces(request.offset..request.end());
            if let (Some(only), None) = (pieces.next(), pieces.next()) {
                request.offset = only.child_offset;
                return self.children[only.child].submit(request);
            }
        }
        self.split_requests.set(self.split_requests.get() + 1);
        IoFuture::new(self.run_split(request))
    }

    fn interruptions(&self) -> Option<u64> {
        let known = self.children.iter().filter_map(|c| c.interruptions());
        known.reduce(|sum, more| sum + more)
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        out.statistic("", "requests", Statistic::Counter(self.requests.get()));
        let split = self.split_requests.get();
        out.statistic("", "split_requests", Statistic::Counter(split));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three children, units of 4 bytes:
    ///
    /// ```text
    ///   stripe  0123 4567 89ab | cdef ...
    ///   child      0    1    2 |    0
    ///   offset     0    0    0 |    4
    /// ```
    #[test]
    fn pieces_follow_the_picture() {
        let layout = StripeLayout::new(3, 4);
        let pieces: Vec<_> = layout
            .pieces(3..14)
            .map(|p| (p.child, p.child_offset, p.range))
            .collect();
        let expected = [(0, 3, 3..4), (1, 0, 4..8), (2, 0, 8..12), (0, 4, 12..14)];
        assert_eq!(pieces, expected);
        assert_eq!(layout.child_range(0, &(3..14)), 3..6);
        assert_eq!(layout.child_range(1, &(3..14)), 0..4);
        assert_eq!(layout.child_range(2, &(3..7)), 0..0);
        assert_eq!(layout.pieces(5..5).count(), 0);
        assert_eq!(layout.size_bytes(11), 24);
    }

    /// The pieces of every range follow each other without gaps and cover the whole range. On each
    /// child, the pieces fill exactly the range that `child_range` returns.
    #[test]
    fn every_range_is_contiguous_on_every_child() {
        for (children, unit) in [(1, 4), (2, 1), (3, 4), (5, 2)] {
            let layout = StripeLayout::new(children, unit);
            for start in 0..40 {
                for end in start..40 {
                    let mut position = start;
                    let mut next: Vec<u64> = (0..children)
                        .map(|child| layout.child_range(child, &(start..end)).start)
                        .collect();
                    for piece in layout.pieces(start..end) {
                        assert_eq!(piece.range.start, position);
                        assert_eq!(piece.child_offset, next[piece.child]);
                        next[piece.child] += piece.range.end - piece.range.start;
                        position = piece.range.end;
                    }
                    assert_eq!(position, end);
                    for (child, next) in next.into_iter().enumerate() {
                        assert_eq!(layout.child_range(child, &(start..end)).end, next);
                    }
                }
            }
        }
    }
}
