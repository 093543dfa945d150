//! `bimetal format`: prepares the sides of every mirror of a configuration, once, and creates the
//! files that have a `size` and do not exist.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use bimetal_block::graph::{FormatOptions, FormattedMirror, Node, format};
use bimetal_block::layers::mirror::superblock::show_uuid;
use bimetal_block::units::{Size, parse_size, show_size};
use bimetal_rt::{Rt, UringOptions};

use crate::config::Config;

/// What to prepare.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Overwrite sides that hold a volume
    #[arg(long)]
    force: bool,
    /// Length of the log of each side, such as 256MiB; default: one 16th of the side, 4 MiB to 1 GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log: Option<Size>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let is_mirror = |node: &Node| matches!(node, Node::Mirror(_));
    if !config.graph.nodes().values().any(is_mirror) {
        bail!(
            "{}: there is no mirror, and other devices need no preparation",
            args.file.display()
        );
    }
    let rt = Rt::real_time(UringOptions::default()).context("cannot set up io_uring")?;
    let mut out = std::io::stdout().lock();
    let options = FormatOptions {
        force: args.force,
        log_bytes: args.log.map(|size| size.0),
    };
    for mirror in prepare(&rt, &config, options)? {
        let volume = &mirror.volume;
        writeln!(
            out,
            "{}: volume {} of {}",
            mirror.name,
            show_uuid(&volume.volume),
            show_size(volume.volume_bytes)
        )?;
        for (side, uuid, data_offset) in &volume.sides {
            let uuid = show_uuid(uuid);
            let offset = show_size(*data_offset);
            writeln!(out, "  side {side}: {uuid}, data from {offset} on")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prepares the sides of every mirror.
pub(crate) fn prepare(
    rt: &Rt,
    config: &Config,
    options: FormatOptions,
) -> Result<Vec<FormattedMirror>> {
    rt.block_on(format(rt, &config.graph, options))
        .map_err(|error| anyhow!("{}: {error}", config.path.display()))
}
