//! Shards in the graph: which devices are allowed below a shard, which devices belong to which
//! thread, and the stack that a shard's thread opens.
//!
//! A device runs on the thread of the nearest shard above it. It must never have a parent on
//! another thread. A mirror must never be below a shard, because operators address mirrors by name,
//! and the thread of the server answers the operators.

use std::collections::BTreeSet;
use std::rc::Rc;

use bimetal_rt::Rt;

use super::{Graph, Node, OpenOptions, Stack};
use crate::device::{Device, LocalFuture, Statistic};
use crate::error::{IoError, OpenError};
use crate::layers::cache::HEALTH_LOST;
use crate::layers::shard::{NamedStatistic, Seen, Shard, Subtree};

/// Returns true if a shard gets its own thread: always, except in virtual time.
pub(super) fn have_threads(rt: &Rt) -> bool {
    !rt.is_virtual()
}

/// Starts the thread of the shard `name`, which opens the devices below the shard.
pub(super) async fn start(
    rt: &Rt,
    graph: &Graph,
    name: &str,
    options: &OpenOptions,
) -> Result<Shard, OpenError> {
    let below = graph.nodes[name].children()[0].to_owned();
    let (part, options) = (graph.part(&below), options.clone());
    let open = async move |rt: &Rt| {
        let stack = Stack::open_part(rt, &part, &[&below], &options).await?;
        let top = Rc::clone(stack.get(&below).expect("the root of a stack is open"));
        Ok(OnThread { part, stack, top })
    };
    Shard::start(rt, name, open).await
}

/// The devices that are open on the thread of a shard.
struct OnThread {
    part: Graph,
    stack: Stack,
    top: Rc<dyn Device>,
}

impl Subtree for OnThread {
    fn top(&self) -> Rc<dyn Device> {
        Rc::clone(&self.top)
    }

    fn look(&self) -> Vec<Seen> {
        let here = self.stack.here(&self.part);
        here.chain(self.stack.beyond()).collect()
    }

    fn accept_loss(&self, name: &str) {
        // The result is not sent back: the requester takes it from the statistics of the shard.
        self.stack.accept_loss(name);
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async {
            let closed = self.stack.close().await;
            closed.map_err(|(_device, error)| error)
        })
    }
}

impl Stack {
    /// Returns the present state of the devices that are open on this thread, children before
    /// parents. `graph` is the one of which they were opened.
    fn here<'s>(&'s self, graph: &'s Graph) -> impl Iterator<Item = Seen> + use<'s> {
        self.devices()
            .map(|(name, device)| seen_here(graph, name, device))
    }

    /// Returns the present state of some open devices, on this thread and on those of shards,
    /// children before parents. That of the others is not asked for.
    pub fn seen(&self, graph: &Graph, is_wanted: impl Fn(&str) -> bool) -> Vec<Seen> {
        let mut seen = self.beyond_of(&is_wanted);
        let here = self.devices().filter(|(name, _)| is_wanted(name));
        seen.extend(here.map(|(name, device)| seen_here(graph, name, device)));
        seen
    }

    /// Returns the last reported state of the devices that are open on threads of shards. The state
    /// is at most [`LOOK_EVERY`](crate::layers::shard::LOOK_EVERY) old.
    pub fn beyond(&self) -> Vec<Seen> {
        self.beyond_of(&|_| true)
    }

    fn beyond_of(&self, is_wanted: &dyn Fn(&str) -> bool) -> Vec<Seen> {
        let shards = self.shards.borrow();
        let mut seen = Vec::new();
        for shard in shards.values() {
            let beyond = shard.seen();
            seen.extend(beyond.iter().filter(|of| is_wanted(&of.name)).cloned());
        }
        seen
    }

    /// Returns the shard on whose thread the device `name` is open.
    pub fn shard_of(&self, name: &str) -> Option<String> {
        let shards = self.shards.borrow();
        let has_it = |shard: &Shard| shard.seen().iter().any(|seen| seen.name == name);
        let mut having = shards.iter().filter(|(_, shard)| has_it(shard));
        having.next().map(|(shard, _)| shard.clone())
    }

    /// Checks that neither `root` nor a device below it is already in use on any thread. There is
    /// one exception: a device that was opened after the stack had been opened can be used again,
    /// if it is open on the thread on which `root` needs it.
    ///
    /// # Errors
    /// Names the device that is in use.
    pub(super) fn check_unused(&self, rt: &Rt, graph: &Graph, root: &str) -> Result<(), OpenError> {
        let here: BTreeSet<&str> = graph.on_this_thread(rt, root).into_iter().collect();
        let is_later = |name: &str| self.later.borrow().iter().any(|(later, _)| later == name);
        let is_used = |name: &&str| {
            let elsewhere = match (self.shard_of(name), here.contains(name)) {
                (Some(shard), false) => !here.contains(shard.as_str()),
                (Some(_), true) => true,
                (None, is_here) => !is_here && is_later(name),
            };
            elsewhere || self.devices.contains_key(*name)
        };
        match graph.below(root).into_iter().find(is_used) {
            Some(name) => Err(OpenError::new("is in use already").of(name)),
            None => Ok(()),
        }
    }

