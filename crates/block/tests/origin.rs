//! The origin of a request (its task and its priority) must reach the devices below, in whatever
//! way the layers in between transform the request.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{virtual_rt, write};
use bimetal_block::layers::atomic::AtomicUnit;
use bimetal_block::layers::cache::{Cache, CacheConfig};
use bimetal_block::layers::mirror::{Mirror, MirrorConfig, SideDevice};
use bimetal_block::layers::queue::{QueueConfig, QueueLayer};
use bimetal_block::layers::stripe::Stripe;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Flags, Geometry, IoFuture, Op, Origin, Request};
use bimetal_policy::scheduler::Priority;
use bimetal_rt::Rt;

const KIB: u64 = 1024;
const ASKS: Origin = Origin {
    task: 7,
    priority: Priority::RealTime(2),
};

/// A device in memory that records each operation and its origin.
struct Witness {
    below: MemoryDevice,
    seen: RefCell<Vec<(Op, Origin)>>,
}

impl Witness {
    fn new(rt: &Rt) -> Rc<Witness> {
        Rc::new(Witness {
            below: MemoryDevice::new(rt, 1 << 20),
            seen: RefCell::default(),
        })
    }

    /// Returns the reads and writes that were recorded since the last call, and asserts that each
    /// carries the origin of the test's requests.
    fn transfers(&self) -> Vec<Op> {
        let mut ops = Vec::new();
        for (op, origin) in self.seen.take() {
            if matches!(op, Op::Read | Op::Write) {
                assert_eq!(origin, ASKS, "{}", op.name());
                ops.push(op);
            }
        }
        ops
    }
}

impl Device for Witness {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }
    fn submit(&self, request: Request) -> IoFuture<'_> {
        let seen = (request.op, request.origin);
        self.seen.borrow_mut().push(seen);
        self.below.submit(request)
    }
}

/// Function that puts a layer over a device.
type Layer = fn(&Rt, Rc<Witness>) -> Rc<dyn Device>;

async fn ask(top: &Rc<dyn Device>, request: Request) {
    let answer = top.submit(request.from_origin(ASKS)).await;
    answer.expect("memory does what it is asked");
}

/// If a write covers only parts of blocks, the layer `atomic` reads and writes whole blocks
/// instead. All of these requests must carry the origin of the write.
#[test]
fn the_atomic_unit_reads_and_writes_for_whom_it_was_asked() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let below = Witness::new(&rt);
        let top: Rc<dyn Device> = Rc::new(AtomicUnit::new(&rt, Rc::clone(&below) as _));
        ask(&top, write(&rt, 100, 5000, 1)).await;
        assert_eq!(below.transfers(), [Op::Read, Op::Read, Op::Write]);
        ask(&top, Request::read(100, 10)).await;
        assert_eq!(below.transfers(), [Op::Read]);
        ask(
            &top,
            Request::without_data(Op::WriteZeroes, 100, 50, Flags::NONE),
        )
        .await;
        // Both ends lie in one block.
        assert_eq!(below.transfers(), [Op::Read, Op::Write]);
    });
}

/// A layer that splits or queues requests, or that reads to fill a cache, must keep the origin of
/// the client's request.
#[test]
fn layers_that_cut_or_fetch_keep_the_origin() {
    let layers: [(&str, Layer); 3] = [
        ("stripe", |_, below| {
            let same = Rc::clone(&below);
            Rc::new(Stripe::new(vec![below, same], 4 * KIB).expect("it opens"))
        }),
        ("queue", |rt, below| {
            let config: QueueConfig =
                toml::from_str("below = 'x'\nrequest_max = '4KiB'").expect("it is right");
            Rc::new(QueueLayer::new(rt, below, &config).expect("it opens"))
        }),
        ("cache", |rt, below| {
            let config: CacheConfig =
                toml::from_str("below = 'x'\nsize = '64KiB'\nmode = 'write-through'")
                    .expect("it is right");
            Rc::new(Cache::new(rt, below, &config).expect("it opens"))
        }),
    ];
    for (name, layer) in layers {
        let rt = virtual_rt(1);
        rt.block_on(async {
            let below = Witness::new(&rt);
            let top = layer(&rt, Rc::clone(&below));
            ask(&top, Request::read(32 * KIB, 8 * KIB)).await;
            ask(&top, write(&rt, 0, 8192, 1)).await;
            let seen = below.transfers();
            let expected: &[Op] = match name {
                // These layers split each request of 8 KiB into two parts of 4 KiB.
                "stripe" | "queue" => &[Op::Read, Op::Read, Op::Write, Op::Write],
                _ => &[Op::Read, Op::Write],
            };
            assert_eq!(seen, expected, "{name}");
            top.close().await.expect("it closes");
        });
    }
}

/// A mirror over plain devices sends changes to both devices and reads to one of them, with the
/// origin of the request.
#[test]
fn a_mirror_keeps_the_origin() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let sides = [Witness::new(&rt), Witness::new(&rt)];
        let config = MirrorConfig::of(vec!["a".to_owned(), "b".to_owned()]);
        let given = ["a", "b"]
            .iter()
            .zip(&sides)
            .map(|(name, side)| SideDevice {
                name: (*name).to_owned(),
                device: Rc::clone(side) as _,
                data_offset: 0,
                out_of_sync: false,
            });
        let mirror = Mirror::new(&rt, &config, given.collect(), 1 << 20);
        let top: Rc<dyn Device> = Rc::new(mirror);
        ask(&top, write(&rt, 0, 4096, 1)).await;
        ask(&top, Request::flush()).await;
        for side in &sides {
            assert_eq!(side.transfers(), [Op::Write]);
        }
        ask(&top, Request::read(0, 4096)).await;
        let reads: Vec<Op> = sides.iter().flat_map(|side| side.transfers()).collect();
        assert_eq!(reads, [Op::Read]);
        top.close().await.expect("it closes");
    });
}
