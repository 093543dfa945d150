//! Leaves of the tree of ReiserFS, which pack the metadata and the tails of files into blocks.
//!
//! This is a model. The tree fills one leaf at a time: new items, and items that outgrow their
//! leaf, are added to that leaf. Leaves are not merged. The only inner nodes are those directly
//! above the leaves, which change when a leaf is added or freed.

use super::space::Space;
use super::touch::{Full, Touch};

/// Number of bytes of a leaf that items and their headers can use.
const LEAF_BYTES: u32 = 4096 - 24;
/// Number of bytes of a file's metadata (44) and of two item headers.
const ITEM_BYTES: u32 = 44 + 2 * 24;
/// Maximum length of an item. ReiserFS splits a longer item; only its last part is modelled.
const ITEM_BYTES_MAX: u32 = LEAF_BYTES;
/// Number of leaves below an inner node.
const LEAVES_IN_NODE: usize = 150;

struct Leaf {
    block: u32,
    used_bytes: u32,
    items: u32,
}

struct Item {
    leaf: usize,
    bytes: u32,
}

/// Leaves of the tree; see the module.
#[derive(Default)]
pub(crate) struct Tree {
    leaves: Vec<Option<Leaf>>,
    items: Vec<Option<Item>>,
    free_items: Vec<usize>,
    free_leaves: Vec<usize>,
    filling: Option<usize>,
    /// Blocks of the inner nodes directly above the leaves.
    nodes: Vec<u32>,
}

fn changed(block: u32, is_new: bool) -> Touch {
    Touch {
        block,
        changes: true,
        is_new,
    }
}

impl Tree {
    /// Adds an item for a file, and returns the number of the item.
    pub(crate) fn add(
        &mut self,
        space: &mut Space,
        group: u32,
        touches: &mut Vec<Touch>,
    ) -> Result<usize, Full> {
        let leaf = self.leaf_with_room(space, ITEM_BYTES, group, touches)?;
        let item = Item {
            leaf,
            bytes: ITEM_BYTES,
        };
        Ok(match self.free_items.pop() {
            Some(number) => {
                self.items[number] = Some(item);
                number
            }
            None => {
                self.items.push(Some(item));
                self.items.len() - 1
            }
        })
    }

