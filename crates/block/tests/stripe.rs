//! RAID-0: address mapping through a stack, splitting of requests, and failures of a child. The
//! unit tests of the mapping are in the source file of the layer.

use std::rc::Rc;
use std::time::Duration;

use crate::common::{open, refusal, virtual_rt, write};
use bimetal_block::graph::Stack;
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::log::{Log, MemorySink};
use bimetal_block::layers::stripe::Stripe;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Extent, Flags, IoError, Op, Request};
use bimetal_rt::{Payload, Rt};

const UNIT: u64 = 16_384;

const THREE: &str = r#"
[device.a]
type = "memory"
size = "1MiB"
[device.b]
type = "memory"
size = "1MiB"
[device.c]
type = "memory"
size = "1020KiB"
[device.top]
type = "stripe"
devices = ["a", "b", "c"]
unit = "16KiB"
"#;

async fn byte_at(stack: &Stack, name: &str, offset: u64) -> u8 {
    let device = stack.get(name).unwrap();
    let block = device.submit(Request::read(offset, 4096)).await.unwrap();
    block.into_data().to_vec()[0]
}

#[test]
fn units_go_round_the_devices() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stack, top) = open(&rt, THREE).await;
        // The smallest child, of 1020 KiB, holds 63 whole units of 16 KiB, so each of the three
        // children provides 63 units.
        assert_eq!(top.geometry().size_bytes, 3 * 63 * UNIT);
        assert_eq!(top.geometry().preferred_bytes, UNIT as u32);
        // Write units 0..7, filled with the bytes 10..17. Child a stores the units 0, 3 and 6, b
        // stores 1 and 4, and c stores 2 and 5.
        let mut payload = Payload::empty();
        for unit in 0..7 {
            payload.push(rt.pool().copy_of(&vec![10 + unit; UNIT as usize]));
        }
        top.submit(Request::write(0, payload, Flags::NONE))
            .await
            .unwrap();
        let expected = [
            ("a", vec![10, 13, 16]),
            ("b", vec![11, 14, 0]),
            ("c", vec![12, 15, 0]),
        ];
        for (name, bytes) in expected {
            for (row, byte) in (0..).zip(bytes) {
                assert_eq!(
                    byte_at(&stack, name, row * UNIT).await,
                    byte,
                    "{name} {row}"
                );
                assert_eq!(byte_at(&stack, name, row * UNIT + UNIT - 4096).await, byte);
            }
        }
        stack.close().await.unwrap();
    });
}

/// A stripe over three memory devices. Each child is logged, and has a switch (`controls`) by which
/// it fails.
struct Rig {
    stripe: Stripe,
    logs: Vec<Rc<MemorySink>>,
    controls: Vec<Rc<FaultControl>>,
}

fn rig(rt: &Rt) -> Rig {
    let (mut logs, mut controls) = (Vec::new(), Vec::new());
    let mut children: Vec<Rc<dyn Device>> = Vec::new();
    for _ in 0..3 {
        let memory = Rc::new(MemoryDevice::new(rt, 1 << 20));
        let fault = Fault::new(rt, memory, FaultPlan::default(), 1);
        controls.push(fault.control());
        let sink = Rc::new(MemorySink::default());
        logs.push(Rc::clone(&sink));
        children.push(Rc::new(Log::new(rt, Rc::new(fault), sink)));
    }
    Rig {
        stripe: Stripe::new(children, UNIT).unwrap(),
        logs,
        controls,
    }
}

impl Rig {
    /// Returns the requests that each child received, each as its operation, offset and length.
    fn asked(&self) -> Vec<Vec<String>> {
        let starts = |sink: &Rc<MemorySink>| {
            let lines = sink.lines();
            let starts = lines.iter().filter(|line| line.contains(" start "));
            starts
                .map(|l| l.split(" start ").nth(1).unwrap().to_owned())
                .collect()
        };
        self.logs.iter().map(starts).collect()
    }
}

