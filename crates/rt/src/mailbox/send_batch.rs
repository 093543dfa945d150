//! A sender for the tasks of an executor, which sends all messages of one turn in one batch.

use std::cell::RefCell;
use std::sync::Arc;

use super::Sender;
use crate::sync::Event;

/// The messages of this turn of the executor, to be sent in one batch by [`carry`](Self::carry).
/// The tasks that put messages in must bound their number.
pub struct SendBatch<T> {
    messages: RefCell<Vec<T>>,
    filled: Event,
    to: Arc<Sender<T>>,
}

impl<T> SendBatch<T> {
    /// Creates an empty outbox for the receiver of `to`.
    pub fn new(to: Arc<Sender<T>>) -> SendBatch<T> {
        SendBatch {
            messages: RefCell::new(Vec::new()),
            filled: Event::new(),
            to,
        }
    }

    /// Adds a message, which [`carry`](Self::carry) or [`send`](Self::send) will send.
    pub fn put(&self, message: T) {
        let is_first = {
            let mut messages = self.messages.borrow_mut();
            messages.push(message);
            messages.len() == 1
        };
        if is_first {
            self.filled.notify();
        }
    }

    /// Sends each batch, for ever. Tasks run in the order in which they became ready, so this task
    /// runs after all that added messages in the same turn.
    pub async fn carry(&self) {
        loop {
            self.filled
                .until(|| !self.messages.borrow().is_empty())
                .await;
            self.send();
        }
    }

    /// Sends the messages added so far.
    pub fn send(&self) {
        // If the mailbox is closed, its thread has ended, which is detected at that thread's own
        // mailbox; the messages are dropped.
        let messages = self.messages.take();
        self.to.send_all(messages);
    }

    /// Closes the mailbox after the messages that were sent.
    pub fn close(&self) {
        self.to.close();
    }
}
