//! Tests of the decision which sides make up the volume at an opening, with a test for each case of
//! the decision.

mod converted;
mod damaged;

use super::*;
use crate::layers::mirror::superblock::{
    Acknowledged, BlockDigest, EPOCHS_MAX, Listed, Remembered, SideFlags, SideLayout,
};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// Returns epoch `number` of branch `branch`. Sides that ran alone are on different branches.
fn epoch(branch: u8, number: u64, members: &[usize]) -> Epoch {
    let mut id = [branch; 16];
    id[..4].copy_from_slice(&(number as u32).to_le_bytes());
    Epoch {
        number,
        id,
        first_change: number * 100,
        members: members.iter().fold(0, |all, place| all | 1 << place),
        began_s: 0,
    }
}

fn history(epochs: &[Epoch]) -> History {
    History::of(epochs.to_vec()).unwrap()
}

pub(super) fn superblock(
    place: usize,
    sides: usize,
    state: SideState,
    history: History,
) -> Superblock {
    let uuid = |place: usize| [place as u8 + 1; 16];
    let complete_below = history.current().first_change;
    Superblock {
        volume: [0xee; 16],
        side: uuid(place),
        table: std::array::from_fn(|place| (place < sides).then(|| Listed::new(uuid(place)))),
        state,
        flags: SideFlags::default(),
        generation: 1,
        complete_below,
        volume_bytes: 11 << 20,
        layout: SideLayout::of_device(64 << 20, None).unwrap(),
        digest: BlockDigest::Xxh3,
        unknown_blocks: 0,
        created_s: 0,
        written_s: 1_577_836_800,
        name: "vol".to_owned(),
        history,
        remembered: Remembered::default(),
    }
}

fn side(place: usize, sides: usize, state: SideState, epochs: &[Epoch]) -> Seen {
    let found = superblock(place, sides, state, history(epochs));
    Seen::of(["a", "b", "c"][place], Ok(found))
}

fn absent(place: usize, why: Absence) -> Seen {
    Seen::of(["a", "b", "c"][place], Err(why))
}

fn at(complete_below: u64, seen: Seen) -> Seen {
    Seen {
        complete_below,
        ..seen
    }
}

fn not_durable(seen: Seen) -> Seen {
    Seen {
        durable: false,
        ..seen
    }
}

fn plan(seen: &[Seen]) -> Plan {
    decide(seen, &[], None).unwrap_or_else(|refusal| panic!("refused: {refusal}"))
}

fn indices(plan: &Plan) -> Vec<usize> {
    plan.sources.clone()
}

fn refusal(seen: &[Seen]) -> Refusal {
    decide(seen, &[], None).expect_err("this must not open")
}

fn together() -> Epoch {
    epoch(0, 1, &[A, B])
}

/// In this scenario Linux md loses 381 of 401 writes. The fast side had all writes and was flushed.
/// Then the fast side is missing, and the slow side, which lacks most of the writes, is started
/// alone.
#[test]
fn the_slow_side_alone_is_refused_until_it_is_known_to_be_complete() {
    let slow = |state, complete_below| at(complete_below, side(B, 2, state, &[together()]));
    let gone = || absent(A, Absence::Missing);
    let refused = refusal(&[gone(), slow(SideState::Dirty, 120)]);
    let expected = Refusal::FreshestMissing {
        missing: vec!["a".to_owned()],
        older: vec![],
        known_from: "b".to_owned(),
        known_until: 120,
        written_s: 1_577_836_800,
    };
    assert_eq!(refused, expected);
    let said = refused.to_string();
    assert!(said.contains("a is missing"), "{said}");
    assert!(said.contains("the last known change is 119"), "{said}");
    assert!(said.contains("2020-01-01 00:00:00 UTC"), "{said}");
    for state in [SideState::CleanIdle, SideState::Clean] {
        let plan = plan(&[gone(), slow(state, 501)]);
        assert_eq!((indices(&plan), plan.missing), (vec![B], vec![A]));
        assert_eq!(
            plan.counts_below,
            Some(501),
            "nothing beyond what is complete"
        );
        assert_eq!((plan.members, plan.forced), (0b10, None));
    }
    let fast = at(501, side(A, 2, SideState::Dirty, &[together()]));
    let both = plan(&[fast, slow(SideState::Dirty, 120)]);
    assert_eq!(indices(&both), [A, B]);
    assert_eq!((both.counts_below, both.complete_below), (None, 501));
    assert!(both.behind.is_empty());
}

