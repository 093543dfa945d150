//! A trace as a stream of records, whatever its format and compression.

use crate::blkparse::{self, Event};
use crate::columns::Columns;
use crate::compact::{CHUNK_BYTES_MAX, Chunk, HEAD_BYTES};
use crate::compressed::{self, Unchecked};
use crate::error::{Position, TraceError};
use crate::format::{COMPACT_MAGIC, vscsi_version};
use crate::input::{Input, LINE_BYTES_MAX, Line};
use crate::layouts::{self, Parsed};
use crate::tally::{Ignored, Tally};
use crate::{DEVICES_MAX, Format, Record};
use hashbrown::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Treatment of invalid (bad) records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SkipBad {
    /// The first bad record is an error.
    #[default]
    None,
    /// Up to this number of bad records are skipped and counted; a further bad record is an error.
    AtMost(u64),
    /// All bad records are skipped and counted.
    All,
}

/// Options for reading a trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Format of the trace; `None` to recognise it.
    pub format: Option<Format>,
    /// The columns of [`Format::Columns`].
    pub columns: Option<Columns>,
    /// Size of a block in bytes, for formats that count blocks without stating their size.
    pub unit_bytes: u64,
    /// Treatment of bad records.
    pub skip_bad: SkipBad,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            format: None,
            columns: None,
            unit_bytes: 4096,
            skip_bad: SkipBad::None,
        }
    }
}

/// Names of devices and files, numbered in the order of their first appearance.
#[derive(Debug, Default)]
struct Devices {
    numbers: HashMap<Vec<u8>, u64, foldhash::fast::FixedState>,
    last: Option<(Vec<u8>, u64)>,
}

impl Devices {
    fn number(&mut self, name: &[u8]) -> Option<u64> {
        if let Some((last, number)) = &self.last
            && last == name
        {
            return Some(*number);
        }
        let next = self.numbers.len() as u64;
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None if next < DEVICES_MAX => {
                self.numbers.insert(name.to_vec(), next);
                next
            }
            None => return None,
        };
        self.last = Some((name.to_vec(), number));
        Some(number)
    }
}

/// A number of records with the same length, each of which starts where the previous one ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) first: Record,
    pub(crate) count: u64,
}

impl Span {
    fn of(first: Record) -> Span {
        Span { first, count: 1 }
    }
}

/// Reads a trace.
pub struct Reader {
    file: String,
    format: Format,
    options: Options,
    input: Input,
    /// Size of a record in bytes, in binary formats with records of a fixed size.
    record_bytes: usize,
    vscsi_version: u8,
    fio_has_time: bool,
    /// The event of blkparse that is read as a request; `None` until it has been chosen.
    event: Option<Event>,
    /// Number and beginning of the line that was skipped as a heading.
    heading: Option<(u64, String)>,
    /// True once a line that was neither blank nor a comment has been read.
    has_content: bool,
    /// Lines or records read so far.
    at: u64,
    tally: Tally,
    unchecked: Unchecked,
    devices: Devices,
    /// Parsed records that `next_record` has not returned yet.
    span: Option<Span>,
    chunk: Chunk,
    records: u64,
    ended: bool,
}

impl Reader {
    /// Opens a file, and recognises its compression and format.
    ///
    /// # Errors
    /// When the file cannot be read, or its format is neither given nor recognised.
    pub fn open(path: &Path, options: &Options) -> Result<Reader, TraceError> {
        let name = path.display().to_string();
        let io = |reason| TraceError::Io {
            file: name.clone(),
            reason,
        };
        let file = File::open(path).map_err(io)?;
        Reader::new(name.clone(), Box::new(file), options)
    }

