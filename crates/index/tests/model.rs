//! Test of an index against an ordered map: random batches, gets, scans, snapshots and openings.

use crate::world::lives::ordered_map;
use crate::world::{small_options, small_paper_options};

#[test]
fn an_index_is_an_ordered_map() {
    for seed in 0..60 {
        ordered_map(seed, small_options, 400);
    }
}

#[test]
fn an_index_under_the_papers_rules_is_an_ordered_map() {
    for seed in 0..30 {
        ordered_map(seed, small_paper_options, 400);
    }
}

#[test]
fn one_life_of_many_operations() {
    ordered_map(1_000_001, small_options, 8_000);
}
