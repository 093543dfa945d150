//! Operations on volumes while they are served, as requested through the control socket.
//! docs/control.md describes the requests and answers.

use std::rc::Rc;

use bimetal_block::graph::{Graph, Node, Stack};
use bimetal_block::layers::mirror::superblock::{Candidate, SideKind};
use bimetal_block::layers::mirror::{Mirror, RebuildRates, sides_line};
use bimetal_block::units::{parse_rate, show_size};
use serde_json::{Value, json};

use crate::config::Config;
use crate::conversion;
use crate::operation::Outcome;
use crate::shown::Shown;
use crate::statistics;

/// Returns the answer to a request that cannot be executed.
fn refusal(why: &str) -> Value {
    json!({ "error": why })
}

/// Returns the volume that a request names.
fn mirror_of<'s>(stack: &'s Stack, request: &Value) -> Result<(&'s str, &'s Mirror), Value> {
    let Some(asked) = request["volume"].as_str() else {
        return Err(refusal("expected the name of a mirror as `volume`"));
    };
    let named = |(name, _): &(&'s str, _)| *name == asked;
    let open = stack.devices();
    match open.map(|(name, _)| (name, stack.mirror(name))).find(named) {
        Some((name, Some(mirror))) => Ok((name, mirror)),
        Some((name, None)) => Err(refusal(&format!("device {name} is not a mirror"))),
        None => Err(refusal(&format!("there is no mirror `{asked}`"))),
    }
}

/// Starts a scrub of a volume, cancels it, or reports its progress.
pub(crate) fn scrub(stack: &Stack, request: &Value) -> Value {
    let (name, mirror) = match mirror_of(stack, request) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    match request["do"].as_str() {
        Some("start") => {
            if let Err(why) = mirror.start_scrub() {
                return refusal(&format!("{name}: {why}"));
            }
        }
        Some("cancel") if !mirror.cancel_scrub() => {
            return refusal(&format!("{name}: no scrub runs"));
        }
        Some("cancel" | "show") => {}
        _ => return refusal("expected `do` to be start, cancel or show"),
    }
    json!({ "scrub": mirror.status().scrub })
}

/// Shows the rebuild rates of a volume, or sets them until the server exits.
pub(crate) fn rebuild(stack: &Stack, request: &Value) -> Value {
    let (name, mirror) = match mirror_of(stack, request) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let mut rates = mirror.rebuild_rates();
    match request["do"].as_str() {
        Some("show") => {}
        Some("set") => {
            let set =
                read_rates(request, &mut rates).and_then(|()| mirror.set_rebuild_rates(rates));
            if let Err(why) = set {
                return refusal(&format!("{name}: {why}"));
            }
        }
        _ => return refusal("expected `do` to be show or set"),
    }
    json!({ "rebuild": {
        "floor_bytes_per_s": rates.floor_bytes_per_s,
        "ceiling_bytes_per_s": rates.ceiling_bytes_per_s,
    } })
}

/// Updates `rates` with the rates that a request contains.
fn read_rates(request: &Value, rates: &mut RebuildRates) -> Result<(), String> {
    let rate = |key: &str| match &request[key] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.as_str())),
        _ => Err(format!("expected `{key}` to be a rate, as in \"20MiB/s\"")),
    };
    let (floor, ceiling) = (rate("floor")?, rate("ceiling")?);
    if floor.or(ceiling).is_none() {
        return Err("expected `floor`, `ceiling` or both".to_owned());
    }
    if let Some(floor) = floor {
        rates.floor_bytes_per_s = parse_rate(floor)?.0;
    }
    match ceiling {
        None => {}
        Some("none") => rates.ceiling_bytes_per_s = None,
        Some(ceiling) => rates.ceiling_bytes_per_s = Some(parse_rate(ceiling)?.0),
    }
    Ok(())
}

