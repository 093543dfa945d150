//! Adds, replaces, removes or converts a side while the power is cut. The test uses copies of the
//! sides between two lives of the program, without a load; the tested volume itself is not
//! affected.
//!
//! After the cut, the volume is opened with each set of sides that a configuration can name: the
//! old sides, the new sides, or for a replacement the old and the new sides together. At least one
//! set must open. The content read must equal the content read before the change. A conversion must
//! then come to its end by itself, and the content must still be the same.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::Device;
use bimetal_block::layers::mirror::superblock::SideKind;
use bimetal_block::layers::mirror::{Mirror, MirrorConfig};
use bimetal_rt::Rng;
use futures_util::future::{Either, select};
use serde::Serialize;

use super::boundaries::Boundaries;
use super::client;
use super::opening::{How, Opening, attempt};
use super::probes::{end, forks, sides_over};
use super::stack::{Platters, SideStack, platters_of, top_of};
use super::world::World;

/// A change to the set of sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Change {
    /// Adds a side.
    Add,
    /// Replaces this side by a new one.
    Replace(usize),
    /// Removes this side.
    Remove(usize),
    /// Converts this side to the other layout.
    Convert(usize),
}

/// A change to the set of sides, and the point at which the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChangeOfSides {
    /// The change.
    pub change: Change,
    /// Number of I/O boundaries from the start of the change to the cut; `None` lets the change
    /// finish.
    pub boundaries: Option<u64>,
}

/// Returns the name of the side with this index; the new side has the last index.
fn name_of(side: usize) -> String {
    format!("side-{side}")
}

/// Copies of the sides and, as the last element, a blank side. Successive programs use the same
/// copies.
struct Copies<'w> {
    world: &'w World,
    platters: Vec<Platters>,
}

