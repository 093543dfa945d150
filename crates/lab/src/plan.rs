//! The experiment file: devices, loads, axes, and the combinations of choices to run.
//!
//! One TOML file contains everything that affects a result. The identity of a plan is a hash over
//! the resolved settings, so comments, order and names in the file do not change it. An error
//! message is one line with a position in the file. `docs/lab.md` describes the keys. Parsing a
//! file must never query the machine, so that a plan has the same meaning everywhere.

mod device;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bimetal_block::document::ConfigError;
use bimetal_block::units::Size;
use serde::Deserialize;
use toml::Spanned;

use crate::device::Backend;
use crate::files::FileSystemKind;
use crate::settings::{SchedulerSettings, Settings, content_hash};
use crate::workload::{Resolved, Workload};

use device::FileDevice;

/// Axes, in the order in which their choices form the name of a cell.
pub const AXES: [&str; 6] = [
    "device",
    "scheduler",
    "read_ahead",
    "write_mode",
    "file_system",
    "workload",
];

/// Maximum number of cells of a plan, so that a typing error does not start a week of runs.
const CELLS_MAX: usize = 10_000;
/// File systems of the native backend, including the name for a device without a file system.
pub(crate) const NATIVE_FILE_SYSTEMS: [&str; 6] =
    ["ext2", "ext3", "ext4", "xfs", "btrfs", NO_FILE_SYSTEM];
/// File systems of the User-Mode Linux backend.
const UML_FILE_SYSTEMS: [&str; 7] = [
    "ext2",
    "ext3",
    "ext4",
    "reiserfs",
    "xfs",
    "btrfs",
    NO_FILE_SYSTEM,
];
/// Choice on the axis `file_system` for a device without a file system.
pub(crate) const NO_FILE_SYSTEM: &str = "none";

/// An experiment file before it is resolved.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    backend: Backend,
    #[serde(default = "one")]
    seed: u64,
    #[serde(default = "five")]
    repeats: Spanned<u64>,
    repeats_max: Option<Spanned<u64>>,
    #[serde(default = "twentieth")]
    within: Spanned<f64>,
    #[serde(default = "unscaled")]
    scale: Spanned<f64>,
    memory: Option<Spanned<Size>>,
    #[serde(default)]
    barriers: bool,
    #[serde(default)]
    baseline: BTreeMap<String, Spanned<String>>,
    axes: FileAxes,
    #[serde(default)]
    skip: Vec<BTreeMap<String, Spanned<OneOrMore>>>,
    #[serde(default)]
    device: BTreeMap<String, Spanned<FileDevice>>,
    #[serde(default)]
    scheduler: BTreeMap<String, Spanned<FileScheduler>>,
    #[serde(default)]
    workload: BTreeMap<String, Spanned<Workload>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileAxes {
    device: Axis,
    scheduler: Option<Axis>,
    #[serde(default = "usual_read_ahead")]
    read_ahead: Axis,
    #[serde(default = "back")]
    write_mode: Axis,
    file_system: Option<Axis>,
    workload: Axis,
}

type Axis = Vec<Spanned<String>>;

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileScheduler {
    name: String,
    #[serde(default)]
    parameters: BTreeMap<String, toml::Value>,
}

fn one() -> u64 {
    1
}

fn five() -> Spanned<u64> {
    Spanned::new(0..0, 5)
}

fn twentieth() -> Spanned<f64> {
    Spanned::new(0..0, 0.05)
}

fn unscaled() -> Spanned<f64> {
    Spanned::new(0..0, 1.0)
}

fn axis(value: &str) -> Axis {
    vec![Spanned::new(0..0, value.to_owned())]
}

fn usual_read_ahead() -> Axis {
    axis("128KiB")
}

fn back() -> Axis {
    axis("back")
}

/// Returns the default scheduler and the default file system of a backend.
fn usual(backend: Backend) -> (&'static str, &'static str) {
    match backend {
        Backend::Virtual | Backend::Stack => ("cfq", "ext3"),
        Backend::Native => ("mq-deadline", "ext4"),
        Backend::Uml => ("none", "reiserfs"),
    }
}

