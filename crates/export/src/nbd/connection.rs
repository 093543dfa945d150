//! An NBD connection: the handshake, then requests until the client or the server ends the
//! connection.
//!
//! One task receives and starts requests, and another task sends replies. A request that has to
//! wait for its device runs in a task of its own. The connection must never abandon a request that
//! it has started: when the client has disconnected, requests in flight still complete, and only
//! their replies are dropped.

use std::rc::Rc;

use bimetal_block::{
    BorrowedWrite, EXTENTS_MAX, Flags, IoError, IoResult, Op, Reply, Request as BlockRequest,
};
use bimetal_proto::nbd::reply::{block_status_chunk, fit_extents};
use bimetal_proto::nbd::request::{decode_request, validate};
use bimetal_proto::nbd::wire::{REQUEST_BYTES, command_flag};
use bimetal_proto::nbd::{Command, Errno, Request, ServerHandshake, ServerProgress, ServerSession};
use bimetal_rt::net::{Inbox, Stream};
use bimetal_rt::turn::give_way;
use bimetal_rt::{Payload, Rt};

use super::directory::{Directory, to_wire};
use super::outgoing::{Outgoing, gather};
use crate::account::{Account, Admission, DataMemory, Weight};
use crate::counters::add;
use crate::export::{Connected, Shown};
use crate::input::{COPIED_BYTES_MAX, End, HANDSHAKE_BUFFER_BYTES, RECEIVE_BUFFER_BYTES, Take};
use crate::link::Link;
use crate::portal::Cut;
use crate::session::{BOUNDS, Conversation};
use crate::tasks::TaskNumber;

/// A client that has chosen an export.
pub(crate) struct Entered {
    pub(crate) stream: Cut,
    pub(crate) export: Connected,
    pub(crate) session: ServerSession,
    /// Bytes that were received behind the handshake.
    pub(crate) early: Vec<u8>,
}

/// Performs the handshake with a client. Returns `None` if the client ended the connection without
/// an error, or if the export has no free connection slot. `exports` are the exports that the
/// client may see. If `exports` is `None`, the handshake requires TLS. After TLS is established,
/// `secure` returns the exports that the identified client may see.
///
/// # Errors
/// The reason why the connection has to end.
pub(crate) async fn handshake(
    rt: &Rt,
    stream: Cut,
    exports: Option<Vec<Shown>>,
    secure: impl AsyncFn(Cut) -> Result<(Cut, Vec<Shown>), End>,
) -> Result<Option<Entered>, End> {
    let mut out = Vec::new();
    let mut machine = match &exports {
        Some(_) => ServerHandshake::start(&mut out),
        None => ServerHandshake::start_requiring_tls(&mut out),
    };
    let (mut stream, mut exports) = (stream, exports.unwrap_or_default());
    let mut input = Inbox::new(rt.pool().alloc_now(HANDSHAKE_BUFFER_BYTES));
    let mut progress = ServerProgress::NeedMore;
    let mut connected = None;
    loop {
        if let ServerProgress::Transmission(session) = &progress {
            // The connection slot is reserved before the client is told that it is admitted.
            connected = exports[session.export_index].export.connect();
            if connected.is_none() {
                return Ok(None);
            }
        }
        if !out.is_empty() {
            stream.send(rt.pool().copy_of(&out).into()).await?;
            out.clear();
        }
        match progress {
            ServerProgress::Transmission(session) => {
                let entered = connected.take().map(|export| Entered {
                    stream,
                    export,
                    session,
                    early: input.unread().to_vec(),
                });
                return Ok(entered);
            }
            ServerProgress::Closed => return Ok(None),
            // Bytes that arrived before the TLS handshake are not authenticated, and must not be
            // processed as if they had been received through TLS.
            ServerProgress::StartTls if !input.unread().is_empty() => return Err(End::Protocol),
            ServerProgress::StartTls => (stream, exports) = secure(stream).await?,
            ServerProgress::Answered | ServerProgress::NeedMore => {}
        }
        let more_is_here =
            matches!(progress, ServerProgress::Answered) && !input.unread().is_empty();
        if !more_is_here && !input.receive(&stream).await? {
            return Ok(None);
        }
        let (taken, next) = machine.feed(input.unread(), &mut out, &Directory(&exports))?;
        input.consume(taken);
        progress = next;
    }
}

/// A connection in the transmission phase.
pub(crate) struct Transmission {
    rt: Rt,
    link: Rc<Link<Outgoing>>,
    export: Connected,
    session: ServerSession,
    task: TaskNumber,
}

