//! Heads and footers of segments, from which an index can be rebuilt ([`crate::rebuild`]) without a
//! superblock or a checkpoint. The head names the index and the generation of the segment. Each
//! footer lists the images written since the previous footer.
//!
//! The entry of a leaf has the leaf's key range. This makes the images sufficient: an image has the
//! state of every key of its range at its LSN, so the newest of all images whose range contains a
//! key is right. A footer must never list an image of another segment generation. A head or footer
//! must never be accepted if its checksum, its location or the index does not match.

use crate::layout::Geometry;
use crate::node::{GRANULE_BYTES, KeyRange, NodeId, Seq};

/// Length of a head in bytes.
pub(crate) const HEAD_BYTES: usize = 64;
/// Length of a footer before its entries, in bytes.
const FIXED_BYTES: usize = 64;
const HEAD_MAGIC: [u8; 4] = *b"bmSH";
const FOOTER_MAGIC: [u8; 4] = *b"bmSF";
/// Length of an entry before its bases and keys, in bytes; [`BASE_BYTES`] is the length of a base.
const ENTRY_BYTES: usize = 30;
const BASE_BYTES: usize = 13;
/// Stored in place of the length of a leaf's end key if the range of the leaf has no end.
const NO_END: u16 = u16::MAX;
/// Value of `logged_from` for an image without logged changes, such as a leaf that was written
/// without changes.
pub(crate) const NOT_LOGGED: u64 = u64::MAX;

/// A leaf from which another leaf was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub node: NodeId,
    /// LSN of the leaf's image.
    pub lsn: Seq,
    /// Number of patches of that image.
    pub patches: u8,
}

/// Kind of an image, with the facts that its footer entry records for this kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A whole leaf. It was made from the leaves in `bases` and from changes in the log from
    /// position `logged_from` on.
    Leaf {
        range: KeyRange,
        bases: Vec<Base>,
        logged_from: u64,
    },
    /// A patch of a leaf. Its changes are in the log from position `logged_from` on.
    Patch { logged_from: u64 },
    /// An out-of-line value.
    Blob,
    /// An inner node. It is not listed, because it can be rebuilt from the leaves.
    Inner,
}

impl About {
    fn code(&self) -> u8 {
        match self {
            About::Leaf { .. } => 0,
            About::Blob => 1,
            About::Patch { .. } => 2,
            About::Inner => 3,
        }
    }

    /// Returns the length of the image's entry in a footer, in bytes.
    pub(crate) fn entry_bytes(&self) -> usize {
        match self {
            About::Inner => 0,
            About::Leaf { range, bases, .. } => {
                let end = range.to.as_ref().map_or(0, |to| to.len());
                ENTRY_BYTES + bases.len() * BASE_BYTES + range.from.len() + end
            }
            About::Patch { .. } | About::Blob => ENTRY_BYTES,
        }
    }
}

/// Entry of an image in a footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Offset in the segment, in bytes.
    pub at: usize,
    pub bytes: usize,
    pub node: NodeId,
    pub lsn: Seq,
    pub about: About,
}

impl Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        let none = KeyRange::default();
        let (range, bases, logged_from) = match &self.about {
            About::Leaf {
                range,
                bases,
                logged_from,
            } => (range, &bases[..], *logged_from),
            About::Patch { logged_from } => (&none, &[][..], *logged_from),
            About::Blob | About::Inner => (&none, &[][..], NOT_LOGGED),
        };
        let granules = |bytes: usize| ((bytes / GRANULE_BYTES) as u16).to_le_bytes();
        out.extend_from_slice(&granules(self.at));
        out.extend_from_slice(&granules(self.bytes));
        out.extend_from_slice(&self.node.to_le_bytes());
        out.extend_from_slice(&self.lsn.to_le_bytes());
        out.extend_from_slice(&logged_from.to_le_bytes());
        out.push(self.about.code());
        out.push(bases.len() as u8);
        out.extend_from_slice(&(range.from.len() as u16).to_le_bytes());
        let end_len = range.to.as_ref().map_or(NO_END, |to| to.len() as u16);
        out.extend_from_slice(&end_len.to_le_bytes());
        for base in bases {
            out.extend_from_slice(&base.node.to_le_bytes());
            out.extend_from_slice(&base.lsn.to_le_bytes());
            out.push(base.patches);
        }
        out.extend_from_slice(&range.from);
        out.extend_from_slice(range.to.as_deref().unwrap_or_default());
    }

    fn decode(bytes: &[u8], segment_bytes: usize) -> Option<(Entry, &[u8])> {
        let (fixed, rest) = bytes.split_first_chunk::<ENTRY_BYTES>()?;
        let number16 = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
        let number64 = |at: usize| Some(u64::from_le_bytes(*fixed[at..].first_chunk()?));
        let logged_from = number64(16)?;
        let (bases, rest) = rest.split_at_checked(usize::from(fixed[25]) * BASE_BYTES)?;
        let (from, rest) = rest.split_at_checked(usize::from(number16(26)))?;
        let (to, rest) = match number16(28) {
            NO_END => (None, rest),
            len => {
                let (to, rest) = rest.split_at_checked(usize::from(len))?;
                (Some(Box::from(to)), rest)
            }
        };
        let about = match fixed[24] {
            0 => About::Leaf {
                range: KeyRange {
                    from: from.into(),
                    to,
                },
                bases: bases.chunks_exact(BASE_BYTES).filter_map(base_of).collect(),
                logged_from,
            },
            1 => About::Blob,
            2 => About::Patch { logged_from },
            _ => return None,
        };
        let entry = Entry {
            at: usize::from(number16(0)) * GRANULE_BYTES,
            bytes: usize::from(number16(2)) * GRANULE_BYTES,
            node: NodeId::from_le_bytes(*fixed[4..].first_chunk()?),
            lsn: number64(8)?,
            about,
        };
        let is_inside = entry.bytes > 0 && entry.at + entry.bytes <= segment_bytes;
        is_inside.then_some((entry, rest))
    }
}

