//! Source 3: the paper on an SSD under Linux (Min and Shin 2008).
//!
//! The runs are those of the plans `contrib/lab/ssd-on-linux`, which `bimetal-lab run` executes.

mod items;

use super::cell::{Cell, Raw};
use super::folder::{Missing, Runs};
use super::item::{BarValue, Drawing, Found, Line, Reading, bar, mean_curve};
use super::plans::{self, PlanText, has};
use super::scope::{Scale, Scope};
use crate::outcome::Outcome;
use crate::plan::Choice;

pub use items::ITEMS;

const STREAMS: PlanText = PlanText {
    name: "streams",
    text: include_str!("../../../../../contrib/lab/ssd-on-linux/streams.toml"),
    small: plans::SCALED_DOWN,
};
const CLIENTS: PlanText = PlanText {
    name: "clients",
    text: include_str!("../../../../../contrib/lab/ssd-on-linux/clients.toml"),
    small: &[("time = \"20s\"", "time = \"1s\"")],
};
const SCHEDULERS: PlanText = PlanText {
    name: "schedulers",
    text: include_str!("../../../../../contrib/lab/ssd-on-linux/schedulers.toml"),
    small: plans::SCALED_DOWN,
};
const READ_AHEAD: PlanText = PlanText {
    name: "read-ahead",
    text: include_str!("../../../../../contrib/lab/ssd-on-linux/read-ahead.toml"),
    // With less memory, programs wait for the writing of dirty pages most of the time.
    small: &[
        ("\nseed = 1\n", "\nseed = 1\nscale = 0.004\n"),
        ("memory = \"1GiB\"", "memory = \"2GiB\""),
    ],
};
const WRITE_CACHE: PlanText = PlanText {
    name: "write-cache",
    text: include_str!("../../../../../contrib/lab/ssd-on-linux/write-cache.toml"),
    small: plans::SCALED_DOWN,
};

const SCHEDULER_NAMES: [&str; 4] = ["cfq", "noop", "deadline", "anticipatory"];
const LOADS: [&str; 4] = ["SS", "SL", "LS", "LL"];
const DEVICES: [&str; 2] = ["hdd", "ssd"];

type Values = Result<Vec<f64>, Missing>;

fn value_of(outcome: &Outcome) -> f64 {
    outcome.measured.value
}

fn enqueued(outcome: &Outcome) -> f64 {
    (outcome.reads.bios + outcome.writes.bios) as f64
}

fn dequeued(outcome: &Outcome) -> f64 {
    (outcome.reads.issued + outcome.writes.issued) as f64
}

fn figure(name: &'static str) -> impl Fn(&Outcome) -> f64 {
    move |outcome| {
        outcome
            .measured
            .figures
            .get(name)
            .copied()
            .unwrap_or(f64::NAN)
    }
}

/// Divides the values of two cells, seed by seed.
fn ratios(above: &[f64], below: &[f64]) -> Vec<f64> {
    above.iter().zip(below).map(|(a, b)| a / b).collect()
}

fn changes(above: &[f64], below: &[f64]) -> Vec<f64> {
    ratios(above, below)
        .iter()
        .map(|ratio| ratio - 1.0)
        .collect()
}

fn add(reading: &mut Reading, key: &str, values: Vec<f64>) {
    for value in values {
        reading.push(key, value);
    }
}

/// Returns the largest value of each seed among several cells.
fn best(of: &[Vec<f64>]) -> Vec<f64> {
    let seeds = of.first().map_or(0, Vec::len);
    let at = |seed: usize| {
        of.iter()
            .map(|values| values[seed])
            .fold(f64::MIN, f64::max)
    };
    (0..seeds).map(at).collect()
}

fn least(of: &[Vec<f64>]) -> Vec<f64> {
    let seeds = of.first().map_or(0, Vec::len);
    let at = |seed: usize| {
        of.iter()
            .map(|values| values[seed])
            .fold(f64::MAX, f64::min)
    };
    (0..seeds).map(at).collect()
}

