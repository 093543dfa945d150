//! Plots as SVG text: lines over several sizes, and bars for a single size.
//!
//! A plot is embedded in a page, and the page defines the colours (`c0` to `c7`, by theme). The
//! plot loads nothing else. Each line of a plot has its own colour, marker and dash pattern, and
//! its name at its end, so a plot is readable without colour and without a legend. A plot must
//! never draw outside its frame.

use std::fmt::Write;

pub mod bars;
pub mod heat;
pub mod rows;
mod scale;
pub mod spikes;

pub use scale::short;
use scale::{Scale, spread};

/// Returns marks with labels at round values of a curve from `least` to `most`, and marks without
/// labels at both ends.
pub fn round_marks(least: f64, most: f64) -> Vec<Mark> {
    let ticks = Scale::over([least, most].into_iter(), false, (0.0, 1.0)).ticks();
    let inside = ticks
        .into_iter()
        .filter(|tick| (least..=most).contains(tick));
    let named = inside.map(|x| Mark {
        x,
        lines: [short(x), String::new()],
    });
    let end = |x| Mark {
        x,
        lines: [String::new(), String::new()],
    };
    [end(least)]
        .into_iter()
        .chain(named)
        .chain([end(most)])
        .collect()
}

/// Style sheet of pages with plots: colours by theme, tables, and highlighting under the pointer.
pub const STYLE: &str = include_str!("page.css");

/// Dimensions in units of the drawing; a unit is about one pixel on a phone.
const WIDTH: f64 = 410.0;
const HEIGHT: f64 = 310.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 54.0;
/// Minimum vertical distance between the names of lines.
const LINE_HEIGHT: f64 = 13.5;
/// Approximate width of a character of the name of a line.
const LETTER: f64 = 7.3;
/// Additional width of a capital letter.
const CAPITAL: f64 = 2.6;
/// Minimum distance between the centres of labels below the horizontal axis.
const X_LABEL_GAP: f64 = 44.0;
/// Number of colours that a page defines.
pub const COLOURS: usize = 8;

/// One line of a plot.
pub struct Series {
    /// Name, which is drawn at the end of the line.
    pub name: String,
    /// Style of the line. The same style number looks the same in all plots of a page.
    pub style: usize,
    /// Points (x, y) from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A mark on the horizontal axis.
pub struct Mark {
    /// Value on the axis at which the mark is drawn.
    pub x: f64,
    /// The two lines of the label. The first line is the value; if it is empty, the mark is only a
    /// stroke. The second line is the value as a share of a whole, or is empty.
    pub lines: [String; 2],
}

/// A plot of lines or bars.
pub struct Plot {
    /// Measured quantity, with its unit.
    pub y_label: String,
    /// Quantity along the horizontal axis, with its unit.
    pub x_label: String,
    /// Marks along the horizontal axis. If there is only one mark, the series are drawn as bars.
    pub marks: Vec<Mark>,
    /// Lines of the plot.
    pub series: Vec<Series>,
    /// Value with which the other values are compared, drawn as a separate line.
    pub reference: Option<f64>,
    /// Whether the vertical axis must start at 0.
    pub from_zero: bool,
    /// Whether the horizontal axis is logarithmic.
    pub by_factors: bool,
    /// Whether points are drawn with markers. A curve with many points is clearer without markers.
    pub has_points: bool,
}

impl Plot {
    /// Returns the plot as SVG.
    pub fn svg(&self) -> String {
        match self.marks.len() {
            0 | 1 => self.bars(),
            _ => self.lines(),
        }
    }

    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.map(|(_, y)| *y).chain(self.reference)
    }

    fn names_width(&self) -> f64 {
        let width = |series: &Series| {
            let capitals = series.name.chars().filter(char::is_ascii_uppercase).count();
            series.name.chars().count() as f64 * LETTER + capitals as f64 * CAPITAL
        };
        let longest = self.series.iter().map(width).fold(0.0, f64::max);
        (longest + 24.0).min(WIDTH * 0.42)
    }

    fn lines(&self) -> String {
        let right = WIDTH - self.names_width();
        let bottom = HEIGHT - BOTTOM;
        let y = Scale::over(self.values(), self.from_zero, (bottom, TOP));
        let marks = self.marks.iter().map(|mark| mark.x);
        let x = match self.by_factors {
            true => Scale::logarithmic(marks, (LEFT + 10.0, right)),
            false => Scale::from_end_to_end(marks, (LEFT + 10.0, right)),
        };
        let mut out = begin(HEIGHT, &self.y_label);
        self.grid(&mut out, &y, right);
        self.under(&mut out, &x, right);
        let ends: Vec<f64> = self.series.iter().map(|s| last_y(s, &y)).collect();
        let labels = spread(&ends, LINE_HEIGHT, (TOP, bottom));
        for (series, (end, label)) in self.series.iter().zip(ends.iter().zip(&labels)) {
            draw_line(&mut out, series, &x, &y, self.has_points);
            draw_name(&mut out, series, right, (*end, *label));
        }
        out.push_str("</svg>\n");
        out
    }

