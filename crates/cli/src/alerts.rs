//! Alerts about the volumes of a server: each event is written as a line to standard error and
//! passed to the operator's alert command, as described in docs/operations.md.
//!
//! Alerts must never delay requests. A task polls the volumes, and a dedicated thread writes the
//! lines and runs the alert command, for one event at a time. Events that cannot be reported yet
//! wait in a bounded queue, in which an event replaces an older one of the same kind, volume and
//! side.

use std::collections::{BTreeMap, VecDeque};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use bimetal_block::IoError;
use bimetal_block::layers::mirror::{AbsentReason, MirrorStatus, Room, SideStatus};
use bimetal_block::units::show_size;
use bimetal_rt::{Notice, Rt};

use crate::logged::{self, Log, Logged};
use crate::lookout::{Change, Lookout};
use crate::shown::Shown;
use bimetal_console::stderr::say;

/// Stack of the alert thread in bytes, which is locked into memory.
const STACK_BYTES: usize = 256 << 10;
/// Interval at which the volumes are polled.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Number of polls from one look at the health of the volumes to the next: a second.
const LOOKS_AT_HEALTH: u64 = 2;
/// Number of consecutive polls that must find a log full before this is reported.
const FULL_LOOKS: u32 = 20;
/// Percentages of the room of a volume from which on its content is reported, each with the kind of
/// the event.
const ROOM_LEVELS: [(u64, &str); 2] = [(80, "room-low"), (95, "room-nearly-full")];
/// Number of percentage points below a level at which the level is reported again.
const ROOM_HYSTERESIS: u64 = 5;
/// Maximum number of events in the queue.
const WAITING_MAX: usize = 64;
/// Time after which a running alert command is killed.
const COMMAND_MAX: Duration = Duration::from_secs(60);
/// Interval at which the server checks whether a running alert command has ended.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// An event to report.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    /// Kind of the event, for programs.
    kind: &'static str,
    volume: String,
    /// Name of the side; empty when the event concerns the volume itself.
    side: String,
    /// Text that follows the names, for people.
    message: String,
    /// Whether the server has already written a line about the event during its start. If so, the
    /// alert thread does not write the line again, and only runs the alert command.
    known_from_start: bool,
}

impl Event {
    /// Returns the event for a notice, which is a report to the operator by a device, an export or
    /// the server itself.
    fn of_notice(notice: &Notice) -> Event {
        Event {
            kind: notice.kind,
            volume: notice.subject.clone(),
            side: String::new(),
            message: notice.words(),
            known_from_start: false,
        }
    }

    fn logged(&self) -> Logged<'_> {
        Logged {
            kind: self.kind,
            volume: &self.volume,
            side: &self.side,
            cause: &self.message,
        }
    }

    /// Returns the event about the health of a volume.
    fn of_health(change: Change) -> Event {
        Event {
            kind: "health",
            message: change.words,
            volume: change.volume,
            side: String::new(),
            known_from_start: false,
        }
    }

    fn line(&self) -> String {
        match self.side.as_str() {
            "" => format!("{}: {}", self.volume, self.message),
            side => format!("{}: side {side}: {}", self.volume, self.message),
        }
    }
}

/// State of a side at the last poll.
#[derive(Default)]
struct SideBefore {
    /// Health at the last poll; `None` before the first poll. The first poll treats the side as if
    /// it had been healthy before.
    health: Option<&'static str>,
    corrupt_blocks: u64,
    full_looks: u32,
}

/// State of a volume at the last poll.
#[derive(Default)]
struct Before {
    state: Option<&'static str>,
    lost: u64,
    /// Number of levels of [`ROOM_LEVELS`] that the content of the volume has reached.
    room_levels: usize,
    refused_writes: u64,
    sides: BTreeMap<String, SideBefore>,
}

