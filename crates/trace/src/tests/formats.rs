//! Tests with a few lines of each trace format. The lines must have the meaning that the
//! description of the format gives them.

use super::*;

fn record(time_ns: u64, op: Op, offset_bytes: u64, length_bytes: u64) -> Record {
    Record {
        time_ns,
        op,
        offset_bytes,
        length_bytes,
    }
}

/// Checks that the format is recognised from the content alone, and that the content is parsed to
/// the expected records.
fn recognised(format: Format, bytes: &[u8], expected: &[Record]) {
    let found = reader("input", bytes, &Options::default()).map(|reader| reader.format());
    assert_eq!(found.expect("it is recognised"), format);
    means(format, bytes, expected);
}

fn means(format: Format, bytes: &[u8], expected: &[Record]) {
    let all = records("input", bytes, &in_format(format)).expect("it is well formed");
    assert_eq!(all, expected);
}

const DEVICE: u64 = 1 << 44;

#[test]
fn msr() {
    // Times are in units of 100 ns. Every disk of a host is a separate device.
    let text = b"128166372003061629,src1,0,Read,8192,4096,1331\r\n\
                 128166372003061630,src1,1,Write,0,512,40\n";
    let expected = [
        record(12_816_637_200_306_162_900, Op::Read, 8192, 4096),
        record(12_816_637_200_306_163_000, Op::Write, DEVICE, 512),
    ];
    recognised(Format::Msr, text, &expected);
}

#[test]
fn ssdsim_and_disksim() {
    // Sectors have 512 bytes, the operation 1 is a read, and device 3 starts at 3 * DEVICE. DiskSim
    // has times in milliseconds.
    let expected = [
        record(938_513_000, Op::Write, 3 * DEVICE + 512 * 16, 8192),
        record(938_513_500, Op::Read, 512, 512),
    ];
    recognised(
        Format::Ssdsim,
        b"938513000 3 16 16 0\n938513500 0 1 1 1\n",
        &expected,
    );
    recognised(
        Format::Disksim,
        b"938.513000 3 16 16 0\n938.5135 0 1 1 1\n",
        &expected,
    );
}

#[test]
fn arc_and_lirs() {
    // A line of ARC describes a run of blocks, and each block is an access. A line of four numbers
    // does not show which format it has, so the name of the file must show it.
    let three: Vec<Record> = (5..8)
        .map(|n| record(0, Op::Read, n * 4096, 4096))
        .collect();
    means(Format::Arc, b"5 3 0 0\n", &three);
    let unnamed = reader("input", b"5 3 0 0\n", &Options::default());
    assert!(matches!(unnamed, Err(TraceError::UnknownFormat { .. })));
    let named = reader("P3.lis", b"5 3 0 0\n", &Options::default());
    assert_eq!(named.expect("the name says it").format(), Format::Arc);
    recognised(Format::Lirs, b"5\n6\n*\n\n7\n", &three);
}

#[test]
fn spc() {
    let expected = [
        record(0, Op::Write, 303_567 * 512, 3584),
        record(26_214_000, Op::Read, DEVICE + 512, 4096),
    ];
    recognised(
        Format::Spc,
        b"0,303567,3584,w,0.000000\n1,1,4096,R,0.026214\n",
        &expected,
    );
}

#[test]
fn blkparse() {
    // Only lines with the event Q (queued) can be requests. The flush (`FWS`) has no sectors, so it
    // is not a request. The summary at the end of the text is not one either.
    let text = b"  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]\n\
                 \x20 8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]\n\
                 \x20 8,16   1        3     1.5           700  Q  RA 16 + 1 [cat]\n\
                 \x20 8,0    1        4     1.6           700  Q FWS [fsync]\n\
                 \x20 8,0    1        5     1.7           700  Q   D 8 + 8 [fstrim]\n\
                 CPU3 (8,0):\n Reads Queued:           0,        0KiB\n";
    let expected = [
        record(1829, Op::Write, 223_490 * 512, 4096),
        record(1_500_000_000, Op::Read, DEVICE + 16 * 512, 512),
        record(1_700_000_000, Op::Trim, 4096, 4096),
    ];
    recognised(Format::Blkparse, text, &expected);
}

