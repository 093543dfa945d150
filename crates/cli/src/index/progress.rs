//! Progress of verbs that may take long, on a terminal only, and only once they do: most end in a
//! moment, and what flickers past is of no use. It must never write where results go.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Nothing is shown of what ends within this.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the time and the turning sign are drawn.
const REDRAW: Duration = Duration::from_millis(100);

/// What is counted, for the words and the bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes, of so many if that is known.
    Bytes(Option<u64>),
    /// Nodes; how many there are comes with the first count.
    Nodes,
    /// Of something that the message names; how many there are comes with the first count.
    Parts,
    /// Nothing; only the message changes.
    Nothing,
}

impl Unit {
    fn template(self) -> &'static str {
        match self {
            Unit::Bytes(Some(_)) => {
                "{bar:30} {binary_bytes} of {binary_total_bytes}  {elapsed}  eta {eta}  {msg}"
            }
            Unit::Bytes(None) => "{spinner} {binary_bytes}  {elapsed}  {msg}",
            Unit::Nodes => "{bar:30} {human_pos} of {human_len} nodes  {elapsed}  eta {eta}  {msg}",
            Unit::Parts => "{bar:30} {human_pos} of {human_len}  {elapsed}  eta {eta}  {msg}",
            Unit::Nothing => "{spinner} {elapsed}  {msg}",
        }
    }
}

/// A bar on standard error that is gone at the end.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Its end wakes the thread below.
    end: Option<Sender<()>>,
    /// Shows the bar when it is time, for a verb may be busy in one long call.
    shows: Option<JoinHandle<()>>,
}

impl Progress {
    /// A bar with nothing done.
    pub(crate) fn start(unit: Unit, message: &'static str) -> Progress {
        let length = match unit {
            Unit::Bytes(total) => total,
            Unit::Nodes | Unit::Parts => Some(0),
            Unit::Nothing => None,
        };
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(unit.template());
        bar.set_style(style.expect("the template is well formed"));
        bar.set_message(message);
        let mut progress = Progress {
            bar,
            end: None,
            shows: None,
        };
        if std::io::stderr().is_terminal() {
            progress.show_in_time();
        }
        progress
    }

    fn show_in_time(&mut self) {
        let (end, ended) = channel();
        let bar = self.bar.clone();
        self.end = Some(end);
        self.shows = Some(std::thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(REDRAW);
            }
        }));
    }

    /// The bar, to count with.
    pub(crate) fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    /// Seconds since the start, never 0.
    pub(crate) fn seconds(&self) -> f64 {
        self.bar.elapsed().as_secs_f64().max(1e-9)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(shows) = self.shows.take() {
            // A thread that only draws: what became of it changes nothing.
            let _ = shows.join();
        }
        self.bar.finish_and_clear();
    }
}
