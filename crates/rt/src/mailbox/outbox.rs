//! Who puts letters in from the tasks of an executor: all of one turn at once.

use std::cell::RefCell;
use std::sync::Arc;

use super::Sender;
use crate::sync::Event;

/// Letters of this turn of the executor, to be sent together by [`carry`](Self::carry). Who puts
/// them in bounds them.
pub struct Outbox<T> {
    letters: RefCell<Vec<T>>,
    filled: Event,
    to: Arc<Sender<T>>,
}

impl<T> Outbox<T> {
    /// Nothing yet, for whoever takes letters out of `to`.
    pub fn new(to: Arc<Sender<T>>) -> Outbox<T> {
        Outbox {
            letters: RefCell::new(Vec::new()),
            filled: Event::new(),
            to,
        }
    }

    /// Puts a letter in, which [`carry`](Self::carry) or [`send`](Self::send) will send.
    pub fn put(&self, letter: T) {
        let is_first = {
            let mut letters = self.letters.borrow_mut();
            letters.push(letter);
            letters.len() == 1
        };
        if is_first {
            self.filled.notify();
        }
    }

    /// Sends what is there. Tasks run in the order in which they became ready, so this comes behind
    /// all that had something to say in the same turn.
    pub async fn carry(&self) {
        loop {
            self.filled
                .until(|| !self.letters.borrow().is_empty())
                .await;
            self.send();
        }
    }

    /// Sends what is there now.
    pub fn send(&self) {
        // A mailbox that is closed is of a thread that has ended, which is noticed at its own
        // mailbox; what is left goes with this one.
        let letters = self.letters.take();
        self.to.send_all(letters);
    }

    /// No more letters will be sent after those that were.
    pub fn close(&self) {
        self.to.close();
    }
}
