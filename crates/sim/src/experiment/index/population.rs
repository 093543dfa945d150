//! The present and absent keys of the index, in a hot and a cold part, and the random operations on
//! these keys.

use bimetal_rt::Rng;

use super::setting::{KeyForm, Setting};

/// Length in bytes of a record in the imaginary file to which the values of the index point.
const RECORD_BYTES: u64 = 100;

/// Operation on the index, with the number of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Search for a present key.
    Search(u64),
    /// Insertion of an absent key.
    Insert(u64),
    /// Deletion of a present key.
    Delete(u64),
}

/// Keys, identified by numbers. Keys with even numbers are present at the beginning.
#[derive(Debug)]
pub(super) struct Population {
    form: KeyForm,
    numbers: u64,
    hot_share: f64,
    hot: Part,
    cold: Part,
}

#[derive(Debug, Default)]
struct Part {
    present: Vec<u64>,
    absent: Vec<u64>,
}

impl Part {
    fn of(numbers: std::ops::Range<u64>) -> Part {
        let (present, absent) = numbers.partition(|number| number % 2 == 0);
        Part { present, absent }
    }

    /// Moves a random element of `from` to `to`, and returns the element; `None` if `from` is
    /// empty.
    fn pass(from: &mut Vec<u64>, to: &mut Vec<u64>, rng: &mut Rng) -> Option<u64> {
        let count = from.len() as u64;
        (count > 0).then(|| {
            let number = from.swap_remove(rng.below(count) as usize);
            to.push(number);
            number
        })
    }

    fn insert(&mut self, rng: &mut Rng) -> Option<Asked> {
        Part::pass(&mut self.absent, &mut self.present, rng).map(Asked::Insert)
    }

    fn delete(&mut self, rng: &mut Rng) -> Option<Asked> {
        Part::pass(&mut self.present, &mut self.absent, rng).map(Asked::Delete)
    }
}

/// Returns a hash of the number that looks random, computed with the finaliser of MurmurHash3.
fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    mixed ^ (mixed >> 33)
}

impl Population {
    pub(super) fn new(setting: &Setting) -> Population {
        let numbers = setting.keys * 2;
        let border = (numbers as f64 * setting.hot_share) as u64;
        Population {
            form: setting.key_form,
            numbers,
            hot_share: setting.hot_share,
            hot: Part::of(0..border),
            cold: Part::of(border..numbers),
        }
    }

    /// Returns the key with the number `number`. Keys are in the same order as their numbers.
    pub(super) fn key(&self, number: u64) -> [u8; 8] {
        let key = match self.form {
            KeyForm::Dense => number,
            KeyForm::Spread => {
                let gap = u64::MAX / self.numbers;
                number * gap + scattered(number) % gap
            }
        };
        key.to_be_bytes()
    }

    /// Returns the value of the key with a number. The value is the offset of a record in an
    /// imaginary file.
    pub(super) fn value(&self, number: u64) -> [u8; 8] {
        let record = scattered(!number) % self.numbers;
        (record * RECORD_BYTES).to_le_bytes()
    }

    /// Returns the numbers of the keys that are present at the beginning, in ascending order.
    pub(super) fn loaded(&self) -> impl Iterator<Item = u64> {
        (0..self.numbers).step_by(2)
    }

    /// Draws a search for a random present key. Returns `None` if no key is present.
    pub(super) fn search(&self, rng: &mut Rng) -> Option<Asked> {
        let hot = self.hot.present.len() as u64;
        let all = hot + self.cold.present.len() as u64;
        (all > 0).then(|| {
            let at = rng.below(all);
            let number = match at.checked_sub(hot) {
                None => self.hot.present[at as usize],
                Some(at) => self.cold.present[at as usize],
            };
            Asked::Search(number)
        })
    }

    /// Draws an insertion or a deletion, with equal chances. Returns `None` if the hot or cold part
    /// that was drawn has no suitable key left.
    pub(super) fn update(&mut self, rng: &mut Rng) -> Option<Asked> {
        let is_hot = rng.chance(1.0 - self.hot_share);
        let part = if is_hot {
            &mut self.hot
        } else {
            &mut self.cold
        };
        if rng.chance(0.5) {
            part.insert(rng)
        } else {
            part.delete(rng)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn population(form: KeyForm) -> Population {
        Population::new(&Setting {
            keys: 3000,
            key_form: form,
            ..Setting::default()
        })
    }

    #[test]
    fn keys_of_either_form_are_in_the_order_of_their_numbers() {
        for form in [KeyForm::Dense, KeyForm::Spread] {
            let population = population(form);
            let keys: Vec<_> = (0..6000).map(|number| population.key(number)).collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "{form:?}");
        }
    }

    #[test]
    fn two_thirds_of_the_updates_are_in_the_lower_third_and_keys_stay_about_as_many() {
        let mut population = population(KeyForm::Dense);
        let mut rng = Rng::new(1);
        let (mut hot, mut balance) = (0, 0i64);
        for _ in 0..30_000 {
            let (number, change) = match population.update(&mut rng).unwrap() {
                Asked::Insert(number) => (number, 1),
                Asked::Delete(number) => (number, -1),
                Asked::Search(_) => panic!("no update"),
            };
            hot += u64::from(number < 2000);
            balance += change;
        }
        // The number of hot updates is binomial(30,000, 2/3), with a standard deviation of 82. The
        // balance (insertions minus deletions) has a standard deviation of 173.
        assert!(hot.abs_diff(20_000) < 500, "{hot}");
        assert!(balance.abs() < 1000, "{balance}");
        assert_eq!(
            population.hot.present.len() + population.hot.absent.len(),
            2000
        );
    }
}
