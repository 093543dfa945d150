//! `bimetal mount`: a volume as a file through FUSE, as a block device through a loop device over
//! that file, and all ways in which a mount ends. Needs root, FUSE and loop devices.

use bimetal_tests::client::Client;
use bimetal_tests::deadline::eventually;
use bimetal_tests::mount::{Mount, assert_fsck_clean, source_tree, tree_checksums};
use bimetal_tests::mounted::{Mounted, behind, is_mounted, unmount, wait_until_gone};
use bimetal_tests::nbd::Wire;
use bimetal_tests::random::Random;
use bimetal_tests::server::{Server, binary};
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume, assert_refused};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Value of `O_DIRECT` on the architectures that this test supports.
const O_DIRECT: i32 = if cfg!(target_arch = "x86_64") {
    0o40_000
} else {
    0o200_000
};

/// Creates a volume over the sparse file `vol.img`, with the usual export.
fn file_volume(name: &str, size_bytes: u64) -> Volume {
    let device = "[device.vol]\ntype = \"file\"\npath = \"vol.img\"\n\n";
    let server = "[server]\nlock_memory = false\nstop_deadline = \"5s\"\n";
    let volume = Volume::from_toml(name, &format!("{device}{EXPORT_VOL}{server}"));
    volume.dir().sparse("vol.img", size_bytes);
    volume
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.draw() as u8).collect()
}

/// Data that were written to the file, at any offset, must be readable by a client of another
/// protocol.
#[test]
fn what_is_written_to_the_file_is_on_the_volume() {
    const SIZE: usize = 8 << 20;
    let volume = file_volume("mount-odd", SIZE as u64);
    let mut mounted = Mounted::new(&volume, &[]);
    assert_eq!(mounted.path, mounted.file());
    let facts = std::fs::metadata(mounted.file()).expect("the file");
    assert_eq!((facts.size(), facts.mode()), (SIZE as u64, 0o100_600));
    let names = std::fs::read_dir(&mounted.folder).expect("the folder");
    let names: Vec<_> = names
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["vol"]);

    let mut random = Random::new(7);
    let mut model = vec![0; SIZE];
    let (plain, direct) = (mounted.open(0), mounted.open(O_DIRECT));
    // The lengths include single bytes, parts of blocks, whole blocks, and more than the kernel
    // sends in one request.
    let lengths = [
        1,
        511,
        512,
        4095,
        4096,
        4097,
        70_000,
        1 << 20,
        (1 << 20) + 1,
        3 << 20,
    ];
    for round in 0..60 {
        let len = *random.pick(&lengths);
        let offset = random.below((SIZE - len) as u64 + 1) as usize;
        let data = bytes(&mut random, len);
        let file = if round % 2 == 0 { &plain } else { &direct };
        file.write_all_at(&data, offset as u64).expect("a write");
        model[offset..offset + len].copy_from_slice(&data);
        // The other file descriptor (direct or cached) must see the write immediately.
        let mut found = vec![0; len];
        let other = if round % 2 == 0 { &direct } else { &plain };
        other
            .read_exact_at(&mut found, offset as u64)
            .expect("a read");
        assert!(found == data, "{len} bytes at {offset}");
    }
    // Two writers concurrently write the two halves of each block. No write may be lost.
    std::thread::scope(|scope| {
        for half in 0..2 {
            let file = mounted.open(O_DIRECT);
            scope.spawn(move || {
                for block in 0..256_u64 {
                    let data = [half as u8 + 1; 2048];
                    file.write_all_at(&data, block * 4096 + half * 2048)
                        .expect("half a block");
                }
            });
        }
    });
    for block in model[..256 * 4096].chunks_mut(2048).enumerate() {
        block.1.fill(block.0 as u8 % 2 + 1);
    }
    // Beyond the end of the file a write fails, and a read returns no bytes.
    let beyond = plain
        .write_at(&[1; 4096], SIZE as u64 - 512)
        .expect_err("beyond the end");
    assert_eq!(beyond.raw_os_error(), Some(28), "ENOSPC: {beyond}");
    assert_eq!(
        plain
            .read_at(&mut [0; 512], SIZE as u64)
            .expect("at the end"),
        0
    );
    assert_eq!(
        plain
            .read_at(&mut [0; 512], SIZE as u64 - 100)
            .expect("at the end"),
        100
    );
    // A client must not be able to change the size of the file.
    assert!(plain.set_len(4096).is_err() && plain.set_len(2 * SIZE as u64).is_err());
    plain.sync_all().expect("a flush");
    let status = volume.status();
    let statistics = &status["attached"][mounted.file().to_str().expect("a path")]["statistics"];
    assert_eq!(statistics["flushes"], 1, "{statistics}");
    assert_eq!(statistics["requests_failed"], 0, "{statistics}");
    drop((plain, direct));

    mounted.unmount().ok();
    assert_eq!(
        mounted.server().ended(),
        Some(0),
        "unmounted, the server ends by itself"
    );
    let server = volume.serve();
    let (mut wire, export) = Wire::attached(&volume.socket(), "vol");
    assert_eq!(export.size_bytes, SIZE as u64);
    for (start, part) in (0..).step_by(1 << 20).zip(model.chunks(1 << 20)) {
        assert!(wire.read(start, 1 << 20) == part, "the MiB at {start}");
    }
    drop(wire);
    server.stop();
}