#[test]
fn a_forced_opening_gives_the_last_boundary_and_begins_an_epoch_there() {
    let slow = at(120, side(B, 2, SideState::Dirty, &[together()]));
    let seen = [absent(A, Absence::Missing), slow];
    for force in [Force::ReadOnly, Force::Fork] {
        let plan = decide(&seen, &[], Some(force)).unwrap();
        assert_eq!(plan.forced, Some(force));
        assert_eq!(plan.counts_below, Some(120));
        let next = plan.next_epoch([9; 16], 777, 5);
        assert_eq!(
            (next.number, next.first_change, next.members),
            (2, 120, 0b10)
        );
    }
    // The absent side returns with changes up to 500. Its changes from 120 on are discarded,
    // because the fork began there.
    let fork = Epoch {
        first_change: 120,
        ..epoch(0, 2, &[B])
    };
    let alone = at(130, side(B, 2, SideState::Dirty, &[together(), fork]));
    let returned = at(501, side(A, 2, SideState::Dirty, &[together()]));
    let plan = plan(&[returned, alone]);
    assert_eq!(indices(&plan), [B]);
    let since = Behind::Since {
        epoch: 1,
        discard_from: 120,
    };
    assert_eq!(plan.behind, [(A, since)]);
}

#[test]
fn changes_count_up_to_the_lowest_first_change_that_followed() {
    let later = epoch(0, 2, &[B, C]);
    let fork = Epoch {
        first_change: 90,
        ..epoch(0, 3, &[B])
    };
    let first = epoch(0, 1, &[A, B, C]);
    let seen = [
        side(A, 3, SideState::Dirty, &[first]),
        side(B, 3, SideState::Dirty, &[first, later, fork]),
        side(C, 3, SideState::Dirty, &[first, later]),
    ];
    let since = |epoch| Behind::Since {
        epoch,
        discard_from: 90,
    };
    assert_eq!(plan(&seen).behind, [(A, since(1)), (C, since(2))]);
}

#[test]
fn sides_that_each_ran_alone_are_split_whatever_their_numbers_are() {
    let of_a = [together(), epoch(1, 2, &[A])];
    let of_b = [
        together(),
        epoch(2, 2, &[B]),
        epoch(2, 3, &[B]),
        epoch(2, 4, &[B]),
    ];
    for state in [SideState::Clean, SideState::Dirty, SideState::CleanIdle] {
        let seen = [
            side(A, 2, SideState::Clean, &of_a),
            side(B, 2, state, &of_b),
        ];
        for force in [None, Some(Force::ReadOnly), Some(Force::Fork)] {
            let refused = decide(&seen, &[], force).expect_err("split");
            let split = Split {
                sides: ["a".to_owned(), "b".to_owned()],
                since_epoch: Some(1),
            };
            let splits = vec![split];
            assert_eq!(refused, Refusal::SplitBrain { splits });
        }
        for (name, place, other) in [("b", A, B), ("a", B, A)] {
            let plan = decide(&seen, &[name.to_owned()], None).unwrap();
            assert_eq!(indices(&plan), [place]);
            assert_eq!(plan.behind, [(other, Behind::Everything)]);
        }
    }
    // Once the rebuild has begun, the split is resolved.
    let seen = [
        side(A, 2, SideState::Dirty, &of_a),
        side(B, 2, SideState::Inconsistent, &of_b),
    ];
    let plan = plan(&seen);
    assert_eq!(indices(&plan), [A]);
    assert_eq!(plan.behind, [(B, Behind::Everything)]);
}

