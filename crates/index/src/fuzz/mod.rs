//! What the fuzzers of `fuzz/` give their bytes to: one function for each kind of bytes that the
//! index reads, and one that makes a history of operations of them.
//!
//! Built for the tests of this crate, which run the same functions over bytes from seeds, and with
//! the feature `fuzzing`; no program has it. Each function returns whatever the bytes are, or
//! panics because something is wrong: a panic of the engine, or an answer that is not what it
//! should be. It must never make fewer inputs of what the fuzzer gives: every choice comes from the
//! bytes.

mod forge;
mod node;
mod operations;
#[cfg(test)]
mod tests;

pub use forge::{content, log, superblock};
pub use node::node;
pub use operations::operations;

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

    fn number16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn number64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number that is small, about to overflow, or any.
    fn any_number(&mut self) -> u64 {
        match self.below(4) {
            0 | 1 => u64::from(self.byte()),
            2 => u64::MAX - u64::from(self.byte()),
            _ => self.number64(),
        }
    }

    /// So many bytes, or as many as there are.
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}
