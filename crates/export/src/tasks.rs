//! Client numbers, by which a scheduler below distinguishes clients.
//!
//! Each connection gets the lowest free number, so the numbers stay dense. A number belongs to one
//! connection at a time; the scheduler takes a later connection with the same number for the same
//! client. Number 0 means no client and is never given.

use std::cell::RefCell;
use std::rc::Rc;

use bimetal_block::Origin;

/// Client numbers of one server.
#[derive(Default)]
pub(crate) struct TaskNumbers {
    /// Whether each number from 1 on is in use.
    taken: RefCell<Vec<bool>>,
}

impl TaskNumbers {
    /// Takes the lowest free number.
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

/// A client number in use. Dropping this frees it.
pub(crate) struct TaskNumber {
    index: usize,
    of: Rc<TaskNumbers>,
}

impl TaskNumber {
    /// Returns the origin that the client's requests carry.
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
