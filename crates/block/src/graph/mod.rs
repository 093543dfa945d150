//! The device graph: turns the `[device.NAME]` sections of a configuration into open devices.
//!
//! Reading a configuration checks everything that can be known without touching a device: keys,
//! types and names, that there is no cycle, that a device has only one parent unless its section
//! says `shared = true`, and that each device below a shard is allowed there. Devices are opened
//! from the media up and closed from the top down. The devices below a shard are opened and closed
//! in the same way on the shard's thread, as a separate stack.

mod content;
mod elsewhere;
mod format;
mod node;
mod persistence;
mod shards;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use bimetal_rt::Rt;

use crate::device::Device;
use crate::disk::System;
pub use crate::document::{ConfigError, Document, Section};
use crate::error::IoError;
pub use crate::error::OpenError;
use crate::layers::cache::Cache;
use crate::layers::mirror::Mirror;
use crate::layers::shard::Shard;
use crate::tap::Tap;
pub use content::{leaves, signatures_in_file};
pub use format::{CreatedFile, FormatOptions, FormattedMirror, create_files, format};
pub use node::Node;
pub use persistence::Persistence;

/// The devices of a configuration, checked but not open.
#[derive(Clone, Debug)]
pub struct Graph {
    nodes: BTreeMap<String, Node>,
    /// Device names, children before parents.
    order: Vec<String>,
}

impl Graph {
    /// Reads the devices of a configuration document.
    ///
    /// # Errors
    /// The first mistake, with its position in the file.
    pub fn read(document: &Document<'_>) -> Result<Graph, ConfigError> {
        let mut nodes = BTreeMap::new();
        let mut shared = BTreeSet::new();
        for (name, section) in document.named("device") {
            let mut section = section.clone();
            if section.take_flag("shared")? {
                shared.insert(name.to_owned());
            }
            nodes.insert(name.to_owned(), Node::read(name, section)?);
        }
        if nodes.is_empty() {
            return Err(document.error("no devices: expected at least one [device.NAME]"));
        }
        let error_at = |name: &str, message: String| {
            let section = document
                .named("device")
                .find(|(n, _)| *n == name)
                .map(|(_, s)| s);
            section.map_or_else(
                || document.error(message.clone()),
                |s| s.error(message.clone()),
            )
        };
        check_parents(&nodes, &shared).map_err(|(name, message)| error_at(&name, message))?;
        let order = sort(&nodes).map_err(|(name, message)| error_at(&name, message))?;
        let graph = Graph { nodes, order };
        let checked = graph.check_shards();
        checked.map_err(|(name, message)| error_at(&name, message))?;
        Ok(graph)
    }

    /// Returns the nodes by name.
    pub fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.nodes
    }

    /// Returns the device names, children before parents.
    pub fn order(&self) -> &[String] {
        &self.order
    }

    /// Returns the devices that no other device uses.
    pub fn roots(&self) -> Vec<&str> {
        let children: BTreeSet<&str> = self.nodes.values().flat_map(Node::children).collect();
        self.order
            .iter()
            .map(String::as_str)
            .filter(|name| !children.contains(name))
            .collect()
    }

    /// Returns `root` and everything below it, children before parents.
    pub fn below(&self, root: &str) -> Vec<&str> {
        self.reached(root, |_| true)
    }

    /// Returns `root` and the devices that are reached from it, children before parents. The
    /// children of a device are reached only if `pass` returns true for the device.
    fn reached(&self, root: &str, pass: impl Fn(&Node) -> bool) -> Vec<&str> {
        let mut wanted = BTreeSet::from([root]);
        for name in self.order.iter().rev() {
            let node = &self.nodes[name];
            if wanted.contains(name.as_str()) && pass(node) {
                wanted.extend(node.children());
            }
        }
        self.order
            .iter()
            .map(String::as_str)
            .filter(|name| wanted.contains(name))
            .collect()
    }
}

/// Checks that every reference names an existing device, and that a device has one parent unless it
/// is shared.
fn check_parents(
    nodes: &BTreeMap<String, Node>,
    shared: &BTreeSet<String>,
) -> Result<(), (String, String)> {
    let mut parents: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, node) in nodes {
        for child in node.children() {
            if !nodes.contains_key(child) {
                return Err((
                    name.clone(),
                    format!("device `{name}` refers to `{child}`, which does not exist"),
                ));
            }
            if let Some(other) = parents.insert(child, name)
                && !shared.contains(child)
            {
                let message = format!(
                    "device `{child}` is used by `{other}` and by `{name}`; set `shared = true` on \
                    it to allow that"
                );
                return Err((child.to_owned(), message));
            }
        }
    }
    Ok(())
}

