//! The table of sides of a volume that is opened.

use super::{Absence, Present, Refusal, SIDES_MAX, Seen, Superblock, Table};

/// The next table of sides, and the sides to be formatted, each with its place in that table.
pub(super) struct NextTable {
    pub(super) table: Table,
    pub(super) made: Vec<(usize, usize)>,
}

/// Derives the next table from the table of the side with the newest history. Sides in that table
/// that are not configured are removed; it is an error if one of them might be ahead. If a side to
/// rebuild does not belong to the volume, it gets the place of a side not found, or a free place.
pub(super) fn next_table(
    seen: &[Seen],
    present: &[Present<'_>],
    unlisted: &[Present<'_>],
    (holder, left): (&Present<'_>, usize),
    rebuild: &[String],
) -> Result<NextTable, Refusal> {
    let mut table = holder.superblock.table;
    let found = |place: usize| present.iter().any(|side| side.superblock.place() == place);
    let unseen = |place: &usize| table[*place].is_some() && !found(*place);
    let mut unseen: Vec<usize> = (0..SIDES_MAX).filter(unseen).collect();
    let is_unlisted = |index: usize| unlisted.iter().any(|side| side.index == index);
    // A side that was formatted again, and that no table lists yet, belongs to a listed place.
    let awaits_listing = |index: usize| {
        let found = seen[index].found.as_ref();
        is_unlisted(index) && found.is_ok_and(Superblock::awaits_formatting)
    };
    let is_blank = |index: usize| {
        matches!(
            seen[index].found,
            Err(Absence::NoVolume | Absence::Damaged(_))
        )
    };
    let (mut made, mut unknown) = (Vec::new(), Vec::new());
    for (index, side) in seen.iter().enumerate() {
        let given_up = rebuild.contains(&side.name);
        if given_up && (is_unlisted(index) || is_blank(index)) {
            made.push(index);
        } else if side.found.is_err() || awaits_listing(index) {
            unknown.push(index);
        }
    }
    let wrong_number = Refusal::WrongNumberOfSides {
        formatted: holder.superblock.side_count(),
        configured: seen.len(),
    };
    // Each unreadable device must be a different side: either a listed side that was not found, or
    // a side that has left. More unreadable devices than such sides are refused.
    if unknown.len() > unseen.len() + left {
        return Err(wrong_number);
    }
    let current = holder.current();
    let mut placed: Vec<(usize, usize)> = Vec::new();
    for index in made {
        let place = if unknown.len() < unseen.len() {
            unseen.remove(0)
        } else {
            let taken = |place: usize| placed.iter().any(|(_, other)| *other == place);
            let free = (0..SIDES_MAX).find(|place| table[*place].is_none() && !taken(*place));
            free.ok_or_else(|| wrong_number.clone())?
        };
        table[place] = None;
        placed.push((index, place));
    }
    // If no device is unreadable, the unseen sides left over are removed unless one may be ahead.
    if unknown.is_empty() {
        let complete = holder.superblock.state.is_complete();
        if !complete && unseen.iter().any(|place| current.has_member(*place)) {
            return Err(wrong_number);
        }
        unseen.iter().for_each(|place| table[*place] = None);
    } else if unseen.len() > unknown.len() && unseen.iter().any(|p| current.has_member(*p)) {
        return Err(wrong_number);
    }
    let made = placed;
    Ok(NextTable { table, made })
}