fn bars<'n>(
    title: &str,
    y: &str,
    groups: &[&'n str],
    names: &[&'n str],
    value: impl Fn(&'n str, &'n str) -> Values,
) -> Result<Drawing, Missing> {
    let mut values: Vec<Vec<Option<BarValue>>> = Vec::new();
    for group in groups {
        let of_group = names.iter().map(|name| Ok(bar(&value(group, name)?)));
        values.push(of_group.collect::<Result<_, Missing>>()?);
    }
    let owned = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect();
    Ok(Drawing::Bars {
        title: title.to_owned(),
        y: y.to_owned(),
        groups: owned(groups),
        names: owned(names),
        values,
    })
}

fn found(conditions: &str, readings: Vec<Reading>, drawings: Vec<Drawing>) -> Found {
    Found {
        conditions: conditions.to_owned(),
        readings,
        drawings,
    }
}

// Figures 2 and 3, and table 2: one file, and the whole device.

/// Returns the file systems of figure 2. Ext2 on the disk takes longer than all other cells, so
/// only the full scale has it.
fn stream_file_systems(scope: &Scope) -> &'static [&'static str] {
    match scope.scale {
        Scale::Small | Scale::Default => &["ext3", "reiserfs"],
        Scale::Full => &["ext3", "ext2", "reiserfs"],
    }
}

fn stream_cells(scope: &Scope) -> Vec<Cell> {
    let shown = stream_file_systems(scope);
    plans::cells(scope, &STREAMS, |choice| {
        shown.contains(&choice["file_system"].as_str())
    })
}

fn bonnie(scope: &Scope, runs: &Runs, of: (&str, &str), name: &'static str) -> Values {
    let choice = [
        ("device", of.0),
        ("file_system", of.1),
        ("workload", "bonnie"),
    ];
    plans::figures(scope, runs, &STREAMS, &choice, figure(name))
}

const BONNIE: [(&str, &str); 5] = [
    ("write_characters_mb_per_s", "putc"),
    ("write_blocks_mb_per_s", "write"),
    ("rewrite_mb_per_s", "rewrite"),
    ("read_characters_mb_per_s", "getc"),
    ("read_blocks_mb_per_s", "read"),
];

fn find_bonnie(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let mut readings = Vec::new();
    for file_system in stream_file_systems(scope) {
        let of = |device, name| bonnie(scope, runs, (device, file_system), name);
        let mut reading = Reading::new(*file_system);
        let (read, write) = ("read_blocks_mb_per_s", "write_blocks_mb_per_s");
        add(
            &mut reading,
            "reads",
            ratios(&of("ssd", read)?, &of("hdd", read)?),
        );
        add(
            &mut reading,
            "writes",
            ratios(&of("ssd", write)?, &of("hdd", write)?),
        );
        let characters = of("ssd", "read_characters_mb_per_s")?;
        add(
            &mut reading,
            "blocks",
            ratios(&of("ssd", read)?, &characters),
        );
        let rewrite = of("ssd", "rewrite_mb_per_s")?;
        add(
            &mut reading,
            "rewrite",
            changes(&rewrite, &of("ssd", write)?),
        );
        add(&mut reading, "ssd_read", of("ssd", read)?);
        add(&mut reading, "ssd_write", of("ssd", write)?);
        add(&mut reading, "hdd_read", of("hdd", read)?);
        add(&mut reading, "hdd_write", of("hdd", write)?);
        readings.push(reading);
    }
    let names = BONNIE.map(|(_, title)| title);
    let drawing = bars("Ours, ext3", "MB/s", &names, &DEVICES, |title, device| {
        let named = BONNIE.iter().find(|(_, of)| *of == title);
        bonnie(
            scope,
            runs,
            (device, "ext3"),
            named.map_or("", |(name, _)| name),
        )
    })?;
    let conditions = "One file of 4 GiB with 1 GiB of memory. The paper does not name the file \
                      system; ext3 was the default of its distribution.";
    Ok(found(conditions, readings, vec![drawing]))
}

