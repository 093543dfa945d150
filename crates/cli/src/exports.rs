//! `bimetal exports`: lists the exports of a BRP target.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use bimetal_block::units::show_size;
use bimetal_client::{Escaped, Listed, list, right};
use bimetal_rt::UringOptions;
use bimetal_rt::net::Address;
use serde_json::json;

use crate::runtime;
use crate::tls::TlsArgs;
use bimetal_console::table::{Align, Table};

/// Buffer memory for fetching the list.
const POOL_BYTES: usize = 1 << 20;

/// Arguments of the verb `exports`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address of the target: `unix:PATH`, `tcp:ADDRESS:PORT` or `rdma:ADDRESS:PORT`
    #[arg(value_name = "TARGET")]
    target: Address,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let rt = runtime::start_quietly(UringOptions {
        pool_bytes: POOL_BYTES,
        ..UringOptions::default()
    })?;
    let tls = args.tls.config().map(|tls| tls.options());
    let exports = rt
        .block_on(list(&rt, &args.target, tls.as_ref()))
        .map_err(|error| anyhow!("{}: {error}", args.target))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let exports: Vec<_> = exports.iter().map(to_json).collect();
        writeln!(out, "{}", json!({ "version": 1, "exports": exports }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let headings = [
        ("export", Align::Left),
        ("size", Align::Right),
        ("", Align::Left),
        ("", Align::Left),
    ];
    let mut table = Table::new(&headings);
    for export in &exports {
        let rights = words(export.rights).join(", ");
        let size = show_size(export.size_bytes);
        table.row(vec![
            Escaped(&export.name).to_string(),
            size,
            rights,
            Escaped(&export.description).to_string(),
        ]);
    }
    for line in table.lines() {
        writeln!(out, "{line}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the words for the properties of an export. `rights` is the protocol's name for the bit
/// mask of these properties.
fn words(rights: u32) -> Vec<&'static str> {
    let all = [
        (right::READ_ONLY, "read-only"),
        (right::VOLATILE, "volatile"),
        (right::EPHEMERAL, "ephemeral"),
        (right::ROTATIONAL, "rotational"),
    ];
    let held = all.into_iter().filter(|(bit, _)| rights & bit != 0);
    held.map(|(_, word)| word).collect()
}

fn to_json(export: &Listed) -> serde_json::Value {
    json!({
        "name": export.name,
        "description": export.description,
        "size_bytes": export.size_bytes,
        "properties": words(export.rights),
    })
}
