//! Readers of the records of a file, one after another, each with its position in the file. A
//! reader never trusts a length in the file, and never takes an incomplete record for a complete
//! one.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use bimetal_index::KEY_BYTES_MAX;

use super::form::{Form, excerpt};

/// Format of the records in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// `key,value`, quoted where necessary (RFC 4180)
    Csv,
    /// Two lengths of 4 bytes each, little-endian, then the key and the value
    Binary,
    /// A key on each line, with an empty value
    Lines,
    /// An object with `key` and `value` on each line
    Json,
}

/// Options for parsing keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) key: Form,
    pub(crate) value: Form,
    /// Delimiter between the columns of CSV.
    pub(crate) delimiter: u8,
    /// Whether the first line of a CSV file is a header, which is skipped.
    pub(crate) has_header: bool,
}

/// A key and its value.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Record {
    fn read(&mut self, reading: &Reading, key: &[u8], value: &[u8]) -> Result<(), Bad> {
        self.key.clear();
        self.value.clear();
        reading.key.read(key, &mut self.key).map_err(of_key)?;
        reading.value.read(value, &mut self.value).map_err(of_value)
    }
}

fn of_key(why: String) -> Bad {
    Bad::Record(format!("key {why}"))
}

fn of_value(why: String) -> Bad {
    Bad::Record(format!("value {why}"))
}

/// Position of a record in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Number of the line in which the record begins, counted from 1.
    Line(u64),
    /// Position in a file without lines: the number of the record, counted from 1, and the offset
    /// of its first byte, counted from 0.
    Record { number: u64, offset: u64 },
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Line(line) => write!(f, "{line}"),
            Position::Record { number, offset } => write!(f, "record {number} at byte {offset}"),
        }
    }
}

/// Reason why the next record could not be read.
#[derive(Debug)]
pub(crate) enum Bad {
    /// The file cannot be read.
    Input(io::Error),
    /// The record is malformed.
    Record(String),
}

impl From<io::Error> for Bad {
    fn from(error: io::Error) -> Bad {
        Bad::Input(error)
    }
}

/// Reader of the records of a file.
pub(crate) trait Records {
    /// Reads the next record into `record`. Returns false at the end of the file.
    fn next(&mut self, record: &mut Record) -> Result<bool, Bad>;

    /// Returns the position of the record that was read last, valid or malformed.
    fn place(&self) -> Position;
}

/// Returns a reader for the records of `input`, which are in the format `format`.
pub(crate) fn open<'a>(
    format: Format,
    reading: Reading,
    input: impl Read + 'a,
) -> Box<dyn Records + 'a> {
    let input = BufReader::with_capacity(1 << 18, input);
    match format {
        Format::Csv => Box::new(Csv::new(reading, input)),
        Format::Binary => Box::new(Binary {
            input,
            number: 0,
            offset: 0,
            next_offset: 0,
        }),
        Format::Lines => Box::new(KeyLines {
            lines: Lines::new(input, line_bytes_max(reading.key)),
            reading,
        }),
        Format::Json => Box::new(JsonLines {
            lines: Lines::new(input, JSON_LINE_BYTES_MAX),
            reading,
        }),
    }
}

/// Byte that is passed to the CSV reader after the end of a file. It becomes a record of its own,
/// unless the file ends inside quotes; an unclosed quote is detected in this way.
const BEHIND_THE_END: u8 = 0;

/// Input of the CSV reader. It passes a file to the CSV reader line by line. After the file it
/// always passes two more bytes: a line feed, which ends a last line without one, and
/// [`BEHIND_THE_END`]. A read never returns bytes of more than one line. So when the CSV reader
/// returns a record, `lines` is the number of lines that the CSV reader has read.
struct ByLine<R> {
    input: R,
    /// Number of line feeds passed to the CSV reader.
    lines: u64,
    /// Number of bytes of the end passed to the CSV reader.
    end: usize,
}

