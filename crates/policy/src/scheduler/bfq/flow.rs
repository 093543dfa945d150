//! One queue of BFQ: its requests, its budget, the behaviour of its task, and the raise of its
//! weight.

use super::super::lanes::{Expiries, Lane};
use super::super::means::Mean;
use super::super::queues::{Rank, rank_of};
use super::super::{Bio, MS_NS, Requests, Tag};
use super::weight::Raise;

/// Distance from the end of the previous request, in sectors, beyond which a request is seeky.
const SEEK_SECTORS: u64 = 8 * 100;
/// Length in sectors below which a distant request is seeky on a device that does not rotate.
const SHORT_SECTORS: u32 = 2 * 32;
/// Number of seeky requests among a queue's last 32 requests above which the queue is seeky.
const SEEKS: u32 = 19;
/// Total sample weight above which a mean think time is valid.
const VALID: u64 = 80;
/// Length of the window in which a task's activity is measured. After the window, the measured
/// times are halved.
const WINDOW_NS: u64 = 200 * MS_NS;

/// Returns true if `bio` starts far from `from_sector`, the end of the previous request. On a
/// device that does not rotate, `bio` must also be short.
pub(super) fn is_seeky(from_sector: u64, bio: &Bio, rotational: bool) -> bool {
    let is_far = bio.start_sector.abs_diff(from_sector) > SEEK_SECTORS;
    is_far && (rotational || bio.sectors < SHORT_SECTORS)
}

/// A queue of BFQ.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    pub(super) lane: Lane,
    /// The next request to dispatch.
    pub(super) next: Option<Tag>,
    pub(super) sync: bool,
    pub(super) rank: Rank,
    /// The priority level: 0 is the most urgent, 7 the least.
    pub(super) level: u64,
    /// Number of requests on the list or with the device.
    pub(super) under_way: usize,
    /// True when the queue has requests, or the device is kept idle for it.
    pub(super) is_busy: bool,
    /// The next budget, in sectors.
    pub(super) budget_next: u64,
    /// Time at which the queue's service times out, even if budget is left.
    pub(super) budget_until_ns: u64,
    /// True when the queue's oldest request was checked for expiry since the service began.
    pub(super) looked: bool,
    /// True when the queue was empty at the end of its last service, and that service neither timed
    /// out nor exhausted the budget.
    pub(super) may_come_back: bool,
    pub(super) raise: Raise,
    /// Time at which the queue became idle, with no request waiting or in flight; `None` before the
    /// first such time.
    pub(super) idle_since_ns: Option<u64>,
    /// A new request that arrives after this time shows that the task paces itself, as a media
    /// player does.
    pub(super) soft_real_time_ns: u64,
    /// True when `soft_real_time_ns` must be computed once the queue's last request completes.
    pub(super) computes_later: bool,
    /// Time at which the queue last became busy, and the number of sectors served since that time.
    pub(super) busy_since_ns: u64,
    pub(super) busy_sectors: u64,
    exited: bool,
    known: bool,
    /// Time at which the queue's most recent request completed.
    pub(super) ended_ns: Option<u64>,
    think_ns: Mean,
    thinks_long: bool,
    end_sector: u64,
    /// History of the queue's last 32 requests, one bit each: 1 for a seeky request.
    seeks: u32,
    asks_since_ns: u64,
    paused_ns: u64,
    /// True when the queue has had requests for at least four fifths of the measured time.
    asks_always: bool,
    is_new: bool,
}

impl Flow {
    pub(super) fn is_empty(&self) -> bool {
        self.lane.is_empty()
    }

    /// Adopts the priority of the bio's task if the queue is not busy; initializes the queue at its
    /// first bio.
    pub(super) fn set_owner(&mut self, bio: &Bio, budget: u64, now_ns: u64) {
        if self.is_busy {
            return;
        }
        (self.rank, self.level) = rank_of(bio);
        if std::mem::replace(&mut self.known, true) {
            return;
        }
        self.sync = bio.is_sync();
        self.budget_next = budget;
        self.soft_real_time_ns = now_ns;
        self.asks_since_ns = now_ns;
        self.asks_always = true;
        self.is_new = true;
        // The first request is most likely a seek.
        self.seeks = 1;
    }

