//! Changes that one side has and another lacks: found by the sequence numbers of the records in the
//! logs, and by the regions whose log entries have been dropped.

use std::ops::Range;
use std::rc::Rc;

use super::{Inspected, store_of, superblock_of};
use crate::extent_map::{Cut, ExtentMap};
use crate::layers::mirror::store::Store;
use crate::range_set::RangeSet;

/// Size of the pieces in which content is copied to the log of another side.
const PIECE_BYTES: u64 = 1 << 20;

/// The newest record of a range, as its sequence number and the side whose log has it.
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

/// Divides a range into pieces, each of which one request can copy.
pub(super) fn pieces(
    (range, newest): (Range<u64>, Newest),
) -> impl Iterator<Item = (Range<u64>, Newest)> {
    let starts = range.clone().step_by(PIECE_BYTES as usize);
    starts.map(move |start| (start..range.end.min(start + PIECE_BYTES), newest))
}

/// Returns the side that is complete up to the highest sequence number.
pub(super) fn most_complete(inspected: &[Inspected], sides: &[usize]) -> usize {
    let most = sides
        .iter()
        .max_by_key(|&&index| store_of(inspected, index).complete());
    *most.expect("a plan has a source")
}

/// Ranges that a side lacks, each with its newest record and the side that has this record.
pub(super) type Lacked = Vec<(Range<u64>, Newest)>;

/// Returns what side `index` lacks of the content of the given sides: `ranges`, with the content of
/// the most complete side, and the changes in the logs of the given sides. The result is ordered by
/// sequence number, as every log is: a change that is destaged earlier must not be newer than a
/// later one.
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

/// Returns the regions in which a side may lack changes that other sides have dropped from their
/// logs. A side that is as complete as the most complete side lacks no such change.
pub(super) fn regions_lacked(inspected: &[Inspected], sides: &[usize], index: usize) -> RangeSet {
    let mut regions = RangeSet::new();
    let most = store_of(inspected, most_complete(inspected, sides)).complete();
    if store_of(inspected, index).complete() >= most {
        return regions;
    }
    // The side may lag since an earlier epoch than that of its superblock.
    let histories = sides
        .iter()
        .map(|&side| &superblock_of(inspected, side).history);
    let newest = histories.max_by_key(|history| history.current().number);
    let newest = newest.expect("a plan has a source");
    let since = newest.epoch_of(store_of(inspected, index).complete());
    let epoch = since.min(superblock_of(inspected, index).history.current().number);
    // If the log of another side has kept all changes that a member lacks, they are found in that
    // log. This does not hold for a side without the newest epoch, which may be an older copy of
    // the member for which the log was kept.
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

/// Returns the newest record of each range that is in the log of one of the stores.
pub(in super::super) fn newest_among(stores: &[(usize, Rc<Store>)]) -> ExtentMap<Newest> {
    let mut all: Vec<(Range<u64>, Newest)> = Vec::new();
    for (side, store) in stores {
        let changes = store.changes_from(0).into_iter();
        let side = *side;
        all.extend(changes.map(|(range, number)| (range, Newest { number, side })));
    }
    // The last record inserted for a range counts. Of records with equal sequence numbers any may
    // count, since their content is the same.
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

/// Returns those of the newest records that a side lacks: the records with sequence numbers from
/// `complete_below` on that are not in the side's own log.
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
