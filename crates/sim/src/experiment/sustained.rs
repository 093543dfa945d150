//! A mirror under a load that lasts longer than the logs of its sides, in virtual time: throughput
//! and latency in every second, and the bytes written to and read from each side.
//!
//! The caller chooses the devices, the spans and the loads, because a bound that holds for one load
//! says nothing about another. Every written block has content of its own, so nothing is saved by
//! treating blocks of zeroes specially.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::device::Device;
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::mirror::{Mirror, MirrorConfig};
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::model::{Parameters, profiles};
use bimetal_block::request::{Flags, Request};
use bimetal_block::{BLOCK_BYTES, Geometry};
use bimetal_rt::sync::{Permit, Semaphore, TaskGroup};
use bimetal_rt::{Buf, Instant, Rng, Rt, VirtualOptions};
use serde::Serialize;

use super::filling::{FILL_BYTES, fill};
use super::hetero::{ExperimentError, formatted, log_rounds};
use super::latency::LatencyHistogram;
use super::pattern::{Offsets, Pattern};
use super::reopening::{Killable, Opening, kill_and_open};
use super::sparse::{Sparse, Traffic, fill_block};

/// A modelled device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Modelled {
    /// Name of the profile.
    pub profile: String,
    /// Overrides of parameters, as lines of TOML; empty for none.
    pub overrides: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// Device that receives the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// A mirror of both devices.
    Mirror,
    /// The first device alone.
    Fast,
    /// The second device alone.
    Slow,
}

/// A run: the devices, the mirror on them, and the load.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The fast device and the slow device.
    pub devices: [Modelled; 2],
    /// Device that receives the load.
    pub target: Target,
    /// Length of the log on each side, in bytes; `None` for the default of `format`.
    pub log_bytes: Option<u64>,
    /// Keys of the mirror's configuration, as lines of TOML.
    pub settings: String,
    /// Part of the volume that the load writes to: its first bytes.
    pub span_bytes: u64,
    /// Whether the span is written once, in sequence, before the load.
    pub fill: bool,
    /// If set, only one write of the load's length is made before the load at each multiple of this
    /// number of bytes. So the metadata of a large volume is there without its content.
    pub fill_step_bytes: Option<u64>,
    /// Whether the program of the mirror is killed before the load, and the mirror opened again.
    pub kill: bool,
    /// Index in `devices` of the device without which the mirror is opened: it has one copy then.
    /// `None` if it has both.
    pub absent: Option<usize>,
    /// Time in which the slow device answers nothing; `None` for never.
    pub silent: Option<SilentTime>,
    /// The load.
    pub load: SustainedLoad,
}

/// Time in which a device answers nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SilentTime {
    /// Seconds from the start of the load to the beginning.
    pub from_s: u64,
    /// Length in seconds.
    pub seconds: u64,
}

/// A load of writes, or of reads.
#[derive(Clone, Debug, Serialize)]
pub struct SustainedLoad {
    /// Length of a write in bytes, or of a read.
    pub write_bytes: u64,
    /// Whether the load reads instead of writing. What is said of writes holds for reads then.
    pub reads: bool,
    /// Choice of the offsets.
    pub pattern: Pattern,
    /// Average number of writes that arrive per second, as a Poisson process. `None` for a closed
    /// load: each completed write is followed by the next one.
    pub writes_per_s: Option<u64>,
    /// Maximum number of outstanding writes.
    pub outstanding_max: u64,
    /// If set, a flush follows each n-th write, and the slot of that write stays taken until the
    /// flush has completed.
    pub flush_every: Option<u64>,
    /// Duration in seconds of virtual time.
    pub seconds: u64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Sustained {
    /// Writes completed per second, over the whole load.
    pub done_per_s: f64,
    /// Writes completed per second in the last quarter of the load.
    pub sustained_per_s: f64,
    /// Response times of the writes.
    pub writes: Latencies,
    /// Response times of the flushes; `None` without flushes.
    pub flushes: Option<Latencies>,
    /// Longest time without a completion while a request was outstanding, in milliseconds.
    pub longest_gap_ms: f64,
    /// Maximum number of acknowledged bytes that at least one side lacked; zero without a mirror.
    pub exposed_bytes_peak: u64,
    /// Bytes written to the log of a side, divided by the length of that log: the lowest value of
    /// all sides. Zero without logs.
    pub log_rounds: f64,
    /// What the opening after the kill took; `None` without a kill.
    pub opening: Option<Opening>,
    /// What became of the silence of the slow device; `None` without one, and without a mirror.
    pub silence: Option<SilenceResult>,
    /// Bytes that the devices received and returned during the load.
    pub sides: Vec<SideTraffic>,
    /// The load second by second.
    pub seconds: Vec<Second>,
}

/// What became of the silence of the slow device.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SilenceResult {
    /// Number of times that the slow side was ejected because it was silent.
    pub ejections: u64,
    /// Seconds from the end of the silence until both sides were healthy; `None` if they were not
    /// before the end of the load.
    pub whole_after_s: Option<f64>,
}

