//! Conversion of a side in place, from a side with a home to a logged side and back.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{Powered, blank, blank_of, byte_at, open_with, put, until_complete};
use crate::common::virtual_rt;
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::{Candidate, SideKind};
use bimetal_block::layers::mirror::{
    Layouts, Mirror, MirrorConfig, MirrorStatus, OnDegraded, OpenOptions,
};
use bimetal_block::{Device, Request};
use bimetal_rt::Rt;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Content of the volume: the byte at the start of each of its first MiB.
const CONTENT: [u8; 6] = [1, 2, 3, 4, 5, 6];

/// The two sides of a volume, `a` with a home and `b` logged, so that each has room for the volume
/// in both layouts.
struct Sides {
    rt: Rt,
    both: [Candidate; 2],
    /// Number of changes, to both devices together, after which the power is cut.
    power: Rc<Cell<u64>>,
}

impl Sides {
    async fn made(rt: &Rt) -> Sides {
        let both = ["a", "b"].map(|name| blank(rt, name));
        let formatting = Formatting {
            layouts: Layouts::Each(BTreeMap::from([("b".to_owned(), SideKind::Log)])),
            ..Formatting::with_homes()
        };
        let made = formatting::format(rt, "vol", &both, &formatting).await;
        made.expect("the sides are fit");
        let sides = Sides {
            rt: rt.clone(),
            both,
            power: Rc::new(Cell::new(u64::MAX)),
        };
        let mirror = sides.open().await;
        for (at, byte) in CONTENT.into_iter().enumerate() {
            put(rt, &mirror, at as u64 * MIB, byte).await;
        }
        mirror.close().await.expect("closed");
        sides
    }

    async fn open(&self) -> Mirror {
        self.open_without(&[]).await
    }

    async fn open_without(&self, missing: &[usize]) -> Mirror {
        let sides = [0, 1].map(|side| Powered::side(&self.both[side], &self.power));
        let config = MirrorConfig::of(Vec::new());
        let sides = [&sides[0], &sides[1]];
        let opened = open_with(&self.rt, &config, &sides, missing, &OpenOptions::default()).await;
        opened.unwrap_or_else(|error| panic!("it opens: {error}"))
    }

    /// Cuts the power of the open devices. The next opening has power again.
    fn cut_power(&mut self) {
        self.power.set(0);
        self.power = Rc::new(Cell::new(u64::MAX));
    }

    /// Returns the layout of a side, as its device has it.
    async fn layout(&self, side: usize) -> SideKind {
        let found = self.both[side].superblock().await.expect("it can be read");
        found.expect("it is a side").layout.kind()
    }

    /// Waits until the power is cut or the volume is complete, without an operation; returns false
    /// if neither happens within two minutes.
    async fn until_settled(&self, mirror: &Mirror) -> bool {
        for _ in 0..2400 {
            if self.power.get() == 0 || is_settled(&mirror.status()) {
                return true;
            }
            self.rt.sleep(Duration::from_millis(50)).await;
        }
        false
    }
}

fn is_settled(status: &MirrorStatus) -> bool {
    !status.degraded && status.operations.is_empty()
}

async fn assert_content(mirror: &Mirror, when: &str) {
    for (at, byte) in CONTENT.into_iter().enumerate() {
        assert_eq!(byte_at(mirror, at as u64 * MIB).await, Ok(byte), "{when}");
    }
    assert_eq!(byte_at(mirror, 7 * MIB).await, Ok(0), "{when}");
}

/// A conversion of one of the sides, by its index, to another layout.
#[derive(Clone, Copy, Debug)]
struct Asked(usize, SideKind);

const ASKED: [Asked; 2] = [Asked(0, SideKind::Log), Asked(1, SideKind::Home)];

impl Asked {
    async fn of(self, mirror: &Mirror) -> Result<(), String> {
        mirror.convert_side(["a", "b"][self.0], self.1).await
    }

