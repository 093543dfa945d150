//! Tests of the readers with lines of known meaning, with damage, and with arbitrary bytes.

mod accounts;
mod arbitrary;
mod damage;
mod formats;

use super::*;
use std::io::{Cursor, Write};

/// Creates a reader over `bytes` in a file called `name`.
pub(super) fn reader(name: &str, bytes: &[u8], options: &Options) -> Result<Reader, TraceError> {
    Reader::new(
        name.to_owned(),
        Box::new(Cursor::new(bytes.to_vec())),
        options,
    )
}

/// Returns all records, or the first error.
pub(super) fn records(
    name: &str,
    bytes: &[u8],
    options: &Options,
) -> Result<Vec<Record>, TraceError> {
    let mut reader = reader(name, bytes, options)?;
    let mut all = Vec::new();
    while let Some(record) = reader.next_record()? {
        all.push(record);
    }
    Ok(all)
}

pub(super) fn in_format(format: Format) -> Options {
    Options {
        format: Some(format),
        ..Options::default()
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Output of `printf '7\n8\n' | xz -c`.
const XZ_OF_7_8: &[u8] = include_bytes!("seven_eight.xz");

#[test]
fn compression_is_seen_in_the_content() {
    let text = b"7\n8\n";
    let plain = records("t", text, &Options::default()).expect("plain");
    assert_eq!(plain.len(), 2);
    let packed = [gzip(text), zstd(text), XZ_OF_7_8.to_vec()];
    for bytes in packed {
        assert_eq!(
            records("t", &bytes, &Options::default()).expect("packed"),
            plain
        );
    }
    // A zstd frame without content, with 3 bytes to skip, is placed before and after the frame with
    // content.
    let note = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let noted = [&note[..], &zstd(text), &note].concat();
    assert_eq!(
        records("t", &noted, &Options::default()).expect("noted"),
        plain
    );
    // A file can consist of several gzip members or zstd frames in sequence.
    let twice = [plain.clone(), plain].concat();
    for bytes in [gzip(text).repeat(2), zstd(text).repeat(2)] {
        assert_eq!(
            records("t", &bytes, &Options::default()).expect("twice"),
            twice
        );
    }
}

#[test]
fn truncated_compression_is_an_error_and_not_a_short_trace() {
    let text = "123456\n".repeat(5000);
    for bytes in [gzip(text.as_bytes()), zstd(text.as_bytes())] {
        for cut in [bytes.len() / 2, bytes.len() - 1] {
            let error = records("cut", &bytes[..cut], &in_format(Format::Lirs));
            let message = error.expect_err("it was cut").to_string();
            assert!(message.starts_with("cut: "), "{message}");
        }
    }
    let xz = &XZ_OF_7_8[..XZ_OF_7_8.len() - 8];
    assert!(records("cut", xz, &in_format(Format::Lirs)).is_err());
}

#[test]
fn an_error_names_the_file_the_line_and_the_reason() {
    let error = records("a.trace", b"1\n2\nx3\n4\n", &in_format(Format::Lirs));
    assert_eq!(
        error.expect_err("line 3 is bad").to_string(),
        "a.trace: line 3: `x3` is not a block number"
    );
    let mut bytes = vscsi_record(4096, 0x28, 8);
    bytes.extend(&vscsi_record(4096, 0x28, 16)[..20]);
    let error = records("b.vscsi", &bytes, &in_format(Format::Vscsi));
    assert_eq!(
        error.expect_err("record 2 is cut").to_string(),
        "b.vscsi: record 2: the file ends within a record, after 20 bytes"
    );
}

/// Builds one record of vscsi, version 1.
pub(super) fn vscsi_record(length: u32, command: u16, lbn: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(command.to_le_bytes());
    bytes.extend(0x0101u16.to_le_bytes());
    bytes.extend(lbn.to_le_bytes());
    bytes.extend(77u64.to_le_bytes());
    bytes
}

#[test]
fn bad_records_are_passed_over_only_by_choice_and_counted() {
    let text = b"1\nbad\n2\nworse\n3\n";
    let skipping = |skip_bad| Options {
        skip_bad,
        ..in_format(Format::Lirs)
    };
    let mut all = reader("t", text, &skipping(SkipBad::All)).expect("it opens");
    let mut count = 0;
    while all
        .next_record()
        .expect("bad lines are passed over")
        .is_some()
    {
        count += 1;
    }
    assert_eq!((count, all.skipped()), (3, 2));
    assert!(records("t", text, &skipping(SkipBad::AtMost(2))).is_ok());
    let error = records("t", text, &skipping(SkipBad::AtMost(1))).expect_err("two are bad");
    assert!(error.to_string().starts_with("t: line 4: "), "{error}");
}

#[test]
fn a_line_without_end_takes_no_memory() {
    let mut bytes = vec![b'1'; 10 << 20];
    bytes.extend(b"\n5\n");
    let options = Options {
        skip_bad: SkipBad::All,
        ..in_format(Format::Lirs)
    };
    let all = records("t", &bytes, &options).expect("the long line is passed over");
    assert_eq!(all.len(), 1);
    assert!(records("t", &bytes, &in_format(Format::Lirs)).is_err());
}

#[test]
fn requests_are_split_into_the_pages_they_touch() {
    // A length of 4097 bytes from offset 4095 covers the bytes 4095..8192: the last byte of page 0
    // and all of page 1. With one more byte, the range also touches page 2.
    let record = |offset_bytes, length_bytes, op| Record {
        time_ns: 0,
        op,
        offset_bytes,
        length_bytes,
    };
    let mut collector = Collector::new(Key::Page { page_bytes: 4096 });
    assert_eq!(collector.push(&record(4095, 4097, Op::Read)), Ok(()));
    assert_eq!(collector.push(&record(4095, 4098, Op::Write)), Ok(()));
    assert_eq!(collector.push(&record(8192, 4096, Op::Trim)), Ok(()));
    let accesses = collector.finish();
    let seen: Vec<_> = accesses
        .iter()
        .map(|(id, kind)| (accesses.pages()[id as usize], kind))
        .collect();
    use Kind::{Read, Trim, Write};
    let expected = [
        (0, Read),
        (1, Read),
        (0, Write),
        (1, Write),
        (2, Write),
        (2, Trim),
    ];
    assert_eq!(seen, expected);
    assert_eq!((accesses.counts(), accesses.len()), ([2, 3, 1], 5));
    let mut objects = Collector::new(Key::Record);
    assert_eq!(objects.push(&record(4095, 4097, Op::Read)), Ok(()));
    assert_eq!(objects.finish().pages(), [4095]);
}

#[test]
fn a_trace_that_is_too_large_says_so_before_it_takes_the_memory() {
    // A request of 4 GiB touches 2^32 pages of one byte, so the first request already has too many
    // accesses.
    let mut collector = Collector::new(Key::Page { page_bytes: 1 });
    let request = Record {
        time_ns: 0,
        op: Op::Read,
        offset_bytes: 0,
        length_bytes: 4 << 30,
    };
    assert_eq!(collector.push(&request), Err(Full::Accesses));
}

#[test]
fn a_page_written_twice_is_one_page_of_the_footprint() {
    let mut summary = Summary::new(4096);
    for (op, offset_bytes) in [(Op::Write, 0), (Op::Write, 0), (Op::Read, 4096)] {
        summary.add(&Record {
            time_ns: 5,
            op,
            offset_bytes,
            length_bytes: 4096,
        });
    }
    assert_eq!((summary.footprint_pages(), summary.written_pages), (2, 1));
    assert_eq!(
        (summary.requests, summary.page_accesses),
        ([1, 2, 0], [1, 2, 0])
    );
}
