//! Numbers of clients, by which a scheduler below tells them apart.
//!
//! A number is given to one connection at a time, the lowest that is free, so that they stay dense;
//! what comes later under a number is taken for the same client. 0 is nobody and is never given.

use std::cell::RefCell;
use std::rc::Rc;

use bimetal_block::Origin;

/// The numbers of a server.
#[derive(Default)]
pub(crate) struct TaskNumbers {
    /// Whether each number from 1 on is in use.
    taken: RefCell<Vec<bool>>,
}

impl TaskNumbers {
    /// The lowest number that nobody has.
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

    /// Numbers that somebody has.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        let taken = self.taken.borrow();
        taken.iter().filter(|taken| **taken).count()
    }
}

/// A number in use; free again when this is dropped.
pub(crate) struct TaskNumber {
    index: usize,
    of: Rc<TaskNumbers>,
}

impl TaskNumber {
    /// What its requests say of where they come from.
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