/// A punched hole reads as zeroes, and the volume also frees its space. A zeroed range that must
/// keep its space also reads as zeroes, but is not a hole.
#[test]
fn holes_are_punched_and_found() {
    let volume = file_volume("mount-holes", 16 * MIB);
    let mut mounted = Mounted::new(&volume, &[]);
    let file = mounted.open(0);
    file.write_all_at(&vec![7; 16 << 20], 0)
        .expect("a full volume");
    let allocate = |how: &str, offset: u64, len: u64| {
        let (offset, len) = (offset.to_string(), len.to_string());
        let run = Client::new("fallocate").args([how, "--keep-size", "-o", &offset, "-l", &len]);
        run.arg(mounted.file()).ok();
    };
    // The hole begins and ends in the middle of blocks.
    allocate("--punch-hole", 4 * MIB - 100, 4 * MIB + 200);
    allocate("--zero-range", 12 * MIB, MIB);
    let mut found = vec![1; 16 << 20];
    file.read_exact_at(&mut found, 0).expect("a read");
    let mut expected = vec![7; 16 << 20];
    expected[(4 << 20) - 100..(8 << 20) + 100].fill(0);
    expected[12 << 20..13 << 20].fill(0);
    assert!(found == expected, "zeroes where they were asked for");
    let seek = |what: &str, from: u64| {
        let script = "import os, sys; f = os.open(sys.argv[1], os.O_RDONLY); \
                      print(os.lseek(f, int(sys.argv[3]), getattr(os, sys.argv[2])))";
        let run = Client::new("python3")
            .args(["-c", script])
            .arg(mounted.file());
        let found = run.args([what, &from.to_string()]).ok().stdout;
        found.trim().parse::<u64>().expect("an offset")
    };
    // The hole starts and ends at block boundaries of the file system below the volume. The partial
    // blocks at both ends were only filled with zeroes.
    assert_eq!(seek("SEEK_HOLE", 0), 4 * MIB);
    assert_eq!(seek("SEEK_DATA", 4 * MIB), 8 * MIB);
    assert_eq!(seek("SEEK_DATA", 5000), 5000);
    let status = volume.status();
    let statistics = &status["attached"][mounted.file().to_str().expect("a path")]["statistics"];
    assert_eq!(
        (&statistics["discards"], &statistics["write_zeroes"]),
        (&1.into(), &1.into()),
        "{statistics}"
    );
    drop(file);
    mounted.server().stop();
    assert!(!is_mounted(&mounted.folder), "SIGTERM unmounts");
    // The hole had 4 MiB of the 16 MiB. The file system below the volume has freed this space.
    let image = std::fs::metadata(volume.dir().file("vol.img")).expect("the image");
    assert!(
        image.blocks() * 512 <= 13 * MIB,
        "{} blocks",
        image.blocks()
    );
}