    /// Draws the horizontal grid lines, and the line of the reference value.
    fn grid(&self, out: &mut String, y: &Scale, right: f64) {
        grid(out, y, right, self.reference);
        if let Some(reference) = self.reference {
            let at = y.at(reference);
            put(
                out,
                format_args!("<path class=\"one\" d=\"M{LEFT} {at:.1}H{right:.1}\"/>"),
            );
        }
    }

    /// Draws the horizontal axis with its marks. Omits a label that would touch the previous label.
    fn under(&self, out: &mut String, x: &Scale, right: f64) {
        let bottom = HEIGHT - BOTTOM;
        put(
            out,
            format_args!("<path class=\"axis\" d=\"M{LEFT} {bottom}H{right:.1}\"/>"),
        );
        let mut free_from = f64::MIN;
        for mark in &self.marks {
            let at = x.at(mark.x);
            put(
                out,
                format_args!("<path class=\"axis\" d=\"M{at:.1} {bottom}v4\"/>"),
            );
            if at < free_from || mark.lines[0].is_empty() {
                continue;
            }
            free_from = at + X_LABEL_GAP;
            for (line, y) in mark.lines.iter().zip([16.0, 29.0]) {
                let class = if y > 16.0 { " class=\"minor\"" } else { "" };
                put(
                    out,
                    format_args!(
                        "<text{class} x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{line}</text>",
                        bottom + y
                    ),
                );
            }
        }
        put(
            out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                (LEFT + right) / 2.0,
                HEIGHT - 8.0,
                escaped(&self.x_label)
            ),
        );
    }

    /// Returns the plot of a single size as SVG: the values as horizontal bars, with names on the
    /// left and numbers on the right.
    fn bars(&self) -> String {
        const ROW: f64 = 22.0;
        let left = self.names_width();
        let height = TOP + ROW * self.series.len() as f64 + 14.0;
        let most = self.values().fold(0.0f64, f64::max).max(f64::MIN_POSITIVE);
        let long = |value: f64| (value / most).clamp(0.0, 1.0) * (WIDTH - left - 58.0);
        let mut out = begin(height, &self.y_label);
        if let Some(reference) = self.reference {
            let at = left + long(reference);
            put(
                &mut out,
                format_args!(
                    "<path class=\"one\" d=\"M{at:.1} {TOP}V{:.1}\"/>",
                    height - 12.0
                ),
            );
        }
        for (number, series) in self.series.iter().enumerate() {
            let Some((_, value)) = series.points.first() else {
                continue;
            };
            let (top, width) = (TOP + ROW * number as f64, long(*value));
            let (class, middle) = (class(series.style), top + 13.0);
            put(
                &mut out,
                format_args!(
                    "<g class=\"series {class}\"><text class=\"name\" x=\"{:.1}\" y=\"{middle:.1}\" \
                     text-anchor=\"end\">{}</text><rect class=\"bar\" x=\"{left:.1}\" y=\"{:.1}\" \
                     width=\"{width:.1}\" height=\"14\" rx=\"2\"/><text x=\"{:.1}\" y=\"{middle:.1}\">{}</text></g>",
                    left - 8.0,
                    escaped(&series.name),
                    top + 2.0,
                    left + width + 6.0,
                    short(*value)
                ),
            );
        }
        out.push_str("</svg>\n");
        out
    }
}

/// Draws a horizontal line and a number at each round value, up to the position `right`. Omits the
/// line at the value `without`, where the caller draws a line of its own.
fn grid(out: &mut String, y: &Scale, right: f64, without: Option<f64>) {
    for tick in y.ticks() {
        let at = y.at(tick);
        if without.is_none_or(|value| (value - tick).abs() >= 1e-9) {
            put(
                out,
                format_args!("<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right:.1}\"/>"),
            );
        }
        put(
            out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                y.show(tick)
            ),
        );
    }
}

fn begin(height: f64, y_label: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\">\
         <text x=\"4\" y=\"13\" class=\"measure\">{0}</text>\n",
        escaped(y_label)
    )
}

fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(out, "{what}").expect("text can always be added to a string");
}

fn class(style: usize) -> String {
    format!("s{style} c{} d{}", style % COLOURS, (style / COLOURS) % 3)
}

fn last_y(series: &Series, y: &Scale) -> f64 {
    series.points.last().map_or(TOP, |(_, value)| y.at(*value))
}