/// The only member of the newest epoch received all changes up to 200, and lost the unflushed ones
/// in a crash. The side that was left out earlier still has some of the lost changes. No reader can
/// rely on them, so that side must not bring them back.
#[test]
fn what_the_members_have_lost_counts_on_no_other_side() {
    let mut alone = at(
        178,
        side(A, 2, SideState::Dirty, &[together(), epoch(0, 2, &[A])]),
    );
    let superblock = alone.found.as_mut().expect("it has one");
    superblock.complete_below = 160;
    let late = at(182, side(B, 2, SideState::Dirty, &[together()]));
    let opened = plan(&[alone, late]);
    // The changes of side A are valid up to the same number as without side B.
    assert_eq!(
        (indices(&opened), opened.counts_below),
        (vec![A], Some(178))
    );
    let since = Behind::Since {
        epoch: 1,
        discard_from: 178,
    };
    assert_eq!(opened.behind, [(B, since)]);
}

/// The only member of the newest epoch has lost its unflushed changes, from sequence number 178 on,
/// in a crash, and is opened while the other side is absent. The absent side might still have one
/// of the lost changes when it returns. So the opening discards all changes from 178 on.
#[test]
fn what_a_member_has_lost_counts_on_no_side_that_comes_back_later() {
    let mut alone = at(
        178,
        side(A, 2, SideState::Dirty, &[together(), epoch(0, 2, &[A])]),
    );
    alone.found.as_mut().expect("it has one").complete_below = 160;
    let opened = plan(&[alone.clone(), absent(B, Absence::Missing)]);
    assert_eq!(opened.counts_below, Some(178));
    let began = opened.next_epoch([9; 16], 215, 0);
    assert_eq!(began.first_change, 178);
    let superblock = alone.found.as_mut().expect("it has one");
    superblock.history.push(began);
    alone.complete_below = 300;
    let late = at(182, side(B, 2, SideState::Dirty, &[together()]));
    let since = Behind::Since {
        epoch: 1,
        discard_from: 178,
    };
    assert_eq!(plan(&[alone, late]).behind, [(B, since)]);
}

#[test]
fn the_only_member_of_an_epoch_starts_alone_after_a_crash() {
    let of_a = [together(), epoch(0, 2, &[A])];
    let alone = at(260, side(A, 2, SideState::Dirty, &of_a));
    let started = plan(&[alone.clone(), absent(B, Absence::Missing)]);
    assert_eq!((indices(&started), started.missing), (vec![A], vec![B]));
    // Side A has every change below 260. It may have received a later change and lost it in the
    // crash, while side B might still have that change. So all changes from 260 on are discarded.
    assert_eq!(started.counts_below, Some(260), "what is not complete");
    let out_of_sync = side(B, 2, SideState::Dirty, &[together()]);
    let started = plan(&[alone, out_of_sync.clone()]);
    assert_eq!(indices(&started), [A]);
    let since = Behind::Since {
        epoch: 1,
        discard_from: 200,
    };
    assert_eq!(started.behind, [(B, since)]);
    // Side B lacks the newest epoch, so it must not start alone.
    let refused = refusal(&[absent(A, Absence::Missing), out_of_sync]);
    assert!(matches!(refused, Refusal::FreshestMissing { .. }));
}

#[test]
fn a_member_that_was_not_told_of_the_newest_epoch_is_a_source() {
    let first = epoch(0, 1, &[A, B, C]);
    let acknowledged = [first, epoch(0, 2, &[A, B]), epoch(0, 3, &[A, B])];
    let seen = [
        side(A, 3, SideState::Dirty, &acknowledged),
        side(B, 3, SideState::Dirty, &[first]),
        side(C, 3, SideState::Dirty, &[first]),
    ];
    let both = plan(&seen);
    assert_eq!((indices(&both), both.members), (vec![A, B], 0b11));
    assert_eq!(both.discards, [], "whoever read the logs has seen to it");
    for (log_epoch, discards) in [(1, vec![(B, 200)]), (2, vec![(B, 300)]), (3, vec![])] {
        let mut seen = seen.clone();
        seen[B].log_epoch = Some(log_epoch);
        assert_eq!(plan(&seen).discards, discards);
    }
    assert!(matches!(
        both.behind[..],
        [(C, Behind::Since { epoch: 1, .. })]
    ));
    // Without side A, which has the newest epoch, the sides B and C do not know that this epoch
    // exists. The opening is refused, because side A might be ahead.
    let mut rest = seen;
    rest[A] = absent(A, Absence::Missing);
    assert!(matches!(refusal(&rest), Refusal::FreshestMissing { .. }));
    // Side B is clean, but its newest epoch is older than that of side A. A clean side proves
    // nothing about an epoch that it has not recorded.
    let seen = [
        side(A, 3, SideState::Dirty, &acknowledged[..2]),
        at(200, side(B, 3, SideState::Clean, &[first])),
        absent(C, Absence::Missing),
    ];
    assert_eq!(indices(&plan(&seen)), [A, B]);
    let mut seen = seen;
    seen[A] = side(A, 3, SideState::Dirty, &[first, epoch(0, 2, &[A, B, C])]);
    assert!(matches!(refusal(&seen), Refusal::FreshestMissing { .. }));
}

