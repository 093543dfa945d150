//! Which epochs are of a volume's own past: those in its history, and of those that have been
//! dropped from it the ones that its sides had last. What is taken for the past here is behind and
//! not split (T8), so an epoch must never get in that this volume has not been in itself.

use crate::layers::mirror::superblock::{Epoch, History, Listed, Table, Told, Uuid, place_in};

/// True when a side in this epoch has nothing that the volume with this history and table has not
/// been through: it did not run alone.
pub fn is_past(history: &History, table: &Table, side: &Uuid, epoch: &Epoch) -> bool {
    history.contains(&epoch.id) || remembered(history, table, side, epoch)
}

/// True when the epoch has been dropped from the history and is known to be the last one of the
/// side that has this UUID. A new side in its place has another one.
fn remembered(history: &History, table: &Table, side: &Uuid, epoch: &Epoch) -> bool {
    let listed = place_in(table, side).and_then(|place| table[place]);
    history.may_have_dropped(epoch) && listed.is_some_and(|listed| listed.told.may_be(&epoch.id))
}

/// Notes in the table, when an epoch is about to follow on `history`, which one each side has.
/// `current` says of a side that is there which epoch its superblock had last, durably, and which
/// one it has if what is being written to it has arrived.
pub fn remember(
    table: &mut Table,
    history: &History,
    current: impl Fn(&Uuid) -> Option<(Uuid, Uuid)>,
) {
    for (place, listed) in table.iter_mut().enumerate() {
        if let Some(listed) = listed {
            let found = current(&listed.side);
            let seen = found.map(|found| seen(history, listed, found));
            let seen = seen.filter(|told| !told.is_unknown());
            listed.told = seen.unwrap_or_else(|| unseen(history, listed, place));
        }
    }
}

/// Of a side that is there. What is not of the volume's past, such as a side that ran alone and was
/// given up, is not noted: giving it up is the operator's decision every time.
fn seen(history: &History, listed: &Listed, (durable, written): (Uuid, Uuid)) -> Told {
    let ours = |id: Uuid| (history.contains(&id) || listed.told.may_be(&id)).then_some(id);
    Told::one_of(ours(durable), ours(written))
}

/// Of a side that is not there: what it had, or the last epoch of which it was a member.
fn unseen(history: &History, listed: &Listed, place: usize) -> Told {
    let mut epochs = history.epochs().iter().rev();
    let last = epochs.find(|epoch| epoch.has_member(place));
    let counted = history.current().has_member(place);
    match last {
        Some(last) if counted || listed.told.is_unknown() => listed.told.perhaps_since(&last.id),
        _ => listed.told,
    }
}
