//! A channel of a remote device: a sequence of connections, one at a time, and the requests that
//! are sent over them.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bimetal_proto::nbd::reply_decoder::{
    ReplyBody, check_reply, decode_reply_header, extents, simple_payload_bytes,
};
use bimetal_proto::nbd::request::encode_request;
use bimetal_proto::nbd::wire::{REQUEST_BYTES, command_flag};
use bimetal_proto::nbd::{
    self, ClientSession, Command, Errno, ProtocolError, ReadCoverage, ReplyHeader,
};
use bimetal_rt::net::Stream;
use bimetal_rt::sync::{Event, OnceValue, Permit, Semaphore};
use bimetal_rt::{BufMut, BufPool, Instant, Payload};
use futures_util::future::{Either, select};

use super::establish::{Established, establish};
use super::{Shared, agreement, from_wire};
use crate::error::IoError;
use crate::request::{Extent, IoResult, Reply};

/// Maximum number of requests in flight on one connection; further requests wait.
const REQUESTS_MAX: u64 = 128;
/// Size of the receive buffer.
const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// Pause before the second attempt to connect. The pause doubles with each further attempt, up to
/// `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Number of broken connections after which a request in flight fails, because the request itself
/// might be the cause.
const BREAKS_MAX: u32 = 8;

/// A request whose reply is not complete. It outlives the future that waits for the reply, because
/// the server might still execute the request.
struct Call {
    request: nbd::Request,
    payload: Payload,
    /// Buffer for the data of a read; the part that has arrived is filled.
    data: Option<BufMut>,
    coverage: ReadCoverage,
    runs: Vec<Extent>,
    error: Option<Errno>,
    /// Number of connections that broke while this request was in flight.
    breaks: u32,
    outcome: Rc<OnceValue<IoResult>>,
    _place: Permit,
}

impl Call {
    /// Discards the received part of the reply, because the request is sent again.
    fn restart(&mut self) {
        self.coverage = ReadCoverage::new(self.request);
        self.runs.clear();
        self.error = None;
    }

    fn reply(&mut self) -> IoResult {
        if let Some(error) = self.error {
            return Err(error_of(error));
        }
        Ok(match self.request.command() {
            Some(Command::Read) => {
                let data = self.data.take().expect("a read has a buffer");
                Reply::Data(data.freeze().into())
            }
            Some(Command::BlockStatus) => Reply::Extents(std::mem::take(&mut self.runs)),
            _ => Reply::Done,
        })
    }
}

/// Maps a server's error number to an error for the layers above.
fn error_of(error: Errno) -> IoError {
    match error {
        Errno::Perm => IoError::ReadOnly,
        Errno::Io => IoError::Medium,
        Errno::NoMem | Errno::Overflow => IoError::Resource,
        Errno::Inval => IoError::Misaligned,
        Errno::NoSpc => IoError::NoSpace,
        Errno::NotSup => IoError::Unsupported,
        Errno::Shutdown => IoError::Offline,
    }
}

/// Reason why a connection ended.
#[derive(Debug)]
enum End {
    /// The device is closed and all requests are complete.
    Closed,
    /// The connection broke, or the server violated the protocol. A new connection might work.
    Broken(String),
}

fn broken(why: &str) -> End {
    End::Broken(why.to_owned())
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Broken(error.to_string())
    }
}

