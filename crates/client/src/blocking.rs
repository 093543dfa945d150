//! A session for ordinary threads: a thread of its own has the runtime and the session, and the others hand
//! it their requests.

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

/// A request on its way to the session's thread.
struct Job {
    op: Op,
    offset_bytes: u64,
    length_bytes: u32,
    fua: bool,
    data: Vec<u8>,
    answer: SyncSender<Result<Vec<u8>, Error>>,
}

/// Requests that the session's thread has not taken. Every thread waits for its own answer, so there are
/// never more than threads.
#[derive(Default)]
struct Mailbox {
    jobs: VecDeque<Job>,
    closed: bool,
}

type Shared = Arc<Mutex<Mailbox>>;

/// A panic of another thread leaves a queue that is as good as before.
fn lock(mailbox: &Shared) -> MutexGuard<'_, Mailbox> {
    mailbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module. Dropping it ends the session after what is under way; it does not flush.
pub struct BlockingSession {
    mailbox: Shared,
    bell: UnixStream,
    export: Welcome,
    thread: Option<JoinHandle<()>>,
}

impl BlockingSession {
    /// Connects to a target.
    ///
    /// # Errors
    /// As of [`Session::connect`], and what keeps a thread or a runtime from starting.
    ///
    /// # Panics
    /// When the options were not [checked](Options::check).
    pub fn connect(options: Options) -> Result<BlockingSession, ConnectError> {
        assert_eq!(options.check(), Ok(()), "options are checked");
        let (bell, heard) = UnixStream::pair()?;
        let mailbox = Shared::default();
        let (ready, connected) = sync_channel(1);
        let theirs = Arc::clone(&mailbox);
        let thread = std::thread::Builder::new()
            .name("brp".to_owned())
            .spawn(move || {
                let outcome = serve(options, heard, &theirs, &ready);
                if let Err(error) = outcome {
                    // Whoever connects hears of it, unless it has heard of success before.
                    let _ = ready.send(Err(error));
                }
                let left = {
                    let mut mailbox = lock(&theirs);
                    mailbox.closed = true;
                    std::mem::take(&mut mailbox.jobs)
                };
                for job in left {
                    // A thread that gave up waiting needs no answer.
                    let _ = job.answer.send(Err(Error::Closed));
                }
            })?;
        match connected.recv() {
            Ok(Ok(export)) => Ok(BlockingSession {
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

    /// Reads.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn read(&self, offset_bytes: u64, length_bytes: u32) -> Result<Vec<u8>, Error> {
        self.run(Op::Read, offset_bytes, length_bytes, false, Vec::new())
    }

    /// Writes; durable after a flush, or at once with `fua`.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn write(&self, offset_bytes: u64, data: Vec<u8>, fua: bool) -> Result<(), Error> {
        let length = data.len() as u32;
        self.run(Op::Write, offset_bytes, length, fua, data)
            .map(|_| ())
    }

    /// Makes everything that was answered durable.
    ///
    /// # Errors
    /// Why the request failed; once [`Error::Lost`] when the target has lost any of it.
    pub fn flush(&self) -> Result<(), Error> {
        self.run(Op::Flush, 0, 0, false, Vec::new()).map(|_| ())
    }

    /// Discards a range.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn discard(&self, offset_bytes: u64, length_bytes: u32) -> Result<(), Error> {
        self.run(Op::Discard, offset_bytes, length_bytes, false, Vec::new())
            .map(|_| ())
    }

    /// Makes a range read as zeroes.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        fua: bool,
    ) -> Result<(), Error> {
        self.run(Op::WriteZeroes, offset_bytes, length_bytes, fua, Vec::new())
            .map(|_| ())
    }

    fn run(
        &self,
        op: Op,
        offset_bytes: u64,
        length_bytes: u32,
        fua: bool,
        data: Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let (answer, answered) = sync_channel(1);
        let was_empty = {
            let mut mailbox = lock(&self.mailbox);
            if mailbox.closed {
                return Err(Error::Closed);
            }
            mailbox.jobs.push_back(Job {
                op,
                offset_bytes,
                length_bytes,
                fua,
                data,
                answer,
            });
            mailbox.jobs.len() == 1
        };
        // One bell for all that come before the thread looks.
        if was_empty && (&self.bell).write_all(&[0]).is_err() {
            return Err(Error::Closed);
        }
        answered.recv().unwrap_or(Err(Error::Closed))
    }
}

impl Drop for BlockingSession {
    fn drop(&mut self) {
        // Its end is what the thread takes for the end of the session; a bell that is gone has ended it.
        let _ = self.bell.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and there is nobody to hand it to.
            let _ = thread.join();
        }
    }
}

/// What the session's thread does.
fn serve(
    options: Options,
    bell: UnixStream,
    mailbox: &Shared,
    ready: &SyncSender<Result<Welcome, ConnectError>>,
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
        let jobs = TaskGroup::new(&rt);
        let session = Rc::new(session);
        let mut buf = rt.pool().alloc_now(BELLS);
        loop {
            let (rung, back) = bell.recv(buf, 0).await;
            buf = back;
            if !matches!(rung, Ok(count) if count > 0) {
                break;
            }
            let taken = std::mem::take(&mut lock(mailbox).jobs);
            for job in taken {
                jobs.spawn(carry_out(rt.clone(), Rc::clone(&session), job));
            }
        }
        jobs.join().await;
        session.close().await;
        Ok(())
    })
}

async fn carry_out(rt: Rt, session: Rc<Session>, job: Job) {
    let payload = if job.op == Op::Write {
        rt.pool().copy_of(&job.data).into()
    } else {
        bimetal_rt::Payload::empty()
    };
    let call = Call {
        fua: job.fua,
        payload,
        ..Call::new(job.op, job.offset_bytes, job.length_bytes)
    };
    let answer = session.call(call).await.map(|answer| match answer {
        Answer::Data(data) => data.to_vec(),
        Answer::Done | Answer::Runs(_) => Vec::new(),
    });
    // A thread that gave up waiting needs no answer.
    let _ = job.answer.send(answer);
}
