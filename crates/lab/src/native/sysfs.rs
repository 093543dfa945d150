//! Settings of the kernel that are files, such as those in `sysfs`. A written setting is read back
//! to check that the kernel has accepted it.

use std::fs;
use std::path::Path;

use super::{NativeError, io_error};

/// Tolerance, as a fraction, for a limit in bytes that is read back directly after the write. The
/// kernel stores the limit as a fraction of the dirty pages that are allowed for the whole memory.
/// This allowed number depends on the free memory.
const ROUNDED_BY: f64 = 0.05;

/// Returns the value of a setting. If the file contains a list of choices, the value is the choice
/// in brackets.
pub(super) fn read(path: &Path) -> Result<String, NativeError> {
    let text = fs::read_to_string(path).map_err(|source| io_error(path, source))?;
    Ok(chosen(text.trim()).to_owned())
}

/// Returns the choice in brackets, such as `mq-deadline` for `none [mq-deadline] kyber`. Returns a
/// text without brackets unchanged.
fn chosen(text: &str) -> &str {
    let inside = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text, |(inside, _)| inside)
}

/// Returns all choices of a list such as `none [mq-deadline] kyber`.
pub(super) fn choices(text: &str) -> Vec<&str> {
    let bare = |word: &'_ str| word.starts_with('[') && word.ends_with(']');
    text.split_whitespace()
        .map(|word| {
            if bare(word) {
                &word[1..word.len() - 1]
            } else {
                word
            }
        })
        .collect()
}

/// Writes a setting, and checks that it reads back the same value.
///
/// # Errors
/// If the setting cannot be written, or reads back a different value.
pub(super) fn set(path: &Path, value: &str) -> Result<(), NativeError> {
    fs::write(path, value).map_err(|source| NativeError::Io {
        what: format!("{} = {value}", path.display()),
        error: source,
    })?;
    verify(path, value)
}

/// Checks that a setting still has the value that was written.
///
/// # Errors
/// If the setting has a different value.
pub(super) fn verify(path: &Path, value: &str) -> Result<(), NativeError> {
    let found = read(path)?;
    match is_same(value, &found) {
        true => Ok(()),
        false => Err(NativeError::NotTaken {
            path: path.to_owned(),
            wanted: value.to_owned(),
            found,
        }),
    }
}

fn is_same(wanted: &str, found: &str) -> bool {
    if wanted == found {
        return true;
    }
    match (wanted.parse::<u64>(), found.parse::<u64>()) {
        (Ok(wanted), Ok(found)) if wanted >= 1 << 20 => {
            wanted.abs_diff(found) as f64 <= wanted as f64 * ROUNDED_BY
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_choices_says_which_is_chosen() {
        assert_eq!(chosen("none [mq-deadline] kyber bfq"), "mq-deadline");
        assert_eq!(chosen("write back"), "write back");
        assert_eq!(
            choices("[none] mq-deadline kyber"),
            ["none", "mq-deadline", "kyber"]
        );
    }

    /// A limit of 6,710,886 bytes can read back as 6,708,015 or 6,636,171, because the kernel
    /// stores a fraction. If a read-ahead window of 128 KiB reads back as 2,560, the kernel has not
    /// accepted the window.
    #[test]
    fn only_large_numbers_are_rounded() {
        assert!(is_same("6710886", "6708015"));
        assert!(is_same("6710886", "6636171"));
        assert!(!is_same("6710886", "6000000"));
        assert!(!is_same("128", "2560"));
        assert!(!is_same("128", "127"));
    }

    #[test]
    fn a_setting_that_does_not_take_is_named_with_both_values() {
        let error = verify(Path::new("/proc/sys/kernel/ostype"), "Linus").unwrap_err();
        assert_eq!(
            error.to_string(),
            "/proc/sys/kernel/ostype was not applied: `Linus` was written, but `Linux` was read back"
        );
    }
}
