//! Tests of volumes over shards (devices on threads of their own): they are served, measured,
//! formatted and checked like other volumes.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Client, Scratch, Served, arg, assert_refused, bimetal, stdout_of};
use serde_json::Value;

/// Configuration of a stripe of two files, each on its own thread.
const STRIPE: &str = "[device.a]\ntype = \"file\"\npath = \"a.img\"\nsize = \"64MiB\"\n\
    [device.b]\ntype = \"file\"\npath = \"b.img\"\nsize = \"64MiB\"\n\
    [device.counts]\ntype = \"stats\"\nbelow = \"b\"\n\
    [device.s]\ntype = \"shard\"\nbelow = \"a\"\n\
    [device.t]\ntype = \"shard\"\nbelow = \"counts\"\n\
    [device.two]\ntype = \"stripe\"\ndevices = [\"s\", \"t\"]\nunit = \"64KiB\"\n\
    [server]\nlock_memory = false\nmemory = \"8MiB\"\n";

fn export(device: &str) -> String {
    format!("[export.vol]\ndevice = \"{device}\"\nprotocol = \"nbd\"\nlisten = \"unix:vol.sock\"\n")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(args)).unwrap()
}

/// Polls the status until `is_wanted` returns true, and returns the status.
fn status_when(config: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..2000 {
        let status = json(&["status", config, "--json"]);
        if is_wanted(&status) {
            return status;
        }
    }
    panic!("it never is: {}", json(&["status", config, "--json"]));
}

#[test]
fn a_volume_over_two_threads_is_served() {
    let dir = Scratch::new("shards");
    let images = ["a.img", "b.img"].map(|name| dir.zeroes(name, 64 << 20));
    let config = dir.text("c.toml", &format!("{STRIPE}{}", export("two")));
    let served = Served::start(&config);
    let mut client = Client::connect(&dir.path("vol.sock"));
    assert_eq!(client.size_bytes, 128 << 20);
    let at = |block: u64| block * (60 << 10);
    let is_on_b = |block: &u64| at(*block) / (64 << 10) % 2 == 1;
    let on_b = (0..200).filter(is_on_b).count() as u64;
    for block in 0..200 {
        client.write(at(block), 1 + block as u8).unwrap();
    }
    for block in 0..200 {
        let content = client.read(at(block)).unwrap();
        assert!(content.iter().all(|byte| *byte == 1 + block as u8));
    }
    let writes =
        |status: &Value| status["devices"]["counts"]["parts"]["write"]["requests"].as_u64();
    let status = status_when(arg(&config), |status| writes(status) == Some(on_b));
    assert_eq!(status["health"], "healthy");
    let devices = &status["devices"];
    assert_eq!(devices["t"]["type"], "shard");
    assert_eq!(devices["t"]["statistics"]["health"], "healthy");
    assert_eq!(devices["t"]["statistics"]["in_flight_requests"], 0.0);
    assert_eq!(devices["b"]["size_bytes"], 64 << 20);
    assert_eq!(devices["counts"]["children"], serde_json::json!(["b"]));
    let shown = stdout_of(&["status", arg(&config)]);
    assert!(shown.contains("device counts  stats"), "{shown}");
    let trace = dir.path("t.csv");
    let record = ["record", arg(&config), "b", "--out", arg(&trace)];
    assert_refused(&record, 1, &["device `b`", "the shard `t`"]);
    drop(client);
    assert_eq!(served.end("TERM"), (Some(0), String::new()));
    // The volume consists of units of 64 KiB. Unit k of the volume is unit k / 2 (rounded down) of
    // the file with index k % 2.
    let content = images.map(|image| std::fs::read(image).unwrap());
    for block in 0..200 {
        let (unit, within) = (at(block) / (64 << 10), at(block) % (64 << 10));
        let start = (unit / 2 * (64 << 10) + within) as usize;
        let bytes = &content[(unit % 2) as usize][start..start + 4096];
        assert!(bytes.iter().all(|byte| *byte == 1 + block as u8), "{block}");
    }
}

#[test]
fn a_volume_over_two_threads_is_measured() {
    let dir = Scratch::new("shards-bench");
    dir.zeroes("a.img", 64 << 20);
    dir.zeroes("b.img", 64 << 20);
    let config = dir.text("c.toml", STRIPE);
    let bench = ["bench", arg(&config), "--device", "two", "--destroy-data"];
    for (pattern, size) in [("randrw", "4KiB"), ("write", "1MiB"), ("read", "128KiB")] {
        let load = ["--rw", pattern, "--bs", size, "--ops", "500", "--json"];
        let report = json(&[&bench[..], &load[..]].concat());
        assert_eq!(report["operations"], 500, "{report}");
        assert_eq!(report["errors"], 0, "{report}");
    }
    // In virtual time there is only one thread, so a shard has no effect.
    let modelled = "[device.m]\ntype = \"memory\"\nsize = \"64MiB\"\n\
        [device.disk]\ntype = \"hdd\"\nprofile = \"hdd-7200\"\nbelow = \"m\"\n\
        [device.s]\ntype = \"shard\"\nbelow = \"disk\"\n";
    let config = dir.text("v.toml", modelled);
    let run = |device: &str| {
        let bench = ["bench", arg(&config), "--device", device, "--virtual"];
        json(&[&bench[..], &["--ops", "200", "--json"]].concat())
    };
    assert_eq!(run("s")["read"], run("disk")["read"]);
}

