//! Messages and answers written by hand, byte by byte, from the definitions in `linux/fuse.h`, for
//! little-endian machines.
#![cfg(target_endian = "little")]

use super::*;

/// Converts hexadecimal digits to bytes. Blanks in the text are ignored.
fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let bytes = digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8);
    bytes.collect()
}

/// Encodes a message: a `fuse_in_header` with operation `opcode`, inode 2 and the identifier
/// 0x0807060504030201, followed by `rest`.
fn message(opcode: u32, rest: &str) -> Vec<u8> {
    let rest = from_hex(rest);
    let len = 40 + rest.len() as u32;
    let mut bytes = Vec::new();
    bytes.extend(len.to_le_bytes());
    bytes.extend(opcode.to_le_bytes());
    // The fields in order: unique; nodeid; uid 1000, gid 100, pid 4660; no extensions, padding.
    bytes.extend(from_hex("0102030405060708 0200000000000000"));
    bytes.extend(from_hex("e8030000 64000000 34120000 0000 0000"));
    bytes.extend(rest);
    bytes
}

/// Decodes the request of a message. As after a read from `/dev/fuse`, the message is passed in two
/// parts: the head, which is its first [`HEAD_BYTES`] bytes, and all bytes after the head.
fn decoded(bytes: &[u8]) -> Option<Asked> {
    let (head, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES));
    let header = decode_header(head, bytes.len())?;
    decode(&header, head, rest)
}

const fn range(offset: u64, len: u64) -> Range {
    Range { offset, len }
}

#[test]
fn a_header_lies_as_in_the_kernels() {
    let bytes = message(3, "00000000 00000000 0000000000000000");
    let header = Header {
        len: 56,
        opcode: 3,
        unique: 0x0807_0605_0403_0201,
        node: 2,
    };
    assert_eq!(decode_header(&bytes, 56), Some(header));
    // A header is rejected if its length differs from the received length, or if the message is
    // shorter than a header.
    assert_eq!(decode_header(&bytes, 55), None);
    assert_eq!(decode_header(&bytes[..56], 57), None);
    let mut short = message(38, "");
    short.truncate(39);
    short[0] = 39;
    assert_eq!(decode_header(&short, 39), None);
    assert_eq!(decode_header(&[], 0), None);
}

#[test]
fn the_first_message_says_what_the_kernel_is() {
    // Version 7.38; read-ahead 128 KiB; the flags ASYNC_READ, BIG_WRITES, ASYNC_DIO,
    // PARALLEL_DIROPS, MAX_PAGES and INIT_EXT.
    let text = "07000000 26000000 00000200 21804440";
    let long = message(26, &format!("{text} {}", "00".repeat(48)));
    let init = Init {
        major: 7,
        minor: 38,
        read_ahead_bytes: 0x2_0000,
        flags: 0x4044_8021,
    };
    assert_eq!(decoded(&long), Some(Asked::Init(init)));
    // A kernel before 7.36 sends no second word of flags.
    assert_eq!(decoded(&message(26, text)), Some(Asked::Init(init)));
    assert_eq!(decoded(&message(26, &text[..26])), None);

    assert!(init.suffices());
    let minor = |minor| Init { minor, ..init };
    assert!(minor(31).suffices() && !minor(30).suffices());
    let without_max_pages = Init {
        flags: 0x4004_8021,
        ..init
    };
    assert!(!without_max_pages.suffices());
    assert!(!Init { major: 8, ..init }.suffices());
}

#[test]
fn the_first_answer_names_the_limits() {
    let init = Init {
        major: 7,
        minor: 31,
        read_ahead_bytes: 0x2_0000,
        flags: 0x4044_8021,
    };
    let limits = Limits {
        transfer_bytes_max: 1 << 20,
        background_max: 64,
    };
    // The kernel's version, its read-ahead, and the flags that kernel and server both support; 64
    // for both limits on background requests; max_write 1 MiB, time_gran 1; 256 pages; zeroes in
    // the rest of the 64 bytes.
    let expected =
        "07000000 1f000000 00000200 21804400  4000 4000 00001000 01000000  0001 0000 00000000";
    let expected = [from_hex(expected), vec![0; 28]].concat();
    assert_eq!(expected.len(), 64);
    assert_eq!(init_answer(&init, &limits), expected);
    // A newer kernel gets version 38, the newest that the server implements.
    let newer = Init { minor: 45, ..init };
    assert_eq!(init_answer(&newer, &limits)[4..8], [38, 0, 0, 0]);
    let other = [from_hex("07000000 26000000"), vec![0; 56]].concat();
    assert_eq!(other_major_answer(), other);
}

