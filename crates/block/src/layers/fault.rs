//! Devices that fail on purpose: `type = "delay"` and `type = "error"` of a configuration, and a
//! [switch](FaultControl) for tests that freeze, slow down or break a device while it runs.
//!
//! A request passes these stages in order:
//!
//! 1. It waits while the device is frozen. It fails if the device is broken, or if it was chosen to
//!    fail by [`FaultControl::fail_next`].
//! 2. It waits for its delay.
//! 3. If the error rule (of `type = "error"`) selects the request, the request hangs for the
//!    configured time. It then fails, unless the rule is `late`.
//! 4. The device below executes it.
//! 5. It waits for the slowdown, and again while the device is frozen.
//! 6. If a `late` rule has selected the request, the request fails although it was executed, like a
//!    write whose answer was lost.
//!
//! A frozen device neither accepts requests nor answers requests that it has accepted. The layer
//! must never lose or change data by itself, and all its randomness comes from its seed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::sync::Event;
use bimetal_rt::{Instant, Rng, Rt};
use serde::{Deserialize, Deserializer};

use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{IoResult, Op, PerOp, Request};
use crate::units::{Size, Time};

/// The configuration of `type = "delay"`: the delay added to each operation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayConfig {
    /// Name of the device below, as in the configuration.
    pub below: String,
    /// Delay added to every read.
    pub read: Option<Time>,
    /// Delay added to every write.
    pub write: Option<Time>,
    /// Delay added to every flush.
    pub flush: Option<Time>,
    /// Delay added to every discard.
    pub discard: Option<Time>,
    /// Delay added to every write-zeroes.
    pub write_zeroes: Option<Time>,
    /// Delay added to every extents request.
    pub extents: Option<Time>,
    /// Upper limit of the random time that is added to each configured delay. The random time is
    /// uniformly distributed from 0. Operations without a delay are not affected.
    pub jitter: Option<Time>,
    /// Seed of the jitter; by default derived from the runtime's seed and the device's name.
    pub seed: Option<u64>,
}

impl DelayConfig {
    /// Returns the faults that this configuration asks for.
    pub fn plan(&self) -> FaultPlan {
        let mut plan = FaultPlan::default();
        let duration = |time: Option<Time>| time.map_or(Duration::ZERO, |t| t.0);
        for op in Op::ALL {
            plan.delays[op] = duration(match op {
                Op::Read => self.read,
                Op::Write => self.write,
                Op::Flush => self.flush,
                Op::Discard => self.discard,
                Op::WriteZeroes => self.write_zeroes,
                Op::Extents => self.extents,
            });
        }
        plan.jitter = duration(self.jitter);
        plan
    }
}

/// The configuration of `type = "error"`: which requests fail or hang, and how.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorConfig {
    /// Name of the device below, as in the configuration.
    pub below: String,
    /// Error with which affected requests fail; without an error they only hang.
    pub code: Option<IoError>,
    /// Affected operations; all by default.
    pub ops: Option<Vec<Op>>,
    /// Probability, 0 to 1, with which a matching request is affected. If neither `probability` nor
    /// `nth` is given, all matching requests are affected.
    pub probability: Option<f64>,
    /// If given, every n-th matching request is affected.
    pub nth: Option<u64>,
    /// Affects only requests that touch bytes at or after this offset.
    pub from: Option<Size>,
    /// Affects only requests that touch bytes before this offset.
    pub to: Option<Size>,
    /// Time after the opening of the device before which no request is affected.
    pub after: Option<Time>,
    /// Length of the period in which requests are affected; unlimited by default.
    #[serde(rename = "for")]
    pub lasting: Option<Time>,
    /// Time for which affected requests hang before they fail or continue: a time, or `"forever"`.
    pub hang: Option<Hang>,
    /// Whether affected requests are executed before they fail, as when an answer is lost.
    #[serde(default)]
    pub late: bool,
    /// Seed of the random choice of requests; by default derived from the runtime's seed and the
    /// device's name.
    pub seed: Option<u64>,
}

