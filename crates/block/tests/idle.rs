//! A volume that nobody uses leaves its devices alone: a disk that sleeps is not woken.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{blank_of, byte_at, open_these, put};
use crate::common::{Counted, virtual_rt};
use bimetal_block::layers::mirror::OpenOptions;
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::{Device, Request};

const MIB: u64 = 1 << 20;
/// Time that a volume may take to destage, to flush and to mark its sides as idle.
const SETTLED: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Writes to a volume, waits until it has settled, and returns the number of requests that the
/// devices of its sides got on the day after that.
fn requests_of_a_day(formatting: &Formatting) -> u64 {
    let rt = virtual_rt(0);
    rt.block_on(async {
        let requests = Rc::new(Cell::new(0));
        let sides = ["fast", "slow"].map(|name| {
            let side = blank_of(&rt, name, 128 * MIB);
            Candidate {
                name: side.name,
                device: Rc::new(Counted {
                    below: side.device,
                    requests: Rc::clone(&requests),
                }),
            }
        });
        let made = formatting::format(&rt, "vol", &sides, formatting).await;
        made.expect("the sides are fit");
        let opened = open_these(&rt, &[&sides[0], &sides[1]], &OpenOptions::default()).await;
        let mirror = opened.unwrap_or_else(|error| panic!("it opens: {error}"));
        for at in 0..64 {
            put(&rt, &mirror, at * MIB / 2, at as u8 + 1).await;
        }
        mirror.submit(Request::flush()).await.expect("flushed");
        rt.sleep(SETTLED).await;
        let before = requests.get();
        assert!(before > 64, "the devices are counted");
        rt.sleep(DAY).await;
        let of_day = requests.get() - before;
        assert_eq!(byte_at(&mirror, 0).await, Ok(1));
        assert!(requests.get() > before + of_day, "they are counted still");
        mirror.close().await.expect("closed");
        of_day
    })
}

#[test]
fn an_idle_volume_with_homes_gives_its_disks_no_requests() {
    assert_eq!(requests_of_a_day(&Formatting::with_homes()), 0);
}

#[test]
fn an_idle_volume_of_logged_sides_gives_its_disks_no_requests() {
    assert_eq!(requests_of_a_day(&Formatting::default()), 0);
}