impl Copies<'_> {
    fn count(&self) -> usize {
        self.platters.len() - 1
    }

    fn config(&self, named: &[usize]) -> MirrorConfig {
        let mut config = self.world.scenario.config(named.len());
        config.sides = named.iter().copied().map(name_of).collect();
        config
    }

    async fn open(&self, sides: &[SideStack], named: &[usize]) -> Result<Mirror, String> {
        let world = self.world;
        let candidate = |&side: &usize| sides[side].candidate(name_of(side));
        let candidates = named.iter().map(candidate).collect();
        let config = self.config(named);
        let opening = attempt(&world.rt, &config, candidates, How::Plain);
        match world.rt.timeout(world.patience(), opening).await {
            Ok(Opening::Opened(mirror)) => Ok(mirror),
            Ok(Opening::Refused(refusal)) => Err(refusal.why),
            Err(_) => {
                let why = "an opening on copies of the sides does not end";
                world.findings.add(why.to_owned());
                Err(why.to_owned())
            }
        }
    }

    /// Reads the volume and returns the stamp of each unit.
    async fn content(
        &self,
        mirror: &Mirror,
        sides: &Rc<Vec<SideStack>>,
    ) -> Result<Vec<u64>, String> {
        let (world, mut all) = (self.world, Vec::new());
        let top: Rc<dyn Device> = top_of(&world.rt, &world.scenario, mirror, sides, None);
        let read = client::read_all(world, &top, |units, _, found| {
            let found = found.map_err(|error| format!("reading {units:?}: {error}"))?;
            all.extend(found);
            Ok(())
        });
        read.await?;
        Ok(all)
    }

    async fn close(&self, mirror: &Mirror) {
        let world = self.world;
        let closed = world.rt.timeout(world.patience(), mirror.close());
        if closed.await.is_err() {
            let what = "a volume whose sides change does not close";
            world.findings.add(what.to_owned());
        }
    }

    /// Runs the change until it is complete. Returns false if the mirror refuses the change, or if
    /// the change does not complete in time.
    async fn perform(&self, mirror: &Mirror, sides: &[SideStack], change: Change) -> bool {
        let (world, new) = (self.world, self.count());
        let added = || sides[new].candidate(name_of(new));
        let begun = match change {
            Change::Add => mirror.add_side(added(), None, false).await,
            Change::Replace(old) => mirror.add_side(added(), Some(&name_of(old)), false).await,
            Change::Remove(old) => mirror.remove_side(&name_of(old)).await,
            Change::Convert(side) => {
                let to = match world.scenario.is_logged(side) {
                    true => SideKind::Home,
                    false => SideKind::Log,
                };
                mirror.convert_side(&name_of(side), to).await
            }
        };
        if begun.is_err() {
            return false;
        }
        let deadline = world.rt.now() + world.patience();
        while world.rt.now() < deadline {
            let status = mirror.status();
            let there = |side: usize| status.sides.iter().find(|s| s.name == name_of(side));
            let whole = there(new).is_some_and(|side| side.health == "healthy");
            let done = match change {
                Change::Add => whole,
                Change::Replace(old) => whole && there(old).is_none(),
                Change::Remove(old) => there(old).is_none(),
                Change::Convert(side) => {
                    let whole = there(side).is_some_and(|side| side.health == "healthy");
                    whole && status.operations.is_empty()
                }
            };
            if done {
                return true;
            }
            world.rt.sleep(Duration::from_millis(20)).await;
        }
        false
    }

    /// Returns the sets of sides that the configuration can name after the change.
    fn namings(&self, change: Change) -> Vec<Vec<usize>> {
        let old: Vec<usize> = (0..self.count()).collect();
        let with_new: Vec<usize> = (0..=self.count()).collect();
        let without =
            |sides: &[usize], gone| sides.iter().copied().filter(|s| *s != gone).collect();
        match change {
            Change::Add => vec![with_new, old],
            Change::Replace(gone) => vec![without(&with_new, gone), old, with_new],
            Change::Remove(gone) => vec![without(&old, gone), old],
            Change::Convert(_) => vec![old],
        }
    }

    /// Scrubs all sides before the change, so that every corrupt block is found while another side
    /// still has an intact copy. The change can remove the side with this intact copy. Returns true
    /// if everything was read, and is intact on all sides now.
    async fn scrub(&self, mirror: &Mirror) -> bool {
        let world = self.world;
        if mirror.start_scrub().is_err() {
            return false;
        }
        let deadline = world.rt.now() + world.patience();
        let is_running = || {
            let scrub = mirror.status().scrub;
            scrub.is_some_and(|scrub| scrub.state == "running")
        };
        while is_running() && world.rt.now() < deadline {
            world.rt.sleep(Duration::from_millis(20)).await;
        }
        world.reach("sides: scrubbed before a change");
        let scrub = mirror.status().scrub;
        scrub.is_some_and(|scrub| {
            let is_over = scrub.state == "done";
            is_over && scrub.skipped_bytes == 0 && scrub.unrepairable == 0
        })
    }

    /// Waits until all sides are healthy and no operation is left. Returns false, and adds a
    /// finding, if this takes too long although no copy is corrupt.
    async fn until_settled(&self, mirror: &Mirror) -> bool {
        let world = self.world;
        let deadline = world.rt.now() + world.patience();
        while world.rt.now() < deadline {
            let status = mirror.status();
            if !status.degraded && status.operations.is_empty() {
                world.reach("sides: a conversion went on by itself");
                return true;
            }
            world.rt.sleep(Duration::from_millis(20)).await;
        }
        if !world.scenario.corrupts {
            let what = format!(
                "a conversion does not come to its end: {:?}",
                mirror.status()
            );
            world.findings.add(what);
        }
        false
    }

    /// Opens copies of the sides once for each set of sides that the configuration can name. At
    /// least one set must open and return the content read before the change. A set that returns
    /// other content is a finding. A set is allowed to fail if at least one set succeeds, because
    /// all sides of a set can have a corrupt copy of the same block.
    async fn check(&self, of: ChangeOfSides, before: &[u64]) {
        let (world, mut failures) = (self.world, Vec::new());
        let namings = self.namings(of.change);
        let count = namings.len();
        for named in namings {
            let sides = sides_over(world, &forks(&self.platters), &Rc::default());
            match self.open(&sides, &named).await {
                Err(why) => failures.push(why),
                Ok(mirror) => {
                    let mut found = self.content(&mirror, &sides).await;
                    let is_converted = matches!(of.change, Change::Convert(_));
                    if is_converted && found.is_ok() && self.until_settled(&mirror).await {
                        found = self.content(&mirror, &sides).await;
                    }
                    self.close(&mirror).await;
                    match found.map(|found| difference(before, &found)) {
                        Err(why) => failures.push(format!("with sides {named:?}: {why}")),
                        Ok(None) => {}
                        Ok(Some(what)) => {
                            let what = format!("after {of:?}, with sides {named:?}: {what}");
                            world.findings.add(what);
                        }
                    }
                }
            }
            end(world, &sides).await;
        }
        if failures.len() == count {
            let what = format!("after {of:?} nothing holds what was read: {failures:?}");
            world.findings.add(what);
        }
    }
}

