//! What the fuzzers of `fuzz/` give their bytes to: one function for each end of each protocol.
//!
//! Built for the tests of this crate, which run the same functions over bytes from seeds, and with
//! the feature `fuzzing`; no program has it. Each function returns whatever the bytes are, or
//! panics because something is wrong: a panic of a codec, memory beyond its bound, a request that
//! may not pass, an end that is not for good, or a stream that means something else when it is cut
//! differently. It must never make fewer inputs of what the fuzzer gives: every choice comes from
//! the bytes.

mod brp;
mod nbd;
#[cfg(test)]
mod tests;

pub use brp::{brp_initiator, brp_target};
pub use nbd::{nbd_client, nbd_server};

/// Bytes that choices are made of, one after the other; zeroes when they are used up.
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

    /// Below `limit`, which is at most 256.
    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    fn number32(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number that is small, one of blocks, about to overflow, or any.
    fn any_number(&mut self) -> u64 {
        match self.below(4) {
            0 => u64::from(self.byte()),
            1 => u64::from(self.byte()) << 12,
            2 => u64::MAX - u64::from(self.byte()),
            _ => u64::from(self.number32()) << 32 | u64::from(self.number32()),
        }
    }

    /// So many bytes, or as many as there are.
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}

/// Feeds a stream in fragments of `fragment_bytes`. `step` looks at what is here and not taken: it
/// says how much it has taken, or `None` when it wants more, or that it is over.
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
