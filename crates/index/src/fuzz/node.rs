//! Fuzzes the decoders of nodes, blobs and patches with arbitrary bytes: a decoder must refuse the
//! bytes, or return a value that can be read like that of a valid image.

use super::Input;
use crate::node::{
    Builder, Delta, HEADER_BYTES, IMAGE_BYTES_MAX, Image, Kind, ROWS_MAX, Row, Rows, View,
    consolidate, parse_blob, seal, view,
};
use crate::segments::Location;
use crate::tree::inner::Inner;
use crate::tree::patch::{Filter, merged};
use std::cmp::Ordering;
use std::ops::Bound;

const MAGIC_AT: usize = 4;
const VERSION_AT: usize = 8;
const SORT_AT: usize = 9;
const LENGTH_AT: usize = 12;
const RESERVED_AT: usize = 52;
const GRANULE_BYTES: usize = 64;
const PATCH: u8 = 2;

/// Reads the bytes unchanged; then with a valid header and checksum; then cut in two, as a leaf and
/// a patch of that leaf.
pub fn node(data: &[u8]) {
    let _ = Image::peek(data);
    if let Ok(image) = Image::parse(data, 0) {
        look(&image);
    }
    let _ = parse_blob(data, 0);
    let mut input = Input::new(data);
    let cut = usize::from(input.number16());
    let location = input.number64();
    let sealed = sealed(input.rest, location, None);
    if let Ok(blob) = parse_blob(&sealed, location) {
        assert!(blob.content.len() <= sealed.len() - HEADER_BYTES);
    }
    if let Ok(image) = Image::parse(&sealed, location) {
        look(&image);
    }
    let leaf = input.take(cut);
    merge(leaf, input.rest);
}

/// Returns the bytes with valid header fields and a valid checksum, so that the other bytes are
/// parsed.
fn sealed(bytes: &[u8], location: u64, sort: Option<u8>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(
        bytes
            .len()
            .max(HEADER_BYTES)
            .next_multiple_of(GRANULE_BYTES),
        0,
    );
    bytes[MAGIC_AT..VERSION_AT].copy_from_slice(b"bmIN");
    bytes[VERSION_AT] = 1;
    bytes[SORT_AT] = sort.unwrap_or(bytes[SORT_AT]);
    let len = bytes.len() as u32;
    bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&len.to_le_bytes());
    bytes[RESERVED_AT..RESERVED_AT + 4].fill(0);
    seal(&mut bytes, location);
    bytes
}

fn keys(image: &Image) -> Vec<Vec<u8>> {
    let key = |row| {
        let mut key = Vec::new();
        image.key(row, &mut key);
        key
    };
    (0..image.rows()).map(key).collect()
}

/// Calls every read function of an image.
fn look(image: &Image) {
    let keys = keys(image);
    assert!(keys.len() <= ROWS_MAX && image.len_bytes() <= IMAGE_BYTES_MAX);
    for (row, key) in keys.iter().enumerate() {
        let bound = image.lower_bound(key);
        assert!(
            bound <= row && keys[bound] == *key,
            "the first row of a key"
        );
        assert_eq!(image.compare_key(row, key), Ordering::Equal);
        let newest = image.find(key, u64::MAX).expect("a row is found");
        assert_eq!(newest.0, image.kind(bound));
        assert_eq!(newest.1.as_slice(), image.value(bound).as_slice());
    }
    for probe in [&b""[..], b"k", &[0xFF; 9]] {
        let bound = image.lower_bound(probe);
        assert_eq!(bound, keys.partition_point(|key| &key[..] < probe));
        let _ = image.find(probe, 3);
    }
    if image.level() > 0 {
        (0..image.rows()).for_each(|row| _ = image.child(row));
        if let Ok(inner) = Inner::from_image(image, 0) {
            let found = keys.iter().skip(1).map(|key| inner.find(key));
            assert!(found.eq(1..keys.len()), "each separator leads to its child");
        }
        return;
    }
    if image.is_patch() {
        assert_eq!(
            Filter::of(image).prints().map(<[u16]>::len),
            Some(keys.len())
        );
    }
    look_both_ways(image);
    write_anew(image);
}

