//! The operations that wait for a change of one file.

use std::collections::VecDeque;

use crate::real_time::driver::Request;

/// Operations that wait for a change of a file, in order of arrival, in one queue for each kind of
/// change.
#[derive(Default)]
pub(super) struct Waiting {
    readers: VecDeque<(usize, Request)>,
    writers: VecDeque<(usize, Request)>,
    /// True while the kernel also watches whether the file accepts data (has room). The kernel
    /// watches for room only while an operation waits for room; otherwise it would report each time
    /// that a peer has read data.
    watches_room: bool,
}

/// Events after which operations that wait for data are retried. A hangup and an error concern
/// readers and writers, so both `READ` and `WRITE` contain them.
const READ: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
/// Events after which writers retry.
const WRITE: u32 = (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) as u32;

impl Waiting {
    /// Queues an operation. Returns true if the kernel must now watch for an additional event: for
    /// room to write.
    pub(super) fn push(&mut self, key: usize, request: &Request) -> bool {
        if needs_room(request) {
            self.writers.push_back((key, *request));
            return !std::mem::replace(&mut self.watches_room, true);
        }
        self.readers.push_back((key, *request));
        false
    }

    /// Returns true when another operation waits for what `request` needs: data, or room to write.
    pub(super) fn has(&self, request: &Request) -> bool {
        match needs_room(request) {
            true => !self.writers.is_empty(),
            false => !self.readers.is_empty(),
        }
    }

    /// Returns the events that the kernel must watch for.
    pub(super) fn events(&self) -> u32 {
        let room = if self.watches_room { libc::EPOLLOUT } else { 0 };
        (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET | room) as u32
    }

    /// Retries the operations that wait for one of `events`, first the readers, then the writers.
    /// Calls `ends` for each operation, in order of arrival; `ends` returns true when the operation
    /// has completed. Each of these two queues is left at its first operation that has not
    /// completed.
    pub(super) fn changed(&mut self, events: u32, mut ends: impl FnMut(usize, &Request) -> bool) {
        for (queue, concerned) in [(&mut self.readers, READ), (&mut self.writers, WRITE)] {
            if events & concerned == 0 {
                continue;
            }
            while let Some((key, request)) = queue.front() {
                if !ends(*key, request) {
                    break;
                }
                queue.pop_front();
            }
        }
    }

    /// Returns true if the kernel still watches for room although no operation waits for room any
    /// more. The caller must then tell the kernel the new [`events`](Self::events). This state is
    /// reported only once.
    pub(super) fn watches_in_vain(&mut self) -> bool {
        let in_vain = self.watches_room && self.writers.is_empty();
        if in_vain {
            self.watches_room = false;
        }
        in_vain
    }

    /// Removes an operation; returns false when the operation is not in a queue.
    pub(super) fn remove(&mut self, key: usize) -> bool {
        for queue in [&mut self.readers, &mut self.writers] {
            if let Some(at) = queue.iter().position(|(other, _)| *other == key) {
                queue.remove(at);
                return true;
            }
        }
        false
    }

    /// Returns true when no operation waits.
    pub(super) fn is_empty(&self) -> bool {
        self.readers.is_empty() && self.writers.is_empty()
    }
}

/// Returns true for an operation that waits until the file accepts data; false for an operation
/// that waits until the file has data.
fn needs_room(request: &Request) -> bool {
    matches!(
        request,
        Request::Send { .. } | Request::WriteMessage { .. } | Request::Connect { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: Request = Request::Accept;
    const WRITER: Request = Request::Send {
        message: std::ptr::null(),
    };

    /// Reports `events` to `waiting`, and returns the keys of the operations that `waiting` tries.
    /// Of these operations, only those in `ready` complete.
    fn tried(waiting: &mut Waiting, events: i32, ready: &[usize]) -> Vec<usize> {
        let mut tried = Vec::new();
        waiting.changed(events as u32, |key, _| {
            tried.push(key);
            ready.contains(&key)
        });
        tried
    }

    #[test]
    fn operations_end_in_their_order_and_none_overtakes() {
        let mut waiting = Waiting::default();
        for key in [1, 2, 3, 4] {
            waiting.push(key, &READER);
        }
        assert_eq!(tried(&mut waiting, libc::EPOLLIN, &[1, 2, 4]), [1, 2, 3]);
        assert!(waiting.has(&READER) && !waiting.has(&WRITER));
        assert!(waiting.remove(3) && !waiting.remove(3));
        assert_eq!(tried(&mut waiting, libc::EPOLLIN, &[4]), [4]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_change_concerns_those_that_wait_for_it_and_an_end_all() {
        let mut waiting = Waiting::default();
        waiting.push(1, &READER);
        waiting.push(2, &WRITER);
        assert_eq!(tried(&mut waiting, libc::EPOLLIN, &[]), [1]);
        assert_eq!(tried(&mut waiting, libc::EPOLLOUT, &[]), [2]);
        assert_eq!(tried(&mut waiting, libc::EPOLLHUP, &[]), [1, 2]);
        assert_eq!(tried(&mut waiting, libc::EPOLLERR, &[1, 2]), [1, 2]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn room_is_watched_for_only_while_a_task_waits_for_it() {
        let watches_room = |waiting: &Waiting| waiting.events() & libc::EPOLLOUT as u32 != 0;
        let mut waiting = Waiting::default();
        assert!(!waiting.push(1, &READER) && !watches_room(&waiting));
        assert!(waiting.push(2, &WRITER) && watches_room(&waiting));
        assert!(!waiting.push(3, &WRITER), "it is watched for already");
        assert!(!waiting.watches_in_vain());
        assert_eq!(tried(&mut waiting, libc::EPOLLOUT, &[2, 3]), [2, 3]);
        assert!(waiting.watches_in_vain() && !watches_room(&waiting));
        assert!(!waiting.watches_in_vain(), "it is no longer watched for");
        assert!(waiting.push(4, &WRITER));
    }
}
