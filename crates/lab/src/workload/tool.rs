//! Loads that well-known external programs make: `postmark`, `dbench`, `bonnie++` and `fio`, as
//! packaged in Debian.
//!
//! External programs check the loads of this project: a program makes the same load, with the same
//! parameters, on the same device, and the report compares both results. The programs make system
//! calls, so they need a real kernel. The format of their output can change: unexpected output must
//! end the run with an error that describes the output, and must never become a metric.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::requests::Pattern;
use super::{Measured, Resolved, named, postmark};
use crate::layer::LoadError;

/// A load that an external program makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// The same load as implemented in this project.
    pub of: Box<Resolved>,
}

/// One execution of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Name of the program.
    pub program: &'static str,
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// Standard input of the program.
    pub input: String,
}

/// Output of a program, and the times at which it was printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// The whole output.
    pub text: String,
    /// For each read of the output, the total length read so far, and the time in ns since the
    /// start of the program.
    pub seen: Vec<(usize, u64)>,
}

impl Printed {
    /// Returns the time in ns at which a word of the output was read completely.
    fn at_ns(&self, word: &str) -> Result<u64, String> {
        let from = self
            .text
            .find(word)
            .ok_or_else(|| format!("it did not print `{word}`"))?;
        let seen = self
            .seen
            .iter()
            .find(|(bytes, _)| *bytes >= from + word.len());
        Ok(seen.map_or(0, |(_, at_ns)| *at_ns))
    }
}

impl Tool {
    /// Creates the tool (an external program) that makes the load `of`.
    ///
    /// # Errors
    /// A message, if no external program can make the load.
    pub fn new(of: Resolved) -> Result<Tool, String> {
        match &of {
            Resolved::Postmark(load) if load.sync != postmark::Sync::Removal => Err(
                "postmark syncs nothing before its files are removed: its load needs `sync = \"removal\"`"
                    .to_owned(),
            ),
            Resolved::Clients(load) if load.script.is_none() => {
                Err("dbench executes a load file: its load needs a `script`".to_owned())
            }
            Resolved::Requests(load) if load.steady => {
                Err("fio makes one round: its load must not be `steady`".to_owned())
            }
            Resolved::Stream(load) if load.bytes < BONNIE_BYTES_MIN => {
                Err("bonnie++ needs files of at least 4 MiB".to_owned())
            }
            Resolved::Postmark(_)
            | Resolved::Clients(_)
            | Resolved::Requests(_)
            | Resolved::Stream(_) => Ok(Tool { of: Box::new(of) }),
            Resolved::Sweep(_) | Resolved::Replay(_) | Resolved::Tool(_) => {
                Err("there is a program for `postmark`, `clients`, `stream` and `requests` only".to_owned())
            }
        }
    }

    /// Returns the name of the program, and the name of its package.
    pub fn program(&self) -> (&'static str, &'static str) {
        match *self.of {
            Resolved::Postmark(_) => ("postmark", "postmark"),
            Resolved::Clients(_) => ("dbench", "dbench"),
            Resolved::Stream(_) => ("bonnie++", "bonnie++"),
            _ => ("fio", "fio"),
        }
    }

    /// Checks that the files that the program needs exist and have the checksums of the plan.
    ///
    /// # Errors
    /// A description of the problem.
    pub(crate) fn check_files(&self) -> Result<(), LoadError> {
        match &*self.of {
            Resolved::Clients(load) => load.script().map(drop),
            _ => Ok(()),
        }
    }

    /// Returns the executions of the program, in order. `place` is a folder, or the path of a
    /// device of `device_bytes` bytes.
    pub fn steps(&self, place: &Path, device_bytes: u64, seed: u64) -> Vec<Step> {
        let program = self.program().0;
        let step = |arguments: Vec<String>| Step {
            program,
            arguments,
            input: String::new(),
        };
        let place = place.display().to_string();
        match &*self.of {
            Resolved::Postmark(load) => vec![Step {
                program,
                arguments: Vec::new(),
                input: format!(
                    "set location {place}\nset number {}\nset size {} {}\nset transactions {}\nset seed {seed}\nrun\nquit\n",
                    load.files, load.low_bytes, load.high_bytes, load.transactions
                ),
            }],
            Resolved::Clients(load) => {
                // The program runs in a different working directory, so the path must be absolute.
                let script = load.script.clone().unwrap_or_default();
                let script = std::path::absolute(&script).unwrap_or(script);
                let script = script.display().to_string();
                let of = |count: &u32| {
                    step(words(
                        &format!("-t {} -D", load.seconds),
                        [
                            place.clone(),
                            "-c".to_owned(),
                            script.clone(),
                            count.to_string(),
                        ],
                    ))
                };
                load.counts.iter().map(of).collect()
            }
            Resolved::Stream(load) => {
                // bonnie++ requires that the file is twice as long as the memory size in its option
                // `-r`.
                let mib = load.bytes >> 20;
                let options = format!(
                    "-q -n 0 -u root -s {mib} -r {} -z {seed} -m bimetal -d",
                    mib / 2
                );
                vec![step(words(&options, [place]))]
            }
            Resolved::Requests(load) => {
                let order = match load.pattern {
                    Pattern::Read => "read",
                    Pattern::Write => "write",
                    Pattern::RandomRead => "randread",
                    Pattern::RandomWrite => "randwrite",
                };
                let span = match load.span_bytes {
                    0 => device_bytes,
                    bytes => bytes.min(device_bytes),
                };
                let options = format!(
                    "--name=requests --ioengine=io_uring --direct=1 --norandommap --output-format=json --rw={order} --bs={} \
                     --iodepth={} --size={span} --number_ios={} --randseed={seed}",
                    load.request_bytes, load.depth, load.count
                );
                // In a file name, fio treats a colon as a separator of several names.
                let file = format!("--filename={}", place.replace(':', "\\:"));
                vec![step(words(&options, [file]))]
            }
            Resolved::Sweep(_) | Resolved::Replay(_) | Resolved::Tool(_) => Vec::new(),
        }
    }

