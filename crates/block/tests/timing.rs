//! Devices with the timing of a model. The times of the models themselves are tested in
//! `models.rs`. The tests in this file check that requests take these times, in virtual and in real
//! time, even if some requests are dropped.

use std::rc::Rc;

use crate::common::{open, refusal, starts, statistic, timed, virtual_rt, write};
use bimetal_block::{IoError, Op, Request};
use bimetal_rt::{Rt, UringOptions};

/// Configuration of an SSD that performs one command at a time and never freezes. A read of 4096
/// bytes takes 100 us + 4096 B / (1 GB/s) = 104,096 ns, a write of 4096 bytes takes 200 us + 4.096
/// us = 204,096 ns, and a flush takes 1 ms.
const SERIAL: &str = r#"
[device.data]
type = "memory"
size = "1MiB"
[device.top]
type = "ssd"
profile = "sata-2009"
below = "data"
seed = 1
channels_commands = 1
read_latency_ns = 100000
read_rate_bytes_per_s = 1000000000
write_latency_ns = 200000
write_rate_bytes_per_s = 1000000000
flush_latency_ns = 1000000
pool_bytes = 0
"#;
const READ_NS: u64 = 104_096;
const WRITE_NS: u64 = 204_096;

#[test]
fn requests_complete_exactly_at_the_models_time() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stack, top) = open(&rt, SERIAL).await;
        // The requests are sequential: each is submitted when the one before has completed.
        top.submit(write(&rt, 4096, 4096, 7)).await.unwrap();
        assert_eq!(rt.now().as_ns(), WRITE_NS);
        let data = top
            .submit(Request::read(4096, 4096))
            .await
            .unwrap()
            .into_data();
        assert_eq!(
            (rt.now().as_ns(), data.to_vec()),
            (WRITE_NS + READ_NS, vec![7; 4096])
        );
        // The model has no command for an extents request, so the request takes no time.
        let extents = Request::without_data(Op::Extents, 0, 65_536, Default::default());
        assert_eq!(top.submit(extents).await.unwrap().into_extents().len(), 1);
        assert_eq!(rt.now().as_ns(), WRITE_NS + READ_NS);
        stack.close().await.unwrap();
    });
}

#[test]
fn lateness_is_what_the_thread_adds_to_the_model() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let (stack, top) = open(&rt, SERIAL).await;
        top.submit(Request::read(0, 4096)).await.unwrap();
        assert!(statistic(&top, "late_events") >= 1.0);
        assert_eq!(statistic(&top, "late_ns"), 0.0);
        stack.close().await.unwrap();
    });
    let rt = Rt::real_time(UringOptions::default()).unwrap();
    rt.block_on(async {
        let (stack, top) = open(&rt, SERIAL).await;
        let mut read = top.submit(Request::read(0, 4096));
        assert!(starts(&mut read).await);
        // Keep the thread busy until long after the read is due.
        let busy_ns = 5_000_000;
        let began_ns = rt.now().as_ns();
        while rt.now().as_ns() < began_ns + busy_ns {
            std::hint::spin_loop();
        }
        read.await.unwrap();
        let late_ns = statistic(&top, "late_ns_max");
        assert!(late_ns >= (busy_ns - READ_NS) as f64, "{late_ns}");
        assert!(statistic(&top, "late_ns") >= late_ns);
        stack.close().await.unwrap();
    });
}

#[test]
fn a_serial_device_serves_a_queue_one_by_one() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        let (stack, top) = open(&rt, SERIAL).await;
        let reads = [0, 8192, 65_536, 16_384]
            .map(|offset| timed(rt.clone(), Rc::clone(&top), Request::read(offset, 4096)));
        let mut times: Vec<u64> = futures_util::future::join_all(reads)
            .await
            .into_iter()
            .map(|(result, at_ns)| result.map(|_| at_ns).unwrap())
            .collect();
        times.sort_unstable();
        assert_eq!(times, [READ_NS, 2 * READ_NS, 3 * READ_NS, 4 * READ_NS]);
        stack.close().await.unwrap();
    });
}

#[test]
fn a_dropped_request_is_carried_out_and_disturbs_nobody() {
    let rt = virtual_rt(3);
    rt.block_on(async {
        let (stack, top) = open(&rt, SERIAL).await;
        let mut dropped = top.submit(Request::read(0, 4096));
        assert!(starts(&mut dropped).await);
        let second = rt.spawn(timed(
            rt.clone(),
            Rc::clone(&top),
            Request::read(8192, 4096),
        ));
        drop(dropped);
        assert_eq!(statistic(&top, "in_flight_requests"), 1.0);
        // The device was still busy with the first read when the second one arrived.
        assert_eq!(second.await.1, 2 * READ_NS);
        // A third read is dropped. Closing must wait for it.
        let mut last = top.submit(Request::read(0, 4096));
        assert!(starts(&mut last).await);
        drop(last);
        stack.close().await.unwrap();
        assert_eq!(rt.now().as_ns(), 3 * READ_NS);
        assert_eq!(statistic(&top, "in_flight_requests"), 0.0);
        let late = top.submit(Request::read(0, 4096)).await;
        assert_eq!(late.unwrap_err(), IoError::Closed);
    });
    assert_eq!(rt.live_timers(), 0);
}

