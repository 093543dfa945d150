//! Capabilities of standard output: detection of a terminal, colours, pictures that are redrawn in
//! place, and small curves of block characters.

use std::io::{self, IsTerminal, Write};

/// Capabilities of standard output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// Whether standard output is a terminal, on which pictures can be redrawn in place.
    pub(crate) live: bool,
    colour: bool,
    unicode: bool,
}

/// A colour, named by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Normal.
    Good,
    /// Needs attention.
    Warn,
    /// Bad now.
    Bad,
    /// Less important.
    Dim,
    /// A heading.
    Strong,
}

impl Terminal {
    /// Detects the capabilities of standard output.
    pub(crate) fn of_stdout() -> Terminal {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let live = io::stdout().is_terminal() && variable("TERM") != "dumb";
        // The first of these variables that is set determines the encoding, as in locale(7).
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .map(variable)
            .into_iter()
            .find(|value| !value.is_empty())
            .unwrap_or_default()
            .to_ascii_lowercase();
        Terminal {
            live,
            // See no-color.org.
            colour: live && variable("NO_COLOR").is_empty(),
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }

    /// Returns whether colours are used, and whether characters beyond ASCII are.
    pub(crate) fn shows(self) -> (bool, bool) {
        (self.colour, self.unicode)
    }

    /// Returns the number of columns of the terminal, or 100 if it is not known.
    pub(crate) fn width(self) -> usize {
        let size = console::Term::stdout().size_checked();
        size.map_or(100, |(_rows, columns)| usize::from(columns))
    }

    /// Returns `text` in a colour, if colours are supported.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "1;31",
            Tone::Dim => "2",
            Tone::Strong => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// Returns a curve of `values` on a logarithmic scale from `low` to `high`, with one character
    /// for each value. A value of `None` is a step without a measurement.
    pub(crate) fn curve(self, values: &[Option<u64>], low: u64, high: u64) -> String {
        const BLOCKS: [char; 8] = [
            '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
            '\u{2588}',
        ];
        const PLAIN: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];
        let steps = if self.unicode { BLOCKS } else { PLAIN };
        let character = |value: &Option<u64>| {
            value.map_or(' ', |value| {
                let position = (value.max(low) as f64 / low as f64).ln();
                let range = (high as f64 / low as f64).ln();
                let step = (position / range * steps.len() as f64) as usize;
                steps[step.min(steps.len() - 1)]
            })
        };
        values.iter().map(character).collect()
    }
}

/// A block of lines on the terminal. Each drawing replaces the previous one.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    lines_drawn: usize,
}

impl Picture {
    /// Draws `lines` over the previous drawing. Each line is cut to the width of the terminal, and
    /// lines beyond its height are left out, because lines that have wrapped or scrolled cannot be
    /// replaced later.
    ///
    /// # Errors
    /// Errors of standard output.
    pub(crate) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let (rows, columns) = console::Term::stdout().size_checked().unwrap_or((50, 100));
        let rows = usize::from(rows).saturating_sub(1).max(1);
        let lines = &lines[..lines.len().min(rows)];
        let mut text = String::new();
        if self.lines_drawn > 0 {
            text.push_str(&format!("\u{1b}[{}A\r", self.lines_drawn));
        }
        for line in lines {
            text.extend([cut(line, usize::from(columns)), "\u{1b}[m\u{1b}[K\n"]);
        }
        // Erase the remaining lines of the previous drawing.
        text.push_str("\u{1b}[J");
        self.lines_drawn = lines.len();
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// Returns the longest prefix of `line` that fits in `columns` columns. If the escape sequence that
/// ends a colour is cut off, the sequence that follows every drawn line (ESC [ m) ends the colour.
fn cut(line: &str, columns: usize) -> &str {
    let mut seen = 0;
    let mut in_sequence = false;
    for (at, c) in line.char_indices() {
        match c {
            '\u{1b}' => in_sequence = true,
            'm' if in_sequence => in_sequence = false,
            _ if in_sequence => {}
            _ if seen == columns => return &line[..at],
            _ => seen += 1,
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Terminal = Terminal {
        live: false,
        colour: false,
        unicode: false,
    };

    #[test]
    fn a_curve_is_logarithmic_and_clamped() {
        // The values from 1 to 10^8 are drawn with eight different characters, one for each factor
        // of ten.
        let values = [
            Some(0),
            Some(1),
            Some(11),
            Some(1_100_000),
            None,
            Some(u64::MAX),
        ];
        assert_eq!(PLAIN.curve(&values, 1, 100_000_000), "__.* #");
    }

    #[test]
    fn a_line_is_cut_by_what_is_seen() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "abc");
        assert_eq!(cut("a\u{1b}[1;31mbcd\u{1b}[0m", 2), "a\u{1b}[1;31mb");
        assert_eq!(cut("a\u{1b}[31mb\u{1b}[0m", 2), "a\u{1b}[31mb\u{1b}[0m");
    }

    #[test]
    fn colours_only_where_they_show() {
        let colourful = Terminal {
            colour: true,
            ..PLAIN
        };
        assert_eq!(PLAIN.paint(Tone::Bad, "x"), "x");
        assert_eq!(colourful.paint(Tone::Bad, "x"), "\u{1b}[1;31mx\u{1b}[0m");
    }
}