fn draw_line(out: &mut String, series: &Series, x: &Scale, y: &Scale, has_points: bool) {
    let mut path = String::new();
    for (number, (px, py)) in series.points.iter().enumerate() {
        let step = if number == 0 { 'M' } else { 'L' };
        write!(path, "{step}{:.1} {:.1}", x.at(*px), y.at(*py)).expect("a string takes text");
    }
    put(
        out,
        format_args!(
            "<g class=\"series {}\"><path class=\"line\" d=\"{path}\"/>",
            class(series.style)
        ),
    );
    for (px, py) in series.points.iter().filter(|_| has_points) {
        let mark = marker(series.style, x.at(*px), y.at(*py));
        let name = escaped(&series.name);
        let (px, py) = (short(*px), short(*py));
        put(
            out,
            format_args!(
                "<path class=\"mark\" d=\"{mark}\"><title>{name} at {px}: {py}</title></path>"
            ),
        );
    }
    out.push_str("</g>\n");
}

/// Returns the path of the marker of a style: a circle, square, triangle or diamond.
fn marker(style: usize, x: f64, y: f64) -> String {
    match style % 4 {
        0 => format!(
            "M{:.1} {y:.1}a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0",
            x - 3.4
        ),
        1 => format!("M{:.1} {:.1}h6v6h-6z", x - 3.0, y - 3.0),
        2 => format!("M{x:.1} {:.1}l4 7h-8z", y - 4.2),
        _ => format!("M{x:.1} {:.1}l4.2 4.2l-4.2 4.2l-4.2 -4.2z", y - 4.2),
    }
}

/// Draws the name of a line beside its end, with a stroke that connects the line and the name.
fn draw_name(out: &mut String, series: &Series, right: f64, (end, label): (f64, f64)) {
    put(
        out,
        format_args!(
            "<g class=\"series {}\"><path class=\"lead\" d=\"M{:.1} {end:.1}L{:.1} {label:.1}\"/>\
             <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            class(series.style),
            right + 5.0,
            right + 17.0,
            right + 20.0,
            label + 4.0,
            escaped(&series.name)
        ),
    );
}

/// Escapes text for HTML and SVG.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(sizes: &[f64]) -> Plot {
        let mark = |x: &f64| Mark {
            x: *x,
            lines: [short(*x), String::new()],
        };
        Plot {
            y_label: "misses <of> all".to_owned(),
            x_label: "pages".to_owned(),
            marks: sizes.iter().map(mark).collect(),
            series: (0..10)
                .map(|style| Series {
                    name: format!("p{style}"),
                    style,
                    points: sizes.iter().map(|x| (*x, 0.5)).collect(),
                })
                .collect(),
            reference: None,
            from_zero: true,
            by_factors: true,
            has_points: true,
        }
    }

    /// Splits `svg` at `before`, and returns the number after `key` in each piece that contains
    /// `key`.
    fn numbers(svg: &str, before: &str, key: &str) -> Vec<f64> {
        let pieces = svg.split(before).skip(1);
        let values = pieces.filter_map(|piece| piece.split_once(key)?.1.split('"').next());
        values.filter_map(|number| number.parse().ok()).collect()
    }

    #[test]
    fn names_of_lines_that_end_together_do_not_overlap() {
        let svg = plot(&[10.0, 100.0]).svg();
        let mut at = numbers(&svg, "class=\"name\"", " y=\"");
        at.sort_by(f64::total_cmp);
        assert_eq!(at.len(), 10);
        assert!(at.windows(2).all(|w| w[1] - w[0] >= LINE_HEIGHT - 0.11));
        assert!(at[0] >= TOP && at[9] <= HEIGHT - BOTTOM + 4.0, "{at:?}");
    }

    #[test]
    fn one_size_is_shown_as_bars_as_long_as_their_values() {
        let mut plot = plot(&[10.0]);
        plot.series.truncate(2);
        plot.series[0].points[0].1 = 0.25;
        let widths = numbers(&plot.svg(), "class=\"bar\"", "width=\"");
        assert_eq!(widths.len(), 2);
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.01, "{widths:?}");
    }

    #[test]
    fn text_cannot_become_markup() {
        let svg = plot(&[10.0, 20.0]).svg();
        assert!(svg.contains("misses &lt;of&gt; all") && !svg.contains("<of>"));
        assert_eq!(escaped("a\"&<"), "a&quot;&amp;&lt;");
    }

    #[test]
    fn marks_of_a_curve_are_round_and_hold_its_ends() {
        let marks = round_marks(1.0, 60.0);
        let at: Vec<f64> = marks.iter().map(|mark| mark.x).collect();
        assert_eq!(at, [1.0, 20.0, 40.0, 60.0, 60.0]);
        assert_eq!(
            (marks[0].lines[0].as_str(), marks[1].lines[0].as_str()),
            ("", "20")
        );
    }

    #[test]
    fn labels_that_would_touch_are_left_out() {
        let sizes: Vec<f64> = (0..40).map(|n| 1000.0 + f64::from(n)).collect();
        let svg = plot(&sizes).svg();
        let x_labels = svg.matches("class=\"minor\"").count();
        assert!((2..=10).contains(&x_labels), "{x_labels}");
    }
}
