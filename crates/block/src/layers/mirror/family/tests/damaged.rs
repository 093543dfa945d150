//! Tests of damaged sides. Their logs have lost durable entries, but their superblocks are still
//! evidence about the other sides.

use super::*;

fn damaged(seen: Seen) -> Seen {
    Seen {
        damaged: true,
        ..seen
    }
}

/// A side whose log has lost entries is not a source, but its superblock is still evidence. So an
/// older copy of another side is not accepted as the volume, although the only evidence against the
/// copy comes from the damaged side.
#[test]
fn a_damaged_side_still_tells_that_the_other_is_an_older_copy() {
    let older = at(250, side(A, 2, SideState::Dirty, &[together()]));
    let without = [together(), epoch(0, 2, &[B])];
    let later = [1, 2, 3].map(|number| epoch(0, number, &[A, B]));
    for state in [SideState::Dirty, SideState::Clean] {
        let left = damaged(at(250, side(B, 2, state, &without)));
        let mut acknowledged = damaged(at(250, side(B, 2, state, &later)));
        let table = &mut acknowledged.found.as_mut().unwrap().table;
        table[A].as_mut().unwrap().acknowledged =
            Acknowledged::one_of(Some(later[1].id), Some(later[1].id));
        for witness in [left, acknowledged] {
            let seen = [older.clone(), witness];
            let refused = refusal(&seen);
            let Refusal::FreshestMissing { older, missing, .. } = refused else {
                panic!("{refused}");
            };
            assert_eq!((older, missing), (vec!["a".to_owned()], vec![]));
            // The operator can still open the older copy, by discarding the damaged side.
            let given_up = decide(&seen, &["b".to_owned()], None);
            assert_eq!(indices(&given_up.expect("it is forced")), [A]);
        }
    }
    // A member that did not get the newest epoch yet is not an older copy.
    let unacknowledged = damaged(at(250, side(B, 2, SideState::Dirty, &later[..2])));
    assert_eq!(indices(&plan(&[older, unacknowledged])), [A]);
}

/// A damaged member is rebuilt from the other sides if they have every change that the member once
/// recorded as complete. Otherwise the opening is refused: the member might have acknowledged
/// changes that the other sides lack (T7).
#[test]
fn a_damaged_member_is_made_anew_unless_it_may_be_ahead() {
    let whole = || at(160, side(A, 2, SideState::Dirty, &[together()]));
    let found = |complete, shared| {
        let seen = damaged(at(complete, side(B, 2, SideState::Dirty, &[together()])));
        Seen {
            shared_below: shared,
            ..seen
        }
    };
    for (complete, shared) in [(160, 0), (100, 160)] {
        let plan = plan(&[whole(), found(complete, shared)]);
        assert_eq!(indices(&plan), [A]);
        assert_eq!(plan.behind, [(B, Behind::Everything)]);
    }
    for (complete, shared) in [(161, 0), (100, 161)] {
        let refused = refusal(&[whole(), found(complete, shared)]);
        assert!(
            matches!(refused, Refusal::FreshestMissing { .. }),
            "{refused}"
        );
    }
    // A clean source proves that no side is ahead of it.
    let clean = at(160, side(A, 2, SideState::Clean, &[together()]));
    assert_eq!(indices(&plan(&[clean, found(161, 0)])), [A]);
}

/// A member may have an epoch older than the newest for two reasons: it did not get the newest
/// epoch, or it is an older copy. To distinguish the two, the table on the side with the newest
/// epoch records the epoch that the member had when the newest epoch began.
#[test]
fn a_member_with_another_epoch_than_the_table_names_is_an_older_copy() {
    let epochs = [1, 2, 3].map(|number| epoch(0, number, &[A, B]));
    let mut newest = at(60, side(A, 2, SideState::Dirty, &epochs));
    let copy = |count: usize| at(60, side(B, 2, SideState::Dirty, &epochs[..count]));
    let table = &mut newest.found.as_mut().unwrap().table;
    table[B].as_mut().unwrap().acknowledged =
        Acknowledged::one_of(Some(epochs[1].id), Some(epochs[1].id));
    for count in [2, 3] {
        assert_eq!(indices(&plan(&[newest.clone(), copy(count)])), [A, B]);
    }
    let refused = refusal(&[newest.clone(), copy(1)]);
    assert!(
        matches!(refused, Refusal::FreshestMissing { .. }),
        "{refused}"
    );
    // The side with the newest epoch is known to be complete, so the volume opens and the copy is
    // rebuilt.
    newest.found.as_mut().unwrap().state = SideState::CleanIdle;
    let plan = plan(&[newest, copy(1)]);
    assert_eq!(plan.behind, [(B, Behind::Everything)]);
}
