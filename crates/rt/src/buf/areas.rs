//! Allocator of memory for long-lived content: pieces of one size, carved from areas that the
//! kernel can back with huge pages.
//!
//! The content of a memory device is accessed at random. If it were on small pages, nearly every
//! access would miss the TLB. If it were on the heap, the pieces would also be interleaved with the
//! reference counts of their handles. An area is one huge page of x86-64. An area is mapped only
//! when one of its pieces is needed, so content that was never written takes no memory, except for
//! the unused pieces of one area.
//!
//! The allocator must never unmap an area that has a piece in use.

use std::collections::BTreeMap;
use std::ptr::NonNull;

/// Size and alignment of an area in bytes.
const AREA_BYTES: usize = 2 << 20;

/// A piece that is not in use.
#[derive(Clone, Copy)]
struct Free {
    start: NonNull<u8>,
    /// True when the piece has never been used, so that it is all zeroes.
    is_new: bool,
}

/// Allocator of pieces of one size, carved from areas of the size of a huge page.
pub(super) struct Areas {
    piece_bytes: usize,
    free: Vec<Free>,
    /// Number of pieces in use in each area, by the area's address.
    used: BTreeMap<usize, usize>,
}

impl Areas {
    /// Creates an allocator of pieces of `piece_bytes`, which must be a power of two from
    /// [`super::ALIGNMENT`] to `AREA_BYTES`.
    pub(super) fn new(piece_bytes: usize) -> Areas {
        assert!(
            piece_bytes.is_power_of_two() && (super::ALIGNMENT..=AREA_BYTES).contains(&piece_bytes),
            "pieces of {piece_bytes} bytes"
        );
        Areas {
            piece_bytes,
            free: Vec::new(),
            used: BTreeMap::new(),
        }
    }

    pub(super) fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    fn pieces_of_area(&self) -> usize {
        AREA_BYTES / self.piece_bytes
    }

    /// Allocates one piece of memory, filled with zeroes; returns `None` when the kernel has no
    /// memory.
    pub(super) fn take(&mut self) -> Option<NonNull<u8>> {
        if self.free.is_empty() {
            self.map()?;
        }
        let Free { start, is_new } = self.free.pop()?;
        *self.used_of(start) += 1;
        if !is_new {
            // SAFETY: the piece is inside an area, and its only user has returned it.
            unsafe { start.write_bytes(0, self.piece_bytes) };
        }
        Some(start)
    }

    /// Frees a piece. The caller must not access the piece afterwards.
    pub(super) fn give_back(&mut self, start: NonNull<u8>) {
        self.free.push(Free {
            start,
            is_new: false,
        });
        let used = self.used_of(start);
        *used -= 1;
        let is_empty = *used == 0;
        // Unmap the area if it has no piece in use and if the free pieces of the other areas would
        // fill a whole area. Without the second condition, a single piece that is allocated and
        // freed repeatedly would map and unmap an area each time.
        if is_empty && self.free.len() >= 2 * self.pieces_of_area() {
            self.unmap(area_of(start));
        }
    }

    fn used_of(&mut self, start: NonNull<u8>) -> &mut usize {
        let used = self.used.get_mut(&area_of(start));
        used.expect("a piece is of an area")
    }

    fn map(&mut self) -> Option<()> {
        let area = map_aligned()?;
        let piece_bytes = self.piece_bytes;
        // The pieces are pushed in descending order of their addresses. `take` pops pieces from the
        // end of the list, so it hands them out in ascending order.
        let pieces = (0..self.pieces_of_area()).rev().map(|place| Free {
            // SAFETY: the pieces of an area are inside it.
            start: unsafe { area.add(place * piece_bytes) },
            is_new: true,
        });
        self.free.extend(pieces);
        self.used.insert(area.as_ptr() as usize, 0);
        Some(())
    }

    fn unmap(&mut self, area: usize) {
        self.free.retain(|free| area_of(free.start) != area);
        let used = self.used.remove(&area);
        assert_eq!(used, Some(0), "nobody has a piece of the area");
        unmap(area, AREA_BYTES);
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        for (area, used) in std::mem::take(&mut self.used) {
            // Every block in use keeps the pool alive, and the pool owns this allocator, so no
            // piece is in use.
            assert_eq!(used, 0, "nobody has a piece of the area");
            unmap(area, AREA_BYTES);
        }
    }
}

fn area_of(start: NonNull<u8>) -> usize {
    start.as_ptr() as usize / AREA_BYTES * AREA_BYTES
}

/// Maps a new area, on a huge page if the kernel has one.
fn map_aligned() -> Option<NonNull<u8>> {
    // SAFETY: the call creates a new private mapping and asks for no address. The result is
    // checked.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            2 * AREA_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let (start, end) = (start as usize, start as usize + 2 * AREA_BYTES);
    let area = start.next_multiple_of(AREA_BYTES);
    unmap(start, area - start);
    unmap(area + AREA_BYTES, end - area - AREA_BYTES);
    // SAFETY: the area is the remaining part of the mapping. The call is a hint: a kernel without
    // huge pages refuses it, and small pages work too.
    unsafe { libc::madvise(area as *mut libc::c_void, AREA_BYTES, libc::MADV_HUGEPAGE) };
    NonNull::new(area as *mut u8)
}

/// Unmaps `bytes` bytes from address `start`, which must lie in a mapping of this module and must
/// not be in use.
fn unmap(start: usize, bytes: usize) {
    if bytes == 0 {
        return;
    }
    // SAFETY: the caller guarantees that the range is mapped by this module and not in use.
    let result = unsafe { libc::munmap(start as *mut libc::c_void, bytes) };
    assert_eq!(result, 0, "unmapping memory failed");
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 64 << 10;
    const OF_AREA: usize = AREA_BYTES / PIECE;

    fn byte(start: NonNull<u8>, at: usize) -> u8 {
        // SAFETY: the byte is within a piece that the test holds.
        unsafe { start.add(at).read() }
    }

    #[test]
    fn a_piece_is_zeroes_also_after_it_was_written() {
        let mut areas = Areas::new(PIECE);
        let first = areas.take().unwrap();
        // SAFETY: the test holds the piece.
        unsafe { first.write_bytes(7, PIECE) };
        areas.give_back(first);
        let again = areas.take().unwrap();
        assert_eq!(again, first);
        assert!((0..PIECE).step_by(512).all(|at| byte(again, at) == 0));
        areas.give_back(again);
    }

    #[test]
    fn pieces_do_not_overlap_and_empty_areas_go_but_for_one() {
        let mut areas = Areas::new(PIECE);
        let taken: Vec<NonNull<u8>> = (0..3 * OF_AREA).map(|_| areas.take().unwrap()).collect();
        let mut starts: Vec<usize> = taken.iter().map(|piece| piece.as_ptr() as usize).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= PIECE));
        assert!(starts.iter().all(|start| start.is_multiple_of(PIECE)));
        assert_eq!(areas.used.len(), 3);
        for piece in taken {
            areas.give_back(piece);
        }
        assert_eq!((areas.used.len(), areas.free.len()), (1, OF_AREA));
        // The remaining area is used again.
        let piece = areas.take().unwrap();
        assert_eq!(areas.used.len(), 1);
        areas.give_back(piece);
    }
}
