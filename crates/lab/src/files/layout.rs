//! The layout of files, and the metadata blocks that an operation changes: the part of a file
//! system that determines its I/O.
//!
//! There are models of three file systems (`docs/lab.md`): ext2 and ext3 with block groups, inode
//! tables, indirect blocks and directory blocks, and ReiserFS with one tree, whose leaves contain
//! the metadata, tails and directory entries of files. This module does no I/O: an operation
//! returns the metadata blocks that it reads and changes. The module must never allocate a block to
//! two files.

use std::collections::BTreeSet;

use super::pages::FileId;
use super::space::Space;
use super::touch::{Full, Touch};
use super::tree::Tree;

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileSystemKind {
    /// No journal; data is written in bios of many pages.
    Ext2,
    /// A journal of metadata in ordered mode; data is written in bios of one page.
    Ext3,
    /// A tree, with a journal of metadata in ordered mode. The tails of small files are in the
    /// leaves of the tree.
    Reiserfs,
}

impl FileSystemKind {
    /// All kinds, with their names in experiment files.
    pub const ALL: [(&'static str, FileSystemKind); 3] = [
        ("ext2", FileSystemKind::Ext2),
        ("ext3", FileSystemKind::Ext3),
        ("reiserfs", FileSystemKind::Reiserfs),
    ];

    /// Returns the maximum number of data pages in one write bio.
    pub(crate) fn write_bio_pages(self) -> u32 {
        match self {
            FileSystemKind::Ext2 => BIO_PAGES_MAX,
            FileSystemKind::Ext3 | FileSystemKind::Reiserfs => 1,
        }
    }
}

/// Maximum number of pages in one bio, which is 512 KiB.
pub(crate) const BIO_PAGES_MAX: u32 = 128;
/// Number of blocks in a block group, equal to the number of bits in its bitmap block.
const GROUP_BLOCKS: u32 = 32_768;
const INODES_IN_BLOCK: u32 = 32;
const INODES_IN_GROUP: u32 = 8_192;
const TABLE_BLOCKS: u32 = INODES_IN_GROUP / INODES_IN_BLOCK;
/// Number of directory entries in a block; an entry has about 24 bytes.
const ENTRIES_IN_BLOCK: u32 = 170;
/// Number of blocks that an inode lists directly. An indirect block lists `INDIRECT_PAGES` blocks.
const DIRECT_PAGES: u32 = 12;
const INDIRECT_PAGES: u32 = 1024;
/// Maximum size in bytes of a file with a tail in the tree.
const TAIL_FILE_BYTES_MAX: u64 = 16 << 10;
/// Number of parts of a block group. A file of ext2 or ext3 starts in the part that the task number
/// of its writer selects, so that files of different writers do not interleave.
const COLOURS: u32 = 16;
/// Marker for a page whose content is in a leaf of the tree.
const TAIL: u32 = u32::MAX;

fn change(block: u32) -> Touch {
    Touch {
        block,
        changes: true,
        is_new: false,
    }
}

fn look(block: u32) -> Touch {
    Touch {
        changes: false,
        ..change(block)
    }
}

/// A file: the numbers of its directory entry and its inode, and its blocks.
struct File {
    directory: u32,
    entry: u32,
    inode: u32,
    size_bytes: u64,
    /// Block of each page of the file, or [`TAIL`] for a page whose content is in the tree.
    blocks: Vec<u32>,
    indirect: Vec<u32>,
    /// Number of the file's item in the tree of ReiserFS; `None` on other file systems.
    item: Option<usize>,
}

#[derive(Default)]
struct Directory {
    group: u32,
    inode: u32,
    blocks: Vec<u32>,
    entries: Numbers,
    /// For ReiserFS, the block after the last allocated block, where the search for the next file
    /// starts.
    next_goal: u32,
}

/// Allocator that returns the lowest free number.
#[derive(Default)]
struct Numbers {
    next: u32,
    given_back: BTreeSet<u32>,
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.given_back.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    fn give(&mut self, number: u32) {
        self.given_back.insert(number);
    }

