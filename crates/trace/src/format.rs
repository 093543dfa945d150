//! The formats, their names, and their recognition.
//!
//! The content decides if only one format fits the beginning of the content. The name decides for
//! formats whose content has no distinguishing mark. In all other cases the caller must specify the
//! format.

use crate::layouts::{PAGES_MARK, comma_fields, is_msr_heading, u16_at, whole, words};
use std::fmt;
use std::str::FromStr;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// VMware's vscsi records, version 1 or 2.
    Vscsi,
    /// MSR Cambridge CSV.
    Msr,
    /// SSDsim and MQSim.
    Ssdsim,
    /// DiskSim.
    Disksim,
    /// The ARC authors' `.lis`.
    Arc,
    /// The LIRS authors' block numbers.
    Lirs,
    /// SPC (UMass Financial and WebSearch).
    Spc,
    /// Text of blkparse.
    Blkparse,
    /// fio's iolog, version 2 or 3.
    Fio,
    /// `op,lpn,npages`.
    Pages,
    /// Text with columns that the caller describes.
    Columns,
    /// libCacheSim's oracleGeneral.
    OracleGeneral,
    /// The compact form (docs/format/trace.md).
    Compact,
}

/// Error for a name that is not the name of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFormat(String);

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no format `{}`; there are {}", self.0, Format::names())
    }
}

impl std::error::Error for UnknownFormat {}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Format, UnknownFormat> {
        let wanted = text.to_ascii_lowercase();
        let alias = match wanted.as_str() {
            "mqsim" => "ssdsim",
            "oraclegeneral" => "oracle-general",
            "csv" => "columns",
            other => other,
        };
        let found = Format::ALL.iter().find(|(name, _)| *name == alias);
        found
            .map(|(_, format)| *format)
            .ok_or_else(|| UnknownFormat(text.to_owned()))
    }
}

/// The first bytes of a compact trace.
pub(crate) const COMPACT_MAGIC: &[u8; 8] = b"BMTRACE1";

impl Format {
    /// Every format with its name.
    pub const ALL: [(&'static str, Format); 13] = [
        ("vscsi", Format::Vscsi),
        ("msr", Format::Msr),
        ("ssdsim", Format::Ssdsim),
        ("disksim", Format::Disksim),
        ("arc", Format::Arc),
        ("lirs", Format::Lirs),
        ("spc", Format::Spc),
        ("blkparse", Format::Blkparse),
        ("fio", Format::Fio),
        ("pages", Format::Pages),
        ("columns", Format::Columns),
        ("oracle-general", Format::OracleGeneral),
        ("compact", Format::Compact),
    ];

    /// Returns the name of the format on the command line.
    pub fn name(self) -> &'static str {
        let found = Format::ALL.iter().find(|(_, format)| *format == self);
        found.map_or("", |(name, _)| name)
    }

    /// Returns all names, for messages.
    pub fn names() -> String {
        Format::ALL.map(|(name, _)| name).join(", ")
    }

    /// Returns true for formats whose records are only block numbers, without a size, a type or a
    /// device.
    pub fn only_counts_blocks(self) -> bool {
        matches!(self, Format::Arc | Format::Lirs | Format::OracleGeneral)
    }

    /// Returns the size of a record in bytes for a binary format with records of a fixed size;
    /// `None` for other formats.
    pub(crate) fn record_bytes(self, start: &[u8]) -> Option<usize> {
        match self {
            Format::Vscsi if vscsi_version(start) == Some(2) => Some(40),
            Format::Vscsi => Some(32),
            Format::OracleGeneral => Some(24),
            _ => None,
        }
    }

    /// Recognises the format of a file from its first bytes, after decompression, and its name.
    pub(crate) fn recognise(name: &str, start: &[u8]) -> Option<Format> {
        if start.starts_with(COMPACT_MAGIC) {
            return Some(Format::Compact);
        }
        let lower = name.to_ascii_lowercase();
        if lower.contains(".oraclegeneral") {
            return Some(Format::OracleGeneral);
        }
        if start.contains(&0) {
            return vscsi_version(start).map(|_| Format::Vscsi);
        }
        let lines = sample_lines(start);
        of_text(&lines).or_else(|| of_name(&lower, &lines))
    }
}

