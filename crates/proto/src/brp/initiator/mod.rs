//! A session at its initiator: which requests may be sent now, in which frames, and what becomes of
//! them when paths break and targets die (sections "Temporal merge" and "Sessions, fences and
//! replay").
//!
//! The machine does no I/O: whoever drives it tells it of paths that are up or down and of
//! responses, and asks it for the next send of a path. It must never have two overlapping requests
//! under way of which one is a change, never send a request again before its path was fenced or its
//! target has died, and never let a flush succeed that covers a change which may be gone.

mod kept;
mod merge;
mod overlap;
mod table;

use std::collections::{BTreeMap, VecDeque};

use super::command::{Request, encode_command};
use super::frame::Outbound;
use super::greeting::Welcome;
use super::response::Completion;
use super::wire::{FENCES_MAX, Op, ProtocolError, Status, feature, kind, right};
use kept::{Kept, cost_bytes};
pub use merge::Mode;
use merge::{Waiting, cut};
use overlap::Overlap;
use table::Table;

/// A request under which so many paths broke fails: it may well be what breaks them.
const BREAKS_MAX: u32 = 8;

/// The data of a request, which the machine passes on and never looks into.
pub trait Data: Clone + Default {
    /// CRC-32C of it.
    fn check(&self) -> u32;
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The target said so.
    Target(Status),
    /// The target has died since the last flush, and changes that it had answered went with it. One
    /// flush says so.
    Lost,
    /// Path after path broke under this request. A change may still happen.
    Broken,
    /// The target did not come back in time. A change may still happen.
    Unreachable,
    /// There is no room for another request.
    Full,
}

/// Why a target that is there cannot be the one of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It offers less than the session counts on; that can be undone.
    #[error("{0}")]
    Changed(Change),
    /// Everything in it ended with the target's process: nothing will bring that back.
    #[error("the target has started anew and lost what the export held in memory")]
    Gone,
}

/// What an export has come to offer less of than at the beginning of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Change {
    /// Its size.
    #[error("the export has shrunk from {was_bytes} bytes to {is_bytes}")]
    Shrunk {
        /// The size at the beginning.
        was_bytes: u64,
        /// The size now.
        is_bytes: u64,
    },
    /// Changes are refused.
    #[error("the export has become read-only")]
    ReadOnly,
    /// Requests that were short enough, or long enough, are not any more.
    #[error("the export does not take requests as short or as long as before")]
    Requests,
    /// What was discarded may read as anything.
    #[error("what is discarded in the export does not read as zeroes any more")]
    Discards,
    /// What no flush has covered ends with the target's process, or the other way round.
    #[error("the export keeps what was not flushed in another way than before")]
    Keeping,
}

/// What a response means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// A request that was submitted has ended.
    Submitted(Result<(), Failure>),
    /// Nobody waits for it.
    Unheard,
    /// The path has to end; the request is sent again over another one.
    PathEnds,
}

