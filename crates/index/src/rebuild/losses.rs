//! The ranges of keys that a rebuild lists as lost, sorted and without overlap.
//!
//! Several images can cause losses of the same key. If the kinds of these losses differ, the key is
//! listed as [`Loss::Changes`], which is the weaker statement. A range in which a key might still
//! be present with an outdated value must never be listed as [`Loss::Keys`].

use super::{Loss, Lost};
use std::cmp::Ordering;

/// Range of keys: its first key, and the first key after it; `None` if the range extends to the end
/// of all keys.
type Span = (Vec<u8>, Option<Vec<u8>>);

/// Lost ranges as they are found, in any order.
#[derive(Debug, Default)]
pub(super) struct Losses {
    keys: Vec<Span>,
    changes: Vec<Span>,
}

impl Losses {
    pub(super) fn add(&mut self, from: &[u8], to: Option<&[u8]>, loss: Loss) {
        if to.is_some_and(|to| to <= from) {
            return;
        }
        let spans = match loss {
            Loss::Keys => &mut self.keys,
            Loss::Changes => &mut self.changes,
        };
        spans.push((from.to_vec(), to.map(<[u8]>::to_vec)));
    }

    /// Returns the lost ranges, each as long as possible, with no key in more than one of them.
    pub(super) fn list(self) -> Vec<Lost> {
        let changes = joined(self.changes);
        let keys = without(joined(self.keys), &changes);
        let of = |loss: Loss| move |(from, to): Span| Lost { from, to, loss };
        let keys = keys.into_iter().map(of(Loss::Keys));
        let mut all: Vec<Lost> = keys
            .chain(changes.into_iter().map(of(Loss::Changes)))
            .collect();
        all.sort_by(|a, b| a.from.cmp(&b.from));
        all
    }
}

/// Compares the ends of two ranges.
fn by_end(a: Option<&[u8]>, b: Option<&[u8]>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        (a, b) => a.is_none().cmp(&b.is_none()),
    }
}

/// Returns the keys of `spans` in the smallest number of ranges.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort();
    let mut all: Vec<Span> = Vec::new();
    for (from, to) in spans {
        match all.last_mut() {
            Some((_, end)) if end.as_ref().is_none_or(|end| from <= *end) => {
                if by_end(end.as_deref(), to.as_deref()).is_lt() {
                    *end = to;
                }
            }
            _ => all.push((from, to)),
        }
    }
    all
}

/// Returns the parts of `spans` that are in none of `others`. Both are in the form that [`joined`]
/// returns.
fn without(spans: Vec<Span>, others: &[Span]) -> Vec<Span> {
    let mut left = Vec::new();
    for (mut from, to) in spans {
        let ends_before = |(_, end): &Span| end.as_ref().is_some_and(|end| *end <= from);
        let first = others.partition_point(ends_before);
        let mut is_left = true;
        for (other, end) in &others[first..] {
            if to.as_ref().is_some_and(|to| to <= other) {
                break;
            }
            if from < *other {
                left.push((from.clone(), Some(other.clone())));
            }
            match end {
                Some(end) => from.clone_from(end),
                None => is_left = false,
            }
        }
        if is_left && to.as_ref().is_none_or(|to| from < *to) {
            left.push((from, to));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(ranges: &[(&str, &str, Loss)]) -> Vec<(String, String, Loss)> {
        let mut losses = Losses::default();
        for (from, to, loss) in ranges {
            losses.add(from.as_bytes(), end(to), *loss);
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let all = losses.list().into_iter();
        all.map(|lost| {
            let to = lost.to.map_or("~".to_owned(), text);
            (text(lost.from), to, lost.loss)
        })
        .collect()
    }

    fn end(to: &str) -> Option<&[u8]> {
        (to != "~").then_some(to.as_bytes())
    }

    #[test]
    fn ranges_of_one_kind_become_one() {
        let found = listed(&[
            ("m", "p", Loss::Changes),
            ("a", "c", Loss::Changes),
            ("c", "d", Loss::Changes),
            ("b", "c", Loss::Changes),
            ("o", "~", Loss::Changes),
            ("x", "y", Loss::Changes),
            ("e", "e", Loss::Changes),
        ]);
        let expected = [("a", "d"), ("m", "~")];
        let expected = expected.map(|(from, to)| (from.to_owned(), to.to_owned(), Loss::Changes));
        assert_eq!(found, expected);
    }

    #[test]
    fn of_two_kinds_the_one_counts_that_promises_less() {
        let found = listed(&[
            ("b", "m", Loss::Keys),
            ("d", "f", Loss::Changes),
            ("h", "k", Loss::Changes),
            ("p", "r", Loss::Keys),
            ("q", "~", Loss::Changes),
            ("x", "~", Loss::Keys),
        ]);
        let expected = [
            ("b", "d", Loss::Keys),
            ("d", "f", Loss::Changes),
            ("f", "h", Loss::Keys),
            ("h", "k", Loss::Changes),
            ("k", "m", Loss::Keys),
            ("p", "q", Loss::Keys),
            ("q", "~", Loss::Changes),
        ];
        let expected = expected.map(|(from, to, loss)| (from.to_owned(), to.to_owned(), loss));
        assert_eq!(found, expected);
    }
}
