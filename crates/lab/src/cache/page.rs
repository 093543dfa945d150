//! Results of the runs as one HTML page: a summary sentence, plots, and all values in tables.
//!
//! The page must not load anything: no scripts, fonts or pictures. The same runs must produce the
//! same bytes, so the page contains no date.

use std::fmt::Write;

use bimetal_sim::cache::{Ftl, Outcome};
use bimetal_trace::Key;

use super::{Compared, Comparison, Row};
use crate::plot::{COLOURS, Mark, Plot, STYLE, Series, escaped, short};

/// Returns the complete HTML page.
pub(super) fn html(comparison: &Comparison) -> String {
    let policies: Vec<&str> = comparison.policies.iter().map(|p| p.name()).collect();
    let page = Page {
        of: comparison,
        base: policies.iter().position(|p| *p == "lru").unwrap_or(0),
        policies,
        unit: match comparison.key {
            Key::Page { .. } => "pages",
            Key::Record => "objects",
        },
    };
    let mut out = page.head();
    page.verdict(&mut out);
    for of in &comparison.traces {
        page.trace(&mut out, of);
    }
    out.push_str("</main></body></html>\n");
    out
}

struct Page<'a> {
    of: &'a Comparison,
    policies: Vec<&'a str>,
    /// Index of the policy with which the other policies are compared.
    base: usize,
    /// Name of the cached unit.
    unit: &'static str,
}

/// Function that computes the value to plot from the outcome of a run and the outcome of the base
/// policy.
type Measure<'m> = &'m dyn Fn(&Outcome, &Outcome) -> Option<f64>;

