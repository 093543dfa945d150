//! Random lives of a volume, compared with an oracle. The oracle knows the true state of every
//! side: its changes, which of them were flushed, and which epochs it has seen.
//!
//! The volume of the model performs the duties of a running volume listed in [`super`], and can die
//! between any two superblock writes. Every opening checks these rules. No flushed change is lost,
//! unless the opening was forced or the opened sides cannot know that an epoch excluded them. Sides
//! that each ran alone are always detected. If all sides are present and have not diverged, the
//! volume opens. After the opening, all sides that it chose as sources have the same content, and
//! so has every other side after its rebuild from a source.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::tests::superblock;
use super::*;
use crate::layers::mirror::superblock::{EPOCHS_MAX, FIRST_CHANGE};

/// Identifier of the content of each change, by sequence number; 0 for a change that every side
/// lost.
type Content = BTreeMap<u64, u64>;
type Clock = BTreeSet<Uuid>;

const SIDES: usize = 3;

#[derive(Clone, Debug)]
enum Action {
    Open {
        present: u8,
        force: Option<bool>,
        rebuild: Option<usize>,
        dies_after: u8,
    },
    Change(u8),
    Flush(usize),
    Trim,
    Idle(u8),
    Close(u8),
    Lose(usize, u8),
    Join(usize, u8),
    Crash,
    Snapshot(usize),
    Restore(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    // Half of the runs die during the first few superblock writes. The other runs complete all of
    // them.
    let dies = || prop_oneof![0u8..6, Just(u8::MAX)];
    let open = (
        0u8..16,
        prop::option::weighted(0.2, any::<bool>()),
        prop::option::weighted(0.1, 0..SIDES),
        dies(),
    );
    let open = open.prop_map(|(present, force, rebuild, dies_after)| Action::Open {
        // All sides are present in half of the cases.
        present: if present >= 8 { 7 } else { present },
        force,
        rebuild,
        dies_after,
    });
    let action = prop_oneof![
        6 => open,
        6 => any::<u8>().prop_map(Action::Change),
        3 => (0..SIDES).prop_map(Action::Flush),
        2 => Just(Action::Trim),
        1 => dies().prop_map(Action::Idle),
        2 => dies().prop_map(Action::Close),
        3 => (0..SIDES, dies()).prop_map(|(side, dies)| Action::Lose(side, dies)),
        3 => (0..SIDES, dies()).prop_map(|(side, dies)| Action::Join(side, dies)),
        2 => Just(Action::Crash),
        1 => (0..SIDES).prop_map(Action::Snapshot),
        1 => (0..SIDES).prop_map(Action::Restore),
    ];
    vec(action, 1..80)
}

/// Content of a side, with the oracle's knowledge of the side.
#[derive(Clone)]
struct Disk {
    superblock: Superblock,
    kept: Content,
    cached: Content,
    /// Sequence numbers of the changes that the log of the side still has.
    log: BTreeSet<u64>,
    /// Model of the dirty-region bitmap: for the sequence number of each change, the epoch with
    /// which the change is marked.
    map: BTreeMap<u64, u64>,
    shared_below: u64,
    /// Epoch of the newest entry in the log of the side.
    log_epoch: u64,
    seen: Clock,
    is_old_copy: bool,
}

impl Disk {
    fn complete_below(&self) -> u64 {
        let held = |n: &u64| self.kept.contains_key(n) || self.cached.contains_key(n);
        (1..).find(|n| !held(n)).expect("numbers do not end")
    }

    fn durable_below(&self) -> u64 {
        let mut numbers = 1..;
        let lacking = numbers.find(|n| !self.kept.contains_key(n));
        lacking.expect("numbers do not end")
    }

