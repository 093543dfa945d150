//! The items of the paper on an SSD under Linux. What the paper prints is typed in here.

use super::super::cell::Cell;
use super::super::folder::{Missing, Runs};
use super::super::item::Unit::{Change, Megabytes, MegabytesPerSecond, Milliseconds, Times};
use super::super::item::{Experiment, Found, Item, Kind, Source, claim};
use super::super::scope::Scope;
use super::super::verdict::Printed::{Above, Below, Between, Value};
use super::{
    both_file_systems, client_cells, dequeued, enqueued, find_bonnie, find_clients, find_counts,
    find_file_systems, find_hd_tach, find_read_ahead, find_read_ahead_counts, find_throughput,
    find_totals, find_write_cache, read_ahead_cells, scheduler_cells, stream_cells,
    write_cache_cells,
};

const fn run(
    cells: fn(&Scope) -> Vec<Cell>,
    find: fn(&Scope, &Runs) -> Result<Found, Missing>,
    command: &'static str,
) -> Source {
    Source::Run(Experiment {
        cells,
        find,
        command,
    })
}

const STREAMS_COMMAND: &str = "bimetal-lab run contrib/lab/ssd-on-linux/streams.toml";
const CLIENTS_COMMAND: &str = "bimetal-lab run contrib/lab/ssd-on-linux/clients.toml";
const SCHEDULERS_COMMAND: &str = "bimetal-lab run contrib/lab/ssd-on-linux/schedulers.toml";
const READ_AHEAD_COMMAND: &str = "bimetal-lab run contrib/lab/ssd-on-linux/read-ahead.toml";
const WRITE_CACHE_COMMAND: &str = "bimetal-lab run contrib/lab/ssd-on-linux/write-cache.toml";

