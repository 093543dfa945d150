//! The page of one export or device: what was found about it, its latencies in all windows, and its
//! figures.

use bimetal_block::units::show_size;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use serde_json::Value;

use super::draw::{self, Column};
use super::history::History;
use super::look::{self, Look};
use super::overview::counters;
use super::rows::Row;
use crate::figures::{Figures, Latency};
use crate::terminal::Tone;
use crate::{health, statistics};

/// Columns of the latencies.
const COLUMNS: [Column; 9] = [
    Column::left("", 12),
    Column::left("", 11),
    Column::right("/s", 7),
    Column::right("rate", 11),
    Column::right("queue", 5),
    Column::right("median", 6),
    Column::right("99 %", 6),
    Column::right("longest", 7),
    Column::right("failed", 6),
];
/// The windows with their names.
const WINDOWS: [(&str, &str); 4] = [
    ("last_10_s", "10 s"),
    ("last_1_min", "1 min"),
    ("last_10_min", "10 min"),
    ("since_start", "since start"),
];

/// Returns the lines of the page. `of_side` has the name of the mirror that has the device as a
/// side.
pub(super) fn lines(
    status: &Value,
    volume: &str,
    row: &Row,
    (look, is_verbose, width): (Look, bool, usize),
    history: &History,
) -> Vec<Line<'static>> {
    let things = match row.kind {
        "export" => &status["exports"],
        "attached" => &status["attached"],
        _ => &status["devices"],
    };
    let thing = Figures::of(&things[row.name]);
    let mut lines = vec![Line::from(vec![
        Span::styled(row.name.to_owned(), look.style(Tone::Strong)),
        Span::raw(format!("  {}  ", row.what)),
        Span::styled(row.state.clone(), look.style(row.tone)),
    ])];
    for finding in health::shown(status, volume) {
        if finding.of == row.name && finding.word != "healthy" {
            let style = look.banner(finding.tone());
            lines.extend(draw::heading(
                (finding.word, style),
                finding.reason,
                width,
                4,
            ));
        }
    }
    let values = history.slowest_writes(row.kind, row.name);
    if let Some(peak_ns) = values.iter().flatten().max() {
        lines.push(Line::default());
        let room = width.saturating_sub(2).min(values.len());
        lines.push(Line::from(look.curve(&values[values.len() - room..])));
        let text = format!(
            "slowest write of each second of the last minute, up to {}",
            look::latency(*peak_ns)
        );
        lines.push(Line::styled(text, look.style(Tone::Dim)));
    }
    lines.extend(latencies(&thing, look, width));
    let own = counters(&thing);
    if !own.is_empty() {
        lines.push(Line::default());
        lines.extend(own.into_iter().map(Line::from));
    }
    if let Some(side) = side_of(status, row.name) {
        lines.push(Line::default());
        lines.extend(figures(&side, is_verbose, look));
    }
    lines
}

/// Returns the figures of a device as a side of a mirror.
fn side_of<'a>(status: &'a Value, name: &str) -> Option<Figures<'a>> {
    let devices = crate::figures::entries(&status["devices"]);
    let mut mirrors = devices
        .map(|(_, device)| Figures::of(device))
        .filter(|device| device.kind() == "mirror");
    mirrors.find_map(|mirror| {
        let mut sides = mirror.parts();
        sides
            .find(|(side, _)| *side == name)
            .map(|(_, figures)| figures)
    })
}

fn latencies(thing: &Figures, look: Look, width: usize) -> Vec<Line<'static>> {
    let columns = draw::fitting(&COLUMNS, width);
    let mut lines = Vec::new();
    for (op, latency) in thing.latencies() {
        for (at, (window, name)) in WINDOWS.into_iter().enumerate() {
            let cells = cells(if at == 0 { op } else { "" }, name, &latency, window, look);
            if let Some(cells) = cells {
                lines.push(draw::row(columns, &cells));
            } else if at == 0 {
                lines.push(Line::from(op.replace('-', " ")));
            }
        }
        if latency.in_flight() > 0 {
            let time = look::latency(latency.waiting_ns().max(1));
            let text = format!(
                "  {} without an answer, the oldest for {time}",
                latency.in_flight()
            );
            lines.push(Line::from(text));
        }
    }
    if !lines.is_empty() {
        lines.insert(0, draw::headings(columns, look.style(Tone::Dim)));
        lines.insert(0, Line::default());
    }
    lines
}

/// Returns the cells of a window; `None` if it has no requests.
fn cells(
    op: &str,
    name: &str,
    latency: &Latency,
    window: &str,
    look: Look,
) -> Option<Vec<(String, Style)>> {
    let window = latency.window(window);
    if window.requests == 0 {
        return None;
    }
    let plain = Style::new();
    let bytes_per_s = match window.bytes_per_s() as u64 {
        0 => String::new(),
        bytes => format!("{}/s", show_size(bytes)),
    };
    let queue = match window.queue {
        ..0.05 => String::new(),
        queue => format!("{queue:.1}"),
    };
    let (errors, of_errors) = match window.errors {
        0 => (String::new(), plain),
        errors => (errors.to_string(), look.style(Tone::Bad)),
    };
    // A request that is answered in the turn in which it came has a latency of 0.
    let latency = |ns: u64| (look::latency(ns.max(1)), plain);
    Some(vec![
        (op.replace('-', " "), look.style(Tone::Strong)),
        (name.to_owned(), look.style(Tone::Dim)),
        (look::rate(window.requests_per_s()), plain),
        (bytes_per_s, plain),
        (queue, plain),
        latency(window.p50_ns),
        latency(window.p99_ns),
        latency(window.max_ns),
        (errors, of_errors),
    ])
}

/// Returns the figures of a side, without those that are 0, and without internal ones unless they
/// are wanted.
fn figures(side: &Figures, is_verbose: bool, look: Look) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for (name, value) in side.all() {
        let is_nothing = value.as_f64() == Some(0.0) || value.is_null();
        if is_nothing || !is_verbose && statistics::is_internal(name) {
            continue;
        }
        lines.push(Line::from(vec![
            Span::styled(
                format!("{:<28}", statistics::label(name)),
                look.style(Tone::Dim),
            ),
            Span::raw(statistics::show(name, value)),
        ]));
    }
    lines
}
