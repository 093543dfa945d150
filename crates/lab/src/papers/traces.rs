//! The traces of source 4, and stand-ins for them.
//!
//! The paper's traces are not public. A stand-in is made by a rule from the sentence with which the
//! paper describes the trace; it shows the described mix, and nothing else of the original. A file
//! can replace a stand-in. Its content, not its name, identifies the runs over it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bimetal_rt::Rng;
use bimetal_trace::{Accesses, Collector, Key, Op, Options, Reader, Record};
use serde::Serialize;

/// Bytes of a page. The paper's 1,500 buffers are 12 MB.
pub const PAGE_BYTES: u64 = 8192;
/// Length of the stand-in of the default scale.
const USUAL: u64 = 100;

/// A trace of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Name {
    /// Short reads and writes again and again, and long sequential reads.
    Gcc,
    /// Reads of models, and very few writes.
    Viewperf,
    /// Reads and writes with a very high locality.
    Cscope,
}

impl Name {
    /// All traces, in the order of the paper.
    pub const ALL: [Name; 3] = [Name::Gcc, Name::Viewperf, Name::Cscope];

    /// Returns the name in file names.
    pub fn word(self) -> &'static str {
        match self {
            Name::Gcc => "gcc",
            Name::Viewperf => "viewperf",
            Name::Cscope => "cscope",
        }
    }

    /// Returns the name in the paper.
    pub fn title(self) -> &'static str {
        match self {
            Name::Gcc => "GCC",
            Name::Viewperf => "Viewperf",
            Name::Cscope => "Cscope",
        }
    }
}

/// Identity of a trace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceId {
    /// A stand-in.
    StandIn {
        /// The trace that it stands for.
        name: Name,
        /// Length in percent of the usual one.
        percent: u64,
        /// Seed.
        seed: u64,
    },
    /// A file.
    File {
        /// The trace that it stands for.
        name: Name,
        /// CRC-32C of its content.
        crc32c: String,
    },
}

/// Error of a folder of traces.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The folder or a file in it cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// Cause of the failure.
        source: std::io::Error,
    },
    /// The folder has no trace, or two for one name.
    #[error("{}: {why}", path.display())]
    Names {
        /// Path of the folder.
        path: PathBuf,
        /// Description of the problem.
        why: String,
    },
    /// A file is not a trace.
    #[error("{0}")]
    Content(String),
}

/// The traces of a report, decoded when they are first used.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    files: BTreeMap<Name, (PathBuf, String)>,
    decoded: Arc<Mutex<BTreeMap<TraceId, Arc<Accesses>>>>,
}

impl Traces {
    /// Finds the traces in a folder: files whose names contain `gcc`, `viewperf` or `cscope`. The
    /// others have stand-ins.
    ///
    /// # Errors
    /// If the folder or a file cannot be read, or if the folder has no such file, or two for one
    /// trace.
    pub fn in_folder(folder: &Path) -> Result<Traces, TracesError> {
        let io = |path: &Path, source| TracesError::Io {
            path: path.to_owned(),
            source,
        };
        let names = |why: String| TracesError::Names {
            path: folder.to_owned(),
            why,
        };
        let mut traces = Traces::default();
        for entry in fs::read_dir(folder).map_err(|source| io(folder, source))? {
            let path = entry.map_err(|source| io(folder, source))?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let file = file.to_lowercase();
            let Some(name) = Name::ALL.into_iter().find(|of| file.contains(of.word())) else {
                continue;
            };
            let content = fs::read(&path).map_err(|source| io(&path, source))?;
            let sum = format!("{:08x}", crc32c::crc32c(&content));
            if traces.files.insert(name, (path, sum)).is_some() {
                return Err(names(format!("two files are named *{}*", name.word())));
            }
        }
        match traces.files.is_empty() {
            true => Err(names(
                "no file is named *gcc*, *viewperf* or *cscope*".to_owned(),
            )),
            false => Ok(traces),
        }
    }

