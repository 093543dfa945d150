//! Detection of conflicts between a transaction and the earlier batches of the same group. Other
//! conflicts are found in the leaves, but these batches are not in the leaves yet.
//!
//! A group can have many batches with many keys, so keys are compared by hashes, each of which is
//! computed once. The check must never miss a change. If two hashes are equal, the keys themselves
//! are compared.

use crate::batch::{Operation, Operations};
use crate::node::Seq;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

/// Keys that must not have changed since a transaction began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expectation {
    /// Sequence number of the last batch that the transaction has seen.
    pub read_at: Seq,
    /// Keys that the transaction has written or read for update, sorted, each once.
    pub keys: Vec<Box<[u8]>>,
    /// Hashes of `keys`, in the same order.
    hashes: Vec<u64>,
    /// Hashes of the keys that the transaction's own batch changes.
    changes: Vec<u64>,
}

impl Expectation {
    /// Creates the expectation of a transaction that has seen all batches up to `read_at`: none of
    /// `keys` must have changed since then. `operations` are the transaction's own changes. All
    /// hashes are computed by this call, in the thread of the transaction.
    pub(crate) fn new(
        read_at: Seq,
        mut keys: Vec<Box<[u8]>>,
        operations: &[u8],
        hasher: &RandomState,
    ) -> Expectation {
        keys.sort_unstable();
        keys.dedup();
        Expectation {
            read_at,
            hashes: keys.iter().map(|key| hasher.hash_one(&**key)).collect(),
            changes: hashes_of(operations, hasher),
            keys,
        }
    }

    /// Returns the keys, each with its hash.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let hashes = self.hashes.iter().copied();
        self.keys.iter().map(|key| &**key).zip(hashes)
    }
}

/// Returns the hashes of the keys that the operations put or delete.
fn hashes_of(operations: &[u8], hasher: &RandomState) -> Vec<u64> {
    let mut hashes = Vec::new();
    each(operations, |operation| match operation {
        Operation::Put { key, .. } | Operation::Delete { key } => hashes.push(hasher.hash_one(key)),
        Operation::DeleteRange { .. } | Operation::RangeDeleted { .. } | Operation::End => {}
    });
    hashes
}

/// Calls `take` with every operation of a batch, up to the first bytes that are not an operation. A
/// batch with such bytes is refused elsewhere.
fn each<'a>(operations: &'a [u8], mut take: impl FnMut(Operation<'a>)) {
    let mut operations = Operations::new(operations);
    while let Ok(Some(operation)) = operations.take() {
        take(operation);
    }
}

/// Changes of the batches of a group that were accepted so far.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    hasher: &'a RandomState,
    batches: Vec<Batch<'a>>,
    /// Number of batches whose changes are in `keys` and `ranges`: all batches accepted before the
    /// last check of a transaction.
    noted: usize,
    /// For the hash of each key, the number of the last batch that changes the key.
    keys: BTreeMap<u64, usize>,
    /// Deleted ranges: the start of each range, and its end (`None` if it has no end). The ranges
    /// do not touch each other.
    ranges: BTreeMap<&'a [u8], Option<&'a [u8]>>,
    /// Number of operations parsed, for the tests.
    parsed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Batch<'a> {
    operations: &'a [u8],
    /// Hashes of the changed keys, if they are known.
    changes: Option<&'a [u64]>,
}