fn find_hd_tach(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let choice = |device| [("device", device), ("workload", "hd-tach")];
    let of = |device, name| plans::figures(scope, runs, &STREAMS, &choice(device), figure(name));
    let mut reading = Reading::new("as modelled");
    let (first, last) = ("first_mb_per_s", "last_mb_per_s");
    add(
        &mut reading,
        "hdd_fall",
        changes(&of("hdd", last)?, &of("hdd", first)?),
    );
    add(
        &mut reading,
        "ssd_flat",
        ratios(&of("ssd", last)?, &of("ssd", first)?),
    );
    add(&mut reading, "hdd_access", of("hdd", "access_mean_ms")?);
    add(&mut reading, "ssd_access", of("ssd", "access_mean_ms")?);
    let mut lines = Vec::new();
    for (style, device) in DEVICES.into_iter().enumerate() {
        let curves = curves_of(scope, runs, &STREAMS, &choice(device), "MB/s")?;
        lines.push(Line {
            name: device.to_owned(),
            style,
            points: mean_curve(&curves),
        });
    }
    let drawing = Drawing::Lines {
        title: "Ours".to_owned(),
        x: "place on the device in %".to_owned(),
        y: "sequential reads in MB/s".to_owned(),
        lines,
    };
    let conditions = "Sequential reads at places from the beginning to the end of the device, and \
                      reads of 4 KiB at random. The SSD is new: nothing was written to it.";
    Ok(found(conditions, vec![reading], vec![drawing]))
}

/// Returns the curve of each seed whose name begins with `named`, for the only cell with these
/// choices.
fn curves_of(
    scope: &Scope,
    runs: &Runs,
    plan: &PlanText,
    wanted: &[(&str, &str)],
    named: &str,
) -> Result<Vec<Vec<(f64, f64)>>, Missing> {
    let mut curves = Vec::new();
    for cell in plans::cells(scope, plan, |choice| has(choice, wanted)) {
        let Raw::Lab(outcome) = runs.get(&cell)? else {
            return Err(Missing(cell.name()));
        };
        let mut all = outcome.measured.curves.iter();
        curves.extend(
            all.find(|(name, _)| name.starts_with(named))
                .map(|(_, of)| of.clone()),
        );
    }
    Ok(curves)
}

// Figure 4: clients of a file server.

fn client_cells(scope: &Scope) -> Vec<Cell> {
    plans::cells(scope, &CLIENTS, |_| true)
}

const CLIENT_FIGURES: [(u32, &str); 7] = [
    (1, "with_1_mb_per_s"),
    (2, "with_2_mb_per_s"),
    (5, "with_5_mb_per_s"),
    (10, "with_10_mb_per_s"),
    (20, "with_20_mb_per_s"),
    (40, "with_40_mb_per_s"),
    (60, "with_60_mb_per_s"),
];

fn find_clients(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let of = |device, scheduler, count: u32| {
        let choice = [("device", device), ("scheduler", scheduler)];
        let name = CLIENT_FIGURES.iter().find(|(of, _)| *of == count);
        plans::figures(
            scope,
            runs,
            &CLIENTS,
            &choice,
            figure(name.map_or("", |of| of.1)),
        )
    };
    let mut reading = Reading::new("cfq, our mix of operations");
    let others = [2, 5, 10, 20, 40, 60].map(|count| of("hdd", "cfq", count));
    let others = others.into_iter().collect::<Result<Vec<_>, Missing>>()?;
    add(
        &mut reading,
        "one_client",
        changes(&of("hdd", "cfq", 1)?, &best(&others)),
    );
    let (ten, sixty) = (of("ssd", "cfq", 10)?, of("ssd", "cfq", 60)?);
    add(
        &mut reading,
        "ten_clients",
        changes(&ten, &of("ssd", "cfq", 1)?),
    );
    add(&mut reading, "falling", changes(&sixty, &ten));
    add(&mut reading, "flat", ratios(&sixty, &of("ssd", "cfq", 40)?));
    let rest = ["noop", "deadline", "anticipatory"].map(|scheduler| of("ssd", scheduler, 10));
    let rest = rest.into_iter().collect::<Result<Vec<_>, Missing>>()?;
    add(&mut reading, "cfq", changes(&ten, &best(&rest)));
    let mut drawings = Vec::new();
    for device in DEVICES {
        let mut lines = Vec::new();
        for (style, scheduler) in SCHEDULER_NAMES.into_iter().enumerate() {
            let choice = [("device", device), ("scheduler", scheduler)];
            let curves = curves_of(scope, runs, &CLIENTS, &choice, "MB/s")?;
            lines.push(Line {
                name: scheduler.to_owned(),
                style,
                points: mean_curve(&curves),
            });
        }
        drawings.push(Drawing::Lines {
            title: format!("Ours, {device}"),
            x: "clients".to_owned(),
            y: "MB/s of all clients".to_owned(),
            lines,
        });
    }
    let conditions = format!(
        "Clients of a file server for {} s of virtual time at each number, ext3, 1 GiB of memory. \
         The mix of operations is ours, not the load file of Dbench, and clients do not compete \
         for processors.",
        scope.sized(1, 20)
    );
    Ok(found(&conditions, vec![reading], drawings))
}