    /// Returns the changes in the log of the side. Other sides can get these changes from the log.
    fn logged(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let logged = |(n, _): &(&u64, &u64)| self.log.contains(n);
        self.kept.iter().filter(logged).map(|(n, id)| (*n, *id))
    }
}

struct Flushed {
    change: u64,
    epoch: Uuid,
    seen: Clock,
}

/// State of the running program.
struct Run {
    members: Vec<usize>,
    behind: BTreeMap<usize, Behind>,
    history: History,
    table: Table,
    seen: Clock,
    content: Content,
    idle: bool,
}

impl Run {
    fn next(&self) -> u64 {
        self.content.keys().next_back().map_or(1, |n| n + 1)
    }
}

/// A countdown to the death of the program.
struct Fuse(u8);

impl Fuse {
    fn burnt(&mut self) -> bool {
        if self.0 == u8::MAX {
            return false;
        }
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }
}

struct World {
    disks: Vec<Disk>,
    snapshots: Vec<Option<Disk>>,
    durable: Vec<bool>,
    flushed: BTreeMap<u64, Flushed>,
    run: Option<Run>,
    drawn: u64,
    /// Maximum number of epochs in a history.
    epochs_max: usize,
    /// State of the generator that decides which unflushed writes survive a crash.
    luck: u64,
}

impl World {
    fn new(last_is_durable: bool, epochs_max: usize, luck: u64) -> World {
        let first = Epoch {
            number: 1,
            id: [1; 16],
            first_change: FIRST_CHANGE,
            members: 0b111,
            began_s: 0,
        };
        let disk = |place| Disk {
            superblock: superblock(place, SIDES, SideState::Clean, History::new(first)),
            kept: Content::new(),
            cached: Content::new(),
            log: BTreeSet::new(),
            map: BTreeMap::new(),
            shared_below: 0,
            log_epoch: 0,
            seen: Clock::from([first.id]),
            is_old_copy: false,
        };
        World {
            disks: (0..SIDES).map(disk).collect(),
            snapshots: vec![None; SIDES],
            durable: vec![true, true, last_is_durable],
            flushed: BTreeMap::new(),
            run: None,
            drawn: 1,
            epochs_max,
            luck,
        }
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn draw_id(&mut self) -> Uuid {
        let mut id = [0xaa; 16];
        id[..8].copy_from_slice(&self.draw().to_le_bytes());
        id
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Open {
                present,
                force,
                rebuild,
                dies_after,
            } => {
                if self.run.is_some() {
                    self.crash();
                }
                let force = force.map(|fork| if fork { Force::Fork } else { Force::ReadOnly });
                self.open(present, force, rebuild, Fuse(dies_after));
            }
            Action::Crash => self.crash(),
            Action::Snapshot(side) => self.snapshots[side] = Some(self.disks[side].clone()),
            Action::Restore(side) => self.restore(side),
            _ => {
                if let Some(mut run) = self.run.take() {
                    match self.act_in(&mut run, action) {
                        true => self.run = Some(run),
                        false => self.lose_caches(),
                    }
                }
            }
        }
    }

    /// Performs an action. Returns false if the action ended the program.
    fn act_in(&mut self, run: &mut Run, action: &Action) -> bool {
        match *action {
            Action::Change(to) => {
                let (n, id) = (run.next(), self.draw());
                run.content.insert(n, id);
                for &index in &run.members {
                    if to & 1 << index != 0 {
                        self.disks[index].cached.insert(n, id);
                        self.disks[index].log.insert(n);
                    }
                }
                true
            }
            Action::Flush(by) => {
                if run.members.contains(&by) && self.durable[by] {
                    self.wake(run);
                    self.store(run, by);
                    self.acknowledge_flush(run);
                }
                true
            }
            Action::Trim => {
                self.trim(run);
                true
            }
            Action::Idle(dies) => self.settle(run, SideState::CleanIdle, Fuse(dies)),
            Action::Close(dies) => {
                self.settle(run, SideState::Clean, Fuse(dies));
                false
            }
            Action::Lose(side, dies) => self.lose(run, side, Fuse(dies)),
            Action::Join(side, dies) => self.join(run, side, Fuse(dies)),
            _ => unreachable!("not an action of a running program"),
        }
    }

    /// Marks every member dirty before the first acknowledgement after an idle time.
    fn wake(&mut self, run: &mut Run) {
        if std::mem::take(&mut run.idle) {
            for &index in &run.members {
                self.disks[index].superblock.state = SideState::Dirty;
            }
        }
    }

