//! A volume or device that the server exposes to its own machine: as a block device (ublk) or as a
//! file (FUSE).

use std::rc::Rc;

use anyhow::Result;
use bimetal_block::StatisticVisitor;
use bimetal_export::fuse::{self, Mounted};
use bimetal_export::ublk::Attachment;
use bimetal_rt::Rt;

use crate::itself;

/// A device exposed to this machine.
#[derive(Clone)]
pub(crate) enum Local {
    /// Block device through ublk.
    Block(Rc<Attachment>),
    /// File through FUSE.
    File(Rc<Mounted>),
}

impl Local {
    /// Returns the path of the block device or of the file.
    pub(crate) fn path(&self) -> String {
        match self {
            Local::Block(block) => block.path(),
            Local::File(file) => file.path().display().to_string(),
        }
    }

    /// Reports the live statistics to `out`.
    pub(crate) fn statistics(&self, out: &mut dyn StatisticVisitor) {
        match self {
            Local::Block(block) => block.statistics(out),
            Local::File(file) => file.statistics(out),
        }
    }

    /// Removes the block device or the mount, even if it is in use.
    ///
    /// # Errors
    /// If the removal fails, or if an earlier error had stopped the service.
    pub(crate) async fn take_away(&self, rt: &Rt) -> Result<()> {
        match self {
            Local::Block(block) => Ok(block.detach().await?),
            Local::File(file) => {
                let unmounted = if file.has_ended() {
                    Ok(())
                } else {
                    unmount(rt, file).await
                };
                let closed = file.close().await;
                unmounted.and(closed.map_err(anyhow::Error::from))
            }
        }
    }
}

async fn unmount(rt: &Rt, file: &Mounted) -> Result<()> {
    let folder = file.folder();
    let run = itself::run(rt, itself::take_away_words(folder, true)).await;
    match run {
        Ok(_) => Ok(()),
        // The folder has been unmounted, and the error says which data could not be saved.
        Err(error) if !fuse::is_mounted(folder) => Err(error),
        Err(error) => Err(error.context(format!("{} is still mounted", folder.display()))),
    }
}
