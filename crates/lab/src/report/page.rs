//! The report as one HTML page: bars with intervals, numbers of enqueued and dequeued requests,
//! curves, heat maps, and a table of all metrics.
//!
//! The page must load nothing: no script, no font, and no picture. The same runs must give the same
//! bytes.

use bimetal_block::units::{show_count, show_ns};

use super::{CellSummary, Summary};
use crate::device::Backend;
use crate::latency::{DirectionLatency, Latencies};
use crate::plan::AXES;
use crate::plot::bars::{Bar, Bars};
use crate::plot::heat::Heat;
use crate::plot::{Plot, STYLE, Series, escaped, round_marks, short};
use crate::statistics::Ratio;

/// Maximum number of points of a curve that is drawn with markers.
const POINTS_MAX: usize = 24;
/// Minimum number of bios of a direction for which a heat map is drawn.
const MAPPED_MIN: u64 = 200;
/// Maximum number of heat maps that the page shows expanded.
const OPEN_MAX: usize = 12;

/// Returns the report as an HTML page.
pub fn html(summary: &Summary) -> String {
    let page = Page::new(summary);
    let mut out = page.head();
    page.checks(&mut out);
    for (title, cells) in page.figures() {
        // A drawing with a single bar would show no more than a row of the table, so it is left
        // out.
        if cells.len() > 1 {
            page.figure_group(&mut out, &title, &cells);
        }
    }
    page.curves(&mut out);
    page.latencies(&mut out);
    page.table(&mut out);
    out.push_str("</main></body></html>\n");
    out
}

struct Page<'s> {
    summary: &'s Summary,
    /// Axis whose choices are the groups of bars, and axis whose choices are the bars of each
    /// group.
    group_axis: &'static str,
    bar_axis: &'static str,
}

impl<'s> Page<'s> {
    fn new(summary: &'s Summary) -> Page<'s> {
        let varies = |axis: &&&str| summary.axes[**axis].len() > 1;
        // Axes in the order in which readers usually compare them.
        let order = [
            "scheduler",
            "file_system",
            "read_ahead",
            "write_mode",
            "device",
        ];
        // The axis of loads is not used here: loads have different units, so a drawing contains
        // only one load.
        let mut varying = order.iter().filter(varies);
        let bar_axis = varying.next().copied().unwrap_or("scheduler");
        let rest = match bar_axis {
            "file_system" => "device",
            _ => "file_system",
        };
        let group_axis = varying.next().copied().unwrap_or(rest);
        Page {
            summary,
            group_axis,
            bar_axis,
        }
    }

    fn head(&self) -> String {
        let summary = self.summary;
        let mut highlight = String::new();
        for style in 0..summary.axes[self.bar_axis].len() {
            highlight +=
                &format!("main:has(.s{style}:hover) .series:not(.s{style}){{opacity:.25}}");
        }
        let (planned, made) = summary.runs;
        let missing = match planned - made {
            0 => String::new(),
            missing => format!(" <strong>{missing} runs are missing.</strong>"),
        };
        let kernel = escaped(summary.kernel.as_deref().unwrap_or("unknown"));
        let place = match summary.backend {
            Backend::Virtual => "in virtual time".to_owned(),
            Backend::Stack => format!("in real time on our stack (Linux {kernel})"),
            Backend::Native => format!("on this machine (Linux {kernel})"),
            Backend::Uml => format!(
                "in User-Mode Linux {kernel} (counts are meaningful there but times are not, \
                because a system call takes ten times as long as elsewhere)"
            ),
        };
        let baseline: Vec<String> = summary.baseline.values().cloned().collect();
        let compared = match baseline.is_empty() {
            true => String::new(),
            false => format!(
                " Ratios are to {}, seed by seed; * marks those in which all seeds, at least five, \
                agree on the direction.",
                escaped(&baseline.join(", "))
            ),
        };
        let late = match summary.cells.iter().filter(|cell| cell.is_late()).count() {
            0 => String::new(),
            late => format!(
                " <strong>In {late} cells, marked !, an emulated device was behind its model by \
                more than a twentieth of its latency: they reflect this machine as much as the \
                model.</strong>"
            ),
        };
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta \
            name=\"viewport\" \
            content=\"width=device-width,initial-scale=1\"><title>{0}</title>\n<style>\n{STYLE}{highlight}</style></head><body><main>\n<h1>{0}</h1>\n<p>bimetal {1}, plan {2}, {place}: {made} runs of {3} cells.{missing} Bars are medians over seeds, with the interval of 95 %; ~ marks intervals that are wider than the plan requires.{compared}</p>\n<p>In all cells: {4}.{late}</p>\n",
            escaped(&summary.name),
            env!("CARGO_PKG_VERSION"),
            &summary.id[..12],
            summary.cells.len(),
            escaped(&self.fixed()),
        )
    }