    /// Durably stores all content of the run on a side.
    fn store(&mut self, run: &Run, index: usize) {
        let disk = &mut self.disks[index];
        let lacking: Vec<u64> = run
            .content
            .keys()
            .filter(|n| !disk.kept.contains_key(n))
            .copied()
            .collect();
        disk.log.extend(lacking);
        disk.kept = run.content.clone();
        disk.cached.clear();
    }

    fn acknowledge_flush(&mut self, run: &Run) {
        for (&n, &change) in &run.content {
            let flushed = Flushed {
                change,
                epoch: run.history.current().id,
                seen: run.seen.clone(),
            };
            if self.flushed.get(&n).is_none_or(|f| f.change != change) {
                self.flushed.insert(n, flushed);
            }
        }
    }

    fn trim(&mut self, run: &Run) {
        run.members.iter().for_each(|&index| self.store(run, index));
        for &index in &run.members {
            let disk = &mut self.disks[index];
            let entry = run.history.current().number + 1;
            if run.members.len() < SIDES {
                disk.map.extend(disk.log.iter().map(|&n| (n, entry)));
            }
            disk.log.clear();
            disk.shared_below = run.next();
        }
    }

    fn settle(&mut self, run: &mut Run, state: SideState, mut fuse: Fuse) -> bool {
        run.members.iter().for_each(|&index| self.store(run, index));
        if run.members.iter().any(|&index| self.durable[index]) {
            self.acknowledge_flush(run);
        }
        for &index in &run.members {
            if fuse.burnt() {
                return false;
            }
            self.disks[index].superblock.state = state;
            self.disks[index].superblock.complete_below = run.next();
        }
        run.idle = true;
        true
    }

    fn begin_epoch(&mut self, run: &mut Run) {
        let id = self.draw_id();
        let epoch = Epoch {
            number: run.history.current().number + 1,
            id,
            first_change: run.next(),
            members: run.members.iter().fold(0, |all, index| all | 1 << index),
            began_s: 0,
        };
        self.follow(run, epoch);
    }

    /// Adds an epoch to the history of the run. Before that, records in the table of the run, for
    /// each side that is present, the last epoch of that side.
    fn follow(&self, run: &mut Run, epoch: Epoch) {
        let current = |side: &Uuid| {
            let of = |disk: &Disk| disk.superblock.side == *side;
            let index = self.disks.iter().position(of)?;
            let there = run.members.contains(&index) || run.behind.contains_key(&index);
            let id = self.disks[index].superblock.history.current().id;
            there.then_some((id, id))
        };
        remember(&mut run.table, &run.history, current);
        run.history.push_within(self.epochs_max, epoch);
        run.seen.insert(epoch.id);
    }

    fn tell(&mut self, run: &Run, index: usize) {
        let disk = &mut self.disks[index];
        let first_change = run.history.current().first_change;
        disk.superblock.complete_below = disk.durable_below().min(first_change);
        disk.superblock.history = run.history.clone();
        disk.superblock.table = run.table;
        disk.superblock.state = SideState::Dirty;
        disk.seen.extend(run.seen.iter().copied());
    }

    fn lose(&mut self, run: &mut Run, side: usize, mut fuse: Fuse) -> bool {
        let mut others = run.members.iter().copied().filter(|&index| index != side);
        let Some(whole) = others.find(|&index| self.durable[index]) else {
            return true;
        };
        if !run.members.contains(&side) {
            return true;
        }
        self.store(run, whole);
        run.members.retain(|&index| index != side);
        self.begin_epoch(run);
        for index in run.members.clone() {
            if fuse.burnt() {
                return false;
            }
            self.tell(run, index);
        }
        let since = self.disks[side].superblock.history.current();
        let behind = Behind::Since {
            epoch: since.number,
            discard_from: u64::MAX,
        };
        run.behind.insert(side, behind);
        run.idle = false;
        true
    }