#[test]
fn reads_and_writes_name_a_range() {
    // The fields of `fuse_read_in` in order: `fh`, which is 5; `offset`; `size`; `read_flags`;
    // `lock_owner`; `flags`; padding.
    let text =
        "0500000000000000 0010000000000001 00020000 00000000 0000000000000000 02800000 00000000";
    let place = range(0x0100_0000_0000_1000, 512);
    assert_eq!(decoded(&message(15, text)), Some(Asked::Read(place)));
    assert_eq!(decoded(&message(28, text)), Some(Asked::ReadFolder(place)));
    // One byte less than the structure.
    assert_eq!(decoded(&message(15, &text[..text.len() - 2])), None);

    let data = "ab".repeat(512);
    assert_eq!(
        decoded(&message(16, &format!("{text}{data}"))),
        Some(Asked::Write(place))
    );
    // Data whose length differs from the announced one.
    assert_eq!(decoded(&message(16, &format!("{text}{data}ab"))), None);
    assert_eq!(decoded(&message(16, text)), None);
}

#[test]
fn names_end_with_a_zero() {
    assert_eq!(
        decoded(&message(1, "766f6c 00")),
        Some(Asked::Lookup(b"vol".to_vec()))
    );
    assert_eq!(decoded(&message(1, "00")), Some(Asked::Lookup(Vec::new())));
    assert_eq!(decoded(&message(1, "766f6c")), None);
    assert_eq!(decoded(&message(1, "")), None);
    // A name of 80 bytes does not fit into the head: its last 40 bytes and its terminator are after
    // the head.
    let long = message(1, &format!("{}00", "61".repeat(80)));
    assert_eq!(decoded(&long), Some(Asked::Lookup(vec![b'a'; 80])));
}

#[test]
fn attributes_to_set_are_told_apart() {
    let set = |valid: &str| {
        // The fields in order: valid, padding; fh; size 0x1000. The remaining fields are ignored.
        let text = format!(
            "{valid} 00000000 0000000000000000 0010000000000000 {}",
            "00".repeat(64)
        );
        decoded(&message(4, &text))
    };
    let expected = |mode_or_owner, size| {
        Some(Asked::SetAttributes {
            mode_or_owner,
            size,
        })
    };
    // FATTR_MODE, FATTR_UID, FATTR_GID, FATTR_SIZE, FATTR_MTIME.
    for valid in ["01000000", "02000000", "04000000"] {
        assert_eq!(set(valid), expected(true, None), "{valid}");
    }
    assert_eq!(set("08000000"), expected(false, Some(4096)));
    assert_eq!(set("20000000"), expected(false, None));
    assert_eq!(decoded(&message(4, &"00".repeat(87))), None);
}

#[test]
fn ways_to_allocate_are_told_apart() {
    let allocate = |mode: &str| {
        // The fields in order: fh; offset 0x3000; length 0x1_0000_0000; mode, padding.
        let text = format!("0000000000000000 0030000000000000 0000000001000000 {mode} 00000000");
        decoded(&message(43, &text))
    };
    let place = range(0x3000, 1 << 32);
    let expected = |how| Some(Asked::Allocate(how, place));
    // FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE with and without KEEP_SIZE.
    assert_eq!(allocate("03000000"), expected(Some(Allocate::PunchHole)));
    assert_eq!(allocate("11000000"), expected(Some(Allocate::ZeroRange)));
    assert_eq!(allocate("10000000"), expected(Some(Allocate::ZeroRange)));
    // Not supported: plain allocation, FALLOC_FL_COLLAPSE_RANGE, and two conflicting modes
    // together.
    for mode in ["00000000", "08000000", "13000000"] {
        assert_eq!(allocate(mode), expected(None), "{mode}");
    }
    assert_eq!(decoded(&message(43, &"00".repeat(31))), None);
}

#[test]
fn what_is_sought_is_told_apart() {
    let seek = |whence: &str| {
        let text = format!("0000000000000000 0010000000000000 {whence} 00000000");
        decoded(&message(46, &text))
    };
    assert_eq!(seek("03000000"), Some(Asked::Seek(Seek::Data, 4096)));
    assert_eq!(seek("04000000"), Some(Asked::Seek(Seek::Hole, 4096)));
    assert_eq!(seek("02000000"), Some(Asked::Other));
    assert_eq!(decoded(&message(46, &"00".repeat(23))), None);
}

#[test]
fn operations_have_the_kernels_numbers() {
    for (opcode, asked) in [
        (2, Asked::Forget),
        (3, Asked::GetAttributes),
        (14, Asked::Open),
        (17, Asked::FileSystem),
        (18, Asked::Release),
        (20, Asked::Sync),
        (27, Asked::OpenFolder),
        (29, Asked::Release),
        (38, Asked::Destroy),
        (42, Asked::Forget),
        // GETXATTR, FLUSH, INTERRUPT, IOCTL, SYNCFS and an undefined operation are all decoded as
        // `Other`.
        (22, Asked::Other),
        (25, Asked::Other),
        (36, Asked::Other),
        (39, Asked::Other),
        (50, Asked::Other),
        (4711, Asked::Other),
    ] {
        assert_eq!(decoded(&message(opcode, "")), Some(asked), "{opcode}");
    }
}

