//! Whether the machine on which the demo runs is late itself. The emulated devices cannot answer
//! before the files below them have, nor before this program runs, so the figures of the demo are
//! those of the devices only as long as both are in time.
//!
//! The disk of the machine is late when a request to one of the files takes long, and the processor
//! when a timer ends long after its time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::tap::Tap;
use bimetal_block::{Device, Op, Statistic};
use bimetal_console::latency::show_latency;
use bimetal_rt::{Instant, Rt};
use serde_json::{Value, json};

/// Lateness in ns from which a person may take it for that of the emulated devices: more than their
/// median.
const LATE_NS: u64 = 50_000_000;
/// Interval of the timer.
const TICK: Duration = Duration::from_millis(20);
/// Time for which a late timer is shown. It is that of the window in which a request is seen.
const SHOWN: Duration = Duration::from_secs(10);

/// What is known of the machine.
#[derive(Default)]
pub(super) struct Host {
    files: RefCell<Vec<Rc<Tap>>>,
    disk: Cell<Late>,
    processor: Cell<Late>,
    late_at: Cell<Option<Instant>>,
}

/// The lateness of a part of the machine, in ns.
#[derive(Clone, Copy, Default)]
struct Late {
    now_ns: u64,
    worst_ns: u64,
}

impl Late {
    fn with(self, now_ns: u64) -> Late {
        Late {
            now_ns,
            worst_ns: self.worst_ns.max(now_ns),
        }
    }
}

impl Host {
    /// Watches the devices that are files of this machine.
    pub(super) fn new(files: Vec<Rc<Tap>>) -> Rc<Host> {
        Rc::new(Host {
            files: RefCell::new(files),
            ..Host::default()
        })
    }

    /// Measures how late timers are, without end.
    pub(super) async fn watch_timers(self: Rc<Host>, rt: Rt) {
        loop {
            let due = rt.now() + TICK;
            rt.sleep_until(due).await;
            self.note_timer(due, rt.now());
        }
    }

    /// Takes a timer that was due at one time and ended at another.
    fn note_timer(&self, due: Instant, ended: Instant) {
        let late_ns = ended.ns_since(due);
        if late_ns < LATE_NS {
            return;
        }
        // The longest delay of those that are shown counts.
        let shown_ns = match self.is_shown(ended) {
            true => self.processor.get().now_ns,
            false => 0,
        };
        self.processor
            .set(self.processor.get().with(late_ns.max(shown_ns)));
        self.late_at.set(Some(ended));
    }

    fn is_shown(&self, now: Instant) -> bool {
        self.late_at.get().is_some_and(|at| now.since(at) < SHOWN)
    }

    /// Lets the files go, so that they can be opened anew.
    pub(super) fn let_go(&self) {
        self.files.take();
    }

    /// Looks at the machine at the time `now`.
    pub(super) fn look(&self, now: Instant) {
        let files = self.files.borrow();
        let slowest_ns = files.iter().map(|file| slowest_ns(file)).max();
        let late_ns = slowest_ns.filter(|ns| *ns >= LATE_NS).unwrap_or(0);
        self.disk.set(self.disk.get().with(late_ns));
        if !self.is_shown(now) {
            self.processor.set(self.processor.get().with(0));
        }
    }

    /// Returns a line about the machine if it was late in the last ten seconds.
    pub(super) fn line(&self) -> Option<String> {
        let said = self.parts(|late| late.now_ns)?;
        Some(format!(
            "This machine's {said}: the figures are not the devices'."
        ))
    }

    /// Returns a line about the machine if it was late since the start.
    pub(super) fn summary(&self) -> Option<String> {
        let said = self.parts(|late| late.worst_ns)?;
        Some(format!(
            "This machine's {said} at worst: the figures are not the devices' alone."
        ))
    }

    fn parts(&self, ns: impl Fn(Late) -> u64) -> Option<String> {
        let (disk, processor) = (ns(self.disk.get()), ns(self.processor.get()));
        match (disk, processor) {
            (0, 0) => None,
            (disk, 0) => Some(format!("disk stalled for {}", show_latency(disk))),
            (0, processor) => Some(format!("processor stalled for {}", show_latency(processor))),
            (disk, processor) => Some(format!(
                "disk stalled for {}, its processor for {}",
                show_latency(disk),
                show_latency(processor)
            )),
        }
    }

