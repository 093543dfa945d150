//! `bimetal record`: records the requests on a device of a running server as a trace. This module
//! contains both sides of the verb `record` of the control socket (docs/control.md): the server and
//! the client.
//!
//! The server only passes on the requests that the device's tap has recorded, in batches that are
//! small enough not to delay other requests. The client writes the file. If the server exits, the
//! client must still complete the file. If the client dies, the recording on the server must end.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bimetal_block::graph::Stack;
use bimetal_block::tap::{LEASE, Taken, Tap};
use bimetal_rt::real_time::Signals;
use bimetal_rt::{Rt, UringOptions};
use bimetal_trace::{CompactWriter, Op, Record};
use futures_util::future::{Either, select};
use serde_json::{Value, json};

use crate::config::Config;
use crate::control::Asker;
use crate::runtime;
use bimetal_console::stderr::say;

/// Maximum number of records in one answer. The answer then has about 80 KB of text and is built in
/// a fraction of a millisecond.
const TAKEN_MAX: usize = 2048;
/// Time for which the client sleeps after an answer that has left no records on the server.
const PAUSE: Duration = Duration::from_millis(20);
/// Duration that is used for a recording without a time limit.
const WITHOUT_END: Duration = Duration::from_secs(u32::MAX as u64);

/// Arguments of the verb `record`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration that the server was started with
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The device, by its name in the configuration
    #[arg(value_name = "DEVICE")]
    device: String,
    /// The file to write, which must not exist; the extension .csv selects the CSV format of the
    /// MSR Cambridge traces, any other extension the compact format
    #[arg(long, value_name = "TRACE")]
    out: PathBuf,
    /// Duration in seconds [default: until SIGINT (Ctrl-C) or SIGTERM]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Print the counts of recorded requests as JSON
    #[arg(long)]
    json: bool,
}

/// Answers a request with the verb `record`, on the server.
pub(crate) fn answer(stack: &Stack, request: &Value) -> Value {
    answer_for(stack, request).unwrap_or_else(|why| json!({ "error": why }))
}

fn answer_for(stack: &Stack, request: &Value) -> Result<Value, String> {
    let device = request["device"].as_str().unwrap_or_default();
    let tap = stack.tap(device);
    let tap = tap.ok_or_else(|| match stack.shard_of(device) {
        Some(shard) => format!(
            "device `{device}` is on the thread of the shard `{shard}`; what reaches the shard can be recorded"
        ),
        None => format!("device `{device}` is not open"),
    })?;
    let number = request["number"].as_u64().unwrap_or(0);
    match request["do"].as_str() {
        Some("start") => match tap.start() {
            Ok(number) => Ok(json!({ "record": { "number": number } })),
            Err(_) => Err(format!("device {device} is being recorded already")),
        },
        Some("take") => take(&tap, number),
        Some("stop") if tap.stop(number) => Ok(json!({ "record": { "number": number } })),
        Some("stop") => Err(gone(number)),
        _ => Err("expected `do` to be start, take or stop".to_owned()),
    }
}

fn gone(number: u64) -> String {
    format!(
        "recording {number} is gone: it is over, or nothing was taken from it for {} s",
        LEASE.as_secs()
    )
}

fn take(tap: &Tap, number: u64) -> Result<Value, String> {
    let taken = tap.take(number, TAKEN_MAX).ok_or_else(|| gone(number))?;
    let Taken {
        records,
        left,
        counts,
        on,
    } = taken;
    Ok(json!({ "record": {
        "number": number,
        "state": if on { "on" } else { "stopped" },
        "requests": to_text(&records),
        "left": left,
        "recorded": counts.noted,
        "dropped": counts.dropped,
        "flushes_and_extents": counts.others,
    }}))
}

/// Formats each record as `TIME_NS OP OFFSET LENGTH;`.
fn to_text(records: &[Record]) -> String {
    let mut text = String::with_capacity(records.len() * 40);
    for record in records {
        let op = match record.op {
            Op::Read => 'r',
            Op::Write => 'w',
            Op::Trim => 't',
        };
        let (time, offset, length) = (record.time_ns, record.offset_bytes, record.length_bytes);
        write!(text, "{time} {op} {offset} {length};").expect("a string takes text");
    }
    text
}

