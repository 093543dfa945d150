//! Flash: reads are dispatched first and in order of arrival, writes in batches of the device's
//! write unit.
//!
//! This scheduler is not from Linux. A flash device has no head, so sorting reads gains nothing.
//! But a flash device writes, and later erases, whole units, and its reads wait behind program and
//! erase operations. Therefore reads never wait to be sorted, writes are collected by unit, and
//! while there are reads the device has about one unit of writes at a time. A write must never wait
//! without a bound. The rules are in `docs/schedulers.md`.

use super::sorted::Sorted;
use super::{Bio, Direction, DispatchList, MS_NS, Requests, Scheduler, Tag};
use crate::lists::{Links, List};

/// Parameters of Flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashParameters {
    /// The device's preferred write size, aligned.
    pub write_unit_sectors: u64,
    /// Hold time: the maximum time for which an async write is held back until its unit is full.
    pub fill_wait_ns: u64,
    /// Age at which a write expires. Expired writes are dispatched before reads.
    pub write_expire_ns: u64,
    /// Number of reads that are dispatched between two batches of expired writes if both reads and
    /// expired writes wait. A write has expired when its age has reached `write_expire_ns`.
    pub reads_between: u64,
}

impl Default for FlashParameters {
    /// Returns a write unit of 128 KiB, a hold time of 2 ms, an expiry age of 100 ms, and 16 reads
    /// between two batches of expired writes.
    fn default() -> FlashParameters {
        FlashParameters {
            write_unit_sectors: 256,
            fill_wait_ns: 2 * MS_NS,
            write_expire_ns: 100 * MS_NS,
            reads_between: 16,
        }
    }
}

/// Waiting writes of one unit.
#[derive(Clone, Copy, Debug, Default)]
struct Unit {
    number: u64,
    sectors: u64,
    requests: usize,
    full: bool,
}

/// The batch in progress.
#[derive(Clone, Copy, Debug)]
struct Batch {
    unit: u64,
    /// Start sector and tag of the last dispatched write of the batch; `None` before the first
    /// write.
    after: Option<(u64, Tag)>,
    /// True when the batch is dispatched before reads.
    urgent: bool,
}

/// The flash scheduler; see the module.
#[derive(Clone, Debug)]
pub struct Flash {
    parameters: FlashParameters,
    links: Links,
    /// Waiting reads in order of arrival, the newest first.
    reads: List,
    /// Lists of the waiting sync writes (`sync`) and of the waiting async writes (`lazy`). A new
    /// write is inserted at the front, so the oldest write is at the back.
    sync: List,
    lazy: List,
    sorted: Sorted,
    /// Units with waiting writes, in ascending order of unit number.
    units: Vec<Unit>,
    /// Numbers of the full units, in the order in which the units became full.
    full: Vec<u64>,
    batch: Option<Batch>,
    reads_under_way: usize,
    write_sectors_under_way: u64,
    /// Number of reads since the last urgent batch.
    reads_since: u64,
    /// Time at which the hold time of the oldest async write ends. From then on, the write can be
    /// dispatched even if its unit is not full.
    wake_at_ns: Option<u64>,
}

impl Flash {
    /// Creates the scheduler for `tags` tags.
    pub fn new(tags: usize, parameters: FlashParameters) -> Flash {
        let mut links = Links::default();
        links.reserve(tags);
        Flash {
            parameters: FlashParameters {
                write_unit_sectors: parameters.write_unit_sectors.max(1),
                ..parameters
            },
            links,
            reads: List::default(),
            sync: List::default(),
            lazy: List::default(),
            sorted: Sorted::with_capacity(tags),
            units: Vec::new(),
            full: Vec::new(),
            batch: None,
            reads_under_way: 0,
            write_sectors_under_way: 0,
            reads_since: parameters.reads_between,
            wake_at_ns: None,
        }
    }

    fn unit_of(&self, bio: &Bio) -> u64 {
        bio.start_sector / self.parameters.write_unit_sectors
    }

    /// Returns the FIFO in which a write waits.
    fn fifo_of(&mut self, bio: &Bio) -> (&mut List, &mut Links) {
        let fifo = if bio.is_sync() {
            &mut self.sync
        } else {
            &mut self.lazy
        };
        (fifo, &mut self.links)
    }

    /// Returns the index of the unit `unit` in `units`, or the index at which it would be inserted.
    fn place_of(&self, unit: u64) -> usize {
        self.units.partition_point(|other| other.number < unit)
    }

    /// Adds sectors and requests to the counters of a unit.
    fn fill(&mut self, unit: u64, sectors: u64, requests: usize) {
        let at = self.place_of(unit);
        if self.units.get(at).is_none_or(|found| found.number != unit) {
            let new = Unit {
                number: unit,
                ..Unit::default()
            };
            self.units.insert(at, new);
        }
        let entry = &mut self.units[at];
        entry.sectors += sectors;
        entry.requests += requests;
        if entry.sectors >= self.parameters.write_unit_sectors && !entry.full {
            entry.full = true;
            self.full.push(unit);
        }
    }

