//! Runs on devices of this project's stack, in real time. The queue with its schedulers, the file
//! layer and the loads are the same as in virtual time, and the devices can be any that a
//! configuration can describe. So a simulation can be compared with real storage.
//!
//! Above the queue, only the page cache and the file system are modelled, and below the queue
//! nothing; CPU time is real. Every run opens the devices and closes them again, and must never
//! leave them open, even when it is interrupted.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

use bimetal_block::Statistic;
use bimetal_block::graph::{OpenOptions, Stack};
use bimetal_rt::Rt;
use futures_util::future::{Either, select};

use crate::cell::Bed;
use crate::device::{DeviceSettings, StackSettings};
use crate::failure::{RunError, StackError};
use crate::files::CpuCosts;
use crate::layer::LoadError;
use crate::native::kernel_release;
use crate::outcome::{Lateness, Machine, Outcome};
use crate::plan::Choice;
use crate::settings::Settings;

/// Runs a cell with a seed, in real time. When `stop` completes, the run ends early and closes its
/// devices. The runtime must not be used for anything else, and must be [ended](Rt::end) after the
/// run.
///
/// # Errors
/// If a device cannot be opened or closed, fails a request, or is too small; `Interrupted` after
/// `stop`.
pub async fn run(
    rt: &Rt,
    choice: &Choice,
    settings: &Settings,
    seed: u64,
    stop: impl Future<Output = ()>,
) -> Result<Outcome, RunError> {
    let DeviceSettings::Stack(of) = &settings.device else {
        let why = "the device is not a device of the stack".to_owned();
        return Err(RunError::Settings(why));
    };
    let kernel = kernel_release()?;
    let graph = of.graph().map_err(RunError::Settings)?;
    let opened = Stack::open(rt, &graph, &[&of.top], &OpenOptions::default()).await;
    let stack = opened.map_err(StackError::from)?;
    let device = stack.get(&of.top).expect("the root of a stack is open");
    let bed = Bed {
        device: Rc::clone(device),
        depth: of.depth,
        cpu: CpuCosts::NONE,
    };
    let cpu_before_ns = cpu_ns();
    let run = pin!(bed.run(rt, choice, settings, seed));
    let outcome = match select(run, pin!(stop)).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => Err(RunError::Load(LoadError::Interrupted)),
    };
    let cpu_ns = cpu_ns() - cpu_before_ns;
    let lateness = lateness(&stack);
    let closed = stack.close().await;
    let outcome = outcome?;
    closed.map_err(|(device, error)| StackError::Close { device, error })?;
    Ok(Outcome {
        machine: Some(Machine {
            kernel,
            device: in_words(of),
            counted_by: "the queue".to_owned(),
            cpu_ns,
            lateness,
            ..Machine::default()
        }),
        ..outcome
    })
}

/// Returns the delays of all emulated devices relative to their models; `None` if no emulated
/// device has reported an event.
fn lateness(stack: &Stack) -> Option<Lateness> {
    let (mut events, mut total_ns, mut max_ns) = (0, 0, 0_f64);
    for (_, device) in stack.devices() {
        let mut statistics = Vec::new();
        device.statistics(&mut statistics);
        // The layer `timing` reports these statistics.
        for (_, name, statistic) in statistics {
            match (name.as_str(), statistic) {
                ("late_events", Statistic::Counter(count)) => events += count,
                ("late_ns", Statistic::Counter(ns)) => total_ns += ns,
                ("late_ns_max", Statistic::Gauge(ns)) => max_ns = max_ns.max(ns),
                _ => {}
            }
        }
    }
    (events > 0).then(|| Lateness {
        events,
        mean_ns: total_ns / events,
        max_ns: max_ns as u64,
    })
}

/// Returns the CPU time of this program so far, in ns.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the names and types of the devices as text, beginning with the device directly below the
/// queue.
fn in_words(of: &StackSettings) -> String {
    let kind = |name: &str| {
        let section = of.devices.get(name).and_then(|section| section.get("type"));
        let kind = section.and_then(|kind| kind.as_str()).unwrap_or("?");
        format!("{name} ({kind})")
    };
    let others = of.devices.keys().filter(|name| **name != of.top);
    let words: Vec<String> = std::iter::once(&of.top)
        .chain(others)
        .map(|name| kind(name))
        .collect();
    words.join(", ")
}