// Figures 5, 6, 7 and 11, and table 3: Postmark by scheduler and file system.

/// Returns true for the cells that the paper shows: all schedulers on LL with ext2 and ext3, and
/// all loads and file systems with the default scheduler. The full scale has all cells.
fn is_shown(scope: &Scope, choice: &Choice) -> bool {
    let on_ll = has(choice, &[("workload", "LL")]) && !has(choice, &[("file_system", "reiserfs")]);
    scope.scale == Scale::Full || on_ll || has(choice, &[("scheduler", "cfq")])
}

fn scheduler_cells(scope: &Scope) -> Vec<Cell> {
    plans::cells(scope, &SCHEDULERS, |choice| is_shown(scope, choice))
}

fn postmark(
    scope: &Scope,
    runs: &Runs,
    of: (&str, &str, &str, &str),
    value: impl Fn(&Outcome) -> f64,
) -> Values {
    let (device, scheduler, file_system, load) = of;
    let choice = [
        ("device", device),
        ("scheduler", scheduler),
        ("file_system", file_system),
        ("workload", load),
    ];
    plans::figures(scope, runs, &SCHEDULERS, &choice, value)
}

const POSTMARK: &str = "Postmark with 4 GiB of memory, a new SSD of 16 GB.";

fn find_counts(scope: &Scope, runs: &Runs, count: fn(&Outcome) -> f64) -> Result<Found, Missing> {
    let of = |device, scheduler, file_system| {
        postmark(scope, runs, (device, scheduler, file_system, "LL"), count)
    };
    let mut reading = Reading::new("cfq");
    let (ext3, ext2) = (of("ssd", "cfq", "ext3")?, of("ssd", "cfq", "ext2")?);
    add(&mut reading, "ext3", ratios(&ext3, &ext2));
    add(
        &mut reading,
        "same_ext2",
        ratios(&of("hdd", "cfq", "ext2")?, &ext2),
    );
    add(
        &mut reading,
        "same_ext3",
        ratios(&of("hdd", "cfq", "ext3")?, &ext3),
    );
    let all = postmark(scope, runs, ("ssd", "cfq", "ext3", "LL"), enqueued)?;
    add(&mut reading, "merged", changes(&ext3, &all));
    let y = "requests, reads and writes";
    let file_systems = ["ext2", "ext3"];
    let drawing = bars(
        "Ours, LL on the SSD",
        y,
        &file_systems,
        &SCHEDULER_NAMES,
        |fs, name| of("ssd", name, fs),
    )?;
    Ok(found(POSTMARK, vec![reading], vec![drawing]))
}

fn find_throughput(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let of = |scheduler, file_system| {
        postmark(scope, runs, ("ssd", scheduler, file_system, "LL"), value_of)
    };
    let mut reading = Reading::new("LL on the SSD");
    for (file_system, key) in [("ext2", "schedulers_ext2"), ("ext3", "schedulers_ext3")] {
        let all = SCHEDULER_NAMES.map(|scheduler| of(scheduler, file_system));
        let all = all.into_iter().collect::<Result<Vec<_>, Missing>>()?;
        add(&mut reading, key, ratios(&best(&all), &least(&all)));
    }
    add(
        &mut reading,
        "ext3",
        ratios(&of("cfq", "ext3")?, &of("cfq", "ext2")?),
    );
    let y = "transactions per second";
    let file_systems = ["ext2", "ext3"];
    let drawing = bars(
        "Ours, LL on the SSD",
        y,
        &file_systems,
        &SCHEDULER_NAMES,
        |fs, name| of(name, fs),
    )?;
    Ok(found(POSTMARK, vec![reading], vec![drawing]))
}

