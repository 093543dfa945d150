//! Text forms of keys and values: raw text, a number, or hexadecimal digits. Each form is lossless:
//! text that was formatted in a form parses in the same form to the original bytes.

use std::io::Write as _;

/// Text form of a key or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// The bytes, unchanged
    Text,
    /// A number up to 2^64-1, stored as 8 bytes big-endian, so that keys are in numeric order
    U64,
    /// Two hexadecimal digits for each byte
    Hex,
}

/// Maximum number of bytes of a key or value that a message shows.
const SHOWN_BYTES: usize = 40;

/// Returns the start of a key or value, for a message.
pub(crate) fn excerpt(field: &[u8]) -> String {
    let shown = &field[..field.len().min(SHOWN_BYTES)];
    let rest = if field.len() > shown.len() { ".." } else { "" };
    format!("`{}{rest}`", shown.escape_ascii())
}

/// Returns true if a terminal can show `bytes` as text without loss of information.
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    let is_shown = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r');
    std::str::from_utf8(bytes).is_ok_and(|text| text.chars().all(is_shown))
}

impl Form {
    /// Returns the name of the form on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Form::Text => "text",
            Form::U64 => "u64",
            Form::Hex => "hex",
        }
    }

    /// Parses the text `field` in this form, and appends the resulting bytes to `bytes`.
    ///
    /// # Errors
    /// A description of the mistake in the text.
    pub(crate) fn read(self, field: &[u8], bytes: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Form::Text => bytes.extend_from_slice(field),
            Form::U64 => bytes.extend(number(field)?.to_be_bytes()),
            Form::Hex => read_hex(field, bytes)?,
        }
        Ok(())
    }

    /// Formats `bytes` in this form, and appends the text to `field`.
    ///
    /// # Errors
    /// The reason why this form cannot represent the bytes.
    pub(crate) fn show(self, bytes: &[u8], field: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Form::Text => field.extend_from_slice(bytes),
            Form::U64 => {
                let number = Form::number_of(bytes)?;
                write!(field, "{number}").expect("a vector takes everything");
            }
            Form::Hex => field.extend(bytes.iter().flat_map(|byte| {
                [byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)])
            })),
        }
        Ok(())
    }

    /// Returns the number that is stored in 8 big-endian bytes.
    ///
    /// # Errors
    /// A message if `bytes` does not have 8 bytes.
    pub(crate) fn number_of(bytes: &[u8]) -> Result<u64, String> {
        let eight = bytes.try_into().map(u64::from_be_bytes);
        eight.map_err(|_| {
            let (count, what) = (bytes.len(), excerpt(bytes));
            format!("{what} has {count} bytes, but a u64 has 8")
        })
    }
}

fn number(field: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(field).ok();
    let number = text.and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| format!("{} is not a number from 0 to 2^64-1", excerpt(field)))
}

fn read_hex(field: &[u8], bytes: &mut Vec<u8>) -> Result<(), String> {
    let refused = || {
        format!(
            "{} is not hexadecimal with two digits for each byte",
            excerpt(field)
        )
    };
    let digit = |c: u8| (c as char).to_digit(16).map(|digit| digit as u8);
    let digits = field.trim_ascii();
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    if !digits.len().is_multiple_of(2) {
        return Err(refused());
    }
    for pair in digits.chunks_exact(2) {
        let both = digit(pair[0]).zip(digit(pair[1]));
        let (high, low) = both.ok_or_else(refused)?;
        bytes.push(high << 4 | low);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: Form, field: &str) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        form.read(field.as_bytes(), &mut bytes).map(|()| bytes)
    }

    #[test]
    fn every_form_reads_what_it_shows() {
        let number = u64::MAX - 1;
        for bytes in [&b""[..], b"a,\"b", &[0, 0xFF, 0x10], &number.to_be_bytes()] {
            for form in [Form::Text, Form::U64, Form::Hex] {
                let (mut field, mut back) = (Vec::new(), Vec::new());
                if form.show(bytes, &mut field).is_err() {
                    assert!(form == Form::U64 && bytes.len() != 8, "{bytes:?}");
                    continue;
                }
                form.read(&field, &mut back).unwrap();
                assert_eq!(back, bytes, "{form:?}");
            }
        }
    }

    #[test]
    fn numbers_are_in_the_order_of_their_bytes() {
        let bytes = ["2", "10", "256", "18446744073709551615"].map(|n| read(Form::U64, n).unwrap());
        assert!(bytes.is_sorted(), "{bytes:?}");
        assert_eq!(bytes[2], [0, 0, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn what_is_no_number_or_not_hexadecimal_is_refused() {
        for field in ["", "-1", "1.5", "18446744073709551616"] {
            assert!(read(Form::U64, field).is_err(), "{field}");
        }
        for field in ["a", "0g", "0x1", "a b "] {
            assert!(read(Form::Hex, field).is_err(), "{field}");
        }
        assert_eq!(read(Form::Hex, "0xAb01"), Ok(vec![0xAB, 1]));
        let long = read(Form::Hex, &"\u{7}".repeat(100)).unwrap_err();
        assert!(long.len() < 250 && long.contains("\\x07"), "{long}");
    }
}