/// What one send carries: heads, and between them the data of writes.
#[derive(Debug, Default)]
pub struct Sending<D> {
    /// Heads and entries of all frames, one behind the other.
    pub heads: Vec<u8>,
    /// Data, each with the place in `heads` before which it goes.
    pub data: Vec<(usize, D)>,
    /// Fences in it.
    pub fences: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It may not be sent yet.
    Held,
    Queued,
    /// Over this path, which may have broken since.
    Sent(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Submitted,
    /// It failed; what is at the target has still to end.
    Abandoned,
    /// A change that was answered by a target which has died since.
    Replay,
    /// A flush that makes room for changes to be kept.
    OwnFlush,
}

#[derive(Debug)]
struct Pending<D> {
    order: u64,
    request: Request,
    data: D,
    state: State,
    origin: Origin,
    /// Of a flush that was sent: the changes that had been answered before.
    covers: u64,
    breaks: u32,
}

#[derive(Debug)]
struct PathState {
    outbound: Outbound,
    merges: bool,
    requests_max: u32,
    data_bytes_max: u64,
    requests: u32,
    data_bytes: u64,
    fences: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Initiator<D> {
    mode: Mode,
    /// What was said at the beginning, which the layers above count on.
    told: Option<Welcome>,
    /// What was said last.
    welcome: Option<Welcome>,
    instances: u64,
    paths: BTreeMap<u32, PathState>,
    /// Broken paths with requests that have not ended, and the path that was asked to fence them.
    to_fence: BTreeMap<u32, Option<u32>>,
    table: Table<Pending<D>>,
    next_order: u64,
    queue: VecDeque<Waiting>,
    held: VecDeque<u32>,
    /// The ranges of what is queued or under way, and of what is held.
    admitted: Overlap,
    waiting: Overlap,
    /// Cost of the changes that are queued or under way.
    admitted_bytes: u64,
    /// Changes wait until a flush has made room for them.
    is_full: bool,
    kept: Kept<D>,
    replays: usize,
    own_flush: bool,
    /// Changes that were answered and not durable with that, and how many of them a flush has
    /// covered.
    answered: u64,
    covered: u64,
    lost: bool,
    failed: VecDeque<(u32, Failure)>,
}

impl<D: Data> Initiator<D> {
    /// A session without a path. It keeps at most `keep_bytes_max` of changes that a volatile
    /// target has answered; with 0 it keeps none.
    pub fn new(mode: Mode, keep_bytes_max: u64) -> Initiator<D> {
        Initiator {
            mode,
            told: None,
            welcome: None,
            instances: 0,
            paths: BTreeMap::new(),
            to_fence: BTreeMap::new(),
            table: Table::new(),
            next_order: 0,
            queue: VecDeque::new(),
            held: VecDeque::new(),
            admitted: Overlap::default(),
            waiting: Overlap::default(),
            admitted_bytes: 0,
            is_full: false,
            kept: Kept::new(keep_bytes_max),
            replays: 0,
            own_flush: false,
            answered: 0,
            covered: 0,
            lost: false,
            failed: VecDeque::new(),
        }
    }

    /// What the target last said of the export; `None` before the first path.
    pub fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    /// Instances of the target that were seen. Each but the first may be an older copy of the
    /// volume.
    pub fn instances(&self) -> u64 {
        self.instances
    }

    /// Requests that have not ended.
    pub fn under_way(&self) -> usize {
        self.table.len()
    }

    /// True while there is no path, or an old one has not been fenced: requests may not get
    /// through.
    pub fn is_troubled(&self) -> bool {
        self.paths.is_empty() || !self.to_fence.is_empty()
    }

    /// The frame that ends a path in order; nothing when the path is not up.
    pub fn goodbye(&mut self, path: u32) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(state) = self.paths.get_mut(&path) {
            state.outbound.control(&mut out, kind::CLOSE, &[]);
        }
        out
    }

    /// Whether a path has something to send as soon as its link is ready.
    pub fn has_something_for(&self, path: u32) -> bool {
        let fence = self.to_fence.values().any(Option::is_none);
        self.paths.get(&path).is_some_and(|state| {
            (fence && state.fences < FENCES_MAX)
                || self.queue.front().is_some_and(|next| {
                    let data_bytes = state.data_bytes + u64::from(next.data_bytes);
                    state.requests < state.requests_max && data_bytes <= state.data_bytes_max
                })
        })
    }

    /// Takes a request; its tag names it from now on until it ends.
    ///
    /// # Errors
    /// A request that is not valid, or no room for another one.
    ///
    /// # Panics
    /// Before the first path.
    pub fn submit(&mut self, request: Request, data: D) -> Result<u32, Failure> {
        let welcome = self.welcome.as_ref().expect("a session begins with a path");
        welcome.validate(&request).map_err(Failure::Target)?;
        if self.table.is_full() {
            return Err(Failure::Full);
        }
        let order = self.next_order;
        self.next_order += 1;
        let tag = self.insert(order, request, data, Origin::Submitted);
        self.admit_or_hold(tag);
        self.flush_for_room();
        Ok(tag)
    }