/// Response times in milliseconds. If the load has an arrival rate, the time of a request begins at
/// its arrival, so it includes the wait for a slot. In a closed load, it begins when the request
/// starts.
#[derive(Clone, Debug, Serialize)]
pub struct Latencies {
    /// Number of completed requests.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 99 % quantile.
    pub p99_ms: f64,
    /// 99.9 % quantile.
    pub p999_ms: f64,
    /// Maximum.
    pub max_ms: f64,
}

/// Traffic of a device during the load.
#[derive(Clone, Debug, Serialize)]
pub struct SideTraffic {
    /// Name of the device.
    pub name: String,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes written for each byte that clients wrote.
    pub written_share: f64,
    /// Bytes read.
    pub read_bytes: u64,
}

/// One second of the load.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Second {
    /// Number of writes completed.
    pub done: u64,
    /// Mean response time of the writes completed, in milliseconds; zero without any.
    pub mean_ms: f64,
    /// Longest response time of the writes completed, in milliseconds.
    pub max_ms: f64,
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The span is being filled before the load.
    Filling {
        /// Bytes written so far.
        done_bytes: u64,
        /// Bytes of the span.
        all_bytes: u64,
    },
    /// The load is running.
    Loading {
        /// Seconds of virtual time that have passed since its start.
        done_s: u64,
        /// Seconds of virtual time that it lasts.
        all_s: u64,
    },
}

/// Runs the load. Calls `progress` as the run proceeds.
///
/// # Errors
/// If a device or a setting does not exist, or if the span and the writes do not fit the volume.
pub fn run(
    setting: &Setting,
    progress: impl Fn(Progress) + 'static,
) -> Result<Sustained, ExperimentError> {
    let rt = Rt::virtual_time(VirtualOptions {
        seed: setting.load.seed,
        shuffle: false,
    });
    let mut built = build(&rt, setting)?;
    check(setting, built.device.geometry())?;
    let device = Rc::clone(&built.device);
    let load = Rc::new(Running::new(&rt, setting, device, Box::new(progress)));
    if setting.fill {
        rt.block_on(load.fill(setting));
    }
    let opening = match setting.kill {
        true => Some(rt.block_on(built.kill(&rt, &load))?),
        false => None,
    };
    let before = built.traffic();
    let silence = setting.silent.map(|silent| {
        rt.spawn(be_silent(
            rt.clone(),
            built.clone(),
            silent,
            Rc::clone(&load),
        ))
    });
    rt.block_on(Rc::clone(&load).drive());
    if let Some(silence) = silence {
        rt.block_on(silence.cancel());
    }
    let result = Sustained {
        opening,
        ..load.result(setting, &built, &before)
    };
    // The backlog of a mirror can be long, so the run ends without draining it.
    rt.end();
    Ok(result)
}