#[test]
fn an_inconsistent_side_is_never_a_source() {
    let of_a = [together(), epoch(0, 2, &[A])];
    let joined = [together(), epoch(0, 2, &[A]), epoch(0, 3, &[A, B])];
    for state in [SideState::Dirty, SideState::CleanIdle, SideState::Clean] {
        let mut seen = [
            side(A, 2, state, &joined),
            side(B, 2, SideState::Inconsistent, &[together()]),
        ];
        // The join uses up a sequence number.
        let took = u64::from(state != SideState::Dirty);
        seen[A].found.as_mut().unwrap().complete_below += took;
        let plan = plan(&seen);
        // Without side B, the changes of side A would be valid up to the same number.
        let counts_below = Some(300 + took);
        assert_eq!((indices(&plan), plan.counts_below), (vec![A], counts_below));
        // If side A is clean or clean-idle, side B has completed its join. But the side B that is
        // present in this test lacks the epoch of the join. So it is an old copy of side B, from
        // before the join.
        let behind = match state {
            SideState::Dirty => Behind::Since {
                epoch: 1,
                discard_from: 200,
            },
            _ => Behind::Everything,
        };
        assert_eq!(plan.behind, [(B, behind)]);
    }
    let alone = [
        absent(A, Absence::Missing),
        side(B, 2, SideState::Inconsistent, &[together()]),
    ];
    for force in [None, Some(Force::Fork)] {
        let refused = decide(&alone, &[], force).expect_err("nothing to open");
        assert!(matches!(refused, Refusal::OnlyInconsistent { .. }));
    }
    // The history of a side that is marked inconsistent records which changes the side lacks. The
    // decision uses this history even if the newest epoch lists the side as a member.
    let acknowledged = |behind: Behind| {
        let history = behind.history(&history(&of_a), B);
        Seen::of("b", Ok(superblock(B, 2, SideState::Inconsistent, history)))
    };
    let since = Behind::Since {
        epoch: 1,
        discard_from: 200,
    };
    let elsewhere = [together(), epoch(7, 2, &[A])];
    for behind in [since, Behind::Everything] {
        let own = acknowledged(behind)
            .found
            .unwrap()
            .last_epoch()
            .map(|epoch| epoch.number);
        assert_eq!(own, (behind == since).then_some(1));
        for epochs in [&of_a[..], &joined[..]] {
            let seen = [side(A, 2, SideState::Dirty, epochs), acknowledged(behind)];
            assert_eq!(plan(&seen).behind, [(B, behind)]);
        }
        // The content copied to side B belongs to a discarded history, so side B lacks everything.
        let seen = [
            side(A, 2, SideState::Dirty, &elsewhere),
            acknowledged(behind),
        ];
        assert_eq!(plan(&seen).behind, [(B, Behind::Everything)]);
    }
    // The inconsistent side proves that a later epoch exists. The only member of that epoch is
    // missing, so the opening is refused.
    let first = epoch(0, 1, &[A, B, C]);
    let seen = [
        absent(A, Absence::Missing),
        side(B, 3, SideState::Inconsistent, &[first, epoch(0, 2, &[A])]),
        side(C, 3, SideState::Clean, &[first]),
    ];
    assert!(matches!(refusal(&seen), Refusal::FreshestMissing { .. }));
    assert_eq!(
        indices(&decide(&seen, &[], Some(Force::Fork)).unwrap()),
        [C]
    );
}