#[test]
fn a_file_system_on_the_loop_device_is_there_again() {
    let volume = file_volume("mount-ext4", 512 * MIB);
    let mnt = volume.dir().file("mnt");
    let tree = source_tree(volume.dir());

    let mut mounted = Mounted::new(&volume, &["--loop"]);
    let device = mounted.path.clone();
    assert_eq!(behind(&device), mounted.file().to_str().map(str::to_owned));
    Client::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(&device)
        .ok();
    let mount = Mount::at(&mnt, &device, "discard");
    Client::new("cp")
        .arg("-a")
        .arg(&tree)
        .arg(mount.path())
        .within_s(300)
        .ok();
    Client::new("sync").arg("-f").arg(mount.path()).ok();
    let written = tree_checksums(mount.path());

    // While the ext4 on the loop device is mounted, unmounting the volume must be refused, and the
    // ext4 must keep working.
    let refused = mounted.unmount().run();
    let place = mnt.to_str().expect("a path in UTF-8");
    assert_refused(&refused, &["in use", "mounted on", place, "umount"]);
    assert_eq!(tree_checksums(mount.path()), written);
    mount.unmount();
    mounted.unmount().ok();
    assert_eq!(mounted.server().ended(), Some(0));
    wait_until_gone(&device);

    // The volume is mounted by a new server on a new loop device, whose sectors have 4096 bytes,
    // the block size of a volume.
    let mut mounted = Mounted::new(&volume, &["--loop", "--block-size", "4096"]);
    let device = mounted.path.clone();
    let sector = Client::new("blockdev")
        .arg("--getss")
        .arg(&device)
        .ok()
        .stdout;
    assert_eq!(sector.trim(), "4096");
    assert_fsck_clean(&device);
    let mount = Mount::at(&mnt, &device, "ro");
    assert_eq!(tree_checksums(mount.path()), written);
    mount.unmount();
    mounted.server().stop();
    wait_until_gone(&device);
    assert!(!is_mounted(&mounted.folder));
}

/// On SIGTERM the server does not wait until users of the volume close it: it saves their writes
/// and then unmounts the volume.
#[test]
fn sigterm_under_a_mounted_file_system_saves_what_was_written() {
    let volume = file_volume("mount-term", 64 * MIB);
    let mut mounted = Mounted::new(&volume, &["--loop"]);
    let device = mounted.path.clone();
    Client::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(&device)
        .ok();
    let mnt = volume.dir().file("mnt");
    let mount = Mount::at(&mnt, &device, "defaults");
    // The write is not synced, so only the kernel's page cache holds its data.
    std::fs::write(mnt.join("late"), vec![9; 1 << 20]).expect("a write");
    let server = mounted.server();
    let stderr = volume.config().with_extension("stderr");
    server.stop();
    let said = std::fs::read_to_string(stderr).expect("what the server has said");
    assert!(
        said.contains(&format!("mounted on {}", mnt.display())),
        "{said}"
    );
    assert!(!is_mounted(&mounted.folder));
    assert!(
        std::fs::File::create(mnt.join("x"))
            .and_then(|f| f.sync_all())
            .is_err()
    );
    mount.unmount();
    wait_until_gone(&device);

    let mut mounted = Mounted::new(&volume, &["--loop"]);
    let mount = Mount::at(&mnt, &mounted.path, "defaults");
    assert_eq!(
        std::fs::read(mnt.join("late")).expect("a read"),
        vec![9; 1 << 20]
    );
    mount.unmount();
    mounted.server().stop();
}