fn difference(before: &[u64], after: &[u64]) -> Option<String> {
    let mut pairs = before.iter().zip(after).enumerate();
    let (unit, (before, after)) = pairs.find(|(_, (before, after))| before != after)?;
    let (before, after) = (before >> 24, after >> 24);
    Some(format!(
        "unit {unit} was write {before}, and is write {after}"
    ))
}

/// Changes the set of sides, cuts the power, and checks which sets of sides open afterwards.
pub async fn change_sides(world: &World, platters: &[Platters], of: ChangeOfSides) {
    let new = platters_of(&world.rt, &world.scenario).swap_remove(0);
    let mut platters = forks(platters);
    platters.push(new);
    let copies = Copies { world, platters };
    let boundaries = Rc::new(Boundaries::default());
    let sides = sides_over(world, &copies.platters, &boundaries);
    let named: Vec<usize> = (0..copies.count()).collect();
    let Ok(mirror) = copies.open(&sides, &named).await else {
        world.reach("sides: the volume stays shut");
        end(world, &sides).await;
        return;
    };
    if world.scenario.corrupts {
        let is_intact = copies.scrub(&mirror).await;
        if matches!(of.change, Change::Convert(_)) && !is_intact {
            // The content of the side is given up for that of the others, so an operator would not
            // convert it now.
            world.reach("sides: not intact before a conversion");
            copies.close(&mirror).await;
            drop(mirror);
            end(world, &sides).await;
            return;
        }
    }
    let before = copies.content(&mirror, &sides).await;
    boundaries.begin();
    if let Some(count) = of.boundaries {
        boundaries.cut_after(count);
    }
    let ended = Cell::new(false);
    let cut = {
        let change = pin!(async {
            ended.set(copies.perform(&mirror, &sides, of.change).await);
        });
        let cut = pin!(boundaries.cut.until(|| boundaries.is_cut()));
        matches!(select(change, cut).await, Either::Right(_))
    };
    world.reach(match (cut, ended.get(), of.change) {
        (false, false, _) => "sides: a change did not come to its end",
        (false, true, _) => "sides: changed",
        (true, _, Change::Add) => "crash when a side is added",
        (true, _, Change::Replace(_)) => "crash when a side is replaced",
        (true, _, Change::Remove(_)) => "crash when a side is removed",
        (true, _, Change::Convert(_)) => "crash when a side is converted",
    });
    if cut {
        cut_power(world, &copies.platters, &sides);
    }
    copies.close(&mirror).await;
    drop(mirror);
    end(world, &sides).await;
    match before {
        Ok(before) => copies.check(of, &before).await,
        // The content is read before the sides are changed. That read can fail if copies are
        // corrupt or if every side has faults.
        Err(_) => world.reach("sides: not everything could be read"),
    }
}

fn cut_power(world: &World, platters: &[Platters], sides: &[SideStack]) {
    for disk in sides.iter().flat_map(|side| &side.disks) {
        disk.switch().die();
    }
    let mut rng = Rng::labelled(world.scenario.seed, "power of changed sides");
    for platter in platters.iter().flatten() {
        platter
            .borrow_mut()
            .cut_power(&mut rng, world.scenario.torn);
    }
}