impl<R: BufRead> Read for ByLine<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let chunk = self.input.fill_buf()?;
        if chunk.is_empty() {
            let Some(piece) = [b'\n', BEHIND_THE_END].get(self.end) else {
                return Ok(0);
            };
            buffer[0] = *piece;
            self.end += 1;
            self.lines += u64::from(*piece == b'\n');
            return Ok(1);
        }
        let chunk = &chunk[..chunk.len().min(buffer.len())];
        let feed = chunk.iter().position(|byte| *byte == b'\n');
        let len = feed.map_or(chunk.len(), |at| at + 1);
        buffer[..len].copy_from_slice(&chunk[..len]);
        self.lines += u64::from(feed.is_some());
        self.input.consume(len);
        Ok(len)
    }
}

/// Converts a CSV error to an I/O error. If the CSV error contains an I/O error, that error itself
/// is returned, so that its kind is kept. Any other CSV error becomes an I/O error with its text.
pub(crate) fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

struct Csv<R> {
    reading: Reading,
    reader: csv::Reader<ByLine<R>>,
    fields: csv::ByteRecord,
    line: u64,
    is_over: bool,
}

impl<R: BufRead> Csv<R> {
    fn new(reading: Reading, input: R) -> Csv<R> {
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(reading.delimiter)
            .from_reader(ByLine {
                input,
                lines: 0,
                end: 0,
            });
        Csv {
            reading,
            reader,
            fields: csv::ByteRecord::new(),
            line: 0,
            is_over: false,
        }
    }

    /// Reads the fields of the next record. Returns false at the end of the file.
    fn next_fields(&mut self) -> Result<bool, Bad> {
        if self.is_over {
            return Ok(false);
        }
        let read = self.reader.read_byte_record(&mut self.fields);
        read.map_err(|error| Bad::Input(io_error(error)))?;
        let feeds = self.fields.as_slice().iter().filter(|byte| **byte == b'\n');
        let feeds = feeds.count() as u64;
        let given = self.reader.get_ref();
        // A record ends with a line feed, so the last line passed to the CSV reader is the last
        // line of the record. A record that contains n line feeds in its fields began n lines
        // earlier.
        self.line = given.lines - feeds.min(given.lines);
        self.is_over = given.end == 2;
        if !self.is_over {
            return Ok(true);
        }
        if self.fields.len() == 1 && self.fields[0] == [BEHIND_THE_END] {
            return Ok(false);
        }
        // The number of line feeds in the fields was subtracted. The final line feed of a record
        // normally is not part of a field. In this record a quote is not closed, so the final line
        // feed is part of the last field, and one line feed too many was subtracted.
        self.line += 1;
        let why = "a quote is opened here and never closed";
        Err(Bad::Record(why.to_owned()))
    }
}

impl<R: BufRead> Records for Csv<R> {
    fn next(&mut self, record: &mut Record) -> Result<bool, Bad> {
        if std::mem::take(&mut self.reading.has_header) && !self.next_fields()? {
            return Ok(false);
        }
        if !self.next_fields()? {
            return Ok(false);
        }
        if self.fields.len() != 2 {
            let (count, delimiter) = (self.fields.len(), self.reading.delimiter);
            return Err(Bad::Record(format!(
                "expected two columns, key and value, separated by `{}`, but found {count}",
                delimiter.escape_ascii()
            )));
        }
        record.read(&self.reading, &self.fields[0], &self.fields[1])?;
        Ok(true)
    }

    fn place(&self) -> Position {
        Position::Line(self.line)
    }
}

struct Binary<R> {
    input: R,
    number: u64,
    offset: u64,
    next_offset: u64,
}