#[test]
fn an_older_copy_of_a_side_is_made_anew() {
    let older = |state, complete_below| {
        let mut seen = side(B, 2, state, &[together()]);
        seen.complete_below = complete_below;
        seen
    };
    // A clean or clean-idle peer shows that every member had all changes.
    for state in [SideState::Clean, SideState::CleanIdle] {
        let mut whole = side(A, 2, state, &[together()]);
        whole.found.as_mut().unwrap().complete_below = 500;
        for copy in [SideState::Clean, SideState::Dirty, SideState::CleanIdle] {
            let plan = plan(&[whole.clone(), older(copy, 499)]);
            assert_eq!(indices(&plan), [A], "{state:?} {copy:?}");
            assert_eq!(plan.behind, [(B, Behind::Everything)]);
        }
        assert_eq!(
            indices(&plan(&[whole, older(SideState::Dirty, 500)])),
            [A, B]
        );
    }
    // The log of a dirty peer records a number: every member had all changes below this number. A
    // side that lacks one of these changes is an older copy. The newest copy of that side might
    // have more changes than the peer.
    let mut active = at(500, side(A, 2, SideState::Dirty, &[together()]));
    active.shared_below = 300;
    assert_eq!(
        indices(&plan(&[active.clone(), older(SideState::Dirty, 300)])),
        [A, B]
    );
    let refused = refusal(&[active.clone(), older(SideState::Dirty, 299)]);
    let said = refused.to_string();
    assert!(
        said.contains("b is present only as an older copy"),
        "{said}"
    );
    // If a peer has more changes than a clean side, the clean side is an older copy: it would have
    // been marked dirty before the peer received more changes.
    active.shared_below = 0;
    let seen = [active, older(SideState::Clean, 499)];
    assert!(matches!(refusal(&seen), Refusal::FreshestMissing { .. }));
    let plan = decide(&seen, &["b".to_owned()], None).unwrap();
    assert_eq!(plan.behind, [(B, Behind::Everything)]);
}

/// A dirty-region bitmap omits changes that all members had. So a copy of a side from before such
/// changes lacks more than the bitmap shows, and is rebuilt completely.
#[test]
fn a_copy_from_before_a_side_was_a_member_again_is_made_anew() {
    let [left, joined, newest] = [epoch(0, 2, &[A]), epoch(0, 3, &[A, B]), epoch(0, 4, &[A])];
    let of = |epochs: &[Epoch], state| {
        let seen = [
            side(A, 2, SideState::Dirty, epochs),
            side(B, 2, state, &[together()]),
        ];
        plan(&seen).behind
    };
    let since = Behind::Since {
        epoch: 1,
        discard_from: 200,
    };
    assert_eq!(of(&[together(), left], SideState::Clean), [(B, since)]);
    let all = [together(), left, joined, newest];
    for state in [SideState::Clean, SideState::Dirty, SideState::Inconsistent] {
        assert_eq!(of(&all, state), [(B, Behind::Everything)]);
    }
    // The crash may have come before side B had joined. The log of side A proves that side B had
    // joined if its `shared_below` is above the first change of the newest epoch.
    let mut seen = [
        side(A, 2, SideState::Dirty, &all[..3]),
        side(B, 2, SideState::Inconsistent, &all[..1]),
    ];
    assert_eq!(plan(&seen).behind, [(B, since)]);
    seen[A].complete_below = 301;
    seen[A].shared_below = 301;
    assert!(
        refusal(&seen)
            .to_string()
            .contains("b is present only as an older copy")
    );
    let forced = decide(&seen, &[], Some(Force::Fork)).unwrap();
    assert_eq!(forced.behind, [(B, Behind::Everything)]);
    // A side is marked inconsistent before content is copied to it, and stays so until the copy is
    // complete. Side B is dirty instead, so it is not a side whose join was interrupted, but an
    // older copy of a member.
    seen[A].shared_below = 0;
    seen[B] = side(B, 2, SideState::Dirty, &all[..1]);
    assert!(
        refusal(&seen)
            .to_string()
            .contains("b is present only as an older copy")
    );
}

