//! `bimetal rescue`: copies a volume from one of its sides to a file or device, without a server, a
//! configuration, or the other sides. It must never write to the side, and must list everything
//! that is missing in the copy.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bimetal_block::layers::mirror::rescue::{Rescue, RescueFacts, RescueStep, Rescued};
use bimetal_block::layers::mirror::superblock::{SideKind, show_uuid};
use bimetal_block::media::file::{FileConfig, FileDevice};
use bimetal_block::units::{show_size, show_unix_time};
use bimetal_block::{Device, Flags, Op, Request};
use bimetal_console::stderr::say;
use bimetal_rt::{Instant, Rt, UringOptions};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::runtime;

/// Exit status if the copy is not whole.
const NOT_WHOLE: u8 = 3;
/// Interval between two lines of progress where standard error is no terminal.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of missing ranges that are listed as text; JSON has all of them.
const LISTED_MAX: usize = 20;
/// Length of a part of a device that is zeroed with one request.
const ZEROED_BYTES: u64 = 64 << 20;

/// Arguments of the verb `rescue`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file or device that is a side of the volume; no server may be using it
    #[arg(value_name = "SIDE")]
    side: PathBuf,
    /// Write the volume to this file, which is created, or to this block device
    #[arg(long, value_name = "PATH")]
    output: PathBuf,
    /// Overwrite the file if it exists. Needed for a block device
    #[arg(long)]
    overwrite: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.output.exists() && !args.overwrite {
        bail!(
            "{} exists; choose another file, or give --overwrite",
            args.output.display()
        );
    }
    let rt = runtime::start_quietly(UringOptions::default())?;
    let began = rt.now();
    let (facts, rescued) = rt.block_on(rescue(&rt, args))?;
    let text = match args.json {
        true => format!("{}\n", to_json(&facts, &rescued)),
        false => to_text(args, &rescued, rt.now().since(began)),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(match rescued.missing.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NOT_WHOLE),
    })
}

async fn rescue(rt: &Rt, args: &Args) -> Result<(RescueFacts, Rescued)> {
    let side = FileConfig {
        read_only: true,
        ..FileConfig::at(args.side.clone())
    };
    let side = FileDevice::open_when_free(rt, &side).await?;
    let side = Rc::new(side) as Rc<dyn Device>;
    let progress = Progress::new(rt);
    let told = |step: RescueStep| progress.tell(step);
    let name = args.side.display().to_string();
    let opened = Rescue::open(rt, &name, &side, &told).await?;
    let facts = opened.facts();
    progress.suspend(|| introduce(args, &facts));
    let output = open_output(rt, args, facts.volume_bytes).await?;
    let rescued = opened.copy(&output, &told).await;
    progress.end();
    let rescued = rescued.with_context(|| args.output.display().to_string())?;
    let closed = output.close().await;
    closed.with_context(|| args.output.display().to_string())?;
    Ok((facts, rescued))
}

/// Says what the side is, and what that means for the copy.
fn introduce(args: &Args, facts: &RescueFacts) {
    let kind = match facts.kind {
        SideKind::Home => "a side",
        SideKind::Log => "a logged side",
    };
    let newest = match facts.written_s {
        Some(seconds) => format!("its newest logged change is of {}", show_unix_time(seconds)),
        None => "its log is empty".to_owned(),
    };
    say(format_args!(
        "bimetal: {} is {kind} of the volume {} ({}), {}; {newest}",
        args.side.display(),
        facts.name,
        show_uuid(&facts.volume),
        show_size(facts.volume_bytes),
    ));
    if facts.sides > 1 {
        say(format_args!(
            "bimetal: the volume has {} sides: changes that only another side has are not in the \
            copy",
            facts.sides
        ));
    }
    if facts.is_mixed {
        say(format_args!(
            "bimetal: warning: the side was being rebuilt: the copy will be a mixture of old and \
            new content"
        ));
    }
    if facts.is_damaged {
        say(format_args!(
            "bimetal: warning: the log of the side has lost changes that had been durable"
        ));
    }
}

