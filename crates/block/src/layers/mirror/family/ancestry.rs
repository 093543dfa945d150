//! Epochs of a volume's own past: the epochs in its history, and the recorded last epochs of its
//! sides that were dropped from the history. A side in such an epoch is behind and has not diverged
//! (T8), so an epoch in which this volume has not been must never be recorded.

use crate::layers::mirror::superblock::{
    Acknowledged, Epoch, History, Listed, Table, Uuid, place_in,
};

/// Returns true when the volume with this history and table had everything that a side in this
/// epoch has, so that the side did not run alone.
pub fn is_past(history: &History, table: &Table, side: &Uuid, epoch: &Epoch) -> bool {
    history.contains(&epoch.id) || remembered(history, table, side, epoch)
}

/// Returns true when the epoch was dropped from the history and the table records it as the last
/// one of the side with this UUID. A new side in the same place has another UUID.
fn remembered(history: &History, table: &Table, side: &Uuid, epoch: &Epoch) -> bool {
    let listed = place_in(table, side).and_then(|place| table[place]);
    history.may_have_dropped(epoch)
        && listed.is_some_and(|listed| listed.acknowledged.may_be(&epoch.id))
}

/// Records in the table the last epoch of each side, before another epoch is added to `history`.
/// For a side that is present, `current` returns the epoch in its last durable superblock, and the
/// epoch in the superblock write in flight.
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

/// Returns the record of the epochs of a side that is present. An epoch outside the past of the
/// volume, such as that of a side that ran alone and was discarded, is not recorded: to discard a
/// side is the decision of the operator each time.
fn seen(history: &History, listed: &Listed, (durable, written): (Uuid, Uuid)) -> Acknowledged {
    let ours = |id: Uuid| (history.contains(&id) || listed.acknowledged.may_be(&id)).then_some(id);
    Acknowledged::one_of(ours(durable), ours(written))
}

/// Returns the record of the epochs of a side that is not present: its earlier record and, where
/// needed, the last epoch of which the side was a member.
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
