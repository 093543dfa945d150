//! Entry points of the fuzzers in `fuzz/`: one function for each end of each protocol.
//!
//! The functions are built with the feature `fuzzing`, and for the tests of this crate, which run
//! them over seeded random bytes; no program contains them. Each function returns normally if the
//! code under test behaves correctly. It panics on an error: a panic of a codec, memory beyond its
//! bound, acceptance of an invalid request, a connection that continues after an error, or a stream
//! whose meaning depends on its fragmentation. The functions must never narrow the fuzzer's input:
//! every choice comes from the bytes.

mod brp;
mod nbd;
#[cfg(test)]
mod tests;

pub use brp::{brp_initiator, brp_target};
pub use nbd::{nbd_client, nbd_server};

/// Input of a fuzzer. Every choice of the fuzzer is made from the next bytes of the input. After
/// the last byte, every choice reads zeroes.
struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn new(rest: &'a [u8]) -> Input<'a> {
        Input { rest }
    }

    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((first, rest)) => {
                self.rest = rest;
                *first
            }
            None => 0,
        }
    }

    /// Returns a number below `limit`, which is at most 256.
    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    fn number32(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a number that is small, a multiple of a block, close to overflow, or arbitrary.
    fn any_number(&mut self) -> u64 {
        match self.below(4) {
            0 => u64::from(self.byte()),
            1 => u64::from(self.byte()) << 12,
            2 => u64::MAX - u64::from(self.byte()),
            _ => u64::from(self.number32()) << 32 | u64::from(self.number32()),
        }
    }

    /// Returns the next `len` bytes of the input, or all remaining bytes if there are fewer.
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}

/// Feeds `stream` to `step` in fragments of `fragment_bytes`. `step` gets the bytes that have
/// arrived and that it has not consumed. It returns the number of bytes that it consumes, or `None`
/// if it needs more bytes. An error of `step` ends the stream.
fn in_fragments<E>(
    stream: &[u8],
    fragment_bytes: usize,
    mut step: impl FnMut(&[u8]) -> Result<Option<usize>, E>,
) -> Result<(), E> {
    let (mut start, mut end) = (0, 0);
    loop {
        match step(&stream[start..end])? {
            Some(taken) => {
                assert!(taken <= end - start, "more was taken than there was");
                start += taken;
            }
            None if end == stream.len() => return Ok(()),
            None => end = stream.len().min(end + fragment_bytes),
        }
    }
}