fn from_text(text: &str) -> Option<Vec<Record>> {
    let record = |words: &str| {
        let mut words = words.split(' ');
        let time_ns = words.next()?.parse().ok()?;
        let op = match words.next()? {
            "r" => Op::Read,
            "w" => Op::Write,
            "t" => Op::Trim,
            _ => return None,
        };
        let offset_bytes: u64 = words.next()?.parse().ok()?;
        let length_bytes: u64 = words.next()?.parse().ok()?;
        offset_bytes.checked_add(length_bytes)?;
        Some(Record {
            time_ns,
            op,
            offset_bytes,
            length_bytes,
        })
    };
    text.split_terminator(';').map(record).collect()
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let about = || args.out.display().to_string();
    let file = File::create_new(&args.out).with_context(about)?;
    let mut to = Writer::new(file, &args.out).with_context(about)?;
    let recorder = Recorder::start(&config.server.control, &args.device);
    let recorder = match recorder {
        Ok(recorder) => recorder,
        Err(error) => {
            // The file is empty, so it is removed. The error of the recording is returned; an error
            // of the removal is ignored.
            let _ = std::fs::remove_file(&args.out);
            return Err(error);
        }
    };
    let recorded = record(recorder, &mut to, args);
    // The records received so far are kept, whatever has ended the recording.
    to.finish().with_context(about)?;
    let so_far = |error: anyhow::Error| {
        error.context(format!("{}: the trace ends early", args.out.display()))
    };
    report(&recorded.map_err(so_far)?, args)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a summary of the recording. Lost requests are also reported on standard error.
fn report(seen: &Seen, args: &Args) -> Result<()> {
    let [reads, writes, trims] = seen.written;
    let mut out = std::io::stdout().lock();
    if args.json {
        let value = json!({
            "trace": args.out.display().to_string(),
            "requests": { "read": reads, "write": writes, "trim": trims },
            "dropped": seen.dropped,
            "flushes_and_extents": seen.others,
        });
        writeln!(out, "{value}")?;
    } else {
        writeln!(
            out,
            "{}: {reads} reads, {writes} writes and {trims} trims of device {}",
            args.out.display(),
            args.device
        )?;
    }
    if seen.dropped > 0 {
        say(format_args!(
            "bimetal: {}: {} requests came faster than they could be taken, and are missing",
            args.out.display(),
            seen.dropped
        ));
    }
    Ok(())
}

/// Counters of a recording, kept by the client.
#[derive(Default)]
struct Seen {
    /// Number of reads, number of writes and number of trims in the trace file.
    written: [u64; 3],
    /// Number of requests that were lost because the buffer of the tap was full.
    dropped: u64,
    /// Number of flushes and extents requests, which are counted but not recorded.
    others: u64,
}

/// The client's handle to a recording on a server.
struct Recorder {
    asker: Asker,
    device: String,
    number: u64,
}

/// State of a recording according to the server's last answer.
struct Answered {
    left: u64,
    is_stopped: bool,
}

impl Recorder {
    fn start(control: &Path, device: &str) -> Result<Recorder> {
        let about = || format!("control socket {}", control.display());
        let mut recorder = Recorder {
            asker: Asker::connect(control).with_context(about)?,
            device: device.to_owned(),
            number: 0,
        };
        let started = recorder.ask("start")?;
        let number = started["number"].as_u64();
        recorder.number = number.context("the server did not number the recording")?;
        Ok(recorder)
    }

    fn ask(&mut self, what: &str) -> Result<Value> {
        let (device, number) = (&self.device, self.number);
        let request = json!({ "verb": "record", "device": device, "do": what, "number": number });
        Ok(self.asker.ask(&request)?["record"].take())
    }

    /// Fetches one batch of recorded requests from the server, and writes them to the file.
    fn take(&mut self, to: &mut Writer, seen: &mut Seen) -> Result<Answered> {
        let answer = self.ask("take")?;
        let text = answer["requests"].as_str().unwrap_or_default();
        let records = from_text(text).context("the server sent something else than requests")?;
        for record in &records {
            to.push(record)?;
            seen.written[record.op as usize] += 1;
        }
        let count = |key: &str| answer[key].as_u64().unwrap_or(0);
        seen.dropped = count("dropped");
        seen.others = count("flushes_and_extents");
        Ok(Answered {
            left: count("left"),
            is_stopped: answer["state"] == "stopped",
        })
    }
}

/// Records until the duration of the recording has passed or a signal is received.
fn record(mut recorder: Recorder, to: &mut Writer, args: &Args) -> Result<Seen> {
    let rt = runtime::start_quietly(UringOptions {
        pool_bytes: 1 << 20,
        register: false,
        ..UringOptions::default()
    })?;
    rt.block_on(async {
        let signals = Signals::termination(&rt).context("cannot take over signals")?;
        let lasting = args.seconds.map(|n| Duration::from_secs(u64::from(n)));
        let over = pin!(async {
            let time = pin!(rt.sleep(lasting.unwrap_or(WITHOUT_END)));
            match select(time, pin!(signals.next())).await {
                Either::Left(_) => Ok(()),
                Either::Right((signal, _)) => signal.map(|_| ()),
            }
        });
        say(format_args!("recording device {}", args.device));
        take_until(&rt, &mut recorder, to, over).await
    })
}

async fn take_until(
    rt: &Rt,
    recorder: &mut Recorder,
    to: &mut Writer,
    mut over: Pin<&mut impl Future<Output = std::io::Result<()>>>,
) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut stopping = false;
    loop {
        let answered = recorder.take(to, &mut seen)?;
        if answered.is_stopped && answered.left == 0 {
            return Ok(seen);
        }
        // Even if the pause is zero, the program checks for a signal after each answer, so that it
        // notices a signal under any load.
        let pause = if answered.left > 0 {
            Duration::ZERO
        } else {
            PAUSE
        };
        if stopping {
            continue;
        }
        let paused = pin!(rt.sleep(pause));
        if let Either::Left((ended, _)) = select(over.as_mut(), paused).await {
            ended.context("cannot wait for signals")?;
            recorder.ask("stop")?;
            stopping = true;
        }
    }
}

