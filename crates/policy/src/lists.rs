//! Doubly linked lists of ids (pages, requests) that share one array of links, so that moving an id
//! between lists takes a few memory writes and no allocation.
//!
//! An id is in at most one list over the same [`Links`] at a time. The owner of the lists must know
//! which list contains an id.

/// The value for no id.
pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The neighbour towards the front.
    prev: u32,
    /// The neighbour towards the back.
    next: u32,
}

/// The links of all ids.
#[derive(Clone, Debug, Default)]
pub struct Links {
    nodes: Vec<Node>,
}

impl Links {
    /// Allocates links for ids below `ids`.
    pub fn reserve(&mut self, ids: usize) {
        grow(
            &mut self.nodes,
            ids,
            Node {
                prev: NONE,
                next: NONE,
            },
        );
    }

    /// Returns the id in front of `id`, or [`NONE`].
    pub fn prev(&self, id: u32) -> u32 {
        self.nodes[id as usize].prev
    }

    /// Returns the id behind `id`, or [`NONE`].
    pub fn next(&self, id: u32) -> u32 {
        self.nodes[id as usize].next
    }

    fn join(&mut self, front: u32, back: u32) {
        if front != NONE {
            self.nodes[front as usize].next = back;
        }
        if back != NONE {
            self.nodes[back as usize].prev = front;
        }
    }
}

/// Grows `array` so that it has an element for every id below `ids`. An array that grows becomes at
/// least twice as long.
pub fn grow<T: Clone>(array: &mut Vec<T>, ids: usize, value: T) {
    if array.len() < ids {
        // A first call with the final number of ids allocates exactly that number; growth by one id
        // at a time doubles the length.
        let doubled = array.len().saturating_mul(2);
        array.resize(ids.max(doubled), value);
    }
}

/// Removes and returns the element at index `at`. In short arrays `at` is usually the last index.
/// This case uses `pop`, which avoids the call that `remove` makes to move the elements behind
/// `at`.
pub(crate) fn take_at<T>(array: &mut Vec<T>, at: usize) -> T {
    if at + 1 == array.len()
        && let Some(last) = array.pop()
    {
        return last;
    }
    array.remove(at)
}

/// One list of ids. Ids are usually inserted at the front and removed at the back.
#[derive(Clone, Copy, Debug)]
pub struct List {
    front: u32,
    back: u32,
    len: usize,
}

impl Default for List {
    fn default() -> List {
        List {
            front: NONE,
            back: NONE,
            len: 0,
        }
    }
}

impl List {
    /// Returns the number of ids in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true when the list has no ids.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the id at the back.
    pub fn back(&self) -> Option<u32> {
        (self.back != NONE).then_some(self.back)
    }

    /// Inserts an id, which is in no list, at the front.
    pub fn push_front(&mut self, links: &mut Links, id: u32) {
        links.nodes[id as usize].prev = NONE;
        links.nodes[id as usize].next = self.front;
        links.join(id, self.front);
        self.front = id;
        if self.back == NONE {
            self.back = id;
        }
        self.len += 1;
    }

    /// Inserts an id, which is in no list, at the back.
    pub fn push_back(&mut self, links: &mut Links, id: u32) {
        links.nodes[id as usize].next = NONE;
        links.nodes[id as usize].prev = self.back;
        links.join(self.back, id);
        self.back = id;
        if self.front == NONE {
            self.front = id;
        }
        self.len += 1;
    }

    /// Removes `id`, which must be in this list.
    pub fn remove(&mut self, links: &mut Links, id: u32) {
        let Node { prev, next } = links.nodes[id as usize];
        links.join(prev, next);
        if self.front == id {
            self.front = next;
        }
        if self.back == id {
            self.back = prev;
        }
        self.len -= 1;
    }

    /// Inserts `id`, which is in no list, at the position of `old`, and removes `old`.
    pub fn replace(&mut self, links: &mut Links, old: u32, id: u32) {
        let node = links.nodes[old as usize];
        links.nodes[id as usize] = node;
        links.join(node.prev, id);
        links.join(id, node.next);
        if self.front == old {
            self.front = id;
        }
        if self.back == old {
            self.back = id;
        }
    }

    /// Removes and returns the id at the back.
    pub fn pop_back(&mut self, links: &mut Links) -> Option<u32> {
        let id = self.back()?;
        self.remove(links, id);
        Some(id)
    }

    /// Moves `id`, which must be in this list, to the front.
    pub fn refresh(&mut self, links: &mut Links, id: u32) {
        if self.front != id {
            self.remove(links, id);
            self.push_front(links, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ids from front to back.
    fn ids(list: &List, links: &Links) -> Vec<u32> {
        let known = |id: u32| (id != NONE).then_some(id);
        let next = |id: &u32| known(links.nodes[*id as usize].next);
        std::iter::successors(known(list.front), next).collect()
    }

    #[test]
    fn two_lists_over_one_array() {
        let mut links = Links::default();
        links.reserve(6);
        let (mut a, mut b) = (List::default(), List::default());
        for id in [0, 1, 2] {
            a.push_front(&mut links, id);
        }
        b.push_back(&mut links, 3);
        a.remove(&mut links, 1);
        b.push_back(&mut links, 1);
        a.refresh(&mut links, 0);
        assert_eq!(ids(&a, &links), [0, 2]);
        assert_eq!(ids(&b, &links), [3, 1]);
        a.replace(&mut links, 2, 4);
        assert_eq!(ids(&a, &links), [0, 4]);
        assert_eq!(a.pop_back(&mut links), Some(4));
        assert_eq!(a.pop_back(&mut links), Some(0));
        assert_eq!(a.pop_back(&mut links), None);
        assert_eq!((a.len(), b.len()), (0, 2));
    }
}