    /// Returns the identity of a trace; `small` and `seed` matter for stand-ins only.
    pub fn id(&self, name: Name, small: bool, seed: u64) -> TraceId {
        match self.files.get(&name) {
            Some((_, crc32c)) => TraceId::File {
                name,
                crc32c: crc32c.clone(),
            },
            None => TraceId::StandIn {
                name,
                percent: if small { 4 } else { USUAL },
                seed,
            },
        }
    }

    /// Returns true if a file stands for the trace, so that seeds change nothing.
    pub fn is_file(&self, name: Name) -> bool {
        self.files.contains_key(&name)
    }

    /// Returns the accesses of a trace.
    ///
    /// # Errors
    /// If its file cannot be read or is not a trace.
    pub fn accesses(&self, id: &TraceId) -> Result<Arc<Accesses>, TracesError> {
        let mut decoded = match self.decoded.lock() {
            Ok(decoded) => decoded,
            // The map is complete after a panic, because a trace is inserted in one step.
            Err(poisoned) => poisoned.into_inner(),
        };
        if let Some(accesses) = decoded.get(id) {
            return Ok(Arc::clone(accesses));
        }
        let accesses = Arc::new(match id {
            TraceId::StandIn {
                name,
                percent,
                seed,
            } => stand_in(*name, *percent, *seed),
            TraceId::File { name, .. } => self.read(*name)?,
        });
        decoded.insert(id.clone(), Arc::clone(&accesses));
        Ok(accesses)
    }

    fn read(&self, name: Name) -> Result<Accesses, TracesError> {
        let Some((path, _)) = self.files.get(&name) else {
            return Err(TracesError::Content(format!("no file for {}", name.word())));
        };
        let options = Options {
            unit_bytes: PAGE_BYTES,
            ..Options::default()
        };
        let key = Key::Page {
            page_bytes: PAGE_BYTES,
        };
        let content = |error: bimetal_trace::TraceError| TracesError::Content(error.to_string());
        let mut reader = Reader::open(path, &options).map_err(content)?;
        let accesses = Accesses::collect(&mut reader, key).map_err(content)?;
        match accesses.is_empty() {
            true => Err(TracesError::Content(format!(
                "{}: no reads and no writes",
                path.display()
            ))),
            false => Ok(accesses),
        }
    }
}

/// Collects the accesses of a stand-in.
struct Making {
    rng: Rng,
    collector: Collector,
}

impl Making {
    /// Accesses `pages` pages in sequence.
    fn access(&mut self, op: Op, first: u64, pages: u64) {
        let record = Record {
            time_ns: 0,
            op,
            offset_bytes: first * PAGE_BYTES,
            length_bytes: pages * PAGE_BYTES,
        };
        // A stand-in has far fewer pages and accesses than a collector holds.
        let pushed = self.collector.push(&record);
        assert!(pushed.is_ok(), "a stand-in fits a collector");
    }

    /// Draws one of `count` things, of which the first are the most popular: the rank is
    /// distributed as count to the power of a uniform number, which is a law of Zipf.
    fn popular(&mut self, count: u64) -> u64 {
        let rank = (count as f64).powf(self.rng.unit_f64()) - 1.0;
        (rank as u64).min(count - 1)
    }
}

/// Makes a stand-in. The lengths are chosen so that the usual one touches several times the pages
/// of the paper's 1,500 buffers.
fn stand_in(name: Name, percent: u64, seed: u64) -> Accesses {
    let key = Key::Page {
        page_bytes: PAGE_BYTES,
    };
    let mut making = Making {
        rng: Rng::labelled(seed, name.word()),
        collector: Collector::new(key),
    };
    let sized = |usual: u64| (usual * percent / 100).max(2);
    match name {
        Name::Gcc => gcc(&mut making, sized(1500)),
        Name::Viewperf => viewperf(&mut making, sized(60)),
        Name::Cscope => cscope(&mut making, sized(3000)),
    }
    making.collector.finish()
}

/// Pages of the areas of a stand-in. The areas do not overlap.
const AREA: u64 = 1 << 20;