fn check(setting: &Setting, volume: &Geometry) -> Result<(), ExperimentError> {
    let (span, write) = (setting.span_bytes, setting.load.write_bytes);
    let volume_bytes = volume.size_bytes;
    let write_bytes_max = u64::from(volume.transfer_bytes_max);
    let refuse = |why: String| Err(ExperimentError::Load(why));
    if write == 0 || !write.is_multiple_of(BLOCK_BYTES) {
        return refuse(format!(
            "a write of {write} bytes: expected a multiple of {BLOCK_BYTES}"
        ));
    }
    if write > write_bytes_max {
        return refuse(format!(
            "a write of {write} bytes: the device takes at most {write_bytes_max}"
        ));
    }
    let load = &setting.load;
    if load.seconds == 0
        || load.outstanding_max == 0
        || load.writes_per_s == Some(0)
        || load.flush_every == Some(0)
    {
        return refuse("a load has at least one second, write and write per flush".to_owned());
    }
    if let Some(step) = setting.fill_step_bytes
        && (step < write || !step.is_multiple_of(BLOCK_BYTES))
    {
        return refuse(format!(
            "a step of {step} bytes: expected a multiple of {BLOCK_BYTES} and of a write or more"
        ));
    }
    if setting.kill && setting.target != Target::Mirror {
        return refuse("only the program of a mirror can be killed".to_owned());
    }
    if setting.absent.is_some() && (setting.target != Target::Mirror || setting.kill) {
        return refuse("a device is absent from a mirror that is not killed".to_owned());
    }
    if !span.is_multiple_of(BLOCK_BYTES) {
        return refuse(format!(
            "a span of {span} bytes: expected a multiple of {BLOCK_BYTES}"
        ));
    }
    if span > volume_bytes {
        return refuse(format!(
            "a span of {span} bytes: the volume has {volume_bytes}"
        ));
    }
    if span < write {
        return refuse(format!("a span of {span} bytes: a write has {write}"));
    }
    Ok(())
}

/// Lets the slow device be silent, and notes when the volume is whole again.
async fn be_silent(rt: Rt, built: Built, silent: SilentTime, load: Rc<Running>) {
    rt.sleep(Duration::from_secs(silent.from_s)).await;
    built.slow.set_frozen(true);
    rt.sleep(Duration::from_secs(silent.seconds)).await;
    built.slow.set_frozen(false);
    let Some(mirror) = built.mirror else { return };
    let thawed = rt.now();
    while mirror.status().degraded {
        rt.sleep(Duration::from_millis(10)).await;
    }
    load.whole_after_s
        .set(Some(rt.now().since(thawed).as_secs_f64()));
}

/// The devices of a run.
#[derive(Clone)]
struct Built {
    device: Rc<dyn Device>,
    mirror: Option<Mirror>,
    /// What is needed to kill the program of the mirror.
    killable: Rc<Vec<Killable>>,
    config: Option<MirrorConfig>,
    /// Switch of the slow device.
    slow: Rc<FaultControl>,
    media: Vec<(String, Rc<Sparse>)>,
}

impl Built {
    /// Kills the program of the mirror, opens the mirror again, and gives it to the load.
    async fn kill(&mut self, rt: &Rt, load: &Running) -> Result<Opening, ExperimentError> {
        let read = |of: &Built| of.traffic().iter().map(|t| t.read_bytes).sum::<u64>();
        let before = read(self);
        let (Some(mirror), Some(config)) = (self.mirror.take(), &self.config) else {
            return Err(ExperimentError::Load("there is no mirror".to_owned()));
        };
        load.device.take();
        let (mirror, seconds) = kill_and_open(rt, (mirror, config), &self.killable).await?;
        self.device = Rc::new(mirror.clone());
        load.device.replace(Some(Rc::clone(&self.device)));
        self.mirror = Some(mirror);
        Ok(Opening {
            seconds,
            read_bytes: read(self) - before,
        })
    }

    fn traffic(&self) -> Vec<Traffic> {
        self.media
            .iter()
            .map(|(_, medium)| medium.traffic())
            .collect()
    }
}

