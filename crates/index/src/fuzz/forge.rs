//! Indexes with valid checksums and arbitrary content, such as a bug elsewhere or an attacker can
//! produce.
//!
//! Offsets of fields come from docs/format/index.md, and not from the code that reads the fields.

use super::Input;
use crate::layout::{LOG_OFFSET, Superblock};
use crate::storage::BLOCK_BYTES;
use crate::storage::memory::MemoryStorage;
use crate::world::{Draw, Map, Shape, World, collect};
use crate::writer::Stored;
use crate::{Batch, Db, Durability, Error, Options, verify};
use std::ops::{Bound, Range};
use std::sync::{Arc, OnceLock};

const RING_BLOCKS: u64 = 64;
const FRAME_HEADER_BYTES: usize = 96;
/// Length of a frame's header up to version 4 of the format.
const OLD_FRAME_HEADER_BYTES: usize = 64;
/// Offset of the log tail in a superblock. The next two offsets are in a superblock as well.
const TAIL_AT: usize = 40;
const CHECKPOINT_CRC_AT: usize = 72;
const SUPERBLOCK_CRC_AT: usize = 4092;
/// Maximum number of rows that are read from a scan.
const ROWS_MAX: usize = 1 << 14;

fn options() -> Options {
    Options {
        memory_bytes: 256 << 10,
        buffer_bytes: 8 << 10,
        log_bytes: RING_BLOCKS * BLOCK_BYTES as u64,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        inline_value_bytes: 100,
        ..Options::default()
    }
}

/// A part of an index with its own checksum.
#[derive(Clone, Debug)]
enum Piece {
    Superblock(Range<usize>),
    Checkpoint(Range<usize>),
    /// A node, a blob or a patch.
    Image(Range<usize>),
    Frame(Range<usize>),
}

impl Piece {
    fn range(&self) -> Range<usize> {
        match self {
            Piece::Superblock(range)
            | Piece::Checkpoint(range)
            | Piece::Image(range)
            | Piece::Frame(range) => range.clone(),
        }
    }
}

/// A small index with pieces of every kind.
struct Example {
    content: Vec<u8>,
    pieces: Vec<Piece>,
    /// Offset of the newest superblock in bytes.
    newest_at: usize,
}

fn example() -> &'static Example {
    static EXAMPLE: OnceLock<Example> = OnceLock::new();
    EXAMPLE.get_or_init(|| Example::new().expect("an index on a whole disk"))
}

impl Example {
    fn new() -> Result<Example, Error> {
        let mut world = World::new(options())?;
        let shape = Shape {
            keys: 300,
            integers: false,
            long_values: true,
            ranges: false,
        };
        let mut draw = Draw::new(3);
        let mut write = |world: &mut World, batches: usize| {
            (0..batches).try_for_each(|_| world.write(&shape.batch(&mut draw), Durability::Durable))
        };
        write(&mut world, 150)?;
        world.db.write_back()?;
        // After the index is opened again, no leaf is in memory. Changes to a leaf then become
        // patches.
        let disk = world.disk.clone();
        world.reopen(disk)?;
        write(&mut world, 4)?;
        world.db.write_back()?;
        write(&mut world, 6)?;
        let mut batch = Batch::new();
        batch.delete_range(b"key/01", Some(b"key/02"));
        world.db.write(&batch, Durability::Durable)?;
        Example::of(world.disk.content())
    }

    fn of(content: Vec<u8>) -> Result<Example, Error> {
        let disk = MemoryStorage::with_content(content.clone());
        let superblock = Superblock::read(&disk)?;
        let stored = Stored::read(&disk, &superblock)?;
        let geometry = superblock.geometry;
        let mut pieces: Vec<Piece> = [0..BLOCK_BYTES, BLOCK_BYTES..2 * BLOCK_BYTES]
            .into_iter()
            .map(Piece::Superblock)
            .collect();
        let at = geometry.segment_offset(superblock.checkpoint[0]) as usize;
        pieces.push(Piece::Checkpoint(
            at..at + superblock.checkpoint_bytes as usize,
        ));
        let patches = stored.patches.values().flatten().map(|p| p.location);
        for location in stored.locations.iter().copied().chain(patches) {
            if !location.is_nowhere() {
                let at = geometry.segment_offset(location.segment()) as usize + location.at();
                pieces.push(Piece::Image(at..at + location.bytes()));
            }
        }
        let mut position = superblock.log_tail;
        loop {
            let at = (LOG_OFFSET + position % RING_BLOCKS * BLOCK_BYTES as u64) as usize;
            let is_frame = content[at..at + 4] == *b"blo5"
                && content[at + 16..at + 24] == position.to_le_bytes();
            if !is_frame {
                break;
            }
            let payload =
                u32::from_le_bytes(content[at + 40..at + 44].try_into().unwrap_or_default());
            let bytes = (FRAME_HEADER_BYTES + payload as usize).next_multiple_of(BLOCK_BYTES);
            pieces.push(Piece::Frame(at..at + bytes));
            position += (bytes / BLOCK_BYTES) as u64;
        }
        Ok(Example {
            newest_at: (superblock.generation % 2) as usize * BLOCK_BYTES,
            content,
            pieces,
        })
    }
}

