//! The statistics of a store, and of what it consists of.

use super::Store;
use crate::device::{Statistic, StatisticVisitor};

impl Store {
    /// Reports the statistics of the store under `part`, the name of its side.
    pub(in super::super) fn statistics(&self, part: &str, out: &mut dyn StatisticVisitor) {
        let ((used, all), (store, log)) = (self.log_bytes(), self.counts());
        let mut show = |name, value| out.statistic(part, name, value);
        show("log_used_bytes", Statistic::Gauge(used as f64));
        show("log_bytes", Statistic::Gauge(all as f64));
        show("logged_bytes", Statistic::Gauge(self.logged_bytes() as f64));
        for (name, count) in log.named() {
            show(name, Statistic::Counter(count));
        }
        show("log_paced", Statistic::Counter(self.log.withheld.count()));
        show("destage_writes", Statistic::Counter(store.destage_writes));
        show("destaged_bytes", Statistic::Counter(store.destaged_bytes));
        show("replaced_bytes", Statistic::Counter(store.replaced_bytes));
        let damaged = self.regions.damaged().len() as u64;
        show("bitmap_damaged_pages", Statistic::Counter(damaged));
        if let Some(written) = &self.written {
            let damaged = written.damaged_sectors();
            show("written_damaged_sectors", Statistic::Counter(damaged));
        }
        if let Some(checksums) = &self.checksums {
            checksums.statistics(part, out);
        }
        if let Some(segments) = &self.segments {
            segments.statistics(part, out);
        }
    }
}
