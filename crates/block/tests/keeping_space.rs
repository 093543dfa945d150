//! Write-zeroes that must keep their space allocated (`NO_HOLE` of NBD) keep it on every side of a
//! mirror, in whatever way the zeroes are destaged.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::sides::{blank, byte_at, open_these, put};
use crate::common::virtual_rt;
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, OpenOptions};
use bimetal_block::{Device, Flags, Geometry, IoFuture, Op, Request};
use bimetal_rt::Rt;

const MIB: u64 = 1 << 20;
const KEPT: Flags = Flags {
    keep_allocated: true,
    ..Flags::NONE
};

/// A discard or write-zeroes that a device received: the operation, and whether the device had to
/// keep the space allocated.
type Asked = (Op, bool);

/// A device that records the discards and write-zeroes that it receives.
struct Watched {
    below: Rc<dyn Device>,
    geometry: Geometry,
    asked: RefCell<Vec<Asked>>,
}

impl Device for Watched {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if matches!(request.op, Op::Discard | Op::WriteZeroes) {
            let keeps = request.flags.keep_allocated;
            self.asked.borrow_mut().push((request.op, keeps));
        }
        self.below.submit(request)
    }
}

/// The event by which the zeroes are destaged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A clean stop of the volume.
    Stop,
    /// The opening after a power cut, which replays the log.
    PowerCut,
}

async fn open(rt: &Rt, sides: &[Candidate]) -> Mirror {
    let opened = open_these(rt, &[&sides[0], &sides[1]], &OpenOptions::default()).await;
    opened.unwrap_or_else(|error| panic!("it opens: {error}"))
}

/// Clears 1 MiB of a mirror that holds content, with the operation `op` and the flags `flags`. The
/// event `way` then makes the mirror destage the zeroes. Returns the discards and write-zeroes that
/// each of the two sides received.
fn asked(op: Op, flags: Flags, discard_zeroes: bool, way: Way) -> [Vec<Asked>; 2] {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let devices = ["a", "b"].map(|name| {
            let below = blank(&rt, name).device;
            Rc::new(Watched {
                geometry: Geometry {
                    discard_zeroes,
                    ..*below.geometry()
                },
                below,
                asked: RefCell::default(),
            })
        });
        let sides: Vec<Candidate> = devices
            .iter()
            .zip(["a", "b"])
            .map(|(device, name)| Candidate {
                name: name.to_owned(),
                device: Rc::clone(device) as Rc<dyn Device>,
            })
            .collect();
        let made = formatting::format(&rt, "vol", &sides, &Formatting::with_homes()).await;
        made.expect("the sides are fit");
        let mirror = open(&rt, &sides).await;
        put(&rt, &mirror, MIB, 0x5A).await;
        mirror.close().await.expect("everything is at home");
        let mirror = open(&rt, &sides).await;
        devices
            .iter()
            .for_each(|device| device.asked.borrow_mut().clear());
        let clear = Request::without_data(op, MIB, MIB, flags);
        mirror.submit(clear).await.expect("taken");
        mirror.submit(Request::flush()).await.expect("flushed");
        let mirror = match way {
            Way::Stop => mirror,
            Way::PowerCut => {
                drop(mirror);
                open(&rt, &sides).await
            }
        };
        assert_eq!(byte_at(&mirror, MIB).await, Ok(0));
        mirror.close().await.expect("everything is at home");
        let mirror = open(&rt, &sides).await;
        assert_eq!(byte_at(&mirror, MIB).await, Ok(0));
        mirror.close().await.expect("closed");
        devices.map(|device| device.asked.borrow().clone())
    })
}

#[test]
fn zeroes_that_keep_their_space_are_never_freed() {
    for way in [Way::Stop, Way::PowerCut] {
        for of_side in asked(Op::WriteZeroes, KEPT, true, way) {
            assert_eq!(of_side, [(Op::WriteZeroes, true)], "{way:?}");
        }
        // Without `discard_zeroes` the device would have to write the zeroes as data. The mirror
        // records the zeroes in the checksums instead, so the device receives no request.
        for of_side in asked(Op::WriteZeroes, KEPT, false, way) {
            assert_eq!(of_side, [], "{way:?}");
        }
    }
}

#[test]
fn what_need_not_keep_its_space_is_freed() {
    for way in [Way::Stop, Way::PowerCut] {
        for op in [Op::WriteZeroes, Op::Discard] {
            for of_side in asked(op, Flags::NONE, true, way) {
                assert_eq!(of_side, [(Op::Discard, false)], "{op:?} {way:?}");
            }
        }
    }
}