    fn join(&mut self, run: &mut Run, side: usize, mut fuse: Fuse) -> bool {
        let Some(behind) = run.behind.get(&side).copied() else {
            return true;
        };
        let source = run.members[0];
        self.store(run, source);
        self.disks[side].superblock.state = SideState::Inconsistent;
        self.disks[side].superblock.history = behind.history(&run.history, side);
        self.disks[side].superblock.table = run.table;
        if fuse.burnt() {
            return false;
        }
        self.rebuild(run, source, side, behind);
        // The content that was copied to the joining side is not in the log of that side, so other
        // sides could not get this content from that log. Therefore every member stores all content
        // before the side joins.
        run.members.iter().for_each(|&index| self.store(run, index));
        run.behind.remove(&side);
        run.members.push(side);
        self.begin_epoch(run);
        for index in run.members.clone() {
            if fuse.burnt() {
                return false;
            }
            self.tell(run, index);
        }
        // The join uses up a sequence number, like a change. A side that is absent during the join
        // lacks this number, so it is not complete.
        let marker = self.draw();
        run.content.insert(run.next(), marker);
        run.idle = false;
        true
    }

    /// Copies the ranges that the dirty-region bitmap and the logs show as lacking, and no other
    /// ranges.
    fn rebuild(&mut self, run: &Run, source: usize, side: usize, behind: Behind) {
        let source = self.disks[source].clone();
        let disk = &mut self.disks[side];
        disk.kept.append(&mut disk.cached);
        let entry = run.history.current().number + 1;
        let mut map = source.map.clone();
        map.extend(source.log.iter().map(|&n| (n, entry)));
        match behind {
            Behind::Since {
                epoch,
                discard_from,
            } if !disk.is_old_copy => {
                let own: Vec<u64> = disk.log.iter().copied().collect();
                disk.kept
                    .retain(|n, _| *n < discard_from || !own.contains(n));
                let copied =
                    |n: &u64| own.contains(n) || map.get(n).is_some_and(|entry| *entry > epoch);
                disk.kept.retain(|n, _| !copied(n));
                let copies = run.content.iter().filter(|(n, _)| copied(n));
                disk.kept.extend(copies);
                assert_eq!(
                    disk.kept, run.content,
                    "side {side} is whole after {behind:?}"
                );
            }
            // A side that lacks everything gets all content. In this model, an older copy always
            // gets all content as well, because the volume cannot tell a copy from the true side if
            // both have the same epoch.
            _ => disk.kept = run.content.clone(),
        }
        disk.map = map;
        disk.log.clear();
        disk.shared_below = run.next();
        disk.log_epoch = run.history.current().number;
        disk.is_old_copy = false;
        // The changes that the side made alone are discarded.
        disk.seen = run.seen.clone();
    }

    fn crash(&mut self) {
        self.run = None;
        self.lose_caches();
    }

    fn lose_caches(&mut self) {
        for disk in &mut self.disks {
            for (n, id) in std::mem::take(&mut disk.cached) {
                self.luck = self.luck.wrapping_mul(6_364_136_223_846_793_005);
                self.luck = self.luck.wrapping_add(1_442_695_040_888_963_407);
                if self.luck >> 63 == 0 {
                    disk.kept.insert(n, id);
                } else {
                    disk.log.remove(&n);
                }
            }
        }
    }

    fn restore(&mut self, side: usize) {
        if self.run.is_some() {
            return;
        }
        if let Some(copy) = self.snapshots[side].clone() {
            self.lose_caches();
            let whole = |d: &&Disk| d.superblock.state != SideState::Inconsistent;
            let all: Clock = self
                .disks
                .iter()
                .filter(whole)
                .fold(Clock::new(), |all, disk| {
                    all.union(&disk.seen).copied().collect()
                });
            self.disks[side] = Disk {
                is_old_copy: true,
                ..copy
            };
            self.lose_caches();
            // The changes that only the replaced side had are lost, so the oracle no longer expects
            // them. It expects a change only if a side that has seen all epochs still has the
            // change.
            let disks = &self.disks;
            let elsewhere = |n: &u64, f: &Flushed| {
                let mut newest = disks
                    .iter()
                    .filter(whole)
                    .filter(|d| all.is_subset(&d.seen));
                newest.any(|d| d.kept.get(n) == Some(&f.change))
            };
            self.flushed.retain(|n, f| elsewhere(n, f));
        }
    }