impl ErrorConfig {
    /// Checks that the keys are consistent with each other.
    ///
    /// # Errors
    /// A message that names the wrong keys.
    pub fn check(&self) -> Result<(), String> {
        let range = self.range();
        let wrong = if self.code.is_none() && self.hang.is_none() {
            "needs a `code` to fail with, or a `hang`"
        } else if self.probability.is_some() && self.nth.is_some() {
            "takes `probability` or `nth`, not both"
        } else if self.probability.is_some_and(|p| !(0.0..=1.0).contains(&p)) {
            "`probability` must be from 0 to 1"
        } else if self.nth == Some(0) {
            "`nth` must be at least 1"
        } else if range.is_empty() {
            "`from` must be below `to`"
        } else if self.late && self.code.is_none() {
            "`late` needs a `code` to fail with"
        } else {
            return Ok(());
        };
        Err(wrong.to_owned())
    }

    fn range(&self) -> Range<u64> {
        self.from.map_or(0, |s| s.0)..self.to.map_or(u64::MAX, |s| s.0)
    }

    /// Returns the faults that this configuration asks for.
    pub fn plan(&self) -> FaultPlan {
        let ranged = self.from.is_some() || self.to.is_some();
        let rule = ErrorRule {
            error: self.code,
            ops: self.ops.clone().unwrap_or_else(|| Op::ALL.to_vec()),
            choice: match (self.probability, self.nth) {
                (Some(probability), _) => Choice::Probability(probability),
                (None, Some(nth)) => Choice::Nth(nth),
                (None, None) => Choice::All,
            },
            range: ranged.then(|| self.range()),
            after: self.after.map_or(Duration::ZERO, |t| t.0),
            lasting: self.lasting.map_or(Duration::MAX, |t| t.0),
            hang: self.hang,
            late: self.late,
        };
        FaultPlan {
            rule: Some(rule),
            ..FaultPlan::default()
        }
    }
}

/// Time that a request hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// Hangs for this time.
    For(Duration),
    /// Hangs until the device is closed.
    Forever,
}

impl<'de> Deserialize<'de> for Hang {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hang, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "forever" {
            return Ok(Hang::Forever);
        }
        let time = crate::units::parse_time(&text).map_err(serde::de::Error::custom)?;
        Ok(Hang::For(time.0))
    }
}

/// Selection among the requests to which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// All matching requests.
    All,
    /// Each matching request with this probability.
    Probability(f64),
    /// The n-th matching request, the 2n-th and so on.
    Nth(u64),
}

/// A rule that makes requests fail or hang.
#[derive(Clone, Debug)]
pub struct ErrorRule {
    /// Error with which affected requests fail; `None` if they only hang.
    pub error: Option<IoError>,
    /// Affected operations.
    pub ops: Vec<Op>,
    /// Selection among the matching requests.
    pub choice: Choice,
    /// Byte range that a request must touch to be affected; a flush touches no range. `None` means
    /// any request.
    pub range: Option<Range<u64>>,
    /// Time after the opening of the device at which the rule begins to apply.
    pub after: Duration,
    /// Length of the period in which the rule applies.
    pub lasting: Duration,
    /// Time for which affected requests hang before they fail or continue.
    pub hang: Option<Hang>,
    /// Whether affected requests fail only after they were executed.
    pub late: bool,
}

/// Faults that a [`Fault`] injects from its start.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Delay before each operation is forwarded.
    pub delays: PerOp<Duration>,
    /// Upper limit of the random time that is added to each delay. Operations without a delay are
    /// not affected.
    pub jitter: Duration,
    /// Rule that makes requests fail or hang.
    pub rule: Option<ErrorRule>,
}

/// The switch of a [`Fault`]: changes the behaviour of the device while it runs, with immediate
/// effect.
#[derive(Default)]
pub struct FaultControl {
    frozen: Cell<bool>,
    closed: Cell<bool>,
    error: Cell<Option<IoError>>,
    /// Slowdown factor minus 1, so that 0 is normal speed.
    slowdown: Cell<f64>,
    delays: PerOp<Cell<Duration>>,
    fail_next: RefCell<PerOp<VecDeque<IoError>>>,
    changed: Event,
    inside: Cell<u64>,
    left: Event,
}

