//! Both ends of BRP.

use std::collections::{BTreeMap, BTreeSet};

use super::{Input, in_fragments};
use crate::brp::command::Request;
use crate::brp::frame::Outbound;
use crate::brp::greeting::{Hello, Purpose, Welcome};
use crate::brp::inbound::{InitiatorInbound, TargetInbound, ToInitiator, ToTarget};
use crate::brp::initiator::{Completed, Data, Initiator, Mode, Sending};
use crate::brp::response::{Completion, Run, decode_runs, encode_response};
use crate::brp::wire::{
    CONTROL_BYTES_MAX, DATA_BYTES_MAX, ENTRIES_MAX, HEAD_BYTES, MERGED_BYTES_MAX, Op,
    ProtocolError, RANGE_BYTES_MAX, REQUEST_BYTES, RUNS_MAX, Status, feature, kind, right,
};

const SIZE_BYTES: u64 = 1 << 20;
/// Maximum number of bytes of an incomplete frame that a reader must store until the rest of the
/// frame arrives.
const UNREAD_BYTES_MAX: usize = HEAD_BYTES
    + if CONTROL_BYTES_MAX > ENTRIES_MAX * REQUEST_BYTES {
        CONTROL_BYTES_MAX
    } else {
        ENTRIES_MAX * REQUEST_BYTES
    };

fn welcome(features: u32, instance: u8, rights: u32) -> Welcome {
    Welcome {
        features,
        instance: [instance; 16],
        host: [7; 16],
        size_bytes: SIZE_BYTES,
        block_bytes: 1,
        preferred_bytes: 4096,
        transfer_bytes_max: DATA_BYTES_MAX,
        range_bytes_max: RANGE_BYTES_MAX,
        requests_max: 64,
        data_bytes_max: DATA_BYTES_MAX,
        rights,
    }
}

/// Fuzzes a target with the stream of an initiator: the greeting and the messages after it. Most of
/// the stream is built from the fuzzer's bytes, but with correct sequence numbers and checksums, so
/// that the target does not reject every input because of these fields.
pub fn brp_target(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let stream = initiator_stream(&mut input, u32::from(choice) & feature::ALL);
    let whole = take(&stream, usize::MAX);
    for fragment_bytes in [1, 1 + usize::from(choice >> 1)] {
        let cut = take(&stream, fragment_bytes);
        assert_eq!(cut, whole, "in fragments of {fragment_bytes}");
    }
}

fn initiator_stream(input: &mut Input<'_>, features: u32) -> Vec<u8> {
    let (mut stream, mut outbound) = (Vec::new(), Outbound::new());
    if input.byte() != 0 {
        let name_bytes = input.below(8);
        let hello = Hello {
            version_min: 1,
            version_max: 1,
            features,
            session: [3; 16],
            path: 1,
            purpose: Purpose::Open,
            name: "v".repeat(name_bytes),
        };
        hello.encode(&mut outbound, &mut stream);
        outbound.open(features);
    }
    while !input.is_empty() {
        match input.below(8) {
            0 => stream.extend(input.take(5)),
            // A control frame of any kind with any body.
            1 => {
                let (kind, len) = (input.below(18) as u8, input.below(64));
                let body = input.take(len);
                outbound.control(&mut stream, kind, body);
            }
            2 => {
                let path = u32::from(input.byte()).to_le_bytes();
                let body = [&path[..], &[0, 0, 0, input.byte() & 1]].concat();
                outbound.control(&mut stream, kind::FENCE, &body);
            }
            _ => command(input, &mut outbound, &mut stream),
        }
    }
    stream
}

