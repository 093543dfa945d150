//! Runs an experiment on several cores. The runs share no state, so the number of cores does not
//! change the results.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the number of available cores, at least 1.
pub fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs all jobs on this number of threads, and returns the results in the order of the jobs. After
/// each job, calls `progress` with the number of finished jobs and the number of all jobs.
///
/// # Errors
/// The error of the first failed job, in the order of the jobs.
pub fn run_all<J: Sync, O: Send, E: Send>(
    jobs: &[J],
    threads: usize,
    run: impl Fn(&J) -> Result<O, E> + Sync,
    progress: impl Fn(u64, u64) + Sync,
) -> Result<Vec<O>, E> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let outcomes: Mutex<Vec<Option<Result<O, E>>>> =
        Mutex::new(jobs.iter().map(|_| None).collect());
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else {
                return;
            };
            let outcome = run(job);
            let mut outcomes = outcomes
                .lock()
                .expect("a run that panicked ends everything");
            outcomes[index] = Some(outcome);
            drop(outcomes);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(done as u64, jobs.len() as u64);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1).min(jobs.len()) {
            scope.spawn(work);
        }
    });
    let outcomes = outcomes.into_inner().expect("all threads have ended well");
    let all = outcomes.into_iter();
    all.map(|outcome| outcome.expect("every run was done"))
        .collect()
}
