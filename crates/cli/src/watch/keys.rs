//! The keys of a terminal, from the bytes that it sends.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    Left,
    Right,
    Enter,
    Escape,
    Char(char),
}

/// Returns the keys of bytes that were read together. A terminal sends the sequence of a key at
/// once, so an escape character that nothing follows is the key. Other sequences are left out.
pub(super) fn parse(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (0x1b, [b'[' | b'O', ..]) => {
                let end = after[1..]
                    .iter()
                    .position(|byte| (0x40..=0x7e).contains(byte));
                let end = end.map_or(after.len(), |end| end + 2);
                keys.extend(arrow(&after[1..end]));
                rest = &after[end..];
            }
            (0x1b, _) => keys.push(Key::Escape),
            (b'\r' | b'\n', _) => keys.push(Key::Enter),
            (b' '..=b'~', _) => keys.push(Key::Char(char::from(first))),
            _ => {}
        }
    }
    keys
}

fn arrow(sequence: &[u8]) -> Option<Key> {
    match sequence {
        b"A" => Some(Key::Up),
        b"B" => Some(Key::Down),
        b"C" => Some(Key::Right),
        b"D" => Some(Key::Left),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        assert_eq!(parse(b"q"), [Key::Char('q')]);
        assert_eq!(parse(b"\x1b"), [Key::Escape]);
        assert_eq!(parse(b"\x1b[A\x1bOB\r"), [Key::Up, Key::Down, Key::Enter]);
        assert_eq!(
            parse(b"\x1b[C\x1b[D "),
            [Key::Right, Key::Left, Key::Char(' ')]
        );
        // Keys without a meaning, and sequences that are cut off.
        assert_eq!(parse(b"\x1b[15~s"), [Key::Char('s')]);
        assert_eq!(parse(b"\x1b[\x07"), []);
        assert_eq!(parse(&[0xff, 0x03, 0]), []);
    }
}