/// Sorts the names so that children come before parents; fails on a cycle.
fn sort(nodes: &BTreeMap<String, Node>) -> Result<Vec<String>, (String, String)> {
    let mut order: Vec<String> = Vec::new();
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    while order.len() < nodes.len() {
        let ready = nodes.iter().find(|(name, node)| {
            !placed.contains(name.as_str()) && node.children().iter().all(|c| placed.contains(c))
        });
        match ready {
            Some((name, _)) => {
                placed.insert(name);
                order.push(name.clone());
            }
            None => {
                let stuck: Vec<&str> = nodes
                    .keys()
                    .map(String::as_str)
                    .filter(|n| !placed.contains(n))
                    .collect();
                let message = format!(
                    "devices refer to each other in a cycle: {}",
                    stuck.join(", ")
                );
                return Err((stuck[0].to_owned(), message));
            }
        }
    }
    Ok(order)
}

/// Options for opening a graph.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The operator's options for mirrors.
    pub mirror: crate::layers::mirror::OpenOptions,
}

/// Open devices.
pub struct Stack {
    devices: BTreeMap<String, Rc<dyn Device>>,
    /// The mirrors among the devices, for operations on them.
    mirrors: BTreeMap<String, Mirror>,
    caches: BTreeMap<String, Cache>,
    shards: RefCell<BTreeMap<String, Rc<Shard>>>,
    /// The tap of each device, which forwards the requests to the device and can record them.
    /// Parents and exports use the tap instead of the device.
    taps: RefCell<BTreeMap<String, Rc<Tap>>>,
    /// Devices that an operation opened after the stack had been opened, children before parents.
    /// They are closed last.
    later: RefCell<Vec<(String, Rc<dyn Device>)>>,
    /// Device names in the order of opening: children before parents.
    order: Vec<String>,
    /// Devices that could not be opened, each with its error. A mirror above such a device runs
    /// without the device.
    missing: BTreeMap<String, OpenError>,
    /// Index in `order` of the device that is being closed.
    closing: Cell<Option<usize>>,
}

impl Stack {
    /// Opens `roots` and everything below them. A mirror runs without sides that cannot be opened,
    /// if its rules permit.
    ///
    /// # Errors
    /// Names the first required device that cannot be opened, a device that is the same storage as
    /// another device, or a root whose last bytes would not be accessible. Devices that have been
    /// opened are closed again.
    pub async fn open(
        rt: &Rt,
        graph: &Graph,
        roots: &[&str],
        options: &OpenOptions,
    ) -> Result<Stack, OpenError> {
        graph.check_distinct(roots, &System::default())?;
        let stack = Stack::open_part(rt, graph, roots, options).await?;
        let whole = roots.iter().try_for_each(|root| {
            let whole = stack.devices[*root].geometry().check_whole();
            whole.map_err(|error| error.of(root))
        });
        if let Err(error) = whole {
            // The stack has served no request, so an error while closing it loses no data and is
            // ignored.
            let _ = stack.close().await;
            return Err(error);
        }
        Ok(stack)
    }

