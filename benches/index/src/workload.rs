//! The cells of the benchmark. A cell is the work that one process does with one engine, and the
//! report about it.
//!
//! Keys and changes are drawn before the clock is read, so that a latency contains only the
//! engine's time. Some cells first fill the engine's write buffers by updates (*warming*). A cell
//! reads counters at the start and at the end of the measurement (its first and last mark), and
//! reports the differences. It then waits until the engine has done the work that it left to other
//! threads, and reads the device's counters once more.

use crate::engine::{self, Durability, Engine, Name, Setting};
use crate::measure::{self, Device, Latencies, clock_cost_ns, cpu_ns, device_between, now_ns};
use crate::record::{Changes, Draw, Key, Shape, Zipf};
use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const LOAD_BATCH: usize = 10_000;
const GETS_A_SNAPSHOT: usize = 100;
const ROWS_A_SCAN: usize = 100;
const SCANS_A_SNAPSHOT: usize = 10;
const WRITER_THREADS: u64 = 8;
/// A key that is smaller than the keys of all records. It is not empty, because some engines cannot
/// look for an empty key.
const LEAST_KEY: &[u8] = &[0];
/// Maximum time of the warming in nanoseconds. Without warming the engine's write buffers would not
/// be full, and a cell would measure only the cost of the log.
const WARMING_MAX_NS: u64 = 120_000_000_000;
/// Size of the pages that most engines read, in bytes.
const PAGE_BYTES: u64 = 4096;

/// Kinds of work that a process can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Cell {
    /// Loads the records with even ids in random order, in batches of 10,000 that do not wait until
    /// they are durable. Then writes back all content.
    Load,
    /// Gets random loaded ids, all with the same probability. Each snapshot is used for a hundred
    /// gets.
    Get,
    /// The same as `get`, with ids drawn by Zipf's law.
    GetZipf,
    /// The same as `get`, but without a shared snapshot: each id is read by a call of its own, the
    /// engine's fastest.
    GetAlone,
    /// Scans a hundred records, starting at a random id.
    Scan,
    /// A get, followed by a durable put or delete.
    Mix1,
    /// A hundred gets, followed by a hundred puts and deletes in one durable commit.
    Mix100,
    /// A durable put of a loaded id.
    Update1,
    /// A hundred puts of loaded ids in one durable commit.
    Update100,
    /// The same as `update1`, on eight threads.
    Threads8,
    /// The same as `mix100`, after which the process kills itself.
    Kill,
    /// Opens the index, gets one record, and then reads all records.
    Reopen,
}

impl Cell {
    /// Returns whether the engine's write buffers must be full before the cell begins to count.
    fn is_warmed(self) -> bool {
        matches!(self, Cell::Mix100 | Cell::Update100 | Cell::Kill)
    }
}

/// Parameters of a cell.
#[derive(Clone, Debug)]
pub struct Plan {
    pub cell: Cell,
    pub engine: Name,
    pub folder: PathBuf,
    pub shape: Shape,
    pub keys: u64,
    pub setting: Setting,
    /// Seed of all random draws.
    pub seed: u64,
    /// Maximum number of operations (gets, scans, commits).
    pub count: u64,
    /// Maximum total time of the measured operations in nanoseconds. After this time no operation
    /// is started, and the operation in progress is completed.
    pub limit_ns: u64,
    /// Number of updates that are written before the measurement of the cell begins.
    pub warm_updates: u64,
    /// Whether the data do not fit into the cache.
    pub is_cold: bool,
    /// File with the counters of the block device; `None` if they are not reported.
    pub stat: Option<PathBuf>,
}

