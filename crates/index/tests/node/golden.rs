//! Golden images, written byte by byte by hand from docs/format/index-node.md. The checksums come
//! from an independent bitwise CRC32C in Python:
//!
//! ```text
//! def crc32c(b):
//!     c = 0xffffffff
//!     for x in b:
//!         c ^= x
//!         for _ in range(8):
//!             c = (c >> 1) ^ (0x82f63b78 if c & 1 else 0)
//!     return c ^ 0xffffffff       # crc32c(b"123456789") == 0xe3069283
//! ```
//!
//! The images of a released version of the format must never be changed; a new version adds new
//! images.

use super::model::contents;
use bimetal_index::node::{
    Builder, Image, ImageError, KeyRange, Kind, Row, Seal, Seq, blob_image, parse_blob, seal,
};
use std::cmp::Reverse;

/// A leaf with five versions of three keys of 11 bytes.
const LEAF: &str = "
dc 34 d4 c5             | CRC32C of all that follows
62 6d 49 4e             | magic `bmIN`
01                      | version 1
00                      | a node
00                      | level 0
03                      | has sequence numbers (1) and kinds (2)
80 00 00 00             | 128 bytes
00 10 00 00 00 00 00 00 | location 0x1000
22 11 00 00 00 00 00 00 | LSN 0x1122
07 00 00 00             | node 7
05 00                   | 5 rows
0a 00                   | a common prefix of 10 bytes
03                      | update interval class 3
00 01                   | keys: integers, offsets of 1 byte
02 01                   | values: of any length, boundaries of 1 byte
01                      | offsets of sequence numbers: 1 byte
01 00                   | keys have 1 byte behind the prefix
00 00 00 00             | values have no common length
00 00 00 00             | reserved
31 00 00 00 00 00 00 00 | base of the keys: `1`
63 75 73 74 6f 6d 65 72 | prefix `customer
2d 30                   | -0`
00 00 01 01 04          | keys `1`, `1`, `2`, `2`, `5`
00 03 06 06 0b 0b       | boundaries of the values
41 64 61 45 76 65       | `Ada`, `Eve`, (nothing)
72 65 66 21 21          | `ref!!`, (nothing)
07 00 00 00 00 00 00 00 | base of the sequence numbers: one below the lowest but 0
02 00 01 00 00          | 9, 0, 8, 0, 0
90 00                   | kinds 0, 0, 1, 2 from the lowest bits up; 0
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 | to a multiple of 64
";

/// An inner node; keys and children are packed as numbers.
const INNER: &str = "
64 ca ad 7d             | CRC32C
62 6d 49 4e 01          | magic, version
00 02 00                | a node, level 2, nothing but values
80 00 00 00             | 128 bytes
ff ff ff ff ff ff ff ff | location
08 07 06 05 04 03 02 01 | LSN
78 56 34 12             | node 0x12345678
03 00 00 00 00          | 3 rows, no prefix, interval class 0
00 02                   | keys: integers, offsets of 2 bytes
00 01                   | values: integers, offsets of 1 byte
00                      | no sequence numbers
04 00 04 00 00 00       | keys of 4 bytes, values of 4 bytes
00 00 00 00             | reserved
00 00 01 00 00 00 00 00 | base of the keys 0x00010000
00 00 00 02 ff 03       | 0x00010000, 0x00010200, 0x000103ff
01 05 00 00 00 00 00 00 | base of the values 0x501
00 01 0f                | 0x501, 0x502, 0x510
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 | to a multiple of 64
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
";

/// A plain leaf: nothing is packed.
const PLAIN: &str = "
1d 63 16 45             | CRC32C
62 6d 49 4e 01          | magic, version
00 00 00                | a node, level 0, nothing but values
80 00 00 00             | 128 bytes
00 00 00 00 00 00 00 00 | location 0
00 00 00 00 00 00 00 00 | LSN 0
01 00 00 00             | node 1
02 00 00 00 ff          | 2 rows, no prefix, interval class 255
02 01                   | keys: of any length, boundaries of 1 byte
01 00                   | values: all of one length
00                      | no sequence numbers
00 00 02 00 00 00       | keys of no common length, values of 2 bytes
00 00 00 00             | reserved
00 00 00 00 00 00 00 00 | no base of the keys
00 02 05                | boundaries of the keys
61 62 61 62 63          | `ab`, `abc`
76 31 76 32             | `v1`, `v2`
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 | to a multiple of 64
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
";

