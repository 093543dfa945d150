//! The index schemes to compare. A scheme determines the options of the engine, and the part of the
//! engine's I/O that is charged.

use bimetal_index::{Clusters, Options, PaperRules, Statistics};
use serde::{Deserialize, Serialize};

use super::setting::{FIELD_BYTES, FILL_FULL, FILL_NORMAL, Setting};

/// A number of segments that no cluster can reach. It is used to load an index before the size of
/// the area of a cluster is known.
const SEGMENTS_ANY: u32 = u32::MAX / 4;
/// Divisor of the size of the data. The quotient is the memory for buffered changes. The total
/// memory is `MEMORY_PER_BUFFER` times the memory for buffered changes.
const BUFFER_SHARE: u64 = 10;
const MEMORY_PER_BUFFER: u64 = 4;
/// Minimum of the total memory of an index, in bytes.
const MEMORY_BYTES_MIN: u64 = 1 << 20;
const LOG_BYTES: u64 = 4 << 20;
/// Node size in bytes of the engine with its own rules.
const OUR_NODE_BYTES: usize = 8 << 10;

/// Kind of index to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// The CHC-Tree of the paper.
    Chctr,
    /// A B+-tree whose nodes are loaded 69 % full.
    BtrN,
    /// A B+-tree whose nodes are loaded 97 % full.
    BtrF,
    /// The index of this project with its own rules.
    Ours,
}

/// Rule for choosing the amount of flash (the area) of each scheme of the paper. The text of the
/// paper can be read as either rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// All schemes have the same area. The ordinary B+-tree fills this area to
    /// [`Setting::utilisation`].
    Same,
    /// Each scheme has an area of its own. The nodes of the scheme fill this area to
    /// [`Setting::utilisation`].
    Own,
}

impl Area {
    /// Both rules.
    pub const ALL: [Area; 2] = [Area::Same, Area::Own];

    /// Returns the name of the rule.
    pub fn name(self) -> &'static str {
        match self {
            Area::Same => "same",
            Area::Own => "own",
        }
    }
}

fn segments(bytes: f64, setting: &Setting) -> u32 {
    (bytes / setting.utilisation / f64::from(setting.segment_bytes)).ceil() as u32
}

/// Returns the number of segments in the area of [`Area::Same`].
fn same_segments(setting: &Setting) -> u32 {
    let row_bytes = 2 * FIELD_BYTES as usize;
    let rows = ((setting.node_bytes - bimetal_index::node::HEADER_BYTES) / row_bytes) as f64;
    let leaves = setting.keys as f64 / (rows * FILL_NORMAL);
    segments(leaves * setting.node_bytes as f64, setting)
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 4] = [Scheme::Chctr, Scheme::BtrN, Scheme::BtrF, Scheme::Ours];

    /// Returns the name of the scheme. For a scheme of the paper, this is the name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Chctr => "CHCTR",
            Scheme::BtrN => "BTR_N",
            Scheme::BtrF => "BTR_F",
            Scheme::Ours => "ours",
        }
    }

    /// Returns true for the schemes of the CHC-Tree paper. Their log and checkpoints are not
    /// charged, and their area has a fixed size.
    pub(super) fn is_papers(self) -> bool {
        self != Scheme::Ours
    }

    /// Returns the options of the engine while the index is loaded.
    pub(super) fn to_load(self, setting: &Setting) -> Options {
        self.options(setting, SEGMENTS_ANY, SEGMENTS_ANY)
    }

    /// Returns the options with which the engine runs after loading. The size of the area depends
    /// on `loaded`, the statistics after loading.
    pub(super) fn to_run(self, setting: &Setting, area: Area, loaded: &Statistics) -> Options {
        let live = loaded.space.live_bytes as f64;
        let (hot, cold) = match (self, area) {
            (Scheme::Chctr, Area::Same) => {
                let all = same_segments(setting);
                let hot = (f64::from(all) * setting.hot_share).round() as u32;
                (hot, all - hot)
            }
            (Scheme::Chctr, Area::Own) => {
                let plain = f64::from(loaded.nodes) * setting.node_bytes as f64;
                (
                    segments(plain * setting.hot_share, setting),
                    segments(live * (1.0 - setting.hot_share), setting),
                )
            }
            (_, Area::Same) => (0, same_segments(setting)),
            (_, Area::Own) => (0, segments(live, setting)),
        };
        self.options(setting, hot, cold)
    }

    fn options(self, setting: &Setting, hot_segments: u32, cold_segments: u32) -> Options {
        let one = |fill| {
            let clusters = Clusters::One {
                segments: cold_segments,
            };
            Some(PaperRules { clusters, fill })
        };
        let clusters = Clusters::HotAndCold {
            hot_segments,
            cold_segments,
        };
        let fill = FILL_NORMAL;
        let paper = match self {
            Scheme::Chctr => Some(PaperRules { clusters, fill }),
            Scheme::BtrN => one(FILL_NORMAL),
            Scheme::BtrF => one(FILL_FULL),
            Scheme::Ours => None,
        };
        let common = Options {
            segment_bytes: setting.segment_bytes,
            log_bytes: LOG_BYTES,
            utilisation: setting.utilisation,
            hot_share: setting.hot_share,
            paper,
            ..Options::default()
        };
        if self.is_papers() {
            return Options {
                node_bytes: setting.node_bytes,
                ..common
            };
        }
        let buffer_bytes = setting.keys * 2 * FIELD_BYTES / BUFFER_SHARE;
        Options {
            node_bytes: OUR_NODE_BYTES,
            buffer_bytes,
            memory_bytes: (buffer_bytes * MEMORY_PER_BUFFER).max(MEMORY_BYTES_MIN),
            ..common
        }
    }

    /// Returns the number of segments in all clusters of a scheme of the paper; `None` for the
    /// index with its own rules.
    pub(super) fn area_segments(options: &Options) -> Option<u32> {
        options.paper.map(|rules| match rules.clusters {
            Clusters::One { segments } => segments,
            Clusters::HotAndCold {
                hot_segments,
                cold_segments,
            } => hot_segments + cold_segments,
        })
    }
}
