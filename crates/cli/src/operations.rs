//! What can be done to a volume while it is served, as the control socket asks for it. The requests
//! and answers are described in docs/control.md.

use bimetal_block::graph::Stack;
use bimetal_block::layers::mirror::Mirror;
use serde_json::{Value, json};

/// The answer when something cannot be done.
fn refusal(why: &str) -> Value {
    json!({ "error": why })
}

/// The volume that a request names.
fn mirror_of<'s>(stack: &'s Stack, request: &Value) -> Result<(&'s str, &'s Mirror), Value> {
    let Some(asked) = request["volume"].as_str() else {
        return Err(refusal("expected the name of a mirror as `volume`"));
    };
    let named = |(name, _): &(&'s str, _)| *name == asked;
    let open = stack.devices().map(|(name, device)| (name, device));
    match open.map(|(name, _)| (name, stack.mirror(name))).find(named) {
        Some((name, Some(mirror))) => Ok((name, mirror)),
        Some((name, None)) => Err(refusal(&format!("device {name} is not a mirror"))),
        None => Err(refusal(&format!("there is no mirror `{asked}`"))),
    }
}

/// Begins a scrub, ends it, or says how it stands.
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
