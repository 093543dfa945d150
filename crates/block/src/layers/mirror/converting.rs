//! Converting a side in place: its device is formatted again for the other layout, and the side is
//! rebuilt from the other sides, while the volume is in use.
//!
//! A conversion is remembered in the superblocks, so the volume resumes it after any stop:
//!
//! 1. The operation becomes durable on all healthy sides.
//! 2. Another durable side gets everything that the side has, and the side is ejected, as a side
//!    that is removed.
//! 3. When a healthy side durably has an epoch without the side, the superblock of the side is
//!    marked: the side lacks everything, and its areas are void. From then on the device says of
//!    itself that it is to be formatted ([`Superblock::awaits_formatting`]).
//! 4. The areas of the new layout are written, and then a new superblock with a new identity, which
//!    says the same. At no moment is the device blank, so it is never mistaken for another disk.
//! 5. The new identity replaces the old one in the table of sides, with a new epoch, and the
//!    operation is over. What remains is the rebuild of a side that lacks everything.
//!
//! A device that holds a copy that may be needed must never be formatted. Nothing is written before
//! all checks have passed.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Rt;
use bimetal_rt::turn::give_way;
use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::config::Layouts;
use super::family::Behind;
use super::formatting::{NewSide, make_side_over};
use super::lifecycle::AbsentReason;
use super::shared::Shared;
use super::side::Side;
use super::store::Store;
use super::superblock::{Asked, Candidate, SideKind, SideLayout, Superblock};
use super::volume::Volume;
use crate::device::Device;
use crate::error::{IoError, OpenError};
use crate::request::Request;

/// Length of the parts of the volume that are counted as written or not.
const COUNTED_BYTES: u64 = 1 << 20;
/// Length of the requests with which the speed of a device is measured, and their number in flight.
const MEASURED_BYTES: u64 = 1 << 20;
const MEASURED_IN_FLIGHT: usize = 4;
/// Maximum number of bytes that a measurement reads, and the time after which it reads no more.
const MEASURED_BYTES_MAX: u64 = 64 << 20;
const MEASURED_FOR: Duration = Duration::from_millis(500);
/// Time within which the device must have answered all requests of a measurement.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// What a conversion would do, as far as it is known before it begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conversion {
    /// Present layout of the side.
    pub from: SideKind,
    /// Layout that the side would get.
    pub to: SideKind,
    /// Size of the device in bytes.
    pub device_bytes: u64,
    /// Size in bytes of the largest volume for which the side would have room.
    pub room_bytes: u64,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// Length in bytes that the log of the side would have.
    pub log_bytes: u64,
    /// Upper bound of the number of bytes that are to be copied: what was ever written.
    pub copied_bytes_max: u64,
    /// Number of complete copies of the volume that remain during the conversion.
    pub copies_left: usize,
    /// Rate at which the slower of the device and the fastest other side was just read
    /// sequentially, in bytes a second; `None` if it could not be read.
    pub read_bytes_per_s: Option<u64>,
    /// Minimum rate of rebuilds of the volume, in bytes a second.
    pub floor_bytes_per_s: u64,
}

impl Shared {
    /// Returns what the conversion of a side would do, without changing anything. Returns `None` if
    /// the side has the layout already.
    ///
    /// # Errors
    /// One line with the reason why the side cannot be converted.
    pub(super) async fn plan_conversion(
        &self,
        name: &str,
        to: SideKind,
    ) -> Result<Option<Conversion>, String> {
        let volume = self.changeable()?;
        let index = self.side_named(name)?;
        if self.kind_after(volume, index) == Some(to) {
            return Ok(None);
        }
        let layout = self.check_conversion(volume, index, to).await?;
        let side = &self.sides[index];
        let others = || self.healthy_without(index);
        let source = others().find_map(Side::store);
        let copied_bytes_max = match source {
            Some(source) => self.written_bytes_max(&source).await,
            None => self.size_bytes(),
        };
        let mut fastest = None;
        for other in others() {
            fastest = fastest.max(read_rate(&self.rt, &*other.device).await);
        }
        let own = read_rate(&self.rt, &*side.device).await;
        Ok(Some(Conversion {
            from: volume
                .superblock(index)
                .map_or(to, |found| found.layout.kind()),
            to,
            device_bytes: side.device.geometry().size_bytes,
            room_bytes: layout.room_bytes(),
            volume_bytes: self.size_bytes(),
            log_bytes: layout.log.1,
            copied_bytes_max,
            copies_left: others().count(),
            read_bytes_per_s: own.zip(fastest).map(|(own, fastest)| own.min(fastest)),
            floor_bytes_per_s: self.repair.share.rates().floor_bytes_per_s,
        }))
    }

