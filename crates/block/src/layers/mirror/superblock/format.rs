//! Reading and writing the superblocks of a side, and making sides of devices.
//!
//! Formatting must never leave behind what looks like a side and is not one: the old superblocks
//! go first, the areas are emptied, and the new superblocks come last.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::Rt;

use super::layout::device_bytes_for;
use super::{
    Asked, Epoch, FIRST_CHANGE, History, Layout, Listed, SIDES_MAX, SUPERBLOCK_BYTES, SideFlags,
    State, Superblock, Uuid, adopting, newest, show_uuid,
};
use crate::device::Device;
use crate::error::{IoError, OpenError};
use crate::layers::mirror::family::Behind;
use crate::layers::mirror::store;
use crate::request::{BLOCK_BYTES, Flags, Op, Request};
use crate::units::show_size;

/// An area is emptied by requests of this length.
const ZERO_BYTES: u64 = 16 << 20;

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
    pub(super) async fn wipe(&self) -> Result<(), IoError> {
        for offset in self.copies() {
            write_zeroes(&*self.device, offset, SUPERBLOCK_BYTES).await?;
        }
        self.device.submit(Request::flush()).await?;
        Ok(())
    }
}

/// How to format.
#[derive(Clone, Debug, Default)]
pub struct Formatting {
    /// Overwrite sides that hold a volume.
    pub force: bool,
    /// Length of the log of each side; `None` lets the size of the device decide.
    pub log_bytes: Option<u64>,
    /// Size up to which the devices may become larger one day.
    pub grow_to_bytes: Option<u64>,
    /// Keep no checksums of the blocks.
    pub no_checksums: bool,
    /// Sides that are lost with their machine, by name.
    pub ephemeral: Vec<String>,
    /// The side whose content becomes that of the volume.
    pub adopt: Option<String>,
}

impl Formatting {
    pub(super) fn asked(&self) -> Asked {
        Asked {
            log_bytes: self.log_bytes,
            grow_to_bytes: self.grow_to_bytes,
        }
    }

    pub(super) fn flags(&self, side: &str) -> SideFlags {
        SideFlags {
            not_durable: self.ephemeral.iter().any(|name| name == side),
            no_checksums: self.no_checksums,
        }
    }
}

/// What formatting has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formatted {
    /// The volume's UUID.
    pub volume: Uuid,
    /// Its size in bytes.
    pub volume_bytes: u64,
    /// Name, UUID and data offset of each side.
    pub sides: Vec<(String, Uuid, u64)>,
    /// The length of the smallest log, in bytes.
    pub log_bytes: u64,
}

/// Prepares sides for a new volume: an empty one, or one with the content of the side that is to be
/// adopted. Nothing is written before every side is found fit.
///
/// # Errors
/// When a side is too small, cannot be written, or holds a volume or content and `force` is not
/// given.
///
/// # Panics
/// Without sides, or with more than [`SIDES_MAX`].
pub async fn format(
    rt: &Rt,
    name: &str,
    sides: &[Candidate],
    formatting: &Formatting,
) -> Result<Formatted, OpenError> {
    assert!(
        (1..=SIDES_MAX).contains(&sides.len()),
        "the table has room for the sides"
    );
    let layouts = check_fit(sides, formatting).await?;
    if let Some(kept) = adopting::kept_side(sides, formatting)? {
        return adopting::adopt(rt, name, sides, &layouts, kept, formatting).await;
    }
    let mut superblocks = first_superblocks(rt, name, &layouts)?;
    for (side, superblock) in sides.iter().zip(&mut superblocks) {
        superblock.flags = formatting.flags(&side.name);
    }
    for side in sides {
        let wiped = side.wipe().await;
        wiped.map_err(|error| side.error(&format!("removing old superblocks: {error}")))?;
    }
    for (side, superblock) in sides.iter().zip(&superblocks) {
        let (device, uuid) = (&side.device, superblock.side);
        let mut empty = store::initialise(rt, device, uuid, &superblock.layout, false).await;
        if empty.is_ok() && superblock.flags.no_checksums {
            // Nothing says of a block that it was never written, so all of them must be zeroes.
            let (start, len) = (superblock.layout.data.0, superblock.volume_bytes);
            empty = clear(&*side.device, start, len).await;
        }
        empty.map_err(|error| side.error(&format!("emptying its areas: {error}")))?;
        let written = side.write(superblock, &Cell::new(Some(0)), rt).await;
        written.map_err(|error| side.error(&format!("writing the superblock: {error}")))?;
    }
    Ok(described(sides, &superblocks))
}