#[test]
fn sides_that_are_not_durable_may_be_missing_but_not_the_durable_ones() {
    let active = |place| side(place, 2, SideState::Dirty, &[together()]);
    for why in [
        Absence::Missing,
        Absence::NoVolume,
        Absence::Damaged("torn".to_owned()),
    ] {
        let started = plan(&[active(A), not_durable(absent(B, why))]);
        assert_eq!((indices(&started), started.missing), (vec![A], vec![B]));
        assert_eq!(started.counts_below, Some(100));
    }
    for state in [SideState::Clean, SideState::CleanIdle, SideState::Dirty] {
        let left = not_durable(side(B, 2, state, &[together()]));
        let refused = refusal(&[absent(A, Absence::Missing), left]);
        assert!(
            matches!(refused, Refusal::FreshestMissing { .. }),
            "{state:?}"
        );
    }
    let alone = not_durable(side(
        B,
        2,
        SideState::Dirty,
        &[together(), epoch(0, 2, &[B])],
    ));
    assert_eq!(indices(&plan(&[absent(A, Absence::Missing), alone])), [B]);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let a = || side(A, 2, SideState::Clean, &[together()]);
    let b = || side(B, 2, SideState::Clean, &[together()]);
    let mut foreign = b();
    foreign.found.as_mut().unwrap().volume = [0xdd; 16];
    assert!(matches!(refusal(&[a(), foreign]), Refusal::Foreign { .. }));
    let twin = Seen {
        name: "b".to_owned(),
        ..a()
    };
    assert!(matches!(
        refusal(&[a(), twin]),
        Refusal::SameSideTwice { .. }
    ));
    let mut replaced = b();
    replaced.found.as_mut().unwrap().table[B] = Some(Listed::new([9; 16]));
    replaced.found.as_mut().unwrap().side = [9; 16];
    let without = plan(&[a(), replaced]);
    assert_eq!(indices(&without), [A]);
    assert_eq!(without.missing, [B], "it is none of the volume any more");
    let extra = absent(C, Absence::Missing);
    let refused = refusal(&[a(), b(), extra]);
    let expected = Refusal::WrongNumberOfSides {
        formatted: 2,
        configured: 3,
    };
    assert_eq!(refused, expected);
    let blank = [absent(A, Absence::Missing), absent(B, Absence::NoVolume)];
    assert!(matches!(refusal(&blank), Refusal::NotAVolume { .. }));
    let refused = refusal(&[a(), absent(B, Absence::Damaged("torn".to_owned()))]);
    assert!(matches!(refused, Refusal::DamagedSuperblock { .. }));
    let gone = [
        absent(A, Absence::Missing),
        absent(B, Absence::Unreadable("medium error".to_owned())),
    ];
    assert!(matches!(refusal(&gone), Refusal::TooFew { .. }));
    let refused = decide(&[a(), b()], &["z".to_owned()], None).expect_err("no such side");
    assert!(matches!(refused, Refusal::UnknownSide { .. }));
    let both = ["a".to_owned(), "b".to_owned()];
    let refused = decide(&[a(), b()], &both, None).expect_err("nothing is left");
    assert!(matches!(refused, Refusal::OnlyInconsistent { .. }));
}

/// A discarded side whose superblock was overwritten is formatted again, and keeps its place in the
/// table of sides.
#[test]
fn a_side_without_a_superblock_can_be_given_up() {
    let given_up = ["b".to_owned()];
    for state in [SideState::Clean, SideState::Dirty] {
        let whole = at(130, side(A, 2, state, &[together()]));
        let seen = [whole, absent(B, Absence::NoVolume)];
        // If the operator does not discard side B, the blank device of side B is not formatted.
        // Side B is then treated as a missing side, and might be ahead.
        let missing = [seen[0].clone(), absent(B, Absence::Missing)];
        let decided = |seen: &[Seen]| decide(seen, &[], None);
        assert_eq!(decided(&seen), decided(&missing));
        assert_eq!(decided(&seen).is_ok(), state == SideState::Clean);
        let plan = decide(&seen, &given_up, None).unwrap();
        assert_eq!((indices(&plan), &plan.made[..]), (vec![A], &[(B, B)][..]));
        assert_eq!(plan.counts_below, Some(130), "what only it had is lost");
    }
}

