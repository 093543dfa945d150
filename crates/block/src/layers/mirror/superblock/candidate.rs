//! The superblock of a side on its device: reading, judging and writing its copies. While one of
//! them is not known to be whole the other one must not be touched.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::Rt;

use super::{SUPERBLOCK_BYTES, Superblock, newest};
use crate::device::Device;
use crate::error::{IoError, OpenError};
use crate::request::{Flags, Op, Request};

/// A side that is being looked at: its name in the configuration and its device.
#[derive(Clone)]
pub struct Candidate {
    /// The name.
    pub name: String,
    /// The device.
    pub device: Rc<dyn Device>,
}

/// Why nothing is known of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::layers::mirror) enum NotSeen {
    /// The device does not answer: it is as if the side were not there.
    Unreadable(String),
    /// What is there cannot be believed.
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

    /// The newest superblock on the device, if there is one; `Err` says why what is there cannot
    /// be read or believed.
    pub(in crate::layers::mirror) async fn look(&self) -> Result<Option<Superblock>, NotSeen> {
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

    /// The newest superblock on the device, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, or when what is there cannot be believed.
    pub async fn superblock(&self) -> Result<Option<Superblock>, OpenError> {
        let found = self.look().await;
        found.map_err(|(NotSeen::Unreadable(why) | NotSeen::Damaged(why))| self.error(&why))
    }

    /// How many of the copies on the device are not this superblock.
    ///
    /// # Errors
    /// Those of the device that say nothing of the copies.
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

    /// Which copy to write first: the one without which the side still has its superblock.
    async fn spare_copy(&self) -> Result<usize, IoError> {
        // What is not durable yet is read like what is.
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

    /// Writes both copies, with a flush after each: first the one that `spare` says is not needed,
    /// or that is found to be when it says nothing. A write may leave nothing of the copy that was
    /// there, so while one of them is not known to be whole the other one must not be touched.
    ///
    /// # Errors
    /// The first that failed; one of the copies is whole all the same, and `spare` is not that one.
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

    /// Makes the device a side of no volume.
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
