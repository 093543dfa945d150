//! Persistence of a device: how much of its data survives when the process that serves it dies. A
//! client that outlives the server must know this.

use super::{Graph, Node};
use crate::layers::cache::Mode;

/// The data that a device loses when the process dies. With each variant, more data is lost than
/// with the previous variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Persistence {
    /// No acknowledged data is lost.
    Durable,
    /// Acknowledged writes that no flush has covered are lost.
    Volatile,
    /// All data is lost.
    Ephemeral,
}

impl Graph {
    /// Returns which data of the device `name` is lost when the process dies.
    pub fn persistence(&self, name: &str) -> Persistence {
        let node = &self.nodes[name];
        let below = node.children().into_iter();
        let below: Vec<Persistence> = below.map(|child| self.persistence(child)).collect();
        let worst = below.iter().copied().max().unwrap_or(Persistence::Durable);
        match node {
            Node::Memory(_) => Persistence::Ephemeral,
            // A mirror acknowledges a change as soon as one side has it, even a side in memory. So
            // changes that no flush has covered might be lost. A flush waits for a side that keeps
            // its data, so flushed changes are not lost.
            Node::Mirror(_) if below.iter().any(|side| *side != Persistence::Ephemeral) => {
                worst.min(Persistence::Volatile)
            }
            Node::Cache(config) if config.mode == Mode::WriteBack => {
                worst.max(Persistence::Volatile)
            }
            _ => worst,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::graph::read_graph;

    #[test]
    fn what_is_left_follows_from_what_a_device_is_made_of() {
        let text = r#"
            [device.file]
            type = "file"
            path = "a.img"
            [device.ram]
            type = "memory"
            size = "1MiB"
            [device.both]
            type = "mirror"
            sides = ["file", "ram"]
            [device.slow]
            type = "delay"
            below = "both"
            read = "1ms"
            [device.ram2]
            type = "memory"
            size = "1MiB"
            [device.pass]
            type = "passthrough"
            below = "ram2"
            [device.file2]
            type = "file"
            path = "b.img"
        "#;
        let graph = read_graph(Path::new("c.toml"), text).unwrap();
        for (name, expected) in [
            ("file", Persistence::Durable),
            ("pass", Persistence::Ephemeral),
            ("slow", Persistence::Volatile),
        ] {
            assert_eq!(graph.persistence(name), expected, "{name}");
        }
    }
}
