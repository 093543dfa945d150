//! A session for ordinary threads: a thread of its own has the runtime and the session, and the others hand
//! it their requests.

use std::io;
use std::rc::Rc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use bimetal_proto::brp::{Op, Welcome};
use bimetal_rt::mailbox::{Receiver, Sender, mailbox};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rt, UringOptions};

use crate::error::{ConnectError, Error};
use crate::options::Options;
use crate::session::{Answer, Call, Session};

/// Buffers of the session's thread.
const POOL_BYTES: usize = 32 << 20;

/// A request on its way to the session's thread.
struct Job {
    op: Op,
    offset_bytes: u64,
    length_bytes: u32,
    fua: bool,
    data: Vec<u8>,
    answer: SyncSender<Result<Vec<u8>, Error>>,
}

/// See the module. Dropping it ends the session after what is under way; it does not flush.
pub struct BlockingSession {
    /// Every thread waits for its own answer, so there are never more jobs than threads.
    jobs: Sender<Job>,
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
        let (jobs, taken) = mailbox()?;
        let (ready, connected) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("brp".to_owned())
            .spawn(move || {
                let outcome = serve(options, taken, &ready);
                if let Err(error) = outcome {
                    // Whoever connects hears of it, unless it has heard of success before.
                    let _ = ready.send(Err(error));
                }
            })?;
        match connected.recv() {
            Ok(Ok(export)) => Ok(BlockingSession {
                jobs,
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
        let job = Job {
            op,
            offset_bytes,
            length_bytes,
            fua,
            data,
            answer,
        };
        if self.jobs.send(job).is_err() {
            return Err(Error::Closed);
        }
        answered.recv().unwrap_or(Err(Error::Closed))
    }
}

impl Drop for BlockingSession {
    fn drop(&mut self) {
        self.jobs.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and there is nobody to hand it to.
            let _ = thread.join();
        }
    }
}

/// What the session's thread does.
fn serve(
    options: Options,
    taken: Receiver<Job>,
    ready: &SyncSender<Result<Welcome, ConnectError>>,
) -> Result<(), ConnectError> {
    let rt = Rt::real_time(UringOptions {
        pool_bytes: POOL_BYTES,
        ..UringOptions::default()
    })?;
    rt.block_on(async {
        let session = Session::connect(&rt, options).await?;
        let mut taken = taken.listen(&rt)?;
        if ready.send(Ok(session.export())).is_err() {
            session.close().await;
            return Ok(());
        }
        let jobs = TaskGroup::new(&rt);
        let session = Rc::new(session);
        while let Some(taken) = taken.next().await {
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
