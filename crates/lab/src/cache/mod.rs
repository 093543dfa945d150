//! Comparison of replacement policies on traces: the results of simulated caches as records for
//! programs, and as one HTML page with plots for people.
//!
//! The simulator itself is in the crate `sim`. The results must be the same bytes whenever the same
//! runs are repeated.

mod page;
mod records;
mod verdict;

use std::io::{self, Write};

use bimetal_policy::replacement::Spec;
use bimetal_sim::cache::{CacheSize, Costs, Ftl, Job, Outcome};
use bimetal_trace::Key;
use serde_json::{Map, Value};

/// Runs of a grid of policies, cache sizes and devices over traces.
pub struct Comparison {
    /// The command line that has made the runs, as a shell takes it.
    pub command: String,
    /// Replacement policies.
    pub policies: Vec<Spec>,
    /// Cache sizes.
    pub sizes: Vec<CacheSize>,
    /// Flash translation layers of the simulated devices.
    pub ftls: Vec<Ftl>,
    /// Unit of an access.
    pub key: Key,
    /// Number of pages in an erase block.
    pub block_pages: u32,
    /// Times of the flash operations.
    pub costs: Costs,
    /// Share of the pages that was simulated; 1 if all pages were.
    pub sample_rate: f64,
    /// Results for each trace.
    pub traces: Vec<Compared>,
}

/// Results of all runs over one trace.
pub struct Compared {
    /// Name of the trace file.
    pub trace: String,
    /// Format of the trace file.
    pub format: &'static str,
    /// Number of reads, writes and trims.
    pub counts: [u64; 3],
    /// Number of distinct pages. It is an estimate if the trace is sampled.
    pub footprint_pages: usize,
    /// Number of reads and writes in the sample.
    pub sampled_accesses: u64,
    /// The runs, ordered by device, then by size, then by policy.
    pub rows: Vec<Row>,
}

/// A run and its outcome.
pub struct Row {
    /// Policy, cache size and device of the run.
    pub job: Job,
    /// Result of the run.
    pub outcome: Outcome,
}

impl Comparison {
    /// Returns each run with the results of its trace.
    pub fn runs(&self) -> impl Iterator<Item = (&Compared, &Row)> {
        let all = self.traces.iter();
        all.flat_map(|of| of.rows.iter().map(move |row| (of, row)))
    }

    /// Returns one record for each run. Scripts rely on the names of the fields.
    pub fn records(&self) -> Vec<Map<String, Value>> {
        records::all(self)
    }

    /// Writes the records as CSV to `out`, with the names of the columns in the first line.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn write_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        records::write_csv(out, self)
    }

    /// Returns a sentence for each device that names the policy with the least device time, and by
    /// how much it leads.
    pub fn verdicts(&self) -> Vec<String> {
        verdict::sentences(self)
    }

    /// Returns an HTML page with a summary, plots and all values in tables. The page loads nothing
    /// from elsewhere.
    pub fn html(&self) -> String {
        page::html(self)
    }
}
