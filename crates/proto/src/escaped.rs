//! Text from a peer, escaped so that it is safe to display.

use std::fmt::{Display, Formatter, Result, Write};

/// Text that came from a peer, displayed so that it can neither control a terminal nor be mistaken
/// for other text. Control characters, which begin escape sequences, and characters that are
/// invisible or change the text direction are shown as Rust escapes (`\u{1b}`). The backslash is
/// escaped, too, so that the output is unambiguous.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for character in self.0.chars() {
            if character == '\\' || is_active(character) {
                write!(f, "{}", character.escape_default())?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// Returns true for a character that has an effect other than being visible: the Unicode categories
/// Cc, Zl and Zp, and the zero-width characters, direction controls and tags of category Cf.
fn is_active(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0001}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_acts_on_a_terminal_passes() {
        let shown = |text: &str| Escaped(text).to_string();
        assert_eq!(
            shown("volume 1, gr\u{f6}\u{df}e"),
            "volume 1, gr\u{f6}\u{df}e"
        );
        assert_eq!(shown("\x1b]0;x\x07"), "\\u{1b}]0;x\\u{7}");
        assert_eq!(shown("a\nb\r\tc"), "a\\nb\\r\\tc");
        assert_eq!(shown("\u{9b}2J\u{7f}"), "\\u{9b}2J\\u{7f}");
        assert_eq!(shown("\u{202e}lov\u{200b}"), "\\u{202e}lov\\u{200b}");
        assert_eq!(shown("\\u{1b}"), "\\\\u{1b}");
    }

    #[test]
    fn every_control_character_is_escaped() {
        for code in (0..=0x10_ffff).filter_map(char::from_u32) {
            let shown = Escaped(code.encode_utf8(&mut [0; 4])).to_string();
            assert!(shown.chars().all(|c| !c.is_control()), "{code:?}");
        }
    }
}
