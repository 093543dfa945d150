//! The superblock of a side: who it is, which volume it belongs to, where everything lies, and
//! whether the volume was stopped cleanly. The format is drawn byte by byte in
//! `docs/format/mirror-side.md`; this module is its only reader and writer.
//!
//! Sides are recognised by UUID, never by path. Two copies (first and last block of the device)
//! are written one after the other with a flush in between, so that one of them is whole at any
//! time. Nothing is believed before its checksum is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::Rt;

use crate::device::Device;
use crate::error::{IoError, OpenError};
use crate::request::{BLOCK_BYTES, Flags, Request};
use crate::units::{show_size, show_unix_time};

const MAGIC: [u8; 8] = *b"BIMETAL\0";
/// Readers refuse a higher major version.
const VERSION_MAJOR: u32 = 1;
const VERSION_MINOR: u32 = 0;
/// Sides of one volume, at most: what the table has room for.
pub const SIDES_MAX: usize = 16;
const NAME_BYTES: usize = 64;
const SIDE_TABLE: usize = 256;
const SIDE_ENTRY_BYTES: usize = 32;
const CHECKSUM_AT: usize = BLOCK_BYTES as usize - 4;

/// Space before the first area.
const HEADER_BYTES: u64 = 64 << 10;
/// Areas start and end at multiples of this.
const AREA_ALIGNMENT: u64 = 64 << 10;
/// The data starts at a multiple of this.
const DATA_ALIGNMENT: u64 = 1 << 20;
/// The smallest device that can be a side.
pub const SIDE_BYTES_MIN: u64 = 16 << 20;
/// Bytes of the map area for each MiB of data.
const MAP_BYTES_PER_MIB: u64 = 16;
/// Bytes of the checksum area for each block: two generations of a CRC32C.
const CHECKSUM_BYTES_PER_BLOCK: u64 = 8;
const LOG_BYTES_MIN: u64 = 4 << 20;
const LOG_BYTES_MAX: u64 = 1 << 30;

/// 16 random bytes that name a volume or a side.
pub type Uuid = [u8; 16];

/// A UUID in its usual spelling.
pub fn show_uuid(uuid: &Uuid) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Whether the volume was stopped cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Drained, flushed and closed.
    Clean,
    /// In use, or stopped without being closed.
    Active,
}

/// Where the areas of a side lie, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The map of regions.
    pub map: (u64, u64),
    /// The checksums.
    pub checksums: (u64, u64),
    /// The log.
    pub log: (u64, u64),
    /// The data: the volume itself, readable without bimetal.
    pub data: (u64, u64),
}

impl Layout {
    /// The layout of a device; `None` when it is too small.
    pub fn of_device(device_bytes: u64) -> Option<Layout> {
        if device_bytes < SIDE_BYTES_MIN {
            return None;
        }
        let log = (device_bytes / 16).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
        let map = device_bytes.div_ceil(1 << 20) * MAP_BYTES_PER_MIB;
        let checksums = device_bytes / BLOCK_BYTES * CHECKSUM_BYTES_PER_BLOCK;
        let mut position = HEADER_BYTES;
        let mut area = |bytes: u64| {
            let place = (position, bytes.next_multiple_of(AREA_ALIGNMENT));
            position += place.1;
            place
        };
        let (map, checksums, log) = (area(map), area(checksums), area(log));
        let start = position.next_multiple_of(DATA_ALIGNMENT);
        let end = device_bytes - BLOCK_BYTES;
        (start < end).then(|| Layout {
            map,
            checksums,
            log,
            data: (start, end - start),
        })
    }
}

/// The content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The volume.
    pub volume: Uuid,
    /// This side.
    pub side: Uuid,
    /// All sides, in the order of formatting.
    pub sides: Vec<Uuid>,
    /// Clean or not.
    pub state: State,
    /// Counts changes of the superblock; the highest is the newest.
    pub generation: u64,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// Where everything lies.
    pub layout: Layout,
    /// When the volume was formatted, in seconds since 1970.
    pub created_s: u64,
    /// When this superblock was written.
    pub written_s: u64,
    /// The name of the volume when it was formatted.
    pub name: String,
}