#[test]
fn an_epoch_that_nobody_remembers_is_not_taken_for_an_ancestor() {
    let mut long = history(&[together()]);
    (2..=EPOCHS_MAX as u64).for_each(|number| long.push(epoch(0, number, &[A])));
    let seen = |long: &History| {
        let newest = superblock(A, 2, SideState::Dirty, long.clone());
        [
            Seen::of("a", Ok(newest)),
            side(B, 2, SideState::Dirty, &[together()]),
        ]
    };
    let known = plan(&seen(&long));
    assert!(matches!(
        known.behind[..],
        [(B, Behind::Since { epoch: 1, .. })]
    ));
    long.push(epoch(0, EPOCHS_MAX as u64 + 1, &[A]));
    let refused = refusal(&seen(&long));
    let expected = Refusal::HistoryTooOld {
        side: "b".to_owned(),
        epoch: 1,
    };
    assert_eq!(refused, expected);
    let plan = decide(&seen(&long), &["b".to_owned()], None).unwrap();
    assert_eq!(plan.behind, [(B, Behind::Everything)]);
}

/// Returns side A after it ran alone for more epochs than a history holds. Its table has the given
/// record for side B.
fn long_after(acknowledged: Acknowledged) -> Seen {
    let mut long = history(&[together()]);
    (2..=EPOCHS_MAX as u64 + 5).for_each(|number| long.push(epoch(0, number, &[A])));
    let mut newest = superblock(A, 2, SideState::Dirty, long);
    newest.table[B].as_mut().unwrap().acknowledged = acknowledged;
    Seen::of("a", Ok(newest))
}

#[test]
fn an_epoch_that_the_table_names_for_a_side_is_an_ancestor() {
    let first = together();
    let second = epoch(0, 2, &[A, B]);
    // The table of side A records both epochs for side B, because side B failed while the second
    // epoch was being written to its superblock.
    let acknowledged = Acknowledged::one_of(Some(first.id), Some(second.id));
    let newest = long_after(acknowledged);
    for epochs in [&[first][..], &[first, second]] {
        for state in [SideState::Dirty, SideState::CleanIdle, SideState::Clean] {
            let left = at(9_999, side(B, 2, state, epochs));
            let plan = plan(&[newest.clone(), left]);
            assert_eq!(indices(&plan), [A]);
            assert_eq!(plan.behind, [(B, Behind::Everything)]);
        }
    }
    // Started alone, the side is refused as always.
    let alone = [
        absent(A, Absence::Missing),
        side(B, 2, SideState::Dirty, &[first]),
    ];
    assert!(matches!(refusal(&alone), Refusal::FreshestMissing { .. }));
}

#[test]
fn what_the_table_names_is_that_epoch_of_that_side_and_nothing_else() {
    let first = together();
    let newest = || long_after(Acknowledged::one_of(Some(first.id), None));
    let too_old = |seen: &[Seen]| matches!(refusal(seen), Refusal::HistoryTooOld { .. });
    // The side has since run alone, by force.
    let alone = side(B, 2, SideState::Dirty, &[first, epoch(7, 2, &[B])]);
    assert!(too_old(&[newest(), alone]));
    // Side B also ran alone, for more epochs than side A. Its epoch has a higher number than every
    // epoch that the history of side A has dropped. So the epoch was never in that history: the
    // sides have diverged.
    let mut far = history(&[first]);
    (2..=EPOCHS_MAX as u64 + 9).for_each(|number| far.push(epoch(7, number, &[B])));
    let far = Seen::of("b", Ok(superblock(B, 2, SideState::Dirty, far)));
    assert!(matches!(
        refusal(&[newest(), far]),
        Refusal::SplitBrain { .. }
    ));
    // Side B is an older copy of itself: its superblock is at an earlier epoch than the one that
    // the table of side A records for side B.
    let second = epoch(0, 2, &[A, B]);
    let later = long_after(Acknowledged::one_of(Some(second.id), Some(second.id)));
    assert!(too_old(&[later, side(B, 2, SideState::Dirty, &[first])]));
    // A new side has the place of side B in the table. The old side B, which has left the volume,
    // comes back.
    let mut replaced = newest();
    let table = &mut replaced.found.as_mut().unwrap().table;
    table[B].as_mut().unwrap().side = [9; 16];
    assert!(too_old(&[replaced, side(B, 2, SideState::Dirty, &[first])]));
    // The table records no epoch for side B. This empty record must not match an epoch whose
    // identifier is all zeroes.
    let nameless = Epoch {
        id: [0; 16],
        ..first
    };
    let unknown = long_after(Acknowledged::default());
    assert!(too_old(&[
        unknown,
        side(B, 2, SideState::Dirty, &[nameless])
    ]));
}

