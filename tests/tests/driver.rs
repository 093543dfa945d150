//! Environments without io_uring, such as containers: the server must run with another driver and
//! report the reason.

use bimetal_tests::checks;
use bimetal_tests::server::{REFUSED, Server};
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume};

const ALL_CALLS: &str = "io_uring_setup,io_uring_enter,io_uring_register";

/// Returns a command that runs its arguments under a seccomp filter. The filter makes the system
/// calls `calls` fail with `error`.
fn denying(error: &str, calls: &str) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/deny-calls.py");
    ["python3", script, error, calls]
        .map(str::to_owned)
        .to_vec()
}

fn memory_volume(name: &str, server: &str) -> Volume {
    let device = "[device.vol]\ntype = \"memory\"\nsize = \"16MiB\"\n";
    let server = format!("[server]\nlock_memory = false\n{server}");
    Volume::from_toml(name, &format!("{device}{EXPORT_VOL}{server}"))
}

/// Asserts that the server reports in exactly one line that it runs without io_uring, and that this
/// line contains each of `words`.
fn assert_says_why(server: &Server, words: &[&str]) {
    let said = server.said();
    let is_why = |line: &&str| line.contains("io_uring cannot be used");
    let why: Vec<&str> = said.lines().filter(is_why).collect();
    assert_eq!(why.len(), 1, "{said}");
    for word in words {
        assert!(why[0].contains(word), "no {word} in {said}");
    }
}

#[test]
fn under_a_containers_filter_a_mirror_on_files_is_served() {
    let volume = Volume::mirror("driver-filter", 64 * MIB);
    let wrapper = denying("EPERM", ALL_CALLS);
    let server = Server::start_under(&wrapper, volume.config());
    assert_says_why(&server, &["seccomp", "\"threads\"", "ublk"]);
    let status = volume.status();
    assert_eq!(status["driver"]["name"], "threads", "{status:#}");
    let refused = status["driver"]["refused"].as_str().expect("a reason");
    assert!(refused.contains("seccomp"), "{refused}");
    checks::qemu_io_commands(&volume.uri());
    let verified = checks::fio_verify(&volume.uri(), 8 * MIB);
    assert_eq!(verified.status, Some(0), "{verified}\n{}", server.said());
    checks::qemu_io(&volume.uri(), &["write -P 0x5a 0 1M", "flush"]);
    server.stop();
    // The driver with io_uring reads the data that the driver without it has written.
    let server = volume.serve();
    assert_eq!(volume.status()["driver"]["name"], "uring");
    checks::qemu_io(&volume.uri(), &["read -P 0x5a 0 1M"]);
    server.stop();
}

/// Tests each error with which the kernel can deny an io_uring call, one call at a time. A ring
/// that can be set up but not used must be treated as unavailable.
#[test]
fn every_way_to_have_no_ring_is_recognised() {
    for (error, calls, word) in [
        ("EPERM", "io_uring_setup", "seccomp"),
        ("EACCES", "io_uring_setup", "seccomp"),
        ("ENOSYS", "io_uring_setup", "seccomp"),
        ("EPERM", "io_uring_enter", "seccomp"),
        ("EPERM", "io_uring_register", "seccomp"),
        ("ENOMEM", "io_uring_setup", "RLIMIT_MEMLOCK"),
    ] {
        let volume = memory_volume("driver-ways", "");
        let mut wrapper = vec!["prlimit".to_owned(), "--memlock=262144".to_owned()];
        wrapper.extend(denying(error, calls));
        let server = Server::start_under(&wrapper, volume.config());
        assert_says_why(&server, &[word]);
        checks::qemu_io(&volume.uri(), &["write -P 7 0 1M", "read -P 7 0 1M"]);
        server.stop();
    }
}

#[test]
fn a_driver_that_is_asked_for_is_had_or_refused() {
    let volume = memory_volume("driver-uring", "driver = \"uring\"\n");
    let wrapper = denying("EPERM", ALL_CALLS);
    let refusal = Server::try_start_under(&wrapper, volume.config()).expect_err("a refusal");
    assert!(refusal.starts_with(REFUSED), "{refusal}");
    assert!(refusal.contains("io_uring") && refusal.contains("seccomp"));

    let volume = memory_volume("driver-threads", "driver = \"threads\"\n");
    let server = volume.serve();
    let status = volume.status();
    assert_eq!(status["driver"]["name"], "threads", "{status:#}");
    assert!(status["driver"]["refused"].is_null(), "{status:#}");
    assert!(!server.said().contains("io_uring"), "{}", server.said());
    checks::qemu_io(&volume.uri(), &["write -P 7 0 1M", "read -P 7 0 1M"]);
    server.stop();
}

/// Returns a command that runs its arguments without the right to lock more than `bytes` of memory.
fn locking_at_most(bytes: u64) -> Vec<String> {
    let limit = format!("--memlock={bytes}");
    let words = ["prlimit", &limit, "setpriv", "--bounding-set=-ipc_lock"];
    words.map(str::to_owned).to_vec()
}

/// If the kernel does not let a ring lock memory, the server names the limit of locked memory. This
/// holds for a limit that is too small for the ring itself, and for one that suffices for the ring
/// but not for its buffers.
#[test]
fn a_limit_of_locked_memory_is_named() {
    let volume = memory_volume("driver-limit", "driver = \"uring\"\n");
    let small = locking_at_most(64 << 10);
    let refusal = Server::try_start_under(&small, volume.config()).expect_err("a refusal");
    let named = refusal.contains("RLIMIT_MEMLOCK, is 64 KiB") && refusal.contains("ulimit -l");
    assert!(named, "{refusal}");

    let server = Server::start_under(&locking_at_most(4 * MIB), volume.config());
    let said = server.said();
    assert!(said.contains("RLIMIT_MEMLOCK, is 4096 KiB"), "{said}");
    let driver = &volume.status()["driver"];
    assert_eq!(driver["name"], "uring", "{driver}");
    assert!(driver["unregistered"].is_string(), "{driver}");
    checks::qemu_io(&volume.uri(), &["write -P 7 0 1M", "read -P 7 0 1M"]);
    server.stop();

    let volume = memory_volume("driver-limit-auto", "");
    let server = Server::start_under(&small, volume.config());
    assert_says_why(&server, &["RLIMIT_MEMLOCK, is 64 KiB"]);
    server.stop();
}
