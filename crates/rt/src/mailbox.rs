//! A mailbox, through which ordinary threads send messages to the one thread that owns a shard.
//!
//! Threads add messages and ring a doorbell. The owner of the shard takes all messages together. In
//! real time it takes them in a task of its executor ([`Messages`]). In virtual time the executor
//! must not wait for a thread, so the owner takes the messages between two runs of the executor
//! ([`Receiver::wait`]). A ring of the doorbell costs both threads a system call, so a sender rings
//! only when the receiver waits. A receiver that has taken messages checks for more before it
//! waits. A mailbox has no bound of its own; its size is bounded if each thread waits for its reply
//! before it sends again. A mailbox must never lose a message. Messages that are not taken are
//! dropped with the mailbox, which ends the wait of a thread for a reply.

mod send_batch;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buf::BufMut;
use crate::executor::{Rt, yield_now};
use crate::net::Stream;
pub use send_batch::SendBatch;

/// Maximum number of doorbell rings read at a time.
const DOORBELLS: usize = 64;

struct Mailbox<T> {
    messages: VecDeque<T>,
    is_closed: bool,
    /// True when the receiver has found no message and waits for the doorbell.
    is_listening: bool,
}

type Shared<T> = Arc<Mutex<Mailbox<T>>>;

/// Locks the mailbox. A poisoned lock is used as it is, since a panic of another thread leaves the
/// queue intact.
fn lock<T>(mailbox: &Shared<T>) -> MutexGuard<'_, Mailbox<T>> {
    mailbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sending end of a mailbox. Any number of threads can share it. When the sending end is dropped,
/// the receiver still gets the messages that are already in the mailbox, and after them the end of
/// the mailbox.
pub struct Sender<T> {
    mailbox: Shared<T>,
    doorbell: UnixStream,
    /// The process that created the sender.
    process: u32,
}

/// Receiving end of a mailbox. It is moved to the thread that takes the messages.
pub struct Receiver<T> {
    mailbox: Shared<T>,
    doorbell: UnixStream,
}

/// Creates a mailbox and returns its two ends.
///
/// # Errors
/// If no socket can be created for the doorbell.
pub fn mailbox<T>() -> io::Result<(Sender<T>, Receiver<T>)> {
    let (doorbell, heard) = UnixStream::pair()?;
    let mailbox = Arc::new(Mutex::new(Mailbox {
        messages: VecDeque::new(),
        is_closed: false,
        is_listening: false,
    }));
    let sender = Sender {
        mailbox: Arc::clone(&mailbox),
        doorbell,
        process: std::process::id(),
    };
    let doorbell = heard;
    Ok((sender, Receiver { mailbox, doorbell }))
}

impl<T> Sender<T> {
    /// Sends a message.
    ///
    /// # Errors
    /// Returns the message when the receiver is closed.
    pub fn send(&self, message: T) -> Result<(), T> {
        let mut message = Some(message);
        if self.send_all(std::iter::from_fn(|| message.take())) {
            return Ok(());
        }
        Err(message.expect("a mailbox that is closed takes nothing"))
    }

    /// Sends messages together, so that the receiver takes them in one batch. If the receiver is
    /// closed, returns false and takes no message from the iterator.
    pub fn send_all(&self, messages: impl IntoIterator<Item = T>) -> bool {
        let must_ring = {
            let mut mailbox = lock(&self.mailbox);
            if mailbox.is_closed {
                return false;
            }
            mailbox.messages.extend(messages);
            !mailbox.messages.is_empty() && std::mem::take(&mut mailbox.is_listening)
        };
        if must_ring {
            // `is_listening` is now false, so later messages do not ring the doorbell until the
            // receiver waits again. A failure of the ring is ignored: it means that the mailbox is
            // being closed, and its messages are dropped with it.
            let _ = (&self.doorbell).write_all(&[0]);
        }
        true
    }

