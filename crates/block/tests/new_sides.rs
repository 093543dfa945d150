//! How a side that is made stores blocks when the configuration does not say it, and that the
//! configuration changes nothing about sides that exist.

use bimetal_block::layers::mirror::superblock::{Candidate, SideKind};
use bimetal_block::layers::mirror::{Layouts, OpenOptions};

use super::common::sides::blank;
use super::common::virtual_rt;
use super::common::volume::{OpenVolume, Volume};

const HOMES: Layouts = Layouts::All(SideKind::Home);
const LOGS: Layouts = Layouts::All(SideKind::Log);

/// Layouts of two sides: `side0` logged and `side1` with a home.
fn mixed() -> Layouts {
    Layouts::Each([("side0".to_owned(), SideKind::Log)].into())
}

/// Runs a test of a volume with two sides that were made with `layouts`. Its configuration says
/// nothing about them.
fn made_with<T>(layouts: &Layouts, test: impl AsyncFnOnce(Volume) -> T) -> T {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let mut volume = Volume::unformatted(&rt, 2);
        volume.config.layout = layouts.clone();
        let made = volume.try_format("vol").await;
        made.expect("the sides are fit");
        volume.config.layout = Layouts::Unsaid;
        test(volume).await
    })
}

async fn kind_on(side: &Candidate) -> SideKind {
    let found = side.superblock().await.expect("it can be read");
    found.expect("it is a side").layout.kind()
}

#[test]
fn the_sides_of_a_new_volume_are_logged() {
    made_with(&Layouts::Unsaid, async |volume| {
        for side in &volume.sides {
            assert_eq!(kind_on(side).await, SideKind::Log);
        }
    });
}

/// A side that replaces another one is like that one, and a side that is added like all of them.
#[test]
fn a_side_that_joins_is_like_those_that_are_there() {
    let (home, log) = (SideKind::Home, SideKind::Log);
    for (layouts, replaced, expected) in [
        (HOMES, Some("side1"), home),
        (HOMES, None, home),
        (LOGS, Some("side1"), log),
        (LOGS, None, log),
        (mixed(), Some("side0"), log),
        (mixed(), Some("side1"), home),
        (mixed(), None, home),
    ] {
        made_with(&layouts, async |volume| {
            let mirror = volume.open().await;
            mirror.put(0, 7).await;
            let new = blank(&volume.rt, "new");
            let added = mirror.add_side(new.clone(), replaced, false).await;
            added.expect("it is fit");
            mirror
                .until_complete(if replaced.is_some() { 2 } else { 3 })
                .await;
            assert_eq!(kind_on(&new).await, expected, "{layouts:?}, {replaced:?}");
            assert_eq!(mirror.byte_at(0).await, Ok(7));
            mirror.close().await;
        });
    }
}

/// The configuration decides about a side that joins if it says something, as it always did.
#[test]
fn a_side_that_joins_is_what_the_configuration_says() {
    for (said, expected) in [
        (LOGS, SideKind::Log),
        (mixed(), SideKind::Home),
        (HOMES, SideKind::Home),
    ] {
        made_with(&mixed(), async |mut volume| {
            volume.config.layout = said;
            let mirror = volume.open().await;
            let new = blank(&volume.rt, "new");
            let added = mirror.add_side(new.clone(), Some("side0"), false).await;
            added.expect("it is fit");
            assert_eq!(kind_on(&new).await, expected);
            mirror.until_complete(2).await;
            mirror.close().await;
        });
    }
}

/// `serve --rebuild` makes a side of a blank device in the place of one that was not found.
#[test]
fn a_blank_device_in_the_place_of_a_side_gets_its_layout() {
    for (layouts, expected) in [(HOMES, SideKind::Home), (LOGS, SideKind::Log)] {
        made_with(&layouts, async |mut volume| {
            volume.fill(3).await;
            volume.sides[1] = blank(&volume.rt, "side1");
            let options = OpenOptions {
                rebuild: vec!["side1".to_owned()],
                ..OpenOptions::default()
            };
            let mirror = volume.open_as(&options).await;
            mirror.until_complete(2).await;
            mirror.close().await;
            assert_eq!(kind_on(&volume.sides[1]).await, expected);
            let alone = volume.open_alone(1).await;
            assert_eq!(alone.byte_at(0).await, Ok(1));
        });
    }
}

fn patiences(mirror: &OpenVolume) -> [Option<f64>; 2] {
    let sides = mirror.status().sides;
    [0, 1].map(|side| sides[side].patience_seconds)
}

/// Only sides that are all logged return so cheaply that one is ejected by default while writes
/// wait for it. That goes by the sides, whatever the configuration says.
#[test]
fn the_default_of_the_silence_goes_by_the_sides_that_exist() {
    for (layouts, expected) in [
        (LOGS, [Some(1.0); 2]),
        (HOMES, [None; 2]),
        (mixed(), [None; 2]),
    ] {
        for said in [Layouts::Unsaid, LOGS, HOMES] {
            made_with(&layouts, async |mut volume| {
                volume.config.layout = said;
                let mirror = volume.open().await;
                assert_eq!(patiences(&mirror), expected, "{layouts:?}");
                mirror.close().await;
            });
        }
    }
}

/// The silence follows a conversion at once.
#[test]
fn the_default_of_the_silence_follows_a_conversion() {
    made_with(&LOGS, async |volume| {
        let mirror = volume.open().await;
        assert_eq!(patiences(&mirror), [Some(1.0); 2]);
        let converted = mirror.convert_side("side1", SideKind::Home).await;
        converted.expect("a home has more room");
        mirror.until_complete(2).await;
        assert_eq!(patiences(&mirror), [None; 2]);
        let converted = mirror.convert_side("side1", SideKind::Log).await;
        converted.expect("the volume fits");
        mirror.until_complete(2).await;
        assert_eq!(patiences(&mirror), [Some(1.0); 2]);
        mirror.close().await;
    });
}

/// A configuration that names some sides says that the others have homes, as it did when that was
/// the default of all sides.
#[test]
fn a_side_that_is_not_named_beside_others_has_a_home() {
    made_with(&mixed(), async |volume| {
        let kinds = [
            kind_on(&volume.sides[0]).await,
            kind_on(&volume.sides[1]).await,
        ];
        assert_eq!(kinds, [SideKind::Log, SideKind::Home]);
    });
}