impl<R: BufRead> Binary<R> {
    /// Reads exactly `length` bytes into `bytes`. If the file has fewer bytes, no memory is
    /// allocated for the missing ones.
    fn take(&mut self, length: u32, bytes: &mut Vec<u8>) -> Result<(), Bad> {
        bytes.clear();
        let length = u64::from(length);
        let read = (&mut self.input).take(length).read_to_end(bytes)? as u64;
        self.next_offset += read;
        if read < length {
            let end = self.next_offset;
            return Err(Bad::Record(format!(
                "the file ends within the record, at byte {end}"
            )));
        }
        Ok(())
    }
}

impl<R: BufRead> Records for Binary<R> {
    fn next(&mut self, record: &mut Record) -> Result<bool, Bad> {
        if self.input.fill_buf()?.is_empty() {
            return Ok(false);
        }
        self.number += 1;
        self.offset = self.next_offset;
        let mut lengths = [0; 2];
        for length in &mut lengths {
            self.take(4, &mut record.key)?;
            let field: [u8; 4] = record.key[..].try_into().expect("4 bytes were taken");
            *length = u32::from_le_bytes(field);
        }
        let [key_bytes, value_bytes] = lengths;
        if key_bytes as usize > KEY_BYTES_MAX {
            return Err(Bad::Record(format!(
                "the key has {key_bytes} bytes, but at most {KEY_BYTES_MAX} are possible; is the \
                file in the format binary?"
            )));
        }
        self.take(key_bytes, &mut record.key)?;
        self.take(value_bytes, &mut record.value)?;
        Ok(true)
    }

    fn place(&self) -> Position {
        Position::Record {
            number: self.number,
            offset: self.offset,
        }
    }
}

/// Maximum length in bytes of a line of JSON. A longer line is malformed.
const JSON_LINE_BYTES_MAX: u64 = 1 << 30;

/// Returns the maximum length in bytes of a line that holds a key. A hexadecimal key has two
/// characters for each byte, and can begin with `0x`.
fn line_bytes_max(key: Form) -> u64 {
    match key {
        Form::Text => KEY_BYTES_MAX as u64,
        Form::U64 | Form::Hex => 2 * KEY_BYTES_MAX as u64 + 2,
    }
}

/// Reader of lines, each of which ends with a line feed, optionally preceded by a carriage return.
struct Lines<R> {
    input: R,
    bytes_max: u64,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R, bytes_max: u64) -> Lines<R> {
        Lines {
            input,
            bytes_max,
            line: Vec::new(),
            number: 0,
        }
    }

    fn next(&mut self) -> Result<Option<&[u8]>, Bad> {
        self.line.clear();
        let limit = self.bytes_max + 2;
        let read = (&mut self.input)
            .take(limit)
            .read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        let line = self.line.strip_suffix(b"\n");
        let line = line.map_or(&self.line[..], |line| {
            line.strip_suffix(b"\r").unwrap_or(line)
        });
        if line.len() as u64 > self.bytes_max {
            let max = self.bytes_max;
            return Err(Bad::Record(format!(
                "the line has more than {max} bytes, which is too long for a key"
            )));
        }
        Ok(Some(line))
    }
}

struct KeyLines<R> {
    lines: Lines<R>,
    reading: Reading,
}

impl<R: BufRead> Records for KeyLines<R> {
    fn next(&mut self, record: &mut Record) -> Result<bool, Bad> {
        let Some(line) = self.lines.next()? else {
            return Ok(false);
        };
        record.key.clear();
        record.value.clear();
        self.reading
            .key
            .read(line, &mut record.key)
            .map_err(of_key)?;
        Ok(true)
    }

    fn place(&self) -> Position {
        Position::Line(self.lines.number)
    }
}

struct JsonLines<R> {
    lines: Lines<R>,
    reading: Reading,
}

/// A line of JSON.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    key: serde_json::Value,
    value: serde_json::Value,
}

/// Returns the text of a JSON string. If the form is a number, a JSON number is accepted as well.
fn json_field(form: Form, value: serde_json::Value) -> Result<String, String> {
    match value {
        serde_json::Value::String(text) => Ok(text),
        serde_json::Value::Number(number) if form == Form::U64 => Ok(number.to_string()),
        other => Err(format!(
            "{} is not of the form {}",
            excerpt(other.to_string().as_bytes()),
            form.name()
        )),
    }
}

