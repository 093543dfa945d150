//! A device of the stack as a storage: a mirror, a cache, a stripe, or any other configured device.
//!
//! A device belongs to the one thread of its shard. An index can be called by any thread, and the
//! calling thread is blocked during the call. So each call of the storage is a message to the
//! thread of the device, which runs the call as a task of its executor, beside other tasks. In
//! virtual time the executor must not wait for another thread. The thread of the device therefore
//! runs the executor only while there are messages, and virtual time does not advance otherwise
//! ([`serve_virtually`](Serving::serve_virtually)). The storage must never report a write as
//! durable before the device does: `write_durable` is a write with forced unit access, `sync` is a
//! flush.

use std::io;
use std::rc::Rc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use bimetal_block::device::LocalFuture;
use bimetal_block::{Device, Flags, Geometry, IoError, IoResult, Op, Reply, Request};
use bimetal_rt::mailbox::{Receiver, Sender, mailbox};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rt, UringOptions};

use super::{Storage, StorageError};

/// A request that is sent to the thread of the device.
struct Job {
    op: Op,
    offset_bytes: u64,
    len_bytes: u64,
    is_durable: bool,
    data: Vec<u8>,
    answer: SyncSender<Result<Vec<u8>, StorageError>>,
}

/// A storage on a device of the stack. Its length is that of the device when the storage is
/// created.
pub struct DeviceStorage {
    jobs: Sender<Job>,
    len_bytes: u64,
    transfer_bytes_max: usize,
    /// Thread of the device, if the device was opened for this storage alone.
    thread: Option<JoinHandle<()>>,
}

/// The other end of a [`DeviceStorage`], through which the thread of the device serves requests.
pub struct Serving(Receiver<Job>);

/// A device that was opened in a thread of its own.
pub struct Opened {
    /// The device.
    pub device: Rc<dyn Device>,
    /// Future that closes the device and the devices below it. It must be awaited only after the
    /// storage is dropped. It has no result: it reports a failed close itself.
    pub close: LocalFuture<'static, ()>,
}

impl DeviceStorage {
    /// Creates a storage for a device of this geometry, and the [`Serving`] end through which the
    /// thread of the device serves its requests.
    ///
    /// # Errors
    /// When no mailbox can be created.
    pub fn new(geometry: &Geometry) -> io::Result<(DeviceStorage, Serving)> {
        let (jobs, taken) = mailbox()?;
        let storage = DeviceStorage {
            jobs,
            len_bytes: geometry.size_bytes,
            transfer_bytes_max: geometry.transfer_bytes_max as usize,
            thread: None,
        };
        Ok((storage, Serving(taken)))
    }

    /// Opens a device in a new thread with its own runtime. The thread ends when the storage is
    /// dropped.
    ///
    /// # Errors
    /// The reason, as text, why the runtime or the device is not available.
    pub fn start(
        options: UringOptions,
        open: impl AsyncFnOnce(&Rt) -> Result<Opened, String> + Send + 'static,
    ) -> Result<DeviceStorage, String> {
        let (ready, started) = sync_channel(1);
        let thread = std::thread::Builder::new().name("shard".to_owned());
        let thread = thread.spawn(move || {
            if let Err(why) = run(options, open, &ready) {
                // If `start` still waits for the storage, it returns the error to its caller. If it
                // has already received the storage, the error is dropped.
                let _ = ready.send(Err(why));
            }
        });
        let thread = thread.map_err(|error| error.to_string())?;
        let started = started.recv();
        let mut storage = started.unwrap_or_else(|_| Err("its thread ended".to_owned()))?;
        storage.thread = Some(thread);
        Ok(storage)
    }

    fn ask(
        &self,
        op: Op,
        offset_bytes: u64,
        len_bytes: u64,
        is_durable: bool,
        data: Vec<u8>,
    ) -> Result<Vec<u8>, StorageError> {
        let (answer, answered) = sync_channel(1);
        let job = Job {
            op,
            offset_bytes,
            len_bytes,
            is_durable,
            data,
            answer,
        };
        let closed = StorageError::Failed(IoError::Closed.to_errno());
        self.jobs.send(job).map_err(|_| closed)?;
        answered.recv().unwrap_or(Err(closed))
    }