/// Runs a cell and returns its report.
pub fn run(plan: &Plan) -> Result<Value> {
    std::fs::create_dir_all(&plan.folder)?;
    let mut session = Session::begin(plan)?;
    let found = match plan.cell {
        Cell::Load => session.load()?,
        Cell::Get => session.get(&|plan, draw| draw.below(plan.keys))?,
        Cell::GetZipf => {
            let zipf = Zipf::new(plan.keys);
            session.get(&move |_, draw| zipf.draw(draw))?
        }
        Cell::GetAlone => session.get_alone()?,
        Cell::Scan => session.scan()?,
        Cell::Mix1 => session.mix(1)?,
        Cell::Mix100 | Cell::Kill => session.mix(100)?,
        Cell::Update1 => session.update(1)?,
        Cell::Update100 => session.update(100)?,
        Cell::Threads8 => session.threads()?,
        Cell::Reopen => session.reopened()?,
    };
    session.end(found)
}

/// A running cell.
struct Session<'a> {
    plan: &'a Plan,
    engine: Box<dyn Engine>,
    device: Device,
    draw: Draw,
    clock_ns: u64,
    open_ns: u64,
    open_cpu_ns: u64,
    changes: Changes,
    value: Vec<u8>,
}

/// Named results of a cell.
type Found = Map<String, Value>;

fn entries<const N: usize>(entries: [(&str, Value); N]) -> Found {
    let named = entries.map(|(name, value)| (name.to_owned(), value));
    named.into_iter().collect()
}

/// State of the clocks and of the device's counters at the moment when the measurement of a cell
/// (the work of one process with one engine) begins.
struct Mark {
    wall_ns: u64,
    cpu_ns: u64,
    device: Option<measure::DeviceCounters>,
}

impl Mark {
    fn goes_on(&self, plan: &Plan, done: u64) -> bool {
        done < plan.count && now_ns() - self.wall_ns < plan.limit_ns
    }
}

