//! Helper functions that rebuild a damaged index and inspect the result.

use super::{Disk, Map, collect};
use bimetal_index::storage::Storage;
use bimetal_index::{Db, Error, Loss, Lost, Options, Rebuilt, rebuild};
use std::ops::{Bound, Range};

/// Returns all keys and values of an index.
pub fn map_of(db: &Db) -> Map {
    let pairs = collect(&mut db.scan((Bound::Unbounded, Bound::Unbounded)));
    pairs.expect("a scan").into_iter().collect()
}

/// Rebuilds the index on `disk`. Returns the report of the rebuild, and the content of the new
/// index.
pub fn built_anew(disk: &dyn Storage, options: &Options) -> Result<(Rebuilt, Map), Error> {
    let made = Disk::default();
    let rebuilt = rebuild(disk, None, made.clone(), 8, options, &mut |_, _, _| {})?;
    let whole = bimetal_index::verify(&made, &mut |_, _| {})?;
    assert_eq!(whole.problems, [], "what was made is whole");
    let db = Db::open(made, options)?;
    Ok((rebuilt, map_of(&db)))
}

/// Returns the loss that is listed for a key.
pub fn is_in(lost: &[Lost], key: &[u8]) -> Option<Loss> {
    let mut of_key = lost
        .iter()
        .filter(|lost| &lost.from[..] <= key && lost.to.as_deref().is_none_or(|to| key < to));
    of_key.next().map(|lost| lost.loss)
}

/// Finds the images of nodes, whether they are live or not. Returns the offset and the length of
/// each image.
pub fn images(content: &[u8]) -> Vec<(usize, usize)> {
    let magic = content.windows(4).enumerate().step_by(64);
    let starts = magic.skip(1).map(|(at, _)| at);
    starts
        .filter(|at| at + 64 < content.len() && &content[at + 4..at + 8] == b"bmIN")
        .map(|at| {
            let len = u32::from_le_bytes(content[at + 12..at + 16].try_into().expect("4 bytes"));
            (at, len as usize)
        })
        .collect()
}

/// Returns the range of seeds in the environment variable `BIMETAL_REBUILDS`, such as `1000..2000`,
/// or `usual` if the variable is not set.
pub fn seeds_or(usual: Range<u64>) -> Range<u64> {
    let seeds = std::env::var("BIMETAL_REBUILDS").ok();
    let seeds = seeds.as_deref().and_then(|seeds| {
        let (from, to) = seeds.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    seeds.unwrap_or(usual)
}
