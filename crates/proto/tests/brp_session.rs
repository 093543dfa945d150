//! Tests a session over paths that break and with a target that dies, against a model of the
//! target. The model carries out requests in any permitted way: in any order, late, and also when
//! they came over paths that the initiator has abandoned. An answered change must not be lost
//! unless a flush error reports the loss, and older content must not reappear. If the fence or the
//! replay is left out, the same test must detect the resulting error.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bimetal_proto::brp::frame::{Head, check_of};
use bimetal_proto::brp::inbound::{ToInitiator, ToTarget};
use bimetal_proto::brp::initiator::{Change, Completed, Data, Failure, Sending, Unusable};
use bimetal_proto::brp::response::encode_response;
use bimetal_proto::brp::wire::{HEAD_BYTES, feature, kind, request_flag, right};
use bimetal_proto::brp::{
    Completion, Initiator, InitiatorInbound, Mode, Op, Outbound, Path, Request, Sessions, Status,
    TargetInbound, Welcome,
};

/// A block of the model holds one number.
const BLOCK_BYTES: u32 = 8;
const BLOCKS: usize = 12;
const SESSION: [u8; 16] = [7; 16];
const PATHS: usize = 3;

#[derive(Clone, Debug, Default)]
struct Bytes(Vec<u8>);

