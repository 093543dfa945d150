//! Tests of the queue and its schedulers against orders that were computed by hand from the rules.

mod anticipatory;
mod bfq;
mod cfq;
mod deadline;
mod flash;
mod kyber;
mod merging;
mod mq_deadline;
mod nothing_is_lost;

use super::*;

/// Number of tags in a test's queue.
pub(super) const TAGS: usize = 64;

/// A request queue without plugging, its next free tag, and the virtual time.
pub(super) struct Bench {
    pub(super) queue: RequestQueue,
    pub(super) now_ns: u64,
    next: Tag,
}

impl Bench {
    /// Creates a queue that does not plug.
    pub(super) fn new(scheduler: impl Scheduler + 'static) -> Bench {
        let parameters = QueueParameters {
            plugging: Plugging::Off,
            ..QueueParameters::default()
        };
        Bench::with(scheduler, parameters)
    }

    pub(super) fn with(scheduler: impl Scheduler + 'static, parameters: QueueParameters) -> Bench {
        Bench {
            queue: RequestQueue::new(Box::new(scheduler), TAGS, parameters),
            now_ns: 0,
            next: 0,
        }
    }

    /// Adds a bio under the next tag.
    pub(super) fn add(&mut self, bio: Bio) -> Added {
        let tag = self.next;
        self.next += 1;
        self.queue.add(tag, bio, self.now_ns)
    }

    /// Adds reads of 8 sectors of task 0.
    pub(super) fn reads(&mut self, starts: &[u64]) {
        for start in starts {
            self.add(Bio::read(0, *start, 8));
        }
    }

    /// Adds writes of 8 sectors of task 0.
    pub(super) fn writes(&mut self, starts: &[u64]) {
        for start in starts {
            self.add(Bio::write(0, *start, 8));
        }
    }

    /// Issues the next request; returns its tag and its start sector, or `None` if no request is
    /// issued.
    pub(super) fn next(&mut self) -> Option<(Tag, u64)> {
        let tag = self.queue.next(self.now_ns)?;
        Some((tag, self.queue.request(tag).bio.start_sector))
    }

    /// Issues requests until the queue issues no more, completing each immediately. Returns the
    /// start sectors of the requests.
    pub(super) fn served(&mut self) -> Vec<u64> {
        let mut starts = Vec::new();
        while let Some((tag, start)) = self.next() {
            starts.push(start);
            self.complete(tag);
        }
        starts
    }

    /// Completes a request and returns the tags of its bios.
    pub(super) fn complete(&mut self, tag: Tag) -> Vec<Tag> {
        let mut bios = Vec::new();
        self.queue.complete(tag, self.now_ns, &mut bios);
        bios
    }

    /// Advances the time.
    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.now_ns += ms * MS_NS;
    }
}