    /// Returns the number of blocks of leaves and inner nodes.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> u32 {
        (self.leaves.iter().flatten().count() + self.nodes.len()) as u32
    }

    /// Returns the block of the leaf that holds the item.
    pub(crate) fn leaf_of(&self, item: usize) -> u32 {
        let item = self.items[item].as_ref().expect("an item in use");
        self.leaf(item.leaf).block
    }

    fn leaf(&self, leaf: usize) -> &Leaf {
        self.leaves[leaf].as_ref().expect("an item has a leaf")
    }

    fn leaf_mut(&mut self, leaf: usize) -> &mut Leaf {
        self.leaves[leaf].as_mut().expect("an item has a leaf")
    }

    /// Sets the number of bytes that a file's item needs in its leaf for its tail and block
    /// pointers. Moves the item if the leaf has no room.
    pub(crate) fn resize(
        &mut self,
        space: &mut Space,
        item: usize,
        bytes: u32,
        group: u32,
        touches: &mut Vec<Touch>,
    ) -> Result<(), Full> {
        let bytes = (ITEM_BYTES + bytes).min(ITEM_BYTES_MAX);
        let Item { leaf, bytes: old } = *self.items[item].as_ref().expect("an item in use");
        if self.leaf(leaf).used_bytes - old + bytes <= LEAF_BYTES {
            let of = self.leaf_mut(leaf);
            of.used_bytes = of.used_bytes - old + bytes;
            touches.push(changed(of.block, false));
            self.items[item] = Some(Item { leaf, bytes });
            return Ok(());
        }
        let new = self.leaf_with_room(space, bytes, group, touches)?;
        self.leave(space, leaf, old, touches);
        self.items[item] = Some(Item { leaf: new, bytes });
        Ok(())
    }

    /// Removes the item.
    pub(crate) fn remove(&mut self, space: &mut Space, item: usize, touches: &mut Vec<Touch>) {
        let Item { leaf, bytes } = self.items[item].take().expect("an item in use");
        self.free_items.push(item);
        self.leave(space, leaf, bytes, touches);
    }

    /// Removes a file's item of `bytes` bytes from a leaf of the metadata tree. Frees the leaf if
    /// it has no other item and is not the leaf being filled.
    fn leave(&mut self, space: &mut Space, leaf: usize, bytes: u32, touches: &mut Vec<Touch>) {
        let is_filling = self.filling == Some(leaf);
        let of = self.leaf_mut(leaf);
        of.used_bytes -= bytes;
        of.items -= 1;
        touches.push(changed(of.block, false));
        if of.items > 0 || is_filling {
            return;
        }
        let block = of.block;
        self.leaves[leaf] = None;
        self.free_leaves.push(leaf);
        space.give(block);
        touches.push(changed(self.nodes[leaf / LEAVES_IN_NODE], false));
        touches.push(changed(bitmap_of(block), false));
    }

    /// Adds an item of `bytes` bytes to the leaf being filled, or to a new leaf if that leaf has no
    /// room. Returns the leaf.
    fn leaf_with_room(
        &mut self,
        space: &mut Space,
        bytes: u32,
        group: u32,
        touches: &mut Vec<Touch>,
    ) -> Result<usize, Full> {
        let room = |leaf: &usize| self.leaf(*leaf).used_bytes + bytes <= LEAF_BYTES;
        let leaf = match self.filling.filter(room) {
            Some(leaf) => leaf,
            None => self.new_leaf(space, group, touches)?,
        };
        let of = self.leaf_mut(leaf);
        of.used_bytes += bytes;
        of.items += 1;
        touches.push(changed(of.block, false));
        Ok(leaf)
    }

    fn new_leaf(
        &mut self,
        space: &mut Space,
        group: u32,
        touches: &mut Vec<Touch>,
    ) -> Result<usize, Full> {
        let goal = match self.filling {
            Some(last) => self.leaf(last).block,
            None => group * 32_768,
        };
        let block = space.take_near(goal).ok_or(Full)?;
        let leaf = self.free_leaves.pop().unwrap_or(self.leaves.len());
        if leaf == self.leaves.len() {
            self.leaves.push(None);
        }
        self.leaves[leaf] = Some(Leaf {
            block,
            used_bytes: 0,
            items: 0,
        });
        if leaf / LEAVES_IN_NODE == self.nodes.len() {
            let node = space.take_near(goal).ok_or(Full)?;
            self.nodes.push(node);
            touches.push(changed(node, true));
            touches.push(changed(bitmap_of(node), false));
        }
        touches.push(changed(block, true));
        touches.push(changed(bitmap_of(block), false));
        touches.push(changed(self.nodes[leaf / LEAVES_IN_NODE], false));
        let before = self.filling.replace(leaf);
        if let Some(empty) = before.filter(|before| self.leaf(*before).items == 0) {
            let block = self.leaf(empty).block;
            self.leaves[empty] = None;
            self.free_leaves.push(empty);
            space.give(block);
        }
        Ok(leaf)
    }
}

/// Returns the bitmap block whose bits include this block.
fn bitmap_of(block: u32) -> u32 {
    block / 32_768 * 32_768
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaf of 4072 bytes has room for 44 items of 92 bytes, so the 45th item starts a new leaf.
    /// After all items of the first leaf have been removed, its block is free.
    #[test]
    fn a_leaf_is_filled_and_given_back() {
        let mut space = Space::new(1000);
        let mut tree = Tree::default();
        let mut touches = Vec::new();
        let mut items: Vec<usize> = (0..45)
            .map(|_| tree.add(&mut space, 0, &mut touches).unwrap())
            .collect();
        let last = items.pop().unwrap();
        let first_leaf = tree.leaf_of(items[0]);
        assert!(items.iter().all(|item| tree.leaf_of(*item) == first_leaf));
        assert_ne!(tree.leaf_of(last), first_leaf);
        // Two leaves and the inner node above them are in use.
        assert_eq!(space.free_blocks(), 997);
        for item in items {
            tree.remove(&mut space, item, &mut touches);
        }
        assert_eq!(space.free_blocks(), 998);
    }

    /// Two items with tails of 2000 bytes need 4184 bytes, more than a leaf has.
    #[test]
    fn an_item_that_no_longer_fits_moves() {
        let mut space = Space::new(1000);
        let mut tree = Tree::default();
        let mut touches = Vec::new();
        let a = tree.add(&mut space, 0, &mut touches).unwrap();
        let b = tree.add(&mut space, 0, &mut touches).unwrap();
        tree.resize(&mut space, a, 2000, 0, &mut touches).unwrap();
        assert_eq!(tree.leaf_of(a), tree.leaf_of(b));
        tree.resize(&mut space, b, 2000, 0, &mut touches).unwrap();
        assert_ne!(tree.leaf_of(a), tree.leaf_of(b));
    }
}