    /// Begins to convert a side: remembers the operation durably, and ejects the side. The volume
    /// then formats the device and rebuilds the side. Succeeds without doing anything if the side
    /// has the layout already, or is being converted to it.
    ///
    /// # Errors
    /// One line with the reason why the side cannot be converted. The side then stays as it is.
    pub(super) async fn convert_side(
        self: &Rc<Self>,
        name: &str,
        to: SideKind,
    ) -> Result<(), String> {
        let _one = self.membership.changing.acquire(1).await;
        let volume = self.changeable()?;
        let index = self.side_named(name)?;
        if self.kind_after(volume, index) == Some(to) {
            return Ok(());
        }
        self.check_conversion(volume, index, to).await?;
        let place = self.place_of_side(index).ok_or("the side is not present")?;
        let before = volume.remembered().converted_to(place);
        let stay = |_why: &String| {
            self.remember(volume, |remembered| {
                remembered.set_converted_to(place, before);
            });
        };
        let convert = self.remember_durably(volume, |remembered| {
            remembered.set_converted_to(place, Some(to));
        });
        convert.await.inspect_err(stay)?;
        self.take_out(place).await.inspect_err(stay)
    }

    /// Returns the layout that a side has, or will have once a remembered conversion is complete.
    fn kind_after(&self, volume: &Volume, index: usize) -> Option<SideKind> {
        let place = self.place_of_side(index);
        let converted = place.and_then(|place| volume.remembered().converted_to(place));
        let found = volume.superblock(index);
        converted.or(found.map(|found| found.layout.kind()))
    }

    /// Returns the layout of a new side, if the configuration does not say it: that of the side at
    /// the place `replaced` of the table, if it replaces that side and its layout is known.
    pub(super) fn kind_in_place_of(&self, volume: &Volume, replaced: Option<usize>) -> SideKind {
        let replaced = replaced.and_then(|place| self.side_at(place));
        let kind = replaced.and_then(|side| self.kind_after(volume, side.index));
        kind.unwrap_or_else(|| volume.kind_of_new_side())
    }

    /// Returns the layouts of the sides that stay in the volume, as the configuration should name
    /// them; `None` if a volume that is formatted with `named` has the same layouts.
    pub(super) fn layouts_to_name(&self, named: &Layouts) -> Option<Layouts> {
        let volume = self.membership.superblocks.as_ref()?;
        let stays = |side: &&Side| {
            let place = self.place_of_side(side.index);
            place.is_some_and(|place| volume.remembered().leaving(place).is_none())
        };
        let staying = self.sides.iter().filter(stays);
        let kinds: Option<Vec<_>> = staying
            .map(|side| Some((side.name.clone(), self.kind_after(volume, side.index)?)))
            .collect();
        let kinds = kinds?;
        let named = |name: &String| named.of(name).unwrap_or(SideKind::OF_NEW_VOLUMES);
        let agree = kinds.iter().all(|(name, kind)| named(name) == *kind);
        (!agree).then(|| Layouts::naming(kinds))
    }

    /// Checks that a side can be converted, and returns the layout that it would get.
    ///
    /// # Errors
    /// One line with the reason, and the figures.
    async fn check_conversion(
        &self,
        volume: &Volume,
        index: usize,
        to: SideKind,
    ) -> Result<SideLayout, String> {
        let side = &self.sides[index];
        let name = &side.name;
        let remembered = volume.remembered();
        let may_be_asked = |place: &usize| {
            // Until the device is formatted, another layout can be asked for.
            side.is_active() || remembered.converted_to(*place).is_some()
        };
        let place = self.place_of_side(index).filter(may_be_asked);
        let place = place.ok_or_else(|| {
            format!("{name} is absent: a side that does not answer cannot be converted")
        })?;
        if remembered.leaving(place).is_some() {
            return Err(format!("{name} is to leave the volume"));
        }
        self.can_do_without(index)?;
        self.is_intact_without(index)?;
        if side.device.geometry().content_offset_bytes.is_some() {
            return Err(format!(
                "{name} is an adopted disk, whose content would be lost: use `side replace` with \
                another device"
            ));
        }
        if to == SideKind::Log && volume.any_superblock().flags.no_checksums {
            return Err(format!(
                "{name}: layout = \"log\" needs checksums, which this volume does not keep"
            ));
        }
        let candidate = Candidate {
            name: name.clone(),
            device: Rc::clone(&side.device),
        };
        let new = self.new_side(side, to);
        let layout = new.check(&candidate, &volume.room(), true).await;
        layout.map_err(|error| error.message)
    }

