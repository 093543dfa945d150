//! Runs of the fuzz functions over bytes from seeds, as a part of the tests.

use crate::world::Draw;

fn random(draw: &mut Draw, len_max: u64) -> Vec<u8> {
    let len = draw.below(len_max);
    // The bytes are all equal, all small, or arbitrary: each kind finds different bugs.
    match draw.below(4) {
        0 => vec![draw.number() as u8; len as usize],
        1 => (0..len).map(|_| draw.below(4) as u8).collect(),
        _ => (0..len).map(|_| draw.number() as u8).collect(),
    }
}

fn many(target: fn(&[u8]), seeds: std::ops::Range<u64>, len_max: u64) {
    for seed in seeds {
        let bytes = random(&mut Draw::new(seed), len_max);
        if std::panic::catch_unwind(|| target(&bytes)).is_err() {
            panic!("seed {seed}");
        }
    }
}

/// Each input once made a fuzzer find a bug.
#[test]
fn what_was_found_is_not_found_again() {
    // A patch and the leaf below it, both with the highest sequence number.
    let mut leaf = vec![0; 48];
    leaf[14..33].fill(0xFF);
    let mut patches = vec![46, 0, 0, 0, 0, 0, 0, 0, 7, 0];
    patches.extend([leaf.clone(), leaf].concat());
    super::node(&patches);
    // An empty frame, and then a frame whose incarnation is older than the first incarnation.
    let frames = [36, 0, 17, 0, 0, 0, 255, 208, 0, 0, 2, 0, 255, 0, 4, 252, 4];
    super::log(&frames);
    // A frame whose last batch has no end.
    let mut frames = vec![0, 1, 198];
    frames.extend([1; 17]);
    frames.extend([0, 0, 4, 1, 0, 0, 4, 3, 1, 1, 0, 3, 0, 0, 1]);
    super::log(&frames);
    // An inner node whose children are all the same.
    super::content(&[10, 0, 0, 44]);
}

#[test]
fn any_bytes_as_a_node() {
    many(super::node, 0..20_000, 400);
}

#[test]
fn any_frames_as_a_log() {
    many(super::log, 0..2_000, 300);
}

#[test]
fn superblocks_and_checkpoints_with_anything_in_them() {
    many(super::superblock, 0..1_000, 24);
}

#[test]
fn an_index_with_anything_in_it() {
    many(super::content, 0..1_000, 40);
}

#[test]
fn any_operations_beside_a_map() {
    many(super::operations, 0..400, 1_000);
}
