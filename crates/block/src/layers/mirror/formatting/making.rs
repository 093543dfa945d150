//! Steps that all ways of formatting a side share: its layout, its first superblock, and its areas.

use std::cell::Cell;

use bimetal_policy::cleaning::uniform_amplification;
use bimetal_rt::Rt;

use crate::device::Device;
use crate::error::{IoError, OpenError};
use crate::layers::mirror::Layouts;
use crate::layers::mirror::digest::BlockDigest;
use crate::layers::mirror::family::Behind;
use crate::layers::mirror::store;
use crate::layers::mirror::superblock::{
    Asked, Candidate, Epoch, FIRST_CHANGE, History, Listed, Remembered, Reserve, SIDES_MAX,
    SideFlags, SideKind, SideLayout, SideState, Superblock, Uuid, VolumeRoom, device_bytes_for,
    show_uuid,
};
use crate::request::{BLOCK_BYTES, Flags, Op, Request};
use crate::units::show_size;

/// Maximum length of the requests that zero an area.
const ZERO_BYTES: u64 = 16 << 20;

/// Reason why a side without checksums cannot be logged.
const NEEDS_CHECKSUMS: &str = "needs checksums: layout = \"log\" allows no checksums = false";

/// Options of formatting.
#[derive(Clone, Debug, Default)]
pub struct Formatting {
    /// Whether to overwrite sides that already hold a volume or content.
    pub force: bool,
    /// How the sides store the blocks of the volume. With [`Layouts::Unsaid`], as with
    /// `bimetal format` and no key `layout`, they are logged, except disks whose content is kept.
    pub layouts: Layouts,
    /// Length of the log of each side in bytes; `None` to derive it from the size of the device.
    pub log_bytes: Option<u64>,
    /// Size in bytes up to which the devices can grow later.
    pub grow_to_bytes: Option<u64>,
    /// Size of the volume in bytes; `None` for as much as all sides have room for.
    pub volume_bytes: Option<u64>,
    /// Share of logged sides that stays free for cleaning.
    pub reserve: Reserve,
    /// Number of bytes of the volume that may have content, if that is less than what the sides
    /// have room for. For tests only, which would otherwise have to fill the sides.
    pub room_bytes_max: Option<u64>,
    /// Whether to keep no checksums of the blocks.
    pub no_checksums: bool,
    /// Names of the sides that are not on durable storage: their content is lost when their machine
    /// stops.
    pub ephemeral: Vec<String>,
    /// Name of the side whose existing content becomes that of the volume; `None` for an empty
    /// volume.
    pub adopt: Option<String>,
}

impl Formatting {
    /// Returns the options for sides with homes; all others are the defaults.
    pub fn with_homes() -> Formatting {
        Formatting {
            layouts: Layouts::All(SideKind::Home),
            ..Formatting::default()
        }
    }

    /// Returns the layout that is requested for a side. A disk with content to be kept has a home
    /// by itself, wherever no layout is named for all sides.
    pub(super) fn asked(&self, side: &Candidate) -> Asked {
        let has_content = side.device.geometry().content_offset_bytes.is_some();
        let otherwise = match has_content {
            true => SideKind::Home,
            false => SideKind::OF_NEW_VOLUMES,
        };
        Asked {
            kind: self.layouts.of(&side.name).unwrap_or(otherwise),
            log_bytes: self.log_bytes,
            grow_to_bytes: self.grow_to_bytes,
            volume_bytes: self.volume_bytes,
            reserve: self.reserve,
        }
    }

    pub(super) fn flags(&self, side: &str) -> SideFlags {
        SideFlags {
            not_durable: self.ephemeral.iter().any(|name| name == side),
            no_checksums: self.no_checksums,
        }
    }
}

/// Result of formatting.
#[derive(Clone, Debug, PartialEq)]
pub struct Formatted {
    /// UUID of the volume.
    pub volume: Uuid,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// Name, UUID and data offset of each side; no offset for a logged side.
    pub sides: Vec<(String, Uuid, Option<u64>)>,
    /// For each side, the size in bytes of its device, and the number of bytes of a volume for
    /// which the side has room.
    pub room: Vec<(u64, u64)>,
    /// Number of bytes of the volume that may have content at a time; `None` if all of it may.
    pub room_bytes: Option<u64>,
    /// Number of bytes that a logged side writes for each byte of the client, cleaning included, if
    /// all of the room has content and is overwritten uniformly.
    pub amplification: f64,
    /// Length in bytes of the smallest log among the sides.
    pub log_bytes: u64,
    /// Size in bytes that the volume could have if its logged sides had homes; `None` if no side is
    /// logged, or they could not have homes.
    pub with_homes_bytes: Option<u64>,
}