/// Writer of a trace file, in the format that the extension of the file selects.
enum Writer {
    Compact(Option<CompactWriter<BufWriter<File>>>),
    Csv(BufWriter<File>),
}

impl Writer {
    fn new(file: File, path: &Path) -> Result<Writer> {
        let to = BufWriter::new(file);
        let is_csv = path.extension().is_some_and(|extension| extension == "csv");
        Ok(match is_csv {
            true => Writer::Csv(to),
            false => Writer::Compact(Some(CompactWriter::new(to)?)),
        })
    }

    fn push(&mut self, record: &Record) -> Result<()> {
        match self {
            Writer::Compact(Some(to)) => to.push(record)?,
            Writer::Compact(None) => bail!("the trace is finished"),
            Writer::Csv(to) => to.write_all(csv_line(record).as_bytes())?,
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let file = match self {
            Writer::Compact(to) => match to.take() {
                Some(to) => to.finish()?,
                None => return Ok(()),
            }
            .into_inner()
            .map_err(|error| anyhow!(error.into_error()))?,
            Writer::Csv(to) => {
                to.flush()?;
                to.get_ref().try_clone()?
            }
        };
        file.sync_all()?;
        Ok(())
    }
}

/// Formats a record as a line of an MSR Cambridge trace, without a response time. The fields are
/// the time in units of 100 ns, host, disk, type, and offset and length in bytes.
fn csv_line(record: &Record) -> String {
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
    use bimetal_trace::{Format, Options, Reader};

    fn records() -> Vec<Record> {
        let record = |time_ns, op, offset_bytes, length_bytes| Record {
            time_ns,
            op,
            offset_bytes,
            length_bytes,
        };
        vec![
            record(0, Op::Trim, 1 << 40, 1 << 32),
            record(100, Op::Write, 0, 4096),
            record(18_446_744_073_709_551_600, Op::Read, 512, 1),
        ]
    }

    #[test]
    fn records_go_through_an_answer_unchanged() {
        let text = to_text(&records());
        assert!(text.starts_with("0 t 1099511627776 4294967296;100 w 0 4096;"));
        assert_eq!(from_text(&text), Some(records()));
        assert_eq!(from_text(""), Some(Vec::new()));
    }

    #[test]
    fn answers_that_make_no_sense_are_no_records() {
        for bad in [
            "1 x 0 1;",
            "1 r 0;",
            "r 0 1;",
            "1 r 18446744073709551615 2;",
            ";;",
        ] {
            assert_eq!(from_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn csv_lines_are_read_again_without_being_told_the_format() {
        let text: String = records()[..2].iter().map(csv_line).collect();
        let source = Box::new(std::io::Cursor::new(text.into_bytes()));
        let mut reader = Reader::new("t.csv".to_owned(), source, &Options::default()).unwrap();
        assert_eq!(reader.format(), Format::Msr);
        for expected in &records()[..2] {
            assert_eq!(reader.next_record().unwrap().as_ref(), Some(expected));
        }
        assert_eq!(reader.next_record().unwrap(), None);
    }
}