/// The layouts that sides are going to have. Nothing is written.
///
/// # Errors
/// When a side is too small, cannot be written, or holds a volume or content and `force` is not
/// given; when the one that is to be adopted cannot be.
pub async fn check_fit(
    sides: &[Candidate],
    formatting: &Formatting,
) -> Result<Vec<Layout>, OpenError> {
    adopting::kept_side(sides, formatting)?;
    let mut layouts = Vec::new();
    for side in sides {
        layouts.push(check_formattable(side, formatting).await?);
    }
    Ok(layouts)
}

/// What has been made, for whoever asked for it.
pub(super) fn described(sides: &[Candidate], superblocks: &[Superblock]) -> Formatted {
    let sides = sides.iter().zip(superblocks);
    let logs = superblocks.iter().map(|made| made.layout.log.1);
    let sides = sides.map(|(s, made)| (s.name.clone(), made.side, made.layout.data.0));
    Formatted {
        volume: superblocks[0].volume,
        volume_bytes: superblocks[0].volume_bytes,
        sides: sides.collect(),
        log_bytes: logs.min().unwrap_or(0),
    }
}

/// The superblocks of a new volume, in the order of its sides: all of them are members of its
/// first epoch.
pub(super) fn first_superblocks(
    rt: &Rt,
    name: &str,
    layouts: &[Layout],
) -> Result<Vec<Superblock>, OpenError> {
    let random = || {
        rt.random_uuid()
            .map_err(|e| OpenError::new(format!("no random numbers: {e}")))
    };
    let volume_bytes = layouts.iter().map(|layout| layout.data.1).min();
    let volume_bytes = volume_bytes.expect("a volume has sides");
    let volume = random()?;
    let mut table = [None; SIDES_MAX];
    for place in table.iter_mut().take(layouts.len()) {
        *place = Some(Listed::new(random()?));
    }
    let now_s = rt.unix_seconds();
    let history = History::new(Epoch {
        number: 1,
        id: random()?,
        first_change: FIRST_CHANGE,
        members: u32::MAX >> (32 - layouts.len()),
        began_s: now_s,
    });
    let of_side = |(layout, listed): (&Layout, &Option<Listed>)| Superblock {
        volume,
        side: listed.expect("every side has its place").side,
        table,
        state: State::Clean,
        flags: SideFlags::default(),
        generation: 1,
        complete_below: FIRST_CHANGE,
        volume_bytes: volume_bytes - volume_bytes % BLOCK_BYTES,
        layout: *layout,
        unknown_blocks: 0,
        created_s: now_s,
        written_s: now_s,
        name: name.to_owned(),
        history: history.clone(),
    };
    Ok(layouts.iter().zip(&table).map(of_side).collect())
}

/// A side that a volume is given later.
#[derive(Clone, Copy, Debug)]
pub(in crate::layers::mirror) struct NewSide {
    /// What is asked of its layout.
    pub(in crate::layers::mirror) asked: Asked,
    /// It is lost with its machine.
    pub(in crate::layers::mirror) not_durable: bool,
}

impl NewSide {
    /// Where everything would lie on a device.
    ///
    /// # Errors
    /// When the device cannot be a side of a volume of this size, or holds a side and may not be
    /// overwritten.
    pub(in crate::layers::mirror) async fn check(
        self,
        side: &Candidate,
        volume_bytes: u64,
        overwrite: bool,
    ) -> Result<Layout, OpenError> {
        let formatting = Formatting {
            force: overwrite,
            log_bytes: self.asked.log_bytes,
            grow_to_bytes: self.asked.grow_to_bytes,
            ..Formatting::default()
        };
        let layout = check_formattable(side, &formatting).await?;
        check_room(side, &layout, volume_bytes, self.asked)?;
        Ok(layout)
    }
}