/// Changes some bytes of a piece; the input determines the bytes and their new values.
fn change(bytes: &mut [u8], input: &mut Input<'_>) {
    let choice = input.byte();
    let at = usize::from(input.number16());
    // Most fields that can be wrong are at the start.
    let limit = if choice & 0x80 == 0 { 96 } else { bytes.len() };
    let at = at % limit.min(bytes.len());
    let new = match choice % 5 {
        0 => vec![input.byte()],
        1 => vec![bytes[at] ^ 1 << input.below(8)],
        2 => input.any_number().to_le_bytes()[..4].to_vec(),
        3 => input.any_number().to_le_bytes().to_vec(),
        _ => {
            let from = usize::from(input.number16()) % bytes.len();
            let len = input.below(64) + 1;
            bytes[from..(from + len).min(bytes.len())].to_vec()
        }
    };
    let end = (at + new.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&new[..end - at]);
}

fn put_crc(bytes: &mut [u8], covered: Range<usize>, at: usize) {
    let crc = crc32c::crc32c(&bytes[covered]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn seal_superblock(content: &mut [u8], at: usize) {
    let block = &mut content[at..at + BLOCK_BYTES];
    put_crc(block, 0..SUPERBLOCK_CRC_AT, SUPERBLOCK_CRC_AT);
}

/// Corrects the checksum of a piece.
fn seal(content: &mut [u8], piece: &Piece, newest_at: usize) {
    let range = piece.range();
    match piece {
        Piece::Superblock(range) => seal_superblock(content, range.start),
        Piece::Checkpoint(_) => {
            let crc = crc32c::crc32c(&content[range]);
            let at = newest_at + CHECKPOINT_CRC_AT;
            content[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            seal_superblock(content, newest_at);
        }
        Piece::Image(_) => {
            let image = &mut content[range];
            let len = image.len();
            put_crc(image, 4..len, 0);
        }
        Piece::Frame(_) => {
            let frame = &mut content[range];
            let len = frame.len();
            put_crc(frame, 8..len, 4);
        }
    }
}

fn forged(data: &[u8], is_meant: fn(&Piece) -> bool) -> Vec<u8> {
    let example = example();
    let pieces: Vec<&Piece> = example.pieces.iter().filter(|p| is_meant(p)).collect();
    let mut content = example.content.clone();
    let mut input = Input::new(data);
    // The checksum of a checkpoint is in a superblock, so superblocks are sealed last.
    let mut changed = vec![false; pieces.len()];
    while !input.is_empty() {
        let number = usize::from(input.number16()) % pieces.len();
        changed[number] = true;
        change(&mut content[pieces[number].range()], &mut input);
    }
    for (piece, is_changed) in pieces.iter().zip(changed).rev() {
        if is_changed {
            seal(&mut content, piece, example.newest_at);
        }
    }
    content
}

/// Changes arbitrary bytes in the superblocks and the checkpoint of an index, makes their checksums
/// valid again, and uses the index.
pub fn superblock(data: &[u8]) {
    let is_meant = |piece: &Piece| matches!(piece, Piece::Superblock(_) | Piece::Checkpoint(_));
    use_it(forged(data, is_meant), Trust::Nothing);
}

/// Uses an index in which arbitrary bytes are changed and the checksums are then corrected.
pub fn content(data: &[u8]) {
    use_it(forged(data, |_| true), Trust::Nothing);
}

/// Uses an index whose log consists of arbitrary blocks and frames, and whose tree is empty.
pub fn log(data: &[u8]) {
    static EMPTY: OnceLock<Vec<u8>> = OnceLock::new();
    let empty = EMPTY.get_or_init(|| {
        let world = World::new(options()).expect("an index on a whole disk");
        world.disk.content()
    });
    let mut content = empty.clone();
    let mut input = Input::new(data);
    let tail = input.any_number();
    for at in [0, BLOCK_BYTES] {
        content[at + TAIL_AT..at + TAIL_AT + 8].copy_from_slice(&tail.to_le_bytes());
        seal_superblock(&mut content, at);
    }
    let mut next = Frame {
        position: tail,
        seq: 1,
    };
    while !input.is_empty() {
        if input.below(8) == 0 {
            let at = LOG_OFFSET as usize + input.below(64) * BLOCK_BYTES;
            let len = usize::from(input.number16());
            let raw = input.take(len.min(BLOCK_BYTES));
            content[at..at + raw.len()].copy_from_slice(raw);
        } else {
            next.put(&mut content, &mut input);
        }
    }
    use_it(content, Trust::Tree);
}

/// Position and sequence number of the next frame.
struct Frame {
    position: u64,
    seq: u64,
}

impl Frame {
    /// Writes a frame at its proper position, or at another position.
    fn put(&mut self, content: &mut [u8], input: &mut Input<'_>) {
        let choice = input.byte();
        let any = |bit: u8, usual: u64, input: &mut Input<'_>| match choice & 1 << bit {
            0 => usual,
            _ => input.any_number(),
        };
        let position = any(0, self.position, input);
        let block = any(1, position, input) % RING_BLOCKS;
        let durable_below = any(2, position, input);
        let first_seq = any(3, self.seq, input);
        let opening = any(4, 1, input) as u32;
        let generation = any(5, 1, input);
        let len = usize::from(input.number16()) % (3 * BLOCK_BYTES);
        let payload = input.take(len);
        let is_old = choice >> 7 == 1;
        let (header_bytes, magic) = match is_old {
            true => (OLD_FRAME_HEADER_BYTES, b"blog"),
            false => (FRAME_HEADER_BYTES, b"blo5"),
        };
        let mut frame = vec![0; header_bytes];
        frame[..4].copy_from_slice(magic);
        frame[8..16].copy_from_slice(&7_u64.to_le_bytes());
        frame[16..24].copy_from_slice(&position.to_le_bytes());
        frame[24..32].copy_from_slice(&durable_below.to_le_bytes());
        frame[32..40].copy_from_slice(&first_seq.to_le_bytes());
        frame[40..44].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        frame[44..48].copy_from_slice(&opening.to_le_bytes());
        frame[48..56].copy_from_slice(&generation.to_le_bytes());
        frame[56] = choice >> 6 & 1;
        frame[58..62].copy_from_slice(&(RING_BLOCKS as u32).to_le_bytes());
        if !is_old {
            // The ring of the frame is the front.
            frame[72..76].fill(0xFF);
            frame[76..80].copy_from_slice(&(RING_BLOCKS as u32).to_le_bytes());
            frame[80..84].copy_from_slice(&(RING_BLOCKS as u32).to_le_bytes());
        }
        frame.extend_from_slice(payload);
        frame.resize(frame.len().next_multiple_of(BLOCK_BYTES), 0);
        let len = frame.len();
        put_crc(&mut frame, 8..len, 4);
        for (index, part) in frame.chunks(BLOCK_BYTES).enumerate() {
            let block = (block as usize + index) % RING_BLOCKS as usize;
            let at = LOG_OFFSET as usize + block * BLOCK_BYTES;
            content[at..at + BLOCK_BYTES].copy_from_slice(part);
        }
        self.position = position.wrapping_add((len / BLOCK_BYTES) as u64);
        self.seq = first_seq.wrapping_add(1);
    }
}

/// Part of the content that was written by the index itself, and not changed by the fuzzer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    Nothing,
    Tree,
}

/// Returns all rows in order, or the error of the scan; `None` if there are too many rows.
fn all(db: &Db, trust: Trust) -> Result<Option<Map>, Error> {
    let mut scan = db.scan((Bound::Unbounded, Bound::Unbounded));
    let mut map = Map::new();
    let mut last: Option<Vec<u8>> = None;
    while let Some((key, value)) = scan.next()? {
        let ascends = last.as_deref().is_none_or(|last| last < key);
        assert!(ascends || trust == Trust::Nothing, "keys ascend");
        last = Some(key.to_vec());
        map.insert(key.to_vec(), value.to_vec());
        if map.len() > ROWS_MAX {
            return Ok(None);
        }
    }
    Ok(Some(map))
}

/// Opens an index with this content and uses it. If the content was verified as intact, opening and
/// scanning must succeed. Otherwise every call may return an error, but none may panic.
fn use_it(content: Vec<u8>, trust: Trust) {
    let disk = Arc::new(MemoryStorage::with_content(content));
    let verified = verify(&disk, &mut |_, _| {});
    let is_whole = verified.as_ref().is_ok_and(|it| it.problems_found == 0);
    let db = match Db::open(disk.clone(), &options()) {
        Ok(db) => db,
        Err(error) => {
            assert!(!is_whole, "what is whole opens: {error}");
            return;
        }
    };
    let before = all(&db, trust);
    if let (true, Err(error)) = (is_whole, &before) {
        panic!("what is whole can be read: {error}");
    }
    let _ = collect(&mut db.scan_reverse((Bound::Unbounded, Bound::Unbounded)));
    for key in before.iter().flatten().flat_map(Map::keys).step_by(7) {
        let _ = db.get(key);
    }
    if trust == Trust::Tree {
        assert_eq!(verified.map(|found| found.problems), Ok(Vec::new()));
        let before = before.expect("a tree that is whole");
        db.write_back().expect("a whole disk with space");
        assert_eq!(all(&db, trust), Ok(before.clone()));
        drop(db);
        let db = Db::open(disk, &options()).expect("what the index has written");
        assert_eq!(all(&db, trust), Ok(before));
        return;
    }
    let mut batch = Batch::new();
    batch.delete_range(b"key/00", Some(b"key/03"));
    for number in 0..20 {
        batch.put(format!("key/{number:03}").as_bytes(), &[number; 9]);
    }
    let _ = db.write(&batch, Durability::Durable);
    let _ = db.write_back();
    let _ = all(&db, trust);
    let _ = db.compact(|_| {});
    drop(db);
    if let Ok(db) = Db::open(disk, &options()) {
        let _ = collect(&mut db.scan((Bound::Unbounded, Bound::Unbounded)));
    }
}
