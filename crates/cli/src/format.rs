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
    /// Overwrite sides that hold a volume, or another format that is recognised
    #[arg(long)]
    force: bool,
    /// Length of the log of each side, such as 256MiB; default: one 16th of the side, 4 MiB to 1 GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log: Option<Size>,
    /// Make room on each side for becoming as large as this one day, such as 4TiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    grow_to: Option<Size>,
    /// Prepare only the mirror with this side, a device of type `adopted`, and keep its content
    #[arg(long, value_name = "SIDE")]
    adopt: Option<String>,
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
        grow_to_bytes: args.grow_to.map(|size| size.0),
        adopt: args.adopt.clone(),
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
            let what = match &args.adopt {
                None => format!("data from {offset} on"),
                Some(kept) if kept == side => "its content is that of the volume".to_owned(),
                Some(_) => format!("data from {offset} on, to be copied by `bimetal serve`"),
            };
            writeln!(out, "  side {side}: {uuid}, {what}")?;
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