    /// Parses the metrics from the output of all executions. `sync_ns` is the duration of the sync
    /// that followed the executions.
    ///
    /// # Errors
    /// A description of unexpected or missing output.
    pub fn measured(&self, printed: &[Printed], sync_ns: u64) -> Result<Measured, String> {
        match (&*self.of, printed) {
            (Resolved::Postmark(load), [printed]) => {
                let begun_ns = printed.at_ns("Performing transactions")?;
                let ended_ns = printed.at_ns("Deleting files")?;
                let seconds = (ended_ns.saturating_sub(begun_ns) + sync_ns) as f64 / 1e9;
                let figures = [("transactions_s", seconds)];
                of(
                    load.transactions as f64 / seconds,
                    "transactions/s",
                    &figures,
                )
            }
            (Resolved::Clients(load), all) if all.len() == load.counts.len() => {
                let (mut figures, mut curve) = (BTreeMap::new(), Vec::new());
                for (count, printed) in load.counts.iter().zip(all) {
                    let rate = throughput(&printed.text)?;
                    figures.insert(format!("with_{count}_mb_per_s"), rate);
                    curve.push((f64::from(*count), rate));
                }
                let best = curve.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
                Ok(Measured {
                    curves: [("MB/s against clients".to_owned(), curve)].into(),
                    figures,
                    ..of(best, "MB/s", &[])?
                })
            }
            (Resolved::Stream(_), [printed]) => bonnie(&printed.text),
            (Resolved::Requests(_), [printed]) => fio(&printed.text),
            _ => Err("the number of outputs was not expected".to_owned()),
        }
    }
}

/// Minimum file size in bytes for bonnie++, whose file size and memory size must be whole numbers
/// of MiB; the memory size is half of the file size.
const BONNIE_BYTES_MIN: u64 = 4 << 20;

fn words<const N: usize>(options: &str, rest: [String; N]) -> Vec<String> {
    let options = options.split_whitespace().map(str::to_owned);
    options.chain(rest).collect()
}

fn of(value: f64, unit: &str, figures: &[(&str, f64)]) -> Result<Measured, String> {
    if !value.is_finite() || value <= 0.0 {
        return Err(format!("it measured {value} {unit}"));
    }
    Ok(Measured {
        value,
        unit: unit.to_owned(),
        figures: named(figures),
        curves: BTreeMap::new(),
    })
}

/// Parses the last line of dbench:
/// `Throughput 41.3 MB/sec  4 clients  4 procs  max_latency=9.1 ms`. Returns the rate in millions
/// of bytes per second.
fn throughput(text: &str) -> Result<f64, String> {
    let rest = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("Throughput "));
    let rate = rest
        .and_then(|rest| rest.split(' ').next())
        .and_then(|rate| rate.parse::<f64>().ok());
    Ok(rate.ok_or("it printed no throughput")?)
}

/// Fields of the line that bonnie++ prints (format 1.98), with rates in KiB per second, and the
/// names of the corresponding metrics.
const BONNIE: [(usize, &str); 5] = [
    (9, "write_characters_mb_per_s"),
    (11, "write_blocks_mb_per_s"),
    (13, "rewrite_mb_per_s"),
    (15, "read_characters_mb_per_s"),
    (17, "read_blocks_mb_per_s"),
];
const BONNIE_SEEKS: usize = 19;