    /// Closes the sending end: the receiver gets the messages that are already in the mailbox, and
    /// then the end of the mailbox. In a forked child process this does nothing, because the
    /// receiver belongs to the parent process, and closing the doorbell here would close the
    /// doorbell of the parent, too.
    pub fn close(&self) {
        if self.process != std::process::id() {
            return;
        }
        // An error means that the doorbell is already closed because the receiver has ended. It is
        // ignored.
        let _ = self.doorbell.shutdown(Shutdown::Both);
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T> Receiver<T> {
    fn take(&self) -> VecDeque<T> {
        std::mem::take(&mut lock(&self.mailbox).messages)
    }

    /// Takes all messages. If there are none, returns `None` and requests a ring of the doorbell
    /// for the next message.
    fn take_or_listen(&self) -> Option<VecDeque<T>> {
        let mut mailbox = lock(&self.mailbox);
        mailbox.is_listening = mailbox.messages.is_empty();
        (!mailbox.is_listening).then(|| std::mem::take(&mut mailbox.messages))
    }

    /// Blocks the thread until there are messages, and takes all of them. Returns `None` when no
    /// more messages will come. The thread must not be running its executor.
    pub fn wait(&self) -> Option<VecDeque<T>> {
        if let Some(messages) = self.take_or_listen() {
            return Some(messages);
        }
        let mut doorbells = [0; DOORBELLS];
        loop {
            match (&self.doorbell).read(&mut doorbells) {
                Ok(0) => return Some(self.take()).filter(|messages| !messages.is_empty()),
                Ok(_) => return Some(self.take()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// Closes the mailbox and returns the messages that were not taken.
    pub fn close(self) -> VecDeque<T> {
        let mut mailbox = lock(&self.mailbox);
        mailbox.is_closed = true;
        std::mem::take(&mut mailbox.messages)
    }

    /// Turns the receiver into [`Messages`], which a task of the executor `rt` awaits.
    ///
    /// # Errors
    /// If the runtime does not support the doorbell's socket, as in virtual time.
    pub fn listen(self, rt: &Rt) -> io::Result<Messages<T>> {
        let doorbell = Stream::from_unix(rt, self.doorbell.try_clone()?)?;
        Ok(Messages {
            receiver: self,
            doorbell,
            doorbells: Some(rt.pool().alloc_now(DOORBELLS)),
        })
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let left = {
            let mut mailbox = lock(&self.mailbox);
            mailbox.is_closed = true;
            std::mem::take(&mut mailbox.messages)
        };
        drop(left);
    }
}

/// The receiving end in an executor.
pub struct Messages<T> {
    receiver: Receiver<T>,
    doorbell: Stream,
    doorbells: Option<BufMut>,
}

impl<T> Messages<T> {
    /// Closes the mailbox like [`Receiver::close`].
    pub fn close(self) -> VecDeque<T> {
        self.receiver.close()
    }

    /// Waits for messages and takes all of them; returns `None` when no more messages will come.
    /// Tasks that the previous messages made ready run before this function takes new messages.
    pub async fn next(&mut self) -> Option<VecDeque<T>> {
        yield_now().await;
        if let Some(messages) = self.receiver.take_or_listen() {
            return Some(messages);
        }
        let doorbells = self.doorbells.take()?;
        let (rung, doorbells) = self.doorbell.recv(doorbells, 0).await;
        let messages = self.receiver.take();
        if matches!(rung, Ok(count) if count > 0) {
            self.doorbells = Some(doorbells);
            return Some(messages);
        }
        Some(messages).filter(|messages| !messages.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real_time::UringOptions;
    use std::sync::mpsc;

    /// A message and the channel for its reply.
    type Message = (u64, mpsc::Sender<u64>);

    fn ask(sender: &Sender<Message>, number: u64) -> Option<u64> {
        let (answer, answered) = mpsc::channel();
        sender.send((number, answer)).ok()?;
        answered.recv().ok()
    }

    fn answer(messages: VecDeque<Message>) {
        for (number, answer) in messages {
            answer.send(number + 1).expect("somebody waits");
        }
    }

    fn threads_are_answered(serve: impl FnOnce(Receiver<Message>) + Send + 'static) {
        let (sender, receiver) = mailbox().expect("a mailbox");
        let shard = std::thread::spawn(move || serve(receiver));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let sender = &sender;
                scope.spawn(move || {
                    for number in thread * 1000..thread * 1000 + 200 {
                        assert_eq!(ask(sender, number), Some(number + 1));
                    }
                });
            }
        });
        drop(sender);
        shard.join().expect("the shard ends");
    }

    #[test]
    fn a_copy_in_a_forked_child_does_not_end_the_receiver() {
        let (sender, receiver) = mailbox().expect("a mailbox");
        let copy = Sender {
            mailbox: Arc::clone(&sender.mailbox),
            doorbell: sender.doorbell.try_clone().expect("a descriptor"),
            // The process ID in this sender differs from the ID of this process. So the sender
            // looks like a copy in a forked child process.
            process: std::process::id() + 1,
        };
        drop(copy);
        sender.send(7_u8).expect("somebody takes letters");
        assert_eq!(receiver.wait(), Some(VecDeque::from([7])));
        drop(sender);
        assert_eq!(receiver.wait(), None);
    }

    #[test]
    fn threads_are_answered_by_an_executor() {
        threads_are_answered(|receiver| {
            let rt = Rt::real_time(UringOptions::default()).expect("a runtime");
            rt.block_on(async {
                let mut messages = receiver.listen(&rt).expect("a bell");
                while let Some(messages) = messages.next().await {
                    answer(messages);
                }
            });
        });
    }

    #[test]
    fn threads_are_answered_between_two_runs_of_an_executor() {
        threads_are_answered(|receiver| {
            while let Some(messages) = receiver.wait() {
                answer(messages);
            }
        });
    }

    /// Reads the doorbell, and returns how many times it was rung since it was last read.
    fn doorbells(receiver: &Receiver<u64>) -> usize {
        receiver.doorbell.set_nonblocking(true).expect("a socket");
        let heard = (&receiver.doorbell).read(&mut [0; DOORBELLS]).unwrap_or(0);
        receiver.doorbell.set_nonblocking(false).expect("a socket");
        heard
    }

    #[test]
    fn the_bell_is_rung_for_who_listens_and_for_nobody_else() {
        let (sender, receiver) = mailbox().expect("a mailbox");
        assert!(sender.send_all([1, 2]) && sender.send_all([3]));
        assert_eq!(doorbells(&receiver), 0, "nobody has listened yet");
        assert_eq!(receiver.take_or_listen(), Some(VecDeque::from([1, 2, 3])));
        assert!(sender.send_all([4]));
        assert_eq!(doorbells(&receiver), 0, "who took letters looks again");
        assert_eq!(receiver.take_or_listen(), Some(VecDeque::from([4])));
        assert_eq!(receiver.take_or_listen(), None);
        assert!(sender.send_all([]));
        assert_eq!(doorbells(&receiver), 0, "there is nothing to be taken");
        assert!(sender.send_all([5]) && sender.send_all([6, 7]));
        assert_eq!(doorbells(&receiver), 1, "one for all until somebody looks");
        assert_eq!(receiver.wait(), Some(VecDeque::from([5, 6, 7])));
        sender.close();
        assert_eq!(receiver.wait(), None);
    }

    #[test]
    fn what_was_not_taken_is_given_back_when_nobody_will() {
        let (sender, receiver) = mailbox().expect("a mailbox");
        assert!(sender.send_all([1, 2]) && sender.send_all([]));
        assert_eq!(sender.send(3), Ok(()));
        assert_eq!(receiver.close(), [1, 2, 3]);
        assert_eq!(sender.send(4), Err(4));
        assert!(!sender.send_all([5]));
    }

    #[test]
    fn a_waiter_learns_that_no_answer_will_come() {
        let (sender, receiver) = mailbox().expect("a mailbox");
        let (message, answered) = mpsc::channel();
        sender.send((1, message)).expect("somebody may look");
        drop(receiver);
        assert!(answered.recv().is_err(), "its letter is gone");
        assert_eq!(ask(&sender, 2), None);
    }
}
