//! Executes one run: prepares the device, runs the load on it, and records the counters.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bimetal_rt::{DriverChoice, Rt, UringOptions, real_time};
use rustix::fs::{Advice, FallocateFlags};
use rustix::mount::MountFlags;

use super::counters::{Counted, Counters};
use super::disk::Disk;
use super::files::{LayerParameters, RawDevice, RealFiles};
use super::journal::{Change, Journal};
use super::loops::Loop;
use super::memory::{DIRTY_PART, Groups};
use super::{NativeError, device_of, file_system, fresh_loop, io_error, kind_of, sysfs};
use crate::device::NativeDevice;
use crate::failure::{FOLDER, RunError};
use crate::outcome::{Machine, Outcome};
use crate::plan::{Choice, NO_FILE_SYSTEM};
use crate::settings::{SCHEMA, Settings, run_id};
use crate::workload::tool::Tool;
use crate::workload::{Measured, Resolved, World};

/// Resources that a run borrows from its session.
pub(super) struct Bench<'s> {
    pub journal: &'s mut Journal,
    pub stop: &'s Arc<AtomicBool>,
    pub kernel: &'s str,
    /// Backing file of the loop device, if the run uses a loop device.
    pub backing: Option<PathBuf>,
}

/// The device of a run.
struct Device {
    disk: Disk,
    /// Open device. It stays open for the duration of the run; closing it releases a loop device.
    file: File,
    /// True if the device was created for this run. The queue settings of such a device need not be
    /// recorded, because they disappear with the device.
    is_ours: bool,
    name: String,
}

impl Device {
    /// Returns the folder of the device's limits on dirty pages.
    fn bdi(&self) -> PathBuf {
        self.disk.folder.join("bdi")
    }
}

/// Settings that have been written, with their values, to be checked again before the load.
#[derive(Default)]
struct Written(Vec<(PathBuf, String)>);

/// Mounts the tracing file systems in the mount namespace of this thread, if they are not mounted.
/// Without tracing file systems, fewer counters are available, and the outcome of a run records
/// this.
pub(super) fn mount_tracing() {
    for (kind, place, inside) in [
        ("tracefs", "/sys/kernel/tracing", "events"),
        ("debugfs", "/sys/kernel/debug", "block"),
    ] {
        if !Path::new(place).join(inside).exists() {
            // A failure is not handled here, because the code that needs the file system reports
            // it.
            let _ = rustix::mount::mount(kind, place, kind, MountFlags::empty(), None);
        }
    }
}

/// Creates a file and allocates its space, so that the allocation takes no time during a run.
pub(super) fn make_file(path: &Path, size_bytes: u64) -> Result<(), NativeError> {
    let file = File::create_new(path).map_err(|source| io_error(path, source))?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size_bytes)
        .map_err(|source| io_error(path, source.into()))
}

pub(super) fn run(
    bench: &mut Bench<'_>,
    choice: &Choice,
    settings: &Settings,
    seed: u64,
) -> Result<Outcome, RunError> {
    let device = ready_device(bench, settings)?;
    let mut written = Written::default();
    tune(bench, &device, settings, &mut written)?;
    let mut machine = Machine {
        kernel: bench.kernel.to_owned(),
        device: device.name.clone(),
        ..Machine::default()
    };
    let outcome = match settings.file_system == NO_FILE_SYSTEM {
        true => on_device(bench, &device, settings, seed, &mut written, &mut machine),
        false => on_file_system(bench, &device, settings, seed, &mut written, &mut machine),
    };
    let (measured, counted, elapsed_ns) = outcome?;
    machine.counted_by = counted.by;
    Ok(Outcome {
        schema: SCHEMA,
        choice: choice.clone(),
        settings: settings.clone(),
        seed,
        measured,
        reads: counted.reads,
        writes: counted.writes,
        flushes: counted.flushes,
        seeks: 0,
        seek_distance_bytes: 0,
        elapsed_ns,
        latency: None,
        machine: Some(machine),
    })
}

fn ready_device(bench: &mut Bench<'_>, settings: &Settings) -> Result<Device, NativeError> {
    match (device_of(settings)?, &bench.backing) {
        (NativeDevice::Loop { depth, .. }, Some(backing)) => {
            let Loop { path, file } = fresh_loop::create(backing, bench.journal)?;
            let disk = Disk::at(&path)?;
            if let Some(depth) = depth {
                set_depth(&disk, *depth)?;
            }
            Ok(Device {
                name: format!("{} over {}, direct", path.display(), backing.display()),
                disk,
                file,
                is_ours: true,
            })
        }
        (NativeDevice::Block { path }, _) => {
            let disk = Disk::at(path)?;
            disk.check_unused()?;
            let file = File::options().read(true).write(true).open(path);
            Ok(Device {
                disk,
                file: file.map_err(|source| io_error(path, source))?,
                is_ours: false,
                name: path.display().to_string(),
            })
        }
        (NativeDevice::Loop { .. }, None) => Err(NativeError::Refused(
            "a loop device without a file".to_owned(),
        )),
    }
}

