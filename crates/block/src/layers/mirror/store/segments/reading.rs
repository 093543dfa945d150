//! Reads of virtual addresses: what lies together on the device is read with one request.
//!
//! A disk loses a rotation between two reads with a gap between them, and content that was appended
//! in the order of the volume has descriptions in between. So it is read through small gaps.

use bimetal_rt::Payload;
use futures_util::future::try_join_all;

use super::{Place, Segments, VIRTUAL_START, runs};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::media::null::zero_payload;
use crate::request::{IoResult, Reply, Request};

/// Maximum number of blocks between two runs that a disk reads with one request.
const GAP_BLOCKS_MAX: u64 = 16;

/// A run of blocks that are nowhere, or lost, or lie one behind the other: where the first one is,
/// and their number.
type Run = (Place, u64);

impl Segments {
    /// Reads a range of virtual addresses.
    ///
    /// # Errors
    /// Errors of the device; `Corrupt` when the place of a block is lost.
    pub(super) async fn read(&self, request: &Request) -> IoResult {
        let first = (request.offset - VIRTUAL_START) / BLOCK_BYTES;
        let blocks = first..first + request.len / BLOCK_BYTES;
        let segment_blocks = self.layout.segment_blocks() as u32;
        let known = self.know(blocks.clone()).await?;
        let found = runs(&self.places.borrow(), blocks, segment_blocks);
        let _pins = self.pin(&found);
        drop(known);
        let parts = self.read_as_one(&found).into_iter();
        let parts = parts.map(|part| self.read_part(part, request));
        let mut data = Payload::empty();
        for part in try_join_all(parts).await? {
            data.append(part);
        }
        Ok(Reply::Data(data))
    }

    /// Divides runs, given in the order of the volume, into parts that are read with one request
    /// each.
    fn read_as_one<'r>(&self, found: &'r [Run]) -> Vec<&'r [Run]> {
        let geometry = self.device.geometry();
        let blocks_max = u64::from(geometry.transfer_bytes_max) / BLOCK_BYTES;
        let mut parts = Vec::new();
        let mut left = found;
        while let Some(((place, blocks), _)) = left.split_first() {
            let mut count = 1;
            if let (Place::At(first), true) = (place, geometry.rotational) {
                let first = u64::from(*first);
                let mut end = first + blocks;
                while let Some((Place::At(at), blocks)) = left.get(count)
                    && u64::from(*at)
                        .checked_sub(end)
                        .is_some_and(|gap| gap <= GAP_BLOCKS_MAX)
                    && u64::from(*at) + blocks - first <= blocks_max
                {
                    end = u64::from(*at) + blocks;
                    count += 1;
                }
            }
            let (part, rest) = left.split_at(count);
            parts.push(part);
            left = rest;
        }
        parts
    }

    /// Reads a part. If a block in it cannot be read, it is possibly one of a gap, so that each run
    /// is read by itself.
    async fn read_part(&self, part: &[Run], request: &Request) -> Result<Payload, IoError> {
        let ((place, blocks), last) = (part[0], part[part.len() - 1]);
        match (place, last) {
            (Place::At(first), (Place::At(at), of_last)) => {
                let bytes = (u64::from(at - first) + of_last) * BLOCK_BYTES;
                let read = Request::read(self.offset_at(first), bytes);
                match self.device.submit(read.from_origin(request.origin)).await {
                    Ok(reply) => Ok(without_gaps(part, first, &reply.into_data())),
                    Err(error) if error.is_of_a_block() && part.len() > 1 => {
                        let runs = part.chunks(1);
                        let each = runs.map(|run| Box::pin(self.read_part(run, request)));
                        let mut data = Payload::empty();
                        for run in try_join_all(each).await? {
                            data.append(run);
                        }
                        Ok(data)
                    }
                    Err(error) => Err(error),
                }
            }
            // A page of checksums that reads as zeroes is recognised as damaged.
            (Place::Lost, _) if request.offset - VIRTUAL_START >= self.pages_bytes => {
                Err(IoError::Corrupt)
            }
            _ => Ok(zero_payload(&self.zeroes, blocks * BLOCK_BYTES)),
        }
    }
}

/// Returns the content of the runs of a part, of which all was read from the block `first` on.
fn without_gaps(part: &[Run], first: u32, read: &Payload) -> Payload {
    if part.len() == 1 {
        return read.clone();
    }
    let mut data = Payload::empty();
    for (place, blocks) in part {
        let Place::At(at) = place else {
            unreachable!("runs that are read together have places");
        };
        let start = u64::from(at - first) * BLOCK_BYTES;
        let end = start + blocks * BLOCK_BYTES;
        data.append(read.slice(start as usize..end as usize));
    }
    data
}
