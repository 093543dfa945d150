//! Reading, validating and writing the copies of the superblock on the device of a side. While one
//! copy is not known to be intact, the other copy must not be written.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::Rt;

use super::{SUPERBLOCK_BYTES, Superblock, newest};
use crate::device::Device;
use crate::error::{IoError, OpenError};
use crate::request::{Flags, Op, Request};

/// A side to examine: its configured name and its device.
#[derive(Clone)]
pub struct Candidate {
    /// The name of the side.
    pub name: String,
    /// The device of the side.
    pub device: Rc<dyn Device>,
}

/// Reason why the superblock of a side could not be obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::layers::mirror) enum NotSeen {
    /// The device cannot be read, so the side is treated as absent.
    Unreadable(String),
    /// The device holds an invalid superblock.
    Damaged(String),
}

impl Candidate {
    pub(in crate::layers::mirror) fn error(&self, what: &str) -> OpenError {
        OpenError::new(format!("side {}: {what}", self.name))
    }

    fn copies(&self) -> [u64; 2] {
        let size_bytes = self.device.geometry().size_bytes;
        [0, size_bytes.saturating_sub(SUPERBLOCK_BYTES)]
    }

    /// Reads the newest superblock on the device; `None` when there is none.
    ///
    /// # Errors
    /// The reason why the superblock is unreadable or invalid.
    pub(in crate::layers::mirror) async fn inspect(&self) -> Result<Option<Superblock>, NotSeen> {
        let (mut copies, mut unread) = (Vec::new(), 0);
        for offset in self.copies() {
            let read = Request::read(offset, SUPERBLOCK_BYTES);
            copies.push(match self.device.submit(read).await {
                Ok(reply) => Ok(reply.into_data().to_vec()),
                Err(error) => {
                    unread += 1;
                    Err(format!("reading at {offset}: {error}"))
                }
            });
        }
        let silent = unread == copies.len();
        let found = newest(copies).map_err(|why| match silent {
            true => NotSeen::Unreadable(why),
            false => NotSeen::Damaged(why),
        })?;
        if let Some(superblock) = &found {
            let fits = superblock.fits(self.device.geometry());
            fits.map_err(NotSeen::Damaged)?;
        }
        Ok(found)
    }

    /// Reads the newest superblock on the device; `None` when there is none.
    ///
    /// # Errors
    /// When the superblock cannot be read, or is invalid.
    pub async fn superblock(&self) -> Result<Option<Superblock>, OpenError> {
        let found = self.inspect().await;
        found.map_err(|(NotSeen::Unreadable(why) | NotSeen::Damaged(why))| self.error(&why))
    }

    /// Returns the number of copies on the device that differ from `superblock` or cannot be read.
    ///
    /// # Errors
    /// Errors of the device, except an unreadable block, which counts as a wrong copy.
    pub(in crate::layers::mirror) async fn wrong_copies(
        &self,
        superblock: &Superblock,
    ) -> Result<u64, IoError> {
        let (block, mut wrong) = (superblock.encode(), 0);
        for offset in self.copies() {
            let read = Request::read(offset, SUPERBLOCK_BYTES);
            let found = self.device.submit(read).await;
            match found.map(|reply| reply.into_data().to_vec()) {
                Ok(found) if found == block => {}
                Ok(_) | Err(IoError::Medium | IoError::Corrupt) => wrong += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(wrong)
    }

    /// Returns the index of the copy to overwrite first: the copy that is not the newest valid
    /// copy.
    async fn spare_copy(&self) -> Result<usize, IoError> {
        // A read does not show whether the returned content is durable, so it is made durable
        // first.
        self.device.submit(Request::flush()).await?;
        let mut needed: Option<(usize, u64)> = None;
        for (index, offset) in self.copies().into_iter().enumerate() {
            let read = Request::read(offset, SUPERBLOCK_BYTES);
            let found = match self.device.submit(read).await {
                Ok(reply) => Superblock::decode(&reply.into_data().to_vec())
                    .ok()
                    .flatten(),
                Err(IoError::Medium | IoError::Corrupt) => None,
                Err(error) => return Err(error),
            };
            let newer = |found: &Superblock| needed.is_none_or(|(_, g)| g <= found.generation);
            if let Some(found) = found.filter(newer) {
                needed = Some((index, found.generation));
            }
        }
        Ok(needed.map_or(0, |(index, _)| 1 - index))
    }

    /// Writes both copies, with a flush after each. If `spare` names a copy, that copy is written
    /// first. Otherwise, the device is read, and the copy that is not the newest valid copy is
    /// written first. A failed write may destroy the copy that it overwrites. So while one copy is
    /// not known to be intact, the other copy must not be written.
    ///
    /// # Errors
    /// The first error. After a failed write or flush, `spare` names the copy that may be
    /// destroyed, and the other copy is intact.
    pub(in crate::layers::mirror) async fn write(
        &self,
        superblock: &Superblock,
        spare: &Cell<Option<usize>>,
        rt: &Rt,
    ) -> Result<(), IoError> {
        let block = rt.pool().copy_of(&superblock.encode());
        let first = match spare.get() {
            Some(known) => known,
            None => self.spare_copy().await?,
        };
        for index in [first, 1 - first] {
            spare.set(Some(index));
            let offset = self.copies()[index];
            let write = Request::write(offset, block.clone(), Flags::NONE);
            self.device.submit(write).await?;
            self.device.submit(Request::flush()).await?;
        }
        spare.set(Some(first));
        Ok(())
    }

    /// Overwrites both copies of the superblock with zeroes, so that the device holds no side of a
    /// volume.
    pub(in crate::layers::mirror) async fn wipe(&self) -> Result<(), IoError> {
        for offset in self.copies() {
            let zeroes =
                Request::without_data(Op::WriteZeroes, offset, SUPERBLOCK_BYTES, Flags::NONE);
            self.device.submit(zeroes).await?;
        }
        self.device.submit(Request::flush()).await?;
        Ok(())
    }
}
