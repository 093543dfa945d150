//! Runs of every combination of a policy, a cache size and a device over one decoded trace, on all
//! cores.
//!
//! All runs share the trace, which is read-only; every run has its own policy and device. The
//! results are in the order of the jobs, in whichever order the jobs finish.

use super::flash::{Costs, Ftl};
use super::geometry::Geometry;
use super::run::{Outcome, run};
use super::size::CacheSize;
use bimetal_flash::FlashError;
use bimetal_policy::replacement::{Build, Spec, next_uses};
use bimetal_trace::{Accesses, Kind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Sets of policies, cache sizes and devices; every combination is one run over a trace.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Policies.
    pub policies: Vec<Spec>,
    /// Sizes of the cache.
    pub sizes: Vec<CacheSize>,
    /// Devices.
    pub ftls: Vec<Ftl>,
}

/// Parameters of one run of a grid.
#[derive(Clone, Debug)]
pub struct Job {
    /// Policy.
    pub policy: Spec,
    /// Size of the cache in pages.
    pub size_pages: usize,
    /// Device.
    pub ftl: Ftl,
}

/// Returns the runs of a grid: one for each combination of device, cache size and policy. A cache
/// size can be a fraction of `footprint`, the number of distinct pages that the trace touches.
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

/// Settings that all runs over a trace share.
#[derive(Clone, Copy, Debug)]
pub struct Over<'a> {
    /// The trace.
    pub accesses: &'a Accesses,
    /// Mapping of the pages of the trace to pages of the device.
    pub geometry: &'a Geometry,
    /// Times of the flash operations.
    pub costs: Costs,
    /// Whether policies count accesses as the published tables do ([`Build::as_tables`]).
    pub as_tables: bool,
    /// Fraction of the pages of the trace that `accesses` contains; 1 means all pages. For a
    /// sample, cache sizes are multiplied by this rate, and the results are estimates for the whole
    /// trace ([`Outcome::of_whole`]).
    pub rate: f64,
}

/// Returns the size in pages, at least 1, of a cache for a simulation over a sample of a trace.
/// This cache represents a cache of `size_pages` over the whole trace. `rate` is the fraction of
/// the pages that the sample contains.
pub fn miniature_pages(size_pages: usize, rate: f64) -> usize {
    ((size_pages as f64 * rate).round() as usize).max(1)
}

/// Runs all `jobs` on `threads` threads. After each job, calls `done` with the number of finished
/// jobs.
///
/// # Errors
/// If the device of a job cannot be built.
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
    // A poisoned lock means that a job has panicked. The thread scope has already propagated the
    // panic, so the poisoning needs no handling here.
    let outcomes = outcomes.into_inner().unwrap_or_default();
    outcomes.into_iter().collect()
}

/// Returns, for every access except trims, the position in the trace of the next access to the same
/// page. The optimal policy needs these positions.
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
