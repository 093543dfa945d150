//! The first page of a volume: its health, the stack as a tree with the latencies of the last ten
//! seconds, and the bounds that matter: exposure, logs, space, and what a rebuild or a scrub has
//! left to do.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use serde_json::Value;

use super::bounds::{self, Bound};
use super::draw::{self, Column};
use super::history::History;
use super::look::{self, Look};
use super::rows::{self, Order, Row};
use crate::figures::Figures;
use crate::health;
use crate::statistics;
use crate::terminal::Tone;

/// Columns of the tree. On a narrow terminal the last ones are left out.
const COLUMNS: [Column; 9] = [
    Column::left("last 10 s", 15),
    Column::left("", 14),
    Column::right("write/s", 7),
    Column::right("median", 6),
    Column::right("99 %", 6),
    Column::right("max", 6),
    Column::right("read/s", 6),
    Column::right("99 %", 6),
    Column::right("lag", 6),
];
/// Further columns on a wide terminal.
const WIDE: [Column; 1] = [Column::left("what it is", 24)];
/// Width of a bar.
const BAR_WIDTH: usize = 18;

/// What the page shows besides the status.
pub(super) struct View<'a> {
    pub(super) volume: &'a str,
    pub(super) selected: usize,
    pub(super) order: Order,
    pub(super) is_verbose: bool,
    pub(super) look: Look,
    /// Text in the place of the health if the server does not answer.
    pub(super) gone: Option<&'a str>,
    pub(super) history: &'a History,
}

/// Draws the page.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, status: &Value, view: &View) {
    let width = usize::from(area.width);
    let top = health(status, view, width);
    let rows = rows::rows(status, view.volume, view.order, view.look);
    let mut facts = facts(status, view);
    let height = usize::from(area.height);
    // The heading of the table and an empty line above and below it.
    let rest = height.saturating_sub(top.len() + 3);
    facts.truncate(rest.saturating_sub(rows.len().min(rest / 2)));
    let room = rest.saturating_sub(facts.len());
    let sides = rows.iter().filter(|row| row.is_side).count();
    let has_curves = rows.len() + sides <= room && view.history.is_known();
    let table = table(&rows, view, width, has_curves);
    let selected = table
        .iter()
        .position(|(row, _)| *row == view.selected)
        .unwrap_or(0);
    let skip = (selected + 1).saturating_sub(room);
    let mut shown = top;
    shown.push(Line::default());
    let columns = columns(width);
    shown.push(draw::headings(&columns, view.look.style(Tone::Dim)));
    shown.extend(
        table
            .into_iter()
            .skip(skip)
            .take(room)
            .map(|(_, line)| line),
    );
    shown.push(Line::default());
    shown.extend(facts);
    draw::lines(buffer, area, &shown);
}

fn columns(width: usize) -> Vec<Column> {
    let all: Vec<Column> = COLUMNS.into_iter().chain(WIDE).collect();
    draw::fitting(&all, width).to_vec()
}

/// Returns the health of a volume: the worst finding, and a line for each further one.
pub(super) fn health(status: &Value, view: &View, width: usize) -> Vec<Line<'static>> {
    if let Some(gone) = view.gone {
        let style = view.look.banner(Tone::Bad);
        return draw::heading(("no answer", style), gone, width, 2);
    }
    let findings = health::shown(status, view.volume);
    let mut lines = Vec::new();
    for (at, finding) in findings.iter().take(3).enumerate() {
        let style = view.look.banner(finding.tone());
        let text = format!("{}: {}", view.volume, finding.reason);
        let text = if at == 0 {
            text
        } else {
            finding.reason.to_owned()
        };
        let rows = if at == 0 { 3 } else { 2 };
        lines.extend(draw::heading((finding.word, style), &text, width, rows));
    }
    if findings.len() > 3 {
        lines.push(Line::from(format!(" and {} more", findings.len() - 3)));
    }
    lines
}

