//! Tests of `bimetal check`, which shows the devices and exports of a configuration.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Scratch, arg, assert_refused, stdout_of};
use serde_json::{Value, json};

const CONFIG: &str = "[device.file]\ntype = \"file\"\npath = \"a.img\"\n\
    [device.top]\ntype = \"passthrough\"\nbelow = \"file\"\n\
    [device.spare]\ntype = \"memory\"\nsize = \"8MiB\"\n\
    [export.vol]\ndevice = \"top\"\nprotocol = \"nbd\"\nlisten = \"tcp:127.0.0.1:10809\"\n";

fn config(name: &str) -> (Scratch, std::path::PathBuf) {
    let dir = Scratch::new(name);
    dir.zeroes("a.img", 8192);
    let config = dir.text("c.toml", CONFIG);
    (dir, config)
}

#[test]
fn the_tree_shows_every_device_under_its_parent() {
    let (dir, config) = config("tree");
    let tree = stdout_of(&["check", arg(&config)]);
    let lines: Vec<&str> = tree.lines().collect();
    assert_eq!(lines[0], "spare  memory  8 MiB");
    assert_eq!(lines[1], "top  passthrough  8 KiB");
    assert!(lines[2].starts_with("`-- file  file  8 KiB  "), "{tree}");
    assert_eq!(lines[3], "export vol  nbd of top at tcp:127.0.0.1:10809");
    assert_eq!(dir.names(), ["a.img", "c.toml"], "nothing is written");
}

#[test]
fn the_json_form_keeps_its_schema() {
    let (_dir, config) = config("json");
    let report: Value =
        serde_json::from_str(&stdout_of(&["check", arg(&config), "--json"])).unwrap();
    assert_eq!(report["version"], 1);
    let top = &report["devices"]["top"];
    assert_eq!(top["type"], "passthrough");
    assert_eq!(top["size_bytes"], 8192);
    assert_eq!(top["children"], json!(["file"]));
    let export = &report["exports"]["vol"];
    assert_eq!(export["device"], "top");
    assert_eq!(export["listen"], "tcp:127.0.0.1:10809");
}

#[test]
fn the_graph_is_in_the_language_of_graphviz() {
    let (_dir, config) = config("dot");
    let dot = stdout_of(&["check", arg(&config), "--dot"]);
    assert!(dot.starts_with("digraph") && dot.ends_with("}\n"), "{dot}");
    assert!(dot.contains("\"top\" -> \"file\";"), "{dot}");
}

/// Tests that every export is shown with the protocol from its configuration.
#[test]
fn exports_are_called_by_their_protocols() {
    let dir = Scratch::new("protocols");
    let mut text = "[device.a]\ntype = \"memory\"\nsize = \"1MiB\"\n".to_owned();
    for protocol in ["nbd", "brp"] {
        text += &format!(
            "[export.of_{protocol}]\ndevice = \"a\"\nprotocol = \"{protocol}\"\n\
             listen = \"unix:{protocol}.sock\"\n"
        );
    }
    let config = dir.text("c.toml", &text);
    let tree = stdout_of(&["check", arg(&config)]);
    let report: Value =
        serde_json::from_str(&stdout_of(&["check", arg(&config), "--json"])).unwrap();
    for protocol in ["nbd", "brp"] {
        let name = format!("of_{protocol}");
        let line = format!("export {name}  {protocol} of a at ");
        assert!(tree.contains(&line), "{tree}");
        assert_eq!(report["exports"][&name]["protocol"], protocol);
    }
}

/// Tests `check` with a device that no export uses and whose file does not exist yet. A new device
/// is in this state before `side add`.
#[test]
fn a_missing_file_of_a_device_that_no_export_uses_is_said_and_no_mistake() {
    let (dir, config) = config("unused");
    let text = std::fs::read_to_string(&config).unwrap();
    let new = "[device.new]\ntype = \"file\"\npath = \"new.img\"\n\
        [device.mirror]\ntype = \"mirror\"\nsides = [\"new\", \"other\"]\n\
        [device.other]\ntype = \"passthrough\"\nbelow = \"sized\"\n\
        [device.sized]\ntype = \"file\"\npath = \"sized.img\"\nsize = \"32MiB\"\n";
    let config = dir.text("unused.toml", &format!("{text}{new}"));
    let tree = stdout_of(&["check", arg(&config)]);
    let said = tree
        .lines()
        .filter(|line| line.contains("no export uses the device"));
    assert_eq!(said.count(), 2, "{tree}");
    let report: Value =
        serde_json::from_str(&stdout_of(&["check", arg(&config), "--json"])).unwrap();
    for device in ["new", "sized"] {
        assert_eq!(report["devices"][device]["state"], "missing");
        assert_eq!(report["devices"][device]["size_bytes"], Value::Null);
    }
    assert_eq!(report["devices"]["mirror"]["state"], "not formatted");
    // If an export uses the device, its missing file is an error.
    let used = dir.text(
        "used.toml",
        &format!("{text}{new}").replace("\"top\"", "\"other\""),
    );
    assert_refused(
        &["check", arg(&used)],
        1,
        &["device sized", "bimetal format"],
    );
}

/// Tests that `format` creates the files that `check` reports as missing, even if the configuration
/// has no mirror.
#[test]
fn format_makes_what_check_misses_without_a_mirror() {
    let dir = Scratch::new("made");
    let text = CONFIG.replace("\"a.img\"", "\"a.img\"\nsize = \"1.1 GiB\"");
    let config = dir.text("c.toml", &text);
    assert_refused(
        &["check", arg(&config)],
        1,
        &["device file", "bimetal format"],
    );
    let said = stdout_of(&["format", arg(&config)]);
    assert!(said.starts_with("file: created "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    // 1.1 GiB are 1181116006.4 bytes, which contain 288358 whole blocks of 4096 bytes.
    let made = std::fs::metadata(dir.path("a.img")).unwrap().len();
    assert_eq!(made, 4096 * 288_358);
    let checked = stdout_of(&["check", arg(&config)]);
    assert!(checked.contains("file  file  1.1 GiB"), "{checked}");
    assert_refused(&["format", arg(&config)], 1, &["nothing to prepare"]);
}