/// A row of a scan.
type Seen = (Kind, Vec<u8>, Vec<u8>);

fn viewed(image: &Image, delta: &Delta, is_reverse: bool) -> Vec<Seen> {
    let everything = View {
        seq: u64::MAX,
        from: Bound::Unbounded,
        to: Bound::Unbounded,
        is_reverse,
        pieces_max: usize::MAX,
        bytes_max: usize::MAX,
    };
    let mut rows = Rows::new();
    let is_cut = view(Some(image), Some(delta), &everything, &mut rows);
    assert!(!is_cut, "there was no limit");
    let mut seen = Vec::new();
    while rows.advance() {
        let kind = rows.kind();
        let (key, value) = rows.row();
        seen.push((kind, key.to_vec(), value.to_vec()));
    }
    seen
}

/// Checks that a scan returns the same rows in both directions.
fn look_both_ways(image: &Image) {
    let mut delta = Delta::new();
    delta.insert(b"k", 5, Kind::Put, b"value", 0);
    delta.insert_range(Bound::Included(b"x"), Bound::Unbounded, 6, 0);
    let (forward, backward) = (viewed(image, &delta, false), viewed(image, &delta, true));
    assert!(forward.iter().eq(backward.iter().rev()));
}

/// Checks that the rows of an image can be written into a new image, and that the new image has the
/// same rows.
fn write_anew(image: &Image) {
    let mut rows: Vec<(Vec<u8>, u64, Kind, Vec<u8>)> = Vec::new();
    let mut push = |row: Row<'_>| {
        rows.push((row.key.to_vec(), row.seq, row.kind, row.value.to_vec()));
    };
    consolidate(Some(image), &Delta::new(), 0, &mut push, &mut |_| {});
    let mut builder = Builder::new(false);
    image
        .range()
        .into_iter()
        .for_each(|range| builder.set_range(range));
    for (key, seq, kind, value) in &rows {
        builder.push(Row {
            key,
            seq: *seq,
            kind: *kind,
            value,
        });
    }
    let mut bytes = builder.finish(image.node(), 0, image.lsn(), image.interval());
    seal(&mut bytes, 1);
    let again = Image::parse(&bytes, 1).expect("an image that was just made can be read");
    assert_eq!(again.rows(), rows.len());
    assert_eq!(again.range(), image.range());
    for (row, (key, seq, kind, value)) in rows.iter().enumerate() {
        assert_eq!(again.compare_key(row, key), Ordering::Equal);
        assert_eq!((again.seq(row), again.kind(row)), (*seq, *kind));
        assert_eq!(again.value(row).as_slice(), &value[..]);
    }
}

/// Merges a patch into its leaf, and checks that the result has the rows of the patch.
fn merge(leaf: &[u8], patch: &[u8]) {
    let parse = |bytes, sort| Image::parse(&sealed(bytes, 1, sort), 1);
    let (Ok(leaf), Ok(patch)) = (parse(leaf, None), parse(patch, Some(PATCH))) else {
        return;
    };
    if leaf.level() > 0 || leaf.is_patch() {
        return;
    }
    let both = merged(
        &leaf,
        std::slice::from_ref(&patch),
        Location::NOWHERE,
        &mut |_| {},
    );
    // A correct leaf has no version newer than its LSN. If this leaf has such a version, reading it
    // may return anything.
    if (0..leaf.rows()).any(|row| leaf.seq(row) > leaf.lsn()) {
        return;
    }
    for (row, key) in keys(&patch).iter().enumerate() {
        let found = both.find(key, u64::MAX);
        match patch.kind(row) {
            Kind::Delete => assert!(found.is_none_or(|(kind, _)| kind == Kind::Delete)),
            kind => {
                let (found, value) = found.expect("what a patch says is there");
                assert_eq!(
                    (found, value.as_slice()),
                    (kind, patch.value(row).as_slice())
                );
            }
        }
    }
}