fn bonnie(text: &str) -> Result<Measured, String> {
    let line = text
        .lines()
        .find(|line| line.starts_with("1.98,"))
        .ok_or("it printed no line of format 1.98")?;
    let fields: Vec<&str> = line.split(',').collect();
    // bonnie++ prints `+++++` or an empty field for a measurement that was too short.
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    let rates = BONNIE
        .iter()
        .filter_map(|(at, name)| Some((*name, number(*at)? * 1024.0 / 1e6)));
    let mut figures: Vec<(&str, f64)> = rates.collect();
    figures.extend(number(BONNIE_SEEKS).map(|seeks| ("seeks_per_s", seeks)));
    let main = figures
        .iter()
        .find(|(name, _)| *name == "read_blocks_mb_per_s");
    let (_, value) =
        main.ok_or("its reads by blocks were too short to be measured: the file must be larger")?;
    of(*value, "MB/s", &figures)
}

/// The fields of fio's JSON output that are used.
#[derive(Deserialize)]
struct Fio {
    jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct FioJob {
    error: i64,
    read: FioSide,
    write: FioSide,
}

#[derive(Deserialize)]
struct FioSide {
    total_ios: u64,
    iops: f64,
    bw_bytes: f64,
    clat_ns: FioLatency,
}

#[derive(Deserialize)]
struct FioLatency {
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

fn fio(text: &str) -> Result<Measured, String> {
    let from = text.find('{').ok_or("it printed no JSON")?;
    let read: Fio = serde_json::from_str(&text[from..]).map_err(|error| error.to_string())?;
    let [job] = read.jobs.as_slice() else {
        return Err(format!("it has {} jobs", read.jobs.len()));
    };
    if job.error != 0 {
        return Err(format!("its job ended with error {}", job.error));
    }
    let side = if job.read.total_ios > 0 {
        &job.read
    } else {
        &job.write
    };
    let mut figures = vec![("mb_per_s", side.bw_bytes / 1e6)];
    for (of, name) in [
        ("50.000000", "latency_p50_ms"),
        ("99.000000", "latency_p99_ms"),
    ] {
        figures.extend(side.clat_ns.percentile.get(of).map(|ns| (name, ns / 1e6)));
    }
    of(side.iops, "requests/s", &figures)
}

#[cfg(test)]
mod tests {
    use super::super::{clients::Clients, requests::Requests, stream::Stream};
    use super::*;
    use crate::workload::postmark::{Postmark, Sync};

    fn mail(sync: Sync) -> Resolved {
        Resolved::Postmark(Postmark {
            sync,
            ..Postmark::new(9216, 15_360, 500, 5000)
        })
    }

    fn printed(text: &str) -> Printed {
        Printed {
            text: text.to_owned(),
            seen: vec![(text.len(), 1)],
        }
    }

    fn clients(script: Option<&str>) -> Resolved {
        Resolved::Clients(Clients {
            counts: vec![1, 4],
            seconds: 30,
            script: script.map(Into::into),
            crc32c: None,
        })
    }

    fn requests(pattern: Pattern, span_bytes: u64) -> Resolved {
        Resolved::Requests(Requests {
            pattern,
            request_bytes: 4096,
            depth: 4,
            span_bytes,
            count: 5000,
            steady: false,
        })
    }

    #[test]
    fn a_program_is_told_the_numbers_of_the_load() {
        let steps = |of: Resolved| Tool::new(of).unwrap().steps(Path::new("/m"), 1 << 30, 7);
        let orders = &steps(mail(Sync::Removal))[0];
        assert_eq!((orders.program, orders.arguments.len()), ("postmark", 0));
        assert_eq!(
            orders.input,
            "set location /m\nset number 500\nset size 9216 15360\nset transactions 5000\nset seed 7\nrun\nquit\n"
        );
        let shown: Vec<String> = steps(clients(Some("/c.txt")))
            .iter()
            .map(|step| format!("{} {}", step.program, step.arguments.join(" ")))
            .collect();
        assert_eq!(
            shown,
            [
                "dbench -t 30 -D /m -c /c.txt 1",
                "dbench -t 30 -D /m -c /c.txt 4"
            ]
        );
        let file = &steps(Resolved::Stream(Stream {
            bytes: 64 << 20,
            seeks: 10,
        }))[0];
        assert_eq!(
            file.arguments.join(" "),
            "-q -n 0 -u root -s 64 -r 32 -z 7 -m bimetal -d /m"
        );
        // fio gets the size of the whole device, or of the part of the device that the load uses.
        for (span_bytes, size) in [(0, "--size=1073741824"), (1 << 20, "--size=1048576")] {
            let arguments = steps(requests(Pattern::RandomWrite, span_bytes))
                .remove(0)
                .arguments;
            for wanted in [size, "--rw=randwrite", "--number_ios=5000", "--filename=/m"] {
                assert!(
                    arguments.iter().any(|word| word == wanted),
                    "{wanted}: {arguments:?}"
                );
            }
        }
    }