#[test]
fn the_newest_history_has_the_table_that_decides() {
    let first = epoch(0, 1, &[A, B, C]);
    let mut long = history(&[first, epoch(0, 2, &[A, B])]);
    (3..=EPOCHS_MAX as u64 + 5).for_each(|number| long.push(epoch(0, number, &[A])));
    let tables = |by_a: Acknowledged, by_b: Acknowledged| {
        let mut newest = superblock(A, 3, SideState::Dirty, long.clone());
        newest.table[C].as_mut().unwrap().acknowledged = by_a;
        newest.table[B].as_mut().unwrap().acknowledged =
            Acknowledged::one_of(Some(epoch(0, 2, &[]).id), None);
        let mut left = superblock(
            B,
            3,
            SideState::Dirty,
            history(&[first, epoch(0, 2, &[A, B])]),
        );
        left.table[C].as_mut().unwrap().acknowledged = by_b;
        let oldest = side(C, 3, SideState::Dirty, &[first]);
        [Seen::of("a", Ok(newest)), Seen::of("b", Ok(left)), oldest]
    };
    let acknowledged = Acknowledged::one_of(Some(first.id), None);
    let opened = plan(&tables(acknowledged, Acknowledged::default()));
    let everything = [(B, Behind::Everything), (C, Behind::Everything)];
    assert_eq!(
        (indices(&opened), &opened.behind[..]),
        (vec![A], &everything[..])
    );
    let refused = refusal(&tables(Acknowledged::default(), acknowledged));
    assert!(matches!(refused, Refusal::HistoryTooOld { side, .. } if side == "c"));
}

/// Creates a history with one epoch for each list of members. Returns the table as it is when
/// another epoch is about to be added to that history. `found` holds two epochs of side B: that of
/// its durable superblock, and that of its superblock write in flight; `None` if side B is absent.
fn remembered(members: &[&[usize]], mut table: Table, found: Option<(Uuid, Uuid)>) -> Table {
    let numbered = members.iter().zip(1..);
    let epochs: Vec<Epoch> = numbered.map(|(of, number)| epoch(0, number, of)).collect();
    let b = table[B].unwrap().side;
    remember(&mut table, &history(&epochs), |side| {
        found.filter(|_| *side == b)
    });
    table
}

#[test]
fn the_table_says_what_each_side_was_told_last() {
    let blank = || superblock(A, 2, SideState::Dirty, history(&[together()])).table;
    let id = |number| epoch(0, number, &[]).id;
    let may_be = |table: Table| {
        let acknowledged = table[B].unwrap().acknowledged;
        (1..=5)
            .filter(|number| acknowledged.may_be(&id(*number)))
            .collect::<Vec<u64>>()
    };
    let (both, one): (&[usize], &[usize]) = (&[A, B], &[A]);
    let there = |table, durable, written| {
        remembered(&[both, both, one], table, Some((id(durable), id(written))))
    };
    assert_eq!(may_be(there(blank(), 1, 2)), [1, 2]);
    // Side B is absent. The table keeps the recorded epoch of side B. If there is none, or if side
    // B is a member of the current epoch, the table adds the last epoch that has side B as a
    // member.
    let missing = |members: &[&[usize]], table| remembered(members, table, None);
    assert_eq!(may_be(missing(&[both, one], blank())), [1]);
    let known = there(blank(), 1, 1);
    assert_eq!(may_be(missing(&[both, both, both], known)), [1, 3]);
    assert_eq!(may_be(missing(&[both, one, one, one], known)), [1]);
    // A recorded epoch that was dropped from the history stays in the table. An epoch that was
    // never in the history is not recorded.
    let dropped = |id: Uuid| {
        let mut table = known;
        let later = history(&[epoch(0, 4, &[A]), epoch(0, 5, &[A])]);
        remember(&mut table, &later, |_| Some((id, id)));
        may_be(table)
    };
    assert_eq!(dropped(id(1)), [1]);
    assert_eq!(dropped(id(4)), [4]);
    let alone = epoch(7, 9, &[B]).id;
    assert_eq!(dropped(alone), [1]);
}