/// After the server was killed, no process may hang, all synced data must be present, and it must
/// be possible to remove the remaining mount.
#[test]
fn a_killed_server_leaves_what_was_synced() {
    let volume = file_volume("mount-kill", 64 * MIB);
    let mut mounted = Mounted::new(&volume, &["--loop"]);
    let device = mounted.path.clone();
    Client::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(&device)
        .ok();
    let mnt = volume.dir().file("mnt");
    let mount = Mount::at(&mnt, &device, "defaults");
    let synced = File::create(mnt.join("synced")).expect("a file");
    synced.write_all_at(&vec![5; 3 << 20], 0).expect("a write");
    synced.sync_all().expect("a sync");
    drop(synced);
    mounted.server().kill();

    let again = |volume: &Volume| {
        volume
            .verb("mount")
            .arg("vol")
            .arg(volume.dir().file("m"))
            .run()
    };
    assert_refused(&again(&volume), &["server", "has ended", "bimetal unmount"]);
    assert_refused(
        &mounted.unmount().run(),
        &["in use", "mounted on", "umount"],
    );
    // Reads from the page cache can still succeed, but every request to the dead server fails
    // immediately.
    assert!(
        std::fs::File::create(mnt.join("x"))
            .and_then(|f| f.sync_all())
            .is_err()
    );
    mount.unmount();
    mounted.unmount().ok();
    wait_until_gone(&device);
    assert!(!is_mounted(&mounted.folder));
    assert_refused(
        &mounted.unmount().run(),
        &["not a mount of", "bimetal mount"],
    );

    let mut mounted = Mounted::new(&volume, &["--loop"]);
    let mount = Mount::at(&mnt, &mounted.path, "defaults");
    assert_eq!(
        std::fs::read(mnt.join("synced")).expect("a read"),
        vec![5; 3 << 20]
    );
    mount.unmount();
    mounted.server().stop();
}

/// A device error is returned for the request that caused it, and for no other request.
#[test]
fn errors_of_the_device_arrive() {
    let text = "[device.data]\ntype = \"memory\"\nsize = \"16MiB\"\n\
        [device.vol]\ntype = \"error\"\nbelow = \"data\"\ncode = \"medium\"\nops = [\"read\", \"write\"]\n\
        from = \"1MiB\"\nto = \"2MiB\"\n[server]\nlock_memory = false\n";
    let volume = Volume::from_toml("mount-error", text);
    let mut mounted = Mounted::new(&volume, &[]);
    let file = mounted.open(0);
    let mut block = [3; 4096];
    for _ in 0..2 {
        let read = file
            .read_exact_at(&mut block, MIB)
            .expect_err("a medium error");
        assert_eq!(read.raw_os_error(), Some(5), "EIO: {read}");
        let write = file
            .write_all_at(&[1; 4096], 2 * MIB - 4096)
            .expect_err("a medium error");
        assert_eq!(write.raw_os_error(), Some(5), "EIO: {write}");
    }
    file.write_all_at(&[1; 4096], 2 * MIB)
        .expect("a write beside it");
    file.read_exact_at(&mut block, 2 * MIB)
        .expect("a read beside it");
    assert_eq!(block, [1; 4096]);
    file.sync_all().expect("a flush");
    let status = volume.status();
    let statistics = &status["attached"][mounted.file().to_str().expect("a path")]["statistics"];
    assert_eq!(statistics["requests_failed"], 4, "{statistics}");
    drop(file);
    mounted.server().stop();
}

#[test]
fn a_read_only_volume_takes_no_changes() {
    let volume = file_volume("mount-ro", 16 * MIB);
    let mut mounted = Mounted::new(&volume, &["--loop", "--read-only"]);
    let facts = std::fs::metadata(mounted.file()).expect("the file");
    assert_eq!(facts.permissions().mode(), 0o100_400);
    let open = OpenOptions::new().write(true).open(mounted.file());
    assert_eq!(
        open.expect_err("read-only").raw_os_error(),
        Some(30),
        "EROFS"
    );
    let said = Client::new("blockdev")
        .arg("--getro")
        .arg(&mounted.path)
        .ok();
    assert_eq!(said.stdout.trim(), "1");
    let mut block = [1; 4096];
    let device = File::open(&mounted.path).expect("the loop device");
    device.read_exact_at(&mut block, 0).expect("a read");
    assert_eq!(block, [0; 4096]);
    drop(device);
    let device = mounted.path.clone();
    mounted.server().stop();
    wait_until_gone(&device);
}