impl<R: BufRead> Records for JsonLines<R> {
    fn next(&mut self, record: &mut Record) -> Result<bool, Bad> {
        let Some(line) = self.lines.next()? else {
            return Ok(false);
        };
        let pair: Pair = serde_json::from_slice(line).map_err(|error| {
            let column = error.column();
            let why = error.to_string();
            // The line number in the message is removed, because the JSON parser was given only one
            // line. The caller adds the line number in the file.
            let why = why.split(" at line ").next().unwrap_or(&why);
            Bad::Record(format!("column {column}: {why}"))
        })?;
        let key = json_field(self.reading.key, pair.key).map_err(of_key)?;
        let value = json_field(self.reading.value, pair.value).map_err(of_value)?;
        record.read(&self.reading, key.as_bytes(), value.as_bytes())?;
        Ok(true)
    }

    fn place(&self) -> Position {
        Position::Line(self.lines.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: Reading = Reading {
        key: Form::Text,
        value: Form::Text,
        delimiter: b',',
        has_header: false,
    };

    /// The records that were read, each with key, value and position, and the position and reason
    /// of the first bad record.
    type Outcome = (
        Vec<(Vec<u8>, Vec<u8>, Position)>,
        Option<(Position, String)>,
    );

    fn read_as(format: Format, reading: Reading, input: &[u8]) -> Outcome {
        let mut records = open(format, reading, input);
        let (mut good, mut record) = (Vec::new(), Record::default());
        loop {
            match records.next(&mut record) {
                Ok(true) => {
                    let key = std::mem::take(&mut record.key);
                    good.push((key, std::mem::take(&mut record.value), records.place()));
                }
                Ok(false) => return (good, None),
                Err(Bad::Record(why)) => return (good, Some((records.place(), why))),
                Err(Bad::Input(error)) => panic!("{error}"),
            }
        }
    }

    fn csv_lines(text: &str) -> (Vec<u64>, Option<(u64, String)>) {
        let line = |place: Position| match place {
            Position::Line(line) => line,
            Position::Record { .. } => panic!("CSV has lines"),
        };
        let (good, bad) = read_as(Format::Csv, READING, text.as_bytes());
        let good = good.iter().map(|(_, _, place)| line(*place)).collect();
        (good, bad.map(|(place, why)| (line(place), why)))
    }

    #[test]
    fn csv_knows_its_lines_whatever_ends_them() {
        for (text, lines) in [
            ("a,1\nb,2\n", vec![1, 2]),
            ("a,1\nb,2", vec![1, 2]),
            ("a,1\r\nb,2\r\n", vec![1, 2]),
            ("\n\na,1\n\n\nb,2\n\n", vec![3, 6]),
            ("a,\"x\ny\nz\"\nb,2\n", vec![1, 4]),
            ("a,\"x\r\ny\"\r\nb,2\r\n", vec![1, 3]),
            ("", vec![]),
            ("\n", vec![]),
        ] {
            assert_eq!(csv_lines(text), (lines, None), "{text:?}");
        }
    }

    #[test]
    fn csv_that_is_cut_off_within_quotes_is_refused() {
        for text in ["a,1\nb,\"2", "a,1\nb,\"2\n", "a,1\n\"b\nc,d\ne,f\n"] {
            let (good, bad) = csv_lines(text);
            let (line, why) = bad.expect("it is cut off");
            assert_eq!((good, line), (vec![1], 2), "{text:?}");
            assert!(why.contains("never closed"), "{why}");
        }
        // A file may end between two records. NUL bytes are ordinary text.
        assert_eq!(csv_lines("a,\0\n\0,\0"), (vec![1, 2], None));
        let (_, bad) = csv_lines("a,1\n\0\n");
        assert!(bad.is_some_and(|(line, why)| line == 2 && why.contains("found 1")));
    }

    #[test]
    fn quotes_are_those_of_rfc_4180() {
        let (good, bad) = read_as(Format::Csv, READING, b"\"a,\"\"b\"\"\",\"1\r\n2\"\n");
        assert_eq!(bad, None);
        assert_eq!(
            (&good[0].0[..], &good[0].1[..]),
            (&b"a,\"b\""[..], &b"1\r\n2"[..])
        );
    }

    #[test]
    fn a_header_is_passed_over_once() {
        let reading = Reading {
            has_header: true,
            ..READING
        };
        let (good, bad) = read_as(Format::Csv, reading, b"key,value,other\nkey,value\n");
        assert_eq!((good.len(), bad), (1, None));
        assert_eq!(good[0].2, Position::Line(2));
        assert_eq!(read_as(Format::Csv, reading, b"").1, None);
    }

    #[test]
    fn binary_believes_no_length() {
        let whole = b"\x01\0\0\0\x02\0\0\0kvv\0\0\0\0\0\0\0\0";
        let (good, bad) = read_as(Format::Binary, READING, whole);
        assert_eq!((good.len(), bad), (2, None));
        assert_eq!((&good[0].0[..], &good[0].1[..]), (&b"k"[..], &b"vv"[..]));
        // If a file ends within a record, that record is refused.
        for len in (1..whole.len()).filter(|len| *len != 11) {
            let (good, bad) = read_as(Format::Binary, READING, &whole[..len]);
            let (place, why) = bad.expect("it is cut off");
            let (number, offset) = if len < 11 { (1, 0) } else { (2, 11) };
            assert_eq!(place, Position::Record { number, offset });
            assert_eq!(good.len() as u64, number - 1);
            assert!(why.contains(&format!("byte {len}")), "{why}");
        }
        let (_, bad) = read_as(Format::Binary, READING, b"\x01\x10\0\0\xFF\xFF\xFF\xFFk");
        assert!(bad.is_some_and(|(_, why)| why.contains("the key has 4097 bytes")));
        let (_, bad) = read_as(Format::Binary, READING, b"\x01\0\0\0\xFF\xFF\xFF\xFFkv");
        assert!(bad.is_some_and(|(_, why)| why.contains("ends within")));
    }

    #[test]
    fn lines_are_keys_as_long_as_keys_may_be() {
        let key = "k".repeat(KEY_BYTES_MAX);
        let text = format!("{key}\r\n\n{key}x\n");
        let (good, bad) = read_as(Format::Lines, READING, text.as_bytes());
        assert_eq!(good.len(), 2);
        assert_eq!(good[0].0, key.as_bytes());
        assert_eq!(good[1].0, b"");
        assert_eq!(bad.map(|(place, _)| place), Some(Position::Line(3)));
    }

    #[test]
    fn json_lines_are_strings_and_numbers_of_their_form() {
        let reading = Reading {
            key: Form::U64,
            ..READING
        };
        let text = b"{\"key\":18446744073709551615,\"value\":\"a\\u0000\"}\n{\"key\":1}\n";
        let (good, bad) = read_as(Format::Json, reading, text);
        assert_eq!(
            (&good[0].0[..], &good[0].1[..]),
            (&[0xFF; 8][..], &b"a\0"[..])
        );
        let (place, why) = bad.expect("it has no value");
        assert_eq!(place, Position::Line(2));
        assert!(why.contains("value") && !why.contains("line"), "{why}");
        for text in [
            "{\"key\":true,\"value\":\"\"}",
            "{\"key\":1.5,\"value\":\"\"}",
            "[]",
            "",
        ] {
            let line = format!("{text}\n");
            let (_, bad) = read_as(Format::Json, reading, line.as_bytes());
            assert!(bad.is_some(), "{text}");
        }
    }
}
