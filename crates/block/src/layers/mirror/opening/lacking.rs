//! What sides lack of each other: by the numbers of the records in their logs, and by the regions
//! of which log entries have been let go.

use std::ops::Range;
use std::rc::Rc;

use super::{Looked, store_of, superblock_of};
use crate::extent_map::{Cut, ExtentMap};
use crate::layers::mirror::store::Store;
use crate::range_set::RangeSet;

/// Changes are copied from one log to another in pieces of this size.
const PIECE_BYTES: u64 = 1 << 20;

/// The newest record of a range, and the side whose log has it.
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

/// Cuts a range into pieces that can be copied at once.
pub(super) fn pieces(
    (range, newest): (Range<u64>, Newest),
) -> impl Iterator<Item = (Range<u64>, Newest)> {
    let starts = range.clone().step_by(PIECE_BYTES as usize);
    starts.map(move |start| (start..range.end.min(start + PIECE_BYTES), newest))
}

/// The side that is complete up to the highest number.
pub(super) fn most_complete(looked: &[Looked], sides: &[usize]) -> usize {
    let most = sides
        .iter()
        .max_by_key(|&&index| store_of(looked, index).complete());
    *most.expect("a plan has a source")
}

/// What a side lacks, and who has it.
pub(super) type Lacked = Vec<(Range<u64>, Newest)>;

/// What a side lacks of what these have: these ranges, from the most complete one; and what is in
/// their logs. In the order of the numbers, as in any log: what
/// goes home first must not be newer than what follows.
pub(super) fn lacked(
    looked: &[Looked],
    sides: &[usize],
    index: usize,
    ranges: &RangeSet,
) -> Lacked {
    let (mut newest, truth) = (newest_of(looked, sides), most_complete(looked, sides));
    let complete = store_of(looked, truth).complete();
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
    let store = store_of(looked, index);
    let mut lacks = lacking(store, &newest, store.complete());
    lacks.sort_by_key(|(_, newest)| newest.number);
    lacks
}

/// The regions of which a side may lack the last change, because others have let go of it. One that
/// is as complete as any lacks nothing.
pub(super) fn regions_lacked(looked: &[Looked], sides: &[usize], index: usize) -> RangeSet {
    let mut regions = RangeSet::new();
    let most = store_of(looked, most_complete(looked, sides)).complete();
    if store_of(looked, index).complete() >= most {
        return regions;
    }
    // It may be late since an earlier epoch than that of its superblock.
    let histories = sides
        .iter()
        .map(|&side| &superblock_of(looked, side).history);
    let newest = histories.max_by_key(|history| history.current().number);
    let newest = newest.expect("a plan has a source");
    let since = newest.epoch_of(store_of(looked, index).complete());
    let epoch = since.min(superblock_of(looked, index).history.current().number);
    // What a member lacks of a log that has kept it all is there. One that has not been told of the
    // newest epoch may be an older copy of the member that the log was kept for.
    let own = store_of(looked, index).complete();
    let is_told = superblock_of(looked, index).history.current().id == newest.current().id;
    let is_kept = |other: usize| {
        let kept_from = store_of(looked, other).found().kept_from;
        is_told && kept_from != 0 && own >= kept_from
    };
    for &other in sides
        .iter()
        .filter(|&&other| other != index && !is_kept(other))
    {
        regions.extend(store_of(looked, other).stale_since(epoch));
    }
    regions
}

/// For each range that is in the log of one of these stores, the newest record.
pub(in super::super) fn newest_among(stores: &[(usize, Rc<Store>)]) -> ExtentMap<Newest> {
    let mut all: Vec<(Range<u64>, Newest)> = Vec::new();
    for (side, store) in stores {
        let changes = store.changes_from(0).into_iter();
        let side = *side;
        all.extend(changes.map(|(range, number)| (range, Newest { number, side })));
    }
    // The last one inserted counts. Of equal ones any does: the content is the same.
    all.sort_by_key(|(_, newest)| newest.number);
    let mut map = ExtentMap::new();
    for (range, newest) in all {
        map.insert(range, newest);
    }
    map
}

pub(super) fn newest_of(looked: &[Looked], sources: &[usize]) -> ExtentMap<Newest> {
    let stores = sources.iter().map(|&i| (i, Rc::clone(store_of(looked, i))));
    newest_among(&stores.collect::<Vec<_>>())
}

/// What a side lacks of the newest records: those from the number on up to which it is complete, as
/// far as they are not in its own log.
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