fn base_of(bytes: &[u8]) -> Option<Base> {
    Some(Base {
        node: number32(bytes, 0)?,
        lsn: number64(bytes, 4)?,
        patches: *bytes.get(12)?,
    })
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn number64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Puts a checksum of all other bytes into the first four bytes.
fn seal(bytes: &mut [u8]) {
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

fn is_sealed(bytes: &[u8]) -> bool {
    bytes.len() > 4 && crc32c::crc32c(&bytes[4..]).to_le_bytes() == bytes[..4]
}

/// A segment generation: the period in which a segment of an index is filled with images once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation {
    pub geometry: Geometry,
    pub segment: u32,
    /// Number of the segment generation. Later generations of a segment have higher numbers, and no
    /// two generations of an index have the same number.
    pub number: u64,
}

/// Values of a field in heads and footers. The field says how the generation tag in images is
/// computed. `NAMED`: from the index id and the generation number. `NAMED_WITHOUT_ID`: from the
/// generation number alone, as in version 3 of the format; there, a leftover of another index at
/// the same location could be mistaken for an image of this index. In version 2, the field and the
/// tags are 0.
const NAMED: u8 = 2;
const NAMED_WITHOUT_ID: u8 = 1;

/// Returns the tag by which images name their segment generation. In a generation number, the upper
/// 32 bits are the incarnation (`opening`) that began the generation, and the lower 32 bits are a
/// counter. Two generation numbers with the same incarnation, or with the same counter, have
/// different tags: they differ within 32 bits, and a CRC-32C detects every such difference.
pub(crate) fn name_of(id: u64, generation: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&id.to_le_bytes()), &generation.to_le_bytes())
}

/// Returns the tag of a segment generation. `how` is a field of a head or a footer; it selects the
/// way in which the tag is computed.
fn named(how: u8, id: u64, generation: u64) -> u32 {
    match how {
        NAMED => name_of(id, generation),
        NAMED_WITHOUT_ID => crc32c::crc32c(&generation.to_le_bytes()),
        _ => 0,
    }
}

impl Generation {
    /// Encodes the head of the segment.
    pub(crate) fn head(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[4..8].copy_from_slice(&HEAD_MAGIC);
        head[8..16].copy_from_slice(&self.geometry.id.to_le_bytes());
        head[16..24].copy_from_slice(&self.geometry.log_blocks.to_le_bytes());
        head[24..28].copy_from_slice(&self.geometry.segment_bytes.to_le_bytes());
        head[28..32].copy_from_slice(&self.segment.to_le_bytes());
        head[32..40].copy_from_slice(&self.number.to_le_bytes());
        head[40] = NAMED;
        head[44..48].copy_from_slice(&(self.geometry.front_blocks as u32).to_le_bytes());
        seal(&mut head);
        head
    }

    /// Decodes the head at the start of `bytes`, if there is one.
    pub(crate) fn of_head(bytes: &[u8]) -> Option<Generation> {
        let head = bytes.first_chunk::<HEAD_BYTES>()?;
        if head[4..8] != HEAD_MAGIC || !is_sealed(head) {
            return None;
        }
        let log_blocks = number64(head, 16)?;
        let geometry = Geometry {
            id: number64(head, 8)?,
            log_blocks,
            segment_bytes: number32(head, 24)?,
            // Up to version 4 of the format the whole log was at the front, and this field was 0.
            front_blocks: match number32(head, 44)? {
                0 => log_blocks,
                blocks => blocks.into(),
            },
        };
        geometry.is_possible().then_some(Generation {
            geometry,
            segment: number32(head, 28)?,
            number: number64(head, 32)?,
        })
    }

