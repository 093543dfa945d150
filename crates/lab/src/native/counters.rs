//! Counters of the kernel's block layer for one device, from tracepoints. If tracepoints are not
//! available, the counters come from the statistics file of the device, which distinguishes fewer
//! kinds of events.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::disk::Disk;
use super::{NativeError, io_error, sys};
use crate::outcome::Direction;

/// Folder with the identifiers of the block layer's tracepoints.
const EVENTS: &str = "/sys/kernel/tracing/events/block";

/// Tracepoints to count, in the order in which `Way::with` expects their values.
const TRACEPOINTS: [&str; 6] = [
    "block_bio_queue",
    "block_bio_backmerge",
    "block_bio_frontmerge",
    "block_rq_merge",
    "block_split",
    "block_rq_issue",
];
/// Tracepoint filters for the direction of a request. The field `rwbs` (`blk_fill_rwbs`) contains
/// the letter of the operation. If the device flushes its cache before the operation, the letter F
/// precedes this letter. A flush without data has two forms: request events show it as FF, and bio
/// events show it as FW, with no sectors.
const READS: &str = "rwbs ~ \"R*\"";
const WRITES: &str = "(rwbs ~ \"W*\" || rwbs ~ \"FW*\")";
const FLUSHES: &str = "rwbs ~ \"FF*\"";

/// Counter of the events of one tracepoint that match a filter, with one kernel counter for each
/// processor.
struct Counter(Vec<File>);

impl Counter {
    fn open(tracepoint: &str, filter: &str, processors: &[u32]) -> Result<Counter, NativeError> {
        let path = Path::new(EVENTS).join(tracepoint).join("id");
        let id = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
        let id = id
            .trim()
            .parse()
            .map_err(|_| NativeError::Refused(format!("{}: not a number", path.display())))?;
        let text = CString::new(filter).expect("a filter has no zero in it");
        let open = |processor: &u32| {
            sys::count_events(id, &text, *processor).map_err(|source| NativeError::Io {
                what: format!("counting {tracepoint}"),
                error: source,
            })
        };
        let files = processors.iter().map(open);
        Ok(Counter(files.collect::<Result<_, _>>()?))
    }

    fn value(&self) -> Result<u64, NativeError> {
        let mut sum = 0;
        for mut file in &self.0 {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes)
                .map_err(|source| NativeError::Io {
                    what: "a counter".to_owned(),
                    error: source,
                })?;
            sum += u64::from_ne_bytes(bytes);
        }
        Ok(sum)
    }
}

struct Tracepoints {
    reads: Vec<Counter>,
    writes: Vec<Counter>,
    flushes: Counter,
}

impl Tracepoints {
    fn open(disk: &Disk) -> Result<Tracepoints, NativeError> {
        let online = Path::new("/sys/devices/system/cpu/online");
        let text = fs::read_to_string(online).map_err(|source| io_error(online, source))?;
        let processors = numbers_in(text.trim());
        let device = disk.number.in_traces();
        let all = |direction: &str| {
            let open = |tracepoint: &&str| {
                // A bio without sectors is a flush, which is counted separately.
                let rest = if *tracepoint == "block_bio_queue" {
                    " && nr_sector > 0"
                } else {
                    ""
                };
                let filter = format!("dev == {device} && {direction}{rest}");
                Counter::open(tracepoint, &filter, &processors)
            };
            TRACEPOINTS.iter().map(open).collect::<Result<Vec<_>, _>>()
        };
        Ok(Tracepoints {
            reads: all(READS)?,
            writes: all(WRITES)?,
            flushes: Counter::open(
                "block_rq_issue",
                &format!("dev == {device} && {FLUSHES}"),
                &processors,
            )?,
        })
    }
}