/// Returns the events of a volume since the last poll. `before` has the findings of the last poll.
fn changes(volume: &str, before: &mut Before, now: &MirrorStatus) -> Vec<Event> {
    let mut events = Vec::new();
    let first_look = before.state.is_none();
    let mut tell = |kind, side: &str, message: String| {
        events.push(Event {
            known_from_start: first_look && !side.is_empty(),
            kind,
            volume: volume.to_owned(),
            side: side.to_owned(),
            message,
        });
    };
    let was = before.state.replace(now.state).unwrap_or("open");
    if was != now.state && now.state != "closed" {
        let kind = match now.state {
            "read-only" => "volume-read-only",
            "stopped" => "volume-stopped",
            _ => "volume-open",
        };
        tell(kind, "", format!("is {}", now.state));
    }
    let unrepairable = now.scrub.as_ref().map_or(0, |scrub| scrub.unrepairable);
    let lost = now.lost_reads + unrepairable;
    if lost > before.lost {
        let message = "some blocks are corrupt on every side; their content is lost".to_owned();
        tell("corruption-unrepairable", "", message);
    }
    before.lost = lost;
    if let Some(room) = &now.room {
        for (kind, message) in changes_of_room(before, room) {
            tell(kind, "", message);
        }
    }
    // A side that appears after the first poll was added to the volume, and needs a full resync.
    // Its previous health is therefore taken to be `resyncing`.
    let later = (!before.sides.is_empty()).then_some("resyncing");
    for side in &now.sides {
        let before = before.sides.entry(side.name.clone());
        let before = before.or_insert_with(|| SideBefore {
            health: later,
            ..SideBefore::default()
        });
        for (kind, message) in changes_of_side(before, side) {
            tell(kind, &side.name, message);
        }
    }
    let is_there = |name: &String| now.sides.iter().any(|side| side.name == *name);
    before.sides.retain(|name, _| is_there(name));
    events
}

/// Returns the events of the room of a volume that is larger than what its sides have room for.
fn changes_of_room(before: &mut Before, now: &Room) -> Vec<(&'static str, String)> {
    let mut events = Vec::new();
    let percent = now.content_bytes * 100 / now.room_bytes.max(1);
    let is_left = |(level, _): &(u64, &str)| percent + ROOM_HYSTERESIS < *level;
    while before.room_levels > 0 && is_left(&ROOM_LEVELS[before.room_levels - 1]) {
        before.room_levels -= 1;
    }
    let reached = ROOM_LEVELS.iter().filter(|(level, _)| percent >= *level);
    let reached = reached.count();
    if reached > before.room_levels {
        before.room_levels = reached;
        let left = show_size(now.room_bytes.saturating_sub(now.content_bytes));
        let message = format!(
            "{percent} % of the room for content is used, {left} are left; then writes fail with \
            ENOSPC: delete files and discard what they held (fstrim)"
        );
        events.push((ROOM_LEVELS[reached - 1].1, message));
    }
    if now.refused_writes > before.refused_writes {
        let refused = now.refused_writes - before.refused_writes;
        let refused = match refused {
            1 => "a write was".to_owned(),
            more => format!("{more} writes were"),
        };
        let message = format!(
            "no room is left for content: {refused} refused (ENOSPC); what is stored stays \
            readable, and discards make room"
        );
        events.push(("room-full", message));
    }
    before.refused_writes = now.refused_writes;
    events
}

fn changes_of_side(before: &mut SideBefore, now: &SideStatus) -> Vec<(&'static str, String)> {
    let mut events = Vec::new();
    let was = before.health.replace(now.health).unwrap_or("healthy");
    match (was, now.health) {
        (was, now) if was == now => {}
        (_, "absent") => {
            let why = now.absent_reason.map(absent_reason).unwrap_or_default();
            events.push(("side-absent", format!("is absent{why}")));
        }
        (was, "healthy") => {
            if was == "absent" {
                events.push(("side-back", "is back".to_owned()));
            }
            events.push(("side-rebuilt", "is complete again".to_owned()));
        }
        _ => events.push(("side-back", "is being rebuilt".to_owned())),
    }
    if now.corrupt_blocks > before.corrupt_blocks {
        let message = format!(
            "{} corrupt blocks have been found so far",
            now.corrupt_blocks
        );
        events.push(("corruption-found", message));
    }
    before.corrupt_blocks = now.corrupt_blocks;
    before.full_looks = if now.log_full {
        before.full_looks.saturating_add(1)
    } else {
        0
    };
    if before.full_looks == FULL_LOOKS {
        let seconds = (LOOK_EVERY * FULL_LOOKS).as_secs();
        let message =
            format!("its log has been full for {seconds} s, so writes wait for this side");
        events.push(("log-full", message));
    }
    events
}

