//! `bimetal index stats`: shows how much space and memory an index uses. It must never write to the
//! index.

use std::io::{self, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use bimetal_block::units::show_size;
use bimetal_index::{Db, Error, Statistics};
use serde_json::{Value, json};

use super::progress::{Progress, Unit};
use super::{OpenArgs, failed, write_group};
use bimetal_block::units::show_count;

/// Number of keys between two updates of the progress bar.
const KEYS_BETWEEN: u64 = 1 << 16;

/// Arguments of the verb `stats`.
///
/// The index is opened for reading only. At the same time, other readers can have it open, but no
/// writer can.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// Count the keys, which reads all of them
    #[arg(long)]
    count: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArgs,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let db = args.open.open_read_only(&args.index)?;
    // The statistics are read before the keys are counted, because counting fills the memory with
    // nodes.
    let statistics = db.statistics();
    let keys = args.count.then(|| count(&db)).transpose();
    let keys = keys.map_err(|error| failed(&args.index, &error))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let value = to_json(&args.index, keys, space_bytes(&db), &statistics);
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    } else {
        print(&mut out, &args.index, keys, space_bytes(&db), &statistics)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn count(db: &Db) -> Result<u64, Error> {
    let progress = Progress::start(Unit::Nothing, "counting keys");
    let mut rows = db.scan((Bound::Unbounded, Bound::Unbounded));
    let mut keys = 0;
    while rows.next()?.is_some() {
        keys += 1;
        if keys % KEYS_BETWEEN == 0 {
            let message = format!("{} keys counted", show_count(keys));
            progress.bar().set_message(message);
        }
    }
    Ok(keys)
}

/// Returns the number of bytes from the start of the storage to the end of its last segment.
pub(super) fn space_bytes(db: &Db) -> u64 {
    let space = db.statistics().space;
    let segment_bytes = u64::from(space.segment_bytes);
    db.segments_offset() + u64::from(space.segments) * segment_bytes
}

/// Bytes in the segments of an index, by the content of the segments.
struct Segments {
    used: u32,
    live_bytes: u64,
    /// Bytes of used segments that hold no current content.
    dead_bytes: u64,
    reserve_bytes: u64,
}

impl Segments {
    fn of(statistics: &Statistics) -> Segments {
        let space = statistics.space;
        let used = space.segments - space.free_segments - space.log_segments;
        let segment_bytes = u64::from(space.segment_bytes);
        Segments {
            used,
            live_bytes: space.live_bytes,
            dead_bytes: (u64::from(used) * segment_bytes).saturating_sub(space.live_bytes),
            reserve_bytes: u64::from(space.free_segments) * segment_bytes,
        }
    }
}

fn to_json(path: &Path, keys: Option<u64>, space_bytes: u64, statistics: &Statistics) -> Value {
    let segments = Segments::of(statistics);
    let maintenance = statistics.maintenance;
    json!({
        "index": path.display().to_string(),
        "keys": keys,
        "batches": statistics.batches,
        "space": {
            "total_bytes": space_bytes,
            "live_bytes": segments.live_bytes,
            "dead_bytes": segments.dead_bytes,
            "reserve_bytes": segments.reserve_bytes,
            "log_bytes": statistics.log_bytes,
            "segments": statistics.space.segments,
            "free_segments": statistics.space.free_segments,
            "segment_bytes": statistics.space.segment_bytes,
        },
        "log": {
            "bytes": statistics.log_bytes,
            "bytes_max": statistics.log_bytes_max,
            "used_bytes": statistics.log_used_bytes,
        },
        "memory": { "nodes_bytes": statistics.content_bytes, "changes_bytes": statistics.delta_bytes },
        "done": {
            "image_reads": statistics.image_reads,
            "segment_written_bytes": statistics.segment_written_bytes,
            "consolidations": maintenance.consolidations,
            "consolidated_rows": maintenance.consolidated_rows,
            "patches": maintenance.patches,
            "splits": maintenance.splits,
            "joins": maintenance.joins,
            "blobs": maintenance.blobs,
            "relogged": maintenance.relogged,
            "moved_bytes": maintenance.moved_bytes,
            "cleaned_segments": maintenance.cleaned_segments,
            "checkpoints": maintenance.checkpoints,
            "checkpoint_bytes": maintenance.checkpoint_bytes,
        },
    })
}

fn print(
    out: &mut impl Write,
    path: &Path,
    keys: Option<u64>,
    space_bytes: u64,
    statistics: &Statistics,
) -> io::Result<()> {
    let (path, batches) = (
        path.display(),
        counted(statistics.batches, "batch", "batches"),
    );
    match keys {
        Some(keys) => writeln!(out, "{path}: {}, {batches}", counted(keys, "key", "keys"))?,
        None => writeln!(out, "{path}: {batches}")?,
    }
    write_space(out, space_bytes, statistics)?;
    write_group(
        out,
        "log",
        &[
            (
                "needed",
                show_size(statistics.log_used_bytes),
                "read when the index is opened",
            ),
            ("whole", show_size(statistics.log_bytes), ""),
        ],
    )?;
    write_group(
        out,
        "memory",
        &[
            ("nodes", show_size(statistics.content_bytes), ""),
            (
                "changes",
                show_size(statistics.delta_bytes),
                "not in nodes yet",
            ),
        ],
    )?;
    let done: Vec<_> = done(statistics)
        .into_iter()
        .filter(|row| row.1 != "0")
        .collect();
    if done.is_empty() {
        return Ok(());
    }
    write_group(out, "done to open it", &done)
}

fn counted(count: u64, one: &str, more: &str) -> String {
    let word = if count == 1 { one } else { more };
    format!("{} {word}", show_count(count))
}

fn write_space(out: &mut impl Write, space_bytes: u64, statistics: &Statistics) -> io::Result<()> {
    let segments = Segments::of(statistics);
    let used = format!(
        "{} of {} segments of {} are used",
        show_count(segments.used.into()),
        show_count(statistics.space.segments.into()),
        show_size(statistics.space.segment_bytes.into())
    );
    let log_may_be = format!("at most {}", show_size(statistics.log_bytes_max));
    write_group(
        out,
        "space",
        &[
            (
                "live",
                show_size(segments.live_bytes),
                "nodes and long values",
            ),
            (
                "dead",
                show_size(segments.dead_bytes),
                "the rest of their segments",
            ),
            (
                "reserve",
                show_size(segments.reserve_bytes),
                "free segments",
            ),
            ("log", show_size(statistics.log_bytes), &log_may_be),
            ("whole", show_size(space_bytes), &used),
        ],
    )
}

/// Returns rows that describe the maintenance done since the index was opened.
fn done(statistics: &Statistics) -> Vec<(&'static str, String, &'static str)> {
    let maintenance = statistics.maintenance;
    vec![
        ("nodes read", show_count(statistics.image_reads), ""),
        (
            "leaves written back",
            show_count(maintenance.consolidations),
            "",
        ),
        (
            "rows in them",
            show_count(maintenance.consolidated_rows),
            "",
        ),
        ("patches written", show_count(maintenance.patches), ""),
        ("leaves split", show_count(maintenance.splits), ""),
        ("leaves merged", show_count(maintenance.joins), ""),
        ("long values written", show_count(maintenance.blobs), ""),
        ("leaves relogged", show_count(maintenance.relogged), ""),
        (
            "segments cleaned",
            show_count(maintenance.cleaned_segments),
            "",
        ),
        ("checkpoints", show_count(maintenance.checkpoints), ""),
    ]
}