    /// Removes a request from the counters of its unit.
    fn drain(&mut self, unit: u64, sectors: u64) {
        let at = self.place_of(unit);
        let entry = &mut self.units[at];
        assert_eq!(entry.number, unit, "a write that waits has a unit");
        entry.sectors -= sectors;
        entry.requests -= 1;
        if entry.requests == 0 && self.units.remove(at).full {
            self.full.retain(|full| *full != unit);
        }
    }

    /// Returns true if a batch of writes is allowed to begin. If no read waits or is at the device,
    /// a batch can always begin; otherwise only if less than one unit of writes is at the device.
    fn may_begin(&self) -> bool {
        let nobody_reads = self.reads.is_empty() && self.reads_under_way == 0;
        nobody_reads || self.write_sectors_under_way < self.parameters.write_unit_sectors
    }

    /// Returns the oldest write.
    fn oldest(&self, r: &Requests) -> Option<Tag> {
        let both = [self.sync.back(), self.lazy.back()];
        both.into_iter()
            .flatten()
            .min_by_key(|tag| r[*tag].arrived_ns)
    }

    /// Returns the unit of the oldest write if two conditions hold: the write has expired; and no
    /// read is waiting, or enough reads have been dispatched since the last batch of expired
    /// writes.
    fn overdue(&self, r: &Requests, now_ns: u64) -> Option<u64> {
        let reads_had_theirs =
            self.reads.is_empty() || self.reads_since >= self.parameters.reads_between;
        let oldest = self.oldest(r).filter(|_| reads_had_theirs)?;
        let due_ns = r[oldest]
            .arrived_ns
            .saturating_add(self.parameters.write_expire_ns);
        (now_ns >= due_ns).then(|| self.unit_of(&r[oldest].bio))
    }

    /// Returns the unit to write next if no write has expired: a full unit; otherwise the unit of
    /// the oldest sync write; otherwise the unit of the oldest async write, if its hold time has
    /// passed.
    fn ready(&self, r: &Requests, now_ns: u64) -> Option<u64> {
        if let Some(unit) = self.full.first() {
            return Some(*unit);
        }
        let lazy = self.lazy.back().filter(|tag| {
            let kept_ns = self.parameters.fill_wait_ns;
            now_ns >= r[*tag].arrived_ns.saturating_add(kept_ns)
        });
        let tag = self.sync.back().or(lazy)?;
        Some(self.unit_of(&r[tag].bio))
    }

    /// Returns the next write of the batch; ends the batch if it has no more writes.
    fn go_on(&mut self, r: &Requests) -> Option<Tag> {
        let batch = self.batch?;
        let first_sector = batch.unit * self.parameters.write_unit_sectors;
        let next = match batch.after {
            Some((sector, tag)) => self.sorted.after(sector, tag),
            None => self.sorted.from(first_sector),
        };
        let next = next.filter(|tag| self.unit_of(&r[*tag].bio) == batch.unit);
        if next.is_none() {
            self.batch = None;
        }
        next
    }

    /// Returns true if two writes start in the same unit, both end in that unit, and both are sync
    /// or both are async.
    fn may_join(&self, a: &Bio, b: &Bio) -> bool {
        let last_sector = a.end_sector().max(b.end_sector()) - 1;
        let last_unit = last_sector / self.parameters.write_unit_sectors;
        a.is_sync() == b.is_sync() && self.unit_of(a) == last_unit && self.unit_of(b) == last_unit
    }

    /// Returns the write that `beside` finds next to `tag`, if the two writes are allowed to be
    /// merged.
    fn neighbour(
        &self,
        tag: Tag,
        requests: &Requests,
        beside: fn(&Sorted, u64, Tag) -> Option<Tag>,
    ) -> Option<Tag> {
        let bio = requests[tag].bio;
        if bio.direction == Direction::Read {
            return None;
        }
        let other = beside(&self.sorted, bio.start_sector, tag);
        other.filter(|other| self.may_join(&bio, &requests[*other].bio))
    }

    fn begin(&mut self, unit: u64, urgent: bool) {
        self.batch = Some(Batch {
            unit,
            after: None,
            urgent,
        });
        if urgent {
            self.reads_since = 0;
        }
    }

    fn take_read(&mut self) -> Option<Tag> {
        let tag = self.reads.pop_back(&mut self.links)?;
        self.reads_under_way += 1;
        self.reads_since = self.reads_since.saturating_add(1);
        Some(tag)
    }

    fn take_write(&mut self, tag: Tag, r: &Requests) -> Tag {
        let bio = r[tag].bio;
        let (fifo, links) = self.fifo_of(&bio);
        fifo.remove(links, tag);
        self.unfile(tag, &bio);
        self.write_sectors_under_way += u64::from(bio.sectors);
        if let Some(batch) = &mut self.batch {
            batch.after = Some((bio.start_sector, tag));
        }
        tag
    }