fn find_file_systems(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let (mut readings, mut drawings) = (Vec::new(), Vec::new());
    for device in ["ssd", "hdd"] {
        let of = |fs, load| postmark(scope, runs, (device, "cfq", fs, load), value_of);
        let mut reading = Reading::new(device);
        let rest = best(&[of("ext3", "SS")?, of("reiserfs", "SS")?]);
        add(
            &mut reading,
            "ext2_on_ss",
            changes(&of("ext2", "SS")?, &rest),
        );
        for (load, key) in [("LS", "ext3_on_ls"), ("LL", "ext3_on_ll")] {
            add(
                &mut reading,
                key,
                changes(&of("ext3", load)?, &of("ext2", load)?),
            );
        }
        readings.push(reading);
        for loads in [["SS", "SL"], ["LS", "LL"]] {
            let y = "transactions per second";
            drawings.push(bars(
                &format!("Ours, {device}"),
                y,
                &loads,
                &["ext2", "ext3", "reiserfs"],
                |load, fs| of(fs, load),
            )?);
        }
    }
    Ok(found(POSTMARK, readings, drawings))
}

fn find_totals(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let mut reading = Reading::new("as our Postmark draws them");
    let mut rows = Vec::new();
    for load in LOADS {
        let of = |name| {
            let values = postmark(scope, runs, ("ssd", "cfq", "ext3", load), figure(name))?;
            Ok(values.iter().map(|bytes| bytes / 1e6).collect::<Vec<f64>>())
        };
        let (read, written) = (of("program_read_bytes")?, of("program_written_bytes")?);
        let mean = |of: &[f64]| bar(of).map_or(0.0, |(mean, ..)| mean);
        rows.push(vec![
            load.to_owned(),
            format!("{:.0}", mean(&read)),
            format!("{:.0}", mean(&written)),
        ]);
        add(&mut reading, &format!("{load}_read"), read);
        add(&mut reading, &format!("{load}_written"), written);
    }
    let drawing = Drawing::Table {
        title: "Ours".to_owned(),
        head: ["load", "MB read", "MB written"]
            .map(str::to_owned)
            .to_vec(),
        rows,
    };
    Ok(found(POSTMARK, vec![reading], vec![drawing]))
}

// Figures 8 and 9: read-ahead.

/// Plan of the read-ahead with both file systems of figure 9.
const READ_AHEAD_AXES: (&str, &str) = (
    "workload = [\"LS\", \"file\"]",
    "file_system = [\"ext3\", \"ext2\"]\nworkload = [\"LS\", \"file\"]",
);

fn both_file_systems(scope: &Scope) -> Vec<Cell> {
    let (before, after) = READ_AHEAD_AXES;
    let text = READ_AHEAD.at(scope.scale).replace(before, after);
    let cells = plans::unscaled_cells(scope, READ_AHEAD.name, &text).into_iter();
    // The paper counts requests with Postmark, on the SSD.
    let is_meant = |cell: &Cell| match cell {
        Cell::Lab { choice, .. } => has(choice, &[("device", "ssd"), ("workload", "LS")]),
        _ => false,
    };
    cells.filter(is_meant).collect()
}

fn read_ahead_cells(scope: &Scope) -> Vec<Cell> {
    plans::cells(scope, &READ_AHEAD, |_| true)
}