/// The items of the paper.
pub const ITEMS: &[Item] = &[
    Item {
        id: "3.t1",
        kind: Kind::Table,
        title: "The system",
        place: "table 1, section 2",
        form: "table",
        claims: &[],
        note: "",
        source: Source::Nothing("The table lists the computer and the programs."),
    },
    Item {
        id: "3.t2",
        kind: Kind::Table,
        title: "Rates of the devices",
        place: "table 2, section 2",
        form: "table",
        claims: &[
            claim(
                "ssd_read",
                "SSD, sequential reads",
                Value(100.0),
                MegabytesPerSecond,
            ),
            claim(
                "ssd_write",
                "SSD, sequential writes",
                Value(80.0),
                MegabytesPerSecond,
            ),
            claim(
                "hdd_read",
                "disk, sequential reads",
                Value(150.0),
                MegabytesPerSecond,
            ),
            claim(
                "hdd_write",
                "disk, sequential writes",
                Value(93.0),
                MegabytesPerSecond,
            ),
        ],
        note: "The table has the disk read faster than the SSD, which contradicts the paper's figure \
               2. Our SSD follows its figure 1 and its text (four buses of 40 MB/s, an interface of \
               150 MB/s), our disk its kind.",
        source: run(stream_cells, find_bonnie, STREAMS_COMMAND),
    },
    Item {
        id: "3.t3",
        kind: Kind::Table,
        title: "Postmark loads and their totals",
        place: "table 3, section 2",
        form: "table",
        claims: &[
            claim("SS_read", "SS, read", Value(630.0), Megabytes),
            claim("SS_written", "SS, written", Value(755.0), Megabytes),
            claim("SL_read", "SL, read", Value(600.0), Megabytes),
            claim("SL_written", "SL, written", Value(1800.0), Megabytes),
            claim("LS_read", "LS, read", Value(9700.0), Megabytes),
            claim("LS_written", "LS, written", Value(12_000.0), Megabytes),
            claim("LL_read", "LL, read", Value(9000.0), Megabytes),
            claim("LL_written", "LL, written", Value(17_000.0), Megabytes),
        ],
        note: "",
        source: run(scheduler_cells, find_totals, SCHEDULERS_COMMAND),
    },
    Item {
        id: "3.1",
        kind: Kind::Figure,
        title: "Structure of an SSD",
        place: "figure 1, section 1",
        form: "diagram",
        claims: &[],
        note: "",
        source: Source::Nothing("The figure is a diagram. Our SSD has this structure."),
    },
    Item {
        id: "3.2",
        kind: Kind::Figure,
        title: "Bonnie++",
        place: "figure 2, section 3.1",
        form: "bars",
        claims: &[
            claim(
                "reads",
                "reads by blocks, SSD over disk",
                Between(2.0, 3.0),
                Times,
            ),
            claim(
                "writes",
                "writes by blocks, SSD over disk",
                Between(2.0, 3.0),
                Times,
            ),
            claim(
                "blocks",
                "SSD: reads by blocks over reads by characters",
                Value(1.5),
                Times,
            ),
            claim(
                "rewrite",
                "SSD: rewriting against writing by blocks",
                Below,
                Change,
            ),
        ],
        note: "",
        source: run(stream_cells, find_bonnie, STREAMS_COMMAND),
    },
    Item {
        id: "3.3",
        kind: Kind::Figure,
        title: "HD Tach",
        place: "figure 3, section 3.2",
        form: "lines",
        claims: &[
            claim(
                "hdd_fall",
                "disk: rate at the end against the beginning",
                Below,
                Change,
            ),
            claim(
                "ssd_flat",
                "SSD: rate at the end over the beginning",
                Value(1.0),
                Times,
            ),
            claim("hdd_access", "disk: access time", Value(16.5), Milliseconds),
            claim("ssd_access", "SSD: access time", Value(0.1), Milliseconds),
        ],
        note: "A new SSD answers for pages that were never written without reading flash, so its \
               access time lacks the time of the cells.",
        source: run(stream_cells, find_hd_tach, STREAMS_COMMAND),
    },
    Item {
        id: "3.4",
        kind: Kind::Figure,
        title: "Dbench by the number of clients",
        place: "figure 4, section 3.3",
        form: "lines",
        claims: &[
            claim(
                "one_client",
                "disk: one client against the best other number",
                Above,
                Change,
            ),
            claim("ten_clients", "SSD: ten clients against one", Above, Change),
            claim("falling", "SSD: sixty clients against ten", Below, Change),
            claim("flat", "SSD: sixty clients over forty", Value(1.0), Times),
            claim(
                "cfq",
                "SSD, ten clients: CFQ against the best other scheduler",
                Above,
                Change,
            ),
        ],
        note: "The paper explains the fall and the flat end by context switches. Our programs do not \
               compete for processors, and more clients share a commit of the journal.",
        source: run(client_cells, find_clients, CLIENTS_COMMAND),
    },
    Item {
        id: "3.5",
        kind: Kind::Figure,
        title: "Requests that the file system enqueues",
        place: "figure 5, section 3.4.1",
        form: "bars",
        claims: &[
            claim("ext3", "ext3 over ext2", Above, Times),
            claim("same_ext2", "ext2: disk over SSD", Value(1.0), Times),
            claim("same_ext3", "ext3: disk over SSD", Value(1.0), Times),
        ],
        note: "The paper names the journal as the cause. In ours, ext3 submits a request for each \
               page, and ext2 one for up to 128 pages.",
        source: run(
            scheduler_cells,
            |scope, runs| find_counts(scope, runs, enqueued),
            SCHEDULERS_COMMAND,
        ),
    },
    Item {
        id: "3.6",
        kind: Kind::Figure,
        title: "Requests that the device receives",
        place: "figure 6, section 3.4.1",
        form: "bars",
        claims: &[
            claim("merged", "ext3: dequeued against enqueued", Below, Change),
            claim("same_ext2", "ext2: disk over SSD", Value(1.0), Times),
            claim("same_ext3", "ext3: disk over SSD", Value(1.0), Times),
        ],
        note: "",
        source: run(
            scheduler_cells,
            |scope, runs| find_counts(scope, runs, dequeued),
            SCHEDULERS_COMMAND,
        ),
    },
    Item {
        id: "3.7",
        kind: Kind::Figure,
        title: "Throughput by scheduler and file system",
        place: "figure 7, section 3.4.1",
        form: "bars",
        claims: &[
            claim(
                "schedulers_ext2",
                "ext2: best over worst scheduler",
                Value(1.0),
                Times,
            ),
            claim(
                "schedulers_ext3",
                "ext3: best over worst scheduler",
                Value(1.0),
                Times,
            ),
            claim("ext3", "ext3 over ext2", Value(1.0), Times),
        ],
        note: "The paper calls the differences negligible, which is taken as a ratio of 1.",
        source: run(scheduler_cells, find_throughput, SCHEDULERS_COMMAND),
    },
    Item {
        id: "3.8",
        kind: Kind::Figure,
        title: "Read-ahead on and off",
        place: "figure 8, section 3.4.2",
        form: "bars",
        claims: &[
            claim(
                "hdd",
                "disk: with read-ahead over without",
                Value(10.0),
                Times,
            ),
            claim(
                "ssd",
                "SSD: without read-ahead against with",
                Value(-0.12),
                Change,
            ),
        ],
        note: "The disk's own look-ahead decides: the 10 of the paper lies between our disks with and \
               without it.",
        source: run(read_ahead_cells, find_read_ahead, READ_AHEAD_COMMAND),
    },
    Item {
        id: "3.9",
        kind: Kind::Figure,
        title: "Number of requests without read-ahead",
        place: "figure 9, section 3.4.2",
        form: "bars",
        claims: &[
            claim(
                "ext2",
                "ext2: without read-ahead over with",
                Between(10.0, 15.0),
                Times,
            ),
            claim(
                "ext3",
                "ext3: without read-ahead over with",
                Between(10.0, 15.0),
                Times,
            ),
        ],
        note: "",
        source: run(
            both_file_systems,
            find_read_ahead_counts,
            READ_AHEAD_COMMAND,
        ),
    },
    Item {
        id: "3.10",
        kind: Kind::Figure,
        title: "Write-back against write-through",
        place: "figure 10, section 3.4.3",
        form: "bars",
        claims: &[
            claim(
                "hdd",
                "disk: write-back against write-through",
                Value(0.25),
                Change,
            ),
            claim(
                "ssd",
                "SSD: write-back against write-through",
                Value(0.05),
                Change,
            ),
        ],
        note: "",
        source: run(write_cache_cells, find_write_cache, WRITE_CACHE_COMMAND),
    },
    Item {
        id: "3.11",
        kind: Kind::Figure,
        title: "File systems by load",
        place: "figure 11, section 3.4.4",
        form: "bars",
        claims: &[
            claim(
                "ext2_on_ss",
                "SS: ext2 against the best other",
                Above,
                Change,
            ),
            claim("ext3_on_ls", "LS: ext3 against ext2", Above, Change),
            claim("ext3_on_ll", "LL: ext3 against ext2", Above, Change),
        ],
        note: "Our queue merges the pages of ext3 again, so the drive sees nearly the same requests.",
        source: run(scheduler_cells, find_file_systems, SCHEDULERS_COMMAND),
    },
    Item {
        id: "3.c1",
        kind: Kind::Claim,
        title: "Parallel chips: writes gain about 8 times, reads about 4 times",
        place: "section 1",
        form: "text",
        claims: &[
            claim(
                "writes_gain",
                "writes, all chips over one",
                Value(8.0),
                Times,
            ),
            claim("reads_gain", "reads, all buses over one", Value(4.0), Times),
        ],
        note: "",
        source: Source::NotRun(
            "A plan that varies the chips and buses of the device does not exist yet.",
        ),
    },
    Item {
        id: "3.c2",
        kind: Kind::Claim,
        title: "Read-ahead still gains about 12 % on an SSD",
        place: "section 4",
        form: "text",
        claims: &[claim(
            "ssd",
            "SSD: without read-ahead against with",
            Value(-0.12),
            Change,
        )],
        note: "The conclusion repeats figure 8.",
        source: run(read_ahead_cells, find_read_ahead, READ_AHEAD_COMMAND),
    },
    Item {
        id: "3.c3",
        kind: Kind::Claim,
        title: "A scheduler considerably reduces the requests of a journal",
        place: "section 4",
        form: "text",
        claims: &[claim(
            "merged",
            "ext3: dequeued against enqueued",
            Below,
            Change,
        )],
        note: "",
        source: run(
            scheduler_cells,
            |scope, runs| find_counts(scope, runs, dequeued),
            SCHEDULERS_COMMAND,
        ),
    },
];
