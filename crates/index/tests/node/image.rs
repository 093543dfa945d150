//! Tests of images of nodes: reading an image returns exactly the rows that were written.

use super::model::{LOCATION, build, contents, image, probes, versions, visible};
use bimetal_index::node::{
    BLOB_BYTES_MAX, Builder, IMAGE_BYTES_MAX, Image, ImageError, Kind, ROWS_MAX, Row, Rows, Seq,
    Sort, View, blob_image, parse_blob, seal, view,
};
use proptest::prelude::*;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Row<'a> {
    Row {
        key,
        seq: 0,
        kind: Kind::Put,
        value,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_image_without_a_delta_is_seen_as_it_is(
        versions in versions(0..60),
        plain in any::<bool>(),
        reverse in any::<bool>(),
        between in (0..60_usize, 0..60_usize),
    ) {
        let image = image(&versions, plain);
        let keys: Vec<_> = versions.keys().map(|(key, _)| key.clone()).collect();
        let edge = |n: usize| keys.get(n).map_or(Bound::Unbounded, |key| Bound::Included(&key[..]));
        let (from, to) = (edge(between.0), edge(between.1));
        let mut expected = Vec::new();
        for key in keys.iter().collect::<BTreeSet<_>>() {
            let seen = visible(&versions, key, Seq::MAX);
            let is_there = matches!(seen, Some((_, (kind, _))) if *kind != Kind::Delete);
            let is_between = RangeBounds::<[u8]>::contains(&(from, to), &key[..]);
            if let (true, true, Some((_, (kind, value)))) = (is_there, is_between, seen) {
                expected.push((*kind, key.clone(), value.clone()));
            }
        }
        if reverse {
            expected.reverse();
        }
        let everything = View {
            seq: Seq::MAX,
            from,
            to,
            is_reverse: reverse,
            pieces_max: usize::MAX,
            bytes_max: 0,
        };
        let mut out = Rows::new();
        let is_cut = view(Some(&image), None, &everything, &mut out);
        prop_assert!(!is_cut, "rows of the image are not copied");
        prop_assert_eq!(out.copied_bytes(), 0);
        let mut last = Vec::new();
        prop_assert_eq!(out.last_key(&mut last), !expected.is_empty());
        prop_assert_eq!(&last[..], expected.last().map_or(&b""[..], |row| &row.1));
        let mut seen = Vec::new();
        while out.advance() {
            let kind = out.kind();
            let (key, value) = out.row();
            seen.push((kind, key.to_vec(), value.to_vec()));
        }
        prop_assert_eq!(seen, expected);
        prop_assert!(!out.advance(), "the end stays the end");
    }

    #[test]
    fn an_image_says_what_was_written(versions in versions(0..120), plain in any::<bool>()) {
        let image = image(&versions, plain);
        prop_assert_eq!(contents(&image), versions.clone());
        prop_assert_eq!(image.rows(), versions.len());
        prop_assert_eq!((image.node(), image.level(), image.lsn(), image.interval()), (42, 0, 77, 5));
        let versioned = versions.keys().any(|(_, seq)| seq.0 != 0);
        prop_assert_eq!(image.is_versioned(), versioned);
        prop_assert_eq!(image.len_bytes() % 64, 0);
        prop_assert!(image.memory_bytes() > image.len_bytes());
        let peek = Image::peek(&image.bytes()[..64]).expect("a header");
        prop_assert_eq!((peek.node, peek.lsn, peek.seal), (42, 77, LOCATION.into()));
        prop_assert_eq!((peek.len_bytes, peek.sort), (image.len_bytes(), Sort::Node));
    }

    #[test]
    fn searches_agree_with_the_model(versions in versions(0..120), plain in any::<bool>()) {
        let image = image(&versions, plain);
        let keys: Vec<_> = versions.keys().map(|(key, _)| key).collect();
        for probe in probes(&versions) {
            let bound = keys.iter().position(|key| **key >= probe).unwrap_or(keys.len());
            prop_assert_eq!(image.lower_bound(&probe), bound, "{:?}", probe);
            for seq in [0, 1, 4, 7, 1 << 40, (1 << 40) + 3, u64::MAX] {
                let found = image.find(&probe, seq);
                let found = found.map(|(kind, value)| (kind, value.to_vec()));
                let expected = visible(&versions, &probe, seq).map(|(_, what)| what.clone());
                prop_assert_eq!(found, expected, "{:?} at {}", probe, seq);
            }
        }
    }

    #[test]
    fn rows_compare_as_their_keys(versions in versions(1..12), plain in any::<bool>()) {
        let image = image(&versions, plain);
        for (row, (key, _)) in versions.keys().enumerate() {
            for probe in probes(&versions) {
                prop_assert_eq!(image.compare_key(row, &probe), key.as_slice().cmp(&probe));
            }
        }
    }

    #[test]
    fn random_bytes_are_no_image(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Image::parse(&bytes, 0).is_err());
        prop_assert!(parse_blob(&bytes, 0).is_err());
        prop_assert_eq!(Image::peek(&bytes), None);
    }

    /// An image with a valid checksum but malformed content causes no panic when it is parsed and
    /// queried. A bug in another program, or an attacker, can produce such an image.
    #[test]
    fn whatever_is_sealed_can_be_asked(
        versions in versions(0..40),
        plain in any::<bool>(),
        changes in proptest::collection::vec((0..400_usize, any::<u8>()), 1..6),
        location in any::<u64>(),
    ) {
        let mut bytes = build(&versions, plain, 1);
        let len = bytes.len();
        for (at, byte) in changes {
            // The test does not change the magic, version and length, because parsing would then
            // end immediately.
            let at = if at < 100 { 9 + at % 55 } else { at % len };
            if !(12..16).contains(&at) && at > 8 {
                bytes[at] = byte;
            }
        }
        seal(&mut bytes, location);
        if let Ok(blob) = parse_blob(&bytes, location) {
            prop_assert!(blob.content.len() <= len - 64);
        }
        let Ok(image) = Image::parse(&bytes, location) else {
            return Ok(());
        };
        prop_assert_eq!(contents(&image).len(), image.rows());
        for probe in probes(&versions) {
            let row = image.lower_bound(&probe);
            let before = |row: usize| image.compare_key(row, &probe) == Ordering::Less;
            prop_assert!(row == 0 || before(row - 1));
            prop_assert!(row == image.rows() || !before(row));
            image.find(&probe, 3);
        }
        if image.level() > 0 {
            (0..image.rows()).for_each(|row| _ = image.child(row));
        }
    }
}

