//! Results of the runs as JSON and as CSV.
//!
//! Both formats contain the same values. Scripts rely on the names in the JSON records.

use std::io::{self, Write};

use bimetal_sim::cache::miniature_pages;
use serde_json::{Map, Value, json};

use super::{Compared, Comparison, Row};
use crate::report::field;

/// Returns one record for each run over each trace.
pub(super) fn all(comparison: &Comparison) -> Vec<Map<String, Value>> {
    comparison
        .runs()
        .map(|(of, row)| record(of, row, comparison.sample_rate))
        .collect()
}

fn record(of: &Compared, row: &Row, rate: f64) -> Map<String, Value> {
    let Row { job, outcome: o } = row;
    let record = json!({
        "trace": of.trace,
        "policy": job.policy.name(),
        "size_pages": job.size_pages,
        "ftl": job.ftl.to_string(),
        "footprint_pages": of.footprint_pages,
        "sample_rate": rate,
        "sampled_accesses": of.sampled_accesses,
        "simulated_pages": miniature_pages(job.size_pages, rate),
        "accesses": o.accesses,
        "reads": o.reads,
        "misses": o.misses,
        "read_misses": o.read_misses,
        "miss_ratio": o.miss_ratio(),
        "device_time_us": o.device_time_us,
        "host_reads": o.host_reads,
        "host_writes": o.host_writes,
        "host_write_groups": o.host_write_groups,
        "flash_reads": o.work.reads,
        "programs": o.work.programs,
        "erases": o.work.erases,
        "write_amplification": o.write_amplification(),
    });
    match record {
        Value::Object(fields) => fields,
        _ => unreachable!("the macro was given an object"),
    }
}

/// Formats a field of CSV, quoted if necessary.
fn csv_field(value: &Value) -> String {
    match value {
        Value::String(text) => field(text),
        other => other.to_string(),
    }
}

/// Writes the records as CSV, with the names of the columns in the first line.
pub(super) fn write_csv(out: &mut dyn Write, comparison: &Comparison) -> io::Result<()> {
    for (number, fields) in all(comparison).iter().enumerate() {
        if number == 0 {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            writeln!(out, "{}", names.join(","))?;
        }
        let values: Vec<String> = fields.values().map(csv_field).collect();
        writeln!(out, "{}", values.join(","))?;
    }
    Ok(())
}