fn find_read_ahead(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let of = |device, load, window| {
        let choice = [
            ("device", device),
            ("workload", load),
            ("read_ahead", window),
        ];
        plans::figures(scope, runs, &READ_AHEAD, &choice, value_of)
    };
    let kinds = [
        (
            "LS",
            "hdd",
            "ssd",
            "LS, devices with look-ahead and prefetch",
        ),
        ("LS", "hdd-blind", "ssd-plain", "LS, devices without them"),
        (
            "file",
            "hdd",
            "ssd",
            "one file, devices with look-ahead and prefetch",
        ),
        (
            "file",
            "hdd-blind",
            "ssd-plain",
            "one file, devices without them",
        ),
    ];
    let mut readings = Vec::new();
    for (load, hdd, ssd, name) in kinds {
        let mut reading = Reading::new(name);
        add(
            &mut reading,
            "hdd",
            ratios(&of(hdd, load, "128KiB")?, &of(hdd, load, "0B")?),
        );
        add(
            &mut reading,
            "ssd",
            changes(&of(ssd, load, "0B")?, &of(ssd, load, "128KiB")?),
        );
        readings.push(reading);
    }
    let mut drawings = Vec::new();
    for (load, y) in [("LS", "transactions per second"), ("file", "MB/s")] {
        let title = format!("Ours, {load}, read-ahead on and off");
        let devices = ["hdd", "hdd-blind", "ssd", "ssd-plain"];
        drawings.push(bars(
            &title,
            y,
            &devices,
            &["128KiB", "0B"],
            |device, window| of(device, load, window),
        )?);
    }
    let conditions = "Postmark LS, and a file of 256 MiB, with 1 GiB of memory and ext3. The paper \
                      used Postmark, but does not name the load; it says nothing of the disk's own \
                      look-ahead.";
    Ok(found(conditions, readings, drawings))
}

fn find_read_ahead_counts(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let of = |file_system: &str, window: &str| {
        let wanted = [("file_system", file_system), ("read_ahead", window)];
        let mut values = Vec::new();
        for cell in both_file_systems(scope) {
            match (&cell, runs.get(&cell)?) {
                (Cell::Lab { choice, .. }, Raw::Lab(outcome)) if has(choice, &wanted) => {
                    values.push(dequeued(outcome));
                }
                _ => {}
            }
        }
        Ok(values)
    };
    let mut reading = Reading::new("LS on the SSD, requests to the device");
    for (file_system, key) in [("ext2", "ext2"), ("ext3", "ext3")] {
        add(
            &mut reading,
            key,
            ratios(&of(file_system, "0B")?, &of(file_system, "128KiB")?),
        );
    }
    let y = "requests, reads and writes";
    let windows = ["128KiB", "0B"];
    let drawing = bars("Ours, LS on the SSD", y, &["ext2", "ext3"], &windows, of)?;
    Ok(found(
        "Postmark LS with 1 GiB of memory.",
        vec![reading],
        vec![drawing],
    ))
}

// Figure 10: write-back and write-through.

fn write_cache_cells(scope: &Scope) -> Vec<Cell> {
    plans::cells(scope, &WRITE_CACHE, |_| true)
}

fn find_write_cache(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let of = |device: &str, load: &str| {
        let choice = [("device", device), ("workload", load)];
        plans::figures(scope, runs, &WRITE_CACHE, &choice, value_of)
    };
    let gains = |device: &str| {
        let all = LOADS.map(|load| {
            let off = format!("{device}-cache-off");
            Ok(changes(&of(device, load)?, &of(&off, load)?))
        });
        let all = all.into_iter().collect::<Result<Vec<_>, Missing>>()?;
        let seeds = all.first().map_or(0, Vec::len);
        let mean = |seed: usize| all.iter().map(|of| of[seed]).sum::<f64>() / all.len() as f64;
        Ok((0..seeds).map(mean).collect::<Vec<f64>>())
    };
    let mut reading = Reading::new("write cache of the device, mean of the four loads");
    add(&mut reading, "hdd", gains("hdd")?);
    add(&mut reading, "ssd", gains("ssd")?);
    let mut drawings = Vec::new();
    for loads in [["SS", "SL"], ["LS", "LL"]] {
        let devices = ["hdd", "hdd-cache-off", "ssd", "ssd-cache-off"];
        let y = "transactions per second";
        drawings.push(bars("Ours", y, &loads, &devices, |load, device| {
            of(device, load)
        })?);
    }
    let conditions = "Postmark with 4 GiB of memory and ext3. Write-back is a device whose own write \
                      cache is on; the paper can also be read as the kernel's page cache, which is \
                      not run.";
    Ok(found(conditions, vec![reading], drawings))
}
