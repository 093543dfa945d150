//! Adapter of the benchmark to this project's engine, `bimetal-index`.

use super::{Durability, Engine, Reader, Seen, Setting};
use crate::record::Changes;
use anyhow::Result;
use bimetal_index::{Batch, Db, Options, Snapshot};
use serde_json::{Value, json};
use std::ops::Bound;
use std::path::Path;

/// Minimum size of the log in bytes. If the log were shorter than the write buffer, the log would
/// be overwritten several times before the buffer is full.
const LOG_BYTES_MIN: u64 = 256 << 20;

pub struct Ours {
    db: Db,
}

impl Ours {
    pub fn open(folder: &Path, setting: &Setting) -> Result<Ours> {
        let options = Options {
            memory_bytes: setting.cache_bytes,
            buffer_bytes: setting.buffer_bytes,
            node_bytes: setting.node_bytes,
            log_bytes: LOG_BYTES_MIN
                .max(2 * setting.buffer_bytes)
                .next_multiple_of(1 << 20),
            ..Options::default()
        };
        let db = Db::open_path(&folder.join("index"), &options)?;
        Ok(Ours { db })
    }
}

impl Engine for Ours {
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in changes.iter() {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        let durability = match durability {
            Durability::Durable => bimetal_index::Durability::Durable,
            Durability::Relaxed => bimetal_index::Durability::Relaxed,
        };
        Ok(self.db.write(&batch, durability)?)
    }

    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        let mut snapshot = self.db.snapshot();
        look(&mut snapshot)
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        Ok(self.db.get_into(key, out)?)
    }

    fn write_back(&self) -> Result<()> {
        Ok(self.db.write_back()?)
    }

    fn statistics(&self) -> Result<Value> {
        let statistics = self.db.statistics();
        let segment_bytes = u64::from(statistics.space.segment_bytes);
        Ok(json!({
            "log_bytes": self.db.statistics().log_bytes,
            "reserve_bytes": u64::from(statistics.space.free_segments) * segment_bytes,
            "segments_bytes": u64::from(statistics.space.segments) * segment_bytes,
            "live_bytes": statistics.space.live_bytes,
            "delta_bytes": statistics.delta_bytes,
            "content_bytes": statistics.content_bytes,
            "image_reads": statistics.image_reads,
            "segment_written_bytes": statistics.segment_written_bytes,
            "consolidations": statistics.maintenance.consolidations,
            "patches": statistics.maintenance.patches,
            "moved_bytes": statistics.maintenance.moved_bytes,
            "checkpoint_bytes": statistics.maintenance.checkpoint_bytes,
            "relogged": statistics.maintenance.relogged,
            "checkpoints": statistics.maintenance.checkpoints,
            "cleaned_segments": statistics.maintenance.cleaned_segments,
        }))
    }
}

impl Reader for Snapshot {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        Ok(self.get_into(key, out)?)
    }

    fn scan(&mut self, from: &[u8], rows: usize, seen: &mut Seen) -> Result<usize> {
        let mut scan = Snapshot::scan(self, (Bound::Included(from), Bound::Unbounded));
        for row in 0..rows {
            let Some((key, value)) = scan.next()? else {
                return Ok(row);
            };
            seen.row(key, value);
        }
        Ok(rows)
    }
}
