//! `bimetal index scan`: prints records in formats from which `load` reads exactly the same bytes.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::Bound;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use bimetal_index::{Db, Error, Scan, ScanBounds};
use serde_json::json;

use super::form::{Form, is_text};
use super::get::read_key;
use super::progress::{Progress, Unit};
use super::records::io_error;
use super::{OpenArgs, failed};
use bimetal_block::units::show_count;
use bimetal_console::stderr::say;

/// Number of records between two updates of the progress bar.
const RECORDS_BETWEEN: u64 = 1 << 14;
/// UTF-8 byte order mark. A CSV reader removes it from the start of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Format in which records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// `key,value`, quoted where necessary (RFC 4180)
    Csv,
    /// Two lengths of 4 bytes each, little-endian, then the key and the value
    Binary,
    /// An object with `key` and `value` on each line
    Json,
}

/// Arguments of the verb `scan`.
///
/// The index is opened for reading only. At the same time, other readers can have it open, but no
/// writer can. The scan prints the records as they were at its start.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// Print only keys that are greater than or equal to KEY
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// Print only keys that are less than KEY
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
    /// Print only keys with this prefix
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// Print the keys in descending order
    #[arg(long)]
    reverse: bool,
    /// Maximum number of records to print
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Format of the records
    #[arg(long, value_name = "FORMAT", default_value = "csv")]
    format: Format,
    /// Form of keys, in the output and in --from, --to and --prefix [default: text, but hex in the
    /// output if the first or the last key is not text]
    #[arg(long, value_name = "FORM")]
    key: Option<Form>,
    /// Form of values [default: text, but hex if the first or the last value is not text]
    #[arg(long, value_name = "FORM")]
    value: Option<Form>,
    #[command(flatten)]
    open: OpenArgs,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let bounds = Bounds::of(args)?;
    let db = args.open.open_read_only(&args.index)?;
    // On a terminal the printed rows show the progress, and a bar would disturb them.
    let progress =
        (!io::stdout().is_terminal()).then(|| Progress::start(Unit::Nothing, "scanning"));
    let looks = Looks::of(args, &db, &bounds).map_err(|error| failed(&args.index, &error))?;
    let mut rows = if args.reverse {
        db.scan_reverse(bounds.lend())
    } else {
        db.scan(bounds.lend())
    };
    let out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut writer = Writer::new(args.format, looks, out);
    let written = write_rows(args, &mut rows, &mut writer, progress.as_ref());
    // The records read so far are printed even if the scan failed. The first error is reported.
    let flushed = writer.finish();
    written?;
    flushed?;
    Ok(ExitCode::SUCCESS)
}

fn write_rows(
    args: &Args,
    rows: &mut Scan,
    writer: &mut Writer<impl Write>,
    progress: Option<&Progress>,
) -> Result<()> {
    let mut count = 0;
    while args.limit.is_none_or(|limit| count < limit) {
        let row = rows.next().map_err(|error| failed(&args.index, &error))?;
        let Some((key, value)) = row else { break };
        count += 1;
        writer.write(key, value).map_err(|refused| match refused {
            Refused::Output(error) => anyhow::Error::from(error),
            Refused::Form(why) => anyhow!(
                "{}: record {count}: {why}; --key hex and --value hex print any bytes",
                args.index.display()
            ),
        })?;
        if let Some(progress) = progress
            && count % RECORDS_BETWEEN == 0
        {
            let message = format!("{} records", show_count(count));
            progress.bar().set_message(message);
        }
    }
    Ok(())
}

/// Bounds of the range of keys to print.
struct Bounds {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
}

impl Bounds {
    fn of(args: &Args) -> Result<Bounds> {
        let form = args.key.unwrap_or(Form::Text);
        if let Some(prefix) = &args.prefix {
            if form == Form::U64 {
                bail!("--prefix: a number has no prefix; use --from and --to");
            }
            let from = read_key(form, prefix)?;
            return Ok(Bounds {
                to: behind(&from),
                from: Bound::Included(from),
            });
        }
        let read = |key: &Option<String>, bound: fn(Vec<u8>) -> Bound<Vec<u8>>| match key {
            Some(key) => read_key(form, key).map(bound),
            None => Ok(Bound::Unbounded),
        };
        Ok(Bounds {
            from: read(&args.from, Bound::Included)?,
            to: read(&args.to, Bound::Excluded)?,
        })
    }

    fn lend(&self) -> ScanBounds<'_> {
        let lend = |bound| Bound::map(bound, |key: &Vec<u8>| &key[..]);
        (lend(self.from.as_ref()), lend(self.to.as_ref()))
    }
}

/// Returns the upper bound of the range of keys that begin with `prefix`.
fn behind(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut key = prefix.to_vec();
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            return Bound::Excluded(key);
        }
    }
    Bound::Unbounded
}

