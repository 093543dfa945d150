//! Tests of events outside the server: the server is stopped and continued, receives signals, has
//! resource limits, and loses its disks. The server must report each event in a line that names the
//! event and says what to do.

use bimetal_tests::cgroup::MemoryGroup;
use bimetal_tests::client::Client;
use bimetal_tests::deadline::{Deadline, eventually};
use bimetal_tests::nbd::{Request, Wire, cmd};
use bimetal_tests::procfs;
use bimetal_tests::server::{Server, binary, send_signal};
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume, assert_refused, mirror_toml};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Clients that write continuously, each to a separate part of the volume.
struct Load {
    enough: Arc<AtomicBool>,
    writers: Vec<JoinHandle<u64>>,
}

impl Load {
    fn start(socket: PathBuf, clients: u64) -> Load {
        let enough = Arc::new(AtomicBool::new(false));
        let write = |client: u64| {
            let (socket, enough) = (socket.clone(), Arc::clone(&enough));
            std::thread::spawn(move || {
                let (mut wire, _) = Wire::attached(&socket, "vol");
                let mut count = 0;
                while !enough.load(Ordering::Relaxed) {
                    let block = count * 89 % 1024;
                    wire.write(client * 4 * MIB + block * 4096, &[client as u8; 4096]);
                    count += 1;
                }
                count
            })
        };
        let writers = (0..clients).map(write).collect();
        Load { enough, writers }
    }

    /// Ends the load; returns the number of acknowledged writes.
    fn end(self) -> u64 {
        self.enough.store(true, Ordering::Relaxed);
        let joined = self.writers.into_iter().map(JoinHandle::join);
        joined
            .map(|count| count.expect("every write was acknowledged"))
            .sum()
    }
}

/// Returns a command that runs its arguments with a resource limit, as `ulimit` of a shell sets it.
fn limited(limit: &str) -> Vec<String> {
    let script = format!("ulimit {limit} && exec \"$@\"");
    ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
}

/// Waits until the server's messages contain all of `words`, and returns the messages.
fn says(server: &Server, words: &[&str]) -> String {
    eventually(30, &format!("the server says {words:?}"), || {
        let said = server.said();
        words.iter().all(|word| said.contains(word)).then_some(said)
    })
}

/// Stops a process by SIGSTOP and continues it after `seconds`, as pausing the machine would.
fn stand_still(pid: u32, seconds: u64) {
    send_signal(pid, "STOP");
    let end = Deadline::in_s(seconds);
    eventually(seconds + 30, "it has stood still", || {
        end.passed().then_some(())
    });
    send_signal(pid, "CONT");
}

/// A server must not treat time during which it was stopped as time in which a side did not answer.
/// The server is stopped three times under load, each time for longer than `absent_after`. A side
/// that does not answer for `absent_after` becomes absent.
#[test]
fn a_server_that_was_stopped_blames_no_side() {
    let text = mirror_toml().replace(
        "sides = [\"a\", \"b\"]\n",
        "sides = [\"a\", \"b\"]\nabsent_after = \"1s\"\non_degraded = \"stop\"\n",
    );
    let volume = Volume::from_toml("stopped", &text);
    for side in ["a.img", "b.img"] {
        volume.dir().sparse(side, 128 * MIB);
    }
    volume.verb("format").ok();
    let server = volume.serve();
    let load = Load::start(volume.socket(), 8);
    for _ in 0..3 {
        let goal = volume.status()["exports"]["vol"]["statistics"]["writes"].as_u64();
        let goal = goal.expect("a count") + 200;
        eventually(60, "the volume takes writes", || {
            let writes = volume.status()["exports"]["vol"]["statistics"]["writes"].as_u64();
            writes.is_some_and(|writes| writes > goal).then_some(())
        });
        stand_still(server.pid(), 3);
    }
    assert_eq!(volume.status()["health"], "healthy");
    assert!(load.end() > 600);
    let said = server.said();
    assert!(!said.contains("absent"), "{said}");
    assert_eq!(volume.status()["health"], "healthy");
    server.stop();
}