    fn is_used_up(&self, most: u32) -> bool {
        self.given_back.is_empty() && self.next >= most
    }
}

/// Layout of a file system; see the module.
pub(crate) struct FileSystemLayout {
    kind: FileSystemKind,
    space: Space,
    /// Allocator of the inode numbers of each block group.
    inodes: Vec<Numbers>,
    directories: Vec<Directory>,
    /// Files; the file with number `n` is at index `n - 1`.
    files: Vec<Option<File>>,
    free_files: Vec<FileId>,
    /// Blocks of the inode tables that have been used. A block that has never been used need not be
    /// read.
    used_tables: BTreeSet<u32>,
    tree: Tree,
    journal: std::ops::Range<u32>,
}

impl FileSystemLayout {
    /// Creates an empty file system of `blocks` blocks.
    pub(crate) fn new(kind: FileSystemKind, blocks: u32) -> FileSystemLayout {
        let mut space = Space::new(blocks);
        let groups = blocks.div_ceil(GROUP_BLOCKS);
        let journal = match kind {
            FileSystemKind::Ext2 => 0..0,
            FileSystemKind::Ext3 => {
                let from = 2 + 2 + TABLE_BLOCKS;
                from..from + journal_blocks(blocks)
            }
            FileSystemKind::Reiserfs => 18..18 + 8193.min(blocks / 8),
        };
        for group in 0..groups {
            let start = group * GROUP_BLOCKS;
            let own = match kind {
                FileSystemKind::Reiserfs => 1,
                _ => 2 + 2 + TABLE_BLOCKS,
            };
            let end = (start + own).min(blocks);
            (start..end).for_each(|block| space.take(block));
        }
        // The range of the journal can include metadata blocks at the start of block groups. The
        // journal uses only the other blocks of the range.
        let inside = journal.start..journal.end.min(blocks);
        let own: Vec<u32> = inside.filter(|block| space.is_free(*block)).collect();
        own.iter().for_each(|block| space.take(*block));
        let journal = match (own.first(), own.last()) {
            (Some(first), Some(last)) => *first..last + 1,
            _ => 0..0,
        };
        FileSystemLayout {
            kind,
            space,
            inodes: (0..groups).map(|_| Numbers::default()).collect(),
            directories: Vec::new(),
            files: Vec::new(),
            free_files: Vec::new(),
            used_tables: BTreeSet::new(),
            tree: Tree::default(),
            journal,
        }
    }

    /// Returns the kind of file system.
    pub(crate) fn kind(&self) -> FileSystemKind {
        self.kind
    }

    /// Returns the blocks of the journal.
    pub(crate) fn journal(&self) -> std::ops::Range<u32> {
        self.journal.clone()
    }

    /// Creates a directory, and returns its number. All directories are at the top level, where
    /// ext2 and ext3 spread them over the block groups.
    pub(crate) fn make_directory(&mut self, touches: &mut Vec<Touch>) -> Result<u32, Full> {
        let groups = self.inodes.len() as u32;
        let number = self.directories.len() as u32;
        // Successive directories are 0.618 (the golden ratio) of the number of groups apart, which
        // spreads any number of directories evenly.
        let step = ((f64::from(groups) * 0.618) as u32).max(1);
        let group = number.wrapping_mul(step) % groups;
        let inode = self.take_inode(group, touches)?;
        self.directories.push(Directory {
            group,
            inode,
            ..Directory::default()
        });
        Ok(number)
    }

    fn take_inode(&mut self, near: u32, touches: &mut Vec<Touch>) -> Result<u32, Full> {
        if self.kind == FileSystemKind::Reiserfs {
            return Ok(0);
        }
        let groups = self.inodes.len() as u32;
        let mut all = (0..groups).map(|n| (near + n) % groups);
        let free = |group: &u32| !self.inodes[*group as usize].is_used_up(INODES_IN_GROUP);
        let group = all.find(free).ok_or(Full)?;
        let inode = group * INODES_IN_GROUP + self.inodes[group as usize].take();
        touches.push(change(group * GROUP_BLOCKS + 3));
        touches.push(change(1));
        touches.push(self.table_touch(inode));
        Ok(inode)
    }

