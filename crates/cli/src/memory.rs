//! The memory of a server: what it reserves before it is ready, and how its buffers grow.
//!
//! What is reserved suffices to serve the machine itself while that machine is short of memory. So
//! it must not be less than what the admitted requests and the exposure may need, which the pool
//! tells them ([`bimetal_rt::BufPool::deferred_share`]), and the heap must have room for each
//! change that the logs can hold.

use anyhow::{Context, Result};
use bimetal_block::Statistic;
use bimetal_block::graph::{Node, Stack};
use bimetal_rt::Rt;
use bimetal_rt::growth::Growth;

use crate::config::Config;

/// Heap memory of a server without a mirror.
const HEAP_BYTES: u64 = 4 << 20;
/// Heap memory for a change in the log of a side, which has at least one block.
const CHANGE_BYTES: u64 = 300;
/// Size of the blocks of a change.
const BLOCK_BYTES: u64 = bimetal_block::BLOCK_BYTES;
/// The size of a volume divided by this number is the memory for the map of a logged side.
const MAP_DIVISOR: u64 = 512;
/// The size of a volume divided by this number is the memory for the live blocks and the changes of
/// that map: 4 bytes for each block.
const BLOCKS_DIVISOR: u64 = 1024;
/// The buffers do not grow when the machine has less memory than this available.
const AVAILABLE_BYTES_MIN: u64 = 64 << 20;

/// What the mirrors of a stack may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Bytes that may be exposed, of all mirrors together.
    pub(crate) exposure_bytes: u64,
    /// Heap memory for the changes in their logs, and for their maps.
    pub(crate) heap_bytes: u64,
}

/// Returns what the mirrors of an open stack may need.
pub(crate) fn need(config: &Config, stack: &Stack) -> Need {
    let mut need = Need {
        exposure_bytes: 0,
        heap_bytes: HEAP_BYTES,
    };
    for (name, device) in stack.devices() {
        let Some(Node::Mirror(mirror)) = config.graph.nodes().get(name) else {
            continue;
        };
        let mut seen: Vec<(String, String, Statistic)> = Vec::new();
        device.statistics(&mut seen);
        let (mut exposure_bytes, mut logs_bytes) = (mirror.exposure.bytes.0, 0);
        for (part, statistic, value) in seen {
            let Statistic::Gauge(value) = value else {
                continue;
            };
            match (part.is_empty(), statistic.as_str()) {
                (true, "exposed_bytes_max") => exposure_bytes = exposure_bytes.min(value as u64),
                (false, "log_bytes") => logs_bytes += value as u64,
                _ => {}
            }
        }
        let size_bytes = device.geometry().size_bytes;
        let map_bytes = (size_bytes / MAP_DIVISOR).min(mirror.map_memory.0);
        let of_side = map_bytes + size_bytes / BLOCKS_DIVISOR;
        need.exposure_bytes = need.exposure_bytes.saturating_add(exposure_bytes);
        need.heap_bytes = need
            .heap_bytes
            .saturating_add(logs_bytes / BLOCK_BYTES * CHANGE_BYTES)
            .saturating_add(of_side.saturating_mul(mirror.sides.len() as u64));
    }
    need
}

/// Lets the buffers of a server grow from what is there at the start to what its configuration
/// allows. Returns `None` if they have all from the start.
///
/// # Errors
/// If there is no thread for it.
pub(crate) fn let_grow(rt: &Rt, need: Need) -> Result<Option<Growth>> {
    let pool = rt.pool();
    pool.set_deferred_bytes(need.exposure_bytes as usize);
    if pool.present_bytes() >= pool.region_bytes() {
        return Ok(None);
    }
    let growth = Growth::start(rt, is_memory_available);
    growth.map(Some).context("no thread for memory")
}

/// Returns whether the machine has memory for more buffers, without writing pages out first.
fn is_memory_available() -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // Kernels before 3.14 do not tell it.
    available_bytes(&text).is_none_or(|bytes| bytes >= AVAILABLE_BYTES_MIN)
}

/// Returns the bytes that the line `MemAvailable` of `/proc/meminfo` names.
fn available_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_a_line_of_meminfo() {
        let text = "MemTotal:  2048000 kB\nMemFree:   1000 kB\nMemAvailable:    65536 kB\n";
        assert_eq!(available_bytes(text), Some(64 << 20));
        assert_eq!(available_bytes("MemTotal: 1 kB\n"), None);
        assert_eq!(available_bytes("MemAvailable: many kB\n"), None);
    }
}