impl Data for Bytes {
    fn check(&self) -> u32 {
        check_of(&self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Nothing,
    /// Planted bug: the target answers a fence (a request to end a path) without checking that the
    /// requests of the path have ended.
    FenceLeftOut,
    /// Planted bug: the welcome of the target does not say that the target can lose changes. So the
    /// initiator does not send the lost changes again.
    ReplayLeftOut,
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift64*, of Vigna.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A request that the target has accepted but not yet carried out.
struct Taken {
    path: Rc<Path>,
    request: Request,
    data: Vec<u8>,
}

/// A connection with both of its ends.
struct Connection {
    path: Rc<Path>,
    at_target: TargetInbound,
    from_target: Outbound,
    at_initiator: InitiatorInbound,
    to_target: Vec<u8>,
    to_initiator: Vec<u8>,
    /// Paths that have not ended and whose fence was requested over this path.
    fencing: Vec<Rc<Path>>,
    /// True when the initiator has abandoned the path. The target has not noticed this yet.
    broken: bool,
}

struct World {
    rng: Rng,
    plant: Plant,
    volatile: bool,
    initiator: Initiator<Bytes>,
    sessions: Sessions,
    connections: BTreeMap<u32, Connection>,
    taken: Vec<Taken>,
    next_path: u32,
    instance: u8,
    /// Version number of each block. `content`: the current content of the target. `durable`: the
    /// durable content, which remains when the target dies.
    content: [u64; BLOCKS],
    durable: [u64; BLOCKS],
    next_version: u64,
    /// Version numbers of each block. `submitted`: the last version that was submitted in a write.
    /// `answered`: the last version whose write was answered.
    submitted: [u64; BLOCKS],
    answered: [u64; BLOCKS],
    /// The initiator's requests by tag, with the versions that a read must return, that a write
    /// writes, or that a flush must cover.
    asked: BTreeMap<u32, Asked>,
    deaths: usize,
    losses: Rc<Cell<usize>>,
}

enum Asked {
    Read(usize, Vec<u64>),
    Write(usize, usize, u64),
    Flush([u64; BLOCKS]),
}

fn versions(bytes: &[u8]) -> Vec<u64> {
    let number = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().unwrap());
    bytes.chunks_exact(8).map(number).collect()
}

impl World {
    fn new(seed: u64, plant: Plant, keep_bytes: u64, volatile: bool, mode: Mode) -> World {
        World {
            rng: Rng(seed * 2 + 1),
            plant,
            volatile,
            initiator: Initiator::new(mode, keep_bytes),
            sessions: Sessions::new(64),
            connections: BTreeMap::new(),
            taken: Vec::new(),
            next_path: 1,
            instance: 1,
            content: [0; BLOCKS],
            durable: [0; BLOCKS],
            next_version: 1,
            submitted: [0; BLOCKS],
            answered: [0; BLOCKS],
            asked: BTreeMap::new(),
            deaths: 0,
            losses: Rc::default(),
        }
    }

    fn welcome(&self) -> Welcome {
        let told = self.volatile && self.plant != Plant::ReplayLeftOut;
        Welcome {
            features: feature::MERGE | feature::CRC,
            instance: [self.instance; 16],
            host: [1; 16],
            size_bytes: u64::from(BLOCK_BYTES) * BLOCKS as u64,
            block_bytes: BLOCK_BYTES,
            preferred_bytes: 4096,
            transfer_bytes_max: 4096,
            range_bytes_max: 4096,
            requests_max: 64,
            data_bytes_max: 1 << 20,
            rights: if told { right::VOLATILE } else { 0 },
        }
    }

    fn connect(&mut self) -> Result<(), String> {
        let number = self.next_path;
        self.next_path += 1;
        let path = self
            .sessions
            .open(SESSION, number)
            .map_err(|refusal| refusal.words)?;
        let features = feature::MERGE | feature::CRC;
        let mut connection = Connection {
            path,
            at_target: TargetInbound::new(),
            from_target: Outbound::new(),
            at_initiator: InitiatorInbound::new(features),
            to_target: Vec::new(),
            to_initiator: Vec::new(),
            fencing: Vec::new(),
            broken: false,
        };
        let mut welcome = Vec::new();
        self.welcome()
            .encode(&mut connection.from_target, &mut welcome);
        connection.from_target.open(features);
        connection.at_target.open(features);
        let (message, _) = connection
            .at_initiator
            .next(&welcome, &mut Vec::new())
            .unwrap()
            .unwrap();
        let ToInitiator::Welcome(welcome) = message else {
            return Err("no welcome".to_owned());
        };
        // The model does not send the initiator's HELLO, which would be the first frame in this
        // direction. So the initiator gets a new encoder, which has not encoded any frame yet.
        let given_up = self
            .initiator
            .path_up(number, &welcome, Outbound::new())
            .unwrap();
        for old in given_up {
            if let Some(old) = self.connections.get_mut(&old) {
                old.broken = true;
            }
        }
        self.connections.insert(number, connection);
        Ok(())
    }

    fn submit(&mut self) {
        let first = self.rng.below(BLOCKS);
        let count = 1 + self.rng.below(3.min(BLOCKS - first));
        let offset = first as u64 * u64::from(BLOCK_BYTES);
        let length = count as u32 * BLOCK_BYTES;
        match self.rng.below(10) {
            0 => {
                let request = Request::new(Op::Flush, 0, 0);
                if let Ok(tag) = self.initiator.submit(request, Bytes::default()) {
                    self.asked.insert(tag, Asked::Flush(self.answered));
                }
            }
            1..=3 => {
                let request = Request::new(Op::Read, offset, length);
                if let Ok(tag) = self.initiator.submit(request, Bytes::default()) {
                    let expected = self.submitted[first..first + count].to_vec();
                    self.asked.insert(tag, Asked::Read(first, expected));
                }
            }
            _ => {
                let version = self.next_version;
                let mut request = Request::new(Op::Write, offset, length);
                if self.rng.chance(15) {
                    request.flags = request_flag::FUA;
                }
                let data = Bytes(version.to_le_bytes().repeat(count));
                if let Ok(tag) = self.initiator.submit(request, data) {
                    self.next_version += 1;
                    self.submitted[first..first + count].fill(version);
                    self.asked.insert(tag, Asked::Write(first, count, version));
                }
            }
        }
    }

    fn any_connection(&mut self) -> Option<u32> {
        let count = self.connections.len();
        (count > 0).then(|| {
            let index = self.rng.below(count);
            *self.connections.keys().nth(index).unwrap()
        })
    }

    fn send(&mut self, number: u32) {
        let mut sending = Sending::default();
        if !self.initiator.next_send(number, &mut sending) {
            return;
        }
        let connection = self.connections.get_mut(&number).unwrap();
        (0..sending.fences).for_each(|_| connection.at_initiator.expect_fenced());
        let mut from = 0;
        for (place, data) in &sending.data {
            connection
                .to_target
                .extend_from_slice(&sending.heads[from..*place]);
            connection.to_target.extend_from_slice(&data.0);
            from = *place;
        }
        connection
            .to_target
            .extend_from_slice(&sending.heads[from..]);
    }

    /// Reads one message as the target.
    fn receive_at_target(&mut self, number: u32) {
        let connection = self.connections.get_mut(&number).unwrap();
        let mut requests = Vec::new();
        let unread = &connection.to_target;
        let Some((message, taken)) = connection.at_target.next(unread, &mut requests).unwrap()
        else {
            return;
        };
        connection.to_target.drain(..taken);
        match message {
            ToTarget::Command { .. } => {
                for request in requests {
                    let data_bytes = request.data_bytes() as usize;
                    let data: Vec<u8> = connection.to_target.drain(..data_bytes).collect();
                    assert!(request.op != Op::Write || check_of(&data) == request.check);
                    if connection.path.start() {
                        let path = Rc::clone(&connection.path);
                        self.taken.push(Taken {
                            path,
                            request,
                            data,
                        });
                    }
                }
            }
            ToTarget::Fence(other) => {
                let asker = Rc::clone(&connection.path);
                let found = match self.plant {
                    Plant::FenceLeftOut => None,
                    _ => self.sessions.fence(&asker, other),
                };
                match found {
                    Some(path) => connection.fencing.push(path),
                    None => fenced(connection, other),
                }
            }
            other => panic!("the initiator sent {other:?}"),
        }
    }

    /// Carries out one of the requests that the target has accepted, and answers it if the path
    /// still exists.
    fn carry_out(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let index = self.rng.below(self.taken.len());
        let connection = self.connections.get(&self.taken[index].path.number());
        if connection.is_some_and(|c| c.broken) && self.rng.chance(95) {
            // The target can carry out requests of a broken path late, so leave this request in the
            // list for now.
            return;
        }
        let taken = self.taken.swap_remove(index);
        let request = taken.request;
        let first = (request.offset_bytes / u64::from(BLOCK_BYTES)) as usize;
        let count = (request.length_bytes / BLOCK_BYTES) as usize;
        let mut data = Vec::new();
        match request.op {
            Op::Read => {
                for version in &self.content[first..first + count] {
                    data.extend_from_slice(&version.to_le_bytes());
                }
            }
            Op::Write => {
                let written = versions(&taken.data);
                self.content[first..first + count].copy_from_slice(&written);
                if request.has_fua() || !self.volatile {
                    self.durable[first..first + count].copy_from_slice(&written);
                }
            }
            Op::Flush => self.durable = self.content,
            other => panic!("the model does not submit {other:?}"),
        }
        taken.path.end();
        let connection = self.connections.get_mut(&taken.path.number());
        if let Some(connection) = connection.filter(|c| !c.path.is_fenced()) {
            let completion = Completion {
                tag: request.tag,
                status: Status::Ok,
                length_bytes: data.len() as u32,
                check: if data.is_empty() { 0 } else { check_of(&data) },
            };
            let out = &mut connection.to_initiator;
            encode_response(&mut connection.from_target, out, &[completion]);
            out.extend_from_slice(&data);
        }
        self.answer_fences();
    }

    fn answer_fences(&mut self) {
        for connection in self.connections.values_mut() {
            let (over, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut connection.fencing)
                .into_iter()
                .partition(|path| path.is_over());
            connection.fencing = waiting;
            for path in over {
                fenced(connection, path.number());
            }
        }
    }

    /// Reads one message as the initiator.
    fn receive_at_initiator(&mut self, number: u32) {
        let connection = self.connections.get_mut(&number).unwrap();
        let mut completions = Vec::new();
        let unread = &connection.to_initiator;
        let Some((message, taken)) = connection
            .at_initiator
            .next(unread, &mut completions)
            .unwrap()
        else {
            return;
        };
        connection.to_initiator.drain(..taken);
        match message {
            ToInitiator::Response => {
                for completion in completions {
                    self.initiator.expect(number, &completion).unwrap();
                    let data: Vec<u8> = self
                        .connections
                        .get_mut(&number)
                        .unwrap()
                        .to_initiator
                        .drain(..completion.length_bytes as usize)
                        .collect();
                    let ended = self.initiator.complete(number, &completion).unwrap();
                    if let Completed::Submitted(result) = ended {
                        self.ended(completion.tag, result, &data);
                    }
                }
            }
            ToInitiator::Fenced(other) => self.initiator.fenced(number, other).unwrap(),
            other => panic!("the target sent {other:?}"),
        }
    }

    /// Checks the result of an ended request of the initiator.
    fn ended(&mut self, tag: u32, result: Result<(), Failure>, data: &[u8]) {
        let asked = self.asked.remove(&tag).expect("a request ends once");
        match (asked, result) {
            (Asked::Read(first, expected), Ok(())) => {
                assert_eq!(versions(data), expected, "read of block {first}");
            }
            (Asked::Write(first, count, version), Ok(())) => {
                self.answered[first..first + count].fill(version);
            }
            (Asked::Flush(answered), Ok(())) => {
                for (block, version) in answered.into_iter().enumerate() {
                    assert!(
                        self.durable[block] >= version,
                        "flushed block {block} is gone"
                    );
                }
            }
            (Asked::Flush(_), Err(Failure::Lost)) => self.losses.set(self.losses.get() + 1),
            (_, other) => panic!("a request failed: {other:?}"),
        }
    }

    fn break_path(&mut self, number: u32) {
        let connection = self.connections.get_mut(&number).unwrap();
        if !connection.broken {
            connection.broken = true;
            connection.to_initiator.clear();
            self.initiator.path_down(number);
        }
    }

    fn die(&mut self) {
        self.deaths += 1;
        self.instance += 1;
        self.content = self.durable;
        self.taken.clear();
        self.sessions = Sessions::new(64);
        // All paths have ended. For about half of them, chosen at random, the initiator learns this
        // now. For the others, it learns this when the next path comes up.
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            if self.rng.chance(50) {
                self.initiator.path_down(number);
            }
        }
        self.connections.clear();
    }

    /// Removes the connections that are broken and whose requests have all ended at the target, and
    /// lets the target answer fences.
    fn tidy_up(&mut self) {
        let over: Vec<u32> = self
            .connections
            .iter()
            .filter(|(_, c)| c.broken && c.path.under_way() == 0 && c.to_target.is_empty())
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            let connection = self.connections.remove(&number).unwrap();
            self.sessions.close(&connection.path);
        }
        self.answer_fences();
    }