    fn seen(&self, present: u8) -> Vec<Seen> {
        let name = |index: usize| format!("side{index}");
        let look = |(index, disk): (usize, &Disk)| {
            let there = present & 1 << index != 0;
            let found = there.then(|| disk.superblock.clone());
            Seen {
                complete_below: disk.complete_below(),
                shared_below: disk.shared_below,
                log_epoch: Some(disk.superblock.history.current().number.max(disk.log_epoch)),
                durable: self.durable[index],
                ..Seen::of(&name(index), found.ok_or(Absence::Missing))
            }
        };
        self.disks.iter().enumerate().map(look).collect()
    }

    /// Returns true if two of the given sides have diverged: each has seen an epoch that the other
    /// has not seen.
    fn is_split(&self, asked: &[usize]) -> bool {
        let saw = |index: usize| &self.disks[index].seen;
        let apart = |a: usize, b: usize| !saw(a).is_subset(saw(b)) && !saw(b).is_subset(saw(a));
        asked.iter().any(|&a| asked.iter().any(|&b| apart(a, b)))
    }

    /// Returns true if a member of the newest epoch has a current epoch that is so old that the
    /// newest history might have dropped it. This happens if too many openings in a row died before
    /// they wrote the superblock of this member. It is then unknown whether the side was a member
    /// of every epoch since.
    fn has_unacknowledged_member(&self, asked: &[usize]) -> bool {
        let histories = asked
            .iter()
            .map(|&index| &self.disks[index].superblock.history);
        let newest = histories.max_by_key(|history| history.current().number);
        newest.is_some_and(|newest| {
            let member = |index: &&usize| newest.current().has_member(**index);
            let mut members = asked.iter().filter(member);
            members.any(|&index| {
                newest.may_have_dropped(self.disks[index].superblock.history.current())
            })
        })
    }

    fn open(&mut self, present: u8, force: Option<Force>, rebuild: Option<usize>, mut fuse: Fuse) {
        let given_up: Vec<String> = rebuild.iter().map(|index| format!("side{index}")).collect();
        let decided = decide(&self.seen(present), &given_up, force);
        let asked: Vec<usize> = (0..SIDES)
            .filter(|index| present & 1 << index != 0 && Some(*index) != rebuild)
            .filter(|&index| self.disks[index].superblock.state != SideState::Inconsistent)
            .collect();
        let split = self.is_split(&asked);
        let found_out = matches!(decided, Err(Refusal::SplitBrain { .. }));
        let too_old = matches!(decided, Err(Refusal::HistoryTooOld { .. }));
        assert!(split == found_out || split && too_old, "{decided:?}");
        let plan = match decided {
            Ok(plan) => plan,
            Err(refusal) => {
                let copies = self.disks.iter().any(|disk| disk.is_old_copy);
                let all = present == 7 && rebuild.is_none() && !copies;
                let excused = split || asked.is_empty() || self.has_unacknowledged_member(&asked);
                assert!(!all || excused, "refused: {refusal}");
                return;
            }
        };
        let mut content = self.merged(&plan);
        let next = plan
            .counts_below
            .unwrap_or_else(|| content.keys().next_back().map_or(1, |n| n + 1));
        (1..next).for_each(|n| {
            content.entry(n).or_insert(0);
        });
        self.check_flushed(&plan, &content, rebuild.is_some(), present);
        if plan.forced == Some(Force::ReadOnly) {
            return;
        }
        self.flushed
            .retain(|n, f| content.get(n) == Some(&f.change));
        self.start(&plan, content, next, &mut fuse);
    }