/// Writes fields one after the other.
struct Fields<'b> {
    bytes: &'b mut [u8],
    at: usize,
}

impl Fields<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
}

impl Superblock {
    /// The block as it lies on the device.
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            (2..=SIDES_MAX).contains(&self.sides.len()),
            "the table has room for the sides"
        );
        let mut block = vec![0; BLOCK_BYTES as usize];
        let mut fields = Fields {
            bytes: &mut block,
            at: 0,
        };
        fields.put(&MAGIC);
        fields.put_u32(VERSION_MAJOR);
        fields.put_u32(VERSION_MINOR);
        // Feature bits: incompatible, compatible for reading only, compatible. None yet.
        (0..3).for_each(|_| fields.put_u64(0));
        fields.put(&self.volume);
        fields.put(&self.side);
        let index = self.sides.iter().position(|uuid| *uuid == self.side);
        fields.put_u32(index.expect("a side is in its own table") as u32);
        fields.put_u32(self.sides.len() as u32);
        fields.put_u32(match self.state {
            State::Clean => 1,
            State::Active => 2,
        });
        fields.put_u32(0);
        fields.put_u64(self.generation);
        fields.put_u64(0); // Epoch: reserved for crash recovery.
        fields.put_u64(self.volume_bytes);
        for (offset, len) in [
            self.layout.map,
            self.layout.checksums,
            self.layout.log,
            self.layout.data,
        ] {
            fields.put_u64(offset);
            fields.put_u64(len);
        }
        fields.put_u64(self.created_s);
        fields.put_u64(self.written_s);
        let name = cut_to_bytes(&self.name, NAME_BYTES);
        fields.put(name.as_bytes());
        for (index, uuid) in self.sides.iter().enumerate() {
            let at = SIDE_TABLE + index * SIDE_ENTRY_BYTES;
            block[at..at + 16].copy_from_slice(uuid);
        }
        let checksum = crc32c::crc32c(&block[..CHECKSUM_AT]);
        block[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// Reads a block. `Ok(None)` when it is no superblock at all.
    ///
    /// # Errors
    /// What is wrong with a block that looks like one.
    pub fn decode(block: &[u8]) -> Result<Option<Superblock>, String> {
        if block.len() != BLOCK_BYTES as usize || block[..8] != MAGIC {
            return Ok(None);
        }
        let u32_at =
            |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap_or_default());
        let u64_at =
            |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap_or_default());
        let uuid_at = |at: usize| -> Uuid { block[at..at + 16].try_into().unwrap_or_default() };
        let area_at = |at: usize| (u64_at(at), u64_at(at + 8));
        if u32_at(CHECKSUM_AT) != crc32c::crc32c(&block[..CHECKSUM_AT]) {
            return Err("its checksum is wrong".to_owned());
        }
        if u32_at(8) > VERSION_MAJOR {
            return Err(format!(
                "its format version {} is newer than this program",
                u32_at(8)
            ));
        }
        if u64_at(16) != 0 {
            return Err(format!(
                "it uses features {:#x} this program does not know",
                u64_at(16)
            ));
        }
        let count = u32_at(76) as usize;
        if !(2..=SIDES_MAX).contains(&count) {
            return Err(format!("it names {count} sides"));
        }
        let state = match u32_at(80) {
            1 => State::Clean,
            2 => State::Active,
            other => return Err(format!("its state {other} is unknown")),
        };
        let name = &block[192..192 + NAME_BYTES];
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Some(Superblock {
            volume: uuid_at(40),
            side: uuid_at(56),
            sides: (0..count)
                .map(|i| uuid_at(SIDE_TABLE + i * SIDE_ENTRY_BYTES))
                .collect(),
            state,
            generation: u64_at(88),
            volume_bytes: u64_at(104),
            layout: Layout {
                map: area_at(112),
                checksums: area_at(128),
                log: area_at(144),
                data: area_at(160),
            },
            created_s: u64_at(176),
            written_s: u64_at(184),
            name: String::from_utf8_lossy(name).into_owned(),
        }))
    }

    /// What a device of this size cannot hold, if anything.
    fn fits(&self, device_bytes: u64) -> Result<(), String> {
        let (start, len) = self.layout.data;
        let end = start.checked_add(len).ok_or("its data area has no end")?;
        if end > device_bytes || self.volume_bytes > len || start % DATA_ALIGNMENT != 0 {
            return Err(format!(
                "it describes a volume of {} but the device has {}",
                show_size(self.volume_bytes),
                show_size(device_bytes)
            ));
        }
        Ok(())
    }
}