    fn open_paths(&self) -> usize {
        self.connections.values().filter(|c| !c.broken).count()
    }

    fn step(&mut self, quiet: bool) {
        match self.rng.below(100) {
            0..=19 if !quiet && self.open_paths() > 0 && self.asked.len() < 24 => self.submit(),
            20..=39 => {
                if let Some(number) = self
                    .any_connection()
                    .filter(|n| !self.connections[n].broken)
                {
                    self.send(number);
                }
            }
            40..=59 => {
                if let Some(number) = self.any_connection() {
                    self.receive_at_target(number);
                }
            }
            60..=74 => self.carry_out(),
            75..=92 => {
                if let Some(number) = self
                    .any_connection()
                    .filter(|n| !self.connections[n].broken)
                {
                    self.receive_at_initiator(number);
                }
            }
            93..=95 if self.open_paths() < PATHS => self.connect().unwrap(),
            96 => self.tidy_up(),
            97..=98 if !quiet => {
                if self.rng.chance(50)
                    && let Some(number) = self.any_connection()
                {
                    self.break_path(number);
                }
            }
            99 if !quiet && self.volatile && self.deaths < 100 && self.rng.chance(20) => self.die(),
            _ => {}
        }
    }

    fn run(mut self) -> (usize, usize) {
        self.connect().unwrap();
        for _ in 0..4000 {
            self.step(false);
        }
        // From now on no path breaks and the target does not die, so all requests must end. The
        // flush after this loop makes the changes durable.
        for _ in 0..200_000 {
            if self.asked.is_empty() {
                break;
            }
            self.step(true);
        }
        assert!(self.asked.is_empty(), "requests are stuck");
        // If changes were lost, the first flush fails and so reports the loss. The second flush
        // must succeed.
        for _ in 0..2 {
            let flush = Request::new(Op::Flush, 0, 0);
            let tag = self.initiator.submit(flush, Bytes::default()).unwrap();
            self.asked.insert(tag, Asked::Flush(self.answered));
            while !self.asked.is_empty() {
                self.step(true);
            }
        }
        if self.losses.get() == 0 {
            assert_eq!(self.durable, self.submitted, "the last content is there");
        }
        (self.deaths, self.losses.get())
    }
}

