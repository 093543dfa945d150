//! How things look on the screen: styles by their meaning, bars and curves, and short numbers. No
//! meaning is carried by a colour alone.

use bimetal_block::units::show_count;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::symbols::{bar, block, line};

use crate::terminal::Tone;

/// Range of latencies that the curves show.
const CURVE_NS: (f64, f64) = (100e3, 2e9);

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Whether colours are used.
    pub(crate) colour: bool,
    /// Whether characters beyond ASCII are used.
    pub(crate) unicode: bool,
}

/// Lines that connect a row of a tree with the row above.
pub(super) struct Branches {
    pub(super) middle: &'static str,
    pub(super) last: &'static str,
    pub(super) passing: &'static str,
}

impl Look {
    /// Returns the style of a meaning.
    pub(super) fn style(self, tone: Tone) -> Style {
        let style = Style::new();
        let (modifier, colour) = match tone {
            Tone::Good => (Modifier::empty(), Some(Color::Green)),
            Tone::Warn => (Modifier::BOLD, Some(Color::Yellow)),
            Tone::Bad => (Modifier::BOLD, Some(Color::Red)),
            Tone::Dim => (Modifier::DIM, None),
            Tone::Strong => (Modifier::BOLD, None),
        };
        match colour.filter(|_| self.colour) {
            Some(colour) => style.fg(colour).add_modifier(modifier),
            None => style.add_modifier(modifier),
        }
    }

    /// Returns the style of a word that has to be seen first.
    pub(super) fn banner(self, tone: Tone) -> Style {
        let style = self.style(tone).add_modifier(Modifier::BOLD);
        match tone {
            Tone::Good => style,
            _ => style.add_modifier(Modifier::REVERSED),
        }
    }

    pub(super) fn branches(self) -> Branches {
        match self.unicode {
            true => Branches {
                middle: line::VERTICAL_RIGHT,
                last: line::BOTTOM_LEFT,
                passing: line::VERTICAL,
            },
            false => Branches {
                middle: "|",
                last: "`",
                passing: "|",
            },
        }
    }

    /// Returns a bar of `width` columns that is filled to `share`, from 0 to 1.
    pub(super) fn bar(self, share: f64, width: usize) -> String {
        let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
        let (whole, rest) = (eighths / 8, eighths % 8);
        let parts = [
            "",
            block::ONE_EIGHTH,
            block::ONE_QUARTER,
            block::THREE_EIGHTHS,
            block::HALF,
            block::FIVE_EIGHTHS,
            block::THREE_QUARTERS,
            block::SEVEN_EIGHTHS,
        ];
        let filled = match self.unicode {
            true => block::FULL.repeat(whole) + parts[rest],
            false => "#".repeat(whole + rest / 4),
        };
        let used = filled.chars().count();
        format!("[{filled}{}]", " ".repeat(width.saturating_sub(used)))
    }

    /// Returns a curve of latencies on a logarithmic scale from 100 us to 2 s, one character for
    /// each. A step without a request is empty.
    pub(super) fn curve(self, values_ns: &[Option<u64>]) -> String {
        let blocks = [
            bar::ONE_EIGHTH,
            bar::ONE_QUARTER,
            bar::THREE_EIGHTHS,
            bar::HALF,
            bar::FIVE_EIGHTHS,
            bar::THREE_QUARTERS,
            bar::SEVEN_EIGHTHS,
            bar::FULL,
        ];
        let plain = ["_", ".", ":", "-", "=", "+", "*", "#"];
        let steps = if self.unicode { blocks } else { plain };
        let (low, high) = CURVE_NS;
        let of = |value: &Option<u64>| {
            value.map_or(" ", |ns| {
                let share = (ns as f64).max(low).ln() - low.ln();
                let step = share / (high.ln() - low.ln()) * steps.len() as f64;
                steps[(step as usize).min(steps.len() - 1)]
            })
        };
        values_ns.iter().map(of).collect()
    }
}

/// Formats a latency with two digits, in at most six columns; nothing for none.
pub(crate) fn latency(ns: u64) -> String {
    let (value, unit) = match ns {
        0 => return String::new(),
        1..1_000 => return "< 1 us".to_owned(),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    match value < 9.95 {
        true => format!("{value:.1} {unit}"),
        false => format!("{value:.0} {unit}"),
    }
}

/// Formats a size with two or three digits, in at most seven columns.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut at) = (bytes as f64, 0);
    while value >= 999.5 && at + 1 < units.len() {
        value /= 1024.0;
        at += 1;
    }
    match value < 9.95 && at > 0 {
        true => format!("{value:.1} {}", units[at]),
        false => format!("{value:.0} {}", units[at]),
    }
}

/// Formats a number of requests in a second; nothing for none.
pub(crate) fn rate(per_s: f64) -> String {
    match per_s {
        ..0.05 => String::new(),
        0.05..9.95 => format!("{per_s:.1}"),
        _ => show_count(per_s.round() as u64),
    }
}

/// Formats a time in seconds with two digits; nothing for less than a millisecond.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        ..0.001 => String::new(),
        _ => latency((seconds * 1e9) as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Look = Look {
        colour: false,
        unicode: false,
    };

    #[test]
    fn numbers_are_short_and_none_is_nothing() {
        for (ns, shown) in [
            (0, ""),
            (400, "< 1 us"),
            (1_200, "1.2 us"),
            (99_400, "99 us"),
            (9_960_000, "10 ms"),
            (2_340_000_000, "2.3 s"),
            (120_000_000_000, "120 s"),
        ] {
            assert_eq!(latency(ns), shown);
        }
        for (per_s, shown) in [(0.0, ""), (0.5, "0.5"), (40.2, "40"), (12_345.0, "12,345")] {
            assert_eq!(rate(per_s), shown);
        }
        for (bytes, shown) in [
            (512, "512 B"),
            (1_500, "1.5 KiB"),
            (250_609_664, "239 MiB"),
            (1_100_000_000, "1.0 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(size(bytes), shown);
        }
        assert_eq!(
            (seconds(0.0), seconds(1.26)),
            (String::new(), "1.3 s".to_owned())
        );
    }

    #[test]
    fn a_bar_is_as_full_as_its_share() {
        let bars = [0.0, 0.5, 1.0, 7.0].map(|share| PLAIN.bar(share, 4));
        assert_eq!(bars, ["[    ]", "[##  ]", "[####]", "[####]"]);
        let unicode = Look {
            unicode: true,
            ..PLAIN
        };
        for share in 0..=100 {
            let bar = unicode.bar(f64::from(share) / 100.0, 7);
            assert_eq!(bar.chars().count(), 9, "{bar}");
        }
    }

    /// From 100 us to 2 s there are eight steps, each of a factor of 3.4.
    #[test]
    fn a_curve_is_logarithmic() {
        let values = [None, Some(1), Some(90_000), Some(400_000), Some(u64::MAX)];
        assert_eq!(PLAIN.curve(&values), " __.#");
    }

    #[test]
    fn without_colours_a_state_is_still_seen() {
        let bad = PLAIN.banner(Tone::Bad);
        assert!(bad.add_modifier.contains(Modifier::REVERSED));
        for tone in [Tone::Good, Tone::Warn, Tone::Bad, Tone::Dim, Tone::Strong] {
            assert_eq!(PLAIN.style(tone).fg, None);
        }
    }
}