/// The newest superblock among the copies of a side, each a block or why it could not be read;
/// `None` when none of them is a superblock at all. One good copy is enough.
///
/// # Errors
/// When there is no good copy and at least one that cannot be read or believed.
pub fn newest(
    copies: impl IntoIterator<Item = Result<Vec<u8>, String>>,
) -> Result<Option<Superblock>, String> {
    let mut newest: Option<Superblock> = None;
    let mut damaged = None;
    for copy in copies {
        match copy.and_then(|block| Superblock::decode(&block)) {
            Ok(Some(found))
                if newest
                    .as_ref()
                    .is_none_or(|n| n.generation < found.generation) =>
            {
                newest = Some(found);
            }
            Ok(_) => {}
            Err(why) => damaged = Some(why),
        }
    }
    match (newest, damaged) {
        (Some(superblock), _) => Ok(Some(superblock)),
        (None, Some(why)) => Err(format!("no superblock can be read: {why}")),
        (None, None) => Ok(None),
    }
}

/// The longest start of `text` that fits in `bytes` without cutting a character.
fn cut_to_bytes(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A side that is being looked at: its name in the configuration and its device.
#[derive(Clone)]
pub struct Candidate {
    /// The name.
    pub name: String,
    /// The device.
    pub device: Rc<dyn Device>,
}

impl Candidate {
    fn error(&self, what: &str) -> OpenError {
        OpenError::new(format!("side {}: {what}", self.name))
    }

    fn copies(&self) -> [u64; 2] {
        [0, self.device.geometry().size_bytes - BLOCK_BYTES]
    }

    /// The newest superblock on the device, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, or when what is there cannot be believed.
    pub async fn superblock(&self) -> Result<Option<Superblock>, OpenError> {
        let mut copies = Vec::new();
        for offset in self.copies() {
            let reply = self.device.submit(Request::read(offset, BLOCK_BYTES)).await;
            copies.push(match reply {
                Ok(reply) => Ok(reply.into_data().to_vec()),
                Err(error) => Err(format!("reading at {offset}: {error}")),
            });
        }
        newest(copies).map_err(|why| self.error(&why))
    }

    async fn write(&self, superblock: &Superblock, rt: &Rt) -> Result<(), IoError> {
        let block = rt.pool().copy_of(&superblock.encode());
        for offset in self.copies() {
            let write = Request::write(offset, block.clone(), Flags::NONE);
            self.device.submit(write).await?;
            self.device.submit(Request::flush()).await?;
        }
        Ok(())
    }
}

/// What formatting has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formatted {
    /// The volume's UUID.
    pub volume: Uuid,
    /// Its size in bytes.
    pub volume_bytes: u64,
    /// Name, UUID and data offset of each side.
    pub sides: Vec<(String, Uuid, u64)>,
}