    /// Encodes a footer with these entries. The footer will begin at byte `at` of the segment.
    /// `from` is the end of the previous footer or, for the first footer, the end of the head.
    pub(crate) fn footer(&self, entries: &[Entry], at: usize, from: usize) -> Vec<u8> {
        let mut bytes = vec![0; FIXED_BYTES];
        entries.iter().for_each(|entry| entry.encode(&mut bytes));
        let used = bytes.len() - FIXED_BYTES;
        bytes.resize(bytes.len().next_multiple_of(GRANULE_BYTES), 0);
        let len = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&FOOTER_MAGIC);
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..16].copy_from_slice(&(used as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.geometry.id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.segment.to_le_bytes());
        bytes[36..40].copy_from_slice(&(at as u32).to_le_bytes());
        bytes[40..44].copy_from_slice(&(from as u32).to_le_bytes());
        bytes[44] = NAMED;
        seal(&mut bytes);
        bytes
    }
}

/// Returns the length of a footer whose entries have `entries_bytes` bytes.
pub(crate) fn footer_bytes(entries_bytes: usize) -> usize {
    (FIXED_BYTES + entries_bytes).next_multiple_of(GRANULE_BYTES)
}

/// A footer that was read from a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    /// Number of the segment generation.
    pub generation: u64,
    /// Tag of the segment generation in its images.
    pub name: u32,
    pub at: usize,
    /// End of the previous footer, or of the head.
    pub from: usize,
    pub end: usize,
    pub entries: Vec<Entry>,
}

impl Footer {
    /// Reads the footer at byte `at` of a segment, if there is a footer of this index.
    fn read(segment: &[u8], geometry: &Geometry, number: u32, at: usize) -> Option<Footer> {
        let bytes = &segment[at..];
        if *bytes.get(4..8)? != FOOTER_MAGIC {
            return None;
        }
        let bytes = bytes.get(..number32(bytes, 8)? as usize)?;
        let is_own = number64(bytes, 16)? == geometry.id
            && number32(bytes, 32)? == number
            && number32(bytes, 36)? as usize == at;
        if !is_own || !is_sealed(bytes) {
            return None;
        }
        let used = number32(bytes, 12)? as usize;
        let mut rest = bytes.get(FIXED_BYTES..)?.get(..used)?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (entry, after) = Entry::decode(rest, segment.len())?;
            entries.push(entry);
            rest = after;
        }
        let generation = number64(bytes, 24)?;
        let from = number32(bytes, 40)? as usize;
        let is_behind = from <= at && from.is_multiple_of(GRANULE_BYTES);
        if !is_behind || !bytes.len().is_multiple_of(GRANULE_BYTES) {
            return None;
        }
        Some(Footer {
            generation,
            name: named(bytes[44], geometry.id, generation),
            at,
            from,
            end: at + bytes.len(),
            entries,
        })
    }
}

/// Footers of the last generation of a segment, and the tag of that generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Generation tag in the images of the segment; `None` if there is neither a head nor a footer.
    pub name: Option<u32>,
    /// Footers in the order of their offsets.
    pub footers: Vec<Footer>,
}

