//! Words of command lines that a person copies into a shell.

/// Returns a word as a shell takes it: as it is, or in single quotes if a character of it could
/// mean something to the shell.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=%+@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// POSIX shell, section 2.2.2: everything between single quotes stands for itself.
    #[test]
    fn a_word_is_one_word_for_a_shell() {
        for (word, shown) in [
            ("vol", "vol"),
            ("--size", "--size"),
            ("/a b/vol.toml", "'/a b/vol.toml'"),
            ("it's", "'it'\\''s'"),
            ("my trace's", "'my trace'\\''s'"),
            ("$(reboot)", "'$(reboot)'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(word), shown);
        }
    }
}
