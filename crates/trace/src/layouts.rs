//! How one line or one binary record of each format reads. Pure functions from bytes to a record.
//!
//! Numbers are checked for overflow; a field that is missing, is no number or cannot be is named.

use crate::{DEVICE_BYTES, DEVICES_MAX, LENGTH_BYTES_MAX, Op, Record};

/// What a line or record was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A request.
    Record(Record),
    /// As many requests for one block each, one after another, all of `unit` bytes.
    Blocks {
        /// The first.
        first: Record,
        /// How many.
        count: u64,
    },
    /// Nothing: an empty line, a comment, a heading, an event of another kind.
    Nothing,
}

/// What is wrong with a line or record.
pub(crate) type What = String;

type Fields<'a, 'f> = &'f mut dyn Iterator<Item = &'a [u8]>;

const SECTOR_BYTES: u64 = 512;

/// A line's fields between white space.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let split = line.split(|b| b.is_ascii_whitespace());
    split.filter(|word| !word.is_empty())
}

/// A line's fields between commas, trimmed.
pub(crate) fn comma_fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|b| *b == b',').map(<[u8]>::trim_ascii)
}

fn shown(field: &[u8]) -> String {
    let start = &field[..field.len().min(24)];
    format!("`{}`", String::from_utf8_lossy(start).escape_debug())
}

fn field<'a>(fields: Fields<'a, '_>, name: &str) -> Result<&'a [u8], What> {
    fields.next().ok_or_else(|| format!("no {name}"))
}

/// A whole number without a sign.
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

/// A time that may have a fraction, as nanoseconds.
pub(crate) fn time(fields: Fields<'_, '_>, unit_ns: u64) -> Result<u64, What> {
    let text = field(fields, "time")?;
    time_of(text, unit_ns).ok_or_else(|| format!("time {} is not one", shown(text)))
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

/// Bytes of so many units.
pub(crate) fn bytes(count: u64, unit: u64, name: &str) -> Result<u64, What> {
    let bytes = count.checked_mul(unit);
    bytes.ok_or_else(|| format!("{name} {count} is past the end of any device"))
}

/// Refuses lengths of nothing and of more than a request can have.
pub(crate) fn length_is_possible(length_bytes: u64) -> Result<(), What> {
    match length_bytes {
        0 => Err("a length of 0".to_owned()),
        1..=LENGTH_BYTES_MAX => Ok(()),
        _ => Err(format!("a length of {length_bytes} bytes, past 4 GiB")),
    }
}

/// A request on device number `device`.
fn placed(time_ns: u64, op: Op, device: u64, offset: u64, length: u64) -> Result<Parsed, What> {
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

fn typed(letter: Option<u8>) -> Option<Op> {
    match letter?.to_ascii_lowercase() {
        b'r' => Some(Op::Read),
        b'w' => Some(Op::Write),
        b't' | b'd' => Some(Op::Trim),
        _ => None,
    }
}

/// `Read`, `w`, `1` and the like.
pub(crate) fn op_named(text: &[u8]) -> Result<Op, What> {
    typed(text.first().copied()).ok_or_else(|| format!("type {} is not read or write", shown(text)))
}

/// MSR Cambridge: `time(100 ns),host,disk,type,offset,size,response`.
pub(crate) fn msr(
    line: &[u8],
    devices: &mut dyn FnMut(&[u8]) -> Option<u64>,
) -> Result<Parsed, What> {
    let mut all = comma_fields(line);
    let fields: Fields = &mut all;
    let time_100ns = number(fields, "timestamp")?;
    field(fields, "host name")?;
    field(fields, "disk")?;
    let op = op_named(field(fields, "type")?)?;
    let offset = number(fields, "offset")?;
    let length = number(fields, "size")?;
    // Host and disk together, as they stand in the line.
    let host_and_disk = nth_span(line, b',', 1, 3);
    let device = devices(host_and_disk).ok_or("too many disks")?;
    let time_ns = bytes(time_100ns, 100, "timestamp")?;
    placed(time_ns, op, device, offset, length)
}

/// The bytes from field `from` to before field `to`.
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

/// SSDsim and MQSim: `time(ns) device lba size(sectors) op`, 1 for a read. DiskSim: the same, with
/// the time in milliseconds.
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

/// ARC: `first_block count ignored number`, a block an access.
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
        return Err(format!("block {first} is too large a number"));
    }
    let first = Record {
        time_ns: 0,
        op: Op::Read,
        offset_bytes: first * unit,
        length_bytes: unit,
    };
    Ok(Parsed::Blocks { first, count })
}