impl FaultControl {
    /// Freezes or thaws the device. A frozen device accepts no request and answers none, not even
    /// requests that the device below has finished.
    pub fn set_frozen(&self, frozen: bool) {
        self.frozen.set(frozen);
        self.changed.notify();
    }

    /// Returns true while the device is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen.get()
    }

    /// Fails every request with `error`, as when a device is removed. New requests and requests
    /// that are frozen, delayed or hanging fail immediately. Requests inside the device below fail
    /// as soon as it has answered them. `None` ends the failure.
    pub fn set_error(&self, error: Option<IoError>) {
        self.error.set(error);
        self.changed.notify();
    }

    /// Makes the next request of `op` that arrives fail with `error`. Each call adds one request
    /// that fails.
    pub fn fail_next(&self, op: Op, error: IoError) {
        self.fail_next.borrow_mut()[op].push_back(error);
    }

    /// Makes every request take `factor` times as long, including its delay; 1 is normal speed.
    ///
    /// # Panics
    /// When the factor is below 1.
    pub fn set_slowdown(&self, factor: f64) {
        assert!(factor >= 1.0, "a device is not sped up by a fault");
        self.slowdown.set(factor - 1.0);
    }

    /// Sets the delay of every request of `op` that arrives after this call.
    pub fn set_delay(&self, op: Op, delay: Duration) {
        self.delays[op].set(delay);
    }

    /// Returns the number of requests that the device has not answered.
    pub fn inside(&self) -> u64 {
        self.inside.get()
    }

    /// Returns the error with which requests currently fail, if any.
    fn broken(&self) -> Option<IoError> {
        let closed = self.closed.get().then_some(IoError::Closed);
        self.error.get().or(closed)
    }

    /// Waits while the device is frozen.
    async fn thawed(&self) -> Result<(), IoError> {
        self.changed
            .until_some(|| match self.broken() {
                Some(error) => Some(Err(error)),
                None => (!self.frozen.get()).then_some(Ok(())),
            })
            .await
    }

    /// Waits until the device is broken.
    async fn until_broken(&self) -> IoError {
        self.changed.until_some(|| self.broken()).await
    }

    fn slowed(&self, duration: Duration) -> Duration {
        let extra_ns = duration.as_nanos() as f64 * self.slowdown.get();
        duration + Duration::from_nanos(extra_ns as u64)
    }
}

/// Guard that counts a request from its arrival until it is answered or dropped.
struct Inside<'a>(&'a FaultControl);

