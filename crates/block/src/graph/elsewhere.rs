//! Finds sides that belong to a volume although the configuration does not name them, because an
//! operation was interrupted.
//!
//! The search covers only devices of the same configuration that no other device uses. A file or
//! block device is first read at both ends, and is opened only if a missing side is found there. An
//! export of another server is opened for the search, and closed again if it does not hold the
//! side.

use std::os::unix::fs::FileExt;
use std::rc::Rc;

use bimetal_rt::Rt;

use super::{Graph, Node, OpenError, OpenOptions, Stack, content, shards};
use crate::BLOCK_BYTES;
use crate::disk::System;
use crate::layers::mirror::superblock::{self, Superblock, Uuid};
use crate::layers::mirror::{SideToOpen, holds_side, sides_elsewhere};
use crate::media::file::FileConfig;

impl Stack {
    /// Adds to `sides` the sides that an interrupted operation of the mirror involves but the
    /// configuration does not name. If no device with such a side is found, the side is added as
    /// missing, named by the first digits of its UUID. Returns the names of the missing sides, each
    /// with the reason.
    pub(super) async fn take_up(
        &mut self,
        rt: &Rt,
        graph: &Graph,
        roots: &[&str],
        sides: &mut Vec<SideToOpen>,
        options: &OpenOptions,
    ) -> Vec<(String, OpenError)> {
        let mut missing = Vec::new();
        for side in sides_elsewhere(rt, sides).await {
            let mut found = None;
            for name in graph.perhaps_holding(roots, &side) {
                found = self.open_if_it_holds(rt, graph, name, &side, options).await;
                if found.is_some() {
                    break;
                }
            }
            sides.push(found.unwrap_or_else(|| {
                let name = superblock::short_uuid(&side);
                let words = "no unused device of the configuration holds it";
                let why = OpenError::new(words);
                missing.push((name.clone(), why.clone()));
                SideToOpen {
                    name,
                    device: Err(why),
                }
            }));
        }
        missing
    }

    /// Opens the device `root` and everything below it, and keeps them open only if `root` holds
    /// the side `side` of the volume. The caller passes a `root` that no other device uses.
    async fn open_if_it_holds(
        &mut self,
        rt: &Rt,
        graph: &Graph,
        root: &str,
        side: &Uuid,
        options: &OpenOptions,
    ) -> Option<SideToOpen> {
        let mut beside: Vec<&str> = self.order.iter().map(String::as_str).collect();
        beside.push(root);
        // A device that is the same storage as another device, or is in use, is no candidate. The
        // side is then reported as missing.
        graph.check_distinct(&beside, &System::default()).ok()?;
        self.check_unused(rt, graph, root).ok()?;
        let before = self.order.len();
        for name in graph.on_this_thread(rt, root) {
            let opened = match &graph.nodes()[name] {
                Node::Shard(_) if shards::have_threads(rt) => {
                    self.open_shard(rt, graph, name, options).await
                }
                node => {
                    let children = graph.children_here(rt, name).into_iter();
                    let children = children.map(|child| Ok(Rc::clone(&self.devices[child])));
                    node.open(rt, name, children.collect(), options).await
                }
            };
            let Ok(device) = opened else {
                self.close_from(before).await;
                return None;
            };
            let device = self.tapped(rt, name, device);
            self.devices.insert(name.to_owned(), device);
            self.order.push(name.to_owned());
        }
        let device = Rc::clone(&self.devices[root]);
        if !holds_side(rt, &device, side).await {
            self.close_from(before).await;
            return None;
        }
        Some(SideToOpen {
            name: root.to_owned(),
            device: Ok(device),
        })
    }

    /// Closes the devices that were opened after the first `first` devices of the stack.
    async fn close_from(&mut self, first: usize) {
        for name in self.order.split_off(first).into_iter().rev() {
            if let Some(device) = self.devices.remove(&name) {
                // No data was written to the device, so an error loses nothing.
                let _ = device.close().await;
            }
            self.taps.borrow_mut().remove(&name);
            self.shards.borrow_mut().remove(&name);
        }
    }
}

impl Graph {
    /// Returns the unused devices that might hold `side`. The devices that use a file on which the
    /// side was found come first. The devices that use exports of other servers come last.
    fn perhaps_holding(&self, roots: &[&str], side: &Uuid) -> Vec<&str> {
        let unused = self.roots().into_iter().filter(|name| {
            let below = self.below(name);
            let is_plain = |name: &&str| {
                let node = &self.nodes()[*name];
                !matches!(node, Node::Mirror(_) | Node::Memory(_) | Node::Null(_))
            };
            !roots.contains(name) && below.iter().all(is_plain)
        });
        let of_media = |name: &str, is: &dyn Fn(&Node) -> bool| {
            let leaves = content::leaves(self, name, None).into_iter();
            leaves.map(|leaf| &self.nodes()[leaf]).any(is)
        };
        let holds = |node: &Node| match node {
            Node::File(config) => ends_of(config).iter().any(|found| found.side == *side),
            _ => false,
        };
        let is_remote = |node: &Node| matches!(node, Node::Remote(_) | Node::Brp(_));
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for name in unused {
            if of_media(name, &holds) {
                first.push(name);
            } else if of_media(name, &is_remote) {
                last.push(name);
            }
        }
        first.append(&mut last);
        first
    }
}

/// Returns the superblocks in the first and in the last block of a file or block device. A block
/// that cannot be read is skipped, because an error must not end the search.
fn ends_of(config: &FileConfig) -> Vec<Superblock> {
    let Ok(looked) = config.look(&System::default()) else {
        return Vec::new();
    };
    let Ok(file) = std::fs::File::open(&config.path) else {
        return Vec::new();
    };
    let last = looked.geometry.size_bytes.saturating_sub(BLOCK_BYTES);
    let read = |offset| {
        let mut block = vec![0; BLOCK_BYTES as usize];
        file.read_exact_at(&mut block, offset).ok()?;
        Superblock::decode(&block).ok().flatten()
    };
    [0, last].into_iter().filter_map(read).collect()
}
