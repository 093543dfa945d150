//! A BRP path (one connection of a session): receives commands, and sends each result when its
//! request ends.
//!
//! A path is fenced when the initiator stops it by a message over another path. A fenced path must
//! never start a request, not even a request that has already been received: the initiator may have
//! sent a newer request over another path.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_block::{BorrowedWrite, Flags, IoError, Op, Reply, Request as BlockRequest};
use bimetal_proto::brp::inbound::ToTarget;
use bimetal_proto::brp::response::{Run, encode_runs};
use bimetal_proto::brp::wire::{self, FENCES_MAX, RUNS_MAX, feature, request_flag};
use bimetal_proto::brp::{ProtocolError, Request, Status, TargetInbound, Welcome};
use bimetal_rt::net::{Inbox, Stream};
use bimetal_rt::sync::Event;
use bimetal_rt::turn::give_way;
use bimetal_rt::{Payload, Rt};

use super::greeting::Taken;
use super::outgoing::{Frames, Outgoing, check};
use super::target::{OpenPath, Target};
use crate::account::{Account, Admission, DataMemory, Weight};
use crate::counters::add;
use crate::export::Connected;
use crate::input::{COPIED_BYTES_MAX, End, RECEIVE_BUFFER_BYTES, Take};
use crate::link::Link;
use crate::session::{BOUNDS, Conversation};
use crate::tasks::TaskNumber;

/// A request that has been started and has not ended. The request holds its admission (its share of
/// the bounded resources) until its result has been sent. The path treats the request as in
/// progress until this value is dropped, even if the request is never answered.
struct UnderWay {
    of: Rc<Transmission>,
    /// The request's share of the bounded resources; `None` after the result has been queued for
    /// sending.
    admission: Option<Admission>,
}

impl UnderWay {
    /// Submits the request to the device, and sends the result.
    async fn carry_out(self, request: Request, payload: Payload) {
        let export = &self.of.export;
        let (counters, device) = (&export.counters.requests, &export.device);
        let result = match self.of.hand_down(&request, payload) {
            Ok(below) => counters
                .submit(device.as_ref(), below)
                .await
                .map_err(status_of),
            Err(status) => Err(status),
        };
        self.finish(&request, result);
    }

    /// Ends the request and sends its result.
    fn finish(mut self, request: &Request, result: Result<Reply, Status>) {
        let (of, admission) = (Rc::clone(&self.of), self.admission.take());
        drop(self);
        let admission = admission.expect("a request ends once");
        of.link.reply(of.answer(request, result), admission);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let of = &self.of;
        of.path.end();
        if of.path.is_fenced() {
            of.target.notify();
        }
        if of.welcome.agreed(feature::SERIAL) {
            of.ended.notify();
        }
    }
}

/// A fence request (a request to stop another path of the session) that has not been answered. The
/// path counts its pending fence requests. This request is in the count until this value is
/// dropped.
struct Fence(Rc<Transmission>);

impl Fence {
    fn new(of: &Rc<Transmission>) -> Fence {
        of.fences.set(of.fences.get() + 1);
        Fence(Rc::clone(of))
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.0.fences.set(self.0.fences.get() - 1);
    }
}

/// A path after its greeting, over which requests are transferred.
pub(crate) struct Transmission {
    rt: Rt,
    link: Rc<Link<Outgoing>>,
    export: Connected,
    target: Rc<Target>,
    path: OpenPath,
    welcome: Welcome,
    inbound: RefCell<TargetInbound>,
    frames: RefCell<Frames>,
    fences: Cell<usize>,
    /// Signals that a request has ended. A path that runs its requests one at a time waits for this
    /// event.
    ended: Event,
    task: TaskNumber,
}

impl Transmission {
    pub(crate) fn new(
        rt: &Rt,
        stream: Stream,
        target: &Rc<Target>,
        taken: Taken,
        task: TaskNumber,
        memory: &Rc<DataMemory>,
    ) -> Rc<Transmission> {
        let merges = taken.welcome.agreed(feature::MERGE);
        Rc::new(Transmission {
            rt: rt.clone(),
            link: Link::new(stream, Account::new(BOUNDS, memory)),
            export: taken.export,
            target: Rc::clone(target),
            path: taken.path,
            welcome: taken.welcome,
            inbound: RefCell::new(taken.inbound),
            frames: RefCell::new(Frames::new(taken.outbound, merges)),
            fences: Cell::new(0),
            ended: Event::new(),
            task,
        })
    }

