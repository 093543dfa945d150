//! Schedulers and their parameters by name, for configurations and experiments.
//!
//! A new scheduler adds one line to each list in this module. The module must not contain any
//! scheduling decision.

use super::{
    Anticipatory, AnticipatoryParameters, Bfq, BfqParameters, Cfq, CfqParameters, Deadline,
    DeadlineParameters, Flash, FlashParameters, Kyber, KyberParameters, MqDeadline,
    MqDeadlineParameters, Noop, Scheduler,
};

/// A chosen scheduler with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerChoice {
    /// First come, first served.
    Noop,
    /// Ascending sweeps, interrupted by expired requests.
    Deadline(DeadlineParameters),
    /// Deadline, applied to each priority class.
    MqDeadline(MqDeadlineParameters),
    /// Keeps the disk idle for a moment to wait for the next request of the task that read last.
    Anticipatory(AnticipatoryParameters),
    /// A slice of time for each task.
    Cfq(CfqParameters),
    /// A share of the sectors for each task.
    Bfq(BfqParameters),
    /// Tokens by latency.
    Kyber(KyberParameters),
    /// Reads first, writes by unit.
    Flash(FlashParameters),
}

/// A reference to the value of a parameter, by its type.
#[derive(Debug, PartialEq, Eq)]
pub enum Parameter<'a> {
    /// A time in nanoseconds.
    TimeNs(&'a mut u64),
    /// A distance or length in sectors of 512 bytes.
    Sectors(&'a mut u64),
    /// A number of requests, of batches or of times.
    Count(&'a mut u64),
    /// Yes or no.
    Flag(&'a mut bool),
}

impl SchedulerChoice {
    /// The names of all schedulers.
    pub const NAMES: [&'static str; 8] = [
        "noop",
        "deadline",
        "mq-deadline",
        "anticipatory",
        "cfq",
        "bfq",
        "kyber",
        "flash",
    ];

    /// Returns the scheduler with the given name and its default parameters; `None` if no scheduler
    /// has this name.
    pub fn named(name: &str) -> Option<SchedulerChoice> {
        Some(match name {
            "noop" => SchedulerChoice::Noop,
            "deadline" => SchedulerChoice::Deadline(DeadlineParameters::default()),
            "mq-deadline" => SchedulerChoice::MqDeadline(MqDeadlineParameters::default()),
            "anticipatory" => SchedulerChoice::Anticipatory(AnticipatoryParameters::default()),
            "cfq" => SchedulerChoice::Cfq(CfqParameters::default()),
            "bfq" => SchedulerChoice::Bfq(BfqParameters::default()),
            "kyber" => SchedulerChoice::Kyber(KyberParameters::default()),
            "flash" => SchedulerChoice::Flash(FlashParameters::default()),
            _ => return None,
        })
    }

    /// Returns the names and values of the scheduler's parameters, in the order of the
    /// documentation. The names are those of the fields without the unit.
    pub fn parameters(&mut self) -> Vec<(&'static str, Parameter<'_>)> {
        use Parameter::{Count, Sectors, TimeNs};
        match self {
            SchedulerChoice::Noop => Vec::new(),
            SchedulerChoice::Deadline(p) => deadline_parameters(p),
            SchedulerChoice::MqDeadline(p) => {
                let mut all = deadline_parameters(&mut p.deadline);
                all.push(("prio_aging_expire", TimeNs(&mut p.prio_aging_expire_ns)));
                all
            }
            SchedulerChoice::Anticipatory(p) => vec![
                ("read_expire", TimeNs(&mut p.read_expire_ns)),
                ("write_expire", TimeNs(&mut p.write_expire_ns)),
                ("read_batch_expire", TimeNs(&mut p.read_batch_expire_ns)),
                ("write_batch_expire", TimeNs(&mut p.write_batch_expire_ns)),
                ("antic_expire", TimeNs(&mut p.antic_expire_ns)),
            ],
            SchedulerChoice::Cfq(p) => vec![
                ("quantum", Count(&mut p.quantum)),
                ("fifo_expire_sync", TimeNs(&mut p.fifo_expire_sync_ns)),
                ("fifo_expire_async", TimeNs(&mut p.fifo_expire_async_ns)),
                ("back_seek_max", Sectors(&mut p.back_seek_sectors_max)),
                ("back_seek_penalty", Count(&mut p.back_seek_penalty)),
                ("slice_sync", TimeNs(&mut p.slice_sync_ns)),
                ("slice_async", TimeNs(&mut p.slice_async_ns)),
                ("slice_async_rq", Count(&mut p.slice_async_rq)),
                ("slice_idle", TimeNs(&mut p.slice_idle_ns)),
            ],
            SchedulerChoice::Bfq(p) => bfq_parameters(p),
            SchedulerChoice::Kyber(p) => vec![
                ("read_lat", TimeNs(&mut p.read_lat_ns)),
                ("write_lat", TimeNs(&mut p.write_lat_ns)),
            ],
            SchedulerChoice::Flash(p) => vec![
                ("write_unit", Sectors(&mut p.write_unit_sectors)),
                ("fill_wait", TimeNs(&mut p.fill_wait_ns)),
                ("write_expire", TimeNs(&mut p.write_expire_ns)),
                ("reads_between", Count(&mut p.reads_between)),
            ],
        }
    }

    /// Builds the scheduler for bios with tags below `tags`.
    pub fn build(&self, tags: usize) -> Box<dyn Scheduler> {
        match *self {
            SchedulerChoice::Noop => Box::new(Noop::new(tags)),
            SchedulerChoice::Deadline(p) => Box::new(Deadline::new(tags, p)),
            SchedulerChoice::MqDeadline(p) => Box::new(MqDeadline::new(tags, p)),
            SchedulerChoice::Anticipatory(p) => Box::new(Anticipatory::new(tags, p)),
            SchedulerChoice::Kyber(p) => Box::new(Kyber::new(tags, p)),
            SchedulerChoice::Flash(p) => Box::new(Flash::new(tags, p)),
            SchedulerChoice::Cfq(p) => Box::new(Cfq::new(tags, p)),
            SchedulerChoice::Bfq(p) => Box::new(Bfq::new(tags, p)),
        }
    }
}

fn deadline_parameters(p: &mut DeadlineParameters) -> Vec<(&'static str, Parameter<'_>)> {
    vec![
        ("read_expire", Parameter::TimeNs(&mut p.read_expire_ns)),
        ("write_expire", Parameter::TimeNs(&mut p.write_expire_ns)),
        ("fifo_batch", Parameter::Count(&mut p.fifo_batch)),
        ("writes_starved", Parameter::Count(&mut p.writes_starved)),
        ("front_merges", Parameter::Flag(&mut p.front_merges)),
    ]
}

fn bfq_parameters(p: &mut BfqParameters) -> Vec<(&'static str, Parameter<'_>)> {
    use Parameter::{Count, Flag, Sectors, TimeNs};
    vec![
        ("slice_idle", TimeNs(&mut p.slice_idle_ns)),
        ("fifo_expire_sync", TimeNs(&mut p.fifo_expire_sync_ns)),
        ("fifo_expire_async", TimeNs(&mut p.fifo_expire_async_ns)),
        ("back_seek_max", Sectors(&mut p.back_seek_sectors_max)),
        ("back_seek_penalty", Count(&mut p.back_seek_penalty)),
        ("timeout_sync", TimeNs(&mut p.timeout_sync_ns)),
        ("max_budget", Sectors(&mut p.max_budget_sectors)),
        ("low_latency", Flag(&mut p.low_latency)),
        ("strict_guarantees", Flag(&mut p.strict_guarantees)),
        ("rotational", Flag(&mut p.rotational)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheduler_is_found_by_the_name_that_it_gives_itself() {
        for name in SchedulerChoice::NAMES {
            let choice = SchedulerChoice::named(name).expect("it is in the list");
            assert_eq!(choice.build(4).name(), name);
        }
        assert_eq!(SchedulerChoice::named("bfq2"), None);
    }

    #[test]
    fn every_parameter_is_one_of_its_own() {
        for name in SchedulerChoice::NAMES {
            let plain = SchedulerChoice::named(name).expect("it is in the list");
            let count = plain.clone().parameters().len();
            let mut seen = Vec::new();
            for at in 0..count {
                let mut changed = plain;
                let (parameter, place) = changed.parameters().swap_remove(at);
                match place {
                    Parameter::TimeNs(value)
                    | Parameter::Sectors(value)
                    | Parameter::Count(value) => *value += 12_345,
                    Parameter::Flag(value) => *value = !*value,
                }
                assert_ne!(changed, plain, "{name} has no field behind {parameter}");
                assert!(
                    !seen.contains(&changed),
                    "{name}: {parameter} is another's field"
                );
                seen.push(changed);
            }
        }
    }
}