/// Limits the queue depth of the device. While the scheduler is `none`, `nr_requests` sets the
/// depth of the device itself, and a scheduler that is selected later does not change this depth.
/// The limit cannot be undone, so this is called only for a device that is removed after the run.
fn set_depth(disk: &Disk, depth: u32) -> Result<(), NativeError> {
    sysfs::set(&disk.folder.join("queue/scheduler"), "none")?;
    sysfs::set(&disk.folder.join("queue/nr_requests"), &depth.to_string())
}

/// Checks the queue depth of the device, and returns the depth as text. The kernel shows the depth
/// only in debugfs.
fn verify_depth(disk: &Disk, depth: u32) -> Result<String, NativeError> {
    let name = disk.folder.file_name().unwrap_or_default();
    let path = Path::new("/sys/kernel/debug/block")
        .join(name)
        .join("hctx0/tags");
    let text = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
    let wanted = depth.to_string();
    match text
        .lines()
        .find_map(|line| line.trim().strip_prefix("depth="))
    {
        Some(found) if found == wanted => Ok(wanted),
        found => Err(NativeError::NotTaken {
            path,
            wanted,
            found: found.unwrap_or("nothing").to_owned(),
        }),
    }
}

impl Written {
    /// Writes a setting, and remembers its value for [`verify`](Self::verify). If there is a
    /// journal, first records the old value.
    fn set(
        &mut self,
        journal: Option<&mut Journal>,
        path: PathBuf,
        value: &str,
    ) -> Result<(), NativeError> {
        if let Some(journal) = journal {
            journal.record(Change::Setting {
                old: sysfs::read(&path)?,
                path: path.clone(),
            })?;
        }
        sysfs::set(&path, value)?;
        self.0.push((path, value.to_owned()));
        Ok(())
    }

    /// Checks the values of all settings again, because writing one setting may have changed
    /// another. Returns the values.
    fn verify(&self) -> Result<BTreeMap<String, String>, NativeError> {
        let mut all = BTreeMap::new();
        for (path, value) in &self.0 {
            sysfs::verify(path, value)?;
            all.insert(path.display().to_string(), sysfs::read(path)?);
        }
        Ok(all)
    }
}

/// Writes the settings of the block layer. Sets the read-ahead window last, because other settings
/// change it.
fn tune(
    bench: &mut Bench<'_>,
    device: &Device,
    settings: &Settings,
    written: &mut Written,
) -> Result<(), NativeError> {
    let queue = device.disk.folder.join("queue");
    if !device.is_ours {
        remember_queue(bench.journal, &device.disk)?;
    }
    remember_limits(bench.journal, &device.disk)?;
    let scheduler = &settings.scheduler;
    written.set(None, queue.join("scheduler"), &scheduler.name)?;
    for (name, value) in &scheduler.parameters {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        written.set(None, queue.join("iosched").join(name), &value)?;
    }
    let cache = if settings.barriers {
        "write back"
    } else {
        "write through"
    };
    written.set(None, queue.join("write_cache"), cache)?;
    let throttle = queue.join("wbt_lat_usec");
    // If the kernel has no writeback throttling, this file does not exist. A scheduler may already
    // have disabled the throttling; the file then contains 0.
    if throttle.exists() && sysfs::read(&throttle)? != "0" {
        written.set(None, throttle, "0")?;
    }
    if settings.memory_pages > 0 {
        let bytes = u64::from(settings.memory_pages) * 4096;
        let limit = Groups::find()?.enter(bytes, bench.journal)?;
        written.0.push((limit, bytes.to_string()));
    }
    let window = (settings.read_ahead_pages * 4).to_string();
    written.set(None, queue.join("read_ahead_kb"), &window)
}

/// Limits the dirty pages of a device. The kernel stores the limit as a fraction of the dirty pages
/// that it allows in the whole memory, and this allowed number depends on the free memory. The
/// limit affects the results: for example, the files of Postmark are written in rounds of about the
/// size of the limit. So the limit is set last, just before the load, and the resulting value is
/// recorded among the settings of the run.
fn limit_dirty(bdi: &Path, settings: &Settings, written: &mut Written) -> Result<(), NativeError> {
    let bytes = u64::from(settings.memory_pages) * 4096 / DIRTY_PART;
    written.set(None, bdi.join("strict_limit"), "1")?;
    // A loop device can still have the lower limit of its previous user. The lower limit must not
    // exceed the new upper limit, so clear the lower limit first.
    sysfs::set(&bdi.join("min_ratio_fine"), "0")?;
    written.set(None, bdi.join("max_bytes"), &bytes.to_string())?;
    // The kernel stores the limit as a fraction of memory, in `max_ratio_fine`. The fraction is
    // recorded, so that a change of the limit before the load starts is noticed.
    let part = bdi.join("max_ratio_fine");
    let found = sysfs::read(&part)?;
    // The kernel assigns a device a share of the allowed dirty pages, in proportion to its writes.
    // Without a lower limit, the share would depend on the writes to other devices, and would start
    // near zero for a new device.
    written.set(None, bdi.join("min_ratio_fine"), &found)?;
    written.0.push((part, found));
    Ok(())
}