    /// Returns an error unless another durable side is healthy and has no known damage.
    fn is_intact_without(&self, index: usize) -> Result<(), String> {
        let mut others = self
            .healthy_without(index)
            .filter(|other| other.durable.get());
        let is_intact = |other: &Side| {
            let store = other.store();
            other.out_of_sync.is_empty() && store.is_some_and(|store| !store.is_damaged())
        };
        if others.any(is_intact) {
            return Ok(());
        }
        let name = &self.sides[index].name;
        Err(format!(
            "every other side has blocks or pages of checksums that are known to be damaged, and \
            {name} may have the last copies: scrub the volume, and convert {name} once `status` \
            shows out_of_sync_bytes and checksum_damaged_pages of 0 for another side"
        ))
    }

    fn new_side(&self, side: &Side, kind: SideKind) -> NewSide {
        NewSide {
            asked: Asked {
                kind,
                ..self.config.asked(&side.name, kind)
            },
            not_durable: self.config.ephemeral.contains(&side.name),
        }
    }

    /// Ejects the side at a place of the table, which is to be converted, once another durable side
    /// has everything that it has. The set of sides must not change during the call.
    ///
    /// # Errors
    /// One line with the reason; the side then stays in use.
    pub(super) async fn take_out(self: &Rc<Self>, place: usize) -> Result<(), String> {
        let Some(side) = self.side_at(place).filter(|side| side.is_active()) else {
            return Ok(());
        };
        self.can_do_without(side.index)?;
        let was_durable = side.durable.get();
        self.hand_over(side.index).await?;
        if side.is_active() {
            self.dismiss(side.index, AbsentReason::Converted);
        }
        side.durable.set(was_durable);
        Ok(())
    }

    /// Returns the layout for which the device of an absent side is to be formatted; `None` if the
    /// device is to stay as it is. `found` is the superblock on the device.
    pub(super) fn to_be_formatted(
        &self,
        volume: &Volume,
        index: usize,
        found: &Superblock,
    ) -> Option<SideKind> {
        let place = found.place();
        let (table, remembered) = (volume.table(), volume.remembered());
        let mut others = self.sides.iter().filter(|other| other.index != index);
        let is_taken = others.any(|other| volume.place_of(other.index) == Some(place));
        if found.volume != volume.any_superblock().volume
            || !volume.was_in_epoch_of(found)
            || table[place].is_none()
            || remembered.leaving(place).is_some()
            || is_taken
        {
            return None;
        }
        // Without a request in the volume, formatting was interrupted when it was almost complete.
        let by_itself = found.awaits_formatting().then_some(&found.remembered);
        let by_itself = by_itself.and_then(|remembered| remembered.converted_to(place));
        remembered.converted_to(place).or(by_itself)
    }

