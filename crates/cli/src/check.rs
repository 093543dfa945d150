//! `bimetal check`: reads a configuration, inspects its files and devices without opening anything
//! for writing, and shows the devices as a tree.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bimetal_block::graph::Graph;
use bimetal_block::layers::mirror::superblock::BlockDigest;
use bimetal_block::units::show_size;
use bimetal_control as control;
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::facts::{self, AllFacts};
use crate::terminal::{Terminal, Tone};

/// Arguments of the verb `check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the devices and exports as JSON
    #[arg(long, conflicts_with = "dot")]
    json: bool,
    /// Print the devices as a graph in the format of Graphviz
    #[arg(long)]
    dot: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let mut facts = facts::find(&config)?;
    if facts::any_active(&facts) {
        // If no server answers, only the facts that a server could report are missing.
        let status = control::ask(&config.server.control, &json!({ "verb": "status" })).ok();
        facts::hear_server(&config, status.as_ref(), &mut facts);
    }
    let text = if args.json {
        format!("{:#}\n", to_json(&config, &facts))
    } else if args.dot {
        to_dot(&config, &facts)
    } else {
        to_tree(&config, &facts, Terminal::of_stdout())
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn to_json(config: &Config, facts: &AllFacts) -> Value {
    let mut devices = Map::new();
    for (name, node) in config.graph.nodes() {
        let facts = &facts[name];
        let mut device = Map::new();
        device.insert("name".into(), json!(name));
        device.insert("type".into(), json!(node.kind()));
        device.insert("size_bytes".into(), json!(facts.size_bytes));
        device.insert("children".into(), json!(node.children()));
        device.extend(facts.more.clone());
        devices.insert(name.clone(), Value::Object(device));
    }
    let mut exports = Map::new();
    for export in &config.exports {
        let shown = json!({
            "device": export.device,
            "protocol": export.protocol.name(),
            "listen": export.listen.to_string(),
            "read_only": export.read_only,
        });
        exports.insert(export.name.clone(), shown);
    }
    json!({
        "version": 1,
        "devices": devices,
        "exports": exports,
    })
}

fn to_dot(config: &Config, facts: &AllFacts) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let mut text = String::from("digraph bimetal {\n    node [shape=box, fontname=sans];\n");
    for (name, node) in config.graph.nodes() {
        let size = facts[name].size_bytes.map_or(String::new(), show_size);
        let label = quoted(&format!("{name}\n{} {size}", node.kind()));
        let label = label.replace('\n', "\\n");
        text += &format!("    {} [label={label}];\n", quoted(name));
        for child in node.children() {
            text += &format!("    {} -> {};\n", quoted(name), quoted(child));
        }
    }
    text + "}\n"
}

/// Formats the devices as a tree: each device that no other device uses, followed by the devices
/// below it.
fn to_tree(config: &Config, facts: &AllFacts, terminal: Terminal) -> String {
    let mut tree = Tree {
        graph: &config.graph,
        facts,
        terminal,
        text: String::new(),
    };
    for root in config.graph.roots() {
        tree.add(root, "", "");
    }
    for export in &config.exports {
        tree.text += &format!(
            "export {}  {} of {} at {}\n",
            terminal.paint(Tone::Strong, &export.name),
            export.protocol.name(),
            export.device,
            export.listen
        );
    }
    tree.text
}

/// Facts that are full sentences. Each is shown on a line of its own, after all other facts.
const SENTENCES: [&str; 3] = ["next", "operations", "exposure"];

struct Tree<'a> {
    graph: &'a Graph,
    facts: &'a AllFacts,
    terminal: Terminal,
    text: String,
}

impl Tree<'_> {
    /// Adds a line for the device `name`, with the prefix `first`, and the lines for the devices
    /// below it, with the prefix `rest`.
    fn add(&mut self, name: &str, first: &str, rest: &str) {
        let node = &self.graph.nodes()[name];
        let facts = &self.facts[name];
        let mut line = format!(
            "{first}{}  {}",
            self.terminal.paint(Tone::Strong, name),
            node.kind()
        );
        if let Some(size) = facts.size_bytes {
            line += &format!("  {}", show_size(size));
        }
        for (key, value) in &facts.more {
            if SENTENCES.contains(&key.as_str()) {
                continue;
            }
            let shown = match value.as_bool() {
                Some(true) => "yes".to_owned(),
                Some(false) => "no".to_owned(),
                None => crate::statistics::show(key, value),
            };
            let word = match key.as_str() {
                "path" | "state" => shown,
                "data_offset_bytes" => format!("data from {shown} on"),
                // Newly formatted sides use this digest, so only other digests are shown.
                "digest" if shown == BlockDigest::Xxh3.name() => continue,
                // These facts are for programs only: they are too long for a line, or implied by
                // the state.
                "volume" | "side" | "data_path" | "not_formatted" | "not_seen" => continue,
                _ => format!("{} {shown}", crate::statistics::label(key)),
            };
            line += &format!("  {}", self.terminal.paint(Tone::Dim, &word));
        }
        self.text += &line;
        self.text.push('\n');
        let said = SENTENCES
            .iter()
            .filter_map(|key| facts.more.get(*key)?.as_str());
        for sentence in said {
            self.text += &format!("{rest}|   {}\n", self.terminal.paint(Tone::Warn, sentence));
        }
        let children = node.children();
        for (at, child) in children.iter().enumerate() {
            let last = at + 1 == children.len();
            let (first, next) = if last {
                ("`-- ", "    ")
            } else {
                ("|-- ", "|   ")
            };
            self.add(child, &format!("{rest}{first}"), &format!("{rest}{next}"));
        }
    }
}