#[test]
fn an_open_file_keeps_it_mounted() {
    let volume = file_volume("mount-open", 16 * MIB);
    let mut mounted = Mounted::new(&volume, &[]);
    let file = mounted.open(0);
    assert_refused(&mounted.unmount().run(), &["in use", "open", "fuser"]);
    file.write_all_at(&[4; 512], 512).expect("a write");
    // `unmount` must not detach a loop device that another program attached.
    let theirs = Client::new("losetup")
        .args(["--find", "--show"])
        .arg(mounted.file())
        .ok();
    let theirs = theirs.stdout.trim().to_owned();
    let refused = mounted.unmount().run();
    Client::new("losetup").args(["--detach", &theirs]).ok();
    assert_refused(&refused, &["in use", &theirs, "losetup -d"]);
    // With `--force` the folder is unmounted. A file that is still open remains usable until it is
    // closed or the server exits.
    mounted.unmount().arg("--force").ok();
    assert!(!is_mounted(&mounted.folder));
    file.read_exact_at(&mut [0; 512], 0)
        .expect("served until the last has closed it");
    drop(file);
    assert_eq!(mounted.server().ended(), Some(0));
}

/// If a volume does not answer, the server abandons its clean stop at the deadline. No process must
/// wait forever.
#[test]
fn a_stuck_volume_is_given_up() {
    let text = "[device.data]\ntype = \"memory\"\nsize = \"16MiB\"\n\
        [device.vol]\ntype = \"delay\"\nbelow = \"data\"\nwrite = \"600s\"\n\
        [server]\nlock_memory = false\nstop_deadline = \"2s\"\n";
    let volume = Volume::from_toml("mount-stuck", text);
    let mut mounted = Mounted::new(&volume, &["--loop"]);
    let device = mounted.path.clone();
    let path = mounted.file();
    let writer = std::thread::spawn(move || {
        let file = OpenOptions::new().write(true).open(path).expect("the file");
        file.write_all_at(&[1; 4096], 0)
    });
    let statistics = mounted.file();
    eventually(30, "the write has arrived", || {
        let status = volume.status();
        let writes =
            &status["attached"][statistics.to_str().expect("a path")]["statistics"]["writes"];
        (*writes == 1).then_some(())
    });
    let server = mounted.server();
    let stderr = volume.config().with_extension("stderr");
    bimetal_tests::server::send_signal(server.pid(), "TERM");
    assert_eq!(server.ended(), Some(1));
    let said = std::fs::read_to_string(stderr).expect("what the server has said");
    assert!(said.contains("not stopped within 2 s"), "{said}");
    assert!(
        writer.join().expect("the writer").is_err(),
        "it was told that it failed"
    );
    eventually(30, "nothing is mounted", || {
        (!is_mounted(&mounted.folder)).then_some(())
    });
    wait_until_gone(&device);
}

/// Creates a memory volume whose device does not answer one kind of request (`read` or `write`) for
/// 600 s.
fn standing_still(name: &str, op: &str) -> Volume {
    let text = format!(
        "[device.data]\ntype = \"memory\"\nsize = \"256MiB\"\n\
         [device.vol]\ntype = \"delay\"\nbelow = \"data\"\n{op} = \"600s\"\n\
         [server]\nlock_memory = false\nstop_deadline = \"2s\"\n"
    );
    Volume::from_toml(name, &text)
}

trait Answers {
    fn wait_until_asked(&self, volume: &Volume, op: &str);
    fn assert_answers(&self);
}

impl Answers for Mounted {
    /// Waits until 64 requests of the kind `op`, which is the maximum, are in flight on the device.
    fn wait_until_asked(&self, volume: &Volume, op: &str) {
        let file = self.file();
        eventually(60, "the device is asked as much as it may be", || {
            let status = volume.status();
            let asked = &status["attached"][file.to_str().expect("a path")]["statistics"][op];
            (*asked == 64).then_some(())
        });
    }