#[test]
fn a_large_request_is_one_request_for_each_child() {
    let rt = virtual_rt(1);
    let rig = rig(&rt);
    rt.block_on(async {
        // The range is from the middle of unit 1 to the middle of unit 9. Of this range, child b
        // stores half of unit 1 and the units 4 and 7, child c stores the units 2, 5 and 8, and
        // child a stores the units 3 and 6 and half of unit 9.
        let (start, len) = (UNIT + UNIT / 2, 8 * UNIT);
        let request = Request::without_data(Op::WriteZeroes, start, len, Flags::FUA);
        rig.stripe.submit(request).await.unwrap();
        let expected = [
            vec!["write-zeroes 16384 40960 fua"],
            vec!["write-zeroes 8192 40960 fua"],
            vec!["write-zeroes 0 49152 fua"],
        ];
        assert_eq!(rig.asked(), expected);
        let read = rig.stripe.submit(Request::read(start, len)).await.unwrap();
        assert_eq!(read.into_data().to_vec(), vec![0; len as usize]);
        rig.stripe.submit(Request::flush()).await.unwrap();
        assert!(
            rig.asked()
                .iter()
                .all(|lines| lines.len() == 3 && lines[2] == "flush 0 0")
        );
    });
}

#[test]
fn a_failed_part_fails_the_request_after_all_parts_have_ended() {
    let rt = virtual_rt(1);
    let rig = rig(&rt);
    rt.block_on(async {
        rig.controls[2].set_delay(Op::Write, Duration::from_millis(5));
        rig.controls[0].fail_next(Op::Write, IoError::Medium);
        rig.controls[1].fail_next(Op::Write, IoError::Offline);
        let result = rig.stripe.submit(write(&rt, 0, 3 * UNIT as usize, 7)).await;
        assert_eq!(result.unwrap_err(), IoError::Medium);
        assert_eq!(rt.now().as_ns(), 5_000_000, "the slow part is awaited");
        rig.controls[1].fail_next(Op::Flush, IoError::Offline);
        let flush = rig.stripe.submit(Request::flush()).await;
        assert_eq!(flush.unwrap_err(), IoError::Offline);
    });
}

#[test]
fn parts_run_side_by_side() {
    let rt = virtual_rt(1);
    let rig = rig(&rt);
    rt.block_on(async {
        for control in &rig.controls {
            control.set_delay(Op::Read, Duration::from_millis(1));
        }
        rig.stripe.submit(Request::read(0, 9 * UNIT)).await.unwrap();
        assert_eq!(rt.now().as_ns(), 1_000_000);
    });
}

/// The stripe must combine the extents of its children in the order of its own units. A memory
/// device allocates space in chunks of 64 KiB, so a chunk holds four units of one child.
#[test]
fn extents_are_stitched_in_order() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stack, top) = open(&rt, THREE).await;
        // The write allocates only the first chunk of child b, which holds units 1, 4, 7 and 10 of
        // the stripe.
        top.submit(write(&rt, UNIT, 4096, 7)).await.unwrap();
        let request = Request::without_data(Op::Extents, 4096, 16 * UNIT, Flags::NONE);
        let extents = top.submit(request).await.unwrap().into_extents();
        let mut expected = vec![Extent {
            len: UNIT - 4096,
            data: false,
        }];
        for _ in 0..4 {
            expected.push(Extent {
                len: UNIT,
                data: true,
            });
            expected.push(Extent {
                len: 2 * UNIT,
                data: false,
            });
        }
        // The last run has no data: it starts with unit 11 and ends with 4 KiB of unit 16.
        expected.last_mut().unwrap().len = 16 * UNIT + 4096 - 11 * UNIT;
        assert_eq!(extents, expected);
        stack.close().await.unwrap();
    });
}

#[test]
fn what_is_no_stripe_is_refused() {
    let with = |line: &str| THREE.replace("unit = \"16KiB\"", line);
    for (text, words) in [
        (with("unit = \"12KiB\""), "power of two"),
        (with("unit = \"2KiB\""), "power of two"),
        (with("unit = \"64MiB\""), "power of two"),
        (with("units = \"64KiB\""), "unknown field `units`"),
        (
            THREE.replace("[\"a\", \"b\", \"c\"]", "[]"),
            "at least one device",
        ),
        (THREE.replace("\"b\", \"c\"]", "\"b\", \"a\"]"), "used by"),
    ] {
        let message = refusal(&text);
        assert!(message.contains(words), "{message}");
    }
    let rt = virtual_rt(1);
    let small: Vec<Rc<dyn Device>> = vec![Rc::new(MemoryDevice::new(&rt, 8192))];
    let error = Stripe::new(small, UNIT).err().unwrap().to_string();
    assert!(error.contains("less than one unit"), "{error}");
}
