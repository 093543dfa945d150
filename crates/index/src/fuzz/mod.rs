//! Entry points of the fuzzers in `fuzz/`: one function for each kind of bytes that the index
//! reads, and one that turns bytes into a history of operations.
//!
//! The module is built for the tests of this crate, which run the same functions over bytes from
//! seeds, and with the feature `fuzzing`; no program contains it. Each function accepts any bytes,
//! and panics only if the engine has panicked or has given a wrong answer. A function must never
//! reduce the inputs that the fuzzer can reach: every choice comes from the bytes.

mod forge;
mod node;
mod operations;
#[cfg(test)]
mod tests;

pub use forge::{content, log, superblock};
pub use node::node;
pub use operations::operations;

/// Bytes that determine choices, one after the other; zeroes follow the last byte.
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

    fn number16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn number64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a number that is small, close to overflow, or arbitrary.
    fn any_number(&mut self) -> u64 {
        match self.below(4) {
            0 | 1 => u64::from(self.byte()),
            2 => u64::MAX - u64::from(self.byte()),
            _ => self.number64(),
        }
    }

    /// Takes `len` bytes, or the rest if there are fewer.
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}
