//! The server end of the verb `record`.

use bimetal_block::graph::Stack;
use bimetal_block::tap::{LEASE, Taken, Tap};
use serde_json::{Value, json};

use super::text::to_text;

/// Maximum number of records in one answer. The answer then has about 80 KB of text and is built in
/// a fraction of a millisecond.
const TAKEN_MAX: usize = 2048;

/// Answers a request with the verb `record` about a device of `stack`.
pub fn answer(stack: &Stack, request: &Value) -> Value {
    answer_for(stack, request).unwrap_or_else(|why| json!({ "error": why }))
}

fn answer_for(stack: &Stack, request: &Value) -> Result<Value, String> {
    let device = request["device"].as_str().unwrap_or_default();
    let tap = stack.tap(device);
    let tap = tap.ok_or_else(|| match stack.shard_of(device) {
        Some(shard) => format!(
            "device `{device}` is on the thread of the shard `{shard}`; record the device \
             `{shard}` instead"
        ),
        None => format!("device `{device}` is not open"),
    })?;
    let number = request["number"].as_u64().unwrap_or(0);
    match request["do"].as_str() {
        Some("start") => match tap.start() {
            Ok(number) => Ok(json!({ "record": { "number": number } })),
            Err(_) => Err(format!("device {device} is being recorded already")),
        },
        Some("take") => take(&tap, number),
        Some("stop") if tap.stop(number) => Ok(json!({ "record": { "number": number } })),
        Some("stop") => Err(gone(number)),
        _ => Err("expected `do` to be start, take or stop".to_owned()),
    }
}

fn gone(number: u64) -> String {
    format!(
        "recording {number} no longer exists: it has ended, or no requests were fetched from it \
         for {} s",
        LEASE.as_secs()
    )
}

fn take(tap: &Tap, number: u64) -> Result<Value, String> {
    let taken = tap.take(number, TAKEN_MAX).ok_or_else(|| gone(number))?;
    let Taken {
        records,
        left,
        counts,
        on,
    } = taken;
    Ok(json!({ "record": {
        "number": number,
        "state": if on { "on" } else { "stopped" },
        "requests": to_text(&records),
        "left": left,
        "recorded": counts.noted,
        "dropped": counts.dropped,
        "flushes_and_extents": counts.others,
    }}))
}