#[test]
fn what_the_geometry_refuses_takes_no_time() {
    let rt = virtual_rt(4);
    rt.block_on(async {
        let (stack, top) = open(&rt, SERIAL).await;
        let beyond = top.submit(Request::read(1 << 20, 4096)).await;
        assert_eq!(beyond.unwrap_err(), IoError::OutOfRange);
        assert_eq!(rt.now().as_ns(), 0);
        stack.close().await.unwrap();
    });
}

#[test]
fn many_random_drops_leave_nothing_behind() {
    let rt = virtual_rt(5);
    let mut rng = rt.rng("drops");
    rt.block_on(async {
        let (stack, top) = open(&rt, SERIAL).await;
        for _ in 0..2_000 {
            let limit = std::time::Duration::from_nanos(rng.below(3 * READ_NS));
            let requests = (0..1 + rng.below(8)).map(|i| top.submit(Request::read(i * 4096, 4096)));
            let all = futures_util::future::join_all(requests);
            // Whether the requests complete or are dropped in flight, later requests must not be
            // affected.
            let _ = rt.timeout(limit, all).await;
        }
        stack.close().await.unwrap();
        assert_eq!(statistic(&top, "in_flight_requests"), 0.0);
    });
}

#[test]
fn seeds_and_names_decide_the_random_durations() {
    let times = |run_seed, body: &str| {
        let rt = virtual_rt(run_seed);
        let text = format!(
            "[device.data]\ntype = \"memory\"\nsize = \"1MiB\"\n[device.top]\ntype = \"network\"\nbelow = \"data\"\n{body}"
        );
        rt.block_on(async {
            let (_stack, top) = open(&rt, &text).await;
            for _ in 0..20 {
                top.submit(Request::read(0, 4096)).await.unwrap();
            }
            rt.now().as_ns()
        })
    };
    assert_eq!(times(1, ""), times(1, ""));
    assert_ne!(times(1, ""), times(2, ""));
    assert_eq!(times(1, "seed = 5"), times(2, "seed = 5"));
}

#[test]
fn a_disk_is_rotational() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let text = SERIAL.split("[device.top]").next().unwrap().to_owned()
            + "[device.top]\ntype = \"hdd\"\nbelow = \"data\"\n";
        let (_stack, top) = open(&rt, &text).await;
        assert!(top.geometry().rotational);
        assert_eq!(top.geometry().preferred_bytes, 65_536);
        let (_stack, ssd) = open(&rt, SERIAL).await;
        assert!(!ssd.geometry().rotational);
    });
}

#[test]
fn mistakes_have_a_place() {
    let head = "[device.data]\ntype = \"memory\"\nsize = \"1MiB\"\n[device.top]\ntype = \"ssd\"\n";
    for (body, place, words) in [
        (
            "below = \"data\"\nread_latency = 5\n",
            "test.toml:7:1:",
            "read_latency",
        ),
        (
            "below = \"data\"\nfreeze = { sigma = \"x\" }\n",
            "test.toml:7:1:",
            "sata-2009",
        ),
        (
            "below = \"data\"\npool_bytes = 0\nread_rate_bytes_per_s = 3\n",
            "test.toml:8:1:",
            "at least",
        ),
        (
            "below = \"data\"\nprofile = \"sata\"\n",
            "test.toml:4:9:",
            "known profiles",
        ),
        (
            "below = \"data\"\nprofile = \"hdd-7200\"\n",
            "test.toml:4:9:",
            "is of type hdd",
        ),
        ("profile = \"sata-2009\"\n", "test.toml:4:9:", "below"),
        ("below = \"data\"\nseed = \"x\"\n", "test.toml:7:8:", "u64"),
    ] {
        let message = refusal(&format!("{head}{body}"));
        assert!(
            message.starts_with(place) && message.contains(words),
            "{message}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}

/// In real time a completion of the emulated device may be late, but never early.
#[test]
fn in_real_time_nothing_completes_early() {
    let rt = Rt::real_time(UringOptions::default()).expect("the kernel has io_uring");
    rt.block_on(async {
        let (stack, top) = open(&rt, SERIAL).await;
        for _ in 0..10 {
            let before = rt.now();
            let pair = [0, 8192].map(|offset| top.submit(Request::read(offset, 4096)));
            futures_util::future::join_all(pair).await;
            assert!(rt.now().ns_since(before) >= 2 * READ_NS);
        }
        stack.close().await.unwrap();
    });
    rt.drain();
}
