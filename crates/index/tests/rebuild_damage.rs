//! Tests of files with random damage in every part, which are rebuilt and compared with the model.
//! No key outside the ranges listed as lost is allowed to be wrong, missing or outdated, and a file
//! without damage must have no listed range.

use crate::world::lives::cut;
use crate::world::rebuilt::{built_anew, images, is_in, seeds_or};
use crate::world::{
    Change, Draw, History, Map, Shape, World, small_growing_options, small_options,
};
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Durability, Error, Loss, Options, Rebuilt};
use std::collections::BTreeSet;
use std::ops::Range;

const BLOCK_BYTES: usize = 4096;
/// Byte range of both superblocks.
const SUPERBLOCKS: Range<usize> = 0..2 * BLOCK_BYTES;
/// Number of damaged files made from each index.
const FILES: u64 = 5;

/// The file of an index after its life, with the history of its content.
struct Past {
    content: Vec<u8>,
    /// Earlier contents of the storage.
    olds: Vec<Vec<u8>>,
    /// Byte ranges of the log.
    log: Vec<Range<usize>>,
    segments_offset: usize,
    options: Options,
    history: History,
    /// Every value that a key was ever given.
    given: BTreeSet<(Vec<u8>, Vec<u8>)>,
    /// True if the index was closed. Otherwise the file is that of a killed process: its last
    /// batches are durable, but only the frames of these batches in the log prove this.
    is_closed: bool,
}

impl Past {
    /// Returns the byte range of a random segment.
    fn segment(&self, draw: &mut Draw) -> Range<usize> {
        let bytes = self.options.segment_bytes as usize;
        let count = (self.content.len() - self.segments_offset) / bytes;
        let start = self.segments_offset + draw.below(count.max(1) as u64) as usize * bytes;
        start..(start + bytes).min(self.content.len())
    }

    /// Returns true if the end of the log can be determined from the damaged file `content`: from
    /// the newest superblock if the index was closed, or from an undamaged log.
    fn end_is_known(&self, content: &[u8]) -> bool {
        let generation = |block: &[u8]| u64::from_le_bytes(block[32..40].try_into().expect("8"));
        let (first, second) = self.content[SUPERBLOCKS].split_at(BLOCK_BYTES);
        let newest = match generation(first) > generation(second) {
            true => 0..BLOCK_BYTES,
            false => BLOCK_BYTES..2 * BLOCK_BYTES,
        };
        let is_same = |range: &Range<usize>| content[range.clone()] == self.content[range.clone()];
        (self.is_closed && is_same(&newest)) || self.log.iter().all(is_same)
    }
}

fn options_of(draw: &mut Draw) -> Options {
    let options = match draw.once_in(2) {
        true => small_options(draw),
        false => small_growing_options(draw),
    };
    Options {
        segment_bytes: draw.one_of(&[64 << 10, 64 << 10, 128 << 10]),
        ..options
    }
}

