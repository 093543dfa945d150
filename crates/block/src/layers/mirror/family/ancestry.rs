//! Epochs of a volume's own past: those in its history, and, of those that have been dropped from
//! it, the last ones of its sides. A side in such an epoch is behind and not split (T8), so an
//! epoch must never get in here in which this volume has not been itself.

use crate::layers::mirror::superblock::{
    Acknowledged, Epoch, History, Listed, Table, Uuid, place_in,
};

/// Returns true when a side in this epoch has nothing that the volume with this history and table
/// did not have: the side did not run alone.
pub fn is_past(history: &History, table: &Table, side: &Uuid, epoch: &Epoch) -> bool {
    history.contains(&epoch.id) || remembered(history, table, side, epoch)
}

/// Returns true when the epoch has been dropped from the history and is known to be the last one of
/// the side with this UUID. A new side in its place has another UUID.
fn remembered(history: &History, table: &Table, side: &Uuid, epoch: &Epoch) -> bool {
    let listed = place_in(table, side).and_then(|place| table[place]);
    history.may_have_dropped(epoch)
        && listed.is_some_and(|listed| listed.acknowledged.may_be(&epoch.id))
}

/// Notes in the table which epoch each side has, when an epoch is about to follow on `history`.
/// `current` returns, for a side that is there, the epoch that its superblock had last, durably,
/// and the one that it has if the write in flight has arrived.
pub fn remember(
    table: &mut Table,
    history: &History,
    current: impl Fn(&Uuid) -> Option<(Uuid, Uuid)>,
) {
    for (place, listed) in table.iter_mut().enumerate() {
        if let Some(listed) = listed {
            let found = current(&listed.side);
            let seen = found.map(|found| seen(history, listed, found));
            let seen = seen.filter(|acknowledged| !acknowledged.is_unknown());
            listed.acknowledged = seen.unwrap_or_else(|| unseen(history, listed, place));
        }
    }
}

/// Returns the epochs of a side that is there. An epoch outside the volume's past, such as that of
/// a side that ran alone and was given up, is not noted: giving up a side is the operator's
/// decision every time.
fn seen(history: &History, listed: &Listed, (durable, written): (Uuid, Uuid)) -> Acknowledged {
    let ours = |id: Uuid| (history.contains(&id) || listed.acknowledged.may_be(&id)).then_some(id);
    Acknowledged::one_of(ours(durable), ours(written))
}

/// Returns the epochs of a side that is not there: those it had, or the last epoch of which it was
/// a member.
fn unseen(history: &History, listed: &Listed, place: usize) -> Acknowledged {
    let mut epochs = history.epochs().iter().rev();
    let last = epochs.find(|epoch| epoch.has_member(place));
    let counted = history.current().has_member(place);
    match last {
        Some(last) if counted || listed.acknowledged.is_unknown() => {
            listed.acknowledged.perhaps_since(&last.id)
        }
        _ => listed.acknowledged,
    }
}