    /// Returns a change of the inode-table block that contains this inode.
    fn table_touch(&mut self, inode: u32) -> Touch {
        let (group, index) = (inode / INODES_IN_GROUP, inode % INODES_IN_GROUP);
        let block = group * GROUP_BLOCKS + 4 + index / INODES_IN_BLOCK;
        Touch {
            is_new: self.used_tables.insert(block),
            ..change(block)
        }
    }

    /// Creates an empty file.
    pub(crate) fn create(
        &mut self,
        directory: u32,
        touches: &mut Vec<Touch>,
    ) -> Result<FileId, Full> {
        let entry = self.directories[directory as usize].entries.take();
        self.touch_entry(directory, entry, touches)?;
        let near = self.directories[directory as usize].group;
        let inode = self.take_inode(near, touches)?;
        let item = match self.kind {
            FileSystemKind::Reiserfs => Some(self.tree.add(&mut self.space, near, touches)?),
            _ => None,
        };
        let file = File {
            directory,
            entry,
            inode,
            size_bytes: 0,
            blocks: Vec::new(),
            indirect: Vec::new(),
            item,
        };
        Ok(self.number(file))
    }

    fn number(&mut self, file: File) -> FileId {
        match self.free_files.pop() {
            Some(id) => {
                self.files[id as usize - 1] = Some(file);
                id
            }
            None => {
                self.files.push(Some(file));
                self.files.len() as FileId
            }
        }
    }

    /// Adds a change of the directory block that contains the entry. Allocates the block if the
    /// directory does not have it yet.
    fn touch_entry(
        &mut self,
        directory: u32,
        entry: u32,
        touches: &mut Vec<Touch>,
    ) -> Result<(), Full> {
        let of = &self.directories[directory as usize];
        let wanted = (entry / ENTRIES_IN_BLOCK) as usize;
        let (group, inode) = (of.group, of.inode);
        while self.directories[directory as usize].blocks.len() <= wanted {
            let of = &self.directories[directory as usize];
            let goal = of
                .blocks
                .last()
                .map_or(self.start_of(group), |last| last + 1);
            let block = self.take_block(goal, touches)?;
            self.directories[directory as usize].blocks.push(block);
            touches.push(Touch {
                is_new: true,
                ..change(block)
            });
        }
        touches.push(change(self.directories[directory as usize].blocks[wanted]));
        if self.kind != FileSystemKind::Reiserfs {
            let table = self.table_touch(inode);
            touches.push(table);
        }
        Ok(())
    }

    fn start_of(&self, group: u32) -> u32 {
        group * GROUP_BLOCKS
    }

    /// Allocates a block, and adds a change of its bitmap block.
    fn take_block(&mut self, goal: u32, touches: &mut Vec<Touch>) -> Result<u32, Full> {
        let block = self.space.take_near(goal).ok_or(Full)?;
        self.touch_bitmap(block, touches);
        Ok(block)
    }

    fn touch_bitmap(&self, block: u32, touches: &mut Vec<Touch>) {
        let group = block / GROUP_BLOCKS;
        match self.kind {
            FileSystemKind::Reiserfs => touches.push(change(group * GROUP_BLOCKS)),
            _ => {
                touches.push(change(group * GROUP_BLOCKS + 2));
                touches.push(change(1));
            }
        }
    }

    fn give_block(&mut self, block: u32, touches: &mut Vec<Touch>) {
        self.space.give(block);
        self.touch_bitmap(block, touches);
    }