    /// Asserts that the server answers a `stat` of the file and refuses an `unmount`.
    fn assert_answers(&self) {
        let stat = Client::new("stat").args(["-c", "%s"]).arg(self.file());
        assert_eq!(stat.within_s(50).ok().stdout.trim(), "268435456");
        assert_refused(&self.unmount().within_s(50).run(), &["in use"]);
    }
}

/// A `stat` of the file needs no device. The server must answer a `stat` and an `unmount` even if
/// the device completes no request and the number of waiting requests is far above the maximum in
/// flight.
#[test]
fn a_stat_is_answered_however_many_reads_wait() {
    let volume = standing_still("mount-stat", "read");
    let mut mounted = Mounted::new(&volume, &[]);
    let readers: Vec<_> = (0..400)
        .map(|reader| {
            let file = mounted.open(O_DIRECT);
            std::thread::spawn(move || {
                // Direct I/O needs aligned memory: use the aligned 4 KiB inside a buffer of 8 KiB.
                let mut space = [0; 8192];
                let start = space.as_ptr().align_offset(4096);
                file.read_at(&mut space[start..start + 4096], reader * 4096)
            })
        })
        .collect();
    mounted.wait_until_asked(&volume, "reads");
    wait_until_callers_wait(readers.len());
    mounted.assert_answers();
    let server = mounted.server();
    bimetal_tests::server::send_signal(server.pid(), "TERM");
    assert_eq!(server.ended(), Some(1));
    for reader in readers {
        assert!(reader.join().expect("a reader").is_err(), "it was told");
    }
}

/// Waits until `count` threads of this process wait in the kernel for the reply of a FUSE server.
fn wait_until_callers_wait(count: usize) {
    eventually(60, "every caller waits in the kernel", || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("the threads");
        let waits = tasks.filter(|task| {
            let place = task.as_ref().expect("a thread").path().join("wchan");
            // A thread that has just ended has no `wchan`.
            std::fs::read_to_string(place).is_ok_and(|place| place == "request_wait_answer")
        });
        (waits.count() >= count).then_some(())
    });
}

/// The memory for waiting writes is bounded. While the device completes no request, further writes
/// above the bound fail: they have no effect, are reported, and do not block other requests such as
/// `stat`.
#[test]
fn a_stat_is_answered_however_many_writes_wait() {
    let volume = standing_still("mount-full", "write");
    let mut mounted = Mounted::new(&volume, &[]);
    let (told, failed) = std::sync::mpsc::channel();
    let writers: Vec<_> = (0..140)
        .map(|writer| {
            let (file, told) = (mounted.open(0), told.clone());
            std::thread::spawn(move || {
                let written = file.write_at(&vec![1; 1 << 20], writer << 20);
                // No code receives the results of writes that fail at the end of the test, so an
                // error of this call is ignored.
                let _ = told.send(
                    written
                        .as_ref()
                        .map_err(std::io::Error::raw_os_error)
                        .copied(),
                );
                written
            })
        })
        .collect();
    mounted.wait_until_asked(&volume, "writes");
    wait_until_callers_wait(64 + 63);
    mounted.assert_answers();
    // 64 writes are in flight on the device, and 63 writes wait. A 64th waiting write of 1 MiB with
    // its header would exceed the bound of 64 MiB.
    for refused in 0..140 - 64 - 63 {
        let written = failed.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(written, Ok(Err(Some(110))), "ETIMEDOUT: {refused}");
    }
    mounted.assert_answers();
    assert!(failed.try_recv().is_err(), "the others wait");
    let server = mounted.server();
    eventually(30, "it is told", || {
        server.said().contains("requests are waiting").then_some(())
    });
    bimetal_tests::server::send_signal(server.pid(), "TERM");
    assert_eq!(server.ended(), Some(1));
    for writer in writers {
        assert!(writer.join().expect("a writer").is_err(), "it was told");
    }
}

/// A volume whose medium is an export of another server, `far`. The test can freeze that server.
struct Freezing {
    far: Option<Server>,
    far_volume: Volume,
    volume: Volume,
}

