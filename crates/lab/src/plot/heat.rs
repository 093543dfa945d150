//! Heat map of latencies over time, with a column for each time interval and a row for each latency
//! class. A cell with more requests is darker, on a logarithmic scale.

use std::fmt::Write;

use super::scale::{Scale, short};
use super::{LEFT, WIDTH, begin, put};
use crate::latency::{FREEZE_NS, class_begin_ns};

const HEIGHT: f64 = 200.0;
const RIGHT: f64 = 404.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 166.0;
/// Number of shades. Each shade is a CSS class of the page, from `h1` for the lightest.
const SHADES: usize = 5;

/// A heat map.
pub struct Heat<'m> {
    /// Label of the drawing.
    pub label: String,
    /// Length of an interval in ns.
    pub interval_ns: u64,
    /// Cells, sorted by interval and then by latency class. Each cell consists of its interval, its
    /// latency class, and its number of requests.
    pub map: &'m [(u16, u8, u64)],
}

impl Heat<'_> {
    /// Returns the heat map as SVG; an empty text if there are no requests.
    pub fn svg(&self) -> String {
        let classes = self.map.iter().map(|cell| cell.1);
        let (Some(least), Some(most)) = (classes.clone().min(), classes.max()) else {
            return String::new();
        };
        let ends = [
            class_begin_ns(least) as f64,
            class_begin_ns(most + 1) as f64,
        ];
        let y = Scale::logarithmic(ends.into_iter(), (BOTTOM, TOP));
        let last = self.map.iter().map(|cell| cell.0).max().unwrap_or(0);
        let end_s = (f64::from(last) + 1.0) * self.interval_ns as f64 / 1e9;
        let x = Scale::from_end_to_end([0.0, end_s].into_iter(), (LEFT, RIGHT));
        let mut out = begin(HEIGHT, &self.label);
        self.shades(&mut out, &x, &y);
        self.latencies(&mut out, &y, ends);
        times(&mut out, &x, end_s);
        out.push_str("</svg>\n");
        out
    }

    /// Draws one SVG path for each shade. Adjacent cells of the same shade in a row are merged into
    /// one rectangle of the path.
    fn shades(&self, out: &mut String, x: &Scale, y: &Scale) {
        let most = self.map.iter().map(|cell| cell.2).max().unwrap_or(1).max(2);
        let shade_of = |count: u64| {
            let share = (count.max(1) as f64).ln() / (most as f64).ln();
            ((share * SHADES as f64) as usize).min(SHADES - 1)
        };
        let mut by_class: Vec<(u8, u16, usize)> = self
            .map
            .iter()
            .map(|(interval, class, count)| (*class, *interval, shade_of(*count)))
            .collect();
        by_class.sort_unstable();
        let mut paths = vec![String::new(); SHADES];
        let at_s = |interval: u16| x.at(f64::from(interval) * self.interval_ns as f64 / 1e9);
        for run in by_class.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1 && a.2 == b.2) {
            let ((class, first, shade), last) = (run[0], run[run.len() - 1].1);
            let (left, right) = (at_s(first), at_s(last + 1));
            let top = y.at(class_begin_ns(class + 1) as f64);
            let bottom = y.at(class_begin_ns(class) as f64);
            write!(
                paths[shade],
                "M{left:.1} {top:.1}H{right:.1}V{bottom:.1}H{left:.1}z"
            )
            .expect("a string takes text");
        }
        for (shade, path) in paths
            .iter()
            .enumerate()
            .filter(|(_, path)| !path.is_empty())
        {
            put(
                out,
                format_args!("<path class=\"h{}\" d=\"{path}\"/>", shade + 1),
            );
        }
    }

    /// Draws a horizontal line at each power of ten. The line at [`FREEZE_NS`], above which a
    /// device is considered frozen, has a different style.
    fn latencies(&self, out: &mut String, y: &Scale, [least, most]: [f64; 2]) {
        let decades = (3..12).map(|power| 10_u64.pow(power));
        for ns in decades.filter(|ns| (least..=most).contains(&(*ns as f64))) {
            let at = y.at(ns as f64);
            let class = if ns == FREEZE_NS { "one" } else { "grid" };
            put(
                out,
                format_args!(
                    "<path class=\"{class}\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>\
                     <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    LEFT - 6.0,
                    at + 4.0,
                    power_of_ten(ns)
                ),
            );
        }
    }
}

/// Formats a power of ten of nanoseconds, such as `100 ms`.
fn power_of_ten(ns: u64) -> String {
    let (unit_ns, unit) = match ns {
        ..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{} {unit}", ns / unit_ns)
}

/// Draws the time axis.
fn times(out: &mut String, x: &Scale, end_s: f64) {
    put(
        out,
        format_args!("<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>"),
    );
    let round = Scale::over([0.0, end_s].into_iter(), true, (0.0, 1.0));
    for tick in round.ticks().into_iter().filter(|tick| *tick <= end_s) {
        let at = x.at(tick);
        put(
            out,
            format_args!(
                "<path class=\"axis\" d=\"M{at:.1} {BOTTOM}v4\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                BOTTOM + 16.0,
                short(tick)
            ),
        );
    }
    put(
        out,
        format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" class=\"minor\">s</text>",
            WIDTH - 4.0,
            BOTTOM + 30.0
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_shade_are_one_rectangle() {
        let map = [
            (0, 20, 1000),
            (1, 20, 1000),
            (2, 20, 1000),
            (2, 30, 1),
            (4, 20, 1000),
        ];
        let heat = Heat {
            label: "reads".to_owned(),
            interval_ns: 1_000_000,
            map: &map,
        };
        let svg = heat.svg();
        let dark = svg.split("class=\"h5\" d=\"").nth(1).unwrap();
        let dark = dark.split('"').next().unwrap();
        assert_eq!(dark.matches('z').count(), 2, "{dark}");
        let faint = svg.split("class=\"h1\" d=\"").nth(1).unwrap();
        assert_eq!(faint.split('"').next().unwrap().matches('z').count(), 1);
        // The drawing is as wide as five intervals of 1 ms, and the first rectangle covers three of
        // them.
        let across = (RIGHT - LEFT) / 5.0;
        assert!(dark.starts_with(&format!("M{LEFT:.1} ")), "{dark}");
        assert!(
            dark.contains(&format!("H{:.1}V", LEFT + 3.0 * across)),
            "{dark}"
        );
        let none = Heat { map: &[], ..heat };
        assert_eq!(none.svg(), "");
    }
}
