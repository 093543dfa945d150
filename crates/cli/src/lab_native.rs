//! `bimetal lab` on this machine: runs one after another in a thread of their own, while this one waits for signals.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use bimetal_lab::cell::{Outcome, RunError};
use bimetal_lab::native::{self, Session};
use bimetal_lab::plan::Plan;
use bimetal_lab::results::{Job, Results, jobs, missing, name_of};
use bimetal_rt::mailbox::mailbox;
use bimetal_rt::uring::Signals;
use bimetal_rt::{Rt, UringOptions};
use futures_util::future::{Either, select};

use crate::said::say;
use crate::sim::progress_bar;

/// What preparing a run and putting everything back takes, about.
const AROUND_A_RUN_NS: u64 = 1_000_000_000;

/// `bimetal lab restore`.
pub(crate) fn restore() -> Result<ExitCode> {
    let names = native::restore()?;
    let mut out = std::io::stdout().lock();
    for name in &names {
        writeln!(out, "put back: {name}")?;
    }
    if names.is_empty() {
        writeln!(out, "nothing is left to put back")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts back what a run has left that was killed, as far as this user may, and says so.
pub(crate) fn restore_what_is_left() -> Result<()> {
    if !native::is_left_to_us() {
        return Ok(());
    }
    for name in native::restore()? {
        say(format!("put back after a run that was killed: {name}"));
    }
    Ok(())
}

/// What the missing runs will take, by the runs of the same load that were made, and otherwise by guess.
pub(crate) fn estimate_ns(missing: &[Job<'_>], made: &[Outcome]) -> u64 {
    let of = |job: &Job<'_>| {
        let load = &job.cell.settings.workload;
        let same = made.iter().filter(|run| run.settings.workload == *load);
        let (count, sum) = same.fold((0_u64, 0_u64), |(count, sum), run| {
            (count + 1, sum.saturating_add(run.elapsed_ns))
        });
        match count {
            0 => load.estimated_native_ns(),
            _ => sum / count + AROUND_A_RUN_NS,
        }
    };
    missing.iter().map(of).fold(0, u64::saturating_add)
}

/// Makes the runs of a plan that are missing.
pub(crate) fn run(plan: &Plan, folder: &Path, threads: Option<u16>) -> Result<Results> {
    native::check(plan)?;
    let results = alone_on_this_machine(plan, folder, threads)?;
    let rt = Rt::real_time(UringOptions {
        pool_bytes: 1 << 20,
        register: false,
        ..UringOptions::default()
    })
    .context("io_uring")?;
    // Before the thread starts, which has the signals blocked with this one.
    let signals = Signals::termination(&rt).context("cannot take over signals")?;
    let stop = Arc::new(AtomicBool::new(false));
    let (done, heard) = mailbox().context("a mailbox")?;
    let mut heard = heard.listen(&rt).context("a mailbox")?;
    let (outcome, signal) = std::thread::scope(|scope| {
        let (results, stop_runs) = (&results, Arc::clone(&stop));
        let runs = scope.spawn(move || {
            let outcome = make_runs(plan, results, stop_runs);
            // The one who waits is there until this thread is joined.
            let _ = done.send(());
            outcome
        });
        let signal = rt.block_on(async {
            let ended = std::pin::pin!(heard.next());
            match select(std::pin::pin!(signals.next()), ended).await {
                Either::Left((signal, _)) => Some(signal),
                Either::Right(_) => None,
            }
        });
        if signal.is_some() {
            stop.store(true, Ordering::Relaxed);
        }
        (runs.join(), signal)
    });
    let outcome = outcome.map_err(|_| {
        anyhow!("the runs have ended in a panic; `bimetal lab restore` puts back what is changed")
    })?;
    match (signal, outcome) {
        (None, outcome) => outcome?,
        // Whatever the interrupted run says, everything is put back unless that says otherwise.
        (Some(_), Err(error)) if native::is_left_to_us() => return Err(error),
        (Some(_), _) => bail!("interrupted; everything is put back, and the same command goes on"),
    }
    Ok(results)
}

/// The folder for runs of which each needs this machine for itself.
///
/// # Errors
/// When it cannot have that, or there are runs of another kernel.
pub(crate) fn alone_on_this_machine(
    plan: &Plan,
    folder: &Path,
    threads: Option<u16>,
) -> Result<Results> {
    if threads.is_some_and(|threads| threads > 1) {
        bail!(
            "runs on one machine disturb one another: `--jobs` must be 1 with `backend = \"{}\"`",
            plan.backend.name()
        );
    }
    if folder.join("plan.toml").exists() {
        check_kernel(&Results::open(folder)?.0.made(plan)?, folder)?;
    }
    Ok(Results::create(folder, plan)?)
}

/// Runs of two kernels say nothing together.
fn check_kernel(made: &[Outcome], folder: &Path) -> Result<()> {
    let now = native::kernel_release()?;
    let machines = made.iter().filter_map(|run| run.machine.as_ref());
    for machine in machines {
        if machine.kernel != now {
            bail!(
                "{}: its runs were made with Linux {}, and this is {now}; choose another folder with `--out`",
                folder.display(),
                machine.kernel
            );
        }
    }
    Ok(())
}

fn make_runs(plan: &Plan, results: &Results, stop: Arc<AtomicBool>) -> Result<()> {
    let mut made = results.made(plan)?;
    let mut session = Session::begin(stop)?;
    let outcome = make_missing(plan, results, &mut made, &mut session);
    session.end()?;
    outcome
}

fn make_missing(
    plan: &Plan,
    results: &Results,
    made: &mut Vec<Outcome>,
    session: &mut Session,
) -> Result<()> {
    one_by_one(plan, results, made, |job| {
        session.run(&job.cell.choice, &job.cell.settings, job.seed)
    })
}

/// Makes the runs that are missing by `run`, one after another, and keeps each.
///
/// # Errors
/// The first that cannot be made or kept.
pub(crate) fn one_by_one(
    plan: &Plan,
    results: &Results,
    made: &mut Vec<Outcome>,
    mut run: impl FnMut(&Job<'_>) -> Result<Outcome, RunError>,
) -> Result<()> {
    loop {
        let missing = missing(&jobs(plan, made), made);
        if missing.is_empty() {
            return Ok(());
        }
        let bar = progress_bar(missing.len() as u64);
        for job in missing {
            let name = name_of(&job.cell.choice);
            bar.set_message(name.clone());
            let outcome = run(&job).with_context(|| name)?;
            results.keep(&job, &outcome)?;
            made.push(outcome);
            bar.inc(1);
        }
        bar.finish_and_clear();
    }
}
