//! Writes a trace file in the format that its name selects.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::{CompactWriter, Op, Record};

/// Writer of a trace file. The extension `.csv` selects the CSV format of the MSR Cambridge traces,
/// any other extension the compact format.
pub struct TraceFile {
    to: Format,
}

enum Format {
    Compact(CompactWriter<BufWriter<File>>),
    Msr(BufWriter<File>),
}

impl TraceFile {
    /// Creates the file `path`, which must not exist.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn create_new(path: &Path) -> io::Result<TraceFile> {
        let to = BufWriter::new(File::create_new(path)?);
        let is_csv = path.extension().is_some_and(|extension| extension == "csv");
        let to = match is_csv {
            true => Format::Msr(to),
            false => Format::Compact(CompactWriter::new(to)?),
        };
        Ok(TraceFile { to })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        match &mut self.to {
            Format::Compact(to) => to.push(record),
            Format::Msr(to) => to.write_all(msr_line(record).as_bytes()),
        }
    }

    /// Completes the file and makes it durable.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn finish(self) -> io::Result<()> {
        let buffered = match self.to {
            Format::Compact(to) => to.finish()?,
            Format::Msr(to) => to,
        };
        let file = buffered.into_inner().map_err(|error| error.into_error())?;
        file.sync_all()
    }
}

/// Formats a record as a line of an MSR Cambridge trace, without a response time. The fields are
/// the time in units of 100 ns, host, disk, type, and offset and length in bytes.
fn msr_line(record: &Record) -> String {
    let op = match record.op {
        Op::Read => "Read",
        Op::Write => "Write",
        Op::Trim => "Trim",
    };
    let (time, offset, length) = (
        record.time_ns / 100,
        record.offset_bytes,
        record.length_bytes,
    );
    format!("{time},bimetal,0,{op},{offset},{length},0\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Reader};

    /// Writes records to a file with the extension `extension`, and returns the name of the format
    /// that a reader recognises and the records that it reads.
    fn written_and_read(extension: &str, records: &[Record]) -> (&'static str, Vec<Record>) {
        let name = format!("bimetal-trace-{}.{extension}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut file = TraceFile::create_new(&path).unwrap();
        records.iter().for_each(|record| file.push(record).unwrap());
        file.finish().unwrap();
        let mut reader = Reader::open(&path, &Options::default()).unwrap();
        let read = std::iter::from_fn(|| reader.next_record().unwrap()).collect();
        let format = reader.format().name();
        let second = TraceFile::create_new(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(second.is_err(), "an existing file is not replaced");
        (format, read)
    }

    #[test]
    fn what_is_written_is_read_again_without_being_told_the_format() {
        let record = |time_ns, op, offset_bytes, length_bytes| Record {
            time_ns,
            op,
            offset_bytes,
            length_bytes,
        };
        let records = [
            record(0, Op::Trim, 1 << 40, 1 << 32),
            record(100, Op::Write, 0, 4096),
            record(1_000_000, Op::Read, 512, 1),
        ];
        for (extension, format) in [("csv", "msr"), ("trace", "compact")] {
            let read = written_and_read(extension, &records);
            assert_eq!(read, (format, records.to_vec()));
        }
    }
}