fn fenced(connection: &mut Connection, number: u32) {
    let body = u64::from(number).to_le_bytes();
    let out = &mut connection.to_initiator;
    connection.from_target.control(out, kind::FENCED, &body);
}

const MODES: [Mode; 4] = [
    Mode::Adaptive,
    Mode::Parallel,
    Mode::Short,
    Mode::Merge { in_turn: false },
];

fn found(plant: Plant, volatile: bool) -> bool {
    (0..40).any(|seed| {
        let run = move || World::new(seed, plant, 1 << 20, volatile, MODES[0]).run();
        std::panic::catch_unwind(run).is_err()
    })
}

#[test]
fn nothing_is_lost_or_undone_when_paths_break() {
    for seed in 0..100 {
        let mode = MODES[seed as usize % MODES.len()];
        World::new(seed, Plant::Nothing, 0, false, mode).run();
    }
}

#[test]
fn nothing_is_lost_when_a_volatile_target_dies() {
    let mut deaths = 0;
    for seed in 0..100 {
        let mode = MODES[seed as usize % MODES.len()];
        // With half of the seeds, the store of kept changes is so small that changes must wait for
        // flushes. With the other seeds, the store always has room.
        let keep_bytes = if seed % 2 == 0 { 300 } else { 1 << 20 };
        let (died, losses) = World::new(seed, Plant::Nothing, keep_bytes, true, mode).run();
        deaths += died;
        assert_eq!(losses, 0, "what was lost has been sent again");
    }
    assert!(deaths > 100, "the test has deaths: {deaths}");
}