/// A server survives the hangup of its terminal, and reports it.
#[test]
fn a_hangup_is_told_and_the_server_goes_on() {
    let volume = Volume::memory("hangup", 4 * MIB);
    let server = volume.serve();
    for signal in ["HUP", "PIPE", "XFSZ"] {
        send_signal(server.pid(), signal);
    }
    says(&server, &["SIGHUP", "goes on"]);
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    wire.write(0, &[7; 4096]);
    assert_eq!(wire.read(0, 4096), [7; 4096]);
    drop(wire);
    server.stop();
}

/// With a `ulimit -f` below the size of a side's file, the server refuses to start and names the
/// necessary size. With a limit that no file exceeds, the server runs.
#[test]
fn a_limit_of_file_sizes_is_named() {
    let volume = Volume::mirror("fsize", 64 * MIB);
    for verb in ["serve", "format"] {
        let words = limited("-f 1000");
        let run = Client::new(&words[0]).args(&words[1..]);
        let outcome = run
            .arg(binary())
            .arg(verb)
            .arg(volume.config())
            .within_s(30)
            .run();
        assert_refused(
            &outcome,
            &["RLIMIT_FSIZE", "`ulimit -f`", "65536 KiB are needed"],
        );
    }
    let server = Server::start_under(&limited("-f 200000"), volume.config());
    server.stop();
}

/// The limit of file sizes is lowered under the running server. A write beyond the limit must fail
/// as a write to a full disk does, with a message that names the path and the limit.
#[test]
fn a_write_beyond_the_limit_of_file_sizes_is_an_error_and_not_the_end() {
    let text = format!("[device.vol]\ntype = \"file\"\npath = \"vol.img\"\n{EXPORT_VOL}");
    let volume = Volume::from_toml("efbig", &text);
    volume.dir().sparse("vol.img", 8 * MIB);
    let server = volume.serve();
    let limit = Client::new("prlimit").args(["--fsize=1048576", "--pid"]);
    limit.arg(server.pid().to_string()).ok();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    wire.write(0, &[1; 4096]);
    // Error number 28 of the NBD protocol is ENOSPC.
    let beyond = Request::new(cmd::WRITE, 4 * MIB, 4096);
    assert_eq!(wire.run(beyond, &[1; 4096]).expect("a reply"), 28);
    says(
        &server,
        &[
            "vol.img",
            "EFBIG",
            "RLIMIT_FSIZE, is 1024 KiB",
            "`ulimit -f`",
        ],
    );
    drop(wire);
    server.stop();
}

/// With a low limit of file descriptors, a server starts, reports the number of descriptors that it
/// might need, and reports each rejected client.
#[test]
fn a_limit_of_open_files_is_named_with_what_is_needed() {
    let volume = Volume::mirror("nofile", 64 * MIB);
    let server = Server::start_under(&limited("-n 40"), volume.config());
    let said = says(&server, &["RLIMIT_NOFILE, is 40", "`ulimit -n`"]);
    assert!(said.contains("may be needed"), "{said}");
    let connect = |_| std::os::unix::net::UnixStream::connect(volume.socket());
    let clients: Vec<_> = (0..40).map(connect).collect();
    says(&server, &["a client was refused", "RLIMIT_NOFILE, is 40"]);
    drop(clients);
    server.stop();
}

/// In a memory cgroup whose limit is below the default memory of a server, the server uses less
/// memory and reports this. The kernel must not kill it before it is ready.
#[test]
fn memory_is_fitted_to_the_cgroup() {
    let group = MemoryGroup::new("fit", 128 * MIB);
    let volume = Volume::mirror("fit", 64 * MIB);
    let server = Server::start_under(&group.wrapper(), volume.config());
    let said = says(&server, &["memory cgroup", "allows 128 MiB", "memory.max"]);
    assert!(said.contains("instead of 128 MiB"), "{said}");
    let load = Load::start(volume.socket(), 4);
    let end = Deadline::in_s(2);
    eventually(30, "writes for a while", || end.passed().then_some(()));
    assert!(load.end() > 0);
    assert!(procfs::resident_bytes(server.pid()) < 128 * MIB);
    server.stop();
}

/// A size-limited tmpfs on a folder, which is unmounted when the value is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn on(folder: PathBuf, size: &str) -> SmallDisk {
        std::fs::create_dir_all(&folder).expect("a folder");
        let mount = Client::new("mount").args(["-t", "tmpfs", "-o", size, "none"]);
        mount.arg(&folder).ok();
        SmallDisk(folder)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let outcome = Client::new("umount").arg("-l").arg(&self.0).run();
        if outcome.status != Some(0) {
            eprintln!("while cleaning up: {outcome}");
        }
    }
}

