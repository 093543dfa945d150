//! Client numbers, by which a scheduler in the stack below distinguishes clients.
//!
//! Each connection gets the lowest free number, so the numbers stay dense. A number belongs to one
//! connection at a time. The scheduler treats a later connection with the same number as the same
//! client. Number 0 means that a request has no client, and is never assigned.

use std::cell::RefCell;
use std::rc::Rc;

use bimetal_block::Origin;

/// Client numbers of one server.
#[derive(Default)]
pub(crate) struct TaskNumbers {
    /// Whether each number, starting from 1, is in use.
    taken: RefCell<Vec<bool>>,
}

impl TaskNumbers {
    /// Allocates the lowest free number.
    pub(crate) fn take(self: &Rc<TaskNumbers>) -> TaskNumber {
        let mut taken = self.taken.borrow_mut();
        let free = taken.iter().position(|taken| !taken);
        let index = free.unwrap_or(taken.len());
        if index == taken.len() {
            taken.push(false);
        }
        taken[index] = true;
        TaskNumber {
            index,
            of: Rc::clone(self),
        }
    }

    /// Returns the number of client numbers in use.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        let taken = self.taken.borrow();
        taken.iter().filter(|taken| **taken).count()
    }
}

/// A client number in use. Dropping this value frees the number.
pub(crate) struct TaskNumber {
    index: usize,
    of: Rc<TaskNumbers>,
}

impl TaskNumber {
    /// Returns the origin with which the client's requests are marked.
    pub(crate) fn origin(&self) -> Origin {
        Origin::of_task(u32::try_from(self.index + 1).expect("connections are bounded"))
    }
}

impl Drop for TaskNumber {
    fn drop(&mut self) {
        self.of.taken.borrow_mut()[self.index] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_given() {
        let numbers = Rc::new(TaskNumbers::default());
        let (first, second) = (numbers.take(), numbers.take());
        assert_eq!((first.origin().task, second.origin().task), (1, 2));
        drop(first);
        assert_eq!(numbers.take().origin().task, 1);
        let (again, third) = (numbers.take(), numbers.take());
        assert_eq!((again.origin().task, third.origin().task), (1, 3));
    }
}
