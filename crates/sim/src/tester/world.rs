//! State that all parts of a run share: the model, the trace, the findings, and the checks that run
//! after operations and periodically.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::layers::mirror::{Mirror, MirrorStatus};
use bimetal_block::request::{IoResult, Op};
use bimetal_block::{BLOCK_BYTES, Device, IoError};
use bimetal_rt::{Instant, Payload, Rt};

use super::Options;
use super::ambush::Ambush;
use super::boundaries::Boundaries;
use super::classes::Class;
use super::content::{stamp_of, tail_of};
use super::corruption::{PlaceOn, Rule};
use super::disk::Around;
use super::plant::Plant;
use super::report::{Findings, Trace};
use super::scenario::Scenario;
use super::stack::SideStack;
use super::switch::FaultCounts;
use super::volume::{Volume, ZEROES};

/// An operation of a client in flight.
struct Operation {
    start: u64,
    at: Instant,
    what: String,
    /// True if corrupt copies were already a possible reason for a failure when the operation
    /// began.
    may_fail: bool,
}

/// State of one life of the program.
pub struct Program {
    /// Number of the life.
    pub life: usize,
    /// The volume.
    pub mirror: Mirror,
    /// Device that the clients use.
    pub top: Rc<dyn Device>,
    /// The sides.
    pub sides: Rc<Vec<SideStack>>,
    /// Time at which the volume was opened.
    pub opened: Instant,
    /// Time by which the last temporary fault has ended; `None` until the faults begin.
    pub calm_at: Cell<Option<Instant>>,
    /// Whether the program has begun to close the volume.
    pub closing: Cell<bool>,
    /// The ambush whose operation has begun, if there is one.
    pub ambush: Cell<Option<Ambush>>,
}

/// Shared state of a run; see the module.
pub struct World {
    /// The runtime.
    pub rt: Rt,
    /// Scenario that the seed drew.
    pub scenario: Scenario,
    /// Bug that is planted, if there is one.
    pub plant: Option<Plant>,
    /// Trace of all events.
    pub trace: Trace,
    /// The model.
    pub volume: Rc<RefCell<Volume>>,
    /// State that the disks share.
    pub around: Rc<Around>,
    /// Findings of the run.
    pub findings: Rc<Findings>,
    /// Sides that have lost their superblock. No operator rebuilds these sides, so the volume
    /// continues without them.
    pub blank: RefCell<BTreeSet<usize>>,
    /// The program that runs now.
    pub program: RefCell<Option<Rc<Program>>>,
    operations: RefCell<BTreeMap<String, u64>>,
    reached: RefCell<BTreeMap<String, u64>>,
    faults: Cell<FaultCounts>,
    in_flight: RefCell<BTreeMap<u64, Operation>>,
    next_id: Cell<u64>,
    acknowledged_early: Cell<u64>,
    ended: Cell<u64>,
}

impl Program {
    /// Returns the stamp that a side holds now for the unit at an offset of the volume. The unit is
    /// in the log of the side or at its home location.
    fn held(&self, stack: &SideStack, offset: u64, unit_bytes: u64) -> u64 {
        let side = self.sides.iter().position(|side| std::ptr::eq(side, stack));
        let side = side.expect("it is one of them");
        let inside = offset % BLOCK_BYTES;
        let place = self.mirror.place_on(side, offset - inside);
        place.map_or(ZEROES, |place| {
            stack
                .map()
                .unit_ends_at(place + inside, unit_bytes as usize)
                .0
        })
    }
}