/// Name of the choice on each axis, by the name of the axis.
pub type Choice = BTreeMap<String, String>;

/// A combination of choices to run.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Choice on each axis.
    pub choice: Choice,
    /// All settings that affect a run of the cell, except its seed.
    pub settings: Settings,
}

/// A resolved and checked plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the plan in reports.
    pub name: String,
    /// Text of the experiment file, which is stored together with the results.
    pub text: String,
    /// Backend of the runs.
    pub backend: Backend,
    /// First seed; later runs of a cell use the following numbers.
    pub seed: u64,
    /// Minimum number of runs of each cell.
    pub repeats: u64,
    /// Maximum number of runs of a cell. After the minimum number of runs, a cell is run again only
    /// while its confidence interval is wider than [`within`](Self::within).
    pub repeats_max: u64,
    /// Maximum distance of either end of a confidence interval from the median, as a fraction of
    /// the median. An interval within this distance is narrow enough.
    pub within: f64,
    /// Names of the choices on each axis.
    pub axes: BTreeMap<String, Vec<String>>,
    /// Choices of the baseline cell, with which other cells are compared. On an axis that is
    /// missing here, the baseline cell has the same choice as the compared cell.
    pub baseline: Choice,
    /// Combinations to run.
    pub cells: Vec<Cell>,
}

impl Plan {
    /// Parses an experiment file.
    ///
    /// # Errors
    /// The first mistake in the file, with its position.
    pub fn parse(path: &Path, text: &str) -> Result<Plan, ConfigError> {
        let source = Source { path, text };
        let file: File = toml::from_str(text).map_err(|error| {
            let message = error.message().trim_end().replace('\n', ", ");
            source.error(error.span().unwrap_or(0..0), message)
        })?;
        Reader { source, file }.plan()
    }

    /// Returns the identity of the plan. Files with the same meaning have the same identity.
    pub fn id(&self) -> String {
        let cells: Vec<&Settings> = self.cells.iter().map(|cell| &cell.settings).collect();
        let meaning = (self.seed, self.repeats, &self.baseline, cells);
        match self.repeats_max > self.repeats {
            true => content_hash(&(meaning, self.repeats_max, self.within)),
            false => content_hash(&meaning),
        }
    }

    /// Returns the choices of the baseline cell for a cell; `None` if the plan has no baseline.
    pub fn baseline_of(&self, choice: &Choice) -> Option<Choice> {
        if self.baseline.is_empty() {
            return None;
        }
        let mut base = choice.clone();
        base.extend(self.baseline.clone());
        Some(base)
    }
}

#[derive(Clone, Copy)]
struct Source<'t> {
    path: &'t Path,
    text: &'t str,
}

impl Source<'_> {
    fn error(&self, span: Range<usize>, message: impl Into<String>) -> ConfigError {
        let before = self.text.get(..span.start).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        ConfigError {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: message.into(),
        }
    }
}

struct Reader<'t> {
    source: Source<'t>,
    file: File,
}