impl<'a> Taken<'a> {
    /// Creates an empty set of changes.
    pub(crate) fn new(hasher: &'a RandomState) -> Taken<'a> {
        Taken {
            hasher,
            batches: Vec::new(),
            noted: 0,
            keys: BTreeMap::new(),
            ranges: BTreeMap::new(),
            parsed: 0,
        }
    }

    /// Adds an accepted batch. If the batch belongs to a transaction, `expectation` has the keys
    /// that must not have changed since that transaction began.
    pub(crate) fn add(&mut self, operations: &'a [u8], expectation: Option<&'a Expectation>) {
        self.batches.push(Batch {
            operations,
            changes: expectation.map(|expectation| &expectation.changes[..]),
        });
    }

    /// Returns true if an accepted batch changes a key that is expected not to change.
    pub(crate) fn contradicts(&mut self, expectation: &Expectation) -> bool {
        self.note_all();
        expectation
            .keys()
            .any(|(key, hash)| self.is_deleted(key) || self.changes(key, hash))
    }

    /// Records the changes of the batches that were added since the last call. Only the check of a
    /// transaction for conflicts needs these records, so they are made by the check and not when a
    /// batch is added.
    fn note_all(&mut self) {
        for number in self.noted..self.batches.len() {
            let Batch {
                operations,
                changes,
            } = self.batches[number];
            match changes {
                // A transaction deletes no ranges.
                Some(changes) => self.keys.extend(changes.iter().map(|hash| (*hash, number))),
                None => each(operations, |operation| self.note(operation, number)),
            }
        }
        self.noted = self.batches.len();
    }

    fn note(&mut self, operation: Operation<'a>, number: usize) {
        self.parsed += 1;
        match operation {
            Operation::Put { key, .. } | Operation::Delete { key } => {
                self.keys.insert(self.hasher.hash_one(key), number);
            }
            Operation::DeleteRange { start, end } => self.note_range(start, end),
            Operation::RangeDeleted { .. } | Operation::End => {}
        }
    }

    /// Records a deleted range, merged with the ranges that it touches.
    fn note_range(&mut self, mut start: &'a [u8], mut end: Option<&'a [u8]>) {
        if end.is_some_and(|end| end <= start) {
            return;
        }
        let reaches = |end: Option<&[u8]>, key: &[u8]| end.is_none_or(|end| key <= end);
        let before = self.ranges.range(..=start).next_back();
        if let Some((other, other_end)) = before
            && reaches(*other_end, start)
        {
            (start, end) = (other, longer(end, *other_end));
        }
        loop {
            let next = self.ranges.range(start..).next();
            let Some((other, other_end)) = next.filter(|(other, _)| reaches(end, other)) else {
                break;
            };
            let other = *other;
            end = longer(end, *other_end);
            self.ranges.remove(other);
        }
        self.ranges.insert(start, end);
    }

    fn is_deleted(&self, key: &[u8]) -> bool {
        let before = self.ranges.range(..=key).next_back();
        before.is_some_and(|(_, end)| end.is_none_or(|end| key < end))
    }

    fn changes(&self, key: &[u8], hash: u64) -> bool {
        let Some(number) = self.keys.get(&hash) else {
            return false;
        };
        // For two keys with the same hash only the last batch is recorded, so an earlier batch may
        // have changed this key.
        let noted = self.batches[..=*number].iter().rev();
        noted.into_iter().any(|batch| names(batch.operations, key))
    }
}

/// Returns the later of two ends; `None` is the end of all keys.
fn longer<'a>(one: Option<&'a [u8]>, other: Option<&'a [u8]>) -> Option<&'a [u8]> {
    Some(one?.max(other?))
}

/// Returns true if the operations put or delete this key.
fn names(operations: &[u8], key: &[u8]) -> bool {
    let mut is_named = false;
    each(operations, |operation| match operation {
        Operation::Put { key: other, .. } | Operation::Delete { key: other } => {
            is_named |= other == key;
        }
        Operation::DeleteRange { .. } | Operation::RangeDeleted { .. } | Operation::End => {}
    });
    is_named
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch as Changes;
    use proptest::prelude::*;

    /// A random batch: the keys that it puts, and the ranges that it deletes.
    type Drawn = (Vec<u8>, Vec<(u8, Option<u8>)>);

    fn operations((keys, ranges): &Drawn) -> Vec<u8> {
        let mut batch = Changes::new();
        for key in keys {
            batch.put(&[*key], b"");
        }
        for (start, end) in ranges {
            let end = end.map(|end| [end]);
            batch.delete_range(&[*start], end.as_ref().map(|end| &end[..]));
        }
        batch.bytes().unwrap().to_vec()
    }

    fn does_change((keys, ranges): &Drawn, key: u8) -> bool {
        let is_in =
            |(start, end): &(u8, Option<u8>)| *start <= key && end.is_none_or(|end| key < end);
        keys.contains(&key) || ranges.iter().any(is_in)
    }

    proptest! {
        #[test]
        fn a_transaction_is_refused_if_and_only_if_a_batch_before_it_changes_its_keys(
            batches in proptest::collection::vec(
                (
                    proptest::collection::vec(0u8..40, 0..5),
                    proptest::collection::vec((0u8..40, proptest::option::of(0u8..40)), 0..3),
                    any::<bool>(),
                ),
                0..6,
            ),
            keys in proptest::collection::vec(0u8..40, 0..4),
        ) {
            let hasher = RandomState::new();
            let batches: Vec<(Drawn, Vec<u8>, Option<Expectation>)> = batches
                .into_iter()
                .map(|(keys, ranges, is_transaction)| {
                    // A transaction deletes no ranges.
                    let drawn = (keys, if is_transaction { Vec::new() } else { ranges });
                    let operations = operations(&drawn);
                    let expectation = is_transaction
                        .then(|| Expectation::new(0, Vec::new(), &operations, &hasher));
                    (drawn, operations, expectation)
                })
                .collect();
            let expected = keys.iter().map(|key| Box::from([*key])).collect();
            let expectation = Expectation::new(0, expected, &[], &hasher);
            let mut taken = Taken::new(&hasher);
            for (number, (_, operations, own)) in batches.iter().enumerate() {
                taken.add(operations, own.as_ref());
                let before = &batches[..=number];
                let is_changed = keys.iter().any(|key| before.iter().any(|b| does_change(&b.0, *key)));
                prop_assert_eq!(taken.contradicts(&expectation), is_changed, "after {}", number);
            }
        }
    }

    /// Adds eight transactions and eight other batches, each with 2,000 keys of its own. Each
    /// operation must be parsed only once.
    #[test]
    fn an_operation_is_parsed_once_however_many_transactions_come_after_it() {
        let hasher = RandomState::new();
        let key = |batch: u32, number: u32| [batch.to_be_bytes(), number.to_be_bytes()].concat();
        let batches: Vec<(Vec<u8>, Option<Expectation>)> = (0..16)
            .map(|number| {
                let keys: Vec<Vec<u8>> = (0..2000).map(|at| key(number, at)).collect();
                let mut batch = Changes::new();
                keys.iter().for_each(|key| batch.put(key, b""));
                let operations = batch.bytes().unwrap().to_vec();
                let expected = keys.into_iter().map(Vec::into_boxed_slice).collect();
                let expectation =
                    (number % 2 == 1).then(|| Expectation::new(0, expected, &operations, &hasher));
                (operations, expectation)
            })
            .collect();
        let mut taken = Taken::new(&hasher);
        for (operations, expectation) in &batches {
            if let Some(expectation) = expectation {
                assert!(!taken.contradicts(expectation));
            }
            taken.add(operations, expectation.as_ref());
        }
        // The keys of a transaction are hashed by its own thread, so only the operations of the
        // eight other batches are parsed.
        assert_eq!(taken.parsed, 8 * 2000);
    }

    #[test]
    fn keys_with_one_hash_are_told_apart() {
        let hasher = RandomState::new();
        let first = operations(&(vec![1], vec![]));
        let second = operations(&(vec![2], vec![]));
        let mut taken = Taken::new(&hasher);
        taken.add(&first, None);
        taken.add(&second, None);
        taken.note_all();
        // Three keys are checked with the hash of the second key, as if all of them had this hash.
        let hash = hasher.hash_one(&[2u8][..]);
        assert!(taken.changes(&[1], hash) && taken.changes(&[2], hash));
        assert!(!taken.changes(&[3], hash));
    }
}
