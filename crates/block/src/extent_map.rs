//! A map from byte ranges to values, in which a newer range replaces the overlapped parts of older
//! ranges. Delay queues and overlays are built on it. [`RangeSet`](crate::range_set::RangeSet) is a
//! set of ranges without values.

use std::collections::BTreeMap;
use std::ops::Range;

use bimetal_rt::turn::count_steps;

/// A value that belongs to a byte range, and that can be cut when the range is cut.
pub trait Cut: Sized {
    /// Returns the value for a part of the value's range. `range` is that part, in bytes from the
    /// start of the value's range.
    fn cut(&self, range: Range<u64>) -> Self;
}

#[derive(Clone, Debug)]
struct Entry<V> {
    end: u64,
    value: V,
}

/// A list of ranges that do not overlap, in order, each with a value.
#[derive(Clone, Debug)]
pub struct ExtentMap<V> {
    entries: BTreeMap<u64, Entry<V>>,
    bytes: u64,
}

impl<V> Default for ExtentMap<V> {
    fn default() -> Self {
        ExtentMap {
            entries: BTreeMap::new(),
            bytes: 0,
        }
    }
}

impl<V: Cut> ExtentMap<V> {
    /// Creates an empty map.
    pub fn new() -> ExtentMap<V> {
        ExtentMap::default()
    }

    /// Returns the number of covered bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if no byte is covered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Stores a value for a range, and removes the old content of that range. An empty range
    /// changes nothing.
    pub fn insert(&mut self, range: Range<u64>, value: V) {
        if range.is_empty() {
            return;
        }
        self.remove(range.clone());
        count_steps(1);
        self.bytes += range.end - range.start;
        self.entries.insert(
            range.start,
            Entry {
                end: range.end,
                value,
            },
        );
    }

    /// Removes and returns all entries inside a range, in order. An entry that extends beyond an
    /// end of the range is cut at that end, and its outer part is kept.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<(Range<u64>, V)> {
        let mut removed = Vec::new();
        if range.is_empty() {
            return removed;
        }
        let starts: Vec<u64> = self.overlapping(&range).map(|(r, _)| r.start).collect();
        for start in starts {
            count_steps(1);
            let entry = self
                .entries
                .remove(&start)
                .expect("an overlapping entry is in the map");
            self.bytes -= entry.end - start;
            let (from, to) = (start.max(range.start), entry.end.min(range.end));
            self.keep(start..from, &entry.value, 0);
            self.keep(to..entry.end, &entry.value, to - start);
            let inside = if from == start && to == entry.end {
                entry.value
            } else {
                entry.value.cut(from - start..to - start)
            };
            removed.push((from..to, inside));
        }
        removed
    }

    /// Inserts again the part of a removed entry that lies outside the removed range.
    fn keep(&mut self, range: Range<u64>, value: &V, offset: u64) {
        if !range.is_empty() {
            let len = range.end - range.start;
            self.bytes += len;
            let value = value.cut(offset..offset + len);
            self.entries.insert(
                range.start,
                Entry {
                    end: range.end,
                    value,
                },
            );
        }
    }

    /// Returns the entries that overlap `range`, in order. The entries are not clipped to `range`.
    pub fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> {
        let (first, end) = if range.is_empty() {
            (range.end, range.end)
        } else {
            let before = self.entries.range(..range.start).next_back();
            let reaching = before.filter(|(_, entry)| entry.end > range.start);
            (reaching.map_or(range.start, |(&start, _)| start), range.end)
        };
        counted(self.entries.range(first..end))
    }

    /// Returns true if no byte of the range is covered.
    pub fn is_clear(&self, range: &Range<u64>) -> bool {
        self.entries.is_empty() || self.overlapping(range).next().is_none()
    }

    /// Returns the first position after the start of `range` at which an entry begins or ends, or
    /// the end of `range` if there is no such position.
    pub fn first_boundary(&self, range: &Range<u64>) -> u64 {
        let boundary = self.overlapping(range).next().map(|(entry, _)| {
            if entry.start > range.start {
                entry.start
            } else {
                entry.end
            }
        });
        boundary.map_or(range.end, |at| at.min(range.end))
    }

    /// Returns true if every byte of the range is covered.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        self.gaps(range).is_empty()
    }

    /// Returns the parts of `range` that no entry covers, in ascending order.
    pub fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut position = range.start;
        for (covered, _) in self.overlapping(range) {
            if covered.start > position {
                gaps.push(position..covered.start);
            }
            position = covered.end;
        }
        if position < range.end {
            gaps.push(position..range.end);
        }
        gaps
    }

    /// Returns all entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &V)> {
        counted(self.entries.iter())
    }

    /// Returns the first entry that starts at or after `position`. If there is none, returns the
    /// first entry of the map, as a circular elevator does.
    pub fn next_from(&self, position: u64) -> Option<(Range<u64>, &V)> {
        let next = self
            .entries
            .range(position..)
            .next()
            .or_else(|| self.entries.iter().next());
        next.map(|(&start, entry)| (start..entry.end, &entry.value))
    }

    /// Returns the entry that starts exactly at `start`.
    pub fn starting_at(&self, start: u64) -> Option<(Range<u64>, &V)> {
        self.entries
            .get(&start)
            .map(|entry| (start..entry.end, &entry.value))
    }
}

