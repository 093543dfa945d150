//! Experiments on this machine and in guests. A dedicated thread executes the runs one after
//! another, while the calling thread waits for signals.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use bimetal_console::progress::progress_bar;
use bimetal_console::stderr::say;
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

/// Estimated time in ns for the preparation of a run plus the restoring of the machine after it.
const AROUND_A_RUN_NS: u64 = 1_000_000_000;

/// Factor by which a run in a guest takes longer than a run on the machine itself. The estimate
/// also includes the time to boot the guest.
const GUEST_FACTOR: u64 = 10;
const BOOT_NS: u64 = 5_000_000_000;

/// Runs `bimetal-lab restore`, which undoes the changes that a killed run has left on this machine,
/// and prints each restored setting.
pub(crate) fn restore() -> Result<ExitCode> {
    let names = native::restore()?;
    let mut out = std::io::stdout().lock();
    for name in &names {
        writeln!(out, "put back: {name}")?;
    }
    if names.is_empty() {
        writeln!(out, "nothing is left to restore")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Restores the settings that a killed run has changed, as far as this user is permitted to, and
/// reports each.
pub(crate) fn restore_what_is_left() -> Result<()> {
    if !native::is_left_to_us() {
        return Ok(());
    }
    for name in native::restore()? {
        say(format!("restored after a killed run: {name}"));
    }
    Ok(())
}

/// Estimates the duration of the missing runs in ns. Where finished runs of the same load exist,
/// the estimate is based on their durations.
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

/// Executes the missing runs of a plan.
pub(crate) fn run(plan: &Plan, folder: &Path, threads: Option<u16>) -> Result<Results> {
    native::check(plan)?;
    let results = alone_on_this_machine(plan, folder, threads, native::kernel_release)?;
    let (signal, outcome) = until_signal(|stop| make_runs(plan, &results, stop))?;
    match (signal, outcome) {
        (false, outcome) => outcome?,
        // After a signal, the error of the interrupted run is reported only if the run has left
        // changes on the machine.
        (true, Err(error)) if native::is_left_to_us() => return Err(error),
        (true, _) => bail!("interrupted; all changes are undone, and the same command continues"),
    }
    Ok(results)
}

/// Executes the missing runs of a plan, each in a guest.
pub(crate) fn run_in_guests(plan: &Plan, folder: &Path, threads: Option<u16>) -> Result<Results> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
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
        bail!("interrupted; the guest has ended, and the same command continues");
    }
    outcome.map(|()| results)
}

/// Runs `work` in a dedicated thread while the calling thread waits for signals. A signal sets the
/// flag that tells `work` to stop. Returns whether a signal was received, and the result of `work`.
fn until_signal(
    work: impl FnOnce(Arc<AtomicBool>) -> Result<()> + Send,
) -> Result<(bool, Result<()>)> {
    let rt = Rt::real_time(UringOptions {
        pool_bytes: 1 << 20,
        register: false,
        ..UringOptions::default()
    })
    .context("cannot start the runtime")?;
    // Signals are blocked before the thread starts, because the thread inherits the set of blocked
    // signals.
    let signals = Signals::termination(&rt).context("cannot set up signal handling")?;
    let stop = Arc::new(AtomicBool::new(false));
    let (done, heard) = mailbox().context("a mailbox")?;
    let mut heard = heard.listen(&rt).context("a mailbox")?;
    let (outcome, signal) = std::thread::scope(|scope| {
        let stop_work = Arc::clone(&stop);
        let working = scope.spawn(move || {
            let outcome = work(stop_work);
            // The receiver lives until the thread has been joined, so the send succeeds.
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
        anyhow!("the runs have panicked; `bimetal-lab restore` undoes their changes")
    })?;
    Ok((signal, outcome))
}

/// Opens the results folder for runs that need exclusive use of this machine.
///
/// # Errors
/// If exclusive use is not possible, or if the folder has results from another kernel.
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

/// Returns an error if the folder has results from another kernel, because results from different
/// kernels are not comparable.
fn check_kernel(made: &[Outcome], folder: &Path, now: &str) -> Result<()> {
    let machines = made.iter().filter_map(|run| run.machine.as_ref());
    for machine in machines {
        if machine.kernel != now {
            bail!(
                "{}: its runs were made with Linux {}, but this is {now}; choose another folder \
                with `--out`",
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

/// Executes the missing runs one after another with `run`, and saves each result.
///
/// # Errors
/// The first run that cannot be executed or saved.
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