impl Freezing {
    fn new(name: &str) -> Freezing {
        let far_volume = Volume::memory(&format!("{name}-far"), 64 * MIB);
        let far = far_volume.serve();
        let text = format!(
            "[device.vol]\ntype = \"remote\"\naddress = \"unix:{}\"\nexport = \"vol\"\n\
             [server]\nlock_memory = false\nstop_deadline = \"2s\"\n",
            far_volume.socket().display()
        );
        let volume = Volume::from_toml(name, &text);
        Freezing {
            far: Some(far),
            far_volume,
            volume,
        }
    }

    fn freeze(&self) {
        let far = self.far.as_ref().expect("it is there");
        bimetal_tests::server::send_signal(far.pid(), "STOP");
    }

    fn end(mut self) {
        let far = self.far.take().expect("it is there");
        bimetal_tests::server::send_signal(far.pid(), "CONT");
        far.stop();
        drop(self.far_volume);
    }
}

/// The volume freezes while data that were written to a loop device are still in the kernel's
/// memory. `unmount` must report that it cannot continue, and with `--force` that the data are
/// lost.
#[test]
fn unmount_of_a_frozen_volume_ends() {
    let freezing = Freezing::new("mount-frozen");
    let mut mounted = Mounted::new(&freezing.volume, &["--loop"]);
    let device = mounted.path.clone();
    let open = OpenOptions::new().write(true).open(&device);
    let open = open.expect("the loop device");
    freezing.freeze();
    open.write_all_at(&[7; 1 << 20], 0).expect("to memory");
    let within = ["--within", "2s"];
    let given_up = mounted.unmount().args(within).within_s(30).run();
    assert_refused(&given_up, &["still mounted", "within 2 s", "--force"]);
    assert!(is_mounted(&mounted.folder));
    assert!(behind(&device).is_some(), "everything is as it was");
    let forced = mounted.unmount().args(within).arg("--force");
    let forced = forced.within_s(30).run();
    assert_eq!(forced.status, Some(1), "{forced}");
    let place = device.to_str().expect("a path");
    for words in [
        "has not answered within 2 s",
        "is lost",
        &format!("{place} could not be flushed"),
    ] {
        assert!(forced.stderr.contains(words), "{forced}");
    }
    assert!(!is_mounted(&mounted.folder));
    assert!(open.sync_all().is_err(), "it is gone");
    drop(open);
    wait_until_gone(&device);
    // The server of the mount exits with status 1. Its volume is on a frozen remote server, which
    // does not answer the requests of this server.
    assert_eq!(mounted.server().ended(), Some(1));
    freezing.end();
}

/// The volume freezes under a mounted ext4 on the loop device. The file system has dirty data and
/// dirty metadata. `unmount --force` must end.
#[test]
fn a_file_system_on_a_frozen_volume_is_given_up_by_force() {
    let freezing = Freezing::new("mount-frozen-ext4");
    let mut mounted = Mounted::new(&freezing.volume, &["--loop"]);
    let device = mounted.path.clone();
    Client::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(&device)
        .ok();
    let mnt = freezing.volume.dir().file("mnt");
    let mount = Mount::at(&mnt, &device, "defaults");
    let late = File::create(mnt.join("late")).expect("a file");
    late.sync_all().expect("a sync");
    freezing.freeze();
    late.write_all_at(&[9; 1 << 20], 0).expect("to memory");
    drop(late);
    let forced = mounted.unmount().args(["--force", "--within", "2s"]);
    let forced = forced.within_s(30).run();
    assert_eq!(forced.status, Some(1), "{forced}");
    let lost = format!("{} could not be flushed", mnt.display());
    assert!(forced.stderr.contains(&lost), "{forced}");
    assert!(!is_mounted(&mounted.folder));
    mount.unmount();
    wait_until_gone(&device);
    assert_eq!(mounted.server().ended(), Some(1));
    freezing.end();
}

