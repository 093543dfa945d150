//! A sender for the tasks of an executor, which sends all messages of one turn in one batch.

use std::cell::RefCell;
use std::sync::Arc;

use super::Sender;
use crate::sync::Event;

/// Messages of the current turn of the executor, which [`carry`](Self::carry) sends in one batch.
/// The tasks that add messages must bound the number of messages.
pub struct SendBatch<T> {
    messages: RefCell<Vec<T>>,
    filled: Event,
    to: Arc<Sender<T>>,
}

impl<T> SendBatch<T> {
    /// Creates an empty batch of messages for the receiver of `to`.
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

    /// Sends the messages in batches; never returns. Tasks run in the order in which they became
    /// ready. The task that calls this therefore runs after all tasks that were ready when the
    /// first message of a batch was added, and sends the messages of all these tasks together.
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
        // If the mailbox is closed, the receiving thread has ended, and the messages are dropped.
        // The end of that thread is detected by the end of the mailbox in the other direction.
        let messages = self.messages.take();
        self.to.send_all(messages);
    }

    /// Closes the mailbox after the messages that were sent.
    pub fn close(&self) {
        self.to.close();
    }
}