    /// Returns the worst lateness in ns as JSON; 0 if the machine was in time.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "disk_late_max_ns": self.disk.get().worst_ns,
            "processor_late_max_ns": self.processor.get().worst_ns,
        })
    }
}

/// Returns the longest time in ns that a read or a write took in the last ten seconds, or has been
/// waiting for.
fn slowest_ns(file: &Tap) -> u64 {
    let mut statistics = Vec::new();
    file.statistics(&mut statistics);
    let timed = statistics
        .iter()
        .filter_map(|(_, name, value)| match value {
            Statistic::Latency(latency)
                if [Op::Read.name(), Op::Write.name()].contains(&&**name) =>
            {
                Some(latency.windows[0].max_ns.max(latency.waiting_ns))
            }
            _ => None,
        });
    timed.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use bimetal_block::graph::{OpenOptions, Stack};
    use bimetal_block::{Flags, Request};
    use bimetal_rt::{Payload, VirtualOptions};

    use super::*;
    use crate::config::Config;

    fn at_ms(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn a_timer_that_ends_late_is_said_for_ten_seconds_and_at_the_end() {
        let host = Host::new(Vec::new());
        host.note_timer(at_ms(20), at_ms(69));
        host.look(at_ms(69));
        assert_eq!((host.line(), host.summary()), (None, None));
        host.note_timer(at_ms(100), at_ms(150));
        host.look(at_ms(150));
        let line =
            "This machine's processor stalled for 50.0 ms: the figures are not the devices'.";
        assert_eq!(host.line().as_deref(), Some(line));
        // A shorter one does not hide it, and a longer one replaces it.
        host.note_timer(at_ms(200), at_ms(1400));
        host.note_timer(at_ms(1420), at_ms(1520));
        host.look(at_ms(11_519));
        assert!(host.line().is_some_and(|line| line.contains(" 1.20 s:")));
        host.look(at_ms(11_520));
        assert_eq!(host.line(), None);
        let end = "This machine's processor stalled for 1.20 s at worst: the figures are not the \
                   devices' alone.";
        assert_eq!(host.summary().as_deref(), Some(end));
        assert_eq!(host.to_json()["processor_late_max_ns"], 1_200_000_000_u64);
    }

    /// The file below an emulated device takes 3 s to write.
    #[test]
    fn a_disk_that_is_late_is_said_while_it_stalls_and_for_ten_seconds() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let text = "[device.disk]\ntype = \"memory\"\nsize = \"1MiB\"\n\
                    [device.file]\ntype = \"delay\"\nbelow = \"disk\"\nwrite = \"3s\"\n";
        let config = Config::read("demo.toml".as_ref(), text).expect("it is right");
        rt.block_on(async {
            let options = OpenOptions::default();
            let opened = Stack::open(&rt, &config.graph, &["file"], &options).await;
            let stack = opened.expect("it opens");
            let host = Host::new(stack.tap("file").into_iter().collect());
            let device = Rc::clone(stack.get("file").expect("it is open"));
            host.look(rt.now());
            assert_eq!(host.line(), None);
            let payload = Payload::from(rt.pool().zeroed(4096));
            let writing = rt.spawn(async move {
                let written = device.submit(Request::write(0, payload, Flags::NONE));
                assert!(written.await.is_ok());
            });
            rt.sleep(Duration::from_secs(1)).await;
            host.look(rt.now());
            // The age of a request in flight may be told a quarter of a second too low.
            let line = "This machine's disk stalled for 750 ms: the figures are not the devices'.";
            assert_eq!(host.line().as_deref(), Some(line));
            writing.await;
            host.look(rt.now());
            assert!(host.line().is_some_and(|line| line.contains(" 3.00 s:")));
            rt.sleep(Duration::from_secs(12)).await;
            host.look(rt.now());
            assert_eq!(host.line(), None);
            assert!(
                host.summary()
                    .is_some_and(|line| line.contains(" 3.00 s at worst"))
            );
            stack.close().await.expect("it closes");
        });
    }
}
