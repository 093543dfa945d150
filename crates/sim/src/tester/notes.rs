//! Records which states a run has reached, for the report over many seeds.

use bimetal_block::Device;
use bimetal_block::device::Statistic;
use bimetal_block::layers::mirror::MirrorStatus;

use super::world::{Program, World};

/// Records that a change has waited for space in a log, according to the counters of the mirror.
/// The periodic checks of the mirror's state can miss a short wait.
pub(super) fn note_log(world: &World, program: &Program) {
    let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
    program.mirror.statistics(&mut statistics);
    for (counter, state) in [
        ("log_full", "log full"),
        ("log_entries_overtaken", "log entry overtaken"),
        ("segments_cleaned", "segments cleaned"),
        ("segments_discarded", "segments discarded"),
        ("ordered_bytes", "put in order"),
        ("map_pages_read", "map page read again"),
    ] {
        let counts = |(_, name, statistic): &(String, String, Statistic)| {
            name == counter && matches!(statistic, Statistic::Counter(1..))
        };
        if statistics.iter().any(counts) {
            world.reach(state);
        }
    }
}

/// Records the states that the mirror has reached, according to the counters of its status.
pub(super) fn note_counts(world: &World, status: &MirrorStatus) {
    let sides = &status.sides;
    let some = |count: fn(&bimetal_block::layers::mirror::SideStatus) -> u64| {
        sides.iter().map(count).sum::<u64>() > 0
    };
    for (state, reached) in [
        ("acknowledged early", status.acknowledged_early > 0),
        ("held back", status.backpressured_writes > 0),
        ("merged", some(|s| s.merged)),
        ("resynced", some(|s| s.resynced_bytes)),
        ("mode switched", some(|s| s.mode_switches)),
        ("stopped degraded", status.degraded),
    ] {
        if reached {
            world.reach(state);
        }
    }
}
