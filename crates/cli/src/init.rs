//! `bimetal init`: writes a configuration for a volume on two devices, with the keys that people
//! change first, and a comment for each.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bimetal_block::units::{Size, parse_size, show_size};

use crate::config::Config;

/// Folder with names of block devices that stay the same when devices are renumbered.
const BY_ID: &str = "/dev/disk/by-id";

/// Arguments of the verb `init`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration to write
    #[arg(value_name = "FILE", default_value = "vol.toml")]
    file: PathBuf,
    /// Block device or file of the first side, usually the faster one
    #[arg(value_name = "FAST")]
    fast: Option<PathBuf>,
    /// Block device or file of the second side
    #[arg(value_name = "SLOW", requires = "fast")]
    slow: Option<PathBuf>,
    /// Size of a side that is a file which does not exist yet, such as 100GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<Size>,
}

/// A side of the volume.
pub(crate) struct Side {
    pub(crate) name: String,
    /// Path as it is written into the configuration.
    pub(crate) path: PathBuf,
    /// Size of the file that is to be created.
    pub(crate) size: Option<Size>,
    /// Comment lines above the side; none if it is empty.
    pub(crate) comment: &'static str,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let file = &args.file;
    check_new(file)?;
    let fast = asked(args.fast.clone(), "block device or file of the faster side")?;
    let slow = asked(args.slow.clone(), "block device or file of the other side")?;
    let is_same = |a: &Path, b: &Path| {
        let real = |path: &Path| {
            path.canonicalize()
                .or_else(|_| std::path::absolute(path))
                .ok()
        };
        real(a).is_some_and(|a| Some(a) == real(b))
    };
    if is_same(&fast, &slow) {
        bail!("both sides are {}: two devices are needed", fast.display());
    }
    let sides = [side("fast", &fast, args)?, side("slow", &slow, args)?];
    let text = configuration("vol", &sides, "", &shown(file))?;
    write_new(file, &text)?;
    let mut out = std::io::stdout().lock();
    let shown = shown(file);
    writeln!(out, "wrote {shown}")?;
    for side in &sides {
        let size = side
            .size
            .map(|size| format!(", to be created with {}", show_size(size.0)));
        let size = size.unwrap_or_default();
        writeln!(out, "  side {}: {}{size}", side.name, side.path.display())?;
    }
    writeln!(out, "next:")?;
    writeln!(out, "  bimetal format {shown}   # prepares the sides, once")?;
    writeln!(
        out,
        "  bimetal serve {shown}    # serves the volume until SIGTERM"
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the file as it is written in a command.
fn shown(file: &Path) -> String {
    file.display().to_string()
}

/// Returns what was given, or what the person at the terminal answers.
fn asked(given: Option<PathBuf>, what: &str) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path);
    }
    if !std::io::stdin().is_terminal() {
        bail!("the {what} is missing, as in `bimetal init vol.toml /dev/nvme0n1 /dev/sdb`");
    }
    let mut out = std::io::stderr().lock();
    write!(out, "{what}: ")?;
    out.flush()?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    match line.trim() {
        "" => bail!("the {what} is missing"),
        path => Ok(PathBuf::from(path)),
    }
}

/// Returns the side on a device or file.
///
/// # Errors
/// When the file does not exist and no size was given for it.
fn side(name: &str, path: &Path, args: &Args) -> Result<Side> {
    let exists = path.exists();
    if !exists && path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        bail!("{}: there is no such device", path.display());
    }
    if !exists && args.size.is_none() {
        bail!(
            "{}: does not exist; with --size, as in `--size 100GiB`, `bimetal format` creates it",
            path.display()
        );
    }
    Ok(Side {
        name: name.to_owned(),
        path: written(path, &args.file)?,
        size: args.size.filter(|_| !exists),
        comment: "",
    })
}

/// Returns a path as the configuration `file` should have it: a block device by the name that stays
/// the same, and a file relative to the configuration only if it was given so beside it.
pub(crate) fn written(path: &Path, file: &Path) -> Result<PathBuf> {
    if let Some(name) = name_that_stays(path) {
        return Ok(name);
    }
    let folder = file.parent();
    let is_beside = folder.is_none_or(|folder| folder.as_os_str().is_empty());
    match path.is_absolute() || is_beside {
        true => Ok(path.to_owned()),
        false => Ok(std::path::absolute(path)?),
    }
}