    /// Returns, as text, the choices that all cells have in common.
    fn fixed(&self) -> String {
        let mut words = Vec::new();
        for axis in AXES {
            if let [only] = self.summary.axes[axis].as_slice() {
                words.push(format!("{} {only}", axis.replace('_', " ")));
            }
        }
        match words.is_empty() {
            true => "no setting is the same".to_owned(),
            false => words.join(", "),
        }
    }

    /// Returns the groups of drawings, each with its title and its cells.
    fn figures(&self) -> Vec<(String, Vec<&'s CellSummary>)> {
        let mut figures: Vec<(Vec<&str>, Vec<&CellSummary>)> = Vec::new();
        for cell in &self.summary.cells {
            let common = self.common(cell);
            match figures.iter_mut().find(|(key, _)| *key == common) {
                Some((_, cells)) => cells.push(cell),
                None => figures.push((common, vec![cell])),
            }
        }
        figures
            .into_iter()
            .map(|(key, cells)| (key.join(", "), cells))
            .collect()
    }

    /// Returns the choices that form the title of the group of a cell: the load, the device, and
    /// choices on other axes that vary. Omits the two axes that are drawn as bars and groups of
    /// bars.
    fn common(&self, cell: &'s CellSummary) -> Vec<&'s str> {
        let order = [
            "workload",
            "device",
            "file_system",
            "scheduler",
            "read_ahead",
            "write_mode",
        ];
        let of = order.into_iter().filter(|axis| {
            let is_drawn = *axis == self.group_axis || *axis == self.bar_axis;
            let names_it = matches!(*axis, "workload" | "device");
            !is_drawn && (names_it || self.summary.axes[*axis].len() > 1)
        });
        of.map(|axis| shown(axis, &cell.choice[axis])).collect()
    }

    fn figure_group(&self, out: &mut String, title: &str, cells: &[&CellSummary]) {
        *out += &format!("<h2>{}</h2>\n<div class=\"plots\">", escaped(title));
        let unit = cells.first().map_or("", |cell| cell.unit.as_str());
        let value = |cell: &CellSummary| Bar {
            value: cell.value.median,
            low: cell.value.low,
            high: cell.value.high,
        };
        if self.summary.backend.has_times() {
            self.bars(out, cells, ("Result", unit), &value);
        }
        let exact = |value: u64| {
            let value = value as f64;
            Bar {
                value,
                low: value,
                high: value,
            }
        };
        self.bars(
            out,
            cells,
            ("Enqueued: bios from the file system", "bios"),
            &|cell| exact(cell.reads.bios + cell.writes.bios),
        );
        self.bars(
            out,
            cells,
            ("Dequeued: requests to the device", "requests"),
            &|cell| exact(cell.reads.issued + cell.writes.issued),
        );
        out.push_str("</div>\n");
    }

    fn bars(
        &self,
        out: &mut String,
        cells: &[&CellSummary],
        (caption, y_label): (&str, &str),
        of: &dyn Fn(&CellSummary) -> Bar,
    ) {
        let names = |axis: &str| -> Vec<String> {
            let all = &self.summary.axes[axis];
            let used = all
                .iter()
                .filter(|name| cells.iter().any(|cell| cell.choice[axis] == **name));
            used.cloned().collect()
        };
        let (groups, bars) = (names(self.group_axis), names(self.bar_axis));
        let bar = |group: &String, name: &String| {
            let cell = cells.iter().find(|cell| {
                cell.choice[self.group_axis] == *group && cell.choice[self.bar_axis] == *name
            });
            cell.map(|cell| of(cell))
        };
        let shown_as = |axis: &'static str, names: &[String]| -> Vec<String> {
            names
                .iter()
                .map(|name| shown(axis, name).to_owned())
                .collect()
        };
        let drawing = Bars {
            y_label: y_label.to_owned(),
            bars: groups
                .iter()
                .map(|group| bars.iter().map(|name| bar(group, name)).collect())
                .collect(),
            groups: shown_as(self.group_axis, &groups),
            names: shown_as(self.bar_axis, &bars),
            styles: bars.iter().map(|name| self.style_of(name)).collect(),
        };
        *out += &format!(
            "<figure><figcaption>{}</figcaption>\n{}</figure>",
            escaped(caption),
            drawing.svg()
        );
    }