    /// Opens `roots` and everything below them on this thread. Unlike [`open`](Stack::open), it
    /// does not check that the devices are distinct storage and that the roots are accessible to
    /// their end.
    async fn open_part(
        rt: &Rt,
        graph: &Graph,
        roots: &[&str],
        options: &OpenOptions,
    ) -> Result<Stack, OpenError> {
        let mut stack = Stack {
            devices: BTreeMap::new(),
            mirrors: BTreeMap::new(),
            caches: BTreeMap::new(),
            shards: RefCell::default(),
            taps: RefCell::default(),
            later: RefCell::default(),
            order: Vec::new(),
            missing: BTreeMap::new(),
            closing: Cell::new(None),
        };
        graph.check_roots(rt, roots)?;
        let mut failed: BTreeMap<String, OpenError> = BTreeMap::new();
        for name in roots.iter().flat_map(|root| graph.on_this_thread(rt, root)) {
            if stack.devices.contains_key(name) || failed.contains_key(name) {
                continue;
            }
            let node = &graph.nodes[name];
            let child = |child: &&str| match failed.get(*child) {
                Some(error) => Err(error.clone()),
                None => Ok(Rc::clone(&stack.devices[*child])),
            };
            let children = graph.children_here(rt, name);
            let children: Vec<_> = children.iter().map(child).collect();
            let opened = match node {
                Node::Mirror(config) => {
                    let mut sides = node::sides_to_open(config, children);
                    let missing = stack.take_up(rt, graph, roots, &mut sides, options).await;
                    failed.extend(missing);
                    let mirror = Mirror::open(rt, config, sides, &options.mirror).await;
                    mirror.map(|mirror| {
                        stack.mirrors.insert(name.to_owned(), mirror.clone());
                        Rc::new(mirror) as Rc<dyn Device>
                    })
                }
                Node::Cache(config) => node::open_cache(rt, config, children).map(|cache| {
                    stack.caches.insert(name.to_owned(), cache.clone());
                    Rc::new(cache) as Rc<dyn Device>
                }),
                Node::Shard(_) if shards::have_threads(rt) => {
                    stack.open_shard(rt, graph, name, options).await
                }
                node => node.open(rt, name, children, options).await,
            };
            match opened {
                Ok(device) => {
                    let device = stack.tapped(rt, name, device);
                    stack.devices.insert(name.to_owned(), device);
                    stack.order.push(name.to_owned());
                }
                Err(error) => {
                    failed.insert(name.to_owned(), error.of(name));
                }
            }
        }
        if let Some(error) = roots.iter().find_map(|root| failed.remove(*root)) {
            // The first error is reported, because a failure while closing is only a consequence.
            let _ = stack.close().await;
            return Err(error);
        }
        stack.missing = failed;
        Ok(stack)
    }

    /// Opens a shard: starts its thread, which opens the devices below the shard.
    async fn open_shard(
        &self,
        rt: &Rt,
        graph: &Graph,
        name: &str,
        options: &OpenOptions,
    ) -> Result<Rc<dyn Device>, OpenError> {
        let shard = Rc::new(shards::start(rt, graph, name, options).await?);
        let mut shards = self.shards.borrow_mut();
        shards.insert(name.to_owned(), Rc::clone(&shard));
        Ok(shard)
    }

    /// Puts a tap on a device.
    fn tapped(&self, rt: &Rt, name: &str, device: Rc<dyn Device>) -> Rc<dyn Device> {
        let tap = Rc::new(Tap::new(rt, device));
        let mut taps = self.taps.borrow_mut();
        taps.insert(name.to_owned(), Rc::clone(&tap));
        tap
    }

    /// Returns the tap on device `name`, if that device is open on this thread.
    pub fn tap(&self, name: &str) -> Option<Rc<Tap>> {
        self.taps.borrow().get(name).cloned()
    }

    /// Returns the device `name`, if it is open.
    pub fn get(&self, name: &str) -> Option<&Rc<dyn Device>> {
        self.devices.get(name)
    }

    fn opened_later(&self, names: &[&str]) -> Vec<Result<Rc<dyn Device>, OpenError>> {
        let later = self.later.borrow();
        let find = |name: &&str| {
            let found = later.iter().find(|(later, _)| later == name);
            Ok(Rc::clone(&found.expect("children come first").1))
        };
        names.iter().map(find).collect()
    }

    /// Returns the open mirrors, by name.
    pub fn mirrors(&self) -> impl Iterator<Item = (&str, &Mirror)> {
        let mirrors = self.mirrors.iter();
        mirrors.map(|(name, mirror)| (name.as_str(), mirror))
    }

    /// Returns the mirror `name`, if it is open.
    pub fn mirror(&self, name: &str) -> Option<&Mirror> {
        self.mirrors.get(name)
    }

    /// Returns the buffer cache `name`, if it is open on this thread.
    pub fn cache(&self, name: &str) -> Option<&Cache> {
        self.caches.get(name)
    }