/// "Short reads and writes again and again, and long sequential reads": each of `files` sources is
/// read with 40 popular headers, a temporary file is written and read, and an object is written.
/// After each hundredth source, all objects of the directory are read in sequence and an archive is
/// written.
fn gcc(making: &mut Making, files: u64) {
    let (headers, sources, temporary, objects, archives) = (0, AREA, 2 * AREA, 3 * AREA, 4 * AREA);
    for file in 0..files {
        let pages = making.rng.between(1, 6);
        making.access(Op::Read, sources + file * 8, pages);
        for _ in 0..40 {
            let header = making.popular(900);
            making.access(Op::Read, headers + header * 2, 1 + header % 2);
        }
        let place = temporary + file % 4 * 16;
        let pages = making.rng.between(2, 12);
        making.access(Op::Write, place, pages);
        making.access(Op::Read, place, pages);
        let pages = making.rng.between(1, 5);
        making.access(Op::Write, objects + file * 5, pages);
        if (file + 1).is_multiple_of(100) {
            making.access(Op::Read, objects + (file + 1 - 100) * 5, 500);
            making.access(Op::Write, archives + file * 5, 400);
        }
    }
    making.access(Op::Read, objects, files * 5);
    making.access(Op::Write, archives, files);
}

/// "Few writes": `passes` passes over one of eight models of 600 pages, in sequence, with a popular
/// texture after every tenth page; a page of a log of results is written after each 40 pages.
fn viewperf(making: &mut Making, passes: u64) {
    let (models, textures, log) = (0, AREA, 2 * AREA);
    for pass in 0..passes {
        let model = pass * 8 / passes;
        for step in 0..60 {
            making.access(Op::Read, models + model * 600 + step * 10, 10);
            let texture = making.popular(2500);
            making.access(Op::Read, textures + texture, 1);
            if step % 4 == 3 {
                making.access(Op::Write, log + (pass * 60 + step) / 40, 1);
            }
        }
    }
}

/// "A very high locality of reads and writes": the sources are read once while a database is
/// written; then each of `queries` queries reads popular pages of the database and writes one of
/// eight files of results, again and again.
fn cscope(making: &mut Making, queries: u64) {
    let (sources, database, results) = (0, AREA, 2 * AREA);
    let pages = queries * 2;
    for place in (0..pages).step_by(16) {
        making.access(Op::Read, sources + place, 16);
        making.access(Op::Write, database + place / 2, 8);
    }
    for query in 0..queries {
        for _ in 0..20 {
            let page = making.popular(pages / 2);
            making.access(Op::Read, database + page, 1);
        }
        let pages = making.rng.between(1, 12);
        making.access(Op::Write, results + query % 8 * 64, pages);
        let page = making.popular(600);
        making.access(Op::Write, results + AREA + page, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the paper says about its traces: Viewperf writes little, and Cscope has a higher
    /// locality than GCC.
    #[test]
    fn a_stand_in_has_the_described_mix() {
        let of = |name| stand_in(name, 20, 1);
        let writes = |accesses: &Accesses| {
            let [reads, writes, _] = accesses.counts();
            writes as f64 / (reads + writes) as f64
        };
        let reuse = |accesses: &Accesses| accesses.len() as f64 / accesses.pages().len() as f64;
        let [gcc, viewperf, cscope] = Name::ALL.map(of);
        assert!(writes(&viewperf) < 0.05 && writes(&gcc) > 0.1);
        assert!(reuse(&cscope) > reuse(&gcc));
        assert_eq!(gcc.len(), of(Name::Gcc).len(), "a seed makes one trace");
    }

    #[test]
    fn a_folder_without_traces_is_refused() {
        let folder = std::env::temp_dir().join(format!("bimetal-no-traces-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let error = Traces::in_folder(&folder).unwrap_err().to_string();
        assert!(error.contains("no file is named"), "{error}");
        fs::remove_dir(&folder).unwrap();
        assert!(Traces::in_folder(&folder).is_err());
    }
}