/// Text forms in which keys and values are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Looks {
    key: Form,
    value: Form,
    /// Whether the first or the last key begins with a byte order mark, which a CSV reader would
    /// remove.
    has_mark: bool,
}

impl Looks {
    /// Returns the text forms in which keys and values are printed. A form that the arguments do
    /// not give is guessed from the first and the last record.
    fn of(args: &Args, db: &Db, bounds: &Bounds) -> Result<Looks, Error> {
        let mut samples = Vec::new();
        for mut rows in [db.scan(bounds.lend()), db.scan_reverse(bounds.lend())] {
            let row = rows.next()?;
            samples.extend(row.map(|(key, value)| (key.to_vec(), value.to_vec())));
        }
        let form = |asked: Option<Form>, is_text: bool| {
            asked.unwrap_or(if is_text { Form::Text } else { Form::Hex })
        };
        let looks = Looks {
            key: form(args.key, samples.iter().all(|(key, _)| is_text(key))),
            value: form(args.value, samples.iter().all(|(_, value)| is_text(value))),
            has_mark: samples
                .iter()
                .any(|(key, _)| key.starts_with(BYTE_ORDER_MARK)),
        };
        if args.format != Format::Binary {
            looks.say_guesses(args);
        }
        Ok(looks)
    }

    /// Reports the forms that were guessed. A user who loads the output again must name these
    /// forms.
    fn say_guesses(self, args: &Args) {
        let guessed = |asked: Option<Form>, form| asked.is_none() && form == Form::Hex;
        let (what, options) = match (guessed(args.key, self.key), guessed(args.value, self.value)) {
            (true, true) => ("keys and values", "--key hex --value hex"),
            (true, false) => ("keys", "--key hex"),
            (false, true) => ("values", "--value hex"),
            (false, false) => return,
        };
        say(format_args!(
            "bimetal: {}: {what} are not text and are printed as hex; load them with {options}",
            args.index.display()
        ));
    }
}

/// Reason why a record was not written.
enum Refused {
    Output(io::Error),
    Form(String),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::Output(error)
    }
}

/// Writes records in a format.
enum Writer<W: Write> {
    Csv(Looks, Box<csv::Writer<W>>, [Vec<u8>; 2]),
    Binary(W),
    Json(Looks, W),
}

impl<W: Write> Writer<W> {
    fn new(format: Format, looks: Looks, out: W) -> Writer<W> {
        match format {
            Format::Csv => {
                let quotes = if looks.has_mark && looks.key == Form::Text {
                    csv::QuoteStyle::Always
                } else {
                    csv::QuoteStyle::Necessary
                };
                let mut builder = csv::WriterBuilder::new();
                let writer = builder.quote_style(quotes).from_writer(out);
                Writer::Csv(looks, Box::new(writer), Default::default())
            }
            Format::Binary => Writer::Binary(out),
            Format::Json => Writer::Json(looks, out),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        match self {
            Writer::Csv(looks, writer, fields) => {
                for (field, (form, bytes)) in
                    (fields.iter_mut()).zip([(looks.key, key), (looks.value, value)])
                {
                    field.clear();
                    form.show(bytes, field).map_err(Refused::Form)?;
                }
                let written = writer.write_record(fields);
                written.map_err(|error| Refused::Output(io_error(error)))
            }
            Writer::Binary(out) => write_binary(out, key, value),
            Writer::Json(looks, out) => {
                let key = json_value(looks.key, key).map_err(Refused::Form)?;
                let value = json_value(looks.value, value).map_err(Refused::Form)?;
                Ok(writeln!(out, "{}", json!({ "key": key, "value": value }))?)
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Writer::Csv(_, mut writer, _) => writer.flush(),
            Writer::Binary(mut out) | Writer::Json(_, mut out) => out.flush(),
        }
    }
}

fn write_binary(out: &mut impl Write, key: &[u8], value: &[u8]) -> Result<(), Refused> {
    for field in [key, value] {
        let length = u32::try_from(field.len());
        let length = length.map_err(|_| Refused::Form("a value of 4 GiB or more".to_owned()))?;
        out.write_all(&length.to_le_bytes())?;
    }
    out.write_all(key)?;
    Ok(out.write_all(value)?)
}

fn json_value(form: Form, bytes: &[u8]) -> Result<serde_json::Value, String> {
    if form == Form::U64 {
        return Ok(json!(Form::number_of(bytes)?));
    }
    let mut field = Vec::new();
    form.show(bytes, &mut field)?;
    let text = String::from_utf8(field);
    let text = text.map_err(|_| {
        let what = super::form::excerpt(bytes);
        format!("{what} is not UTF-8, which JSON requires")
    })?;
    Ok(json!(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_behind_a_prefix_is_the_next_one_that_is_no_longer() {
        assert_eq!(behind(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(behind(b"a\xFF\xFF"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(behind(b"\xFF"), Bound::Unbounded);
        assert_eq!(behind(b""), Bound::Unbounded);
    }
}