/// Makes a side of a device for a volume in which it has a place already. `template` is a
/// superblock of another side with the newest table. It is marked as one that lacks everything.
/// Whatever the device held is lost.
///
/// # Errors
/// When the device is not fit or fails.
///
/// # Panics
/// When the place is free.
pub(in crate::layers::mirror) async fn make_side(
    rt: &Rt,
    side: &Candidate,
    template: &Superblock,
    place: usize,
    new: NewSide,
) -> Result<Superblock, OpenError> {
    let layout = new.check(side, template.volume_bytes, true).await?;
    let no_checksums = template.flags.no_checksums;
    let superblock = Superblock {
        side: template.table[place].expect("the side is listed").side,
        state: State::Inconsistent,
        flags: SideFlags {
            not_durable: new.not_durable,
            no_checksums,
        },
        generation: 1,
        complete_below: 0,
        layout,
        unknown_blocks: 0,
        written_s: rt.unix_seconds(),
        history: Behind::Everything.history(&template.history, place),
        ..template.clone()
    };
    let failed = |what: &'static str| move |error: IoError| side.error(&format!("{what}: {error}"));
    side.wipe()
        .await
        .map_err(failed("removing old superblocks"))?;
    let empty = store::initialise(rt, &side.device, superblock.side, &layout, false).await;
    empty.map_err(failed("emptying its areas"))?;
    let written = side.write(&superblock, &Cell::new(Some(0)), rt).await;
    written.map_err(failed("writing the superblock"))?;
    Ok(superblock)
}

/// Refuses a side that has too little room for a volume.
pub(super) fn check_room(
    side: &Candidate,
    layout: &Layout,
    volume_bytes: u64,
    asked: Asked,
) -> Result<(), OpenError> {
    if layout.data.1 >= volume_bytes {
        return Ok(());
    }
    Err(side.error(&format!(
        "has room for {} of data, the volume has {}: it must be at least {} large",
        show_size(layout.data.1),
        show_size(volume_bytes),
        show_size(device_bytes_for(volume_bytes, asked))
    )))
}

/// Fills a range with zeroes, piece by piece.
async fn clear(device: &dyn Device, start: u64, len: u64) -> Result<(), IoError> {
    let end = start + len;
    let mut offset = start;
    while offset < end {
        let len = ZERO_BYTES.min(end - offset);
        write_zeroes(device, offset, len).await?;
        offset += len;
    }
    Ok(())
}

async fn write_zeroes(device: &dyn Device, offset: u64, len: u64) -> Result<(), IoError> {
    let zeroes = Request::without_data(Op::WriteZeroes, offset, len, Flags::NONE);
    device.submit(zeroes).await?;
    Ok(())
}

async fn check_formattable(side: &Candidate, formatting: &Formatting) -> Result<Layout, OpenError> {
    let geometry = side.device.geometry();
    if !geometry.writable {
        return Err(side.error("is read-only"));
    }
    let layout = Layout::of(geometry, formatting.asked());
    let layout = layout.map_err(|error| side.error(&error.to_string()))?;
    let has_content = geometry.content_offset_bytes.is_some();
    let adopted = formatting.adopt.as_ref() == Some(&side.name);
    if has_content && !adopted && !formatting.force {
        return Err(side.error(&format!(
            "has content that would be lost: `format --adopt {}` keeps it, --force gives it up",
            side.name
        )));
    }
    if !formatting.force {
        // What cannot be read must not be overwritten without being asked either.
        if let Some(found) = side.superblock().await? {
            return Err(side.error(&format!(
                "already holds a side of volume {} (\"{}\"); --force overwrites it",
                show_uuid(&found.volume),
                found.name
            )));
        }
    }
    Ok(layout)
}
