//! Queue of completions that the program has not reaped, and the maximum number of submitted
//! requests.
//!
//! Requests count towards this maximum from their submission until the program reaps their
//! completion. If a program does not reap, `brp_submit` therefore refuses its further requests, and
//! its completions cannot use up the memory. A panic of another thread leaves the queue consistent,
//! so a poisoned lock is used as it is.

mod event;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::failure::Failure;
use crate::memory::User;
use event::EventFd;

/// `BRP_REQUESTS_MAX`.
pub(crate) const REQUESTS_MAX: usize = 1024;

/// A completed request: its identifier and result.
pub(crate) type Completion = (User, Result<(), Failure>);

/// Queue of completions that have not been reaped, with the bound on submitted requests.
#[derive(Default)]
pub(crate) struct Completions {
    state: Mutex<CompletionState>,
    changed: Condvar,
}

#[derive(Default)]
struct CompletionState {
    ready: VecDeque<Completion>,
    /// Number of requests that were submitted and have not been reaped.
    admitted: usize,
    /// Event descriptor, which is raised while a completion is ready. It exists only if the program
    /// has requested it.
    event: Option<EventFd>,
}

impl Completions {
    fn lock(&self) -> MutexGuard<'_, CompletionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits at most `wanted` requests, so that the number of requests that were not reaped stays
    /// within its maximum. Returns the number of admitted requests.
    pub(crate) fn admit(&self, wanted: usize) -> usize {
        let mut state = self.lock();
        let count = wanted.min(REQUESTS_MAX - state.admitted);
        state.admitted += count;
        count
    }

    /// Cancels the admission of `count` requests that could not be submitted.
    pub(crate) fn dismiss(&self, count: usize) {
        self.lock().admitted -= count;
    }

    /// Adds requests that were completed together.
    pub(crate) fn push(&self, completed: impl IntoIterator<Item = Completion>) {
        let mut state = self.lock();
        let was_empty = state.ready.is_empty();
        state.ready.extend(completed);
        if state.ready.is_empty() {
            return;
        }
        if let (true, Some(event)) = (was_empty, &state.event) {
            event.raise();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until `min` completions are ready or `timeout` has elapsed (`None`: no limit). Then
    /// takes at most `max` completions, passes them to `each`, and returns their number.
    pub(crate) fn reap(
        &self,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
        mut each: impl FnMut(User, Result<(), Failure>),
    ) -> usize {
        let mut state = self.lock();
        if state.ready.len() < min {
            let lacks = |state: &mut CompletionState| state.ready.len() < min;
            state = match timeout {
                None => {
                    let waited = self.changed.wait_while(state, lacks);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
                Some(timeout) => {
                    let waited = self.changed.wait_timeout_while(state, timeout, lacks);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let count = state.ready.len().min(max);
        for (user, result) in state.ready.drain(..count) {
            each(user, result);
        }
        state.admitted -= count;
        if let (true, true, Some(event)) = (count > 0, state.ready.is_empty(), &state.event) {
            event.lower();
        }
        count
    }

    /// Returns the event descriptor, which is readable while a completion is ready; creates it at
    /// the first call.
    pub(crate) fn event_fd(&self) -> Result<c_int, Failure> {
        let mut state = self.lock();
        if state.event.is_none() {
            let event = EventFd::new().map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                Failure::new(errno, format!("no event descriptor: {error}"))
            })?;
            if !state.ready.is_empty() {
                event.raise();
            }
            state.event = Some(event);
        }
        let number = state.event.as_ref().map(EventFd::number);
        Ok(number.expect("it was made above"))
    }
}