fn build(rt: &Rt, setting: &Setting) -> Result<Built, ExperimentError> {
    let mut devices: Vec<Rc<dyn Device>> = Vec::new();
    let mut media = Vec::new();
    let (mut slow, mut killable, mut config) = (Rc::default(), Vec::new(), None);
    for (number, (of, name)) in setting.devices.iter().zip(["fast", "slow"]).enumerate() {
        let bytes = of.bytes / BLOCK_BYTES * BLOCK_BYTES;
        let medium = Rc::new(Sparse::new(rt, bytes));
        let seed = setting.load.seed + 1_000 * number as u64;
        let below: Rc<dyn Device> = Rc::clone(&medium) as Rc<dyn Device>;
        let timed: Rc<dyn Device> = Rc::new(Timing::new(rt, below, &parameters(of)?, seed)?);
        let mut device = timed;
        if number == 1 && setting.silent.is_some() {
            let switched = Fault::new(rt, device, FaultPlan::default(), seed);
            slow = switched.control();
            device = Rc::new(switched);
        }
        if setting.kill {
            let (of_program, lost) = Killable::over(rt, device);
            device = of_program;
            killable.push(lost);
        }
        devices.push(device);
        media.push((name.to_owned(), medium));
    }
    let alone = |number: usize| (Rc::clone(&devices[number]), None);
    let (device, mirror) = match setting.target {
        Target::Fast => alone(0),
        Target::Slow => alone(1),
        Target::Mirror => {
            let text = format!("sides = [\"fast\", \"slow\"]\n{}", setting.settings);
            let of_mirror: MirrorConfig = toml::from_str(&text)?;
            of_mirror.check().map_err(ExperimentError::Mirror)?;
            let of_mirror = config.insert(of_mirror);
            let (log_bytes, absent) = (setting.log_bytes, setting.absent);
            let mirror = formatted(rt, of_mirror, devices.clone(), log_bytes, absent);
            let mirror = rt.block_on(mirror);
            let mirror = mirror.map_err(|error| ExperimentError::Mirror(error.to_string()))?;
            let device: Rc<dyn Device> = Rc::new(mirror.clone());
            (device, Some(mirror))
        }
    };
    let used = match setting.target {
        Target::Mirror => 0..2,
        Target::Fast => 0..1,
        Target::Slow => 1..2,
    };
    Ok(Built {
        device,
        mirror,
        killable: Rc::new(killable),
        config,
        slow,
        media: media.drain(used).collect(),
    })
}

/// Returns the parameters of a modelled device.
fn parameters(of: &Modelled) -> Result<Parameters, ExperimentError> {
    let Some(profile) = profiles().iter().find(|p| p.name == of.profile) else {
        let known: Vec<&str> = profiles().iter().map(|profile| profile.name).collect();
        return Err(ExperimentError::UnknownProfile {
            name: of.profile.clone(),
            known: known.join(", "),
        });
    };
    let overrides: toml::Table = toml::from_str(&of.overrides)?;
    Ok(Parameters::from_profile(
        profile.of,
        profile.name,
        overrides,
    )?)
}

/// A load in progress.
struct Running {
    rt: Rt,
    /// The device that receives the load; `None` while the program is dead.
    device: RefCell<Option<Rc<dyn Device>>>,
    load: SustainedLoad,
    offsets: RefCell<Offsets>,
    rng: RefCell<Rng>,
    /// Stamp of the content of the last block written.
    stamp: Cell<u64>,
    begun_at: Cell<Instant>,
    ends_at: Cell<Instant>,
    writes: RefCell<LatencyHistogram>,
    flushes: RefCell<LatencyHistogram>,
    seconds: RefCell<Vec<Second>>,
    outstanding: Cell<u64>,
    /// Time of the last completion, or of the start of a request when none was outstanding.
    moved_at: Cell<Instant>,
    longest_gap_ns: Cell<u64>,
    whole_after_s: Cell<Option<f64>>,
    progress: Box<dyn Fn(Progress)>,
}

