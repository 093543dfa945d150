//! How a device is given to this machine itself: as a block device, or as a file.

use std::rc::Rc;

use anyhow::Result;
use bimetal_block::FigureVisitor;
use bimetal_export::fuse::{self, Mounted};
use bimetal_export::ublk::Attachment;
use bimetal_rt::Rt;

use crate::itself;

/// See the module.
#[derive(Clone)]
pub(crate) enum Local {
    /// By ublk.
    Block(Rc<Attachment>),
    /// By FUSE.
    File(Rc<Mounted>),
}

impl Local {
    /// The path of the block device or of the file.
    pub(crate) fn path(&self) -> String {
        match self {
            Local::Block(block) => block.path(),
            Local::File(file) => file.path().display().to_string(),
        }
    }

    /// Gives its live figures.
    pub(crate) fn figures(&self, out: &mut dyn FigureVisitor) {
        match self {
            Local::Block(block) => block.figures(out),
            Local::File(file) => file.figures(out),
        }
    }

    /// Takes it away, also when it is in use.
    ///
    /// # Errors
    /// When that cannot be done, or it could not be served any longer before.
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
        // It has said what could not be saved.
        Err(error) if !fuse::is_mounted(folder) => Err(error),
        Err(error) => Err(error.context(format!("{} is still mounted", folder.display()))),
    }
}