/// Returns the reason why a side was ejected, with advice for the operator.
fn absent_reason(reason: AbsentReason) -> String {
    let error = match reason {
        AbsentReason::Error(error) => error,
        AbsentReason::Converted => return format!(": {reason}"),
        AbsentReason::Silent(_) => {
            return format!(
                ": {reason}, and then resynchronized; if this repeats, see the kernel log, or \
                replace the side"
            );
        }
    };
    let advice = match error {
        IoError::NoSpace => "free space on the file system or pool below it (ENOSPC)",
        IoError::Medium => "see the kernel log; if the error persists, replace the side (EIO)",
        IoError::Corrupt => {
            "it returned other data than was written; if this repeats, replace the side"
        }
        IoError::Offline => "its device is missing; reconnect it, or replace the side",
        IoError::Timeout => {
            "it completed no request within `absent_after`, or requests fail with ETIMEDOUT"
        }
        IoError::Transport => "check its server and the network path to it",
        IoError::ReadOnly => "its device has become read-only (EROFS or EPERM)",
        IoError::Resource => "the machine or its memory cgroup is short of memory (ENOMEM)",
        IoError::Misaligned | IoError::OutOfRange | IoError::Unsupported => {
            "its device rejects requests that it accepted before"
        }
        IoError::Closed => "its device was closed",
    };
    format!(": {error}: {advice}; it is retried every second, and then resynchronized")
}

/// Queue of events that wait to be reported.
#[derive(Default)]
struct Waiting(VecDeque<Event>);