    /// Converts the side and cuts the power after `changes` changes. Opens the volume again and
    /// cuts the power a second time. Opens it once more and waits for the end. Then the converted
    /// side alone must have the content. Returns true if the conversion had ended before the first
    /// power cut. Counts in `void` the first cuts after which the areas of the side were void.
    async fn cut_after(self, rt: &Rt, changes: u64, void: &Cell<u32>) -> bool {
        let when = format!("{self:?} cut after {changes} changes");
        let mut sides = Sides::made(rt).await;
        let mirror = sides.open().await;
        sides.power.set(changes);
        let answer = self.of(&mirror).await;
        let ends = answer.is_err() || sides.until_settled(&mirror).await;
        assert!(ends, "{when}: {:?}", mirror.status());
        let lasted = answer.is_ok() && sides.power.get() > 0;
        sides.cut_power();
        let found = sides.both[self.0].superblock().await.expect("read");
        let is_void = found
            .expect("the device is never blank")
            .awaits_formatting();
        void.set(void.get() + u32::from(is_void));

        let mirror = sides.open().await;
        assert_content(&mirror, &when).await;
        sides.power.set(changes % 61);
        // The same command is accepted at any time.
        let again = self.of(&mirror).await;
        assert!(
            again.is_ok() || sides.power.get() == 0 || is_settled(&mirror.status()) || lasted,
            "{when}: {again:?}"
        );
        sides.until_settled(&mirror).await;
        sides.cut_power();

        let mirror = sides.open().await;
        assert_content(&mirror, &when).await;
        let ends = sides.until_settled(&mirror).await;
        assert!(ends, "{when}: {:?}", mirror.status());
        if sides.layout(self.0).await != self.1 {
            let was_begun = answer.is_ok() || again.is_ok();
            assert!(!was_begun, "{when}: it was forgotten");
            self.of(&mirror).await.expect("it is done at last");
            assert!(sides.until_settled(&mirror).await, "{when}");
        }
        assert_eq!(sides.layout(self.0).await, self.1, "{when}");
        assert_content(&mirror, &when).await;
        mirror.close().await.expect("closed");

        let mirror = sides.open_without(&[1 - self.0]).await;
        assert_content(&mirror, &when).await;
        put(rt, &mirror, 8 * MIB, 8).await;
        mirror.submit(Request::flush()).await.expect("flushed");
        mirror.close().await.expect("closed");
        let mirror = sides.open().await;
        until_complete(rt, &mirror, 2).await;
        assert_eq!(byte_at(&mirror, 8 * MIB).await, Ok(8), "{when}");
        mirror.close().await.expect("closed");
        lasted
    }
}

#[test]
fn a_conversion_goes_on_by_itself_wherever_it_is_cut_short() {
    for asked in ASKED {
        let void = Cell::new(0);
        let ended = (0..2000).find(|changes| {
            let rt = virtual_rt(100 + changes);
            rt.block_on(asked.cut_after(&rt, *changes, &void))
        });
        let changes = ended.expect("it comes to its end");
        assert!(changes > 20, "{asked:?} was cut {changes} times");
        assert!(
            void.get() > 5,
            "{asked:?}: {} cuts during formatting",
            void.get()
        );
    }
}

/// The other side disappears as soon as the converted side is complete, while the volume is in use.
#[test]
fn a_converted_side_serves_the_volume_alone_and_is_converted_back() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let sides = Sides::made(&rt).await;
        for (to, back) in [
            (SideKind::Log, SideKind::Home),
            (SideKind::Home, SideKind::Log),
        ] {
            let mirror = sides.open().await;
            mirror.convert_side("a", to).await.expect("it is begun");
            assert!(sides.until_settled(&mirror).await);
            mirror.convert_side("b", back).await.expect("it is begun");
            // The side that was just converted is the only copy now.
            put(&rt, &mirror, 7 * MIB, 9).await;
            put(&rt, &mirror, 7 * MIB, 0).await;
            assert_content(&mirror, "with one copy").await;
            assert!(sides.until_settled(&mirror).await);
            assert_content(&mirror, "afterwards").await;
            let found = (sides.layout(0).await, sides.layout(1).await);
            assert_eq!(found, (to, back));
            mirror.close().await.expect("closed");
        }
    });
}

/// The command is refused with the figures, and nothing is changed.
#[test]
fn a_side_without_room_in_the_new_layout_is_refused_with_the_figures() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        let both = ["a", "b"].map(|name| blank_of(&rt, name, 1 << 30));
        let made = formatting::format(&rt, "vol", &both, &Formatting::with_homes()).await;
        made.expect("the sides are fit");
        let sides = Sides {
            rt: rt.clone(),
            both,
            power: Rc::new(Cell::new(u64::MAX)),
        };
        let mirror = sides.open().await;
        put(&rt, &mirror, 0, 1).await;
        mirror.submit(Request::flush()).await.expect("flushed");
        let before = sides.both[1].superblock().await;
        // docs/format/logged-side.md computes 770,940,928 bytes for a device of 1 GiB, which are
        // 735.2 MiB; docs/format/mirror-side.md has 958 MiB less 4 KiB for a side with a home.
        let expected = "side b: has room for 735.2 MiB of data, but the volume has 958.0 MiB: the \
                        side needs at least";
        for _ in 0..2 {
            let plan = mirror.plan_conversion("b", SideKind::Log).await;
            let refused = plan.expect_err("it has no room");
            assert!(refused.starts_with(expected), "{refused}");
            let refused = mirror.convert_side("b", SideKind::Log).await;
            let refused = refused.expect_err("it has no room");
            assert!(refused.starts_with(expected), "{refused}");
        }
        assert!(is_settled(&mirror.status()));
        assert_eq!(sides.both[1].superblock().await, before);
        mirror.close().await.expect("closed");
    });
}