/// Appends a command whose lengths are usually consistent.
fn command(input: &mut Input<'_>, outbound: &mut Outbound, stream: &mut Vec<u8>) {
    let count = 1 + input.below(3);
    let (mut entries, mut data_bytes) = (Vec::new(), 0);
    for _ in 0..count {
        let (op, flags) = (input.below(8) as u8, input.byte() & 3);
        let len = match input.below(4) {
            0 => input.any_number() as u32,
            _ => input.below(24) as u32,
        };
        entries.extend([op, flags, 0, input.byte() & 1]);
        entries.extend([input.byte(); 4]);
        entries.extend(input.any_number().to_le_bytes());
        entries.extend(len.to_le_bytes());
        entries.extend([0; 4]);
        data_bytes += if op == Op::Write as u8 {
            len.min(4096)
        } else {
            0
        };
    }
    let off_by = u32::from(input.byte() == 0xff);
    let head = (kind::COMMAND, count as u8, u16::from(input.byte() & 1));
    outbound.frame(stream, head, &entries, data_bytes + off_by);
    stream.extend(vec![0x5a; data_bytes as usize]);
}

/// Result of reading a stream at a target: the messages, the requests with their validity, and the
/// end of the stream.
type Taken = (
    Vec<ToTarget>,
    Vec<(Request, bool)>,
    Result<(), ProtocolError>,
);

fn take(stream: &[u8], fragment_bytes: usize) -> Taken {
    let mut inbound = TargetInbound::new();
    let (mut messages, mut taken_requests) = (Vec::new(), Vec::new());
    let (mut path, mut requests, mut skip_bytes) = (None, Vec::new(), 0_u64);
    let mut over = false;
    let end = in_fragments(stream, fragment_bytes, |unread| {
        if over {
            return Ok(None);
        }
        if skip_bytes > 0 {
            let taken = skip_bytes.min(unread.len() as u64);
            skip_bytes -= taken;
            return Ok((taken > 0).then_some(taken as usize));
        }
        let Some((message, taken)) = inbound.next(unread, &mut requests)? else {
            assert!(
                unread.len() < UNREAD_BYTES_MAX,
                "a frame is taken when it is here"
            );
            return Ok(None);
        };
        assert!(taken <= UNREAD_BYTES_MAX);
        match &message {
            ToTarget::Hello(hello) => {
                assert!(path.is_none(), "there is one greeting");
                over = hello.purpose == Purpose::List;
                let features = hello.features & feature::ALL;
                path = Some(welcome(features, 1, 0));
                inbound.open(features);
            }
            ToTarget::LaterVersion | ToTarget::Close => over = true,
            ToTarget::Fence(number) => assert!(*number != 0 && path.is_some()),
            ToTarget::Command { .. } => {
                let path = path.as_ref().expect("commands come over a path");
                let data = check_command(&requests, path);
                skip_bytes = data;
                let judged = requests.iter().map(|r| (*r, path.validate(r).is_ok()));
                taken_requests.extend(judged);
            }
        }
        messages.push(message);
        Ok(Some(taken))
    });
    (messages, taken_requests, end)
}

/// Checks that an accepted command is permitted in one frame, and that its valid requests lie in
/// the volume. Returns the number of data bytes that follow the command.
fn check_command(requests: &[Request], path: &Welcome) -> u64 {
    let data_bytes = requests.iter().map(|r| u64::from(r.data_bytes())).sum();
    assert!((1..=ENTRIES_MAX).contains(&requests.len()) && data_bytes <= u64::from(DATA_BYTES_MAX));
    if requests.len() > 1 {
        assert!(path.agreed(feature::MERGE));
        let small = |r: &Request| r.length_bytes <= MERGED_BYTES_MAX;
        assert!(requests.iter().all(small));
    }
    for request in requests.iter().filter(|r| path.validate(r).is_ok()) {
        let end = u128::from(request.offset_bytes) + u128::from(request.length_bytes);
        assert!(end <= u128::from(SIZE_BYTES), "{request:?}");
        assert_eq!(request.length_bytes == 0, request.op == Op::Flush);
    }
    data_bytes
}