#[test]
fn a_fence_that_is_left_out_is_found() {
    assert!(found(Plant::FenceLeftOut, false));
}

#[test]
fn a_replay_that_is_left_out_is_found() {
    assert!(found(Plant::ReplayLeftOut, true));
}

/// Returns the kinds of the frames in a send without data.
fn kinds(sending: &Sending<Bytes>) -> Vec<u8> {
    let (mut kinds, mut rest) = (Vec::new(), &sending.heads[..]);
    while let Some(head) = Head::decode(rest) {
        kinds.push(head.kind);
        let data_bytes = sending.data.iter().map(|(_, data)| data.0.len()).sum();
        let body_bytes = (head.body_bytes as usize).min(rest.len() - HEAD_BYTES);
        assert!(head.body_bytes as usize - body_bytes <= data_bytes);
        rest = &rest[HEAD_BYTES + body_bytes..];
    }
    kinds
}

#[test]
fn what_was_given_up_still_keeps_later_changes_back_until_it_is_fenced() {
    let world = World::new(1, Plant::Nothing, 0, false, Mode::Adaptive);
    let mut initiator = world.initiator;
    let welcome = Welcome {
        features: feature::MERGE,
        rights: 0,
        block_bytes: BLOCK_BYTES,
        size_bytes: u64::from(BLOCK_BYTES) * BLOCKS as u64,
        instance: [1; 16],
        host: [1; 16],
        preferred_bytes: 4096,
        transfer_bytes_max: 4096,
        range_bytes_max: 4096,
        requests_max: 64,
        data_bytes_max: 1 << 20,
    };
    let mut sending = Sending::default();
    let write = |block: u64| {
        let offset = block * u64::from(BLOCK_BYTES);
        let data = Bytes(vec![block as u8; BLOCK_BYTES as usize]);
        (Request::new(Op::Write, offset, BLOCK_BYTES), data)
    };
    initiator.path_up(1, &welcome, Outbound::new()).unwrap();
    let (request, data) = write(3);
    let first = initiator.submit(request, data).unwrap();
    assert!(initiator.next_send(1, &mut sending));
    initiator.path_down(1);
    initiator.give_up();
    assert_eq!(initiator.next_failed(), Some((first, Failure::Unreachable)));

    // A new path to the target is up. Requests that overlap an unanswered request wait for the
    // fence; other requests are sent immediately.
    initiator.path_up(2, &welcome, Outbound::new()).unwrap();
    let (request, data) = write(3);
    initiator.submit(request, data).unwrap();
    assert!(initiator.next_send(2, &mut sending));
    assert_eq!((kinds(&sending), sending.fences), (vec![kind::FENCE], 1));
    let (request, data) = write(4);
    initiator.submit(request, data).unwrap();
    assert!(initiator.next_send(2, &mut sending));
    assert_eq!(kinds(&sending), [kind::COMMAND]);
    assert!(!initiator.next_send(2, &mut sending));
    assert!(initiator.is_troubled() && initiator.fenced(2, 9).is_err());
    initiator.fenced(2, 1).unwrap();
    assert!(initiator.next_send(2, &mut sending));
    assert_eq!(kinds(&sending), [kind::COMMAND]);
    // The abandoned request is not sent again.
    assert!(!initiator.next_send(2, &mut sending));
    assert_eq!((initiator.under_way(), initiator.is_troubled()), (2, false));
}

