//! The superblock of a side: its identity, its volume, the layout of its areas, the history of its
//! epochs, and the state in which it was left. `docs/format/mirror-side.md` specifies the bytes;
//! this module is the only reader and writer of this format.
//!
//! Sides are identified by UUID, never by path. The two copies (in the first and the last block of
//! the device) are written one after the other with a flush after each, so that one of them is
//! intact at any time. No field is trusted before the checksum is verified, and no content can
//! cause a panic. [`super::family`] decides what the superblocks of several sides mean together.

pub(super) mod areas;
mod candidate;
mod history;
mod kinds;
mod layout;
mod listed;
mod remembered;
pub(super) mod segmented;
#[cfg(test)]
mod tests;
mod volume_room;

pub use super::digest::BlockDigest;
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::BLOCK_BYTES;
use crate::units::show_size;

pub use candidate::Candidate;
pub(super) use candidate::NotSeen;
pub use history::{EPOCHS_MAX, Epoch, History};
pub(super) use layout::device_bytes_for;
pub use layout::{
    Asked, LOG_BYTES_MIN, LayoutError, Reserve, SIDE_BYTES_MIN, SegmentLayout, SideKind, SideLayout,
};
pub use listed::{Acknowledged, Listed, Table, place_in};
pub use remembered::{Leaving, Remembered, ScrubRecord};
pub use segmented::LOGGED_SIDE_BYTES_MAX;
pub(super) use volume_room::VolumeRoom;

const MAGIC: [u8; 8] = *b"BIMETAL\0";

/// Returns true when a device begins with the first bytes of a superblock, whether the superblock
/// is valid or not. `head` holds the first bytes of the device.
pub fn is_marked(head: &[u8]) -> bool {
    head.starts_with(&MAGIC)
}
/// Major version of the format. Any other major version is refused.
const VERSION_MAJOR: u32 = 2;
const VERSION_MINOR: u32 = 0;
/// Length of a superblock in bytes.
const SUPERBLOCK_BYTES: u64 = BLOCK_BYTES;
/// Maximum number of sides of a volume, which is the number of entries in the table.
pub const SIDES_MAX: usize = 16;
const NAME_AT: usize = 192;
const NAME_BYTES: usize = 64;
const SIDE_TABLE_AT: usize = 256;
const SIDE_ENTRY_BYTES: usize = 32;
/// Offset of `acknowledged` within an entry of the table of sides.
const ACKNOWLEDGED_AT: usize = 16;
const EPOCH_COUNT_AT: usize = 768;
const HISTORY_AT: usize = 776;
const EPOCH_BYTES: usize = 48;
const WRITTEN_AT: usize = 3848;
const SEGMENTS_AT: usize = 3872;
const ROOM_AT: usize = 3912;
const CHECKSUM_AT: usize = SUPERBLOCK_BYTES as usize - 4;
/// Feature bit of a side that records which pages of its dirty-region bitmap and its checksums were
/// ever written.
const WRITTEN_FEATURE: u64 = 1;
/// Feature bit of a side whose block digests are computed with XXH3.
const XXH3_FEATURE: u64 = 2;
/// Feature bit of a logged side.
const SEGMENTS_FEATURE: u64 = 32;
/// Feature bit of a logged side whose log may have entries that overtake others.
const OVERTAKING_FEATURE: u64 = 64;
/// Feature bit of a logged side of a volume that is larger than what its sides have room for.
const ROOM_FEATURE: u64 = 128;
/// Feature bits that only logged sides have.
const OF_LOGGED_FEATURES: u64 = OVERTAKING_FEATURE | ROOM_FEATURE;
/// Feature bits of logged sides of earlier versions: without a journal, without summaries, and
/// without a segment table.
const OLD_SEGMENTS_FEATURES: u64 = 4 | 8 | 16;
/// Sequence number of the first change of a volume; the number 0 means no change.
pub const FIRST_CHANGE: u64 = 1;

/// 16 random bytes that identify a volume, a side or an epoch.
pub type Uuid = [u8; 16];

/// Value that marks a free place in the table of sides.
const FREE: Uuid = [0; 16];

/// Formats a UUID in the usual notation with hyphens.
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