/// A side whose disk is full becomes absent. The message contains the error in words, the file, and
/// what to do. Once the disk has room again, the side is brought back in sync.
#[test]
fn a_full_disk_is_named_and_comes_back_with_room() {
    let text = mirror_toml().replace("b.img", "small/b.img");
    let volume = Volume::from_toml("full", &text);
    let disk = SmallDisk::on(volume.dir().file("small"), "size=24m");
    for side in ["a.img", "small/b.img"] {
        volume.dir().sparse(side, 128 * MIB);
    }
    volume.verb("format").ok();
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for mib in 0..48 {
        wire.write(mib * MIB, &vec![mib as u8 + 1; MIB as usize]);
    }
    wire.flush();
    let said = says(&server, &["side b: is absent", "ENOSPC", "small/b.img"]);
    let line = said.lines().find(|line| line.contains("is absent"));
    let line = line.expect("it was just there");
    assert!(
        line.contains("no space left") && line.contains("free space"),
        "{said}"
    );
    assert!(said.contains("No space left on device"), "{said}");
    let grow = Client::new("mount").args(["-o", "remount,size=200m"]);
    grow.arg(&disk.0).ok();
    eventually(60, "the side is whole again", || {
        (volume.health("b") == "healthy").then_some(())
    });
    says(&server, &["side b: is complete again"]);
    drop(wire);
    server.stop();
}

/// If another process has locked the file of a side, the server refuses to start and names that
/// process.
#[test]
fn a_locked_side_is_named_with_who_has_it() {
    let volume = Volume::mirror("locked", 64 * MIB);
    let server = volume.serve();
    let text = mirror_toml().replace("vol.sock", "other.sock");
    let other = volume.dir().text("other.toml", &text);
    let outcome = Client::new(binary())
        .arg("serve")
        .arg(&other)
        .within_s(30)
        .run();
    let holder = format!("in use by process {} (bimetal)", server.pid());
    assert_refused(&outcome, &["no side can be used", &holder]);
    server.stop();
}

/// A side behind another server. The test can replace the file that the other server serves.
struct FarSide {
    volume: Volume,
    server: Option<Server>,
}

impl FarSide {
    /// Creates a file device and serves it by `protocol`.
    fn new(name: &str, protocol: &str) -> FarSide {
        let device = "[device.vol]\ntype = \"file\"\npath = \"b.img\"\n";
        let export = EXPORT_VOL.replace("\"nbd\"", &format!("{protocol:?}"));
        let volume = Volume::from_toml(name, &(device.to_owned() + &export));
        volume.dir().sparse("b.img", 64 * MIB);
        let server = Some(volume.serve());
        FarSide { volume, server }
    }

    /// Kills the side's server, applies `change` to the served file, and serves the file again.
    fn comes_back(&mut self, change: impl FnOnce(PathBuf)) {
        self.server.take().expect("it runs").kill();
        change(self.volume.dir().file("b.img"));
        self.server = Some(self.volume.serve());
    }
}

