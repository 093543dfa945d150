//! Devices that misbehave on purpose: `type = "delay"` and `type = "error"` of a configuration, and
//! a [switch](FaultControl) for tests that freeze, slow down or break a device while it runs.
//!
//! A request passes these points, in this order: frozen? - broken, or next to fail? - its delay -
//! the rule (hang, fail before) - the device below - slowed down? - frozen again? - the rule (fail
//! after). A frozen device neither takes requests nor answers those it has taken. A request that
//! fails before does not reach the device below; one that fails after has been carried out there,
//! as a write whose answer was lost.
//!
//! It must never lose or change data by itself, and nothing in it is random but by its seed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::sync::Event;
use bimetal_rt::{Instant, Rng, Rt};
use serde::{Deserialize, Deserializer};

use crate::device::{Device, Figure, FigureVisitor, IoFuture, LocalFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{IoResult, Op, PerOp, Request};
use crate::units::{Size, Time};

/// The configuration of `type = "delay"`: what is added to each operation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayConfig {
    /// The device below, by its name in the file.
    pub below: String,
    /// Added to every read.
    pub read: Option<Time>,
    /// Added to every write.
    pub write: Option<Time>,
    /// Added to every flush.
    pub flush: Option<Time>,
    /// Added to every discard.
    pub discard: Option<Time>,
    /// Added to every write-zeroes.
    pub write_zeroes: Option<Time>,
    /// Added to every extents request.
    pub extents: Option<Time>,
    /// Up to this much more is added to each operation that has a delay, drawn evenly.
    pub jitter: Option<Time>,
    /// The seed of the jitter; by default split off the runtime's seed by the device's name.
    pub seed: Option<u64>,
}

impl DelayConfig {
    /// What the layer is to do.
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
    /// The device below, by its name in the file.
    pub below: String,
    /// The error they fail with; without it they only hang.
    pub code: Option<IoError>,
    /// The operations concerned; all if not given.
    pub ops: Option<Vec<Op>>,
    /// Each of them with this probability, 0 to 1; all if neither this nor `nth` is given.
    pub probability: Option<f64>,
    /// Every so many-th of them.
    pub nth: Option<u64>,
    /// Only requests that touch bytes from here on.
    pub from: Option<Size>,
    /// Only requests that touch bytes before this.
    pub to: Option<Size>,
    /// Only this long after the device was opened.
    pub after: Option<Time>,
    /// For this long from then on; for ever if not given.
    #[serde(rename = "for")]
    pub lasting: Option<Time>,
    /// How long they hang before they fail or go on: a time, or `"forever"`.
    pub hang: Option<Hang>,
    /// They are carried out and fail afterwards, as when an answer is lost.
    #[serde(default)]
    pub late: bool,
    /// The seed of the choice; by default split off the runtime's seed by the device's name.
    pub seed: Option<u64>,
}

impl ErrorConfig {
    /// Refuses rules that make no sense.
    ///
    /// # Errors
    /// What is wrong, in words.
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

    /// What the layer is to do.
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

/// How long a request hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// So long.
    For(Duration),
    /// Until the device is closed.
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

/// Which of the matching requests a rule strikes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Every one.
    All,
    /// Each with this probability.
    Probability(f64),
    /// The n-th, the 2n-th and so on.
    Nth(u64),
}

/// Which requests fail or hang.
#[derive(Clone, Debug)]
pub struct ErrorRule {
    /// What they fail with; `None`: they only hang.
    pub error: Option<IoError>,
    /// The operations concerned.
    pub ops: Vec<Op>,
    /// Which of those.
    pub choice: Choice,
    /// Only requests that touch this range; flushes touch none. `None`: any request.
    pub range: Option<Range<u64>>,
    /// Only this long after the device was opened.
    pub after: Duration,
    /// For how long from then on.
    pub lasting: Duration,
    /// How long they hang first.
    pub hang: Option<Hang>,
    /// They fail after they were carried out.
    pub late: bool,
}

/// What a [`Fault`] does from its start.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Added to each operation before it goes on.
    pub delays: PerOp<Duration>,
    /// Up to this much more for each operation with a delay.
    pub jitter: Duration,
    /// Which requests fail or hang.
    pub rule: Option<ErrorRule>,
}

/// The switch of a [`Fault`]: changes how it behaves while it runs, with immediate effect.
#[derive(Default)]
pub struct FaultControl {
    frozen: Cell<bool>,
    closed: Cell<bool>,
    error: Cell<Option<IoError>>,
    /// Beyond 1; so 0 is as fast as ever.
    slowdown: Cell<f64>,
    delays: PerOp<Cell<Duration>>,
    fail_next: RefCell<PerOp<VecDeque<IoError>>>,
    changed: Event,
    inside: Cell<u64>,
    left: Event,
}

impl FaultControl {
    /// Freezes the device or thaws it. While it is frozen it takes no request and answers none, not
    /// even those that the device below has finished.
    pub fn set_frozen(&self, frozen: bool) {
        self.frozen.set(frozen);
        self.changed.notify();
    }

    /// True while the device is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen.get()
    }

    /// Fails every request with `error`, as when a device is pulled: new ones, those that are
    /// frozen, delayed or hang, and those inside the device below as soon as it has answered;
    /// `None` ends it.
    pub fn set_error(&self, error: Option<IoError>) {
        self.error.set(error);
        self.changed.notify();
    }

    /// Fails the next request of `op` that arrives; called several times, so many of them.
    pub fn fail_next(&self, op: Op, error: IoError) {
        self.fail_next.borrow_mut()[op].push_back(error);
    }

    /// Makes everything take `factor` times as long, delays included; 1 is normal.
    ///
    /// # Panics
    /// When the factor is below 1.
    pub fn set_slowdown(&self, factor: f64) {
        assert!(factor >= 1.0, "a device is not sped up by a fault");
        self.slowdown.set(factor - 1.0);
    }

    /// Adds `delay` to every request of `op` that arrives from now on.
    pub fn set_delay(&self, op: Op, delay: Duration) {
        self.delays[op].set(delay);
    }

    /// Requests that the device has not answered.
    pub fn inside(&self) -> u64 {
        self.inside.get()
    }

    /// Why a request is to fail now, if it is.
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

/// Counts a request from arrival to answer, also when it is dropped.
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

/// See the module.
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
    /// A layer over `below`. Everything random in it is drawn from `seed`.
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

    /// The switch of this device.
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

    /// Waits so long, or until the device is broken.
    async fn wait(&self, duration: Duration) -> Result<(), IoError> {
        if duration.is_zero() {
            return Ok(());
        }
        match self.rt.timeout(duration, self.control.until_broken()).await {
            Ok(error) => Err(error),
            Err(bimetal_rt::Elapsed) => Ok(()),
        }
    }

    /// The rule, if it strikes this request.
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

    /// Ends what is delayed, hangs or is frozen with `Closed`, and waits for the rest.
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

    fn figures(&self, out: &mut dyn FigureVisitor) {
        let mut count = |name, cell: &Cell<u64>| {
            out.figure("", name, Figure::Counter(cell.get()));
        };
        count("delayed_requests", &self.delayed_requests);
        count("hung_requests", &self.hung_requests);
        count("failed_requests", &self.failed_requests);
        let inside = self.control.inside() as f64;
        out.figure("", "in_flight_requests", Figure::Gauge(inside));
        let state = match (self.control.broken(), self.control.is_frozen()) {
            (Some(_), _) => "broken",
            (None, true) => "frozen",
            (None, false) => "normal",
        };
        out.figure("", "state", Figure::State(state.to_owned()));
    }
}