/// LIRS: a block number a line; `*` marks a pause.
pub(crate) fn lirs(line: &[u8], unit: u64) -> Result<Parsed, What> {
    let text = line.trim_ascii();
    if text.is_empty() || text == b"*" {
        return Ok(Parsed::Nothing);
    }
    let block = whole(text).ok_or_else(|| format!("{} is not a block number", shown(text)))?;
    blocks(block, 1, unit)
}

/// SPC: `unit,lba,size(bytes),type,time(s)`.
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

/// blkparse's default text: `maj,min cpu sequence time pid action type sector + count [process]`.
/// Only the queueing of a request (`Q`) is one; what stands after the events is passed over.
pub(crate) fn blkparse(
    line: &[u8],
    devices: &mut dyn FnMut(&[u8]) -> Option<u64>,
) -> Result<Parsed, What> {
    let mut all = words(line);
    let fields: Fields = &mut all;
    let Some(name) = fields.next().filter(|name| name.contains(&b',')) else {
        return Ok(Parsed::Nothing);
    };
    let is_device = comma_fields(name).all(|part| whole(part).is_some());
    if !is_device {
        return Ok(Parsed::Nothing);
    }
    field(fields, "cpu")?;
    field(fields, "sequence")?;
    let time_ns = time(fields, 1_000_000_000)?;
    field(fields, "pid")?;
    if field(fields, "action")? != b"Q" {
        return Ok(Parsed::Nothing);
    }
    let kind = field(fields, "type")?;
    // A flush has neither a type of its own here nor an extent.
    let letters = [(b'D', Op::Trim), (b'W', Op::Write), (b'R', Op::Read)];
    let Some((_, op)) = letters
        .into_iter()
        .find(|(letter, _)| kind.contains(letter))
    else {
        return Ok(Parsed::Nothing);
    };
    let process = |word: &&[u8]| word.starts_with(b"[");
    let Some(sector) = fields.next().filter(|word| !process(word)) else {
        return Ok(Parsed::Nothing);
    };
    let sector =
        whole(sector).ok_or_else(|| format!("sector {} is not a number", shown(sector)))?;
    if field(fields, "`+`")? != b"+" {
        return Err("no `+` after the sector".to_owned());
    }
    let count = number(fields, "count")?;
    if count == 0 {
        return Ok(Parsed::Nothing);
    }
    let device = devices(name).ok_or("too many devices")?;
    let offset = bytes(sector, SECTOR_BYTES, "sector")?;
    placed(
        time_ns,
        op,
        device,
        offset,
        bytes(count, SECTOR_BYTES, "count")?,
    )
}

/// fio's iolog: `[time(us)] file action [offset length]`; version 3 has the time.
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
        b"add" | b"open" | b"close" | b"sync" | b"datasync" | b"wait" => {
            return Ok(Parsed::Nothing);
        }
        other => return Err(format!("action {} is not one of fio's", shown(other))),
    };
    let offset = number(fields, "offset")?;
    let length = number(fields, "length")?;
    let device = devices(name).ok_or("too many files")?;
    placed(time_ns, op, device, offset, length)
}

/// Pages: `op,lpn,npages`, op `R`, `W` or `T`; a heading may stand first.
pub(crate) fn pages(line: &[u8], unit: u64, is_first: bool) -> Result<Parsed, What> {
    let mut all = comma_fields(line);
    let fields: Fields = &mut all;
    let kind = field(fields, "op")?;
    if is_first && kind == b"op" {
        return Ok(Parsed::Nothing);
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

/// vscsi version 1, 32 bytes: `sn u32, bytes u32, sg u32, command u16, version u16, lbn u64, us u64`;
/// version 2, 40 bytes: `command u16, version u16, sn u32, bytes u32, sg u32, lbn u64, us u64, rt u64`.
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
    let time_ns = u64_at(record, 24).saturating_mul(1000);
    let offset = bytes(u64_at(record, 16), SECTOR_BYTES, "lbn")?;
    placed(time_ns, op, 0, offset, u64::from(u32_at(record, length_at)))
}

/// libCacheSim's oracleGeneral, 24 bytes: `time(s) u32, object u64, bytes u32, next i64`. An object is
/// one unit, whatever its size.
pub(crate) fn oracle_general(record: &[u8], unit: u64) -> Result<Parsed, What> {
    let time_ns = u64::from(u32_at(record, 0)) * 1_000_000_000;
    let object = u64_at(record, 4);
    let offset = bytes(object, unit, "object")
        .map_err(|_| format!("object {object} is no page number; count records (--key record)"))?;
    placed(time_ns, Op::Read, 0, offset, unit)
}
