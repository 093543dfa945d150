//! Filter that reports whether a delta may contain a key. Most gets ask for a key that the delta
//! does not contain. The filter answers such gets from one cache line, where a search would access
//! several.
//!
//! It is a Bloom filter (Bloom, CACM 13(7), 1970) of 256 bits and two hashes. Its false positive
//! rate is about one in thirty with 24 changes and one in eight with 58. It must never give a false
//! negative.

use super::column::head;

const WORDS: usize = 4;

/// Bloom filter over the keys of a delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Filter([u64; WORDS]);

/// Returns the positions of the two bits of a key, computed from all bytes of the key.
#[inline]
fn places(key: &[u8]) -> [usize; 2] {
    let mix = |hash: u64, word: u64| {
        let product = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        product ^ (product >> 32)
    };
    let (words, rest) = key.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let hash = mix(words.fold(key.len() as u64, mix), head(rest));
    [hash & 0xFF, hash >> 8 & 0xFF].map(|place| place as usize)
}

impl Filter {
    /// Adds a key.
    pub fn add(&mut self, key: &[u8]) {
        for place in places(key) {
            self.0[place / 64] |= 1 << (place % 64);
        }
    }

    /// Returns false only if the key has not been added.
    #[inline]
    pub fn may_have(&self, key: &[u8]) -> bool {
        let [one, other] = places(key).map(|place| self.0[place / 64] >> (place % 64));
        one & other & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_added_may_be_there(keys in vec(vec(any::<u8>(), 0..24), 0..200)) {
            let mut filter = Filter::default();
            keys.iter().for_each(|key| filter.add(key));
            prop_assert!(keys.iter().all(|key| filter.may_have(key)));
        }
    }

    /// With n keys, k hashes and m bits the false positive rate should be (1 - e^(-kn/m))^k: 0.029
    /// for 24 keys, 0.133 for 58.
    #[test]
    fn it_is_wrong_as_seldom_as_it_says() {
        let shapes: [fn(u64) -> Vec<u8>; 3] = [
            |id| id.to_be_bytes().to_vec(),
            |id| format!("customer/{id:08}/address").into_bytes(),
            |id| {
                [
                    &id.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[..],
                    &id.to_be_bytes(),
                ]
                .concat()
            },
        ];
        for (nth, key) in shapes.iter().enumerate() {
            for (added, expected) in [(24, 0.029), (58, 0.133)] {
                let (mut wrong, mut asked) = (0, 0);
                for group in 0..400 {
                    let first = group * 1_000;
                    let mut filter = Filter::default();
                    (first..first + added).for_each(|id| filter.add(&key(id)));
                    asked += 100;
                    let others = first + added..first + added + 100;
                    wrong += others.filter(|id| filter.may_have(&key(*id))).count();
                }
                let rate = wrong as f64 / f64::from(asked);
                assert!(rate < 1.25 * expected, "shape {nth}, {added} keys: {rate}");
            }
        }
    }
}