impl World {
    /// Creates the state of a run before its first event.
    pub fn new(rt: &Rt, scenario: Scenario, options: Options) -> World {
        let findings = Rc::new(Findings::new(rt));
        let mut volume = Volume::new(scenario.units());
        if scenario.classes.has(Class::FirstAnswer) {
            volume.demand_final_answers();
        }
        let volume = Rc::new(RefCell::new(volume));
        let (span_bytes, unit_bytes) = (scenario.span_bytes, scenario.unit_bytes);
        let model = Rc::clone(&volume);
        let around = Around {
            findings: Rc::clone(&findings),
            boundaries: Rc::new(Boundaries::new(options.interference)),
            rule: Rc::new(Rule::new(model, scenario.steadfast, span_bytes, unit_bytes)),
            arrives_late: scenario.arrives_late,
            fenced: scenario.fenced,
            flushes_lose: scenario.superblocks,
        };
        World {
            rt: rt.clone(),
            trace: Trace::new(rt, options.verbose),
            volume,
            around: Rc::new(around),
            findings,
            blank: RefCell::default(),
            program: RefCell::new(None),
            operations: RefCell::default(),
            reached: RefCell::default(),
            faults: Cell::default(),
            in_flight: RefCell::default(),
            next_id: Cell::new(1),
            acknowledged_early: Cell::new(0),
            ended: Cell::new(0),
            plant: options.plant,
            scenario,
        }
    }

    /// Returns true if the program of the life `life` (one run of the program) is running: it has
    /// not been killed and has not closed the volume.
    pub fn is_running(&self, life: usize) -> bool {
        let running = self.program.borrow();
        let is_it = running.as_ref().is_some_and(|program| program.life == life);
        is_it && !self.around.boundaries.is_cut()
    }

    /// Returns the running program; `None` if no program runs or the power is cut.
    pub fn running(&self) -> Option<Rc<Program>> {
        let running = self.program.borrow().clone();
        running.filter(|_| !self.around.boundaries.is_cut())
    }

    /// Sets the running program, and forgets the operations in flight of the previous program.
    pub fn run_program(&self, program: Option<Rc<Program>>) {
        self.in_flight.borrow_mut().clear();
        self.acknowledged_early.set(0);
        let place_on = program.as_ref().map(|program| {
            let mirror = program.mirror.clone();
            Rc::new(move |side, offset| mirror.place_on(side, offset)) as Rc<PlaceOn>
        });
        self.around.rule.set_place_on(place_on);
        *self.program.borrow_mut() = program;
    }

    /// Returns the time within which every operation and every state change of the mirror must end,
    /// once all faults have ended.
    pub fn patience(&self) -> Duration {
        let profiles = self.scenario.sides.iter().any(|s| s.profile.is_some());
        let absent_after = Duration::from_nanos(self.scenario.mirror.absent_after_ns);
        Duration::from_secs(if profiles { 1_800 } else { 60 }) + 3 * absent_after
    }

