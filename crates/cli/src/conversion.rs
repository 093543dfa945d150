//! Words about the conversion of a side to another layout.

use bimetal_block::layers::mirror::Conversion;
use bimetal_block::layers::mirror::superblock::SideKind;
use bimetal_block::units::show_size;

use crate::statistics::show_uptime;

/// Returns the layout with this name in a request or on the command line.
pub(crate) fn kind(name: &str) -> Option<SideKind> {
    [SideKind::Home, SideKind::Log]
        .into_iter()
        .find(|kind| kind.name() == name)
}

/// Describes what a conversion of the side `side` would do, in lines for the operator.
pub(crate) fn lines(side: &str, plan: &Conversion) -> String {
    let remains = match plan.copies_left {
        1 => "one complete copy of the volume remains".to_owned(),
        copies => format!("{copies} complete copies of the volume remain"),
    };
    [
        format!(
            "{side} has layout = \"{}\" and gets layout = \"{}\": its device of {} is formatted, \
            with a log of {}. It then has room for {}, and the volume has {}.",
            plan.from.name(),
            plan.to.name(),
            show_size(plan.device_bytes),
            show_size(plan.log_bytes),
            show_size(plan.room_bytes),
            show_size(plan.volume_bytes),
        ),
        format!(
            "Until {side} is rebuilt, {remains}. What is damaged there meanwhile is lost: scrub \
            the volume before."
        ),
        duration(plan),
    ]
    .join("\n")
}

/// Estimates how long the rebuild takes, and says what the estimate rests on.
fn duration(plan: &Conversion) -> String {
    let bytes = plan.copied_bytes_max;
    let at = |rate: u64| show_uptime(bytes as f64 / rate.max(1) as f64);
    let mut parts = Vec::new();
    let read = plan.read_bytes_per_s;
    if let Some(rate) = read {
        parts.push(format!(
            "about {} at {}/s, the rate at which the slower device was just read sequentially",
            at(rate),
            show_size(rate)
        ));
    }
    let floor = plan.floor_bytes_per_s;
    if floor > 0 && read.is_none_or(|rate| rate > floor) {
        parts.push(format!(
            "at most {} at {}/s, the `rebuild.floor`, which clients cannot push it below",
            at(floor),
            show_size(floor)
        ));
    }
    if parts.is_empty() {
        parts.push("for a time that is not known: the devices could not be read".to_owned());
    }
    format!(
        "At most {} are copied, which takes {}.",
        show_size(bytes),
        parts.join(", and ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Conversion = Conversion {
        from: SideKind::Home,
        to: SideKind::Log,
        device_bytes: 64 << 30,
        room_bytes: 50 << 30,
        volume_bytes: 48 << 30,
        log_bytes: 1 << 30,
        copied_bytes_max: 36 << 30,
        copies_left: 1,
        read_bytes_per_s: Some(100 << 20),
        floor_bytes_per_s: 20 << 20,
    };

    #[test]
    fn a_plan_names_the_figures_and_what_they_rest_on() {
        let said = lines("slow", &PLAN);
        // 36 GiB are 36,864 MiB: 368 s at 100 MiB/s, and 1,843 s at 20 MiB/s.
        for part in [
            "slow has layout = \"home\" and gets layout = \"log\"",
            "room for 50 GiB, and the volume has 48 GiB",
            "one complete copy of the volume remains",
            "At most 36 GiB are copied, which takes about 6 min 8 s at 100 MiB/s",
            "at most 30 min 43 s at 20 MiB/s",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let slow = Conversion {
            read_bytes_per_s: Some(10 << 20),
            copies_left: 2,
            ..PLAN
        };
        let said = lines("slow", &slow);
        assert!(
            !said.contains("floor"),
            "the devices do not reach it: {said}"
        );
        assert!(said.contains("2 complete copies"), "{said}");
        let unread = Conversion {
            read_bytes_per_s: None,
            floor_bytes_per_s: 0,
            ..PLAN
        };
        assert!(lines("slow", &unread).contains("not known"));
    }
}
