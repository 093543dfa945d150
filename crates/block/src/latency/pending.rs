//! The requests in flight, and the age of the oldest of them.
//!
//! Requests are counted by the time at which they began, in steps of a quarter of a second, so the
//! age of the oldest one is known to that precision. The steps of the last 16 s are kept. The age
//! of older requests is that of the oldest one that has been in flight since then.

/// Length of a step.
const STEP_NS: u64 = 250_000_000;
/// Number of steps that are kept.
const STEPS: usize = 64;

/// Counters of the requests in flight; see the module.
#[derive(Debug)]
pub(super) struct Pending {
    /// Numbers of requests that began in each of the last steps.
    begun: [u32; STEPS],
    /// Number of the newest step.
    newest: u64,
    /// Number of requests that began before these steps, and the step in which the first of them
    /// began.
    old: u64,
    oldest: u64,
    count: u64,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending {
            begun: [0; STEPS],
            newest: 0,
            old: 0,
            oldest: 0,
            count: 0,
        }
    }
}

impl Pending {
    /// Counts a request that begins at `now_ns`.
    pub(super) fn begin(&mut self, now_ns: u64) {
        let step = now_ns / STEP_NS;
        if step > self.newest {
            self.move_on(step);
        }
        self.begun[step as usize % STEPS] += 1;
        self.count += 1;
    }

    /// Ends a request that began at `began_ns`.
    pub(super) fn end(&mut self, began_ns: u64) {
        let step = began_ns / STEP_NS;
        self.count -= 1;
        match step + STEPS as u64 > self.newest {
            true => self.begun[step as usize % STEPS] -= 1,
            false => self.old -= 1,
        }
    }

    /// Returns the number of requests in flight.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the time for which the oldest request has been in flight, up to `now_ns`, or up to a
    /// quarter of a second less; 0 when there is none.
    pub(super) fn oldest_age_ns(&self, now_ns: u64) -> u64 {
        let first = (self.newest + 1).saturating_sub(STEPS as u64);
        let is_used = |step: &u64| self.begun[*step as usize % STEPS] > 0;
        let oldest = match self.old > 0 {
            true => Some(self.oldest),
            false => (first..=self.newest).find(is_used),
        };
        oldest.map_or(0, |step| now_ns.saturating_sub((step + 1) * STEP_NS))
    }

    /// Makes `step` the newest step.
    fn move_on(&mut self, step: u64) {
        let first = (self.newest + 1).saturating_sub(STEPS as u64);
        let first_kept = (step + 1).saturating_sub(STEPS as u64);
        for passed in first..first_kept.min(self.newest + 1) {
            let count = std::mem::take(&mut self.begun[passed as usize % STEPS]);
            if count > 0 {
                if self.old == 0 {
                    self.oldest = passed;
                }
                self.old += u64::from(count);
            }
        }
        self.newest = step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps in which requests began and ended; the oldest one decides, whatever the order.
    #[test]
    fn the_oldest_request_decides() {
        let at = |step: u64| step * STEP_NS;
        let mut pending = Pending::default();
        assert_eq!(pending.oldest_age_ns(at(9)), 0);
        pending.begin(at(1));
        pending.begin(at(3));
        assert_eq!(pending.oldest_age_ns(at(10)), at(8));
        pending.begin(at(200));
        assert_eq!(pending.oldest_age_ns(at(300)), at(298));
        pending.begin(at(1000));
        assert_eq!(pending.count(), 4);
        pending.end(at(1));
        pending.end(at(3));
        // It began after them, which is no longer known.
        assert_eq!(pending.oldest_age_ns(at(1000)), at(998));
        pending.end(at(200));
        assert_eq!(pending.oldest_age_ns(at(1010)), at(9));
        pending.end(at(1000));
        assert_eq!((pending.count(), pending.oldest_age_ns(at(1020))), (0, 0));
    }

    #[test]
    fn a_request_that_began_long_ago_can_end() {
        let mut pending = Pending::default();
        for step in 0..500_u64 {
            pending.begin(step * STEP_NS);
            if let Some(earlier) = step.checked_sub(100) {
                pending.end(earlier * STEP_NS);
            }
        }
        assert_eq!(pending.count(), 100);
        for step in 400..500_u64 {
            pending.end(step * STEP_NS);
        }
        assert_eq!(pending.oldest_age_ns(500 * STEP_NS), 0);
    }
}
