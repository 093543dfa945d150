//! Common parts of the fuzz targets for the trace readers: functions that make a reader from bytes,
//! and read and check its records.
//!
//! The functions that make a reader must not reduce the number of inputs that the fuzzer can reach:
//! the bytes determine every choice.

use bimetal_trace::{Format, Options, Reader, Record, SkipBad};
use std::io::Cursor;

/// Maximum number of records that are read: a short file can expand to millions of records.
const RECORDS_MAX: usize = 1 << 14;
/// File names: a neutral name, and two names by which a format is recognised.
const NAMES: [&str; 3] = ["trace", "trace.lis", "trace.oracleGeneral"];
/// Bit in the first byte; if set, bad records are skipped.
const SKIPS: u8 = 0x80;

/// A source that can be read more than once.
pub struct File {
    name: &'static str,
    bytes: Vec<u8>,
    options: Options,
}

impl File {
    /// Makes a file from the fuzzer's bytes. The first byte selects one of three cases. First: the
    /// format is given, and the rest of the bytes is the file. Second: the rest is the file, and
    /// the reader has to recognise the format by the content and by one of three file names. Third:
    /// the format is the compact form, and the rest becomes the content of a chunk with a valid
    /// CRC.
    pub fn from_fuzzer(data: &[u8]) -> Option<File> {
        let (choice, rest) = data.split_first()?;
        let number = usize::from(choice & !SKIPS);
        let mut options = Options {
            columns: "time_us,op,offset_bytes,length_pages".parse().ok(),
            skip_bad: if choice & SKIPS == 0 {
                SkipBad::None
            } else {
                SkipBad::All
            },
            ..Options::default()
        };
        let formats = Format::ALL.len();
        if let Some((_, format)) = Format::ALL.get(number) {
            options.format = Some(*format);
            return Some(File::new("trace", rest.to_vec(), options));
        }
        options.columns = None;
        match NAMES.get(number - formats) {
            Some(name) => Some(File::new(name, rest.to_vec(), options)),
            None => Some(File::new("trace", compact(rest), options)),
        }
    }

    /// Makes a file with the content `bytes`.
    pub fn new(name: &'static str, bytes: Vec<u8>, options: Options) -> File {
        File {
            name,
            bytes,
            options,
        }
    }

    /// Opens a reader; returns `None` if the file is refused.
    pub fn reader(&self) -> Option<Reader> {
        let source = Box::new(Cursor::new(self.bytes.clone()));
        Reader::new(self.name.to_owned(), source, &self.options).ok()
    }

    /// Returns the records up to the end of the file or the first error, and whether reading
    /// stopped at the end; `None` if the file is refused or has at least `RECORDS_MAX` records.
    ///
    /// # Panics
    /// If a record is invalid, or if the reader does not report the end after it has stopped.
    pub fn records(&self) -> Option<(Vec<Record>, bool)> {
        let mut reader = self.reader()?;
        let mut all = Vec::new();
        while all.len() < RECORDS_MAX {
            let next = reader.next_record();
            let Ok(Some(record)) = next else {
                let after = reader.next_record();
                assert!(matches!(after, Ok(None)), "{after:?} after the end");
                return Some((all, next.is_ok()));
            };
            let end = record.offset_bytes.checked_add(record.length_bytes);
            assert!(record.length_bytes > 0 && end.is_some(), "{record:?}");
            all.push(record);
        }
        None
    }
}

/// Makes a compact trace of one chunk: the first byte is the number of records that the chunk
/// claims to have, the rest is the content of the chunk.
fn compact(bytes: &[u8]) -> Vec<u8> {
    let (records, chunk) = bytes.split_first().unwrap_or((&0, &[]));
    let total = u64::from(*records).to_le_bytes();
    let mut file = b"BMTRACE1".to_vec();
    for (records, content) in [(*records, chunk), (0, &total)] {
        file.extend(u32::from(records).to_le_bytes());
        file.extend((content.len() as u32).to_le_bytes());
        file.extend(crc32c::crc32c(content).to_le_bytes());
        file.extend(content);
    }
    file
}
