//! Operations that a volume resumes without a request: the removal and the conversion of sides, and
//! an interrupted scrub.
//!
//! The superblocks record the operations, so they survive any stop or crash. A side must never be
//! removed or converted before another side has all its content, and a cancelled scrub must never
//! be resumed.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;

use super::lifecycle::Life;
use super::shared::Shared;
use super::side::Side;
use super::superblock::{Leaving, ScrubRecord};
use super::volume::Volume;

/// Delay before the removal of a side is retried.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// An operation that is not finished yet. It was requested by an operator or started by the volume
/// itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationStatus {
    /// `replace`, `add`, `remove`, `convert`, `rebuild` or `scrub`.
    pub kind: &'static str,
    /// Side that is removed, replaced, added, converted or rebuilt; `None` for a scrub.
    pub side: Option<String>,
    /// Side that replaces `side`; only for `replace`.
    pub new: Option<String>,
}

impl OperationStatus {
    fn of(kind: &'static str, side: &str) -> OperationStatus {
        OperationStatus {
            kind,
            side: Some(side.to_owned()),
            new: None,
        }
    }

    /// Returns a description of the operation for a person.
    pub fn words(&self) -> String {
        match (&self.side, &self.new) {
            (Some(side), Some(new)) => format!("{} {side} by {new}", self.kind),
            (Some(side), None) => format!("{} {side}", self.kind),
            (None, _) => self.kind.to_owned(),
        }
    }
}

impl Shared {
    /// Removes each side that is to leave the volume, and ejects each side that is to be converted,
    /// as soon as this is allowed. Runs until the volume is closed.
    pub(super) async fn carry_on(self: Rc<Self>) {
        loop {
            self.membership
                .changed
                .until(|| self.place_due().is_some())
                .await;
            let left = self.leave_one().await;
            if left.is_err() {
                // Before the retry, another side may become complete, or the volume may become
                // writable again.
                self.rt.sleep(AGAIN_AFTER).await;
            }
        }
    }

    async fn leave_one(self: &Rc<Self>) -> Result<(), String> {
        let _one = self.membership.changing.acquire(1).await;
        let volume = self.changeable()?;
        match self.place_due() {
            Some(place) if volume.remembered().converted_to(place).is_some() => {
                self.take_out(place).await
            }
            Some(place) => self.leave(volume, place).await,
            None => Ok(()),
        }
    }

    /// Returns the place of a listed side that is to leave and whose removal is allowed now, or of
    /// a side that is to be converted and still in use.
    fn place_due(&self) -> Option<usize> {
        let volume = self.membership.superblocks.as_ref()?;
        let remembered = volume.remembered();
        let table = volume.table();
        let may_leave = |place: &usize| match remembered.leaving(*place) {
            None => {
                let side = self.side_at(*place).filter(|side| side.is_active());
                side.is_some() && remembered.converted_to(*place).is_some()
            }
            Some(Leaving::Now) => true,
            Some(Leaving::OnceComplete(new)) => {
                let new = self.side_at(new);
                new.is_some_and(Side::is_healthy)
            }
        };
        let mut listed = (0..table.len()).filter(|place| table[*place].is_some());
        listed.find(may_leave)
    }

    /// Returns the side at a place of the table; `None` if no side is known to be at this place.
    pub(super) fn side_at(&self, place: usize) -> Option<&Side> {
        let mut sides = self.sides.iter();
        sides.find(|side| self.place_of_side(side.index) == Some(place))
    }

    /// Returns the place of a side in the table. For a side whose superblock was not found, the
    /// place is derived from its name, or by elimination if only one place is possible.
    pub(super) fn place_of_side(&self, index: usize) -> Option<usize> {
        let volume = self.membership.superblocks.as_ref()?;
        if let Some(place) = volume.place_of(index) {
            return Some(place);
        }
        let mut unfound = volume.unfound();
        let name = &self.sides[index].name;
        if let Some((place, _)) = unfound.iter().find(|(_, short)| short == name) {
            return Some(*place);
        }
        let is_named = |short: &String| self.sides.iter().any(|side| side.name == *short);
        unfound.retain(|(_, short)| !is_named(short));
        let shorts: Vec<String> = volume.unfound().into_iter().map(|(_, s)| s).collect();
        let unknown =
            |side: &&Side| volume.place_of(side.index).is_none() && !shorts.contains(&side.name);
        let unknown = self.sides.iter().filter(unknown).count();
        match unfound[..] {
            [(place, _)] if unknown == 1 => Some(place),
            _ => None,
        }
    }