    /// Formats the device of an absent side again, for the layout `kind`, and prepares its rebuild.
    /// `before` is the superblock on the device.
    ///
    /// # Errors
    /// When the device cannot be formatted, which a notice reports, or the side was changed by a
    /// command meanwhile. The caller tries again.
    pub(super) async fn format_again(
        self: &Rc<Self>,
        volume: &Volume,
        (index, candidate): (usize, Candidate),
        found: Superblock,
        kind: SideKind,
    ) -> Result<(), IoError> {
        let (side, place) = (&self.sides[index], found.place());
        self.membership
            .changed
            .until(|| self.an_epoch_excludes(volume, index))
            .await;
        let before = match found.awaits_formatting() {
            true => found,
            false => {
                volume.found(index, candidate.clone(), found);
                volume.mark_inconsistent(index, Behind::Everything).await?;
                volume.superblock(index).ok_or(IoError::Offline)?
            }
        };
        if !before.awaits_formatting() {
            return Err(IoError::Offline);
        }
        let listed = volume.entry_of_new_side(Some(place));
        let (_, listed) = listed.map_err(|_full| IoError::Offline)?;
        let mut template = volume.any_superblock();
        template.history = volume.history();
        template.table[place] = Some(listed);
        template.remembered.set_converted_to(place, Some(kind));
        let new = self.new_side(side, kind);
        let made = make_side_over(&self.rt, &candidate, &before, &template, new).await;
        let made = made.map_err(|why| self.cannot_be_formatted(side, &why))?;
        let begun = self.begin_made(&candidate, &made).await;
        let begun = begun.map_err(|why| self.cannot_be_formatted(side, &OpenError::new(why)))?;

        let one = pin!(self.membership.changing.acquire(1));
        let removed = pin!(side.changed.until(|| side.life.is_removed()));
        let Either::Left((_one, _)) = select(one, removed).await else {
            return Err(IoError::Offline);
        };
        if self.to_be_formatted(volume, index, &made) != Some(kind) || side.life.is_removed() {
            return Err(IoError::Offline);
        }
        volume.enter(place, listed);
        volume.remember(|remembered| remembered.set_converted_to(place, None));
        volume.found(index, candidate, made);
        let announced = self.announce_table(volume).await;
        announced.map_err(|_not_written| IoError::Offline)?;
        // From now on, the superblock of the new side no longer says that its areas are void.
        volume.mark_inconsistent(index, Behind::Everything).await?;
        let store = begun.for_a_side();
        store.set_epoch(volume.epoch());
        side.note_lack(0..self.size_bytes());
        side.replace_store(store);
        self.note_logs();
        Ok(())
    }

    /// Returns true when a healthy side durably has the current epoch, of which the side at this
    /// index is no member.
    fn an_epoch_excludes(&self, volume: &Volume, index: usize) -> bool {
        let mut healthy = self.healthy().into_iter();
        healthy.any(|other| other != index && volume.has_current_epoch(other))
    }

    /// Reports that a device cannot be formatted for another layout.
    fn cannot_be_formatted(&self, side: &Side, why: &OpenError) -> IoError {
        let words = format!(
            "{}; the volume tries again every second: change the configuration or the device, or \
            remove or replace the side",
            why.message
        );
        let subject = format!("side {}", side.name);
        self.rt.notices().post(&subject, "side-unformatted", words);
        IoError::Medium
    }

    /// Returns an upper bound of the number of bytes of the volume that were ever written,
    /// according to one side.
    async fn written_bytes_max(&self, store: &Store) -> u64 {
        let (end, mut position, mut written) = (self.size_bytes(), 0, 0);
        loop {
            give_way().await;
            position = store.first_touched(&(position..end));
            if position >= end {
                return written;
            }
            let len = COUNTED_BYTES.min(end - position);
            written += len;
            position += len;
        }
    }
}

/// Measures the rate in bytes a second at which a device is read sequentially, in its middle.
/// Returns `None` if it cannot be read, or does not answer.
async fn read_rate(rt: &Rt, device: &dyn Device) -> Option<u64> {
    let geometry = device.geometry();
    let len = MEASURED_BYTES.min(u64::from(geometry.transfer_bytes_max));
    let start = geometry.size_bytes / 2 / MEASURED_BYTES * MEASURED_BYTES;
    let count = ((geometry.size_bytes - start) / len).min(MEASURED_BYTES_MAX / len);
    let began = rt.now();
    let reads = (0..count)
        .take_while(|_| rt.now().since(began) < MEASURED_FOR)
        .map(|number| device.submit(Request::read(start + number * len, len)));
    let reads = stream::iter(reads).buffered(MEASURED_IN_FLIGHT);
    let read_bytes = reads.try_fold(0, async |sum, _data| Ok(sum + len));
    let read_bytes = rt.timeout(ANSWERS_WITHIN, read_bytes).await;
    let read_bytes = read_bytes.ok()?.ok().filter(|bytes| *bytes > 0)?;
    let ns = rt.now().ns_since(began).max(1);
    let rate = u128::from(read_bytes) * 1_000_000_000 / u128::from(ns);
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}
