//! Opening a formatted volume, after a clean stop or any crash: examines the sides, decides which
//! sides make up the volume, and gives these sides the same content.
//!
//! No request is served before each of these sides durably has every valid change, so that the
//! first answer to a read is final (T4). Each step leaves a state that can be opened again. If a
//! side fails in a step, the decision is repeated without that side.

mod counting;
mod elsewhere;
mod equalising;
mod giving;
mod lacking;
mod side_store;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::{Instant, Rt};
use futures_util::future::join_all;

pub use self::elsewhere::{holds_side, sides_elsewhere};
use self::equalising::takes;
use self::lacking::{lacked, most_complete, newest_of};
pub(super) use self::lacking::{lacking, newest_among};
pub(super) use self::side_store::{damaged_words, store_alone, store_device};
use super::capacity::Capacity;
use super::config::MirrorConfig;
use super::device_path::DevicePath;
use super::family::{self, Absence, Behind, Force, Plan, Seen};
use super::formatting::{NewSide, make_side};
use super::lifecycle::Life;
use super::store::{Store, Superseded};
use super::superblock::{
    Candidate, Epoch, NotSeen, Remembered, SideState, Superblock, Table, Uuid, place_in,
};
use super::volume::Volume;
use crate::device::Device;
use crate::error::{IoError, OpenError};
use crate::range_set::RangeSet;

/// Options that the operator gives for an opening.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// How to force the opening if a side that might be ahead is missing. With `None`, the opening
    /// is never forced.
    pub force: Option<Force>,
    /// Names of the sides to discard, whatever their state. They are rebuilt completely from the
    /// other sides.
    pub rebuild: Vec<String>,
    /// Callback for the progress of an opening that takes long, called at most every two seconds.
    pub progress: Option<fn(&OpeningProgress)>,
}

/// A step of an opening that may take long on a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpeningStep {
    /// Reading the log of the side, to find its end.
    ReadingLog,
    /// Writing the changes that the side lacks to its log.
    Giving,
    /// Reading the map of a logged side without which the volume cannot be had.
    ReadingMap,
    /// Searching the segments of a logged side for blocks whose places are lost, because pages of
    /// its map are damaged.
    RestoringMap,
}

/// Progress of the opening on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpeningProgress {
    /// The name of the side.
    pub side: String,
    /// The current step.
    pub step: OpeningStep,
    /// Number of bytes processed in this step.
    pub done_bytes: u64,
    /// Total number of bytes of this step; an upper bound while the log is read.
    pub bytes_max: u64,
}

/// A side that the configuration names.
pub struct SideToOpen {
    /// The name of the side.
    pub name: String,
    /// The device of the side, or the reason why the device could not be opened.
    pub device: Result<Rc<dyn Device>, OpenError>,
}

/// A volume that is ready to be served.
pub(super) struct Opened {
    pub(super) volume: Volume,
    pub(super) sides: Vec<OpenedSide>,
    pub(super) volume_bytes: u64,
    /// Sequence number of the next change.
    pub(super) next_number: u64,
    /// Room for content of the volume.
    pub(super) capacity: Capacity,
    /// Whether the volume was opened read-only, for inspection.
    pub(super) read_only: bool,
}

/// A side of an opened volume.
pub(super) struct OpenedSide {
    pub(super) name: String,
    /// Path to the device; `None` if the device could not be opened.
    pub(super) device_path: Option<Rc<DevicePath>>,
    pub(super) store: Option<Rc<Store>>,
    pub(super) life: Life,
    pub(super) out_of_sync: RangeSet,
    pub(super) durable: bool,
}

/// Findings about a side that was examined, with its store if the side can be used.
struct Inspected {
    seen: Seen,
    store: Option<Rc<Store>>,
}

/// A volume that was made of the examined sides.
struct Made {
    volume: Volume,
    volume_bytes: u64,
    next_number: u64,
    /// Ranges that each side lacks, and (in `lives`) the life-cycle state of each side. Both lists
    /// are indexed by side.
    out_of_sync: Vec<RangeSet>,
    lives: Vec<Life>,
    capacity: Capacity,
    read_only: bool,
}

