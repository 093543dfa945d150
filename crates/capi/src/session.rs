//! A session of a C program: passes requests to the session's thread, and collects their
//! completions.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use bimetal_client::{Answer, Call, Ended, Error, Job, Options, SessionThread, Welcome};

use crate::completions::{Completion, Completions, REQUESTS_MAX};
use crate::failure::Failure;
use crate::memory::User;
use crate::request::Request;

/// `struct brp_session`.
pub struct Session {
    // This field is dropped first, because fields are dropped in the order of their declaration.
    // After that, no thread accesses a buffer of the program or adds a completion.
    thread: SessionThread<UnderWay>,
    completions: Arc<Completions>,
}

impl Session {
    pub(crate) fn open(uri: &str) -> Result<Session, Failure> {
        let options = Options::from_uri(uri)?;
        let completions = Arc::new(Completions::default());
        let theirs = Arc::clone(&completions);
        let thread = SessionThread::connect(options, move |ended| deliver(&theirs, ended))?;
        Ok(Session {
            thread,
            completions,
        })
    }

    pub(crate) fn export(&self) -> &Welcome {
        self.thread.export()
    }

    /// Submits requests from the front of `requests` until the bound on submitted requests is
    /// reached. Returns the number of submitted requests.
    pub(crate) fn submit(&self, requests: Vec<Request>) -> Result<usize, Failure> {
        let taken = self.completions.admit(requests.len());
        if taken == 0 {
            let words = format!("{REQUESTS_MAX} requests were submitted and not reaped");
            return Err(Failure::new(libc::EAGAIN, words));
        }
        // The iterator creates a job only when the session's thread takes it. A job that was
        // created and not taken would complete its request when it is dropped.
        let jobs = requests.into_iter().take(taken).map(|request| UnderWay {
            whom: Some(Whom::Reaper(Arc::clone(&self.completions), request.user)),
            request,
        });
        self.thread.submit(jobs).inspect_err(|_closed| {
            self.completions.dismiss(taken);
        })?;
        Ok(taken)
    }

    /// Carries out one request and waits for its result.
    pub(crate) fn run(&self, request: Request) -> Result<(), Failure> {
        let (answer, answered) = sync_channel(1);
        self.thread.submit([UnderWay {
            request,
            whom: Some(Whom::Waiting(answer)),
        }])?;
        answered.recv().unwrap_or_else(|_| Err(Failure::panicked()))
    }

    pub(crate) fn reap(
        &self,
        min: usize,
        max: usize,
        timeout_ms: c_int,
        each: impl FnMut(User, Result<(), Failure>),
    ) -> Result<usize, Failure> {
        let timeout = match u64::try_from(timeout_ms) {
            Ok(ms) => Some(Duration::from_millis(ms)),
            Err(_) if timeout_ms == -1 => None,
            Err(_) => return Err(Failure::invalid("a timeout is -1 or not negative")),
        };
        Ok(self.completions.reap(min, max, timeout, each))
    }

    pub(crate) fn event_fd(&self) -> Result<c_int, Failure> {
        self.completions.event_fd()
    }
}

/// Receiver of the result of a request.
enum Whom {
    Reaper(Arc<Completions>, User),
    Waiting(SyncSender<Result<(), Failure>>),
}

/// A submitted request. If it is dropped without an answer, the session's thread has panicked. The
/// request then fails, so that its caller does not wait forever.
struct UnderWay {
    request: Request,
    whom: Option<Whom>,
}

impl Job for UnderWay {
    fn call(&self) -> Call {
        self.request.call.to_call()
    }

    fn fill(&self, into: &mut [u8]) {
        self.request.buffer.copy_to(into);
    }
}

impl UnderWay {
    /// Processes the answer to the request. Returns a completion if the program will reap the
    /// request.
    fn end(mut self, answer: Result<Answer, Error>) -> Option<Completion> {
        let result = answer.map_err(Failure::from).map(|answer| {
            let Answer::Data(data) = answer else {
                return;
            };
            let mut offset = 0;
            for slice in data.slices() {
                self.request.buffer.fill_at(offset, slice);
                offset += slice.len();
            }
        });
        match self.whom.take()? {
            Whom::Reaper(_, user) => Some((user, result)),
            Whom::Waiting(answer) => {
                // The send cannot fail: the caller waits until it has the result.
                let _ = answer.send(result);
                None
            }
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // This request is dropped without an answer. A caller that waits for the request sees that
        // its channel is closed. A program that reaps completions sees nothing, so a completion is
        // added here.
        if let Some(Whom::Reaper(completions, user)) = self.whom.take() {
            completions.push([(user, Err(Failure::panicked()))]);
        }
    }
}

fn deliver(completions: &Completions, ended: Vec<Ended<UnderWay>>) {
    let completed = ended
        .into_iter()
        .filter_map(|(request, answer)| request.end(answer));
    // Collect the completions into a vector first. `push` holds a lock that `brp_submit` needs, and
    // the iterator copies data, so the iterator must not run inside `push`.
    let completed: Vec<Completion> = completed.collect();
    completions.push(completed);
}
