//! The pace at which a log that is being emptied takes new entries.
//!
//! A log is emptied in chunks. The room of a chunk appears all at once, when the chunk ends, so
//! writers that wait for room would be served all at once and then not at all until the next chunk
//! ends. A [`Pacing`] turns these steps into an even flow: it **withholds** a reserve of free room,
//! about as large as a chunk, and releases it in proportion to the progress of the chunk that is
//! under way. The room that the chunk leaves at its end becomes the next reserve.
//!
//! The law, with the reserve R, the room F that is free when a chunk of C bytes begins, and the
//! progress p of the chunk, from 0 to 1:
//!
//! - withheld at the beginning: W = min(F, R);
//! - released by the end: Q = min(W, max(W + C - R, C / 2)). When the reserve is whole (W = R),
//!   this is C or a little less, so what is taken in equals what is given back. When it is not, at
//!   most half of the chunk is released, until the reserve is whole again;
//! - withheld meanwhile: W - Q p, in steps that take as long as the work of 36 accesses of a disk,
//!   because each step makes the log write an entry, and the arm of a disk moves for each of them.
//!
//! A chunk is read, written home and then settled (its checksums are written and read back). The
//! progress is the share of time that the stages which have ended took in earlier chunks, and the
//! share of the present stage times its own progress. Settling has no steps that its caller could
//! count, so its progress is estimated from the time that it took before.
//!
//! The work of a chunk is measured in units of cost that its caller chooses. The time per unit says
//! how long the device would take for work of another shape, such as many small writes after a few
//! long ones.
//!
//! A policy must never withhold room that nothing is going to release. After an attempt to destage
//! has freed nothing, nothing is withheld until a chunk begins again.

/// Weight of the newest chunk in the averages, and its weight when it was slower than the average.
const NEWEST: f64 = 0.3;
const NEWEST_SLOWER: f64 = 0.6;
/// Shares of the stages in the time of a chunk, until a chunk was measured.
const FIRST_SHARES: [f64; 3] = [0.1, 0.75, 0.15];
/// Work between two releases, in units of cost: 36 accesses of a disk, if an access costs 100. So
/// the two accesses for the entry of the log take a small part of the time of any disk.
const COST_PER_STEP: f64 = 3_600.0;
/// Number of steps in which the first chunk is released, whose time is not known beforehand.
const FIRST_STEPS: f64 = 32.0;
/// Progress of a stage that is as old as the stage was expected to last.
const ON_TIME: f64 = 0.8;
/// Shortest time, and shortest progress, after which a rate is derived from a chunk under way.
const RATE_AFTER_NS: u64 = 200_000_000;
const RATE_AFTER_SHARE: f64 = 0.02;

/// Settings of a [`Pacing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacingParameters {
    /// Number of bytes that are withheld from writers while no chunk is under way: the length of
    /// the longest chunk.
    pub reserve_bytes: u64,
    /// Bounds of the expected time between two releases, in ns.
    pub step_ns_min: u64,
    /// See `step_ns_min`.
    pub step_ns_max: u64,
}

/// Stages of a chunk, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The content of the chunk is read.
    Read,
    /// The content is written home.
    Write,
    /// The checksums of the content are made durable.
    Settle,
}

/// A chunk under way.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    bytes: u64,
    /// Cost of its writes; 0 until they have begun.
    cost: usize,
    /// Bytes withheld when the chunk began, and the part of them that is released by its end.
    withheld: u64,
    quota: u64,
    stage: Stage,
    /// Share of the stage that is done, as far as the caller has said.
    done: f64,
    begun_ns: u64,
    stage_begun_ns: u64,
    /// Time for which the chunk has stood still since it began, and since its stage began.
    paused_ns: u64,
    stage_paused_ns: u64,
    /// Time that the stages before the present one took.
    took_ns: [u64; 3],
}

impl Chunk {
    fn active_ns(&self, now_ns: u64) -> u64 {
        now_ns
            .saturating_sub(self.begun_ns)
            .saturating_sub(self.paused_ns)
    }

    fn stage_ns(&self, now_ns: u64) -> u64 {
        now_ns
            .saturating_sub(self.stage_begun_ns)
            .saturating_sub(self.stage_paused_ns)
    }
}

/// The pace of one log; see the module.
#[derive(Clone, Debug)]
pub struct Pacing {
    parameters: PacingParameters,
    /// False after an attempt to destage has freed nothing.
    withholds: bool,
    chunk: Option<Chunk>,
    /// Shares of the stages in the time of a chunk; their sum is 1.
    shares: [f64; 3],
    /// Times in ns in which a byte of a chunk is destaged, and a unit of its cost; `None` before
    /// the first chunk.
    ns_per_byte: Option<f64>,
    ns_per_cost: Option<f64>,
}