/// Reason why one attempt to open the volume has failed.
enum Setback {
    /// A side has failed. The opening is attempted again without this side.
    Side(usize, IoError),
    /// The volume must not be opened.
    Refused(OpenError),
}

/// Opens a volume. If a side fails, attempts the opening again without that side.
///
/// # Errors
/// If the volume must not be opened, or no side can be used. The message describes the findings and
/// the possible remedies.
pub(super) async fn open(
    rt: &Rt,
    config: &MirrorConfig,
    sides: Vec<SideToOpen>,
    options: &OpenOptions,
) -> Result<Opened, OpenError> {
    let opening = Rc::new(Cell::new(true));
    let device_path = |side: SideToOpen| SideByWay {
        name: side.name,
        device_path: side
            .device
            .map(|below| DevicePath::new(rt, below, &opening)),
    };
    let sides: Vec<SideByWay> = sides.into_iter().map(device_path).collect();
    let mut attempt = Attempt {
        rt,
        config,
        options,
        failed: vec![None; sides.len()],
        begun: RefCell::default(),
        acknowledged_at: Cell::new(rt.now()),
        sides,
    };
    loop {
        match attempt.run().await {
            Ok(opened) => {
                opening.set(false);
                return Ok(opened);
            }
            Err(Setback::Refused(error)) => return Err(error),
            Err(Setback::Side(side, error)) => {
                assert!(attempt.failed[side].is_none(), "a side is left out once");
                attempt.failed[side] = Some(error);
            }
        }
    }
}

/// A configured side, with the path to its device or the error of opening the device.
struct SideByWay {
    name: String,
    device_path: Result<Rc<DevicePath>, OpenError>,
}

impl SideByWay {
    fn device(&self) -> Option<Rc<dyn Device>> {
        let device_path = self.device_path.as_ref().ok()?;
        Some(Rc::clone(device_path) as Rc<dyn Device>)
    }
}

struct Attempt<'a> {
    rt: &'a Rt,
    config: &'a MirrorConfig,
    options: &'a OpenOptions,
    sides: Vec<SideByWay>,
    /// Error of each side that has failed in an earlier attempt.
    failed: Vec<Option<IoError>>,
    /// Epochs that earlier attempts have begun. A side that failed in such an attempt might have
    /// the epoch, so the epoch must be in the history of the other sides.
    begun: RefCell<Vec<Begun>>,
    /// Time of the last progress report.
    acknowledged_at: Cell<Instant>,
}

/// An epoch that an attempt to open has begun.
struct Begun {
    /// Identifier of the epoch before this one.
    before: Uuid,
    epoch: Epoch,
    /// The table of sides as it was when the epoch began. A side that has failed since then is
    /// still in it.
    table: Table,
}

