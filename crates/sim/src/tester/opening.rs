//! Attempts to open a volume, and the check that a refusal to open reports all data that would be
//! lost. No other module of the tester calls [`Mirror::open`].

use std::ops::Range;
use std::rc::Rc;

use bimetal_block::graph::OpenError;
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Force, Mirror, MirrorConfig, OpenOptions, SideToOpen};
use bimetal_rt::Rt;

use super::volume::Volume;

/// Way to open a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// An ordinary opening.
    Plain,
    /// A read-only opening, which succeeds even if data is possibly missing.
    ReadOnly,
    /// An opening that is forced when sides are missing. Used only by a planted bug.
    Regardless,
}

/// Outcome of an opening.
pub enum Opening {
    /// The volume is open.
    Opened(Mirror),
    /// The mirror refused to open.
    Refused(Refusal),
}

/// Refusal to open a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason as text.
    pub why: String,
    /// Data that would be lost if the volume were opened anyway.
    pub lost: Lost,
}

/// What a refusal reports about the data that would be lost if the volume were opened anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The refusal does not report lost data.
    Unsaid,
    /// The lost data lies within these byte ranges of the volume.
    Ranges(Vec<Range<u64>>),
    /// Any write with a number above this one can be lost.
    UnknownAfter(u64),
}

impl Lost {
    fn covers(&self, bytes: &Range<u64>) -> bool {
        match self {
            Lost::Unsaid | Lost::UnknownAfter(_) => true,
            Lost::Ranges(ranges) => {
                let mut ranges: Vec<&Range<u64>> = ranges.iter().collect();
                ranges.sort_by_key(|range| range.start);
                let mut reached = bytes.start;
                for range in ranges.into_iter().filter(|range| !range.is_empty()) {
                    if range.start <= reached {
                        reached = reached.max(range.end);
                    }
                }
                reached >= bytes.end
            }
        }
    }
}

/// Tries to open a volume in the given way.
pub async fn attempt(
    rt: &Rt,
    config: &MirrorConfig,
    candidates: Vec<Candidate>,
    how: How,
) -> Opening {
    let plain = || open(rt, config, &candidates, None);
    let opened = match how {
        How::Plain => plain().await,
        How::ReadOnly => open(rt, config, &candidates, Some(Force::ReadOnly)).await,
        How::Regardless => match plain().await {
            Ok(mirror) => Ok(mirror),
            Err(_) => open(rt, config, &candidates, Some(Force::Fork)).await,
        },
    };
    match opened {
        Ok(mirror) => Opening::Opened(mirror),
        Err(error) => Opening::Refused(Refusal {
            why: error.to_string(),
            lost: lost_in(&error.to_string()),
        }),
    }
}

async fn open(
    rt: &Rt,
    config: &MirrorConfig,
    candidates: &[Candidate],
    force: Option<Force>,
) -> Result<Mirror, OpenError> {
    let sides = candidates.iter().map(|candidate| SideToOpen {
        name: candidate.name.clone(),
        device: Ok(Rc::clone(&candidate.device)),
    });
    let options = OpenOptions {
        force,
        ..OpenOptions::default()
    };
    Mirror::open(rt, config, sides.collect(), &options).await
}

/// Parses the list of lost ranges at the end of the message of a refusal.
fn lost_in(message: &str) -> Lost {
    let range = |line: &str| {
        let (offset, len) = line.trim().split_once('+')?;
        let (offset, len): (u64, u64) = (offset.parse().ok()?, len.parse().ok()?);
        Some(offset..offset + len)
    };
    let ranges: Vec<Range<u64>> = message.lines().filter_map(range).collect();
    if ranges.is_empty() {
        Lost::Unsaid
    } else {
        Lost::Ranges(ranges)
    }
}

/// Checks that a refusal reports every lost unit. `held` returns the value that a read of a unit
/// would return; a unit is lost if the model does not allow this value. Returns the number of lost
/// units.
///
/// # Errors
/// The first lost unit that the refusal does not report.
pub fn check_lost(
    volume: &Volume,
    unit_bytes: u64,
    held: impl Fn(usize) -> u64,
    lost: &Lost,
) -> Result<u64, String> {
    let mut count = 0;
    for unit in 0..volume.unit_count() {
        if volume.allows(unit, held(unit)) {
            continue;
        }
        count += 1;
        let start = unit as u64 * unit_bytes;
        if !lost.covers(&(start..start + unit_bytes)) {
            return Err(format!("unit {unit} is lost, and not in {lost:?}"));
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::super::content::stamp_of;
    use super::super::volume::ZEROES;
    use super::*;

    /// Three units of 4 KiB are written and flushed, and the side holds only the first unit. A
    /// refusal must list the other two units as lost.
    #[test]
    fn a_list_must_contain_every_lost_unit() {
        let mut volume = Volume::new(3);
        let writing = volume.start_write(0..3, false, u64::MAX);
        volume.end_write(&writing, true, true).unwrap();
        volume.crash();
        let held = |unit| {
            if unit == 0 {
                stamp_of(writing.write, 0)
            } else {
                ZEROES
            }
        };
        let check = |ranges: &[(u64, u64)]| {
            let ranges = ranges.iter().map(|(start, end)| *start..*end);
            check_lost(&volume, 4096, held, &Lost::Ranges(ranges.collect()))
        };
        assert_eq!(check(&[(4096, 12_288)]), Ok(2));
        assert_eq!(check(&[(8192, 12_288), (0, 8192)]), Ok(2));
        let unknown = check_lost(&volume, 4096, held, &Lost::UnknownAfter(0));
        assert_eq!(unknown, Ok(2));
        assert!(check(&[]).is_err());
        assert!(check(&[(0, 4096)]).is_err());
        assert!(check(&[(4096, 8192)]).is_err());
        assert!(check(&[(4096, 8192), (8193, 12_288)]).is_err());
    }
}
