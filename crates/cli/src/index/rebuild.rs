//! `bimetal index rebuild`: recovers the readable content of a damaged index into a new index. The
//! output is the list of lost key ranges, for people or for programs. The old index is only read.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use bimetal_index::storage::file::{FileStorage, Presence};
use bimetal_index::{Error, Loss, Lost, RebuildStep, Rebuilt};
use serde_json::{Value, json};

use super::form::{Form, is_text};
use super::progress::{Progress, Unit};
use super::{OpenArgs, failed, unopened, write_group};
use bimetal_block::units::show_count;
use bimetal_console::table::{Align, Table};

/// Arguments of the verb `rebuild`.
///
/// Neither superblocks nor checkpoints are needed: the new index is built from the images of leaves
/// and from the log. The verb lists every range of keys in which content is missing or possibly not
/// the newest. If no range is listed, the new index has the content of the old one, provided that
/// the old index has a readable superblock and that its whole log is readable. Otherwise, the list
/// does not prove that the content is the same.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The damaged index; it is only read
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// The new index, in a file that must not exist
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Id of the index to rebuild, in hexadecimal digits, if parts of several indexes are found
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    id: Option<u64>,
    /// Form in which keys are printed [default: text if all printed keys are text, otherwise hex]
    #[arg(long, value_name = "FORM")]
    key: Option<Form>,
    /// Print JSON, with keys in hexadecimal digits unless --key is given
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArgs,
}

fn parse_id(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| "expected up to 16 hexadecimal digits".to_owned())
}

