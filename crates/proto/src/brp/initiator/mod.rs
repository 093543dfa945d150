//! A session at its initiator. The initiator decides which requests are allowed to be sent now and
//! in which frames, and handles the requests when paths break and targets die (sections "Temporal
//! merge" and "Sessions, fences and replay").
//!
//! The [`Initiator`] does no I/O. Its driver reports responses, and paths that come up or go down,
//! and asks the initiator for the next send of a path. The initiator must never have two
//! overlapping requests in flight if one of them is a change. It must never send a request again
//! before the request's path was fenced or its target has died. It must never report success for a
//! flush that covers a change that might be lost.

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

/// A request fails once this number of paths have broken while the request was in flight on them.
/// The request itself might be the reason why the paths break.
const BREAKS_MAX: u32 = 8;

/// Data of a request. The initiator passes the data on and never reads it.
pub trait Data: Clone + Default {
    /// Returns the CRC-32C of the data.
    fn check(&self) -> u32;
}

/// Reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The target answered with this status.
    Target(Status),
    /// The target has died since the last flush, and answered changes are lost. Exactly one flush
    /// fails with this error.
    Lost,
    /// The request failed because several paths broke, one after the other, while it was in flight
    /// on them. If the request is a change, it might still take effect.
    Broken,
    /// The target did not become reachable again in time. If the request is a change, it might
    /// still take effect.
    Unreachable,
    /// There is no room for another request.
    Full,
}

/// Reason why a reachable target cannot be used by this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The export has changed since the beginning of the session in one of the ways in [`Change`].
    /// The session becomes usable again when this change is undone.
    #[error("{0}")]
    Changed(Change),
    /// All content of the export was lost permanently, because it was in the memory of a target
    /// process that has ended.
    #[error("the target has started anew and lost what the export held in memory")]
    Gone,
}

/// The way in which an export offers less than at the beginning of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Change {
    /// The export has become smaller.
    #[error("the export has shrunk from {was_bytes} bytes to {is_bytes}")]
    Shrunk {
        /// The size at the beginning.
        was_bytes: u64,
        /// The size now.
        is_bytes: u64,
    },
    /// The export has become read-only.
    #[error("the export has become read-only")]
    ReadOnly,
    /// The limits on the length and alignment of requests have become stricter.
    #[error("the export does not take requests as short or as long as before")]
    Requests,
    /// Discarded ranges no longer read as zeroes.
    #[error("what is discarded in the export does not read as zeroes any more")]
    Discards,
    /// A rule about what survives the end of the target's process has changed since the beginning
    /// of the session: the rule for unflushed changes, or the rule for all content.
    #[error("the export keeps what was not flushed in another way than before")]
    Keeping,
}

/// The consequence of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// A request that was submitted has ended.
    Submitted(Result<(), Failure>),
    /// A request whose result no caller waits for has ended.
    Unheard,
    /// The path must end; the request is sent again over another path.
    PathEnds,
}