/// Returns the first eight digits of a UUID. They serve as the name of a side that no configured
/// device holds.
pub fn short_uuid(uuid: &Uuid) -> String {
    let mut short = show_uuid(uuid);
    short.truncate(8);
    short
}

/// State in which a side was left, as its superblock records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideState {
    /// Cleanly closed: every change is on the side, and on every member of its epoch.
    Clean,
    /// In use, or stopped without being closed: a peer may be ahead of this side.
    Dirty,
    /// In use and clean-idle: every change is on every member of the epoch, so no peer is ahead.
    CleanIdle,
    /// Being rebuilt: the data area is a mixture of old and new content.
    Inconsistent,
}

impl SideState {
    const ALL: [SideState; 4] = [
        SideState::Clean,
        SideState::Dirty,
        SideState::CleanIdle,
        SideState::Inconsistent,
    ];

    /// Returns the name of the state, as used in messages and JSON.
    pub fn name(self) -> &'static str {
        match self {
            SideState::Clean => "clean",
            SideState::Dirty => "dirty",
            SideState::CleanIdle => "clean-idle",
            SideState::Inconsistent => "inconsistent",
        }
    }

    fn code(self) -> u32 {
        match self {
            SideState::Clean => 1,
            SideState::Dirty => 2,
            SideState::CleanIdle => 3,
            SideState::Inconsistent => 4,
        }
    }

    fn of_code(code: u32) -> Option<SideState> {
        SideState::ALL
            .into_iter()
            .find(|state| state.code() == code)
    }

    /// Returns true when the state implies that no peer is ahead of the side.
    pub fn is_complete(self) -> bool {
        matches!(self, SideState::Clean | SideState::CleanIdle)
    }
}

/// Properties of a side that were set when it was formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideFlags {
    /// True if the side is not on durable storage: its content is lost when its machine stops.
    pub not_durable: bool,
    /// Whether the side keeps no checksums.
    pub no_checksums: bool,
}

impl SideFlags {
    fn bits(self) -> u32 {
        u32::from(self.not_durable) | u32::from(self.no_checksums) << 1
    }

    fn of_bits(bits: u32) -> SideFlags {
        SideFlags {
            not_durable: bits & 1 != 0,
            no_checksums: bits & 2 != 0,
        }
    }
}

/// The content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the volume.
    pub volume: Uuid,
    /// UUID of this side.
    pub side: Uuid,
    /// Table of all sides of the volume by place; `None` in a free place.
    pub table: Table,
    /// State in which the side was left.
    pub state: SideState,
    /// Further properties of the side.
    pub flags: SideFlags,
    /// Number of writes of the superblock of this side; the copy with the highest generation is the
    /// newest.
    pub generation: u64,
    /// Sequence number below which every change was on the side when the superblock was written.
    pub complete_below: u64,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// Offsets and lengths of the areas of the side.
    pub layout: SideLayout,
    /// Algorithm that computes the digests of the blocks of the side.
    pub digest: BlockDigest,
    /// Number of blocks at the start of the data area whose content is unknown as long as their
    /// checksum page was never written.
    pub unknown_blocks: u64,
    /// Time at which the volume was formatted, in seconds since 1970.
    pub created_s: u64,
    /// Time at which this superblock was written, in seconds since 1970.
    pub written_s: u64,
    /// Name that the volume got when it was formatted.
    pub name: String,
    /// Epochs of the volume, as far as the side has them.
    pub history: History,
    /// Unfinished operations of the volume.
    pub remembered: Remembered,
}

/// Writer of consecutive fields into a block.
struct Fields<'b> {
    bytes: &'b mut [u8],
    at: usize,
}

impl Fields<'_> {
    fn at(bytes: &mut [u8], at: usize) -> Fields<'_> {
        Fields { bytes, at }
    }
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
    fn put_epoch(&mut self, epoch: &Epoch) {
        self.put_u64(epoch.number);
        self.put(&epoch.id);
        self.put_u64(epoch.first_change);
        self.put_u32(epoch.members);
        self.put_u32(0);
        self.put_u64(epoch.began_s);
    }
}

/// Reader of fields at their offsets in a complete block.
struct Block<'b>(&'b [u8]);

