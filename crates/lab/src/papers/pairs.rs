//! Response times of the same writes on an SSD and on a disk, compared write by write.

use std::collections::BTreeMap;

use bimetal_sim::experiment::hetero::{
    Devices, ExperimentError, Load, Response, Scheme, run_with_responses,
};
use serde::{Deserialize, Serialize};

/// Number of writes whose ratios are kept for a drawing.
const DRAWN: usize = 600;
/// A ratio from which a write counts as a spike: the lower bound of the heights that the paper
/// prints for its figure 9.
const SPIKE: f64 = 30.0;
/// Response time from which a write counts as held up, in nanoseconds.
const HELD_UP_NS: u64 = 1_000_000_000;
/// Time that the paper waits for the second side, as a multiple of the time of the first side.
const WAIT_LIMIT: f64 = 1.3;

/// Comparison of the response times of both devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// Number of writes that both devices have completed.
    pub writes: u64,
    /// Largest time of the SSD, as a multiple of the time of the disk for the same write.
    pub ssd_slower_most: f64,
    /// Largest time of the disk, as a multiple of the time of the SSD for the same write.
    pub disk_slower_most: f64,
    /// Number of writes for which the SSD took at least 30 times as long.
    pub ssd_spikes: u64,
    /// Number of writes for which the disk took at least 30 times as long.
    pub disk_spikes: u64,
    /// Number of writes whose second completion is within the wait limit of the paper: 1.3 times
    /// the time of the first completion, counted from the first completion.
    pub within_limit: u64,
    /// Number of writes that took more than a second on both devices.
    pub both_held_up: u64,
    /// Longest response time on the SSD, in ms.
    pub ssd_longest_ms: f64,
    /// For the first writes: the time of the SSD divided by that of the disk, or, if the disk was
    /// slower, the time of the disk divided by that of the SSD as a negative number.
    pub ratios: Vec<f64>,
}

/// Gives the same load to the SSD and to the disk, and compares the response times.
///
/// # Errors
/// If a device does not exist, or if the span does not fit a device.
pub fn run(devices: &Devices, load: Load) -> Result<Pairs, ExperimentError> {
    let (_, ssd) = run_with_responses(devices, &Scheme::SingleSsd, load)?;
    let (_, disk) = run_with_responses(devices, &Scheme::SingleDisk, load)?;
    Ok(compare(&ssd, &disk))
}

fn compare(ssd: &[Response], disk: &[Response]) -> Pairs {
    let disk: BTreeMap<u64, u64> = disk.iter().map(|of| (of.number, of.ns)).collect();
    let mut both: Vec<(u64, u64, u64)> = ssd
        .iter()
        .filter_map(|of| Some((of.number, of.ns.max(1), (*disk.get(&of.number)?).max(1))))
        .collect();
    both.sort_unstable();
    let mut pairs = Pairs {
        writes: both.len() as u64,
        ..Pairs::default()
    };
    for (_, ssd_ns, disk_ns) in both {
        let of_ssd = ssd_ns as f64 / disk_ns as f64;
        let of_disk = disk_ns as f64 / ssd_ns as f64;
        pairs.ssd_slower_most = pairs.ssd_slower_most.max(of_ssd);
        pairs.disk_slower_most = pairs.disk_slower_most.max(of_disk);
        pairs.ssd_spikes += u64::from(of_ssd >= SPIKE);
        pairs.disk_spikes += u64::from(of_disk >= SPIKE);
        pairs.within_limit += u64::from(of_ssd.max(of_disk) <= 1.0 + WAIT_LIMIT);
        pairs.both_held_up += u64::from(ssd_ns.min(disk_ns) > HELD_UP_NS);
        pairs.ssd_longest_ms = pairs.ssd_longest_ms.max(ssd_ns as f64 / 1e6);
        if pairs.ratios.len() < DRAWN {
            let ratio = if of_ssd >= 1.0 { of_ssd } else { -of_disk };
            pairs.ratios.push(ratio);
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Write 1 takes 40 ms on the SSD and 1 ms on the disk, write 2 takes 1 ms and 2 ms, and write
    /// 3 takes 2 s and 1.5 s. Write 4 was completed by the SSD only.
    #[test]
    fn writes_are_compared_by_their_numbers() {
        let of = |number, ms: u64| Response {
            number,
            ns: ms * 1_000_000,
        };
        let ssd = [of(3, 2000), of(1, 40), of(2, 1), of(4, 7)];
        let disk = [of(1, 1), of(2, 2), of(3, 1500)];
        let pairs = compare(&ssd, &disk);
        assert_eq!((pairs.writes, pairs.ssd_longest_ms), (3, 2000.0));
        assert_eq!((pairs.ssd_slower_most, pairs.disk_slower_most), (40.0, 2.0));
        assert_eq!((pairs.ssd_spikes, pairs.disk_spikes), (1, 0));
        assert_eq!((pairs.within_limit, pairs.both_held_up), (2, 1));
        assert_eq!(pairs.ratios[..2], [40.0, -2.0]);
    }
}