#[test]
fn a_changed_byte_or_a_missing_one_is_noticed() {
    let mut builder = Builder::new(false);
    for n in 0..40_u64 {
        builder.push(put(&n.to_be_bytes(), &[n as u8; 11]));
    }
    let mut node = builder.finish(3, 0, 9, 1);
    seal(&mut node, LOCATION);
    let mut blob = blob_image(4, 10, b"content of a length of its own");
    seal(&mut blob, LOCATION);
    assert!(Image::parse(&node, LOCATION).is_ok() && parse_blob(&blob, LOCATION).is_ok());
    for bytes in [node, blob] {
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(parse_blob(&changed, LOCATION).is_err(), "{at}, {bit}");
                assert!(Image::parse(&changed, LOCATION).is_err(), "{at}, {bit}");
            }
            assert!(parse_blob(&bytes[..at], LOCATION).is_err(), "{at}");
            assert!(Image::parse(&bytes[..at], LOCATION).is_err(), "{at}");
        }
    }
}

#[test]
fn an_image_belongs_where_it_was_sealed_for() {
    let mut builder = Builder::new(false);
    builder.push(put(b"key", b"value"));
    let mut bytes = builder.finish(3, 0, 9, 1);
    seal(&mut bytes, 640);
    let moved = Image::parse(&bytes, 641).map(|_| ());
    let expected = ImageError::Location {
        found: 640,
        expected: 641,
    };
    assert_eq!(moved, Err(expected));
    let mut moved = Image::parse(&bytes, 640)
        .expect("sealed for it")
        .bytes()
        .to_vec();
    seal(&mut moved, 641);
    assert!(Image::parse(&moved, 641).is_ok());
}

