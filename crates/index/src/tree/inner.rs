//! An inner node in memory: separators and children. A node is never changed, only replaced.
//!
//! Separator `i` is the least key that can be under child `i`. The first child's separator is
//! empty: every key below the second separator is under the first child. A search compares eight
//! bytes of each separator after the common prefix, and whole keys only if these bytes are equal.

use crate::error::Error;
use crate::node::{Builder, Image, Kind, NodeId, Row, Spread, Start, head};
use std::cmp::Ordering;

/// Maximum number of children of an inner node.
pub(crate) const CHILDREN_MAX: usize = 256;
/// Bytes of a child in an image, in addition to its key.
pub(crate) const CHILD_BYTES: usize = 4;

/// A separator and its child.
pub(crate) type Child = (Box<[u8]>, NodeId);

/// An inner node.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Level of the node, one above its children; leaves have level 0.
    level: u8,
    /// First bytes of the prefix, for fast comparison.
    start: Start,
    /// Bytes that all separators but the first begin with.
    prefix: Box<[u8]>,
    /// Distribution of the heads of the separators. The first separator is left out.
    spread: Spread,
    /// Heads and children, which a search reads together.
    entries: Box<[Entry]>,
    /// Bytes of the separators.
    keys: Box<[u8]>,
}

/// The head of a separator, and its child.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The eight bytes of the separator that follow the prefix shared by all separators; 0 for the
    /// first separator.
    head: u64,
    child: NodeId,
    /// End of the separator in `keys`; the separator begins where the previous separator ends.
    key_end: u32,
}

fn common<'a>(a: &'a [u8], b: &[u8]) -> &'a [u8] {
    let len = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    &a[..len]
}

impl Inner {
    /// Creates a node with these children, which must be in order. The separator of the first child
    /// is ignored.
    pub(crate) fn new(level: u8, children: &[Child]) -> Inner {
        assert!(
            !children.is_empty() && level > 0,
            "an inner node has children"
        );
        let others = &children[1..];
        let prefix: &[u8] = match (others.first(), others.last()) {
            (Some((first, _)), Some((last, _))) => common(first, last),
            _ => &[],
        };
        let mut keys = Vec::with_capacity(others.iter().map(|(key, _)| key.len()).sum());
        let mut entries = Vec::with_capacity(children.len());
        entries.push(Entry {
            head: 0,
            child: children[0].1,
            key_end: 0,
        });
        for (key, child) in others {
            keys.extend_from_slice(key);
            entries.push(Entry {
                head: head(&key[prefix.len()..]),
                child: *child,
                key_end: keys.len() as u32,
            });
        }
        Inner {
            level,
            start: Start::of(prefix),
            prefix: prefix.into(),
            spread: Spread::of(others.len(), |other| entries[1 + other].head),
            entries: entries.into(),
            keys: keys.into(),
        }
    }

    /// Creates the node from its image.
    ///
    /// # Errors
    ///
    /// If the image has no children or is a leaf.
    pub(crate) fn from_image(image: &Image, offset: u64) -> Result<Inner, Error> {
        if image.level() == 0 || image.rows() == 0 {
            return Err(Error::Damaged {
                what: format!("inner node {}", image.node()),
                offset,
            });
        }
        let mut key = Vec::new();
        let children = (0..image.rows()).map(|row| {
            image.key(row, &mut key);
            (key.clone().into_boxed_slice(), image.child(row))
        });
        Ok(Inner::new(image.level(), &children.collect::<Vec<Child>>()))
    }

    /// Returns the image of the node, of at least `least_bytes` bytes.
    pub(crate) fn image(
        &self,
        builder: &mut Builder,
        node: NodeId,
        lsn: u64,
        least_bytes: usize,
    ) -> Vec<u8> {
        builder.clear();
        let least = self.least_like_others();
        for index in 0..self.len() {
            builder.push(Row {
                key: if index == 0 {
                    &least
                } else {
                    self.separator(index)
                },
                seq: 0,
                kind: Kind::Put,
                value: &self.child(index).to_le_bytes(),
            });
        }
        builder.finish_padded(node, self.level, lsn, 0, least_bytes)
    }

