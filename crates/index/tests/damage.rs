//! Tests of changed bytes on the disk: no wrong answer is ever returned, and nothing panics.

use crate::world::lives::{changed_bytes, example, small};
use crate::world::{Draw, Shape, World};
use bimetal_index::storage::memory::{Faults, MemoryStorage};
use bimetal_index::{Db, Durability, Error, verify};
use std::sync::Arc;

/// Returns the distance from one tested byte to the next. The test changes one byte at a time. If
/// `BIMETAL_EVERY_BYTE` is set, every byte is tested, which takes minutes.
fn step() -> usize {
    match std::env::var_os("BIMETAL_EVERY_BYTE") {
        Some(_) => 1,
        None => 61,
    }
}

#[test]
fn no_byte_can_change_without_being_noticed() {
    let refused = changed_bytes(step());
    assert!(refused > 200, "{refused} were refused");
}

#[test]
fn verify_finds_a_byte_that_has_changed_in_any_node() {
    let world = example();
    world.db.write_back().expect("a write-back");
    let whole = verify(&world.disk, &mut |_, _| {}).expect("an index");
    assert_eq!((whole.problems_found, whole.problems.len()), (0, 0));
    assert!(
        whole.leaves > 5 && whole.inner_nodes > 0 && whole.blobs > 0,
        "{whole:?}"
    );
    let content = world.disk.content();
    let mut found = 0;
    for at in (world.options.log_bytes as usize + (64 << 10)..content.len()).step_by(127) {
        let mut flipped = content.clone();
        flipped[at] ^= 0x40;
        let disk = MemoryStorage::with_content(flipped);
        match verify(&disk, &mut |_, _| {}) {
            Ok(verified) => {
                for problem in &verified.problems {
                    let near = problem.offset.abs_diff(at as u64) < 64 << 10;
                    assert!(near || problem.offset == 0, "byte {at}: {problem:?}");
                }
                found += usize::from(verified.problems_found > 0);
            }
            Err(Error::Damaged { .. }) => found += 1,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    // One in 127 bytes was changed, so each detected change stands for 127 bytes. Together, the
    // detected changes must stand for nearly all live bytes.
    let in_use = found as u64 * 127;
    assert!(
        in_use > whole.live_bytes / 10 * 9,
        "{in_use} of {} bytes",
        whole.live_bytes
    );
}

#[test]
fn any_bytes_at_all_are_refused_in_words() {
    let mut draw = Draw::new(3);
    for len in [0, 1, 4096, 8192, 65536, 1 << 20] {
        for _ in 0..20 {
            let mut content: Vec<u8> = (0..len).map(|_| draw.number() as u8).collect();
            if len > 100 && draw.once_in(2) {
                content[..8].copy_from_slice(b"bimetidx");
            }
            let error = Db::open(MemoryStorage::with_content(content), &small()).err();
            assert!(
                matches!(
                    error,
                    Some(Error::NotAnIndex { .. } | Error::Damaged { .. })
                ),
                "{error:?}"
            );
        }
    }
}

/// A disk that acknowledges a flush and then loses the data is outside the fault model of the
/// index, so durable batches are lost. The comparison with the model must detect each such loss.
#[test]
fn a_disk_that_lies_about_flushes_is_found_out_by_the_tests() {
    let found = (0..40).filter(|seed| {
        let mut draw = Draw::new(*seed);
        let mut world = World::new(small()).expect("an index");
        let shape = Shape::draw(&mut draw);
        world.disk.lie_about_flushes();
        let from = world.disk.counts().operations;
        world.disk.set_faults(Faults {
            power_cut_at: Some(from + 40 + draw.below(100)),
            ..Faults::default()
        });
        while world
            .write(&shape.batch(&mut draw), Durability::Durable)
            .is_ok()
        {}
        let disk = Arc::new(world.disk.after_power_cut(&mut || 0));
        let reopened =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.reopen(disk).is_err()));
        reopened.unwrap_or(true)
    });
    assert_eq!(found.count(), 40, "what was promised is gone each time");
}
