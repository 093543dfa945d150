//! The connection between a device and a timing model: the device below holds the data, and the
//! [model](crate::media::model) determines when an SSD, a disk or a network volume would have
//! finished each request.
//!
//! A request completes when both the device below and the model have finished. In virtual time, the
//! media take no time, so the request completes exactly at the model's time. In real time, it never
//! completes earlier than that. So the same profile drives a simulation and an emulation over a
//! file.
//!
//! One task, the pump, sleeps until the model's next event and wakes requests that have finished.
//! Requests wait in a slab whose keys are the model's command ids. The slot of a dropped request
//! remains as an orphan until the model has finished the command, because a command that has
//! reached a device is executed even if no caller waits for it.
//!
//! This layer must never add or choose a duration of its own: without a time from the model, an
//! operation takes no time.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use bimetal_rt::sync::{Permit, Semaphore};
use bimetal_rt::{Instant, Rt, Sleep, Task};
use serde::Deserialize;
use slab::Slab;

use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::document::{ConfigError, Section};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::media::model::{
    Command, CommandKind, ModelCounters, ModelError, ModelType, Parameters, TimingModel,
};
use crate::request::{IoResult, Op, Request};

/// Maximum number of commands inside the model. Further requests wait outside the model, as in a
/// block layer whose queue is full. The limit is well below the number that a model accepts.
const QUEUE_COMMANDS_MAX: usize = 16_384;

/// Preferred request size of a disk: an eighth of a track, so that the transfer is not negligible
/// beside the positioning.
const DISK_PREFERRED_BYTES: u32 = 64 << 10;

/// The configuration of `type = "ssd"`, `"hdd"`, `"network"` and `"flash"`.
#[derive(Clone, Debug)]
pub struct TimingConfig {
    /// Type of the modelled device.
    pub of: ModelType,
    /// Parameters of the profile, with the configuration's overrides.
    pub parameters: Parameters,
    /// Name of the device below, as in the configuration.
    pub below: String,
    /// Seed of the random durations; by default derived from the runtime's seed and the device's
    /// name.
    pub seed: Option<u64>,
}

/// The configuration keys that belong to this layer; every other key is a parameter of the model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnKeys {
    profile: Option<String>,
    below: String,
    seed: Option<u64>,
}

impl TimingConfig {
    /// Reads a section from which the key `type` has been removed.
    ///
    /// # Errors
    /// An unknown profile, an unknown parameter, or a value that no device can have, each with its
    /// position.
    pub fn read(of: ModelType, mut section: Section<'_>) -> Result<TimingConfig, ConfigError> {
        let own: OwnKeys = section.split_off(&["profile", "below", "seed"]).read()?;
        let overrides: toml::Table = section.clone().read()?;
        let profile = own.profile.as_deref().unwrap_or(of.default_profile());
        let parameters = match Parameters::from_profile(of, profile, overrides.clone()) {
            Ok(parameters) => parameters,
            Err(error) => {
                // The error does not say which key caused it. So each key is tried alone, and the
                // first key that fails gives the position.
                let culprit = overrides.into_iter().find_map(|(key, value)| {
                    let alone = toml::Table::from_iter([(key.clone(), value)]);
                    let error = Parameters::from_profile(of, profile, alone).err()?;
                    Some(section.error_at(&key, one_line(&error)))
                });
                return Err(culprit.unwrap_or_else(|| section.error(one_line(&error))));
            }
        };
        Ok(TimingConfig {
            of,
            parameters,
            below: own.below,
            seed: own.seed,
        })
    }
}

fn one_line(error: &ModelError) -> String {
    error.to_string().replace('\n', " ")
}

/// A request inside the model.
struct Slot {
    stage: Stage,
    /// Permit of this request. The number of permits limits the number of commands inside the
    /// model.
    _place: Permit,
}

/// Stage of a request inside the model.
enum Stage {
    /// Not finished. Holds the waker of the request once the request has been polled.
    Waiting(Option<Waker>),
    /// Finished; the waiting request will release the slot.
    Done,
    /// The caller has dropped the request. The slot is released when the model has finished the
    /// command.
    Orphan,
}

