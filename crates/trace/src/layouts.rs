//! Parsers of one line or one binary record of each format: pure functions from bytes to a record.
//!
//! Numbers are checked for overflow. An error names the field that is missing, is not a number, or
//! has an impossible value.

use crate::tally::Ignored;
use crate::{DEVICE_BYTES, DEVICES_MAX, LENGTH_BYTES_MAX, Op, Record};

/// Result of parsing a line or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A request.
    Record(Record),
    /// Sequential requests, each for one block.
    Blocks {
        /// The first request.
        first: Record,
        /// Number of requests.
        count: u64,
    },
    /// A line or record that is not a request, and the reason for skipping it.
    Ignored(Ignored),
}

/// Description of the mistake in a line or record.
pub(crate) type What = String;

pub(crate) type Fields<'a, 'f> = &'f mut dyn Iterator<Item = &'a [u8]>;

pub(crate) const SECTOR_BYTES: u64 = 512;

/// Returns the fields of a line, separated by white space.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let split = line.split(|b| b.is_ascii_whitespace());
    split.filter(|word| !word.is_empty())
}

/// Returns the fields of a line that are separated by commas, without white space around them.
pub(crate) fn comma_fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|b| *b == b',').map(<[u8]>::trim_ascii)
}

pub(crate) fn shown(field: &[u8]) -> String {
    let start = &field[..field.len().min(24)];
    format!("`{}`", String::from_utf8_lossy(start).escape_debug())
}

pub(crate) fn field<'a>(fields: Fields<'a, '_>, name: &str) -> Result<&'a [u8], What> {
    fields.next().ok_or_else(|| format!("no {name}"))
}

/// Parses a whole number without a sign.
pub(crate) fn whole(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then_some(())?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

pub(crate) fn number(fields: Fields<'_, '_>, name: &str) -> Result<u64, What> {
    let text = field(fields, name)?;
    whole(text).ok_or_else(|| format!("{name} {} is not a number", shown(text)))
}

/// Parses the next field as a time, which can have a fraction, and returns the time in nanoseconds.
pub(crate) fn time(fields: Fields<'_, '_>, unit_ns: u64) -> Result<u64, What> {
    let text = field(fields, "time")?;
    time_of(text, unit_ns).ok_or_else(|| format!("{} is not a time", shown(text)))
}

pub(crate) fn time_of(text: &[u8], unit_ns: u64) -> Option<u64> {
    let (whole_part, fraction) = match memchr::memchr(b'.', text) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[][..]),
    };
    let whole_ns = whole(whole_part)?.checked_mul(unit_ns)?;
    let mut scale = unit_ns;
    let mut fraction_ns = 0;
    for byte in fraction {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        scale /= 10;
        fraction_ns += scale * u64::from(digit);
    }
    whole_ns.checked_add(fraction_ns)
}

/// Returns the number of bytes in `count` units of `unit` bytes. If the product overflows, the
/// error names the field `name`.
pub(crate) fn bytes(count: u64, unit: u64, name: &str) -> Result<u64, What> {
    let bytes = count.checked_mul(unit);
    bytes.ok_or_else(|| format!("{name} {count} is past the end of any device"))
}

/// Returns an error for a length of 0, and for a length above the maximum length of a request.
pub(crate) fn length_is_possible(length_bytes: u64) -> Result<(), What> {
    match length_bytes {
        0 => Err("a length of 0".to_owned()),
        1..=LENGTH_BYTES_MAX => Ok(()),
        _ => Err(format!("a length of {length_bytes} bytes, past 4 GiB")),
    }
}

/// Creates a request on device number `device`.
pub(crate) fn placed(
    time_ns: u64,
    op: Op,
    device: u64,
    offset: u64,
    length: u64,
) -> Result<Parsed, What> {
    if device >= DEVICES_MAX {
        return Err(format!("device {device} is not below {DEVICES_MAX}"));
    }
    length_is_possible(length)?;
    let end = offset.checked_add(length);
    if device > 0 && end.is_none_or(|end| end > DEVICE_BYTES) {
        return Err(format!("offset {offset} is past 16 TiB of a device"));
    }
    let offset_bytes = offset + device * DEVICE_BYTES;
    if offset_bytes.checked_add(length).is_none() {
        return Err(format!("offset {offset} and length {length} overflow"));
    }
    Ok(Parsed::Record(Record {
        time_ns,
        op,
        offset_bytes,
        length_bytes: length,
    }))
}