    /// Returns a key that is below all separators but resembles them, so that the keys of the image
    /// pack well together.
    fn least_like_others(&self) -> Vec<u8> {
        let mut least = self.prefix.to_vec();
        if self.len() > 1 {
            least.resize(self.separator(1).len(), 0);
            if least[..] >= *self.separator(1) {
                least.clear();
            }
        }
        least
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn child(&self, index: usize) -> NodeId {
        self.entries[index].child
    }

    pub(crate) fn children(&self) -> impl Iterator<Item = NodeId> {
        self.entries.iter().map(|entry| entry.child)
    }

    pub(crate) fn separator(&self, index: usize) -> &[u8] {
        let start = match index {
            0 => 0,
            _ => self.entries[index - 1].key_end as usize,
        };
        &self.keys[start..self.entries[index].key_end as usize]
    }

    /// Returns the memory that the node takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Inner>() + self.prefix.len() + self.len() * 16 + self.keys.len()
    }

    /// Returns the index of the child that `key` is under: the last child whose separator is not
    /// above the key.
    pub(crate) fn find(&self, key: &[u8]) -> usize {
        let others = &self.entries[1..];
        let suffix = match self.start.compare(key, || &self.prefix) {
            Ordering::Equal => &key[self.start.len()..],
            Ordering::Less => return 0,
            Ordering::Greater => return others.len(),
        };
        let wanted = head(suffix);
        // The search is for the first separator with a head above `wanted`. That is the first head
        // not below `wanted + 1`.
        let mut index = match wanted.checked_add(1) {
            Some(next) => {
                let is_below = |other: usize| others[other].head < next;
                self.spread.partition(others.len(), next, is_below)
            }
            None => others.len(),
        };
        // Separators with an equal head can be above the key.
        while index > 0 && self.entries[index].head == wanted && self.separator(index) > key {
            index -= 1;
        }
        index
    }

    /// Returns all children with their separators.
    pub(crate) fn to_children(&self) -> Vec<Child> {
        let children = 0..self.len();
        let children = children.map(|index| (self.separator(index).into(), self.child(index)));
        children.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inner(separators: &[&[u8]]) -> Inner {
        let children: Vec<Child> = separators
            .iter()
            .zip(10..)
            .map(|(k, c)| ((*k).into(), c))
            .collect();
        Inner::new(1, &children)
    }

    #[test]
    fn a_key_is_under_the_last_separator_that_is_not_above_it() {
        let inner = inner(&[
            b"",
            b"tree/a",
            b"tree/bbbbbbbbbb1",
            b"tree/bbbbbbbbbb2",
            b"tree/c",
        ]);
        let child = |key: &[u8]| inner.child(inner.find(key));
        assert_eq!(child(b""), 10);
        assert_eq!(child(b"tree"), 10);
        assert_eq!(child(b"tree/"), 10);
        assert_eq!(child(b"tree/a"), 11);
        assert_eq!(child(b"tree/bbbbbbbbbb0"), 11);
        assert_eq!(child(b"tree/bbbbbbbbbb1"), 12);
        assert_eq!(child(b"tree/bbbbbbbbbb2"), 13);
        assert_eq!(child(b"tree/bzz"), 13);
        assert_eq!(child(b"u"), 14);
        assert_eq!(child(b"a"), 10);
    }

    proptest! {
        #[test]
        fn find_is_what_comparing_all_separators_gives(
            mut keys in proptest::collection::btree_set(proptest::collection::vec(0u8..3, 0..14), 1..60),
            probes in proptest::collection::vec(proptest::collection::vec(0u8..3, 0..14), 50),
        ) {
            keys.insert(Vec::new());
            let children: Vec<Child> = keys.iter().zip(0..).map(|(k, c)| (k.clone().into(), c)).collect();
            let inner = Inner::new(1, &children);
            for probe in &probes {
                let expected = keys.iter().filter(|key| *key <= probe).count() - 1;
                prop_assert_eq!(inner.find(probe), expected);
            }
        }
    }
}