    /// Returns true when the superblock of every healthy side durably has the volume's present
    /// record of unfinished operations.
    pub(super) fn has_remembered(&self, volume: &Volume) -> bool {
        let mut healthy = self.healthy().into_iter();
        healthy.all(|index| volume.has_remembered(index))
    }

    /// Records the progress of a scrub. The sides get the record with their next superblock write.
    pub(super) fn note_scrub(&self, record: Option<ScrubRecord>) {
        if let Some(volume) = &self.membership.superblocks {
            volume.remember(|remembered| remembered.scrub = record);
        }
    }

    /// Records the progress of a scrub, and starts writing the record to the sides.
    pub(super) fn remember_scrub(self: &Rc<Self>, record: Option<ScrubRecord>) {
        if let Some(volume) = &self.membership.superblocks {
            self.remember(volume, |remembered| remembered.scrub = record);
        }
    }

    /// Returns the unfinished operations of the volume, which it resumes after a stop.
    pub(super) fn operations(&self) -> Vec<OperationStatus> {
        let Some(volume) = &self.membership.superblocks else {
            return Vec::new();
        };
        let remembered = volume.remembered();
        let mut operations = Vec::new();
        let mut coming = BTreeSet::new();
        for side in self.sides.iter() {
            let place = self.place_of_side(side.index);
            let Some(leaving) = place.and_then(|place| remembered.leaving(place)) else {
                continue;
            };
            let new = match leaving {
                Leaving::Now => None,
                Leaving::OnceComplete(place) => self.side_at(place),
            };
            operations.push(match new {
                None => OperationStatus::of("remove", &side.name),
                Some(new) => OperationStatus {
                    new: Some(new.name.clone()),
                    ..OperationStatus::of("replace", &side.name)
                },
            });
            coming.extend(new.map(|new| new.index));
        }
        for side in self.sides.iter() {
            let place = self.place_of_side(side.index);
            if place.is_some_and(|place| remembered.converted_to(place).is_some()) {
                operations.push(OperationStatus::of("convert", &side.name));
                coming.insert(side.index);
            }
        }
        for side in self.sides.iter() {
            if side.is_healthy() || coming.contains(&side.index) {
                continue;
            }
            let place = self.place_of_side(side.index);
            let is_new = place.is_some_and(|place| remembered.is_added(place));
            if is_new {
                operations.push(OperationStatus::of("add", &side.name));
            } else if side.is_active() {
                operations.push(OperationStatus::of("rebuild", &side.name));
            }
        }
        if remembered.scrub.is_some() {
            operations.push(OperationStatus {
                kind: "scrub",
                side: None,
                new: None,
            });
        }
        operations
    }

    /// Returns `leaving`, `converting` or `joining` when a remembered operation concerns the side;
    /// otherwise `None`.
    pub(super) fn operation_of(&self, side: &Side) -> Option<&'static str> {
        let remembered = self.membership.superblocks.as_ref()?.remembered();
        let place = self.place_of_side(side.index)?;
        if remembered.leaving(place).is_some() {
            return Some("leaving");
        }
        if remembered.converted_to(place).is_some() {
            return Some("converting");
        }
        let is_coming = remembered.is_added(place) && !side.is_healthy();
        is_coming.then_some("joining")
    }

    /// Returns the names of the sides that the volume will have when its unfinished operations are
    /// complete; `None` if they equal `named`. The configuration should name these sides.
    pub(super) fn sides_to_name(&self, named: &[String]) -> Option<Vec<String>> {
        let volume = self.membership.superblocks.as_ref()?;
        let remembered = volume.remembered();
        let stays = |side: &&Side| {
            let place = self.place_of_side(side.index);
            let leaves = place.is_some_and(|place| remembered.leaving(place).is_some());
            !leaves && side.life.get() != Life::Removed
        };
        let staying: Vec<String> = self
            .sides
            .iter()
            .filter(stays)
            .map(|side| side.name.clone())
            .collect();
        let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
        (set(&staying) != set(named)).then_some(staying)
    }
}