#[test]
fn an_export_is_taken_again_as_long_as_what_was_told_at_first_holds() {
    let world = World::new(1, Plant::Nothing, 0, false, Mode::Adaptive);
    let mut initiator = world.initiator;
    let told = Welcome {
        features: feature::MERGE,
        rights: right::DISCARD_ZEROES,
        block_bytes: BLOCK_BYTES,
        size_bytes: 1 << 20,
        instance: [1; 16],
        host: [1; 16],
        preferred_bytes: 4096,
        transfer_bytes_max: 1 << 16,
        range_bytes_max: 1 << 16,
        requests_max: 64,
        data_bytes_max: 1 << 20,
    };
    initiator.path_up(1, &told, Outbound::new()).unwrap();
    initiator.path_down(1);
    let next = |instance: u8| Welcome {
        instance: [instance; 16],
        ..told
    };
    let shrunk = Change::Shrunk {
        was_bytes: 1 << 20,
        is_bytes: 1 << 19,
    };
    let discards_and = |more: u32| right::DISCARD_ZEROES | more;
    for (now, change) in [
        (
            Welcome {
                size_bytes: 1 << 19,
                ..next(2)
            },
            shrunk,
        ),
        (
            Welcome {
                rights: discards_and(right::READ_ONLY),
                ..next(2)
            },
            Change::ReadOnly,
        ),
        (
            Welcome {
                block_bytes: 2 * BLOCK_BYTES,
                ..next(2)
            },
            Change::Requests,
        ),
        (
            Welcome {
                transfer_bytes_max: 1 << 15,
                ..next(2)
            },
            Change::Requests,
        ),
        (
            Welcome {
                range_bytes_max: 1 << 15,
                ..next(2)
            },
            Change::Requests,
        ),
        (
            Welcome {
                rights: 0,
                ..next(2)
            },
            Change::Discards,
        ),
        (
            Welcome {
                rights: discards_and(right::VOLATILE),
                ..next(2)
            },
            Change::Keeping,
        ),
        (
            Welcome {
                rights: discards_and(right::EPHEMERAL),
                ..next(2)
            },
            Change::Keeping,
        ),
    ] {
        let up = initiator.path_up(2, &now, Outbound::new());
        assert_eq!(up, Err(Unusable::Changed(change)));
        assert_eq!(initiator.welcome(), Some(&told));
    }
    // An export that has become larger is accepted. An export that then has the original size again
    // is accepted, too, because each export is compared with the first one.
    let more = Welcome {
        size_bytes: 1 << 21,
        rights: discards_and(right::ROTATIONAL),
        ..next(2)
    };
    initiator.path_up(2, &more, Outbound::new()).unwrap();
    initiator.path_down(2);
    initiator.path_up(3, &next(3), Outbound::new()).unwrap();
    assert_eq!(initiator.instances(), 3);
}
