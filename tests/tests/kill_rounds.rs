//! Tests the script `scripts/kill-rounds` by a short run of its campaign, so that the script works
//! when it is needed. In a campaign, a server is killed under SQLite on ext4, starting servers are
//! killed, and sides are removed. Needs root, FUSE and loop devices.

use bimetal_tests::client::{Client, Outcome};
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::binary;
use serde_json::Value;
use std::path::Path;

/// Number of rounds. In the third and the sixth round, servers are killed during or soon after
/// their start. In the fifth round, each side is removed once.
const ROUNDS: u64 = 6;

/// Runs the campaign with `program` as the server, in a new folder `folder`.
fn campaign(program: &Path, folder: &Path) -> Outcome {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/kill-rounds");
    // Small sides have small logs, so the slow disk is busy only for a short time when the server
    // starts.
    Client::new("python3")
        .args([script, "--json", "--seed", "1", "--side", "192"])
        .args(["--rounds", &ROUNDS.to_string()])
        .arg("--program")
        .arg(program)
        .arg("--folder")
        .arg(folder)
        .within_s(400)
        .run()
}

#[test]
fn what_a_database_committed_survives_kills_and_killed_openings() {
    let dir = Scratch::new("kr");
    let outcome = campaign(binary(), &dir.file("v"));
    println!("{outcome}");
    assert_eq!(outcome.status, Some(0), "{outcome}");
    let met: Value = serde_json::from_str(&outcome.stdout).expect("the sums as JSON");
    let count = |name: &str| {
        met[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {met}"))
    };
    assert_eq!(count("rounds"), ROUNDS);
    assert!(count("committed_rows") > 0 && count("synced_files") > 0);
    assert!((2..=6).contains(&count("openings_killed")), "{met}");
    assert_eq!(count("sides_taken_away"), 2);
    let alone = count("sides_alone_served") + count("sides_alone_refused");
    assert_eq!(alone, 2, "{met}");
    assert!(!dir.file("v").exists(), "nothing is left of it");
}