/// A server that is stopped by SIGSTOP does not even answer a `stat`. `unmount --force` must remove
/// its mount.
#[test]
fn the_mount_of_a_stopped_server_is_taken_away_by_force() {
    let volume = file_volume("mount-stopped", 16 * MIB);
    let mut mounted = Mounted::new(&volume, &["--loop"]);
    let device = mounted.path.clone();
    let server = mounted.server();
    bimetal_tests::server::send_signal(server.pid(), "STOP");
    let forced = mounted.unmount().args(["--force", "--within", "2s"]);
    let forced = forced.within_s(30).run();
    assert_eq!(forced.status, Some(1), "{forced}");
    assert!(forced.stderr.contains("within 2 s"), "{forced}");
    assert!(!is_mounted(&mounted.folder));
    wait_until_gone(&device);
    bimetal_tests::server::send_signal(server.pid(), "CONT");
    assert_eq!(server.ended(), Some(0), "it had nothing under way");
}

#[test]
fn what_cannot_be_mounted_is_refused() {
    let volume = file_volume("mount-refused", 16 * MIB);
    let mount = |device: &str, folder: &Path| volume.verb("mount").arg(device).arg(folder);
    let full = volume.dir().path();
    assert_refused(&mount("vol", full).run(), &["not empty"]);
    let missing = volume.dir().file("missing");
    assert_refused(&mount("vol", &missing).run(), &["missing", "No such file"]);
    assert_refused(&mount("vol", volume.config()).run(), &["Not a directory"]);
    assert_refused(
        &mount("other", &missing).run(),
        &["no device `other`", "vol"],
    );
    let size = mount("vol", &missing)
        .args(["--loop", "--block-size", "100"])
        .run();
    assert_refused(&size, &["512, 1024, 2048 or 4096"]);
    assert_refused(&unmount(full).run(), &["not a mount of", "bimetal mount"]);

    // The folder already has a mounted volume on it.
    let mut mounted = Mounted::new(&volume, &[]);
    let other = file_volume("mount-other", 16 * MIB);
    let second = other.verb("mount").arg("vol").arg(&mounted.folder).run();
    assert_refused(&second, &["not empty"]);
    mounted.server().stop();
}

/// A user who is not root mounts by `fusermount3`. On some machines only root can use `/dev/fuse`.
/// The test therefore puts its own device node at `/dev/fuse`, in a separate mount namespace.
#[test]
fn a_user_who_is_not_root_mounts_by_fusermount() {
    let text = "[device.vol]\ntype = \"memory\"\nsize = \"16MiB\"\n[server]\nlock_memory = false\n";
    let volume = Volume::from_toml("mount-user", text);
    let folder = volume.dir().file("m");
    std::fs::create_dir(&folder).expect("a folder");
    let give = |path: &Path| Client::new("chown").arg("nobody").arg(path).ok();
    give(volume.dir().path());
    give(&folder);
    let node = volume.dir().file("fuse");
    Client::new("mknod")
        .args(["-m", "666"])
        .arg(&node)
        .args(["c", "10", "229"])
        .ok();
    let program = volume.dir().file("bimetal");
    std::fs::copy(binary(), &program).expect("a copy that everybody may read");
    let script = format!(
        "mount --bind {} /dev/fuse && cd {} && exec setpriv --reuid=nobody --regid=nogroup --clear-groups \
         sh -c \"$0\"",
        node.display(),
        volume.dir().path().display()
    );
    // The user who owns the file writes it, reads it and unmounts the volume.
    let user = "set -e; ./bimetal mount vol.toml vol m > said & \
        n=0; until grep -q ready said; do n=$((n+1)); [ $n -lt 3000 ] || exit 9; sleep 0.01; done; \
        [ \"$(head -n 1 said)\" = \"$(pwd)/m/vol\" ]; \
        echo something | dd of=m/vol conv=notrunc,fsync 2> dd.log; \
        [ \"$(head -c 9 m/vol)\" = something ]; \
        ./bimetal unmount m; wait $!; echo unmounted";
    let outcome = Client::new("unshare")
        .args(["--mount", "sh", "-c", &script, user])
        .within_s(60)
        .ok();
    assert!(outcome.stdout.ends_with("unmounted\n"), "{outcome}");
}
