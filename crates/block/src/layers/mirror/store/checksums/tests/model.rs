//! Tests of the checksum area against an array in memory, through failures, evictions and restarts.

use bimetal_rt::Rng;
use bimetal_rt::sync::TaskGroup;

use super::*;

fn random_range(rng: &mut Rng, within: &Range<u64>) -> Range<u64> {
    let start = rng.between(within.start, within.end - 1);
    start..(start + rng.between(1, 1500)).min(within.end)
}

/// One task performs all operations of the checksum area at random, and compares the area with an
/// array.
#[test]
fn it_agrees_with_an_array_through_failures_and_restarts() {
    let mut rng = Rng::new(5);
    for seed in 0..8 {
        let rig = Rig::failing(seed);
        let mut model = vec![NeverWritten; BLOCKS as usize];
        let mut sums = checksums(&rig, BLOCKS, 2);
        let (mut failed, mut restarts, mut loads) = (0, 0, 0);
        for _ in 0..400 {
            let range = random_range(&mut rng, &(0..BLOCKS));
            let part = range.start as usize..range.end as usize;
            match rng.below(10) {
                0..4 => {
                    let value = |_| match rng.below(4) {
                        0 => NeverWritten,
                        1 => Unknown,
                        _ => Digest(rng.between(2, u64::from(u32::MAX)) as u32),
                    };
                    let values: Vec<Expected> = part.clone().map(value).collect();
                    while rig.rt.block_on(sums.update(range.start, &values)).is_err() {
                        failed += 1;
                    }
                    model[part].copy_from_slice(&values);
                }
                4..8 => match rig.rt.block_on(sums.expected(range)) {
                    Ok(expected) => assert_eq!(expected, model[part]),
                    Err(error) => {
                        assert_eq!(error, IoError::Medium);
                        failed += 1;
                    }
                },
                8 => {
                    let page = rng.below(4);
                    rig.rt.block_on(sums.reset_page(page));
                    let end = BLOCKS.min((page + 1) * 1008) as usize;
                    model[page as usize * 1008..end].fill(Unknown);
                }
                _ => match rig.rt.block_on(sums.write_back()) {
                    Ok(()) => {
                        restarts += 1;
                        loads += statistic(&sums, "checksum_loads");
                        sums = checksums(&rig, BLOCKS, 2);
                    }
                    Err(error) => {
                        assert_eq!(error, IoError::Medium);
                        failed += 1;
                    }
                },
            }
            let cached_pages = statistic(&sums, "checksum_cached_pages") as usize;
            assert!(cached_pages <= sums.needed_pages().max(2));
        }
        assert!(failed > 20 && restarts > 10 && loads > 40);
    }
}

/// Several tasks change their own blocks on shared pages, and another task writes the pages back.
/// Values only grow, so a value on the device must not be lower than the value set before the
/// write.
#[test]
fn tasks_do_not_lose_each_others_values() {
    const TASKS: u64 = 5;
    for seed in 0..8 {
        let rig = Rc::new(Rig::failing(seed));
        let sums = Rc::new(checksums(&rig, BLOCKS, 2));
        let model = Rc::new(RefCell::new(vec![0u32; BLOCKS as usize]));
        let group = TaskGroup::new(&rig.rt);
        for task in 0..TASKS {
            let blocks = BLOCKS * task / TASKS..BLOCKS * (task + 1) / TASKS;
            let (rig, sums, model) = (rig.clone(), sums.clone(), model.clone());
            group.spawn(async move {
                let mut rng = Rng::new(seed * TASKS + task);
                for value in 3..300 {
                    let range = random_range(&mut rng, &blocks);
                    let part = range.start as usize..range.end as usize;
                    if rng.chance(0.5) {
                        let values = vec![Digest(value); part.len()];
                        while sums.update(range.start, &values).await.is_err() {}
                        model.borrow_mut()[part].fill(value);
                    } else if let Ok(expected) = sums.expected(range).await {
                        let entries = expected.into_iter().map(Expected::entry);
                        assert!(entries.eq(model.borrow()[part].iter().copied()));
                    }
                    rig.rt.sleep(Duration::from_micros(rng.below(2000))).await;
                }
            });
        }
        let (mut good, mut failed) = (0, 0);
        rig.rt.block_on(async {
            let mut ended = false;
            while !ended {
                ended = group.is_empty();
                let before = model.borrow().clone();
                if sums.write_back().await.is_err() {
                    failed += 1;
                    ended = false;
                    continue;
                }
                good += 1;
                // Pages are evicted from memory only after they were read back from the device.
                let verified = sums.verify().await;
                assert!(
                    matches!(verified, Ok(true) | Err(IoError::Medium)),
                    "{verified:?}"
                );
                for (block, before) in before.into_iter().enumerate() {
                    let found = entry_on_device(&rig, block as u64);
                    assert!(found >= before, "block {block}: {found} for {before}");
                }
                rig.rt.sleep(Duration::from_millis(1)).await;
            }
        });
        assert_eq!((sums.unwritten_pages(), sums.damaged()), (0, vec![]));
        let on_device = (0..BLOCKS).map(|block| entry_on_device(&rig, block));
        assert!(on_device.eq(model.borrow().iter().copied()));
        assert!(good > 10 && failed > 10);
        assert!(statistic(&sums, "checksum_loads") > 50, "pages come and go");
    }
}