impl Pacing {
    /// Creates the pace of a log that no chunk was taken from yet.
    pub fn new(parameters: PacingParameters) -> Pacing {
        Pacing {
            parameters,
            withholds: true,
            chunk: None,
            shares: FIRST_SHARES,
            ns_per_byte: None,
            ns_per_cost: None,
        }
    }

    /// Returns the number of bytes of free room that writers must not be given at `now_ns`. It can
    /// exceed the room that is free.
    pub fn withheld_bytes(&self, now_ns: u64) -> u64 {
        match &self.chunk {
            _ if !self.withholds => 0,
            None => self.parameters.reserve_bytes,
            Some(chunk) => {
                let steps = self.steps_of(chunk);
                let released = (self.progress(chunk, now_ns) * steps).floor() / steps;
                chunk.withheld - (chunk.quota as f64 * released) as u64
            }
        }
    }

    /// Begins a chunk of `bytes` bytes of the log, while `free_bytes` are free.
    pub fn begin(&mut self, now_ns: u64, bytes: u64, free_bytes: u64) {
        let reserve = self.parameters.reserve_bytes;
        let withheld = free_bytes.min(reserve);
        let whole = (withheld + bytes).saturating_sub(reserve);
        self.withholds = true;
        self.chunk = Some(Chunk {
            bytes,
            cost: 0,
            withheld,
            quota: whole.max(bytes / 2).min(withheld),
            stage: Stage::Read,
            done: 0.0,
            begun_ns: now_ns,
            stage_begun_ns: now_ns,
            paused_ns: 0,
            stage_paused_ns: 0,
            took_ns: [0; 3],
        });
    }

    /// Notes that `done` of `all` units of a stage are done; in [`Stage::Write`], they are units of
    /// cost. The stages before it have ended.
    pub fn advance(&mut self, now_ns: u64, stage: Stage, done: usize, all: usize) {
        let Some(chunk) = &mut self.chunk else {
            return;
        };
        if chunk.stage != stage {
            chunk.took_ns[chunk.stage as usize] = chunk.stage_ns(now_ns);
            chunk.stage = stage;
            chunk.stage_begun_ns = now_ns;
            chunk.stage_paused_ns = 0;
        }
        if stage == Stage::Write {
            chunk.cost = all;
        }
        chunk.done = done as f64 / all.max(1) as f64;
    }

    /// Notes that the chunk stood still for `ns`, because other work came first.
    pub fn pause(&mut self, ns: u64) {
        if let Some(chunk) = &mut self.chunk {
            chunk.paused_ns += ns;
            chunk.stage_paused_ns += ns;
        }
    }

    /// Ends the chunk: its room is free, and the reserve is withheld from now on.
    pub fn end(&mut self, now_ns: u64) {
        let Some(mut chunk) = self.chunk.take() else {
            return;
        };
        chunk.took_ns[chunk.stage as usize] = chunk.stage_ns(now_ns);
        let all_ns: u64 = chunk.took_ns.iter().sum();
        if all_ns == 0 || chunk.bytes == 0 {
            return;
        }
        let all_ns = all_ns as f64;
        for (share, took_ns) in self.shares.iter_mut().zip(chunk.took_ns) {
            let newest = took_ns as f64 / all_ns;
            *share = match self.ns_per_byte {
                Some(_) => *share + (newest - *share) * NEWEST,
                None => newest,
            };
        }
        self.ns_per_byte = Some(mixed(self.ns_per_byte, all_ns / chunk.bytes as f64));
        if chunk.cost > 0 {
            self.ns_per_cost = Some(mixed(self.ns_per_cost, all_ns / chunk.cost as f64));
        }
    }

    /// Notes that an attempt to destage has freed nothing, or has failed: nothing is withheld
    /// before a chunk begins again.
    pub fn in_vain(&mut self) {
        self.chunk = None;
        self.withholds = false;
    }

    /// Returns the time in ns in which a unit of cost is destaged, all stages included: the average
    /// of the last chunks, and more while a chunk takes longer. `None` when nothing is known yet.
    pub fn ns_per_cost(&self, now_ns: u64) -> Option<f64> {
        let known = self.ns_per_cost;
        let under_way = self.chunk.as_ref().and_then(|chunk| {
            let (active_ns, cost) = (chunk.active_ns(now_ns), chunk.cost as f64);
            let progress = self.progress(chunk, now_ns);
            let is_late = known.is_some_and(|ns| active_ns as f64 > ns * cost);
            let is_measured = active_ns >= RATE_AFTER_NS && progress >= RATE_AFTER_SHARE;
            (cost > 0.0 && (is_late || known.is_none() && is_measured))
                .then(|| active_ns as f64 / (cost * progress).max(1.0))
        });
        match (known, under_way) {
            (Some(known), Some(under_way)) => Some(known.max(under_way)),
            (known, under_way) => known.or(under_way),
        }
    }