#[test]
fn an_answer_begins_with_its_length_and_its_number() {
    let done = "18000000 00000000 0102030405060708";
    assert_eq!(
        out_header(0x0807_0605_0403_0201, Ok(8)).to_vec(),
        from_hex(done)
    );
    // EIO is 5, encoded as -5.
    let failed = "10000000 fbffffff 0102030405060708";
    assert_eq!(
        out_header(0x0807_0605_0403_0201, Err(5)).to_vec(),
        from_hex(failed)
    );
}

fn facts() -> Facts {
    Facts {
        name: "vol".to_owned(),
        size_bytes: 0x10_0000,
        read_only: false,
        preferred_bytes: 4096,
        user: 1000,
        group: 100,
        made_s: 0x6500_0000,
    }
}

/// `fuse_attr` of the file: inode 2; 1 MiB in 2,048 sectors; three time stamps without nanoseconds;
/// a regular file with one link; its owner and group; no device number; blocks of 4 KiB.
const FILE_ATTRIBUTES: &str = "0200000000000000 0000100000000000 0008000000000000
    0000006500000000 0000006500000000 0000006500000000 00000000 00000000 00000000
    80810000 01000000 e8030000 64000000 00000000 00100000 00000000";

#[test]
fn attributes_lie_as_in_the_kernels() {
    // Valid for 2^30 s.
    let expected = format!("0000004000000000 00000000 00000000 {FILE_ATTRIBUTES}");
    let expected = from_hex(&expected);
    assert_eq!(expected.len(), 16 + 88);
    assert_eq!(facts().attributes_answer(2), Some(expected.clone()));
    // The mode is at offset 76 of the answer: after 16 bytes of the head and 60 bytes of
    // attributes. It is 0100600 for the file, 0100400 for the read-only file, and 040500 for the
    // folder.
    assert_eq!(expected[76..80], [0x80, 0x81, 0, 0]);
    let read_only = Facts {
        read_only: true,
        ..facts()
    };
    let answer = read_only.attributes_answer(2).expect("the file");
    assert_eq!(answer[76..80], [0x00, 0x81, 0, 0]);
    let answer = facts().attributes_answer(1).expect("the folder");
    assert_eq!(answer[76..80], [0x40, 0x41, 0, 0]);
    assert_eq!(facts().attributes_answer(3), None);
}

#[test]
fn the_file_is_found_by_its_name_only() {
    // nodeid 2, generation 0, both valid for 2^30 s.
    let head =
        "0200000000000000 0000000000000000 0000004000000000 0000004000000000 00000000 00000000";
    let expected = from_hex(&format!("{head} {FILE_ATTRIBUTES}"));
    assert_eq!(expected.len(), 128);
    assert_eq!(facts().lookup_answer(1, b"vol"), Some(expected));
    for (folder, name) in [(1, &b"vo"[..]), (1, b"vol2"), (1, b""), (2, b"vol")] {
        assert_eq!(facts().lookup_answer(folder, name), None);
    }
}

#[test]
fn the_folder_is_given_in_parts() {
    // The fields in order: inode, offset of the next entry, length of the name, type (4 for a
    // folder, 8 for a file), and the name padded to a multiple of 8 bytes.
    let dot = from_hex("0100000000000000 0100000000000000 01000000 04000000 2e00000000000000");
    let parent = from_hex("0100000000000000 0200000000000000 02000000 04000000 2e2e000000000000");
    let file = from_hex("0200000000000000 0300000000000000 03000000 08000000 766f6c0000000000");
    let all = [dot.clone(), parent.clone(), file.clone()].concat();
    assert_eq!(facts().folder_answer(range(0, 4096)), all);
    assert_eq!(facts().folder_answer(range(2, 4096)), file);
    assert_eq!(facts().folder_answer(range(0, 64)), [dot, parent].concat());
    assert!(facts().folder_answer(range(3, 4096)).is_empty());
    assert!(facts().folder_answer(range(0, 31)).is_empty());
}

#[test]
fn other_answers_lie_as_in_the_kernels() {
    // DIRECT_IO, NOFLUSH and PARALLEL_DIRECT_WRITES: 1 + 32 + 64.
    assert_eq!(
        open_answer(),
        from_hex("0000000000000000 61000000 00000000")
    );
    assert_eq!(open_folder_answer(), vec![0; 16]);
    assert_eq!(write_answer(512), from_hex("00020000 00000000"));
    assert_eq!(seek_answer(4096), from_hex("0010000000000000"));
    // 256 blocks, none free; 2 files, none free; block size 4096, name length 255, fragment
    // size 4096.
    let expected = "0001000000000000 0000000000000000 0000000000000000
        0200000000000000 0000000000000000 00100000 ff000000 00100000";
    let expected = [from_hex(expected), vec![0; 28]].concat();
    assert_eq!(expected.len(), 80);
    assert_eq!(facts().file_system_answer(), expected);
}