    /// Creates a reader for any source. `name` is used in messages and for recognising the format.
    ///
    /// # Errors
    /// The errors of [`Reader::open`].
    pub fn new(
        name: String,
        source: Box<dyn Read + Send>,
        options: &Options,
    ) -> Result<Reader, TraceError> {
        let damaged = |error: io::Error| damage(&name, Position::Record(1), &error.to_string());
        let unchecked = Unchecked::default();
        let source =
            compressed::decompressed(source, &unchecked).map_err(|reason| TraceError::Io {
                file: name.clone(),
                reason,
            })?;
        let mut input = Input::new(source);
        let start = input.peek(LINE_BYTES_MAX).map_err(damaged)?;
        let format = match options.format {
            Some(format) => format,
            None if options.columns.is_some() => Format::Columns,
            None if start.is_empty() => Format::Lirs,
            None => Format::recognise(&name, start).ok_or_else(|| TraceError::UnknownFormat {
                file: name.clone(),
                formats: Format::names(),
            })?,
        };
        let record_bytes = format.record_bytes(start).unwrap_or(0);
        let vscsi_version = vscsi_version(start).unwrap_or(1);
        let mut reader = Reader {
            file: name,
            format,
            options: options.clone(),
            input,
            record_bytes,
            vscsi_version,
            fio_has_time: false,
            event: None,
            heading: None,
            has_content: false,
            at: 0,
            tally: Tally::default(),
            unchecked,
            devices: Devices::default(),
            span: None,
            chunk: Chunk::default(),
            records: 0,
            ended: false,
        };
        reader.begin()?;
        Ok(reader)
    }

    /// Reads the head of a compact trace. Other formats have no head.
    fn begin(&mut self) -> Result<(), TraceError> {
        if self.format != Format::Compact {
            return Ok(());
        }
        let head = self.input.take(COMPACT_MAGIC.len());
        match head {
            Ok(magic) if magic == COMPACT_MAGIC => Ok(()),
            Ok(_) => Err(self.damaged("not a compact trace")),
            Err(error) => Err(self.damaged(&error.to_string())),
        }
    }

    /// Returns the name of the file, as used in messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the format of the trace.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the number of bad records skipped so far.
    pub fn skipped(&self) -> u64 {
        self.tally.bad
    }

