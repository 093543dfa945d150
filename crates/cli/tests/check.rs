//! `bimetal check` shows what a configuration means.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Scratch, arg, stdout_of};
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