/// Opens the file or device for the copy, which reads as zeroes then.
async fn open_output(rt: &Rt, args: &Args, bytes: u64) -> Result<Rc<dyn Device>> {
    let path = &args.output;
    let is_device = is_block_device(path);
    if !is_device {
        make_file(path, args.overwrite, bytes).with_context(|| path.display().to_string())?;
    }
    let opened = FileDevice::open_when_free(rt, &FileConfig::at(path.clone())).await?;
    let size = opened.geometry().size_bytes;
    if size < bytes {
        bail!(
            "{} has {}, the volume needs {}",
            path.display(),
            show_size(size),
            show_size(bytes)
        );
    }
    let output = Rc::new(opened) as Rc<dyn Device>;
    if is_device {
        for start in (0..bytes).step_by(ZEROED_BYTES as usize) {
            let len = ZEROED_BYTES.min(bytes - start);
            let zeroes = Request::without_data(Op::WriteZeroes, start, len, Flags::NONE);
            let zeroed = output.submit(zeroes).await;
            zeroed.with_context(|| format!("{}: zeroing it", path.display()))?;
        }
    }
    Ok(output)
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Makes a sparse file of `bytes` bytes.
fn make_file(path: &Path, overwrite: bool, bytes: u64) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true);
    match overwrite {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let file = options.open(path).map_err(|error| anyhow!("{error}"))?;
    Ok(file.set_len(bytes)?)
}

fn to_text(args: &Args, rescued: &Rescued, took: Duration) -> String {
    let mut text = format!(
        "copied {} to {} in {:.1} s\n",
        show_size(rescued.copied_bytes),
        args.output.display(),
        took.as_secs_f64()
    );
    if rescued.unverified_bytes > 0 {
        text += &format!(
            "{} of it could not be verified: their checksums are unknown\n",
            show_size(rescued.unverified_bytes)
        );
    }
    if rescued.missing.is_empty() {
        text += "nothing is missing\n";
        return text;
    }
    let missing: u64 = rescued
        .missing
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    text += &format!(
        "MISSING: {}, which read as zeroes in the copy:\n",
        show_size(missing)
    );
    for Range { start, end } in rescued.missing.iter().take(LISTED_MAX) {
        text += &format!("  {} at {start}\n", show_size(end - start));
    }
    let more = rescued.missing.len().saturating_sub(LISTED_MAX);
    if more > 0 {
        text += &format!("  and {more} more ranges; --json lists all\n");
    }
    text
}

fn to_json(facts: &RescueFacts, rescued: &Rescued) -> serde_json::Value {
    let missing = rescued
        .missing
        .iter()
        .map(|range| json!({ "offset": range.start, "bytes": range.end - range.start }));
    json!({
        "version": 1,
        "volume": show_uuid(&facts.volume),
        "name": facts.name,
        "size_bytes": facts.volume_bytes,
        "layout": match facts.kind {
            SideKind::Home => "home",
            SideKind::Log => "log",
        },
        "was_being_rebuilt": facts.is_mixed,
        "log_is_damaged": facts.is_damaged,
        "copied_bytes": rescued.copied_bytes,
        "unverified_bytes": rescued.unverified_bytes,
        "missing": missing.collect::<Vec<_>>(),
    })
}

/// Shows the progress: as a bar on a terminal, else as a line now and then.
struct Progress {
    rt: Rt,
    bar: ProgressBar,
    is_terminal: bool,
    told: Cell<Instant>,
}

impl Progress {
    fn new(rt: &Rt) -> Progress {
        let style = ProgressStyle::with_template("{msg}: {bar:30} {percent:>3} %  {elapsed}");
        let style = style.expect("the template is well formed");
        Progress {
            bar: ProgressBar::new(1).with_style(style.progress_chars("=> ")),
            is_terminal: std::io::stderr().is_terminal(),
            told: Cell::new(rt.now()),
            rt: rt.clone(),
        }
    }

    fn tell(&self, step: RescueStep) {
        let (words, done, all) = match step {
            RescueStep::ReadingLog(done, all) => ("reading the log", done, all),
            RescueStep::ReadingMap(done, all) => ("reading the map", done, all),
            RescueStep::RestoringMap(done, all) => ("searching for lost places", done, all),
            RescueStep::Copying(done, all) => ("copying", done, all),
        };
        if self.is_terminal {
            self.bar.set_message(words);
            self.bar.set_length(all);
            self.bar.set_position(done);
        } else if self.rt.now().since(self.told.get()) >= TELL_EVERY {
            self.told.set(self.rt.now());
            say(format_args!(
                "bimetal: {words}: {} of {} of the side",
                show_size(done),
                show_size(all)
            ));
        }
    }

    /// Runs a function that prints lines, without the bar in between.
    fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