impl Running {
    fn new(
        rt: &Rt,
        setting: &Setting,
        device: Rc<dyn Device>,
        progress: Box<dyn Fn(Progress)>,
    ) -> Running {
        let load = setting.load.clone();
        let places = setting.span_bytes / load.write_bytes;
        Running {
            rt: rt.clone(),
            device: RefCell::new(Some(device)),
            offsets: RefCell::new(Offsets::new(load.pattern, places)),
            rng: RefCell::new(Rng::labelled(load.seed, "load")),
            stamp: Cell::new(0),
            begun_at: Cell::new(rt.now()),
            ends_at: Cell::new(rt.now()),
            writes: RefCell::default(),
            flushes: RefCell::default(),
            seconds: RefCell::new(vec![Second::default(); load.seconds as usize]),
            outstanding: Cell::new(0),
            moved_at: Cell::new(rt.now()),
            longest_gap_ns: Cell::new(0),
            whole_after_s: Cell::new(None),
            progress,
            load,
        }
    }

    /// Returns content of `bytes` bytes that was never written before.
    fn content(&self, bytes: u64) -> Buf {
        let mut data = vec![0; bytes as usize];
        for block in data.chunks_exact_mut(BLOCK_BYTES as usize) {
            self.stamp.set(self.stamp.get() + 1);
            fill_block(block, self.stamp.get());
        }
        self.rt.pool().copy_of(&data)
    }

    fn device(&self) -> Rc<dyn Device> {
        let device = self.device.borrow().clone();
        device.expect("the program runs")
    }

    /// Writes the span before the load, as the setting says.
    async fn fill(&self, setting: &Setting) {
        let all_bytes = setting.span_bytes;
        let content = |bytes| self.content(bytes);
        let told = |done_bytes| {
            (self.progress)(Progress::Filling {
                done_bytes,
                all_bytes,
            });
        };
        let (step, write) = match setting.fill_step_bytes {
            Some(step) => (step, self.load.write_bytes),
            None => (FILL_BYTES, FILL_BYTES),
        };
        let span = (all_bytes, step, write);
        fill(&self.rt, &self.device(), span, content, told).await;
    }

    async fn submit(&self, request: Request) {
        let result = self.device().submit(request).await;
        assert!(result.is_ok(), "the devices of this experiment do not fail");
    }

    /// Submits the load until its time has passed.
    async fn drive(self: Rc<Self>) {
        let start = self.rt.now();
        let end = start + Duration::from_secs(self.load.seconds);
        self.begun_at.set(start);
        self.ends_at.set(end);
        let slots = Semaphore::new(self.load.outstanding_max);
        let writers = TaskGroup::new(&self.rt);
        let told = self.rt.spawn(Rc::clone(&self).tell_progress());
        let (mut arrival_ns, mut number) = (0.0, 0);
        loop {
            let mut arrived = None;
            if let Some(rate) = self.load.writes_per_s {
                arrival_ns += self.rng.borrow_mut().exponential(1e9 / rate as f64);
                let arrival = start + Duration::from_nanos(arrival_ns as u64);
                self.rt.sleep_until(arrival.min(end)).await;
                arrived = Some(arrival);
            }
            let freed = self.rt.timeout(end.since(self.rt.now()), slots.acquire(1));
            let Ok(slot) = freed.await else { break };
            if self.rt.now() >= end {
                break;
            }
            number += 1;
            let flushes = self.load.flush_every.is_some_and(|n| number % n == 0);
            let arrived = arrived.unwrap_or(self.rt.now());
            writers.spawn(Rc::clone(&self).write(arrived, flushes, slot));
        }
        self.rt.sleep_until(end).await;
        told.cancel().await;
        self.note_gap();
    }

    /// Reports each second of the load.
    async fn tell_progress(self: Rc<Self>) {
        for done_s in 0..self.load.seconds {
            (self.progress)(Progress::Loading {
                done_s,
                all_s: self.load.seconds,
            });
            self.rt.sleep(Duration::from_secs(1)).await;
        }
    }

