//! A server that serves the machine on which it runs must not need memory to free memory.
//!
//! The server and the writer share one memory cgroup, and the writer dirties several times the
//! limit of the group. Every page that is written out to make room goes through the server. If the
//! server waits for memory of its own at that moment, the server and the writer are deadlocked. So
//! the test passes if the writer ends. Needs root, FUSE, loop devices and a memory controller.
//!
//! nbdfuse stays outside of the group, because it does not use PR_SET_IO_FLUSHER. Inside a group of
//! version 1 it deadlocks by itself with any server: its thread waits in `folio_wait_writeback` for
//! a page that only this thread can write. That deadlock also proves that the memory pressure of
//! this test would find a server that omits PR_SET_IO_FLUSHER.

use bimetal_tests::cgroup::MemoryGroup;
use bimetal_tests::checks;
use bimetal_tests::client::Client;
use bimetal_tests::mount::{Fuse, Loop, Mount, assert_fsck_clean};
use bimetal_tests::procfs;
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::{Server, uri};
use bimetal_tests::volume::{MIB, Volume, mirror_toml};
use std::path::Path;

/// Memory limit, in bytes, of the control group that the server and the writer share; the writer
/// dirties `WRITTEN_BYTES` in the group. Under such a limit the server locks all memory that it
/// will ever need at its start (about 150 MiB). The memory of both must fit into the limit
/// together.
const LIMIT_BYTES: u64 = 256 * MIB;
const WRITTEN_BYTES: u64 = 4 * LIMIT_BYTES;

/// Time limit for the writer in seconds, far more than the writer needs on a slow disk (4 MiB/s).
const PATIENCE_S: u64 = 180;

/// Runs the writer in the group: writes files on `mount` and syncs them, removes the first half of
/// them, and writes again. So both allocation and freeing go through the file system's journal.
fn dirty(group: &MemoryGroup, mount: &Path, connection: u32) {
    let each_mib = 16;
    let count = WRITTEN_BYTES / MIB / each_mib / 2;
    let script = format!(
        "set -e; cd \"$0\"; \
         fill() {{ for i in $(seq 1 {count}); do \
             dd if=/dev/urandom of=$1$i bs=1M count={each_mib} status=none; done; }}; \
         fill a; rm -f a?; sync -f .; fill b; sync -f ."
    );
    let wrapper = group.wrapper();
    let run = Client::new(&wrapper[0])
        .args(&wrapper[1..])
        .args(["sh", "-c", &script])
        .arg(mount);
    let outcome = run.within_s(PATIENCE_S).run();
    if outcome.status != Some(0) {
        let stuck: String = group
            .processes()
            .into_iter()
            .map(procfs::where_it_waits)
            .collect();
        // Lift the limit, so that processes that wait for memory continue. Abort the mount, so that
        // the writes that never complete fail. Otherwise the cleanup would hang as well.
        group.lift();
        Fuse::abort(connection);
        panic!("the writer did not finish: {outcome}\n--- in the group\n{stuck}");
    }
}

/// Makes a file system on the export, mounts it, and runs the writer on it inside the group.
fn press(group: &MemoryGroup, dir: &Scratch, uri: &str) {
    let fuse = Fuse::mount(dir, uri);
    let disk = Loop::attach(&fuse.file());
    Client::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(disk.device())
        .ok();
    let mount = Mount::at(&dir.file("mnt"), disk.device(), "discard");
    dirty(group, mount.path(), fuse.connection());
    mount.unmount();
    assert_fsck_clean(disk.device());
    disk.detach();
    fuse.unmount();
    assert!(
        group.times_at_limit() > 0,
        "the group was never at its limit: nothing was tested"
    );
}

