//! Tests of sides that are converted to another layout. Their superblocks say that their areas are
//! void, but they are still evidence about the other sides.

use super::*;
use crate::layers::mirror::superblock::SideKind;

fn epochs() -> [Epoch; 2] {
    [together(), epoch(0, 2, &[A])]
}

/// Returns side B, which is to be formatted again, as the side `uuid` at its place.
fn awaiting(uuid: Uuid) -> Seen {
    let history = Behind::Everything.history(&history(&epochs()), B);
    let mut found = superblock(B, 2, SideState::Inconsistent, history);
    found.side = uuid;
    found.table[B] = Some(Listed::new(uuid));
    found.remembered.set_converted_to(B, Some(SideKind::Log));
    assert!(found.awaits_formatting());
    Seen::of("b", Ok(found))
}

fn unformatted(seen: Seen) -> Seen {
    Seen {
        unformatted: true,
        ..seen
    }
}

/// The side is missing until the running volume has formatted its device, whether the table has its
/// old identity or formatting has given it another one. It keeps its place in the table.
#[test]
fn a_side_whose_areas_are_void_is_missing_and_keeps_its_place() {
    let mut a = side(A, 2, SideState::Dirty, &epochs());
    let found = a.found.as_mut().unwrap();
    found.remembered.set_converted_to(B, Some(SideKind::Log));
    let listed = found.table;
    let old = unformatted(awaiting([B as u8 + 1; 16]));
    for seen in [old, awaiting([9; 16]), unformatted(awaiting([9; 16]))] {
        let plan = plan(&[a.clone(), seen]);
        assert_eq!((indices(&plan), &plan.missing), (vec![A], &vec![B]));
        assert_eq!((&plan.behind, &plan.made), (&vec![], &vec![]));
        assert_eq!(plan.table, listed);
        assert_eq!(plan.remembered.converted_to(B), Some(SideKind::Log));
    }
    // With valid areas and its identity in the table, it is a side like any other.
    let formatted = plan(&[a, awaiting([B as u8 + 1; 16])]);
    assert_eq!(formatted.behind, [(B, Behind::Everything)]);
}

/// An older copy of side A does not know that it went on without side B, whose superblock does.
#[test]
fn a_side_whose_areas_are_void_still_tells_that_the_other_is_an_older_copy() {
    let older = side(A, 2, SideState::Clean, &[together()]);
    let witness = unformatted(awaiting([B as u8 + 1; 16]));
    let refused = refusal(&[older, witness]);
    assert!(
        matches!(refused, Refusal::FreshestMissing { .. }),
        "{refused}"
    );
}