/// Prepares sides for a new volume. Nothing is written before every side is found fit.
///
/// # Errors
/// When a side is too small, cannot be written, or holds a volume and `force` is not given.
pub async fn format(
    rt: &Rt,
    name: &str,
    sides: &[Candidate],
    force: bool,
) -> Result<Formatted, OpenError> {
    let mut layouts = Vec::new();
    for side in sides {
        layouts.push(check_formattable(side, force).await?);
    }
    let volume_bytes = layouts
        .iter()
        .map(|layout| layout.data.1)
        .min()
        .unwrap_or(0);
    let volume_bytes = volume_bytes - volume_bytes % BLOCK_BYTES;
    let random = || {
        rt.random_uuid()
            .map_err(|e| OpenError::new(format!("no random numbers: {e}")))
    };
    let volume = random()?;
    let uuids = sides
        .iter()
        .map(|_| random())
        .collect::<Result<Vec<_>, _>>()?;
    let now_s = rt.unix_seconds();
    for (index, side) in sides.iter().enumerate() {
        let superblock = Superblock {
            volume,
            side: uuids[index],
            sides: uuids.clone(),
            state: State::Clean,
            generation: 1,
            volume_bytes,
            layout: layouts[index],
            created_s: now_s,
            written_s: now_s,
            name: name.to_owned(),
        };
        let written = side.write(&superblock, rt).await;
        written.map_err(|error| side.error(&format!("writing the superblock: {error}")))?;
    }
    let described = sides.iter().zip(&uuids).zip(&layouts);
    let sides = described.map(|((s, uuid), layout)| (s.name.clone(), *uuid, layout.data.0));
    Ok(Formatted {
        volume,
        volume_bytes,
        sides: sides.collect(),
    })
}

async fn check_formattable(side: &Candidate, force: bool) -> Result<Layout, OpenError> {
    let geometry = side.device.geometry();
    if !geometry.writable {
        return Err(side.error("is read-only"));
    }
    let layout = Layout::of_device(geometry.size_bytes).ok_or_else(|| {
        side.error(&format!(
            "too small: {}, a side needs at least {}",
            show_size(geometry.size_bytes),
            show_size(SIDE_BYTES_MIN)
        ))
    })?;
    if !force {
        // What cannot be read must not be overwritten without being asked either.
        if let Some(found) = side.superblock().await? {
            return Err(side.error(&format!(
                "already holds a side of volume {} (\"{}\"); --force overwrites it",
                show_uuid(&found.volume),
                found.name
            )));
        }
    }
    Ok(layout)
}

/// The superblocks of a volume in use.
pub struct Volume {
    rt: Rt,
    sides: Vec<Candidate>,
    superblocks: RefCell<Vec<Superblock>>,
    generation: Cell<u64>,
}

/// A volume that was found, and which of its sides lack something.
pub(super) struct Found {
    pub(super) volume: Volume,
    pub(super) data_offsets: Vec<u64>,
    pub(super) volume_bytes: u64,
    pub(super) stale: Vec<bool>,
}

impl Volume {
    /// Recognises the sides of a volume and decides what to do with each. Writes nothing.
    ///
    /// # Errors
    /// When a side is missing, foreign or unknown, or when the volume was not cleanly stopped and
    /// `resync` is not given: then the error says what is unknown.
    pub(super) async fn find(
        rt: &Rt,
        sides: Vec<Candidate>,
        resync: bool,
    ) -> Result<Found, OpenError> {
        let mut superblocks = Vec::new();
        for side in &sides {
            let superblock = side.superblock().await?.ok_or_else(|| {
                side.error("holds no volume; prepare the sides with `bimetal format`")
            })?;
            superblock
                .fits(side.device.geometry().size_bytes)
                .map_err(|why| side.error(&why))?;
            superblocks.push(superblock);
        }
        check_family(&sides, &superblocks)?;
        let stale = stale_sides(&sides, &superblocks, resync)?;
        let truth = stale
            .iter()
            .position(|stale| !stale)
            .expect("one side is the truth");
        let volume_bytes = superblocks[truth].volume_bytes;
        Ok(Found {
            data_offsets: superblocks.iter().map(|s| s.layout.data.0).collect(),
            volume_bytes,
            stale,
            volume: Volume {
                generation: Cell::new(superblocks.iter().map(|s| s.generation).max().unwrap_or(0)),
                rt: rt.clone(),
                sides,
                superblocks: superblocks.into(),
            },
        })
    }

