//! The result of a comparison in words: for each device, the policy with the least device time, and
//! its lead over the next one.

use super::Comparison;

/// Returns a sentence for each device on which at least two policies were compared.
pub(super) fn sentences(comparison: &Comparison) -> Vec<String> {
    let of_device = |ftl: &bimetal_sim::cache::Ftl| {
        let policies = comparison.policies.iter();
        let means = policies.filter_map(|policy| {
            let rows = comparison.runs().map(|(_, row)| row);
            let rows = rows.filter(|row| row.job.ftl == *ftl && row.job.policy == *policy);
            let times: Vec<f64> = rows.map(|row| row.outcome.device_time_us).collect();
            Some((policy.name(), geometric_mean(&times)?, times.len()))
        });
        sentence(&ftl.to_string(), means.collect())
    };
    comparison.ftls.iter().filter_map(of_device).collect()
}

/// Returns the sentence for one device, from the name, the mean time and the number of runs of each
/// policy.
fn sentence(ftl: &str, mut means: Vec<(&str, f64, usize)>) -> Option<String> {
    means.sort_by(|a, b| a.1.total_cmp(&b.1));
    let [(best, best_us, runs), (next, next_us, _), ..] = means[..] else {
        return None;
    };
    let runs = match runs {
        1 => "1 run".to_owned(),
        runs => format!("{runs} runs (geometric mean)"),
    };
    let percent = (1.0 - best_us / next_us) * 100.0;
    Some(if percent < 0.05 {
        format!("{ftl}: {best} and {next} take the least device time in {runs}, within 0.05 %")
    } else {
        format!(
            "{ftl}: {best} takes the least device time in {runs}, {percent:.1} % less than {next}"
        )
    })
}

/// Returns the geometric mean; `None` without values, or with a value of 0.
fn geometric_mean(values: &[f64]) -> Option<f64> {
    let possible = !values.is_empty() && values.iter().all(|value| *value > 0.0);
    let mean = values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64;
    possible.then(|| mean.exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_winner_and_its_lead() {
        let means = vec![("lru", 200.0, 3), ("arc", 100.0, 3), ("2q", 125.0, 3)];
        assert_eq!(
            sentence("fast", means).as_deref(),
            Some(
                "fast: arc takes the least device time in 3 runs (geometric mean), 20.0 % less \
                than 2q"
            )
        );
        let same = vec![("lru", 100.0, 1), ("arc", 100.0, 1)];
        assert_eq!(
            sentence("none", same).as_deref(),
            Some("none: lru and arc take the least device time in 1 run, within 0.05 %")
        );
        assert_eq!(sentence("none", vec![("lru", 100.0, 1)]), None);
    }

    #[test]
    fn a_mean_needs_times_above_zero() {
        // The geometric mean of 2 and 8 is the square root of 16.
        assert!((geometric_mean(&[2.0, 8.0]).expect("a mean") - 4.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
        assert_eq!(geometric_mean(&[0.0, 1.0]), None);
    }
}
