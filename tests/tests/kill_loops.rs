//! Kill loops: the real program on disks with volatile caches, killed at a drawn moment, the power
//! of the disks cut, started again, and held to everything that it promised. And the canaries: the
//! same loops over disks that lie about flushes, which is what a program that leaves out a flush
//! looks like from below, must fail.

use bimetal_tests::crash::files::{Files, Mounted};
use bimetal_tests::crash::fio;
use bimetal_tests::crash::load::{Load, Mix, settle};
use bimetal_tests::crash::model::{Model, Settled, content};
use bimetal_tests::crash::stand::{Power, Stand};
use bimetal_tests::deadline::eventually;
use bimetal_tests::random::Random;
use bimetal_tests::server::REFUSED;
use bimetal_tests::volatile_disk::{BLOCK_BYTES, Keep};

/// Rounds of the loop with our own client, and on how many volumes they are.
const VOLUMES: u64 = 10;
const ROUNDS: u64 = 20;
/// Rounds of the loop under fio, and of the one under ext4.
const FIO_ROUNDS: u32 = 20;
const EXT4_ROUNDS: u64 = 30;

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
    if random.chance(1, 4) {
        stand.crash(Power::draw(random));
        // Nothing was written since, so every answer is the one that was given before.
        let again = recovered(stand, model)?;
        assert_eq!(again, Settled::default());
        met.repeated += 1;
    }
    Ok(())
}

/// Room for what is written while a side is frozen.
const EXPOSURE: &str = "exposure = { bytes = \"4MiB\", age = \"1h\" }";

/// A served volume and the model of it.
fn volume(name: &str) -> (Stand, Model) {
    modelled(Stand::new(name, EXPOSURE))
}

fn modelled(stand: Stand) -> (Stand, Model) {
    let (_, size_bytes) = stand.attach();
    let model = Model::new(size_bytes / BLOCK_BYTES);
    (stand, model)
}

#[test]
fn what_was_flushed_survives_every_crash() {
    crash_again_and_again(VOLUMES, || volume("kill"));
}

/// What is in the memory of a cache is gone with the program, but for what was flushed.
#[test]
fn what_was_flushed_through_a_cache_survives_every_crash() {
    crash_again_and_again(3, || modelled(Stand::cached("cached", EXPOSURE)));
}

fn crash_again_and_again(volumes: u64, volume: impl Fn() -> (Stand, Model)) {
    let mut met = Met::default();
    for seed in 0..volumes {
        let (mut stand, mut model) = volume();
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

/// A disk that loses its power comes back with less than it had completed, and the server, which
/// goes on, must not take that for the truth: neither at once nor after a crash.
#[test]
fn a_disk_may_lose_its_power_under_a_running_server() {
    let (mut stand, mut model) = volume("cycle");
    for side in [0, 1, 0, 1] {
        stand.await_whole();
        let (mut wire, _) = stand.attach();
        let stamp = model.stamp();
        model.sent(0..64, stamp);
        wire.write(0, &content(0..64, stamp));
        model.acknowledged(0..64, false);
        eventually(60, "both disks have it", || {
            (stand.volume().figure("exposed_bytes") == 0.0).then_some(())
        });
        stand.disks[side].cut(Keep::Nothing);
        for flushed in [false, true] {
            let found = wire.read(0, 64 * BLOCK_BYTES as u32);
            let newest = model.check_newest(0, &found);
            newest.unwrap_or_else(|b| panic!("side {side}, flushed {flushed}: {b:?}"));
            wire.flush();
        }
        let flush = model.flush_sent();
        wire.flush();
        model.flushed(flush);
        stand.crash(Power::Fails([Some(Keep::Nothing); 2]));
        let outcome = recovered(&mut stand, &mut model);
        outcome.unwrap_or_else(|words| panic!("side {side}: {words}"));
    }
    stand.stop();
}

/// One round under fio; the words are what its verification said.
fn fio_round(stand: &mut Stand, random: &mut Random, generation: u32) -> Result<(), String> {
    let uri = stand.volume().uri();
    let running = fio::Running::start(&uri);
    disturb(stand, random);
    fio::write_certain(&uri, generation);
    stand.disks[0].await_more_writes(1 + random.below(200));
    stand.crash(Power::draw(random));
    running.ended();
    stand.recover()?;
    let verified = fio::verify(&uri, generation);
    match verified.status {
        Some(0) => Ok(()),
        _ => Err(format!("{verified}\n{}", stand.said())),
    }
}

#[test]
fn what_fio_flushed_survives_every_crash() {
    let mut stand = Stand::new("kill-fio", EXPOSURE);
    fio::fill_loaded(&stand.volume().uri());
    let mut random = Random::new(1);
    for generation in 1..=FIO_ROUNDS {
        let outcome = fio_round(&mut stand, &mut random, generation);
        outcome.unwrap_or_else(|words| panic!("round {generation}: {words}"));
    }
    stand.stop();
}

/// One round under ext4; `mounted` is the file system before and after. The words are what the
/// checker of the files found.
fn ext4_round(
    stand: &mut Stand,
    mounted: Mounted,
    files: &mut Files,
    random: &mut Random,
) -> Result<Mounted, String> {
    disturb(stand, random);
    let (writes, power) = (random.below(400), Power::draw(random));
    let root = mounted.path().to_owned();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| files.replace(&root, random, u64::MAX));
        stand.disks[0].await_more_writes(writes);
        stand.crash(power);
        writer.join().expect("the writer ends with its file system");
    });
    mounted.unmount();
    stand.recover()?;
    let (dir, uri) = (stand.volume().dir(), stand.volume().uri());
    let mounted = Mounted::mount(dir, &uri)?;
    files.check(mounted.path())?;
    mounted.checked(dir)
}