impl Page<'_> {
    fn head(&self) -> String {
        let Comparison {
            costs, block_pages, ..
        } = self.of;
        let mut highlight = String::new();
        for style in 0..self.policies.len() {
            put(
                &mut highlight,
                format_args!("main:has(.s{style}:hover) .series:not(.s{style}){{opacity:.15}}"),
            );
        }
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <title>Caches on traces</title>\n<style>\n{STYLE}{highlight}</style></head><body><main>\n\
             <h1>Caches on traces</h1>\n<pre>{}</pre>\n\
             <p>bimetal {}. Device time is pages read at {} us, pages programmed at {} us and blocks of {} pages \
             erased at {} us, one after another, with everything dirty written at the end. Less is better in every \
             plot.</p>\n",
            escaped(&self.of.command),
            env!("CARGO_PKG_VERSION"),
            costs.read_us,
            costs.program_us,
            block_pages,
            costs.erase_us,
        )
    }

    fn base(&self) -> &str {
        self.policies[self.base]
    }

    /// Writes a summary: for each policy and device, the geometric mean over all traces and sizes
    /// of the device time relative to the base policy.
    fn verdict(&self, out: &mut String) {
        let compared = &self.of.traces;
        let runs = compared.len() * self.of.sizes.len();
        // With a single trace and a single size there is only one value, which the first plot
        // shows. A mean is not needed.
        if self.policies.len() < 2 || runs < 2 {
            return;
        }
        put(
            out,
            format_args!(
                "<h2>Device time relative to {}</h2><p>Geometric mean over {} and {}; in brackets the worst of \
                 these {runs}.</p><div class=\"wide\"><table><thead><tr><th>policy</th>{}</tr></thead><tbody>",
                escaped(self.base()),
                counted(compared.len(), "trace"),
                counted(self.of.sizes.len(), "size"),
                cells("th", self.of.ftls.iter().map(|ftl| format!("ftl {ftl}")))
            ),
        );
        let table: Vec<Vec<Option<(f64, f64)>>> = (0..self.policies.len())
            .map(|policy| {
                let of_ftl = |ftl| mean_and_worst(&self.ratios(policy, ftl));
                (0..self.of.ftls.len()).map(of_ftl).collect()
            })
            .collect();
        for (policy, means) in table.iter().enumerate() {
            let shown = means.iter().enumerate().map(|(ftl, mean)| match mean {
                None => "<td>-</td>".to_owned(),
                Some((mean, worst)) => {
                    let is_best = table
                        .iter()
                        .all(|row| row[ftl].is_none_or(|m| m.0 >= *mean));
                    let class = if is_best { " class=\"best\"" } else { "" };
                    format!("<td{class}>{mean:.3} ({worst:.3})</td>")
                }
            });
            let shown: String = shown.collect();
            put(
                out,
                format_args!(
                    "<tr><th>{}{}</th>{shown}</tr>",
                    self.swatch(policy),
                    escaped(self.policies[policy])
                ),
            );
        }
        out.push_str("</tbody></table></div>\n");
    }

    /// Returns the ratios of the device time of a policy to the device time of the base policy, for
    /// all traces and sizes for which this ratio exists.
    fn ratios(&self, policy: usize, ftl: usize) -> Vec<f64> {
        let mut ratios = Vec::new();
        for of in &self.of.traces {
            for size in 0..self.of.sizes.len() {
                let row = self.row(of, ftl, size, policy);
                let base = self.row(of, ftl, size, self.base);
                ratios.extend(relative_time(&row.outcome, &base.outcome));
            }
        }
        ratios
    }

    /// Returns the run with the given device, size and policy. The runs of a trace are ordered by
    /// device, then size, then policy.
    fn row<'c>(&self, of: &'c Compared, ftl: usize, size: usize, policy: usize) -> &'c Row {
        &of.rows[(ftl * self.of.sizes.len() + size) * self.policies.len() + policy]
    }

    fn trace(&self, out: &mut String, of: &Compared) {
        let [reads, writes, trims] = of.counts;
        let trims = match trims {
            0 => String::new(),
            trims => format!(", {trims} trims"),
        };
        let pages = match self.of.key {
            Key::Page { page_bytes } => {
                let bytes = of.footprint_pages as f64 * page_bytes as f64;
                format!("pages of {page_bytes} bytes, {}B", short(bytes))
            }
            Key::Record => "objects".to_owned(),
        };
        let sample = match self.of.sample_rate {
            whole if whole >= 1.0 => String::new(),
            rate => format!(
                " <strong>Estimated from {rate} of the pages, with {} of the accesses.</strong>",
                of.sampled_accesses
            ),
        };
        put(
            out,
            format_args!(
                "<h2>{}</h2>\n<p>{}: {reads} reads, {writes} writes{trims} of {} distinct {pages}.{sample}</p>\n\
                 <div class=\"plots\">",
                escaped(&of.trace),
                of.format,
                of.footprint_pages
            ),
        );
        self.plots(out, of);
        out.push_str("</div>\n");
        self.table(out, of);
    }

    fn plots(&self, out: &mut String, of: &Compared) {
        for (number, ftl) in self.of.ftls.iter().enumerate() {
            let label = format!("device time, share of {}", self.base());
            let caption = format!("Device time over ftl {ftl}");
            self.plot(
                out,
                of,
                number,
                (&caption, &label, Some(1.0)),
                &relative_time,
            );
        }
        let over = match self.of.ftls.len() {
            1 => String::new(),
            _ => format!(" (over ftl {})", self.of.ftls[0]),
        };
        let ratio: Measure<'_> = &|outcome, _| Some(outcome.miss_ratio());
        let label = "misses, share of accesses";
        self.plot(
            out,
            of,
            0,
            (&format!("Miss ratio{over}"), label, None),
            ratio,
        );
        for (number, ftl) in self.of.ftls.iter().enumerate() {
            if *ftl == Ftl::None || of.counts[1] == 0 {
                continue;
            }
            let caption = format!("Write amplification over ftl {ftl}");
            let label = "programs for each page written";
            let wa: Measure<'_> = &|o, _| (o.host_writes > 0).then(|| o.write_amplification());
            self.plot(out, of, number, (&caption, label, None), wa);
            let erases: Measure<'_> = &|outcome, _| Some(outcome.work.erases as f64);
            let caption = format!("Erases over ftl {ftl}");
            self.plot(out, of, number, (&caption, "blocks erased", None), erases);
        }
        if of.counts[1] > 0 {
            let writes: Measure<'_> = &|outcome, _| Some(outcome.host_writes as f64);
            let caption = format!("Pages written to the device{over}");
            self.plot(out, of, 0, (&caption, "pages written", None), writes);
        }
    }

    /// Writes a plot, unless the plot would have no values.
    fn plot(
        &self,
        out: &mut String,
        of: &Compared,
        ftl: usize,
        (caption, y_label, reference): (&str, &str, Option<f64>),
        measure: Measure<'_>,
    ) {
        let mut sizes: Vec<usize> = (0..self.of.sizes.len()).collect();
        let pages = |size: usize| self.row(of, ftl, size, 0).job.size_pages;
        sizes.sort_by_key(|size| pages(*size));
        sizes.dedup_by_key(|size| pages(*size));
        let series = self.policies.iter().enumerate().map(|(policy, name)| {
            let point = |size: &usize| {
                let base = self.row(of, ftl, *size, self.base);
                let row = self.row(of, ftl, *size, policy);
                Some((pages(*size) as f64, measure(&row.outcome, &base.outcome)?))
            };
            Series {
                name: (*name).to_owned(),
                style: policy,
                points: sizes.iter().filter_map(point).collect(),
            }
        });
        let series: Vec<Series> = series.filter(|series| !series.points.is_empty()).collect();
        if series.is_empty() {
            return;
        }
        let mark = |size: &usize| {
            let share = pages(*size) as f64 / of.footprint_pages.max(1) as f64 * 100.0;
            let share = match share {
                large if large >= 9.95 => format!("{large:.0} %"),
                small => format!("{} %", short((small * 10.0).round() / 10.0)),
            };
            Mark {
                x: pages(*size) as f64,
                lines: [short(pages(*size) as f64), share],
            }
        };
        let plot = Plot {
            y_label: y_label.to_owned(),
            x_label: format!("cache size: {}, and share of the distinct ones", self.unit),
            marks: sizes.iter().map(mark).collect(),
            series,
            reference: reference.filter(|_| self.policies.len() > 1),
            from_zero: false,
            by_factors: true,
            has_points: true,
        };
        let at_size = match plot.marks.as_slice() {
            [only] => format!(" at {} {} ({})", only.lines[0], self.unit, only.lines[1]),
            _ => String::new(),
        };
        put(
            out,
            format_args!(
                "<figure><figcaption>{}{at_size}</figcaption>\n{}</figure>",
                escaped(caption),
                plot.svg()
            ),
        );
    }

    fn table(&self, out: &mut String, of: &Compared) {
        let headings = [
            "ftl",
            self.unit,
            "policy",
            "device s",
            "relative",
            "miss ratio",
            "pages read",
            "pages written",
            "programs",
            "erases",
            "WA",
        ];
        put(
            out,
            format_args!(
                "<details open><summary>All figures of {}</summary><div class=\"wide\"><table><thead><tr>{}</tr></thead>",
                escaped(&of.trace),
                cells("th", headings.iter().map(|heading| (*heading).to_owned()))
            ),
        );
        for (ftl, name) in self.of.ftls.iter().enumerate() {
            for size in 0..self.of.sizes.len() {
                out.push_str("<tbody>");
                self.group(out, of, (ftl, &name.to_string()), size);
                out.push_str("</tbody>\n");
            }
        }
        out.push_str("</table></div></details>\n");
    }

    /// Writes the table rows for one device and cache size. The fastest policy is marked.
    fn group(&self, out: &mut String, of: &Compared, (ftl, name): (usize, &str), size: usize) {
        let time = |policy| self.row(of, ftl, size, policy).outcome.device_time_us;
        let least = (0..self.policies.len()).map(time).fold(f64::MAX, f64::min);
        let base = &self.row(of, ftl, size, self.base).outcome;
        for policy in 0..self.policies.len() {
            let Row { job, outcome: o } = self.row(of, ftl, size, policy);
            let relative = relative_time(o, base).map_or("-".to_owned(), |r| format!("{r:.3}"));
            let class = if o.device_time_us <= least {
                " class=\"best\""
            } else {
                ""
            };
            let figures = [
                format!("{:.3}", o.device_time_us / 1e6),
                relative,
                format!("{:.4}", o.miss_ratio()),
                o.host_reads.to_string(),
                o.host_writes.to_string(),
                o.work.programs.to_string(),
                o.work.erases.to_string(),
                format!("{:.3}", o.write_amplification()),
            ];
            put(
                out,
                format_args!(
                    "<tr{class}><td class=\"word\">{name}</td><td>{}</td><td class=\"word\">{}{}</td>{}</tr>",
                    job.size_pages,
                    self.swatch(policy),
                    escaped(job.policy.name()),
                    cells("td", figures.into_iter())
                ),
            );
        }
    }

    /// Returns a mark in the colour that a policy has in the plots.
    fn swatch(&self, policy: usize) -> String {
        format!("<i class=\"swatch c{}\"></i>", policy % COLOURS)
    }
}