/// Names of types, in lower case.
const TYPES: [(&[u8], Op); 9] = [
    (b"r", Op::Read),
    (b"read", Op::Read),
    (b"w", Op::Write),
    (b"write", Op::Write),
    (b"t", Op::Trim),
    (b"trim", Op::Trim),
    (b"d", Op::Trim),
    (b"discard", Op::Trim),
    (b"unmap", Op::Trim),
];

/// Parses an operation type in the notation of the kernel (`RA`, `WFS`): one of R, W and D. Flags
/// before and after this letter are ignored.
fn of_letters(text: &[u8]) -> Option<Op> {
    let is_flag = |b: &u8| b"FASM".contains(b);
    let mut ops = text.iter().filter(|b| !is_flag(b));
    let op = match ops.next()? {
        b'R' => Op::Read,
        b'W' => Op::Write,
        b'D' => Op::Trim,
        _ => return None,
    };
    ops.next().is_none().then_some(op)
}

/// Parses an operation type such as `Read`, `w` or `WS`. A word that merely starts like a type is
/// an error.
pub(crate) fn op_named(text: &[u8]) -> Result<Op, What> {
    let lower = text.to_ascii_lowercase();
    let found = TYPES.iter().find(|(name, _)| *name == lower);
    found
        .map(|(_, op)| *op)
        .or_else(|| of_letters(text))
        .ok_or_else(|| format!("type {} is not read, write or trim", shown(text)))
}

/// Kind of content of a column in a text with a heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// A number or a time.
    Number,
    /// The type of a request.
    Type,
    /// Anything.
    Any,
}

impl Holds {
    /// Returns true if the field can be data of this column, intact or damaged. A damaged number
    /// still starts like a number. A damaged type cannot be distinguished from a heading, so it is
    /// not treated as data.
    fn may_be_data(self, field: &[u8]) -> bool {
        let begins_like_number = |b: &u8| b.is_ascii_digit() || b"+-.".contains(b);
        match self {
            Holds::Number => field.first().is_some_and(begins_like_number),
            Holds::Type => field.first().is_some_and(begins_like_number) || op_named(field).is_ok(),
            Holds::Any => false,
        }
    }
}

/// Returns true if a line is a heading: it has all of the columns, and none of its fields can be
/// data.
pub(crate) fn is_heading(columns: &[Holds], fields: &mut dyn Iterator<Item = &[u8]>) -> bool {
    let mut columns = columns.iter();
    columns.all(|column| {
        fields
            .next()
            .is_some_and(|field| !column.may_be_data(field))
    })
}

/// The columns of an MSR Cambridge trace: timestamp, host, disk, type, offset, size.
const MSR: [Holds; 6] = [
    Holds::Number,
    Holds::Any,
    Holds::Any,
    Holds::Type,
    Holds::Number,
    Holds::Number,
];

/// The columns of `pages`.
const PAGES: [Holds; 3] = [Holds::Type, Holds::Number, Holds::Number];

/// The first line by which `pages` is recognised.
pub(crate) const PAGES_MARK: &[u8] = b"op,lpn,npages";

/// Returns true if a line is the heading of an MSR Cambridge trace.
pub(crate) fn is_msr_heading(line: &[u8]) -> bool {
    is_heading(&MSR, &mut comma_fields(line))
}

/// Parses a line of MSR Cambridge: `time(100 ns),host,disk,type,offset,size,response`. The first
/// line can be a heading.
pub(crate) fn msr(
    line: &[u8],
    is_first: bool,
    devices: &mut dyn FnMut(&[u8]) -> Option<u64>,
) -> Result<Parsed, What> {
    let mut all = comma_fields(line);
    let fields: Fields = &mut all;
    if is_first && is_msr_heading(line) {
        return Ok(Parsed::Ignored(Ignored::Heading));
    }
    let time_100ns = number(fields, "timestamp")?;
    field(fields, "host name")?;
    field(fields, "disk")?;
    let op = op_named(field(fields, "type")?)?;
    let offset = number(fields, "offset")?;
    let length = number(fields, "size")?;
    // Host and disk together, as written in the line.
    let host_and_disk = nth_span(line, b',', 1, 3);
    let device = devices(host_and_disk).ok_or("too many disks")?;
    let time_ns = bytes(time_100ns, 100, "timestamp")?;
    placed(time_ns, op, device, offset, length)
}

