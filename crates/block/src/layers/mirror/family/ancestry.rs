//! Epochs of a volume's own past. This module decides whether an epoch is in the past, and records
//! the last epoch of each side in the table. The past consists of the epochs in the volume's
//! history, and of epochs that were dropped from the history but that the table still records as
//! the last epoch of a side. A side whose epoch is in the past is behind and has not diverged (T8
//! in `docs/trust.md`). So the table must never record an epoch that was not in the history of this
//! volume.

use crate::layers::mirror::superblock::{
    Acknowledged, Epoch, History, Listed, Table, Uuid, place_in,
};

/// Returns true if `epoch`, the current epoch of the side with the UUID `side`, is in the past of
/// the volume with this history and table. The side has then not diverged from the volume.
pub fn is_past(history: &History, table: &Table, side: &Uuid, epoch: &Epoch) -> bool {
    history.contains(&epoch.id) || remembered(history, table, side, epoch)
}

/// Returns true if two conditions are met: the history may have dropped `epoch`, and the table
/// records `epoch` as the last epoch of the side with the UUID `side`. If a new side has taken the
/// place of an earlier side in the table, the new side has another UUID. So the record of the
/// earlier side is not used for the new side.
fn remembered(history: &History, table: &Table, side: &Uuid, epoch: &Epoch) -> bool {
    let listed = place_in(table, side).and_then(|place| table[place]);
    history.may_have_dropped(epoch)
        && listed.is_some_and(|listed| listed.acknowledged.may_be(&epoch.id))
}

/// Records in the table the last epoch of each side. Call this before another epoch is added to
/// `history`. For a present side, `current` returns two epochs: the epoch of its last durable
/// superblock, and the epoch of its superblock write in flight.
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

/// Returns the record of the epochs of a side that is present. An epoch is recorded only if it is
/// in the past of the volume, or if the table already records it. The epoch of a discarded side
/// that ran alone is not recorded, so the operator decides again each time whether to discard that
/// side.
fn seen(history: &History, listed: &Listed, (durable, written): (Uuid, Uuid)) -> Acknowledged {
    let ours = |id: Uuid| (history.contains(&id) || listed.acknowledged.may_be(&id)).then_some(id);
    Acknowledged::one_of(ours(durable), ours(written))
}

/// Returns the record of the last epochs of a side that is not present or shows no known epoch.
/// This is the earlier record in the table. But if that record is empty, or the side is a member of
/// the current epoch, the record gets a new last epoch: the last one of which the side was a
/// member. The side might have received that epoch.
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
