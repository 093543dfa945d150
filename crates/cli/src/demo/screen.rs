//! Output of the demo: a live table for terminals, a plain table for pipes, and the summary.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::Statistic;
use bimetal_block::units::show_size;
use serde_json::{Value, json};

use super::Args;
use super::host::Host;
use super::targets::{STEPS_MAX, Target};
use crate::terminal::{Terminal, Tone};
use bimetal_block::units::show_count;
use bimetal_console::latency::show_latency;
use bimetal_console::table::{Align, Table};

/// A device is shown as frozen when its oldest request in flight has at least this age.
const FROZEN_NS: u64 = 200_000_000;
/// A latency of at least the first value is shown in the colour for a warning. A latency of at
/// least the second value is shown in the colour for a bad value.
const SLOW_NS: [u64; 2] = [100_000_000, 500_000_000];
/// Range of latencies that the curves show.
const CURVE_NS: (u64, u64) = (1_000_000, 2_000_000_000);
/// Number of columns of the live table, not counting the latency curve.
const WIDTH_WITHOUT_CURVE: usize = 76;
/// Width below which a curve is under its row.
const CURVE_WIDTH_MIN: usize = 8;
/// Column at which such a curve begins.
const CURVE_INDENT: usize = 11;

/// Output of the demo and its format.
pub(super) struct Screen {
    terminal: Terminal,
    configuration: PathBuf,
    seconds: u64,
    writes_per_s: u64,
    json: bool,
}

impl Screen {
    /// Creates the screen of a demo with these arguments.
    pub(super) fn new(terminal: Terminal, configuration: &Path, args: &Args) -> Screen {
        Screen {
            terminal,
            configuration: configuration.to_owned(),
            seconds: args.seconds,
            writes_per_s: args.rate,
            json: args.json,
        }
    }

    /// Returns true if the table is redrawn in place.
    pub(super) fn is_live(&self) -> bool {
        self.terminal.live && !self.json
    }

    /// Returns true if the progress of the demo is shown, and not only the result.
    pub(super) fn says_more(&self) -> bool {
        !self.json
    }

    /// Returns the live table for a terminal.
    pub(super) fn live(
        &self,
        targets: &[Rc<Target>],
        host: &Host,
        elapsed: Duration,
    ) -> Vec<String> {
        let dim = |text: &str| self.terminal.paint(Tone::Dim, text);
        let mut lines = vec![
            format!(
                "{}  {} of {} s",
                self.terminal.paint(Tone::Strong, "bimetal demo"),
                elapsed.as_secs().min(self.seconds),
                self.seconds,
            ),
            dim(&self.load()),
            // The line has its place also when there is nothing to say, so that nothing moves.
            host.line()
                .map_or(String::new(), |line| self.terminal.paint(Tone::Warn, &line)),
        ];
        let width = self.terminal.width();
        let room = width.saturating_sub(WIDTH_WITHOUT_CURVE);
        let table = self.table(targets, room.min(STEPS_MAX)).lines();
        let has_curves = room >= CURVE_WIDTH_MIN;
        for (at, line) in table.into_iter().enumerate() {
            lines.push(line);
            // A narrow terminal has the curve of a target under its row.
            if let Some(target) = at.checked_sub(1).map(|at| &targets[at])
                && !has_curves
            {
                let curve = self.curve(target, width.saturating_sub(CURVE_INDENT).min(STEPS_MAX));
                lines.push(format!("{}{curve}", " ".repeat(CURVE_INDENT)));
            }
        }
        lines.push(String::new());
        lines.extend(targets.iter().flat_map(|target| self.sides(target)));
        lines.push(String::new());
        lines.push(dim(
            "Meanwhile, in another terminal (Ctrl-C ends the demo):",
        ));
        let fits = |hint: &String| hint.len() + 2 <= width;
        for hint in self.hints() {
            match hint.split_once(' ').filter(|_| !fits(&hint)) {
                Some((program, rest)) => {
                    lines.extend([format!("  {program} \\"), format!("    {rest}")]);
                }
                None => lines.push(format!("  {hint}")),
            }
        }
        lines
    }

    /// Returns the table for a pipe.
    pub(super) fn plain(
        &self,
        targets: &[Rc<Target>],
        host: &Host,
        elapsed: Duration,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        // The description of the load is printed only with the first table, which appears after
        // five seconds.
        if elapsed < Duration::from_secs(9) {
            lines.push(self.load());
            lines.push("Meanwhile, in another terminal:".to_owned());
            lines.extend(self.hints().into_iter().map(|hint| format!("  {hint}")));
            lines.push(String::new());
        }
        lines.push(format!(
            "after {} s of {} s",
            elapsed.as_secs(),
            self.seconds
        ));
        lines.extend(self.table(targets, 0).lines());
        lines.extend(host.line());
        lines.extend(targets.iter().flat_map(|target| self.sides(target)));
        lines
    }

