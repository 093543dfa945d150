//! Tests of `bimetal probe`: it distinguishes a page-mapped drive from a block-mapped drive, and
//! never overwrites data without permission.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Scratch, arg, assert_refused, stdout_of};
use serde_json::Value;

/// Returns a configuration with a flash drive. The drive has a single chip, and a block of the chip
/// has 64 pages of 4 KiB.
fn drive(layer: &str) -> String {
    format!(
        "[device.cells]\ntype = \"memory\"\nsize = \"32MiB\"\n\
         [device.drive]\ntype = \"flash\"\nprofile = \"flash-2009\"\nbelow = \"cells\"\n\
         channels = 1\nways = 1\ndies = 1\nplanes = 1\npages_per_block = 64\npage_bytes = 4096\n\
         layer = \"{layer}\"\nwrite_cache_pages = 0\n"
    )
}

#[test]
fn the_unit_is_a_page_over_mapped_pages_and_the_erase_block_over_mapped_blocks() {
    let dir = Scratch::new("probe");
    for (layer, unit_bytes) in [("page", 4096), ("block", 64 * 4096)] {
        let config = dir.text("c.toml", &drive(layer));
        let args = ["probe", arg(&config), "--device", "drive", "--virtual"];
        assert_refused(&args, 1, &["overwrites", "--destroy-data"]);
        let more = ["--destroy-data", "--time", "20s", "--json"];
        let report = stdout_of(&[&args[..], &more[..]].concat());
        let report: Value = serde_json::from_str(&report).expect("one line of JSON");
        // A block-mapped drive copies a whole block to write a single page, so the page takes 64
        // times as long. On a page-mapped drive, the time for each page does not depend on the size
        // of the write.
        assert_eq!(report["unit_bytes"], unit_bytes, "{report}");
    }
}