impl Block<'_> {
    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }
    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }
    fn uuid_at(&self, at: usize) -> Uuid {
        self.0[at..at + 16].try_into().expect("sixteen bytes")
    }
    fn area_at(&self, at: usize) -> (u64, u64) {
        (self.u64_at(at), self.u64_at(at + 8))
    }
    fn epoch_at(&self, at: usize) -> Epoch {
        Epoch {
            number: self.u64_at(at),
            id: self.uuid_at(at + 8),
            first_change: self.u64_at(at + 24),
            members: self.u32_at(at + 32),
            began_s: self.u64_at(at + 40),
        }
    }

    /// Verifies the checksum, the version and the feature bits. Must be called before any other
    /// field is read.
    fn check(&self) -> Result<(), String> {
        if self.u32_at(CHECKSUM_AT) != crc32c::crc32c(&self.0[..CHECKSUM_AT]) {
            return Err("its checksum is wrong".to_owned());
        }
        match self.u32_at(8) {
            VERSION_MAJOR => {}
            1 => {
                return Err("it was formatted before crash safety; \
                    format it again with `bimetal format --force`, which empties it"
                    .to_owned());
            }
            other => {
                return Err(format!(
                    "its format version {other} is unknown to this program"
                ));
            }
        }
        let known = WRITTEN_FEATURE | XXH3_FEATURE | SEGMENTS_FEATURE | OF_LOGGED_FEATURES;
        let alone = match self.u64_at(16) & SEGMENTS_FEATURE {
            0 => self.u64_at(16) & OF_LOGGED_FEATURES,
            _ => 0,
        };
        match self.u64_at(16) & !known | alone {
            0 => Ok(()),
            old if old & OLD_SEGMENTS_FEATURES == old => {
                Err("it is a logged side of an earlier version; \
                format it again with `bimetal format --force`, which empties it"
                    .to_owned())
            }
            features => Err(format!(
                "it uses features {features:#x} that this program does not know"
            )),
        }
    }

    fn digest(&self) -> BlockDigest {
        match self.u64_at(16) & XXH3_FEATURE {
            0 => BlockDigest::Crc32c,
            _ => BlockDigest::Xxh3,
        }
    }

    /// Returns the area of the bits that record which pages were ever written, and a number of
    /// blocks: the content of the blocks below this number is unknown until their page is written.
    fn written(&self) -> (Option<(u64, u64)>, u64) {
        match self.u64_at(16) & WRITTEN_FEATURE {
            0 => (None, 0),
            _ => (Some(self.area_at(WRITTEN_AT)), self.u64_at(WRITTEN_AT + 16)),
        }
    }

    /// Returns the segments of a logged side; `None` for a side whose blocks have a home.
    fn segments(&self) -> Option<SegmentLayout> {
        let is_logged = self.u64_at(16) & SEGMENTS_FEATURE != 0;
        is_logged.then(|| SegmentLayout {
            record: self.area_at(SEGMENTS_AT),
            area: self.area_at(SEGMENTS_AT + 16),
            segment_bytes: self.u64_at(SEGMENTS_AT + 32),
            log_overtakes: self.u64_at(16) & OVERTAKING_FEATURE != 0,
            room_bytes: match self.u64_at(16) & ROOM_FEATURE {
                0 => None,
                _ => Some(self.u64_at(ROOM_AT)),
            },
        })
    }

    fn table(&self) -> Result<Table, String> {
        let entry = |place| {
            let at = SIDE_TABLE_AT + place * SIDE_ENTRY_BYTES;
            let acknowledged = Acknowledged::decode(self.uuid_at(at + ACKNOWLEDGED_AT));
            let side = self.uuid_at(at);
            Listed { side, acknowledged }
        };
        let table: Table =
            std::array::from_fn(|place| Some(entry(place)).filter(|listed| listed.side != FREE));
        let used: Vec<Uuid> = table.iter().flatten().map(|listed| listed.side).collect();
        if used.is_empty() || used.len() != self.u32_at(76) as usize {
            return Err(format!(
                "it records {} sides but lists {}",
                self.u32_at(76),
                used.len()
            ));
        }
        let twice = |at: usize| used[..at].contains(&used[at]);
        if (0..used.len()).any(twice) {
            return Err("it lists a side twice".to_owned());
        }
        if place_in(&table, &self.uuid_at(56)) != Some(self.u32_at(72) as usize) {
            return Err("its own entry in the table of sides is at another place".to_owned());
        }
        Ok(table)
    }

    fn history(&self) -> Result<History, String> {
        let count = self.u64_at(EPOCH_COUNT_AT);
        if count > EPOCHS_MAX as u64 {
            return Err(format!("it has {count} epochs"));
        }
        let epochs = (0..count as usize).map(|n| self.epoch_at(HISTORY_AT + n * EPOCH_BYTES));
        History::of(epochs.collect())
    }
}

