//! History of an index: its batches in order, the number of the last batch that readers see, the
//! number of the last durable batch, and the prefixes of the history that an index is allowed to
//! have after a stop.

use super::{Change, Map};
use crate::Durability;
use crate::error::Error;
use std::collections::{BTreeMap, BTreeSet};

/// Key under which a batch can put its own number, so that the content differs after every batch.
pub const NUMBER_KEY: &[u8] = b"~number";

/// The prefixes of a history of batches that an index is allowed to contain when it is opened after
/// a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// Any prefix that contains all durable batches.
    Durable,
    /// Any prefix: the storage may have lost the end of the log or the newest superblock.
    AnyBeginning,
}

/// Answers of an index for every key after a stop. The outer `None` says that the index cannot know
/// the value; the inner `None` says that the key has no value.
pub type Found = BTreeMap<Vec<u8>, Option<Option<Vec<u8>>>>;

/// Batches in their order, numbered from 1.
#[derive(Clone, Debug, Default)]
pub struct History {
    batches: Vec<Vec<Change>>,
    now: Map,
    visible: usize,
    durable: usize,
}

impl History {
    /// Creates a history without batches.
    pub fn new() -> History {
        History::default()
    }

    /// Returns the content that readers see.
    pub fn now(&self) -> &Map {
        &self.now
    }

    /// Returns the number of the last batch that readers see.
    pub fn visible(&self) -> usize {
        self.visible
    }

    /// Returns the number of the last batch that must survive a power cut.
    pub fn durable(&self) -> usize {
        self.durable
    }

    /// Returns the number of the last batch that was given to the index.
    pub fn given(&self) -> usize {
        self.batches.len()
    }

    /// Returns the content after the batch with this number.
    pub fn at(&self, number: usize) -> Map {
        let mut map = Map::new();
        for change in self.batches.iter().take(number).flatten() {
            change.make(&mut map);
        }
        map
    }

    /// Returns true if a visible batch with a number above `since` puts or deletes the key, or
    /// deletes a range that contains the key.
    pub fn has_changed(&self, key: &[u8], since: usize) -> bool {
        let batches = self.batches.iter().take(self.visible).skip(since);
        batches.flatten().any(|change| change.concerns(key))
    }

    /// Returns every key that was ever given a value.
    pub fn keys(&self) -> BTreeSet<&[u8]> {
        let changes = self.batches.iter().flatten();
        let keys = changes.filter_map(|change| match change {
            Change::Put(key, _) => Some(&key[..]),
            Change::Delete(_) | Change::DeleteRange(..) => None,
        });
        keys.collect()
    }

    /// Returns the maximum, over all keys, of the number of bytes of keys and values that were put
    /// for one key after batch number `since`.
    pub fn most_bytes_of_a_key(&self, since: usize) -> usize {
        let mut bytes: BTreeMap<&[u8], usize> = BTreeMap::new();
        for change in self.batches.iter().skip(since).flatten() {
            if let Change::Put(key, value) = change {
                *bytes.entry(key).or_default() += key.len() + value.len();
            }
        }
        bytes.into_values().max().unwrap_or(0)
    }

    /// Returns the changes of the next batch: the given changes, followed by a put of the batch's
    /// own number under [`NUMBER_KEY`].
    pub fn numbered(&self, changes: &[Change]) -> Vec<Change> {
        let number = (self.given() as u64 + 1).to_le_bytes();
        let mut numbered = changes.to_vec();
        numbered.push(Change::Put(NUMBER_KEY.to_vec(), number.to_vec()));
        numbered
    }

    /// Records that a batch was given to the index, and the answer of the index. The index refuses
    /// a batch that does not fit or conflicts, or whose snapshot is too old, and every batch if it
    /// is read-only. A refused batch has changed nothing. After any other error, no reader sees the
    /// batch before the next opening; after that opening it may or may not be present.
    pub fn wrote(&mut self, changes: Vec<Change>, durability: Durability, answer: Option<&Error>) {
        match answer {
            None => {
                for change in &changes {
                    change.make(&mut self.now);
                }
                self.batches.push(changes);
                self.visible = self.batches.len();
                if durability != Durability::Relaxed {
                    self.durable = self.visible;
                }
            }
            Some(
                Error::Full { .. }
                | Error::BatchTooLong { .. }
                | Error::KeyTooLong { .. }
                | Error::ValueTooLong { .. }
                | Error::Conflict
                | Error::SnapshotTooOld
                | Error::ReadOnly { .. },
            ) => {}
            Some(_) => self.batches.push(changes),
        }
    }

    /// Records that all batches that readers see now survive a power cut.
    pub fn synced(&mut self) {
        self.durable = self.visible;
    }

    /// Finds the last batch after which the content was equal to the content found after a stop.
    /// Cuts the history off after that batch, and marks the remaining history as visible and
    /// durable.
    ///
    /// # Errors
    ///
    /// If no prefix of the history fits; the text describes the content found.
    pub fn reopened(&mut self, found: &Found, survivors: Survivors) -> Result<(), String> {
        let first = match survivors {
            Survivors::Durable => self.durable,
            Survivors::AnyBeginning => 0,
        };
        let Some((number, map)) = self.latest_fit(found, first) else {
            return Err(self.misfit(found, first));
        };
        self.batches.truncate(number);
        (self.visible, self.durable) = (number, number);
        self.now = map;
        Ok(())
    }