    /// Opens a device of a reloaded configuration, with everything below it, so that it can become
    /// part of the open stack. Missing files are created if the configuration gives their `size`.
    /// The content of the device will be lost, so a device with a recognised format is refused
    /// unless `force` is set.
    ///
    /// # Errors
    /// - The configuration has no such device.
    /// - The device or a device below it is already open, or is the same storage as an open device.
    /// - The device holds a recognised format and `force` is not set.
    /// - The device cannot be opened.
    pub async fn open_later(
        &self,
        rt: &Rt,
        graph: &Graph,
        name: &str,
        force: bool,
    ) -> Result<Rc<dyn Device>, OpenError> {
        if !graph.nodes.contains_key(name) {
            return Err(OpenError::new(format!(
                "there is no [device.{name}] in the configuration"
            )));
        }
        self.check_unused(rt, graph, name)?;
        for file in graph.below(name) {
            if let Node::File(config) = &graph.nodes[file] {
                format::create_if_missing(config).map_err(|error| error.of(file))?;
            }
        }
        self.check_distinct_from_open(graph, name)?;
        let system = System::default();
        if !force {
            // Checked before opening, so that a refused device is left unchanged.
            content::check_files_blank(graph, &content::leaves(graph, name, None), &system)?;
        }
        for name in graph.on_this_thread(rt, name) {
            let is_later = |(later, _): &(String, _)| later == name;
            if self.later.borrow().iter().any(is_later) {
                continue;
            }
            let options = OpenOptions::default();
            let opened = match &graph.nodes[name] {
                Node::Shard(_) if shards::have_threads(rt) => {
                    self.open_shard(rt, graph, name, &options).await
                }
                node => {
                    let children = self.opened_later(&node.children());
                    node.open(rt, name, children, &options).await
                }
            };
            let device = opened.map_err(|error| error.of(name))?;
            let device = self.tapped(rt, name, device);
            self.later.borrow_mut().push((name.to_owned(), device));
        }
        let found = {
            let later = self.later.borrow();
            let found = later.iter().find(|(later, _)| later == name);
            Rc::clone(&found.expect("it has just been opened").1)
        };
        if !force {
            let open = self.later.borrow().clone();
            let open = open
                .iter()
                .map(|(n, device)| (n.as_str(), Rc::clone(device)));
            let open = open.collect();
            content::check_remotes_blank(graph, &content::leaves(graph, name, None), &open).await?;
        }
        Ok(found)
    }

    /// Checks that the device `name` is not the same storage as an open device.
    fn check_distinct_from_open(&self, graph: &Graph, name: &str) -> Result<(), OpenError> {
        let open = self.order.iter().map(String::as_str);
        let mut roots: Vec<&str> = open.filter(|n| graph.nodes.contains_key(*n)).collect();
        roots.push(name);
        graph.check_distinct(&roots, &System::default())
    }

    /// Returns the open devices, children before parents.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &Rc<dyn Device>)> {
        self.order
            .iter()
            .map(|name| (name.as_str(), &self.devices[name]))
    }

    /// Returns the error with which the device `name` failed to open, if a mirror above that device
    /// runs without it.
    pub fn missing(&self, name: &str) -> Option<&OpenError> {
        self.missing.get(name)
    }

    /// Closes every device from the top down, and continues after a failure.
    ///
    /// # Errors
    /// The first failure, with the name of the device that failed.
    pub async fn close(&self) -> Result<(), (String, IoError)> {
        let mut first = Ok(());
        for (at, name) in self.order.iter().enumerate().rev() {
            self.closing.set(Some(at));
            if let Err(error) = self.devices[name].close().await
                && first.is_ok()
            {
                first = Err((name.clone(), error));
            }
        }
        self.closing.set(None);
        let later = std::mem::take(&mut *self.later.borrow_mut());
        for (name, device) in later.into_iter().rev() {
            if let Err(error) = device.close().await
                && first.is_ok()
            {
                first = Err((name, error));
            }
        }
        first
    }

    /// Returns the device that [`close`](Stack::close) is waiting for, while `close` runs.
    pub fn closing(&self) -> Option<&str> {
        self.closing.get().map(|at| self.order[at].as_str())
    }
}

