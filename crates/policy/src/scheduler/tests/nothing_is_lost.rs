//! Checks that for any sequence of arrivals every bio is issued to the device once, and that a
//! scheduler that issues no request returns a time at which to call it again.

use super::*;
use proptest::prelude::*;

fn all() -> Vec<Box<dyn Scheduler>> {
    let named = SchedulerChoice::NAMES.map(SchedulerChoice::named);
    named
        .map(|choice| choice.expect("it is in the list").build(TAGS))
        .into()
}

fn bio() -> impl Strategy<Value = Bio> {
    let priority = prop_oneof![
        3 => Just(Priority::NORMAL),
        1 => Just(Priority::RealTime(2)),
        1 => Just(Priority::Idle),
    ];
    (
        0..3u32,
        0..40u64,
        1..3u32,
        any::<(bool, bool, bool)>(),
        priority,
    )
        .prop_map(
            |(task, at, eighths, (write, sync, metadata), priority)| Bio {
                direction: if write {
                    Direction::Write
                } else {
                    Direction::Read
                },
                sync,
                metadata,
                priority,
                ..Bio::read(task, at * 8, eighths * 8)
            },
        )
}

/// Issues requests until `depth` requests are at the device; returns false if none was issued.
fn run(queue: &mut RequestQueue, issued: &mut Vec<Tag>, now_ns: u64, depth: usize) -> bool {
    let before = issued.len();
    while issued.len() < depth {
        let Some(tag) = queue.next(now_ns) else {
            break;
        };
        issued.push(tag);
    }
    issued.len() > before
}

proptest! {
    #[test]
    fn every_bio_is_served_once(
        arrivals in proptest::collection::vec((bio(), 0..8u64, any::<bool>()), 1..TAGS),
        depth in 1..6usize,
    ) {
        for scheduler in all() {
            let name = scheduler.name();
            let mut queue = RequestQueue::new(scheduler, TAGS, QueueParameters::default());
            let (mut now_ns, mut issued, mut done) = (0, Vec::new(), Vec::new());
            for (tag, (bio, wait_ms, completes)) in (0..).zip(&arrivals) {
                now_ns += wait_ms * MS_NS;
                queue.add(tag, *bio, now_ns);
                run(&mut queue, &mut issued, now_ns, depth);
                if *completes && !issued.is_empty() {
                    queue.complete(issued.remove(0), now_ns, &mut done);
                }
            }
            while done.len() < arrivals.len() {
                let went = run(&mut queue, &mut issued, now_ns, depth);
                if !issued.is_empty() {
                    now_ns += MS_NS;
                    queue.complete(issued.remove(0), now_ns, &mut done);
                } else if !went {
                    let wake_ns = queue.wake_at_ns();
                    prop_assert!(wake_ns.is_some_and(|at| at > now_ns), "{name} stopped");
                    now_ns = wake_ns.unwrap_or(now_ns);
                }
            }
            done.sort_unstable();
            prop_assert!(done.iter().copied().eq(0..arrivals.len() as Tag), "{name}: {done:?}");
            prop_assert_eq!(queue.counts().queued(), 0);
        }
    }
}
