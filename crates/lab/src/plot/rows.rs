//! Horizontal bars, one below another, each of one part or of several parts in a line. Names stand
//! on the left and sums on the right, so any number of bars is readable.

use super::scale::short;
use super::{COLOURS, WIDTH, begin, escaped, put};

const TOP: f64 = 26.0;
const ROW: f64 = 21.0;
/// Approximate width of a character of a name.
const LETTER: f64 = 7.0;
/// Room for the number behind a bar.
const NUMBER: f64 = 56.0;

/// Horizontal bars.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Measured quantity, with its unit.
    pub label: String,
    /// Names of the parts of a bar.
    pub parts: Vec<String>,
    /// Name of each bar, and the lengths of its parts, which are 0 or more.
    pub rows: Vec<(String, Vec<f64>)>,
}

impl Rows {
    /// Returns the bars as SVG. A bar with one part has no legend.
    pub fn svg(&self) -> String {
        let longest = self.rows.iter().map(|(name, _)| name.chars().count());
        let left = (longest.max().unwrap_or(0) as f64 * LETTER + 14.0).min(WIDTH * 0.5);
        let sums = self.rows.iter().map(|(_, parts)| parts.iter().sum::<f64>());
        let most = sums.fold(0.0f64, f64::max).max(f64::MIN_POSITIVE);
        let room = WIDTH - left - NUMBER;
        let has_legend = self.parts.len() > 1;
        let legend = if has_legend { 22.0 } else { 0.0 };
        let bottom = TOP + ROW * self.rows.len() as f64;
        let mut out = begin(bottom + legend + 8.0, &self.label);
        for (number, (name, parts)) in self.rows.iter().enumerate() {
            let top = TOP + ROW * number as f64;
            let mut from = left;
            put(
                &mut out,
                format_args!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    left - 8.0,
                    top + 12.5,
                    escaped(name)
                ),
            );
            for (part, value) in parts.iter().enumerate() {
                let width = (value / most).clamp(0.0, 1.0) * room;
                let title = self.parts.get(part).map_or("", String::as_str);
                put(
                    &mut out,
                    format_args!(
                        "<g class=\"series c{}\"><rect class=\"bar\" x=\"{from:.1}\" y=\"{:.1}\" \
                         width=\"{width:.1}\" height=\"14\"><title>{} {}: {}</title></rect></g>",
                        part % COLOURS,
                        top + 1.5,
                        escaped(name),
                        escaped(title),
                        short(*value)
                    ),
                );
                from += width;
            }
            put(
                &mut out,
                format_args!(
                    "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    from + 6.0,
                    top + 12.5,
                    short(parts.iter().sum())
                ),
            );
        }
        if has_legend {
            self.legend(&mut out, bottom + 16.0);
        }
        out.push_str("</svg>\n");
        out
    }

    fn legend(&self, out: &mut String, y: f64) {
        let mut x = 4.0;
        for (part, name) in self.parts.iter().enumerate() {
            put(
                out,
                format_args!(
                    "<g class=\"series c{}\"><rect class=\"bar\" x=\"{x:.1}\" y=\"{:.1}\" \
                     width=\"10\" height=\"10\"/><text class=\"name\" x=\"{:.1}\" \
                     y=\"{y:.1}\">{}</text></g>",
                    part % COLOURS,
                    y - 9.0,
                    x + 14.0,
                    escaped(name)
                ),
            );
            x += 26.0 + name.chars().count() as f64 * LETTER;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name has one character, so 410 - (7 + 14) - 56 = 333 units are left for the longest bar.
    #[test]
    fn parts_are_as_long_as_their_values() {
        let rows = Rows {
            label: "a<b".to_owned(),
            parts: vec!["one".to_owned(), "two".to_owned()],
            rows: vec![
                ("x".to_owned(), vec![30.0, 10.0]),
                ("y".to_owned(), vec![20.0, 0.0]),
            ],
        };
        let svg = rows.svg();
        let widths: Vec<&str> = svg
            .split("class=\"bar\"")
            .skip(1)
            .filter_map(|piece| piece.split_once(" width=\"")?.1.split('"').next())
            .collect();
        assert_eq!(widths, ["249.8", "83.2", "166.5", "0.0", "10", "10"]);
        assert!(svg.contains("a&lt;b") && svg.contains(">40<"), "{svg}");
    }
}
