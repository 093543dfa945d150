//! Operations that a volume resumes by itself: the removal of sides, and an interrupted scrub.
//!
//! The superblocks remember the operations, so they survive any stop. A side must never be removed
//! before another one has all its content, and a cancelled scrub must never be resumed.

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

/// An unfinished operation that was requested, or that the volume does by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationStatus {
    /// `replace`, `add`, `remove`, `rebuild` or `scrub`.
    pub kind: &'static str,
    /// Side that leaves, is added or is rebuilt; `None` for a scrub.
    pub side: Option<String>,
    /// Side that takes the place of `side`; only for `replace`.
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

    /// Returns a description of the operation for people.
    pub fn words(&self) -> String {
        match (&self.side, &self.new) {
            (Some(side), Some(new)) => format!("{} {side} by {new}", self.kind),
            (Some(side), None) => format!("{} {side}", self.kind),
            (None, _) => self.kind.to_owned(),
        }
    }
}

impl Shared {
    /// Removes the sides that are to leave, each as soon as it may, until the volume is closed.
    pub(super) async fn carry_on(self: Rc<Self>) {
        loop {
            self.membership
                .changed
                .until(|| self.place_due().is_some())
                .await;
            let left = self.leave_one().await;
            if left.is_err() {
                // Until the retry, another side may get all the content, or the volume may be open
                // again.
                self.rt.sleep(AGAIN_AFTER).await;
            }
        }
    }

    async fn leave_one(self: &Rc<Self>) -> Result<(), String> {
        let _one = self.membership.changing.acquire(1).await;
        let volume = self.changeable()?;
        match self.place_due() {
            Some(place) => self.leave(volume, place).await,
            None => Ok(()),
        }
    }

    /// Returns the place of a side that is to leave and may leave now.
    fn place_due(&self) -> Option<usize> {
        let volume = self.membership.superblocks.as_ref()?;
        let remembered = volume.remembered();
        let table = volume.table();
        let may_leave = |place: &usize| match remembered.leaving(*place) {
            None => false,
            Some(Leaving::Now) => true,
            Some(Leaving::OnceComplete(new)) => {
                let new = self.side_at(new);
                new.is_some_and(Side::is_healthy)
            }
        };
        let mut listed = (0..table.len()).filter(|place| table[*place].is_some());
        listed.find(may_leave)
    }

    /// Returns the side at a place of the table, if it can be determined.
    fn side_at(&self, place: usize) -> Option<&Side> {
        let mut sides = self.sides.iter();
        sides.find(|side| self.place_of_side(side.index) == Some(place))
    }

    /// Returns the place of a side in the table. For a side that was not found, this works only
    /// when a single place is possible.
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

    /// Returns true when all sides that count durably have the operations that the volume
    /// remembers.
    pub(super) fn has_remembered(&self, volume: &Volume) -> bool {
        let mut healthy = self.healthy().into_iter();
        healthy.all(|index| volume.has_remembered(index))
    }

    /// Records the progress of a scrub. The sides get it with their next superblocks.
    pub(super) fn note_scrub(&self, record: Option<ScrubRecord>) {
        if let Some(volume) = &self.membership.superblocks {
            volume.remember(|remembered| remembered.scrub = record);
        }
    }

    /// Records the progress of a scrub, and starts writing it to the sides.
    pub(super) fn remember_scrub(self: &Rc<Self>, record: Option<ScrubRecord>) {
        if let Some(volume) = &self.membership.superblocks {
            self.remember(volume, |remembered| remembered.scrub = record);
        }
    }

    /// Returns the unfinished operations that the volume resumes after a stop.
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

    /// Returns `leaving` or `joining` while a remembered operation concerns the side.
    pub(super) fn operation_of(&self, side: &Side) -> Option<&'static str> {
        let remembered = self.membership.superblocks.as_ref()?.remembered();
        let place = self.place_of_side(side.index)?;
        if remembered.leaving(place).is_some() {
            return Some("leaving");
        }
        let is_coming = remembered.is_added(place) && !side.is_healthy();
        is_coming.then_some("joining")
    }

    /// Returns the sides that the volume will have when its operations are over, if they are not
    /// those in `named`. The configuration should name these sides.
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