    async fn serve(self: &Rc<Self>, input: &mut Inbox) -> Result<(), End> {
        let mut requests = Vec::with_capacity(wire::ENTRIES_MAX);
        loop {
            while let Some((message, taken)) = self.next(input, &mut requests)? {
                match message {
                    ToTarget::Command { in_turn } => {
                        input.consume(taken);
                        add(&self.export.counters.commands, 1);
                        self.command(input, &requests, in_turn).await?;
                        self.link.let_go().await;
                    }
                    ToTarget::Fence(path) => {
                        input.consume(taken);
                        self.fence(path).await?;
                    }
                    ToTarget::Close => return Ok(()),
                    ToTarget::Hello(_) | ToTarget::LaterVersion => {
                        return Err(ProtocolError::UnexpectedFrame(wire::kind::HELLO).into());
                    }
                }
            }
            let in_message = !input.unread().is_empty();
            self.link.set_receiving(in_message);
            add(&self.export.counters.receives, 1);
            let more = input.receive(&self.link.stream).await?;
            self.link.set_receiving(false);
            if !more {
                return if in_message { Err(End::Broken) } else { Ok(()) };
            }
        }
    }

    fn next(
        &self,
        input: &Inbox,
        requests: &mut Vec<Request>,
    ) -> Result<Option<(ToTarget, usize)>, End> {
        Ok(self.inbound.borrow_mut().next(input.unread(), requests)?)
    }

    /// Receives the data of the requests of a command and starts each request as soon as its data
    /// has arrived. The first requests run while the data of later requests is still arriving. If
    /// `in_turn` is set, the requests instead run one after another.
    async fn command(
        self: &Rc<Self>,
        input: &mut Inbox,
        requests: &[Request],
        in_turn: bool,
    ) -> Result<(), End> {
        if in_turn {
            self.start_in_turn(input, requests).await?;
        } else {
            for request in requests {
                give_way().await;
                let admission = self.link.admit(weight(request)).await;
                self.gather(input, request).await?;
                if let Some(result) = self.write_at_once(input, request)? {
                    // The path is not fenced: `write_at_once` has checked this, and no other task
                    // has run since.
                    self.begin(admission)?.finish(request, result);
                    continue;
                }
                let payload = self.data(input, request).await?;
                let under_way = self.begin(admission)?;
                self.start(*request, payload, under_way);
            }
        }
        if self.welcome.agreed(feature::SERIAL) {
            self.ended.until(|| self.path.under_way() == 0).await;
        }
        Ok(())
    }

    /// Starts requests that run one at a time: each request is submitted when the previous request
    /// has ended.
    async fn start_in_turn(
        self: &Rc<Self>,
        input: &mut Inbox,
        requests: &[Request],
    ) -> Result<(), End> {
        let all = Weight::of_all(requests.iter().map(weight));
        let mut admission = self.link.admit(all).await;
        let mut received = Vec::with_capacity(requests.len());
        for request in requests {
            self.gather(input, request).await?;
            received.push((*request, self.data(input, request).await?));
        }
        // No other task runs during this loop. So either all requests of the command are counted as
        // started, or none of them.
        let mut ordered = Vec::with_capacity(requests.len());
        for (request, payload) in received {
            let one = admission.take_one(weight(&request));
            ordered.push((request, payload, self.begin(one)?));
        }
        let run = async move {
            for (request, payload, under_way) in ordered {
                under_way.carry_out(request, payload).await;
            }
        };
        self.rt.spawn_eager(run).detach();
        Ok(())
    }

    /// Counts a request as started. Fails if the path has been fenced (stopped by a message over
    /// another path).
    fn begin(self: &Rc<Self>, admission: Admission) -> Result<UnderWay, End> {
        if !self.path.start() {
            return Err(End::Broken);
        }
        Ok(UnderWay {
            of: Rc::clone(self),
            admission: Some(admission),
        })
    }

    /// If the data of a request is short enough to be copied, waits until all of it has arrived in
    /// the receive buffer. Longer data is received directly into a buffer of the request.
    async fn gather(&self, input: &mut Inbox, request: &Request) -> Result<(), End> {
        let len = request.data_bytes() as usize;
        while input.unread().len() < len && len <= COPIED_BYTES_MAX {
            self.link.set_receiving(true);
            add(&self.export.counters.receives, 1);
            let more = input.receive(&self.link.stream).await?;
            self.link.set_receiving(false);
            if !more {
                return Err(End::Broken);
            }
        }
        Ok(())
    }

