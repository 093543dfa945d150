//! Model of a node: an ordered map of versions, implemented without any code of the node. Also the
//! rows that the tests use.

use bimetal_index::node::{Builder, Image, Kind, NodeId, Row, Seq, seal};
use proptest::collection::vec;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Versions in the order of an image.
pub type Versions = BTreeMap<(Vec<u8>, Reverse<Seq>), (Kind, Vec<u8>)>;

/// Location that the seals of all images in these tests contain.
pub const LOCATION: u64 = 0x0123_4567_89ab_cdef;

/// Returns the version of `key` that a reader at the sequence number `seq` sees.
pub fn visible<'a>(
    versions: &'a Versions,
    key: &[u8],
    seq: Seq,
) -> Option<(Seq, &'a (Kind, Vec<u8>))> {
    let (found, what) = versions.range((key.to_vec(), Reverse(seq))..).next()?;
    (found.0 == key).then_some((found.1.0, what))
}

/// Builds the image of the versions, not sealed.
pub fn build(versions: &Versions, plain: bool, node: NodeId) -> Vec<u8> {
    let mut builder = Builder::new(plain);
    for ((key, Reverse(seq)), (kind, value)) in versions {
        let row = Row {
            key,
            seq: *seq,
            kind: *kind,
            value,
        };
        let expected = builder.estimated_bytes_with(&row);
        builder.push(row);
        assert_eq!(builder.estimated_bytes(), expected);
    }
    let expected = builder.estimated_bytes();
    let bytes = builder.finish(node, 0, 77, 5);
    assert_eq!(bytes.len(), expected);
    bytes
}

/// Builds the image of the versions, and parses it.
pub fn image(versions: &Versions, plain: bool) -> Image {
    let mut bytes = build(versions, plain, 42);
    seal(&mut bytes, LOCATION);
    Image::parse(&bytes, LOCATION).expect("this is what was built")
}

/// Returns all versions in an image.
pub fn contents(image: &Image) -> Versions {
    let mut versions = Versions::new();
    let mut key = b"left from before".to_vec();
    for row in 0..image.rows() {
        image.key(row, &mut key);
        let what = (image.kind(row), image.value(row).as_slice().to_vec());
        let twice = versions.insert((key.clone(), Reverse(image.seq(row))), what);
        assert_eq!(twice, None, "two rows for one version");
    }
    versions
}

/// Returns the key with the number `n` in a style that an application might use. The tests use few
/// numbers, so that keys repeat.
pub fn key(style: usize, n: u16) -> Vec<u8> {
    let n64 = u64::from(n);
    // The product looks random, like a hash. Different numbers give different products, since the
    // factor is odd.
    let spread = n64.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match style {
        0 => n64.to_be_bytes().to_vec(),
        1 => spread.to_be_bytes().to_vec(),
        2 => [spread.to_be_bytes(), n64.to_be_bytes()].concat(),
        3 => [n64.to_be_bytes(), spread.to_be_bytes()].concat(),
        4 => format!("users/by-name/{n}").into_bytes(),
        5 => format!("t{n:05}").into_bytes(),
        // The keys are strings of 0 to 5 bytes over a small alphabet, so that one key is often a
        // prefix of another.
        6 => {
            let digit = |i: u32| [0, 1, 0xff][(n as usize / 3_usize.pow(i)) % 3];
            (0..u32::from(n % 6)).map(|i| digit(i + 1)).collect()
        }
        7 => [&[7; 20][..], &spread.to_be_bytes()[..3]].concat(),
        8 => [&[9; 9][..], &n64.to_le_bytes()].concat(),
        9 => vec![(n % 256) as u8],
        _ => [vec![b'k'; usize::from(n % 40)], n.to_be_bytes().to_vec()].concat(),
    }
}

pub const KEY_STYLES: usize = 11;

/// Returns the value with the number `n` in a style that an application might use.
pub fn value(style: usize, n: u16) -> Vec<u8> {
    match style {
        0 => Vec::new(),
        1 => u64::from(n).to_le_bytes().to_vec(),
        2 => (u32::from(n) + 0x00ff_0000).to_le_bytes().to_vec(),
        3 => u64::from(n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes()
            .to_vec(),
        4 => vec![n as u8; 100],
        5 => vec![n as u8; usize::from(n % 23)],
        6 => vec![7; 3],
        _ => n.to_be_bytes().to_vec(),
    }
}

pub const VALUE_STYLES: usize = 8;

/// The kinds of versions and sequence numbers in a test.
#[derive(Clone, Copy, Debug)]
pub enum Ages {
    /// Only puts with the sequence number 0.
    Plain,
    /// Only the sequence number 0, with some values out of line.
    Blobs,
    /// Several versions of a key, of every kind.
    Versions,
}

/// Generates versions for an image.
pub fn versions(rows: std::ops::Range<usize>) -> impl Strategy<Value = Versions> {
    let ages = prop_oneof![Just(Ages::Plain), Just(Ages::Blobs), Just(Ages::Versions)];
    let shape = (0..KEY_STYLES, 0..VALUE_STYLES, ages, any::<u16>());
    let row = (0..1000_u16, 0..8_u64, 0..4_u8, any::<u16>());
    (shape, vec(row, rows)).prop_map(|((keys, values, ages, start), rows)| {
        let mut made = Versions::new();
        for (n, seq, kind, v) in rows {
            let seq = match ages {
                // Some sequence numbers are small, and others are as large as those of an old
                // database.
                Ages::Versions if seq > 0 => seq + u64::from(start % 2) * (1 << 40),
                _ => 0,
            };
            let kind = match (ages, kind) {
                (Ages::Versions, 0) => Kind::Delete,
                (Ages::Versions | Ages::Blobs, 1) => Kind::Blob,
                _ => Kind::Put,
            };
            let value = match kind {
                Kind::Delete => Vec::new(),
                _ => value(values, v),
            };
            let key = key(keys, start.wrapping_add(n));
            made.insert((key, Reverse(seq)), (kind, value));
        }
        made
    })
}

/// Returns keys to look up: each key of `versions`, its neighbours, and prefixes and extensions of
/// it.
pub fn probes(versions: &Versions) -> Vec<Vec<u8>> {
    let mut probes = vec![Vec::new(), vec![0], vec![0xff; 30]];
    for (key, _) in versions.keys() {
        let mut push = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut key = key.clone();
            change(&mut key);
            probes.push(key);
        };
        push(&|_| ());
        push(&|k| k.push(0));
        push(&|k| k.push(0xff));
        push(&|k| k.truncate(k.len().saturating_sub(1)));
        push(&|k| k.truncate(k.len() / 2));
        push(&|k| k.extend([0; 9]));
        for step in [1, 0xff] {
            push(&|k| {
                if let Some(last) = k.last_mut() {
                    *last = last.wrapping_add(step);
                }
            });
            push(&|k| {
                if let Some(first) = k.first_mut() {
                    *first = first.wrapping_add(step);
                }
            });
        }
    }
    probes
}