impl<'a> Session<'a> {
    fn begin(plan: &'a Plan) -> Result<Session<'a>> {
        let device = Device::new(plan.stat.clone(), &plan.folder)?;
        let (start, start_cpu_ns) = (now_ns(), cpu_ns());
        let engine = engine::open(plan.engine, &plan.folder, &plan.setting)?;
        Ok(Session {
            plan,
            engine,
            device,
            draw: Draw::new(plan.seed),
            clock_ns: clock_cost_ns(),
            open_ns: now_ns() - start,
            open_cpu_ns: cpu_ns() - start_cpu_ns,
            changes: Changes::default(),
            value: Vec::new(),
        })
    }

    fn latencies(&self) -> Latencies {
        Latencies::new(self.clock_ns)
    }

    /// Prepares a cell that writes. Reads all data into the cache if they fit, which matters for
    /// engines that do not use the kernel's cache. Then fills the engine's write buffers if the
    /// cell needs that.
    fn get_going(&mut self) -> Result<()> {
        if !self.plan.is_cold {
            self.warm_cache()?;
        }
        if self.plan.cell.is_warmed() {
            self.warm()?;
        }
        Ok(())
    }

    /// Fills the engine's write buffers with updates of loaded ids. The updates do not wait until
    /// they are durable ([`Durability::Relaxed`]).
    fn warm(&mut self) -> Result<()> {
        let start = now_ns();
        let mut done = 0;
        while done < self.plan.warm_updates && now_ns() - start < WARMING_MAX_NS {
            self.draw_updates(LOAD_BATCH as u64);
            self.engine.write(&self.changes, Durability::Relaxed)?;
            done += LOAD_BATCH as u64;
        }
        // The first durable commit also makes the relaxed (not yet durable) updates durable. It is
        // made here, before the measurement, so that its cost is not measured.
        self.draw_updates(1);
        self.engine.write(&self.changes, Durability::Durable)
    }

    fn mark(&self) -> Result<Mark> {
        self.device.drain()?;
        Ok(Mark {
            device: self.device.counters()?,
            wall_ns: now_ns(),
            cpu_ns: cpu_ns(),
        })
    }

    /// Ends the measurement that began at `mark`, and adds the totals to `found`. `written` is the
    /// number of records that were written between `mark` and this call.
    fn measured(
        &self,
        mark: &Mark,
        operations: u64,
        written: u64,
        found: &mut Found,
    ) -> Result<()> {
        let wall_ns = now_ns() - mark.wall_ns;
        let cpu = cpu_ns() - mark.cpu_ns;
        let after = self.device.counters()?;
        self.engine.settle()?;
        self.device.drain()?;
        let settled = self.device.counters()?;
        let more = entries([
            ("operations", json!(operations)),
            ("records_written", json!(written)),
            ("wall_s", json!(wall_ns as f64 / 1e9)),
            ("cpu_s", json!(cpu as f64 / 1e9)),
            ("device", device_between(mark.device, after)),
            ("device_settled", device_between(mark.device, settled)),
        ]);
        found.extend(more);
        Ok(())
    }

    fn load(&mut self) -> Result<Found> {
        let count = u32::try_from(self.plan.keys)?;
        let mut order: Vec<u32> = (0..count).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.draw.below(at as u64 + 1) as usize);
        }
        let mut commits = self.latencies();
        let mark = self.mark()?;
        for numbers in order.chunks(LOAD_BATCH) {
            self.changes.clear();
            for number in numbers {
                let id = u64::from(*number) * 2;
                self.changes.put(self.plan.shape, id, &mut self.draw);
            }
            commits.time(|| self.engine.write(&self.changes, Durability::Relaxed))?;
        }
        let loaded_ns = now_ns() - mark.wall_ns;
        self.engine.write_back()?;
        let mut found = entries([
            ("commit", commits.summary(1)),
            ("load_s", json!(loaded_ns as f64 / 1e9)),
        ]);
        self.measured(&mark, self.plan.keys, self.plan.keys, &mut found)?;
        found.insert("files".to_owned(), files(&self.plan.folder)?);
        Ok(found)
    }

    /// Fills the engine's read cache by reading all records once. If the data do not fit into the
    /// cache, reads enough random records instead. Returns the number of records read.
    fn warm_cache(&mut self) -> Result<u64> {
        if self.plan.is_cold {
            let gets = self.plan.setting.cache_bytes / PAGE_BYTES * 2;
            for _ in 0..gets {
                let id = self.draw.below(self.plan.keys) * 2;
                let key = self.plan.shape.key(id);
                self.engine.get(key.bytes(), &mut self.value)?;
            }
            return Ok(gets);
        }
        let mut seen = engine::Seen::default();
        let everything = usize::try_from(self.plan.keys * 2)?;
        let mut rows = 0;
        self.engine.read(&mut |reader| {
            rows = reader.scan(LEAST_KEY, everything, &mut seen)?;
            Ok(())
        })?;
        std::hint::black_box(seen.sum());
        Ok(rows as u64)
    }

    fn keys_of(&mut self, pick: &dyn Fn(&Plan, &mut Draw) -> u64, keys: &mut Vec<Key>) {
        keys.clear();
        for _ in 0..GETS_A_SNAPSHOT {
            let id = pick(self.plan, &mut self.draw) * 2;
            keys.push(self.plan.shape.key(id));
        }
    }

    fn get(&mut self, pick: &dyn Fn(&Plan, &mut Draw) -> u64) -> Result<Found> {
        let rows = self.warm_cache()?;
        let (mut alone, mut hundred) = (self.latencies(), self.latencies());
        let mut value = Vec::new();
        let mut keys = Vec::new();
        let (mut done, mut missing) = (0, 0);
        let mark = self.mark()?;
        while mark.goes_on(self.plan, done) {
            // Alternate between a hundred gets that are timed together, which makes the cost of the
            // clock negligible, and a hundred gets that are timed one by one.
            self.keys_of(pick, &mut keys);
            self.engine.read(&mut |reader| {
                hundred.time(|| {
                    for key in &keys {
                        missing += u64::from(!reader.get(key.bytes(), &mut value)?);
                    }
                    anyhow::Ok(())
                })
            })?;
            self.keys_of(pick, &mut keys);
            self.engine.read(&mut |reader| {
                for key in &keys {
                    let is_there = alone.time(|| reader.get(key.bytes(), &mut value))?;
                    missing += u64::from(!is_there);
                }
                Ok(())
            })?;
            done += 2 * GETS_A_SNAPSHOT as u64;
        }
        ensure!(missing == 0, "{missing} of {done} loaded keys are missing");
        ensure!(
            value.len() == self.plan.shape.value_bytes(),
            "a value of {} bytes",
            value.len()
        );
        let mut found = entries([
            ("rows", json!(rows)),
            ("get", hundred.summary(GETS_A_SNAPSHOT as u64)),
            ("get_timed_alone", alone.summary(1)),
        ]);
        self.measured(&mark, done, 0, &mut found)?;
        Ok(found)
    }

    fn get_alone(&mut self) -> Result<Found> {
        self.warm_cache()?;
        let mut gets = self.latencies();
        let mut keys = Vec::new();
        let (mut done, mut missing) = (0, 0);
        let mark = self.mark()?;
        while mark.goes_on(self.plan, done) {
            self.keys_of(&|plan, draw| draw.below(plan.keys), &mut keys);
            let (engine, value) = (&self.engine, &mut self.value);
            gets.time(|| {
                for key in &keys {
                    missing += u64::from(!engine.get(key.bytes(), value)?);
                }
                anyhow::Ok(())
            })?;
            done += GETS_A_SNAPSHOT as u64;
        }
        ensure!(missing == 0, "{missing} of {done} loaded keys are missing");
        let mut found = entries([("get", gets.summary(GETS_A_SNAPSHOT as u64))]);
        self.measured(&mark, done, 0, &mut found)?;
        Ok(found)
    }

    fn scan(&mut self) -> Result<Found> {
        self.warm_cache()?;
        let mut scans = self.latencies();
        let mut seen = engine::Seen::default();
        let mut keys = Vec::new();
        let (mut done, mut rows) = (0, 0);
        let mark = self.mark()?;
        while mark.goes_on(self.plan, done) {
            self.keys_of(&|plan, draw| draw.below(plan.keys), &mut keys);
            for keys in keys.chunks(SCANS_A_SNAPSHOT) {
                self.engine.read(&mut |reader| {
                    for key in keys {
                        rows += scans.time(|| reader.scan(key.bytes(), ROWS_A_SCAN, &mut seen))?;
                    }
                    Ok(())
                })?;
            }
            done += keys.len() as u64;
        }
        std::hint::black_box(seen.sum());
        ensure!(rows as u64 > done * 90, "{rows} rows in {done} scans");
        let mut found = entries([("scan", scans.summary(1)), ("rows", json!(rows))]);
        self.measured(&mark, done, 0, &mut found)?;
        Ok(found)
    }

    fn draw_updates(&mut self, count: u64) {
        self.changes.clear();
        for _ in 0..count {
            let id = self.draw.below(self.plan.keys) * 2;
            self.changes.put(self.plan.shape, id, &mut self.draw);
        }
    }

    fn draw_mixed(&mut self, count: u64) {
        self.changes.clear();
        for _ in 0..count {
            let id = self.draw.below(self.plan.keys * 2);
            if self.draw.below(2) == 0 {
                self.changes.put(self.plan.shape, id, &mut self.draw);
            } else {
                self.changes.delete(self.plan.shape, id);
            }
        }
    }

    fn mix(&mut self, size: u64) -> Result<Found> {
        self.get_going()?;
        let (mut gets, mut commits) = (self.latencies(), self.latencies());
        let mut keys: Vec<Key> = Vec::new();
        let (mut done, mut hits) = (0, 0);
        let mark = self.mark()?;
        while mark.goes_on(self.plan, done) {
            keys.clear();
            for _ in 0..size {
                let id = self.draw.below(self.plan.keys * 2);
                keys.push(self.plan.shape.key(id));
            }
            self.draw_mixed(size);
            let value = &mut self.value;
            self.engine.read(&mut |reader| {
                gets.time(|| {
                    for key in &keys {
                        hits += u64::from(reader.get(key.bytes(), value)?);
                    }
                    anyhow::Ok(())
                })
            })?;
            commits.time(|| self.engine.write(&self.changes, Durability::Durable))?;
            done += 1;
        }
        let mut found = entries([
            ("get", gets.summary(size)),
            ("commit", commits.summary(1)),
            ("hits", json!(hits)),
        ]);
        self.measured(&mark, done, done * size, &mut found)?;
        Ok(found)
    }

    fn update(&mut self, size: u64) -> Result<Found> {
        self.get_going()?;
        let mut commits = self.latencies();
        let mut done = 0;
        let mark = self.mark()?;
        while mark.goes_on(self.plan, done) {
            self.draw_updates(size);
            commits.time(|| self.engine.write(&self.changes, Durability::Durable))?;
            done += 1;
        }
        let mut found = entries([("commit", commits.summary(1))]);
        self.measured(&mark, done, done * size, &mut found)?;
        Ok(found)
    }

    fn threads(&mut self) -> Result<Found> {
        self.get_going()?;
        let mark = self.mark()?;
        let done = AtomicU64::new(0);
        let plan = self.plan;
        let (engine, clock_ns) = (&*self.engine, self.clock_ns);
        let write = |seed: u64| -> Result<Latencies> {
            let mut draw = Draw::new(seed);
            let mut commits = Latencies::new(clock_ns);
            let mut changes = Changes::default();
            while mark.goes_on(plan, done.fetch_add(1, Ordering::Relaxed)) {
                changes.clear();
                let id = draw.below(plan.keys) * 2;
                changes.put(plan.shape, id, &mut draw);
                commits.time(|| engine.write(&changes, Durability::Durable))?;
            }
            Ok(commits)
        };
        let mut all = self.latencies();
        std::thread::scope(|scope| {
            let write = &write;
            let start = |thread| {
                let seed = plan.seed.wrapping_mul(1000) + thread;
                scope.spawn(move || write(seed))
            };
            let threads: Vec<_> = (0..WRITER_THREADS).map(start).collect();
            for thread in threads {
                match thread.join() {
                    Ok(commits) => all.add(&commits?),
                    Err(_) => bail!("a writer panicked"),
                }
            }
            Ok(())
        })?;
        let summary = all.summary(1);
        let commits = summary["count"].as_u64().unwrap_or(0);
        let mut found = entries([("commit", summary)]);
        self.measured(&mark, commits, commits, &mut found)?;
        Ok(found)
    }

    /// Reports the time from the start of opening the index to the answer of the first get.
    fn reopened(&mut self) -> Result<Found> {
        let start = now_ns();
        let key = self.plan.shape.key(0);
        let is_there = self.engine.get(key.bytes(), &mut self.value)?;
        let first_ns = now_ns() - start;
        let rows = self.warm_cache()?;
        Ok(entries([
            ("ready_s", json!((self.open_ns + first_ns) as f64 / 1e9)),
            ("first_key_is_there", json!(is_there)),
            ("rows", json!(rows)),
        ]))
    }

    fn end(self, mut found: Found) -> Result<Value> {
        found.insert("open_s".to_owned(), json!(self.open_ns as f64 / 1e9));
        let open_cpu_s = self.open_cpu_ns as f64 / 1e9;
        found.insert("open_cpu_s".to_owned(), json!(open_cpu_s));
        found.insert("clock_ns".to_owned(), json!(self.clock_ns));
        found.insert("statistics".to_owned(), self.engine.statistics()?);
        if self.plan.cell == Cell::Kill {
            // Do not drop the engine, which would close it: the kill has to act like a crash.
            std::mem::forget(self.engine);
        }
        Ok(Value::Object(found))
    }
}

/// Returns the number of bytes that the file system has allocated to each file in a folder.
fn files(folder: &Path) -> Result<Value> {
    use std::os::unix::fs::MetadataExt;
    const STAT_BLOCK_BYTES: u64 = 512;
    let mut all = Map::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(of) = folders.pop() {
        for entry in std::fs::read_dir(of)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let path = entry.path();
            let name = path.strip_prefix(folder).unwrap_or(&path);
            let bytes = metadata.blocks() * STAT_BLOCK_BYTES;
            all.insert(name.display().to_string(), json!(bytes));
        }
    }
    Ok(Value::Object(all))
}