impl Reader<'_> {
    fn plan(self) -> Result<Plan, ConfigError> {
        self.check_numbers()?;
        let axes = self.axes()?;
        let baseline = self.baseline(&axes)?;
        let skips = self.skips(&axes)?;
        let mut choices = vec![Choice::new()];
        for axis in AXES {
            let names = &axes[axis];
            choices = choices
                .iter()
                .flat_map(|choice| names.iter().map(|name| with(choice, axis, name)))
                .collect();
            if choices.len() > CELLS_MAX {
                return Err(self
                    .source
                    .error(0..0, format!("more than {CELLS_MAX} combinations")));
            }
        }
        choices.retain(|choice| !skips.iter().any(|skip| matches(skip, choice)));
        let cells = choices
            .into_iter()
            .map(|choice| self.cell(choice))
            .collect::<Result<Vec<Cell>, ConfigError>>()?;
        if cells.is_empty() {
            return Err(self.source.error(0..0, "every combination is skipped"));
        }
        Ok(Plan {
            name: self.file.name.clone(),
            text: self.source.text.to_owned(),
            backend: self.file.backend,
            seed: self.file.seed,
            repeats: *self.file.repeats.get_ref(),
            repeats_max: self.repeats_max(),
            within: *self.file.within.get_ref(),
            axes,
            baseline,
            cells,
        })
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let file = &self.file;
        if !(1..=1000).contains(file.repeats.get_ref()) {
            let why = "`repeats` must be 1 to 1000";
            return Err(self.source.error(file.repeats.span(), why));
        }
        if let Some(most) = &file.repeats_max
            && !(*file.repeats.get_ref()..=1000).contains(most.get_ref())
        {
            let why = "`repeats_max` must be `repeats` to 1000";
            return Err(self.source.error(most.span(), why));
        }
        let within = *file.within.get_ref();
        if !(within > 0.0 && within <= 1.0) {
            let why = "`within` must be above 0 and at most 1";
            return Err(self.source.error(file.within.span(), why));
        }
        let scale = *file.scale.get_ref();
        if !(scale > 0.0 && scale <= 100.0) {
            let why = "`scale` must be above 0 and at most 100";
            return Err(self.source.error(file.scale.span(), why));
        }
        if self.memory_pages().is_none() {
            let least = self.memory_pages_min();
            let why = format!("`memory` times `scale` must be {least} pages of 4 KiB to 256 GiB");
            let span = file.memory.as_ref().map_or(0..0, Spanned::span);
            return Err(self.source.error(span, why));
        }
        Ok(())
    }

    fn repeats_max(&self) -> u64 {
        let least = self.file.repeats.get_ref();
        *self
            .file
            .repeats_max
            .as_ref()
            .map_or(least, Spanned::get_ref)
    }

    fn memory_pages(&self) -> Option<u32> {
        let bytes = match (&self.file.memory, self.file.backend) {
            (Some(given), _) => given.get_ref().0,
            (None, Backend::Virtual | Backend::Stack) => MEMORY_BYTES_USUAL,
            (None, Backend::Uml) => UML_MEMORY_BYTES_USUAL,
            // By default, a native run uses all memory of the machine.
            (None, Backend::Native) => return Some(0),
        };
        let pages = bytes as f64 / 4096.0 * self.file.scale.get_ref();
        let possible = (f64::from(self.memory_pages_min())..=f64::from(1 << 26)).contains(&pages);
        possible.then_some(pages as u32)
    }

    fn memory_pages_min(&self) -> u32 {
        match self.file.backend {
            Backend::Virtual | Backend::Stack => MEMORY_PAGES_MIN,
            Backend::Native => NATIVE_MEMORY_PAGES_MIN,
            Backend::Uml => UML_MEMORY_PAGES_MIN,
        }
    }

    /// Returns the names of the choices on each axis, and checks that all names are known.
    fn axes(&self) -> Result<BTreeMap<String, Vec<String>>, ConfigError> {
        let of = &self.file.axes;
        let (scheduler, file_system) = usual(self.file.backend);
        let (scheduler, file_system) = (axis(scheduler), axis(file_system));
        let all = [
            &of.device,
            of.scheduler.as_ref().unwrap_or(&scheduler),
            &of.read_ahead,
            &of.write_mode,
            of.file_system.as_ref().unwrap_or(&file_system),
            &of.workload,
        ];
        let mut axes = BTreeMap::new();
        for (axis, values) in AXES.into_iter().zip(all) {
            let mut names: Vec<String> = Vec::new();
            for value in values {
                let name = value.get_ref().clone();
                if names.contains(&name) {
                    let why = format!("`{name}` appears twice on the axis `{axis}`");
                    return Err(self.source.error(value.span(), why));
                }
                self.check_name(axis, &name)
                    .map_err(|why| self.source.error(value.span(), why))?;
                names.push(name);
            }
            if names.is_empty() {
                let why = format!("the axis `{axis}` is empty");
                return Err(self.source.error(0..0, why));
            }
            axes.insert(axis.to_owned(), names);
        }
        Ok(axes)
    }

    fn check_name(&self, axis: &str, name: &str) -> Result<(), String> {
        let expect = |found: bool, known: Vec<&str>| {
            let known = known.join(", ");
            found
                .then_some(())
                .ok_or_else(|| format!("no {axis} `{name}`, expected one of {known}"))
        };
        match axis {
            "device" => expect(
                self.file.device.contains_key(name),
                names(&self.file.device),
            ),
            "workload" => expect(
                self.file.workload.contains_key(name),
                names(&self.file.workload),
            ),
            "scheduler" => self.scheduler(name).map(|_| ()),
            "read_ahead" => read_ahead_pages(name).map(|_| ()),
            "write_mode" => expect(["back", "through"].contains(&name), vec!["back", "through"]),
            _ => {
                let known: Vec<&str> = match self.file.backend {
                    Backend::Virtual | Backend::Stack => {
                        FileSystemKind::ALL.iter().map(|(name, _)| *name).collect()
                    }
                    Backend::Native => NATIVE_FILE_SYSTEMS.to_vec(),
                    Backend::Uml => UML_FILE_SYSTEMS.to_vec(),
                };
                expect(known.contains(&name), known)
            }
        }
    }

    /// Returns the settings of a scheduler. `name` is the name of a section in the file. If the
    /// file has no such section, `name` is the name of the scheduler itself.
    fn scheduler(&self, name: &str) -> Result<SchedulerSettings, String> {
        let settings = match self.file.scheduler.get(name) {
            Some(of) => SchedulerSettings {
                name: of.get_ref().name.clone(),
                parameters: of.get_ref().parameters.clone(),
            },
            None => SchedulerSettings {
                name: name.to_owned(),
                parameters: BTreeMap::new(),
            },
        };
        match self.file.backend {
            Backend::Virtual | Backend::Stack => settings.check()?,
            // The kernel of the run decides which schedulers exist, so only the form of the names
            // is checked.
            Backend::Native | Backend::Uml => settings.check_words()?,
        }
        Ok(settings)
    }

    fn baseline(&self, axes: &BTreeMap<String, Vec<String>>) -> Result<Choice, ConfigError> {
        let mut baseline = Choice::new();
        for (axis, name) in &self.file.baseline {
            self.check_on_axis(axes, axis, name.get_ref())
                .map_err(|why| self.source.error(name.span(), why))?;
            baseline.insert(axis.clone(), name.get_ref().clone());
        }
        Ok(baseline)
    }

    fn check_on_axis(
        &self,
        axes: &BTreeMap<String, Vec<String>>,
        axis: &str,
        name: &str,
    ) -> Result<(), String> {
        let Some(names) = axes.get(axis) else {
            let known = AXES.join(", ");
            return Err(format!("no axis `{axis}`, expected one of {known}"));
        };
        let known = names.join(", ");
        names
            .iter()
            .any(|known| known == name)
            .then_some(())
            .ok_or_else(|| format!("`{name}` is not on the axis `{axis}`, which has {known}"))
    }

    fn skips(
        &self,
        axes: &BTreeMap<String, Vec<String>>,
    ) -> Result<Vec<BTreeMap<String, Vec<String>>>, ConfigError> {
        let mut skips = Vec::new();
        for skip in &self.file.skip {
            let mut conditions = BTreeMap::new();
            for (axis, value) in skip {
                let names = match value.get_ref() {
                    OneOrMore::One(name) => vec![name.clone()],
                    OneOrMore::More(names) => names.clone(),
                };
                for name in &names {
                    self.check_on_axis(axes, axis, name)
                        .map_err(|why| self.source.error(value.span(), why))?;
                }
                conditions.insert(axis.clone(), names);
            }
            skips.push(conditions);
        }
        Ok(skips)
    }

    fn cell(&self, choice: Choice) -> Result<Cell, ConfigError> {
        let device = &self.file.device[&choice["device"]];
        let workload = &self.file.workload[&choice["workload"]];
        let scale = *self.file.scale.get_ref();
        let settings = Settings {
            backend: self.file.backend,
            device: device
                .get_ref()
                .settings(self.file.backend)
                .map_err(|why| self.source.error(device.span(), why))?,
            scheduler: self
                .scheduler(&choice["scheduler"])
                .expect("the axes were checked"),
            read_ahead_pages: read_ahead_pages(&choice["read_ahead"])
                .expect("the axes were checked"),
            write_mode: choice["write_mode"].clone(),
            file_system: choice["file_system"].clone(),
            workload: workload
                .get_ref()
                .resolved(scale, &|name| {
                    self.file.workload.get(name).map(Spanned::get_ref)
                })
                .map_err(|why| self.source.error(workload.span(), why))?,
            memory_pages: self.memory_pages().expect("checked before"),
            barriers: self.file.barriers,
        };
        let checked = match self.file.backend {
            Backend::Native | Backend::Uml => check_place(&settings),
            Backend::Virtual | Backend::Stack => check_ours(&settings.workload),
        };
        checked.map_err(|why| self.source.error(workload.span(), why))?;
        Ok(Cell { choice, settings })
    }
}

