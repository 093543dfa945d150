//! The sweep changes one parameter at a time, to find the parameters that affect the gains.

use serde::Serialize;

use super::comparison::{Comparison, Extent, Gain, compare};
use super::life::LifeError;
use super::scheme::{Area, Scheme};
use super::setting::{KeyForm, Setting};

/// One setting, and the gains of the CHC-Tree with that setting.
#[derive(Clone, Debug, Serialize)]
pub struct SweepPoint {
    /// The setting.
    pub setting: Setting,
    /// Gains of the paper's tree over each of the other schemes.
    pub gains: Vec<Gain>,
}

/// Returns the settings of the sweep: the base setting, and variants with one change each.
pub fn settings(base: &Setting) -> Vec<Setting> {
    let changed = |name: &str, change: fn(&mut Setting)| {
        let mut setting = base.clone();
        name.clone_into(&mut setting.name);
        change(&mut setting);
        setting
    };
    vec![
        base.clone(),
        changed("nodes of 8 KiB", |s| s.node_bytes = 8 << 10),
        changed("nodes of 16 KiB", |s| s.node_bytes = 16 << 10),
        changed("segments of 64 KiB", |s| s.segment_bytes = 64 << 10),
        changed("segments of 256 KiB", |s| s.segment_bytes = 256 << 10),
        changed("segments of 512 KiB", |s| s.segment_bytes = 512 << 10),
        changed("60,000 keys", |s| s.keys = 60_000),
        changed("250,000 keys", |s| s.keys = 250_000),
        changed("60 % in use", |s| s.utilisation = 0.6),
        changed("75 % in use", |s| s.utilisation = 0.75),
        changed("90 % in use", |s| s.utilisation = 0.9),
        changed("a fifth hot", |s| s.hot_share = 0.2),
        changed("a half hot", |s| s.hot_share = 0.5),
        changed("keys all over 64 bits", |s| s.key_form = KeyForm::Spread),
        changed("8 clients", |s| s.clients = 8),
        changed("128 clients", |s| s.clients = 128),
    ]
}

/// Runs the schemes of the paper with every setting, all with the same amount of flash. After each
/// setting, calls `progress` with the number of finished settings and the number of all settings.
///
/// # Errors
/// [`LifeError`].
pub fn sweep(
    base: &Setting,
    seeds: u64,
    progress: impl Fn(u64, u64) + Sync,
) -> Result<Vec<SweepPoint>, LifeError> {
    let extent = Extent {
        schemes: vec![Scheme::Chctr, Scheme::BtrN, Scheme::BtrF],
        areas: vec![Area::Same],
        first_seed: 1,
        seeds,
    };
    let settings = settings(base);
    let count = settings.len() as u64;
    let mut points = Vec::new();
    for (number, setting) in settings.into_iter().enumerate() {
        let comparison: Comparison = compare(&setting, &extent, |_, _| {})?;
        points.push(SweepPoint {
            gains: comparison.gains(),
            setting,
        });
        progress(number as u64 + 1, count);
    }
    Ok(points)
}