impl From<ProtocolError> for End {
    fn from(error: ProtocolError) -> End {
        End::Broken(format!("the server violated the protocol: {error}"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Online,
    Connecting,
    /// The connection was not restored before the deadline. Requests fail immediately, while the
    /// channel continues to attempt to connect.
    Offline,
}

/// A channel of a remote device; see the module.
pub(super) struct Channel {
    /// Index among the channels of the device.
    pub(super) index: usize,
    calls: RefCell<bimetal_rt::collections::Map<u64, Call>>,
    /// Cookies of calls that wait to be sent.
    unsent: RefCell<Vec<u64>>,
    next_cookie: Cell<u64>,
    /// Number of replies that have been received completely.
    replies: Cell<u64>,
    places: Rc<Semaphore>,
    condition: Cell<Condition>,
    changed: Event,
}

impl Channel {
    pub(super) fn new(index: usize) -> Rc<Channel> {
        Rc::new(Channel {
            index,
            calls: RefCell::default(),
            unsent: RefCell::default(),
            next_cookie: Cell::new(0),
            replies: Cell::new(0),
            places: Semaphore::new(REQUESTS_MAX),
            condition: Cell::new(Condition::Connecting),
            changed: Event::new(),
        })
    }

    pub(super) fn is_offline(&self) -> bool {
        self.condition.get() == Condition::Offline
    }

    pub(super) fn is_online(&self) -> bool {
        self.condition.get() == Condition::Online
    }

    /// Returns the number of requests in flight.
    pub(super) fn requests(&self) -> usize {
        self.calls.borrow().len()
    }

    /// Wakes the channel, so that it checks the state of the device again.
    pub(super) fn wake(&self) {
        self.changed.notify();
    }

    /// Sends one NBD request and waits for its reply.
    pub(super) async fn call(
        &self,
        shared: &Shared,
        request: nbd::Request,
        payload: Payload,
    ) -> IoResult {
        let place = self.places.acquire(1).await;
        if shared.closing.get() {
            return Err(IoError::Closed);
        }
        if self.is_offline() {
            return Err(IoError::Offline);
        }
        let cookie = self.take_cookie();
        let request = nbd::Request { cookie, ..request };
        let is_read = request.command() == Some(Command::Read);
        let len = request.length_bytes as usize;
        let outcome = Rc::new(OnceValue::default());
        let call = Call {
            request,
            payload,
            data: is_read.then(|| shared.rt.pool().alloc_now(len)),
            coverage: ReadCoverage::new(request),
            runs: Vec::new(),
            error: None,
            breaks: 0,
            outcome: Rc::clone(&outcome),
            _place: place,
        };
        self.calls.borrow_mut().insert(cookie, call);
        self.unsent.borrow_mut().push(cookie);
        self.changed.notify();
        outcome.wait().await
    }

    /// Counts a broken connection for every request in flight, and fails requests that have reached
    /// [`BREAKS_MAX`].
    fn note_break(&self) {
        self.calls.borrow_mut().retain(|_, call| {
            call.breaks += 1;
            if call.breaks >= BREAKS_MAX {
                call.outcome.set(Err(IoError::Transport));
            }
            call.breaks < BREAKS_MAX
        });
    }

    /// Queues all requests in flight to be sent again, oldest first. Fails requests that the server
    /// of the new session does not support.
    fn restart(&self, session: &ClientSession) {
        let mut calls = self.calls.borrow_mut();
        calls.retain(|_, call| {
            let takes = agreement::takes(session, &call.request);
            if !takes {
                call.outcome.set(Err(IoError::Transport));
            }
            takes
        });
        let mut cookies: Vec<u64> = calls.keys().copied().collect();
        cookies.sort_unstable();
        calls.values_mut().for_each(Call::restart);
        *self.unsent.borrow_mut() = cookies;
    }

    /// Moves the requests in flight to the channel `to`, which sends them again.
    fn hand_over(&self, to: &Channel) {
        if to.is_offline() {
            return self.fail_all(IoError::Transport);
        }
        self.unsent.borrow_mut().clear();
        let mut calls: Vec<_> = self.calls.take().into_iter().collect();
        calls.sort_unstable_by_key(|(cookie, _)| *cookie);
        for (_, mut call) in calls {
            call.request.cookie = to.take_cookie();
            call.restart();
            to.unsent.borrow_mut().push(call.request.cookie);
            to.calls.borrow_mut().insert(call.request.cookie, call);
        }
        to.wake();
    }

    fn take_cookie(&self) -> u64 {
        let cookie = self.next_cookie.get();
        self.next_cookie.set(cookie + 1);
        cookie
    }

    fn fail_all(&self, error: IoError) {
        self.unsent.borrow_mut().clear();
        let calls = std::mem::take(&mut *self.calls.borrow_mut());
        for (_, call) in calls {
            call.outcome.set(Err(error));
        }
    }

    /// Collects the unsent requests into one payload. The headers are in one new buffer; the data
    /// is referenced, not copied.
    fn gather(&self, pool: &BufPool) -> Payload {
        let cookies = std::mem::take(&mut *self.unsent.borrow_mut());
        let calls = self.calls.borrow();
        let mut heads = pool.alloc_now(cookies.len() * REQUEST_BYTES);
        let waiting = || cookies.iter().filter_map(|cookie| calls.get(cookie));
        for (head, call) in heads.chunks_exact_mut(REQUEST_BYTES).zip(waiting()) {
            head.copy_from_slice(&encode_request(&call.request));
        }
        let heads = heads.freeze();
        let mut payload = Payload::empty();
        for (index, call) in waiting().enumerate() {
            let start = index * REQUEST_BYTES;
            payload.push(heads.slice(start..start + REQUEST_BYTES));
            payload.append(call.payload.clone());
        }
        payload
    }
}

/// Keeps a channel connected until the device is closed.
pub(super) async fn run(shared: Rc<Shared>, channel: Rc<Channel>, first: Option<Established>) {
    let mut connection = first;
    let mut broke_at = None;
    loop {
        let established = match connection.take() {
            Some(established) => established,
            None => match reconnect(&shared, &channel, broke_at).await {
                Some(established) => established,
                None => return,
            },
        };
        if shared.is_spare(&channel) {
            stand_by(&shared, &channel).await;
            broke_at = None;
            continue;
        }
        channel.restart(&established.session);
        channel.condition.set(Condition::Online);
        let replies = channel.replies.get();
        let why = match converse(&shared, &channel, established).await {
            End::Closed => return,
            End::Broken(why) => why,
        };
        channel.condition.set(Condition::Connecting);
        shared.note_break();
        channel.note_break();
        broke_at = Some(shared.rt.now());
        if !shared.is_spare(&channel) {
            let patience = shared.reconnect.as_secs_f64();
            let waits =
                format_args!("the connection failed ({why}); requests wait for {patience} s");
            shared.tell("connection-lost", waits);
        }
        if channel.replies.get() == replies && channel.requests() > 0 {
            // If a server accepts connections but serves no request, the channel pauses before the
            // next attempt.
            shared.rt.sleep(PAUSE_MAX).await;
        }
    }
}

/// Keeps a channel without a connection while only the first channel is in use, and moves the
/// requests of this channel to the first channel.
async fn stand_by(shared: &Shared, channel: &Channel) {
    while shared.is_spare(channel) && !shared.closing.get() {
        channel.hand_over(&shared.channels[0]);
        let is_needed = || !shared.is_spare(channel) || channel.requests() > 0;
        let waken = || is_needed() || shared.closing.get();
        channel.changed.until(waken).await;
    }
    channel.hand_over(&shared.channels[0]);
}

/// Attempts to connect until an attempt succeeds; returns `None` when the device is closed.
/// `broke_at` is the time at which the previous connection broke, or `None` for the first
/// connection.
async fn reconnect(
    shared: &Shared,
    channel: &Channel,
    broke_at: Option<Instant>,
) -> Option<Established> {
    let began = broke_at.unwrap_or(shared.rt.now());
    let deadline = began + shared.reconnect;
    let mut pause = PAUSE_MIN;
    loop {
        let offline = channel.is_offline();
        if shared.closing.get() && (channel.requests() == 0 || offline) {
            return None;
        }
        let left = deadline.since(shared.rt.now());
        let within = if offline { Duration::MAX } else { left };
        let why = match attempt(shared, within).await {
            Ok(established) => {
                if broke_at.is_some() {
                    let seconds = shared.rt.now().since(began).as_secs_f64();
                    let back = format_args!("connected again after {seconds:.1} s");
                    shared.tell("connection-back", back);
                }
                return Some(established);
            }
            Err(why) => why,
        };
        if !offline && shared.rt.now() + pause > deadline {
            channel.condition.set(Condition::Offline);
            channel.fail_all(IoError::Transport);
            let patience = shared.reconnect.as_secs_f64();
            let offline = format_args!(
                "not connected after {patience} s ({why}); requests fail until a connection \
                succeeds; attempts continue"
            );
            shared.tell("connection-offline", offline);
        }
        let closing = channel.changed.until(|| shared.closing.get());
        // A close of the device only ends the pause early; the start of the loop decides whether to
        // continue.
        if shared.rt.timeout(pause, closing).await.is_ok() && channel.requests() > 0 {
            shared.rt.sleep(pause).await;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Attempts once to connect to the server. Checks that the server is still usable, and reports
/// changes in the features that it offers.
///
/// # Errors
/// A message that says why there is no connection.
async fn attempt(shared: &Shared, within: Duration) -> Result<Established, String> {
    let (connector, secure) = (&shared.connector, shared.secure.as_ref());
    let attempt = establish(&shared.rt, connector, secure, &shared.export, within).await;
    let established = attempt.map_err(|failure| failure.to_string())?;
    match shared.agree(&established.session) {
        Ok(changes) => {
            if !changes.is_empty() {
                shared.tell("connection-changed", changes.join("; "));
            }
            Ok(established)
        }
        Err(why) => {
            shared.tell(
                "connection-refused",
                format_args!(
                    "the server is reachable, but cannot be used as before: {why}; undo that \
                    change, or restart this server"
                ),
            );
            Err(why)
        }
    }
}

/// Sends requests and receives replies until the connection ends.
async fn converse(shared: &Shared, channel: &Channel, established: Established) -> End {
    let Established {
        stream,
        early,
        session,
    } = established;
    let end = {
        let send = std::pin::pin!(send(shared, channel, &stream));
        let receive = std::pin::pin!(receive(shared, channel, (&stream, &session), early));
        match select(send, receive).await {
            Either::Left((end, _)) => end,
            Either::Right((Err(end), _)) => end,
            Either::Right((Ok(never), _)) => match never {},
        }
    };
    stream.shutdown();
    end
}

async fn send(shared: &Shared, channel: &Channel, stream: &Stream) -> End {
    loop {
        let is_closed = || shared.closing.get() && channel.calls.borrow().is_empty();
        let must_leave = || shared.is_spare(channel);
        channel
            .changed
            .until(|| !channel.unsent.borrow().is_empty() || is_closed() || must_leave())
            .await;
        if must_leave() {
            return broken("only one connection is possible now, and another one is used");
        }
        if is_closed() {
            let bye = nbd::Request {
                flags: 0,
                command_wire: Command::Disconnect as u16,
                cookie: 0,
                offset_bytes: 0,
                length_bytes: 0,
            };
            let bye = shared.rt.pool().copy_of(&encode_request(&bye));
            // The device is closed, so it does not matter whether the server receives this last
            // message.
            let _ = stream.send(bye.into()).await;
            return End::Closed;
        }
        let payload = channel.gather(shared.rt.pool());
        if let Err(error) = stream.send(payload).await {
            return error.into();
        }
    }
}

/// Received bytes that have not been consumed.
struct Input<'s> {
    stream: &'s Stream,
    buf: Option<BufMut>,
    start: usize,
    end: usize,
}

impl Input<'_> {
    fn unread(&self) -> &[u8] {
        let buf = self
            .buf
            .as_ref()
            .expect("the buffer is here between receives");
        &buf[self.start..self.end]
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "only received bytes are consumed");
    }

    async fn receive(&mut self) -> Result<(), End> {
        let mut buf = self.buf.take().expect("one receive at a time");
        buf.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let (result, buf) = self.stream.recv(buf, self.end).await;
        self.buf = Some(buf);
        match result? {
            0 => Err(broken("the server has closed the connection")),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }

    /// Receives `len` bytes of the stream and passes them to `take` piece by piece as they arrive.
    async fn each(&mut self, len: usize, mut take: impl FnMut(&[u8])) -> Result<(), End> {
        let mut left = len;
        while left > 0 {
            if self.unread().is_empty() {
                self.receive().await?;
            }
            let here = left.min(self.unread().len());
            take(&self.unread()[..here]);
            self.consume(here);
            left -= here;
        }
        Ok(())
    }
}

/// Type without values: the success type of [`receive`], which ends only with an error.
enum Never {}

async fn receive(
    shared: &Shared,
    channel: &Channel,
    (stream, session): (&Stream, &ClientSession),
    early: Vec<u8>,
) -> Result<Never, End> {
    let mut buf = shared.rt.pool().alloc_now(RECEIVE_BUFFER_BYTES);
    buf[..early.len()].copy_from_slice(&early);
    let end = early.len();
    let mut input = Input {
        stream,
        buf: Some(buf),
        start: 0,
        end,
    };
    let structured = session.negotiated.structured_replies;
    loop {
        match decode_reply_header(input.unread(), structured)? {
            None => input.receive().await?,
            Some((header, taken)) => {
                input.consume(taken);
                reply(shared, channel, session, &mut input, &header).await?;
            }
        }
    }
}

/// Receives one message of a reply.
async fn reply(
    shared: &Shared,
    channel: &Channel,
    session: &ClientSession,
    input: &mut Input<'_>,
    header: &ReplyHeader,
) -> Result<(), End> {
    let taken = Taken::new(channel, header.cookie);
    let mut taken = taken.ok_or_else(|| broken("an answer that matches no request"))?;
    let call = taken.call.as_mut().expect("it was just taken");
    message(session, call, input, header).await?;
    if header.done {
        if call.error == Some(Errno::Shutdown) {
            // The server is shutting down and has not executed the request, so the request is sent
            // again over the next connection.
            return Err(broken("the server is shutting down"));
        }
        channel.replies.set(channel.replies.get() + 1);
        let command = call.request.command();
        if call.error.is_none() && command.is_some_and(Command::writes) {
            shared.note_change(call.request.has(command_flag::FUA));
        }
        let reply = call.reply();
        call.outcome.set(reply);
        taken.call = None;
        if shared.closing.get() {
            channel.wake();
        }
    }
    Ok(())
}

/// Guard of a call that is removed from the table of calls while its reply is received. If the
/// guard is dropped before the reply is complete, the call returns to the table, so that the
/// request is sent again over the next connection.
struct Taken<'c> {
    channel: &'c Channel,
    call: Option<Call>,
}

impl<'c> Taken<'c> {
    fn new(channel: &'c Channel, cookie: u64) -> Option<Taken<'c>> {
        let call = channel.calls.borrow_mut().remove(&cookie)?;
        Some(Taken {
            channel,
            call: Some(call),
        })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            let mut calls = self.channel.calls.borrow_mut();
            calls.insert(call.request.cookie, call);
        }
    }
}

async fn message(
    session: &ClientSession,
    call: &mut Call,
    input: &mut Input<'_>,
    header: &ReplyHeader,
) -> Result<(), End> {
    let request = call.request;
    check_reply(&request, &session.negotiated, header)?;
    let len = header.payload_bytes as usize;
    match header.body {
        ReplyBody::Simple(error) => {
            call.error = error;
            let len = simple_payload_bytes(&request, error);
            if len > 0 {
                call.coverage.add(request.offset_bytes, len)?;
                content(call, input, request.offset_bytes, len as usize).await?;
            }
        }
        ReplyBody::None => {}
        ReplyBody::OffsetData { offset_bytes } => {
            call.coverage.add(offset_bytes, header.payload_bytes)?;
            content(call, input, offset_bytes, len).await?;
        }
        ReplyBody::OffsetHole {
            offset_bytes,
            hole_bytes,
        } => {
            call.coverage.add(offset_bytes, hole_bytes)?;
            let start = (offset_bytes - request.offset_bytes) as usize;
            let data = call.data.as_mut().expect("a read has a buffer");
            data[start..start + hole_bytes as usize].fill(0);
        }
        ReplyBody::BlockStatus { .. } => {
            let mut payload = Vec::new();
            input
                .each(len, |bytes| payload.extend_from_slice(bytes))
                .await?;
            call.runs = extents(&request, &payload)?.iter().map(from_wire).collect();
        }
        ReplyBody::Error { error, .. } => {
            call.error = Some(error);
            input.each(len, |_words| {}).await?;
        }
    }
    let succeeded = header.done && call.error.is_none();
    if succeeded && request.command() == Some(Command::Read) {
        call.coverage.finish()?;
    }
    if succeeded && request.command() == Some(Command::BlockStatus) && call.runs.is_empty() {
        return Err(broken("a block status without an extent"));
    }
    Ok(())
}

/// Receives a part of a read's data into the call's buffer. The caller has checked that the part
/// lies inside the requested range.
async fn content(
    call: &mut Call,
    input: &mut Input<'_>,
    offset: u64,
    len: usize,
) -> Result<(), End> {
    let mut at = (offset - call.request.offset_bytes) as usize;
    let data = call.data.as_mut().expect("a read has a buffer");
    input
        .each(len, |bytes| {
            data[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        })
        .await
}
