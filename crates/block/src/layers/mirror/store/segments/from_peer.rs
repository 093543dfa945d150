//! What cleaning reads from another side, so that a disk need not seek for the content that it
//! moves.

use std::ops::Range;

use bimetal_rt::Payload;
use futures_util::stream::{self, StreamExt};

use super::Segments;
use super::clean::{Live, REQUEST_BYTES_MAX};
use crate::BLOCK_BYTES;
use crate::device::LocalFuture;

/// Maximum number of requests in flight to another side.
const ASKED_MAX: usize = 32;

/// Content of a range of the volume as another side has it.
pub(in super::super) struct FromPeer {
    pub(in super::super) data: Payload,
    /// Blocks of the volume whose content on this side differs.
    pub(in super::super) differing: Vec<Range<u64>>,
}

/// Function that reads a range of the volume from another side; its result is `None` when the other
/// side does not supply it. The digests of the content that this side has there are given if they
/// are known.
pub(in super::super) type AskPeer<'a> =
    dyn Fn(Range<u64>, Option<Vec<u32>>) -> LocalFuture<'a, Option<FromPeer>> + 'a;

/// Content of live blocks that another side supplied, and the live blocks that are left.
type Supplied = (Vec<(Live, Payload)>, Vec<Live>);

impl Segments {
    /// Reads live blocks of the volume from another side. Returns the content that it supplied, and
    /// the blocks that are left, in the order of the segments.
    pub(in super::super) async fn read_from(
        &self,
        peer: &AskPeer<'_>,
        mut live: Vec<Live>,
    ) -> Supplied {
        live.sort_unstable_by_key(|live| live.block);
        let blocks_max = (REQUEST_BYTES_MAX / BLOCK_BYTES) as usize;
        let runs = live.chunk_by(|a, b| a.block + 1 == b.block);
        let runs = runs.flat_map(|run| run.chunks(blocks_max));
        let asked = runs.map(|run| self.read_run_from(peer, run));
        let mut asked = stream::iter(asked).buffer_unordered(ASKED_MAX);
        let (mut content, mut left) = (Vec::with_capacity(live.len()), Vec::new());
        while let Some((found, missing)) = asked.next().await {
            content.extend(found);
            left.extend(missing);
        }
        left.sort_unstable();
        (content, left)
    }

    /// Reads live blocks that are adjacent in the volume from another side. Returns the content
    /// that it supplied, and the blocks that are left. A block of a run that is newer on one of the
    /// sides must not keep the others from being supplied: this side would seek for them.
    fn read_run_from<'a>(
        &'a self,
        peer: &'a AskPeer<'_>,
        run: &'a [Live],
    ) -> LocalFuture<'a, Supplied> {
        Box::pin(async move {
            let first = run[0].block - self.pages_bytes / BLOCK_BYTES;
            let range = first * BLOCK_BYTES..(first + run.len() as u64) * BLOCK_BYTES;
            let digests = run.iter().map(|live| live.digest).collect();
            if let Some(FromPeer { data, differing }) = peer(range, digests).await {
                let differs = |(index, _): &(u64, _)| {
                    let block = first + index;
                    differing.iter().any(|blocks| blocks.contains(&block))
                };
                let blocks = (0..).zip(each_block(run, &data));
                let (left, content): (Vec<_>, Vec<_>) = blocks.partition(differs);
                let content = content.into_iter().map(|(_, block)| block).collect();
                let left = left.into_iter().map(|(_, (live, _))| live).collect();
                return (content, left);
            }
            if run.len() == 1 {
                return (Vec::new(), run.to_vec());
            }
            let (one, other) = run.split_at(run.len() / 2);
            let (mut content, mut left) = self.read_run_from(peer, one).await;
            let (more, missing) = self.read_run_from(peer, other).await;
            content.extend(more);
            left.extend(missing);
            (content, left)
        })
    }
}

fn each_block(run: &[Live], data: &Payload) -> Vec<(Live, Payload)> {
    let block = |(index, live): (usize, &Live)| {
        let start = index * BLOCK_BYTES as usize;
        (*live, data.slice(start..start + BLOCK_BYTES as usize))
    };
    run.iter().enumerate().map(block).collect()
}
