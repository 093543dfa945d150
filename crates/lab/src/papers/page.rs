//! The report as one HTML page: an overview of the verdicts, and each item with the paper's values
//! beside ours, in words, numbers and drawings.
//!
//! The page must load nothing: no script, no font and no picture. The same runs must give the same
//! bytes.

use std::fmt::Write;

use super::item::{Drawing, Kind};
use super::report::{ClaimReport, Compared, ItemReport, Report};
use super::verdict::{FACTOR, Verdict};
use super::{PAPERS, Paper};
use crate::plot::bars::{Bar, Bars};
use crate::plot::rows::Rows;
use crate::plot::spikes::Spikes;
use crate::plot::{Plot, STYLE, Series, escaped, round_marks};

/// Style of the elements that only this page has.
const OWN_STYLE: &str = include_str!("page.css");
/// Number of points up to which a line has markers.
const POINTS_MAX: usize = 24;

/// Returns the report as an HTML page.
pub fn html(report: &Report) -> String {
    let mut out = head(report);
    overview(&mut out, report);
    for paper in PAPERS {
        let items: Vec<&ItemReport> = of_paper(report, &paper).collect();
        if items.is_empty() {
            continue;
        }
        put(
            &mut out,
            format_args!(
                "<h2 id=\"source-{0}\">Source {0}: {1}</h2>\n<p>{2}</p>\n",
                paper.number,
                escaped(paper.title),
                escaped(paper.authors)
            ),
        );
        for of in items {
            item(&mut out, of);
        }
    }
    out.push_str("</main></body></html>\n");
    out
}

fn of_paper<'r>(report: &'r Report, paper: &Paper) -> impl Iterator<Item = &'r ItemReport> {
    let number = paper.number;
    report
        .items
        .iter()
        .filter(move |item| item.source == number)
}

fn head(report: &Report) -> String {
    let plan = &report.plan;
    let made = report.made.iter().map(|made| {
        let commit = match &made.commit {
            Some(commit) => format!(" at {commit}"),
            None => String::new(),
        };
        format!("bimetal {}{commit} on {}", made.version, made.host)
    });
    let made: Vec<String> = made.collect();
    let warning = match plan.scale.as_str() {
        "small" => {
            "<p><strong>The runs are shortened, to show that everything works. Their verdicts say \
             little about the papers.</strong></p>\n"
        }
        _ => "",
    };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>Five papers, run again</title>\n\
         <style>\n{STYLE}{OWN_STYLE}</style></head><body><main>\n<h1>Five papers, run again</h1>\n\
         <p>Each table, figure and printed claim of the five papers behind bimetal, beside what the \
         code of bimetal gives: {} runs in virtual time, {} seeds from {} on, at the scale {}, plan \
         {}. The runs were made by {}; neither the build nor the machine affects a value of a run \
         of the same code.</p>\n{warning}\
         <p><strong>The rule.</strong> An item is <em>reproduced</em> if each value that the paper \
         prints is within a factor of {FACTOR} of ours. It has its <em>sign only</em> if an effect \
         has the same direction and its interval excludes no effect; an effect that is printed \
         without a number can have no better verdict. Otherwise it is <em>not reproduced</em>. An \
         effect is compared as an effect: +30 % is not within {FACTOR} of +20 %. An item has the \
         worst verdict of its values. Intervals of 95 % are those of Student over the seeds. Where \
         a paper leaves something open, the reading that decides was chosen by what the paper says \
         (docs/papers.md has the reasons), and the others stand beside it.</p>\n",
        report.runs,
        plan.seeds,
        plan.seed,
        escaped(&plan.scale),
        escaped(plan.id.get(..12).unwrap_or(&plan.id)),
        escaped(&made.join("; ")),
    )
}