impl Listed {
    /// Reads the head of a segment, and the footers of its last generation: the generation with the
    /// highest number. If that generation has no footer yet, footers of an earlier generation can
    /// remain after the new head. They are ignored.
    pub(crate) fn of(segment: &[u8], geometry: &Geometry, number: u32) -> Listed {
        let mut footers = Vec::new();
        let mut at = 0;
        while at + FIXED_BYTES <= segment.len() {
            match Footer::read(segment, geometry, number, at) {
                Some(footer) => {
                    at = footer.end;
                    footers.push(footer);
                }
                None => at += GRANULE_BYTES,
            }
        }
        let head = Generation::of_head(segment);
        let head = head.filter(|head| head.geometry == *geometry && head.segment == number);
        let of_head = head.map(|head| (head.number, named(segment[40], geometry.id, head.number)));
        let of_footers = footers
            .iter()
            .map(|footer| (footer.generation, footer.name));
        // The newest generation counts: if the write of the last head was lost, the head found is
        // that of an earlier generation.
        let last = of_footers.chain(of_head).max();
        footers
            .retain(|footer| last.is_some_and(|(generation, _)| footer.generation == generation));
        Listed {
            name: last.map(|(_, name)| name),
            footers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: Generation = Generation {
        geometry: Geometry {
            id: 0x1122_3344_5566_7788,
            log_blocks: 64,
            segment_bytes: 64 << 10,
            front_blocks: 64,
        },
        segment: 3,
        number: 7 << 32 | 2,
    };

    fn entries() -> Vec<Entry> {
        let leaf = |from: &[u8], to: Option<&[u8]>| About::Leaf {
            range: KeyRange {
                from: from.into(),
                to: to.map(Box::from),
            },
            bases: vec![
                Base {
                    node: 5,
                    lsn: 98,
                    patches: 2,
                };
                from.len()
            ],
            logged_from: 12,
        };
        let abouts = [
            leaf(b"", Some(b"m")),
            leaf(b"m", None),
            About::Patch { logged_from: 14 },
            About::Blob,
        ];
        let entry = |(node, about): (u32, About)| Entry {
            at: 64 + node as usize * 128,
            bytes: 128,
            node,
            lsn: 99,
            about,
        };
        (0..).zip(abouts).map(entry).collect()
    }

    fn footers_of(segment: &[u8], number: u32) -> Vec<Footer> {
        Listed::of(segment, &GENERATION.geometry, number).footers
    }

    fn segment_with(footer: &[u8], at: usize) -> Vec<u8> {
        let mut segment = vec![0; GENERATION.geometry.segment_bytes as usize];
        segment[..HEAD_BYTES].copy_from_slice(&GENERATION.head());
        segment[at..at + footer.len()].copy_from_slice(footer);
        segment
    }

    #[test]
    fn heads_and_footers_are_read_as_they_were_written_and_nowhere_else() {
        let footer = GENERATION.footer(&entries(), 4096, 64);
        let bytes: usize = entries().iter().map(|e| e.about.entry_bytes()).sum();
        assert_eq!(footer.len(), footer_bytes(bytes));
        let segment = segment_with(&footer, 4096);
        assert_eq!(Generation::of_head(&segment), Some(GENERATION));
        let read = footers_of(&segment, 3);
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].entries, entries());
        assert_eq!((read[0].from, read[0].end), (64, 4096 + footer.len()));
        assert_eq!(read[0].generation, GENERATION.number);
        assert_eq!(
            read[0].name,
            name_of(GENERATION.geometry.id, GENERATION.number)
        );
        let elsewhere = segment_with(&footer, 8192);
        assert_eq!(footers_of(&elsewhere, 3), []);
        assert_eq!(footers_of(&segment, 4), []);
        let other = Geometry {
            id: 1,
            ..GENERATION.geometry
        };
        assert_eq!(Listed::of(&segment, &other, 3), Listed::default());
    }

    #[test]
    fn no_byte_of_a_head_or_footer_can_change_without_being_noticed() {
        let footer = GENERATION.footer(&entries(), 4096, 64);
        let whole = segment_with(&footer, 4096);
        for at in (0..HEAD_BYTES).chain(4096..4096 + footer.len()) {
            let mut segment = whole.clone();
            segment[at] ^= 0x10;
            let head = Generation::of_head(&segment);
            let footers = footers_of(&segment, 3);
            assert!(head.is_none() || footers.is_empty(), "byte {at}");
        }
    }

    /// A footer with a correct checksum is refused if the images that it lists would begin at an
    /// impossible offset, or if its length is impossible.
    #[test]
    fn a_footer_that_is_not_behind_what_it_lists_is_none() {
        let whole = GENERATION.footer(&entries(), 4096, 64);
        let sealed = |at: usize, number: u32| {
            let mut footer = whole.clone();
            footer[at..at + 4].copy_from_slice(&number.to_le_bytes());
            let len = number32(&footer, 8).expect("a length") as usize;
            seal(&mut footer[..len]);
            segment_with(&footer, 4096)
        };
        assert_eq!(
            footers_of(&sealed(40, 4096), 3).len(),
            1,
            "it lists nothing"
        );
        assert_eq!(footers_of(&sealed(40, 4160), 3), []);
        assert_eq!(footers_of(&sealed(40, 65), 3), []);
        let odd = whole.len() as u32 - 1;
        assert_eq!(footers_of(&sealed(8, odd), 3), []);
    }

    #[test]
    fn footers_of_an_earlier_filling_do_not_count() {
        let earlier = Generation {
            number: 7 << 32 | 1,
            ..GENERATION
        };
        let mut segment = segment_with(&GENERATION.footer(&entries(), 4096, 64), 4096);
        let left = earlier.footer(&entries(), 16384, 64);
        segment[16384..16384 + left.len()].copy_from_slice(&left);
        let read = footers_of(&segment, 3);
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].generation, GENERATION.number);
        // Footers of an earlier generation are ignored, even if the last generation has no footer.
        segment[4096..8192].fill(0);
        assert_eq!(footers_of(&segment, 3), []);
        segment[..HEAD_BYTES].fill(0);
        let read = footers_of(&segment, 3);
        assert_eq!(
            read[0].generation, earlier.number,
            "nothing says that it is not"
        );
    }
}