#[test]
fn what_stands_behind_an_image_is_cut_off() {
    let mut builder = Builder::new(false);
    builder.push(put(b"key", b"value"));
    let mut bytes = builder.finish(3, 0, 9, 1);
    seal(&mut bytes, 0);
    let alone = bytes.clone();
    bytes.extend([0xaa; 500]);
    let image = Image::parse(&bytes, 0).expect("it is there");
    assert_eq!(image.bytes(), alone);
}

#[test]
fn children_are_found_by_their_numbers() {
    for plain in [false, true] {
        let mut builder = Builder::new(plain);
        for n in 0..200_u32 {
            let key = if n == 0 {
                Vec::new()
            } else {
                n.to_be_bytes().to_vec()
            };
            builder.push(put(&key, &(n * 3 + 1_000_000).to_le_bytes()));
        }
        let mut bytes = builder.finish(8, 2, 0, 0);
        seal(&mut bytes, 0);
        let image = Image::parse(&bytes, 0).expect("sealed for it");
        assert_eq!(image.level(), 2);
        for n in 0..200_u32 {
            assert_eq!(image.child(n as usize), n * 3 + 1_000_000);
        }
    }
}

#[test]
fn numbers_are_packed() {
    // An image of 600 consecutive keys and values of 8 bytes has a header of 64 bytes, the keys as
    // offsets of 2 bytes over a base of 8 bytes, and the values, which differ by less than 2^16, in
    // 2 bytes each: 64 + 600 * 2 + 8 + 600 * 2 = 2472 bytes, rounded up to granules.
    let mut builder = Builder::new(false);
    let mut plain = Builder::new(true);
    for n in 0..600_u64 {
        let (key, value) = (
            (n + (1 << 50)).to_be_bytes(),
            (7 * n + (1 << 33)).to_le_bytes(),
        );
        builder.push(put(&key, &value));
        plain.push(put(&key, &value));
    }
    assert_eq!(builder.finish(0, 0, 0, 0).len(), 2496);
    // 64 + 600 * 16 = 9664 = 151 * 64.
    assert_eq!(plain.finish(0, 0, 0, 0).len(), 9664);
}

#[test]
fn limits_are_reached() {
    let mut builder = Builder::new(false);
    for n in 0..ROWS_MAX as u32 {
        builder.push(put(&n.to_be_bytes(), &[]));
    }
    let mut bytes = builder.finish(0, 0, 0, 0);
    seal(&mut bytes, 0);
    let image = Image::parse(&bytes, 0).expect("sealed for it");
    assert_eq!(image.lower_bound(&65_534_u32.to_be_bytes()), 65_534);
    assert_eq!(image.lower_bound(&65_535_u32.to_be_bytes()), 65_535);

    builder.clear();
    let (key, value) = (vec![b'k'; 4096], vec![b'v'; 65_536]);
    builder.push(put(&key[..4095], &value));
    builder.push(put(&key, &value[1..]));
    let mut bytes = builder.finish(0, 0, 0, 0);
    seal(&mut bytes, 0);
    let image = Image::parse(&bytes, 0).expect("sealed for it");
    let found = image.find(&key, 0).map(|(_, value)| value.len());
    assert_eq!(found, Some(65_535));

    let content = vec![1; BLOB_BYTES_MAX];
    let mut blob = blob_image(1, 2, &content);
    assert_eq!(blob.len(), IMAGE_BYTES_MAX);
    seal(&mut blob, 3);
    let blob = parse_blob(&blob, 3).expect("sealed for it");
    assert!(blob.content == content && (blob.node, blob.lsn) == (1, 2));
}

#[test]
#[should_panic(expected = "in their order")]
fn a_row_twice_is_refused() {
    let mut builder = Builder::new(false);
    builder.push(put(b"key", b"1"));
    builder.push(put(b"key", b"2"));
}