/// A blob.
const BLOB: &str = "
f2 49 d0 69             | CRC32C
62 6d 49 4e 01          | magic, version
01 00 00                | a blob
80 00 00 00             | 128 bytes
40 00 00 00 00 00 00 00 | location 64
05 00 00 00 00 00 00 00 | LSN 5
09 00 00 00             | number 9
01 00 00 00 00          | 1 row
01 00 01 00             | both columns: all of one length
00 00 00                | no sequence numbers, keys of no bytes
0b 00 00 00             | content of 11 bytes
00 00 00 00             | reserved
00 00 00 00 00 00 00 00 | no base of the keys
6f 75 74 20 6f 66 20 6c 69 6e 65 | `out of line`
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 | to a multiple of 64
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
";

/// A leaf with its key range.
const LEAF_WITH_RANGE: &str = "
34 05 28 4e             | CRC32C
62 6d 49 4e 01          | magic, version
00 00 04                | a node, a leaf, a range
80 00 00 00             | 128 bytes
40 00 00 00 00 00 00 00 | location 64
03 00 00 00 00 00 00 00 | LSN 3
07 00 00 00             | leaf 7
02 00 00 00 02          | 2 rows, no prefix, interval class 2
00 01                   | keys: integers, offsets of 1 byte
01 00                   | values: of one length
00                      | no sequence numbers
02 00 01 00 00 00       | keys of 2 bytes, values of 1
00 00 00 00             | reserved
31 61 00 00 00 00 00 00 | base of the keys, `a1`
00 02                   | `a1`, `a3`
78 79                   | `x`, `y`
01 00 00 00             | the range begins with 1 byte of `a1` and no more
00 00 01 00 62          | and ends before 0 bytes of `a3` and 1 more, `b`
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 | to a multiple of 64
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
";

/// A patch.
const PATCH: &str = "
f9 4d a4 87             | CRC32C
62 6d 49 4e 01          | magic, version
02 00 02                | a patch, level 0, a column of kinds
80 00 00 00             | 128 bytes
40 00 00 00 00 00 00 00 | location 64
03 00 00 00 00 00 00 00 | LSN 3
07 00 00 00             | leaf 7
02 00 00 00 02          | 2 rows, no prefix, interval class 2
00 01                   | keys: integers, offsets of 1 byte
02 01                   | values: of any length, boundaries of 1 byte
00                      | no sequence numbers
02 00 00 00 00 00       | keys of 2 bytes, values of no common length
00 00 00 00             | reserved
31 61 00 00 00 00 00 00 | base of the keys, `a1`
00 01                   | `a1`, `a2`
00 01 01                | boundaries of the values
78                      | `x`
04                      | a put and a delete
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 | to a multiple of 64
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
";