fn overview(out: &mut String, report: &Report) {
    out.push_str("<div class=\"wide\"><table class=\"counts\"><thead><tr><th>source</th>");
    for verdict in Verdict::ALL {
        put(out, format_args!("<th>{}</th>", verdict.words()));
    }
    out.push_str("<th>items</th></tr></thead><tbody>");
    for paper in PAPERS {
        let count = |verdict: Verdict| {
            let of = of_paper(report, &paper);
            of.filter(|item| item.verdict == verdict).count()
        };
        let all = of_paper(report, &paper).count();
        if all == 0 {
            continue;
        }
        put(
            out,
            format_args!("<tr><th><a href=\"#source-{0}\">{0}</a></th>", paper.number),
        );
        for verdict in Verdict::ALL {
            put(
                out,
                format_args!("<td>{}</td>", shown_count(count(verdict))),
            );
        }
        put(out, format_args!("<td>{all}</td></tr>"));
    }
    out.push_str("<tr class=\"sum\"><th>all</th>");
    for verdict in Verdict::ALL {
        let count = report.counts.get(&verdict).copied().unwrap_or(0);
        put(out, format_args!("<td>{}</td>", shown_count(count)));
    }
    put(
        out,
        format_args!(
            "<td>{}</td></tr></tbody></table></div>\n",
            report.items.len()
        ),
    );
    out.push_str("<ul class=\"items\">");
    for item in &report.items {
        put(
            out,
            format_args!(
                "<li><a href=\"#item-{0}\"><b>{0}</b> {1}</a> {2}</li>",
                item.id,
                escaped(&item.title),
                badge(item.verdict)
            ),
        );
    }
    out.push_str("</ul>\n");
}

fn shown_count(count: usize) -> String {
    match count {
        0 => "-".to_owned(),
        some => some.to_string(),
    }
}

fn badge(verdict: Verdict) -> String {
    let class = match verdict {
        Verdict::Reproduced => "yes",
        Verdict::SignOnly => "sign",
        Verdict::NotReproduced => "no",
        Verdict::NoValue | Verdict::NotRun => "none",
    };
    format!("<span class=\"badge {class}\">{}</span>", verdict.words())
}

fn item(out: &mut String, of: &ItemReport) {
    let kind = match of.kind {
        Kind::Figure => "Figure",
        Kind::Table => "Table",
        Kind::Claim => "Claim",
    };
    put(
        out,
        format_args!(
            "<section class=\"item\" id=\"item-{0}\"><div class=\"words\"><h3>{0} {1}</h3>\n<p \
             class=\"verdict\">{2} {3}</p>\n<p>{kind}: {4}; the paper shows {5}.",
            of.id,
            escaped(&of.title),
            badge(of.verdict),
            escaped(&of.why),
            escaped(&of.place),
            with_article(&of.form),
        ),
    );
    for text in [&of.conditions, &of.note] {
        if !text.is_empty() {
            put(out, format_args!(" {}", escaped(text)));
        }
    }
    out.push_str("</p>\n");
    claims(out, &of.claims);
    other_readings(out, &of.claims);
    if !of.command.is_empty() {
        let is_own = of.experiment.starts_with("bimetal-lab papers");
        let experiment = if is_own { "" } else { &of.experiment };
        let separator = if is_own { "" } else { "\n" };
        put(
            out,
            format_args!(
                "<pre>{}{separator}{}</pre>\n",
                escaped(&of.command),
                escaped(experiment)
            ),
        );
    }
    out.push_str("</div>\n");
    if !of.drawings.is_empty() {
        out.push_str("<div class=\"plots\">");
        for of in &of.drawings {
            drawing(out, of);
        }
        out.push_str("</div>\n");
    }
    out.push_str("</section>\n");
}

/// Puts an article before the name of a form that is one thing.
fn with_article(form: &str) -> String {
    let is_one = ["table", "diagram", "photograph"];
    match is_one.iter().any(|word| form.starts_with(word)) {
        true => format!("a {}", escaped(form)),
        false => escaped(form),
    }
}

/// Formats our value with its interval on a line of its own.
fn value(ours: &Compared) -> String {
    match ours.interval.is_empty() {
        true => escaped(&ours.shown),
        false => format!(
            "{} <small>{}</small>",
            escaped(&ours.shown),
            escaped(&ours.interval)
        ),
    }
}

/// Writes the printed values beside ours under the reading that decides.
fn claims(out: &mut String, claims: &[ClaimReport]) {
    if claims.is_empty() {
        return;
    }
    let reading = claims.iter().find_map(|claim| claim.ours.first());
    let reading = reading.map_or(String::new(), |of| format!(": {}", escaped(&of.reading)));
    put(
        out,
        format_args!(
            "<div class=\"wide\"><table class=\"claims\"><thead><tr><th>printed value</th>\
             <th>paper</th><th>ours{reading}</th><th></th></tr></thead><tbody>"
        ),
    );
    for claim in claims {
        let (ours, badge) = match claim.ours.first() {
            Some(ours) => (value(ours), badge(ours.verdict)),
            None => ("-".to_owned(), String::new()),
        };
        put(
            out,
            format_args!(
                "<tr><th>{}</th><td>{}</td><td>{ours}</td><td class=\"word\">{badge}</td></tr>",
                escaped(&claim.what),
                escaped(&claim.shown),
            ),
        );
    }
    out.push_str("</tbody></table></div>\n");
}