    /// Returns the number of lines or records read so far, by outcome.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns notes for the user about the lines and records read so far, each a sentence:
    /// decisions that the reader made, lines that it skipped, and content that it could not check.
    /// The notes are complete after the last record.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some((number, start)) = &self.heading {
            notes.push(format!("line {number} is treated as a heading: {start}"));
        }
        if let Some(event) = self.event.filter(|event| !event.is_usual()) {
            let name = event.name();
            notes.push(format!(
                "the trace has no events Q, so its events {name} are used as the requests"
            ));
        }
        let ignored = self.tally.to_string();
        if !ignored.is_empty() {
            notes.push(ignored);
        }
        if self.tally.bad > 0 {
            notes.push(format!("{} bad records skipped", self.tally.bad));
        }
        if self.unchecked.count() > 0 {
            let frames = self.unchecked.count();
            notes.push(format!(
                "compressed without a checksum ({frames} parts): damage may be undetected"
            ));
        }
        notes
    }

    fn place(&self) -> Position {
        if self.record_bytes > 0 || self.format == Format::Compact {
            Position::Record(self.at)
        } else {
            Position::Line(self.at)
        }
    }

    fn damaged(&self, what: &str) -> TraceError {
        damage(&self.file, self.place(), what)
    }

    /// Handles a bad record: skips and counts the record if the options allow that, otherwise
    /// returns an error.
    fn bad(&mut self, what: String) -> Result<(), TraceError> {
        let (file, place) = (self.file.clone(), self.place());
        match self.options.skip_bad {
            SkipBad::None => Err(TraceError::Bad { file, place, what }),
            SkipBad::AtMost(limit) if self.tally.bad >= limit => Err(TraceError::TooManyBad {
                file,
                place,
                what,
                skipped: self.tally.bad,
            }),
            SkipBad::AtMost(_) | SkipBad::All => {
                self.tally.bad += 1;
                Ok(())
            }
        }
    }

    /// Returns the next record; `None` after the last record, and after an error.
    ///
    /// # Errors
    /// An error with the position in the file, when the file is damaged or a record is bad.
    pub fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        let span = match self.span.take() {
            Some(span) => Some(span),
            None => self.next_span()?,
        };
        Ok(span.map(|Span { first, count }| {
            if count > 1 {
                let next = Record {
                    offset_bytes: first.offset_bytes + first.length_bytes,
                    ..first
                };
                self.span = Some(Span {
                    first: next,
                    count: count - 1,
                });
            }
            first
        }))
    }

    /// Returns the next records as a span without gaps. In a format that counts blocks, the span
    /// has all records of one line. Calls must not be mixed with calls of [`Reader::next_record`].
    pub(crate) fn next_span(&mut self) -> Result<Option<Span>, TraceError> {
        if self.ended {
            return Ok(None);
        }
        let span = if self.format == Format::Compact {
            self.next_compact().map(|record| record.map(Span::of))
        } else {
            self.next_parsed()
        };
        self.ended = !matches!(span, Ok(Some(_)));
        if let Ok(found) = &span {
            self.tally.requests += u64::from(found.is_some());
            let at_end = found.is_none();
            assert!(
                !at_end || self.tally.total() == self.at,
                "a line was dropped"
            );
        }
        span
    }

    fn next_parsed(&mut self) -> Result<Option<Span>, TraceError> {
        loop {
            let parsed = if self.record_bytes > 0 {
                self.parse_binary()?
            } else {
                self.parse_line()?
            };
            match parsed {
                None => return self.check_end().map(|()| None),
                Some(Ok(Parsed::Ignored(why))) => self.tally.ignore(why),
                Some(Ok(Parsed::Record(record))) => return Ok(Some(Span::of(record))),
                Some(Ok(Parsed::Blocks { first, count })) => {
                    return Ok(Some(Span { first, count }));
                }
                Some(Err(what)) => self.bad(what)?,
            }
        }
    }

    /// Returns an error for a text of blkparse that has content but no event that can be read as a
    /// request.
    fn check_end(&self) -> Result<(), TraceError> {
        let silent = self.tally.ignored(Ignored::Blank) + self.tally.ignored(Ignored::Comment);
        let is_foreign = self.format == Format::Blkparse && self.event.is_none();
        if is_foreign && self.tally.total() > silent {
            return Err(TraceError::NoEvents {
                file: self.file.clone(),
                events: blkparse::EVENT_NAMES,
            });
        }
        Ok(())
    }

    fn parse_binary(&mut self) -> Result<Option<Result<Parsed, String>>, TraceError> {
        self.at += 1;
        let (bytes, file, place) = (self.record_bytes, &self.file, Position::Record(self.at));
        let taken = self.input.take(bytes);
        let record = taken.map_err(|error| damage(file, place, &error.to_string()))?;
        if record.is_empty() {
            self.at -= 1;
            return Ok(None);
        }
        if record.len() < bytes {
            let what = format!(
                "the file ends within a record, after {} bytes",
                record.len()
            );
            return Ok(Some(Err(what)));
        }
        Ok(Some(match self.format {
            Format::Vscsi => layouts::vscsi(record, self.vscsi_version),
            _ => layouts::oracle_general(record, self.options.unit_bytes),
        }))
    }

    fn parse_line(&mut self) -> Result<Option<Result<Parsed, String>>, TraceError> {
        self.at += 1;
        let (file, place) = (&self.file, Position::Line(self.at));
        let line = self.input.line();
        let (from, to) = match line.map_err(|error| damage(file, place, &error.to_string()))? {
            Line::End => {
                self.at -= 1;
                return Ok(None);
            }
            Line::TooLong => {
                let what = format!("longer than {LINE_BYTES_MAX} bytes");
                return Ok(Some(Err(what)));
            }
            Line::Here(from, to) => (from, to),
        };
        let line = self.input.bytes(from, to);
        if line.trim_ascii().is_empty() {
            return Ok(Some(Ok(Parsed::Ignored(Ignored::Blank))));
        }
        if line.starts_with(b"#") {
            return Ok(Some(Ok(Parsed::Ignored(Ignored::Comment))));
        }
        let is_first = !self.has_content;
        self.has_content = true;
        if self.format == Format::Blkparse && self.event.is_none() {
            return self.choose_event(from, to).map(Some);
        }
        let parsed = self.parse_content(from, to, is_first);
        if parsed == Ok(Parsed::Ignored(Ignored::Heading)) {
            self.heading = Some((self.at, layouts::shown(self.input.bytes(from, to))));
        }
        Ok(Some(parsed))
    }

    /// Parses a line of blkparse before the kind of event (Q, I, D or C) that is read as the
    /// requests has been chosen. If this line has a suitable event, chooses the kind from this line
    /// and the lines that follow.
    fn choose_event(
        &mut self,
        from: usize,
        to: usize,
    ) -> Result<Result<Parsed, String>, TraceError> {
        // The line is copied, because `peek` can move its bytes in the buffer.
        let line = self.input.bytes(from, to).to_vec();
        if let Some(here) = Event::of_line(&line) {
            let ahead = self.input.peek(LINE_BYTES_MAX);
            let ahead = ahead
                .map_err(|error| damage(&self.file, Position::Line(self.at), &error.to_string()))?;
            self.event = Some(Event::first_of(ahead).map_or(here, |event| event.min(here)));
        }
        let devices = &mut self.devices;
        let mut number = |name: &[u8]| devices.number(name);
        Ok(blkparse::line(&line, self.event, &mut number))
    }

    /// Parses a line that is neither blank nor a comment.
    fn parse_content(&mut self, from: usize, to: usize, is_first: bool) -> Result<Parsed, String> {
        let line = self.input.bytes(from, to);
        let unit = self.options.unit_bytes;
        let devices = &mut self.devices;
        let mut number = |name: &[u8]| devices.number(name);
        match self.format {
            Format::Msr => layouts::msr(line, is_first, &mut number),
            Format::Ssdsim => layouts::device_lines(line, 1),
            Format::Disksim => layouts::device_lines(line, 1_000_000),
            Format::Arc => layouts::arc(line, unit),
            Format::Lirs => layouts::lirs(line, unit),
            Format::Spc => layouts::spc(line),
            Format::Blkparse => blkparse::line(line, self.event, &mut number),
            Format::Pages => layouts::pages(line, unit, is_first),
            Format::Fio if is_first => match fio_version(line) {
                Some(version) => {
                    self.fio_has_time = version == 3;
                    Ok(Parsed::Ignored(Ignored::Mark))
                }
                None => Err("not `fio version 2 iolog` or `fio version 3 iolog`".to_owned()),
            },
            Format::Fio => layouts::fio(line, self.fio_has_time, &mut number),
            Format::Columns => match &self.options.columns {
                Some(columns) => columns.parse(line, unit, is_first),
                None => Err("its columns are not described (--columns)".to_owned()),
            },
            Format::Vscsi | Format::OracleGeneral | Format::Compact => {
                Err("a binary format has records, not lines".to_owned())
            }
        }
    }

    fn next_compact(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            match self.chunk.next() {
                Ok(Some(record)) => {
                    self.at += 1;
                    return Ok(Some(record));
                }
                Ok(None) => {}
                Err(what) => return Err(self.damaged(what)),
            }
            if !self.next_chunk()? {
                return Ok(None);
            }
        }
    }

    /// Reads a chunk. Returns false at the end mark.
    fn next_chunk(&mut self) -> Result<bool, TraceError> {
        let head: [u8; HEAD_BYTES] = match self.input.take(HEAD_BYTES) {
            Ok(bytes) => match bytes.try_into() {
                Ok(head) => head,
                Err(_) => return Err(self.damaged("it ends without an end mark")),
            },
            Err(error) => return Err(self.damaged(&error.to_string())),
        };
        let [records, length, crc] = [0, 4, 8].map(|at| layouts::u32_at(&head, at));
        if length as usize > CHUNK_BYTES_MAX {
            return Err(self.damaged("a chunk that is too long"));
        }
        let bytes = self.take_all(length as usize)?;
        if crc32c::crc32c(&bytes) != crc {
            return Err(self.damaged("a chunk whose CRC is wrong"));
        }
        if records == 0 {
            let total = layouts::u64_at(&bytes, 0);
            if bytes.len() != 8 || total != self.records {
                return Err(self.damaged("the count at its end is wrong"));
            }
            return match self.input.take(1) {
                Ok([]) => Ok(false),
                Ok(_) => Err(self.damaged("bytes after the end mark")),
                Err(error) => Err(self.damaged(&error.to_string())),
            };
        }
        self.records += u64::from(records);
        self.chunk = Chunk::new(records, bytes);
        Ok(true)
    }

    fn take_all(&mut self, length: usize) -> Result<Vec<u8>, TraceError> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let wanted = (length - bytes.len()).min(LINE_BYTES_MAX);
            let before = bytes.len();
            match self.input.take(wanted) {
                Ok(part) => bytes.extend_from_slice(part),
                Err(error) => return Err(self.damaged(&error.to_string())),
            }
            if bytes.len() < before + wanted {
                return Err(self.damaged("it ends within a chunk"));
            }
        }
        Ok(bytes)
    }
}

fn damage(file: &str, place: Position, what: &str) -> TraceError {
    TraceError::Damaged {
        file: file.to_owned(),
        place,
        what: what.to_owned(),
    }
}

fn fio_version(line: &[u8]) -> Option<u8> {
    match line.trim_ascii() {
        b"fio version 2 iolog" => Some(2),
        b"fio version 3 iolog" => Some(3),
        _ => None,
    }
}