    /// Returns the payload of a write: each unit is filled with its stamp and ends with the
    /// [tail](tail_of) of the stamp.
    pub fn stamped(&self, write: u64, units: &Range<usize>) -> Payload {
        let unit_bytes = self.scenario.unit_bytes as usize;
        let mut buf = self.rt.pool().alloc_now(units.len() * unit_bytes);
        for (bytes, unit) in buf.chunks_exact_mut(unit_bytes).zip(units.clone()) {
            let stamp = stamp_of(write, unit);
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&stamp.to_le_bytes());
            }
            bytes[unit_bytes - 8..].copy_from_slice(&tail_of(stamp, unit_bytes));
        }
        buf.freeze().into()
    }

    /// Records the start of an operation, and returns its identifier.
    pub fn started(&self, start: u64, op: Op, units: &Range<usize>) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let operation = Operation {
            start,
            at: self.rt.now(),
            what: format!("{id} ({} {units:?})", op.name()),
            may_fail: self.scenario.corrupts && self.copies_may_fail(units),
        };
        self.in_flight.borrow_mut().insert(id, operation);
        id
    }

    /// Records that an operation has ended or that its client has abandoned it. Returns true if, at
    /// the start of the operation, corrupt copies were already a possible reason for a failure.
    pub fn ended(&self, id: u64) -> bool {
        let operation = self.in_flight.borrow_mut().remove(&id);
        operation.is_some_and(|operation| operation.may_fail)
    }

    /// Returns the model time at which the oldest operation in flight started.
    pub fn oldest_start(&self) -> u64 {
        let in_flight = self.in_flight.borrow();
        let oldest = in_flight.values().map(|o| o.start).min();
        oldest.unwrap_or(u64::MAX)
    }

    /// Counts an operation by its kind and its outcome.
    pub fn count(&self, op: Op, fua: bool, result: &IoResult) {
        let failed = if result.is_err() { "failed " } else { "" };
        let fua = if fua { " with FUA" } else { "" };
        let kind = format!("{failed}{}{fua}", op.name());
        *self.operations.borrow_mut().entry(kind).or_default() += 1;
    }

    /// Returns the number of client operations by kind.
    pub fn operations(&self) -> BTreeMap<String, u64> {
        self.operations.borrow().clone()
    }

    /// Updates the counters of faults that belong to no single disk.
    pub fn count_faults(&self, change: impl FnOnce(&mut FaultCounts)) {
        let mut faults = self.faults.get();
        change(&mut faults);
        self.faults.set(faults);
    }

    /// Returns the counters of the faults that are not counted for each disk separately.
    pub fn faults(&self) -> FaultCounts {
        self.faults.get()
    }

    /// Counts one occurrence of a state of the run.
    pub fn reach(&self, state: &str) {
        let mut reached = self.reached.borrow_mut();
        match reached.get_mut(state) {
            Some(count) => *count += 1,
            None => {
                reached.insert(state.to_owned(), 1);
            }
        }
    }

    /// Returns the number of times that each state was reached.
    pub fn reached(&self) -> BTreeMap<String, u64> {
        self.reached.borrow().clone()
    }

    /// Returns true if the error can come from a degraded mirror that is configured to stop or to
    /// become read-only.
    pub fn may_refuse(&self, error: IoError) -> bool {
        let refusal = matches!(error, IoError::ReadOnly | IoError::Offline);
        refusal && self.scenario.mirror.on_degraded != "continue"
    }

    /// Records an error that a client has received. Adds a finding if one side has no faults, or if
    /// a failing operation is injected and there was no crash. An error that a degraded volume or
    /// corrupt copies can explain is never a finding. `could_fail` tells whether corrupt copies
    /// were already a possible reason at the start of the operation.
    pub fn client_error(&self, error: IoError, op: Op, units: &Range<usize>, could_fail: bool) {
        self.reach("error told to a client");
        if self.may_refuse(error) {
            return;
        }
        if error == IoError::NoSpace && op == Op::Write && self.scenario.room_blocks.is_some() {
            // `room::check` decides whether too little is admitted.
            self.reach("refused for lack of room");
            return;
        }
        if could_fail || self.copies_may_fail(units) {
            self.reach("error because of corrupt copies");
            return;
        }
        let op = op.name();
        if let Some(side) = self.scenario.steadfast {
            self.findings.add(format!(
                "{op} {units:?} failed ({error}) although side {side} has no faults"
            ));
        }
        if self.around.boundaries.one_fails() && !self.volume.borrow().has_crashed() {
            self.findings.add(format!(
                "{op} {units:?} failed ({error}) because one operation of one side did"
            ));
        }
    }

    /// Returns true if corrupt copies can make an operation on these units fail.
    fn copies_may_fail(&self, units: &Range<usize>) -> bool {
        let unit_bytes = self.scenario.unit_bytes;
        let (start, end) = (
            units.start as u64 * unit_bytes,
            units.end as u64 * unit_bytes,
        );
        let rule = &self.around.rule;
        let only_copies = self.is_spared_side_behind() && rule.is_corrupt_within(start, end);
        only_copies || rule.may_fail(start, end)
    }

    /// Returns true while the side that gets no faults does not report the health `healthy`. For
    /// example, this side is rebuilt after an older copy has replaced it. Until the rebuild is
    /// complete, the volume must not rely on the content of this side.
    fn is_spared_side_behind(&self) -> bool {
        let Some((spared, program)) = self.scenario.steadfast.zip(self.running()) else {
            return false;
        };
        program.mirror.status().sides[spared].health != "healthy"
    }

    /// Runs the checks that follow each operation of a client.
    pub fn after_operation(&self, op: Op) {
        let Some(program) = self.running() else {
            return;
        };
        let status = program.mirror.status();
        let early = status.acknowledged_early;
        // An increase of the count of early acknowledgements can be attributed to this operation
        // only under two conditions. First, each operation must be a single write. The layer of the
        // atomic unit breaks this condition, because it makes several writes for one operation.
        // Second, every client must wait for its answers, because a client that has abandoned a
        // write does not see the acknowledgement of the write.
        let one_each = self.scenario.unit_bytes == BLOCK_BYTES && self.scenario.load.leave == 0.0;
        if one_each && op.changes_content() && early > self.acknowledged_early.get() {
            self.check_early_acknowledgement(&status);
        }
        self.acknowledged_early.set(early);
        self.ended.set(self.ended.get() + 1);
        self.check_bound(&status);
        if self.ended.get().is_multiple_of(8) {
            self.check_exposure(&program, &status);
        }
    }

    fn check_early_acknowledgement(&self, status: &MirrorStatus) {
        let settings = &self.scenario.mirror;
        let age_s = settings.exposure_age_ns as f64 / 1e9;
        if settings.policy == "bounded" && status.exposed_seconds > age_s + 1e-6 {
            self.findings.add(format!(
                "acknowledged early when {} bytes had been exposed for {} s, the bound is {age_s} s",
                status.exposed_bytes, status.exposed_seconds
            ));
        }
    }

    fn check_bound(&self, status: &MirrorStatus) {
        let most = status.exposed_bytes.max(status.exposed_bytes_peak);
        let settings = &self.scenario.mirror;
        if settings.policy == "bounded" && most > settings.exposure_bytes {
            self.findings.add(format!(
                "{most} bytes were exposed, the bound is {}",
                settings.exposure_bytes
            ));
        }
    }

    /// Compares the reported exposure with the content of the disks: the bytes of changes that are
    /// acknowledged and missing on a healthy side must not exceed the reported exposure.
    fn check_exposure(&self, program: &Program, status: &MirrorStatus) {
        let (volume, unit_bytes) = (self.volume.borrow(), self.scenario.unit_bytes);
        let healthy = status.sides.iter().zip(program.sides.iter());
        let healthy = healthy.filter(|(side, _)| side.health == "healthy");
        let healthy =
            healthy.filter(|(_, stack)| self.is_comparable(stack) && !is_unrepaired(stack));
        let healthy: Vec<&SideStack> = healthy.map(|(_, stack)| stack).collect();
        let (mut exposed_bytes, mut first) = (0, None);
        for unit in 0..volume.unit_count() {
            let Some(settled) = volume.settled(unit) else {
                continue;
            };
            let offset = unit as u64 * unit_bytes;
            let lacks = |side: &&SideStack| {
                let held = program.held(side, offset, unit_bytes);
                held != settled
            };
            if let Some(side) = healthy.iter().position(lacks) {
                exposed_bytes += unit_bytes;
                first.get_or_insert((unit, side, settled));
            }
        }
        if exposed_bytes > status.exposed_bytes {
            let first = first.map_or(String::new(), |(unit, side, settled)| {
                let held = shown(program.held(healthy[side], unit as u64 * unit_bytes, unit_bytes));
                format!(
                    ", such as unit {unit}: {held} on side {side} of the healthy, not {}",
                    shown(settled)
                )
            });
            self.findings.add(format!(
                "{} bytes are reported as exposed, {exposed_bytes} are{first}; {}",
                status.exposed_bytes,
                short(status)
            ));
        }
        if exposed_bytes > 0 {
            self.reach("exposed on the disks");
        }
    }

    /// Returns true if the content of a side can be compared with its reported state. Corruption
    /// that the tester causes is unknown to the volume until the block is read, so with corruption
    /// only the side without faults can be compared.
    fn is_comparable(&self, stack: &SideStack) -> bool {
        let spared = self.scenario.steadfast;
        let hopeless = self.around.rule.any_hopeless();
        !self.scenario.corrupts || !hopeless && spared.is_some_and(|spared| stack.is(spared))
    }

    /// Runs the periodic checks.
    pub fn look(&self) {
        let Some(program) = self.running() else {
            return;
        };
        let status = program.mirror.status();
        self.check_bound(&status);
        self.check_exposure(&program, &status);
        self.check_switches(&program, &status);
        self.check_liveness(&program);
        self.check_spared_side(&status);
        for side in &status.sides {
            match (side.health, side.mode, side.stuck) {
                ("absent", _, _) => self.reach("side absent"),
                ("resyncing", _, _) => self.reach("side resyncing"),
                (_, "delayed", _) => self.reach("side delayed"),
                (_, _, true) => self.reach("side stuck"),
                _ => {}
            }
        }
        let sides = status.sides.iter().flat_map(|s| {
            let health = s.health.len() as u64;
            [
                health,
                s.waiting_bytes,
                s.in_flight_bytes,
                s.out_of_sync_bytes,
            ]
        });
        let mut numbers: Vec<u64> = sides.collect();
        numbers.push(status.exposed_bytes);
        self.trace.event(&numbers, || {
            format!("look  exposed {}; {}", status.exposed_bytes, short(&status))
        });
    }

    fn check_switches(&self, program: &Program, status: &MirrorStatus) {
        let seconds = self.rt.now().since(program.opened).as_secs();
        for side in &status.sides {
            if self.scenario.mirror.dwells() && side.mode_switches > seconds + 1 {
                self.findings.add(format!(
                    "{} has switched its mode {} times in {seconds} s",
                    side.name, side.mode_switches
                ));
            }
        }
    }

    fn check_liveness(&self, program: &Program) {
        let (now, patience) = (self.rt.now(), self.patience());
        let Some(calm_at) = program.calm_at.get() else {
            return;
        };
        for operation in self.in_flight.borrow().values() {
            let from = operation.at.max(calm_at);
            if now > from + patience {
                let status = program.mirror.status();
                self.findings.add(format!(
                    "operation {} has not ended for {:?}: {status:?}",
                    operation.what,
                    now.since(operation.at)
                ));
            }
        }
    }

    /// Checks that the side without faults was not ejected by a timeout. The side without faults
    /// always makes progress, so no timeout should affect this side.
    fn check_spared_side(&self, status: &MirrorStatus) {
        let spared = self.scenario.steadfast.map(|spared| &status.sides[spared]);
        let silent = spared.filter(|side| {
            side.absent_reason
                .is_some_and(|reason| reason.error() == IoError::Timeout)
        });
        if let Some(side) = silent {
            let what = "was ejected because it did not answer, although it has no faults";
            self.findings
                .add(format!("{} {what}: {status:?}", side.name));
        }
    }

    /// Checks, after a clean close, that all healthy sides hold the same content, and that the
    /// model allows this content.
    pub fn compare_sides(&self, program: &Program, status: &MirrorStatus) {
        let (volume, unit_bytes) = (self.volume.borrow(), self.scenario.unit_bytes);
        let healthy = status.sides.iter().zip(program.sides.iter());
        let healthy = healthy.filter(|(side, _)| side.health == "healthy");
        let healthy = healthy.filter(|(_, stack)| self.is_comparable(stack));
        let healthy: Vec<_> = healthy.collect();
        for unit in 0..volume.unit_count() {
            let offset = unit as u64 * unit_bytes;
            let mut held = None;
            for (side, stack) in &healthy {
                let head = program.held(stack, offset, unit_bytes);
                let expected = volume.settled(unit).or(held);
                if expected.is_some_and(|expected| expected != head) {
                    self.findings.add(format!(
                        "after a clean stop unit {unit} is {} on {}, not {}",
                        shown(head),
                        side.name,
                        shown(expected.unwrap_or(ZEROES))
                    ));
                    return;
                }
                held = Some(head);
            }
        }
        self.trace
            .event(&[healthy.len() as u64], || "sides compared".to_owned());
    }
}

/// Returns true if a failed flush has lost writes from a disk of the side and no flush has
/// succeeded since then, so that the volume must still write the lost data again.
fn is_unrepaired(stack: &SideStack) -> bool {
    let mut disks = stack.disks.iter();
    disks.any(|disk| disk.platter().borrow().is_unrepaired())
}

fn shown(stamp: u64) -> String {
    if stamp == ZEROES {
        "zeroes".to_owned()
    } else {
        format!("write {}", stamp >> 24)
    }
}

/// Returns the state of each side of a mirror, in one line.
fn short(status: &MirrorStatus) -> String {
    let sides = status.sides.iter().map(|side| {
        format!(
            "{} {} waiting {} flying {} stale {}",
            side.health,
            side.mode,
            side.waiting_bytes,
            side.in_flight_bytes,
            side.out_of_sync_bytes
        )
    });
    sides.collect::<Vec<_>>().join("; ")
}
