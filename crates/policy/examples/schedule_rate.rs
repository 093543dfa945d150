//! Measures the number of requests per second of CPU time that each scheduler accepts, orders and
//! issues, in virtual time.
//!
//! ```text
//! cargo run --release --example schedule_rate -p bimetal-policy -- [REQUESTS] [ROUNDS]
//! ```
//!
//! In the workload, each of 64 tasks has one request at a random sector; half of the requests are
//! writes. A simulated device serves 16 requests at a time in 100 us each. A task makes its next
//! request as soon as its previous one has completed. The schedulers run in turn, round by round,
//! and the median of the rounds is printed. CPU time is the kernel's count for this process, so
//! other load on the machine matters little.

use std::collections::VecDeque;
use std::process::ExitCode;

use bimetal_policy::scheduler::{
    Bio, Direction, QueueParameters, RequestQueue, SchedulerChoice, Tag,
};

const TASKS: u32 = 64;
const DEPTH: usize = 16;
const SERVICE_NS: u64 = 100_000;
const SECTORS: u64 = 1 << 26;

/// Returns the CPU time in ns of the program's only thread, which Linux reports in the first field
/// of `/proc/self/schedstat`.
fn cpu_ns() -> Result<u64, String> {
    let path = "/proc/self/schedstat";
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let first = text.split_whitespace().next().unwrap_or_default();
    first.parse().map_err(|e| format!("{path}: {e}"))
}

/// A generator of pseudo-random numbers (xorshift64), which are the same for every scheduler.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A request queue, the simulated device behind it, and the virtual time.
struct Bench {
    queue: RequestQueue,
    random: Random,
    now_ns: u64,
    /// The requests at the device, each with its completion time.
    device: VecDeque<(u64, Tag)>,
    done: Vec<Tag>,
}

impl Bench {
    fn new(choice: &SchedulerChoice) -> Bench {
        let scheduler = choice.build(TASKS as usize);
        let parameters = QueueParameters::default();
        Bench {
            queue: RequestQueue::new(scheduler, TASKS as usize, parameters),
            random: Random(88_172_645_463_325_252),
            now_ns: 0,
            device: VecDeque::with_capacity(DEPTH),
            done: Vec::with_capacity(TASKS as usize),
        }
    }

    fn ask(&mut self, tag: Tag) {
        let drawn = self.random.next();
        let bio = Bio::read(tag, (drawn >> 20) % (SECTORS / 8) * 8, 8);
        let direction = if drawn & 1 == 0 {
            Direction::Read
        } else {
            Direction::Write
        };
        let bio = Bio {
            direction,
            sync: direction == Direction::Read,
            ..bio
        };
        self.queue.add(tag, bio, self.now_ns);
    }

    /// Runs until `requests` requests have completed.
    fn run(&mut self, requests: u64) -> Result<(), String> {
        (0..TASKS).for_each(|tag| self.ask(tag));
        let mut left = requests;
        while left > 0 {
            while self.device.len() < DEPTH
                && let Some(tag) = self.queue.next(self.now_ns)
            {
                self.device.push_back((self.now_ns + SERVICE_NS, tag));
            }
            let Some(&(at_ns, tag)) = self.device.front() else {
                let wake_ns = self.queue.wake_at_ns();
                self.now_ns = wake_ns.ok_or("it stopped")?;
                continue;
            };
            // The scheduler may have deferred a decision to a time before the next completion. This
            // matters only if the device has a free slot.
            let wake_ns = self
                .queue
                .wake_at_ns()
                .filter(|_| self.device.len() < DEPTH);
            if let Some(wake_ns) =
                wake_ns.filter(|wake_ns| (self.now_ns + 1..at_ns).contains(wake_ns))
            {
                self.now_ns = wake_ns;
                continue;
            }
            self.now_ns = at_ns;
            self.device.pop_front();
            self.queue.complete(tag, at_ns, &mut self.done);
            left -= 1;
            while let Some(tag) = self.done.pop() {
                self.ask(tag);
            }
        }
        Ok(())
    }
}

fn rate(choice: &SchedulerChoice, requests: u64) -> Result<f64, String> {
    let mut bench = Bench::new(choice);
    let before_ns = cpu_ns()?;
    bench.run(requests)?;
    Ok(requests as f64 / ((cpu_ns()? - before_ns) as f64 / 1e9))
}

fn measure(requests: u64, rounds: u64) -> Result<(), String> {
    let named = |name| SchedulerChoice::named(name).ok_or("a name of the list is known");
    let mut rates = vec![Vec::new(); SchedulerChoice::NAMES.len()];
    for _ in 0..rounds {
        for (name, rates) in SchedulerChoice::NAMES.into_iter().zip(&mut rates) {
            let measured = rate(&named(name)?, requests);
            rates.push(measured.map_err(|why| format!("{name}: {why}"))?);
        }
    }
    for (name, mut rates) in SchedulerChoice::NAMES.into_iter().zip(rates) {
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        println!(
            "{name:14} {:6.2} M requests per CPU second ({:.2} to {:.2})",
            median / 1e6,
            rates[0] / 1e6,
            rates[rates.len() - 1] / 1e6
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (Ok(requests), Ok(rounds @ 1..)) = (
        numbers.next().unwrap_or(Ok(1_000_000)),
        numbers.next().unwrap_or(Ok(7)),
    ) else {
        eprintln!("usage: schedule_rate [REQUESTS] [ROUNDS]");
        return ExitCode::from(2);
    };
    match measure(requests, rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("schedule_rate: {why}");
            ExitCode::FAILURE
        }
    }
}