/// State shared by the device, its requests and the pump.
struct TimingState {
    rt: Rt,
    model: RefCell<Box<dyn TimingModel + Send>>,
    slots: RefCell<Slab<Slot>>,
    /// Waker of the pump; `None` before the pump's first poll.
    pump: RefCell<Option<Waker>>,
    /// The timer of the model's next event.
    alarm: RefCell<Option<Sleep>>,
    /// Time at which the alarm fires; `Instant::MAX` if there is no alarm.
    alarm_at: Cell<Instant>,
    /// Buffer for the ids of finished commands, kept so that its memory is reused. The buffer is
    /// empty except while `run` advances the model.
    finished: RefCell<Vec<u64>>,
    /// Permits for commands inside the model, granted in order of arrival.
    places: Rc<Semaphore>,
    lateness: Cell<Lateness>,
}

/// Delay with which the device handles the events of the model. In real time, timers fire late and
/// the thread has other work, so this delay is added to the emulated latency. In virtual time it is
/// zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Number of events of the model that the device has handled.
    pub events: u64,
    /// Total delay of these events.
    pub total_ns: u64,
    /// Largest delay of one event.
    pub max_ns: u64,
}

impl Lateness {
    fn add(&mut self, late_ns: u64) {
        self.events += 1;
        self.total_ns += late_ns;
        self.max_ns = self.max_ns.max(late_ns);
    }
}

impl TimingState {
    /// Submits a command to the model.
    fn start(
        self: &Rc<TimingState>,
        kind: CommandKind,
        request: &Request,
        place: Permit,
    ) -> Ticket {
        let slot = Slot {
            stage: Stage::Waiting(None),
            _place: place,
        };
        let key = self.slots.borrow_mut().insert(slot);
        let command = Command {
            id: key as u64,
            kind,
            offset: request.offset,
            len: request.len,
            fua: request.flags.fua,
        };
        let now_ns = self.rt.now().as_ns();
        self.model.borrow_mut().submit(now_ns, command);
        self.set_alarm();
        Ticket {
            state: Rc::clone(self),
            key,
        }
    }

    /// Advances the model to the current time and wakes finished requests.
    fn run(&self) {
        let mut finished = self.finished.take();
        let now_ns = self.rt.now().as_ns();
        self.note_lateness(now_ns);
        self.model.borrow_mut().advance(now_ns, &mut finished);
        for id in finished.drain(..) {
            self.finish(id as usize);
        }
        self.finished.replace(finished);
        self.alarm_at.set(Instant::MAX);
        self.set_alarm();
    }

    /// Records how late the model's next event is handled, if the event is due.
    fn note_lateness(&self, now_ns: u64) {
        let due_ns = self.model.borrow().next_event_ns();
        if let Some(late_ns) = due_ns.and_then(|due_ns| now_ns.checked_sub(due_ns)) {
            let mut lateness = self.lateness.get();
            lateness.add(late_ns);
            self.lateness.set(lateness);
        }
    }

