//! The memory that a server takes: little while nobody uses its volumes, more while they are used,
//! and never more than its configuration allows.

use bimetal_tests::checks;
use bimetal_tests::client::Client;
use bimetal_tests::deadline::eventually;
use bimetal_tests::procfs;
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::{Server, binary, uri};
use bimetal_tests::volume::MIB;

/// What an idle volume of 1 GiB may hold in memory with the defaults: 64 MB with the program, of
/// which the optimised program and its libraries are 17 MB. The program that is tested here is not
/// optimised, and larger, so only the rest is compared, which does not depend on that.
const IDLE_BYTES_MAX: u64 = 64_000_000 - 17_000_000;
/// What the same server may hold under any load: 64 MiB of buffers for requests, 64 MiB for the
/// exposure and what the layers do, 24 MiB of heap, and 32 MiB for the program, which is larger
/// without optimisation.
const LOADED_BYTES_MAX: u64 = (64 + 64 + 24 + 32) * MIB;

#[test]
fn an_idle_volume_holds_little_and_a_loaded_one_no_more_than_its_bound() {
    let dir = Scratch::new("idle-memory");
    let run = |args: &[&str]| {
        let client = Client::new(binary()).args(args).in_dir(dir.path());
        client.within_s(60).ok();
    };
    run(&["init", "vol.toml", "fast.img", "slow.img", "--size", "1GiB"]);
    run(&["format", "vol.toml"]);
    let server = Server::start(&dir.file("vol.toml"));
    let idle = procfs::resident_bytes(server.pid());
    let anonymous = procfs::anonymous_bytes(server.pid());
    println!("idle: {idle} bytes, {anonymous} of them outside of the program");
    assert!(anonymous <= IDLE_BYTES_MAX, "{anonymous} bytes are held");
    // Four connections with 32 requests of 1 MiB each take all memory for requests.
    checks::fio_write(&uri(&dir.file("vol.sock"), "vol"), "1m-1m", 128 * MIB);
    let used = procfs::resident_bytes(server.pid());
    println!("after a load: {used} bytes");
    assert!(
        idle + 32 * MIB < used && used < LOADED_BYTES_MAX,
        "{idle} bytes were resident when idle, and {used} under load"
    );
    // The buffers leave when nobody has used them for 30 to 60 s.
    eventually(120, "the buffers to leave", || {
        (procfs::resident_bytes(server.pid()) < used - 32 * MIB).then_some(())
    });
    server.stop();
}
