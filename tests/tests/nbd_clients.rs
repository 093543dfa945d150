//! Tests with unmodified clients of the served volume: libnbd's tools, qemu's tools, and fio.

use bimetal_tests::checks;
use bimetal_tests::client::Client;
use bimetal_tests::mount::{assert_fsck_clean, source_tree};
use bimetal_tests::server::uri;
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume};
use serde_json::Value;

#[test]
fn nbdinfo_finds_a_complete_export() {
    let volume = Volume::memory("info", 64 * MIB);
    let server = volume.serve();
    checks::assert_complete_export(&volume.uri(), 64 * MIB);
    checks::assert_map_covers(&volume.uri(), 64 * MIB);
    let export = checks::nbdinfo(&volume.uri());
    let block = |name: &str| {
        let bytes = export[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no {name} in {export:#}"));
        assert!(
            bytes.is_power_of_two() || name == "block_size_maximum",
            "{name}: {export:#}"
        );
        bytes
    };
    // The protocol limits the minimum block size to 64 KiB. The server's minimum block size must
    // not exceed 512 bytes, so that a client with requests of one sector is served.
    assert!(block("block_size_minimum") <= 512, "{export:#}");
    assert!(
        (4096..=1 << 20).contains(&block("block_size_preferred")),
        "{export:#}"
    );
    assert!(block("block_size_maximum") >= MIB, "{export:#}");
    server.stop();
}

#[test]
fn several_exports_are_listed_and_kept_apart() {
    let second = "[device.other]\ntype = \"memory\"\nsize = \"8MiB\"\n\
                  [export.other]\ndevice = \"other\"\nprotocol = \"nbd\"\nlisten = \"unix:vol.sock\"\n";
    let first = "[device.vol]\ntype = \"memory\"\nsize = \"16MiB\"\n";
    let volume = Volume::from_toml("list", &(first.to_owned() + EXPORT_VOL + second));
    let server = volume.serve();
    let list = Client::new("nbdinfo")
        .args(["--list", "--json", &uri(&volume.socket(), "")])
        .ok();
    let list: Value = serde_json::from_str(&list.stdout).expect("nbdinfo prints JSON");
    let exports = list["exports"].as_array().expect("a list of exports");
    let mut found: Vec<_> = exports
        .iter()
        .map(|e| {
            (
                e["export-name"].as_str().expect("a name"),
                e["export-size"].as_u64(),
            )
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, [("other", Some(8 * MIB)), ("vol", Some(16 * MIB))]);
    checks::qemu_io(&volume.uri(), &["write -P 1 0 1M", "flush"]);
    checks::qemu_io(&uri(&volume.socket(), "other"), &["read -P 0 0 1M"]);
    let none = Client::new("nbdinfo")
        .args(["--json", &uri(&volume.socket(), "none")])
        .run();
    assert_ne!(none.status, Some(0), "an export that is not there: {none}");
    server.stop();
}

#[test]
fn a_tcp_export_and_a_stop_by_sigint() {
    // Use a port that was free just now. No other program on a test machine should bind it in
    // between.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let text = format!(
        "[device.vol]\ntype = \"memory\"\nsize = \"64MiB\"\n[export.vol]\ndevice = \"vol\"\n\
         protocol = \"nbd\"\nlisten = \"tcp:127.0.0.1:{port}\"\n"
    );
    let volume = Volume::from_toml("tcp", &text);
    let server = volume.serve();
    checks::qemu_io_commands(&format!("nbd://127.0.0.1:{port}/vol"));
    server.stop_by("INT");
}

#[test]
fn qemu_io_commands_on_a_mirror() {
    let volume = Volume::mirror("qemu-io", 64 * MIB);
    let server = volume.serve();
    checks::qemu_io_commands(&volume.uri());
    server.stop();
    // After a restart the volume must hold all acknowledged writes, which the clean stop has
    // drained to the sides.
    let server = volume.serve();
    checks::qemu_io(
        &volume.uri(),
        &["read -P 0x11 0 32k", "read -P 0x33 524288 1024"],
    );
    server.stop();
}

#[test]
fn fio_verifies_at_depth_32_on_four_connections() {
    let volume = Volume::mirror("fio", 192 * MIB);
    let server = volume.serve();
    let verified = checks::fio_verify(&volume.uri(), 32 * MIB);
    assert_eq!(verified.status, Some(0), "{verified}\n{}", server.said());
    server.stop();
}

/// The main use of a volume: an image of 1 GiB with the files of a real source tree is copied to
/// the volume and back.
#[test]
fn a_gibibyte_there_and_back() {
    let volume = Volume::mirror("copy", 1536 * MIB);
    let image = checks::image_of_tree(volume.dir(), 1024 * MIB, &source_tree(volume.dir()));
    let server = volume.serve();
    checks::nbdcopy_there_and_back(&volume.uri(), volume.dir(), &image);
    server.stop();
    let server = volume.serve();
    let again = volume.dir().file("again.img");
    Client::new("nbdcopy")
        .arg(volume.uri())
        .arg(&again)
        .within_s(300)
        .ok();
    checks::assert_same_bytes(&image, &again, 1024 * MIB);
    assert_fsck_clean(&again);
    server.stop();
}

#[test]
fn qemu_img_converts_and_compares() {
    let volume = Volume::mirror("qemu-img", 768 * MIB);
    let image = checks::image_of_tree(volume.dir(), 512 * MIB, &source_tree(volume.dir()));
    let server = volume.serve();
    checks::qemu_img_convert_and_compare(&volume.uri(), volume.dir(), &image);
    server.stop();
}

/// A cache holds content in its own memory, and writes single pages as well as runs of pages to the
/// device below. After the server has stopped, the file below must hold the bytes that a client
/// read through the cache.
#[test]
fn a_cache_over_a_file_brings_everything_to_it() {
    let text = "[device.disk]\ntype = \"file\"\npath = \"disk.img\"\n\
                [device.vol]\ntype = \"cache\"\nbelow = \"disk\"\nsize = \"8MiB\"\n";
    let volume = Volume::from_toml("cache", &(text.to_owned() + EXPORT_VOL));
    let image = volume.dir().sparse("disk.img", 64 * MIB);
    let server = volume.serve();
    let verified = checks::fio_verify(&volume.uri(), 16 * MIB);
    assert_eq!(verified.status, Some(0), "{verified}\n{}", server.said());
    let seen = volume.dir().file("seen.img");
    let copy = Client::new("nbdcopy").arg(volume.uri()).arg(&seen);
    copy.within_s(60).ok();
    assert_eq!(volume.statistic("errors"), 0.0, "writes to the file");
    server.stop();
    checks::assert_same_bytes(&seen, &image, 64 * MIB);
}