/// Returns the device time of `outcome` divided by the device time of `base`; `None` if the divisor
/// is 0.
fn relative_time(outcome: &Outcome, base: &Outcome) -> Option<f64> {
    (base.device_time_us > 0.0).then(|| outcome.device_time_us / base.device_time_us)
}

/// Returns the geometric mean and the maximum of the ratios; `None` for an empty list.
fn mean_and_worst(ratios: &[f64]) -> Option<(f64, f64)> {
    if ratios.is_empty() {
        return None;
    }
    let logs: f64 = ratios.iter().map(|ratio| ratio.max(1e-9).ln()).sum();
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    Some(((logs / ratios.len() as f64).exp(), worst))
}

fn cells(tag: &str, texts: impl Iterator<Item = String>) -> String {
    texts
        .map(|text| format!("<{tag}>{}</{tag}>", escaped(&text)))
        .collect()
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(out, "{what}").expect("text can always be added to a string");
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_policy::replacement::Spec;
    use bimetal_sim::cache::{CacheSize, Costs, Job};

    /// Returns the page for the policies `lru` and `arc` and the sizes 10 and 20. On a simulated
    /// flash device, `arc` takes half the device time of `lru`.
    fn page() -> String {
        let policies: Vec<Spec> = ["lru", "arc"].map(|name| name.parse().unwrap()).to_vec();
        let ftls: Vec<Ftl> = ["none", "page"].map(|name| name.parse().unwrap()).to_vec();
        let mut rows = Vec::new();
        for ftl in &ftls {
            for size_pages in [10, 20] {
                for policy in &policies {
                    let fast = policy.name() == "arc" && *ftl != Ftl::None;
                    let job = Job {
                        policy: policy.clone(),
                        size_pages,
                        ftl: *ftl,
                    };
                    let outcome = Outcome {
                        accesses: 100,
                        misses: 40,
                        host_writes: 30,
                        device_time_us: if fast { 1e6 } else { 2e6 },
                        ..Outcome::default()
                    };
                    rows.push(Row { job, outcome });
                }
            }
        }
        let compared = Compared {
            trace: "a<b>.csv".to_owned(),
            format: "msr",
            counts: [70, 30, 0],
            footprint_pages: 200,
            sampled_accesses: 100,
            rows,
        };
        html(&Comparison {
            command: "bimetal-lab".to_owned(),
            policies,
            sizes: ["10", "20"]
                .map(|size| size.parse::<CacheSize>().unwrap())
                .to_vec(),
            ftls,
            key: Key::Page { page_bytes: 4096 },
            block_pages: 64,
            costs: Costs::default(),
            sample_rate: 1.0,
            traces: vec![compared],
        })
    }

    #[test]
    fn a_page_loads_nothing() {
        let page = page();
        for word in [
            "http:", "https:", "<script", "src=", "url(", "@import", "<link",
        ] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(!page.contains("<b>"), "the name of a trace is text");
    }

    #[test]
    fn every_element_ends() {
        let page = page();
        for tag in [
            "html", "main", "table", "tr", "td", "th", "figure", "svg", "g", "text", "p",
        ] {
            let begun = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            let ended = page.matches(&format!("</{tag}>")).count();
            assert!(begun > 0 && begun == ended, "{tag}: {begun} and {ended}");
        }
    }

    #[test]
    fn the_verdict_and_the_figures_are_there() {
        let page = page();
        let verdict = page.split("<tbody>").nth(1).unwrap();
        assert!(
            verdict.contains("<td class=\"best\">0.500 (0.500)</td>"),
            "{verdict}"
        );
        assert!(page.contains("70 reads, 30 writes of 200 distinct"));
        // The page has rows for two devices, two sizes and two policies.
        assert_eq!(page.matches("<td>0.4000</td>").count(), 8);
    }

    #[test]
    fn the_mean_is_geometric_and_the_worst_the_largest() {
        assert_eq!(mean_and_worst(&[]), None);
        let (mean, worst) = mean_and_worst(&[0.5, 2.0]).unwrap();
        assert!((mean - 1.0).abs() < 1e-9 && worst == 2.0);
    }
}
