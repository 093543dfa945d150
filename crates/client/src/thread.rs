//! A session on a thread of its own, for programs that have threads but do not use this project's
//! runtime.
//!
//! Jobs (requests of the program) come from any thread, many at a time, and are sent together.
//! Ended jobs are also delivered together, once for each turn of the session's thread. This module
//! must never make a job wait for other jobs to arrive.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use bimetal_proto::brp::{Op, Welcome};
use bimetal_rt::mailbox::{Messages, Receiver, Sender, mailbox};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rt, UringOptions};

use crate::error::{ConnectError, Error};
use crate::options::Options;
use crate::session::{Call, Session};
use crate::shared::Answer;

/// Size of the buffer pool of the session's thread.
const POOL_BYTES: usize = 32 << 20;

/// A request that is submitted to a [`SessionThread`].
///
/// Every submitted job is delivered with its result when it has ended, unless the session's thread
/// panics. A job that could not be submitted is dropped.
pub trait Job: Send + 'static {
    /// Returns the request, without the data of a write.
    fn call(&self) -> Call;

    /// Copies the data of a write to `into`, which has the length of the request.
    fn fill(&self, into: &mut [u8]);
}

/// A job and its result.
pub type Ended<J> = (J, Result<Answer, Error>);

/// The callback that gets ended jobs.
type Deliver<J> = Rc<RefCell<dyn FnMut(Vec<Ended<J>>)>>;

/// A session on a thread of its own. Dropping it waits for the requests in flight and then ends the
/// session without a flush. If the target does not answer, the wait ends after
/// [`Options::patience`]. If a forked child process drops its copy, the session is not affected.
pub struct SessionThread<J: Job> {
    /// Mailbox of jobs for the session's thread. The threads that submit jobs must bound the number
    /// of jobs.
    jobs: Sender<J>,
    export: Welcome,
    thread: Option<JoinHandle<()>>,
    /// Identifier of the process in which the thread runs. A forked child process has a copy of
    /// this value but no thread.
    process: u32,
}

impl<J: Job> SessionThread<J> {
    /// Connects to a target. `deliver` is called on the session's thread with jobs that have ended,
    /// and must not wait.
    ///
    /// # Errors
    /// The errors of [`Session::connect`], and errors that prevent a thread or a runtime from
    /// starting.
    ///
    /// # Panics
    /// If the options were not [checked](Options::check).
    pub fn connect(
        options: Options,
        deliver: impl FnMut(Vec<Ended<J>>) + Send + 'static,
    ) -> Result<SessionThread<J>, ConnectError> {
        assert_eq!(options.check(), Ok(()), "options are checked");
        let (jobs, taken) = mailbox()?;
        let (ready, connected) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("brp".to_owned())
            .spawn(move || {
                let deliver: Deliver<J> = Rc::new(RefCell::new(deliver));
                let (left, outcome) = serve(options, taken, &ready, &deliver);
                if let Err(error) = outcome {
                    // The caller of `connect` gets the error. If that caller already has the report
                    // of success, this send fails, and the failure is ignored.
                    let _ = ready.send(Err(error));
                }
                let left = left.into_iter().map(|job| (job, Err(Error::Closed)));
                (deliver.borrow_mut())(left.collect());
            })?;
        match connected.recv() {
            Ok(Ok(export)) => Ok(SessionThread {
                jobs,
                export,
                thread: Some(thread),
                process: std::process::id(),
            }),
            Ok(Err(error)) => Err(error),
            Err(_gone) => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        }
    }

    /// Returns the target's description of the export at the beginning of the session.
    pub fn export(&self) -> &Welcome {
        &self.export
    }

    /// Submits jobs; the jobs of one call reach the session together.
    ///
    /// # Errors
    /// [`Error::Closed`] when the session's thread has ended, or when this process is a forked
    /// child without that thread. The jobs are then dropped.
    pub fn submit(&self, jobs: impl IntoIterator<Item = J>) -> Result<(), Error> {
        if !self.is_here() {
            return Err(Error::Closed);
        }
        // When the thread ends, it answers the jobs that are still in the mailbox.
        if self.jobs.send_all(jobs) {
            Ok(())
        } else {
            Err(Error::Closed)
        }
    }
}

