//! Interrupted rebuilds: the side under rebuild fails again before it is in sync, and then returns.

use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{blank, byte_at, open_without, put};
use crate::common::{virtual_rt, write};
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, MirrorConfig, OpenOptions, SideStatus, SideToOpen};
use bimetal_block::units::Time;
use bimetal_block::{Device, IoError, Op, Request};
use bimetal_rt::Rt;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Returns a side whose device the test can make fail, and the control by which it does so.
fn fault_of(rt: &Rt, side: &Candidate) -> (SideToOpen, Rc<FaultControl>) {
    let fault = Fault::new(rt, Rc::clone(&side.device), FaultPlan::default(), 1);
    let control = fault.control();
    let side = SideToOpen {
        name: side.name.clone(),
        device: Ok(Rc::new(fault) as Rc<dyn Device>),
    };
    (side, control)
}

/// Waits until the status of the second side satisfies `is_so`.
async fn until(rt: &Rt, mirror: &Mirror, is_so: impl Fn(&SideStatus) -> bool) {
    for _ in 0..60_000 {
        if is_so(&mirror.status().sides[1]) {
            return;
        }
        rt.sleep(Duration::from_millis(1)).await;
    }
    panic!("it does not become so: {:?}", mirror.status());
}

/// Makes the second side fail, and waits until the volume runs without it.
async fn lose(rt: &Rt, mirror: &Mirror, second: &FaultControl) {
    second.set_error(Some(IoError::Offline));
    put(rt, mirror, 0, 1).await;
    until(rt, mirror, |side| side.health == "absent").await;
}

/// A rebuild writes directly to the home locations of a side, while the side's log can still hold
/// an older change of the same blocks. If the rebuild is interrupted, these blocks are no longer
/// recorded as out of sync, and the log is replayed. The replay must ignore the older change.
#[test]
fn an_older_change_in_the_log_does_not_count_after_a_rebuild_that_was_cut_short() {
    let rt = virtual_rt(7926);
    rt.block_on(async {
        let blanks = ["first", "second"].map(|name| blank(&rt, name));
        let formatting = Formatting {
            log_bytes: Some(4 * MIB),
            ..Formatting::with_homes()
        };
        let made = formatting::format(&rt, "vol", &blanks, &formatting).await;
        made.expect("the sides are fit");
        let (first, of_first) = fault_of(&rt, &blanks[0]);
        let (second, of_second) = fault_of(&rt, &blanks[1]);
        let mut config = MirrorConfig::of(vec![first.name.clone(), second.name.clone()]);
        config.absent_after = Some(Time(Duration::from_secs(2)));
        let options = OpenOptions::default();
        let opened = Mirror::open(&rt, &config, vec![first, second], &options).await;
        let mirror = opened.expect("it opens");
        let place = 8 * MIB;

        // The older of the two changes to `place` is the last entry in the log of the second side.
        // Writes to the second side are slow, so the entries are destaged late and the older change
        // stays in the log.
        let filler = write(&rt, 4 * MIB, 2 * MIB as usize, 9);
        mirror.submit(filler).await.expect("taken");
        put(&rt, &mirror, place, 1).await;
        until(&rt, &mirror, |side| {
            side.waiting_bytes + side.in_flight_bytes == 0
        })
        .await;
        mirror.submit(Request::flush()).await.expect("durable");
        of_second.set_delay(Op::Write, Duration::from_millis(500));

        // The newer change is made, and destaged by the first side, while the second side is
        // absent.
        lose(&rt, &mirror, &of_second).await;
        put(&rt, &mirror, place, 2).await;
        rt.sleep(Duration::from_secs(5)).await;

        // The second side returns, and all content that it lacks is copied to it. It is in sync
        // only after the first side has flushed, and the test delays this flush.
        of_first.set_delay(Op::Flush, Duration::from_secs(30));
        put(&rt, &mirror, BLOCK, 3).await;
        of_second.set_error(None);
        until(&rt, &mirror, |side| {
            side.health == "resyncing" && side.out_of_sync_bytes == 0
        })
        .await;
        rt.sleep(Duration::from_secs(5)).await;
        assert_eq!(mirror.status().sides[1].health, "resyncing");
        lose(&rt, &mirror, &of_second).await;
        // All copied blocks are durable. The second side lacks only the block whose write has just
        // failed.
        assert_eq!(mirror.status().sides[1].out_of_sync_bytes, BLOCK);

        of_first.set_delay(Op::Flush, Duration::ZERO);
        of_second.set_delay(Op::Write, Duration::ZERO);
        of_second.set_error(None);
        until(&rt, &mirror, |side| side.health == "healthy").await;
        mirror.close().await.expect("both are whole");

        let sides = [&blanks[0], &blanks[1]];
        let alone = open_without(&rt, &sides, &[0], &options).await;
        let alone = alone.expect("the second side is whole");
        assert_eq!(byte_at(&alone, place).await, Ok(2));
        alone.close().await.expect("closed");
    });
}