    fn write_all(&self, offset: u64, data: &[u8], is_durable: bool) -> Result<(), StorageError> {
        let mut at = offset;
        for part in data.chunks(self.transfer_bytes_max) {
            let len_bytes = part.len() as u64;
            self.ask(Op::Write, at, len_bytes, is_durable, part.to_vec())?;
            at += len_bytes;
        }
        Ok(())
    }
}

impl Storage for DeviceStorage {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let mut at = offset;
        for part in buffer.chunks_mut(self.transfer_bytes_max) {
            let len_bytes = part.len() as u64;
            let data = self.ask(Op::Read, at, len_bytes, false, Vec::new())?;
            if data.len() != part.len() {
                return Err(StorageError::Failed(IoError::Medium.to_errno()));
            }
            part.copy_from_slice(&data);
            at += len_bytes;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.write_all(offset, data, false)
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.write_all(offset, data, true)
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.ask(Op::Flush, 0, 0, false, Vec::new()).map(drop)
    }

    /// Accepts every length up to that of the device; the length does not change.
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        match len_bytes <= self.len_bytes {
            true => Ok(()),
            false => Err(StorageError::Full),
        }
    }
}

impl Drop for DeviceStorage {
    fn drop(&mut self) {
        self.jobs.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed, and a drop cannot report it to a
            // caller.
            let _ = thread.join();
        }
    }
}

impl Serving {
    /// Serves the requests of the storage as tasks of an executor in real time, until the storage
    /// is dropped.
    ///
    /// # Errors
    /// When the runtime does not support the mailbox.
    pub async fn serve(self, rt: &Rt, device: Rc<dyn Device>) -> io::Result<()> {
        let mut jobs = self.0.listen(rt)?;
        let tasks = TaskGroup::new(rt);
        while let Some(jobs) = jobs.next().await {
            for job in jobs {
                tasks.spawn(carry_out(rt.clone(), Rc::clone(&device), job));
            }
        }
        tasks.join().await;
        Ok(())
    }

    /// Serves the requests of the storage with an executor in virtual time, until the storage is
    /// dropped. The executor runs only while there are requests. If only one thread sends requests,
    /// a run depends on its seed alone.
    pub fn serve_virtually(&self, rt: &Rt, device: &Rc<dyn Device>) {
        while let Some(jobs) = self.0.wait() {
            rt.block_on(async {
                let tasks = TaskGroup::new(rt);
                for job in jobs {
                    tasks.spawn(carry_out(rt.clone(), Rc::clone(device), job));
                }
                tasks.join().await;
            });
        }
    }
}

/// Runs the thread of [`DeviceStorage::start`].
fn run(
    options: UringOptions,
    open: impl AsyncFnOnce(&Rt) -> Result<Opened, String>,
    ready: &SyncSender<Result<DeviceStorage, String>>,
) -> Result<(), String> {
    let rt = Rt::real_time(options).map_err(|error| format!("the runtime: {error}"))?;
    rt.block_on(async {
        let Opened { device, close } = open(&rt).await?;
        let served = match DeviceStorage::new(device.geometry()) {
            // If the thread that called `start` has ended, the storage is dropped by this
            // statement, and serving ends immediately.
            Ok((storage, serving)) => {
                let _ = ready.send(Ok(storage));
                serving.serve(&rt, device).await
            }
            Err(error) => Err(error),
        };
        close.await;
        served.map_err(|error| error.to_string())
    })
}

async fn carry_out(rt: Rt, device: Rc<dyn Device>, job: Job) {
    let flags = match job.is_durable {
        true => Flags::FUA,
        false => Flags::NONE,
    };
    let request = match job.op {
        Op::Write => Request::write(job.offset_bytes, rt.pool().copy_of(&job.data), flags),
        op => Request::without_data(op, job.offset_bytes, job.len_bytes, flags),
    };
    let answer = answer_of(device.submit(request).await);
    // If the requesting thread no longer waits, the reply is not needed.
    let _ = job.answer.send(answer);
}

fn answer_of(result: IoResult) -> Result<Vec<u8>, StorageError> {
    match result {
        Ok(Reply::Data(data)) => Ok(data.to_vec()),
        Ok(Reply::Done | Reply::Extents(_)) => Ok(Vec::new()),
        Err(IoError::NoSpace) => Err(StorageError::Full),
        Err(IoError::OutOfRange) => Err(StorageError::OutOfRange),
        Err(error) => Err(StorageError::Failed(error.to_errno())),
    }
}
