//! Edits of a configuration by the program: one value is replaced in the text, and everything else,
//! comments and the order of the keys included, stays as the operator wrote it.
//!
//! A configuration is never seen half written, not even after a power cut.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use bimetal_block::document::read_text;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::Config;
use crate::init::quoted;

/// Makes the key `sides` of the mirror `volume` in the configuration at `path` name these sides.
/// Returns false if it names them already.
///
/// # Errors
/// If the result would be no configuration, or the file cannot be written. The file is unchanged
/// then.
pub(crate) fn set_sides(path: &Path, volume: &str, sides: &[String]) -> Result<bool> {
    let text = read_text(path)?;
    let place = || path.display().to_string();
    let edited = with_sides(&text, volume, sides).with_context(place)?;
    if edited == text {
        return Ok(false);
    }
    Config::read(path, &edited).context("the edit would make a mistake")?;
    replace(path, &edited).with_context(place)?;
    Ok(true)
}

/// Returns the text of a configuration in which the mirror `volume` has these sides.
fn with_sides(text: &str, volume: &str, sides: &[String]) -> Result<String> {
    let table = DeTable::parse(text)?;
    let device = table.get_ref().get("device").map(Spanned::get_ref);
    let device = device.and_then(DeValue::as_table);
    let mirror = device.and_then(|devices| devices.get(volume)?.get_ref().as_table());
    let key = mirror.and_then(|mirror| mirror.get("sides"));
    let Some((span, names)) = key.and_then(|key| Some((key.span(), key.get_ref().as_array()?)))
    else {
        bail!("there is no key `sides` in [device.{volume}]");
    };
    let mut edited = text.to_owned();
    if names.len() <= sides.len() && !names.is_empty() {
        // Only the names are replaced, so that comments between them stay.
        let more = sides[names.len()..].iter().map(|side| quoted(side));
        let more: Vec<String> = more.collect::<Result<_, _>>()?;
        for (at, (name, side)) in names.iter().zip(sides).enumerate().rev() {
            let is_last = at + 1 == names.len();
            if is_last && !more.is_empty() {
                let behind = name.span().end;
                edited.insert_str(behind, &format!(", {}", more.join(", ")));
            }
            if name.get_ref().as_str() != Some(side.as_str()) {
                edited.replace_range(name.span(), &quoted(side)?);
            }
        }
    } else {
        let all: Vec<String> = sides
            .iter()
            .map(|side| quoted(side))
            .collect::<Result<_, _>>()?;
        edited.replace_range(span, &format!("[{}]", all.join(", ")));
    }
    Ok(edited)
}

/// Replaces the content of a file by a new file in its place, which has the same permissions and is
/// durable when this function returns.
fn replace(path: &Path, text: &str) -> Result<()> {
    // A link to a configuration stays a link.
    let path = path.canonicalize()?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        bail!("not a file");
    };
    let new = folder.join(format!(".{}.new", name.display()));
    let written = || -> Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&new)?;
        file.set_permissions(std::fs::metadata(&path)?.permissions())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        Ok(File::open(folder)?.sync_all()?)
    };
    written().inspect_err(|_| {
        // The error of the edit is reported; the file that is left over does no harm.
        let _ = std::fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    const TEXT: &str = "# mine\n[device.vol] # the volume\ntype = \"mirror\"\nsides = [\n  \
        \"fast\", # nvme\n  'slow', # sdb\n]\n\n[device.other]\nsides = [\"slow\"]\n";

    #[test]
    fn names_are_replaced_and_all_else_stays() {
        let edited = with_sides(TEXT, "vol", &sides(&["fast", "new"])).expect("it has sides");
        assert_eq!(edited, TEXT.replace("'slow'", "\"new\""));
        let edited = with_sides(TEXT, "vol", &sides(&["fast", "slow", "new"]));
        let expected = TEXT.replace("'slow', # sdb", "'slow', \"new\", # sdb");
        assert_eq!(edited.expect("it has sides"), expected);
        let same = with_sides(TEXT, "vol", &sides(&["fast", "slow"]));
        assert_eq!(same.expect("it has sides"), TEXT);
    }

    #[test]
    fn a_name_that_leaves_takes_the_list_with_it() {
        let text = "[device]\nvol = { type = \"mirror\", sides = [\"a\", \"b\", \"c\"] } # all\n";
        let edited = with_sides(text, "vol", &sides(&["a", "c"])).expect("it has sides");
        assert_eq!(
            edited,
            "[device]\nvol = { type = \"mirror\", sides = [\"a\", \"c\"] } # all\n"
        );
    }

    #[test]
    fn what_has_no_sides_is_not_edited() {
        for text in [
            "",
            "[device.vol]\n",
            "[device]\nvol = 3\n",
            "[device.vol]\nsides = 3\n",
        ] {
            let refused = with_sides(text, "vol", &sides(&["a"])).expect_err(text);
            assert!(refused.to_string().contains("[device.vol]"), "{refused}");
        }
        assert!(with_sides("[device", "vol", &sides(&["a"])).is_err());
    }
}
