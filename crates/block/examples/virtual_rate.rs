//! Measures how many requests virtual time executes per second of CPU time, in a stack of three
//! layers (stats over passthrough over a timing model) over a medium without content.
//!
//! ```text
//! cargo run --release --example virtual_rate -p bimetal-block -- [REQUESTS] [DEPTH]
//! ```
//!
//! The program prints one line for each model. It uses the CPU time that the kernel has counted for
//! this process, so that other load on the machine does not matter.

mod load;

use std::path::Path;
use std::process::ExitCode;

use bimetal_block::graph::{OpenOptions, Stack, read_graph};
use bimetal_rt::{Rt, VirtualOptions};
use load::{cpu_ns, send};

const MODELS: [(&str, &str); 4] = [
    ("ssd", "sata-2009"),
    ("ssd", "nvme-tlc"),
    ("hdd", "hdd-7200"),
    ("network", "network-disk"),
];

fn stack_text(of: &str, profile: &str) -> String {
    format!(
        r#"
[device.data]
type = "null"
size = "32GiB"
[device.timed]
type = "{of}"
profile = "{profile}"
below = "data"
[device.passed]
type = "passthrough"
below = "timed"
[device.top]
type = "stats"
below = "passed"
"#
    )
}

fn measure(of: &str, profile: &str, requests: u64, depth: u64) -> Result<(), String> {
    let depth = u32::try_from(depth).map_err(|e| e.to_string())?;
    let rt = Rt::virtual_time(VirtualOptions::default());
    let graph = read_graph(Path::new("built in"), &stack_text(of, profile));
    let graph = graph.map_err(|e| e.to_string())?;
    rt.block_on(async {
        let stack = Stack::open(&rt, &graph, &["top"], &OpenOptions::default()).await;
        let stack = stack.map_err(|e| e.to_string())?;
        let top = stack.get("top").ok_or("no device `top`")?;
        let before_ns = cpu_ns()?;
        send(&rt, top, requests, depth).await;
        let cpu_s = (cpu_ns()? - before_ns) as f64 / 1e9;
        let rate = requests as f64 / cpu_s;
        let virtual_s = rt.now().as_secs_f64();
        println!(
            "{profile:14} depth {depth:3}: {rate:10.0} requests per CPU second ({virtual_s:.1} s of virtual time in {cpu_s:.2} s)"
        );
        stack.close().await.map_err(|(name, e)| format!("{name}: {e}"))
    })
}

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (Ok(requests), Ok(depth)) = (
        numbers.next().unwrap_or(Ok(2_000_000)),
        numbers.next().unwrap_or(Ok(32)),
    ) else {
        eprintln!("usage: virtual_rate [REQUESTS] [DEPTH]");
        return ExitCode::from(2);
    };
    for (of, profile) in MODELS {
        if let Err(why) = measure(of, profile, requests, depth) {
            eprintln!("virtual_rate: {profile}: {why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