    async fn write(self: Rc<Self>, arrived: Instant, flushes: bool, slot: Permit) {
        if self.outstanding.get() == 0 {
            self.moved_at.set(self.rt.now());
        }
        self.outstanding.set(self.outstanding.get() + 1);
        let place = self.offsets.borrow_mut().draw(&mut self.rng.borrow_mut());
        let bytes = self.load.write_bytes;
        let request = match self.load.reads {
            true => Request::read(place * bytes, bytes),
            false => Request::write(place * bytes, self.content(bytes), Flags::NONE),
        };
        self.submit(request).await;
        self.completed(arrived);
        if flushes {
            let started = self.rt.now();
            self.submit(Request::flush()).await;
            if self.rt.now() <= self.ends_at.get() {
                let took_ns = self.rt.now().ns_since(started);
                self.flushes.borrow_mut().record(took_ns);
            }
            self.note_gap();
        }
        self.outstanding.set(self.outstanding.get() - 1);
        drop(slot);
    }

    /// Counts a write that has completed.
    fn completed(&self, arrived: Instant) {
        self.note_gap();
        let now = self.rt.now();
        if now > self.ends_at.get() {
            return;
        }
        let took_ns = now.ns_since(arrived);
        self.writes.borrow_mut().record(took_ns);
        let mut seconds = self.seconds.borrow_mut();
        let second = now.since(self.begun_at.get()).as_secs() as usize;
        let last = seconds.len() - 1;
        let second = &mut seconds[second.min(last)];
        let took_ms = took_ns as f64 / 1e6;
        second.done += 1;
        second.mean_ms += (took_ms - second.mean_ms) / second.done as f64;
        second.max_ms = second.max_ms.max(took_ms);
    }

    /// Notes the time since the last completion, if a request was outstanding.
    fn note_gap(&self) {
        let now = self.rt.now().min(self.ends_at.get());
        if self.outstanding.get() > 0 && now > self.moved_at.get() {
            let gap_ns = now.ns_since(self.moved_at.get());
            self.longest_gap_ns
                .set(self.longest_gap_ns.get().max(gap_ns));
        }
        self.moved_at.set(now);
    }

    fn result(&self, setting: &Setting, built: &Built, before: &[Traffic]) -> Sustained {
        let seconds = self.seconds.borrow().clone();
        let done = |seconds: &[Second]| seconds.iter().map(|s| s.done).sum::<u64>();
        let last = &seconds[seconds.len() * 3 / 4..];
        let all = done(&seconds);
        let client_bytes = (all * setting.load.write_bytes).max(1);
        let sides = built
            .media
            .iter()
            .zip(before)
            .map(|((name, medium), before)| {
                let now = medium.traffic();
                let written_bytes = now.written_bytes - before.written_bytes;
                SideTraffic {
                    name: name.clone(),
                    written_bytes,
                    written_share: written_bytes as f64 / client_bytes as f64,
                    read_bytes: now.read_bytes - before.read_bytes,
                }
            });
        let flushes = latencies(&self.flushes.borrow());
        Sustained {
            done_per_s: all as f64 / seconds.len() as f64,
            sustained_per_s: done(last) as f64 / last.len() as f64,
            writes: latencies(&self.writes.borrow()),
            flushes: self.load.flush_every.map(|_| flushes),
            longest_gap_ms: self.longest_gap_ns.get() as f64 / 1e6,
            exposed_bytes_peak: built
                .mirror
                .as_ref()
                .map_or(0, |mirror| mirror.status().exposed_bytes_peak),
            log_rounds: built.mirror.as_ref().map_or(0.0, log_rounds),
            opening: None,
            silence: setting.silent.and(built.mirror.as_ref()).map(|mirror| {
                let slow = &mirror.status().sides[1];
                SilenceResult {
                    ejections: slow.silences,
                    whole_after_s: self.whole_after_s.get(),
                }
            }),
            sides: sides.collect(),
            seconds,
        }
    }
}

fn latencies(of: &LatencyHistogram) -> Latencies {
    let at = |share| of.at_ns(share) as f64 / 1e6;
    Latencies {
        count: of.count(),
        mean_ms: of.mean_ns() / 1e6,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        max_ms: of.longest_ns() as f64 / 1e6,
    }
}

#[cfg(test)]
mod tests;