impl<'a> Inside<'a> {
    fn enter(control: &'a FaultControl) -> Inside<'a> {
        control.inside.set(control.inside.get() + 1);
        Inside(control)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.set(self.0.inside.get() - 1);
        self.0.left.notify();
    }
}

/// A device with injected faults; see the module.
pub struct Fault {
    rt: Rt,
    below: Rc<dyn Device>,
    control: Rc<FaultControl>,
    jitter: Duration,
    rule: Option<ErrorRule>,
    opened: Instant,
    rng: RefCell<Rng>,
    matched: Cell<u64>,
    delayed_requests: Cell<u64>,
    failed_requests: Cell<u64>,
    hung_requests: Cell<u64>,
}

fn add_one(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl Fault {
    /// Creates a layer over `below`. The layer draws all its random choices from `seed`.
    pub fn new(rt: &Rt, below: Rc<dyn Device>, plan: FaultPlan, seed: u64) -> Fault {
        let control = FaultControl::default();
        for op in Op::ALL {
            control.set_delay(op, plan.delays[op]);
        }
        Fault {
            rt: rt.clone(),
            below,
            control: Rc::new(control),
            jitter: plan.jitter,
            rule: plan.rule,
            opened: rt.now(),
            rng: RefCell::new(Rng::new(seed)),
            matched: Cell::new(0),
            delayed_requests: Cell::new(0),
            failed_requests: Cell::new(0),
            hung_requests: Cell::new(0),
        }
    }

    /// Returns the switch of this device.
    pub fn control(&self) -> Rc<FaultControl> {
        Rc::clone(&self.control)
    }

    async fn run(&self, request: Request) -> IoResult {
        let inside = Inside::enter(&self.control);
        let result = self.misbehave(request).await;
        if result.is_err() {
            add_one(&self.failed_requests);
        }
        drop(inside);
        result
    }

    async fn misbehave(&self, request: Request) -> IoResult {
        let control = &self.control;
        control.thawed().await?;
        let chosen = control.fail_next.borrow_mut()[request.op].pop_front();
        if let Some(error) = chosen {
            return Err(error);
        }
        self.delay(request.op).await?;
        let strike = self.strike(&request);
        if let Some(hang) = strike.and_then(|rule| rule.hang) {
            self.hang(hang).await?;
        }
        let error = strike.and_then(|rule| rule.error);
        let late = strike.is_some_and(|rule| rule.late);
        match error {
            Some(error) if !late => Err(error),
            _ => {
                let before = self.rt.now();
                let result = self.below.submit(request).await;
                let took = self.rt.now().since(before);
                self.wait(control.slowed(took) - took).await?;
                control.thawed().await?;
                error.map_or(result, Err)
            }
        }
    }

    async fn delay(&self, op: Op) -> Result<(), IoError> {
        let delay = self.control.delays[op].get();
        if delay.is_zero() {
            return Ok(());
        }
        add_one(&self.delayed_requests);
        let jitter_ns = u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX);
        let jitter = Duration::from_nanos(self.rng.borrow_mut().between(0, jitter_ns));
        self.wait(self.control.slowed(delay + jitter)).await
    }

    async fn hang(&self, hang: Hang) -> Result<(), IoError> {
        add_one(&self.hung_requests);
        match hang {
            Hang::For(duration) => self.wait(duration).await,
            Hang::Forever => Err(self.control.until_broken().await),
        }
    }

    /// Waits for `duration`. Returns an error if the device is broken before that.
    async fn wait(&self, duration: Duration) -> Result<(), IoError> {
        if duration.is_zero() {
            return Ok(());
        }
        match self.rt.timeout(duration, self.control.until_broken()).await {
            Ok(error) => Err(error),
            Err(bimetal_rt::Elapsed) => Ok(()),
        }
    }

    /// Returns the rule if it affects this request.
    fn strike(&self, request: &Request) -> Option<&ErrorRule> {
        let rule = self.rule.as_ref()?;
        let since = self.rt.now().since(self.opened);
        let in_time = since >= rule.after && since - rule.after < rule.lasting;
        let in_range = rule
            .range
            .as_ref()
            .is_none_or(|r| request.offset < r.end && r.start < request.end());
        if !in_time || !in_range || !rule.ops.contains(&request.op) {
            return None;
        }
        add_one(&self.matched);
        let struck = match rule.choice {
            Choice::All => true,
            Choice::Probability(probability) => self.rng.borrow_mut().chance(probability),
            Choice::Nth(nth) => self.matched.get().is_multiple_of(nth),
        };
        struck.then_some(rule)
    }
}

impl Device for Fault {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if let Err(error) = self.below.geometry().check(&request) {
            return IoFuture::ready(Err(error));
        }
        IoFuture::new(self.run(request))
    }

    /// Fails delayed, hanging and frozen requests with `Closed`, and waits for the other requests.
    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async {
            let control = &self.control;
            control.closed.set(true);
            control.changed.notify();
            control.left.until(|| control.inside() == 0).await;
            Ok(())
        })
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let mut count = |name, cell: &Cell<u64>| {
            out.statistic("", name, Statistic::Counter(cell.get()));
        };
        count("delayed_requests", &self.delayed_requests);
        count("hung_requests", &self.hung_requests);
        count("failed_requests", &self.failed_requests);
        let inside = self.control.inside() as f64;
        out.statistic("", "in_flight_requests", Statistic::Gauge(inside));
        let state = match (self.control.broken(), self.control.is_frozen()) {
            (Some(_), _) => "broken",
            (None, true) => "frozen",
            (None, false) => "normal",
        };
        out.statistic("", "state", Statistic::State(state.to_owned()));
    }
}