/// Returns the name of a block device in [`BY_ID`]; `None` if it has none.
fn name_that_stays(path: &Path) -> Option<PathBuf> {
    if !path.starts_with("/dev") || path.starts_with("/dev/disk") {
        return None;
    }
    let device = path.canonicalize().ok()?;
    let names = std::fs::read_dir(BY_ID).ok()?;
    let names = names.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let is_of_it = |name: &PathBuf| name.canonicalize().is_ok_and(|of| of == device);
    // The names with the model and the serial number are the longest, and say most to people.
    names
        .filter(is_of_it)
        .max_by_key(|name| (name.as_os_str().len(), name.clone()))
}

/// Returns the text of a configuration for a volume on these sides, with a comment for each key
/// that people change first. `keys` are further lines of the section of the mirror.
///
/// # Errors
/// When a path is not UTF-8.
pub(crate) fn configuration(
    volume: &str,
    sides: &[Side],
    keys: &str,
    file: &str,
) -> Result<String> {
    let mut text = format!(
        "# A volume that keeps a full copy on each of its devices.\n\
         #   bimetal check {file}           shows what this file means\n\
         #   bimetal format {file}          prepares the sides, once\n\
         #   bimetal serve {file}           serves the volume until SIGTERM\n\
         #   bimetal status --watch {file}  shows its state\n"
    );
    for side in sides {
        let path = quoted(side.path.to_str().context("a path is not UTF-8")?)?;
        let name = key(&side.name)?;
        text += &format!(
            "\n{}[device.{name}]\ntype = \"file\"\npath = {path}\n",
            side.comment
        );
        if let Some(size) = side.size {
            text += &format!(
                "size = \"{}\"   # of the file that `format` creates\n",
                exact(size)
            );
        }
    }
    let names: Result<Vec<String>> = sides.iter().map(|side| quoted(&side.name)).collect();
    let (volume, device) = (key(volume)?, quoted(volume)?);
    text += &format!(
        "\n[device.{volume}]\ntype = \"mirror\"\nsides = [{}]\n",
        names?.join(", ")
    );
    text += keys;
    text += &format!(
        "# What may be lost if the side that has it dies before the other has it, too: so many\n\
         # bytes, and nothing older than this.\n\
         exposure = {{ bytes = \"64MiB\", age = \"5s\" }}\n\
         # What happens when one side is lost: \"continue\", \"read-only\" or \"stop\".\n\
         on_degraded = \"continue\"\n\
         \n[export.{volume}]\n\
         device = {device}\n\
         protocol = \"nbd\"\n\
         # Or an address of this machine, \"tcp:127.0.0.1:10809\". Other machines need `tls`.\n\
         listen = \"unix:vol.sock\"\n\
         \n[server]\n\
         # Answers Prometheus.\n\
         # metrics = \"tcp:127.0.0.1:9751\"\n\
         # Runs for each event of the volume.\n\
         # alert = \"logger -t vol \\\"$BIMETAL_MESSAGE\\\"\"\n"
    );
    Ok(text)
}

/// Returns a text as a TOML string.
pub(crate) fn quoted(text: &str) -> Result<String> {
    // A JSON string is a TOML string, too.
    Ok(serde_json::to_string(text)?)
}

/// Returns a name as a TOML key: quoted, if it must be.
fn key(name: &str) -> Result<String> {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match !name.is_empty() && name.chars().all(is_bare) {
        true => Ok(name.to_owned()),
        false => quoted(name),
    }
}

/// Writes a configuration to a file that must not exist. A mistake in its text is reported before
/// anything is written.
///
/// # Errors
/// When the text is no configuration, or the file exists or cannot be written.
pub(crate) fn write_new(file: &Path, text: &str) -> Result<()> {
    Config::read(file, text)?;
    let written = OpenOptions::new().write(true).create_new(true).open(file);
    let written = written.and_then(|mut out| out.write_all(text.as_bytes()));
    written.with_context(|| file.display().to_string())
}

/// Returns an error when a configuration that is to be written exists.
pub(crate) fn check_new(file: &Path) -> Result<()> {
    if file.exists() {
        bail!("{}: exists, and is not overwritten", file.display());
    }
    Ok(())
}

/// Returns a size that is parsed to the same number of bytes.
fn exact(size: Size) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let mut whole = units
        .iter()
        .filter(|(_, bits)| size.0.is_multiple_of(1 << bits));
    match whole.next() {
        Some((unit, bits)) => format!("{}{unit}", size.0 >> bits),
        None => format!("{}B", size.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_written_exactly() {
        for (text, bytes) in [
            ("100GiB", 100 << 30),
            ("1536MiB", 1536 << 20),
            ("5000B", 5000),
        ] {
            assert_eq!(exact(Size(bytes)), text);
            assert_eq!(parse_size(text).map(|size| size.0), Ok(bytes));
        }
    }
}