/// Iterates over entries, and counts each entry as a step of the task's turn.
fn counted<'a, V: 'a>(
    entries: impl Iterator<Item = (&'a u64, &'a Entry<V>)>,
) -> impl Iterator<Item = (Range<u64>, &'a V)> {
    entries.map(|(&start, entry)| {
        count_steps(1);
        (start..entry.end, &entry.value)
    })
}

#[cfg(test)]
mod tests {
    use bimetal_rt::Rng;

    use super::*;

    /// A value that identifies, for each of its bytes, the writer and the offset in the write.
    #[derive(Clone, Debug, PartialEq)]
    struct Tagged {
        writer: u32,
        first: u64,
    }

    impl Cut for Tagged {
        fn cut(&self, range: Range<u64>) -> Tagged {
            Tagged {
                writer: self.writer,
                first: self.first + range.start,
            }
        }
    }

    /// Compares random inserts and removals with an array that holds each byte's writer and offset.
    #[test]
    fn it_agrees_with_an_array_of_bytes() {
        let mut rng = Rng::new(2);
        let mut map = ExtentMap::new();
        let mut model: Vec<Option<(u32, u64)>> = vec![None; 100];
        for step in 0..20_000u32 {
            let start = rng.below(100);
            let range = start..start + rng.below(101 - start);
            let bytes = range.start as usize..range.end as usize;
            if rng.chance(0.6) {
                map.insert(
                    range.clone(),
                    Tagged {
                        writer: step,
                        first: 0,
                    },
                );
                for (offset, byte) in model[bytes].iter_mut().enumerate() {
                    *byte = Some((step, offset as u64));
                }
            } else {
                let removed = map.remove(range.clone());
                let mut expected: Vec<Option<(u32, u64)>> = vec![None; 100];
                expected[bytes.clone()].copy_from_slice(&model[bytes.clone()]);
                assert_eq!(
                    flatten(removed.iter().map(|(r, v)| (r.clone(), v))),
                    expected
                );
                model[bytes].fill(None);
            }
            assert_eq!(flatten(map.iter()), model);
            assert_eq!(map.bytes(), model.iter().flatten().count() as u64);
            let probe = rng.below(100)..rng.below(101);
            if !probe.is_empty() {
                let bytes = &model[probe.start as usize..probe.end as usize];
                let boundary = map.first_boundary(&probe);
                assert!(probe.start < boundary && boundary <= probe.end);
                let alike = bytes[..(boundary - probe.start) as usize]
                    .iter()
                    .map(Option::is_some);
                assert!(alike.clone().all(|covered| covered == bytes[0].is_some()));
                assert_eq!(map.is_clear(&probe), bytes.iter().all(Option::is_none));
                assert_eq!(map.covers(&probe), bytes.iter().all(Option::is_some));
            }
        }
    }

    fn flatten<'a>(
        entries: impl Iterator<Item = (Range<u64>, &'a Tagged)>,
    ) -> Vec<Option<(u32, u64)>> {
        let mut bytes = vec![None; 100];
        for (range, value) in entries {
            for (offset, position) in range.enumerate() {
                bytes[position as usize] = Some((value.writer, value.first + offset as u64));
            }
        }
        bytes
    }
}