/// Runs a life of an index: batches, checkpoints, power cuts and openings.
fn lead(world: &mut World, shape: &Shape, draw: &mut Draw, past: &mut Past) -> Result<(), Error> {
    let batches = draw.one_of(&[60, 300, 700, 1200]);
    // Average number of batches between two operations of the same kind, such as checkpoints. Some
    // of these operations move the tail of the log. The average must be small enough that only few
    // files have all their content in the log.
    let rests = draw.one_of(&[50, 200, 1000]);
    for _ in 0..batches {
        match draw.below(rests) {
            0 => world.db.checkpoint()?,
            1 => world.db.write_back()?,
            2 => world.db.compact(|_| {})?,
            3 => {
                let disk = cut(&world.disk, draw);
                world.reopen(disk)?;
            }
            4 => {
                world.db.sync()?;
                world.history.synced();
                let disk = world.disk.clone();
                world.open_again(disk)?;
            }
            _ => {}
        }
        if draw.below(batches) < 3 {
            past.olds.push(world.disk.content());
        }
        let changes = shape.batch(draw);
        for change in &changes {
            if let Change::Put(key, value) = change {
                past.given.insert((key.clone(), value.clone()));
            }
        }
        let durability = draw.one_of(&[Durability::Durable, Durability::Relaxed]);
        match world.write(&changes, durability) {
            // A batch that is too long has changed nothing.
            Ok(()) | Err(Error::BatchTooLong { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn past_of(seed: u64) -> Past {
    let mut draw = Draw::new(seed);
    let options = options_of(&mut draw);
    let shape = Shape::draw(&mut draw);
    let mut world = World::new(options.clone()).expect("an index");
    let mut past = Past {
        content: Vec::new(),
        olds: vec![world.disk.content()],
        log: Vec::new(),
        segments_offset: world.db.segments_offset() as usize,
        options,
        history: History::new(),
        given: BTreeSet::new(),
        is_closed: draw.once_in(2),
    };
    let led = lead(&mut world, &shape, &mut draw, &mut past);
    led.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    if draw.once_in(3) {
        world.db.write_back().expect("a write-back");
    }
    world.db.sync().expect("a sync");
    let ranges = world.db.log_ranges().into_iter();
    past.log = ranges.map(|r| r.start as usize..r.end as usize).collect();
    match past.is_closed {
        true => world.db.clone().close().expect("a close"),
        false => world.db.clone().abandon(),
    }
    past.content = world.disk.content();
    past.history = world.history.clone();
    past
}

/// Damages a range of bytes; returns the kind of damage.
fn spoil(content: &mut [u8], range: Range<usize>, past: &Past, draw: &mut Draw) -> &'static str {
    let old = draw.one_of(&past.olds.iter().collect::<Vec<_>>());
    match (draw.below(3), old.get(range.clone())) {
        (0, Some(old)) => {
            content[range].copy_from_slice(old);
            "as before"
        }
        (1, _) => {
            content[range].fill_with(|| draw.number() as u8);
            "noise"
        }
        _ => {
            content[range].fill(0);
            "zeroed"
        }
    }
}

fn flip(content: &mut [u8], at: usize, draw: &mut Draw) {
    content[at] ^= 1 << draw.below(8);
}

/// Finds the offsets of structures that have one of the given magic numbers after their checksum.
fn with_magic(content: &[u8], magic: &[&[u8; 4]]) -> Vec<usize> {
    let places = (0..content.len()).step_by(64);
    let is_one = |at: &usize| {
        magic
            .iter()
            .any(|magic| content[at + 4..].starts_with(*magic))
    };
    places.filter(is_one).collect()
}

/// Damages the file in one randomly chosen way. Returns a description of the damage.
fn damage(content: &mut [u8], past: &Past, draw: &mut Draw) -> String {
    let len = content.len() as u64;
    match draw.below(9) {
        0 => {
            let count = 1 + draw.magnitude(8);
            for _ in 0..count {
                let at = draw.below(len) as usize;
                flip(content, at, draw);
            }
            format!("{count} bytes")
        }
        1 | 2 => {
            let count = 1 + draw.below(8);
            let mut how = "";
            for _ in 0..count {
                let at = draw.below(len / BLOCK_BYTES as u64) as usize * BLOCK_BYTES;
                how = spoil(content, at..at + BLOCK_BYTES, past, draw);
            }
            format!("{count} blocks, the last {how}")
        }
        3 => {
            let mut how = "";
            for range in &past.log {
                how = spoil(content, range.clone(), past, draw);
            }
            format!("the log {how}")
        }
        4 => blocks_of_the_log(content, past, draw),
        5 => {
            let range = past.segment(draw);
            let how = spoil(content, range.clone(), past, draw);
            format!("the segment at {} {how}", range.start)
        }
        6 => heads_and_images(content, draw),
        7 => {
            let at = draw.below(2) as usize * BLOCK_BYTES;
            let how = spoil(content, at..at + BLOCK_BYTES, past, draw);
            format!("the superblock at {at} {how}")
        }
        _ => checkpoints(content, draw),
    }
}

fn blocks_of_the_log(content: &mut [u8], past: &Past, draw: &mut Draw) -> String {
    let range = draw.one_of(&past.log.iter().collect::<Vec<_>>()).clone();
    let blocks = (range.len() / BLOCK_BYTES) as u64;
    let count = 1 + draw.below(4);
    for _ in 0..count {
        let at = range.start + draw.below(blocks) as usize * BLOCK_BYTES;
        spoil(content, at..at + BLOCK_BYTES, past, draw);
    }
    format!("{count} blocks of the log")
}

fn heads_and_images(content: &mut [u8], draw: &mut Draw) -> String {
    let places = with_magic(content, &[b"bmSF", b"bmSH", b"bmIN"]);
    let Some(count) = (!places.is_empty()).then(|| 1 + draw.below(6)) else {
        return "no head".to_owned();
    };
    for _ in 0..count {
        let at = draw.one_of(&places) + draw.below(64) as usize;
        flip(content, at, draw);
    }
    format!("{count} heads, footers and images")
}

fn checkpoints(content: &mut [u8], draw: &mut Draw) -> String {
    let places = (0..content.len()).step_by(BLOCK_BYTES);
    let begins = |at: &usize| content[*at..].starts_with(b"bimetlay");
    let checkpoints: Vec<usize> = places.filter(begins).collect();
    for at in &checkpoints {
        let inside = at + draw.below(512) as usize;
        flip(content, inside, draw);
    }
    format!("{} checkpoints", checkpoints.len())
}

/// Restores one superblock if both superblocks are damaged. Without a superblock, a missing segment
/// looks like a segment that was never filled, and an image that is damaged together with its
/// footer looks like an image that a power cut has interrupted.
fn keep_a_superblock(content: &mut [u8], past: &Past, draw: &mut Draw) {
    let blocks = [0..BLOCK_BYTES, BLOCK_BYTES..2 * BLOCK_BYTES];
    let is_gone = |block: &Range<usize>| content[block.clone()] != past.content[block.clone()];
    if blocks.iter().all(is_gone) {
        let kept = blocks[draw.below(2) as usize].clone();
        content[kept.clone()].copy_from_slice(&past.content[kept]);
    }
}

/// Returns a copy of the file with random damage, and a description of the damage.
fn damaged(past: &Past, draw: &mut Draw) -> (Vec<u8>, String) {
    let mut content = past.content.clone();
    let mut how = Vec::new();
    for _ in 0..draw.one_of(&[1, 1, 2, 4]) {
        how.push(damage(&mut content, past, draw));
    }
    keep_a_superblock(&mut content, past, draw);
    (content, how.join(", "))
}

/// Returns the number of keys that are wrong and not listed as lost, and an example.
fn unlisted(past: &Past, rebuilt: &Rebuilt, map: &Map, model: &Map) -> (usize, String) {
    let keys: BTreeSet<&Vec<u8>> = map.keys().chain(model.keys()).collect();
    let is_wrong = |key: &&&Vec<u8>| {
        let (found, right) = (map.get(**key), model.get(**key));
        let was_given = |value: &Vec<u8>| {
            let is_number = &key[..] == crate::world::NUMBER_KEY;
            is_number || past.given.contains(&((**key).clone(), value.clone()))
        };
        match is_in(&rebuilt.lost, key) {
            None => found != right,
            Some(Loss::Keys) => found.is_some() && found != right,
            Some(Loss::Changes) => found.is_some_and(|value| !was_given(value)),
        }
    };
    let wrong: Vec<&&Vec<u8>> = keys.iter().filter(is_wrong).collect();
    let example = wrong.first().map(|key| {
        let listed = is_in(&rebuilt.lost, key);
        let lens = [map.get(**key), model.get(**key)].map(|value| value.map(Vec::len));
        format!("{} {listed:?} {lens:?}", key.escape_ascii())
    });
    (wrong.len(), example.unwrap_or_default())
}

/// Statistics of all files.
#[derive(Debug, Default)]
struct Statistics {
    files: usize,
    /// Files without a listed range.
    whole: usize,
    /// Number of files for which the listed ranges (the ranges of keys reported as lost) contain
    /// less than half of all keys.
    partly: usize,
    /// Number of files whose reported losses cover at least half of all keys.
    nothing_sure: usize,
    no_index: usize,
    keys: usize,
    listed_keys: usize,
    failed: Vec<String>,
}

impl Statistics {
    fn note(&mut self, past: &Past, content: Vec<u8>, how: &str) {
        self.files += 1;
        let end_is_known = past.end_is_known(&content);
        let disk = MemoryStorage::with_content(content);
        let (rebuilt, map) = match built_anew(&disk, &past.options) {
            Ok(built) => built,
            Err(Error::NotAnIndex { .. }) => {
                self.no_index += 1;
                return;
            }
            Err(error) => {
                self.failed.push(format!("{how}: {error}"));
                return;
            }
        };
        // If the end of the log cannot be determined, the test accepts that the log ended at the
        // last batch that was found.
        let number = match end_is_known {
            true => past.history.given(),
            false => (rebuilt.last_batch as usize).min(past.history.given()),
        };
        let model = past.history.at(number);
        let (count, example) = unlisted(past, &rebuilt, &map, &model);
        if count > 0 {
            let problems = rebuilt.problems_found;
            self.failed.push(format!(
                "{how}: {count} keys of {}, {} ranges, {problems} problems, batch {number} of {}: {example}",
                model.len(),
                rebuilt.lost_found,
                past.history.given()
            ));
        }
        let mut ranges = rebuilt.lost.windows(2);
        if !ranges.all(|two| two[0].to.as_ref().is_some_and(|to| *to <= two[1].from)) {
            self.failed.push(format!("{how}: {:?}", rebuilt.lost));
        }
        let listed = model
            .keys()
            .filter(|key| is_in(&rebuilt.lost, key).is_some());
        let listed = listed.count();
        self.keys += model.len();
        self.listed_keys += listed;
        match listed {
            _ if rebuilt.lost_found == 0 => self.whole += 1,
            listed if listed < model.len() / 2 => self.partly += 1,
            _ => self.nothing_sure += 1,
        }
    }

    fn check(&self) {
        assert!(
            self.failed.is_empty(),
            "{} of {} files:\n{}\n{:?}",
            self.failed.len(),
            self.files,
            self.failed.join("\n"),
            Statistics {
                failed: Vec::new(),
                ..*self
            }
        );
        println!("{self:?}");
    }
}

#[test]
fn every_key_is_right_or_in_a_range_that_is_listed() {
    let mut statistics = Statistics::default();
    for seed in seeds_or(0..40) {
        let past = past_of(seed);
        let mut draw = Draw::new(seed);
        for file in 0..FILES {
            let (content, how) = damaged(&past, &mut draw);
            statistics.note(&past, content, &format!("seed {seed}, file {file}, {how}"));
        }
    }
    statistics.check();
    if statistics.files >= 200 {
        let Statistics { whole, partly, .. } = statistics;
        assert!(whole > 50 && partly > 10, "{statistics:?}");
    }
}

#[test]
fn a_file_without_damage_lists_nothing_and_one_image_is_a_small_part() {
    let (mut whole, mut one) = (Statistics::default(), Statistics::default());
    for seed in seeds_or(0..20) {
        let past = past_of(seed);
        whole.note(&past, past.content.clone(), &format!("seed {seed}"));
        let images = images(&past.content);
        if images.is_empty() {
            continue;
        }
        let mut draw = Draw::new(seed);
        for _ in 0..2 {
            let (at, len) = draw.one_of(&images);
            let mut content = past.content.clone();
            let byte = (at + draw.below(len as u64) as usize).min(content.len() - 1);
            flip(&mut content, byte, &mut draw);
            one.note(&past, content, &format!("seed {seed}, image at {at}"));
        }
    }
    whole.check();
    assert_eq!(whole.whole, whole.files);
    one.check();
    assert!(one.listed_keys * 10 < one.keys, "{one:?}");
}