    /// The next request that failed without a response.
    pub fn next_failed(&mut self) -> Option<(u32, Failure)> {
        self.failed.pop_front()
    }

    fn insert(&mut self, order: u64, request: Request, data: D, origin: Origin) -> u32 {
        self.table.insert(|tag| Pending {
            order,
            request: Request { tag, ..request },
            data,
            state: State::Held,
            origin,
            covers: 0,
            breaks: 0,
        })
    }

    // What may be sent now.

    /// Queues a request that is in the table, or holds it until what it has to wait for has ended.
    fn admit_or_hold(&mut self, tag: u32) {
        let pending = self.table.get(tag).expect("a request is in the table");
        let request = pending.request;
        let replays = pending.origin == Origin::Replay;
        let cost = cost_bytes(&request);
        let no_room = request.op.changes()
            && !replays
            && self.is_kept()
            && (self.is_full || !self.kept.has_room(self.admitted_bytes, cost));
        // A flush has to cover what was answered and is sent again.
        let too_early = request.op == Op::Flush && self.replays > 0;
        self.is_full |= no_room;
        if no_room
            || too_early
            || self.admitted.conflicts(&request)
            || self.waiting.conflicts(&request)
        {
            self.waiting.insert(&request);
            self.held.push_back(tag);
            return;
        }
        self.admitted.insert(&request);
        if request.op.changes() {
            self.admitted_bytes += cost;
        }
        self.queue.push_back(waiting(&request));
        self.set_state(tag, State::Queued);
    }

    /// Looks at everything that is held again, in its order.
    fn readmit(&mut self) {
        if self.held.is_empty() {
            return;
        }
        self.is_full = false;
        self.waiting.clear();
        for tag in std::mem::take(&mut self.held) {
            self.admit_or_hold(tag);
        }
    }

    /// Asks for a flush when changes wait for room, or soon will.
    fn flush_for_room(&mut self) {
        let wanted = self.is_kept() && (self.is_full || self.kept.is_half_full());
        if !wanted || self.kept.is_empty() || self.own_flush || self.table.is_full() {
            return;
        }
        self.own_flush = true;
        let order = self.next_order;
        self.next_order += 1;
        let flush = Request::new(Op::Flush, 0, 0);
        let tag = self.insert(order, flush, D::default(), Origin::OwnFlush);
        self.admit_or_hold(tag);
    }

    /// Whether answered changes are kept: the data of a request is then held beyond its answer.
    /// What is lost with everything else is not worth keeping.
    pub fn is_kept(&self) -> bool {
        let worth_it = |w: Welcome| w.has(right::VOLATILE) && !w.has(right::EPHEMERAL);
        self.kept.keeps() && self.welcome.is_some_and(worth_it)
    }

    fn set_state(&mut self, tag: u32, state: State) {
        if let Some(pending) = self.table.get_mut(tag) {
            pending.state = state;
        }
    }

    // Sending.

    /// Fills `sending` with what goes out over a path now; false when that is nothing.
    pub fn next_send(&mut self, path: u32, sending: &mut Sending<D>) -> bool {
        sending.heads.clear();
        sending.data.clear();
        sending.fences = 0;
        let Some(state) = self.paths.get_mut(&path) else {
            return false;
        };
        for (number, asked) in &mut self.to_fence {
            if asked.is_none() && state.fences < FENCES_MAX {
                *asked = Some(path);
                state.fences += 1;
                sending.fences += 1;
                let body = u64::from(*number).to_le_bytes();
                state
                    .outbound
                    .control(&mut sending.heads, kind::FENCE, &body);
            }
        }
        let requests = (state.requests_max - state.requests) as usize;
        let data_bytes = state.data_bytes_max - state.data_bytes;
        let cut = cut(self.mode, state.merges, &self.queue, requests, data_bytes);
        let mut frame = Vec::new();
        for count in cut.frames {
            frame.clear();
            frame.extend(self.queue.drain(..count));
            self.encode(path, &frame, sending);
        }
        !sending.heads.is_empty()
    }