    /// Moves the data of a write out of the receive buffer into a separate buffer, which belongs to
    /// the request.
    async fn data(&self, input: &mut Inbox, request: &Request) -> Result<Payload, End> {
        let len = request.data_bytes() as usize;
        input.take(&self.rt, &self.link, len).await
    }

    /// Writes data directly from the receive buffer and returns the result, if the device need not
    /// wait and no checksum of the data has to be verified. Returns `None`, without any effect, if
    /// the request must be submitted in the ordinary way.
    fn write_at_once(
        &self,
        input: &mut Inbox,
        request: &Request,
    ) -> Result<Option<Result<Reply, Status>>, End> {
        let len = request.data_bytes() as usize;
        let is_plain = request.op == wire::Op::Write && !self.welcome.agreed(feature::CRC);
        if !is_plain || len > input.unread().len() || self.now().validate(request).is_err() {
            return Ok(None);
        }
        if self.path.is_fenced() {
            return Err(End::Broken);
        }
        let write = BorrowedWrite {
            offset: request.offset_bytes,
            bytes: &input.unread()[..len],
            flags: flags_of(request),
        };
        let counters = &self.export.counters.requests;
        let Some(result) = counters.try_write(self.export.device.as_ref(), write) else {
            return Ok(None);
        };
        input.consume(len);
        Ok(Some(result.map_err(status_of)))
    }

    /// Starts a request. Its result is sent as soon as the request ends. A request that need not
    /// wait ends before this function returns, and no task is spawned for it.
    fn start(&self, request: Request, payload: Payload, under_way: UnderWay) {
        let below = match self.hand_down(&request, payload) {
            Ok(below) => below,
            Err(status) => return under_way.finish(&request, Err(status)),
        };
        let (counters, device) = (&self.export.counters.requests, &self.export.device);
        match counters.try_answer(device.as_ref(), below) {
            Ok(result) => under_way.finish(&request, result.map_err(status_of)),
            Err(below) => {
                let run = async move {
                    let export = &under_way.of.export;
                    let counters = &export.counters.requests;
                    let result = counters.submit(export.device.as_ref(), below).await;
                    under_way.finish(&request, result.map_err(status_of));
                };
                self.rt.spawn_eager(run).detach();
            }
        }
    }

    /// Converts a request of the initiator into a request for the device.
    ///
    /// # Errors
    /// The status with which the request is refused.
    fn hand_down(&self, request: &Request, payload: Payload) -> Result<BlockRequest, Status> {
        let counters = &self.export.counters.requests;
        if let Some(status) = self.refused(request, &payload) {
            add(&counters.refused, 1);
            return Err(status);
        }
        Ok(to_block(request, payload).from_origin(self.task.origin()))
    }

    fn refused(&self, request: &Request, payload: &Payload) -> Option<Status> {
        let checks = self.welcome.agreed(feature::CRC) && request.op == wire::Op::Write;
        if checks && check(payload) != request.check {
            return Some(Status::Corrupt);
        }
        self.now().validate(request).err()
    }

    /// Returns the parameters that were agreed in the greeting, but with the current size of the
    /// device. The device may have grown since the greeting.
    fn now(&self) -> Welcome {
        Welcome {
            size_bytes: self.export.device.geometry().size_bytes,
            ..self.welcome
        }
    }

    fn answer(&self, request: &Request, result: Result<Reply, Status>) -> Outgoing {
        let len = u64::from(request.length_bytes);
        let (status, data) = match result {
            Ok(Reply::Data(data)) => {
                assert_eq!(data.len() as u64, len, "a read answers what was asked");
                (Status::Ok, data)
            }
            Ok(Reply::Extents(runs)) => {
                let runs = encode_runs(&to_wire(&runs));
                (Status::Ok, self.rt.pool().copy_of(&runs).into())
            }
            Ok(Reply::Done) => (Status::Ok, Payload::empty()),
            Err(status) => (status, Payload::empty()),
        };
        Outgoing::Result {
            tag: request.tag,
            status,
            data,
        }
    }

