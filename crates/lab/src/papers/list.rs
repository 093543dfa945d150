//! The items of a report as a table in Markdown, for pages of the documentation.

use super::report::{ItemReport, Report};
use super::verdict::Verdict;

/// Returns a table of the items on which there is a verdict, or whose runs are missing here, with
/// the reason of each.
pub fn markdown(report: &Report) -> String {
    let mut out = "| item | title | verdict | why |\n|---|---|---|---|\n".to_owned();
    let shown = |item: &&ItemReport| item.verdict != Verdict::NoValue;
    for item in report.items.iter().filter(shown) {
        let cells = [&item.id, &item.title, item.verdict.words(), &item.why];
        let cells = cells.map(|text: &str| text.replace('|', "\\|"));
        out += &format!("| {} |\n", cells.join(" | "));
    }
    out
}