/// Writes a table of the values under the readings that do not decide.
fn other_readings(out: &mut String, claims: &[ClaimReport]) {
    let Some(first) = claims.first().filter(|claim| claim.ours.len() > 1) else {
        return;
    };
    out.push_str(
        "<details><summary>Other readings</summary><div class=\"wide\"><table class=\"claims\">\
         <thead><tr><th>printed value</th><th>paper</th><th>ours</th><th></th></tr></thead>",
    );
    for (at, reading) in first.ours.iter().enumerate().skip(1) {
        put(
            out,
            format_args!(
                "<tbody><tr><th class=\"reading\" colspan=\"4\">{}</th></tr>",
                escaped(&reading.reading)
            ),
        );
        for claim in claims {
            let Some(ours) = claim.ours.get(at) else {
                continue;
            };
            put(
                out,
                format_args!(
                    "<tr><th>{}</th><td>{}</td><td>{}</td><td class=\"word\">{}</td></tr>",
                    escaped(&claim.what),
                    escaped(&claim.shown),
                    value(ours),
                    badge(ours.verdict)
                ),
            );
        }
        out.push_str("</tbody>");
    }
    out.push_str("</table></div></details>\n");
}

fn drawing(out: &mut String, of: &Drawing) {
    let (title, svg) = match of {
        Drawing::Lines { title, x, y, lines } => {
            let points = || lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x);
            let least = points().fold(f64::INFINITY, f64::min);
            let most = points().fold(f64::NEG_INFINITY, f64::max);
            if least >= most {
                return;
            }
            let plot = Plot {
                y_label: y.clone(),
                x_label: x.clone(),
                marks: round_marks(least, most),
                series: lines
                    .iter()
                    .map(|line| Series {
                        name: line.name.clone(),
                        style: line.style,
                        points: line.points.clone(),
                    })
                    .collect(),
                reference: None,
                from_zero: true,
                by_factors: false,
                has_points: lines.iter().all(|line| line.points.len() <= POINTS_MAX),
            };
            (title, plot.svg())
        }
        Drawing::Bars {
            title,
            y,
            groups,
            names,
            values,
        } => {
            let bar = |of: &Option<(f64, f64, f64)>| {
                of.map(|(value, low, high)| Bar { value, low, high })
            };
            let bars = Bars {
                y_label: y.clone(),
                groups: groups.clone(),
                names: names.clone(),
                styles: (0..names.len()).collect(),
                bars: values
                    .iter()
                    .map(|of| of.iter().map(bar).collect())
                    .collect(),
            };
            (title, bars.svg())
        }
        Drawing::Rows {
            title,
            label,
            parts,
            rows,
        } => {
            let rows = Rows {
                label: label.clone(),
                parts: parts.clone(),
                rows: rows.clone(),
            };
            (title, rows.svg())
        }
        Drawing::Spikes {
            title,
            x,
            y,
            values,
        } => {
            let spikes = Spikes {
                y_label: y.clone(),
                x_label: x.clone(),
                values: values.clone(),
            };
            (title, spikes.svg())
        }
        Drawing::Table { title, head, rows } => (title, table(head, rows)),
    };
    put(
        out,
        format_args!(
            "<figure><figcaption>{}</figcaption>\n{svg}</figure>\n",
            escaped(title)
        ),
    );
}

fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, of: &[String]| -> String {
        let cell = |text: &String| format!("<{tag}>{}</{tag}>", escaped(text));
        of.iter().map(cell).collect()
    };
    let rows: String = rows
        .iter()
        .map(|row| format!("<tr>{}</tr>", cells("td", row)))
        .collect();
    format!(
        "<div class=\"wide\"><table><thead><tr>{}</tr></thead><tbody>{rows}</tbody></table></div>",
        cells("th", head)
    )
}

fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what)
        .expect("text can always be added to a string");
}
