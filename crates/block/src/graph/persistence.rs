//! What is left of a device when the process that has it dies: a client that outlives the server
//! has to know.

use super::{Graph, Node};
use crate::layers::cache::Mode;

/// What the death of the process takes with it. Later ones take more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Persistence {
    /// Nothing that was answered.
    Durable,
    /// What was answered and no flush has covered.
    Volatile,
    /// Everything.
    Ephemeral,
}

impl Graph {
    /// What is left of the device `name`.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn persistence(&self, name: &str) -> Persistence {
        let node = &self.nodes[name];
        let below = node.children().into_iter();
        let below: Vec<Persistence> = below.map(|child| self.persistence(child)).collect();
        let worst = below.iter().copied().max().unwrap_or(Persistence::Durable);
        match node {
            Node::Memory(_) => Persistence::Ephemeral,
            // A change is answered when one side has it, and a flush waits for a durable one.
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
