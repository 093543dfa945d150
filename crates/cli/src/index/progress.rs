//! Progress of verbs that can take long. The progress is shown only on a terminal, and only after a
//! delay: most verbs end quickly, and a bar that appears only for a moment is of no use. This
//! module must never write to standard output, which is for results.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time after which the progress becomes visible.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which the elapsed time and the spinner are redrawn.
const REDRAW: Duration = Duration::from_millis(100);

/// Unit in which progress is counted. It determines the text and the bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes, with their total if it is known.
    Bytes(Option<u64>),
    /// Nodes. Their total number becomes known with the first update.
    Nodes,
    /// Parts of the current step. The message names the step and the kind of the parts. The total
    /// number of parts becomes known with the first update.
    Parts,
    /// No unit; only the message changes.
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

/// A progress bar on standard error, which is cleared when the value is dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Sender for the thread in `shows`. Dropping it wakes the thread and makes it end.
    end: Option<Sender<()>>,
    /// Thread that shows the progress bar after the delay. A thread of its own is needed because
    /// the verb's thread can be busy in one long call.
    shows: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts a progress bar at zero.
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

    /// Returns the bar, through which the verb reports its progress.
    pub(crate) fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    /// Returns the number of seconds since the start, which is always greater than 0.
    pub(crate) fn seconds(&self) -> f64 {
        self.bar.elapsed().as_secs_f64().max(1e-9)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(shows) = self.shows.take() {
            // The thread only draws, so a panic of it is ignored.
            let _ = shows.join();
        }
        self.bar.finish_and_clear();
    }
}
