//! Text of blkparse: `maj,min cpu sequence time pid action type sector + count [process]`.
//!
//! A request causes several events on its way through the kernel, and a trace has the events
//! selected at recording. One kind of event stands for the request in the whole trace, because two
//! would count each request twice.

use crate::Op;
use crate::layouts::{
    Fields, Parsed, SECTOR_BYTES, What, bytes, comma_fields, field, number, placed, shown, time,
    whole, words,
};
use crate::tally::Ignored;

/// The events that can stand for a request, in the order in which a request passes them. The first
/// that a trace has is taken, since the events after it are merged and split ones.
const EVENTS: [&[u8]; 4] = [b"Q", b"I", b"D", b"C"];

/// The event whose lines are the requests of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event(usize);

impl Event {
    /// The event of a line that can stand for a request; `None` for other events and other lines.
    pub(crate) fn of_line(line: &[u8]) -> Option<Event> {
        let mut all = words(line);
        if !is_device(all.next()?) {
            return None;
        }
        let action = all.nth(4)?;
        EVENTS.iter().position(|name| *name == action).map(Event)
    }

    /// The event to take for a text that goes on with `lines`; `None` if they have none.
    pub(crate) fn first_of(lines: &[u8]) -> Option<Event> {
        let events = lines.split(|b| *b == b'\n').filter_map(Event::of_line);
        events.min()
    }

    /// Its letter.
    pub(crate) fn name(self) -> &'static str {
        ["Q", "I", "D", "C"][self.0]
    }

    /// True for the event that is taken wherever there is one.
    pub(crate) fn is_usual(self) -> bool {
        self.0 == 0
    }
}

/// The names of all events that can stand for a request.
pub(crate) const EVENT_NAMES: &str = "Q, I, D or C";

fn is_device(name: &[u8]) -> bool {
    name.contains(&b',') && comma_fields(name).all(|part| whole(part).is_some())
}

/// One line, in a trace whose requests are the events `taken`.
///
/// # Errors
/// When it is an event whose fields cannot be right, or one that a request passes before `taken`:
/// then the choice was made from a part of the trace that is unlike this one.
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
    // A flush has neither a type of its own here nor sectors.
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