impl Transmission {
    pub(crate) fn new(
        rt: &Rt,
        stream: Stream,
        export: Connected,
        session: ServerSession,
        task: TaskNumber,
        memory: &Rc<DataMemory>,
    ) -> Rc<Transmission> {
        Rc::new(Transmission {
            rt: rt.clone(),
            link: Link::new(stream, Account::new(BOUNDS, memory)),
            export,
            session,
            task,
        })
    }

    async fn serve(self: &Rc<Self>, input: &mut Inbox) -> Result<(), End> {
        let mut large = false;
        loop {
            while let Some(header) = input.unread().first_chunk::<REQUEST_BYTES>() {
                let request = decode_request(header)?;
                if request.command() == Some(Command::Disconnect) {
                    return Ok(());
                }
                let complete = REQUEST_BYTES + request.payload_bytes() as usize;
                if input.unread().len() < complete && complete <= COPIED_BYTES_MAX {
                    break;
                }
                large = complete > COPIED_BYTES_MAX;
                input.consume(REQUEST_BYTES);
                self.request(input, request).await?;
                self.link.let_go().await;
                give_way().await;
            }
            let in_message = !input.unread().is_empty();
            self.link.set_receiving(in_message);
            add(&self.export.counters.receives, 1);
            // A large payload can be received into the receive buffer, which costs processor time
            // for a copy, or its header can be received alone, which avoids the copy but leaves the
            // socket buffer full meanwhile. With several connections, processor time is the
            // bottleneck, and receiving the header alone is 45 % faster (128 KiB writes over four
            // connections). With one connection, the socket is the bottleneck, and receiving the
            // header alone would be 22 % slower.
            let several = self.export.counters.connections.get() > 1;
            let more = if large && several && !in_message {
                input
                    .receive_header(&self.rt, &self.link.stream, REQUEST_BYTES)
                    .await?
            } else {
                input.receive(&self.link.stream).await?
            };
            self.link.set_receiving(false);
            if !more {
                return if in_message { Err(End::Broken) } else { Ok(()) };
            }
        }
    }

    /// Processes one request, whose header has been received and decoded.
    async fn request(self: &Rc<Self>, input: &mut Inbox, request: Request) -> Result<(), End> {
        let command = match validate(&request, &self.session.info, &self.session.negotiated) {
            Ok(command) => command,
            Err(error) => {
                add(&self.export.counters.requests.refused, 1);
                let len = request.payload_bytes() as usize;
                input.skip(&self.link, len).await?;
                let admission = self.link.admit(Weight::of_request(0, 0)).await;
                self.link.reply(self.failure(&request, error), admission);
                return Ok(());
            }
        };
        let admission = self.link.admit(weight(command, &request)).await;
        if let Some(reply) = self.write_at_once(input, &request, command) {
            self.link.reply(reply, admission);
            return Ok(());
        }
        let len = request.payload_bytes() as usize;
        let payload = input.take(&self.rt, &self.link, len).await?;
        self.start(request, command, payload, admission);
        Ok(())
    }

    /// Writes data directly from the receive buffer and returns the reply, if all the data has
    /// arrived and the device need not wait. Returns `None`, without any effect, if the request
    /// must be submitted in the ordinary way.
    fn write_at_once(
        &self,
        input: &mut Inbox,
        request: &Request,
        command: Command,
    ) -> Option<Outgoing> {
        if command != Command::Write {
            return None;
        }
        let len = request.payload_bytes() as usize;
        let bytes = input.unread().get(..len)?;
        let write = BorrowedWrite {
            offset: request.offset_bytes,
            bytes,
            flags: flags_of(request),
        };
        let counters = &self.export.counters.requests;
        let result = counters.try_write(self.export.device.as_ref(), write)?;
        input.consume(len);
        Some(self.answer(request, result))
    }

    /// Starts a request. When the request ends, its reply is queued in the link. If the device need
    /// not wait, that happens before this function returns.
    fn start(
        self: &Rc<Self>,
        request: Request,
        command: Command,
        payload: Payload,
        admission: Admission,
    ) {
        let below = to_block(&request, command, payload).from_origin(self.task.origin());
        let (counters, device) = (&self.export.counters.requests, &self.export.device);
        match counters.try_answer(device.as_ref(), below) {
            Ok(result) => {
                let reply = self.answer(&request, result);
                self.link.reply(reply, admission);
            }
            Err(below) => {
                let this = Rc::clone(self);
                let run = async move {
                    let (counters, device) = (&this.export.counters.requests, &this.export.device);
                    let result = counters.submit(device.as_ref(), below).await;
                    let reply = this.answer(&request, result);
                    this.link.reply(reply, admission);
                };
                self.rt.spawn_eager(run).detach();
            }
        }
    }

