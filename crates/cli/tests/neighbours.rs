//! Tests of devices that other programs also use: formats that must not be overwritten without
//! permission, mounts, other servers, and one device with several names. `format`, `serve`, `check`
//! and `side add` must detect the same problems and report them in the same words.
//!
//! Tests with block devices need root, and are skipped without it.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{MIRROR, Scratch, Served, arg, assert_refused, bimetal, stdout_of};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const SIDE_BYTES: u64 = 32 * MIB;

/// Runs a program of the operating system, which must succeed, and returns its output.
fn tool(words: &[&str]) -> String {
    let done = Command::new(words[0]).args(&words[1..]).output();
    let done = done.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{words:?}: {said}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn fails(words: &[&str]) -> bool {
    let done = Command::new(words[0]).args(&words[1..]).output();
    !done.expect("the tool is there").status.success()
}

fn is_root() -> bool {
    let root = tool(&["id", "-u"]) == "0";
    if !root {
        println!("left out: block devices need root");
    }
    root
}

/// A loop device, which is detached when the value is dropped.
struct Loop(String);

impl Loop {
    fn over(file: &Path, options: &[&str]) -> Loop {
        let words = [&["losetup", "--find", "--show"], options, &[arg(file)]].concat();
        Loop(tool(&words))
    }

    fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tool(&["losetup", "--detach", &self.0]);
    }
}

/// A mounted file system, which is unmounted when the value is dropped.
struct Mount(PathBuf);

impl Mount {
    fn of(device: &Path, folder: &Path) -> Mount {
        std::fs::create_dir(folder).unwrap();
        tool(&["mount", arg(device), arg(folder)]);
        Mount(folder.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        tool(&["umount", arg(&self.0)]);
    }
}

/// Writes a configuration that exports a single file or device.
fn alone(dir: &Scratch, name: &str, path: &Path, keys: &str) -> PathBuf {
    let text = format!(
        "[device.{name}]\ntype = \"file\"\npath = \"{}\"\n{keys}\
         [export.{name}]\ndevice = \"{name}\"\nprotocol = \"nbd\"\nlisten = \"unix:{name}.sock\"\n\
         [server]\nlock_memory = false\nmemory = \"16MiB\"\n",
        path.display()
    );
    dir.text(&format!("{name}.toml"), &text)
}

/// Writes a configuration of a mirror whose two sides are the files or devices `sides`.
fn mirror(dir: &Scratch, name: &str, sides: [&Path; 2]) -> PathBuf {
    let text = MIRROR.replace(
        "\"a.img\"\nsize = \"32MiB\"",
        &format!("\"{}\"", arg(sides[0])),
    );
    let text = text.replace(
        "\"b.img\"\nsize = \"32MiB\"",
        &format!("\"{}\"", arg(sides[1])),
    );
    dir.text(&format!("{name}.toml"), &text)
}

fn checked(config: &Path) -> Value {
    serde_json::from_str(&stdout_of(&["check", arg(config), "--json"])).unwrap()
}

/// Signature of a format: several byte strings, each with its offset on the device.
type Marks = &'static [(u64, &'static [u8])];

/// Formats with their signatures, as defined in their documentation, on a device of 32 MiB.
const FORMATS: &[(&str, Marks)] = &[
    ("XFS", &[(0, b"XFSB\0\0\x10\0")]),
    ("btrfs", &[(0x10040, b"_BHRfS_M")]),
    ("F2FS", &[(1024, &[0x10, 0x20, 0xf5, 0xf2])]),
    ("LUKS", &[(0, b"LUKS\xba\xbe\0\x02")]),
    ("LVM", &[(512, b"LABELONE"), (512 + 24, b"LVM2 001")]),
    // A GPT is recognized by its header in the second sector together with a protective MBR, or by
    // its backup header alone.
    ("GPT", &[(512, b"EFI PART\0\0\x01\0"), (510, &[0x55, 0xaa])]),
    ("GPT", &[(SIDE_BYTES - 512, b"EFI PART\0\0\x01\0")]),
    (
        "MBR",
        &[(510, &[0x55, 0xaa]), (446, &[0x80]), (450, &[0x83])],
    ),
    // The magic of an md superblock of version 1.2 (at 4 KiB), of version 1.0 (8 KiB before the end
    // of the device) and of version 0.90 (64 KiB before the end).
    ("md", &[(4096, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0])]),
    (
        "md",
        &[(SIDE_BYTES - 8192, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0])],
    ),
    (
        "md",
        &[(SIDE_BYTES - 65536, &[0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0])],
    ),
    (
        "ZFS",
        &[
            (0x20000, &[0x0c, 0xb1, 0xba, 0]),
            (0x21000, &[0x0c, 0xb1, 0xba, 0]),
        ],
    ),
    ("NTFS", &[(3, b"NTFS    "), (510, &[0x55, 0xaa])]),
    ("qcow2", &[(0, b"QFI\xfb\0\0\0\x03")]),
];

