//! The hetero-mirroring experiment over the whole range of loads of the paper. The results are one
//! row for each scheme and load, a summary to compare with the promised results, and a sweep that
//! shows the parameters that matter.

use serde::Serialize;

use super::hetero::{
    BOUNDED, Devices, ExperimentError, Load, Outcome, PAPER, PAPER_WAIT_LIMIT, Scheme, check, run,
};
use super::parallel::{all_cores, run_all};

/// Loads of figures 7 and 8 of the paper, in writes per second.
pub const WRITES_PER_S: [u64; 8] = [40, 80, 120, 160, 200, 240, 280, 320];
/// Maximum number of outstanding writes in the closed queueing model.
pub const OUTSTANDING_MAX: u64 = 32;
/// Load at which tail latencies are compared, in writes per second.
pub const TAIL_WRITES_PER_S: u64 = 80;

/// Loads, duration and seeds of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Extent {
    /// Loads in writes per second.
    pub writes_per_s: Vec<u64>,
    /// Virtual time of the measured part of each run, in seconds.
    pub seconds: u64,
    /// Virtual time for which each run is loaded before the measured part, in seconds.
    pub warm_up_s: u64,
    /// Size of the part of the volume to which the load writes, in bytes.
    pub span_bytes: u64,
    /// Number of seeds, counted from 1; results are medians over the seeds.
    pub seeds: u64,
}

/// Result of one scheme under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the scheme.
    pub scheme: String,
    /// Load, in writes per second.
    pub writes_per_s: u64,
    /// The median over the seeds, computed separately for each value.
    pub outcome: Outcome,
}

/// Results of all schemes under all loads on one set of devices.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The devices.
    pub devices: Devices,
    /// Loads, duration and seeds.
    pub extent: Extent,
    /// A row for each scheme and load.
    pub rows: Vec<Row>,
}

/// Result of one scheme over all loads.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Name of the scheme.
    pub scheme: String,
    /// Relative gain in throughput over the single SSD, averaged over the loads: 0.1 means 10 %
    /// more.
    pub average_gain: f64,
    /// Largest relative gain in throughput over the single SSD at any load.
    pub best_gain: f64,
    /// Smallest relative gain in throughput over the single SSD at any load.
    pub least_gain: f64,
    /// Relative gain in peak throughput (the highest throughput at any load) over the peak
    /// throughput of the mirror of two SSDs.
    pub peak_gain_over_ssd_mirror: f64,
    /// Relative change of the mean response time, compared with the single SSD and averaged over
    /// the loads; negative means a shorter response time.
    pub response_change: f64,
    /// 99.9 % quantile of the response time, divided by the same quantile of the single SSD. The
    /// load is 80 writes/s, or the first load if the comparison does not contain 80 writes/s.
    pub tail_share: f64,
    /// Maximum number of exposed bytes at any load.
    pub exposed_bytes_peak: u64,
}

/// Runs the schemes under every load, on all cores. After each run, calls `progress` with the
/// number of finished runs and the number of all runs. The single SSD and the mirror of two SSDs
/// are always included, because summaries are relative to both.
///
/// # Errors
/// If a device or a setting does not exist, or if the span does not fit the volume of a scheme.
pub fn compare(
    devices: &Devices,
    schemes: &[Scheme],
    extent: &Extent,
    progress: impl Fn(u64, u64) + Sync,
) -> Result<Comparison, ExperimentError> {
    let mut all = vec![Scheme::SingleSsd, Scheme::SsdMirror];
    for scheme in schemes {
        if !all.contains(scheme) {
            all.push(scheme.clone());
        }
    }
    let mut runs = Vec::new();
    for scheme in &all {
        for &writes_per_s in &extent.writes_per_s {
            for seed in 1..=extent.seeds {
                let load = Load {
                    writes_per_s,
                    seconds: extent.seconds,
                    warm_up_s: extent.warm_up_s,
                    span_bytes: extent.span_bytes,
                    outstanding_max: OUTSTANDING_MAX,
                    seed,
                };
                runs.push((scheme, load));
            }
        }
    }
    // A mistake is found before the first of many runs, not after the last one.
    for scheme in &all {
        check(devices, scheme, extent.span_bytes)?;
    }
    let outcomes = run_all(
        &runs,
        all_cores(),
        |(scheme, load)| run(devices, scheme, *load),
        progress,
    )?;
    let of_rows = runs.chunks(extent.seeds as usize);
    let rows = of_rows.zip(outcomes.chunks(extent.seeds as usize));
    Ok(Comparison {
        devices: devices.clone(),
        extent: extent.clone(),
        rows: rows
            .map(|(runs, outcomes)| Row {
                scheme: runs[0].0.name().to_owned(),
                writes_per_s: runs[0].1.writes_per_s,
                outcome: medians(outcomes),
            })
            .collect(),
    })
}

