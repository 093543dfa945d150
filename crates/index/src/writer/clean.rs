//! Cleaning: moves the live content out of a nearly empty segment, so that the segment can be
//! rewritten. Cleaning proceeds one piece at a time, in step with the commits that fill segments,
//! so that no commit waits for a whole segment.

use super::Writer;
use super::cleaner::Cleaning;
use super::consolidate::range_of;
use super::patch::PATCHES_MAX;
use crate::error::{At, Error};
use crate::footer::About;
use crate::node::{Image, Peek, Sort, parse_blob};
use crate::segments::{Class, GRANULE_BYTES, Location};
use crate::storage::Aligned;
use crate::tree::slots::Content;
use std::sync::Arc;

/// Number of bytes of a segment that are scanned in one step.
const PIECE_BYTES: usize = 64 << 10;
/// Work of rewriting a leaf in a cleaning step, as a multiple of the length of its image. The work
/// of moving an image equals the length of the image.
const CONSOLIDATION_WORK: usize = 4;
/// Minimum number of patches that makes it worthwhile to read and rewrite a leaf that is not in
/// memory. With fewer patches, and no changes in memory, the image of the leaf is moved instead.
const PATCHES_WORTH_READING: usize = 2;

impl Writer {
    /// Cleans one segment of a cluster of fixed size that has too many segments, if a segment is
    /// worth cleaning. A call cleans only one segment, even if the cluster then still has too many.
    /// If images do not fill segments well, even repeated cleaning might not reduce the cluster to
    /// its fixed size.
    pub(super) fn clean_clusters(&mut self) -> Result<(), Error> {
        if self.overfull_cluster().is_none() || !self.clean_piece()? {
            return Ok(());
        }
        while self.cleaner.is_under_way() {
            self.clean_piece()?;
        }
        Ok(())
    }

    /// Cleans the next piece of the segment being cleaned; if there is none, begins with the
    /// segment that has the fewest live bytes. Returns false if no segment is worth cleaning.
    pub(super) fn clean_piece(&mut self) -> Result<bool, Error> {
        let mut cleaning = match self.cleaner.take() {
            Some(cleaning) => cleaning,
            None => match self.begin_cleaning()? {
                Some(cleaning) => cleaning,
                None => return Ok(false),
            },
        };
        let stream = self.survivor_stream(cleaning.segment());
        let mut end = cleaning.piece_end(PIECE_BYTES);
        while cleaning.at() < end {
            let Some((peek, location)) = self.next_live(&cleaning) else {
                cleaning.pass(GRANULE_BYTES);
                continue;
            };
            if self.is_worth_folding(&peek) {
                cleaning.pass(peek.len_bytes);
                end = end.saturating_sub(peek.len_bytes * (CONSOLIDATION_WORK - 1));
                self.consolidate_leaf(peek.node)?;
                continue;
            }
            let image = cleaning.rest()[..peek.len_bytes].to_vec();
            let about = match cleaning.said_of_next(&peek) {
                Some(about) => about,
                None => self.about(&peek, location, &image)?,
            };
            cleaning.pass(peek.len_bytes);
            self.move_image(&peek, location, image, about, stream)?;
        }
        let is_done = self.cleaner.give_back(cleaning);
        self.statistics.cleaned_segments += u64::from(is_done);
        Ok(true)
    }

    /// Moves all live content out of a segment.
    pub(super) fn clean_whole(&mut self, segment: u32) -> Result<(), Error> {
        let cleaning = self.read_segment(segment)?;
        self.cleaner.begin(cleaning);
        while self.cleaner.is_under_way() {
            self.clean_piece()?;
            self.release_memory();
        }
        Ok(())
    }

    fn begin_cleaning(&self) -> Result<Option<Cleaning>, Error> {
        let Some((segment, live_bytes)) = self.segments.cleanest(self.overfull_cluster()) else {
            return Ok(None);
        };
        if f64::from(live_bytes) > f64::from(self.tree.geometry.segment_bytes) * 0.95 {
            return Ok(None);
        }
        self.read_segment(segment).map(Some)
    }

    fn read_segment(&self, segment: u32) -> Result<Cleaning, Error> {
        let mut bytes = Aligned::zeroed(self.tree.geometry.segment_bytes as usize);
        let offset = self.tree.geometry.segment_offset(segment);
        let read = self.tree.storage.read(offset, &mut bytes);
        read.at("cleaning a segment", offset)?;
        Ok(Cleaning::new(segment, bytes, &self.tree.geometry))
    }

    /// Returns what a footer entry would say about an image that no footer lists. Inner nodes are
    /// in no footer, and a footer may be damaged.
    fn about(&self, peek: &Peek, from: Location, image: &[u8]) -> Result<About, Error> {
        match peek.sort {
            Sort::Blob => return Ok(About::Blob),
            Sort::Patch => return Ok(About::Patch { logged_from: 0 }),
            Sort::Node if peek.level > 0 || self.options.paper.is_some() => {
                return Ok(About::Inner);
            }
            Sort::Node => {}
        }
        let Ok(image) = Image::parse(image, self.tree.generations.seal_of(from)) else {
            return Ok(About::Inner);
        };
        let range = match image.range() {
            Some(range) => range,
            None if image.rows() == 0 => return Ok(About::Inner),
            None => {
                let mut key = Vec::new();
                image.key(0, &mut key);
                range_of(&self.tree.path(&key)?.0, &[peek.node])
            }
        };
        Ok(About::Leaf {
            range,
            bases: Vec::new(),
            logged_from: 0,
        })
    }

