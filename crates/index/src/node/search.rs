//! Searches among sorted rows.

use std::hint::select_unpredictable;

/// Returns the first of `rows` rows for which `less` is false. Rows for which `less` is true must
/// come before all others.
///
/// The results of `less` are unpredictable, so no branch depends on them. Each step probes three
/// rows: the loads of these rows do not wait for each other, which matters when they miss the
/// caches.
#[inline(always)]
pub(crate) fn partition(rows: usize, less: impl Fn(usize) -> bool) -> usize {
    if rows == 0 {
        return 0;
    }
    // Invariant: the result is in first..=first + len. If `first` is above 0, `less(first)` is
    // true, so the result is above `first`.
    let (mut first, mut len) = (0_usize, rows);
    while len > 3 {
        let part = len / 4;
        let row = |n: usize| first.wrapping_add(part.wrapping_mul(n));
        let (a, b, c) = (less(row(1)), less(row(2)), less(row(3)));
        let low = select_unpredictable(a, row(1), first);
        let high = select_unpredictable(c, row(3), row(2));
        first = select_unpredictable(b, high, low);
        len = len.wrapping_sub(part.wrapping_mul(3));
    }
    while len > 1 {
        let half = len / 2;
        let middle = first.wrapping_add(half);
        first = select_unpredictable(less(middle), middle, first);
        len = len.wrapping_sub(half);
    }
    first.wrapping_add(usize::from(less(first)))
}
