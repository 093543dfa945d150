//! Runs every scheduler in front of a modelled flash drive under the same mixed load, in virtual
//! time.
//!
//! ```text
//! cargo run --release --example schedulers_on_flash -p bimetal-block -- [PROFILE] [SECONDS] [DEPTH] [PARAMETERS]
//! ```
//!
//! Each of eight readers reads 4 KiB at random offsets, one read after the other. Each of sixteen
//! writers writes runs of eight consecutive 4-KiB pages at random offsets, all pages of a run
//! together, and pauses for 20 to 60 ms after each run. Another writer writes 4 KiB with FUA and
//! pauses for 5 ms after each write. The program prints the rates and latencies of reads, FUA
//! writes and other writes. All schedulers run with the same seed. PARAMETERS are parameters of the
//! scheduler `flash`, as in `write_expire = '20ms', reads_between = 8`.

use std::cell::RefCell;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::graph::{OpenOptions, Stack, read_graph};
use bimetal_block::{Device, Flags, Origin, Request};
use bimetal_policy::scheduler::SchedulerChoice;
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Instant, Payload, Rt, VirtualOptions};

const READERS: u32 = 8;
const WRITERS: u32 = 16;
const RUN_PAGES: u64 = 8;

/// Latencies in ns of one kind of request.
type Latencies = Rc<RefCell<Vec<u64>>>;

/// A client of the load, which sends one kind of request until a given time.
#[derive(Clone)]
struct Client {
    rt: Rt,
    top: Rc<dyn Device>,
    until: Instant,
    task: u32,
    latencies: Latencies,
}

impl Client {
    async fn ask(&self, request: Request) {
        let began = self.rt.now();
        let answer = self
            .top
            .submit(request.from_origin(Origin::of_task(self.task)))
            .await;
        answer.expect("a model does not fail");
        self.latencies
            .borrow_mut()
            .push(self.rt.now().ns_since(began));
    }

    fn goes_on(&self) -> bool {
        self.rt.now() < self.until
    }

    async fn read(self) {
        let mut rng = self.rt.rng(&format!("client {}", self.task));
        let pages = self.top.geometry().size_bytes / 4096;
        while self.goes_on() {
            self.ask(Request::read(rng.below(pages) * 4096, 4096)).await;
        }
    }

    /// Writes runs of pages: starts the writes of all pages of a run at once, and sleeps for about
    /// `rest` after each run.
    async fn write(self, rest: Duration) {
        let mut rng = self.rt.rng(&format!("client {}", self.task));
        let runs = self.top.geometry().size_bytes / 4096 / RUN_PAGES;
        let payload = Payload::from(self.rt.pool().zeroed(4096));
        while self.goes_on() {
            let first = rng.below(runs) * RUN_PAGES;
            let run = (first..first + RUN_PAGES)
                .map(|page| self.ask(Request::write(page * 4096, payload.clone(), Flags::NONE)));
            futures_util::future::join_all(run).await;
            let rest = rest.mul_f64(0.5 + rng.below(1000) as f64 / 1000.0);
            self.rt.sleep(rest).await;
        }
    }

    async fn log(self) {
        let payload = Payload::from(self.rt.pool().zeroed(4096));
        let mut page = 0;
        while self.goes_on() {
            self.ask(Request::write(page * 4096, payload.clone(), Flags::FUA))
                .await;
            page = (page + 1) % 4096;
            self.rt.sleep(Duration::from_millis(5)).await;
        }
    }
}

fn stack_text(load: &Load, scheduler: &str) -> String {
    let Load { profile, depth, .. } = load;
    let parameters = match scheduler {
        "flash" => &load.parameters,
        _ => "",
    };
    // A flash drive starts filled and overwritten, so that it has to clean during the run. An empty
    // drive would not have to clean.
    let (of, state) = if profile.starts_with("flash") {
        ("flash", "filled_share = 1.0\noverwritten_times = 1.0")
    } else {
        ("ssd", "")
    };
    format!(
        r#"
[device.data]
type = "null"
size = "1GiB"
[device.drive]
type = "{of}"
profile = "{profile}"
below = "data"
{state}
[device.top]
type = "queue"
below = "drive"
scheduler = "{scheduler}"
depth = {depth}
tags = 1024
parameters = {{ {parameters} }}
"#
    )
}

/// Parameters of a measurement.
struct Load {
    profile: String,
    seconds: u64,
    depth: u64,
    /// Parameters of the scheduler `flash`.
    parameters: String,
}

/// Returns the latency below which the given share of the requests lies, in us.
fn quantile_us(latencies: &mut [u64], share: f64) -> f64 {
    latencies.sort_unstable();
    let at = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
    latencies.get(at).map_or(0.0, |ns| *ns as f64 / 1e3)
}

fn line(name: &str, latencies: &Latencies, seconds: u64) -> String {
    let mut all = latencies.borrow_mut();
    let [p50, p99, p999, most] = [0.5, 0.99, 0.999, 1.0].map(|share| quantile_us(&mut all, share));
    let rate = all.len() as u64 / seconds;
    format!(
        "  {name:5} {rate:7}/s  p50 {p50:8.0}  p99 {p99:8.0}  p99.9 {p999:8.0}  max {most:8.0} us"
    )
}

fn measure(load: &Load, scheduler: &str) -> Result<(), String> {
    let rt = Rt::virtual_time(VirtualOptions::default());
    let (text, seconds) = (stack_text(load, scheduler), load.seconds);
    let graph = read_graph(Path::new("built in"), &text).map_err(|e| e.to_string())?;
    rt.block_on(async {
        let stack = Stack::open(&rt, &graph, &["top"], &OpenOptions::default()).await;
        let stack = stack.map_err(|e| e.to_string())?;
        let top = stack.get("top").ok_or("no device `top`")?;
        let kinds: [Latencies; 3] = Default::default();
        let until = rt.now() + Duration::from_secs(seconds);
        let client = |task: u32, kind: usize| Client {
            rt: rt.clone(),
            top: Rc::clone(top),
            until,
            task,
            latencies: Rc::clone(&kinds[kind]),
        };
        let group = TaskGroup::new(&rt);
        (1..=READERS).for_each(|task| group.spawn(client(task, 0).read()));
        group.spawn(client(READERS + 1, 1).log());
        for task in READERS + 2..READERS + 2 + WRITERS {
            group.spawn(client(task, 2).write(Duration::from_millis(40)));
        }
        group.join().await;
        println!("{scheduler}");
        for (name, latencies) in ["read", "fua", "write"].into_iter().zip(&kinds) {
            println!("{}", line(name, latencies, seconds));
        }
        stack
            .close()
            .await
            .map_err(|(name, e)| format!("{name}: {e}"))
    })
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let profile = arguments.next().unwrap_or_else(|| "flash-2009".to_owned());
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (Ok(seconds @ 1..), Ok(depth @ 1..)) = (number(20), number(8)) else {
        eprintln!("usage: schedulers_on_flash [PROFILE] [SECONDS] [DEPTH] [PARAMETERS]");
        return ExitCode::from(2);
    };
    let load = Load {
        profile,
        seconds,
        depth,
        parameters: arguments.next().unwrap_or_default(),
    };
    for scheduler in SchedulerChoice::NAMES {
        if let Err(why) = measure(&load, scheduler) {
            eprintln!("schedulers_on_flash: {scheduler}: {why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
