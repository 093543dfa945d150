//! The paths of a session. Each path is run by a task that connects, sends the permitted requests,
//! receives responses, and reconnects when the connection breaks.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bimetal_proto::brp::inbound::ToInitiator;
use bimetal_proto::brp::initiator::{Completed, Sending, Unusable};
use bimetal_proto::brp::response::decode_runs;
use bimetal_proto::brp::wire::{Status, feature, kind};
use bimetal_proto::brp::{Completion, InitiatorInbound, Op, ProtocolError, Request};
use bimetal_rt::net::{Inbox, Stream};
use bimetal_rt::{Payload, Rt};
use futures_util::future::{Either, select};

use crate::establish::{Established, establish};
use crate::shared::{Answer, Bytes, Shared, check};

/// Size of the receive buffer in bytes. It is larger than the buffer that the kernel gives a UNIX
/// socket by default.
const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// Pause before the second attempt to connect. The pause doubles with each attempt, up to the
/// maximum.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A path that has been reported to the state machine
/// ([`Initiator`](bimetal_proto::brp::Initiator)) and has not been used yet.
pub(crate) struct Opened {
    number: u32,
    stream: Stream,
    inbound: InitiatorInbound,
    early: Vec<u8>,
    crc: bool,
}

impl Opened {
    /// Reports a new path to the state machine.
    pub(crate) fn new(
        shared: &Shared,
        number: u32,
        established: Established,
    ) -> Result<Opened, Unusable> {
        let Established {
            stream,
            welcome,
            inbound,
            outbound,
            early,
        } = established;
        let (before, given_up) = {
            let mut initiator = shared.initiator.borrow_mut();
            let before = initiator.welcome().copied();
            (before, initiator.path_up(number, &welcome, outbound)?)
        };
        if let Some(before) = before
            && before.size_bytes < welcome.size_bytes
        {
            let (was, is) = (before.size_bytes, welcome.size_bytes);
            shared.tell(
                "connection-changed",
                format_args!(
                    "the export has grown from {was} bytes to {is}; the added space is used after \
                    the next start"
                ),
            );
        }
        shared.given_up.borrow_mut().extend(given_up);
        shared.answer_failed();
        shared.paths.set(shared.paths.get() + 1);
        shared.changed.notify();
        shared.trouble.notify();
        Ok(Opened {
            number,
            stream,
            inbound,
            early,
            crc: welcome.agreed(feature::CRC),
        })
    }
}

/// Reason why a path ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the session is closed")]
    Closed,
    #[error("the target closed the connection")]
    Left,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the target violated the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    #[error("the target is stopping, or data was corrupted in transit")]
    Unwilling,
    #[error("another instance of the target answers")]
    GivenUp,
}

/// A path that is up. Dropping this value cuts the connection. Cancelling the task of the path
/// drops this value, too.
struct Up<'a> {
    shared: &'a Shared,
    stream: Stream,
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        self.stream.shutdown();
        self.shared.paths.set(self.shared.paths.get() - 1);
    }
}

/// Keeps a path up until the session ends.
pub(crate) async fn run(shared: Rc<Shared>, index: usize, first: Option<Opened>) {
    let mut opened = first;
    loop {
        let path = match opened.take() {
            Some(path) => path,
            None => match reconnect(&shared, index).await {
                Some(path) => path,
                None => return,
            },
        };
        let number = path.number;
        let end = converse(&shared, path).await;
        shared
            .given_up
            .borrow_mut()
            .retain(|given_up| *given_up != number);
        if let End::Closed = end {
            return;
        }
        shared.tell(
            "connection-lost",
            format_args!("a connection failed ({end}); requests wait for another connection"),
        );
        *shared.cause.borrow_mut() = end.to_string();
        shared.paths_broken.set(shared.paths_broken.get() + 1);
        shared.initiator.borrow_mut().path_down(number);
        shared.answer_failed();
        // Wakes the waiting tasks, because another path might have to fence this path and take over
        // its requests.
        shared.changed.notify();
        shared.trouble.notify();
    }
}