    /// Returns the index of a choice on the axis of bars. The index determines the colour of the
    /// bars of this choice.
    fn style_of(&self, name: &str) -> usize {
        let all = &self.summary.axes[self.bar_axis];
        all.iter().position(|known| known == name).unwrap_or(0)
    }

    /// Draws one plot for each curve of each load. In a plot, each cell (combination of choices) is
    /// one line.
    fn curves(&self, out: &mut String) {
        let mut curves: Vec<(&str, &str)> = Vec::new();
        for cell in &self.summary.cells {
            for name in cell.curves.keys() {
                let key = (cell.choice["workload"].as_str(), name.as_str());
                if !curves.contains(&key) {
                    curves.push(key);
                }
            }
        }
        if curves.is_empty() {
            return;
        }
        out.push_str("<h2>Curves</h2>\n<div class=\"plots\">");
        for (workload, name) in curves {
            self.curve(out, workload, name);
        }
        out.push_str("</div>\n");
    }

    /// Draws the plot of one curve. The name of the curve has the form `Y against X`.
    fn curve(&self, out: &mut String, workload: &str, name: &str) {
        let cells = self.summary.cells.iter();
        let own: Vec<&CellSummary> = cells
            .filter(|cell| cell.choice["workload"] == workload)
            .collect();
        let series: Vec<Series> = own
            .iter()
            .enumerate()
            .filter_map(|(style, cell)| {
                Some(Series {
                    name: self.line_name(cell, &own),
                    style,
                    points: cell.curves.get(name)?.clone(),
                })
            })
            .collect();
        let longest = series.iter().max_by_key(|series| series.points.len());
        let Some(points) = longest.map(|series| &series.points) else {
            return;
        };
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return;
        };
        let marks = round_marks(first.0, last.0);
        let (y_label, x_label) = name.split_once(" against ").unwrap_or((name, ""));
        let plot = Plot {
            y_label: y_label.to_owned(),
            x_label: x_label.to_owned(),
            marks,
            has_points: points.len() <= POINTS_MAX,
            series,
            reference: None,
            from_zero: true,
            by_factors: false,
        };
        *out += &format!(
            "<figure><figcaption>{}</figcaption>\n{}</figure>",
            escaped(workload),
            plot.svg()
        );
    }

    /// Draws a heat map of the latencies of bios for each cell and direction with enough bios.
    fn latencies(&self, out: &mut String) {
        let all: Vec<&CellSummary> = self.summary.cells.iter().collect();
        let mut drawings = Vec::new();
        for cell in &all {
            let Some(latency) = &cell.latency else {
                continue;
            };
            for (way, of) in [("reads", &latency.reads), ("writes", &latency.writes)] {
                if of.count >= MAPPED_MIN {
                    let name = format!("{}, {way}", self.line_name(cell, &all));
                    drawings.push(drawing_of(&name, latency.interval_ns, of));
                }
            }
        }
        if drawings.is_empty() {
            return;
        }
        // If there are many heat maps, show them collapsed, so that the table below is easy to
        // find.
        let open = if drawings.len() <= OPEN_MAX {
            " open"
        } else {
            ""
        };
        *out += &format!(
            "<h2>Latency over time</h2>\n<details{open}><summary>{} maps</summary>\n<p>Of bios, \
            from the file system until they come back, in the run of the first seed; the darker, \
            the more, by factors. The numbers are medians over seeds. A device that completes \
            nothing for longer than the broken line counts as frozen. Directions of fewer than \
            {MAPPED_MIN} bios are left out.</p>\n<div class=\"plots\">{}</div></details>\n",
            drawings.len(),
            drawings.concat()
        );
    }

    /// Returns the name of a cell's line in a plot. The name lists the cell's choice on each axis
    /// on which at least one of the `others` differs from the cell. If there is no such axis, the
    /// name is the device of the cell.
    fn line_name(&self, cell: &CellSummary, others: &[&CellSummary]) -> String {
        let differs = |axis: &str| {
            others
                .iter()
                .any(|other| other.choice[axis] != cell.choice[axis])
        };
        let words: Vec<&str> = AXES
            .iter()
            .copied()
            .filter(|axis| differs(axis))
            .map(|axis| shown(axis, &cell.choice[axis]))
            .collect();
        match words.is_empty() {
            true => cell.choice["device"].clone(),
            false => words.join(" "),
        }
    }

    /// Writes a table that compares loads of this project with the same loads made by external
    /// programs.
    fn checks(&self, out: &mut String) {
        let checks = &self.summary.checks;
        if checks.is_empty() {
            return;
        }
        out.push_str(
            "<h2>Cross-checks</h2>\n<p>The same loads by other programs, on the same device: \
            medians, and the ratio of ours to theirs.</p>\n<div class=\"wide\"><table><thead><tr>",
        );
        let headings = [
            "load", "program", "unit", "ours", "theirs", "ratio", "bios", "theirs", "ratio",
            "requests", "theirs", "ratio",
        ];
        out.extend(headings.map(|heading| cell_of("th", heading)));
        out.push_str("</tr></thead><tbody>");
        for check in checks {
            let to = |ours: f64, theirs: f64| format!("{:.2}", ours / theirs);
            let (ours, theirs) = (check.values.0.median, check.values.1.median);
            let load: Vec<&str> = self
                .varying()
                .map(|axis| shown(axis, &check.choice[axis]))
                .collect();
            let mut row = vec![
                check.program.clone(),
                check.unit.clone(),
                short(ours),
                short(theirs),
                to(ours, theirs),
            ];
            for (ours, theirs) in [check.bios, check.issued] {
                row.extend([
                    show_count(ours),
                    show_count(theirs),
                    to(ours as f64, theirs as f64),
                ]);
            }
            let row: String = row.iter().map(|field| cell_of("td", field)).collect();
            let load = escaped(&load.join(" "));
            *out += &format!("<tr><td class=\"word\">{load}</td>{row}</tr>\n");
        }
        out.push_str("</tbody></table></div>\n");
    }

    fn table(&self, out: &mut String) {
        let headings = [
            "result",
            "95 %",
            "unit",
            "ratio",
            "enqueued",
            "merged",
            "dequeued",
            "read",
            "written",
            "flushes",
            "seeks",
            "time",
            "read 99 %",
            "write 99 %",
            "freezes",
            "CPU a request",
            "late",
        ];
        let axes: String = self
            .varying()
            .map(|axis| cell_of("th", &axis.replace('_', " ")))
            .collect();
        let others: String = headings
            .iter()
            .map(|heading| cell_of("th", heading))
            .collect();
        *out += &format!(
            "<h2>All cells</h2>\n<div class=\"wide\"><table><thead><tr>{axes}{others}</tr></thead>"
        );
        let mut load = "";
        for cell in &self.summary.cells {
            let own = cell.choice["workload"].as_str();
            if own != load {
                let end = if load.is_empty() { "" } else { "</tbody>" };
                *out += &format!("{end}<tbody>");
                load = own;
            }
            self.row(out, cell);
        }
        out.push_str("</tbody></table></div>\n");
        self.figures_table(out);
    }

    fn row(&self, out: &mut String, cell: &CellSummary) {
        let choices: String = self
            .varying()
            .map(|axis| format!("<td class=\"word\">{}</td>", escaped(&cell.choice[axis])))
            .collect();
        let all = |of: fn(&crate::outcome::Direction) -> u64| of(&cell.reads) + of(&cell.writes);
        let merged = all(|d| d.back_merges + d.front_merges + d.request_merges);
        let latency = |of: &dyn Fn(&Latencies) -> Option<String>| {
            let known = cell.latency.as_ref().and_then(of);
            known.unwrap_or_else(|| "-".to_owned())
        };
        let figures = [
            short(cell.value.median),
            format!(
                "{} to {}{}",
                short(cell.value.low),
                short(cell.value.high),
                if cell.is_narrow { "" } else { "~" }
            ),
            cell.unit.clone(),
            ratio(cell.ratio.as_ref()),
            show_count(all(|d| d.bios)),
            show_count(merged),
            show_count(all(|d| d.issued)),
            format!("{}B", short(cell.reads.bytes as f64)),
            format!("{}B", short(cell.writes.bytes as f64)),
            show_count(cell.flushes),
            show_count(cell.seeks),
            show_ns(cell.elapsed_ns),
            latency(&|all| (all.reads.count > 0).then(|| show_ns(all.reads.p99_ns))),
            latency(&|all| (all.writes.count > 0).then(|| show_ns(all.writes.p99_ns))),
            latency(&|all| Some(all.freezes.to_string())),
            cell.cpu_ns_per_request.map_or("-".to_owned(), show_ns),
            late(cell),
        ];
        let figures: String = figures.iter().map(|figure| cell_of("td", figure)).collect();
        *out += &format!("<tr>{choices}{figures}</tr>\n");
    }

    /// Returns the axes with more than one choice, and always the axis of the load.
    fn varying(&self) -> impl Iterator<Item = &'static str> {
        let axes = &self.summary.axes;
        let varies = move |axis: &&'static str| axes[*axis].len() > 1 || *axis == "workload";
        AXES.into_iter().filter(varies)
    }

    /// Writes a table of the metrics other than the main metric. Different loads have different
    /// metrics of this kind.
    fn figures_table(&self, out: &mut String) {
        out.push_str(
            "<details><summary>Figures of the loads</summary><div class=\"wide\"><table><tbody>",
        );
        for cell in &self.summary.cells {
            for (name, value) in &cell.figures {
                *out += &format!(
                    "<tr>{}{}{}</tr>",
                    cell_of("th", &crate::results::name_of(&cell.choice)),
                    cell_of("td", &name.replace('_', " ")),
                    cell_of("td", &short(*value))
                );
            }
        }
        out.push_str("</tbody></table></div></details>\n");
    }
}

