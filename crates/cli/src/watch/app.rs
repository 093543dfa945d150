//! The state of the screen: what the server has answered, which page is open, and what the keys do.
//! It does no input or output, so that tests can drive it.

use std::rc::Rc;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use serde_json::Value;

use super::detail;
use super::draw::{self, Column};
use super::history::History;
use super::keys::Key;
use super::look::{self, Look};
use super::overview::{self, View};
use super::rows::{self, Order};
use crate::figures::Figures;
use crate::health::show_seconds;
use crate::terminal::Tone;
use crate::{health, statistics};

/// Columns of the list of volumes.
const COLUMNS: [Column; 7] = [
    Column::left("volume", 16),
    Column::left("", 14),
    Column::right("size", 9),
    Column::right("writes/s", 8),
    Column::right("99 %", 6),
    Column::right("reads/s", 8),
    Column::right("99 %", 6),
];

/// A page of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Page {
    /// The list of volumes; it is passed over when there is one volume.
    Volumes,
    /// A volume.
    Volume(String),
    /// An export or device of a volume: its kind and name.
    Thing(String, &'static str, String),
}

/// What the program does after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Quit,
}

/// State of the screen; see the module.
pub(super) struct App {
    look: Look,
    is_verbose: bool,
    is_paused: bool,
    is_help_open: bool,
    order: Order,
    page: Page,
    selected: usize,
    scroll: u16,
    /// The last answer.
    status: Option<Rc<Value>>,
    /// Time of the last answer, in seconds since 1970.
    answered_s: u64,
    /// Why the server does not answer, and for how many seconds it has not.
    missing: Option<(String, u64)>,
    history: History,
}

impl App {
    /// Creates the state before the first answer.
    pub(super) fn new(look: Look, is_verbose: bool) -> App {
        App {
            look,
            is_verbose,
            is_paused: false,
            is_help_open: false,
            order: Order::default(),
            page: Page::Volumes,
            selected: 0,
            scroll: 0,
            status: None,
            answered_s: 0,
            missing: None,
            history: History::default(),
        }
    }

    /// Takes what came at the time `now_s`, in seconds since 1970: an answer of the server, or the
    /// reason why there is none.
    pub(super) fn answer(&mut self, answer: Result<Value, String>, now_s: u64) {
        if self.is_paused {
            return;
        }
        match answer {
            Ok(status) => {
                self.history.add(&status);
                let names = self.names();
                self.status = Some(Rc::new(status));
                self.follow(names.get(self.selected));
                self.answered_s = now_s;
                self.missing = None;
                self.keep_in_bounds();
            }
            Err(why) => {
                self.missing = Some((why, now_s.saturating_sub(self.answered_s)));
            }
        }
    }

    /// Does what a key asks for.
    pub(super) fn key(&mut self, key: Key) -> Next {
        if self.is_help_open {
            self.is_help_open = false;
            return if key == Key::Char('q') {
                Next::Quit
            } else {
                Next::Continue
            };
        }
        match key {
            Key::Char('q') => return Next::Quit,
            Key::Char('?' | 'h') => self.is_help_open = true,
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('s') => {
                let names = self.names();
                self.order = self.order.next();
                self.follow(names.get(self.selected));
            }
            Key::Char('v') => self.is_verbose = !self.is_verbose,
            Key::Up | Key::Char('k') => {
                self.selected = self.selected.saturating_sub(1);
                self.scroll = self.scroll.saturating_sub(1);
            }
            Key::Down | Key::Char('j') => {
                self.selected += 1;
                self.scroll = self.scroll.saturating_add(1);
            }
            Key::Enter | Key::Right => self.open(),
            Key::Escape | Key::Left => self.back(),
            Key::Char(_) => {}
        }
        self.keep_in_bounds();
        Next::Continue
    }

    /// Returns the volumes of the last answer, the worst first.
    fn volumes(&self) -> Vec<String> {
        let status = self.status.as_ref();
        let volumes = status.map_or_else(Vec::new, |status| health::worst_first(status));
        volumes.into_iter().map(str::to_owned).collect()
    }

    /// Returns the names that can be selected on the page, each with its kind.
    fn names(&self) -> Vec<(&'static str, String)> {
        let Some(status) = &self.status else {
            return Vec::new();
        };
        match self.page() {
            Page::Volumes => {
                let volumes = self.volumes();
                volumes.into_iter().map(|name| ("volume", name)).collect()
            }
            Page::Volume(volume) | Page::Thing(volume, _, _) => {
                let rows = rows::rows(status, &volume, self.order, self.look);
                let name = |row: &rows::Row| (row.kind, row.name.to_owned());
                rows.iter().map(name).collect()
            }
        }
    }