    fn encode(&mut self, path: u32, frame: &[Waiting], sending: &mut Sending<D>) {
        let (answered, in_turn) = (self.answered, self.mode.in_turn());
        let state = self.paths.get_mut(&path).expect("the path is up");
        let mut requests = Vec::with_capacity(frame.len());
        let mut data = Vec::new();
        for waiting in frame {
            let pending = self.table.get_mut(waiting.tag);
            let pending = pending.expect("what is queued is in the table");
            pending.state = State::Sent(path);
            pending.covers = answered;
            state.requests += 1;
            state.data_bytes += u64::from(waiting.data_bytes);
            let is_write = pending.request.op == Op::Write;
            let check = if is_write && state.outbound.crc {
                pending.data.check()
            } else {
                0
            };
            requests.push(Request {
                check,
                ..pending.request
            });
            if is_write {
                data.push(pending.data.clone());
            }
        }
        encode_command(
            &mut state.outbound,
            &mut sending.heads,
            &requests,
            in_turn && requests.len() > 1,
        );
        let place = sending.heads.len();
        sending
            .data
            .extend(data.into_iter().map(|data| (place, data)));
    }

    // Responses.

    /// The request that a result belongs to, after it was held against it.
    ///
    /// # Errors
    /// The path has to end.
    pub fn expect(&self, path: u32, completion: &Completion) -> Result<&Request, ProtocolError> {
        let pending = self.table.get(completion.tag);
        let pending = pending
            .filter(|pending| pending.state == State::Sent(path))
            .ok_or(ProtocolError::UnknownTag(completion.tag))?;
        completion.check_against(&pending.request)?;
        Ok(&pending.request)
    }

    /// A result whose data is there and sound.
    ///
    /// # Errors
    /// As [`expect`](Self::expect).
    pub fn complete(
        &mut self,
        path: u32,
        completion: &Completion,
    ) -> Result<Completed, ProtocolError> {
        let request = *self.expect(path, completion)?;
        let crc = self.paths.get(&path).is_some_and(|p| p.outbound.crc);
        let damaged = completion.status == Status::Corrupt && request.op == Op::Write && crc;
        if completion.status == Status::Shutdown || damaged {
            return Ok(Completed::PathEnds);
        }
        let pending = self.remove(completion.tag);
        if let Some(state) = self.paths.get_mut(&path) {
            state.requests -= 1;
            state.data_bytes -= u64::from(waiting(&request).data_bytes);
        }
        let (origin, order) = (pending.origin, pending.order);
        let result = match completion.status {
            Status::Ok => self.succeeded(pending),
            status => {
                self.did_not(&pending);
                Err(Failure::Target(status))
            }
        };
        if origin == Origin::Replay {
            self.replays -= 1;
        }
        debug_assert!(order < self.next_order);
        self.readmit();
        self.flush_for_room();
        Ok(match origin {
            Origin::Submitted => Completed::Submitted(result),
            _ => Completed::Unheard,
        })
    }

    /// Takes a request out that was queued or sent.
    fn remove(&mut self, tag: u32) -> Pending<D> {
        let pending = self.table.remove(tag).expect("a request ends in the table");
        self.admitted.remove(&pending.request);
        if pending.request.op.changes() {
            self.admitted_bytes -= cost_bytes(&pending.request);
        }
        pending
    }

    fn succeeded(&mut self, pending: Pending<D>) -> Result<(), Failure> {
        let request = pending.request;
        if request.op == Op::Flush {
            self.covered = self.covered.max(pending.covers);
            self.kept.flushed(pending.covers);
            self.own_flush &= pending.origin != Origin::OwnFlush;
            if pending.origin == Origin::Submitted && std::mem::take(&mut self.lost) {
                return Err(Failure::Lost);
            }
        } else if request.op.changes() {
            // One that is durable already is kept as well: it must come after what it replaced.
            self.answered += u64::from(!request.has_fua());
            if self.is_kept() {
                let (order, data) = (pending.order, pending.data);
                self.kept.insert(order, request, data, self.answered);
            }
        }
        Ok(())
    }

