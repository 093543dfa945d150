//! Locks on byte ranges, so that two changes of the same blocks happen one after the other, and a
//! read-modify-write is one step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::sync::Event;

/// Locked ranges. They never overlap, so a map from start to end holds them.
#[derive(Default)]
pub struct RangeLock {
    locked: RefCell<BTreeMap<u64, u64>>,
    released: Event,
}

impl RangeLock {
    /// Nothing locked.
    pub fn new() -> Rc<RangeLock> {
        Rc::new(RangeLock::default())
    }

    /// Locks a range, waiting while a part of it is locked. An empty range locks nothing.
    ///
    /// A lock over a wide range can be overtaken by narrow ones that do not overlap each other;
    /// it gets its turn when they pause. Callers hold one lock at a time, so there is no cycle.
    pub async fn lock(self: &Rc<RangeLock>, range: Range<u64>) -> RangeGuard {
        self.released.until(|| self.is_free(&range)).await;
        self.insert(range)
    }

    /// Locks a range if no part of it is locked.
    pub fn try_lock(self: &Rc<RangeLock>, range: Range<u64>) -> Option<RangeGuard> {
        self.is_free(&range).then(|| self.insert(range))
    }

    /// True when no part of the range is locked.
    pub fn is_free(&self, range: &Range<u64>) -> bool {
        let locked = self.locked.borrow();
        range.is_empty()
            || locked
                .range(..range.end)
                .next_back()
                .is_none_or(|(_, &end)| end <= range.start)
    }

    /// Waits until no part of the range is locked, without locking it.
    pub async fn until_free(&self, range: Range<u64>) {
        self.released.until(|| self.is_free(&range)).await;
    }

    /// Ranges that are locked.
    pub fn len(&self) -> usize {
        self.locked.borrow().len()
    }

    /// True when nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn insert(self: &Rc<RangeLock>, range: Range<u64>) -> RangeGuard {
        if !range.is_empty() {
            let before = self.locked.borrow_mut().insert(range.start, range.end);
            assert!(before.is_none(), "a free range has no lock at its start");
        }
        RangeGuard {
            lock: Rc::clone(self),
            range,
        }
    }
}

/// A locked range; unlocks when dropped.
pub struct RangeGuard {
    lock: Rc<RangeLock>,
    range: Range<u64>,
}

impl RangeGuard {
    /// The range.
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            let end = self.lock.locked.borrow_mut().remove(&self.range.start);
            assert_eq!(
                end,
                Some(self.range.end),
                "a lock is released as it was taken"
            );
            if self.lock.released.waiting() > 0 {
                self.lock.released.notify();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use bimetal_rt::sync::TaskGroup;
    use bimetal_rt::{Rng, Rt, VirtualOptions};

    use super::*;

    /// Random ranges, held for random times: no byte is ever held twice, and all end.
    #[test]
    fn overlapping_ranges_exclude_each_other() {
        let rt = Rt::virtual_time(VirtualOptions {
            seed: 3,
            shuffle: true,
        });
        let lock = RangeLock::new();
        let holders = Rc::new(RefCell::new([0u8; 64]));
        let waited = Rc::new(Cell::new(0));
        let mut rng = Rng::new(9);
        let group = TaskGroup::new(&rt);
        for _ in 0..500 {
            let start = rng.below(64);
            let range = start..start + 1 + rng.below(64 - start);
            let (hold, arrival) = (rng.below(100), rng.below(20_000));
            let (lock, holders, rt2, waited) =
                (lock.clone(), holders.clone(), rt.clone(), waited.clone());
            group.spawn(async move {
                rt2.sleep(Duration::from_nanos(arrival)).await;
                if !lock.is_free(&range) {
                    waited.set(waited.get() + 1);
                }
                let guard = lock.lock(range).await;
                let bytes = guard.range().start as usize..guard.range().end as usize;
                for held in &mut holders.borrow_mut()[bytes.clone()] {
                    *held += 1;
                    assert_eq!(*held, 1, "a byte is held once");
                }
                rt2.sleep(Duration::from_nanos(hold)).await;
                holders.borrow_mut()[bytes].fill(0);
            });
        }
        rt.block_on(group.join());
        assert!(
            lock.is_empty() && waited.get() > 100,
            "the test has contention"
        );
    }
}