#[test]
fn a_side_may_be_on_threads_of_its_own() {
    let dir = Scratch::new("shards-side");
    let mirror = "[device.c]\ntype = \"file\"\npath = \"c.img\"\nsize = \"128MiB\"\n\
        [device.vol]\ntype = \"mirror\"\nsides = [\"two\", \"c\"]\n\
        exposure = { bytes = \"512KiB\" }\n";
    let text = format!("{STRIPE}{mirror}{}", export("vol"));
    let config = dir.text("c.toml", &text);
    assert!(stdout_of(&["format", arg(&config)]).contains("side two"));
    assert!(stdout_of(&["check", arg(&config)]).contains("clean"));
    let served = Served::start(&config);
    let mut client = Client::connect(&dir.path("vol.sock"));
    for block in 0..100 {
        client.write(block * 40_960, 1 + block as u8).unwrap();
    }
    let whole = |status: &Value| status["health"] == "healthy";
    status_when(arg(&config), whole);
    drop(client);
    assert_eq!(served.end("TERM"), (Some(0), String::new()));
    let tree = stdout_of(&["check", arg(&config)]);
    assert!(tree.contains("clean") && tree.contains("shard"), "{tree}");
    // Each side alone holds all data.
    for gone in ["a.img", "c.img"] {
        let hidden = dir.path("hidden");
        std::fs::rename(dir.path(gone), &hidden).unwrap();
        let forced = ["--force-open", "read-only"];
        let served = Served::start_with(&config, &forced);
        let mut client = Client::connect(&dir.path("vol.sock"));
        for block in 0..100 {
            let content = client.read(block * 40_960).unwrap();
            assert!(content.iter().all(|byte| *byte == 1 + block as u8));
        }
        drop(client);
        assert_eq!(served.end("TERM").0, Some(0));
        std::fs::rename(&hidden, dir.path(gone)).unwrap();
    }
}

#[test]
fn a_cache_on_a_thread_of_its_own_is_operated() {
    let dir = Scratch::new("shards-cache");
    let text = format!(
        "[device.a]\ntype = \"memory\"\nsize = \"4MiB\"\n\
         [device.kept]\ntype = \"cache\"\nbelow = \"a\"\nsize = \"1MiB\"\n\
         [device.top]\ntype = \"shard\"\nbelow = \"kept\"\n\
         [server]\nlock_memory = false\n{}",
        export("top")
    );
    let config = dir.text("c.toml", &text);
    let served = Served::start(&config);
    let cache = json(&["cache", arg(&config), "kept", "--json"]);
    assert_eq!(cache["cache"]["health"], "healthy", "{cache}");
    let accept = ["cache", arg(&config), "kept", "--accept-loss"];
    let accepted = bimetal(&accept);
    assert_eq!(accepted.status.code(), Some(1), "nothing was lost");
    assert_refused(&["cache", arg(&config), "a"], 1, &["no cache `a`"]);
    assert_eq!(served.end("INT"), (Some(0), String::new()));
}

#[test]
fn what_cannot_be_on_a_thread_of_its_own_is_refused() {
    let dir = Scratch::new("shards-refused");
    let media = "[device.a]\ntype = \"memory\"\nsize = \"64MiB\"\n\
        [device.b]\ntype = \"memory\"\nsize = \"64MiB\"\n";
    let mirror = "[device.m]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\n\
        [device.top]\ntype = \"shard\"\nbelow = \"m\"\n";
    let config = dir.text("m.toml", &format!("{media}{mirror}{}", export("top")));
    for verb in ["check", "serve", "format"] {
        let words = ["m.toml", "device `m`", "shard `top`"];
        assert_refused(&[verb, arg(&config)], 1, &words);
    }
    let both = "[device.top]\ntype = \"shard\"\nbelow = \"a\"\n\
        [export.other]\ndevice = \"a\"\nprotocol = \"nbd\"\nlisten = \"unix:o.sock\"\n";
    let config = dir.text("e.toml", &format!("{media}{both}{}", export("top")));
    assert_refused(&["serve", arg(&config)], 1, &["device a", "shard `top`"]);
}