/// Returns the lines of the tree, each with the index of its row.
fn table(rows: &[Row], view: &View, width: usize, has_curves: bool) -> Vec<(usize, Line<'static>)> {
    let (look, columns) = (view.look, columns(width));
    let mut lines = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let is_wide = columns.len() > COLUMNS.len();
        let mut line = draw::row(&columns, &cells(row, look, is_wide));
        if at == view.selected {
            draw::select(&mut line, u16::try_from(width).unwrap_or(u16::MAX));
        }
        lines.push((at, line));
        if row.is_side && has_curves {
            lines.push((at, curve(row, view, width)));
        }
    }
    lines
}

/// Returns the cells of a row. `is_wide` says whether there are further columns.
fn cells(row: &Row, look: Look, is_wide: bool) -> Vec<(String, Style)> {
    let plain = Style::new();
    let name = match row.kind {
        "export" => format!("export {}", row.name),
        _ => format!("{}{}", row.branch, row.name),
    };
    let of_name = if row.is_side {
        look.style(Tone::Strong)
    } else {
        plain
    };
    let latency = |ns: u64| match ns >= 1_000_000_000 {
        true => (look::latency(ns), look.style(Tone::Warn)),
        false => (look::latency(ns), plain),
    };
    // A column of its own says what it is, if there is one.
    let state = match row.state.is_empty() && !is_wide {
        true => (row.what.clone(), look.style(Tone::Dim)),
        false => (row.state.clone(), look.style(row.tone)),
    };
    let (writes, reads) = (row.writes, row.reads);
    vec![
        (name, of_name),
        state,
        (look::rate(writes.requests_per_s()), plain),
        latency(writes.p50_ns),
        latency(writes.p99_ns),
        latency(writes.max_ns),
        (look::rate(reads.requests_per_s()), plain),
        latency(reads.p99_ns),
        (look::seconds(row.lag_s), plain),
        (row.what.clone(), look.style(Tone::Dim)),
    ]
}

/// Returns the curve of the slowest writes of a side, under its row.
fn curve(row: &Row, view: &View, width: usize) -> Line<'static> {
    let values = view.history.slowest_writes("device", row.name);
    let peak_ns = values.iter().flatten().max().copied().unwrap_or(0);
    let label = match peak_ns {
        0 => String::new(),
        ns => format!(" slowest write {}", look::latency(ns)),
    };
    let indent = row.under.chars().count();
    let room = width.saturating_sub(indent + label.len()).min(values.len());
    let shown = &values[values.len() - room..];
    let mut line = Line::from(Span::raw(row.under.clone()));
    line.push_span(Span::raw(view.look.curve(shown)));
    line.push_span(Span::styled(label, view.look.style(Tone::Dim)));
    line
}

/// Returns the lines below the tree.
fn facts(status: &Value, view: &View) -> Vec<Line<'static>> {
    let bounds = bounds::of_volume(status, view.volume);
    let mut lines: Vec<Line> = bounds
        .iter()
        .map(|bound| line_of(bound, view.look))
        .collect();
    if view.is_verbose {
        let volume = Figures::of(&status["devices"][view.volume]);
        lines.push(Line::default());
        lines.extend(counters(&volume).into_iter().map(Line::from));
    }
    lines
}

/// Returns a line with a name, a bar or nothing, and a text.
fn line_of(bound: &Bound, look: Look) -> Line<'static> {
    let name = format!("{:<14} ", bound.name);
    let mut line = Line::from(Span::styled(name, look.style(Tone::Dim)));
    if let Some(share) = bound.share {
        line.push_span(Span::raw(format!("{} ", look.bar(share, BAR_WIDTH))));
    }
    line.push_span(Span::raw(bound.text.clone()));
    line
}

/// Returns the figures of a device, several on each line; none that is 0.
pub(super) fn counters(device: &Figures) -> Vec<String> {
    const WIDTH: usize = 78;
    statistics::flowing(device.all().filter(|(_, value)| !value.is_null()), WIDTH)
}
