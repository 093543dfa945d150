//! Table of the requests that have not ended, which finds a request by its tag in constant time.

/// Maximum number of requests in the table.
pub(super) const REQUESTS_MAX: usize = 4096;
/// Number of bits of a tag that hold the index of the request's slot. The remaining bits hold a
/// number that is incremented with each use of the slot, so that a tag is not reused soon.
const PLACE_BITS: u32 = 12;
const _: () = assert!(1 << PLACE_BITS == REQUESTS_MAX);

/// Entries by tag.
#[derive(Debug)]
pub(super) struct Table<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table {
            places: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == REQUESTS_MAX
    }

    /// Inserts the entry that `make` creates for a new tag, and returns the tag.
    ///
    /// # Panics
    /// If the table is full.
    pub(super) fn insert(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            assert!(self.places.len() < REQUESTS_MAX, "the table has a bound");
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let (uses, entry) = &mut self.places[place as usize];
        let tag = *uses << PLACE_BITS | place;
        *entry = Some(make(tag));
        self.len += 1;
        tag
    }

    pub(super) fn get(&self, tag: u32) -> Option<&T> {
        let place = tag as usize % REQUESTS_MAX;
        let (uses, entry) = self.places.get(place)?;
        entry.as_ref().filter(|_| *uses == tag >> PLACE_BITS)
    }

    pub(super) fn get_mut(&mut self, tag: u32) -> Option<&mut T> {
        let place = tag as usize % REQUESTS_MAX;
        let (uses, entry) = self.places.get_mut(place)?;
        entry.as_mut().filter(|_| *uses == tag >> PLACE_BITS)
    }

    pub(super) fn remove(&mut self, tag: u32) -> Option<T> {
        self.get(tag)?;
        let place = tag as usize % REQUESTS_MAX;
        let (uses, entry) = &mut self.places[place];
        *uses = (*uses + 1) & (u32::MAX >> PLACE_BITS);
        self.free.push(place as u32);
        self.len -= 1;
        entry.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|(_, entry)| entry.as_ref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let entries = self.places.iter_mut();
        entries.filter_map(|(_, entry)| entry.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_finds_its_request_and_no_later_one_in_the_same_place() {
        let mut table = Table::new();
        let first = table.insert(|tag| tag);
        let second = table.insert(|tag| tag);
        assert_ne!(first, second);
        assert_eq!(table.remove(first), Some(first));
        let third = table.insert(|tag| tag);
        assert_eq!(third % REQUESTS_MAX as u32, first % REQUESTS_MAX as u32);
        assert_eq!((table.get(first), table.get(third)), (None, Some(&third)));
        assert_eq!((table.remove(first), table.len()), (None, 2));
    }
}