/// Records all queue settings that a run can change, for a device that outlives the run. Settings
/// are restored in the reverse order of their records: first the scheduler, which changes other
/// settings, then its parameters, and the read-ahead window last.
fn remember_queue(journal: &mut Journal, disk: &Disk) -> Result<(), NativeError> {
    let queue = disk.folder.join("queue");
    let mut paths = vec![queue.join("read_ahead_kb"), queue.join("wbt_lat_usec")];
    let parameters = fs::read_dir(queue.join("iosched")).into_iter().flatten();
    paths.extend(parameters.filter_map(|entry| entry.ok().map(|entry| entry.path())));
    paths.extend([
        queue.join("nr_requests"),
        queue.join("write_cache"),
        queue.join("scheduler"),
    ]);
    for path in paths.into_iter().filter(|path| path.exists()) {
        let old = sysfs::read(&path)?;
        journal.record(Change::Setting { path, old })?;
    }
    Ok(())
}

/// Records the limits on dirty pages in the journal, so that they can be restored. A loop device
/// would otherwise keep the limits of this run for its next user.
///
/// The lower limit must never exceed the upper limit. So a restore first clears the lower limit,
/// and sets its old value last. The kernel stores `max_bytes` as a fraction of the dirty pages that
/// are allowed at the time of the write. So the journal records this fraction instead of
/// `max_bytes`.
fn remember_limits(journal: &mut Journal, disk: &Disk) -> Result<(), NativeError> {
    let bdi = disk.folder.join("bdi");
    let (lower, upper) = (bdi.join("min_ratio_fine"), bdi.join("max_ratio_fine"));
    if !upper.exists() {
        return Ok(());
    }
    let strict = bdi.join("strict_limit");
    let olds = [
        (lower.clone(), sysfs::read(&lower)?),
        (upper.clone(), sysfs::read(&upper)?),
        (lower, "0".to_owned()),
        (strict.clone(), sysfs::read(&strict)?),
    ];
    for (path, old) in olds {
        journal.record(Change::Setting { path, old })?;
    }
    Ok(())
}

type Measurement = (Measured, Counted, u64);

fn runtime(settings: &Settings, seed: u64) -> Result<Rt, NativeError> {
    let is_raw = settings.file_system == NO_FILE_SYSTEM;
    let options = UringOptions {
        // Only requests to the device itself use the pool. There are at most a thousand at a time,
        // and each waits until the pool has a buffer.
        pool_bytes: if is_raw { 64 << 20 } else { 1 << 20 },
        seed,
        register: false,
        // Always use io_uring, so that all measurements use the same driver.
        driver: DriverChoice::Uring,
        // No busy-polling, so that the measured CPU time is the CPU time of the I/O.
        spin: Duration::ZERO,
        ..UringOptions::default()
    };
    Rt::real_time(options).map_err(|source| NativeError::Io {
        what: "the runtime".to_owned(),
        error: source,
    })
}

/// Writes back and drops the pages of the block device in the page cache, because a tool has
/// possibly read or written the device just before.
fn forget_pages(device: &Device) -> Result<(), NativeError> {
    let path = &device.disk.path;
    device
        .file
        .sync_all()
        .map_err(|source| io_error(path, source))?;
    rustix::fs::fadvise(&device.file, 0, None, Advice::DontNeed)
        .map_err(|source| io_error(path, source.into()))
}

fn settled(
    device: &Device,
    settings: &Settings,
    limited: &[PathBuf],
    written: &mut Written,
    machine: &mut Machine,
) -> Result<(), NativeError> {
    if settings.memory_pages > 0 {
        for bdi in limited {
            limit_dirty(bdi, settings, written)?;
        }
    }
    machine.settings = written.verify()?;
    if let NativeDevice::Loop {
        depth: Some(depth), ..
    } = device_of(settings)?
    {
        let found = verify_depth(&device.disk, *depth)?;
        machine
            .settings
            .insert("depth of the device".to_owned(), found);
    }
    Ok(())
}