fn drawing_of(name: &str, interval_ns: u64, of: &DirectionLatency) -> String {
    let quantiles = [("50 %", of.p50_ns), ("99 %", of.p99_ns), ("all", of.max_ns)];
    let quantiles = quantiles.map(|(share, ns)| format!("{share} {}", show_ns(ns)));
    let heat = Heat {
        label: quantiles.join(", "),
        interval_ns,
        map: &of.map,
    };
    format!(
        "<figure><figcaption>{}</figcaption>\n{}</figure>",
        escaped(name),
        heat.svg()
    )
}

/// Returns the mean delay of an emulated device relative to its model, with a `!` if the device is
/// late.
fn late(cell: &CellSummary) -> String {
    let mark = if cell.is_late() { "!" } else { "" };
    let late = cell.lateness.map(|late| show_ns(late.mean_ns));
    late.map_or("-".to_owned(), |late| format!("{late}{mark}"))
}

fn ratio(of: Option<&Ratio>) -> String {
    match of {
        None => "-".to_owned(),
        Some(ratio) => {
            let mark = if ratio.is_significant { "*" } else { "" };
            format!("{:.3}{mark}", ratio.estimate.median)
        }
    }
}

fn cell_of(tag: &str, text: &str) -> String {
    format!("<{tag}>{}</{tag}>", escaped(text))
}