    /// Returns the summary at the end of the demo.
    pub(super) fn summary(
        &self,
        targets: &[Rc<Target>],
        host: &Host,
        compared_bytes: u64,
    ) -> Vec<String> {
        // The columns fit in a terminal with 80 columns.
        let headings = [
            "", "writes", "p50", "p99", "p99.9", "max", "reads", "p50", "p99",
        ];
        let mut table = Table::new(&headings.map(|heading| {
            let align = if heading.is_empty() {
                Align::Left
            } else {
                Align::Right
            };
            (heading, align)
        }));
        for target in targets {
            let counts = target.counts();
            let (w, r) = (counts.writes.percentiles(), counts.reads.percentiles());
            table.row(vec![
                target.title.clone(),
                show_count(counts.writes.count()),
                show_latency(w.p50_ns),
                show_latency(w.p99_ns),
                self.latency(w.p999_ns),
                self.latency(w.max_ns),
                show_count(counts.reads.count()),
                show_latency(r.p50_ns),
                show_latency(r.p99_ns),
            ]);
        }
        let mut lines = vec![String::new(), self.load(), String::new()];
        lines.extend(table.lines());
        lines.push(String::new());
        lines.push(sentence(targets));
        lines.push(format!(
            "Both sides of the mirror hold the same {}, compared byte by byte.",
            show_size(compared_bytes)
        ));
        lines.extend(failures(targets));
        let late = host.summary();
        lines.extend(late.map(|line| self.terminal.paint(Tone::Warn, &line)));
        lines
    }

    /// Returns the summary as JSON.
    pub(super) fn to_json(
        &self,
        targets: &[Rc<Target>],
        host: &Host,
        compared_bytes: u64,
    ) -> Value {
        let shown = |target: &Rc<Target>| {
            let counts = target.counts();
            json!({
                "name": target.title,
                "write": counts.writes.to_json(),
                "read": counts.reads.to_json(),
                "errors": counts.errors,
                "rejected": counts.rejected,
                "slowest_of_second_ns": counts.steps,
            })
        };
        let mirror = targets.last().map(|target| {
            let statistics = target.statistics();
            number(&statistics, "", "exposed_bytes_peak")
        });
        json!({
            "version": 1,
            "seconds": self.seconds,
            "writes_per_s": self.writes_per_s,
            "targets": targets.iter().map(shown).collect::<Vec<_>>(),
            "exposed_bytes_peak": mirror,
            "host": host.to_json(),
            "compared_bytes": compared_bytes,
            "sides_equal": true,
        })
    }

    fn load(&self) -> String {
        format!(
            "{} writes/s of 10..500 KB and some reads, the same for each stack",
            self.writes_per_s
        )
    }

    fn hints(&self) -> [String; 2] {
        // The commands use the name with which this program was called, because the directory of
        // the program is not always in the `PATH`.
        let program = std::env::args().next();
        let program = program.as_deref().unwrap_or("bimetal");
        let directory = self.configuration.parent().unwrap_or(Path::new("."));
        [
            format!("{program} status --watch {}", self.configuration.display()),
            format!(
                "nbdinfo 'nbd+unix:///vol?socket={}'",
                directory.join("vol.sock").display()
            ),
        ]
    }

    fn table(&self, targets: &[Rc<Target>], curve_columns: usize) -> Table {
        let with_curve = curve_columns >= CURVE_WIDTH_MIN;
        let mut headings = vec![("", Align::Left)];
        headings.extend(["writes", "p50", "p99", "p99.9", "max"].map(|h| (h, Align::Right)));
        headings.push(("now", Align::Left));
        if with_curve {
            headings.push(("slowest of each second", Align::Left));
        }
        let mut table = Table::new(&headings);
        for target in targets {
            let counts = target.counts();
            let p = counts.writes.percentiles();
            let mut row = vec![
                self.terminal.paint(Tone::Strong, &target.title),
                show_count(counts.writes.count()),
                self.latency(p.p50_ns),
                self.latency(p.p99_ns),
                self.latency(p.p999_ns),
                self.latency(p.max_ns),
                self.now(target),
            ];
            if with_curve {
                row.push(self.curve(target, curve_columns));
            }
            table.row(row);
        }
        table
    }

    /// Returns the curve of a target, of at most `columns` steps.
    fn curve(&self, target: &Target, columns: usize) -> String {
        let counts = target.counts();
        let skip = counts.steps.len().saturating_sub(columns);
        let steps: Vec<_> = counts.steps.iter().skip(skip).copied().collect();
        self.terminal.curve(&steps, CURVE_NS.0, CURVE_NS.1)
    }

