//! Vertical lines above and below a horizontal line, one for each event, in the order of the
//! events.

use super::scale::Scale;
use super::{LEFT, WIDTH, begin, escaped, grid, put};

const HEIGHT: f64 = 270.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 236.0;
const RIGHT: f64 = WIDTH - 8.0;

/// Spikes.
#[derive(Clone, Debug)]
pub struct Spikes {
    /// Measured quantity, with its unit.
    pub y_label: String,
    /// Meaning of the order.
    pub x_label: String,
    /// Values. Values below 0 are drawn below the line.
    pub values: Vec<f64>,
}

impl Spikes {
    /// Returns the spikes as SVG.
    pub fn svg(&self) -> String {
        let values = self.values.iter().copied().chain([0.0]);
        let y = Scale::over(values, false, (BOTTOM, TOP));
        let mut out = begin(HEIGHT, &self.y_label);
        grid(&mut out, &y, RIGHT, None);
        let zero = y.at(0.0);
        let room = (RIGHT - LEFT) / self.values.len().max(1) as f64;
        let (mut above, mut below) = (String::new(), String::new());
        for (number, value) in self.values.iter().enumerate() {
            let x = LEFT + room * (number as f64 + 0.5);
            let side = if *value >= 0.0 {
                &mut above
            } else {
                &mut below
            };
            side.push_str(&format!("M{x:.1} {zero:.1}V{:.1}", y.at(*value)));
        }
        for (style, path) in [(0, above), (1, below)] {
            put(
                &mut out,
                format_args!(
                    "<g class=\"series c{style}\"><path class=\"line\" d=\"{path}\"/></g>"
                ),
            );
        }
        put(
            &mut out,
            format_args!("<path class=\"axis\" d=\"M{LEFT} {zero:.1}H{RIGHT:.1}\"/>"),
        );
        put(
            &mut out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} (1 to {})</text>",
                (LEFT + RIGHT) / 2.0,
                HEIGHT - 10.0,
                escaped(&self.x_label),
                self.values.len()
            ),
        );
        out.push_str("</svg>\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The axis from -20 to 40 has 206 units, so 0 is at 236 - 206 / 3 = 167.3. Each value has half
    /// of the 350 units from 52 to 402, and is in its middle: at 139.5 and 314.5.
    #[test]
    fn values_go_up_and_down_from_zero() {
        let spikes = Spikes {
            y_label: "times".to_owned(),
            x_label: "number".to_owned(),
            values: vec![40.0, -20.0],
        };
        let svg = spikes.svg();
        assert!(svg.contains("M139.5 167.3V30.0"), "{svg}");
        assert!(svg.contains("M314.5 167.3V236.0"), "{svg}");
    }
}