fn bytes(page: &str) -> Vec<u8> {
    let hex = page.lines().flat_map(|line| {
        let bytes = line.split('|').next().unwrap_or_default();
        bytes
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    hex.map(|byte| u8::from_str_radix(&byte, 16).expect("hex"))
        .collect()
}

type Version = (&'static [u8], Seq, Kind, &'static [u8]);

/// Builds an image of the rows, compares it with the expected page, and then parses the page.
fn check(page: &str, plain: bool, rows: &[Version], numbers: (u32, u8, u64, u8), location: u64) {
    let mut builder = Builder::new(plain);
    for &(key, seq, kind, value) in rows {
        builder.push(Row {
            key,
            seq,
            kind,
            value,
        });
    }
    let (node, level, lsn, interval) = numbers;
    let mut built = builder.finish(node, level, lsn, interval);
    seal(&mut built, location);
    assert_eq!(built, bytes(page));

    let image = Image::parse(&bytes(page), location).expect("the page is right");
    let read = (image.node(), image.level(), image.lsn(), image.interval());
    assert_eq!(read, numbers);
    let version =
        |&(key, seq, kind, value): &Version| ((key.to_vec(), Reverse(seq)), (kind, value.to_vec()));
    assert_eq!(contents(&image), rows.iter().map(version).collect());
}

#[test]
fn a_leaf_of_version_1() {
    let rows: &[Version] = &[
        (b"customer-01", 9, Kind::Put, b"Ada"),
        (b"customer-01", 0, Kind::Put, b"Eve"),
        (b"customer-02", 8, Kind::Delete, b""),
        (b"customer-02", 0, Kind::Blob, b"ref!!"),
        (b"customer-05", 0, Kind::Put, b""),
    ];
    check(LEAF, false, rows, (7, 0, 0x1122, 3), 0x1000);
}

#[test]
fn an_inner_node_of_version_1() {
    let rows: &[Version] = &[
        (&[0, 1, 0, 0], 0, Kind::Put, &[1, 5, 0, 0]),
        (&[0, 1, 2, 0], 0, Kind::Put, &[2, 5, 0, 0]),
        (&[0, 1, 3, 0xff], 0, Kind::Put, &[0x10, 5, 0, 0]),
    ];
    let numbers = (0x1234_5678, 2, 0x0102_0304_0506_0708, 0);
    check(INNER, false, rows, numbers, u64::MAX);
    let image = Image::parse(&bytes(INNER), u64::MAX).expect("the page is right");
    assert_eq!(image.child(2), 0x510);
}

#[test]
fn a_plain_node_of_version_1() {
    let rows: &[Version] = &[(b"ab", 0, Kind::Put, b"v1"), (b"abc", 0, Kind::Put, b"v2")];
    check(PLAIN, true, rows, (1, 0, 0, 255), 0);
}

#[test]
fn a_blob_of_version_1() {
    let mut built = blob_image(9, 5, b"out of line");
    seal(&mut built, 64);
    assert_eq!(built, bytes(BLOB));
    let page = bytes(BLOB);
    let blob = parse_blob(&page, 64).expect("the page is right");
    assert_eq!(
        (blob.node, blob.lsn, blob.content),
        (9, 5, &b"out of line"[..])
    );
}

#[test]
fn a_patch_of_version_1() {
    let mut builder = Builder::new(false);
    let row = |key, kind, value| Row {
        key,
        seq: 0,
        kind,
        value,
    };
    builder.push(row(b"a1", Kind::Put, b"x"));
    builder.push(row(b"a2", Kind::Delete, b""));
    let mut built = builder.finish_patch(7, 3, 2);
    seal(&mut built, 64);
    assert_eq!(built, bytes(PATCH));
    let image = Image::parse(&bytes(PATCH), 64).expect("the page is right");
    assert!(image.is_patch());
    assert_eq!(image.find(b"a1", 0).map(|(kind, _)| kind), Some(Kind::Put));
    assert_eq!(
        image.find(b"a2", 0).map(|(kind, _)| kind),
        Some(Kind::Delete)
    );
    assert!(image.find(b"a3", 0).is_none());
}

#[test]
fn a_leaf_with_its_range() {
    let mut builder = Builder::new(false);
    for (key, value) in [(b"a1", b"x"), (b"a3", b"y")] {
        builder.push(Row {
            key,
            seq: 0,
            kind: Kind::Put,
            value,
        });
    }
    let range = KeyRange {
        from: Box::from(&b"a"[..]),
        to: Some(Box::from(&b"b"[..])),
    };
    builder.set_range(range.clone());
    assert_eq!(builder.estimated_bytes(), 128);
    let mut built = builder.finish(7, 0, 3, 2);
    seal(&mut built, 64);
    assert_eq!(built, bytes(LEAF_WITH_RANGE));
    let image = Image::parse(&bytes(LEAF_WITH_RANGE), 64).expect("the page is right");
    assert_eq!(image.range(), Some(range));
    let others = Image::parse(&bytes(LEAF), 0x1000).expect("the page is right");
    assert_eq!(others.range(), None);
    // Only a leaf is allowed to have a key range; an inner node or a patch with a range is refused.
    for (at, byte) in [(10, 1), (9, 2)] {
        let mut page = bytes(LEAF_WITH_RANGE);
        page[at] = byte;
        seal(&mut page, 64);
        let refused = Image::parse(&page, 64);
        assert!(
            matches!(refused, Err(ImageError::Malformed(_))),
            "{refused:?}"
        );
    }
    let mut page = bytes(LEAF_WITH_RANGE);
    page[76] = 0x61;
    seal(&mut page, 64);
    assert!(Image::parse(&page, 64).is_err(), "it ends before its rows");
}

/// A patch must have all its values inline and no sequence numbers, so that every reader sees its
/// rows. Other patches are refused.
#[test]
fn a_patch_of_other_rows_is_refused() {
    let refused = |at: usize, byte: u8| {
        let mut page = bytes(PATCH);
        page[at] = byte;
        seal(&mut page, 64);
        Image::parse(&page, 64).expect_err("no patch of version 1")
    };
    // Each of the three calls changes one byte of the patch. The first change puts a value out of
    // line, the second sets the level of an inner node, and the third adds a column of sequence
    // numbers. The page has enough zero bytes to contain such a column.
    let of_kind = |error| {
        matches!(
            error,
            ImageError::Malformed("a patch of other rows than changes")
        )
    };
    assert!(of_kind(refused(70, 0x08)));
    assert!(of_kind(refused(10, 1)));
    assert!(matches!(refused(11, 3), ImageError::Malformed(_)));
}

/// Changes one byte of the leaf's page and recomputes its checksum (the seal). Returns the error of
/// parsing the page.
fn refused(at: usize, byte: u8) -> ImageError {
    let mut page = bytes(LEAF);
    assert_ne!(page[at], byte, "this would change nothing");
    page[at] = byte;
    seal(&mut page, 0x1000);
    let image = Image::parse(&page, 0x1000).map(|_| ());
    image.expect_err("this is no image of version 1")
}

#[test]
fn another_version_is_refused() {
    assert_eq!(refused(8, 2), ImageError::Version(2));
}

/// An image that remains at its location from an earlier generation of the segment is refused.
#[test]
fn an_image_of_another_filling_is_refused() {
    let mut page = bytes(LEAF);
    let meant = Seal {
        location: 0x1000,
        generation: 0x0807_0605,
    };
    seal(&mut page, meant);
    assert_eq!(page[52..56], [5, 6, 7, 8]);
    assert!(Image::parse(&page, meant).is_ok());
    for expected in [0, 0x0807_0604] {
        let other = Seal {
            generation: expected,
            ..meant
        };
        let refused = ImageError::Generation {
            found: meant.generation,
            expected,
        };
        let parsed = Image::parse(&page, other).map(|_| ());
        assert_eq!(parsed, Err(refused));
    }
}

#[test]
fn what_no_writer_writes_is_refused() {
    let changes = [
        (9, 1, "a blob has no rows"),
        (9, 2, "neither node nor blob"),
        (10, 1, "an inner node has no versions"),
        (11, 0x0B, "an unknown flag"),
        (36, 100, "columns beyond the end"),
        (37, 1, "columns far beyond the end"),
        (39, 0x10, "a prefix longer than a key"),
        (41, 3, "an unknown form"),
        (42, 9, "a number of 9 bytes"),
        (44, 5, "boundaries of 5 bytes"),
        (45, 9, "a sequence number of 9 bytes"),
        (46, 9, "an integer key of 9 bytes"),
        (48, 1, "a common length of what has none"),
        (56, 0xfc, "the last key is 0x100, of 1 byte"),
        (63, 0x80, "a key is 2 to the power of 63, and more"),
        (74, 2, "the first key above the second"),
        (
            76,
            0,
            "a third version of the first key, newer than the second",
        ),
        (79, 1, "the values do not start at 0"),
        (82, 0x0c, "the fourth value ends before it starts"),
        (84, 0xff, "values beyond the end"),
        (104, 0, "a version twice"),
        (105, 3, "an older version before a newer one"),
        (109, 0x93, "a row of kind 3"),
    ];
    for (at, byte, why) in changes {
        let error = refused(at, byte);
        assert!(matches!(error, ImageError::Malformed(_)), "{why}: {error}");
    }
}

#[test]
fn a_value_beyond_its_limit_is_refused() {
    let values = [[1; 65_536].as_slice(), &[2; 65_535]];
    let mut builder = Builder::new(false);
    for (key, value) in [b"a", b"b"].into_iter().zip(values) {
        builder.push(Row {
            key,
            seq: 0,
            kind: Kind::Put,
            value,
        });
    }
    let mut built = builder.finish(0, 0, 0, 0);
    // After the header come 2 bytes of keys, and then the offsets at which the values start and
    // end, 3 bytes each. The changed byte makes the second offset 65,537, so the first value is
    // longer than its limit.
    assert_eq!(built[66..75], [0, 0, 0, 0, 0, 1, 0xff, 0xff, 1]);
    built[69] = 1;
    seal(&mut built, 0);
    let error = Image::parse(&built, 0).map(|_| ());
    assert!(matches!(error, Err(ImageError::Malformed(_))), "{error:?}");
}