    /// Keeps the same thing selected, if it is still there, when it may have another place.
    fn follow(&mut self, name: Option<&(&'static str, String)>) {
        let names = self.names();
        let at = names.iter().position(|other| Some(other) == name);
        self.selected = at.unwrap_or(self.selected);
    }

    /// Returns the page that is drawn.
    fn page(&self) -> Page {
        let mut volumes = self.volumes();
        match &self.page {
            Page::Volumes if volumes.len() == 1 => Page::Volume(volumes.remove(0)),
            page => page.clone(),
        }
    }

    fn open(&mut self) {
        let Some(status) = &self.status else { return };
        let next = match self.page() {
            Page::Volumes => {
                let mut volumes = self.volumes();
                (self.selected < volumes.len()).then(|| {
                    let volume = volumes.swap_remove(self.selected);
                    Page::Volume(volume)
                })
            }
            Page::Volume(volume) => {
                let rows = rows::rows(status, &volume, self.order, self.look);
                let row = rows.get(self.selected);
                row.map(|row| Page::Thing(volume.clone(), row.kind, row.name.to_owned()))
            }
            Page::Thing(..) => None,
        };
        if let Some(next) = next {
            if let Page::Volume(_) = next {
                self.selected = 0;
            }
            self.page = next;
            self.scroll = 0;
        }
    }

    fn back(&mut self) {
        match &self.page {
            Page::Thing(volume, _, _) => self.page = Page::Volume(volume.clone()),
            Page::Volume(_) if self.volumes().len() > 1 => {
                self.page = Page::Volumes;
                self.selected = 0;
            }
            Page::Volume(_) | Page::Volumes => {}
        }
    }

    fn keep_in_bounds(&mut self) {
        let Some(status) = &self.status else { return };
        let exists = |name: &str| status["devices"][name].is_object();
        match &self.page {
            Page::Volume(volume) | Page::Thing(volume, _, _) if !exists(volume) => {
                self.page = Page::Volumes;
            }
            _ => {}
        }
        let count = self.names().len();
        self.selected = self.selected.min(count.saturating_sub(1));
    }

    /// Draws the screen.
    pub(super) fn draw(&mut self, buffer: &mut Buffer, area: Rect) {
        let body = Rect {
            height: area.height.saturating_sub(1),
            ..area
        };
        if self.is_help_open {
            draw::lines(buffer, body, &self.help());
        } else if let Some(status) = self.status.clone() {
            self.draw_page(buffer, body, &status);
        } else {
            let text = match &self.missing {
                Some(_) => self.missing_words(),
                None => "asking the server".to_owned(),
            };
            let style = self.look.banner(Tone::Bad);
            let lines = match &self.missing {
                Some(_) => draw::heading(("no answer", style), &text, width(area), 4),
                None => vec![Line::from(text)],
            };
            draw::lines(buffer, body, &lines);
        }
        draw::last_line(buffer, area, &self.footer(width(area)));
    }

    fn draw_page(&mut self, buffer: &mut Buffer, area: Rect, status: &Value) {
        let gone = self.missing.as_ref().map(|_| self.missing_words());
        match self.page() {
            Page::Volumes => {
                let lines = self.list(status, gone.as_deref(), area);
                draw::lines(buffer, area, &lines);
            }
            Page::Volume(volume) => {
                let view = View {
                    volume: &volume,
                    selected: self.selected,
                    order: self.order,
                    is_verbose: self.is_verbose,
                    look: self.look,
                    gone: gone.as_deref(),
                    history: &self.history,
                };
                overview::draw(buffer, area, status, &view);
            }
            Page::Thing(volume, kind, name) => {
                let mut lines = match &gone {
                    Some(gone) => self.no_answer(gone, area),
                    None => Vec::new(),
                };
                let rows = rows::rows(status, &volume, self.order, self.look);
                match rows
                    .iter()
                    .find(|row| (row.kind, row.name) == (kind, name.as_str()))
                {
                    Some(row) => {
                        let how = (self.look, self.is_verbose, width(area));
                        lines.extend(detail::lines(status, &volume, row, how, &self.history));
                    }
                    None => lines.push(Line::from(format!("{name} is no longer there"))),
                }
                let beyond = lines.len().saturating_sub(usize::from(area.height));
                self.scroll = self.scroll.min(u16::try_from(beyond).unwrap_or(u16::MAX));
                draw::lines(buffer, area, &lines[usize::from(self.scroll)..]);
            }
        }
    }

    fn no_answer(&self, gone: &str, area: Rect) -> Vec<Line<'static>> {
        let style = self.look.banner(Tone::Bad);
        draw::heading(("no answer", style), gone, width(area), 2)
    }

