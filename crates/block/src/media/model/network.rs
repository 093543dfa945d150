//! Network disks: a volume behind token buckets, with a latency that varies and sometimes spikes.
//!
//! Commands pass the buckets in order of arrival and are then served in parallel. A command can
//! need more tokens than a bucket holds. Such a command waits only until the bucket is full. Its
//! tokens are then taken, which makes the level of the bucket negative, so later commands wait
//! longer.

use serde::{Deserialize, Serialize};

use super::draw::{Draws, Lognormal};
use super::limits::{ModelError, require, require_lognormal, require_probability, require_rate};
use super::{
    Agenda, Command, CommandKind, MAX_OUTSTANDING, ModelCounters, TimingModel, Unreported,
};
use crate::token_bucket::TokenBucket;

/// Parameters of a network disk. docs/models.md gives the source of each default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkParameters {
    /// Sustained commands per second.
    pub rate_commands_per_s: u64,
    /// Number of commands that an idle volume accepts in one burst.
    pub burst_commands: u64,
    /// Sustained payload rate, reads and writes together.
    pub rate_bytes_per_s: u64,
    /// Payload in bytes that an idle volume accepts in one burst.
    pub burst_bytes: u64,
    /// Distribution of the service time of a command. The service starts once the command has its
    /// tokens.
    pub latency: Lognormal,
    /// Probability of a latency spike for a command.
    pub spike_probability: f64,
    /// Distribution of the latency that a spike adds.
    pub spike: Lognormal,
}

impl NetworkParameters {
    /// Checks that a device can have these values; an error names the field.
    pub fn validate(&self) -> Result<(), ModelError> {
        require(
            "rate_commands_per_s",
            self.rate_commands_per_s > 0,
            "above 0",
        )?;
        require("burst_commands", self.burst_commands > 0, "above 0")?;
        require_rate("rate_bytes_per_s", self.rate_bytes_per_s)?;
        require("burst_bytes", self.burst_bytes > 0, "above 0")?;
        require_probability("spike_probability", self.spike_probability)?;
        require_lognormal("latency", &self.latency)?;
        require_lognormal("spike", &self.spike)
    }
}

/// A network disk; see the module head.
#[derive(Debug)]
pub struct NetworkDisk {
    parameters: NetworkParameters,
    draws: Draws,
    clock_ns: u64,
    arrivals: u64,
    commands: TokenBucket,
    bytes: TokenBucket,
    /// Time at which the last command passed the buckets; the next command passes no earlier.
    passed_ns: u64,
    in_service: Agenda,
    counters: ModelCounters,
    unreported: Unreported,
}

impl NetworkDisk {
    /// Creates a volume with full buckets. Returns an error if a parameter is out of range.
    pub fn new(parameters: NetworkParameters, seed: u64) -> Result<Self, ModelError> {
        parameters.validate()?;
        Ok(NetworkDisk {
            draws: Draws::new(seed),
            clock_ns: 0,
            arrivals: 0,
            commands: TokenBucket::full(parameters.rate_commands_per_s, parameters.burst_commands),
            bytes: TokenBucket::full(parameters.rate_bytes_per_s, parameters.burst_bytes),
            passed_ns: 0,
            in_service: Agenda::default(),
            counters: ModelCounters::default(),
            unreported: Unreported::new(),
            parameters,
        })
    }

    /// Takes the command's tokens and returns the time at which the tokens are available.
    fn pass_buckets(&mut self, now_ns: u64, command: &Command) -> u64 {
        let payload_bytes = match command.kind {
            CommandKind::Read | CommandKind::Write => command.len,
            CommandKind::Flush | CommandKind::Discard | CommandKind::WriteZeroes => 0,
        };
        let from_ns = now_ns.max(self.passed_ns);
        let start_ns = self
            .commands
            .ready_ns(from_ns, 1)
            .max(self.bytes.ready_ns(from_ns, payload_bytes));
        self.commands.take(start_ns, 1);
        self.bytes.take(start_ns, payload_bytes);
        self.passed_ns = start_ns;
        if start_ns > now_ns {
            self.counters.token_waits += 1;
            self.counters.token_wait_ns += start_ns - now_ns;
        }
        start_ns
    }

    fn run_until(&mut self, now_ns: u64) {
        self.clock_ns = self.clock_ns.max(now_ns);
        while let Some(completion) = self.in_service.pop_due(self.clock_ns) {
            self.unreported.push_back(completion);
        }
    }
}

impl TimingModel for NetworkDisk {
    fn submit(&mut self, now_ns: u64, command: Command) {
        // Completions that are due are collected first. Otherwise a command without latency could
        // complete before them.
        self.run_until(now_ns);
        assert!(
            self.in_service.len() < MAX_OUTSTANDING,
            "the layer above bounds its depth"
        );
        self.counters.count(&command);
        let start_ns = self.pass_buckets(self.clock_ns, &command);
        let mut latency_ns = self.draws.lognormal(&self.parameters.latency);
        if self.draws.chance(self.parameters.spike_probability) {
            self.counters.spikes += 1;
            latency_ns += self.draws.lognormal(&self.parameters.spike);
        }
        self.in_service
            .push(start_ns + latency_ns, self.arrivals, command.id);
        self.arrivals += 1;
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        self.run_until(now_ns);
        done.extend(self.unreported.drain(..).map(|(id, _)| id));
    }

    fn advance_timed(&mut self, now_ns: u64, done: &mut Vec<(u64, u64)>) {
        self.run_until(now_ns);
        done.extend(self.unreported.drain(..));
    }

    fn next_event_ns(&self) -> Option<u64> {
        let waiting = self.unreported.front().map(|(_, done_ns)| *done_ns);
        waiting.or_else(|| self.in_service.next_ns())
    }

    fn counters(&self) -> ModelCounters {
        self.counters
    }
}