/// Fuzzes a session with the messages of its targets: paths that come up and go down, expected and
/// unexpected answers, fences, and instances that die. A target's reader must accept everything
/// that the session sends.
pub fn brp_initiator(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let mode = [
        Mode::Short,
        Mode::Parallel,
        Mode::Merge { in_turn: true },
        Mode::Adaptive,
    ][usize::from(choice & 3)];
    let rights = if choice & 4 != 0 { right::VOLATILE } else { 0 };
    let keep_bytes = if choice & 8 != 0 { 64 << 10 } else { 0 };
    let mut session = SessionOf::new(Initiator::new(mode, keep_bytes), mode, rights);
    session.path_up(1);
    while !input.is_empty() {
        session.step(&mut input);
    }
}

/// Data of writes. Its content does not matter for these fuzzers.
#[derive(Clone, Default)]
struct Nothing;

impl Data for Nothing {
    fn check(&self) -> u32 {
        0
    }
}

/// One path: the frame state of both ends, and the fences that were requested over the path.
struct Line {
    target: TargetInbound,
    outbound: Outbound,
    inbound: InitiatorInbound,
    /// Broken paths whose fence was requested over this path.
    fences: Vec<u32>,
}

struct SessionOf {
    initiator: Initiator<Nothing>,
    features: u32,
    rights: u32,
    instance: u8,
    next_path: u32,
    lines: BTreeMap<u32, Line>,
    /// Requests that might be in progress at targets, each with the path that carried it.
    under_way: Vec<(u32, Request)>,
    /// Tags of requests that were submitted and not answered.
    waiting: BTreeSet<u32>,
}

fn overlap(a: &Request, b: &Request) -> bool {
    let changes = a.op.changes() || b.op.changes();
    changes && a.offset_bytes < b.end_bytes() && b.offset_bytes < a.end_bytes()
}

impl SessionOf {
    fn new(initiator: Initiator<Nothing>, mode: Mode, rights: u32) -> SessionOf {
        SessionOf {
            initiator,
            features: mode.features(),
            rights,
            instance: 0,
            next_path: 1,
            lines: BTreeMap::new(),
            under_way: Vec::new(),
            waiting: BTreeSet::new(),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0..=2 => self.submit(input),
            3 | 4 => self.send(input),
            5..=7 => self.respond(input),
            8 => self.fenced(input),
            9 => match input.below(4) {
                0 => self.path_up(1 + input.below(3) as u8),
                1 => self.path_up(self.instance),
                2 => self.down(input),
                _ => {
                    self.initiator.give_up();
                    self.answer_failed();
                }
            },
            10 => self.noise(input),
            _ => self.send_all(),
        }
    }

    /// Connects to an instance of the target, and makes the connection a path of the session.
    fn path_up(&mut self, instance: u8) {
        if self.lines.len() == 4 {
            return;
        }
        let number = self.next_path;
        self.next_path += 1;
        let (mut bytes, mut outbound) = (Vec::new(), Outbound::new());
        welcome(self.features, instance, self.rights).encode(&mut outbound, &mut bytes);
        let mut inbound = InitiatorInbound::new(self.features);
        let Ok(Some((ToInitiator::Welcome(said), taken))) = inbound.next(&bytes, &mut Vec::new())
        else {
            panic!("a welcome is taken");
        };
        assert_eq!(taken, bytes.len());
        // The HELLO was the first frame of the path.
        let (mut ours, mut target) = (Outbound::new(), TargetInbound::new());
        let mut greeting = Vec::new();
        let hello = Hello {
            version_min: 1,
            version_max: 1,
            features: self.features,
            session: [3; 16],
            path: number,
            purpose: Purpose::Open,
            name: String::new(),
        };
        hello.encode(&mut ours, &mut greeting);
        assert!(matches!(
            target.next(&greeting, &mut Vec::new()),
            Ok(Some(_))
        ));
        target.open(self.features);
        let given_up = self.initiator.path_up(number, &said, ours);
        let given_up = given_up.expect("the export is the same one");
        if instance != self.instance {
            // The requests at the old instance ended with it.
            self.instance = instance;
            self.under_way.clear();
        }
        for path in given_up {
            self.lines.remove(&path);
        }
        outbound.open(self.features);
        let line = Line {
            target,
            outbound,
            inbound,
            fences: Vec::new(),
        };
        self.lines.insert(number, line);
    }

