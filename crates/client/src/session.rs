//! A session on this project's runtime. It accepts requests and returns answers, even when paths
//! break.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_proto::brp::wire::request_flag;
use bimetal_proto::brp::{Initiator, Op, Request, Welcome};
use bimetal_rt::sync::{Event, Semaphore};
use bimetal_rt::{BufPool, Payload, Rt, Task};

use crate::error::{ConnectError, Error};
use crate::establish::{Connector, connector, establish};
use crate::options::Options;
use crate::path;
use crate::shared::{Answer, Bytes, Outcome, Shared, Waiting};

/// Maximum number of concurrent requests of a session; further requests wait.
const REQUESTS_MAX: u64 = 1024;

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// First byte of the range.
    pub offset_bytes: u64,
    /// Length of the range; for a write, the length of the payload.
    pub length_bytes: u32,
    /// True when the change must be durable when it is answered.
    pub fua: bool,
    /// True when a write-zeroes must keep the space allocated.
    pub keep_allocated: bool,
    /// Data of a write; empty for other operations.
    pub payload: Payload,
}

impl Call {
    /// Creates a request without data and flags.
    pub fn new(op: Op, offset_bytes: u64, length_bytes: u32) -> Call {
        Call {
            op,
            offset_bytes,
            length_bytes,
            fua: false,
            keep_allocated: false,
            payload: Payload::empty(),
        }
    }

    /// Creates a read.
    pub fn read(offset_bytes: u64, length_bytes: u32) -> Call {
        Call::new(Op::Read, offset_bytes, length_bytes)
    }

    /// Creates a write.
    ///
    /// # Panics
    /// If the payload is longer than 4 GiB.
    pub fn write(offset_bytes: u64, payload: impl Into<Payload>) -> Call {
        let payload = payload.into();
        let length = u32::try_from(payload.len()).expect("a payload is shorter than 4 GiB");
        Call {
            payload,
            ..Call::new(Op::Write, offset_bytes, length)
        }
    }

    /// Creates a flush.
    pub fn flush() -> Call {
        Call::new(Op::Flush, 0, 0)
    }

    fn to_wire(&self) -> Request {
        let fua = if self.fua { request_flag::FUA } else { 0 };
        let keep = if self.keep_allocated {
            request_flag::KEEP_ALLOCATED
        } else {
            0
        };
        Request {
            flags: (fua | keep) & self.op.flags(),
            ..Request::new(self.op, self.offset_bytes, self.length_bytes)
        }
    }
}

/// Statistics of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of paths that are up.
    pub paths: usize,
    /// Number of paths that broke.
    pub paths_broken: u64,
    /// Number of target instances (processes of the target) that the session has used after the
    /// first one. Every further instance means that the target's process was replaced.
    pub instances: u64,
    /// Number of requests that have not been answered.
    pub requests: usize,
    /// Number of sends. The ratio of requests to sends shows how many requests are sent together on
    /// average.
    pub sends: u64,
    /// True while requests fail immediately, because the target has been unreachable for too long
    /// or has been replaced by an instance that this session cannot use.
    pub is_over: bool,
}

/// Waits until the target has been unreachable for longer than `patience`, and then fails the
/// requests. Admits requests again when the target is reachable. Ends when the session closes.
async fn mind_patience(shared: Rc<Shared>) {
    let (rt, patience) = (shared.rt.clone(), shared.options.patience);
    loop {
        shared.trouble.until(|| shared.is_troubled()).await;
        let began = rt.now();
        let tell_back = || {
            let seconds = rt.now().since(began).as_secs_f64();
            let back = format_args!("connected again after {seconds:.1} s");
            shared.tell("connection-back", back);
        };
        let recovered = || !shared.is_troubled();
        if rt
            .timeout(patience, shared.trouble.until(recovered))
            .await
            .is_ok()
        {
            tell_back();
            continue;
        }
        if shared.closing.get() {
            return;
        }
        shared.give_up();
        shared.trouble.until(recovered).await;
        shared.over.borrow_mut().take();
        tell_back();
    }
}

/// A session with a volume of a target. Cloning creates another handle to the same session.
#[derive(Clone)]
pub struct Session {
    shared: Rc<Shared>,
    tasks: Rc<RefCell<Vec<Task<()>>>>,
}

impl Session {
    /// Connects to a target.
    ///
    /// # Errors
    /// If the target cannot be reached at any of its addresses, or refuses the connection.
    ///
    /// # Panics
    /// If the options were not [checked](Options::check).
    pub async fn connect(rt: &Rt, options: Options) -> Result<Session, ConnectError> {
        let connectors = options
            .addresses
            .iter()
            .map(|address| connector(rt, address, options.tls.as_ref()))
            .collect();
        Session::over(rt, connectors, options).await
    }