impl Attempt<'_> {
    async fn run(&self) -> Result<Opened, Setback> {
        let looks = (0..self.sides.len()).map(|index| self.inspect(index));
        let mut inspected: Vec<Inspected> = join_all(looks).await;
        match self.make_one(&mut inspected).await {
            Ok(made) => Ok(self.opened(inspected, made)),
            Err(setback) => {
                // All work in progress must have ended before the next attempt uses the sides.
                for store in inspected.iter().filter_map(|side| side.store.as_ref()) {
                    store.end().await;
                }
                Err(setback)
            }
        }
    }

    /// Decides which of the examined sides make up the volume, and gives them the same content.
    async fn make_one(&self, inspected: &mut [Inspected]) -> Result<Made, Setback> {
        let seen: Vec<Seen> = inspected.iter().map(|side| side.seen.clone()).collect();
        let mut plan = family::decide(&seen, &self.options.rebuild, self.options.force)
            .map_err(|refusal| Setback::Refused(self.refused(inspected, &refusal)))?;
        if let Some(first) = plan.counts_below {
            self.stores(inspected, &plan)
                .for_each(|s| s.forget_from(first));
        }
        for &index in &plan.sources {
            self.fit(inspected, index, plan.volume_bytes)?;
        }
        self.cut_to_fit(inspected, &mut plan);
        let next_number = self.next_number(inspected, &plan);
        if plan.forced == Some(Force::ReadOnly) {
            return self.read_only(inspected, &plan, next_number);
        }
        let out_of_sync = inspected.iter().map(|_| RangeSet::new()).collect();
        let lacking = self.weigh(inspected, &mut plan).await?;
        let mut made = Made {
            volume: self.volume(inspected, &plan)?,
            volume_bytes: plan.volume_bytes,
            next_number,
            out_of_sync,
            lives: self.lives(&plan),
            capacity: Capacity::default(),
            read_only: false,
        };
        self.make_equal(inspected, &plan, lacking, &mut made)
            .await?;
        self.mark_sources(&made.volume, &plan, next_number).await?;
        made.capacity = self.capacity(inspected, &plan).await?;
        self.begin_rebuilds(inspected, &plan, &mut made).await;
        Ok(made)
    }

    /// Applies the size of the volume to a side. The superblock of the side might still have an
    /// older, smaller size.
    fn fit(&self, inspected: &[Inspected], index: usize, volume_bytes: u64) -> Result<(), Setback> {
        let device = self.sides[index].device();
        let device_bytes = device.map_or(0, |device| device.geometry().size_bytes);
        let superblock = superblock_of(inspected, index);
        let reaching = superblock.reaching(volume_bytes, device_bytes);
        reaching.map_err(|error| Setback::Side(index, error))?;
        store_of(inspected, index).grow(volume_bytes);
        Ok(())
    }

    /// Returns the life-cycle state of each side: healthy for a source, removed for a side that has
    /// left the volume, absent for every other side.
    fn lives(&self, plan: &Plan) -> Vec<Life> {
        let life = |index| {
            if plan.sources.contains(&index) {
                Life::WHOLE
            } else if plan.gone.contains(&index) {
                Life::Removed
            } else {
                Life::MISSING
            }
        };
        (0..self.sides.len()).map(life).collect()
    }

    /// Prepares the sides that are to be rebuilt. A side that cannot be prepared stays absent.
    async fn begin_rebuilds(&self, inspected: &mut [Inspected], plan: &Plan, made: &mut Made) {
        for (index, behind) in &plan.behind {
            store_of(inspected, *index).set_epoch(made.volume.epoch());
            let lacks = self.lacks(inspected, plan, *index, *behind);
            let begun = self.begin_rebuild(inspected, &made.volume, *index, *behind, &lacks);
            if begun.await.is_ok() {
                made.out_of_sync[*index] = lacks;
                made.lives[*index] = Life::Resyncing;
            } else {
                // Make the volume forget the superblock of this side. If the side came back later
                // with this superblock, it would be unknown which changes of the side must be
                // discarded.
                made.volume.forget(*index);
            }
        }
        for (index, place) in plan.made.clone() {
            let begun = self.make(inspected, plan, &made.volume, index, place);
            if begun.await.is_ok() {
                made.out_of_sync[index].insert(0..made.volume_bytes);
                made.lives[index] = Life::Resyncing;
            }
        }
    }

    /// Formats a new side on a device that holds no side of the volume. The tables of the other
    /// sides already list the new side at `place`.
    async fn make(
        &self,
        inspected: &mut [Inspected],
        plan: &Plan,
        volume: &Volume,
        index: usize,
        place: usize,
    ) -> Result<(), OpenError> {
        let side = &self.sides[index];
        let device_path = side.device_path.as_ref().map_err(Clone::clone)?;
        let device = &(Rc::clone(device_path) as Rc<dyn Device>);
        let candidate = Candidate {
            name: side.name.clone(),
            device: Rc::clone(device),
        };
        let mut template = superblock_of(inspected, plan.sources[0]).clone();
        template.table = volume.table();
        template.volume_bytes = plan.volume_bytes;
        let new = NewSide {
            asked: self.config.asked(&side.name, volume.kind_of_new_side()),
            not_durable: !inspected[index].seen.durable,
        };
        let made = make_side(self.rt, &candidate, &template, place, new).await?;
        let on = store_device(device, &made, self.config);
        let failed = |error: IoError| candidate.error(&error.to_string());
        let store = Store::begin_new(self.rt, &on).await.map_err(failed)?;
        inspected[index].store = Some(store);
        inspected[index].seen.found = Ok(made.clone());
        volume.found(index, candidate, made);
        Ok(())
    }

    /// Returns the result of an operation on a side. An error becomes [`Setback::Side`], so that
    /// the opening is attempted again without this side.
    async fn on_side<T>(
        &self,
        index: usize,
        future: impl Future<Output = Result<T, IoError>>,
    ) -> Result<T, Setback> {
        future.await.map_err(|error| Setback::Side(index, error))
    }

    async fn inspect(&self, index: usize) -> Inspected {
        let side = &self.sides[index];
        let durable = !self.config.ephemeral.contains(&side.name);
        let absent = |why: Absence| Inspected {
            seen: Seen {
                durable,
                ..Seen::of(&side.name, Err(why))
            },
            store: None,
        };
        let device = match (side.device(), self.failed[index]) {
            (_, Some(error)) => return absent(Absence::Unreadable(error.to_string())),
            (None, None) => return absent(Absence::Missing),
            (Some(device), None) => device,
        };
        let candidate = Candidate {
            name: side.name.clone(),
            device: Rc::clone(&device),
        };
        let superblock = match candidate.inspect().await {
            Err(NotSeen::Damaged(why)) => return absent(Absence::Damaged(why)),
            Err(NotSeen::Unreadable(why)) => return absent(Absence::Unreadable(why)),
            Ok(None) => return absent(Absence::NoVolume),
            Ok(Some(superblock)) => superblock,
        };
        let on = store_device(&device, &superblock, self.config);
        let log_bytes = superblock.layout.log.1;
        let acknowledged =
            |read_bytes| self.tell(index, OpeningStep::ReadingLog, read_bytes, log_bytes);
        let store = match Store::open_telling(self.rt, &on, &acknowledged).await {
            Ok(store) => store,
            // The volume formats the device again once it is open.
            Err(IoError::Corrupt) if superblock.awaits_formatting() => {
                return Inspected {
                    seen: Seen {
                        durable,
                        unformatted: true,
                        ..Seen::of(&side.name, Ok(superblock))
                    },
                    store: None,
                };
            }
            Err(IoError::Corrupt) => {
                return absent(Absence::Damaged(damaged_words(&superblock).to_owned()));
            }
            Err(error) => return absent(Absence::Unreadable(error.to_string())),
        };
        let found = store.found();
        // The side once recorded a sequence number below which it has every change. If its log now
        // ends before that number, the log has lost entries. A side that is being rebuilt is not
        // checked, because its superblock records no such number.
        let said_below = found.shared_below.max(superblock.complete_below);
        let lost = found.complete_below < said_below && superblock.state != SideState::Inconsistent;
        Inspected {
            seen: Seen {
                complete_below: found.complete_below,
                shared_below: found.shared_below,
                unmarked_below: found.shared_below,
                written_s: found.written_s.unwrap_or(0),
                damaged: found.damaged || lost,
                durable,
                ..Seen::of(&side.name, Ok(superblock))
            },
            store: Some(store),
        }
    }

    /// Returns the error for a refused opening. The message lists the ranges in which changes might
    /// be lost, as far as they are known.
    fn refused(&self, inspected: &[Inspected], refusal: &family::Refusal) -> OpenError {
        let mut message = self.full_in_words().unwrap_or_else(|| refusal.to_string());
        let no_volume = matches!(refusal, family::Refusal::NotAVolume { .. });
        for side in inspected.iter().filter(|side| !no_volume && is_blank(side)) {
            message.push_str(&format!("; {}", blank_in_words(&side.seen.name)));
        }
        for side in inspected.iter().filter(|side| side.seen.damaged) {
            message.push_str(&format!(
                "; the log of {} has lost durable entries",
                side.seen.name
            ));
        }
        for (side, failed) in self.sides.iter().zip(&self.failed) {
            match (&side.device_path, failed) {
                (Err(error), _) => {
                    message.push_str(&format!("\n  {}: {}", side.name, error.message))
                }
                (Ok(_), Some(error)) => message.push_str(&format!("\n  {}: {error}", side.name)),
                (Ok(_), None) => {}
            }
        }
        let lost = lost_ranges(inspected, refusal);
        if !lost.is_empty() {
            message.push_str("\nranges that may be lost, as OFFSET+LENGTH in bytes:");
        }
        for range in lost {
            message.push_str(&format!("\n  {}+{}", range.start, range.end - range.start));
        }
        OpenError::new(message)
    }

    /// Returns advice about sides whose devices have no space left; `None` if there are no such
    /// sides. The operator should free space instead of opening the volume without these sides.
    fn full_in_words(&self) -> Option<String> {
        let failed = self.sides.iter().zip(&self.failed);
        let full = failed.filter(|(_, failed)| **failed == Some(IoError::NoSpace));
        let full: Vec<&str> = full.map(|(side, _)| side.name.as_str()).collect();
        (!full.is_empty()).then(|| {
            format!(
                "side {}: no space is left below its device (ENOSPC), and opening the volume needs \
                some; free space there and start again: no data is lost, and no forced opening is \
                needed",
                full.join(", side ")
            )
        })
    }

    fn stores<'l>(
        &self,
        inspected: &'l [Inspected],
        plan: &'l Plan,
    ) -> impl Iterator<Item = &'l Rc<Store>> {
        plan.sources.iter().map(|&index| store_of(inspected, index))
    }

    /// Returns the sequence number of the next change: the first number above all valid changes.
    fn next_number(&self, inspected: &[Inspected], plan: &Plan) -> u64 {
        if let Some(first) = plan.counts_below {
            return first.max(super::superblock::FIRST_CHANGE);
        }
        let seen = plan.sources.iter().map(|&index| {
            let superblock = superblock_of(inspected, index);
            let found = store_of(inspected, index).found();
            found.next_number.max(superblock.complete_below)
        });
        // A discarded history might have used higher sequence numbers. The new epoch can use these
        // numbers again, because the discarded changes are recognized by their epoch.
        seen.max().expect("a plan has a source")
    }

    /// Discards the changes above the first gap in the sequence numbers if they do not fit into the
    /// log of the most complete side. Sides stored these changes out of order; none of them was
    /// destaged or flushed.
    fn cut_to_fit(&self, inspected: &[Inspected], plan: &mut Plan) {
        let truth = most_complete(inspected, &plan.sources);
        if !takes(
            inspected,
            truth,
            &lacked(inspected, &plan.sources, truth, &RangeSet::new()),
        ) {
            let complete = store_of(inspected, truth).complete();
            plan.counts_below = Some(complete);
            self.stores(inspected, plan)
                .for_each(|store| store.forget_from(complete));
        }
    }

    fn volume(&self, inspected: &[Inspected], plan: &Plan) -> Result<Volume, Setback> {
        let sides = self.sides.iter().zip(inspected).map(|(side, inspected)| {
            let superblock = inspected.seen.found.as_ref().ok()?;
            // A side that the table does not list has left the volume, or is to be formatted again.
            // So its superblock is not used.
            place_in(&plan.table, &superblock.side)?;
            let candidate = Candidate {
                name: side.name.clone(),
                device: side.device()?,
            };
            Some((candidate, superblock.clone()))
        });
        let (mut history, mut table) = (plan.newest.clone(), plan.table);
        for begun in self.begun.borrow().iter() {
            if history.current().id == begun.before {
                history.push(begun.epoch);
                for listed in table.iter_mut().flatten() {
                    let known = place_in(&begun.table, &listed.side);
                    let known = known.and_then(|place| begun.table[place]);
                    *listed = known.unwrap_or(*listed);
                }
            }
        }
        let tables = (table, self.remembered(inspected, plan));
        let volume = Volume::new(self.rt, sides.collect(), history, tables, plan.volume_bytes);
        let volume = volume.map_err(Setback::Refused)?;
        plan.made.iter().for_each(|(_, place)| volume.list(*place));
        Ok(volume)
    }

    /// Returns the unfinished operations of the opened volume. If the configuration names a side
    /// that was recorded as added by a command, this record is removed. Once the configuration
    /// names exactly the sides of the volume, the record of sides that have left is deleted.
    fn remembered(&self, inspected: &[Inspected], plan: &Plan) -> Remembered {
        let mut remembered = plan.remembered.within(&plan.table);
        let mut agree = self.sides.len() == self.config.sides.len();
        for (side, inspected) in self.sides.iter().zip(inspected) {
            let found = inspected.seen.found.as_ref().ok();
            let place = found.and_then(|found| place_in(&plan.table, &found.side));
            agree &= place.is_some();
            if let Some(place) = place.filter(|_| self.config.sides.contains(&side.name)) {
                remembered.set_added(place, false);
            }
        }
        if agree {
            remembered.forget_left();
        }
        remembered
    }

    /// Begins an epoch, and durably marks every source as dirty and a member of the epoch, before
    /// any request is served.
    async fn mark_sources(
        &self,
        volume: &Volume,
        plan: &Plan,
        next_number: u64,
    ) -> Result<(), Setback> {
        let before = volume.history().current().id;
        volume.begin_epoch(&plan.sources, next_number);
        self.begun.borrow_mut().push(Begun {
            before,
            epoch: *volume.history().current(),
            table: volume.table(),
        });
        for &index in &plan.sources {
            let mark = volume.mark_one(index, SideState::Dirty, 0);
            self.on_side(index, mark).await?;
        }
        Ok(())
    }

    /// Returns the ranges that a side might lack. `behind` tells how far the side is behind the
    /// sources.
    fn lacks(
        &self,
        inspected: &[Inspected],
        plan: &Plan,
        index: usize,
        behind: Behind,
    ) -> RangeSet {
        let volume_bytes = plan.volume_bytes;
        let mut lacks = RangeSet::for_volume(volume_bytes);
        let Behind::Since {
            epoch,
            discard_from,
        } = behind
        else {
            lacks.insert(0..volume_bytes);
            return lacks;
        };
        let own = store_of(inspected, index);
        let discarded = own.discard_from(discard_from, epoch);
        // The side may have lacked changes while it was still a member. So the search starts at the
        // epoch in which the side was left out, or at the epoch of the first change that it lacks,
        // whichever is earlier.
        let epoch = epoch.min(plan.newest.epoch_of(own.complete()));
        let regions = self
            .stores(inspected, plan)
            .flat_map(|s| s.out_of_sync_since(epoch));
        let complete = own.complete().min(discard_from);
        let newest = newest_of(inspected, &plan.sources);
        let logged = lacking(own, &newest, complete).into_iter();
        let logged = logged.map(|(range, _)| range);
        lacks.extend(regions.chain(logged).chain(discarded));
        // The volume might have been larger in a discarded history. Ranges beyond the present end
        // of the volume are removed.
        lacks.remove(volume_bytes..u64::MAX);
        lacks
    }

    /// Prepares a side to be rebuilt. The side is marked as being rebuilt before anything else on
    /// it is changed.
    async fn begin_rebuild(
        &self,
        inspected: &[Inspected],
        volume: &Volume,
        index: usize,
        behind: Behind,
        lacks: &RangeSet,
    ) -> Result<(), Setback> {
        let store = store_of(inspected, index);
        self.fit(inspected, index, volume.volume_bytes())?;
        let member_until = match behind {
            Behind::Everything => None,
            Behind::Since { epoch, .. } => Some(epoch),
        };
        let mark = volume.mark_inconsistent(index, behind);
        self.on_side(index, mark).await?;
        // An interrupted rebuild might have written content directly to home locations. The side is
        // again recorded as lacking the regions of that content.
        let superseded = Superseded::default();
        let begun = store.begin_rebuilt(member_until, lacks, &superseded);
        self.on_side(index, begun).await
    }

    fn read_only(
        &self,
        inspected: &[Inspected],
        plan: &Plan,
        next_number: u64,
    ) -> Result<Made, Setback> {
        Ok(Made {
            volume: self.volume(inspected, plan)?,
            volume_bytes: plan.volume_bytes,
            next_number,
            out_of_sync: inspected.iter().map(|_| RangeSet::new()).collect(),
            lives: self.lives(plan),
            capacity: Capacity::default(),
            read_only: true,
        })
    }

    fn opened(&self, inspected: Vec<Inspected>, made: Made) -> Opened {
        let blank = inspected.iter().filter(|side| is_blank(side));
        for side in blank {
            let name = &side.seen.name;
            let words = blank_in_words(name);
            self.rt
                .notices()
                .post(&format!("side {name}"), "side-blank", words);
        }
        let table = made.volume.table();
        for (side, life) in inspected.iter().zip(&made.lives) {
            let found = side.seen.found.as_ref().ok();
            let is_unlisted = found.is_some_and(|found| {
                place_in(&table, &found.side).is_none() && !found.awaits_formatting()
            });
            if is_unlisted && *life == Life::MISSING {
                let name = &side.seen.name;
                let words = unlisted_in_words(name);
                self.rt
                    .notices()
                    .post(&format!("side {name}"), "side-unlisted", words);
            }
        }
        let sides = inspected.into_iter().zip(made.out_of_sync).zip(made.lives);
        let sides = sides
            .enumerate()
            .map(|(index, ((inspected, out_of_sync), life))| OpenedSide {
                name: self.sides[index].name.clone(),
                store: inspected.store.filter(|_| life.is_used()),
                durable: inspected.seen.durable,
                device_path: self.sides[index].device_path.as_ref().ok().cloned(),
                life,
                out_of_sync,
            });
        Opened {
            sides: sides.collect(),
            volume: made.volume,
            volume_bytes: made.volume_bytes,
            next_number: made.next_number,
            capacity: made.capacity,
            read_only: made.read_only,
        }
    }
}

