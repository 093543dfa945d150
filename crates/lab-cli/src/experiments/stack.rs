//! Experiments on devices of bimetal's own stack. The runs are executed one after another in real
//! time, each in a runtime of its own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use bimetal_lab::failure::RunError;
use bimetal_lab::layer::LoadError;
use bimetal_lab::native::kernel_release;
use bimetal_lab::outcome::Outcome;
use bimetal_lab::plan::Plan;
use bimetal_lab::results::{Job, Results};
use bimetal_lab::stack;
use bimetal_rt::real_time::Signals;
use bimetal_rt::{Rt, UringOptions};

use super::native::{alone_on_this_machine, one_by_one};

/// Size of the memory for the buffers of a run.
const POOL_BYTES: usize = 256 << 20;

/// Executes the missing runs of a plan.
pub(crate) fn run(plan: &Plan, folder: &Path, threads: Option<u16>) -> Result<Results> {
    let results = alone_on_this_machine(plan, folder, threads, kernel_release)?;
    let mut made = results.made(plan)?;
    let outcome = one_by_one(plan, &results, &mut made, run_alone);
    match outcome {
        Err(error) if is_interrupted(&error) => {
            bail!("interrupted; the devices are closed, and the same command continues")
        }
        outcome => outcome.map(|()| results),
    }
}

fn is_interrupted(error: &anyhow::Error) -> bool {
    let of = error.downcast_ref::<RunError>();
    matches!(of, Some(RunError::Load(LoadError::Interrupted)))
}

fn run_alone(job: &Job<'_>) -> Result<Outcome, RunError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error| RunError::Load(LoadError::Io { what, error })
    };
    let rt = Rt::real_time(UringOptions {
        pool_bytes: POOL_BYTES,
        seed: job.seed,
        // Busy-polling is off, because it would add CPU time to the measured CPU time of the I/O.
        spin: Duration::ZERO,
        ..UringOptions::default()
    })
    .map_err(failed("cannot set up io_uring"))?;
    let signals = Signals::termination(&rt).map_err(failed("cannot set up signal handling"))?;
    let stop = async {
        // If waiting for a signal fails, the run stops in the same way as after a signal.
        let _ = signals.next().await;
    };
    let (choice, settings) = (&job.cell.choice, &job.cell.settings);
    let outcome = rt.block_on(stack::run(&rt, choice, settings, job.seed, stop));
    // The stack has timers, and tasks that flush data. They run until the runtime is ended.
    rt.end();
    outcome
}