    /// What a request that failed means for the ones whose failure nobody hears.
    fn did_not(&mut self, pending: &Pending<D>) {
        match pending.origin {
            Origin::Submitted | Origin::Abandoned => {}
            Origin::Replay => self.lost = true,
            Origin::OwnFlush => {
                // Nothing is known of what was answered since the last flush that succeeded.
                self.own_flush = false;
                self.note_lost();
            }
        }
    }

    /// What was answered may be gone: the next flush says so.
    fn note_lost(&mut self) {
        self.lost |= self.answered > self.covered;
        self.covered = self.answered;
        self.kept.take();
    }

    // Paths.

    /// A connection has become a path, to be used from now on. Gives the paths that are given up
    /// for it: they lead to an instance of the target that is no more.
    ///
    /// # Errors
    /// Why this target is of no use to the session.
    pub fn path_up(
        &mut self,
        number: u32,
        welcome: &Welcome,
        mut outbound: Outbound,
    ) -> Result<Vec<u32>, Unusable> {
        if let Some(told) = &self.told {
            check_same(told, welcome)?;
        }
        let given_up = match self.welcome {
            Some(before) if before.instance != welcome.instance => {
                if welcome.has(right::EPHEMERAL) {
                    return Err(Unusable::Gone);
                }
                let given_up = std::mem::take(&mut self.paths).into_keys().collect();
                self.replay(&before, welcome);
                given_up
            }
            Some(_) => {
                self.welcome = Some(*welcome);
                Vec::new()
            }
            None => {
                self.told = Some(*welcome);
                self.welcome = Some(*welcome);
                self.instances = 1;
                Vec::new()
            }
        };
        outbound.open(welcome.features);
        let state = PathState {
            outbound,
            merges: welcome.agreed(feature::MERGE),
            requests_max: welcome.requests_max,
            data_bytes_max: u64::from(welcome.data_bytes_max),
            requests: 0,
            data_bytes: 0,
            fences: 0,
        };
        self.paths.insert(number, state);
        Ok(given_up)
    }

    /// The target has died and another instance is there: everything that has no answer is sent
    /// again, and before it what was answered and died with the target.
    fn replay(&mut self, before: &Welcome, welcome: &Welcome) {
        self.instances += 1;
        self.welcome = Some(*welcome);
        self.to_fence.clear();
        let died = welcome.has(right::VOLATILE) || before.host != welcome.host;
        if died && !self.is_kept() {
            self.note_lost();
        }
        for (order, change) in self.kept.take() {
            self.insert(order, change.request, change.data, Origin::Replay);
        }
        let abandoned: Vec<u32> = self
            .table
            .iter()
            .filter(|pending| pending.origin == Origin::Abandoned)
            .map(|pending| pending.request.tag)
            .collect();
        for tag in abandoned {
            self.table.remove(tag);
        }
        let all = |p: &Pending<D>| (p.order, p.request.tag);
        let mut tags: Vec<(u64, u32)> = self.table.iter().map(all).collect();
        tags.sort_unstable();
        self.replays = self.count(Origin::Replay);
        self.table.iter_mut().for_each(|p| p.state = State::Held);
        self.queue.clear();
        self.admitted.clear();
        self.admitted_bytes = 0;
        self.held = tags.into_iter().map(|(_, tag)| tag).collect();
        self.readmit();
    }

    fn count(&self, origin: Origin) -> usize {
        self.table.iter().filter(|p| p.origin == origin).count()
    }