    /// Returns the list of volumes, the worst first.
    fn list(&self, status: &Value, gone: Option<&str>, area: Rect) -> Vec<Line<'static>> {
        let volumes = health::worst_first(status);
        let mut lines = match gone {
            Some(gone) => self.no_answer(gone, area),
            None if volumes.is_empty() => vec![Line::from("the server has no open device")],
            None => Vec::new(),
        };
        let columns = draw::fitting(&COLUMNS, width(area));
        lines.push(draw::headings(columns, self.look.style(Tone::Dim)));
        let head = lines.len();
        let mut selected_at = 0;
        for (at, volume) in volumes.into_iter().enumerate() {
            let device = Figures::of(&status["devices"][volume]);
            let writes = device.latency("write").window("last_10_s");
            let reads = device.latency("read").window("last_10_s");
            let findings = health::shown(status, volume);
            let worst = findings.first();
            let plain = Style::new();
            let word = worst.map_or("", |worst| worst.word);
            let tone = worst.map_or(Tone::Dim, |worst| worst.tone());
            let cells = [
                (volume.to_owned(), self.look.style(Tone::Strong)),
                (word.to_owned(), self.look.style(tone)),
                (bimetal_block::units::show_size(device.size_bytes()), plain),
                (look::rate(writes.requests_per_s()), plain),
                (look::latency(writes.p99_ns), plain),
                (look::rate(reads.requests_per_s()), plain),
                (look::latency(reads.p99_ns), plain),
            ];
            let mut line = draw::row(columns, &cells);
            if at == self.selected {
                draw::select(&mut line, area.width);
                selected_at = lines.len();
            }
            lines.push(line);
            if let Some(worst) = worst.filter(|worst| worst.word != "healthy") {
                let room = width(area).saturating_sub(2);
                let wrapped = draw::wrap(worst.reason, room, 0);
                lines.extend(
                    wrapped
                        .into_iter()
                        .map(|text| Line::from(format!("  {text}"))),
                );
            }
        }
        // The selected volume is always in sight.
        let skip = (selected_at + 3).saturating_sub(usize::from(area.height));
        lines.drain(head..(head + skip).min(lines.len()));
        lines
    }

    fn missing_words(&self) -> String {
        let Some((why, age_s)) = &self.missing else {
            return String::new();
        };
        let again = "it is asked again every second";
        match self.status {
            Some(_) => {
                let age = show_seconds(*age_s as f64);
                format!("{why}; {again}. Below is its last answer, {age} old")
            }
            None => format!("{why}; {again}"),
        }
    }

    fn footer(&self, width: usize) -> Line<'static> {
        let mut line = Line::default();
        let strong = self.look.style(Tone::Strong);
        if self.is_paused {
            line.push_span(Span::styled(" paused ", self.look.banner(Tone::Warn)));
            line.push_span(Span::raw(" "));
        }
        let keys: &[(&str, &str)] = match self.page() {
            Page::Thing(..) => &[("Esc", "back"), ("up/down", "scroll")],
            _ => &[("Enter", "open"), ("s", self.order.words())],
        };
        let others = [
            ("p", "pause"),
            ("v", "counters"),
            ("?", "help"),
            ("q", "quit"),
        ];
        for (key, what) in keys.iter().chain(&others) {
            line.push_span(Span::styled((*key).to_owned(), strong));
            line.push_span(Span::raw(format!(" {what}  ")));
        }
        let about = self.about();
        let gap = width.saturating_sub(line.width() + about.chars().count());
        if gap > 0 {
            line.push_span(Span::raw(" ".repeat(gap)));
            line.push_span(Span::styled(about, self.look.style(Tone::Dim)));
        }
        line
    }

    /// Returns for how long the server has been up.
    fn about(&self) -> String {
        let status = self.status.as_ref();
        let uptime_s = status.and_then(|status| status["uptime_s"].as_f64());
        uptime_s.map_or_else(String::new, |seconds| {
            format!("up {}", statistics::show_uptime(seconds))
        })
    }

    fn help(&self) -> Vec<Line<'static>> {
        let strong = self.look.style(Tone::Strong);
        let mut lines = Vec::new();
        for (key, what) in [
            ("up, down", "select a volume, an export or a device"),
            (
                "Enter",
                "open it: latencies in all windows, and its figures",
            ),
            ("Esc", "back"),
            ("p, space", "pause, and go on"),
            (
                "s",
                "order of the sides: as configured, slowest first, busiest first",
            ),
            ("v", "counters of how the program works"),
            ("q, Ctrl-C", "quit"),
        ] {
            lines.push(Line::from(vec![
                Span::styled(format!("{key:<12}"), strong),
                Span::raw(what),
            ]));
        }
        lines.push(Line::default());
        let words = "Rates and latencies are those of the last 10 seconds. The curve under a side \
                     shows its slowest write of each second of the last minute, from 100 us to 2 s \
                     on a logarithmic scale. The lag is the age of the oldest write that a side \
                     lacks. What is on one side only would be lost with that side.";
        lines.extend(draw::wrap(words, 76, 0).into_iter().map(Line::from));
        lines
    }
}

fn width(area: Rect) -> usize {
    usize::from(area.width)
}