    /// Returns the content that every source has after the logs are merged.
    fn merged(&self, plan: &Plan) -> Content {
        let mut merged: Option<Content> = None;
        let counts =
            |source: usize, n: u64| !plan.discards.iter().any(|d| d.0 == source && n >= d.1);
        for &source in &plan.sources {
            let mut content = self.disks[source].kept.clone();
            content.retain(|n, _| counts(source, *n));
            for &other in &plan.sources {
                let logged = self.disks[other].logged();
                for (n, id) in logged.filter(|(n, _)| counts(other, *n)) {
                    let before = content.insert(n, id);
                    assert!(
                        before.is_none_or(|before| before == id || before == 0 || id == 0),
                        "one number, two changes"
                    );
                }
            }
            content.retain(|n, id| plan.counts_below.is_none_or(|below| *n < below) && *id != 0);
            match &merged {
                Some(first) => assert_eq!(*first, content, "sources agree"),
                None => merged = Some(content),
            }
        }
        merged.expect("a plan has a source")
    }

    fn check_flushed(&self, plan: &Plan, content: &Content, given_up: bool, present: u8) {
        let forced = plan.forced.is_some() || given_up;
        let sources = || plan.sources.iter().map(|&index| &self.disks[index]);
        // A forced opening can lose flushed changes. If a disk holds an older copy of a side, the
        // copy can hide that the true side is missing. Flushed changes can then be lost too, unless
        // all sides are present. In these cases there is nothing to check.
        let old_copy = self.disks.iter().any(|disk| disk.is_old_copy);
        if forced || old_copy && present != 7 {
            return;
        }
        let seen: Clock = sources()
            .flat_map(|disk| disk.seen.iter().copied())
            .collect();
        let at_peace = sources().any(|disk| disk.superblock.state.is_complete());
        for (n, flushed) in &self.flushed {
            // A flushed change is allowed to be lost if no source was in the epoch of the flush,
            // and the sources cannot know that an epoch began without them. They cannot know this
            // in two cases: at least one source is clean or clean-idle, or the sources have been in
            // an epoch that the run that made the flush had not been in.
            let left_out =
                !seen.contains(&flushed.epoch) && (at_peace || !seen.is_subset(&flushed.seen));
            assert!(
                left_out || content.get(n) == Some(&flushed.change),
                "change {n} was flushed: {plan:?}"
            );
        }
    }

    fn start(&mut self, plan: &Plan, content: Content, next: u64, fuse: &mut Fuse) {
        let mut run = Run {
            members: plan.sources.clone(),
            behind: plan.behind.iter().copied().collect(),
            history: plan.newest.clone(),
            table: plan.table,
            seen: Clock::new(),
            content,
            idle: false,
        };
        for &index in &run.members {
            run.seen.extend(self.disks[index].seen.iter().copied());
        }
        let id = self.draw_id();
        self.follow(&mut run, plan.next_epoch(id, next, 0));
        for index in run.members.clone() {
            if fuse.burnt() {
                return;
            }
            let disk = &mut self.disks[index];
            disk.cached.clear();
            disk.log_epoch = plan.newest.current().number;
            self.store(&run, index);
            self.disks[index].log.retain(|n| *n < next);
        }
        for index in run.members.clone() {
            if fuse.burnt() {
                return;
            }
            self.tell(&run, index);
            self.disks[index].is_old_copy = false;
        }
        // The opening uses up a sequence number, like a change. A side that is absent during the
        // opening lacks this number, so it is not complete.
        let marker = self.draw();
        run.content.insert(run.next(), marker);
        for index in run.members.clone() {
            self.store(&run, index);
        }
        for &index in &run.members {
            self.disks[index].shared_below = run.next();
        }
        self.run = Some(run);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        // A fixed seed, so that every test run uses the same cases.
        rng_seed: RngSeed::Fixed(8),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_lives_keep_the_contract(
        actions in actions(),
        last_is_durable in any::<bool>(),
        // In half of the cases a history holds only 2 to 5 epochs, so that epochs are dropped from
        // it.
        epochs_max in prop_oneof![2usize..6, Just(EPOCHS_MAX)],
        luck in any::<u64>(),
    ) {
        let mut world = World::new(last_is_durable, epochs_max, luck);
        for action in &actions {
            world.act(action);
        }
    }
}