    /// The newest generation.
    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Starts a new generation; no side has it yet.
    pub(super) fn new_generation(&self) -> u64 {
        self.generation.set(self.generation.get() + 1);
        self.generation.get()
    }

    /// Gives a side that holds everything a generation, durably. Sides that do not get it are
    /// known to lack something, whatever happens next.
    pub(super) async fn mark_one(
        &self,
        index: usize,
        generation: u64,
        state: State,
    ) -> Result<(), IoError> {
        let superblock = {
            let mut superblocks = self.superblocks.borrow_mut();
            let superblock = &mut superblocks[index];
            superblock.generation = generation;
            superblock.state = state;
            superblock.written_s = self.rt.unix_seconds();
            superblock.clone()
        };
        self.sides[index].write(&superblock, &self.rt).await
    }

    /// Starts a new generation and gives it to sides that hold everything, each for itself.
    pub(super) async fn mark(&self, whole: &[usize], state: State) -> Vec<Result<(), IoError>> {
        let generation = self.new_generation();
        let marks = whole
            .iter()
            .map(|&index| self.mark_one(index, generation, state));
        futures_util::future::join_all(marks).await
    }
}

/// All sides must be different sides of one volume, and all of them.
fn check_family(sides: &[Candidate], found: &[Superblock]) -> Result<(), OpenError> {
    let first = &found[0];
    for (index, superblock) in found.iter().enumerate() {
        if superblock.volume != first.volume {
            return Err(sides[index].error(&format!(
                "foreign: it belongs to volume {} (\"{}\"), but side {} to volume {} (\"{}\")",
                show_uuid(&superblock.volume),
                superblock.name,
                sides[0].name,
                show_uuid(&first.volume),
                first.name
            )));
        }
        if let Some(twin) = found[..index]
            .iter()
            .position(|other| other.side == superblock.side)
        {
            let what = format!("is the same side as {} (a copy of it?)", sides[twin].name);
            return Err(sides[index].error(&what));
        }
    }
    if first.sides.len() != sides.len() {
        return Err(OpenError::new(format!(
            "the volume was formatted with {} sides, the configuration names {}",
            first.sides.len(),
            sides.len()
        )));
    }
    Ok(())
}