/// Returns the content and counters of a cache. If the request asks for it, first records that the
/// operator accepts the loss of data in this cache.
pub(crate) fn cache(stack: &Stack, request: &Value) -> Value {
    let asked = request["device"].as_str().unwrap_or_default();
    let accepted = match request["do"].as_str() {
        Some("show") => None,
        Some("accept-loss") => stack.accept_loss(asked),
        _ => return refusal("expected `do` to be show or accept-loss"),
    };
    let Some(statistics) = stack.cache_statistics(asked) else {
        return refusal(&format!("there is no cache `{asked}`"));
    };
    let statistics = statistics::of(statistics);
    json!({ "cache": statistics["statistics"], "accepted": accepted })
}

/// A requested change to the sides of a volume.
enum Change {
    Add {
        new: String,
    },
    Remove {
        old: String,
    },
    Replace {
        old: String,
        new: String,
    },
    /// With `plan`, only says what the conversion would do.
    Convert {
        old: String,
        to: SideKind,
        plan: bool,
    },
}

impl Change {
    fn read(request: &Value) -> Option<Change> {
        let text = |key: &str| request[key].as_str().map(str::to_owned);
        match request["do"].as_str()? {
            "add" => Some(Change::Add { new: text("new")? }),
            "remove" => Some(Change::Remove { old: text("old")? }),
            "replace" => Some(Change::Replace {
                old: text("old")?,
                new: text("new")?,
            }),
            "convert" => Some(Change::Convert {
                old: text("old")?,
                to: conversion::kind(request["layout"].as_str()?)?,
                plan: request["plan"].as_bool().unwrap_or(false),
            }),
            _ => None,
        }
    }
}

/// Starts to add, remove, replace or convert a side of a volume. The client polls for the outcome
/// with the verb `operation`.
pub(crate) fn change_sides(shown: &Rc<Shown>, request: &Value) -> Value {
    let (name, mirror) = match mirror_of(&shown.stack, request) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let Some(change) = Change::read(request) else {
        return refusal(
            "expected `do` to be add, remove, replace or convert, with `new`, `old` or both, or \
            with `old` and `layout`",
        );
    };
    let does = match &change {
        Change::Add { new } => format!("add {new} to {name}"),
        Change::Remove { old } => format!("remove {old} from {name}"),
        Change::Replace { old, new } => format!("replace {old} of {name} by {new}"),
        Change::Convert { old, to, .. } => {
            format!("convert {old} of {name} to layout {}", to.name())
        }
    };
    let force = request["force"].as_bool().unwrap_or(false);
    let (name, mirror, with) = (name.to_owned(), mirror.clone(), Rc::clone(shown));
    begin(shown, does, async move {
        make(&with, &name, &mirror, change, force).await
    })
}

/// Starts to grow a volume to the largest size that its sides allow. The client polls for the
/// outcome with the verb `operation`.
pub(crate) fn grow(shown: &Rc<Shown>, request: &Value) -> Value {
    let (name, mirror) = match mirror_of(&shown.stack, request) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    if let Some(above) = fixed_above(&shown.config.graph, name) {
        let why = format!("{name} is a part of {above}, which cannot grow while it is in use");
        return refusal(&why);
    }
    let (does, name, mirror) = (format!("grow {name}"), name.to_owned(), mirror.clone());
    begin(shown, does, async move {
        let size_bytes = mirror.grow().await?;
        let cap = mirror.what_caps_the_size();
        let cap = cap.map_or(String::new(), |cap| format!("\nno more, because {cap}"));
        Ok(format!(
            "{name} has {} ({size_bytes} bytes); connected clients see the new size when they \
            reconnect{cap}",
            show_size(size_bytes)
        ))
    })
}

/// Returns a device above `name` that cannot grow, and therefore prevents `name` from growing;
/// `None` if there is none. Only layers that pass every request on to the device below can grow
/// with it.
fn fixed_above<'g>(graph: &'g Graph, name: &str) -> Option<&'g str> {
    let nodes = graph.nodes().iter();
    let mut parents = nodes.filter(|(_, node)| node.children().contains(&name));
    parents.find_map(|(parent, node)| match node {
        Node::Cache(_)
        | Node::Passthrough(_)
        | Node::Delay(_)
        | Node::Error(_)
        | Node::Queue(_)
        | Node::Rate(_)
        | Node::Shard(_)
        | Node::Log(_)
        | Node::Stats(_) => fixed_above(graph, parent),
        Node::File(_)
        | Node::Memory(_)
        | Node::Null(_)
        | Node::Remote(_)
        | Node::Brp(_)
        | Node::Mirror(_)
        | Node::Stripe(_)
        | Node::Adopted(_)
        | Node::Timing(_) => Some(parent.as_str()),
    })
}