#[test]
fn what_a_device_holds_is_named_before_it_is_lost() {
    let dir = Scratch::new("held");
    let (a, b) = (dir.path("a.img"), dir.zeroes("b.img", SIDE_BYTES));
    let config = mirror(&dir, "c", [&a, &b]);
    let file = arg(&config);
    let put = |marks: Marks| {
        let disk = dir.zeroes("a.img", SIDE_BYTES);
        let disk = std::fs::File::options().write(true).open(disk).unwrap();
        let put = |(at, bytes): &(u64, &[u8])| disk.write_all_at(bytes, *at).unwrap();
        marks.iter().for_each(put);
    };
    let lose = |format: &str| {
        let before = std::fs::read(&a).unwrap();
        assert_refused(&["format", file], 1, &["device a", format, "--force"]);
        assert!(
            std::fs::read(&a).unwrap() == before,
            "{format}: it is as it was"
        );
        let report = checked(&config);
        let held = report["devices"]["a"]["holds"].as_str().unwrap();
        assert!(held.contains(format), "{held}");
        let next = report["devices"]["vol"]["next"].as_str().unwrap();
        assert!(next.contains(&format!("a holds {held}")), "{next}");
        stdout_of(&["format", file, "--force"]);
        // After `format`, another program must not recognize the old format.
        assert_eq!(tool(&["wipefs", "--no-act", arg(&a)]), "", "{format}");
        assert_eq!(checked(&config)["devices"]["a"]["holds"], Value::Null);
        std::fs::remove_file(&a).unwrap();
        std::fs::write(&b, "").unwrap();
        let disk = std::fs::File::options().write(true).open(&b).unwrap();
        disk.set_len(SIDE_BYTES).unwrap();
    };
    for (format, marks) in FORMATS {
        put(marks);
        lose(format);
    }
    for (format, words) in [
        ("ext4", &["mkfs.ext4", "-q"][..]),
        ("ext2", &["mkfs.ext2", "-q"]),
        ("swap", &["mkswap"]),
    ] {
        put(&[]);
        tool(&[words, &[arg(&a)]].concat());
        lose(format);
    }
}

#[test]
fn a_new_side_is_not_taken_from_a_file_system_unasked() {
    let dir = Scratch::new("new-side");
    let c = dir.zeroes("c.img", SIDE_BYTES);
    tool(&["mkfs.ext4", "-q", arg(&c)]);
    let new = "[device.c]\ntype = \"file\"\npath = \"c.img\"\n\
               [device.d]\ntype = \"file\"\npath = \"./a.img\"\n";
    let config = dir.text("c.toml", &format!("{MIRROR}{new}"));
    let file = arg(&config);
    stdout_of(&["format", file]);
    let _served = Served::start(&config);
    let refused = ["device c", "holds ext4", "--force"];
    assert_refused(&["side", "add", file, "vol", "c"], 1, &refused);
    let refused = ["device d", "is the same as", "device a"];
    assert_refused(&["side", "add", file, "vol", "d"], 1, &refused);
    // The server must not keep the refused device open: the owner of the device must still be able
    // to use it.
    tool(&["e2fsck", "-n", arg(&c)]);
    let said = stdout_of(&["side", "add", file, "vol", "c", "--force"]);
    assert!(said.starts_with("started: add c to vol"), "{said}");
}