    /// Returns the statistics of the buffer cache `name`, which runs on this thread or on the
    /// thread of a shard.
    pub fn cache_statistics(&self, name: &str) -> Option<Vec<NamedStatistic>> {
        if let Some(cache) = self.cache(name) {
            let mut statistics = Vec::new();
            cache.statistics(&mut statistics);
            return Some(statistics);
        }
        let mut beyond = self.beyond().into_iter();
        let found = beyond.find(|seen| seen.name == name && seen.kind == "cache");
        found.map(|seen| seen.statistics)
    }

    /// Records that the operator accepts the data loss of the buffer cache `name`. Returns whether
    /// data had been lost. For a cache on another thread, the returned value comes from the
    /// statistics that the cache last reported. Returns `None` if there is no such cache.
    pub fn accept_loss(&self, name: &str) -> Option<bool> {
        if let Some(cache) = self.cache(name) {
            return Some(cache.accept_loss());
        }
        let statistics = self.cache_statistics(name)?;
        let shards = self.shards.borrow();
        let is_told = shards.values().any(|shard| shard.accept_loss(name));
        let lost = Statistic::State(HEALTH_LOST.to_owned());
        let had_lost = statistics
            .iter()
            .any(|(_, _, statistic)| *statistic == lost);
        Some(is_told && had_lost)
    }
}

impl Graph {
    /// Returns `root` and the devices below it that are opened on the thread of `rt`, children
    /// before parents.
    pub(super) fn on_this_thread(&self, rt: &Rt, root: &str) -> Vec<&str> {
        let threads = have_threads(rt);
        self.reached(root, |node| !threads || !matches!(node, Node::Shard(_)))
    }

    /// Returns the children of `name` that are opened on the same thread as `name`.
    pub(super) fn children_here(&self, rt: &Rt, name: &str) -> Vec<&str> {
        match &self.nodes[name] {
            Node::Shard(_) if have_threads(rt) => Vec::new(),
            node => node.children(),
        }
    }

    /// Returns `root` and everything below it as a separate graph.
    fn part(&self, root: &str) -> Graph {
        let names = self.below(root);
        let node = |name: &&str| ((*name).to_owned(), self.nodes[*name].clone());
        Graph {
            nodes: names.iter().map(node).collect(),
            order: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// Returns the shards, each with the names of the devices below it.
    fn shards(&self) -> impl Iterator<Item = (&str, BTreeSet<&str>)> {
        let shards = self.nodes.iter().filter_map(|(name, node)| match node {
            Node::Shard(config) => Some((name.as_str(), config)),
            _ => None,
        });
        shards.map(|(name, config)| (name, self.below(&config.below).into_iter().collect()))
    }

    /// Checks that every device below a shard can run on the thread of the shard.
    ///
    /// # Errors
    /// Names the device and says why it cannot be below the shard.
    pub(super) fn check_shards(&self) -> Result<(), (String, String)> {
        for (shard, below) in self.shards() {
            for name in &below {
                let why = match &self.nodes[*name] {
                    Node::Mirror(_) => "a mirror is operated from the thread of the server",
                    Node::Adopted(_) => "an adopted disk must be a direct side of its mirror",
                    _ => continue,
                };
                let message = format!(
                    "device `{name}` is below the shard `{shard}`: {why}; put shards below it instead"
                );
                return Err(((*name).to_owned(), message));
            }
            let mut others = self.nodes.iter().filter(|(name, _)| {
                let name = name.as_str();
                name != shard && !below.contains(name)
            });
            let shared = others.find_map(|(other, node)| {
                let children = node.children().into_iter();
                let mut children = children.filter(|child| below.contains(child));
                children.next().map(|child| (other, child))
            });
            if let Some((other, child)) = shared {
                let message = format!(
                    "device `{child}` is on the thread of the shard `{shard}`, so `{other}` cannot use it too"
                );
                return Err((child.to_owned(), message));
            }
        }
        Ok(())
    }

    /// Checks that opening `roots` opens no device both on this thread and on the thread of a
    /// shard.
    ///
    /// # Errors
    /// Names the device and the shard that it belongs to.
    pub(super) fn check_roots(&self, rt: &Rt, roots: &[&str]) -> Result<(), OpenError> {
        if !have_threads(rt) {
            return Ok(());
        }
        let here = roots.iter().flat_map(|root| self.on_this_thread(rt, root));
        let here: BTreeSet<&str> = here.collect();
        for (shard, below) in self.shards() {
            let both = below.iter().find(|name| here.contains(**name));
            if let Some(name) = both.filter(|_| here.contains(shard)) {
                let why = format!("is on the thread of the shard `{shard}`, which is open too");
                return Err(OpenError::new(why).of(name));
            }
        }
        Ok(())
    }
}

/// Returns the present state of a device that is open on this thread.
fn seen_here(graph: &Graph, name: &str, device: &Rc<dyn Device>) -> Seen {
    let mut statistics: Vec<NamedStatistic> = Vec::new();
    device.statistics(&mut statistics);
    let node = &graph.nodes[name];
    Seen {
        name: name.to_owned(),
        kind: node.kind(),
        children: node.children().into_iter().map(str::to_owned).collect(),
        size_bytes: device.geometry().size_bytes,
        statistics,
    }
}