    fn path(&self, input: &mut Input<'_>) -> Option<u32> {
        let chosen = input.below(self.lines.len().max(1));
        self.lines.keys().nth(chosen).copied()
    }

    fn down(&mut self, input: &mut Input<'_>) {
        if let Some(path) = self.path(input) {
            self.path_down(path);
        }
    }

    fn path_down(&mut self, path: u32) {
        self.lines.remove(&path);
        self.initiator.path_down(path);
        self.answer_failed();
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let op = Op::ALL[input.below(Op::ALL.len())];
        let (offset, len) = match input.below(8) {
            0 => (input.any_number(), input.any_number() as u32),
            _ => (
                u64::from(input.byte() & 7) << 12,
                1 + (u32::from(input.byte()) << 5),
            ),
        };
        let request = match op {
            Op::Flush => Request::new(op, 0, 0),
            op => Request::new(op, offset, len),
        };
        if let Ok(tag) = self.initiator.submit(request, Nothing) {
            assert!(self.waiting.insert(tag), "a tag names one request");
        }
        self.answer_failed();
    }

    fn answer_failed(&mut self) {
        while let Some((tag, _)) = self.initiator.next_failed() {
            assert!(self.waiting.remove(&tag), "a request is answered once");
        }
    }

    fn send(&mut self, input: &mut Input<'_>) {
        if let Some(path) = self.path(input) {
            self.send_over(path);
        }
    }

    fn send_all(&mut self) {
        for path in self.lines.keys().copied().collect::<Vec<_>>() {
            while self.send_over(path) {}
        }
    }

    /// Takes the initiator's next send for a path, and decodes it as the target would. Returns
    /// false if there was nothing to send.
    fn send_over(&mut self, path: u32) -> bool {
        let mut sending = Sending::default();
        if !self.initiator.next_send(path, &mut sending) {
            return false;
        }
        let line = self.lines.get_mut(&path).expect("it is up");
        let (mut rest, mut requests) = (&sending.heads[..], Vec::new());
        while !rest.is_empty() {
            let read = line.target.next(rest, &mut requests);
            let (message, taken) = read.expect("it is sound").expect("it is whole");
            rest = &rest[taken..];
            match message {
                ToTarget::Command { .. } => {
                    for request in &requests {
                        let clash = self.under_way.iter().find(|(_, b)| overlap(request, b));
                        assert!(clash.is_none(), "{request:?} is sent beside {clash:?}");
                        self.under_way.push((path, *request));
                    }
                }
                ToTarget::Fence(number) => {
                    assert_ne!(number, path, "a path does not fence itself");
                    line.inbound.expect_fenced();
                    line.fences.push(number);
                }
                other => panic!("{other:?}"),
            }
        }
        true
    }