#[test]
fn one_device_is_not_two() {
    let dir = Scratch::new("twice");
    let a = dir.zeroes("a.img", SIDE_BYTES);
    let (soft, hard) = (dir.path("soft.img"), dir.path("hard.img"));
    std::os::unix::fs::symlink(&a, &soft).unwrap();
    std::fs::hard_link(&a, &hard).unwrap();
    for other in [&a, &soft, &hard] {
        let config = mirror(&dir, "c", [&a, other]);
        for verb in ["check", "format", "serve"] {
            let words = ["device b", "is the same as", "device a"];
            assert_refused(&[verb, arg(&config)], 1, &words);
        }
    }
}

#[test]
fn a_tail_that_is_no_block_is_served_whole_or_refused() {
    let dir = Scratch::new("tail");
    let odd = dir.zeroes("odd.img", SIDE_BYTES + 512);
    let config = alone(&dir, "odd", &odd, "");
    for verb in ["check", "serve"] {
        let words = [
            "device odd",
            "33554944 bytes",
            "last 512 bytes",
            "drop_tail = true",
        ];
        assert_refused(&[verb, arg(&config)], 1, &words);
    }
    let config = alone(&dir, "dropped", &odd, "drop_tail = true\n");
    assert_eq!(
        checked(&config)["devices"]["dropped"]["size_bytes"],
        SIDE_BYTES
    );
    drop(Served::start(&config));
    // A side of a mirror is not exposed as a whole. The last 512 bytes of its device can therefore
    // stay unused.
    let b = dir.zeroes("b.img", SIDE_BYTES);
    let config = mirror(&dir, "c", [&odd, &b]);
    stdout_of(&["format", arg(&config)]);
    assert_eq!(checked(&config)["devices"]["a"]["unused_tail_bytes"], 512);
    drop(Served::start(&config));
    // An adopted disk is exposed as a whole, because its content is the volume. Its last 512 bytes
    // cannot be left out, so the disk is refused.
    let text = "[device.disk]\ntype = \"file\"\npath = \"odd.img\"\n\
        [device.notes]\ntype = \"file\"\npath = \"notes.img\"\nsize = \"16MiB\"\n\
        [device.old]\ntype = \"adopted\"\ndata = \"disk\"\nmetadata = \"notes\"\n\
        [device.new]\ntype = \"file\"\npath = \"new.img\"\nsize = \"64MiB\"\n\
        [device.vol]\ntype = \"mirror\"\nsides = [\"old\", \"new\"]\n";
    let config = dir.text("adopt.toml", text);
    let adopt = ["format", arg(&config), "--adopt", "old"];
    assert_refused(&adopt, 1, &["device old", "data device", "last 512 bytes"]);
    // A refused `format` leaves none of the files that it would have created.
    dir.zeroes("notes.img", 16 << 20);
    dir.zeroes("new.img", 64 << 20);
    assert_refused(
        &["check", arg(&config)],
        1,
        &["data device", "last 512 bytes"],
    );
}

#[test]
fn what_is_in_use_is_refused_by_name() {
    if !is_root() {
        return;
    }
    let dir = Scratch::new("in-use");
    let (a, b) = (
        dir.zeroes("a.img", SIDE_BYTES),
        dir.zeroes("b.img", SIDE_BYTES),
    );
    tool(&["mkfs.ext4", "-q", arg(&a)]);
    let device = Loop::over(&a, &[]);
    let folder = dir.path("folder");
    let mount = Mount::of(device.path(), &folder);
    let mounted = format!("mounted on {}", folder.display());
    // The test uses the loop device, and then the file below it.
    for path in [device.path(), &a] {
        let config = alone(&dir, "one", path, "");
        for verb in ["check", "serve"] {
            assert_refused(&[verb, arg(&config)], 1, &["device one", &mounted]);
        }
        let config = mirror(&dir, "c", [path, &b]);
        for options in [
            &["format", arg(&config)][..],
            &["format", "--force", arg(&config)],
        ] {
            assert_refused(options, 1, &["device a", &mounted]);
        }
    }
    drop(mount);
    tool(&["e2fsck", "-f", "-n", device.0.as_str()]);
    drop(Served::start(&alone(&dir, "one", device.path(), "")));
}

