//! Results of the runs as JSON, as CSV and as a table for the terminal.
//!
//! All three formats contain the same values. Scripts rely on the names in the JSON records.

use std::io::Write;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Compared, Row};
use bimetal_console::table::{Align, Table};
use bimetal_sim::cache::miniature_pages;

/// Returns one record for each run over each trace.
pub(super) fn all(compared: &[Compared], rate: f64) -> Vec<Value> {
    rows_of(compared)
        .map(|(of, row)| record(of, row, rate))
        .collect()
}

fn rows_of(compared: &[Compared]) -> impl Iterator<Item = (&Compared, &Row)> {
    let all = compared.iter();
    all.flat_map(|of| of.rows.iter().map(move |row| (of, row)))
}

fn record(of: &Compared, row: &Row, rate: f64) -> Value {
    let Row { job, outcome: o } = row;
    json!({
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
    })
}

/// Formats a field of CSV, quoted if necessary.
fn csv_field(value: &Value) -> String {
    match value {
        Value::String(text) if text.contains([',', '"', '\n']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Prints the records as CSV, with the names of the columns in the first line.
pub(super) fn print_csv(out: &mut impl Write, compared: &[Compared], rate: f64) -> Result<()> {
    for (number, record) in all(compared, rate).iter().enumerate() {
        let fields = record.as_object().context("a record is an object")?;
        if number == 0 {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            writeln!(out, "{}", names.join(","))?;
        }
        let values: Vec<String> = fields.values().map(csv_field).collect();
        writeln!(out, "{}", values.join(","))?;
    }
    Ok(())
}

/// Formats the runs for a terminal.
pub(super) fn table(compared: &[Compared]) -> Table {
    let mut table = Table::new(&[
        ("device s", Align::Right),
        ("policy", Align::Left),
        ("pages", Align::Right),
        ("ftl", Align::Left),
        ("miss ratio", Align::Right),
        ("host writes", Align::Right),
        ("programs", Align::Right),
        ("erases", Align::Right),
        ("WA", Align::Right),
        ("trace", Align::Left),
    ]);
    for (of, Row { job, outcome: o }) in rows_of(compared) {
        table.row(vec![
            format!("{:.3}", o.device_time_us / 1e6),
            job.policy.name().to_owned(),
            job.size_pages.to_string(),
            job.ftl.to_string(),
            format!("{:.4}", o.miss_ratio()),
            o.host_writes.to_string(),
            o.work.programs.to_string(),
            o.work.erases.to_string(),
            format!("{:.3}", o.write_amplification()),
            of.trace.clone(),
        ]);
    }
    table
}