    /// Delivers one response to the initiator over a path. Its results usually answer requests that
    /// were sent over this path.
    fn respond(&mut self, input: &mut Input<'_>) {
        let Some(path) = self.path(input) else {
            return;
        };
        let own: Vec<Request> = self
            .under_way
            .iter()
            .filter(|u| u.0 == path)
            .map(|u| u.1)
            .collect();
        let mut completions = Vec::new();
        for _ in 0..1 + input.below(4) {
            let status = match input.byte() {
                0..200 => Status::Ok,
                other => Status::ALL[usize::from(other) % Status::ALL.len()],
            };
            let asked = own.get(input.below(own.len().max(1)));
            let honest = match asked.map(|request| (request.op, status)) {
                Some((Op::Read, Status::Ok)) => asked.map_or(0, |request| request.length_bytes),
                Some((Op::Extents, Status::Ok)) => 8,
                _ => 0,
            };
            completions.push(Completion {
                tag: asked.map_or(input.number32(), |request| request.tag),
                status,
                length_bytes: honest + u32::from(input.byte() == 0xff),
                check: 0,
            });
        }
        let total: u64 = completions.iter().map(|c| u64::from(c.length_bytes)).sum();
        if total > u64::from(DATA_BYTES_MAX) {
            return;
        }
        if self.features & feature::MERGE == 0 {
            completions.truncate(1);
        }
        let mut bytes = Vec::new();
        let line = self.lines.get_mut(&path).expect("it is up");
        encode_response(&mut line.outbound, &mut bytes, &completions);
        if self.receive(path, &bytes).is_err() {
            self.path_down(path);
        }
    }

    /// Sends a FENCED message over a path. If the initiator has requested the fence of another path
    /// over this path, the message answers that request, and all requests of the fenced path have
    /// ended. Otherwise the message is unexpected.
    fn fenced(&mut self, input: &mut Input<'_>) {
        let Some(path) = self.path(input) else {
            return;
        };
        let line = self.lines.get_mut(&path).expect("it is up");
        let asked = line.fences.pop();
        let number = asked.unwrap_or(u32::from(input.byte()));
        let mut bytes = Vec::new();
        let body = u64::from(number).to_le_bytes();
        line.outbound.control(&mut bytes, kind::FENCED, &body);
        self.under_way
            .retain(|(carried, _)| asked != Some(*carried));
        if self.receive(path, &bytes).is_err() {
            self.path_down(path);
        }
    }

    /// Delivers arbitrary bytes to the initiator over a path. The initiator usually rejects them,
    /// and the path breaks.
    fn noise(&mut self, input: &mut Input<'_>) {
        let Some(path) = self.path(input) else {
            return;
        };
        let len = input.below(64);
        let bytes = input.take(len);
        if self.receive(path, bytes).is_err() {
            self.path_down(path);
        }
        let _ = decode_runs(&Request::new(Op::Extents, 0, 4096), bytes).inspect(|runs| {
            let total: u64 = runs
                .iter()
                .map(|run: &Run| u64::from(run.length_bytes))
                .sum();
            assert!(total <= 4096 && !runs.is_empty() && runs.len() <= RUNS_MAX);
        });
    }

    /// Processes received bytes as a driver does.
    fn receive(&mut self, path: u32, bytes: &[u8]) -> Result<(), ProtocolError> {
        let mut completions = Vec::new();
        let line = self.lines.get_mut(&path).expect("it is up");
        let Some((message, taken)) = line.inbound.next(bytes, &mut completions)? else {
            assert!(bytes.len() < UNREAD_BYTES_MAX);
            return Ok(());
        };
        assert!(taken <= bytes.len());
        match message {
            ToInitiator::Response => {
                for completion in &completions {
                    self.complete(path, completion)?;
                }
                Ok(())
            }
            ToInitiator::Fenced(number) => self.initiator.fenced(path, number),
            other => panic!("{other:?} on a path"),
        }
    }

    fn complete(&mut self, path: u32, completion: &Completion) -> Result<(), ProtocolError> {
        let request = *self.initiator.expect(path, completion)?;
        assert_eq!(request.tag, completion.tag);
        let ended = self.initiator.complete(path, completion)?;
        self.under_way
            .retain(|(on, carried)| (*on, carried.tag) != (path, completion.tag));
        match ended {
            Completed::Submitted(_) => {
                let waited = self.waiting.remove(&completion.tag);
                assert!(waited, "a request is answered once");
            }
            Completed::Unheard => {}
            Completed::PathEnds => return Err(ProtocolError::UnknownTag(completion.tag)),
        }
        self.answer_failed();
        Ok(())
    }
}