/// Returns true if the device of a side was read and holds no side of any volume.
fn is_blank(side: &Inspected) -> bool {
    side.seen.found == Err(Absence::NoVolume)
}

fn blank_in_words(name: &str) -> String {
    format!(
        "the device of {name} holds no side of a volume; if it is a new disk in the place of a \
        side, rebuild that side with `bimetal serve FILE --rebuild {name}`"
    )
}

fn unlisted_in_words(name: &str) -> String {
    format!(
        "the device of {name} holds a side that was removed from the volume: `bimetal serve FILE \
        --rebuild {name}` adds it again; otherwise remove \"{name}\" from `sides`"
    )
}

fn store_of(inspected: &[Inspected], index: usize) -> &Rc<Store> {
    let store = inspected[index].store.as_ref();
    store.expect("a side with a superblock has a store")
}

fn superblock_of(inspected: &[Inspected], index: usize) -> &Superblock {
    let found = inspected[index].seen.found.as_ref();
    found.expect("a side that is used has a superblock")
}

/// Returns the ranges in which changes might be lost if the volume is opened in spite of the
/// refusal.
fn lost_ranges(inspected: &[Inspected], refusal: &family::Refusal) -> Vec<Range<u64>> {
    let mut lost = RangeSet::new();
    match refusal {
        // The missing side can hold newer content of any block, so the whole volume is returned.
        family::Refusal::FreshestMissing { .. } => {
            let known = inspected
                .iter()
                .filter_map(|side| side.seen.found.as_ref().ok());
            if let Some(volume_bytes) = known.map(|found| found.volume_bytes).max() {
                lost.insert(0..volume_bytes);
            }
        }
        family::Refusal::SplitBrain { splits } => {
            for split in splits {
                let since = split.since_epoch.unwrap_or(0);
                let both = inspected
                    .iter()
                    .filter(|side| split.sides.contains(&side.seen.name));
                for store in both.filter_map(|side| side.store.as_ref()) {
                    let logged = store.changes_from(0).into_iter().map(|(range, _)| range);
                    lost.extend(store.out_of_sync_since(since).into_iter().chain(logged));
                }
            }
        }
        _ => {}
    }
    lost.iter().collect()
}
