//! A scan of the whole device, as in HD Tach, without a file system: the rate of sequential reads
//! at positions from start to end, and the latency of random reads.

use bimetal_rt::Rng;
use bimetal_sim::experiment::latency::LatencyHistogram;
use serde::{Deserialize, Serialize};

use super::latency::figures;
use super::{Measured, OPERATIONS_MAX, World, mb_per_s};
use crate::files::Program;
use crate::layer::{FileLayer, LoadError};

/// Parameters of a load that scans the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// Number of positions at which the rate is measured.
    pub points: u64,
    /// Number of bytes that are read at each position.
    pub bytes: u64,
    /// Length of a sequential request in bytes.
    pub request_bytes: u64,
    /// Number of reads of 4 KiB at random positions.
    pub accesses: u64,
}

impl Sweep {
    /// Checks that the parameters are valid.
    ///
    /// # Errors
    /// A description of the mistake.
    pub fn check(&self) -> Result<(), String> {
        let blocks = |bytes: u64| (4096..=1 << 40).contains(&bytes) && bytes.is_multiple_of(4096);
        if !blocks(self.bytes) || !blocks(self.request_bytes) || self.request_bytes > 32 << 20 {
            return Err(
                "`bytes` and `request` must be multiples of 4 KiB, `request` of 32 MiB at most"
                    .to_owned(),
            );
        }
        if !(2..=10_000).contains(&self.points) || !(1..=OPERATIONS_MAX).contains(&self.accesses) {
            return Err(
                "`points` must be 2 to 10,000 and `accesses` 1 to 1,000,000,000".to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the number of requests as an estimate of pages: simulating a request costs about as
    /// much as simulating a page.
    pub(super) fn estimated_pages(&self) -> u64 {
        let requests = self.points * self.bytes.div_ceil(self.request_bytes);
        requests + self.accesses
    }

    /// Runs the load and returns its metrics.
    ///
    /// # Errors
    /// If the layer fails.
    pub(super) async fn run<F: FileLayer>(&self, world: &World<F>) -> Result<Measured, LoadError> {
        let mut program = Program::new(0);
        let blocks = u64::from(world.files.device_blocks());
        let length = self.bytes / 4096;
        let last = blocks.saturating_sub(length);
        let mut curve = Vec::new();
        for point in 0..self.points {
            let from = last * point / (self.points - 1);
            let rate = self
                .rate_at(world, from, length.min(blocks), &mut program)
                .await?;
            curve.push((100.0 * point as f64 / (self.points - 1) as f64, rate));
        }
        let mut rng = Rng::labelled(world.seed, "sweep");
        let mut latency = LatencyHistogram::default();
        for _ in 0..self.accesses {
            let begun = world.rt.now();
            let block = rng.below(blocks) as u32;
            world.files.read_device(block, 1, &mut program).await?;
            latency.record(world.rt.now().ns_since(begun));
        }
        let rates: Vec<f64> = curve.iter().map(|(_, rate)| *rate).collect();
        let mut figures = figures(&latency, "access");
        figures.insert("first_mb_per_s".to_owned(), rates[0]);
        figures.insert("last_mb_per_s".to_owned(), rates[rates.len() - 1]);
        Ok(Measured {
            value: rates.iter().sum::<f64>() / rates.len() as f64,
            unit: "MB/s".to_owned(),
            figures,
            curves: [("MB/s against place on the device in %".to_owned(), curve)].into(),
        })
    }

    /// Returns the rate of sequential reads that start at block `from`. The first request only
    /// moves the device to the position, so it is not timed. If there is only one request, it is
    /// timed.
    async fn rate_at<F: FileLayer>(
        &self,
        world: &World<F>,
        from: u64,
        blocks: u64,
        program: &mut Program,
    ) -> Result<f64, LoadError> {
        let step = self.request_bytes / 4096;
        let (mut at, end) = (from, from + blocks);
        let mut begun = world.rt.now();
        let mut timed = 0;
        while at < end {
            let length = step.min(end - at);
            world
                .files
                .read_device(at as u32, length as u32, program)
                .await?;
            match at == from && end - from > step {
                true => begun = world.rt.now(),
                false => timed += length,
            }
            at += length;
        }
        Ok(mb_per_s(timed * 4096, world.rt.now().ns_since(begun)))
    }
}