    /// A path is no more. What was sent over it and not answered waits until it is fenced.
    pub fn path_down(&mut self, number: u32) {
        if self.paths.remove(&number).is_none() {
            return;
        }
        for asked in self.to_fence.values_mut() {
            if *asked == Some(number) {
                *asked = None;
            }
        }
        let mut stranded = false;
        for pending in self.table.iter_mut() {
            if pending.state != State::Sent(number) {
                continue;
            }
            stranded = true;
            pending.breaks += 1;
            if pending.breaks >= BREAKS_MAX && pending.origin == Origin::Submitted {
                pending.origin = Origin::Abandoned;
                self.failed
                    .push_back((pending.request.tag, Failure::Broken));
            }
        }
        if stranded {
            self.to_fence.insert(number, None);
        }
    }

    /// The target says over path `on` that a path has ended: what it carried without an answer is
    /// sent again.
    ///
    /// # Errors
    /// When that was not asked for over this path.
    pub fn fenced(&mut self, on: u32, number: u32) -> Result<(), ProtocolError> {
        if self.to_fence.get(&number) != Some(&Some(on)) {
            return Err(ProtocolError::BadFence);
        }
        self.to_fence.remove(&number);
        if let Some(state) = self.paths.get_mut(&on) {
            state.fences -= 1;
        }
        let sent = self.table.iter();
        let mut ended: Vec<(u64, u32)> = sent
            .filter(|pending| pending.state == State::Sent(number))
            .map(|pending| (pending.order, pending.request.tag))
            .collect();
        ended.sort_unstable();
        for (_, tag) in ended.into_iter().rev() {
            let pending = self.table.get_mut(tag).expect("it was just seen");
            if pending.origin == Origin::Abandoned {
                self.remove(tag);
            } else {
                pending.state = State::Queued;
                self.queue.push_front(waiting(&pending.request));
            }
        }
        self.readmit();
        Ok(())
    }

    /// Gives up what was submitted and has no answer: the target was away for too long. What was
    /// answered is still kept, and what is at the target is still fenced should it come back.
    pub fn give_up(&mut self) {
        let submitted: Vec<(u32, State)> = self
            .table
            .iter()
            .filter(|pending| pending.origin == Origin::Submitted)
            .map(|pending| (pending.request.tag, pending.state))
            .collect();
        for (tag, state) in submitted {
            self.failed.push_back((tag, Failure::Unreachable));
            match state {
                State::Sent(_) => {
                    let pending = self.table.get_mut(tag).expect("it was just seen");
                    pending.origin = Origin::Abandoned;
                }
                State::Queued => {
                    self.queue.retain(|waiting| waiting.tag != tag);
                    self.remove(tag);
                }
                State::Held => {
                    self.held.retain(|held| *held != tag);
                    self.table.remove(tag);
                }
            }
        }
        self.readmit();
    }
}

fn waiting(request: &Request) -> Waiting {
    let transfers = matches!(request.op, Op::Read | Op::Write);
    Waiting {
        tag: request.tag,
        data_bytes: if transfers { request.length_bytes } else { 0 },
        may_merge: request.may_merge(),
        carries_data: request.op == Op::Write,
    }
}

/// Whether what was told at the beginning still holds.
fn check_same(told: &Welcome, now: &Welcome) -> Result<(), Unusable> {
    let keeping = right::VOLATILE | right::EPHEMERAL;
    let change = if now.size_bytes < told.size_bytes {
        Change::Shrunk {
            was_bytes: told.size_bytes,
            is_bytes: now.size_bytes,
        }
    } else if now.has(right::READ_ONLY) && !told.has(right::READ_ONLY) {
        Change::ReadOnly
    } else if now.block_bytes > told.block_bytes
        || now.transfer_bytes_max < told.transfer_bytes_max
        || now.range_bytes_max < told.range_bytes_max
    {
        Change::Requests
    } else if told.has(right::DISCARD_ZEROES) && !now.has(right::DISCARD_ZEROES) {
        Change::Discards
    } else if (now.rights ^ told.rights) & keeping != 0 {
        Change::Keeping
    } else {
        return Ok(());
    };
    Err(Unusable::Changed(change))
}
