//! Policies x sizes x devices over one decoded trace, on all cores.
//!
//! The trace is shared and read only; every run has its own policy and device. Results come in the
//! order of the jobs, whichever finishes first.

use super::flash::{Costs, Ftl};
use super::geometry::Geometry;
use super::run::{Outcome, run};
use super::size::CacheSize;
use bimetal_flash::FlashError;
use bimetal_policy::replacement::{Build, Spec, next_uses};
use bimetal_trace::{Accesses, Kind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What to try on a trace.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Which policies.
    pub policies: Vec<Spec>,
    /// How large.
    pub sizes: Vec<CacheSize>,
    /// Over which devices.
    pub ftls: Vec<Ftl>,
}

/// One run to do.
#[derive(Clone, Debug)]
pub struct Job {
    /// Which policy.
    pub policy: Spec,
    /// How large.
    pub size_pages: usize,
    /// Over which device.
    pub ftl: Ftl,
}

/// The runs of a grid over a trace that touches `footprint` pages.
pub fn jobs(grid: &Grid, footprint: usize) -> Vec<Job> {
    let mut jobs = Vec::new();
    for ftl in &grid.ftls {
        for size in &grid.sizes {
            for policy in &grid.policies {
                jobs.push(Job {
                    policy: policy.clone(),
                    size_pages: size.pages(footprint),
                    ftl: *ftl,
                });
            }
        }
    }
    jobs
}

/// What all runs over a trace have in common.
#[derive(Clone, Copy, Debug)]
pub struct Over<'a> {
    /// The trace.
    pub accesses: &'a Accesses,
    /// Where its pages lie.
    pub geometry: &'a Geometry,
    /// What the flash takes.
    pub costs: Costs,
    /// Count as published tables do ([`Build::as_tables`]).
    pub as_tables: bool,
    /// The share of the pages that `accesses` has; 1 for all. Sizes shrink by it, and outcomes are
    /// estimates for the whole trace ([`Outcome::of_whole`]).
    pub rate: f64,
}

/// Pages of a cache that stands for one of `size_pages` over a sample; at least 1.
pub fn miniature_pages(size_pages: usize, rate: f64) -> usize {
    ((size_pages as f64 * rate).round() as usize).max(1)
}

/// Does all `jobs` on `threads` threads. `done` is told after each how many are finished.
///
/// # Errors
/// When a device that is asked for cannot be.
pub fn run_all(
    jobs: &[Job],
    over: &Over<'_>,
    threads: usize,
    done: impl Fn(usize) + Sync,
) -> Result<Vec<Outcome>, FlashError> {
    let future = jobs.iter().any(|job| job.policy.needs_future());
    let future = future.then(|| future_of(over.accesses));
    let none = || Ok(Outcome::default());
    let outcomes = Mutex::new((0..jobs.len()).map(|_| none()).collect::<Vec<_>>());
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((at, job)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(at).map(|job| (at, job))
        } {
            let outcome = run_job(job, over, &future);
            if let Ok(mut outcomes) = outcomes.lock() {
                outcomes[at] = outcome;
            }
            done(finished.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(jobs.len()) {
            scope.spawn(work);
        }
        work();
    });
    // A poisoned lock means a panic, which the scope has passed on already.
    let outcomes = outcomes.into_inner().unwrap_or_default();
    outcomes.into_iter().collect()
}

/// The next use of every access, as the optimum wants to know it.
fn future_of(accesses: &Accesses) -> Arc<[u32]> {
    let used = accesses.iter().filter(|(_, kind)| *kind != Kind::Trim);
    let pages: Vec<u32> = used.map(|(page, _)| page).collect();
    next_uses(pages.into_iter()).into()
}

fn run_job(job: &Job, over: &Over<'_>, future: &Option<Arc<[u32]>>) -> Result<Outcome, FlashError> {
    let Over {
        accesses,
        geometry,
        costs,
        as_tables,
        rate,
    } = *over;
    let policy = job.policy.build(&Build {
        capacity: miniature_pages(job.size_pages, rate),
        pages_per_block: geometry.pages_per_block(),
        granularity: job.ftl.granularity(),
        read_us: costs.read_us,
        flush_us: costs.program_us,
        as_tables,
        next_uses: future.clone().filter(|_| job.policy.needs_future()),
    });
    let flash = job
        .ftl
        .build(geometry.blocks(), geometry.pages_per_block())?;
    let outcome = run(policy, flash, accesses, geometry, costs);
    Ok(match rate < 1.0 {
        true => outcome.of_whole(accesses.seen(), rate),
        false => outcome,
    })
}