    /// Builds the reply for the result of a request.
    fn answer(&self, request: &Request, result: IoResult) -> Outgoing {
        let structured = self.session.negotiated.structured_replies;
        let len = u64::from(request.length_bytes);
        match result {
            Ok(Reply::Data(data)) => {
                assert_eq!(data.len() as u64, len, "a read answers what was asked");
                Outgoing::data(request.cookie, structured, request.offset_bytes, data)
            }
            Ok(Reply::Extents(runs)) => self.block_status(request, &runs),
            Ok(Reply::Done) => Outgoing::done(request.cookie),
            Err(error) => self.failure(request, errno(error)),
        }
    }

    fn failure(&self, request: &Request, error: Errno) -> Outgoing {
        let structured = self.session.negotiated.structured_replies;
        Outgoing::error(request.cookie, structured, error)
    }

    fn block_status(&self, request: &Request, runs: &[bimetal_block::Extent]) -> Outgoing {
        let context = self.session.negotiated.base_allocation_id;
        let context = context.expect("block status is valid only with its context");
        let mut extents = to_wire(runs);
        fit_extents(request, self.session.info.max_payload_bytes, &mut extents);
        let mut message = Vec::new();
        block_status_chunk(&mut message, request.cookie, context, &extents, true);
        Outgoing::encoded(self.rt.pool().copy_of(&message).into())
    }
}

impl Conversation for Transmission {
    type Reply = Outgoing;

    fn link(&self) -> &Rc<Link<Outgoing>> {
        &self.link
    }

    async fn send(&self) {
        let gather = |batch: &mut Vec<Outgoing>| {
            add(&self.export.counters.sends, 1);
            gather(&self.rt, batch)
        };
        self.link.send_replies(usize::MAX, gather).await;
    }

    async fn receive(self: &Rc<Self>, early: &[u8]) -> End {
        let mut input = Inbox::new(self.rt.pool().alloc_now(RECEIVE_BUFFER_BYTES));
        input.put(early);
        match self.serve(&mut input).await {
            Ok(()) => End::Client,
            Err(end) => end,
        }
    }
}

/// Returns the weight of a request: how much of each bound the request uses until its reply has
/// been sent.
fn weight(command: Command, request: &Request) -> Weight {
    let data_bytes = match command {
        Command::Read | Command::Write => request.length_bytes,
        _ => 0,
    };
    Weight::of_request(request.offset_bytes, u64::from(data_bytes))
}

fn flags_of(request: &Request) -> Flags {
    Flags {
        fua: request.has(command_flag::FUA),
        keep_allocated: request.has(command_flag::NO_HOLE),
        ..Flags::NONE
    }
}

/// Converts a request in its wire format into a request for the device.
fn to_block(request: &Request, command: Command, payload: Payload) -> BlockRequest {
    let flags = flags_of(request);
    let (offset, len) = (request.offset_bytes, u64::from(request.length_bytes));
    let ranged = |op| BlockRequest::without_data(op, offset, len, flags);
    match command {
        Command::Read => BlockRequest::read(offset, len),
        Command::Write => BlockRequest::write(offset, payload, flags),
        Command::Flush => BlockRequest::flush(),
        Command::Trim => ranged(Op::Discard),
        Command::WriteZeroes => ranged(Op::WriteZeroes),
        Command::BlockStatus => BlockRequest::extents(offset, len, extents_max(request)),
        Command::Cache | Command::Disconnect => unreachable!("not offered, or has no reply"),
    }
}

/// Returns the maximum number of extents that the device is asked for: one if the client has
/// requested a single extent, otherwise the maximum of a reply.
fn extents_max(request: &Request) -> u32 {
    if request.has(command_flag::REQ_ONE) {
        1
    } else {
        EXTENTS_MAX
    }
}

/// Returns the error number that reports a device error to the client (NBD, section "Error
/// values").
fn errno(error: IoError) -> Errno {
    match error {
        IoError::Medium
        | IoError::Offline
        | IoError::Timeout
        | IoError::Transport
        | IoError::Corrupt => Errno::Io,
        IoError::NoSpace => Errno::NoSpc,
        IoError::Misaligned | IoError::OutOfRange => Errno::Inval,
        IoError::ReadOnly => Errno::Perm,
        IoError::Unsupported => Errno::NotSup,
        IoError::Resource => Errno::NoMem,
        IoError::Closed => Errno::Shutdown,
    }
}