    fn latest_fit(&self, found: &Found, first: usize) -> Option<(usize, Map)> {
        let mut latest = None;
        let mut map = self.at(first);
        let mut wrong = wrong_keys(found, &map).count();
        for number in first..=self.batches.len() {
            if wrong == 0 {
                latest = Some(number);
            }
            for change in self.batches.get(number).into_iter().flatten() {
                wrong = wrong.saturating_sub(concerned(found, &map, change));
                change.make(&mut map);
                wrong += concerned(found, &map, change);
            }
        }
        latest.map(|number| (number, self.at(number)))
    }

    /// Describes the content found after a stop, and tells which batches could correctly have been
    /// the last.
    fn misfit(&self, found: &Found, first: usize) -> String {
        let number_of = |value: Option<&Vec<u8>>| {
            let bytes = value.and_then(|value| <[u8; 8]>::try_from(&value[..]).ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let answered = found.get(NUMBER_KEY).cloned().flatten().flatten();
        let number = number_of(answered.as_ref());
        let map = self.at(number as usize);
        let wrong = wrong_keys(found, &map).next();
        let wrong = wrong.map(|key| {
            let should = map.get(&key).map(Vec::len);
            let is = found.get(&key).cloned().flatten().flatten();
            format!(
                "; key {} should have {should:?} bytes and has {:?}",
                key.escape_ascii(),
                is.map(|value| value.len())
            )
        });
        format!(
            "what is there looks like batch {number}; {first} to {} are possible{}",
            self.batches.len(),
            wrong.unwrap_or_default()
        )
    }
}

/// Returns the keys whose content in `found` differs from their content in a map.
fn wrong_keys<'a>(found: &'a Found, map: &'a Map) -> impl Iterator<Item = Vec<u8>> + 'a {
    let unasked = map.keys().filter(|key| !found.contains_key(*key));
    let wrong = found.iter().filter(|(key, answer)| {
        let answer = answer.as_ref();
        answer.is_some_and(|answer| answer.as_ref() != map.get(*key))
    });
    unasked.chain(wrong.map(|(key, _)| key)).cloned()
}

/// Returns the number of keys that the change concerns and that have a wrong answer in `found`: an
/// answer that differs from the value in `map`.
fn concerned(found: &Found, map: &Map, change: &Change) -> usize {
    let is_wrong = |key: &Vec<u8>| match found.get(key) {
        None => map.contains_key(key),
        Some(None) => false,
        Some(Some(answer)) => answer.as_ref() != map.get(key),
    };
    match change {
        Change::Put(key, _) | Change::Delete(key) => usize::from(is_wrong(key)),
        Change::DeleteRange(..) => {
            let unasked = map.keys().filter(|key| !found.contains_key(*key));
            let keys = unasked.chain(found.keys());
            keys.filter(|key| change.concerns(key) && is_wrong(key))
                .count()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Change {
        Change::Put(key.into(), value.into())
    }

    fn found(map: &Map) -> Found {
        let answers = map.iter();
        answers
            .map(|(key, value)| (key.clone(), Some(Some(value.clone()))))
            .collect()
    }

    fn example() -> History {
        let mut history = History::new();
        let durable = Durability::Durable;
        history.wrote(vec![put("a", "1"), put("b", "1")], durable, None);
        history.wrote(vec![put("c", "2")], durable, None);
        let range = Change::DeleteRange("a".into(), Some("c".into()));
        history.wrote(vec![range, put("d", "3")], Durability::Relaxed, None);
        history.wrote(vec![put("c", "4")], Durability::Relaxed, None);
        history
    }

    #[test]
    fn what_is_found_must_be_a_moment_after_what_was_durable() {
        for (number, fits) in [(1, false), (2, true), (3, true), (4, true)] {
            let mut history = example();
            let there = found(&history.at(number));
            let reopened = history.reopened(&there, Survivors::Durable);
            assert_eq!(reopened.is_ok(), fits, "{number}: {reopened:?}");
            let mut history = example();
            assert_eq!(history.reopened(&there, Survivors::AnyBeginning), Ok(()));
            assert_eq!((history.given(), history.durable()), (number, number));
            assert_eq!(found(history.now()), there);
        }
    }

    #[test]
    fn half_a_batch_or_a_key_too_many_is_no_moment() {
        let mut half = found(&example().at(3));
        half.insert("d".into(), Some(None));
        assert!(example().reopened(&half, Survivors::AnyBeginning).is_err());
        half.insert("d".into(), None);
        assert!(example().reopened(&half, Survivors::AnyBeginning).is_ok());
        let mut more = found(&example().at(3));
        more.insert("e".into(), Some(Some(b"1".to_vec())));
        assert!(example().reopened(&more, Survivors::AnyBeginning).is_err());
    }

    #[test]
    fn nobody_sees_a_batch_whose_write_failed() {
        let mut history = example();
        let failed = Error::Storage {
            action: "writing",
            offset: 0,
            source: crate::storage::StorageError::Failed(5),
        };
        history.wrote(vec![put("z", "5")], Durability::Durable, Some(&failed));
        assert_eq!((history.given(), history.visible()), (5, 4));
        assert!(!history.now().contains_key(&b"z"[..]));
        let full = Error::Full { len_bytes: 0 };
        history.wrote(vec![put("y", "6")], Durability::Durable, Some(&full));
        assert_eq!(history.given(), 5);
    }
}