    fn finish(&self, key: usize) {
        let mut slots = self.slots.borrow_mut();
        match std::mem::replace(&mut slots[key].stage, Stage::Done) {
            // Waking while the slots are borrowed is safe: a waker only pushes onto the ready
            // queue.
            Stage::Waiting(waker) => {
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Stage::Orphan => drop(slots.remove(key)),
            Stage::Done => panic!("a model finishes a command once"),
        }
    }

    /// Sets the alarm for the model's next event. If an earlier alarm is set, it is left unchanged:
    /// when it fires, the pump (the task that advances the model) finds no event and sets a new
    /// alarm.
    fn set_alarm(&self) {
        let Some(next_ns) = self.model.borrow().next_event_ns() else {
            return;
        };
        let at = Instant::from_ns(next_ns);
        if self.alarm_at.get() <= at {
            return;
        }
        let pump = self.pump.borrow();
        // Before its first poll, the pump (the task that advances the model) has no waker that a
        // timer could wake. The first poll sets the alarm, so nothing is to be done here.
        let Some(pump) = pump.as_ref() else { return };
        let mut sleep = self.rt.sleep_until(at);
        // The timer is polled here with the waker of the pump, so that the timer wakes the pump.
        // Otherwise the pump itself would have to be polled for each request.
        if Pin::new(&mut sleep)
            .poll(&mut Context::from_waker(pump))
            .is_ready()
        {
            pump.wake_by_ref();
        }
        self.alarm_at.set(at);
        self.alarm.replace(Some(sleep));
    }
}

/// Future of a request inside the model. It completes when the model has finished the command.
struct Ticket {
    state: Rc<TimingState>,
    key: usize,
}

impl Future for Ticket {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.state.slots.borrow_mut()[self.key].stage {
            Stage::Done => Poll::Ready(()),
            Stage::Waiting(Some(waker)) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            Stage::Waiting(empty) => {
                *empty = Some(context.waker().clone());
                Poll::Pending
            }
            Stage::Orphan => unreachable!("only a dropped ticket leaves an orphan"),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut slots = self.state.slots.borrow_mut();
        if matches!(slots[self.key].stage, Stage::Done) {
            slots.remove(self.key);
        } else {
            slots[self.key].stage = Stage::Orphan;
        }
    }
}

/// A device with the timing of a model; see the module.
pub struct Timing {
    of: ModelType,
    below: Rc<dyn Device>,
    geometry: Geometry,
    state: Rc<TimingState>,
    closed: Cell<bool>,
    /// Task that runs as long as the device exists.
    _pump: Task<()>,
}

impl Timing {
    /// Creates a device with the data of `below` and the timing of a new modelled device. The model
    /// has these parameters and draws its random durations from `seed`.
    ///
    /// # Errors
    /// A parameter out of range.
    pub fn new(
        rt: &Rt,
        below: Rc<dyn Device>,
        parameters: &Parameters,
        seed: u64,
    ) -> Result<Timing, ModelError> {
        let size_bytes = below.geometry().size_bytes;
        let of = match parameters {
            Parameters::Ssd(_) => ModelType::Ssd,
            Parameters::Hdd(_) => ModelType::Hdd,
            Parameters::Network(_) => ModelType::Network,
            Parameters::Flash(_) => ModelType::Flash,
        };
        let model = parameters.build(size_bytes, seed)?;
        let state = Rc::new(TimingState {
            rt: rt.clone(),
            model: RefCell::new(model),
            slots: RefCell::new(Slab::with_capacity(64)),
            pump: RefCell::new(None),
            alarm: RefCell::new(None),
            alarm_at: Cell::new(Instant::MAX),
            finished: RefCell::new(Vec::new()),
            places: Semaphore::new(QUEUE_COMMANDS_MAX as u64),
            lateness: Cell::default(),
        });
        Ok(Timing {
            of,
            geometry: geometry_of(of, below.geometry()),
            below,
            _pump: rt.spawn(pump(Rc::downgrade(&state))),
            state,
            closed: Cell::new(false),
        })
    }

    /// Returns the counters of the modelled device.
    pub fn counters(&self) -> ModelCounters {
        self.state.model.borrow().counters()
    }

    /// Returns the delay with which the device has handled the events of the model.
    pub fn lateness(&self) -> Lateness {
        self.state.lateness.get()
    }

    /// Returns the number of commands that the model has not finished, including commands whose
    /// requests were dropped.
    pub fn in_flight(&self) -> usize {
        self.state.slots.borrow().len()
    }

