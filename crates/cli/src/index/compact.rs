//! `bimetal index compact`: makes an index as small as possible. An interruption must not undo the
//! steps that have completed.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bimetal_block::units::show_size;

use super::progress::{Progress, Unit};
use super::stats::space_bytes;
use super::{OpenArgs, failed};
use bimetal_block::units::show_count;

/// Arguments of the verb `compact`.
///
/// Each completed step is kept, so a compaction can be interrupted at any time and continued later.
/// While it runs, the compaction needs additional space for at most two segments and a checkpoint.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    #[command(flatten)]
    open: OpenArgs,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let db = args.open.open(&args.index)?;
    let before = space_bytes(&db);
    let progress = Progress::start(Unit::Nothing, "writing changes back");
    let compacted = db.compact(|segments| {
        let segments = show_count(segments.into());
        progress.bar().set_message(format!("{segments} segments"));
    });
    compacted.map_err(|error| failed(&args.index, &error))?;
    let seconds = progress.seconds();
    drop(progress);
    let after = space_bytes(&db);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: {} before, {} now, in {seconds:.1} s",
        args.index.display(),
        show_size(before),
        show_size(after)
    )?;
    Ok(ExitCode::SUCCESS)
}
