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
    let full = |(_, name, statistic): &(String, String, Statistic)| {
        name == "log_full" && matches!(statistic, Statistic::Counter(1..))
    };
    let cleaned = |(_, name, statistic): &(String, String, Statistic)| {
        name == "segments_cleaned" && matches!(statistic, Statistic::Counter(1..))
    };
    if statistics.iter().any(cleaned) {
        world.reach("segments cleaned");
    }
    if statistics.iter().any(full) {
        world.reach("log full");
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
