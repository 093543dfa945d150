//! The progress bar of verbs that execute many runs.

use indicatif::{ProgressBar, ProgressStyle};

/// Creates a progress bar for `length` runs.
pub fn progress_bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed}  eta {eta}  {msg}");
    bar.set_style(style.expect("the template is well formed"));
    bar
}
