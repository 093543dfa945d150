//! Kill loops: the real program on disks with volatile caches, killed at a drawn moment, the power of
//! the disks cut, started again, and held to everything that it promised. And the canaries: the same
//! loops over disks that lie about flushes, which is what a program that leaves out a flush looks
//! like from below, must fail.

use bimetal_tests::crash::RECOVERY;
use bimetal_tests::crash::load::{Load, Mix, settle};
use bimetal_tests::crash::model::{Model, Settled};
use bimetal_tests::crash::stand::{Power, Stand};
use bimetal_tests::random::Random;
use bimetal_tests::volatile_disk::BLOCK_BYTES;

/// Rounds of the loop with our own client, and on how many volumes they are.
const VOLUMES: u64 = 8;
const ROUNDS: u64 = 20;

/// What the rounds met, to show that they met something.
#[derive(Debug, Default)]
struct Met {
    settled: Settled,
    under_way: u64,
    frozen: u64,
    repeated: u64,
}

/// Makes one of the disks slow, sometimes.
fn disturb(stand: &Stand, random: &mut Random) {
    let disk = random.pick(&stand.disks);
    match random.below(6) {
        0 => disk.delay(1 + random.below(3)),
        1 => disk.limit(1000 + random.below(4000)),
        2 => stand.disks.iter().for_each(|d| d.delay(1)),
        _ => {}
    }
}

/// Load up to the moment of the crash; the words are what was breached.
fn load(
    stand: &Stand,
    model: &mut Model,
    random: &mut Random,
    met: &mut Met,
) -> Result<(), String> {
    let (wire, _) = stand.attach();
    let mut load = Load::new(wire, model);
    let depth = *random.pick(&[1, 4, 16]);
    let answers = random.below(120);
    disturb(stand, random);
    load.run(random, Mix::All, depth, answers)
        .map_err(|b| format!("{b:?}"))?;
    if random.chance(1, 5) {
        // A flush would wait for the frozen side, so everything is answered before, and then some
        // plain writes, fewer than the exposure has room for. The other side must be whole.
        stand.await_whole();
        load.finish().map_err(|b| format!("{b:?}"))?;
        random.pick(&stand.disks).freeze();
        let answers = random.below(20);
        load.run(random, Mix::Writes, depth, answers)
            .map_err(|b| format!("{b:?}"))?;
        met.frozen += 1;
    }
    met.under_way += load.under_way() as u64;
    Ok(())
}

/// Serves the volume again and reads everything.
fn recovered(stand: &mut Stand, model: &mut Model) -> Result<Settled, String> {
    stand.recover()?;
    let (mut wire, _) = stand.attach();
    settle(&mut wire, model).map_err(|b| format!("{b:?}\n{}", stand.said()))
}

fn round(
    stand: &mut Stand,
    model: &mut Model,
    random: &mut Random,
    met: &mut Met,
) -> Result<(), String> {
    load(stand, model, random, met)?;
    stand.crash(Power::draw(random));
    let settled = recovered(stand, model)?;
    met.settled.newest += settled.newest;
    met.settled.older += settled.older;
    met.settled.torn += settled.torn;
    if random.chance(1, 4) {
        stand.crash(Power::draw(random));
        // Nothing was written since, so every answer is the one that was given before.
        let again = recovered(stand, model)?;
        assert_eq!(again, Settled::default());
        met.repeated += 1;
    }
    Ok(())
}

/// A served volume and the model of it.
fn volume(name: &str) -> (Stand, Model) {
    let stand = Stand::new(name, "exposure = { bytes = \"4MiB\", age = \"1h\" }");
    let (_, size_bytes) = stand.attach();
    let model = Model::new(size_bytes / BLOCK_BYTES, RECOVERY.atomic_bytes);
    (stand, model)
}

#[test]
fn what_was_flushed_survives_every_crash() {
    let mut met = Met::default();
    for seed in 0..VOLUMES {
        let (mut stand, mut model) = volume("kill");
        let mut random = Random::new(seed);
        for number in 0..ROUNDS {
            let outcome = round(&mut stand, &mut model, &mut random, &mut met);
            outcome.unwrap_or_else(|words| panic!("volume {seed}, round {number}: {words}"));
        }
        // And it is an ordinary volume that stops cleanly and starts again.
        stand.stop();
        stand.serve_with(&[]);
        let (mut wire, _) = stand.attach();
        let settled = settle(&mut wire, &mut model).expect("nothing changed");
        assert_eq!(settled, Settled::default());
        stand.stop();
    }
    println!("{met:?}");
    // The crashes hit something: writes under way, writes kept, writes lost.
    assert!(met.settled.newest > 0 && met.settled.older > 0 && met.under_way > 0);
    assert!(met.frozen > 0 && met.repeated > 0);
}

/// Both disks lie about flushes from the start on.
#[test]
fn canary_a_flush_that_does_nothing_is_found() {
    for seed in 0..3 {
        let (mut stand, mut model) = volume("canary");
        stand.disks.iter().for_each(|disk| disk.lie());
        let mut random = Random::new(1000 + seed);
        let mut met = Met::default();
        let mut found = None;
        for number in 0..10 {
            if let Err(words) = round(&mut stand, &mut model, &mut random, &mut met) {
                found = Some((number, words));
                break;
            }
        }
        let (number, words) = found.expect("a loss within ten rounds");
        println!("seed {seed}, round {number}: {words}");
        assert!(
            words.contains("not one of the possible"),
            "another failure than a loss: {words}"
        );
    }
}
