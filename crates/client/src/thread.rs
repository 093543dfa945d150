//! A session on a thread of its own, for programs that have threads and no runtime of ours.
//!
//! Jobs go in from any thread, many at a time, and are sent together; what became of them is handed out
//! together too, once for each turn of the session's thread. Nothing here may make a job wait for company.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bimetal_proto::brp::{Op, Welcome};
use bimetal_rt::net::Stream;
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rt, UringOptions};

use crate::error::{ConnectError, Error};
use crate::options::Options;
use crate::session::{Answer, Call, Session};

/// Buffers of the session's thread.
const POOL_BYTES: usize = 32 << 20;
/// Bells taken at a time.
const BELLS: usize = 64;

/// Something to be done by a [`SessionThread`].
///
/// A job that is dropped without having been delivered was on a thread that panicked.
pub trait Job: Send + 'static {
    /// What to do, without the data of a write.
    fn call(&self) -> Call;

    /// Copies the data of a write; `into` has the length of the call.
    fn fill(&self, into: &mut [u8]);
}

/// A job and what became of it.
pub type Ended<J> = (J, Result<Answer, Error>);

/// Who is told of jobs that have ended.
type Deliver<J> = Rc<RefCell<dyn FnMut(Vec<Ended<J>>)>>;

/// Jobs that the session's thread has not taken. Who submits them bounds them.
struct Mailbox<J> {
    jobs: VecDeque<J>,
    closed: bool,
}

/// A panic of another thread leaves a queue that is as good as before.
fn lock<J>(mailbox: &Mutex<Mailbox<J>>) -> MutexGuard<'_, Mailbox<J>> {
    mailbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module. Dropping it ends the session after what is under way; it does not flush.
pub struct SessionThread<J: Job> {
    mailbox: Arc<Mutex<Mailbox<J>>>,
    bell: UnixStream,
    export: Welcome,
    thread: Option<JoinHandle<()>>,
}

impl<J: Job> SessionThread<J> {
    /// Connects to a target. `deliver` is called on the session's thread with jobs that have ended, and must
    /// not wait.
    ///
    /// # Errors
    /// As of [`Session::connect`], and what keeps a thread or a runtime from starting.
    ///
    /// # Panics
    /// When the options were not [checked](Options::check).
    pub fn connect(
        options: Options,
        deliver: impl FnMut(Vec<Ended<J>>) + Send + 'static,
    ) -> Result<SessionThread<J>, ConnectError> {
        assert_eq!(options.check(), Ok(()), "options are checked");
        let (bell, heard) = UnixStream::pair()?;
        let mailbox = Arc::new(Mutex::new(Mailbox {
            jobs: VecDeque::new(),
            closed: false,
        }));
        let (ready, connected) = sync_channel(1);
        let closing = Closing(Arc::clone(&mailbox));
        let thread = std::thread::Builder::new()
            .name("brp".to_owned())
            .spawn(move || {
                let deliver: Deliver<J> = Rc::new(RefCell::new(deliver));
                let outcome = serve(options, heard, &closing.0, &ready, &deliver);
                if let Err(error) = outcome {
                    // Whoever connects hears of it, unless it has heard of success before.
                    let _ = ready.send(Err(error));
                }
                let left = closing.close();
                let left = left.map(|job| (job, Err(Error::Closed))).collect();
                (deliver.borrow_mut())(left);
            })?;
        match connected.recv() {
            Ok(Ok(export)) => Ok(SessionThread {
                mailbox,
                bell,
                export,
                thread: Some(thread),
            }),
            Ok(Err(error)) => Err(error),
            Err(_gone) => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        }
    }

    /// What the target said of the export when the session began.
    pub fn export(&self) -> &Welcome {
        &self.export
    }

