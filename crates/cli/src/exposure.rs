//! Detects a mirror whose logs bound its exposure below the configured value. The exposure is the
//! number of acknowledged bytes that are not on every side yet. Its bound determines how far a slow
//! side can lag, so a bound below the configured value is reported when a volume is formatted,
//! checked and served.

use bimetal_block::layers::mirror::MirrorConfig;
use bimetal_block::units::show_size;

/// Returns a message if the logs of a mirror limit its exposure (acknowledged bytes that are not on
/// every side yet) to less than the configured bound. `by_logs_bytes` is the limit that the logs
/// set. Returns `None` if the logs do not lower the bound, or if no bound is configured.
pub(crate) fn reduced(config: &MirrorConfig, by_logs_bytes: u64) -> Option<String> {
    let wanted_bytes = config.rules().exposure_bytes_max;
    // The experimental policies of the hetero-mirroring paper have no exposure bound, so there is
    // no bound that the logs could reduce.
    let is_reduced = wanted_bytes != u64::MAX && by_logs_bytes < wanted_bytes;
    is_reduced.then(|| {
        format!(
            "the exposure is limited to {} instead of {} (`exposure.bytes`): the changes that a \
            side lacks must fit into a quarter of the smallest log (`format --log` creates longer \
            logs)",
            show_size(by_logs_bytes),
            show_size(wanted_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bimetal_block::graph::Node;

    use super::*;
    use crate::config::Config;

    fn said(keys: &str, by_logs_bytes: u64) -> Option<String> {
        let text = format!(
            "[device.a]\ntype = \"null\"\nsize = \"1GiB\"\n\
             [device.b]\ntype = \"null\"\nsize = \"1GiB\"\n\
             [device.m]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\n{keys}"
        );
        let config = Config::read(Path::new("vol.toml"), &text).expect("it is right");
        let Node::Mirror(mirror) = &config.graph.nodes()["m"] else {
            panic!("it is a mirror");
        };
        reduced(mirror, by_logs_bytes)
    }

    #[test]
    fn only_a_bound_that_is_reduced_is_said_with_both_figures() {
        let line = said("", 13 << 20).expect("64 MiB are not to be had");
        assert!(line.contains("13 MiB") && line.contains("64 MiB"), "{line}");
        assert_eq!(said("", 64 << 20), None);
        assert_eq!(said("exposure = { bytes = \"1MiB\" }\n", 13 << 20), None);
        assert_eq!(said("acknowledge = \"all\"\n", 13 << 20), None);
        assert_eq!(said("policy = \"paper\"\n", 13 << 20), None);
    }
}