/// The test passes only with a server that the kernel treats as part of the I/O path (the process
/// flag `PR_SET_IO_FLUSHER`). Without this flag, an allocation of a socket buffer by the server (in
/// `sock_alloc_send_pskb`) can wait for a page that only the server can write. Without the flag,
/// the deadlock occurs about once in several dozen runs. The server warns if it cannot set the
/// flag.
#[test]
fn a_dirty_file_system_above_the_server_does_not_deadlock() {
    let volume = Volume::mirror("pressure", 1280 * MIB);
    let group = MemoryGroup::new("pressure", LIMIT_BYTES);
    let server = Server::start_under(&group.wrapper(), volume.config());
    if server.said().contains("PR_SET_IO_FLUSHER") {
        println!("not tested: the kernel refuses PR_SET_IO_FLUSHER (no CAP_SYS_RESOURCE)");
        server.stop();
        return;
    }
    press(&group, volume.dir(), &volume.uri());
    server.stop();
}

/// Maximum number of page faults while the server writes 512 MiB, which are 131,072 pages.
///
/// All memory that the server needs is mapped and locked before it prints `ready`, and buffers
/// beyond that by a thread of their own, so no fault of the serving thread is expected. However,
/// the kernel sometimes moves a locked page when it compacts memory, and the next access to that
/// page is then a page fault. The bound allows for a few such pages. One new page for each MiB
/// written would exceed the bound eightfold.
const NEW_PAGES_MAX: u64 = 64;

/// Writes must not need more memory than the server has at `ready`, or has got since by its thread
/// for memory, for which no request waits. This is tested with small requests and with large
/// requests, while one side lags and its delay queue is full. Every new page causes a page fault,
/// so counting the faults of the serving thread finds each allocation that the heap could not
/// serve.
#[test]
fn writing_needs_no_memory_after_start() {
    let text = mirror_toml().replace("\"b\"]", "\"late\"]")
        + "[device.late]\ntype = \"delay\"\nbelow = \"b\"\nwrite = \"10ms\"\n";
    let volume = Volume::from_toml("resident", &text);
    for image in ["a.img", "b.img"] {
        volume.dir().sparse(image, 1280 * MIB);
    }
    volume.verb("format").ok();
    let server = volume.serve();
    let before = (
        procfs::minor_faults(server.pid()),
        procfs::locked_bytes(server.pid()),
    );
    assert!(
        before.1 > 128 * MIB,
        "the server has not locked its buffers: {}",
        server.said()
    );
    checks::fio_write(&volume.uri(), "4k-64k", 64 * MIB);
    checks::fio_write(&volume.uri(), "1m-1m", 64 * MIB);
    let after = (
        procfs::minor_faults(server.pid()),
        procfs::locked_bytes(server.pid()),
    );
    assert!(
        after.0 - before.0 <= NEW_PAGES_MAX && after.1 == before.1,
        "(faults, locked bytes) before {before:?}, after {after:?}"
    );
    assert!(
        volume.statistic("exposed_bytes_peak") > MIB as f64,
        "the late side was never late"
    );
    server.stop();
}

/// Runs the load of this file's first test in the memory group, but over nbdkit, which is outside
/// of the group. This shows that the deadlock which the first test looks for is not an effect of
/// the machine itself.
#[test]
fn the_pressure_is_real_and_a_server_outside_the_group_stands_it() {
    let dir = Scratch::new("pressure-peer");
    let image = dir.sparse("disk.img", 1024 * MIB);
    let (socket, pidfile) = (dir.file("s"), dir.file("server.pid"));
    let run = Client::new("nbdkit")
        .arg("-U")
        .arg(&socket)
        .arg("-P")
        .arg(&pidfile);
    run.arg("file").arg(&image).ok();
    let group = MemoryGroup::new("pressure-peer", LIMIT_BYTES);
    press(&group, &dir, &uri(&socket, ""));
    let pid = std::fs::read_to_string(&pidfile).expect("nbdkit's pid file");
    bimetal_tests::server::send_signal(pid.trim().parse().expect("a pid"), "TERM");
}