/// Returns the description of the new volume and its sides.
pub(super) fn described(
    sides: &[Candidate],
    layouts: &[SideLayout],
    superblocks: &[Superblock],
    formatting: &Formatting,
) -> Formatted {
    let made = || sides.iter().zip(superblocks);
    let logs = superblocks.iter().map(|made| made.layout.log.1);
    let named = made().map(|(s, made)| (s.name.clone(), made.side, made.layout.home_offset()));
    let room = sides.iter().zip(layouts).map(|(side, layout)| {
        let device_bytes = side.device.geometry().size_bytes;
        (device_bytes, layout.room_bytes())
    });
    let any_logged = superblocks
        .iter()
        .any(|made| made.layout.segments.is_some());
    let homes = sides
        .iter()
        .map(|side| room_of_home(side, formatting.asked(side)));
    let homes: Option<Vec<u64>> = homes.collect();
    let smallest = homes.and_then(|rooms| rooms.into_iter().min());
    Formatted {
        volume: superblocks[0].volume,
        volume_bytes: superblocks[0].volume_bytes,
        sides: named.collect(),
        room: room.collect(),
        room_bytes: superblocks[0].layout.limited_room_bytes(),
        amplification: uniform_amplification(1.0 - formatting.reserve.share()),
        log_bytes: logs.min().unwrap_or(0),
        with_homes_bytes: smallest.filter(|_| any_logged),
    }
}

/// Returns the size in bytes of the largest volume for which a side has room if it has a home;
/// `None` if it cannot have one.
fn room_of_home(side: &Candidate, asked: Asked) -> Option<u64> {
    let kind = SideKind::Home;
    let asked = Asked {
        kind,
        volume_bytes: None,
        ..asked
    };
    let layout = SideLayout::of(side.device.geometry(), asked);
    layout
        .ok()
        .map(|layout| layout.data.1 - layout.data.1 % BLOCK_BYTES)
}

/// Returns the number of bytes that a volume on sides with these layouts may have; `None` if all of
/// it may have content.
///
/// # Errors
/// When the room is limited, and a side is not logged: it does not record the limit.
fn room_of_all(layouts: &[SideLayout]) -> Result<Option<u64>, OpenError> {
    let limited = |layout: &SideLayout| layout.limited_room_bytes().is_some();
    if !layouts.iter().any(limited) {
        return Ok(None);
    }
    if layouts.iter().any(|layout| layout.segments.is_none()) {
        return Err(OpenError::new(
            "its `size` is more than a side with layout = \"log\" has room for; then every side \
            needs layout = \"log\"",
        ));
    }
    Ok(layouts.iter().map(SideLayout::room_bytes).min())
}

/// Returns the superblocks of a new volume, by default as large as its sides have room for, in the
/// order of its sides. All sides are members of the first epoch.
pub(super) fn first_superblocks(
    rt: &Rt,
    name: &str,
    layouts: &[SideLayout],
    formatting: &Formatting,
) -> Result<Vec<Superblock>, OpenError> {
    let random = || {
        rt.random_uuid()
            .map_err(|e| OpenError::new(format!("no random numbers: {e}")))
    };
    let largest = layouts.iter().map(|layout| layout.data.1).min();
    let volume_bytes = formatting.volume_bytes.or(largest);
    let volume_bytes = volume_bytes.expect("a volume has sides");
    let limits = [room_of_all(layouts)?, formatting.room_bytes_max];
    let room_bytes = limits.into_iter().flatten().min();
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
    let of_side = |(layout, listed): (&SideLayout, &Option<Listed>)| Superblock {
        volume,
        side: listed.expect("every side has its place").side,
        table,
        state: SideState::Clean,
        flags: SideFlags::default(),
        generation: 1,
        complete_below: FIRST_CHANGE,
        volume_bytes: volume_bytes - volume_bytes % BLOCK_BYTES,
        layout: layout.with_room(room_bytes),
        digest: BlockDigest::Xxh3,
        unknown_blocks: 0,
        created_s: now_s,
        written_s: now_s,
        name: name.to_owned(),
        history: history.clone(),
        remembered: Remembered::default(),
    };
    Ok(layouts.iter().zip(&table).map(of_side).collect())
}