/// Returns the vscsi version of the first records (at most 64); `None` if these records do not all
/// have the same version.
pub(crate) fn vscsi_version(start: &[u8]) -> Option<u8> {
    let agrees = |bytes: usize, at: usize, version: u16| {
        let mut records = start.chunks_exact(bytes).take(64).peekable();
        records.peek().is_some() && records.all(|record| u16_at(record, at) >> 8 == version)
    };
    if agrees(32, 14, 1) {
        Some(1)
    } else if agrees(40, 2, 2) {
        Some(2)
    } else {
        None
    }
}

/// Returns the complete lines at the start of a file, without empty lines, comments, and lines that
/// consist of a single `*`.
fn sample_lines(start: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = start
        .split(|b| *b == b'\n')
        .map(<[u8]>::trim_ascii)
        .collect();
    // The last line might be cut off, because `start` is only the start of the file. If it is the
    // only line, it is kept.
    if lines.len() > 1 {
        lines.pop();
    }
    lines.retain(|line| !line.is_empty() && *line != b"*" && !line.starts_with(b"#"));
    lines.truncate(200);
    lines
}

fn is_number(text: &[u8]) -> bool {
    whole(text).is_some()
}

fn is_time(text: &[u8]) -> bool {
    text.contains(&b'.') && crate::layouts::time_of(text, 1_000_000_000).is_some()
}

fn all_lines(lines: &[&[u8]], fits: impl Fn(&[u8]) -> bool) -> bool {
    !lines.is_empty() && lines.iter().all(|line| fits(line))
}

/// Returns the text format of the lines, if only one format fits them.
fn of_text(lines: &[&[u8]]) -> Option<Format> {
    let first = lines.first()?;
    if first.starts_with(b"fio version ") {
        return Some(Format::Fio);
    }
    if *first == PAGES_MARK {
        return Some(Format::Pages);
    }
    fn commas(line: &[u8]) -> Vec<&[u8]> {
        comma_fields(line).collect()
    }
    let is_type = |text: &[u8]| {
        let lower = text.to_ascii_lowercase();
        matches!(lower.as_slice(), b"read" | b"write" | b"trim")
    };
    let msr_lines = match is_msr_heading(first) {
        true => &lines[1..],
        false => lines,
    };
    if all_lines(msr_lines, |line| {
        let f = commas(line);
        f.len() >= 6 && is_number(f[0]) && is_type(f[3]) && is_number(f[4]) && is_number(f[5])
    }) {
        return Some(Format::Msr);
    }
    let is_letter = |text: &[u8]| matches!(text, b"r" | b"R" | b"w" | b"W");
    if all_lines(lines, |line| {
        let f = commas(line);
        f.len() >= 5 && is_number(f[0]) && is_number(f[1]) && is_number(f[2]) && is_letter(f[3])
    }) {
        return Some(Format::Spc);
    }
    let split = |line: &[u8]| words(line).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let is_event = |line: &[u8]| {
        let f = split(line);
        f.len() >= 7 && f[0].contains(&b',') && is_number(&f[1]) && is_time(&f[3])
    };
    if is_event(first) {
        return Some(Format::Blkparse);
    }
    let five = |line: &[u8]| {
        let f = split(line);
        let flag = f.get(4).is_some_and(|op| op == b"0" || op == b"1");
        f.len() == 5 && f[1..4].iter().all(|n| is_number(n)) && flag
    };
    if all_lines(lines, |line| {
        five(line) && words(line).next().is_some_and(is_time)
    }) {
        return Some(Format::Disksim);
    }
    if all_lines(lines, |line| {
        five(line) && words(line).next().is_some_and(is_number)
    }) {
        return Some(Format::Ssdsim);
    }
    None
}

/// Recognises the two formats whose content has no distinguishing mark: ARC if every line has four
/// numbers and the file's name suggests ARC, LIRS if every line is one number.
fn of_name(name: &str, lines: &[&[u8]]) -> Option<Format> {
    let numbers = |count: usize| {
        all_lines(lines, |line| {
            words(line).count() == count && words(line).all(is_number)
        })
    };
    if numbers(4) {
        // No other known format has four numbers in each line, but an arbitrary text might have
        // them. The file's name must therefore also suggest ARC.
        return (name.contains(".lis") || name.contains("arc")).then_some(Format::Arc);
    }
    // A text with one number in each line is hardly anything other than LIRS.
    numbers(1).then_some(Format::Lirs)
}