/// A side behind another server comes back smaller, then with its original size, then larger; this
/// is tested with both protocols. The mirror's server reports a side that is too small and leaves
/// it absent. Once the file has its original size, the side is used again without a restart of the
/// mirror's server.
#[test]
fn a_far_side_that_comes_back_as_another_one_is_told_and_taken_when_it_is_right() {
    for (device, protocol) in [("remote", "nbd"), ("brp", "brp")] {
        let mut far = FarSide::new(&format!("far-{protocol}"), protocol);
        let side = format!(
            "[device.b]\ntype = {device:?}\naddress = \"unix:{}\"\nexport = \"vol\"\nreconnect = \"500ms\"\n\n",
            far.volume.socket().display()
        );
        let text = mirror_toml()
            .replace("[device.b]\ntype = \"file\"\npath = \"b.img\"\n\n", &side)
            .replace(
                "sides = [\"a\", \"b\"]\n",
                "sides = [\"a\", \"b\"]\nabsent_after = \"1s\"\n",
            );
        let volume = Volume::from_toml(&format!("near-{protocol}"), &text);
        volume.dir().sparse("a.img", 64 * MIB);
        volume.verb("format").ok();
        let server = volume.serve();
        let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
        wire.write(0, &[1; 4096]);
        wire.flush();

        far.comes_back(|file| {
            std::fs::rename(&file, file.with_extension("right")).expect("a file that is set aside");
            let other = std::fs::File::create(&file).expect("another file");
            other.set_len(32 * MIB).expect("a smaller one");
        });
        wire.write(4096, &[2; 4096]);
        wire.flush();
        says(
            &server,
            &["has shrunk from 67108864 bytes to 33554432", "undo that"],
        );
        eventually(60, "the volume does without the side", || {
            (volume.health("b") == "absent").then_some(())
        });
        assert_eq!(volume.status()["health"], "degraded");
        wire.write(8192, &[3; 4096]);
        wire.flush();

        far.comes_back(|file| {
            std::fs::rename(file.with_extension("right"), &file).expect("the file as it was");
        });
        eventually(60, "the side is whole again", || {
            (volume.health("b") == "healthy").then_some(())
        });
        says(&server, &["connected again", "side b: is complete again"]);

        far.comes_back(|file| {
            let file = std::fs::File::options().write(true).open(file);
            let file = file.expect("the file");
            file.set_len(128 * MIB).expect("a larger one");
        });
        wire.write(12288, &[4; 4096]);
        wire.flush();
        says(&server, &["has grown from 6"]);
        eventually(60, "the volume is whole", || {
            (volume.status()["health"] == "healthy").then_some(())
        });
        for (block, byte) in (0..).zip([1, 2, 3, 4]) {
            assert_eq!(wire.read(block * 4096, 4096), [byte; 4096], "block {block}");
        }
        drop(wire);
        server.stop();
        far.server.take().expect("it runs").stop();
    }
}

/// A volume that is larger than its sides is written to until it has no more room. The client is
/// told, and so is the operator. After a discard there is room, also after a restart.
#[test]
fn a_volume_that_is_larger_than_its_sides_says_when_it_is_full() {
    let text = mirror_toml().replace("sides =", "size = \"1GiB\"\nsides =");
    let volume = Volume::from_toml("room", &text);
    for side in ["a.img", "b.img"] {
        volume.dir().sparse(side, 64 * MIB);
    }
    let made = volume.verb("format").ok();
    let said = made.stdout;
    assert!(said.contains("of it may have content at a time"), "{said}");
    let server = volume.serve();
    let (mut wire, export) = Wire::attached(&volume.socket(), "vol");
    assert_eq!(export.size_bytes, 1 << 30);
    let write = |wire: &mut Wire, mib: u64| {
        let request = Request::new(cmd::WRITE, mib * MIB, MIB as u32);
        wire.run(request, &vec![mib as u8 + 1; MIB as usize])
            .expect("a reply")
    };
    let full = (0..64).find(|&mib| write(&mut wire, mib) != 0);
    let full = full.expect("64 MiB do not fit");
    assert!(full > 30, "{full}");
    // Error number 28 of the NBD protocol is ENOSPC.
    assert_eq!(write(&mut wire, full), 28);
    assert_eq!(write(&mut wire, 3), 0, "it has content");
    says(&server, &["no room is left for content", "ENOSPC"]);
    let events = volume.verb("events").ok().stdout;
    assert!(events.contains("the room for content is used"), "{events}");
    let shown = volume.verb("status").run();
    assert!(shown.stdout.starts_with("no room  vol:"), "{shown}");
    let discard = Request::new(cmd::TRIM, 10 * MIB, 2 * MIB as u32);
    assert_eq!(wire.run(discard, &[]).expect("a reply"), 0);
    assert_eq!(write(&mut wire, 1000), 0);
    drop(wire);
    server.stop();
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    assert_eq!(write(&mut wire, 1001), 0);
    assert_eq!(write(&mut wire, 1002), 28);
    assert_eq!(wire.read(MIB, 4096), vec![2; 4096]);
    assert_eq!(wire.read(10 * MIB, 4096), vec![0; 4096]);
    assert_eq!(
        wire.read(1001 * MIB, 4096),
        vec![(1001 % 256 + 1) as u8; 4096]
    );
    drop(wire);
    server.stop();
}
