//! Tests of the bits of written pages, against the format specification and against damage.

use super::super::checksums::fixture::{AREA, Rig, mixture, page_by_hand};
use super::*;
use crate::layers::mirror::store::pages::WrittenIn;
use crate::request::Op;

/// Area of the bits that record which pages were written. It lies in the middle of the test
/// device's area, and has room for two pages of each copy.
const PLACE: (u64, u64) = (AREA.offset + (100 << 12), 4 << 12);
/// Number of pages, for which two pages of bits are needed.
const PAGES: u64 = 40_000;

fn rig() -> Rig {
    let rig = Rig::new(1);
    let empty = initialise(&rig.rt, &*rig.device, PLACE, PAGES, AREA.side);
    rig.rt.block_on(empty).expect("memory does not fail");
    rig
}

fn load(rig: &Rig) -> Rc<Written> {
    let load = Written::load(&rig.rt, &rig.device, PLACE, PAGES, AREA.side);
    rig.rt.block_on(load).expect("memory does not fail")
}

/// Returns the given pages that are treated as written.
fn among(written: &Written, pages: &[u64]) -> Vec<u64> {
    let of = |page: &&u64| written.is_written(**page);
    pages.iter().filter(of).copied().collect()
}

/// Returns the first page of a copy according to the format specification, with the bits of the
/// pages 9 and 4,030. A sector has 504 bytes of bits, so these are bit 1 of byte 1 and bit 6 of
/// byte 503 of the first sector.
fn bits_by_hand(first_page: u64) -> Vec<u8> {
    let mut entries = [0; 504];
    entries[1] = 0b10;
    entries[503] = 0b100_0000;
    page_by_hand(&entries, AREA.side, first_page)
}

#[test]
fn the_bits_are_as_the_format_page_draws_them() {
    let rig = rig();
    let empty = |first: u64| page_by_hand(&[], AREA.side, first);
    let pages = |rig: &Rig| [100, 101, 102, 103].map(|page| rig.page(page));
    let (a, b) = (1 << 62, 1 << 63);
    assert_eq!(
        pages(&rig),
        [empty(a), empty(a + 1), empty(b), empty(b + 1)]
    );
    let written = load(&rig);
    let area = WrittenIn::new(Some(Rc::clone(&written) as Rc<dyn PageBits>), 5);
    for page in [4, 4_025] {
        assert!(!area.is_written(page));
        area.note(page);
        assert!(area.is_written(page), "the device has taken it");
    }
    assert_eq!(rig.page(100), empty(a), "it need not be durable");
    rig.rt.block_on(written.settle(written.fresh())).unwrap();
    let both = [bits_by_hand(a), empty(a + 1), bits_by_hand(b), empty(b + 1)];
    assert_eq!(pages(&rig), both);
    let found = load(&rig);
    assert_eq!(among(&found, &[8, 9, 10, 4_029, 4_030, 4_031]), [9, 4_030]);
    assert_eq!(found.first_written(0..PAGES), 9);
    assert_eq!(found.first_written(10..PAGES), 4_030);
    assert_eq!(found.first_written(4_031..PAGES), PAGES);
    assert_eq!(found.first_written(10..20), 20);
}

/// One of the two copies of the bits may be lost, or older than the other copy. A bit that is set
/// in either copy is valid, and both copies have the bit again after the next write.
#[test]
fn one_copy_is_enough() {
    for lost in [100, 102] {
        let first = [1 << 62, 1 << 63][(lost - 100) / 2];
        for wrong in [vec![0; 4096], page_by_hand(&[], AREA.side, first)] {
            let rig = rig();
            let written = load(&rig);
            let area = WrittenIn::new(Some(Rc::clone(&written) as Rc<dyn PageBits>), 0);
            [9, 4_030].into_iter().for_each(|page| area.note(page));
            rig.rt.block_on(written.settle(written.fresh())).unwrap();
            rig.set_page(lost as u64, &wrong);
            let found = load(&rig);
            assert_eq!(among(&found, &[8, 9, 4_030, 4_031]), [9, 4_030]);
            assert_eq!(found.damaged_sectors(), 0);
            rig.rt.block_on(found.settle(BTreeSet::new())).unwrap();
            assert_eq!(rig.page(lost as u64), bits_by_hand(first));
            rig.asked(Op::Write);
            let again = load(&rig);
            rig.rt.block_on(again.settle(BTreeSet::new())).unwrap();
            assert!(rig.asked(Op::Write).is_empty(), "nothing is left to do");
        }
    }
}

/// If a sector of the written bits is invalid in both copies, the checksum pages decide which bits
/// to set. A sector has the bits of 4,032 pages.
#[test]
fn what_neither_copy_says_counts_as_written() {
    let rig = rig();
    for page in [100, 102] {
        let whole = rig.page(page);
        rig.set_page(page, &mixture(&whole, &[0; 4096], 0b10));
    }
    let found = load(&rig);
    assert_eq!(found.damaged_sectors(), 1);
    assert_eq!(among(&found, &[4_031, 4_032, 8_063, 8_064]), [4_032, 8_063]);
}

#[test]
fn a_page_that_was_not_kept_gets_no_bit() {
    let rig = rig();
    let written = load(&rig);
    let area = WrittenIn::new(Some(Rc::clone(&written) as Rc<dyn PageBits>), 0);
    area.note(7);
    area.note(8);
    let fresh = written.fresh();
    area.forget(7);
    rig.rt.block_on(written.settle(fresh)).unwrap();
    assert_eq!(among(&load(&rig), &[7, 8]), [8]);
    // A bit that was set is never cleared.
    area.forget(8);
    assert_eq!(among(&written, &[7, 8]), [8]);
}

/// A scrub detects a copy that has become corrupt since it was read.
#[test]
fn a_copy_that_goes_bad_is_found_and_written_again() {
    let rig = rig();
    let written = load(&rig);
    let area = WrittenIn::new(Some(Rc::clone(&written) as Rc<dyn PageBits>), 0);
    area.note(9);
    area.note(4_030);
    rig.rt.block_on(written.settle(written.fresh())).unwrap();
    assert_eq!(rig.rt.block_on(written.check()), Ok((4 * 4096, 0)));
    rig.set_page(102, &[0; 4096]);
    assert_eq!(rig.rt.block_on(written.check()), Ok((4 * 4096, 1)));
    rig.rt.block_on(written.settle(BTreeSet::new())).unwrap();
    assert_eq!(rig.page(102), bits_by_hand(1 << 63));
}