/// Properties of a side that is added to an existing volume.
#[derive(Clone, Copy, Debug)]
pub(in crate::layers::mirror) struct NewSide {
    /// Requested properties of the layout.
    pub(in crate::layers::mirror) asked: Asked,
    /// True if the side is not on durable storage: its content is lost when its machine stops.
    pub(in crate::layers::mirror) not_durable: bool,
}

impl NewSide {
    /// Returns the layout of the new side on a device.
    ///
    /// # Errors
    /// When the device cannot be a side of the volume, or holds a side and `overwrite` is false.
    pub(in crate::layers::mirror) async fn check(
        self,
        side: &Candidate,
        volume: &VolumeRoom,
        overwrite: bool,
    ) -> Result<SideLayout, OpenError> {
        let formatting = Formatting {
            force: overwrite,
            layouts: Layouts::All(self.asked.kind),
            log_bytes: self.asked.log_bytes,
            grow_to_bytes: self.asked.grow_to_bytes,
            reserve: self.asked.reserve,
            volume_bytes: volume.room_bytes.map(|_| volume.volume_bytes),
            ..Formatting::default()
        };
        let layout = check_formattable(side, &formatting).await?;
        if volume.room_bytes.is_some() && layout.segments.is_none() {
            return Err(side.error(
                "cannot have homes: the volume is larger than what its sides have room for, so \
                every side needs layout = \"log\"",
            ));
        }
        let content_bytes = volume.room_bytes.unwrap_or(volume.volume_bytes);
        check_room(side, &layout, content_bytes, &formatting)?;
        Ok(layout.with_room(volume.room_bytes))
    }
}

/// Formats a device as a side of a volume in which it already has a place. `template` is a
/// superblock of another side with the newest table. The new side is marked as lacking everything.
/// All old content of the device is lost.
///
/// # Errors
/// When the device cannot be a side of the volume, or fails.
///
/// # Panics
/// When the table has no side at `place`.
pub(in crate::layers::mirror) async fn make_side(
    rt: &Rt,
    side: &Candidate,
    template: &Superblock,
    place: usize,
    new: NewSide,
) -> Result<Superblock, OpenError> {
    let superblock = first_superblock(rt, side, template, place, new).await?;
    let wiped = side.wipe().await;
    wiped.map_err(|error| side.error(&format!("removing old superblocks: {error}")))?;
    fill(rt, side, &superblock, Some(0)).await?;
    Ok(superblock)
}

/// Formats a device that holds a side of the volume as another side, at the same place of the
/// table, as [`make_side`] does. `before` is the superblock of the old side, which
/// [awaits formatting](Superblock::awaits_formatting). It stays on the device until that of the new
/// side replaces it: at any moment, the device says to which volume it belongs and that its areas
/// are not to be trusted.
///
/// # Errors
/// As for [`make_side`].
///
/// # Panics
/// When the old side does not await formatting, or the table has no side at `place`.
pub(in crate::layers::mirror) async fn make_side_over(
    rt: &Rt,
    side: &Candidate,
    before: &Superblock,
    template: &Superblock,
    new: NewSide,
) -> Result<Superblock, OpenError> {
    assert!(before.awaits_formatting(), "it says that its areas change");
    let place = before.place();
    let superblock = Superblock {
        generation: before.generation + 1,
        ..first_superblock(rt, side, template, place, new).await?
    };
    fill(rt, side, &superblock, None).await?;
    Ok(superblock)
}

