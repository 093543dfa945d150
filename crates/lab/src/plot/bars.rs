//! Groups of vertical bars with intervals. Each group stands for a choice on one axis, and each bar
//! of a group for a choice on another axis.

use super::scale::{Scale, short};
use super::{COLOURS, LEFT, WIDTH, escaped, put};

const HEIGHT: f64 = 270.0;
const RIGHT: f64 = 404.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 226.0;
/// Fraction of the width of a group that its bars fill.
const FILLED: f64 = 0.82;
/// Approximate width of a character in units of the drawing.
const LETTER: f64 = 6.9;

/// A bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Height of the bar.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// A bar chart.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Measured quantity, with its unit.
    pub y_label: String,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// The names of the bars in a group.
    pub names: Vec<String>,
    /// Style of each bar of a group. The same style number looks the same in all drawings of a
    /// page.
    pub styles: Vec<usize>,
    /// Bars of each group; `None` for a combination without runs.
    pub bars: Vec<Vec<Option<Bar>>>,
}

impl Bars {
    /// Returns the chart as SVG.
    pub fn svg(&self) -> String {
        let all = self.bars.iter().flatten().flatten();
        let y = Scale::over(all.map(|bar| bar.high.max(bar.value)), true, (BOTTOM, TOP));
        let legend_rows = self.legend_rows();
        let height = HEIGHT + 16.0 * (legend_rows.len() as f64 - 1.0).max(0.0);
        let mut out = super::begin(height, &self.y_label);
        super::grid(&mut out, &y, RIGHT, None);
        let room = (RIGHT - LEFT) / self.groups.len().max(1) as f64;
        for (number, (group, bars)) in self.groups.iter().zip(&self.bars).enumerate() {
            let from = LEFT + room * number as f64;
            self.group(&mut out, &y, (from, room), group, bars);
        }
        put(
            &mut out,
            format_args!("<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>"),
        );
        legend(&mut out, &legend_rows);
        out.push_str("</svg>\n");
        out
    }

    fn group(
        &self,
        out: &mut String,
        y: &Scale,
        (from, room): (f64, f64),
        group: &str,
        bars: &[Option<Bar>],
    ) {
        let width = room * FILLED / bars.len().max(1) as f64;
        let first = from + room * (1.0 - FILLED) / 2.0;
        for (number, bar) in bars.iter().enumerate() {
            let Some(bar) = bar else { continue };
            let name = self.names.get(number).map_or("", String::as_str);
            let style = self.styles.get(number).copied().unwrap_or(number);
            let left = first + width * number as f64;
            let (top, middle) = (y.at(bar.value), left + width / 2.0);
            let title = match bar.low < bar.high {
                true => format!(
                    "{} ({} to {})",
                    short(bar.value),
                    short(bar.low),
                    short(bar.high)
                ),
                false => short(bar.value),
            };
            put(
                out,
                format_args!(
                    "<g class=\"series s{style} c{}\"><rect class=\"bar\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\" rx=\"1\"><title>{} {}: {title}</title></rect>{}</g>",
                    style % COLOURS,
                    left + 0.5,
                    (width - 1.0).max(1.0),
                    (BOTTOM - top).max(0.0),
                    escaped(group),
                    escaped(name),
                    interval(bar, y, middle, (width * 0.25).min(4.0)),
                ),
            );
        }
        put(
            out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                from + room / 2.0,
                BOTTOM + 16.0,
                escaped(group)
            ),
        );
    }

    /// Returns the rows of the legend. An entry consists of a style, a name, and a horizontal
    /// position.
    fn legend_rows(&self) -> Vec<Vec<(usize, &str, f64)>> {
        let mut rows: Vec<Vec<(usize, &str, f64)>> = vec![Vec::new()];
        let mut x = LEFT;
        for (number, name) in self.names.iter().enumerate() {
            let width = 16.0 + name.chars().count() as f64 * LETTER + 12.0;
            if x + width > WIDTH && x > LEFT {
                rows.push(Vec::new());
                x = LEFT;
            }
            let style = self.styles.get(number).copied().unwrap_or(number);
            if let Some(row) = rows.last_mut() {
                row.push((style, name, x));
            }
            x += width;
        }
        rows
    }
}

/// Draws the interval of a bar as a vertical line with caps. Returns an empty text if the interval
/// has no length.
fn interval(bar: &Bar, y: &Scale, middle: f64, cap: f64) -> String {
    if bar.low >= bar.high {
        return String::new();
    }
    let (high, low, left, width) = (y.at(bar.high), y.at(bar.low), middle - cap, 2.0 * cap);
    format!(
        "<path class=\"interval\" d=\"M{middle:.1} {high:.1}V{low:.1}M{left:.1} {high:.1}h{width:.1}M{left:.1} \
         {low:.1}h{width:.1}\"/>"
    )
}

fn legend(out: &mut String, rows: &[Vec<(usize, &str, f64)>]) {
    for (row, names) in rows.iter().enumerate() {
        let y = BOTTOM + 36.0 + 16.0 * row as f64;
        for (style, name, x) in names {
            put(
                out,
                format_args!(
                    "<g class=\"series s{style} c{}\"><rect class=\"bar\" x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" \
                     height=\"10\" rx=\"2\"/><text class=\"name\" x=\"{:.1}\" y=\"{y:.1}\">{}</text></g>",
                    style % COLOURS,
                    y - 9.0,
                    x + 14.0,
                    escaped(name)
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64) -> Option<Bar> {
        Some(Bar {
            value,
            low: value * 0.9,
            high: value * 1.1,
        })
    }

    /// The axis from 0 to 100 is 196 units long, so a value of 50 is 98 units high, and 25 is 49
    /// units high.
    #[test]
    fn bars_are_as_high_as_their_values_and_a_gap_has_none() {
        let bars = Bars {
            y_label: "a<b".to_owned(),
            groups: vec!["x".to_owned(), "y".to_owned()],
            names: vec!["one".to_owned(), "two".to_owned()],
            styles: vec![0, 5],
            bars: vec![vec![bar(50.0), None], vec![bar(25.0), bar(90.0)]],
        };
        let svg = bars.svg();
        let heights: Vec<&str> = svg
            .split("class=\"bar\"")
            .skip(1)
            .filter_map(|piece| piece.split_once("height=\"")?.1.split('"').next())
            .collect();
        // The heights of three bars of data, and of two boxes in the legend.
        assert_eq!(heights, ["98.0", "49.0", "176.4", "10", "10"]);
        assert!(svg.contains("a&lt;b"));
        assert_eq!(
            (svg.matches("s5 c5").count(), svg.matches("s0 c0").count()),
            (2, 3)
        );
    }
}