/// Starts an operation in the background, unless another one is running.
fn begin(
    shown: &Rc<Shown>,
    does: String,
    operation: impl Future<Output = Outcome> + 'static,
) -> Value {
    if shown.operation.is_running() {
        return refusal("another operation is running");
    }
    if shown.stopping.get() {
        return refusal("the server is stopping");
    }
    *shown.operation.last.borrow_mut() = Some((does, None));
    let with = Rc::clone(shown);
    let task = shown.rt.spawn(async move {
        let outcome = operation.await;
        if let Some((_, last)) = with.operation.last.borrow_mut().as_mut() {
            *last = Some(outcome);
        }
    });
    *shown.operation.task.borrow_mut() = Some(task);
    shown.operation.show()
}

/// Makes the requested change to the sides of a volume. Returns a message for the operator.
async fn make(
    shown: &Shown,
    name: &str,
    mirror: &Mirror,
    change: Change,
    force: bool,
) -> Result<String, String> {
    let config = Config::load(&shown.config.path).map_err(|error| format!("{error:#}"))?;
    match &change {
        Change::Add { new } => add(shown, &config, mirror, (new, None), force).await?,
        Change::Replace { old, new } => {
            add(shown, &config, mirror, (new, Some(old)), force).await?;
        }
        Change::Remove { old } => mirror.remove_side(old).await?,
        Change::Convert {
            old,
            to,
            plan: true,
        } => return plan(mirror, old, *to).await,
        Change::Convert { old, to, .. } => {
            mirror.convert_side(old, *to).await?;
            return Ok(layouts_to_edit(&config, name, mirror));
        }
    }
    Ok(what_to_edit(&config, name, mirror))
}

/// Adds a device as a side, which replaces the side `old` if one is given.
async fn add(
    shown: &Shown,
    config: &Config,
    mirror: &Mirror,
    (new, old): (&String, Option<&String>),
    force: bool,
) -> Result<(), String> {
    let old = old.map(String::as_str);
    if let Some(asked) = mirror.ask_again(new, old).await {
        return asked;
    }
    let (stack, rt) = (&shown.stack, &shown.rt);
    let device = stack.open_later(rt, &config.graph, new, force);
    let candidate = Candidate {
        name: new.clone(),
        device: device.await.map_err(|error| error.to_string())?,
    };
    mirror.add_side(candidate, old, force).await
}

/// Returns what the conversion of a side would do, in lines for the operator.
async fn plan(mirror: &Mirror, side: &str, to: SideKind) -> Result<String, String> {
    let plan = mirror.plan_conversion(side, to).await?;
    Ok(plan.map_or_else(
        || format!("{side} has layout = \"{}\", or gets it already", to.name()),
        |plan| conversion::lines(side, &plan),
    ))
}

/// Returns a message with the edit of the key `layout` that the configuration needs; empty if the
/// key agrees with the sides of the volume.
fn layouts_to_edit(config: &Config, name: &str, mirror: &Mirror) -> String {
    let Some(Node::Mirror(named)) = config.graph.nodes().get(name) else {
        return format!("the configuration no longer has a mirror {name}");
    };
    let Some(layouts) = mirror.layouts_to_name(&named.layout) else {
        return String::new();
    };
    format!(
        "the volume remembers the change across restarts; for sides that are added later, write \
        into [device.{name}]: {}",
        layouts.line()
    )
}

/// Returns a message with the edit that the configuration needs; empty if the configuration already
/// lists the sides of the volume.
fn what_to_edit(config: &Config, name: &str, mirror: &Mirror) -> String {
    let Some(Node::Mirror(named)) = config.graph.nodes().get(name) else {
        return format!("the configuration no longer has a mirror {name}");
    };
    match mirror.sides_to_name(&named.sides) {
        None => String::new(),
        Some(sides) => format!(
            "the volume remembers the change across restarts; write into [device.{name}]: {}",
            sides_line(&sides)
        ),
    }
}