    /// Fences (stops) another path of the session. Sends the answer when no request of that path is
    /// in progress any more.
    async fn fence(self: &Rc<Self>, number: u32) -> Result<(), End> {
        if number == self.path.number() || self.fences.get() == FENCES_MAX {
            return Err(ProtocolError::BadFence.into());
        }
        let admission = self.link.admit(Weight::of_request(0, 0)).await;
        let Some(path) = self.target.fence(&self.path, number) else {
            self.link.reply(Outgoing::Fenced(number), admission);
            return Ok(());
        };
        let fence = Fence::new(self);
        let wait = async move {
            let of = &fence.0;
            of.target.until_over(&path).await;
            let link = Rc::clone(&of.link);
            drop(fence);
            link.reply(Outgoing::Fenced(number), admission);
        };
        self.rt.spawn_eager(wait).detach();
        Ok(())
    }
}

impl Conversation for Transmission {
    type Reply = Outgoing;

    fn link(&self) -> &Rc<Link<Outgoing>> {
        &self.link
    }

    async fn send(&self) {
        let batch_max = if self.welcome.agreed(feature::MERGE) {
            usize::MAX
        } else {
            // Without merging, each result is sent separately, as the negotiated mode requires.
            1
        };
        let gather = |batch: &mut Vec<Outgoing>| {
            add(&self.export.counters.sends, 1);
            self.frames.borrow_mut().gather(&self.rt, batch)
        };
        self.link.send_replies(batch_max, gather).await;
    }

    async fn receive(self: &Rc<Self>, early: &[u8]) -> End {
        let mut input = Inbox::new(self.rt.pool().alloc_now(RECEIVE_BUFFER_BYTES));
        input.put(early);
        match self.serve(&mut input).await {
            Ok(()) => End::Client,
            Err(end) => end,
        }
    }

    fn is_revoked(&self) -> bool {
        self.path.is_fenced()
    }
}

/// Returns the weight of a request: its share of the bounded resources, which it uses until its
/// result has been sent. A read that is too long has a weight without data, because the read will
/// be refused.
fn weight(request: &Request) -> Weight {
    let longest = wire::DATA_BYTES_MAX;
    let data_bytes = match request.op {
        wire::Op::Read if request.length_bytes <= longest => request.length_bytes,
        _ => request.data_bytes(),
    };
    Weight::of_request(request.offset_bytes, u64::from(data_bytes))
}

fn flags_of(request: &Request) -> Flags {
    Flags {
        fua: request.flags & request_flag::FUA != 0,
        keep_allocated: request.flags & request_flag::KEEP_ALLOCATED != 0,
        ..Flags::NONE
    }
}

/// Converts a request in its wire format into a request for the device.
fn to_block(request: &Request, payload: Payload) -> BlockRequest {
    let flags = flags_of(request);
    let (offset, len) = (request.offset_bytes, u64::from(request.length_bytes));
    let ranged = |op| BlockRequest::without_data(op, offset, len, flags);
    match request.op {
        wire::Op::Read => BlockRequest::read(offset, len),
        wire::Op::Write => BlockRequest::write(offset, payload, flags),
        wire::Op::Flush => BlockRequest::flush(),
        wire::Op::Discard => ranged(Op::Discard),
        wire::Op::WriteZeroes => ranged(Op::WriteZeroes),
        wire::Op::Extents => ranged(Op::Extents),
    }
}

/// Converts extents from the device to the wire format. Extents beyond the maximum number of a
/// result are omitted.
fn to_wire(runs: &[bimetal_block::Extent]) -> Vec<Run> {
    let to_wire = |run: &bimetal_block::Extent| Run {
        length_bytes: u32::try_from(run.len).expect("a run is inside its request"),
        data: run.data,
    };
    let runs = runs.iter().filter(|run| run.len > 0);
    runs.take(RUNS_MAX).map(to_wire).collect()
}

/// Returns the BRP status that reports a device error to the initiator.
fn status_of(error: IoError) -> Status {
    match error {
        IoError::Medium => Status::Medium,
        IoError::Offline | IoError::Transport | IoError::Closed => Status::Offline,
        IoError::Timeout => Status::Timeout,
        IoError::Corrupt => Status::Corrupt,
        IoError::NoSpace => Status::NoSpace,
        IoError::Misaligned => Status::Invalid,
        IoError::OutOfRange => Status::OutOfRange,
        IoError::ReadOnly => Status::ReadOnly,
        IoError::Unsupported => Status::Unsupported,
        IoError::Resource => Status::Resource,
    }
}
