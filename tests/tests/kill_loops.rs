//! Kill loops: the real program on disks with volatile caches is killed at a random moment, the
//! power of the disks is cut, and the restarted program must have kept every promise. The canaries
//! are the same loops over disks that lie about flushes, so that the program behaves like one that
//! omits a flush. A canary passes only if its loop finds a loss.

use bimetal_tests::crash::files::{Files, Mounted};
use bimetal_tests::crash::fio;
use bimetal_tests::crash::load::{Load, Mix, settle};
use bimetal_tests::crash::model::{Model, Settled, content};
use bimetal_tests::crash::stand::{Power, Stand};
use bimetal_tests::deadline::eventually;
use bimetal_tests::random::Random;
use bimetal_tests::server::REFUSED;
use bimetal_tests::volatile_disk::{BLOCK_BYTES, Keep};

/// Number of volumes in the loop with our own NBD client, and number of rounds on each volume.
const VOLUMES: u64 = 10;
const ROUNDS: u64 = 20;
/// Numbers of rounds in the loop under fio and in the loop under ext4.
const FIO_ROUNDS: u32 = 20;
const EXT4_ROUNDS: u64 = 30;

/// Counters of events in the rounds, which show that the crashes had an effect.
#[derive(Debug, Default)]
struct Met {
    settled: Settled,
    under_way: u64,
    frozen: u64,
    repeated: u64,
}

/// Makes one or both disks slow in half of the calls.
fn disturb(stand: &Stand, random: &mut Random) {
    let disk = random.pick(&stand.disks);
    match random.below(6) {
        0 => disk.delay(1 + random.below(3)),
        1 => disk.limit(1000 + random.below(4000)),
        2 => stand.disks.iter().for_each(|d| d.delay(1)),
        _ => {}
    }
}

/// Runs a load up to the moment of the crash. The error describes the durability guarantee that the
/// server has violated.
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
        // A flush would wait for the frozen side. All requests are therefore finished before the
        // freeze, and only plain writes are sent after it. These writes fit into the exposure bound
        // (the maximum of acknowledged bytes that one side lacks). Both sides must be in sync,
        // because the side that is not frozen has to accept these writes.
        stand.await_complete();
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

/// Serves the volume again and checks all of its content.
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
        // No write was made after the first check, so every block must still hold the content that
        // the first check found.
        let again = recovered(stand, model)?;
        assert_eq!(again, Settled::default());
        met.repeated += 1;
    }
    Ok(())
}

/// Bound of the exposure (acknowledged bytes that are not on both sides yet). It has room for the
/// writes that are made while a side is frozen.
const EXPOSURE: &str = "exposure = { bytes = \"4MiB\", age = \"1h\" }";

/// Returns a served volume and the model of its content.
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

/// Content that is only in the cache's memory can be lost when the program is killed; flushed
/// content must survive.
#[test]
fn what_was_flushed_through_a_cache_survives_every_crash() {
    crash_again_and_again(3, || modelled(Stand::cached("cached", EXPOSURE)));
}

#[test]
fn what_was_flushed_to_logged_sides_survives_every_crash() {
    crash_again_and_again(3, || modelled(Stand::logged("kill-logged", EXPOSURE)));
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
        // After all rounds the volume is stopped cleanly and served again. Its content must be
        // unchanged.
        stand.stop();
        stand.serve_with(&[]);
        let (mut wire, _) = stand.attach();
        let settled = settle(&mut wire, &mut model).expect("nothing changed");
        assert_eq!(settled, Settled::default());
        stand.stop();
    }
    println!("{met:?}");
    // Prove that the crashes had an effect: there were writes in flight, writes that survived, and
    // writes that were lost.
    assert!(met.settled.newest > 0 && met.settled.older > 0 && met.under_way > 0);
    assert!(met.frozen > 0 && met.repeated > 0);
}

/// A disk that loses its power lacks some completed writes when it comes back. The server keeps
/// running, and must not return the old content of such a disk, neither immediately nor after a
/// crash.
#[test]
fn a_disk_may_lose_its_power_under_a_running_server() {
    let (mut stand, mut model) = volume("cycle");
    for side in [0, 1, 0, 1] {
        stand.await_complete();
        let (mut wire, _) = stand.attach();
        let stamp = model.stamp();
        model.sent(0..64, stamp);
        wire.write(0, &content(0..64, stamp));
        model.acknowledged(0..64, false);
        eventually(60, "both disks have it", || {
            (stand.volume().statistic("exposed_bytes") == 0.0).then_some(())
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

/// Runs one round under fio. The error is the message of fio's verification or of the server.
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

/// Runs one round of the ext4 test. It begins with the file system mounted, and returns the file
/// system after it has been mounted again. The error is the message of the server, the mount, the
/// check of the files, or e2fsck.
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

/// Returns a volume with a mounted file system on it.
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

/// Runs `round` up to `rounds` times until it returns an error, and returns the error; panics if no
/// round returns one.
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
        // The loss shows as impossible content, as a block that cannot be read, or as a volume that
        // the server refuses.
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
    // When fio verifies its data, it reports the lost data as an error, unless the server has
    // detected the loss and refused the volume.
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
    // The loss shows in one of three ways: a file differs from its synced version, the file system
    // is damaged, or the server detects the loss and refuses the volume.
    let known = ["file ", "mount", "e2fsck", REFUSED]
        .iter()
        .any(|w| words.contains(w));
    assert!(known, "{words}");
}