#[test]
fn fio_versions_2_and_3() {
    let two = b"fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda read 0 4096\n\
                /dev/sdb write 8192 512\n/dev/sda sync 0 0\n/dev/sda close\n";
    let expected = [
        record(0, Op::Read, 0, 4096),
        record(0, Op::Write, DEVICE + 8192, 512),
    ];
    recognised(Format::Fio, two, &expected);
    let three = b"fio version 3 iolog\n0 /dev/sda add\n7 /dev/sda trim 0 4096\n";
    recognised(Format::Fio, three, &[record(7000, Op::Trim, 0, 4096)]);
}

#[test]
fn pages_and_columns() {
    let expected = [
        record(0, Op::Read, 8192, 4096),
        record(0, Op::Write, 4096, 3 * 4096),
    ];
    recognised(Format::Pages, b"op,lpn,npages\nR,2,1\nW,1,3\n", &expected);
    let options = Options {
        columns: Some(
            "time_ms,-,op,offset_sectors,length_bytes"
                .parse()
                .expect("columns"),
        ),
        ..Options::default()
    };
    let text = b"when;who;what;where;much\n1.5;x;write;8;512\n";
    let all = records("input", text, &options).expect("it is well formed");
    assert_eq!(all, [record(1_500_000, Op::Write, 4096, 512)]);
    for bad in ["", "op", "offset", "offset_miles", "time_h,offset_bytes"] {
        assert!(bad.parse::<Columns>().is_err(), "{bad}");
    }
}

#[test]
fn vscsi_of_both_versions() {
    let one: Vec<u8> = [vscsi_record(4096, 0x28, 8), vscsi_record(512, 0x2a, 1)].concat();
    let expected = [
        record(77_000, Op::Read, 4096, 4096),
        record(77_000, Op::Write, 512, 512),
    ];
    recognised(Format::Vscsi, &one, &expected);
    let mut two = Vec::new();
    for (command, length, lbn) in [(0x28u16, 4096u32, 8u64), (0x2a, 512, 1)] {
        two.extend(command.to_le_bytes());
        two.extend(0x0200u16.to_le_bytes());
        two.extend([1u32, length, 1].iter().flat_map(|n| n.to_le_bytes()));
        two.extend([lbn, 77, 5].iter().flat_map(|n| n.to_le_bytes()));
    }
    recognised(Format::Vscsi, &two, &expected);
    // INQUIRY is no request for data.
    let error = records("x", &vscsi_record(0, 0x12, 0), &in_format(Format::Vscsi));
    assert!(error.expect_err("not a read").to_string().contains("0x12"));
}

#[test]
fn oracle_general() {
    let mut bytes = Vec::new();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(42u64.to_le_bytes());
    bytes.extend(999u32.to_le_bytes());
    bytes.extend((-1i64).to_le_bytes());
    let all = records("a.oracleGeneral.zst", &bytes, &Options::default()).expect("well formed");
    assert_eq!(all, [record(3_000_000_000, Op::Read, 42 * 4096, 4096)]);
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let bad: [(Format, &[u8]); 7] = [
        (Format::Msr, b"1,h,0,Read,0,0,0"),
        (Format::Msr, b"1,h,0,Peek,0,512,0"),
        (Format::Ssdsim, b"0 0 99999999999999999999 8 1"),
        (Format::Ssdsim, b"0 0 36028797018963968 8 1"),
        (Format::Ssdsim, b"0 0 8 8 2"),
        (Format::Pages, b"R,1,99999999"),
        (Format::Lirs, b"18446744073709551615"),
    ];
    for (format, line) in bad {
        let error = records("t", line, &in_format(format));
        assert!(error.is_err(), "{}", String::from_utf8_lossy(line));
    }
}

#[test]
fn every_name_means_its_format() {
    for (name, format) in Format::ALL {
        assert_eq!(name.parse::<Format>(), Ok(format));
        assert_eq!(format.name(), name);
    }
    assert!("nonsense".parse::<Format>().is_err());
}