/// Returns an error for an external program, which makes system calls and so cannot run over the
/// virtual file layer.
fn check_ours(workload: &Resolved) -> Result<(), String> {
    match workload {
        Resolved::Tool(_) => Err(
            "the load runs a program, which needs a kernel (`backend = \"native\"` or `\"uml\"`)"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Checks that a real device is used in exactly one of two ways: it has a file system, or it has a
/// load on the device itself.
fn check_place(settings: &Settings) -> Result<(), String> {
    match (
        settings.workload.is_raw(),
        settings.file_system == NO_FILE_SYSTEM,
    ) {
        (true, false) => Err(
            "the load is on the device itself: `file_system` must be `none` for it (`[[skip]]` \
            excludes others)"
                .to_owned(),
        ),
        (false, true) => Err(
            "the load needs files: `file_system` must not be `none` for it (`[[skip]]` excludes \
            that)"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Default size in bytes of the memory of the virtual file layer.
const MEMORY_BYTES_USUAL: u64 = 4 << 30;
/// Minimum memory, in pages, of a native run (a run on this machine). The memory of this program is
/// included.
const NATIVE_MEMORY_PAGES_MIN: u32 = 8192;
/// Default memory of a guest in bytes.
const UML_MEMORY_BYTES_USUAL: u64 = 256 << 20;
/// Minimum memory of a guest in pages. It includes the memory of the guest's kernel and of this
/// program.
const UML_MEMORY_PAGES_MIN: u32 = 16_384;
/// Minimum memory of the virtual file layer in pages, enough for read-ahead windows and for pages
/// being changed.
const MEMORY_PAGES_MIN: u32 = 1024;

/// Maximum read-ahead window in bytes.
const READ_AHEAD_BYTES_MAX: u64 = 32 << 20;

/// Parses a read-ahead window, and returns its size in pages.
fn read_ahead_pages(name: &str) -> Result<u64, String> {
    let Size(bytes) = bimetal_block::units::parse_size(name)?;
    match bytes.is_multiple_of(4096) && bytes <= READ_AHEAD_BYTES_MAX {
        true => Ok(bytes / 4096),
        false => Err(format!(
            "read-ahead of {name}, expected a multiple of 4KiB up to 32MiB"
        )),
    }
}

fn names<T>(of: &BTreeMap<String, T>) -> Vec<&str> {
    of.keys().map(String::as_str).collect()
}

fn with(choice: &Choice, axis: &str, name: &str) -> Choice {
    let mut choice = choice.clone();
    choice.insert(axis.to_owned(), name.to_owned());
    choice
}

fn matches(skip: &BTreeMap<String, Vec<String>>, choice: &Choice) -> bool {
    let mut conditions = skip.iter();
    conditions.all(|(axis, names)| names.contains(&choice[axis]))
}
