//! Invariants of every policy under any sequence of accesses, flushes, discards and costs.

use super::*;
use proptest::prelude::*;

const PAGES: u32 = 40;

#[derive(Clone, Copy, Debug)]
enum Event {
    Access(PageId, bool),
    Cleaned(PageId),
    Remove(PageId),
    Cost(bool, u32, f64),
}

fn event() -> impl Strategy<Value = Event> {
    // Half of the accesses are to a few pages, so that hits, ghost hits and repeated uses occur.
    let page = prop_oneof![0..8u32, 0..PAGES];
    prop_oneof![
        20 => (page, any::<bool>()).prop_map(|(page, write)| Event::Access(page, write)),
        1 => (0..PAGES).prop_map(Event::Cleaned),
        1 => (0..PAGES).prop_map(Event::Remove),
        1 => (any::<bool>(), 0..70u32, any::<f64>()).prop_map(|(w, n, us)| Event::Cost(w, n, us)),
    ]
}

fn apply(driven: &mut Driven, event: Event) {
    match event {
        Event::Access(page, true) => drop(driven.access(page, Access::Write)),
        Event::Access(page, false) => drop(driven.access(page, Access::Read)),
        Event::Cleaned(page) => driven.cleaned(page),
        Event::Remove(page) => driven.remove(page),
        Event::Cost(true, pages, time_us) => {
            driven.policy.cost(DeviceCost::Flush { pages, time_us })
        }
        Event::Cost(false, pages, time_us) => {
            driven.policy.cost(DeviceCost::Read { pages, time_us })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Checks that every policy keeps no more pages in the cache than it has frames, loses no dirty
    /// page, and keeps no page twice.
    #[test]
    fn every_policy_keeps_the_contract(
        events in proptest::collection::vec(event(), 1..300),
        capacity in 1..24usize,
    ) {
        let future: Vec<PageId> = events.iter().filter_map(|event| match event {
            Event::Access(page, _) => Some(*page),
            _ => None,
        }).collect();
        for name in all_names() {
            let mut driven = Driven::new(built(&name, capacity, PAGES, &future));
            for event in &events {
                apply(&mut driven, *event);
                prop_assert!(driven.held.len() <= capacity, "{name}");
            }
            driven.check(PAGES);
            // After all pages have been discarded, the policy must neither cache nor remember any
            // page. The ids of these pages can then be used for other pages.
            for page in 0..PAGES {
                driven.remove(page);
                prop_assert!(!driven.policy.remembers(page), "{name}: {page}");
            }
            driven.check(PAGES);
            driven.read(3);
            driven.check(PAGES);
        }
    }

    /// Checks that no policy misses less than the optimum.
    #[test]
    fn nothing_beats_the_optimum(
        accesses in proptest::collection::vec((prop_oneof![0..8u32, 0..PAGES], any::<bool>()), 1..300),
        capacity in 1..24usize,
    ) {
        let future: Vec<PageId> = accesses.iter().map(|(page, _)| *page).collect();
        let misses = |name: &str| {
            let mut driven = Driven::new(built(name, capacity, PAGES, &future));
            let outcomes = accesses.iter().map(|(page, write)| match write {
                true => driven.write(*page),
                false => driven.read(*page),
            });
            outcomes.filter(|outcome| *outcome == Outcome::Miss).count()
        };
        let least = misses("belady");
        for name in all_names() {
            prop_assert!(misses(&name) >= least, "{name}");
        }
    }
}

#[test]
fn ids_that_grow_one_by_one_are_like_ids_known_before() {
    // The live cache introduces pages as they are accessed, while a simulator reserves all ids in
    // advance. Both must get the same decisions.
    for name in all_names() {
        let spec: Spec = name.parse().expect("a known policy");
        let build = Build {
            capacity: 20,
            pages_per_block: BLOCK,
            ..Build::default()
        };
        let (mut known, mut growing) = (spec.build(&build), spec.build(&build));
        known.reserve(200);
        let (mut first, mut second) = (Evictions::new(), Evictions::new());
        let place = |page: u32| PageAddress {
            block: page / BLOCK,
            offset: page % BLOCK,
        };
        for page in 0..200 {
            known.introduce(page, place(page));
        }
        for step in 0..1000u32 {
            let (page, access) = (step * step % (step / 5 + 1), Access::Write);
            growing.introduce(step / 5, place(step / 5));
            let outcomes = (
                known.access(page, access, &mut first),
                growing.access(page, access, &mut second),
            );
            assert_eq!(outcomes.0, outcomes.1, "{name}");
            assert!(first.groups().eq(second.groups()), "{name}");
        }
    }
}