    /// Connects as [`connect`](Self::connect) does, but through the given connectors. The addresses
    /// in `options` are only used in messages.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect).
    ///
    /// # Panics
    /// If the options were not [checked](Options::check).
    pub async fn over(
        rt: &Rt,
        connectors: Vec<Connector>,
        options: Options,
    ) -> Result<Session, ConnectError> {
        assert_eq!(options.check(), Ok(()), "options are checked");
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            session: rt.random_uuid()?,
            next_path: Cell::new(1),
            initiator: RefCell::new(Initiator::new(options.mode, options.keep_bytes)),
            waiting: RefCell::default(),
            places: Semaphore::new(REQUESTS_MAX),
            copies: BufPool::unregistered(),
            changed: Event::new(),
            trouble: Event::new(),
            given_up: RefCell::default(),
            cause: RefCell::new("no connection yet".to_owned()),
            over: RefCell::default(),
            closing: Cell::new(false),
            paths: Cell::new(0),
            paths_broken: Cell::new(0),
            sends: Cell::new(0),
            connectors,
            options,
        });
        let mut first = None;
        let mut failed = ConnectError::Silent;
        for connector in &shared.connectors {
            let (hello, within) = (shared.hello(), shared.options.patience);
            let path = hello.path;
            match establish(rt, connector, hello, within).await {
                Ok(established) => {
                    first = Some((path, established));
                    break;
                }
                Err(error) => failed = error,
            }
        }
        let Some((path, established)) = first else {
            return Err(failed);
        };
        // The state machine must know the export before the first request, so report this path to
        // it now. The task that runs the path is started below.
        let mut opened = Some(path::Opened::new(&shared, path, established)?);
        let mut tasks: Vec<_> = (0..shared.options.paths)
            .map(|index| rt.spawn(path::run(Rc::clone(&shared), index as usize, opened.take())))
            .collect();
        tasks.push(rt.spawn(mind_patience(Rc::clone(&shared))));
        Ok(Session {
            shared,
            tasks: Rc::new(RefCell::new(tasks)),
        })
    }

    /// Returns the target's latest description of the export.
    pub fn export(&self) -> Welcome {
        let initiator = self.shared.initiator.borrow();
        *initiator
            .welcome()
            .expect("a session begins with a welcome")
    }

    /// Returns the current statistics.
    pub fn statistics(&self) -> Statistics {
        let shared = &self.shared;
        let initiator = shared.initiator.borrow();
        Statistics {
            paths: shared.paths.get(),
            paths_broken: shared.paths_broken.get(),
            instances: initiator.instances() - 1,
            requests: initiator.under_way(),
            sends: shared.sends.get(),
            is_over: shared.is_over(),
        }
    }

    /// Carries out a request. The request continues even if the future is dropped.
    ///
    /// # Errors
    /// The reason why the request failed.
    pub async fn call(&self, call: Call) -> Result<Answer, Error> {
        let shared = &self.shared;
        let place = match shared.places.try_acquire(1) {
            Some(place) => place,
            None => shared.places.acquire(1).await,
        };
        if let Some(error) = &*shared.over.borrow() {
            return Err(error.clone());
        }
        if shared.closing.get() {
            return Err(Error::Closed);
        }
        let (request, data) = (call.to_wire(), self.to_send(call.payload));
        let submitted = shared.initiator.borrow_mut().submit(request, data);
        let tag = submitted.map_err(|failure| shared.error(failure))?;
        let outcome = Outcome::default();
        let waiting = Waiting {
            outcome: Rc::clone(&outcome),
            _place: place,
        };
        shared.waiting.borrow_mut().insert(tag, waiting);
        shared.changed.notify();
        outcome.wait().await
    }

    /// Returns the data of a write as it is sent. If the data must be kept after the answer to the
    /// write, the result is a copy; otherwise the result is the data itself.
    fn to_send(&self, payload: Payload) -> Bytes {
        if payload.is_empty() || !self.shared.initiator.borrow().is_kept() {
            return Bytes(payload);
        }
        let mut copy = self.shared.copies.alloc_now(payload.len());
        payload.copy_to(&mut copy);
        Bytes(copy.freeze().into())
    }

    /// Reads a range.
    ///
    /// # Errors
    /// The errors of [`call`](Self::call).
    pub async fn read(&self, offset_bytes: u64, length_bytes: u32) -> Result<Payload, Error> {
        match self.call(Call::read(offset_bytes, length_bytes)).await? {
            Answer::Data(data) => Ok(data),
            Answer::Done | Answer::Runs(_) => unreachable!("a read is answered with its data"),
        }
    }

    /// Writes data. The data is durable only after a later flush.
    ///
    /// # Errors
    /// The errors of [`call`](Self::call).
    pub async fn write(&self, offset_bytes: u64, payload: impl Into<Payload>) -> Result<(), Error> {
        self.call(Call::write(offset_bytes, payload))
            .await
            .map(|_| ())
    }

    /// Makes all answered changes durable.
    ///
    /// # Errors
    /// The errors of [`call`](Self::call), and [`Error::Lost`], once, when the target has lost any
    /// of the answered changes.
    pub async fn flush(&self) -> Result<(), Error> {
        self.call(Call::flush()).await.map(|_| ())
    }

    /// Fails every unanswered request and every later request, as if the target had been
    /// unreachable for longer than the patience.
    pub(crate) fn give_up(&self) {
        *self.shared.cause.borrow_mut() =
            "the target did not answer the requests before the end".to_owned();
        self.shared.give_up();
    }

    /// Returns the maximum time for which a target can be unreachable before requests fail.
    pub(crate) fn patience(&self) -> Duration {
        self.shared.options.patience
    }

    /// Ends the session: waits for the requests in flight, and closes the paths in an orderly way.
    /// It does not flush.
    ///
    /// If the target does not answer, because it is unreachable or stopped, this waits for at most
    /// [`Options::patience`]. The requests without an answer then fail, and the connections are
    /// cut.
    pub async fn close(&self) {
        let shared = &self.shared;
        shared.closing.set(true);
        shared.changed.notify();
        let mut paths = self.tasks.take();
        let minding = paths.split_off(paths.len().min(shared.options.paths as usize));
        let over = async {
            for path in &mut paths {
                path.await;
            }
        };
        // If the session has already been abandoned, do not wait.
        let within = if shared.is_over() {
            Duration::ZERO
        } else {
            shared.options.patience
        };
        if shared.rt.timeout(within, over).await.is_err() {
            self.give_up();
        }
        for task in paths.into_iter().chain(minding) {
            task.cancel().await;
        }
    }
}