    async fn run(&self, kind: CommandKind, request: Request) -> IoResult {
        let state = &self.state;
        let place = state.places.acquire(1).await;
        let ticket = state.start(kind, &request, place);
        let result = self.below.submit(request).await;
        ticket.await;
        result
    }
}

/// The pump, a task that advances the model to the current time at every wake-up. The pump holds
/// only a weak reference to the state, because the state holds the waker of the pump.
async fn pump(state: Weak<TimingState>) {
    std::future::poll_fn(|context| {
        let Some(state) = state.upgrade() else {
            return Poll::Ready(());
        };
        state
            .pump
            .borrow_mut()
            .get_or_insert_with(|| context.waker().clone());
        state.run();
        Poll::Pending
    })
    .await;
}

fn geometry_of(of: ModelType, below: &Geometry) -> Geometry {
    match of {
        ModelType::Ssd | ModelType::Network | ModelType::Flash => Geometry {
            rotational: false,
            ..*below
        },
        ModelType::Hdd => Geometry {
            rotational: true,
            wants_discards: false,
            preferred_bytes: below.preferred_bytes.max(DISK_PREFERRED_BYTES),
            ..*below
        },
    }
}

/// Returns the model's command for an operation, or `None` for an operation that takes no time.
fn command_kind(op: Op) -> Option<CommandKind> {
    match op {
        Op::Read => Some(CommandKind::Read),
        Op::Write => Some(CommandKind::Write),
        Op::Flush => Some(CommandKind::Flush),
        Op::Discard => Some(CommandKind::Discard),
        Op::WriteZeroes => Some(CommandKind::WriteZeroes),
        Op::Extents => None,
    }
}

impl Device for Timing {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if self.closed.get() {
            return IoFuture::ready(Err(IoError::Closed));
        }
        if let Err(error) = self.geometry.check(&request) {
            return IoFuture::ready(Err(error));
        }
        let nothing = request.len == 0 && request.op != Op::Flush;
        match command_kind(request.op) {
            Some(kind) if !nothing => IoFuture::new(self.run(kind, request)),
            _ => self.below.submit(request),
        }
    }

    /// Waits until the modelled device is idle, including commands whose requests were dropped.
    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async {
            self.closed.set(true);
            let state = &self.state;
            // Wait until no request is left in the model. Dropped requests can still hold permits,
            // so all permits are acquired.
            drop(state.places.acquire(QUEUE_COMMANDS_MAX as u64).await);
            Ok(())
        })
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let counters = self.counters();
        out.statistic(
            "",
            "in_flight_requests",
            Statistic::Gauge(self.in_flight() as f64),
        );
        let lateness = self.lateness();
        out.statistic("", "late_ns_max", Statistic::Gauge(lateness.max_ns as f64));
        let mut count = |name, value| out.statistic("", name, Statistic::Counter(value));
        count("late_events", lateness.events);
        count("late_ns", lateness.total_ns);
        match self.of {
            ModelType::Ssd => {
                count("freezes", counters.freezes);
                count("frozen_ns", counters.frozen_ns);
                count("stalls", counters.stalls);
                count("stalled_ns", counters.stalled_ns);
                count("reclaimed_bytes", counters.reclaimed_bytes);
                count("slc_written_bytes", counters.slc_written_bytes);
                count("slc_folded_bytes", counters.slc_folded_bytes);
            }
            ModelType::Hdd => {
                count("seeks", counters.seeks);
                count("seek_distance_bytes", counters.seek_distance_bytes);
                count("positioning_ns", counters.positioning_ns);
                count("cache_read_hits", counters.cache_read_hits);
                count("cached_writes", counters.cached_writes);
                count("destages", counters.destages);
                count("bands_cleaned", counters.bands_cleaned);
                count("cleaning_ns", counters.cleaning_ns);
            }
            ModelType::Network => {
                count("token_waits", counters.token_waits);
                count("token_wait_ns", counters.token_wait_ns);
                count("spikes", counters.spikes);
            }
            ModelType::Flash => {
                count("freezes", counters.freezes);
                count("frozen_ns", counters.frozen_ns);
                count("flash_programs", counters.flash_programs);
                count("flash_copied_pages", counters.flash_copied_pages);
                count("flash_padded_pages", counters.flash_padded_pages);
                count("flash_map_programs", counters.flash_map_programs);
                count("flash_erases", counters.flash_erases);
                count("flash_merges", counters.flash_merges);
                count(
                    "flash_background_cleanings",
                    counters.flash_background_cleanings,
                );
            }
        }
    }
}