/// Reads a configuration text and returns only its graph.
pub fn read_graph(path: &Path, text: &str) -> Result<Graph, ConfigError> {
    Graph::read(&Document::parse(path, text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(text: &str) -> Result<Graph, String> {
        read_graph(Path::new("c.toml"), text).map_err(|e| e.to_string())
    }

    const TWO: &str = "[device.a]\ntype = \"memory\"\nsize = \"1MiB\"\n\
                       [device.b]\ntype = \"passthrough\"\nbelow = \"a\"\n";

    #[test]
    fn children_come_before_parents() {
        let text = format!("{TWO}[device.Z]\ntype = \"passthrough\"\nbelow = \"b\"\n");
        let graph = graph(&text).unwrap();
        assert_eq!(graph.order(), ["a", "b", "Z"]);
        assert_eq!(graph.roots(), ["Z"]);
        assert_eq!(graph.below("b"), ["a", "b"]);
    }

    #[test]
    fn broken_graphs_are_refused_in_one_line() {
        let second_parent = format!("{TWO}[device.c]\ntype = \"passthrough\"\nbelow = \"a\"\n");
        for (text, words) in [
            (second_parent.as_str(), "used by `b` and by `c`"),
            (
                "[device.a]\ntype = \"passthrough\"\nbelow = \"x\"\n",
                "does not exist",
            ),
            (
                "[device.a]\ntype = \"passthrough\"\nbelow = \"a\"\n",
                "in a cycle: a",
            ),
            (
                "[device.a]\ntype = \"floppy\"\n",
                "unknown device type `floppy`",
            ),
            ("[device.a]\nsize = \"1MiB\"\n", "needs a `type`"),
            (
                "[device.a]\ntype = \"memory\"\nsize = \"1000B\"\n",
                "multiple of 4 KiB",
            ),
            ("[server]\n", "no devices"),
        ] {
            let message = graph(text).unwrap_err();
            assert!(
                message.contains(words) && !message.contains('\n'),
                "{message}"
            );
        }
        let shared = second_parent.replacen("size", "shared = true\nsize", 1);
        assert!(graph(&shared).is_ok());
    }

    /// A device that reports the given number of interruptions.
    struct Interrupted(crate::geometry::Geometry, u64);

    impl Device for Interrupted {
        fn geometry(&self) -> &crate::geometry::Geometry {
            &self.0
        }

        fn submit(&self, _request: crate::Request) -> crate::device::IoFuture<'_> {
            crate::device::IoFuture::ready(Err(IoError::Offline))
        }

        fn interruptions(&self) -> Option<u64> {
            Some(self.1)
        }
    }

    #[test]
    fn every_layer_passes_on_how_often_it_was_interrupted() {
        let rt = Rt::virtual_time(bimetal_rt::VirtualOptions::default());
        let dir =
            std::env::temp_dir().join(format!("bimetal-interruptions-{}", std::process::id()));
        let log = format!("type = 'log'\nbelow = 'a'\npath = '{}'\n", dir.display());
        let layers = [
            ("type = 'passthrough'\nbelow = 'a'\n", 3),
            ("type = 'stripe'\ndevices = ['a', 'b']\nunit = '16KiB'\n", 7),
            ("type = 'ssd'\nprofile = 'nvme-tlc'\nbelow = 'a'\n", 3),
            ("type = 'hdd'\nprofile = 'hdd-7200'\nbelow = 'a'\n", 3),
            ("type = 'network'\nbelow = 'a'\n", 3),
            ("type = 'delay'\nbelow = 'a'\n", 3),
            ("type = 'error'\nbelow = 'a'\ncode = 'medium'\n", 3),
            ("type = 'rate'\nbelow = 'a'\n", 3),
            ("type = 'shard'\nbelow = 'a'\n", 3),
            ("type = 'stats'\nbelow = 'a'\n", 3),
            (log.as_str(), 3),
        ];
        for (text, expected) in layers {
            let media = "[device.a]\ntype = 'null'\nsize = '1MiB'\n\
                         [device.b]\ntype = 'null'\nsize = '1MiB'\n";
            let graph = graph(&format!("{media}[device.top]\n{text}")).unwrap();
            let node = &graph.nodes()["top"];
            let children = node.children().into_iter().zip([3, 4]).map(|(_, count)| {
                let geometry = crate::geometry::Geometry::of_size(1 << 20);
                Ok(Rc::new(Interrupted(geometry, count)) as Rc<dyn Device>)
            });
            let options = OpenOptions::default();
            let device = rt.block_on(node.open(&rt, "top", children.collect(), &options));
            assert_eq!(device.unwrap().interruptions(), Some(expected), "{text}");
            let below = Rc::new(Interrupted(crate::geometry::Geometry::of_size(1 << 20), 5));
            let atomic = crate::layers::atomic::AtomicUnit::new(&rt, below);
            assert_eq!(atomic.interruptions(), Some(5));
        }
        // Only the log layer creates the file.
        let _ = std::fs::remove_file(dir);
    }

    #[test]
    fn a_stack_opens_and_closes_in_virtual_time() {
        let rt = Rt::virtual_time(bimetal_rt::VirtualOptions::default());
        let graph = graph(TWO).unwrap();
        rt.block_on(async {
            let stack = Stack::open(&rt, &graph, &["b"], &OpenOptions::default())
                .await
                .unwrap();
            let top = stack.get("b").unwrap();
            let data = rt.pool().copy_of(&[7; 4096]);
            let write = crate::Request::write(8192, data, crate::Flags::NONE);
            top.submit(write).await.unwrap();
            let read = stack
                .get("a")
                .unwrap()
                .submit(crate::Request::read(8192, 4096))
                .await;
            assert_eq!(read.unwrap().into_data().to_vec(), [7; 4096]);
            stack.close().await.unwrap();
        });
    }
}
