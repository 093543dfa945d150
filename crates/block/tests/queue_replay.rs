//! A queue must make the same decisions in virtual time as on the real clock. A live stack keeps a
//! journal of arrivals, completions, and the times at which the queue was polled; the journal is
//! then replayed.

use std::rc::Rc;
use std::time::Duration;

use bimetal_block::layers::queue::journal::{Event, replay};
use bimetal_block::layers::queue::{QueueConfig, QueueLayer};
use bimetal_block::media::null::NullDevice;
use bimetal_block::{Device, Flags, Geometry, IoFuture, Origin, Request};
use bimetal_policy::scheduler::SchedulerChoice;
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Payload, Rt, UringOptions};

const CLIENTS: u32 = 6;
const REQUESTS: usize = 60;

/// A device that takes 50 to 290 us for each request, depending on the offset.
struct Slow {
    rt: Rt,
    below: NullDevice,
}

impl Device for Slow {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }
    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            let us = 50 + request.offset / 4096 % 7 * 40;
            self.rt.sleep(Duration::from_micros(us)).await;
            self.below.submit(request).await
        })
    }
}

fn config(scheduler: &str) -> QueueConfig {
    // These idle times are short enough to elapse on a real clock during the test.
    let parameters = match scheduler {
        "cfq" => "parameters = { slice_sync = '5ms', slice_idle = '200us' }",
        "anticipatory" => "parameters = { antic_expire = '200us', read_batch_expire = '5ms' }",
        "flash" => "parameters = { fill_wait = '200us', write_expire = '2ms' }",
        _ => "",
    };
    let text = format!(
        "below = 'x'\nscheduler = '{scheduler}'\ndepth = 3\ntags = 16\nplug = {{ delay = '100us' }}\n{parameters}"
    );
    toml::from_str(&text).expect("a configuration")
}

/// Runs one client, which issues reads and writes, some sequential and some at random offsets, and
/// an occasional flush.
async fn client(rt: Rt, queue: Rc<QueueLayer>, number: u32) {
    let mut rng = rt.rng(&format!("client {number}"));
    let payload = Payload::from(rt.pool().zeroed(4096));
    let mut block = u64::from(number) * 10_000;
    for _ in 0..REQUESTS {
        block = if rng.chance(0.3) {
            rng.below(60_000)
        } else {
            block + 1
        };
        let request = match rng.below(10) {
            0 => Request::flush(),
            1..6 => Request::read(block * 4096, 4096),
            _ => Request::write(block * 4096, payload.clone(), Flags::NONE),
        };
        let request = request.from_origin(Origin::of_task(number));
        let beside = Request::write((block + 1) * 4096, payload.clone(), Flags::NONE);
        let both = [queue.submit(request), queue.submit(beside)];
        for answer in futures_util::future::join_all(both).await {
            answer.expect("nothing fails here");
        }
    }
}

/// Runs the clients over a queue on the real clock, and returns the journal of the queue.
fn live(scheduler: &str) -> Vec<Event> {
    let rt = Rt::real_time(UringOptions::default()).expect("there is io_uring");
    rt.block_on(async {
        let below = Slow {
            rt: rt.clone(),
            below: NullDevice::new(&rt, 1 << 30),
        };
        let queue = QueueLayer::new(&rt, Rc::new(below), &config(scheduler)).expect("it opens");
        let queue = Rc::new(queue);
        let journal = queue.keep_journal(100_000);
        let group = TaskGroup::new(&rt);
        for number in 1..=CLIENTS {
            group.spawn(client(rt.clone(), Rc::clone(&queue), number));
        }
        group.join().await;
        queue.close().await.expect("it closes");
        assert_eq!(journal.dropped(), 0);
        journal.events()
    })
}

fn issued(events: &[Event]) -> u64 {
    let issued = |event: &&Event| matches!(event, Event::Issued { .. });
    events.iter().filter(issued).count() as u64
}

#[test]
fn every_scheduler_decides_in_virtual_time_as_it_has_decided_live() {
    for scheduler in SchedulerChoice::NAMES {
        let events = live(scheduler);
        let arrived = events
            .iter()
            .filter(|event| matches!(event, Event::Added { .. }));
        assert!(arrived.count() > CLIENTS as usize * REQUESTS, "{scheduler}");
        assert_eq!(
            replay(&config(scheduler), &events),
            Ok(Ok(issued(&events))),
            "{scheduler}"
        );
    }
}

/// The comparison must detect a different order: the deadline scheduler decides differently from
/// CFQ.
#[test]
fn another_scheduler_decides_otherwise() {
    let events = live("cfq");
    let other = replay(&config("deadline"), &events).expect("it is right");
    assert!(other.is_err(), "{other:?}");
}