impl Superblock {
    /// Returns the place of this side, which is its index in the table of sides.
    ///
    /// # Panics
    /// When the table does not list the side. The table of a decoded superblock always does.
    pub fn place(&self) -> usize {
        let place = place_in(&self.table, &self.side);
        place.expect("a side is in its own table")
    }

    /// Returns the last of the epochs in the history that have the side as a member; `None` when
    /// the side lacks everything.
    pub fn last_epoch(&self) -> Option<&Epoch> {
        let place = self.place();
        let mut epochs = self.history.epochs().iter().rev();
        epochs.find(|epoch| epoch.has_member(place))
    }

    /// Returns true when the device of this side is to be formatted again for another layout: the
    /// side lacks everything, and its areas may be those of the one layout, of the other, or a
    /// mixture.
    pub fn awaits_formatting(&self) -> bool {
        let is_remembered = self.remembered.converted_to(self.place()).is_some();
        self.state == SideState::Inconsistent && is_remembered
    }

    /// Returns the number of sides of the volume.
    pub fn side_count(&self) -> usize {
        self.table.iter().flatten().count()
    }

    /// Encodes the superblock as a block for the device.
    ///
    /// # Panics
    /// When the side is not in its own table.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; SUPERBLOCK_BYTES as usize];
        let mut fields = Fields::at(&mut block, 0);
        fields.put(&MAGIC);
        fields.put_u32(VERSION_MAJOR);
        fields.put_u32(VERSION_MINOR);
        // Three fields of feature bits: incompatible features, features compatible for reading
        // only, and compatible features.
        let written = self.layout.written;
        let digest = match self.digest {
            BlockDigest::Crc32c => 0,
            BlockDigest::Xxh3 => XXH3_FEATURE,
        };
        let segments = self.layout.segments;
        let logged = segments.map_or(0, |of| {
            let room = of.room_bytes.map_or(0, |_| ROOM_FEATURE);
            SEGMENTS_FEATURE | room | (u64::from(of.log_overtakes) * OVERTAKING_FEATURE)
        });
        fields.put_u64(written.map_or(0, |_| WRITTEN_FEATURE) | digest | logged);
        (0..2).for_each(|_| fields.put_u64(0));
        fields.put(&self.volume);
        fields.put(&self.side);
        fields.put_u32(self.place() as u32);
        fields.put_u32(self.side_count() as u32);
        fields.put_u32(self.state.code());
        fields.put_u32(self.flags.bits());
        fields.put_u64(self.generation);
        fields.put_u64(self.complete_below);
        fields.put_u64(self.volume_bytes);
        let layout = &self.layout;
        for (offset, len) in [layout.map, layout.checksums, layout.log, layout.data] {
            fields.put_u64(offset);
            fields.put_u64(len);
        }
        fields.put_u64(self.created_s);
        fields.put_u64(self.written_s);
        fields.put(cut_to_bytes(&self.name, NAME_BYTES).as_bytes());
        for (place, listed) in self.table.iter().enumerate() {
            let at = SIDE_TABLE_AT + place * SIDE_ENTRY_BYTES;
            if let Some(listed) = listed {
                Fields::at(&mut block, at).put(&listed.side);
                Fields::at(&mut block, at + ACKNOWLEDGED_AT).put(&listed.acknowledged.encode());
            }
        }
        let mut fields = Fields::at(&mut block, EPOCH_COUNT_AT);
        fields.put_u64(self.history.epochs().len() as u64);
        for epoch in self.history.epochs() {
            fields.put_epoch(epoch);
        }
        if let Some((offset, len)) = written {
            let mut fields = Fields::at(&mut block, WRITTEN_AT);
            fields.put_u64(offset);
            fields.put_u64(len);
            fields.put_u64(self.unknown_blocks);
        }
        if let Some(segments) = segments {
            let mut fields = Fields::at(&mut block, SEGMENTS_AT);
            for (offset, len) in [segments.record, segments.area] {
                fields.put_u64(offset);
                fields.put_u64(len);
            }
            fields.put_u64(segments.segment_bytes);
            if let Some(room_bytes) = segments.room_bytes {
                Fields::at(&mut block, ROOM_AT).put_u64(room_bytes);
            }
        }
        self.remembered.encode(&mut block);
        let checksum = crc32c::crc32c(&block[..CHECKSUM_AT]);
        Fields::at(&mut block, CHECKSUM_AT).put_u32(checksum);
        block
    }

    /// Decodes a block. Returns `Ok(None)` when the block does not begin as a superblock.
    ///
    /// # Errors
    /// A description of the fault, for a block that begins as a superblock.
    pub fn decode(bytes: &[u8]) -> Result<Option<Superblock>, String> {
        if bytes.len() != SUPERBLOCK_BYTES as usize || bytes[..8] != MAGIC {
            return Ok(None);
        }
        let block = Block(bytes);
        block.check()?;
        let state = block.u32_at(80);
        let state =
            SideState::of_code(state).ok_or_else(|| format!("its state {state} is unknown"))?;
        let name = &bytes[NAME_AT..NAME_AT + NAME_BYTES];
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let (written, unknown_blocks) = block.written();
        let table = block.table()?;
        Ok(Some(Superblock {
            volume: block.uuid_at(40),
            side: block.uuid_at(56),
            table,
            state,
            flags: SideFlags::of_bits(block.u32_at(84)),
            generation: block.u64_at(88),
            complete_below: block.u64_at(96),
            volume_bytes: block.u64_at(104),
            layout: SideLayout {
                map: block.area_at(112),
                checksums: block.area_at(128),
                written,
                log: block.area_at(144),
                data: block.area_at(160),
                segments: block.segments(),
            },
            digest: block.digest(),
            unknown_blocks,
            created_s: block.u64_at(176),
            written_s: block.u64_at(184),
            name: String::from_utf8_lossy(name).into_owned(),
            history: block.history()?,
            remembered: Remembered::decode(&block, &table),
        }))
    }

    /// Returns the superblock with the volume size raised to at least `volume_bytes`, and a data
    /// area to match.
    ///
    /// # Errors
    /// `NoSpace` when the side has no room for a volume of this size.
    pub(in crate::layers::mirror) fn reaching(
        &self,
        volume_bytes: u64,
        device_bytes: u64,
    ) -> Result<Superblock, IoError> {
        let volume_bytes = volume_bytes.max(self.volume_bytes);
        let layout = self.layout.reaching(volume_bytes);
        let fits = layout.check(volume_bytes, device_bytes);
        fits.map_err(|_too_small| IoError::NoSpace)?;
        Ok(Superblock {
            volume_bytes,
            layout,
            ..self.clone()
        })
    }

    /// Checks that the layout in this superblock fits its device.
    ///
    /// # Errors
    /// A description of the mismatch, worded to follow the name of the side.
    pub fn fits(&self, device: &Geometry) -> Result<(), String> {
        // On an adopted disk, the data area begins behind a separate metadata device, so all
        // offsets move if that device changes its size.
        let content = device.content_offset_bytes.unwrap_or(self.layout.data.0);
        if content != self.layout.data.0 {
            return Err(format!(
                "its data area began at offset {} when it was formatted, but begins at {} now: its \
                metadata device had another size",
                show_size(self.layout.data.0),
                show_size(content)
            ));
        }
        self.layout.check(self.volume_bytes, device.size_bytes)
    }
}

/// Returns the newest superblock among the copies of a side. Each copy is a block, or the reason
/// why it could not be read. One valid copy suffices. Returns `None` when no copy begins as a
/// superblock.
///
/// # Errors
/// When no copy is valid and at least one is unreadable or invalid.
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

/// Returns the longest prefix of `text` of at most `bytes` bytes that does not cut a character.
fn cut_to_bytes(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