    /// Hands over jobs; those of one call are given to the session in one go.
    ///
    /// # Errors
    /// [`Error::Closed`] when the session's thread has ended; then the jobs are dropped.
    pub fn submit(&self, jobs: impl IntoIterator<Item = J>) -> Result<(), Error> {
        let must_ring = {
            let mut mailbox = lock(&self.mailbox);
            if mailbox.closed {
                return Err(Error::Closed);
            }
            let was_empty = mailbox.jobs.is_empty();
            mailbox.jobs.extend(jobs);
            was_empty && !mailbox.jobs.is_empty()
        };
        // One bell for all that come before the thread looks. A thread that no longer hears it answers what
        // is in the mailbox when it ends.
        if must_ring {
            let _ = (&self.bell).write_all(&[0]);
        }
        Ok(())
    }
}

impl<J: Job> Drop for SessionThread<J> {
    fn drop(&mut self) {
        // Its end is what the thread takes for the end of the session; a bell that is gone has ended it.
        let _ = self.bell.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and there is nobody to hand it to.
            let _ = thread.join();
        }
    }
}

/// Closes the mailbox when the thread ends, also by a panic: nobody may put a job where none is taken.
struct Closing<J: Job>(Arc<Mutex<Mailbox<J>>>);

impl<J: Job> Closing<J> {
    /// Lets no more jobs in, and gives out those that were not taken.
    fn close(&self) -> std::collections::vec_deque::IntoIter<J> {
        let mut mailbox = lock(&self.0);
        mailbox.closed = true;
        std::mem::take(&mut mailbox.jobs).into_iter()
    }
}

impl<J: Job> Drop for Closing<J> {
    fn drop(&mut self) {
        drop(self.close());
    }
}

/// What the session's thread does.
fn serve<J: Job>(
    options: Options,
    bell: UnixStream,
    mailbox: &Mutex<Mailbox<J>>,
    ready: &SyncSender<Result<Welcome, ConnectError>>,
    deliver: &Deliver<J>,
) -> Result<(), ConnectError> {
    let rt = Rt::real_time(UringOptions {
        pool_bytes: POOL_BYTES,
        ..UringOptions::default()
    })?;
    rt.block_on(async {
        let session = Session::connect(&rt, options).await?;
        let bell = Stream::from_unix(&rt, bell)?;
        if ready.send(Ok(session.export())).is_err() {
            session.close().await;
            return Ok(());
        }
        let work = Rc::new(Work {
            rt: rt.clone(),
            session,
            tasks: TaskGroup::new(&rt),
            ended: RefCell::new(Vec::new()),
            deliver: Rc::clone(deliver),
        });
        let mut buf = rt.pool().alloc_now(BELLS);
        loop {
            let (rung, back) = bell.recv(buf, 0).await;
            buf = back;
            if !matches!(rung, Ok(count) if count > 0) {
                break;
            }
            let taken = std::mem::take(&mut lock(mailbox).jobs);
            for job in taken {
                work.tasks.spawn(carry_out(Rc::clone(&work), job));
            }
        }
        work.tasks.join().await;
        work.session.close().await;
        Ok(())
    })
}

/// What the jobs of a session share.
struct Work<J> {
    rt: Rt,
    session: Session,
    tasks: TaskGroup,
    /// Ended in this turn of the executor, and not handed out.
    ended: RefCell<Vec<Ended<J>>>,
    deliver: Deliver<J>,
}

async fn carry_out<J: Job>(work: Rc<Work<J>>, job: J) {
    let mut call = job.call();
    if call.op == Op::Write {
        let mut data = work.rt.pool().alloc_now(call.length_bytes as usize);
        job.fill(&mut data);
        call.payload = data.freeze().into();
    }
    let result = work.session.call(call).await;
    let is_first = {
        let mut ended = work.ended.borrow_mut();
        ended.push((job, result));
        ended.len() == 1
    };
    if is_first {
        // Tasks run in the order in which they became ready, so this one comes behind all whose answers
        // arrived together.
        work.tasks.spawn(hand_out(Rc::clone(&work)));
    }
}

async fn hand_out<J: Job>(work: Rc<Work<J>>) {
    let ended = work.ended.take();
    (work.deliver.borrow_mut())(ended);
}