/// Returns the first superblock of a side at a place of the table, marked as lacking everything.
async fn first_superblock(
    rt: &Rt,
    side: &Candidate,
    template: &Superblock,
    place: usize,
    new: NewSide,
) -> Result<Superblock, OpenError> {
    let layout = new.check(side, &VolumeRoom::of(template), true).await?;
    let no_checksums = template.flags.no_checksums;
    if no_checksums && layout.segments.is_some() {
        return Err(side.error(NEEDS_CHECKSUMS));
    }
    Ok(Superblock {
        side: template.table[place].expect("the side is listed").side,
        state: SideState::Inconsistent,
        flags: SideFlags {
            not_durable: new.not_durable,
            no_checksums,
        },
        generation: 1,
        complete_below: 0,
        layout,
        digest: BlockDigest::Xxh3,
        unknown_blocks: 0,
        written_s: rt.unix_seconds(),
        history: Behind::Everything.history(&template.history, place),
        ..template.clone()
    })
}

/// Empties the areas of a side, and then writes its superblock, first the copy `spare`; see
/// [`Candidate::write`].
async fn fill(
    rt: &Rt,
    side: &Candidate,
    superblock: &Superblock,
    spare: Option<usize>,
) -> Result<(), OpenError> {
    let failed = |what: &'static str| move |error: IoError| side.error(&format!("{what}: {error}"));
    let (uuid, layout) = (superblock.side, &superblock.layout);
    let empty = store::initialise(rt, &side.device, uuid, layout, false).await;
    empty.map_err(failed("emptying its areas"))?;
    let written = side.write(superblock, &Cell::new(spare), rt).await;
    written.map_err(failed("writing the superblock"))
}

/// Returns an error when a side has too little room for `content_bytes` of a volume.
pub(super) fn check_room(
    side: &Candidate,
    layout: &SideLayout,
    content_bytes: u64,
    formatting: &Formatting,
) -> Result<(), OpenError> {
    if layout.room_bytes() >= content_bytes {
        return Ok(());
    }
    let asked = formatting.asked(side);
    Err(side.error(&format!(
        "has room for {} of data, but the volume has {}: the side needs at least {}{}",
        show_size(layout.room_bytes()),
        show_size(content_bytes),
        show_size(device_bytes_for(content_bytes, asked)),
        way_out(side, formatting)
    )))
}

/// Returns the way out for a side that cannot be logged and that the configuration does not ask to
/// be: what it has room for with a home. The words continue a line; they are empty for any other
/// side, and if the side cannot have a home either.
fn way_out(side: &Candidate, formatting: &Formatting) -> String {
    let asked = formatting.asked(side);
    let is_default = formatting.layouts == Layouts::Unsaid && asked.kind == SideKind::Log;
    let room = room_of_home(side, asked).filter(|_| is_default);
    room.map_or_else(String::new, |room_bytes| {
        format!(
            "; layout = \"log\" is the default, and with layout = \"home\" this device of {} has \
            room for {} of data",
            show_size(side.device.geometry().size_bytes),
            show_size(room_bytes)
        )
    })
}

/// Fills a range of a device with zeroes, piece by piece.
pub(super) async fn clear(device: &dyn Device, start: u64, len: u64) -> Result<(), IoError> {
    let end = start + len;
    let mut offset = start;
    while offset < end {
        let len = ZERO_BYTES.min(end - offset);
        let zeroes = Request::without_data(Op::WriteZeroes, offset, len, Flags::NONE);
        device.submit(zeroes).await?;
        offset += len;
    }
    Ok(())
}

/// Returns the layout that a side would get, without writing anything.
///
/// # Errors
/// If the side cannot be formatted. The error is one line with the reason.
pub(super) async fn check_formattable(
    side: &Candidate,
    formatting: &Formatting,
) -> Result<SideLayout, OpenError> {
    let geometry = side.device.geometry();
    if !geometry.writable {
        return Err(side.error("is read-only"));
    }
    let refused = |why: &str| side.error(&format!("{why}{}", way_out(side, formatting)));
    let layout = SideLayout::of(geometry, formatting.asked(side));
    let layout = layout.map_err(|error| refused(&error.to_string()))?;
    if layout.segments.is_some() && formatting.no_checksums {
        return Err(refused(NEEDS_CHECKSUMS));
    }
    let has_content = geometry.content_offset_bytes.is_some();
    let adopted = formatting.adopt.as_ref() == Some(&side.name);
    if has_content && !adopted && !formatting.force {
        return Err(side.error(&format!(
            "has content that would be lost: `format --adopt {}` keeps it, --force overwrites it",
            side.name
        )));
    }
    if !formatting.force {
        // The call also returns an error if the superblock is unreadable, so such a side is refused
        // too unless `force` is set.
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
