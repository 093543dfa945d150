//! Measures the CPU cost of the queue layer for one request in a live stack. The same requests are
//! sent alternately to a medium with the layer in front of it and to the medium alone, in one run.
//!
//! ```text
//! cargo run --release --example queue_cost -p bimetal-block -- [REQUESTS] [ROUNDS] [DEPTH] [SCHEDULER]
//! ```
//!
//! The media answer immediately, so that only the cost of the layers is measured. The load is
//! random 4-KiB requests, half of them writes, from DEPTH tasks on the real clock. The program
//! computes the difference for each round, and prints the median of the rounds. It uses the CPU
//! time that the kernel has counted for this process.

mod load;

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use bimetal_block::Device;
use bimetal_block::graph::{OpenOptions, Stack, read_graph};
use bimetal_policy::scheduler::SchedulerChoice;
use bimetal_rt::{Rt, UringOptions};
use load::{cpu_ns, send};

/// Returns the parameters for the scheduler. `bfq` keeps the device idle for a while after the
/// requests of a task. The media of this example answer before another task submits a request, so
/// the run would mostly measure timers and idle time. Therefore idling is disabled for `bfq`, and
/// the run measures the scheduler's decisions.
fn parameters(scheduler: &str) -> &'static str {
    match scheduler {
        "bfq" => "parameters = { slice_idle = \"0s\" }",
        _ => "",
    }
}

fn stack_text(medium: &str, scheduler: &str) -> String {
    let parameters = parameters(scheduler);
    format!(
        r#"
[device.data]
type = "{medium}"
size = "64MiB"
[device.queued]
type = "queue"
below = "data"
scheduler = "{scheduler}"
{parameters}
"#
    )
}

/// Returns the CPU time that one request takes, in ns.
async fn cost_ns(rt: &Rt, top: &Rc<dyn Device>, requests: u64, depth: u32) -> Result<f64, String> {
    let before_ns = cpu_ns()?;
    send(rt, top, requests, depth).await;
    Ok((cpu_ns()? - before_ns) as f64 / requests as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(medium: &str, scheduler: &str, numbers: [u64; 3]) -> Result<(), String> {
    let [requests, rounds, depth] = numbers;
    let depth = u32::try_from(depth).map_err(|e| e.to_string())?;
    let rt = Rt::real_time(UringOptions::default()).map_err(|e| e.to_string())?;
    let graph = read_graph(Path::new("built in"), &stack_text(medium, scheduler));
    let graph = graph.map_err(|e| e.to_string())?;
    rt.block_on(async {
        let roots = ["data", "queued"];
        let stack = Stack::open(&rt, &graph, &roots, &OpenOptions::default()).await;
        let stack = stack.map_err(|e| e.to_string())?;
        let device = |name| stack.get(name).ok_or(format!("no device `{name}`"));
        let (bare, queued) = (device("data")?, device("queued")?);
        let (mut without, mut more) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let bare_ns = cost_ns(&rt, bare, requests, depth).await?;
            let queued_ns = cost_ns(&rt, queued, requests, depth).await?;
            without.push(bare_ns);
            more.push(queued_ns - bare_ns);
        }
        println!(
            "{medium:7} {scheduler:14} without {:6.0} ns, the layer {:6.0} ns",
            median(without),
            median(more)
        );
        stack
            .close()
            .await
            .map_err(|(name, e)| format!("{name}: {e}"))
    })
}

fn main() -> ExitCode {
    let mut numbers = std::env::args()
        .skip(1)
        .take(3)
        .map(|text| text.parse::<u64>());
    let mut number = |default| numbers.next().unwrap_or(Ok(default));
    let (Ok(requests), Ok(rounds @ 1..), Ok(depth @ 1..)) =
        (number(200_000), number(9), number(16))
    else {
        eprintln!("usage: queue_cost [REQUESTS] [ROUNDS] [DEPTH] [SCHEDULER]");
        return ExitCode::from(2);
    };
    let only = std::env::args().nth(4);
    let is_wanted = |name: &&str| only.as_deref().is_none_or(|only| only == *name);
    for medium in ["null", "memory"] {
        for scheduler in SchedulerChoice::NAMES.into_iter().filter(is_wanted) {
            if let Err(why) = measure(medium, scheduler, [requests, rounds, depth]) {
                eprintln!("queue_cost: {medium}, {scheduler}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
