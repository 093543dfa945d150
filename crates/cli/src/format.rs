//! `bimetal format`: creates the missing files of a configuration that have a `size`, and prepares
//! the sides of every mirror for their first use.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use bimetal_block::graph::{
    CreatedFile, FormatOptions, FormattedMirror, Node, create_files, format,
};
use bimetal_block::layers::mirror::formatting::Formatted;
use bimetal_block::layers::mirror::superblock::{LOGGED_SIDE_BYTES_MAX, show_uuid};
use bimetal_block::layers::mirror::{MirrorConfig, exposure_bytes_max_of_log};
use bimetal_block::units::{Size, parse_size, show_size};
use bimetal_rt::{Rt, UringOptions};

use crate::config::Config;
use crate::exposure;
use crate::limits::check_file_sizes;
use crate::runtime;

/// Arguments of the verb `format`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Overwrite sides that hold a volume or another recognized format
    #[arg(long)]
    force: bool,
    /// Length of the log of each side, such as 256MiB [default: 1/16 of the side, at least 4 MiB
    /// and at most 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log: Option<Size>,
    /// Reserve metadata space so that each side can grow to this size later, such as 4TiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    grow_to: Option<Size>,
    /// Prepare only the mirror with this side, and keep the data on the side. The side must be a
    /// device of type `adopted`
    #[arg(long, value_name = "SIDE")]
    adopt: Option<String>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    check_file_sizes(&config)?;
    let rt = runtime::start_quietly(UringOptions::default())?;
    let mut out = std::io::stdout().lock();
    let created = create_files(&config.graph, args.adopt.as_deref());
    let created = created.map_err(|error| anyhow!("{}: {error}", config.path.display()))?;
    let options = FormatOptions {
        force: args.force,
        log_bytes: args.log.map(|size| size.0),
        grow_to_bytes: args.grow_to.map(|size| size.0),
        adopt: args.adopt.clone(),
    };
    let mirrors = match prepare(&rt, &config, options) {
        Ok(mirrors) => mirrors,
        Err(error) => return Err(remove(&created, error)),
    };
    for CreatedFile {
        device,
        path,
        size_bytes,
    } in &created
    {
        let (path, size) = (path.display(), show_size(*size_bytes));
        writeln!(out, "{device}: created {path} of {size}")?;
    }
    if created.is_empty() && mirrors.is_empty() {
        bail!(
            "{}: nothing to prepare: there is no mirror, and no file with a `size` is missing",
            config.path.display()
        );
    }
    for mirror in mirrors {
        let volume = &mirror.volume;
        writeln!(
            out,
            "{}: volume {} of {}",
            mirror.name,
            show_uuid(&volume.volume),
            show_size(volume.volume_bytes)
        )?;
        for ((side, uuid, data_offset), room) in volume.sides.iter().zip(&volume.room) {
            let uuid = show_uuid(uuid);
            let of_device = room.0;
            let (device, room) = (show_size(of_device), show_size(room.1));
            let place = match data_offset {
                Some(offset) => format!("data from {} on", show_size(*offset)),
                None => format!(
                    "logged, room for {room} on {device}{}",
                    unused_part(of_device)
                ),
            };
            let what = match &args.adopt {
                None => place,
                Some(kept) if kept == side => "its content is that of the volume".to_owned(),
                Some(_) => format!("{place}, to be copied by `bimetal serve`"),
            };
            writeln!(out, "  side {side}: {uuid}, {what}")?;
        }
        if let Some(line) = cost_of_logs(volume).filter(|_| args.adopt.is_none()) {
            writeln!(out, "  {line}")?;
        }
        if let Node::Mirror(of_mirror) = &config.graph.nodes()[&mirror.name] {
            for line in cost_of_room(of_mirror, volume) {
                writeln!(out, "  {line}")?;
            }
        }
        let by_logs_bytes = exposure_bytes_max_of_log(volume.log_bytes);
        if let Node::Mirror(of_mirror) = &config.graph.nodes()[&mirror.name]
            && let Some(line) = exposure::reduced(of_mirror, by_logs_bytes)
        {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns what part of a device a logged side does not use, as words that follow the size of the
/// device; nothing if it uses all of it.
fn unused_part(device_bytes: u64) -> String {
    match device_bytes > LOGGED_SIDE_BYTES_MAX {
        true => format!(
            ", of which it uses the first {}: more needs layout = \"home\"",
            show_size(LOGGED_SIDE_BYTES_MAX)
        ),
        false => String::new(),
    }
}

/// Says what the volume pays for its logged sides; `None` if it could not be larger with homes.
fn cost_of_logs(volume: &Formatted) -> Option<String> {
    let with_homes_bytes = volume.with_homes_bytes?;
    (with_homes_bytes > volume.volume_bytes).then(|| {
        format!(
            "logged sides keep the rest of their devices for the log and for cleaning, so that a \
            load of small writes does not make them freeze; with layout = \"home\" the volume \
            would have {}",
            show_size(with_homes_bytes)
        )
    })
}

/// Says what the share that stays free on logged sides costs and gives, and how much of the volume
/// may have content if that is limited. Returns no line for sides with homes.
fn cost_of_room(config: &MirrorConfig, volume: &Formatted) -> Vec<String> {
    let is_logged = |(_, _, data_offset): &(_, _, Option<u64>)| data_offset.is_none();
    if !volume.sides.iter().any(is_logged) {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "{:.0} % of each logged side stay free (`reserve`): once all of the room is used, a load \
        that writes all over it makes a side write {:.1} bytes for each byte",
        config.reserve.share() * 100.0,
        volume.amplification
    )];
    lines.extend(volume.room_bytes.map(|room_bytes| {
        format!(
            "the volume is larger than its sides: {} of it may have content at a time; then writes \
            of other blocks fail (ENOSPC) until something is discarded",
            show_size(room_bytes)
        )
    }));
    lines
}

/// Removes the files that this call has created, after it has failed with `error`: a refused
/// `format` leaves nothing behind. Returns the error, with the files that could not be removed.
fn remove(created: &[CreatedFile], error: anyhow::Error) -> anyhow::Error {
    created.iter().fold(error, |error, file| {
        match std::fs::remove_file(&file.path) {
            Ok(()) => error,
            Err(left) => anyhow!(
                "{error:#}; {} was created and could not be removed: {left}",
                file.path.display()
            ),
        }
    })
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