    /// Formats a latency, in a colour that depends on [`SLOW_NS`].
    fn latency(&self, ns: u64) -> String {
        let shown = show_latency(ns);
        match ns {
            _ if ns >= SLOW_NS[1] => self.terminal.paint(Tone::Bad, &shown),
            _ if ns >= SLOW_NS[0] => self.terminal.paint(Tone::Warn, &shown),
            _ => shown,
        }
    }

    /// Formats the current state of a target in a fixed width, so that the columns of the table do
    /// not move.
    fn now(&self, target: &Target) -> String {
        const WIDTH: usize = 13;
        match target.oldest_ns() {
            frozen if frozen >= FROZEN_NS => {
                let shown = format!("{:WIDTH$}", format!("FROZEN {}", show_latency(frozen)));
                self.terminal.paint(Tone::Bad, &shown)
            }
            _ => self
                .terminal
                .paint(Tone::Good, &format!("{:WIDTH$}", "answers")),
        }
    }

    /// Formats the exposure of a mirror and the state of its sides. Returns no lines for other
    /// devices.
    fn sides(&self, target: &Target) -> Vec<String> {
        let statistics = target.statistics();
        let mut names: Vec<&str> = Vec::new();
        for (part, name, _) in &statistics {
            if name == "mode" && !part.is_empty() {
                names.push(part);
            }
        }
        if names.is_empty() {
            return Vec::new();
        }
        let figure = |name: &str| number(&statistics, "", name);
        let size = |name: &str| show_size(figure(name) as u64);
        let mut lines = vec![format!(
            "{}: {} on one side only, at most {}; peak {}",
            target.title,
            size("exposed_bytes"),
            size("exposed_bytes_max"),
            size("exposed_bytes_peak"),
        )];
        for name in names {
            let lag_s = number(&statistics, name, "lag_seconds");
            let frozen =
                number(&statistics, name, "stuck") > 0.0 && lag_s * 1e9 >= FROZEN_NS as f64;
            let mode = word(&statistics, name, "mode");
            let state = if frozen { "FROZEN" } else { mode };
            let tone = match (frozen, mode) {
                (true, _) => Tone::Bad,
                (false, "in time") => Tone::Good,
                (false, _) => Tone::Warn,
            };
            let mut line = format!(
                "  side {name}  {}",
                self.terminal.paint(tone, &format!("{state:<8}")),
            );
            let waiting = number(&statistics, name, "waiting_bytes") as u64;
            if waiting > 0 {
                line += &format!("  {} wait for it", show_size(waiting));
            }
            if lag_s > 0.0 {
                line += &format!("  behind by {}", show_latency((lag_s * 1e9) as u64));
            }
            lines.push(line);
        }
        lines
    }
}

/// Returns a sentence that compares the results of the targets.
fn sentence(targets: &[Rc<Target>]) -> String {
    let p999 = |at: usize| targets[at].counts().writes.percentiles().p999_ns;
    let (ssd, hdd, mirror) = (p999(0), p999(1), p999(2));
    format!(
        "p99.9 of the volume's writes was {}; of the SSD alone {}, of the disk alone {}.",
        show_latency(mirror),
        show_latency(ssd),
        show_latency(hdd),
    )
}

fn failures(targets: &[Rc<Target>]) -> Vec<String> {
    let mut lines = Vec::new();
    for target in targets {
        let counts = target.counts();
        if let Some(error) = counts.first_error {
            lines.push(format!(
                "{}: {} requests failed, first: {error}",
                target.title, counts.errors
            ));
        }
        if counts.rejected > 0 {
            lines.push(format!(
                "{}: {} requests were not sent, because too many were waiting: the load is above \
                its capacity",
                target.title, counts.rejected
            ));
        }
    }
    lines
}

fn find<'a>(
    statistics: &'a [(String, String, Statistic)],
    part: &str,
    name: &str,
) -> Option<&'a Statistic> {
    let mut found = statistics.iter().filter(|(p, n, _)| p == part && n == name);
    found.next().map(|(_, _, statistic)| statistic)
}

fn number(statistics: &[(String, String, Statistic)], part: &str, name: &str) -> f64 {
    match find(statistics, part, name) {
        Some(Statistic::Counter(count)) => *count as f64,
        Some(Statistic::Gauge(value)) => *value,
        Some(Statistic::State(_) | Statistic::Latency(_)) | None => 0.0,
    }
}

fn word<'a>(statistics: &'a [(String, String, Statistic)], part: &str, name: &str) -> &'a str {
    match find(statistics, part, name) {
        Some(Statistic::State(word)) => word,
        _ => "",
    }
}