/// Returns the part of a line from the field with index `from` up to, but not including, the field
/// with index `to`.
fn nth_span(line: &[u8], separator: u8, from: usize, to: usize) -> &[u8] {
    let start_of = |n: usize| match n {
        0 => 0,
        n => memchr::memchr_iter(separator, line)
            .nth(n - 1)
            .map_or(line.len(), |at| at + 1),
    };
    let (start, end) = (start_of(from), start_of(to));
    &line[start..end.max(start)]
}

/// Parses a line of SSDsim or MQSim: `time(ns) device lba size(sectors) op`, in which op 1 is a
/// read. A line of DiskSim is the same, with the time in milliseconds.
pub(crate) fn device_lines(line: &[u8], unit_ns: u64) -> Result<Parsed, What> {
    let mut all = words(line);
    let fields: Fields = &mut all;
    let time_ns = time(fields, unit_ns)?;
    let device = number(fields, "device")?;
    let offset = bytes(number(fields, "lba")?, SECTOR_BYTES, "lba")?;
    let length = bytes(number(fields, "size")?, SECTOR_BYTES, "size")?;
    let op = match number(fields, "operation")? {
        1 => Op::Read,
        0 => Op::Write,
        other => return Err(format!("operation {other} is not 0 or 1")),
    };
    placed(time_ns, op, device, offset, length)
}

/// Parses a line of ARC: `first_block count ignored number`. Each of the `count` blocks is an
/// access.
pub(crate) fn arc(line: &[u8], unit: u64) -> Result<Parsed, What> {
    let mut all = words(line);
    let fields: Fields = &mut all;
    let first = number(fields, "first block")?;
    let count = number(fields, "count")?;
    blocks(first, count, unit)
}

fn blocks(first: u64, count: u64, unit: u64) -> Result<Parsed, What> {
    length_is_possible(count.saturating_mul(unit))?;
    let end = first
        .checked_add(count)
        .and_then(|end| end.checked_mul(unit));
    if end.is_none() {
        return Err(format!("block number {first} is too large"));
    }
    let first = Record {
        time_ns: 0,
        op: Op::Read,
        offset_bytes: first * unit,
        length_bytes: unit,
    };
    Ok(Parsed::Blocks { first, count })
}

/// Parses a line of LIRS, which is a block number, or `*` for a pause.
pub(crate) fn lirs(line: &[u8], unit: u64) -> Result<Parsed, What> {
    let text = line.trim_ascii();
    if text == b"*" {
        return Ok(Parsed::Ignored(Ignored::Mark));
    }
    let block = whole(text).ok_or_else(|| format!("{} is not a block number", shown(text)))?;
    blocks(block, 1, unit)
}

/// Parses a line of SPC: `unit,lba,size(bytes),type,time(s)`.
pub(crate) fn spc(line: &[u8]) -> Result<Parsed, What> {
    let mut all = comma_fields(line);
    let fields: Fields = &mut all;
    let device = number(fields, "unit")?;
    let offset = bytes(number(fields, "lba")?, SECTOR_BYTES, "lba")?;
    let length = number(fields, "size")?;
    let op = op_named(field(fields, "type")?)?;
    let time_ns = time(fields, 1_000_000_000)?;
    placed(time_ns, op, device, offset, length)
}

/// Actions in a log of fio other than reads, writes and trims: the actions of fio's `log_file`
/// (iolog.c) and the other names in `io_ddir_name` (io_ddir.h).
const FIO_NO_DATA: [&[u8]; 8] = [
    b"add",
    b"open",
    b"close",
    b"sync",
    b"datasync",
    b"sync_file_range",
    b"wait",
    b"file_operation",
];