fn on_device(
    bench: &mut Bench<'_>,
    device: &Device,
    settings: &Settings,
    seed: u64,
    written: &mut Written,
    machine: &mut Machine,
) -> Result<Measurement, RunError> {
    let rt = runtime(settings, seed)?;
    let path = &device.disk.path;
    let open = || {
        let options = real_time::OpenOptions {
            write: true,
            direct: true,
        };
        let file = real_time::File::open(&rt, path, options)?;
        let blocks = file.size_bytes()? / 4096;
        Ok(RawDevice {
            file,
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
            write_through: settings.write_mode == "through",
        })
    };
    let raw = open().map_err(|source: io::Error| io_error(path, source))?;
    settled(device, settings, &[device.bdi()], written, machine)?;
    let place = LayerParameters {
        root: PathBuf::new(),
        device: Some(raw),
        has_many_programs: false,
        stop: Arc::clone(bench.stop),
        seed,
    };
    measure(&rt, place, device, settings, seed)
}

fn on_file_system(
    bench: &mut Bench<'_>,
    device: &Device,
    settings: &Settings,
    seed: u64,
    written: &mut Written,
    machine: &mut Machine,
) -> Result<Measurement, RunError> {
    let kind = kind_of(&settings.file_system)?;
    let path = &device.disk.path;
    let uuid = file_system::uuid(&run_id(settings, seed));
    machine.made_by = Some(kind.make(path, &uuid)?);
    forget_pages(device)?;
    let is_sync = settings.write_mode == "through";
    let mounted = kind.mount(path, &Path::new(FOLDER).join("mount"), is_sync)?;
    // A btrfs file system, which can span several devices, has its own limits on dirty pages and
    // its own read-ahead window.
    let own = PathBuf::from(format!("/sys/fs/btrfs/{uuid}/bdi"));
    let mut limited = vec![device.bdi()];
    if own.exists() {
        let window = (settings.read_ahead_pages * 4).to_string();
        written.set(None, own.join("read_ahead_kb"), &window)?;
        limited.push(own);
    }
    let options = mounted.options()?;
    if options.split([',', ';']).any(|option| option == "sync") != is_sync {
        return Err(NativeError::NotTaken {
            path: mounted.root().to_owned(),
            wanted: settings.write_mode.clone(),
            found: options,
        }
        .into());
    }
    machine.mount_options = Some(options);
    let rt = runtime(settings, seed)?;
    let place = LayerParameters {
        root: mounted.root().to_owned(),
        device: None,
        has_many_programs: matches!(settings.workload, Resolved::Clients(_)),
        stop: Arc::clone(bench.stop),
        seed,
    };
    settled(device, settings, &limited, written, machine)?;
    let outcome = measure(&rt, place, device, settings, seed);
    rt.end();
    mounted.unmount()?;
    outcome
}

fn measure(
    rt: &Rt,
    place: LayerParameters,
    device: &Device,
    settings: &Settings,
    seed: u64,
) -> Result<Measurement, RunError> {
    let (root, stop) = (place.root.clone(), Arc::clone(&place.stop));
    let files = RealFiles::new(rt, place).map_err(|source| NativeError::Io {
        what: "threads for programs".to_owned(),
        error: source,
    })?;
    let world = World {
        rt: rt.clone(),
        files: files.clone(),
        seed,
    };
    let counters = Counters::start(&device.disk)?;
    let begun = rt.now();
    let measured = match &settings.workload {
        Resolved::Tool(tool) => measure_tool(rt, tool, &root, device, seed, &stop),
        load => rt.block_on(load.run(&world)).map_err(RunError::from),
    };
    let elapsed_ns = rt.now().ns_since(begun);
    files.close();
    let measured = measured?;
    Ok((measured, counters.stop()?, elapsed_ns))
}

/// Runs the load in an external program. The program works in the folder `root`, or on the device
/// itself if the load uses no file system. When this function returns, all written data is durable.
fn measure_tool(
    rt: &Rt,
    tool: &Tool,
    root: &Path,
    device: &Device,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Measured, RunError> {
    tool.check_files()?;
    let is_raw = tool.of.is_raw();
    let place = if is_raw { &device.disk.path } else { root };
    let folder = if is_raw { Path::new("/") } else { root };
    let steps = tool.steps(place, device.disk.size_bytes()?, seed);
    let scene = super::tool::Scene {
        folder,
        stop,
        now_ns: &|| rt.now().as_ns(),
    };
    let printed = super::tool::run(&steps, &scene)?;
    let begun = rt.now();
    let synced = match is_raw {
        true => device.file.sync_all(),
        false => File::open(root).and_then(|root| Ok(rustix::fs::syncfs(&root)?)),
    };
    synced.map_err(|source| io_error(place, source))?;
    let measured = tool.measured(&printed, rt.now().ns_since(begun));
    measured.map_err(|why| {
        let program = tool.program().0;
        NativeError::Refused(format!("{program}: {why}")).into()
    })
}
