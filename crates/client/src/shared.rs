//! State that the handles and the paths of a session share: the state machine, the waiting
//! requests, and the condition of the target.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bimetal_proto::brp::frame::{check_appended, check_of};
use bimetal_proto::brp::initiator::{Data, Failure, Unusable};
use bimetal_proto::brp::response::Run;
use bimetal_proto::brp::wire::{VERSION, feature};
use bimetal_proto::brp::{Hello, Initiator, Purpose};
use bimetal_rt::collections::Map;
use bimetal_rt::sync::{Event, OnceValue, Permit, Semaphore};
use bimetal_rt::{BufPool, Payload, Rt};

use crate::error::{Error, Final};
use crate::establish::Connector;
use crate::options::Options;

/// Answer to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Success without data.
    Done,
    /// The bytes of a read.
    Data(Payload),
    /// Runs that cover the beginning of the requested range.
    Runs(Vec<Run>),
}

/// The data of a write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes(pub(crate) Payload);

impl Data for Bytes {
    fn check(&self) -> u32 {
        check(&self.0)
    }
}

/// Returns the CRC-32C of a payload. An empty payload has the check 0, which means that there is no
/// check.
pub(crate) fn check(payload: &Payload) -> u32 {
    let slices = payload.slices().iter();
    slices.fold(check_of(&[]), |check, slice| check_appended(check, slice))
}

/// Cell that receives the answer to a request. The caller of the request waits until it is set.
pub(crate) type Outcome = Rc<OnceValue<Result<Answer, Error>>>;

/// A request whose caller waits for its answer. If the caller's future is dropped, the entry
/// remains, because the target might still carry out the request.
pub(crate) struct Waiting {
    pub(crate) outcome: Outcome,
    pub(crate) _place: Permit,
}

/// State that the paths share.
pub(crate) struct Shared {
    pub(crate) rt: Rt,
    pub(crate) options: Options,
    pub(crate) connectors: Vec<Connector>,
    pub(crate) session: [u8; 16],
    pub(crate) next_path: Cell<u32>,
    pub(crate) initiator: RefCell<Initiator<Bytes>>,
    pub(crate) waiting: RefCell<Map<u32, Waiting>>,
    pub(crate) places: Rc<Semaphore>,
    /// Allocator for copies of data that is kept after the answer. The copies come from the heap,
    /// because the buffers of the runtime's pool are for transfers.
    pub(crate) copies: BufPool,
    /// Event that wakes the tasks of the paths if there is something to send, if a path is
    /// abandoned, or if the session ends.
    pub(crate) changed: Event,
    /// Event for changes of the connection to the target: a path has come up or gone down, or a
    /// fence has become necessary or has been answered.
    pub(crate) trouble: Event,
    pub(crate) given_up: RefCell<Vec<u32>>,
    pub(crate) cause: RefCell<String>,
    pub(crate) over: RefCell<Option<Error>>,
    pub(crate) closing: Cell<bool>,
    pub(crate) paths: Cell<usize>,
    pub(crate) paths_broken: Cell<u64>,
    pub(crate) sends: Cell<u64>,
}

impl Shared {
    /// Returns the greeting of the next path.
    pub(crate) fn hello(&self) -> Hello {
        let path = self.next_path.get();
        self.next_path.set(path + 1);
        let crc = if self.options.crc { feature::CRC } else { 0 };
        Hello {
            version_min: VERSION,
            version_max: VERSION,
            features: self.options.mode.features() | crc,
            session: self.session,
            path,
            purpose: Purpose::Open,
            name: self.options.export.clone(),
        }
    }

    /// Hands the result to the caller that waits for a request.
    pub(crate) fn answer(&self, tag: u32, result: Result<Answer, Error>) {
        let waiting = self.waiting.borrow_mut().remove(&tag);
        if let Some(waiting) = waiting {
            waiting.outcome.set(result);
        }
    }

    /// Answers the requests that failed without a response.
    pub(crate) fn answer_failed(&self) {
        loop {
            let failed = self.initiator.borrow_mut().next_failed();
            let Some((tag, failure)) = failed else {
                return;
            };
            self.answer(tag, Err(self.error(failure)));
        }
    }

    /// Converts a failure to an error. The error holds its own copy of the message text, so it
    /// stays valid after the session has ended.
    pub(crate) fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Target(status) => Error::Target(status),
            Failure::Lost => Error::Lost,
            Failure::Broken | Failure::Full => Error::Broken,
            Failure::Unreachable => match &*self.over.borrow() {
                Some(error) => error.clone(),
                None => Error::Unreachable(self.last_words()),
            },
        }
    }

    fn last_words(&self) -> Arc<Final> {
        Arc::new(Final {
            target: self.options.target(),
            cause: self.cause.borrow().clone(),
            patience: self.options.patience,
        })
    }

    /// Reports the condition of the target to the operator.
    pub(crate) fn tell(&self, kind: &'static str, message: impl std::fmt::Display) {
        let target = self.options.target();
        self.rt.notices().post(&target, kind, message);
    }

    /// Ends the session permanently. `why` is the reason why the session can never use the target
    /// again.
    pub(crate) fn end(&self, why: Unusable) {
        self.tell(
            "connection-refused",
            format_args!("{why}: requests fail until this server is restarted"),
        );
        *self.over.borrow_mut() = Some(Error::Unusable(why));
        self.initiator.borrow_mut().give_up();
        self.answer_failed();
        self.closing.set(true);
        self.changed.notify();
    }

    /// Fails every unanswered request and every later request, because the target has been
    /// unreachable for longer than the session option `patience` allows.
    pub(crate) fn give_up(&self) {
        let patience = self.options.patience.as_secs_f64();
        let cause = self.cause.borrow();
        let offline = format_args!(
            "not connected after {patience} s ({cause}); requests fail until a connection \
            succeeds; attempts continue"
        );
        self.tell("connection-offline", offline);
        drop(cause);
        *self.over.borrow_mut() = Some(Error::Unreachable(self.last_words()));
        self.initiator.borrow_mut().give_up();
        self.answer_failed();
        self.changed.notify();
    }

    /// Returns true while requests fail immediately.
    pub(crate) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Returns true when there is no path, or a broken path has not been fenced yet. In this state,
    /// requests might not reach the target.
    pub(crate) fn is_troubled(&self) -> bool {
        self.initiator.borrow().is_troubled()
    }
}
