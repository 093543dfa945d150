//! Search for changes that one side has and another side lacks. Changes in the logs are found by
//! their sequence numbers. Changes whose log entries have been dropped are found by regions, in the
//! dirty-region bitmaps.

use std::ops::Range;
use std::rc::Rc;

use super::{Inspected, store_of, superblock_of};
use crate::extent_map::{Cut, ExtentMap};
use crate::layers::mirror::store::{Space, Store};
use crate::range_set::RangeSet;

/// Maximum number of bytes that one request copies to the log of another side.
const PIECE_BYTES: u64 = 1 << 20;

/// The newest known change of a range: the sequence number of the change, and the index of a side
/// that has its content.
#[derive(Clone, Copy)]
pub(in super::super) struct Newest {
    pub(in super::super) number: u64,
    pub(in super::super) side: usize,
}

impl Cut for Newest {
    fn cut(&self, _range: Range<u64>) -> Newest {
        *self
    }
}

/// Divides a part of a side into pieces, each of which one request can copy. A part of zeroes stays
/// whole.
pub(super) fn pieces(
    (range, space): (Range<u64>, Option<Space>),
) -> impl Iterator<Item = (Range<u64>, Option<Space>)> {
    let piece_bytes = match space {
        Some(_) => range.end - range.start,
        None => PIECE_BYTES,
    };
    let starts = range.clone().step_by(piece_bytes.max(1) as usize);
    starts.map(move |start| (start..range.end.min(start + piece_bytes), space))
}

/// Returns the side with the highest number below which it has every change. `sides` lists the
/// candidates.
pub(super) fn most_complete(inspected: &[Inspected], sides: &[usize]) -> usize {
    let most = sides
        .iter()
        .max_by_key(|&&index| store_of(inspected, index).complete());
    *most.expect("a plan has a source")
}

/// Ranges that a side lacks. Each range comes with the newest known change of the range.
pub(super) type Lacked = Vec<(Range<u64>, Newest)>;

/// Returns the ranges in which side `index` lacks changes. The changes are looked up in the logs of
/// `sides`. For `ranges`, log entries might have been dropped. So the content of `ranges` is taken
/// from the most complete side, except where a log has a later change. The result is sorted by the
/// sequence number of the changes, because a log must destage an older change before a newer one.
pub(super) fn lacked(
    inspected: &[Inspected],
    sides: &[usize],
    index: usize,
    ranges: &RangeSet,
) -> Lacked {
    let (mut newest, truth) = (newest_of(inspected, sides), most_complete(inspected, sides));
    let complete = store_of(inspected, truth).complete();
    for region in ranges.iter() {
        let later = newest.overlapping(&region).map(|(part, n)| (part, *n));
        let later = later.filter(|(_, n)| n.number >= complete);
        let later: Vec<(Range<u64>, Newest)> = later.collect();
        let (number, side) = (complete - 1, truth);
        newest.insert(region, Newest { number, side });
        for (part, logged) in later {
            newest.insert(part, logged);
        }
    }
    let store = store_of(inspected, index);
    let mut lacks = lacking(store, &newest, store.complete());
    lacks.sort_by_key(|(_, newest)| newest.number);
    lacks
}

/// Returns the regions in which a side might lack changes that other sides have dropped from their
/// logs. If no side is more complete than this side, there are no such regions.
pub(super) fn regions_lacked(inspected: &[Inspected], sides: &[usize], index: usize) -> RangeSet {
    let mut regions = RangeSet::new();
    let most = store_of(inspected, most_complete(inspected, sides)).complete();
    if store_of(inspected, index).complete() >= most {
        return regions;
    }
    // The first change that the side lacks can be from an earlier epoch than the epoch in the
    // superblock of the side. The search starts at the earlier of these two epochs.
    let histories = sides
        .iter()
        .map(|&side| &superblock_of(inspected, side).history);
    let newest = histories.max_by_key(|history| history.current().number);
    let newest = newest.expect("a plan has a source");
    let since = newest.epoch_of(store_of(inspected, index).complete());
    let epoch = since.min(superblock_of(inspected, index).history.current().number);
    // The dirty-region bitmap of another side is not searched if the log of that other side still
    // has all changes that this side lacks. This is safe only if this side has the newest epoch. A
    // side without the newest epoch might be an older copy of the member for which the log kept
    // changes, and might lack more than these changes.
    let own = store_of(inspected, index).complete();
    let is_acknowledged =
        superblock_of(inspected, index).history.current().id == newest.current().id;
    let is_kept = |other: usize| {
        let kept_from = store_of(inspected, other).found().kept_from;
        is_acknowledged && kept_from != 0 && own >= kept_from
    };
    for &other in sides
        .iter()
        .filter(|&&other| other != index && !is_kept(other))
    {
        regions.extend(store_of(inspected, other).out_of_sync_since(epoch));
    }
    regions
}

/// Returns the newest change of each range, according to the logs of the stores.
pub(in super::super) fn newest_among(stores: &[(usize, Rc<Store>)]) -> ExtentMap<Newest> {
    let mut all: Vec<(Range<u64>, Newest)> = Vec::new();
    for (side, store) in stores {
        let changes = store.changes_from(0).into_iter();
        let side = *side;
        all.extend(changes.map(|(range, number)| (range, Newest { number, side })));
    }
    // A later insertion replaces an earlier one, so the record with the highest sequence number
    // remains. Records with equal sequence numbers have the same content, so any of them can
    // remain.
    all.sort_by_key(|(_, newest)| newest.number);
    let mut map = ExtentMap::new();
    for (range, newest) in all {
        map.insert(range, newest);
    }
    map
}

pub(super) fn newest_of(inspected: &[Inspected], sources: &[usize]) -> ExtentMap<Newest> {
    let stores = sources
        .iter()
        .map(|&i| (i, Rc::clone(store_of(inspected, i))));
    newest_among(&stores.collect::<Vec<_>>())
}

/// Returns the parts of the ranges `newest` that a side lacks. Only changes with sequence numbers
/// from `complete_below` on are examined. The side lacks a part of the range of a change if the
/// side's own log has no record of the part with the same or a higher sequence number.
pub(in super::super) fn lacking(
    store: &Store,
    newest: &ExtentMap<Newest>,
    complete_below: u64,
) -> Vec<(Range<u64>, Newest)> {
    let mut lacking = Vec::new();
    for (range, newest) in newest.iter() {
        if newest.number < complete_below {
            continue;
        }
        let mut position = range.start;
        for (part, number) in store.numbers_in(&range) {
            if number >= newest.number {
                if position < part.start {
                    lacking.push((position..part.start, *newest));
                }
                position = part.end;
            }
        }
        if position < range.end {
            lacking.push((position..range.end, *newest));
        }
    }
    lacking
}
