//! `type = "delay"`, and the control of the fault layer, by which a test freezes a device, slows it
//! down, or makes it fail.

use std::rc::Rc;
use std::time::Duration;

use crate::common::{open, refusal, starts, statistic, timed, virtual_rt, write};
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Flags, IoError, Op, Request};
use bimetal_rt::Rt;

const DELAYS: &str = r#"
[device.data]
type = "memory"
size = "1MiB"
[device.top]
type = "delay"
below = "data"
read = "1ms"
write = "2ms"
flush = "3ms"
discard = "4ms"
write_zeroes = "5ms"
extents = "6ms"
"#;

const MS: u64 = 1_000_000;

fn without_data(op: Op) -> Request {
    Request::without_data(op, 0, 4096, Flags::NONE)
}

#[test]
fn each_operation_has_its_own_delay() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stack, top) = open(&rt, DELAYS).await;
        let requests = [
            (Request::read(0, 4096), 1),
            (write(&rt, 0, 4096, 7), 2),
            (Request::flush(), 3),
            (without_data(Op::Discard), 4),
            (without_data(Op::WriteZeroes), 5),
            (without_data(Op::Extents), 6),
        ];
        for (request, ms) in requests {
            let before = rt.now();
            top.submit(request).await.unwrap();
            assert_eq!(rt.now().ns_since(before), ms * MS);
        }
        // The delays of concurrent requests elapse at the same time.
        let before = rt.now();
        let reads = (0..10).map(|i| top.submit(Request::read(i * 4096, 4096)));
        futures_util::future::join_all(reads).await;
        assert_eq!(rt.now().ns_since(before), MS);
        assert_eq!(statistic(&top, "delayed_requests"), 16.0);
        stack.close().await.unwrap();
    });
}

#[test]
fn jitter_stays_in_its_bounds_and_replays() {
    let run = |seed: u64| {
        let rt = virtual_rt(1);
        rt.block_on(async {
            let text = format!("{DELAYS}jitter = \"1ms\"\nseed = {seed}\n");
            let (_stack, top) = open(&rt, &text).await;
            let mut times = Vec::new();
            for _ in 0..100 {
                let before = rt.now();
                top.submit(Request::read(0, 4096)).await.unwrap();
                times.push(rt.now().ns_since(before));
            }
            times
        })
    };
    let times = run(1);
    assert!(
        times.iter().all(|ns| (MS..=2 * MS).contains(ns)),
        "{times:?}"
    );
    // The jitter is uniform. The probability that none of 100 delays is in the first quarter of the
    // range is 3e-13, and the same for the last quarter.
    assert!(times.iter().any(|&ns| ns < MS + MS / 4));
    assert!(times.iter().any(|&ns| ns > 2 * MS - MS / 4));
    assert_eq!(times, run(1));
    assert_ne!(times, run(2));
}

#[test]
fn mistakes_are_refused() {
    for (line, words) in [("reed = \"1ms\"", "reed"), ("jitter = 5", "integer")] {
        let message = refusal(&format!("{DELAYS}{line}\n"));
        assert!(message.contains(words), "{message}");
    }
}

fn switched(rt: &Rt) -> (Rc<dyn Device>, Rc<dyn Device>, Rc<FaultControl>) {
    let memory: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, 1 << 20));
    let fault = Fault::new(rt, Rc::clone(&memory), FaultPlan::default(), 1);
    let control = fault.control();
    (memory, Rc::new(fault), control)
}

async fn first_byte(device: &Rc<dyn Device>) -> u8 {
    let data = device.submit(Request::read(0, 4096)).await.unwrap();
    data.into_data().to_vec()[0]
}

#[test]
fn a_frozen_device_takes_nothing_and_answers_nothing() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (memory, device, control) = switched(&rt);
        control.set_frozen(true);
        let one = rt.spawn(timed(
            rt.clone(),
            Rc::clone(&device),
            write(&rt, 0, 4096, 7),
        ));
        rt.sleep(Duration::from_secs(100)).await;
        assert!(!one.is_finished());
        assert_eq!((first_byte(&memory).await, control.inside()), (0, 1));
        control.set_frozen(false);
        assert_eq!(one.await.1, 100_000 * MS);
        assert_eq!((first_byte(&memory).await, control.inside()), (7, 0));
    });
}

#[test]
fn a_freeze_holds_back_what_the_device_below_has_finished() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let memory: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, 1 << 20));
        let slow = Fault::new(&rt, memory, FaultPlan::default(), 1);
        slow.control().set_delay(Op::Read, Duration::from_millis(1));
        let device = Fault::new(&rt, Rc::new(slow), FaultPlan::default(), 1);
        let control = device.control();
        let device: Rc<dyn Device> = Rc::new(device);
        let read = rt.spawn(timed(rt.clone(), device, Request::read(0, 4096)));
        bimetal_rt::yield_now().await;
        control.set_frozen(true);
        rt.sleep(Duration::from_millis(50)).await;
        assert!(!read.is_finished());
        control.set_frozen(false);
        assert_eq!(read.await.1, 50 * MS);
    });
}

#[test]
fn a_device_that_breaks_fails_the_frozen_ones_too() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (_memory, device, control) = switched(&rt);
        control.set_frozen(true);
        let mut frozen = device.submit(Request::read(0, 4096));
        assert!(starts(&mut frozen).await);
        control.set_error(Some(IoError::Offline));
        assert_eq!(frozen.await.unwrap_err(), IoError::Offline);
        let next = device.submit(Request::flush()).await;
        assert_eq!(next.unwrap_err(), IoError::Offline);
        control.set_error(None);
        control.set_frozen(false);
        assert_eq!(first_byte(&device).await, 0);
        assert_eq!(statistic(&device, "failed_requests"), 2.0);
    });
}

#[test]
fn single_requests_fail_on_demand_without_effect() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (memory, device, control) = switched(&rt);
        control.fail_next(Op::Write, IoError::Medium);
        control.fail_next(Op::Write, IoError::NoSpace);
        assert_eq!(first_byte(&device).await, 0);
        for expected in [Some(IoError::Medium), Some(IoError::NoSpace), None] {
            assert_eq!(first_byte(&memory).await, 0);
            assert_eq!(device.submit(write(&rt, 0, 4096, 7)).await.err(), expected);
        }
        assert_eq!(first_byte(&memory).await, 7);
    });
}

/// With a slowdown of 3, the delay of 1 ms in this layer and the 2 ms of the device below become
/// 3 + 6 ms.
#[test]
fn a_slowdown_multiplies_all_of_the_time() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (_memory, inner, inner_control) = switched(&rt);
        inner_control.set_delay(Op::Read, Duration::from_millis(2));
        let device = Fault::new(&rt, inner, FaultPlan::default(), 1);
        device
            .control()
            .set_delay(Op::Read, Duration::from_millis(1));
        device.control().set_slowdown(3.0);
        device.submit(Request::read(0, 4096)).await.unwrap();
        assert_eq!(rt.now().as_ns(), 9 * MS);
        device.control().set_slowdown(1.0);
        device.submit(Request::read(0, 4096)).await.unwrap();
        assert_eq!(rt.now().as_ns(), 12 * MS);
    });
}

#[test]
fn closing_ends_what_is_frozen() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (_memory, device, control) = switched(&rt);
        control.set_frozen(true);
        let frozen = rt.spawn(timed(
            rt.clone(),
            Rc::clone(&device),
            Request::read(0, 4096),
        ));
        bimetal_rt::yield_now().await;
        device.close().await.unwrap();
        assert_eq!(frozen.await.0.unwrap_err(), IoError::Closed);
    });
}