impl Waiting {
    /// Adds an event, which replaces a queued event of the same kind, volume and side. If the queue
    /// is full, the oldest event is dropped.
    fn push(&mut self, event: Event) {
        let same =
            |e: &Event| (e.kind, &e.volume, &e.side) == (event.kind, &event.volume, &event.side);
        self.0.retain(|waiting| !same(waiting));
        if self.0.len() == WAITING_MAX {
            // The oldest event is dropped, because newer events describe the current state better.
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    /// Sends queued events to the alert thread while its channel has room.
    fn pass_on(&mut self, to: &SyncSender<Event>) {
        while let Some(event) = self.0.pop_front() {
            match to.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.0.push_front(event);
                    return;
                }
                // The alert thread ends only together with the process, so the event is dropped.
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }
}

/// Sender of events to the alert thread. The thread is started before the server is ready, so that
/// its memory is already allocated if memory becomes short later.
pub(crate) struct Teller(SyncSender<Event>);

impl Teller {
    /// Starts the alert thread. If the thread cannot be created, reports the error and returns
    /// `None`.
    pub(crate) fn start(command: Option<String>, log: Log) -> Option<Teller> {
        let (to, from) = sync_channel(1);
        let thread = std::thread::Builder::new().name("alerts".to_owned());
        let thread = thread.stack_size(STACK_BYTES);
        match thread.spawn(move || tell(&from, command.as_deref(), log)) {
            Ok(_) => Some(Teller(to)),
            Err(error) => {
                say(format_args!(
                    "bimetal: warning: alerts are off, because their thread cannot start: {error}"
                ));
                None
            }
        }
    }
}

/// Polls the volumes, records their events and reports them, without end.
pub(crate) async fn watch(shown: Rc<Shown>, teller: Option<Teller>) {
    let mut before: BTreeMap<String, Before> = BTreeMap::new();
    let mut waiting = Waiting::default();
    let mut health = Lookout::new(&shown);
    let mut has_news = false;
    for poll in 0_u64.. {
        let mut events = Vec::new();
        for (name, mirror) in shown.stack.mirrors() {
            let before = before.entry(name.to_owned()).or_default();
            events.extend(changes(name, before, &mirror.status()));
        }
        events.extend(notices(&shown.rt));
        has_news |= !events.is_empty();
        if poll.is_multiple_of(LOOKS_AT_HEALTH) && !shown.stopping.get() {
            let words = health.look(&shown, std::mem::take(&mut has_news)).await;
            events.extend(words.into_iter().map(Event::of_health));
        }
        for event in events {
            let of = (event.volume.as_str(), event.side.as_str());
            let now_s = shown.rt.unix_seconds();
            shown.events.push(now_s, event.kind, of, &event.message);
            if teller.is_some() {
                waiting.push(event);
            }
        }
        if let Some(Teller(to)) = &teller {
            waiting.pass_on(to);
        }
        shown.rt.sleep(LOOK_EVERY).await;
    }
}

/// Reports pending notices, without end, for a server that has no volumes to poll.
pub(crate) async fn watch_notices(rt: Rt, teller: Option<Teller>) {
    let Some(Teller(to)) = teller else { return };
    let mut waiting = Waiting::default();
    loop {
        notices(&rt)
            .into_iter()
            .for_each(|event| waiting.push(event));
        waiting.pass_on(&to);
        rt.sleep(LOOK_EVERY).await;
    }
}

/// Takes the pending notices.
fn notices(rt: &Rt) -> Vec<Event> {
    let notices = rt.notices().take(rt.now());
    notices.iter().map(Event::of_notice).collect()
}

/// Reports the events that arrive over the channel, until the channel is closed.
fn tell(events: &Receiver<Event>, command: Option<&str>, log: Log) {
    for event in events {
        let line = event.line();
        // A line about it was written at the start, but only as a sentence.
        if !event.known_from_start || log == Log::Json {
            logged::say_event(log, &event.logged(), &line);
        }
        if let Some(command) = command
            && let Err(why) = run(command, &event, &line)
        {
            say(format_args!("bimetal: warning: the alert command {why}"));
        }
    }
}

fn run(command: &str, event: &Event, line: &str) -> Result<(), String> {
    let started = Command::new("/bin/sh")
        .args(["-c", command])
        .env("BIMETAL_EVENT", event.kind)
        .env("BIMETAL_VOLUME", &event.volume)
        .env("BIMETAL_SIDE", &event.side)
        .env("BIMETAL_MESSAGE", line)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut child = started.map_err(|error| format!("cannot be started: {error}"))?;
    let status = wait(&mut child).map_err(|error| format!("cannot be waited for: {error}"))?;
    match status {
        None => Err(format!("was killed after {} s", COMMAND_MAX.as_secs())),
        Some(status) if !status.success() => Err(format!("failed: {status}")),
        Some(_) => Ok(()),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own, on which nothing else waits"
)]
fn wait(child: &mut Child) -> std::io::Result<Option<std::process::ExitStatus>> {
    let deadline = Instant::now() + COMMAND_MAX;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(POLL_EVERY);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &'static str, side: &str, message: &str) -> Event {
        Event {
            kind,
            volume: "vol".to_owned(),
            side: side.to_owned(),
            message: message.to_owned(),
            known_from_start: false,
        }
    }

    /// Each level is reported once, again only after the content has fallen well below it, and each
    /// refusal is reported.
    #[test]
    fn the_levels_of_the_room_are_reported_once_and_again_after_they_were_left() {
        let mut before = Before::default();
        let mut kinds = |content_bytes, refused_writes| -> Vec<&str> {
            let now = Room {
                content_bytes,
                room_bytes: 1000,
                refused_writes,
            };
            let events = changes_of_room(&mut before, &now);
            events.into_iter().map(|(kind, _)| kind).collect()
        };
        let seen: Vec<Vec<&str>> = [
            (799, 0),
            (800, 0),
            (890, 0),
            (760, 0),
            (810, 0),
            (749, 0),
            (950, 0),
            (1000, 3),
            (1000, 3),
            (1000, 4),
            (940, 4),
            (960, 4),
        ]
        .map(|(content, refused)| kinds(content, refused))
        .into();
        let none: Vec<&str> = Vec::new();
        let expected = [
            none.clone(),
            vec!["room-low"],
            none.clone(),
            none.clone(),
            none.clone(),
            none.clone(),
            vec!["room-nearly-full"],
            vec!["room-full"],
            none.clone(),
            vec!["room-full"],
            none.clone(),
            none,
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_newest_of_a_kind_waits_and_the_queue_has_a_bound() {
        let mut waiting = Waiting::default();
        waiting.push(event("corruption-found", "a", "1"));
        waiting.push(event("corruption-found", "b", "1"));
        waiting.push(event("corruption-found", "a", "2"));
        let told: Vec<&str> = waiting.0.iter().map(|e| e.message.as_str()).collect();
        assert_eq!(told, ["1", "2"]);
        for side in 0..1000 {
            waiting.push(event("side-absent", &side.to_string(), ""));
        }
        assert_eq!(waiting.0.len(), WAITING_MAX);
        let (to, from) = sync_channel(1);
        waiting.pass_on(&to);
        assert_eq!(waiting.0.len(), WAITING_MAX - 1, "one is being told");
        assert_eq!(from.recv().unwrap().side, (1000 - WAITING_MAX).to_string());
    }
}