#[test]
fn a_device_has_one_server_by_whatever_name() {
    if !is_root() {
        return;
    }
    let dir = Scratch::new("names");
    let a = dir.zeroes("a.img", SIDE_BYTES);
    let (one, other) = (Loop::over(&a, &[]), Loop::over(&a, &[]));
    let node = dir.path("node");
    let numbers = tool(&["stat", "--format", "%Hr %Lr", &one.0]);
    let (major, minor) = numbers.split_once(' ').unwrap();
    tool(&["mknod", arg(&node), "b", major, minor]);
    let names = [one.path(), other.path(), &node, &a];
    for served in names {
        let server = Served::start(&alone(&dir, "first", served, ""));
        for second in names {
            let config = alone(&dir, "second", second, "");
            assert_refused(&["serve", arg(&config)], 1, &["device second", "in use"]);
        }
        drop(server);
    }
    // A device that a server uses cannot be claimed by other programs either.
    let server = Served::start(&alone(&dir, "first", one.path(), ""));
    assert!(fails(&["mkfs.ext4", "-q", &one.0]));
    assert!(fails(&["mkfs.ext4", "-q", arg(&node)]));
    drop(server);
    // A device with two names cannot be both sides of a mirror.
    for sides in [
        [one.path(), other.path()],
        [one.path(), &node],
        [&a, other.path()],
    ] {
        let config = mirror(&dir, "c", sides);
        for verb in ["check", "format", "serve"] {
            let words = ["device b", "is the same as", "device a"];
            assert_refused(&[verb, arg(&config)], 1, &words);
        }
    }
}

#[test]
fn parts_of_one_file_go_to_two_servers() {
    if !is_root() {
        return;
    }
    let dir = Scratch::new("parts");
    let a = dir.zeroes("a.img", 2 * SIDE_BYTES);
    let half = SIDE_BYTES.to_string();
    let first = Loop::over(&a, &["--sizelimit", &half]);
    let second = Loop::over(&a, &["--offset", &half]);
    let config = mirror(&dir, "c", [first.path(), second.path()]);
    stdout_of(&["format", arg(&config)]);
    let served = Served::start(&config);
    let overlapping = (SIDE_BYTES - 4096).to_string();
    let third = Loop::over(&a, &["--offset", &overlapping]);
    for path in [third.path(), &a] {
        let config = alone(&dir, "third", path, "");
        assert_refused(&["serve", arg(&config)], 1, &["in use"]);
    }
    drop(served);
    drop(Served::start(&alone(&dir, "third", third.path(), "")));
}

#[test]
fn the_kernel_describes_disks_and_a_key_overrules_it() {
    if !is_root() {
        return;
    }
    let dir = Scratch::new("kernel");
    let a = dir.zeroes("a.img", SIDE_BYTES);
    let device = Loop::over(&a, &["--sector-size", "4096"]);
    let name = device.path().file_name().unwrap().to_str().unwrap();
    let queue = |key: &str| {
        let text = std::fs::read_to_string(format!("/sys/block/{name}/queue/{key}"));
        text.unwrap().trim().parse::<u64>().unwrap()
    };
    let config = alone(&dir, "disk", device.path(), "");
    let found = &checked(&config)["devices"]["disk"];
    assert_eq!(found["rotational"], queue("rotational") == 1);
    assert_eq!(found["physical_block_bytes"], queue("physical_block_size"));
    assert_eq!(found["zeroing"], queue("write_zeroes_max_bytes") > 0);
    assert_eq!(found["discards"], queue("discard_max_bytes") > 0);
    for rotational in [true, false] {
        let keys = format!(
            "rotational = {rotational}\nphysical_block = \"16KiB\"\noptimal_io = \"256KiB\"\n\
             zeroing = false\ndiscards = false\n"
        );
        let config = alone(&dir, "disk", device.path(), &keys);
        let found = &checked(&config)["devices"]["disk"];
        assert_eq!(found["rotational"], rotational);
        assert_eq!(found["physical_block_bytes"], 16384);
        assert_eq!(found["optimal_io_bytes"], 256 << 10);
        assert_eq!(found["zeroing"], false);
        assert_eq!(found["discards"], false);
    }
    let config = alone(&dir, "disk", device.path(), "zoned = true\n");
    for verb in ["check", "serve"] {
        assert_refused(&[verb, arg(&config)], 1, &["device disk", "host-managed"]);
    }
    let config = alone(&dir, "disk", device.path(), "physical_block = \"5KiB\"\n");
    let refused = bimetal(&["check", arg(&config)]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not a power of two"));
}
