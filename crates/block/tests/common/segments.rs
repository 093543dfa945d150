//! What leads to the blocks of a logged side: its segment record, its journal and its map, read as
//! the format page draws them, and damage to them.

use bimetal_block::Request;

use super::volume::Volume;

const BLOCK: u64 = 4096;

/// Returns the offsets on a side of the first block of both copies of each run of the journal, as
/// the format page draws the segment record.
pub async fn runs_of(volume: &Volume, side: usize) -> Vec<[u64; 2]> {
    let layout = volume.superblock(side).await.layout;
    let segments = layout.segments.expect("it is logged");
    let device = &volume.sides[side].device;
    let read = Request::read(segments.record.0, segments.record.1 / 2);
    let reply = device.submit(read).await.expect("it can be read");
    let record = reply.into_data().to_vec();
    let word = |at: usize| u64::from(u32::from_le_bytes(record[at..at + 4].try_into().unwrap()));
    let (log, runs, pages, segments_count) = (word(48), word(52), word(56), word(72));
    let tables = pages.div_ceil(504) + segments_count.div_ceil(504);
    let first = (4096 + 4 * log + 16 * tables) as usize;
    let place = |at| segments.area.0 + word(at) * BLOCK;
    (0..runs as usize)
        .map(|run| [8, 12].map(|copy| place(first + 24 * run + copy)))
        .collect()
}

/// Where the pages of a logged side are that lead to its blocks, as offsets on its device. Read as
/// the format page draws the segment record and the page table.
pub struct Pages {
    /// Both copies of each page of the page table.
    pub tables: Vec<[u64; 2]>,
    /// Each page of the place map.
    pub map: Vec<u64>,
}

pub async fn pages_of(volume: &Volume, side: usize) -> Pages {
    let layout = volume.superblock(side).await.layout;
    let segments = layout.segments.expect("it is logged");
    let device = &volume.sides[side].device;
    let read = async |offset, len| {
        let reply = device.submit(Request::read(offset, len)).await;
        reply.expect("it can be read").into_data().to_vec()
    };
    let word = |bytes: &[u8], at: usize| {
        u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()))
    };
    let record = read(segments.record.0, segments.record.1 / 2).await;
    let (log, pages) = (word(&record, 48), word(&record, 56));
    let place = |number: u64| segments.area.0 + (number - 1) * BLOCK;
    let first = (4096 + 4 * log) as usize;
    let copies = |table: u64| [0, 4].map(|copy| word(&record, first + 16 * table as usize + copy));
    let copies: Vec<[u64; 2]> = (0..pages.div_ceil(504)).map(copies).collect();
    let tables: Vec<[u64; 2]> = copies
        .into_iter()
        .filter(|copies| *copies != [0, 0])
        .map(|copies| copies.map(place))
        .collect();
    let mut map = Vec::new();
    for table in &tables {
        let page = read(table[0], BLOCK).await;
        let sectors = page.chunks_exact(512);
        let entries = sectors.flat_map(|sector| sector[..504].chunks_exact(8));
        let places = entries.map(|entry| word(entry, 0));
        map.extend(places.filter(|place| *place != 0).map(place));
    }
    Pages { tables, map }
}

/// Spoils all pages that the map of a side consists of; with `tables`, those of the page table in
/// both copies.
pub async fn spoil_map(volume: &Volume, side: usize, tables: bool) {
    let pages = pages_of(volume, side).await;
    assert!(!pages.map.is_empty() && !pages.tables.is_empty());
    let spoiled = match tables {
        true => pages.tables.into_iter().flatten().collect(),
        false => pages.map,
    };
    for offset in spoiled {
        volume.spoil(side, offset).await;
    }
}