    #[test]
    fn what_a_program_cannot_do_is_refused() {
        for (load, word) in [
            (mail(Sync::Transactions), "sync"),
            (clients(None), "script"),
            (
                Resolved::Stream(Stream {
                    bytes: 1 << 20,
                    seeks: 1,
                }),
                "4 MiB",
            ),
        ] {
            let why = Tool::new(load).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }

    /// The output is that of postmark 1.53, with invented times: 2 s of transactions, and half a
    /// second of sync.
    #[test]
    fn postmark_is_timed_by_its_words() {
        let pieces = [
            ("pm>Creating files...", 10_u64),
            ("Done\nPerforming transactions", 1_000_000_000),
            (".", 2_000_000_000),
            (".", 2_500_000_000),
            ("Done\nDeleting files...", 3_000_000_000),
            ("Done\nTime:\n\t1 seconds total\n", 9_000_000_000),
        ];
        let mut all = Printed::default();
        for (piece, at_ns) in pieces {
            all.text.push_str(piece);
            all.seen.push((all.text.len(), at_ns));
        }
        let tool = Tool::new(mail(Sync::Removal)).unwrap();
        let measured = tool.measured(&[all], 500_000_000).unwrap();
        assert_eq!(measured.value, 5000.0 / 2.5);
        let why = tool
            .measured(&[printed("pm>no such command")], 0)
            .unwrap_err();
        assert!(why.contains("Performing"), "{why}");
    }

    /// The output ends with the last lines of dbench 4.0.
    #[test]
    fn dbench_has_a_rate_for_each_number_of_clients() {
        let of = |rate: &str| {
            printed(&format!(
                " Flush           2348     0.570     7.741\n\nThroughput {rate} MB/sec  2 clients  2 procs  max_latency=8.165 ms\n"
            ))
        };
        let tool = Tool::new(clients(Some("/c.txt"))).unwrap();
        let measured = tool.measured(&[of("100.5"), of("545.797")], 0).unwrap();
        assert_eq!(
            (measured.value, measured.figures["with_1_mb_per_s"]),
            (545.797, 100.5)
        );
        assert_eq!(
            measured.curves["MB/s against clients"],
            [(1.0, 100.5), (4.0, 545.797)]
        );
        let why = tool
            .measured(&[of("1"), printed("Badly formed status")], 0)
            .unwrap_err();
        assert!(why.contains("throughput"), "{why}");
    }

    /// The output is lines of bonnie++ 2.00a (format 1.98). Rates are in KiB/s, and plus signs mean
    /// a measurement that was too short.
    #[test]
    fn bonnie_has_the_rates_that_were_measured() {
        let tool = Tool::new(Resolved::Stream(Stream {
            bytes: 64 << 20,
            seeks: 10,
        }))
        .unwrap();
        let line = |block: &str| {
            printed(&format!(
                "1.98,2.00a,bimetal,1,42,64M,,8192,5,1000,99,+++++,+++,2000,50,2229,99,{block},80,300,9,,,\n"
            ))
        };
        let measured = tool.measured(&[line("500000")], 0).unwrap();
        assert_eq!((measured.value, measured.unit.as_str()), (512.0, "MB/s"));
        assert_eq!(measured.figures["write_characters_mb_per_s"], 1.024);
        assert_eq!(measured.figures["rewrite_mb_per_s"], 2.048);
        assert_eq!(measured.figures["seeks_per_s"], 300.0);
        assert!(!measured.figures.contains_key("write_blocks_mb_per_s"));
        assert!(
            tool.measured(&[line("+++++")], 0)
                .unwrap_err()
                .contains("larger")
        );
    }

    /// The text contains the parsed parts of the output of fio 3.33.
    #[test]
    fn fio_says_how_many_and_how_long() {
        let text = r#"note
{"jobs": [{"jobname": "requests", "error": 0,
  "read": {"total_ios": 5000, "iops": 39062.5, "bw_bytes": 160000000,
           "clat_ns": {"percentile": {"50.000000": 93696, "99.000000": 129536}}},
  "write": {"total_ios": 0, "iops": 0.0, "bw_bytes": 0, "clat_ns": {"min": 0, "max": 0}}}]}"#;
        let tool = Tool::new(requests(Pattern::RandomRead, 0)).unwrap();
        let measured = tool.measured(&[printed(text)], 0).unwrap();
        assert_eq!(
            (measured.value, measured.figures["mb_per_s"]),
            (39062.5, 160.0)
        );
        assert_eq!(measured.figures["latency_p50_ms"], 0.093_696);
        let failed = text.replace("\"error\": 0", "\"error\": 5");
        assert!(
            tool.measured(&[printed(&failed)], 0)
                .unwrap_err()
                .contains("error 5")
        );
        assert!(tool.measured(&[printed("fio: no")], 0).is_err());
    }
}