/// Parses a list of numbers and ranges such as `0-2,5`.
fn numbers_in(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Counters of a device that start at zero when this value is created.
pub(super) struct Counters {
    disk: Disk,
    tracepoints: Result<Tracepoints, NativeError>,
    begun: Statistics,
}

/// Values of the counters.
pub(super) struct Counted {
    pub reads: Direction,
    pub writes: Direction,
    pub flushes: u64,
    /// Description of the source of the values.
    pub by: String,
}

impl Counters {
    pub(super) fn start(disk: &Disk) -> Result<Counters, NativeError> {
        Ok(Counters {
            disk: disk.clone(),
            tracepoints: Tracepoints::open(disk),
            begun: Statistics::of(disk)?,
        })
    }

    pub(super) fn stop(self) -> Result<Counted, NativeError> {
        let now = Statistics::of(&self.disk)?;
        let [reads, writes] = [0, 1].map(|way| now.ways[way].since(&self.begun.ways[way]));
        let flushes = now.flushes - self.begun.flushes;
        let tracepoints = match self.tracepoints {
            Ok(tracepoints) => tracepoints,
            Err(why) => {
                return Ok(Counted {
                    reads: reads.alone(),
                    writes: writes.alone(),
                    flushes,
                    by: format!(
                        "the device's statistics, since tracepoints cannot be counted: {why}"
                    ),
                });
            }
        };
        Ok(Counted {
            reads: reads.with(&tracepoints.reads)?,
            writes: writes.with(&tracepoints.writes)?,
            flushes: tracepoints.flushes.value()?,
            by: "tracepoints".to_owned(),
        })
    }
}

/// Statistics of a device, from its file `stat` in sysfs (`Documentation/block/stat.rst`).
#[derive(Clone, Copy)]
struct Statistics {
    ways: [Way; 2],
    flushes: u64,
}

#[derive(Clone, Copy)]
struct Way {
    completed: u64,
    merges: u64,
    sectors: u64,
}

impl Statistics {
    fn of(disk: &Disk) -> Result<Statistics, NativeError> {
        let path = disk.folder.join("stat");
        let text = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
        Statistics::parse(&text).ok_or_else(|| {
            NativeError::Refused(format!(
                "{}: not the statistics of a device",
                path.display()
            ))
        })
    }

    /// Parses the fields of the file: the number of requests, merges, sectors and the time of
    /// reads, followed by the same for writes. The number of flushes is the sixteenth field.
    fn parse(text: &str) -> Option<Statistics> {
        let fields: Vec<u64> = text
            .split_whitespace()
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        let way = |from: usize| {
            Some(Way {
                completed: *fields.get(from)?,
                merges: *fields.get(from + 1)?,
                sectors: *fields.get(from + 2)?,
            })
        };
        Some(Statistics {
            ways: [way(0)?, way(4)?],
            flushes: fields.get(15).copied().unwrap_or(0),
        })
    }
}

impl Way {
    fn since(&self, begun: &Way) -> Way {
        Way {
            completed: self.completed - begun.completed,
            merges: self.merges - begun.merges,
            sectors: self.sectors - begun.sectors,
        }
    }

    /// Returns the counters of one direction, made from the device's statistics alone, without a
    /// trace. All merges are then reported as back merges, and the number of bios is the number of
    /// completed requests plus merges.
    fn alone(self) -> Direction {
        Direction {
            bios: self.completed + self.merges,
            back_merges: self.merges,
            issued: self.completed,
            completed: self.completed,
            bytes: self.sectors * 512,
            ..Direction::default()
        }
    }

    fn with(self, counters: &[Counter]) -> Result<Direction, NativeError> {
        let values = counters.iter().map(Counter::value);
        let values = values.collect::<Result<Vec<u64>, _>>()?;
        Ok(Direction {
            bios: values[0],
            back_merges: values[1],
            front_merges: values[2],
            request_merges: values[3],
            splits: values[4],
            issued: values[5],
            completed: self.completed,
            bytes: self.sectors * 512,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_a_list_of_ranges() {
        assert_eq!(numbers_in("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(numbers_in("0"), [0]);
    }

    /// The text contains the statistics of a loop device: 7 reads, 1 merge of reads and 40 sectors
    /// read; 9 writes, 3 merges of writes and 80 sectors written; 2 flushes.
    #[test]
    fn statistics_are_read_by_their_places() {
        let text = "7 1 40 3 9 3 80 5 0 8 8 0 0 0 0 2 1\n";
        let of = Statistics::parse(text).unwrap();
        assert_eq!(of.flushes, 2);
        let writes = of.ways[1].alone();
        assert_eq!((writes.bios, writes.issued, writes.back_merges), (12, 9, 3));
        assert_eq!((of.ways[0].alone().bios, writes.bytes), (8, 40_960));
        assert!(Statistics::parse("7 1 x").is_none());
    }
}
