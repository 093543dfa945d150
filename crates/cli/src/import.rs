//! `bimetal import`: writes the configuration of a volume from the superblocks of its sides, for a
//! machine whose configuration was lost, or to which the devices were moved.
//!
//! It must never write to a device.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Result, bail};
use bimetal_block::Device;
use bimetal_block::layers::mirror::superblock::{
    Candidate, SideKind, SideState, Superblock, Uuid, short_uuid, show_uuid,
};
use bimetal_block::media::file::{FileConfig, FileDevice};
use bimetal_block::units::{show_size, show_unix_time};
use bimetal_rt::{Rt, UringOptions};

use crate::init::{self, Side};
use crate::runtime;

/// Comment above a side that was not given.
const MISSING: &str = "# This side was not among the devices: put its path here.\n";

/// Arguments of the verb `import`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Block devices or files that are sides of one volume; no server may be using them
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<PathBuf>,
    /// The configuration to write
    #[arg(long, value_name = "FILE", default_value = "vol.toml")]
    output: PathBuf,
}

/// A side that was found.
struct Found {
    path: PathBuf,
    superblock: Superblock,
    is_rotational: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    init::check_new(&args.output)?;
    let rt = runtime::start_quietly(UringOptions::default())?;
    let mut found = Vec::new();
    for path in &args.devices {
        found.push(rt.block_on(find(&rt, path))?);
    }
    check_one_volume(&found)?;
    // Reads prefer the first side until it is known which one is faster.
    found.sort_by_key(|found| (found.is_rotational, found.superblock.place()));
    let (sides, keys) = described(&found, &args.output)?;
    let newest = newest(&found);
    let file = args.output.display().to_string();
    let text = init::configuration(&newest.name, &sides, &keys, &file)?;
    init::write_new(&args.output, &text)?;
    let mut out = std::io::stdout().lock();
    out.write_all(report(&found, &sides, &file).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the superblock of a device.
async fn find(rt: &Rt, path: &Path) -> Result<Found> {
    let side = FileConfig {
        read_only: true,
        ..FileConfig::at(path.to_owned())
    };
    let device = Rc::new(FileDevice::open_when_free(rt, &side).await?) as Rc<dyn Device>;
    let geometry = *device.geometry();
    let candidate = Candidate {
        name: path.display().to_string(),
        device: Rc::clone(&device),
    };
    let superblock = candidate.superblock().await;
    let closed = device.close().await;
    let Some(superblock) = superblock? else {
        bail!(
            "{}: holds no side of a volume; leave it out",
            path.display()
        );
    };
    closed?;
    if let Err(why) = superblock.fits(&geometry) {
        bail!(
            "{}: holds a side of the volume {}, but is not all of it ({why}): a side on several \
            devices, such as a stripe or an adopted disk, has to be written into the configuration \
            by hand",
            path.display(),
            superblock.name
        );
    }
    Ok(Found {
        path: path.to_owned(),
        superblock,
        is_rotational: geometry.rotational,
    })
}

/// Returns an error unless all devices are different sides of one volume.
fn check_one_volume(found: &[Found]) -> Result<()> {
    for (number, one) in found.iter().enumerate() {
        for other in &found[..number] {
            let (a, b) = (&one.superblock, &other.superblock);
            let (path, other) = (one.path.display(), other.path.display());
            if a.volume != b.volume {
                bail!(
                    "{path} is a side of the volume {} ({}), and {other} of {} ({}): import them \
                    one after the other, each with an --output of its own",
                    a.name,
                    short_uuid(&a.volume),
                    b.name,
                    short_uuid(&b.volume)
                );
            }
            if a.side == b.side {
                bail!("{path} and {other} are the same side: one of them is a copy; leave it out");
            }
        }
    }
    Ok(())
}

/// Returns the newest superblock.
fn newest(found: &[Found]) -> &Superblock {
    let by_epoch = |found: &&Found| found.superblock.history.current().number;
    let newest = found.iter().max_by_key(by_epoch);
    &newest.expect("a device is required").superblock
}

/// Returns the sides as the configuration names them, in the order of `found` and then those that
/// are missing, and the keys of the mirror that they imply.
fn described(found: &[Found], file: &Path) -> Result<(Vec<Side>, String)> {
    let rotational = found.iter().filter(|found| found.is_rotational).count();
    // Where the devices tell which is the faster one, they are named as `init` names them.
    let is_pair = (found.len(), rotational) == (2, 1);
    let name = |number: usize| match (is_pair, number) {
        (true, 0) => "fast".to_owned(),
        (true, _) => "slow".to_owned(),
        (false, number) => format!("side{}", number + 1),
    };
    let mut sides = Vec::new();
    for (number, side) in found.iter().enumerate() {
        sides.push(Side {
            name: name(number),
            path: init::written(&side.path, file)?,
            size: None,
            comment: "",
        });
    }
    for missing in missing(found) {
        sides.push(Side {
            path: PathBuf::from(format!("missing-{missing}")),
            name: format!("missing-{missing}"),
            size: None,
            comment: MISSING,
        });
    }
    let mut keys = String::new();
    if found
        .iter()
        .any(|found| found.superblock.flags.no_checksums)
    {
        keys += "checksums = false\n";
    }
    let ephemeral = found.iter().zip(&sides);
    let ephemeral = ephemeral.filter(|(found, _)| found.superblock.flags.not_durable);
    let ephemeral: Vec<String> = ephemeral
        .map(|(_, side)| format!("\"{}\"", side.name))
        .collect();
    if !ephemeral.is_empty() {
        let _ = writeln!(keys, "ephemeral = [{}]", ephemeral.join(", "));
    }
    Ok((sides, keys))
}

/// Returns the short UUIDs of the sides that the volume has and that were not given.
fn missing(found: &[Found]) -> Vec<String> {
    let is_given = |side: &Uuid| found.iter().any(|found| found.superblock.side == *side);
    let listed = newest(found).table.iter().flatten();
    let missing = listed.filter(|listed| !is_given(&listed.side));
    missing.map(|listed| short_uuid(&listed.side)).collect()
}

/// Returns what was found, and what to do next.
fn report(found: &[Found], sides: &[Side], file: &str) -> String {
    let newest = newest(found);
    let mut text = format!(
        "wrote {file}: volume {} ({}) of {}\n",
        newest.name,
        show_uuid(&newest.volume),
        show_size(newest.volume_bytes)
    );
    for (found, side) in found.iter().zip(sides) {
        let superblock = &found.superblock;
        let layout = match superblock.layout.kind() {
            SideKind::Home => "with homes",
            SideKind::Log => "logged",
        };
        let state = match superblock.state {
            SideState::Clean => "cleanly stopped",
            SideState::CleanIdle => "was in use and idle",
            SideState::Dirty => "was in use",
            SideState::Inconsistent => "was being rebuilt, and does not start alone",
        };
        let _ = writeln!(
            text,
            "  side {}: {}, {}, {layout}, {state}, of {}",
            side.name,
            found.path.display(),
            show_uuid(&superblock.side),
            show_unix_time(superblock.written_s)
        );
    }
    let missing = missing(found);
    if !missing.is_empty() {
        let _ = writeln!(
            text,
            "not among the devices: side {}. If it still exists, give its path in {file}: it may have \
            newer changes. With the path of a blank device, `serve --rebuild` makes it anew",
            missing.join(", side ")
        );
    }
    let _ = writeln!(
        text,
        "next:\n  bimetal check {file}   # shows what the file means"
    );
    let _ = writeln!(
        text,
        "  bimetal serve {file}   # serves the volume until SIGTERM"
    );
    text
}
