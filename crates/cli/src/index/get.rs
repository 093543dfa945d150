//! `bimetal index get`: prints the values of keys. It must never write to the index.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};

use super::form::{Form, excerpt};
use super::{OpenArgs, failed};
use bimetal_console::stderr::say;

/// Arguments of the verb `get`.
///
/// The index is opened for reading only. At the same time, other readers can have it open, but no
/// writer can.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// The keys
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    /// Form of the keys on the command line
    #[arg(long, value_name = "FORM", default_value = "text")]
    key: Form,
    /// Form in which values are printed
    #[arg(
        long,
        value_name = "FORM",
        default_value = "text",
        conflicts_with = "hex"
    )]
    value: Form,
    /// Print values as hexadecimal digits
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    open: OpenArgs,
}

/// Runs the verb: prints one line for each value. The exit status is 1 if a key does not exist.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let keys = args.keys.iter().map(|key| read_key(args.key, key));
    let keys = keys.collect::<Result<Vec<Vec<u8>>>>()?;
    let form = if args.hex { Form::Hex } else { args.value };
    let db = args.open.open_read_only(&args.index)?;
    let mut out = std::io::stdout().lock();
    let (mut value, mut line) = (Vec::new(), Vec::new());
    let mut status = ExitCode::SUCCESS;
    for (key, named) in keys.iter().zip(&args.keys) {
        let found = db.get_into(key, &mut value);
        if !found.map_err(|error| failed(&args.index, &error))? {
            let (index, named) = (args.index.display(), excerpt(named.as_bytes()));
            say(format_args!("bimetal: {index}: there is no key {named}"));
            status = ExitCode::FAILURE;
            continue;
        }
        line.clear();
        form.show(&value, &mut line).map_err(|why| {
            let (index, named) = (args.index.display(), excerpt(named.as_bytes()));
            anyhow!("{index}: the value of {named}: {why}; --hex prints any value")
        })?;
        line.push(b'\n');
        out.write_all(&line)?;
    }
    out.flush()?;
    Ok(status)
}

/// Parses a key that was given on the command line.
///
/// # Errors
/// A description of the mistake.
pub(super) fn read_key(form: Form, text: &str) -> Result<Vec<u8>> {
    let mut key = Vec::new();
    form.read(text.as_bytes(), &mut key)
        .map_err(|why| anyhow!("key {why}"))?;
    Ok(key)
}
