//! What concerns the stores of the sides as a whole: attending to them while the volume is in use,
//! a side that comes back, the mark that nobody is ahead, and bringing everything home at the end.

use std::rc::Rc;
use std::time::Duration;

use super::family::Behind;
use super::opening::{lacking, newest_among, store_device};
use super::side::{Health, Side, add};
use super::store::Store;
use super::superblock::{Candidate, Epoch, State};
use super::{Shared, VolumeState};
use crate::device::Device;
use crate::error::IoError;
use crate::range_set::RangeSet;
use crate::request::Origin;

/// A volume is quiet when nothing has been written for so long.
const QUIET_AFTER: Duration = Duration::from_secs(2);
/// How often a side is flushed, at least, while logs fill.
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// Whether a side has found something wrong with itself is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A stop takes so long, at most, to bring home what is in the logs.
const EMPTY_WITHIN: Duration = Duration::from_secs(30);

impl Shared {
    /// Tells the store of a side all that it has to know of the volume.
    pub(super) fn attend_store(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        let (Some(store), Some(volume)) = (side.store(), &self.superblocks) else {
            return;
        };
        let weak = Rc::downgrade(self);
        let given_below = move |limit: u64| {
            let shared = weak.upgrade()?;
            let side = &shared.sides[index];
            let limit = limit.min(shared.next_seq.get());
            // A side that lacks something says no more than before.
            let given_below = || side.queue.borrow().given_below(limit);
            side.holds_all().then(given_below)
        };
        let weak = Rc::downgrade(self);
        let held = move || {
            // While a side is late, the others carry the load, and it has to catch up itself.
            let busy = |shared: Rc<Shared>| {
                let exposed = shared.exposed.borrow().bytes();
                let behind = exposed > shared.rules().exposure_bytes_max / 8;
                let late = shared.sides.iter().any(|side| side.stuck.get());
                shared.flushes_waiting.get() > 0 || behind || late
            };
            weak.upgrade().is_some_and(busy)
        };
        let weak = Rc::downgrade(self);
        store.tell_of_durability(Rc::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.make_room_in_log(index);
            }
        }));
        let weak = Rc::downgrade(self);
        store.ask_for_content(Rc::new(move |range| {
            let weak = weak.clone();
            Box::pin(async move {
                let shared = weak.upgrade()?;
                let mut others = shared.sides.iter().filter(|other| other.index != index);
                let asked = others.find(|other| {
                    let seeks = other.device.geometry().rotational;
                    !seeks && !other.stuck.get() && other.is_current(&range)
                });
                let reply = asked?.store()?.read(range, Origin::NONE).await;
                // Whatever is wrong with it, the side has its own log.
                Some(reply.ok()?.into_data())
            })
        }));
        store.attend(
            volume.epoch(),
            Rc::new(move |limit| given_below(limit).unwrap_or(0)),
            Rc::new(held),
        );
    }

    /// Has the mirror asked what becomes of a side whose way is interrupted.
    pub(super) fn attend_way(self: &Rc<Self>, index: usize) {
        if let Some(way) = &self.sides[index].way {
            let weak = Rc::downgrade(self);
            let decide = move || weak.upgrade().is_none_or(|shared| shared.is_cut_off(index));
            way.attend(Rc::new(decide));
        }
    }

    /// The way to a side was interrupted, so what is known of it may not hold any more. True when
    /// it is not used before it has been opened anew; the last healthy side is used on as it is.
    fn is_cut_off(self: &Rc<Self>, index: usize) -> bool {
        let side = &self.sides[index];
        let was_active = side.is_active();
        if was_active && !self.another_is_healthy(index) {
            return false;
        }
        add(&side.counts.errors, 1);
        // At the end of a stop nobody is given up any more: what fails is not marked as clean.
        if was_active && self.state.get() != VolumeState::Closed {
            self.give_up(index, IoError::Transport);
        }
        true
    }

    /// Looks at an absent side, and makes it ready to be given what it lacks.
    ///
    /// # Errors
    /// When it is not there, is not what it was, or cannot be used.
    pub(super) async fn bring_back(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let volume = self.superblocks.as_ref().ok_or(IoError::Offline)?;
        // One that could not be read when the volume was opened is known by its name only.
        let by_name = || {
            Some(Candidate {
                name: side.name.clone(),
                device: Rc::clone(side.way.as_ref()?) as Rc<dyn Device>,
            })
        };
        let candidate = volume.candidate(index).or_else(by_name);
        let candidate = candidate.ok_or(IoError::Offline)?;
        let before = volume.superblock(index);
        if let Some(old) = side.store() {
            old.end().await;
        }
        if let Some(way) = &side.way {
            way.begin_anew().await?;
        }
        let found = candidate.look().await.map_err(|_| IoError::Medium)?;
        let found = found.ok_or(IoError::Offline)?;
        let known = volume.was_in_epoch_of(&found);
        // One that ran without the others is a split, which is never resolved by itself.
        if !volume.misses(index, &found) || !known {
            return Err(IoError::Offline);
        }
        // It may not have been told how large the volume is now.
        let device_bytes = candidate.device.geometry().size_bytes;
        let _fits = found.reaching(volume.volume_bytes(), device_bytes)?;
        let on = store_device(&candidate.device, &found, &self.config);
        let store = Store::open(&self.rt, &on).await?;
        let had = side.store().map_or(0, |old| old.complete_durable());
        // It is an older copy of itself, or has lost something that nobody can name. What one has that
        // was not there when the volume was opened has not been compared with the others.
        let everything = store.found().damaged
            || before.is_none_or(|before| found.generation < before.generation)
            || store.found().complete_below < had;
        // What the side lacks is what changed since it was last a member; a rebuild that was cut short
        // has left it with a newer history. Of a time that ours does not reach back to nobody knows
        // whether the side was a member in it.
        let reaches_back = |epoch: &&Epoch| volume.knows_epoch(&epoch.id);
        let since = found.last_epoch().filter(reaches_back);
        let since = since.filter(|_| !everything);
        let epoch = since.map_or(0, |epoch| epoch.number);
        let everything = since.is_none();
        let behind = match everything {
            true => Behind::Everything,
            false => Behind::Since {
                epoch,
                discard_from: u64::MAX,
            },
        };
        // What it is told must not be news to those that count: it would take them for outdated.
        let told = || {
            let healthy = self.healthy();
            healthy.iter().any(|&index| volume.has_current_epoch(index))
        };
        self.exposure_changed.until(told).await;
        volume.found(index, candidate, found);
        volume.mark_inconsistent(index, behind).await?;
        store.set_epoch(volume.epoch());
        let mut lacks = RangeSet::for_volume(self.size_bytes());
        if everything {
            store.forget_from(0);
            lacks.insert(0..self.size_bytes());
        } else {
            // What it was to forget when it was opened, or earlier; nothing else of it is given up.
            let discarded = store.discard_from(u64::MAX, epoch);
            // It may have been late already when it still was a member.
            let late_since = volume.epoch_of(store.complete());
            lacks = self.lacks(&store, epoch.min(late_since));
            lacks.extend(discarded);
        }
        lacks.iter().for_each(|range| side.note_lack(range));
        side.stale.borrow_mut().remove(self.size_bytes()..u64::MAX);
        store.unsettle().await?;
        store.set_mixes(true);
        store.begin().await?;
        store.grow(volume.volume_bytes());
        side.replace_store(store);
        self.note_logs();
        Ok(())
    }

    /// What a side lacks of what the healthy ones have in their logs, or had in them since `epoch`.
    fn lacks(&self, store: &Store, epoch: u64) -> RangeSet {
        let healthy = self
            .sides
            .iter()
            .filter(|side| side.health.get() == Health::Healthy);
        let stores: Vec<(usize, Rc<Store>)> = healthy
            .filter_map(|side| Some((side.index, side.store()?)))
            .collect();
        let newest = newest_among(&stores);
        let mut lacks = RangeSet::for_volume(self.size_bytes());
        let logged = lacking(store, &newest, store.complete());
        lacks.extend(logged.into_iter().map(|(range, _)| range));
        lacks.extend(stores.iter().flat_map(|(_, s)| s.stale_since(epoch)));
        lacks
    }

    /// True when a side of the volume is not even there.
    pub(super) fn incomplete_table(&self) -> bool {
        let volume = self.superblocks.as_ref();
        volume.is_some_and(|volume| !volume.is_whole_table())
    }

    /// Flushes a side that is about to count: it is complete then, and its log says so.
    pub(super) async fn flush_for_joining(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let Some(store) = side.store() else {
            return self.flush_one(index).await;
        };
        let operation = side.start(self.rt.now());
        let oldest = side.queue.borrow().oldest_seq();
        let flushed = store.flush(oldest.unwrap_or(self.next_seq.get())).await;
        side.finish(operation, self.rt.now());
        side.changed.notify();
        self.pump(index);
        flushed
    }

    /// The state that the superblocks of the members should have.
    pub(super) fn wanted_mark(&self) -> State {
        if self.quiet.get() {
            State::Quiet
        } else {
            State::Active
        }
    }

    /// True when every side that counts says durably that a peer may be ahead of it.
    pub(super) fn peers_know(&self) -> bool {
        let Some(volume) = &self.superblocks else {
            return false;
        };
        let counted_on = self.sides.iter().filter(|side| side.is_counted_on());
        let mut indices = counted_on.map(|side| side.index);
        // One that joins is marked as being rebuilt until it counts.
        indices.all(|index| volume.is_marked_active(index) || !volume.is_established(index))
    }

    /// Something was admitted: whoever says that nobody is ahead must be told better.
    pub(super) fn is_not_quiet(self: &Rc<Self>) {
        if self.quiet.replace(false) {
            for index in self.healthy() {
                self.mark_side(index);
            }
        }
        if self.admitted.waiting() > 0 {
            self.admitted.notify();
        }
    }

    /// Whenever nothing has been written for a while, lets all members say that nobody is ahead, so
    /// that each of them can be started alone.
    pub(super) async fn settle(self: Rc<Self>) {
        let mut done = None;
        loop {
            let number = self.next_seq.get();
            if done == Some(number) {
                self.admitted.until(|| self.next_seq.get() != number).await;
                continue;
            }
            self.rt.sleep(QUIET_AFTER).await;
            if self.next_seq.get() != number || self.state.get() == VolumeState::Closed {
                continue;
            }
            let whole = self
                .sides
                .present()
                .all(|side| side.health.get() == Health::Healthy);
            if !whole {
                continue;
            }
            for index in 0..self.sides.len() {
                self.want_flushed(index, number);
            }
            let all = || self.sides.present().all(|side| has_durably(side, number));
            if self
                .rt
                .timeout(QUIET_AFTER, self.flushed.until(all))
                .await
                .is_err()
            {
                continue;
            }
            if self.next_seq.get() == number && self.exposed.borrow().is_empty() {
                self.quiet.set(true);
                done = Some(number);
                for index in self.healthy() {
                    self.mark_side(index);
                }
            }
        }
    }

    /// While changes come in, flushes all sides now and then even when no client does: only what is
    /// durable everywhere can leave the logs.
    pub(super) async fn keep_logs_moving(self: Rc<Self>) {
        let (mut flushed, mut turn) = (self.next_seq.get(), 0);
        loop {
            self.admitted.until(|| self.next_seq.get() != flushed).await;
            self.rt.sleep(FLUSH_EVERY).await;
            let stores = self.sides.iter().filter_map(Side::store);
            if stores.into_iter().any(|store| store.is_half_full()) {
                // One after the other, so that one of them always takes changes at once.
                flushed = self.next_seq.get();
                self.want_flushed(turn, flushed);
                turn = (turn + 1) % self.sides.len();
            }
        }
    }

    /// What the sides find wrong with themselves while they bring changes home is repaired as well.
    pub(super) async fn look_for_suspects(self: Rc<Self>) {
        loop {
            self.rt.sleep(LOOK_EVERY).await;
            for index in 0..self.sides.len() {
                self.note_suspects(index);
            }
        }
    }

    /// At the end: every side flushes everything, and what is in the logs goes home. A side that
    /// does not come to an end in time is given up, so that the others can say that they are whole.
    pub(super) async fn bring_everything_home(self: &Rc<Self>) -> Result<(), IoError> {
        let number = self.next_seq.get();
        self.closed_at.set(number);
        for index in 0..self.sides.len() {
            self.want_flushed(index, number);
            self.pump(index);
        }
        let failed = |side: &Side| side.failed_flushes.get() > 0 && !side.flushing.get();
        // What no side holds whole cannot be repaired, and is not waited for.
        let hopeless = |side: &Side| side.failed_copies.get() > 0;
        let over = |side: &Side| {
            !side.is_counted_on() || has_durably(side, number) || failed(side) || hopeless(side)
        };
        // A side that is silent meanwhile is given up by whoever watches it.
        self.flushed.until(|| self.sides.iter().all(&over)).await;
        let complete = |index: usize| {
            let side = &self.sides[index];
            side.health.get() == Health::Healthy && has_durably(side, number)
        };
        let durable = |index: &usize| self.sides[*index].durable.get() && complete(*index);
        if !(0..self.sides.len()).any(|index| durable(&index)) {
            let error = self.sides.iter().find(|side| failed(side));
            return Err(error.map_or(IoError::Offline, |side| side.flush_error.get()));
        }
        for index in self.healthy() {
            if complete(index) {
                continue;
            }
            if !self.another_is_healthy(index) {
                // Those that have everything have just joined, and it does not know of them.
                return Err(IoError::Timeout);
            }
            self.give_up(index, IoError::Timeout);
        }
        for side in self.sides.iter().filter(|side| side.joining.get()) {
            side.joining.set(false);
        }
        self.release_logs();
        let marked = self.exposure_changed.until(|| self.is_marked());
        if self.rt.timeout(self.patience(), marked).await.is_err() {
            // The last side has failed since, and is not told that it is the only one that counts.
            return Err(IoError::Timeout);
        }
        let emptying = self.healthy().into_iter().filter_map(|index| {
            let store = self.sides[index].store()?;
            Some(async move { store.empty().await })
        });
        let emptied = futures_util::future::join_all(emptying);
        // What could not go home in time is in the log, where the next opening finds it.
        let _ = self.rt.timeout(EMPTY_WITHIN, emptied).await;
        Ok(())
    }
}

/// True when every change below a number is durable on a side.
fn has_durably(side: &Side, number: u64) -> bool {
    side.store()
        .is_some_and(|store| store.complete_durable() >= number)
}
