//! Text of blkparse: `maj,min cpu sequence time pid action type sector + count [process]`.
//!
//! A request causes several events on its way through the kernel, and a trace contains the events
//! that were selected at recording. In a whole trace only one kind of event is read as a request,
//! because two kinds would count each request twice.

use crate::Op;
use crate::layouts::{
    Fields, Parsed, SECTOR_BYTES, What, bytes, comma_fields, field, number, placed, shown, time,
    whole, words,
};
use crate::tally::Ignored;

/// The events that can be read as a request, in the order in which a request causes them. The first
/// of these events that a trace contains is used, because the later events are those of merged and
/// split requests.
const EVENTS: [&[u8]; 4] = [b"Q", b"I", b"D", b"C"];

/// A kind of event, as an index into `EVENTS`. The lines of one kind are read as the requests of a
/// trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event(usize);

impl Event {
    /// Returns the event of a line if the event can be read as a request; `None` for other events
    /// and other lines.
    pub(crate) fn of_line(line: &[u8]) -> Option<Event> {
        let mut all = words(line);
        if !is_device(all.next()?) {
            return None;
        }
        let action = all.nth(4)?;
        EVENTS.iter().position(|name| *name == action).map(Event)
    }

    /// Returns the earliest event in `lines`: of the events that can be read as a request, the one
    /// that comes first in the course of a request. `None` if `lines` has no such event.
    pub(crate) fn first_of(lines: &[u8]) -> Option<Event> {
        let events = lines.split(|b| *b == b'\n').filter_map(Event::of_line);
        events.min()
    }

    /// Returns the letter of the event.
    pub(crate) fn name(self) -> &'static str {
        ["Q", "I", "D", "C"][self.0]
    }

    /// Returns true for the event Q, the usual choice: if a trace has events Q, these are read as
    /// its requests.
    pub(crate) fn is_usual(self) -> bool {
        self.0 == 0
    }
}

/// The names of all events that can be read as a request.
pub(crate) const EVENT_NAMES: &str = "Q, I, D or C";

fn is_device(name: &[u8]) -> bool {
    name.contains(&b',') && comma_fields(name).all(|part| whole(part).is_some())
}

/// Parses one line of a trace. The events `taken` of the trace are read as its requests.
///
/// # Errors
/// When the line is an event with impossible fields. Also when the line is an event that occurs
/// before `taken` in the life of a request: then `taken` was chosen from a part of the trace that
/// lacks the earlier event.
pub(crate) fn line(
    line: &[u8],
    taken: Option<Event>,
    devices: &mut dyn FnMut(&[u8]) -> Option<u64>,
) -> Result<Parsed, What> {
    let mut all = words(line);
    let fields: Fields = &mut all;
    let Some(name) = fields.next().filter(|name| is_device(name)) else {
        return Ok(Parsed::Ignored(Ignored::NoEvent));
    };
    field(fields, "cpu")?;
    field(fields, "sequence")?;
    let time_ns = time(fields, 1_000_000_000)?;
    field(fields, "pid")?;
    field(fields, "action")?;
    let (Some(taken), Some(event)) = (taken, Event::of_line(line)) else {
        return Ok(Parsed::Ignored(Ignored::OtherEvent));
    };
    if event < taken {
        return Err(format!(
            "an event {} in a trace that begins with events {} alone; \
             keep one kind with `blkparse -a`",
            event.name(),
            taken.name()
        ));
    }
    if event != taken {
        return Ok(Parsed::Ignored(Ignored::OtherEvent));
    }
    let kind = field(fields, "type")?;
    // In this format a flush has no type letter of its own: its type `FWS` contains the letter W of
    // a write. A flush is ignored below, because it has no sectors.
    let letters = [(b'D', Op::Trim), (b'W', Op::Write), (b'R', Op::Read)];
    let found = letters.iter().find(|(letter, _)| kind.contains(letter));
    let process = |word: &&[u8]| word.starts_with(b"[");
    let (Some((_, op)), Some(sector)) = (found, fields.next().filter(|word| !process(word))) else {
        return Ok(Parsed::Ignored(Ignored::NoSectors));
    };
    let sector =
        whole(sector).ok_or_else(|| format!("sector {} is not a number", shown(sector)))?;
    if field(fields, "`+`")? != b"+" {
        return Err("no `+` after the sector".to_owned());
    }
    let count = number(fields, "count")?;
    if count == 0 {
        return Ok(Parsed::Ignored(Ignored::NoSectors));
    }
    let device = devices(name).ok_or("too many devices")?;
    let offset = bytes(sector, SECTOR_BYTES, "sector")?;
    let length = bytes(count, SECTOR_BYTES, "count")?;
    placed(time_ns, *op, device, offset, length)
}