    /// Adds the metadata blocks that must be read to find the file by its name.
    pub(crate) fn look_up(&self, file: FileId, touches: &mut Vec<Touch>) {
        let of = self.file(file);
        let directory = &self.directories[of.directory as usize];
        touches.push(look(
            directory.blocks[(of.entry / ENTRIES_IN_BLOCK) as usize],
        ));
        touches.push(look(self.home(file)));
    }

    /// Returns the block that contains the file's inode. For ReiserFS, returns the leaf of the tree
    /// that contains the file's item.
    fn home(&self, file: FileId) -> u32 {
        let of = self.file(file);
        match of.item {
            Some(item) => self.tree.leaf_of(item),
            None => {
                let (group, index) = (of.inode / INODES_IN_GROUP, of.inode % INODES_IN_GROUP);
                group * GROUP_BLOCKS + 4 + index / INODES_IN_BLOCK
            }
        }
    }

    /// Adds a change of the block that contains the file's inode or item. This block must be
    /// written when the file is synced.
    pub(crate) fn touch_home(&self, file: FileId, touches: &mut Vec<Touch>) {
        touches.push(change(self.home(file)));
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn size_bytes(&self, file: FileId) -> u64 {
        self.file(file).size_bytes
    }

    /// Returns the block of a page of the file. Returns `None` if the page is past the end of the
    /// file, or if it is a tail that is stored in the metadata tree.
    pub(crate) fn block_of(&self, file: FileId, page: u32) -> Option<u32> {
        let block = self.file(file).blocks.get(page as usize).copied();
        block.filter(|block| *block != TAIL)
    }

    /// Adds the metadata blocks that must be in memory to find the block of a page.
    pub(crate) fn touch_map(&self, file: FileId, page: u32, touches: &mut Vec<Touch>) {
        let of = self.file(file);
        let is_tail = of.blocks.get(page as usize) == Some(&TAIL);
        if is_tail {
            touches.push(look(self.home(file)));
        } else if page >= DIRECT_PAGES {
            let number = (page - DIRECT_PAGES) / INDIRECT_PAGES;
            if let Some(block) = of.indirect.get(number as usize) {
                touches.push(look(*block));
            }
        }
    }

    /// Returns true if a read bio must end before this page, because this page is the first page
    /// that an indirect block lists.
    pub(crate) fn breaks_before(&self, page: u32) -> bool {
        self.kind != FileSystemKind::Reiserfs
            && page >= DIRECT_PAGES
            && (page - DIRECT_PAGES).is_multiple_of(INDIRECT_PAGES)
    }

    /// Grows the file to the given size, and allocates blocks for its new pages. `task` is the task
    /// number of the writer.
    pub(crate) fn grow(
        &mut self,
        file: FileId,
        size_bytes: u64,
        task: u32,
        touches: &mut Vec<Touch>,
    ) -> Result<(), Full> {
        let old_bytes = self.file(file).size_bytes;
        if size_bytes <= old_bytes {
            return Ok(());
        }
        let pages = u32::try_from(size_bytes.div_ceil(4096)).map_err(|_| Full)?;
        let tail_page = self.tail_page(size_bytes);
        // The last page was possibly a tail in the tree. The page then needs a block now.
        let first = (self.file(file).blocks.len() as u32).saturating_sub(1);
        for page in first..pages {
            let old = self.file(file).blocks.get(page as usize).copied();
            if old.is_some_and(|block| block != TAIL) {
                continue;
            }
            let block = match tail_page == Some(page) {
                true => TAIL,
                false => self.place_page(file, page, task, touches)?,
            };
            let blocks = &mut self.file_mut(file).blocks;
            match old {
                Some(_) => blocks[page as usize] = block,
                None => blocks.push(block),
            }
        }
        self.file_mut(file).size_bytes = size_bytes;
        if let Some(item) = self.file(file).item {
            let has_tail = self.file(file).blocks.last() == Some(&TAIL);
            let tail_bytes = if has_tail {
                (size_bytes % 4096) as u32
            } else {
                0
            };
            let pointers = 4 * pages;
            let near = self.file(file).directory;
            let group = self.directories[near as usize].group;
            let bytes = tail_bytes + pointers;
            self.tree
                .resize(&mut self.space, item, bytes, group, touches)?;
        }
        self.touch_home(file, touches);
        Ok(())
    }

    /// Returns the page whose content is in the tree if the file has this size.
    fn tail_page(&self, size_bytes: u64) -> Option<u32> {
        let has_tail = self.kind == FileSystemKind::Reiserfs
            && size_bytes <= TAIL_FILE_BYTES_MAX
            && !size_bytes.is_multiple_of(4096);
        has_tail.then_some((size_bytes / 4096) as u32)
    }

    /// Allocates a block for a page. The search for a free block starts after the block of the
    /// previous page. For the first block of a file, it starts in the block group of the file or,
    /// for ReiserFS, after the last block of the same directory.
    fn place_page(
        &mut self,
        file: FileId,
        page: u32,
        task: u32,
        touches: &mut Vec<Touch>,
    ) -> Result<u32, Full> {
        let of = self.file(file);
        let last = of.blocks.iter().rev().find(|block| **block != TAIL);
        let goal = match last {
            Some(last) => last + 1,
            None => self.first_goal(file, task),
        };
        if self.kind != FileSystemKind::Reiserfs
            && page >= DIRECT_PAGES
            && (page - DIRECT_PAGES).is_multiple_of(INDIRECT_PAGES)
        {
            let block = self.take_block(goal, touches)?;
            touches.push(Touch {
                is_new: true,
                ..change(block)
            });
            self.file_mut(file).indirect.push(block);
            return self.take_block(block + 1, touches);
        }
        if let Some(indirect) = self.file(file).indirect.last() {
            touches.push(change(*indirect));
        }
        let block = self.take_block(goal, touches)?;
        let directory = self.file(file).directory;
        self.directories[directory as usize].next_goal = block + 1;
        Ok(block)
    }

    fn first_goal(&self, file: FileId, task: u32) -> u32 {
        let of = self.file(file);
        match self.kind {
            FileSystemKind::Reiserfs => {
                let directory = &self.directories[of.directory as usize];
                let start = self.start_of(directory.group).max(self.journal.end);
                start.max(directory.next_goal)
            }
            _ => {
                let group = of.inode / INODES_IN_GROUP;
                let colour = task % COLOURS * (GROUP_BLOCKS / COLOURS);
                self.start_of(group) + colour
            }
        }
    }

    /// Removes the file, and returns its indirect blocks. The number of the file is reused only
    /// after [`forget`](Self::forget).
    pub(crate) fn remove(&mut self, file: FileId, touches: &mut Vec<Touch>) -> Vec<u32> {
        let of = self.files[file as usize - 1]
            .take()
            .expect("a file is removed once");
        let directory = &mut self.directories[of.directory as usize];
        directory.entries.give(of.entry);
        touches.push(change(
            directory.blocks[(of.entry / ENTRIES_IN_BLOCK) as usize],
        ));
        let directory_inode = directory.inode;
        for block in of.blocks.iter().filter(|block| **block != TAIL) {
            self.space.give(*block);
        }
        let mut groups: Vec<u32> = of
            .blocks
            .iter()
            .filter(|block| **block != TAIL)
            .map(|block| block / GROUP_BLOCKS)
            .collect();
        groups.dedup();
        for group in groups {
            self.touch_bitmap(group * GROUP_BLOCKS, touches);
        }
        for block in &of.indirect {
            self.give_block(*block, touches);
        }
        match of.item {
            Some(item) => self.tree.remove(&mut self.space, item, touches),
            None => {
                self.inodes[(of.inode / INODES_IN_GROUP) as usize].give(of.inode % INODES_IN_GROUP);
                touches.push(change(of.inode / INODES_IN_GROUP * GROUP_BLOCKS + 3));
                let own = self.table_touch(of.inode);
                let parents = self.table_touch(directory_inode);
                touches.extend([own, parents]);
            }
        }
        of.indirect
    }

    /// Allows the number of a removed file to be reused.
    pub(crate) fn forget(&mut self, file: FileId) {
        assert!(
            self.files[file as usize - 1].is_none(),
            "a file is removed before it is forgotten"
        );
        self.free_files.push(file);
    }

    fn file(&self, file: FileId) -> &File {
        let of = self.files[file as usize - 1].as_ref();
        of.expect("a file that is used exists")
    }

    fn file_mut(&mut self, file: FileId) -> &mut File {
        let of = self.files[file as usize - 1].as_mut();
        of.expect("a file that is used exists")
    }
}

/// Returns the number of blocks of a journal on a device of `blocks` blocks, as `mke2fs` chooses
/// it.
fn journal_blocks(blocks: u32) -> u32 {
    match blocks {
        0..32_768 => 1024,
        32_768..262_144 => 4096,
        262_144..524_288 => 8192,
        524_288..1_048_576 => 16_384,
        _ => 32_768,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_rt::Rng;

    /// Files are created, grown and removed at random. No block is allocated to two files (the
    /// bitmap asserts this), and each page has a block. At the end, all blocks are free except
    /// those of the directory and the tree.
    #[test]
    fn blocks_are_given_once_and_come_back() {
        for (_, kind) in FileSystemKind::ALL {
            let mut layout = FileSystemLayout::new(kind, 100_000);
            let mut touches = Vec::new();
            let directory = layout.make_directory(&mut touches).unwrap();
            let before = layout.space.free_blocks();
            let mut rng = Rng::new(7);
            let mut files: Vec<FileId> = Vec::new();
            for _ in 0..3000 {
                match rng.below(5) {
                    0 | 1 => files.push(layout.create(directory, &mut touches).unwrap()),
                    2 | 3 if !files.is_empty() => {
                        let file = files[rng.below(files.len() as u64) as usize];
                        let bytes = layout.size_bytes(file) + rng.between(1, 30_000);
                        layout.grow(file, bytes, 0, &mut touches).unwrap();
                    }
                    _ if !files.is_empty() => {
                        let at = rng.below(files.len() as u64) as usize;
                        let file = files.swap_remove(at);
                        layout.remove(file, &mut touches);
                        layout.forget(file);
                    }
                    _ => {}
                }
            }
            let mut owned: Vec<u32> = files
                .iter()
                .flat_map(|file| layout.file(*file).blocks.clone())
                .filter(|block| *block != TAIL)
                .collect();
            let all = owned.len();
            owned.sort_unstable();
            owned.dedup();
            assert!(all > 1000 && owned.len() == all, "{kind:?}");
            for file in files {
                layout.remove(file, &mut touches);
                layout.forget(file);
            }
            let directory_blocks = layout.directories[0].blocks.len() as u32;
            let left = before - layout.space.free_blocks() - directory_blocks;
            let tree_blocks = layout.tree.blocks();
            assert_eq!(left, tree_blocks, "{kind:?}");
            assert!(touches.iter().all(|touch| touch.block < 100_000));
        }
    }

    /// The blocks of the file are 12 pages, an indirect block, 1,024 pages, and another indirect
    /// block with the remaining pages.
    #[test]
    fn indirect_blocks_lie_between_the_pages_that_they_name() {
        let mut layout = FileSystemLayout::new(FileSystemKind::Ext2, 100_000);
        let mut touches = Vec::new();
        let directory = layout.make_directory(&mut touches).unwrap();
        let file = layout.create(directory, &mut touches).unwrap();
        layout.grow(file, 4096 * 1040, 0, &mut touches).unwrap();
        let at = |page| layout.block_of(file, page).unwrap() - layout.block_of(file, 0).unwrap();
        assert_eq!((at(11), at(12), at(1035), at(1036)), (11, 13, 1036, 1038));
        let breaks: Vec<u32> = (1..1040)
            .filter(|page| layout.breaks_before(*page))
            .collect();
        assert_eq!(breaks, [12, 1036]);
    }
}
