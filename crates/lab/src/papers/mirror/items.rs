//! The items of the hetero-mirroring paper. What the paper prints is typed in here.

use super::super::item::Unit::{
    Change, Count, MegabytesPerSecond, PerSecond, Seconds, Share, Times,
};
use super::super::item::{Experiment, Item, Kind, Source, claim};
use super::super::verdict::Printed::{Above, AtLeast, AtMost, Below, Between, Value};
use super::{
    comparison_cells, find_conclusion, find_mark, find_pairs, find_response, find_streams,
    find_throughput, mark_cells, pair_cells, stream_cells,
};

const COMPARISON: &str = "bimetal-lab mirror --seconds 300";
const FITTED: &str = "The rates and freezes of both device models were fitted to figures of this \
    paper (docs/models.md), so agreement here is not independent evidence.";

const QUEUES: &str = "Each device has a queue of its own here, with up to 32 writes, where the paper \
    has one for both. Near and above the capacity of a device, waiting in these queues decides the \
    ratio. A spike is a write that took at least 30 times as long on one device.";

/// The items of the paper.
pub const ITEMS: &[Item] = &[
    Item {
        id: "1.t1",
        kind: Kind::Table,
        title: "Unstable I/O characteristics of an SSD",
        place: "table 1, section 3.2",
        form: "table of words",
        claims: &[],
        note: "",
        source: Source::Nothing("The table names asymmetry, degradation and freezes, in words."),
    },
    Item {
        id: "1.t2",
        kind: Kind::Table,
        title: "Aims of the operation manager",
        place: "table 2, section 3.3",
        form: "table of words",
        claims: &[],
        note: "",
        source: Source::Nothing("The table lists aims, in words."),
    },
    Item {
        id: "1.t3",
        kind: Kind::Table,
        title: "Rates of the devices",
        place: "table 3, section 4.1",
        form: "table",
        claims: &[
            claim(
                "ssd_sequential_read",
                "SSD, sequential reads",
                Value(150.0),
                MegabytesPerSecond,
            ),
            claim(
                "ssd_sequential_write",
                "SSD, sequential writes",
                Value(100.0),
                MegabytesPerSecond,
            ),
            claim(
                "hdd_sequential_read",
                "disk, sequential reads",
                Value(100.0),
                MegabytesPerSecond,
            ),
            claim(
                "hdd_sequential_write",
                "disk, sequential writes",
                Value(100.0),
                MegabytesPerSecond,
            ),
        ],
        note: "The paper prints data-sheet rates. With 100 MB/s the SSD could not show the paper's \
               own saturation near 114 writes of 255 KB per second, so both fits write more slowly.",
        source: Source::Run(Experiment {
            cells: mark_cells,
            find: find_mark,
            command: "bimetal-lab run contrib/lab/hetero-mirroring/disk-mark.toml",
        }),
    },
    Item {
        id: "1.t4",
        kind: Kind::Table,
        title: "Metrics",
        place: "table 4, section 4.1",
        form: "table of words",
        claims: &[],
        note: "",
        source: Source::Nothing("The table defines throughput and response time."),
    },
    Item {
        id: "1.1",
        kind: Kind::Figure,
        title: "An SSD with 32 GB of flash",
        place: "figure 1, section 2",
        form: "photograph",
        claims: &[],
        note: "",
        source: Source::Nothing("The figure is a photograph of a drive."),
    },
    Item {
        id: "1.2",
        kind: Kind::Figure,
        title: "Boot of Windows and opening of a document on both devices",
        place: "figure 2, section 3.2",
        form: "bars",
        claims: &[
            claim("boot_disk", "boot from the disk", Value(63.0), Seconds),
            claim("boot_ssd", "boot from the SSD", Value(36.0), Seconds),
            claim(
                "document",
                "opening a document, disk over SSD",
                Value(3.0),
                Times,
            ),
        ],
        note: "",
        source: Source::NotRun(
            "The figure is a vendor's measurement of Windows on another drive, and no trace of such \
             a boot is available here.",
        ),
    },
    Item {
        id: "1.3",
        kind: Kind::Figure,
        title: "CrystalDiskMark on the disk and on the SSD",
        place: "figure 3, section 3.2",
        form: "table of rates",
        claims: &[
            claim(
                "ratio_sequential_read",
                "sequential reads, SSD over disk",
                Value(2.0),
                Times,
            ),
            claim(
                "ratio_read_512k",
                "random reads of 512 KiB, SSD over disk",
                AtLeast(4.0),
                Times,
            ),
            claim(
                "ratio_read_4k",
                "random reads of 4 KiB, SSD over disk",
                AtLeast(4.0),
                Times,
            ),
            claim(
                "ssd_write_512k",
                "random writes of 512 KiB, SSD",
                Value(31.0),
                MegabytesPerSecond,
            ),
            claim(
                "hdd_write_512k",
                "random writes of 512 KiB, disk",
                Value(35.0),
                MegabytesPerSecond,
            ),
            claim(
                "change_write_512k",
                "random writes of 512 KiB, SSD against disk",
                Value(-0.13),
                Change,
            ),
        ],
        note: FITTED,
        source: Source::Run(Experiment {
            cells: mark_cells,
            find: find_mark,
            command: "bimetal-lab run contrib/lab/hetero-mirroring/disk-mark.toml",
        }),
    },
    Item {
        id: "1.4",
        kind: Kind::Figure,
        title: "Response times of 50 write streams to one SSD",
        place: "figure 4, section 3.2",
        form: "lines",
        claims: &[],
        note: "The paper shows many peaks, and freezes that follow each other; it prints no number.",
        source: Source::Run(Experiment {
            cells: stream_cells,
            find: find_streams,
            command: "bimetal-lab papers --only 1.4",
        }),
    },
    Item {
        id: "1.5",
        kind: Kind::Figure,
        title: "Hybrid storage on a hetero-RAID",
        place: "figure 5, section 3.3",
        form: "diagram",
        claims: &[],
        note: "",
        source: Source::Nothing("The figure is a diagram of the system."),
    },
    Item {
        id: "1.6",
        kind: Kind::Figure,
        title: "Flow of the hetero-mirroring operations",
        place: "figure 6, section 3.3",
        form: "diagram",
        claims: &[],
        note: "",
        source: Source::Nothing("The figure is a flow chart of the algorithm."),
    },
    Item {
        id: "1.7",
        kind: Kind::Figure,
        title: "Throughput against load",
        place: "figure 7, section 4.2",
        form: "lines",
        claims: &[
            claim(
                "average_gain",
                "Hete-Mr over one SSD, mean of all loads",
                Value(0.178),
                Change,
            ),
            claim("peak", "peak of Hete-Mr", Value(147.0), PerSecond),
            claim(
                "mirror_peak",
                "peak of the SSD mirror",
                Value(114.0),
                PerSecond,
            ),
            claim(
                "peak_gain",
                "peak of Hete-Mr over that of the SSD mirror",
                Value(0.289),
                Change,
            ),
            claim(
                "least_over_single",
                "Hete-Mr over one SSD, least from 160/s on",
                Above,
                Change,
            ),
            claim(
                "least_over_mirror",
                "Hete-Mr over the SSD mirror, least from 160/s on",
                Above,
                Change,
            ),
            claim(
                "sinking",
                "Hete-Mr at 320/s against its own peak",
                Below,
                Change,
            ),
        ],
        note: "The paper does not name the scheme of its +17.8 %; one SSD is taken. To the letter, \
               the scheme has no bound on what only one side has, so in our runs its gain grows with \
               what it owes to the other side.",
        source: Source::Run(Experiment {
            cells: comparison_cells,
            find: find_throughput,
            command: COMPARISON,
        }),
    },
    Item {
        id: "1.8",
        kind: Kind::Figure,
        title: "Response time against load",
        place: "figure 8, section 4.2",
        form: "lines",
        claims: &[
            claim(
                "response",
                "Hete-Mr against one SSD, mean of all loads",
                Value(-0.38),
                Change,
            ),
            claim(
                "mirror_response",
                "SSD mirror against one SSD, mean of all loads",
                Value(0.05),
                Change,
            ),
        ],
        note: "In our model, freezes of two SSDs are independent, so a mirror that waits for both \
               meets nearly twice as many; a small difference needs freezes that coincide.",
        source: Source::Run(Experiment {
            cells: comparison_cells,
            find: find_response,
            command: COMPARISON,
        }),
    },
    Item {
        id: "1.9",
        kind: Kind::Figure,
        title: "Ratio of the response times of both devices for each write, at 100 writes/s",
        place: "figure 9, section 4.2",
        form: "spikes above and below a line",
        claims: &[
            claim(
                "ssd_slower",
                "highest spike on the side of the SSD",
                Between(30.0, 40.0),
                Times,
            ),
            claim(
                "disk_slower",
                "highest spike on the side of the disk",
                Between(30.0, 40.0),
                Times,
            ),
        ],
        note: QUEUES,
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 100),
            find: |scope, runs| find_pairs(scope, runs, 100),
            command: "bimetal-lab papers --only 1.9",
        }),
    },
    Item {
        id: "1.10",
        kind: Kind::Figure,
        title: "Ratio of the response times of both devices for each write, at 200 writes/s",
        place: "figure 10, section 4.2",
        form: "spikes above and below a line",
        claims: &[
            claim(
                "ssd_slower",
                "highest spike on the side of the SSD",
                Value(200.0),
                Times,
            ),
            claim(
                "balance",
                "spikes of the SSD less those of the disk, share of both",
                Above,
                Change,
            ),
        ],
        note: QUEUES,
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 200),
            find: |scope, runs| find_pairs(scope, runs, 200),
            command: "bimetal-lab papers --only 1.10",
        }),
    },
    Item {
        id: "1.c1",
        kind: Kind::Claim,
        title: "Overhead of garbage collection by the fill of the drive",
        place: "section 3.2, citing another paper",
        form: "text",
        claims: &[
            claim(
                "at_60",
                "overhead of an SSD that is 60 % full",
                Value(0.10),
                Change,
            ),
            claim(
                "at_90",
                "overhead of an SSD that is 90 % full",
                Value(0.50),
                Change,
            ),
        ],
        note: "",
        source: Source::NotRun(
            "The device models of this experiment are timing models without flash blocks; a sweep of \
             the `flash` device over its fill is not part of this report yet.",
        ),
    },
    Item {
        id: "1.c2",
        kind: Kind::Claim,
        title: "Share of the writes within the wait limit",
        place: "section 3.3, HM_WRITE step 3",
        form: "text",
        claims: &[claim(
            "within_limit",
            "writes within 1.3 times the first side's time",
            AtLeast(0.8),
            Share,
        )],
        note: QUEUES,
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 100),
            find: |scope, runs| find_pairs(scope, runs, 100),
            command: "bimetal-lab papers --only 1.c2",
        }),
    },
    Item {
        id: "1.c3",
        kind: Kind::Claim,
        title: "Gains over the SSD mirror in the conclusion",
        place: "abstract and section 5",
        form: "text",
        claims: &[
            claim(
                "gain_over_mirror",
                "throughput over the SSD mirror, mean of all loads",
                Value(0.18),
                Change,
            ),
            claim(
                "response_over_mirror",
                "response against the SSD mirror, mean of all loads",
                Value(-0.38),
                Change,
            ),
        ],
        note: "The body of the paper gives the same two figures against one SSD.",
        source: Source::Run(Experiment {
            cells: comparison_cells,
            find: find_conclusion,
            command: COMPARISON,
        }),
    },
    Item {
        id: "1.c4",
        kind: Kind::Claim,
        title: "Delayed writes lengthen the life of the SSD",
        place: "sections 3.3 and 4.2",
        form: "text",
        claims: &[claim(
            "erases",
            "erases of the SSD for each byte stored",
            Below,
            Change,
        )],
        note: "",
        source: Source::NotRun(
            "The device models of this experiment have no flash blocks, so they count no erases.",
        ),
    },
    Item {
        id: "1.c5",
        kind: Kind::Claim,
        title: "Lengths of files in use",
        place: "section 4.1",
        form: "text",
        claims: &[claim(
            "small_files",
            "files in use below 500 KB",
            AtLeast(0.96),
            Share,
        )],
        note: "",
        source: Source::NotRun(
            "The share describes the files of the author's computer; it is the reason for the load, \
             not a result.",
        ),
    },
    Item {
        id: "1.c6",
        kind: Kind::Claim,
        title: "The SSD reads over three times as fast as the disk",
        place: "section 3.3, HM_READ step 1",
        form: "text",
        claims: &[claim(
            "ratio_read_512k",
            "random reads of 512 KiB, SSD over disk",
            AtLeast(3.0),
            Times,
        )],
        note: "The paper does not say which reads; those of its benchmark at random offsets are taken.",
        source: Source::Run(Experiment {
            cells: mark_cells,
            find: find_mark,
            command: "bimetal-lab run contrib/lab/hetero-mirroring/disk-mark.toml",
        }),
    },
    Item {
        id: "1.c7",
        kind: Kind::Claim,
        title: "Both devices are never held up by the same write",
        place: "section 3.3",
        form: "text",
        claims: &[claim(
            "both_held_up",
            "writes that took over a second on both devices",
            AtMost(0.0),
            Count,
        )],
        note: "At 100 writes/s.",
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 100),
            find: |scope, runs| find_pairs(scope, runs, 100),
            command: "bimetal-lab papers --only 1.c7",
        }),
    },
    Item {
        id: "1.c8",
        kind: Kind::Claim,
        title: "Freezes of an SSD under a load of writes last several seconds",
        place: "section 3.2 and table 1",
        form: "text",
        claims: &[claim(
            "longest_s",
            "longest response on the SSD at 200 writes/s",
            AtLeast(2.0),
            Seconds,
        )],
        note: FITTED,
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 200),
            find: |scope, runs| find_pairs(scope, runs, 200),
            command: "bimetal-lab papers --only 1.c8",
        }),
    },
];