    /// Returns the number of steps in which a chunk is released.
    fn steps_of(&self, chunk: &Chunk) -> f64 {
        let Some(ns_per_byte) = self.ns_per_byte else {
            return FIRST_STEPS;
        };
        let expected_ns = ns_per_byte * chunk.bytes as f64;
        let PacingParameters {
            step_ns_min,
            step_ns_max,
            ..
        } = self.parameters;
        let step_ns = COST_PER_STEP * self.ns_per_cost.unwrap_or(0.0);
        let step_ns = step_ns.clamp(step_ns_min.max(1) as f64, step_ns_max.max(1) as f64);
        (expected_ns / step_ns).floor().max(1.0)
    }

    /// Returns the progress of a chunk, from 0 to 1.
    fn progress(&self, chunk: &Chunk, now_ns: u64) -> f64 {
        let stage = chunk.stage as usize;
        let ended: f64 = self.shares[..stage].iter().sum();
        let done = match chunk.stage {
            Stage::Read | Stage::Write => chunk.done.min(1.0),
            Stage::Settle => {
                let before_ns: u64 = chunk.took_ns[..stage].iter().sum();
                let share = self.shares[stage];
                let expected_ns = match self.ns_per_byte {
                    Some(ns) => ns * chunk.bytes as f64 * share,
                    None => before_ns as f64 * share / (1.0 - share).max(0.01),
                };
                elapsed_share(chunk.stage_ns(now_ns) as f64 / expected_ns.max(1.0))
            }
        };
        (ended + self.shares[stage] * done).clamp(0.0, 1.0)
    }
}

/// Returns the average of a time after a chunk took `newest`; `before` is the average before it. A
/// slower chunk counts more, because too high a rate gives away more than can be stored in time.
fn mixed(before: Option<f64>, newest: f64) -> f64 {
    match before {
        None => newest,
        Some(before) if newest > before => before + (newest - before) * NEWEST_SLOWER,
        Some(before) => before + (newest - before) * NEWEST,
    }
}

