//! `bimetal index verify`: checks an index. It opens the index for reading only; other readers can
//! have the index open as well. Damage is reported as the result, for people or for programs, and
//! is not a failure of the verb.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use bimetal_block::units::show_size;
use bimetal_index::storage::Storage;
use bimetal_index::{Error, Problem, Verified};
use serde_json::{Value, json};

use super::progress::{Progress, Unit};
use super::volume::WhereArgs;
use super::{failed, write_group};
use bimetal_block::units::show_count;
use bimetal_console::table::{Align, Table};

/// Arguments of the verb `verify`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: WhereArgs,
}

/// Runs the verb. The exit status is 1 if the index is damaged.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let storage = args.place.storage_to_read(&args.index)?;
    let progress = Progress::start(Unit::Nodes, "");
    let verified = bimetal_index::verify(&*storage, &mut |seen, all| {
        progress.bar().set_length(all);
        progress.bar().set_position(seen);
    });
    drop(progress);
    let verified = match verified {
        // The nodes could not be found, so none of them was checked. This is reported like any
        // other damage.
        Err(Error::Damaged { what, offset }) => Verified {
            len_bytes: storage.len_bytes(),
            problems: vec![Problem { what, offset }],
            problems_found: 1,
            ..Verified::default()
        },
        other => other.map_err(|error| failed(&args.index, &error))?,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        let value = to_json(&args.index, &verified);
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    } else {
        print(&mut out, &args.index, &verified)?;
    }
    Ok(match verified.problems_found {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn to_json(path: &Path, verified: &Verified) -> Value {
    let problems = verified.problems.iter();
    let problems =
        problems.map(|problem| json!({ "offset_bytes": problem.offset, "what": problem.what }));
    json!({
        "index": path.display().to_string(),
        "whole": verified.problems_found == 0,
        "examined": {
            "inner_nodes": verified.inner_nodes,
            "leaves": verified.leaves,
            "patches": verified.patches,
            "rows": verified.rows,
            "blobs": verified.blobs,
            "live_bytes": verified.live_bytes,
            "log_frames": verified.log_frames,
            "length_bytes": verified.len_bytes,
        },
        "problems_found": verified.problems_found,
        "problems": problems.collect::<Vec<_>>(),
    })
}

fn print(out: &mut impl Write, path: &Path, verified: &Verified) -> io::Result<()> {
    let path = path.display();
    match verified.problems_found {
        0 => writeln!(out, "{path}: whole")?,
        1 => writeln!(out, "{path}: damaged, 1 problem")?,
        count => writeln!(out, "{path}: damaged, {} problems", show_count(count))?,
    }
    let mut table = Table::new(&[("at byte", Align::Right), ("what", Align::Left)]);
    for problem in &verified.problems {
        table.row(vec![problem.offset.to_string(), problem.what.clone()]);
    }
    if !table.is_empty() {
        for line in table.lines() {
            writeln!(out, "  {line}")?;
        }
    }
    let unlisted = verified.problems_found - verified.problems.len() as u64;
    if unlisted > 0 {
        writeln!(out, "  and {} more", show_count(unlisted))?;
    }
    write_group(
        out,
        "checked",
        &[
            ("inner nodes", show_count(verified.inner_nodes), ""),
            ("leaves", show_count(verified.leaves), ""),
            ("their patches", show_count(verified.patches), ""),
            (
                "rows in them",
                show_count(verified.rows),
                "including rows in the log",
            ),
            ("parts of long values", show_count(verified.blobs), ""),
            (
                "live",
                show_size(verified.live_bytes),
                "nodes and long values",
            ),
            ("frames of the log", show_count(verified.log_frames), ""),
            ("whole storage", show_size(verified.len_bytes), ""),
        ],
    )
}