/// Which sides lack something, or why that cannot be decided.
fn stale_sides(
    sides: &[Candidate],
    found: &[Superblock],
    resync: bool,
) -> Result<Vec<bool>, OpenError> {
    let newest = found.iter().map(|s| s.generation).max().unwrap_or(0);
    let is_newest = |s: &Superblock| s.generation == newest;
    let cleanly = found
        .iter()
        .any(|s| is_newest(s) && s.state == State::Clean);
    if cleanly {
        // Sides that were absent at a clean stop are known to be behind: they are made whole.
        return Ok(found
            .iter()
            .map(|s| !(is_newest(s) && s.state == State::Clean))
            .collect());
    }
    let truth = found.iter().position(is_newest).unwrap_or(0);
    if resync {
        return Ok((0..found.len()).map(|index| index != truth).collect());
    }
    let since = found.iter().map(|s| s.written_s).min().unwrap_or(0);
    let names: Vec<&str> = sides.iter().map(|side| side.name.as_str()).collect();
    Err(OpenError::new(format!(
        "not cleanly stopped: of the writes since {} that were not flushed, each may be on only \
         some of {}, and which is unknown; `bimetal serve --resync` makes all sides equal to {}",
        show_unix_time(since),
        names.join(", "),
        sides[truth].name
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            volume: [1; 16],
            side: [3; 16],
            sides: vec![[2; 16], [3; 16]],
            state: State::Active,
            generation: 7,
            volume_bytes: 900 << 20,
            layout: Layout::of_device(1 << 30).unwrap(),
            created_s: 1_000,
            written_s: 2_000,
            name: "vol".to_owned(),
        }
    }

    #[test]
    fn a_superblock_survives_and_every_damaged_byte_is_noticed() {
        let block = sample().encode();
        assert_eq!(Superblock::decode(&block), Ok(Some(sample())));
        for at in 0..block.len() {
            let mut damaged = block.clone();
            damaged[at] ^= 0x40;
            assert!(
                !matches!(Superblock::decode(&damaged), Ok(Some(_))),
                "byte {at}"
            );
        }
    }

    #[test]
    fn the_newest_good_copy_counts() {
        let old = sample();
        let new = Superblock {
            generation: old.generation + 1,
            ..sample()
        };
        let mut torn = new.encode();
        torn[90] ^= 1;
        let blank = vec![0; BLOCK_BYTES as usize];
        let of = |copies: Vec<Result<Vec<u8>, String>>| newest(copies);
        let unread = || Err("unread".to_owned());
        assert_eq!(
            of(vec![Ok(old.encode()), Ok(new.encode())]),
            Ok(Some(new.clone()))
        );
        assert_eq!(of(vec![Ok(new.encode()), Ok(old.encode())]), Ok(Some(new)));
        assert_eq!(
            of(vec![Ok(torn.clone()), Ok(old.encode())]),
            Ok(Some(old.clone()))
        );
        assert_eq!(of(vec![Ok(old.encode()), unread()]), Ok(Some(old)));
        assert_eq!(of(vec![Ok(blank.clone()), Ok(blank.clone())]), Ok(None));
        assert!(of(vec![Ok(torn), Ok(blank.clone())]).is_err());
        assert!(of(vec![unread(), Ok(blank)]).is_err());
    }

    /// The places of `docs/format/mirror-side.md`.
    #[test]
    fn fields_lie_where_the_format_page_says() {
        let block = sample().encode();
        assert_eq!(&block[0..8], b"BIMETAL\0");
        assert_eq!(&block[8..16], &[1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&block[40..56], &[1; 16]);
        assert_eq!(&block[56..72], &[3; 16]);
        assert_eq!(&block[72..80], &[1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(&block[80..84], &[2, 0, 0, 0]);
        assert_eq!(&block[88..96], &7u64.to_le_bytes());
        assert_eq!(&block[104..112], &(900u64 << 20).to_le_bytes());
        assert_eq!(&block[160..168], &sample().layout.data.0.to_le_bytes());
        assert_eq!(&block[176..184], &1_000u64.to_le_bytes());
        assert_eq!(&block[192..196], b"vol\0");
        assert_eq!(&block[256..272], &[2; 16]);
        assert_eq!(&block[288..304], &[3; 16]);
    }

    #[test]
    fn areas_follow_each_other_and_leave_room_for_the_second_copy() {
        assert_eq!(Layout::of_device(SIDE_BYTES_MIN - 1), None);
        for device_bytes in [SIDE_BYTES_MIN, 1 << 30, (1 << 40) + 12_288, 20 << 40] {
            let layout = Layout::of_device(device_bytes).unwrap();
            let mut end = HEADER_BYTES;
            for (start, len) in [layout.map, layout.checksums, layout.log] {
                assert_eq!(start, end);
                end = start + len;
            }
            assert!(layout.data.0 >= end && layout.data.0.is_multiple_of(DATA_ALIGNMENT));
            assert_eq!(layout.data.0 + layout.data.1, device_bytes - BLOCK_BYTES);
            let overhead = device_bytes - layout.data.1;
            assert!(overhead < device_bytes / 2, "{overhead} of {device_bytes}");
        }
    }
}