/// Tries to connect until an attempt succeeds. Returns `None` when the session ends.
async fn reconnect(shared: &Rc<Shared>, index: usize) -> Option<Opened> {
    let mut pause = PAUSE_MIN;
    for attempt in index.. {
        if shared.closing.get() && (shared.initiator.borrow().under_way() == 0 || shared.is_over())
        {
            return None;
        }
        let connector = &shared.connectors[attempt % shared.connectors.len()];
        let hello = shared.hello();
        let number = hello.path;
        let attempt = establish(&shared.rt, connector, hello, shared.options.patience);
        let why = match attempt.await {
            Ok(established) => match Opened::new(shared, number, established) {
                Ok(opened) => return Some(opened),
                Err(Unusable::Gone) => {
                    shared.end(Unusable::Gone);
                    return None;
                }
                Err(why @ Unusable::Changed(_)) => {
                    shared.tell(
                        "connection-refused",
                        format_args!(
                            "the server is reachable, but cannot be used as before: {why}; undo \
                            that change, or restart this server"
                        ),
                    );
                    why.into()
                }
            },
            // `why` can be a refusal because another path of the session has connected meanwhile
            // with a higher number, so that this path's number is too low. The next attempt uses a
            // higher number.
            Err(why) => why,
        };
        *shared.cause.borrow_mut() = why.to_string();
        let closing = shared.changed.until(|| shared.closing.get());
        // If the session is being closed, this code only shortens the pause. The check at the start
        // of the loop decides whether to continue.
        if shared.rt.timeout(pause, closing).await.is_ok() {
            shared.rt.sleep(PAUSE_MIN).await;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
    None
}

/// Sends and receives until the path ends.
async fn converse(shared: &Rc<Shared>, path: Opened) -> End {
    let up = Up {
        shared,
        stream: path.stream,
    };
    let traffic = Traffic {
        shared,
        number: path.number,
        stream: &up.stream,
        crc: path.crc,
        inbound: RefCell::new(path.inbound),
    };
    let send = std::pin::pin!(traffic.send());
    let receive = std::pin::pin!(traffic.receive(path.early));
    match select(send, receive).await {
        Either::Left((end, _)) => end,
        Either::Right((Err(end), _)) => end,
        Either::Right((Ok(never), _)) => match never {},
    }
}

/// The two directions of a path.
struct Traffic<'a> {
    shared: &'a Rc<Shared>,
    number: u32,
    stream: &'a Stream,
    crc: bool,
    inbound: RefCell<InitiatorInbound>,
}

impl Traffic<'_> {
    fn is_given_up(&self) -> bool {
        self.shared.given_up.borrow().contains(&self.number)
    }

    /// Returns true when the session is being closed and all requests have ended or been abandoned.
    fn is_closed(&self) -> bool {
        let shared = self.shared;
        shared.closing.get() && (shared.initiator.borrow().under_way() == 0 || shared.is_over())
    }

    async fn send(&self) -> End {
        let (shared, number) = (self.shared, self.number);
        let mut sending = Sending::default();
        loop {
            let ready = || {
                let something = shared.initiator.borrow().has_something_for(number);
                something || self.is_given_up() || self.is_closed()
            };
            shared.changed.until(ready).await;
            if self.is_given_up() {
                return End::GivenUp;
            }
            if self.is_closed() {
                let goodbye = shared.initiator.borrow_mut().goodbye(number);
                let goodbye = shared.rt.pool().copy_of(&goodbye);
                // The path ends in any case, so an error is ignored: the target need not receive
                // this frame.
                let _ = self.stream.send(goodbye.into()).await;
                return End::Closed;
            }
            if !shared
                .initiator
                .borrow_mut()
                .next_send(number, &mut sending)
            {
                continue;
            }
            for _ in 0..sending.fences {
                self.inbound.borrow_mut().expect_fenced();
            }
            shared.sends.set(shared.sends.get() + 1);
            let payload = gather(&shared.rt, &mut sending);
            if let Err(error) = self.stream.send(payload).await {
                return End::Io(error);
            }
        }
    }

    async fn receive(&self, early: Vec<u8>) -> Result<Infallible, End> {
        let shared = self.shared;
        let mut inbox = Inbox::new(shared.rt.pool().alloc_now(RECEIVE_BUFFER_BYTES));
        inbox.put(&early);
        let mut completions = Vec::new();
        loop {
            let message = {
                let mut inbound = self.inbound.borrow_mut();
                inbound.next(inbox.unread(), &mut completions)?
            };
            let Some((message, taken)) = message else {
                if !inbox.receive(self.stream).await? {
                    return Err(End::Left);
                }
                continue;
            };
            inbox.consume(taken);
            match message {
                ToInitiator::Response => {
                    for completion in &completions {
                        self.completion(&mut inbox, completion).await?;
                    }
                }
                ToInitiator::Fenced(path) => {
                    shared.initiator.borrow_mut().fenced(self.number, path)?;
                    shared.trouble.notify();
                }
                ToInitiator::Welcome(_)
                | ToInitiator::Refused(_)
                | ToInitiator::Listed(_)
                | ToInitiator::ListEnd => {
                    return Err(ProtocolError::UnexpectedFrame(kind::WELCOME).into());
                }
            }
            // Some waiting requests conflicted with the requests that have now been answered. They
            // can perhaps be sent now.
            shared.changed.notify();
        }
    }

    /// Processes one result with its data.
    async fn completion(&self, inbox: &mut Inbox, completion: &Completion) -> Result<(), End> {
        let initiator = &self.shared.initiator;
        let request = *initiator.borrow().expect(self.number, completion)?;
        let len = completion.length_bytes as usize;
        let data = self.data(inbox, len).await?;
        if self.crc && check(&data) != completion.check {
            return Err(ProtocolError::WrongCheck.into());
        }
        let answer = answer(&request, completion, data)?;
        let completed = initiator.borrow_mut().complete(self.number, completion)?;
        match completed {
            Completed::Submitted(result) => {
                let result = result
                    .map(|()| answer)
                    .map_err(|failure| self.shared.error(failure));
                self.shared.answer(completion.tag, result);
            }
            Completed::Unheard => {}
            Completed::PathEnds => return Err(End::Unwilling),
        }
        Ok(())
    }

    async fn data(&self, inbox: &mut Inbox, len: usize) -> Result<Payload, End> {
        if len == 0 {
            return Ok(Payload::empty());
        }
        let buf = self.shared.rt.pool().alloc_now(len);
        let filled = inbox.fill(self.stream, buf, |_| {}).await?;
        Ok(filled.ok_or(End::Left)?.freeze().into())
    }
}

fn answer(request: &Request, completion: &Completion, data: Payload) -> Result<Answer, End> {
    Ok(match request.op {
        _ if completion.status != Status::Ok => Answer::Done,
        Op::Read => Answer::Data(data),
        Op::Extents => Answer::Runs(decode_runs(request, &data.to_vec())?),
        _ => Answer::Done,
    })
}

/// Combines the frame heads and the data of one send into one payload. The heads are slices of one
/// buffer, and the data is not copied.
fn gather(rt: &Rt, sending: &mut Sending<Bytes>) -> Payload {
    let heads = rt.pool().copy_of(&sending.heads);
    let mut payload = Payload::empty();
    let mut start = 0;
    for (place, Bytes(data)) in sending.data.drain(..) {
        payload.push(heads.slice(start..place));
        payload.append(data);
        start = place;
    }
    payload.push(heads.slice(start..heads.len()));
    payload
}