    /// Removes a write from its unit.
    fn unfile(&mut self, tag: Tag, bio: &Bio) {
        let was_here = self.sorted.remove(bio.start_sector, tag);
        assert!(was_here, "write {tag} is filed under another sector");
        self.drain(self.unit_of(bio), u64::from(bio.sectors));
    }

    fn choose(&mut self, r: &Requests, now_ns: u64) -> Option<Tag> {
        if self.batch.is_some_and(|batch| batch.urgent)
            && let Some(tag) = self.go_on(r)
        {
            return Some(self.take_write(tag, r));
        }
        if self.may_begin()
            && let Some(unit) = self.overdue(r, now_ns)
        {
            self.begin(unit, true);
        } else if let Some(tag) = self.take_read() {
            return Some(tag);
        }
        if let Some(tag) = self.go_on(r) {
            return Some(self.take_write(tag, r));
        }
        let unit = self.ready(r, now_ns).filter(|_| self.may_begin())?;
        self.begin(unit, false);
        let tag = self.go_on(r)?;
        Some(self.take_write(tag, r))
    }
}

impl Scheduler for Flash {
    fn name(&self) -> &'static str {
        "flash"
    }

    fn add(&mut self, tag: Tag, requests: &Requests, _: u64) {
        let bio = requests[tag].bio;
        if bio.direction == Direction::Read {
            self.reads.push_front(&mut self.links, tag);
            return;
        }
        self.sorted.insert(bio.start_sector, tag);
        let (fifo, links) = self.fifo_of(&bio);
        fifo.push_front(links, tag);
        self.fill(self.unit_of(&bio), u64::from(bio.sectors), 1);
    }

    fn front_candidate(&self, bio: &Bio, _: &Requests) -> Option<Tag> {
        let write = bio.direction == Direction::Write;
        write.then(|| self.sorted.at(bio.end_sector()))?
    }

    /// Returns false if merging `bio` into a write would combine different units, or a sync with an
    /// async write.
    fn may_merge(&self, tag: Tag, bio: &Bio, requests: &Requests) -> bool {
        let into = requests[tag].bio;
        into.direction == Direction::Read || self.may_join(&into, bio)
    }

    fn former(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        self.neighbour(tag, requests, Sorted::before)
    }

    fn latter(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        self.neighbour(tag, requests, Sorted::after)
    }

    fn grew_in_front(&mut self, tag: Tag, old_start_sector: u64, requests: &Requests) {
        let bio = requests[tag].bio;
        if bio.direction == Direction::Write {
            let was_here = self.sorted.remove(old_start_sector, tag);
            assert!(was_here, "write {tag} is filed under another sector");
            self.sorted.insert(bio.start_sector, tag);
            self.fill(self.unit_of(&bio), old_start_sector - bio.start_sector, 0);
        }
    }

    fn grew_behind(&mut self, tag: Tag, sectors: u32, requests: &Requests) {
        let bio = requests[tag].bio;
        if bio.direction == Direction::Write {
            self.fill(self.unit_of(&bio), u64::from(sectors), 0);
        }
    }

    fn absorbed(&mut self, survivor: Tag, absorbed: Tag, requests: &Requests) {
        let (first, second) = (&requests[survivor], &requests[absorbed]);
        let (list, links) = self.fifo_of(&second.bio);
        if second.arrived_ns < first.arrived_ns {
            list.remove(links, survivor);
            list.replace(links, absorbed, survivor);
        } else {
            list.remove(links, absorbed);
        }
        self.unfile(absorbed, &second.bio);
        let more = u64::from(second.bio.sectors);
        self.fill(self.unit_of(&first.bio), more, 0);
    }

    fn dispatch(&mut self, requests: &Requests, now_ns: u64, list: &mut DispatchList) -> bool {
        let chosen = self.choose(requests, now_ns);
        if let Some(tag) = chosen {
            list.push(tag, requests);
            return true;
        }
        // Each write in the lists either has to wait for the completion of another request, or is
        // held back until its unit is full or its hold time has passed.
        let lazy = self.lazy.back().filter(|_| self.may_begin());
        let kept_ns = self.parameters.fill_wait_ns;
        self.wake_at_ns = lazy.map(|tag| requests[tag].arrived_ns.saturating_add(kept_ns));
        false
    }

    fn completed(&mut self, tag: Tag, requests: &Requests, _: u64) {
        let bio = requests[tag].bio;
        match bio.direction {
            Direction::Read => self.reads_under_way -= 1,
            Direction::Write => self.write_sectors_under_way -= u64::from(bio.sectors),
        }
    }

    fn wake_at_ns(&self) -> Option<u64> {
        self.wake_at_ns.filter(|_| !self.lazy.is_empty())
    }

    fn waiting(&self) -> usize {
        self.reads.len() + self.sync.len() + self.lazy.len()
    }
}
