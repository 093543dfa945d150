//! `bimetal index create`: creates an empty index. It is the only verb that creates an index
//! without loading records, and the only one that creates an index on a block device. It must never
//! overwrite data without explicit permission.

use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use bimetal_block::units::show_size;
use bimetal_index::storage::file::{FileStorage, Presence};
use bimetal_index::storage::{Aligned, Storage};
use bimetal_index::{Db, is_unfinished};

use super::volume::open_device;
use super::{MakeArgs, OpenArgs, failed, unopened};

/// Number of bytes at the start of a device that must be zero. File systems, partition tables and
/// indexes all have data in this range.
const LOOKED_AT_BYTES: usize = 1 << 20;

/// Arguments of the verb `create`.
///
/// An index in a file grows and shrinks with its content. An index on a block device occupies the
/// whole device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file, which must be new or empty, or the block device
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// Create the index on a device that holds data; the data is lost
    #[arg(long)]
    destroy_data: bool,
    #[command(flatten)]
    make: MakeArgs,
    #[command(flatten)]
    open: OpenArgs,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let path = &args.index;
    let db = match &args.open.place.config {
        Some(config) => {
            let storage = open_device(config, path)?;
            check_is_empty(path, &storage, args.destroy_data)?;
            make(args, storage)?
        }
        None => make_at(args, path)?,
    };
    let bytes = super::stats::space_bytes(&db);
    writeln!(
        std::io::stdout().lock(),
        "{}: an empty index of {}",
        path.display(),
        show_size(bytes)
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Creates the index in a file or on a block device, as given by the arguments.
fn make_at(args: &Args, path: &Path) -> Result<Db> {
    let metadata = path.metadata().ok();
    let is_device = metadata
        .as_ref()
        .is_some_and(|m| m.file_type().is_block_device());
    if is_device {
        let storage = FileStorage::open_read_only(path);
        let storage = storage.map_err(|error| unopened(path, &error))?;
        check_is_empty(path, &storage, args.destroy_data)?;
    } else if metadata.is_some_and(|m| !m.is_file() || m.len() > 0) {
        check_is_unfinished(path)?;
    }
    let is_new = !path.exists();
    let storage = FileStorage::open(path, Presence::Any);
    let made = make(args, storage.map_err(|error| unopened(path, &error))?);
    if made.is_err() && is_new {
        // This call created the file, and the creation of the index failed, so the file is removed.
        // If the removal fails too, only the first failure is reported.
        let _ = std::fs::remove_file(path);
    }
    made
}

fn make(args: &Args, storage: impl Storage + 'static) -> Result<Db> {
    let path = &args.index;
    let id = bimetal_index::new_id().map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let options = args.make.options(&args.open);
    Db::create(storage, id, &options).map_err(|error| failed(path, &error))
}

/// Returns an error if a file has more content than an interrupted creation of an index leaves.
fn check_is_unfinished(path: &Path) -> Result<()> {
    let storage = FileStorage::open_read_only(path);
    let storage = storage.map_err(|error| unopened(path, &error))?;
    match is_unfinished(&storage) {
        Ok(true) => Ok(()),
        Ok(false) => bail!("{}: the file already has content", path.display()),
        Err(error) => Err(failed(path, &error)),
    }
}

/// Returns an error if the start of a device is not zero, unless `destroys_data` is true.
fn check_is_empty(path: &Path, storage: &dyn Storage, destroys_data: bool) -> Result<()> {
    let examined = LOOKED_AT_BYTES.min(storage.len_bytes() as usize);
    let mut start = Aligned::zeroed(examined);
    storage
        .read(0, &mut start)
        .map_err(|error| anyhow!("{}: {error}", path.display()))?;
    if !destroys_data && start.iter().any(|byte| *byte != 0) {
        bail!(
            "{}: the device holds data; --destroy-data creates an index anyway, and the data is \
            lost",
            path.display()
        );
    }
    Ok(())
}
