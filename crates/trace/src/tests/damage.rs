//! Tests of damage to compressed traces: every flipped bit is an error or changes no record, and
//! every truncation is an error.

use super::*;

/// Returns lines with different block numbers, so that any change of the content changes a record.
fn text() -> Vec<u8> {
    let lines = (0..60u64).map(|n| format!("{}\n", n * 7919 + 100_000));
    lines.collect::<String>().into_bytes()
}

/// Builds a zstd frame (RFC 8878, 3.1.1) with the content in one raw block, and with a checksum if
/// `has_checksum` is true.
fn raw_zstd(content: &[u8], has_checksum: bool) -> Vec<u8> {
    let length = content.len();
    // The frame has a single segment, and optionally a checksum. Two bytes of the header store the
    // content size minus 256.
    let descriptor = 0x60 | u8::from(has_checksum) << 2;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, descriptor];
    frame.extend(((length - 256) as u16).to_le_bytes());
    frame.extend(&((length << 3 | 1) as u32).to_le_bytes()[..3]);
    frame.extend(content);
    if !has_checksum {
        return frame;
    }
    let mut hash = twox_hash::XxHash64::with_seed(0);
    std::hash::Hasher::write(&mut hash, content);
    frame.extend((std::hash::Hasher::finish(&hash) as u32).to_le_bytes());
    frame
}

fn xz(content: &[u8]) -> Vec<u8> {
    let options = lzma_rust2::XzOptions::with_preset(1);
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).expect("memory takes it");
    writer.write_all(content).expect("memory takes everything");
    writer.finish().expect("memory takes everything")
}

/// Returns the same text in every supported compression.
fn compressed() -> Vec<(&'static str, Vec<u8>)> {
    let text = text();
    vec![
        ("gzip", gzip(&text)),
        ("zstd", zstd(&text)),
        ("zstd, raw", raw_zstd(&text, true)),
        ("xz", xz(&text)),
    ]
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_no_record() {
    let whole = records("t", &text(), &in_format(Format::Lirs)).expect("plain text");
    assert_eq!(whole.len(), 60);
    for (name, bytes) in compressed() {
        let intact = records("t", &bytes, &in_format(Format::Lirs)).expect(name);
        assert_eq!(intact, whole, "{name}");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let read = records("t", &damaged, &in_format(Format::Lirs));
                assert!(
                    read.is_err() || read.is_ok_and(|read| read == whole),
                    "{name}: bit {bit} of byte {at} flipped: read as another trace"
                );
            }
        }
    }
}

#[test]
fn a_cut_is_an_error() {
    for (name, bytes) in compressed() {
        for cut in 1..bytes.len() {
            let read = records("t", &bytes[..cut], &in_format(Format::Lirs));
            assert!(read.is_err(), "{name}: cut after {cut} bytes");
        }
    }
}

#[test]
fn a_wrong_checksum_is_told_with_the_file_and_the_place_of_its_frame() {
    let (first, mut second) = (zstd(b"7\n"), zstd(b"8\n"));
    let at = first.len();
    *second.last_mut().expect("a checksum") ^= 1;
    let error = records("a.zst", &[first, second].concat(), &in_format(Format::Lirs));
    let message = error.expect_err("the second is damaged").to_string();
    assert!(message.starts_with("a.zst: "), "{message}");
    let place = format!("the zstd frame at byte {at}: its content does not match its checksum");
    assert!(message.ends_with(&place), "{message}");
}

#[test]
fn content_without_a_checksum_is_said() {
    let text = text();
    let notes = |bytes: &[u8]| {
        let mut reader = reader("t", bytes, &in_format(Format::Lirs)).expect("it opens");
        while reader.next_record().expect("it is whole").is_some() {}
        reader.notes()
    };
    let without = raw_zstd(&text, false);
    let said = notes(&without);
    let expected = "compressed without a checksum (1 parts): damage may be undetected";
    assert_eq!(said, [expected]);
    // The length is also checked in a frame without a checksum: here the frame header states one
    // byte too many.
    let mut longer = without;
    longer[5] += 1;
    assert!(records("t", &longer, &in_format(Format::Lirs)).is_err());
    for (name, bytes) in compressed() {
        assert!(notes(&bytes).is_empty(), "{name}");
    }
}