impl<J: Job> SessionThread<J> {
    /// Returns true when the session's thread runs in this process; false in a forked child
    /// process.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<J: Job> Drop for SessionThread<J> {
    fn drop(&mut self) {
        if !self.is_here() {
            // This is a forked child process, which has no thread to join. The session belongs to
            // the parent process, which continues it.
            return;
        }
        // Closing the mailbox tells the thread to end the session.
        self.jobs.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and there is no caller to propagate it to.
            let _ = thread.join();
        }
    }
}

/// Runs the session's thread. Returns the jobs that remain in the mailbox, and the error that
/// prevented the session.
fn serve<J: Job>(
    options: Options,
    jobs: Receiver<J>,
    ready: &SyncSender<Result<Welcome, ConnectError>>,
    deliver: &Deliver<J>,
) -> (VecDeque<J>, Result<(), ConnectError>) {
    let rt = Rt::real_time(UringOptions {
        pool_bytes: POOL_BYTES,
        ..UringOptions::default()
    });
    let rt = match rt {
        Ok(rt) => rt,
        Err(error) => return (jobs.close(), Err(error.into())),
    };
    rt.block_on(async {
        let session = match Session::connect(&rt, options).await {
            Ok(session) => session,
            Err(error) => return (jobs.close(), Err(error)),
        };
        let mut messages = match jobs.listen(&rt) {
            Ok(messages) => messages,
            // No caller has the session yet, so there are no jobs.
            Err(error) => return (VecDeque::new(), Err(error.into())),
        };
        if ready.send(Ok(session.export())).is_ok() {
            take_jobs(&rt, &session, &mut messages, deliver).await;
        }
        session.close().await;
        (messages.close(), Ok(()))
    })
}

/// Starts jobs as they arrive until the mailbox is closed, and then waits until all jobs have
/// ended.
async fn take_jobs<J: Job>(
    rt: &Rt,
    session: &Session,
    messages: &mut Messages<J>,
    deliver: &Deliver<J>,
) {
    let work = Rc::new(Work {
        rt: rt.clone(),
        session: session.clone(),
        tasks: TaskGroup::new(rt),
        ended: RefCell::new(Vec::new()),
        deliver: Rc::clone(deliver),
    });
    while let Some(jobs) = messages.next().await {
        for job in jobs {
            work.tasks.spawn(carry_out(Rc::clone(&work), job));
        }
    }
    let patience = session.patience();
    if rt.timeout(patience, work.tasks.join()).await.is_err() {
        session.give_up();
        work.tasks.join().await;
    }
}

/// State that the jobs of a session share.
struct Work<J> {
    rt: Rt,
    session: Session,
    tasks: TaskGroup,
    /// Jobs that have ended in the current turn of the executor and have not been delivered.
    ended: RefCell<Vec<Ended<J>>>,
    deliver: Deliver<J>,
}

async fn carry_out<J: Job>(work: Rc<Work<J>>, job: J) {
    let mut call = job.call();
    let is_write = call.op == Op::Write;
    // A write that is longer than the target accepts is refused here, before memory is allocated
    // for its data.
    let is_taken = !is_write || call.length_bytes <= work.session.export().transfer_bytes_max;
    if is_write && is_taken {
        let mut data = work.rt.pool().alloc_now(call.length_bytes as usize);
        job.fill(&mut data);
        call.payload = data.freeze().into();
    }
    let result = if is_taken {
        work.session.call(call).await
    } else {
        Err(Error::TooLong)
    };
    let is_first = {
        let mut ended = work.ended.borrow_mut();
        ended.push((job, result));
        ended.len() == 1
    };
    if is_first {
        // This job is the first of the turn, so start the delivery. Tasks run in the order in which
        // they became ready, so `hand_out` runs after all jobs whose answers arrived together, and
        // delivers them together.
        work.tasks.spawn(hand_out(Rc::clone(&work)));
    }
}

async fn hand_out<J: Job>(work: Rc<Work<J>>) {
    let ended = work.ended.take();
    (work.deliver.borrow_mut())(ended);
}