/// Returns the estimated progress of work whose age is `age` times the time that it was expected to
/// take: in proportion up to that time, and from then on ever more slowly.
fn elapsed_share(age: f64) -> f64 {
    match age <= 1.0 {
        true => ON_TIME * age,
        false => ON_TIME + (1.0 - ON_TIME) * (1.0 - (1.0 - age).exp()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const CHUNK: u64 = 1_000_000;

    fn pacing() -> Pacing {
        Pacing::new(PacingParameters {
            reserve_bytes: CHUNK,
            step_ns_min: 50 * MS,
            step_ns_max: 50 * MS,
        })
    }

    /// Runs a chunk of 100 reads of 1 ms, 100 writes of 9 ms and 200 ms of settling, from `now_ns`.
    /// Returns the end, and what was withheld every 10 ms.
    fn run(pacing: &mut Pacing, now_ns: u64, free: u64) -> (u64, Vec<u64>) {
        pacing.begin(now_ns, CHUNK, free);
        let mut seen = Vec::new();
        for ms in (0..1200).step_by(10) {
            let now_ns = now_ns + ms * MS;
            match ms {
                0..100 => pacing.advance(now_ns, Stage::Read, ms as usize, 100),
                100..1000 => pacing.advance(now_ns, Stage::Write, (ms - 100) as usize, 900),
                _ => pacing.advance(now_ns, Stage::Settle, 0, 1),
            }
            seen.push(pacing.withheld_bytes(now_ns));
        }
        let end_ns = now_ns + 1200 * MS;
        pacing.end(end_ns);
        (end_ns, seen)
    }

    /// The longest time in ms for which nothing more was released, given a sample each 10 ms.
    fn longest_still(seen: &[u64]) -> usize {
        let runs = seen.chunk_by(|a, b| a == b);
        runs.map(|run| run.len() * 10).max().unwrap_or(0)
    }

    #[test]
    fn the_reserve_is_withheld_before_the_first_chunk_and_between_chunks() {
        let mut pacing = pacing();
        assert_eq!(pacing.withheld_bytes(0), CHUNK);
        run(&mut pacing, 0, CHUNK);
        assert_eq!(pacing.withheld_bytes(u64::MAX), CHUNK);
    }

    #[test]
    fn a_chunk_releases_what_it_frees_evenly() {
        let mut pacing = pacing();
        let mut now_ns = 0;
        for round in 0..4 {
            let (end_ns, seen) = run(&mut pacing, now_ns, CHUNK);
            now_ns = end_ns;
            assert_eq!(seen[0], CHUNK);
            assert!(seen.windows(2).all(|pair| pair[0] >= pair[1]), "{seen:?}");
            // The first chunk has guessed shares of its stages.
            let (still, left) = if round == 0 { (400, 0.2) } else { (110, 0.07) };
            assert!(longest_still(&seen) <= still, "{round}: {seen:?}");
            let rest = seen[seen.len() - 1] as f64;
            assert!(rest <= CHUNK as f64 * left, "{round}: {rest} left");
            for (at, withheld) in seen.iter().enumerate().filter(|_| round > 0) {
                let even = CHUNK as f64 * (1.0 - at as f64 / 120.0);
                assert!((*withheld as f64 - even).abs() < CHUNK as f64 * 0.07);
            }
        }
    }

    #[test]
    fn a_reserve_that_was_used_up_grows_again_while_writers_go_on() {
        let mut pacing = pacing();
        let (mut now_ns, mut free) = (0, CHUNK / 10);
        for _ in 0..4 {
            let (end_ns, seen) = run(&mut pacing, now_ns, free);
            now_ns = end_ns;
            let released = seen[0].min(free) - seen[seen.len() - 1];
            assert!(released > 0, "writers go on");
            // Writers take all that they are given.
            free = free - seen[0].min(free) + CHUNK + seen[seen.len() - 1];
            free = free.min(CHUNK + CHUNK / 10);
        }
        assert!(free >= CHUNK, "{free}");
    }

    #[test]
    fn nothing_is_withheld_after_an_attempt_in_vain_until_a_chunk_begins() {
        let mut pacing = pacing();
        pacing.begin(0, CHUNK, CHUNK);
        pacing.in_vain();
        assert_eq!(pacing.withheld_bytes(0), 0);
        pacing.end(MS);
        assert_eq!(pacing.withheld_bytes(MS), 0);
        pacing.begin(2 * MS, CHUNK, CHUNK / 4);
        assert_eq!(pacing.withheld_bytes(2 * MS), CHUNK / 4);
    }

    #[test]
    fn a_reserve_is_never_exceeded_by_what_is_released() {
        let mut pacing = pacing();
        for free in [0, 1, CHUNK / 2, CHUNK, 10 * CHUNK] {
            pacing.begin(0, 3 * CHUNK, free);
            pacing.advance(MS, Stage::Settle, 1, 1);
            let held = pacing.withheld_bytes(u64::MAX / 2);
            assert!(held <= free.min(CHUNK), "{held}");
        }
    }

    /// The device becomes ten times slower: the time per unit follows before the chunk ends.
    #[test]
    fn the_time_follows_a_device_that_becomes_slow() {
        let mut pacing = pacing();
        assert_eq!(pacing.ns_per_cost(0), None);
        let (now_ns, _) = run(&mut pacing, 0, CHUNK);
        // 900 units in 1.2 s.
        let ns = pacing.ns_per_cost(now_ns).unwrap();
        assert!((ns - 1_333_333.3).abs() < 1.0, "{ns}");
        pacing.begin(now_ns, CHUNK, CHUNK);
        let now_ns = now_ns + 3_000 * MS;
        pacing.advance(now_ns, Stage::Write, 225, 900);
        // 0.083 for the reads and a quarter of 0.75 for the writes, in 3 s.
        let ns = pacing.ns_per_cost(now_ns).unwrap();
        assert!((12e6..12.7e6).contains(&ns), "{ns}");
    }

    #[test]
    fn the_first_chunk_has_a_time_while_it_is_under_way() {
        let mut pacing = pacing();
        pacing.begin(0, CHUNK, CHUNK);
        pacing.advance(100 * MS, Stage::Write, 0, 100);
        assert_eq!(pacing.ns_per_cost(100 * MS), None);
        pacing.advance(1000 * MS, Stage::Write, 50, 100);
        let ns = pacing.ns_per_cost(1000 * MS).unwrap();
        // 0.1 for the reads and half of 0.75 for the writes, in one second.
        assert!((ns - 1e9 / 47.5).abs() < 1.0, "{ns}");
    }

    #[test]
    fn time_in_which_other_work_came_first_does_not_count() {
        let mut pacing = pacing();
        pacing.begin(0, CHUNK, CHUNK);
        pacing.pause(9_000 * MS);
        pacing.advance(9_500 * MS, Stage::Write, 0, 1000);
        pacing.advance(10_000 * MS, Stage::Settle, 0, 1);
        pacing.end(10_000 * MS);
        assert_eq!(pacing.ns_per_cost(10_000 * MS), Some(1e6));
    }
}