#[test]
fn the_only_complete_copy_is_never_converted() {
    let rt = virtual_rt(3);
    rt.block_on(async {
        let sides = Sides::made(&rt).await;
        let mirror = sides.open_without(&[1]).await;
        let refused = mirror.convert_side("a", SideKind::Log).await;
        let refused = refused.expect_err("it is the only copy");
        assert!(
            refused.contains("the last durable side that is complete"),
            "{refused}"
        );
        let refused = mirror.convert_side("b", SideKind::Home).await;
        let refused = refused.expect_err("it is not there");
        assert!(refused.contains("is absent"), "{refused}");
        put(&rt, &mirror, 7 * MIB, 0).await;
        mirror.close().await.expect("closed");

        // While one side is rebuilt, the other one is the only copy.
        let mirror = sides.open().await;
        convert(&mirror, "b", SideKind::Home).await;
        let refused = mirror.convert_side("a", SideKind::Log).await;
        assert!(refused.is_err(), "it is the only copy");
        let unknown = mirror.convert_side("c", SideKind::Log).await;
        assert!(unknown.is_err_and(|why| why.contains("there are: a, b")));
        assert!(sides.until_settled(&mirror).await);
        assert_content(&mirror, "afterwards").await;
        mirror.close().await.expect("closed");
    });
}

/// Begins to convert a side.
async fn convert(mirror: &Mirror, side: &str, to: SideKind) {
    mirror.convert_side(side, to).await.expect("begun");
}

/// A block is damaged on the side that would remain, and no scrub has found it yet; then a read
/// finds it. The side with the last good copy is not converted before the block is repaired.
#[test]
fn a_side_with_the_last_good_copy_of_a_block_gives_it_away_first() {
    let rt = virtual_rt(4);
    rt.block_on(async {
        let sides = Sides::made(&rt).await;
        let mirror = sides.open().await;
        let at = mirror.place_on(0, 2 * MIB).expect("it has a place");
        let spoiled = crate::common::write(&rt, at, BLOCK as usize, 0x55);
        sides.both[0].device.submit(spoiled).await.expect("spoiled");
        let scrub = crate::common::sides::scrub(&rt, &mirror).await;
        assert_eq!((scrub.found, scrub.unrepairable), (1, 0), "{scrub:?}");
        convert(&mirror, "b", SideKind::Home).await;
        assert!(sides.until_settled(&mirror).await);
        assert_content(&mirror, "afterwards").await;
        mirror.close().await.expect("closed");
        let mirror = sides.open_without(&[1]).await;
        assert_content(&mirror, "without b").await;
        mirror.close().await.expect("closed");
    });
}

/// What is said before a conversion: the figures follow from the content and from the devices.
#[test]
fn a_plan_has_the_figures_and_changes_nothing() {
    let rt = virtual_rt(5);
    rt.block_on(async {
        let sides = Sides::made(&rt).await;
        let mirror = sides.open().await;
        let before = sides.both[1].superblock().await;
        let plan = mirror.plan_conversion("b", SideKind::Home).await;
        let plan = plan.expect("it is possible").expect("it is another one");
        assert_eq!((plan.from, plan.to), (SideKind::Log, SideKind::Home));
        assert_eq!((plan.copies_left, plan.device_bytes), (1, 64 * MIB));
        // Six blocks at the starts of six MiB were written, and one page of checksums describes
        // 1008 blocks, which are less than 4 MiB.
        let copied = 6 * MIB..=8 * MIB;
        assert!(copied.contains(&plan.copied_bytes_max), "{plan:?}");
        assert_eq!(plan.floor_bytes_per_s, 20 * MIB);
        assert!(plan.read_bytes_per_s.is_some());
        assert!(plan.room_bytes > plan.volume_bytes);
        assert_eq!(sides.both[1].superblock().await, before);
        assert_eq!(mirror.plan_conversion("b", SideKind::Log).await, Ok(None));
        mirror.close().await.expect("closed");
    });
}

/// The volume would refuse changes while a side is absent, but a conversion was asked for.
#[test]
fn a_conversion_does_not_stop_the_volume_and_names_the_line_to_write() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let sides = Sides::made(&rt).await;
        let mut config = MirrorConfig::of(Vec::new());
        config.on_degraded = OnDegraded::Stop;
        let both = [&sides.both[0], &sides.both[1]];
        let options = OpenOptions::default();
        let mirror = open_with(&rt, &config, &both, &[], &options).await;
        let mirror = mirror.expect("it opens");
        convert(&mirror, "a", SideKind::Log).await;
        assert_eq!(mirror.status().state, "open");
        let line = mirror.layouts_to_name(&Layouts::All(SideKind::Home));
        let line = line.map(|layouts| layouts.line());
        assert_eq!(line.as_deref(), Some("layout = \"log\""));
        // Without the key, a new volume has these layouts.
        assert_eq!(mirror.layouts_to_name(&Layouts::Unsaid), None);
        assert!(sides.until_settled(&mirror).await);
        let all = Layouts::All(SideKind::Log);
        assert_eq!(mirror.layouts_to_name(&all), None);
        convert(&mirror, "b", SideKind::Home).await;
        let line = mirror.layouts_to_name(&all).map(|layouts| layouts.line());
        let each = "layout = { \"a\" = \"log\", \"b\" = \"home\" }";
        assert_eq!(line.as_deref(), Some(each));
        let line = mirror.layouts_to_name(&Layouts::Unsaid);
        assert_eq!(line.map(|layouts| layouts.line()).as_deref(), Some(each));
        assert!(sides.until_settled(&mirror).await);
        mirror.close().await.expect("closed");
    });
}