/// Runs the verb. The exit status is 1 if records are lost, or if it is not proven that no records
/// are lost.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let storage = args.open.place.storage_to_read(&args.index)?;
    if args.new.exists() {
        bail!(
            "{}: the file exists already; a rebuild creates a new file",
            args.new.display()
        );
    }
    let new = FileStorage::open(&args.new, Presence::Any);
    let new = new.map_err(|error| unopened(&args.new, &error))?;
    let new_id = bimetal_index::new_id().map_err(|error| anyhow!("a new id: {error}"))?;
    let progress = Progress::start(Unit::Parts, "");
    let mut tell = |step: RebuildStep, done: u64, all: u64| {
        progress.bar().set_message(match step {
            RebuildStep::Finding => "identifying the index",
            RebuildStep::Reading => "reading segments",
            RebuildStep::Writing => "writing leaves",
            RebuildStep::Changing => "adding changes",
        });
        progress.bar().set_length(all);
        progress.bar().set_position(done);
    };
    let options = args.open.options();
    let rebuilt = bimetal_index::rebuild(&storage, args.id, new, new_id, &options, &mut tell);
    drop(progress);
    let rebuilt = rebuilt.map_err(|error| {
        // The partial index is removed, because it could be mistaken for the complete result of a
        // rebuild.
        let _ = std::fs::remove_file(&args.new);
        match error {
            Error::NotAnIndex { .. } if args.id.is_none() => {
                anyhow!(
                    "{}: {error}; select the index with --id",
                    args.index.display()
                )
            }
            error => failed(&args.index, &error),
        }
    })?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let value = to_json(args, &rebuilt);
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    } else {
        print(&mut out, args, &rebuilt)?;
    }
    Ok(match (rebuilt.lost_found, rebuilt.is_proven) {
        (0, true) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn loss_name(loss: Loss) -> &'static str {
    match loss {
        Loss::Keys => "keys",
        Loss::Changes => "changes",
    }
}

fn show_key(form: Form, key: &[u8]) -> String {
    let mut shown = Vec::new();
    // A boundary between leaves is not always a key, so the form of the keys cannot always
    // represent it.
    if form.show(key, &mut shown).is_err() {
        shown.clear();
        shown.extend_from_slice(b"0x");
        Form::Hex.show(key, &mut shown).unwrap_or_default();
    }
    String::from_utf8_lossy(&shown).into_owned()
}

fn to_json(args: &Args, rebuilt: &Rebuilt) -> Value {
    let form = args.key.unwrap_or(Form::Hex);
    let lost = rebuilt.lost.iter().map(|lost| {
        json!({
            "from": show_key(form, &lost.from),
            "to": lost.to.as_ref().map(|to| show_key(form, to)),
            "what": loss_name(lost.loss),
        })
    });
    let problems = rebuilt.problems.iter();
    let problems =
        problems.map(|problem| json!({ "offset_bytes": problem.offset, "what": problem.what }));
    json!({
        "index": args.index.display().to_string(),
        "new": args.new.display().to_string(),
        "id": format!("{:016x}", rebuilt.id),
        "keys": rebuilt.keys,
        "last_batch": rebuilt.last_batch,
        "proven": rebuilt.is_proven,
        "examined": {
            "segments": rebuilt.segments,
            "leaves": rebuilt.leaves,
            "patches": rebuilt.patches,
            "log_frames": rebuilt.log_frames,
        },
        "lost_found": rebuilt.lost_found,
        "lost": lost.collect::<Vec<_>>(),
        "problems_found": rebuilt.problems_found,
        "problems": problems.collect::<Vec<_>>(),
    })
}

/// Returns the form, text or hexadecimal, in which the boundaries of all lost ranges can be
/// printed.
fn form_of(lost: &[Lost]) -> Form {
    let mut borders = lost
        .iter()
        .flat_map(|lost| [Some(&lost.from), lost.to.as_ref()]);
    let all_text = borders.all(|border| border.is_none_or(|key| is_text(key)));
    if all_text { Form::Text } else { Form::Hex }
}

fn print(out: &mut impl Write, args: &Args, rebuilt: &Rebuilt) -> io::Result<()> {
    let (new, keys) = (args.new.display(), show_count(rebuilt.keys));
    match rebuilt.lost_found {
        0 if rebuilt.is_proven => writeln!(out, "{new}: {keys} keys, nothing is lost")?,
        0 => writeln!(out, "{new}: {keys} keys, nothing is known to be lost")?,
        1 => writeln!(
            out,
            "{new}: {keys} keys; records are lost or possibly lost in 1 range"
        )?,
        count => {
            let count = show_count(count);
            writeln!(
                out,
                "{new}: {keys} keys; records are lost or possibly lost in {count} ranges"
            )?;
        }
    }
    if !rebuilt.is_proven {
        writeln!(
            out,
            "no superblock or no part of the log is readable, so more may be lost than is listed"
        )?;
    }
    let form = args.key.unwrap_or_else(|| form_of(&rebuilt.lost));
    let columns = [
        ("lost", Align::Left),
        ("from", Align::Left),
        ("to before", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for lost in &rebuilt.lost {
        let to = lost
            .to
            .as_ref()
            .map_or("the end".to_owned(), |to| show_key(form, to));
        let from = if lost.from.is_empty() {
            "the start".to_owned()
        } else {
            show_key(form, &lost.from)
        };
        table.row(vec![loss_name(lost.loss).to_owned(), from, to]);
    }
    write_table(out, &table)?;
    write_rest(out, rebuilt.lost_found, rebuilt.lost.len())?;
    let mut table = Table::new(&[("at byte", Align::Right), ("problem", Align::Left)]);
    for problem in &rebuilt.problems {
        table.row(vec![problem.offset.to_string(), problem.what.clone()]);
    }
    write_table(out, &table)?;
    write_rest(out, rebuilt.problems_found, rebuilt.problems.len())?;
    write_group(
        out,
        "made of",
        &[
            ("segments", show_count(rebuilt.segments), ""),
            (
                "leaves",
                show_count(rebuilt.leaves),
                "including older images",
            ),
            ("patches", show_count(rebuilt.patches), ""),
            ("frames of the log", show_count(rebuilt.log_frames), ""),
            ("last batch", show_count(rebuilt.last_batch), ""),
        ],
    )
}

fn write_table(out: &mut impl Write, table: &Table) -> io::Result<()> {
    if !table.is_empty() {
        for line in table.lines() {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

fn write_rest(out: &mut impl Write, found: u64, listed: usize) -> io::Result<()> {
    match found - listed as u64 {
        0 => Ok(()),
        rest => writeln!(out, "  and {} more", show_count(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_shown_as_text_only_if_all_are() {
        let lost = |from: &[u8], to: Option<&[u8]>| Lost {
            from: from.to_vec(),
            to: to.map(<[u8]>::to_vec),
            loss: Loss::Keys,
        };
        assert_eq!(form_of(&[lost(b"a", None)]), Form::Text);
        assert_eq!(form_of(&[lost(b"a", Some(b"b\0"))]), Form::Hex);
        assert_eq!(show_key(Form::U64, &[0, 0, 0, 0, 0, 0, 1, 0]), "256");
        assert_eq!(show_key(Form::U64, &[1, 0]), "0x0100");
    }
}
