//! Range of keys that a leaf covers, stored in the leaf's image. The image alone is then
//! authoritative for every key of the range, including keys between and beyond its rows. No parent
//! node has to list the leaf.
//!
//! The ends of a range are near the keys of the leaf. So each end is stored as the length of the
//! prefix that it shares with the first or last key, and the remaining bytes. A range that excludes
//! a row of its own image must never be accepted.

use super::{ImageError, KEY_BYTES_MAX};

/// Length in bytes of the fixed fields in front of the key bytes.
const FIXED_BYTES: usize = 8;
/// Stored in place of the length of `to` if the range has no end.
const NO_END: u16 = u16::MAX;

/// Range of keys from `from` up to, but not including, `to`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// First key of the range.
    pub from: Box<[u8]>,
    /// First key after the range; `None` if the range has no end.
    pub to: Option<Box<[u8]>>,
}

/// First and last key of an image; `None` if the image has no rows.
pub(super) type Ends<'a> = Option<(&'a [u8], &'a [u8])>;

impl KeyRange {
    /// Returns the length of the prefix that `from` shares with the first key, and of the prefix
    /// that `to` shares with the last key.
    fn shared_with(&self, ends: Ends<'_>) -> (usize, usize) {
        let Some((first, last)) = ends else {
            return (0, 0);
        };
        let to = self.to.as_deref().unwrap_or_default();
        (common_prefix(&self.from, first), common_prefix(to, last))
    }

    /// Returns the length of the range in an image, in bytes.
    pub(super) fn packed_bytes(&self, ends: Ends<'_>) -> usize {
        let (of_from, of_to) = self.shared_with(ends);
        let to_len = self.to.as_ref().map_or(0, |to| to.len());
        FIXED_BYTES + self.from.len() - of_from + to_len - of_to
    }

    /// Appends the encoded range to `out`, after the columns of an image.
    pub(super) fn append(&self, ends: Ends<'_>, out: &mut Vec<u8>) {
        let (of_from, of_to) = self.shared_with(ends);
        let from = &self.from[of_from..];
        let to = self.to.as_deref().map(|to| &to[of_to..]);
        let small = |len: usize| u16::try_from(len).expect("a key is at most 4 KiB");
        let to_len = to.map_or(NO_END, |to| small(to.len()));
        for number in [small(of_from), small(from.len()), small(of_to), to_len] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(from);
        out.extend_from_slice(to.unwrap_or_default());
    }

    /// Parses a range from the start of `bytes`. Checks that the range contains all rows of the
    /// image, whose first and last keys are `ends`.
    pub(super) fn parse(bytes: &[u8], ends: Ends<'_>) -> Result<KeyRange, ImageError> {
        let malformed = ImageError::Malformed("an impossible range");
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>().ok_or(malformed)?;
        let number = |at: usize| usize::from(u16::from_le_bytes([fixed[at], fixed[at + 1]]));
        let has_end = number(6) != usize::from(NO_END);
        let (first, last) = ends.unwrap_or_default();
        let (from, rest) = rest.split_at_checked(number(2)).ok_or(malformed)?;
        let from_shared = first.get(..number(0)).ok_or(malformed)?;
        let range = KeyRange {
            from: [from_shared, from].concat().into(),
            to: match has_end {
                true => {
                    let to_shared = last.get(..number(4)).ok_or(malformed)?;
                    let to = rest.get(..number(6)).ok_or(malformed)?;
                    Some([to_shared, to].concat().into())
                }
                false => None,
            },
        };
        let to = range.to.as_deref();
        let is_long = range.from.len().max(to.map_or(0, <[u8]>::len)) > KEY_BYTES_MAX;
        let is_around = match ends {
            Some((first, last)) => *range.from <= *first && to.is_none_or(|to| last < to),
            None => to.is_none_or(|to| *range.from < *to),
        };
        match is_around && !is_long {
            true => Ok(range),
            false => Err(malformed),
        }
    }
}

/// Returns the length of the longest common prefix of two keys.
pub(super) fn common_prefix(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: &str, to: Option<&str>) -> KeyRange {
        KeyRange {
            from: from.as_bytes().into(),
            to: to.map(|to| to.as_bytes().into()),
        }
    }

    #[test]
    fn a_range_is_read_as_it_was_written_and_shares_what_it_can() {
        let ends: Ends<'_> = Some((b"cab", b"cod"));
        // The encoded range has eight bytes of lengths, then those bytes of its two ends that are
        // not shared with the first or last key.
        for (range, bytes) in [
            (range("cab", Some("code")), 8 + 1),
            (range("ca", Some("cog")), 8 + 1),
            (range("", None), 8),
            (range("b", Some("d")), 8 + 2),
        ] {
            let mut out = Vec::new();
            range.append(ends, &mut out);
            assert_eq!((out.len(), range.packed_bytes(ends)), (bytes, bytes));
            assert_eq!(KeyRange::parse(&out, ends), Ok(range));
        }
        let mut out = Vec::new();
        range("ca", Some("cog")).append(None, &mut out);
        assert_eq!(out, *b"\0\0\x02\0\0\0\x03\0cacog");
        assert_eq!(KeyRange::parse(&out, None), Ok(range("ca", Some("cog"))));
    }

    #[test]
    fn a_range_that_leaves_out_a_row_or_is_cut_is_refused() {
        let ends: Ends<'_> = Some((b"cab", b"cod"));
        for (from, to) in [("cac", None), ("c", Some("cod")), ("c", Some("b"))] {
            let mut out = Vec::new();
            range(from, to).append(ends, &mut out);
            assert!(KeyRange::parse(&out, ends).is_err(), "{from} to {to:?}");
        }
        let mut out = Vec::new();
        range("b", Some("b")).append(None, &mut out);
        assert!(KeyRange::parse(&out, None).is_err(), "it has no keys");
        let mut out = Vec::new();
        range("c", Some("d")).append(ends, &mut out);
        for len in 0..out.len() {
            assert!(KeyRange::parse(&out[..len], ends).is_err(), "{len} bytes");
        }
        out[0] = 4;
        assert!(KeyRange::parse(&out, ends).is_err(), "more than there is");
    }

    #[test]
    fn a_range_of_keys_that_are_too_long_is_refused() {
        let long = vec![b'd'; KEY_BYTES_MAX];
        let mut out = Vec::new();
        let longest = KeyRange {
            from: Box::default(),
            to: Some(long.clone().into()),
        };
        longest.append(None, &mut out);
        assert_eq!(KeyRange::parse(&out, None), Ok(longest));
        let mut out = Vec::new();
        let longer = KeyRange {
            from: Box::default(),
            to: Some([&long[..], b"d"].concat().into()),
        };
        longer.append(None, &mut out);
        assert!(KeyRange::parse(&out, None).is_err());
    }
}