/// Parses a line of fio's iolog: `[time(us)] file action [offset length]`. Only version 3 has the
/// time.
pub(crate) fn fio(
    line: &[u8],
    has_time: bool,
    devices: &mut dyn FnMut(&[u8]) -> Option<u64>,
) -> Result<Parsed, What> {
    let mut all = words(line);
    let fields: Fields = &mut all;
    let time_ns = if has_time {
        bytes(number(fields, "time")?, 1000, "time")?
    } else {
        0
    };
    let name = field(fields, "file name")?;
    let op = match field(fields, "action")? {
        b"read" => Op::Read,
        b"write" => Op::Write,
        b"trim" => Op::Trim,
        action if FIO_NO_DATA.contains(&action) => {
            return Ok(Parsed::Ignored(Ignored::NoData));
        }
        other => return Err(format!("{} is not an action of fio", shown(other))),
    };
    let offset = number(fields, "offset")?;
    let length = number(fields, "length")?;
    let device = devices(name).ok_or("too many files")?;
    placed(time_ns, op, device, offset, length)
}

/// Parses a line of the format `pages`: `op,lpn,npages`, with the op `R`, `W` or `T`. The first
/// line can be a heading.
pub(crate) fn pages(line: &[u8], unit: u64, is_first: bool) -> Result<Parsed, What> {
    let mut all = comma_fields(line);
    let fields: Fields = &mut all;
    let kind = field(fields, "op")?;
    if is_first && line == PAGES_MARK {
        return Ok(Parsed::Ignored(Ignored::Mark));
    }
    if is_first && is_heading(&PAGES, &mut comma_fields(line)) {
        return Ok(Parsed::Ignored(Ignored::Heading));
    }
    let op = op_named(kind)?;
    let offset = bytes(number(fields, "lpn")?, unit, "lpn")?;
    let length = bytes(number(fields, "npages")?, unit, "npages")?;
    placed(0, op, 0, offset, length)
}

fn le<const N: usize>(record: &[u8], at: usize) -> Option<[u8; N]> {
    record.get(at..at + N)?.try_into().ok()
}

pub(crate) fn u16_at(record: &[u8], at: usize) -> u16 {
    le(record, at).map_or(0, u16::from_le_bytes)
}

pub(crate) fn u32_at(record: &[u8], at: usize) -> u32 {
    le(record, at).map_or(0, u32::from_le_bytes)
}

pub(crate) fn u64_at(record: &[u8], at: usize) -> u64 {
    le(record, at).map_or(0, u64::from_le_bytes)
}

/// Parses a record of vscsi. A record of version 1 has 32 bytes:
/// `sn u32, bytes u32, sg u32, command u16, version u16, lbn u64, us u64`. A record of version 2
/// has 40 bytes: `command u16, version u16, sn u32, bytes u32, sg u32, lbn u64, us u64, rt u64`.
pub(crate) fn vscsi(record: &[u8], version: u8) -> Result<Parsed, What> {
    let (length_at, command_at, version_at) = if version == 1 { (4, 12, 14) } else { (8, 0, 2) };
    let found = u16_at(record, version_at) >> 8;
    if found != u16::from(version) {
        return Err(format!("version {found} in a file of version {version}"));
    }
    let op = match u16_at(record, command_at) {
        // READ and WRITE of 6, 10, 16 and 12 bytes; UNMAP.
        0x08 | 0x28 | 0x88 | 0xa8 => Op::Read,
        0x0a | 0x2a | 0x8a | 0xaa => Op::Write,
        0x42 => Op::Trim,
        other => return Err(format!("SCSI command {other:#x} is not a read or write")),
    };
    let time_ns = bytes(u64_at(record, 24), 1000, "time")?;
    let offset = bytes(u64_at(record, 16), SECTOR_BYTES, "lbn")?;
    placed(time_ns, op, 0, offset, u64::from(u32_at(record, length_at)))
}

/// Parses a record of libCacheSim's oracleGeneral, which has 24 bytes:
/// `time(s) u32, object u64, bytes u32, next i64`. An object is treated as one unit, whatever its
/// size.
pub(crate) fn oracle_general(record: &[u8], unit: u64) -> Result<Parsed, What> {
    let time_ns = u64::from(u32_at(record, 0)) * 1_000_000_000;
    let object = u64_at(record, 4);
    let offset = bytes(object, unit, "object").map_err(|_| {
        format!("object {object} is not a page number; count records (--key record)")
    })?;
    placed(time_ns, Op::Read, 0, offset, unit)
}
