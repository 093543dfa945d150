//! A few rounds in which a BRP target is killed. `examples/brp_rounds.rs` can run any number of
//! rounds.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;
mod rounds;

use std::path::Path;

use common::Scratch;
use rounds::{Met, Stack, rounds};

/// Number of rounds on each stack.
const ROUNDS: u64 = 8;

fn slice(stack: Stack, name: &str) -> Result<Met, String> {
    let dir = Scratch::new(name);
    let binary = Path::new(env!("CARGO_BIN_EXE_bimetal"));
    rounds(binary, &dir.path(""), stack, 1, ROUNDS)
}

fn is_whole(stack: Stack, name: &str) {
    let met = slice(stack, name).unwrap();
    assert_eq!(met.rounds, ROUNDS);
    // Each round must kill the target while requests are in flight, since otherwise it tests
    // nothing.
    assert!(
        met.under_way >= ROUNDS && met.writes > 0 && met.flushes > 0,
        "{met:?}"
    );
    assert!(
        met.blocks_read >= ROUNDS * 256,
        "every block after every round: {met:?}"
    );
}

#[test]
fn nothing_is_lost_and_nothing_overtaken_on_a_file() {
    is_whole(Stack::File, "rounds-file");
}

#[test]
fn nothing_is_lost_and_nothing_overtaken_behind_a_cache() {
    is_whole(Stack::Cache, "rounds-cache");
}

/// Tests that the rounds detect a planted bug: a client that keeps no copies of unflushed writes.
#[test]
fn what_a_client_does_not_keep_is_found_missing() {
    let found = slice(Stack::Forgetful, "rounds-forget").unwrap_err();
    assert!(found.contains("holds write"), "{found}");
}
