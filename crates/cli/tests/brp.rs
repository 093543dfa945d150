//! BRP from the command line: what a target has, and a volume of it for NBD clients that outlives the
//! target.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Client, READ, Scratch, Served, WRITE, arg, assert_refused, stdout_of};
use serde_json::Value;

const CONFIG: &str = "[device.a]\ntype = \"file\"\npath = \"a.img\"\nsize = \"4MiB\"\n\
    [device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n\
    [export.vol]\ndevice = \"a\"\nprotocol = \"brp\"\nlisten = \"unix:brp.sock\"\n\
    [export.aux]\ndevice = \"m\"\nprotocol = \"brp\"\nlisten = \"unix:brp.sock\"\nread_only = true\n\
    description = \"spare\"\n\
    [server]\nlock_memory = false\nmemory = \"8MiB\"\n";

#[test]
fn a_target_says_what_it_has() {
    let dir = Scratch::new("exports");
    let config = dir.text("c.toml", CONFIG);
    dir.zeroes("a.img", 4 << 20);
    let served = Served::start(&config);
    let target = format!("unix:{}", arg(&dir.path("brp.sock")));
    let shown: Value = serde_json::from_str(&stdout_of(&["exports", &target, "--json"])).unwrap();
    let aux = &shown["exports"][0];
    assert_eq!(
        (&aux["name"], &aux["description"]),
        (&"aux".into(), &"spare".into())
    );
    assert_eq!(aux["size_bytes"], 1 << 20);
    let properties = aux["properties"].to_string();
    assert_eq!(properties, r#"["read-only","volatile","ephemeral"]"#);
    assert_eq!(shown["exports"][1]["name"], "vol");
    assert_eq!(shown["exports"][1]["properties"].to_string(), "[]");
    assert!(stdout_of(&["exports", &target]).contains("read-only"));
    assert_eq!(served.end("TERM").0, Some(0));
    assert_refused(&["exports", &target], 1, &["brp.sock", "No such file"]);
}

#[test]
fn an_nbd_client_does_not_notice_that_the_target_was_killed() {
    let dir = Scratch::new("proxy");
    let config = dir.text("c.toml", CONFIG);
    dir.zeroes("a.img", 4 << 20);
    let mut served = Served::start(&config);
    let target = format!("unix:{}", arg(&dir.path("brp.sock")));
    let listen = format!("unix:{}", arg(&dir.path("vol.sock")));
    let proxy = Served::run(&["proxy", &target, "--export", "vol", "--listen", &listen]);
    let mut client = Client::connect(&dir.path("vol.sock"));
    assert_eq!(client.size_bytes, 4 << 20);
    for round in 0..5_u8 {
        client.write(u64::from(round) * 4096, round + 1).unwrap();
        assert_eq!(served.end("KILL").0, None);
        // Asked while there is no target.
        client.ask(WRITE, 1 << 20, 4096, &[0x80 | round; 4096]);
        served = Served::start(&config);
        client.answer(0).unwrap();
        for written in 0..=round {
            let block = client.read(u64::from(written) * 4096).unwrap();
            assert_eq!(block, [written + 1; 4096]);
        }
        client.ask(READ, 1 << 20, 4096, &[]);
        assert_eq!(client.answer(4096).unwrap(), [0x80 | round; 4096]);
    }
    drop(client);
    assert_eq!(proxy.end("TERM"), (Some(0), String::new()));
    assert_eq!(served.end("TERM").0, Some(0));
}