/// Content of one send: the heads of frames, and between them the data of writes.
#[derive(Debug, Default)]
pub struct Sending<D> {
    /// Heads and entries of all frames, concatenated.
    pub heads: Vec<u8>,
    /// Data of the writes. Each entry has an offset in `heads`: the data is sent before the byte at
    /// that offset.
    pub data: Vec<(usize, D)>,
    /// Number of fences in the send.
    pub fences: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// The request must not be sent yet.
    Held,
    Queued,
    /// The request was sent over this path. The path might have broken since then.
    Sent(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestOrigin {
    Submitted,
    /// The request has failed for its caller, but might still be in progress at the target.
    Abandoned,
    /// A change that is sent again, because the target that answered it has died since.
    Replay,
    /// A flush that the initiator itself issues to make room in the store of kept changes.
    OwnFlush,
}

#[derive(Debug)]
struct Pending<D> {
    order: u64,
    request: Request,
    data: D,
    state: RequestState,
    origin: RequestOrigin,
    /// For a flush that was sent: the number of changes that had been answered when it was sent.
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

/// A session at its initiator: its paths, and the requests that have not ended.
#[derive(Debug)]
pub struct Initiator<D> {
    mode: Mode,
    /// The target's first description of the export (`Welcome`). The layers above rely on its
    /// properties.
    told: Option<Welcome>,
    /// The latest welcome.
    welcome: Option<Welcome>,
    instances: u64,
    paths: BTreeMap<u32, PathState>,
    /// Broken paths with requests that have not ended. The value is the number of the path over
    /// which the fence of the broken path was sent, or `None` until the fence is sent.
    to_fence: BTreeMap<u32, Option<u32>>,
    table: Table<Pending<D>>,
    next_order: u64,
    queue: VecDeque<Waiting>,
    held: VecDeque<u32>,
    /// `admitted`: ranges of the requests that are queued or in flight. `waiting`: ranges of the
    /// requests that are held back, for example because they conflict with other requests.
    admitted: Overlap,
    waiting: Overlap,
    /// Cost of the changes that are queued or in flight, in bytes.
    admitted_bytes: u64,
    /// True while at least one change waits because `kept`, the store of answered but unflushed
    /// changes, is full. A flush makes room.
    is_full: bool,
    kept: Kept<D>,
    replays: usize,
    own_flush: bool,
    /// `answered`: number of changes that were answered without being durable. `covered`: number of
    /// these changes that a flush has covered.
    answered: u64,
    covered: u64,
    lost: bool,
    failed: VecDeque<(u32, Failure)>,
}

impl<D: Data> Initiator<D> {
    /// Creates a session without a path. For a volatile target (one that loses unflushed changes
    /// when it dies), the session keeps at most `keep_bytes_max` bytes of answered changes; with 0
    /// it keeps none.
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

    /// Returns the target's latest description of the export; `None` before the first path.
    pub fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    /// Returns the number of target instances (processes) that were seen. Each instance after the
    /// first can have an older state of the volume than the instance before it.
    pub fn instances(&self) -> u64 {
        self.instances
    }

    /// Returns the number of requests that have not ended.
    pub fn under_way(&self) -> usize {
        self.table.len()
    }

    /// Returns true when there is no path, or a broken path has not been fenced yet. In this state,
    /// requests might not reach the target.
    pub fn is_troubled(&self) -> bool {
        self.paths.is_empty() || !self.to_fence.is_empty()
    }

    /// Returns the frame that closes a path in an orderly way; empty when the path is not up.
    pub fn goodbye(&mut self, path: u32) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(state) = self.paths.get_mut(&path) {
            state.outbound.control(&mut out, kind::CLOSE, &[]);
        }
        out
    }

    /// Returns true when there is something to send over the path as soon as its link is ready.
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

    /// Accepts a request. The returned tag identifies the request until it ends.
    ///
    /// # Errors
    /// [`Failure::Target`] when the request is invalid; [`Failure::Full`] when there is no room for
    /// another request.
    ///
    /// # Panics
    /// If no path has come up yet.
    pub fn submit(&mut self, request: Request, data: D) -> Result<u32, Failure> {
        let welcome = self.welcome.as_ref().expect("a session begins with a path");
        welcome.validate(&request).map_err(Failure::Target)?;
        if self.table.is_full() {
            return Err(Failure::Full);
        }
        let order = self.next_order;
        self.next_order += 1;
        let tag = self.insert(order, request, data, RequestOrigin::Submitted);
        self.admit_or_hold(tag);
        self.flush_for_room();
        Ok(tag)
    }

    /// Takes the next request that failed without a response.
    pub fn next_failed(&mut self) -> Option<(u32, Failure)> {
        self.failed.pop_front()
    }

    fn insert(&mut self, order: u64, request: Request, data: D, origin: RequestOrigin) -> u32 {
        self.table.insert(|tag| Pending {
            order,
            request: Request { tag, ..request },
            data,
            state: RequestState::Held,
            origin,
            covers: 0,
            breaks: 0,
        })
    }

    // Admission of requests.

    /// Queues a request of the table, or holds it back until the requests that it conflicts with
    /// have ended.
    fn admit_or_hold(&mut self, tag: u32) {
        let pending = self.table.get(tag).expect("a request is in the table");
        let request = pending.request;
        let replays = pending.origin == RequestOrigin::Replay;
        let cost = cost_bytes(&request);
        let no_room = request.op.changes()
            && !replays
            && self.is_kept()
            && (self.is_full || !self.kept.has_room(self.admitted_bytes, cost));
        // A flush waits while answered changes are being sent again, since the flush must cover
        // these changes, too.
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
        self.set_state(tag, RequestState::Queued);
    }

    /// Tries to admit all held requests again, in their order.
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

    /// Issues a flush if changes wait for room in the store of kept changes, or if more than half
    /// of that room is used. A kept change has been answered, but is not yet known to be durable.
    fn flush_for_room(&mut self) {
        let wanted = self.is_kept() && (self.is_full || self.kept.is_half_full());
        if !wanted || self.kept.is_empty() || self.own_flush || self.table.is_full() {
            return;
        }
        self.own_flush = true;
        let order = self.next_order;
        self.next_order += 1;
        let flush = Request::new(Op::Flush, 0, 0);
        let tag = self.insert(order, flush, D::default(), RequestOrigin::OwnFlush);
        self.admit_or_hold(tag);
    }

    /// Returns true when the initiator keeps changes after they are answered. The caller must then
    /// keep the data of a change valid after the answer. If an export loses all its content when
    /// the target's process ends, changes are not kept, since sending them again could not restore
    /// the content.
    pub fn is_kept(&self) -> bool {
        let worth_it = |w: Welcome| w.has(right::VOLATILE) && !w.has(right::EPHEMERAL);
        self.kept.keeps() && self.welcome.is_some_and(worth_it)
    }

    fn set_state(&mut self, tag: u32, state: RequestState) {
        if let Some(pending) = self.table.get_mut(tag) {
            pending.state = state;
        }
    }

    // Sending.

    /// Fills `sending` with the next send of a path. Returns false if there is nothing to send.
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
            pending.state = RequestState::Sent(path);
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

    /// Returns the request that `completion` answers, after checking that the completion is valid
    /// for this request.
    ///
    /// # Errors
    /// A violation of the protocol, after which the path must end.
    pub fn expect(&self, path: u32, completion: &Completion) -> Result<&Request, ProtocolError> {
        let pending = self.table.get(completion.tag);
        let pending = pending
            .filter(|pending| pending.state == RequestState::Sent(path))
            .ok_or(ProtocolError::UnknownTag(completion.tag))?;
        completion.check_against(&pending.request)?;
        Ok(&pending.request)
    }

    /// Processes a result whose data has arrived and passed its check.
    ///
    /// # Errors
    /// The errors of [`expect`](Self::expect).
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
        if origin == RequestOrigin::Replay {
            self.replays -= 1;
        }
        debug_assert!(order < self.next_order);
        self.readmit();
        self.flush_for_room();
        Ok(match origin {
            RequestOrigin::Submitted => Completed::Submitted(result),
            _ => Completed::Unheard,
        })
    }

    /// Removes a request that was queued or sent.
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
            self.own_flush &= pending.origin != RequestOrigin::OwnFlush;
            if pending.origin == RequestOrigin::Submitted && std::mem::take(&mut self.lost) {
                return Err(Failure::Lost);
            }
        } else if request.op.changes() {
            // Keep a change that is already durable (FUA), too: a replay must repeat it after the
            // earlier change that it overwrote.
            self.answered += u64::from(!request.has_fua());
            if self.is_kept() {
                let (order, data) = (pending.order, pending.data);
                self.kept.insert(order, request, data, self.answered);
            }
        }
        Ok(())
    }

    /// Handles the failure of a request without a caller: a change that was sent again after the
    /// death of a target, or the initiator's own flush.
    fn did_not(&mut self, pending: &Pending<D>) {
        match pending.origin {
            RequestOrigin::Submitted | RequestOrigin::Abandoned => {}
            RequestOrigin::Replay => self.lost = true,
            RequestOrigin::OwnFlush => {
                // The initiator's own flush has failed, so changes that were answered since the
                // last successful flush might be lost.
                self.own_flush = false;
                self.note_lost();
            }
        }
    }

    /// Records that answered changes might be lost; the next flush reports the loss.
    fn note_lost(&mut self) {
        self.lost |= self.answered > self.covered;
        self.covered = self.answered;
        self.kept.take();
    }

    // Paths.

    /// Records that a connection has become a path, to be used from now on. Returns the paths that
    /// are abandoned because they lead to an instance of the target that no longer runs.
    ///
    /// # Errors
    /// The reason why the session cannot use this target.
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

    /// Handles the death of the target, which has been replaced by another instance. Every
    /// unanswered request, and every answered change that was lost with the target, is sent again,
    /// in the order of submission.
    fn replay(&mut self, before: &Welcome, welcome: &Welcome) {
        self.instances += 1;
        self.welcome = Some(*welcome);
        self.to_fence.clear();
        let died = welcome.has(right::VOLATILE) || before.host != welcome.host;
        if died && !self.is_kept() {
            self.note_lost();
        }
        for (order, change) in self.kept.take() {
            self.insert(order, change.request, change.data, RequestOrigin::Replay);
        }
        let abandoned: Vec<u32> = self
            .table
            .iter()
            .filter(|pending| pending.origin == RequestOrigin::Abandoned)
            .map(|pending| pending.request.tag)
            .collect();
        for tag in abandoned {
            self.table.remove(tag);
        }
        let all = |p: &Pending<D>| (p.order, p.request.tag);
        let mut tags: Vec<(u64, u32)> = self.table.iter().map(all).collect();
        tags.sort_unstable();
        self.replays = self.count(RequestOrigin::Replay);
        self.table
            .iter_mut()
            .for_each(|p| p.state = RequestState::Held);
        self.queue.clear();
        self.admitted.clear();
        self.admitted_bytes = 0;
        self.held = tags.into_iter().map(|(_, tag)| tag).collect();
        self.readmit();
    }

    fn count(&self, origin: RequestOrigin) -> usize {
        self.table.iter().filter(|p| p.origin == origin).count()
    }

    /// Records that a path has ended. Unanswered requests that were sent over the path wait until
    /// the path is fenced.
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
            if pending.state != RequestState::Sent(number) {
                continue;
            }
            stranded = true;
            pending.breaks += 1;
            if pending.breaks >= BREAKS_MAX && pending.origin == RequestOrigin::Submitted {
                pending.origin = RequestOrigin::Abandoned;
                self.failed
                    .push_back((pending.request.tag, Failure::Broken));
            }
        }
        if stranded {
            self.to_fence.insert(number, None);
        }
    }

    /// Processes the target's message that the fenced path `number` has ended. The message was
    /// received over path `on`. The unanswered requests of path `number` are sent again.
    ///
    /// # Errors
    /// If the fence of path `number` was not sent over path `on`.
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
            .filter(|pending| pending.state == RequestState::Sent(number))
            .map(|pending| (pending.order, pending.request.tag))
            .collect();
        ended.sort_unstable();
        for (_, tag) in ended.into_iter().rev() {
            let pending = self.table.get_mut(tag).expect("it was just seen");
            if pending.origin == RequestOrigin::Abandoned {
                self.remove(tag);
            } else {
                pending.state = RequestState::Queued;
                self.queue.push_front(waiting(&pending.request));
            }
        }
        self.readmit();
        Ok(())
    }

    /// Fails every submitted request that has no answer yet, because the target was unreachable for
    /// too long. Answered changes are still kept. If the target becomes reachable again, it might
    /// still execute requests of an old path, so such a path is still fenced.
    pub fn give_up(&mut self) {
        let submitted: Vec<(u32, RequestState)> = self
            .table
            .iter()
            .filter(|pending| pending.origin == RequestOrigin::Submitted)
            .map(|pending| (pending.request.tag, pending.state))
            .collect();
        for (tag, state) in submitted {
            self.failed.push_back((tag, Failure::Unreachable));
            match state {
                RequestState::Sent(_) => {
                    let pending = self.table.get_mut(tag).expect("it was just seen");
                    pending.origin = RequestOrigin::Abandoned;
                }
                RequestState::Queued => {
                    self.queue.retain(|waiting| waiting.tag != tag);
                    self.remove(tag);
                }
                RequestState::Held => {
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

/// Checks that the export still has the properties that it had at the beginning of the session
/// (`told`).
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