/// Returns the text with which the page shows a choice.
fn shown<'t>(axis: &str, name: &'t str) -> &'t str {
    match (axis, name) {
        ("read_ahead", "0B") => "no read-ahead",
        ("write_mode", "back") => "write-back",
        ("write_mode", "through") => "write-through",
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use std::path::Path;

    const PLAN: &str = r#"
        name = "a<b>"
        repeats = 1
        scale = 0.001
        memory = "8GiB"
        baseline = { scheduler = "noop" }
        [axes]
        device = ["d"]
        scheduler = ["noop", "cfq"]
        file_system = ["ext2", "ext3"]
        workload = ["mail"]
        [device.d]
        type = "ssd"
        size = "1GiB"
        [workload.mail]
        type = "postmark"
    "#;

    fn page() -> String {
        let plan = Plan::parse(Path::new("p.toml"), PLAN).unwrap();
        let runs: Vec<_> = plan
            .cells
            .iter()
            .map(|cell| crate::cell::run(&cell.choice, &cell.settings, plan.seed).unwrap())
            .collect();
        html(&super::super::summary(&plan, &runs))
    }

    #[test]
    fn a_page_loads_nothing_and_every_element_ends() {
        let page = page();
        for word in [
            "http:", "https:", "<script", "src=", "url(", "@import", "<link",
        ] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("a&lt;b&gt;") && !page.contains("<b>"));
        for tag in [
            "html", "main", "table", "tbody", "tr", "td", "th", "figure", "svg", "g", "text", "p",
        ] {
            let begun = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            let ended = page.matches(&format!("</{tag}>")).count();
            assert!(begun > 0 && begun == ended, "{tag}: {begun} and {ended}");
        }
    }

    /// An emulated device is late if its mean delay is more than a twentieth of its median latency.
    #[test]
    fn a_late_device_is_marked() {
        let plan = Plan::parse(Path::new("p.toml"), PLAN).unwrap();
        let cell = &plan.cells[0];
        let mut run = crate::cell::run(&cell.choice, &cell.settings, plan.seed).unwrap();
        let p50_ns = {
            let latency = run.latency.as_ref().unwrap();
            let ways = [&latency.reads, &latency.writes].into_iter();
            let seen = ways.filter(|of| of.count > 0).map(|of| of.p50_ns);
            seen.min().unwrap()
        };
        let mut marked = |mean_ns| {
            run.machine = Some(crate::outcome::Machine {
                lateness: Some(crate::outcome::Lateness {
                    events: 1,
                    mean_ns,
                    max_ns: mean_ns,
                }),
                ..Default::default()
            });
            let summary = super::super::summary(&plan, std::slice::from_ref(&run));
            (
                summary.cells[0].is_late(),
                html(&summary).contains("marked !"),
            )
        };
        assert_eq!(marked(p50_ns / 20), (false, false));
        assert_eq!(marked(p50_ns / 20 + 1), (true, true));
    }

    #[test]
    fn a_program_stands_beside_the_load_that_it_makes() {
        let (head, _) = PLAN.split_once("[device.d]").unwrap();
        let head = head
            .replace("8GiB", "64GiB")
            .replace("repeats = 1", "backend = \"native\"\nrepeats = 1");
        let head = head
            .replace("\"noop\"", "\"none\"")
            .replace("\"mail\"", "\"mail\", \"other\", \"program\"");
        let device = "[device.d]\ntype = \"loop\"\nfolder = \"/tmp\"\nsize = \"1GiB\"\n";
        let mail = "[workload.mail]\ntype = \"postmark\"\nsync = \"removal\"\n";
        let others = "[workload.other]\ntype = \"postmark\"\n[workload.program]\ntype = \"tool\"\nof = \"mail\"\n";
        let text = format!("{head}{device}{mail}{others}");
        let plan = Plan::parse(Path::new("p.toml"), &text).unwrap();
        let model = Plan::parse(Path::new("p.toml"), PLAN).unwrap();
        let made = crate::cell::run(&model.cells[0].choice, &model.cells[0].settings, 1).unwrap();
        let runs: Vec<_> = plan
            .cells
            .iter()
            .map(|cell| {
                let mut run = made.clone();
                run.choice = cell.choice.clone();
                run.measured.value = match cell.choice["workload"].as_str() {
                    "mail" => 3.0,
                    "program" => 2.0,
                    _ => 7.0,
                };
                run
            })
            .collect();
        let summary = super::super::summary(&plan, &runs);
        // There are two schedulers and two file systems, so there are four checks: one for each
        // combination. Each check compares the load `program` with the load `mail` in the same
        // combination.
        assert_eq!(summary.checks.len(), 4);
        for check in &summary.checks {
            assert_eq!(
                (check.program.as_str(), check.choice["workload"].as_str()),
                ("postmark", "mail")
            );
            assert_eq!((check.values.0.median, check.values.1.median), (3.0, 2.0));
        }
        let page = html(&summary);
        assert_eq!(page.matches("<td>1.50</td>").count(), 4);
    }

    /// The page has three drawings. Each drawing has four bars, one for each pair of the two file
    /// systems and the two schedulers, and two boxes in the legend.
    #[test]
    fn there_is_a_bar_for_every_cell() {
        assert_eq!(page().matches("class=\"bar\"").count(), 3 * (4 + 2));
    }
}