/// Returns the medians over the outcomes, computed separately for each value.
fn medians(outcomes: &[Outcome]) -> Outcome {
    let median = |statistic: fn(&Outcome) -> f64| {
        let mut values: Vec<f64> = outcomes.iter().map(statistic).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Outcome {
        done_per_s: median(|o| o.done_per_s),
        mean_ms: median(|o| o.mean_ms),
        p50_ms: median(|o| o.p50_ms),
        p99_ms: median(|o| o.p99_ms),
        p999_ms: median(|o| o.p999_ms),
        max_ms: median(|o| o.max_ms),
        exposed_bytes_peak: median(|o| o.exposed_bytes_peak as f64) as u64,
        exposed_bytes_end: median(|o| o.exposed_bytes_end as f64) as u64,
        mode_switches_per_s: median(|o| o.mode_switches_per_s),
        log_rounds: median(|o| o.log_rounds),
        moved_share: median(|o| o.moved_share),
        mirror: None,
    }
}

impl Comparison {
    fn of<'c>(&'c self, scheme: &'c str) -> impl Iterator<Item = &'c Outcome> {
        self.rows
            .iter()
            .filter(move |row| row.scheme == scheme)
            .map(|row| &row.outcome)
    }

    /// Returns the summary of each scheme.
    pub fn summaries(&self) -> Vec<Summary> {
        let mut names: Vec<&str> = self.rows.iter().map(|row| row.scheme.as_str()).collect();
        names.dedup();
        names.into_iter().map(|name| self.summary(name)).collect()
    }

    fn summary(&self, scheme: &str) -> Summary {
        let single = Scheme::SingleSsd;
        let single: Vec<&Outcome> = self.of(single.name()).collect();
        let ours: Vec<&Outcome> = self.of(scheme).collect();
        let peak = |name| self.of(name).map(|o| o.done_per_s).fold(0.0, f64::max);
        let gains: Vec<f64> = ours
            .iter()
            .zip(&single)
            .map(|(o, s)| o.done_per_s / s.done_per_s - 1.0)
            .collect();
        let total = |all: &[&Outcome]| all.iter().map(|o| o.done_per_s).sum::<f64>();
        let responses = ours
            .iter()
            .zip(&single)
            .map(|(o, s)| o.mean_ms / s.mean_ms - 1.0);
        let mut loads = self.extent.writes_per_s.iter();
        let tail = loads.position(|&rate| rate == TAIL_WRITES_PER_S);
        let tail = tail.unwrap_or(0);
        Summary {
            scheme: scheme.to_owned(),
            average_gain: total(&ours) / total(&single) - 1.0,
            best_gain: gains.iter().copied().fold(f64::MIN, f64::max),
            least_gain: gains.iter().copied().fold(f64::MAX, f64::min),
            peak_gain_over_ssd_mirror: peak(scheme) / peak(Scheme::SsdMirror.name()) - 1.0,
            response_change: responses.sum::<f64>() / ours.len() as f64,
            tail_share: ours[tail].p999_ms / single[tail].p999_ms,
            exposed_bytes_peak: ours.iter().map(|o| o.exposed_bytes_peak).max().unwrap_or(0),
        }
    }
}

/// One point of the sweep: a changed device, and the results of the paper's policies and of the
/// default policy on this device.
#[derive(Clone, Debug, Serialize)]
pub struct SweepPoint {
    /// Description of the changed device.
    pub change: String,
    /// Throughput of the single SSD in writes per second, averaged over the loads.
    pub single_per_s: f64,
    /// Result of the policy `paper`, which acknowledges a write at its first completion.
    pub paper: Summary,
    /// Result of the policy `paper-wait-limit`, which acknowledges a write when both sides have
    /// completed it or the wait limit has passed.
    pub paper_wait_limit: Summary,
    /// Result of the default policy, with a bounded exposure.
    pub bounded: Summary,
}

/// Returns the devices of the sweep: the paper's devices in fit B, and variants of them with a
/// single change of the disk or of the SSD.
pub fn sweep_devices() -> Vec<Devices> {
    let base = Devices::fit_b();
    let disk = |name: &str, overrides: &str| Devices {
        name: name.to_owned(),
        hdd_overrides: overrides.to_owned(),
        ..base.clone()
    };
    let ssd = |name: &str, overrides: &str| Devices {
        name: name.to_owned(),
        ssd_overrides: overrides.to_owned(),
        ..base.clone()
    };
    let paper_disk = &base.hdd_overrides;
    vec![
        disk("as shipped", paper_disk),
        disk("disk: 32 GB, so seeks over all of it", ""),
        disk(
            "disk: one request at a time",
            &format!("{paper_disk}\nqueue_commands = 1"),
        ),
        disk(
            "disk: orders 32 requests",
            &format!("{paper_disk}\nqueue_commands = 32"),
        ),
        disk(
            "disk: 16 MB write cache",
            &format!("{paper_disk}\nwrite_cache_bytes = 16000000"),
        ),
        ssd(
            "SSD: freezes half as long",
            "freeze = { median_ns = 160000000 }",
        ),
        ssd(
            "SSD: freezes twice as long",
            "freeze = { median_ns = 640000000 }",
        ),
        ssd(
            "SSD: 100 MB/s between freezes",
            "write_rate_bytes_per_s = 100000000",
        ),
        ssd("SSD: pool twice as large", "pool_bytes = 128000000"),
    ]
}

/// Returns variants of the default policy and of the paper's policies, to compare on the same
/// devices.
pub fn sweep_rules() -> Vec<Scheme> {
    vec![
        Scheme::hetero("bounded, 16 MiB", "exposure = { bytes = \"16MiB\" }"),
        Scheme::hetero(
            "bounded, 256 MiB, 20 s",
            "exposure = { bytes = \"256MiB\", age = \"20s\" }",
        ),
        Scheme::hetero(
            "bounded, 1 GiB, 60 s",
            "exposure = { bytes = \"1GiB\", age = \"60s\" }",
        ),
        Scheme::hetero(
            "bounded, limit 2 x p99",
            "limit_quantile = 0.99\nlimit_multiple = 2.0",
        ),
        Scheme::hetero("bounded, limit 1.3 x first", "wait_limit = 1.3"),
        Scheme::hetero("bounded, drained in order", "drain = \"fifo\""),
        Scheme::hetero(
            "paper, factor 1.05",
            "policy = \"paper\"\nwait_limit = 1.05",
        ),
        Scheme::hetero("paper, factor 5", "policy = \"paper\"\nwait_limit = 5.0"),
        Scheme::hetero("paper, factor 20", "policy = \"paper\"\nwait_limit = 20.0"),
        Scheme::hetero(
            "paper, drained sorted",
            "policy = \"paper\"\ndrain = \"sorted\"",
        ),
        Scheme::hetero(
            "paper, one write at a time",
            "policy = \"paper\"\nserial = true",
        ),
    ]
}

/// Returns the results of one point of the sweep from its comparison.
pub fn sweep_point(comparison: &Comparison) -> SweepPoint {
    let single = Scheme::SingleSsd;
    let single: Vec<f64> = comparison.of(single.name()).map(|o| o.done_per_s).collect();
    SweepPoint {
        change: comparison.devices.name.clone(),
        single_per_s: single.iter().sum::<f64>() / single.len() as f64,
        paper: comparison.summary(PAPER),
        paper_wait_limit: comparison.summary(PAPER_WAIT_LIMIT),
        bounded: comparison.summary(BOUNDED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::hetero::PAPERS_BYTES;

    /// A short run of the experiment reproduces the paper's gain. It uses the devices of fit B,
    /// which is one of two sets of parameters for the paper's devices. The exposure has no bound
    /// with the paper's policy, and has a bound with the default policy. The limits below are
    /// promised for the full experiment. The short run meets them with a margin (see
    /// `docs/experiments/hetero-mirroring.md`).
    #[test]
    fn the_papers_result_is_there_and_ours_is_bounded() {
        let extent = Extent {
            writes_per_s: WRITES_PER_S.to_vec(),
            seconds: 60,
            warm_up_s: 0,
            span_bytes: PAPERS_BYTES,
            seeds: 1,
        };
        let comparison = compare(
            &Devices::fit_b(),
            &crate::experiment::hetero::schemes(),
            &extent,
            |_, _| {},
        )
        .unwrap();
        let paper = comparison.summary(PAPER);
        assert!(paper.average_gain >= 0.15, "{paper:?}");
        assert!(paper.peak_gain_over_ssd_mirror >= 0.20, "{paper:?}");
        assert!(
            paper.exposed_bytes_peak > 500 << 20,
            "nothing bounds it: {paper:?}"
        );
        let bounded = comparison.summary(BOUNDED);
        assert!(bounded.exposed_bytes_peak <= 64 << 20, "{bounded:?}");
        assert!(bounded.response_change <= -0.15, "{bounded:?}");
        assert!(bounded.tail_share <= 0.1, "{bounded:?}");
    }
}
