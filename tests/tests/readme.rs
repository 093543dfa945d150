//! The commands of the README, as a newcomer pastes them: in an empty folder, as root, with the
//! built program in the path. Needs FUSE, loop devices and fio.

use bimetal_tests::client::{Client, Outcome};
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::binary;

/// Time limit for all commands in seconds; they take about twenty.
const PATIENCE_S: u64 = 180;

/// Returns the commands of the README: the content of its blocks of `sh`, in their order.
fn commands() -> Vec<String> {
    let readme = include_str!("../../README.md");
    let blocks = readme.split("\n```sh\n").skip(1);
    let commands = blocks.map(|block| block.split("\n```\n").next().unwrap_or(block));
    commands.map(str::to_owned).collect()
}

/// Runs commands in one shell, which fails with the first of them that fails. Whatever is left
/// mounted or running after a failure is removed.
fn paste(dir: &Scratch, commands: &str) -> Outcome {
    let bin = binary().parent().expect("a program is in a folder");
    let script = format!(
        "set -eu\n\
         PATH='{}':$PATH\n\
         leave() {{\n\
         umount mnt 2>/dev/null || true\n\
         bimetal unmount m --force 2>/dev/null || true\n\
         kill $(jobs -p) 2>/dev/null || true\n\
         }}\n\
         trap leave EXIT\n{commands}\n",
        bin.display()
    );
    Client::new("bash")
        .args(["-c", &script])
        .in_dir(dir.path())
        .within_s(PATIENCE_S)
        .ok()
}

#[test]
fn the_commands_of_the_readme_do_what_it_says() {
    let commands = commands();
    assert_eq!(commands.len(), 3, "the first volume, its end, and the kill");
    let dir = Scratch::new("readme");
    let outcome = paste(&dir, &commands.join("\n"));
    for words in ["healthy  vol", "\non both disks\n", "err= 0"] {
        assert!(outcome.stdout.contains(words), "{words:?}: {outcome}");
    }
    // The client was not told of the kill: each of its requests was answered, and one of them only
    // by the next server.
    let text = std::fs::read_to_string(dir.file("client.txt")).expect("the output of fio");
    assert!(!text.contains("error"), "{text}");
}
