//! Tests of BRP from the command line: the list of a target's exports, the access rules, and a
//! proxy for NBD clients. A client of the proxy must not notice that the target was killed and
//! restarted.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Client, READ, Scratch, Served, WRITE, arg, assert_refused, stdout_of};
use serde_json::Value;

const CONFIG: &str = "[device.a]\ntype = \"file\"\npath = \"a.img\"\nsize = \"4MiB\"\n\
    rotational = false\n[device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n\
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
        // The write is sent while no target runs.
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
    // The operator gets reports about broken and restored connections, and no other reports.
    let (status, said) = proxy.end("TERM");
    assert_eq!(status, Some(0), "{said}");
    let told = |words: &str| said.lines().filter(|line| line.contains(words)).count();
    let (broke, again) = (told("a connection failed"), told("connected again after"));
    assert!(broke >= 1 && again >= 1, "{said}");
    assert_eq!(broke + again, said.lines().count(), "{said}");
    assert_eq!(served.end("TERM").0, Some(0));
}

/// Returns the user id under which the tests run.
fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid()
}

#[test]
fn rules_say_what_a_user_may_see_and_change() {
    let dir = Scratch::new("rules");
    let uid = own_uid();
    let export = |name: &str, protocol: &str, rights: &str| {
        format!(
            "[export.{name}]\ndevice = \"m\"\nprotocol = \"{protocol}\"\nlisten = \"unix:{protocol}.sock\"\n\
             clients = [{{ uid = {uid}, rights = \"{rights}\" }}, {{ rights = \"hidden\" }}]\n"
        )
    };
    let text = [
        "[device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n".to_owned(),
        export("secret", "brp", "hidden"),
        export("seen", "brp", "read-only"),
        export("vol", "nbd", "read-only"),
        "[server]\nlock_memory = false\nmemory = \"8MiB\"\n".to_owned(),
    ];
    let served = Served::start(&dir.text("c.toml", &text.concat()));
    let target = format!("unix:{}", arg(&dir.path("brp.sock")));
    let shown: Value = serde_json::from_str(&stdout_of(&["exports", &target, "--json"])).unwrap();
    assert_eq!(shown["exports"].as_array().unwrap().len(), 1);
    assert_eq!(shown["exports"][0]["name"], "seen");
    assert_eq!(shown["exports"][0]["properties"][0], "read-only");
    let listen = format!("unix:{}", arg(&dir.path("far.sock")));
    for name in ["secret", "never"] {
        let words = ["no export with this name"];
        let proxy = ["proxy", &target, "--export", name, "--listen", &listen];
        assert_refused(&proxy, 1, &words);
    }
    let mut client = Client::connect(&dir.path("nbd.sock"));
    client.ask(WRITE, 0, 4096, &[1; 4096]);
    assert_eq!(client.answer(0), Err(1), "EPERM");
    assert_eq!(client.read(0).unwrap(), [0; 4096]);
    assert_eq!(served.end("TERM").0, Some(0));
}

/// Tests the access rules with a client that runs as another user, which only root can arrange. In
/// the test before this one, the client runs as the same user as the server.
#[test]
fn another_user_of_the_machine_is_served_by_the_rules_alone() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if own_uid() != 0 {
        println!("not run: only root can act as another user");
        return;
    }
    const NOBODY: u32 = 65534;
    let dir = Scratch::new("other");
    let directory = dir.path("c.toml");
    let directory = directory.parent().unwrap();
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    // The program is copied to a path at which every user can run it.
    let program = dir.path("bimetal");
    std::fs::copy(env!("CARGO_BIN_EXE_bimetal"), &program).unwrap();
    let text = format!(
        "[device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n\
         [export.open]\ndevice = \"m\"\nprotocol = \"brp\"\nlisten = \"unix:open.sock\"\n\
         clients = [{{ uid = {NOBODY}, rights = \"read-only\" }}]\n\
         [export.mine]\ndevice = \"m\"\nprotocol = \"brp\"\nlisten = \"unix:mine.sock\"\n\
         [server]\nlock_memory = false\nmemory = \"8MiB\"\n"
    );
    let served = Served::start(&dir.text("c.toml", &text));
    let as_nobody = |socket: &str| {
        let target = format!("unix:{}", arg(&dir.path(socket)));
        let mut command = std::process::Command::new(&program);
        command.args(["exports", &target]).uid(NOBODY).gid(NOBODY);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (status, text) = as_nobody("open.sock");
    assert!(status == Some(0) && text.contains("read-only"), "{text}");
    let (status, text) = as_nobody("mine.sock");
    assert!(status == Some(1) && text.contains("denied"), "{text}");
    // The access rules of the export apply even if the mode of the socket lets every user connect.
    let mine = dir.path("mine.sock");
    std::fs::set_permissions(mine, std::fs::Permissions::from_mode(0o666)).unwrap();
    let (status, text) = as_nobody("mine.sock");
    assert!(status == Some(1) && !text.contains("denied"), "{text}");
    // Rules that do not name root give root no rights.
    let target = format!("unix:{}", arg(&dir.path("open.sock")));
    let refused = common::bimetal(&["exports", &target]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(served.end("TERM").0, Some(0));
}
