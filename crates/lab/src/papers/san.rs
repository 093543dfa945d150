//! Source 5: the paper on a SAN for fast storage (Lee).
//!
//! Its measurements are of real time over a network. They are made by the benchmarks, which are
//! another program, so this report lists the items and runs none of them.

use super::item::Unit::{Change, Microseconds, Times};
use super::item::{Item, Kind, Source, claim, diagram};
use super::verdict::Printed::{Above, AtLeast, Below, Value};

const BENCHMARK: &str = "The figure is a measurement of real time, which the benchmark brp makes \
    (docs/brp.md has its results); this report runs in virtual time only.";
const HARDWARE: &str = "The measurement needs an SRP target, an InfiniBand adapter and an SSD of \
    DRAM; the path of the SCSI layer is not part of this project.";

/// The items of the paper.
pub const ITEMS: &[Item] = &[
    Item {
        id: "5.t1",
        kind: Kind::Table,
        title: "Hardware of the SAN",
        place: "table 1, section 5",
        form: "table",
        claims: &[],
        note: "",
        source: Source::Nothing("The table lists processors, memory, the drive and the adapter."),
    },
    Item {
        id: "5.t2",
        kind: Kind::Table,
        title: "Latency of the I/O path",
        place: "table 2, section 5",
        form: "table",
        claims: &[
            claim("srp_read", "read under SRP", Value(63.0), Microseconds),
            claim("brp_read", "read under BRP", Value(43.0), Microseconds),
            claim("read", "read, BRP against SRP", Value(-0.317), Change),
            claim(
                "srp_read_path",
                "read under SRP without the device",
                Value(51.0),
                Microseconds,
            ),
            claim(
                "brp_read_path",
                "read under BRP without the device",
                Value(31.0),
                Microseconds,
            ),
            claim(
                "read_path",
                "read without the device, BRP against SRP",
                Value(-0.392),
                Change,
            ),
            claim("srp_write", "write under SRP", Value(75.0), Microseconds),
            claim("brp_write", "write under BRP", Value(54.0), Microseconds),
            claim("write", "write, BRP against SRP", Value(-0.28), Change),
            claim(
                "srp_write_path",
                "write under SRP without the device",
                Value(62.0),
                Microseconds,
            ),
            claim(
                "brp_write_path",
                "write under BRP without the device",
                Value(41.0),
                Microseconds,
            ),
            claim(
                "write_path",
                "write without the device, BRP against SRP",
                Value(-0.338),
                Change,
            ),
        ],
        note: "",
        source: Source::NotRun(HARDWARE),
    },
    diagram(
        "5.1",
        "The traditional path of a SAN",
        "figure 1, section 2",
    ),
    diagram(
        "5.2",
        "Options of a target for the local SCSI subsystem",
        "figure 2, section 2",
    ),
    diagram(
        "5.3",
        "The path without a SCSI layer",
        "figure 3, section 3.1",
    ),
    diagram(
        "5.4",
        "Parallel processing with work threads",
        "figure 4, section 3.2",
    ),
    diagram(
        "5.5",
        "RDMA transfers without and with temporal merge",
        "figure 5, section 3.3",
    ),
    diagram(
        "5.6",
        "Structures of the Block-RDMA Protocol",
        "figure 6, section 4.1",
    ),
    Item {
        id: "5.7",
        kind: Kind::Figure,
        title: "Random small writes against the number of threads",
        place: "figure 7, section 5",
        form: "lines",
        claims: &[
            claim("short_path", "BRP-1 over SRP", Above, Times),
            claim(
                "flat",
                "BRP-1 at 128 threads over 16 threads",
                Value(1.0),
                Times,
            ),
            claim("parallel", "BRP-2 over BRP-1 at 128 threads", Above, Times),
            claim(
                "merge_few",
                "BRP-3T over BRP-2 with few threads",
                Below,
                Times,
            ),
            claim(
                "merge_many",
                "BRP-3T over BRP-2 from 128 threads on",
                Above,
                Times,
            ),
        ],
        note: "",
        source: Source::NotRun(BENCHMARK),
    },
    Item {
        id: "5.c1",
        kind: Kind::Claim,
        title: "Over 200 % more bandwidth for small random I/O",
        place: "abstract and section 6",
        form: "text",
        claims: &[claim(
            "bandwidth",
            "bandwidth with all three ideas over SRP",
            AtLeast(2.0),
            Change,
        )],
        note: "Whether 200 % more or 200 % of it is meant is not clear.",
        source: Source::NotRun(BENCHMARK),
    },
    Item {
        id: "5.c2",
        kind: Kind::Claim,
        title: "The default elevator, CFQ, is a large cost on fast storage",
        place: "section 5",
        form: "text",
        claims: &[claim(
            "cfq",
            "SRP with CFQ against SRP with the no-op elevator",
            Below,
            Change,
        )],
        note: "",
        source: Source::NotRun(HARDWARE),
    },
    Item {
        id: "5.c3",
        kind: Kind::Claim,
        title: "A path shorter by over 30 %",
        place: "section 5",
        form: "text",
        claims: &[claim(
            "path",
            "time of the path, BRP against SRP",
            Value(-0.3),
            Change,
        )],
        note: "",
        source: Source::NotRun(HARDWARE),
    },
];
