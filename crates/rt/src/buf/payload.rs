//! A list of buffer slices that represent one run of bytes.

use std::ops::Range;

use super::{Buf, BufPool};

/// The bytes of a request, in one slice or several. Cloning shares the memory.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    slices: Slices,
    len: usize,
}

/// Slices of a payload. A single slice, the common case, needs no allocation of a list.
#[derive(Clone, Debug, Default)]
enum Slices {
    #[default]
    None,
    One(Buf),
    Many(Vec<Buf>),
}

impl Payload {
    /// Returns a payload without bytes.
    pub fn empty() -> Payload {
        Payload::default()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true when the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slices in order.
    pub fn slices(&self) -> &[Buf] {
        match &self.slices {
            Slices::None => &[],
            Slices::One(buf) => std::slice::from_ref(buf),
            Slices::Many(bufs) => bufs,
        }
    }

    /// Appends a slice.
    pub fn push(&mut self, buf: Buf) {
        if buf.is_empty() {
            return;
        }
        self.len += buf.len();
        self.slices = match std::mem::take(&mut self.slices) {
            Slices::None => Slices::One(buf),
            Slices::One(first) => Slices::Many(vec![first, buf]),
            Slices::Many(mut bufs) => {
                bufs.push(buf);
                Slices::Many(bufs)
            }
        };
    }

    /// Appends the slices of another payload.
    pub fn append(&mut self, other: Payload) {
        match other.slices {
            Slices::None => {}
            Slices::One(buf) => self.push(buf),
            Slices::Many(bufs) => bufs.into_iter().for_each(|buf| self.push(buf)),
        }
    }

    /// Returns the part of the payload in `range`. The part shares the memory of the payload.
    pub fn slice(&self, range: Range<usize>) -> Payload {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a part fits in the whole"
        );
        let mut part = Payload::empty();
        let mut position = 0;
        for buf in self.slices() {
            let start = range.start.max(position);
            let end = range.end.min(position + buf.len());
            if start < end {
                part.push(buf.slice(start - position..end - position));
            }
            position += buf.len();
        }
        part
    }

    /// Copies the bytes to `out`.
    ///
    /// # Panics
    /// If `out` is not exactly as long as the payload.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len, "the target is as long as the payload");
        let mut position = 0;
        for buf in self.slices() {
            out[position..position + buf.len()].copy_from_slice(buf);
            position += buf.len();
        }
    }

    /// Returns the bytes in one slice: the slice itself if there is only one, otherwise a copy.
    pub fn contiguous(&self, pool: &BufPool) -> Buf {
        if let [only] = self.slices() {
            return only.clone();
        }
        let mut whole = pool.alloc_now(self.len);
        self.copy_to(&mut whole);
        whole.freeze()
    }

    /// Returns the bytes as a vector, for tests and control paths.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }
}

impl From<Buf> for Payload {
    fn from(buf: Buf) -> Payload {
        let mut payload = Payload::empty();
        payload.push(buf);
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_parts_keep_the_bytes() {
        let pool = BufPool::unregistered();
        let mut whole = Payload::empty();
        for range in [0..10u8, 10..11, 11..64] {
            whole.push(pool.copy_of(&range.collect::<Vec<_>>()));
        }
        for start in 0..64 {
            for end in start..=64 {
                let part = whole.slice(start..end);
                let expected: Vec<u8> = (start as u8..end as u8).collect();
                assert_eq!(part.to_vec(), expected);
                assert_eq!(part.contiguous(&pool).to_vec(), expected);
            }
        }
    }
}