    /// Returns the queue's current weight, including the raise.
    pub(super) fn weight(&self) -> u64 {
        self.plain_weight() * self.raise.factor()
    }

    /// Returns the weight that follows from the queue's priority level, without the factor by which
    /// interactive queues are raised.
    pub(super) fn plain_weight(&self) -> u64 {
        (8 - self.level) * 10
    }

    /// Learns from a request that arrives.
    pub(super) fn note_request(&mut self, bio: &Bio, rotational: bool, idle_ns: u64, now_ns: u64) {
        let since_end_ns = self.ended_ns.map_or(0, |ended_ns| now_ns - ended_ns);
        if self.under_way == 0 && !self.is_busy {
            self.think_ns.add(since_end_ns.min(2 * idle_ns));
        }
        let mean_ns = self.think_ns.get_above(VALID);
        self.thinks_long = self.exited || mean_ns.is_some_and(|mean_ns| mean_ns > idle_ns / 2);
        let is_seeky = is_seeky(self.end_sector, bio, rotational);
        self.seeks = self.seeks << 1 | u32::from(is_seeky);
        self.end_sector = bio.end_sector();
        self.note_pause(since_end_ns, now_ns);
    }

    fn note_pause(&mut self, since_end_ns: u64, now_ns: u64) {
        if self.is_empty() && self.under_way == 0 {
            self.paused_ns += since_end_ns;
        }
        if self.is_new {
            return;
        }
        let asked_ns = now_ns - self.asks_since_ns;
        self.asks_always = self.paused_ns * 5 <= asked_ns;
        if asked_ns > WINDOW_NS {
            self.asks_since_ns = now_ns - asked_ns / 2;
            self.paused_ns /= 2;
        }
    }

    /// Records that the queue has begun to have requests.
    pub(super) fn began(&mut self, now_ns: u64) {
        self.is_new = false;
        self.busy_since_ns = now_ns;
        self.busy_sectors = 0;
        self.computes_later = false;
    }

    /// Records that the task has exited.
    pub(super) fn exit(&mut self) {
        self.exited = true;
    }

    pub(super) fn has_exited(&self) -> bool {
        self.exited
    }

    pub(super) fn is_seeky(&self) -> bool {
        self.seeks.count_ones() > SEEKS
    }

    /// Returns true if all of the last 32 requests of the queue were seeky.
    pub(super) fn is_all_seeks(&self) -> bool {
        self.seeks == u32::MAX
    }

    /// Returns false if the task's think times are known to be long, or if the queue is of the idle
    /// class; otherwise returns true.
    pub(super) fn thinks_short(&self) -> bool {
        !self.thinks_long && self.rank != Rank::Idle
    }

    /// Returns true if the task is almost always busy, and its requests are mostly sequential.
    pub(super) fn is_stream(&self) -> bool {
        !self.is_seeky() && self.asks_always && self.thinks_short()
    }

    /// Returns the number of sectors that the next request costs the queue's budget; `None` if
    /// there is no request. The length of an async request is multiplied by `async_factor`, unless
    /// the queue's weight is raised.
    pub(super) fn charge(&self, r: &Requests, async_factor: impl Fn() -> u64) -> Option<u64> {
        let sectors = u64::from(r[self.next?].bio.sectors);
        let is_plain = self.sync || self.raise.is_up();
        Some(if is_plain {
            sectors
        } else {
            sectors * async_factor()
        })
    }

    /// Returns the oldest request if it has expired and is not `last`. Only the first call in a
    /// service checks; later calls return `None`.
    pub(super) fn expired_once(&mut self, last: Tag, e: &Expiries, now_ns: u64) -> Option<Tag> {
        if std::mem::replace(&mut self.looked, true) {
            return None;
        }
        // BFQ treats a request as expired at its expiry time, not only after it.
        let expired = self.lane.expired(e, now_ns.saturating_add(1));
        expired.filter(|tag| *tag != last)
    }
}
