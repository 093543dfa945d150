//! `bimetal lab` on this machine and in guests: runs one after another in a thread of their own,
//! while this one waits for signals.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use bimetal_lab::device::Backend;
use bimetal_lab::failure::{NativeError, RunError};
use bimetal_lab::native::{self, Session, guest};
use bimetal_lab::outcome::Outcome;
use bimetal_lab::plan::Plan;
use bimetal_lab::results::{Job, Results, jobs, missing, name_of};
use bimetal_rt::mailbox::mailbox;
use bimetal_rt::real_time::Signals;
use bimetal_rt::{Rt, UringOptions};
use futures_util::future::{Either, select};

use crate::runs::progress_bar;
use crate::said::say;

/// What preparing a run and putting everything back takes, about.
const AROUND_A_RUN_NS: u64 = 1_000_000_000;

/// What the same takes in a guest, in a multiple of what it takes here, and its boot.
const GUEST_FACTOR: u64 = 10;
const BOOT_NS: u64 = 5_000_000_000;

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

/// What the missing runs will take, by the runs of the same load that were made, and otherwise by
/// guess.
pub(crate) fn estimate_ns(missing: &[Job<'_>], made: &[Outcome]) -> u64 {
    let of = |job: &Job<'_>| {
        let load = &job.cell.settings.workload;
        let same = made.iter().filter(|run| run.settings.workload == *load);
        let (count, sum) = same.fold((0_u64, 0_u64), |(count, sum), run| {
            (count + 1, sum.saturating_add(run.elapsed_ns))
        });
        match count {
            0 if job.cell.settings.backend == Backend::Uml => {
                BOOT_NS + GUEST_FACTOR * load.estimated_native_ns()
            }
            0 => load.estimated_native_ns(),
            _ => sum / count + AROUND_A_RUN_NS,
        }
    };
    missing.iter().map(of).fold(0, u64::saturating_add)
}

/// Makes the runs of a plan that are missing.
pub(crate) fn run(plan: &Plan, folder: &Path, threads: Option<u16>) -> Result<Results> {
    native::check(plan)?;
    let results = alone_on_this_machine(plan, folder, threads, native::kernel_release)?;
    let (signal, outcome) = until_signal(|stop| make_runs(plan, &results, stop))?;
    match (signal, outcome) {
        (false, outcome) => outcome?,
        // Whatever the interrupted run says, everything is put back unless that says otherwise.
        (true, Err(error)) if native::is_left_to_us() => return Err(error),
        (true, _) => bail!("interrupted; everything is put back, and the same command goes on"),
    }
    Ok(results)
}

/// Makes the runs of a plan that are missing, each in a guest.
pub(crate) fn run_in_guests(plan: &Plan, folder: &Path, threads: Option<u16>) -> Result<Results> {
    let program = std::env::current_exe().context("where this program is")?;
    guest::check(plan, &program)?;
    let results = alone_on_this_machine(plan, folder, threads, guest::kernel_release)?;
    let (signal, outcome) = until_signal(|stop| {
        let mut made = results.made(plan)?;
        one_by_one(plan, &results, &mut made, |job| {
            let (choice, settings) = (&job.cell.choice, &job.cell.settings);
            guest::run(choice, settings, job.seed, &program, &stop)
        })
    })?;
    if signal {
        bail!("interrupted; the guest is gone, and the same command goes on");
    }
    outcome.map(|()| results)
}

/// Runs `work` in a thread of its own, while this one waits for signals: `work` is told to stop by
/// one, and it is said whether one came, with what has come of the work.
fn until_signal(
    work: impl FnOnce(Arc<AtomicBool>) -> Result<()> + Send,
) -> Result<(bool, Result<()>)> {
    let rt = Rt::real_time(UringOptions {
        pool_bytes: 1 << 20,
        register: false,
        ..UringOptions::default()
    })
    .context("cannot start the runtime")?;
    // Before the thread starts, which has the signals blocked with this one.
    let signals = Signals::termination(&rt).context("cannot take over signals")?;
    let stop = Arc::new(AtomicBool::new(false));
    let (done, heard) = mailbox().context("a mailbox")?;
    let mut heard = heard.listen(&rt).context("a mailbox")?;
    let (outcome, signal) = std::thread::scope(|scope| {
        let stop_work = Arc::clone(&stop);
        let working = scope.spawn(move || {
            let outcome = work(stop_work);
            // The one who waits is there until this thread is joined.
            let _ = done.send(());
            outcome
        });
        let signal = rt.block_on(async {
            let ended = std::pin::pin!(heard.next());
            matches!(
                select(std::pin::pin!(signals.next()), ended).await,
                Either::Left(_)
            )
        });
        if signal {
            stop.store(true, Ordering::Relaxed);
        }
        (working.join(), signal)
    });
    let outcome = outcome.map_err(|_| {
        anyhow!("the runs have ended in a panic; `bimetal lab restore` puts back what is changed")
    })?;
    Ok((signal, outcome))
}

/// The folder for runs of which each needs this machine for itself.
///
/// # Errors
/// When it cannot have that, or there are runs of another kernel.
pub(crate) fn alone_on_this_machine(
    plan: &Plan,
    folder: &Path,
    threads: Option<u16>,
    kernel_release: impl FnOnce() -> Result<String, NativeError>,
) -> Result<Results> {
    if threads.is_some_and(|threads| threads > 1) {
        bail!(
            "runs on one machine disturb one another: `--jobs` must be 1 with `backend = \"{}\"`",
            plan.backend.name()
        );
    }
    if folder.join("plan.toml").exists() {
        check_kernel(
            &Results::open(folder)?.0.made(plan)?,
            folder,
            &kernel_release()?,
        )?;
    }
    Ok(Results::create(folder, plan)?)
}

/// Runs of two kernels say nothing together.
fn check_kernel(made: &[Outcome], folder: &Path, now: &str) -> Result<()> {
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