    /// Returns the next image in a segment if it is live.
    fn next_live(&self, cleaning: &Cleaning) -> Option<(Peek, Location)> {
        let peek = Image::peek(cleaning.rest())?;
        let image = self.nodes.find(peek.node)?;
        let location = if image.stored() == peek.seal.location {
            image
        } else {
            let node = self.tree.slots.get(peek.node).node.read();
            let mut patches = node.patches().iter().map(|patch| patch.location);
            patches.find(|location| location.stored() == peek.seal.location)?
        };
        let is_here = location.segment() == cleaning.segment()
            && location.at() == cleaning.at()
            && location.bytes() == peek.len_bytes
            && peek.len_bytes <= cleaning.rest().len();
        is_here.then_some((peek, location))
    }

    fn move_image(
        &mut self,
        peek: &Peek,
        from: Location,
        bytes: Vec<u8>,
        about: About,
        stream: Class,
    ) -> Result<(), Error> {
        let id = peek.node;
        let damaged = |what: String| Error::Damaged {
            what: format!("node {id}: {what}"),
            offset: self.tree.offset(from),
        };
        let meant = self.tree.generations.seal_of(from);
        if peek.sort == Sort::Blob {
            parse_blob(&bytes, meant).map_err(|error| damaged(error.to_string()))?;
            return self.move_bytes(peek, bytes, Content::Absent, about, stream);
        }
        let image = Image::parse(&bytes, meant).map_err(|error| damaged(error.to_string()))?;
        if self.nodes.is_patched(id) {
            return self.move_piece(peek, from, bytes, about, stream);
        }
        let content = match image.level() {
            0 => Content::Leaf(image),
            _ => Content::Inner(Arc::new(
                self.tree.inner_of(&image, self.tree.offset(from))?,
            )),
        };
        self.move_bytes(peek, bytes, content, about, stream)
    }

    /// Returns true if cleaning should rewrite the leaf of `peek`, which is an image or a patch,
    /// instead of moving `peek`.
    ///
    /// Rewriting a leaf with its changes and patches takes hardly more work than moving its image,
    /// and makes it unnecessary to write the changes back or to move the patches later. For an
    /// image, the leaf must have changes in memory or a patch. A leaf that is not in memory has to
    /// be read first, so for such a leaf one patch is not enough. A patch is shorter than its leaf,
    /// so for a patch the leaf must have many patches. If free segments are scarce, the result is
    /// false, because cleaning must not take more space than it frees.
    fn is_worth_folding(&self, peek: &Peek) -> bool {
        if self.options.paper.is_some() {
            return false;
        }
        let node = self.tree.slots.get(peek.node).node.read();
        let is_away = matches!(node.content, Content::Absent);
        let (has_changes, patches_min, quarters_min) = match peek.sort {
            Sort::Blob => return false,
            Sort::Node if is_away => (node.delta.is_some(), PATCHES_WORTH_READING, 2),
            Sort::Node => (node.delta.is_some(), 1, 2),
            Sort::Patch => (false, PATCHES_MAX / 2, 3),
        };
        let is_worth_it = has_changes || node.patches().len() >= patches_min;
        let has_room = self.segments.free_count() * 4 >= self.spare_segments() * quarters_min;
        is_worth_it && has_room && !node.is_pinned
    }

    /// Moves one image of a patched leaf. The image contains either the whole leaf or one of its
    /// patches.
    fn move_piece(
        &mut self,
        peek: &Peek,
        from: Location,
        mut bytes: Vec<u8>,
        about: About,
        stream: Class,
    ) -> Result<(), Error> {
        let to = self.append(stream, peek.node, peek.lsn, &mut bytes, about)?;
        self.statistics.moved_bytes += bytes.len() as u64;
        let image = Image::parse(&bytes, self.tree.generations.seal_of(to));
        let image = image.expect("an image that was sealed for its place can be read");
        self.move_patched(peek.node, from, to, image);
        Ok(())
    }

    /// Moves an image. The content of a node stays in memory until the new copy has reached the
    /// storage, because readers cannot read that copy before. A blob is never in memory, so its new
    /// copy is written at once.
    fn move_bytes(
        &mut self,
        peek: &Peek,
        mut bytes: Vec<u8>,
        content: Content,
        about: About,
        stream: Class,
    ) -> Result<(), Error> {
        let (storage, id) = (self.storage(), peek.node);
        let location = self.append(stream, id, peek.lsn, &mut bytes, about)?;
        self.statistics.moved_bytes += bytes.len() as u64;
        let is_blob = matches!(content, Content::Absent);
        if is_blob {
            self.log_before_images()?;
            self.segments.flush(&*storage, stream)?;
        }
        {
            let slot = self.tree.slots.get(id);
            let mut node = slot.node.write();
            node.location = location;
            if let Content::Absent = node.content
                && !is_blob
            {
                self.tree.memory.put_content(id, slot, &mut node, content);
            }
            // A blob is on the storage already, and is never in memory.
            node.is_pinned = !is_blob;
        }
        self.relocate(id, location);
        Ok(())
    }
}