/// A volume with a file system on it, mounted.
fn ext4_volume(name: &str) -> (Stand, Mounted) {
    let stand = Stand::new(name, EXPOSURE);
    let (dir, uri) = (stand.volume().dir(), stand.volume().uri());
    Mounted::make(dir, &uri);
    let mounted = Mounted::mount(dir, &uri).expect("a fresh file system");
    (stand, mounted)
}

#[test]
fn what_ext4_synced_survives_every_crash() {
    let (mut stand, mut mounted) = ext4_volume("kill-ext4");
    let mut files = Files::default();
    let mut random = Random::new(2);
    for number in 0..EXT4_ROUNDS {
        let outcome = ext4_round(&mut stand, mounted, &mut files, &mut random);
        mounted = outcome.unwrap_or_else(|words| panic!("round {number}: {words}"));
    }
    mounted.unmount();
    stand.stop();
}

/// Runs `round` until it finds something; panics unless it does within `rounds`.
fn found_within(rounds: u32, mut round: impl FnMut(u32) -> Result<(), String>) -> String {
    let mut found = (1..=rounds).filter_map(|n| round(n).err().map(|words| (n, words)));
    let (number, words) = found.next().expect("a loss in one of the rounds");
    println!("found in round {number}: {words}");
    words
}

#[test]
fn canary_our_client_finds_flushes_that_do_nothing() {
    for seed in 0..3 {
        let (mut stand, mut model) = volume("canary");
        stand.disks.iter().for_each(|disk| disk.lie());
        let (mut random, mut met) = (Random::new(1000 + seed), Met::default());
        let words = found_within(10, |_| round(&mut stand, &mut model, &mut random, &mut met));
        // Other bytes than there may be, a block that cannot be read, or a volume that is refused.
        let known = ["not one of the possible", "the error", REFUSED];
        assert!(known.iter().any(|w| words.contains(w)), "{words}");
    }
}

#[test]
fn canary_fio_finds_flushes_that_do_nothing() {
    let mut stand = Stand::new("canary-fio", EXPOSURE);
    fio::fill_loaded(&stand.volume().uri());
    stand.disks.iter().for_each(|disk| disk.lie());
    let mut random = Random::new(1003);
    let words = found_within(5, |number| fio_round(&mut stand, &mut random, number));
    // What fio has read is not what it wrote, or the volume itself has found out and is refused.
    let known = ["verify", REFUSED];
    assert!(known.iter().any(|w| words.contains(w)), "{words}");
}

#[test]
fn canary_ext4_finds_flushes_that_do_nothing() {
    let (mut stand, mounted) = ext4_volume("canary-ext4");
    stand.disks.iter().for_each(|disk| disk.lie());
    let (mut files, mut random) = (Files::default(), Random::new(1004));
    let mut mounted = Some(mounted);
    let words = found_within(10, |_| {
        let before = mounted.take().expect("the round before found nothing");
        mounted = Some(ext4_round(&mut stand, before, &mut files, &mut random)?);
        Ok(())
    });
    // A file that is not what was synced, or a file system that is none any more.
    // Or the volume itself has found out.
    let known = ["file ", "mount", "e2fsck", REFUSED]
        .iter()
        .any(|w| words.contains(w));
    assert!(known, "{words}");
}
