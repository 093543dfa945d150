//! Tests of one end of a connection step by step, and of two ends over an in-memory wire under
//! arbitrary schedules.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn terms(credits: u16, buffer_bytes: u32) -> Terms {
    Terms {
        credits,
        buffer_bytes,
    }
}

#[test]
fn data_is_cut_to_the_smaller_buffer_and_takes_a_credit_each() {
    let mut flow = Flow::new(terms(8, 10_000), terms(2, 4096), 3);
    let message = |slot, bytes| {
        Some(Outgoing {
            slot,
            bytes,
            word: 0,
        })
    };
    assert_eq!(flow.next_message(0), None);
    assert_eq!(flow.next_message(5000), message(0, 4096));
    assert_eq!(flow.next_message(904), message(1, 904));
    // There is a free send buffer but no credit, so waiting for the completion of a send would not
    // help.
    assert_eq!(flow.next_message(1), None);
    assert!(!flow.waits_for_sent(true) && !flow.is_settled());
    flow.sent(0);
    assert_eq!(flow.next_message(1), None);
    // The other end gives both credits back.
    assert_eq!(flow.arrive(9, 0, Some(2)), Ok(Some(9)));
    assert_eq!(flow.next_message(1), message(0, 1));
    assert_eq!(flow.next_message(1), message(2, 1));
    flow.sent(0);
    flow.sent(1);
    flow.sent(2);
    assert!(flow.is_settled());
}

#[test]
fn a_buffer_is_waited_for_where_a_credit_is_there() {
    let mut flow = Flow::new(terms(2, 4096), terms(2, 4096), 1);
    assert!(flow.next_message(1).is_some());
    assert!(!flow.waits_for_sent(false) && flow.waits_for_sent(true));
    flow.sent(0);
    assert!(!flow.waits_for_sent(true));
}

#[test]
fn credits_go_back_with_data_or_when_half_are_owed() {
    let mut flow = Flow::new(terms(4, 4096), terms(4, 4096), 4);
    for slot in 0..3 {
        assert_eq!(flow.arrive(slot, 100, Some(0)), Ok(None));
    }
    let first = Arrived {
        slot: 0,
        start: 0,
        end: 100,
    };
    assert_eq!(flow.first(), Some(first));
    assert_eq!(flow.take(60), None);
    assert_eq!(flow.first().unwrap().start, 60);
    assert_eq!(flow.take(40), Some(0));
    assert_eq!(flow.next_idle_message(), None, "one of four is no half");
    assert_eq!(flow.next_message(7).unwrap().word, 1);
    assert_eq!(flow.take(100), Some(1));
    assert_eq!(flow.next_idle_message(), None);
    assert_eq!(flow.take(100), Some(2));
    assert_eq!(flow.next_idle_message(), Some(2));
    assert_eq!(flow.next_idle_message(), None);
}

#[test]
fn a_third_message_without_data_waits_for_the_first() {
    let mut flow = Flow::new(terms(2, 4096), terms(2, 4096), 1);
    for _ in 0..2 {
        assert_eq!(flow.arrive(0, 1, Some(0)), Ok(None));
        assert_eq!(flow.take(1), Some(0));
        assert_eq!(flow.next_idle_message(), Some(1));
    }
    assert_eq!(flow.arrive(0, 1, Some(0)), Ok(None));
    assert_eq!(flow.take(1), Some(0));
    assert_eq!(flow.next_idle_message(), None);
    assert!(flow.waits_for_sent(false));
    flow.idle_message_sent();
    assert_eq!(flow.next_idle_message(), Some(1));
}

#[test]
fn breaches_are_found() {
    let fresh = || Flow::new(terms(2, 4096), terms(4, 4096), 4);
    let after_one = |bytes, word| {
        let mut flow = fresh();
        assert!(flow.next_message(1).is_some());
        flow.arrive(0, bytes, word)
    };
    assert_eq!(after_one(1, None), Err(Breach::NoWord));
    assert_eq!(
        after_one(1, Some(0x0001_0000)),
        Err(Breach::UnknownBits(0x0001_0000))
    );
    assert_eq!(after_one(1, Some(2)), Err(Breach::TooManyCredits(2)));
    assert_eq!(after_one(1, Some(1)), Ok(None));
    assert_eq!(after_one(4097, Some(0)), Err(Breach::TooLong(4097)));
    // One of four is less than half.
    assert_eq!(after_one(0, Some(1)), Err(Breach::IdleMessage(1)));
    assert_eq!(
        fresh().arrive(0, 1, Some(1)),
        Err(Breach::TooManyCredits(1))
    );
    let mut flow = fresh();
    assert_eq!(flow.arrive(0, 1, Some(0)), Ok(None));
    assert_eq!(flow.arrive(1, 1, Some(0)), Ok(None));
    assert_eq!(flow.arrive(2, 1, Some(0)), Err(Breach::NoCredit));
    // Consuming the data is not enough: before it sends again, the other end must get the credit
    // back.
    assert_eq!(flow.take(1), Some(0));
    assert_eq!(flow.arrive(2, 1, Some(0)), Err(Breach::NoCredit));
    assert_eq!(flow.next_message(1).unwrap().word, 1);
    assert_eq!(flow.arrive(2, 1, Some(0)), Ok(None));
}

/// A message on the wire. Its data is `bytes` bytes of the stream from offset `start` on.
#[derive(Clone, Copy, Debug)]
struct OnWire {
    slot: Option<u16>,
    start: u64,
    bytes: usize,
    word: u32,
}

/// One end, with the state that a device would hold for it.
struct End {
    flow: Flow,
    /// Posted receives, oldest first.
    posted: VecDeque<u16>,
    /// Number of bytes that the program sends in total. `sent_bytes` were sent so far, and
    /// `read_bytes` were received.
    wants_bytes: u64,
    sent_bytes: u64,
    read_bytes: u64,
    /// Stream offset of the first byte in each receive buffer, by slot.
    starts: Vec<u64>,
    /// `wire`: messages in flight to the other end, in order. `unacknowledged`: messages that have
    /// arrived but are not acknowledged.
    wire: VecDeque<OnWire>,
    unacknowledged: VecDeque<OnWire>,
    /// Messages that the device has received and the program has not processed. Each entry begins
    /// with the number of its receive buffer.
    completed: VecDeque<(u16, OnWire)>,
}

impl End {
    fn new(own: Terms, peer: Terms, slots: u16, receives: u16, wants_bytes: u64) -> End {
        End {
            flow: Flow::new(own, peer, slots),
            posted: (0..receives).collect(),
            wants_bytes,
            sent_bytes: 0,
            read_bytes: 0,
            starts: vec![0; usize::from(receives)],
            wire: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            completed: VecDeque::new(),
        }
    }

    /// Sends one message if the flow permits it: a message with data if possible, otherwise a
    /// message without data.
    fn send(&mut self) -> bool {
        let left = (self.wants_bytes - self.sent_bytes) as usize;
        let on_wire = match self.flow.next_message(left) {
            Some(message) => OnWire {
                slot: Some(message.slot),
                start: self.sent_bytes,
                bytes: message.bytes,
                word: message.word,
            },
            None => return self.send_idle(),
        };
        self.sent_bytes += on_wire.bytes as u64;
        self.wire.push_back(on_wire);
        true
    }

    fn send_idle(&mut self) -> bool {
        let Some(word) = self.flow.next_idle_message() else {
            return false;
        };
        let start = self.sent_bytes;
        self.wire.push_back(OnWire {
            slot: None,
            start,
            bytes: 0,
            word,
        });
        true
    }

    /// Completes the oldest send that the other end has received. A device completes a send when it
    /// learns that the message has arrived.
    fn acknowledge(&mut self) -> bool {
        let Some(message) = self.unacknowledged.pop_front() else {
            return false;
        };
        match message.slot {
            Some(slot) => self.flow.sent(slot),
            None => self.flow.idle_message_sent(),
        }
        true
    }

    /// Moves a message from the wire of `from` to the device of this end. Fails if no receive is
    /// posted.
    fn receive(&mut self, from: &mut End) -> Result<bool, String> {
        let Some(message) = from.wire.pop_front() else {
            return Ok(false);
        };
        from.unacknowledged.push_back(message);
        let slot = self.posted.pop_front().ok_or("no receive is posted")?;
        self.completed.push_back((slot, message));
        Ok(true)
    }

    /// Processes one message that the device has received.
    fn probe(&mut self) -> Result<bool, String> {
        let Some((slot, message)) = self.completed.pop_front() else {
            return Ok(false);
        };
        self.starts[usize::from(slot)] = message.start;
        let again = self
            .flow
            .arrive(slot, message.bytes as u32, Some(message.word));
        self.posted.extend(again.map_err(|e| e.to_string())?);
        Ok(true)
    }

    /// Reads at most `bytes` bytes as the program.
    fn read(&mut self, bytes: usize) -> bool {
        let Some(first) = self.flow.first() else {
            return false;
        };
        let taken = bytes.min(first.end - first.start);
        let at = self.starts[usize::from(first.slot)] + first.start as u64;
        assert_eq!(at, self.read_bytes, "bytes come in their order, each once");
        self.read_bytes += taken as u64;
        self.posted.extend(self.flow.take(taken));
        true
    }
}

/// Runs a schedule of actions. After the schedule, both ends act in turn until neither makes
/// progress. `extra` is added to the number of receives that each end posts.
fn run(shape: Shape, schedule: &[u8], extra: i32) -> Result<(), String> {
    let (a, b) = (
        terms(shape.credits.0, 4096),
        terms(shape.credits.1, shape.buffer_bytes),
    );
    let posted = |own| u16::try_from(i32::from(receives(own)) + extra).unwrap();
    let mut ends = [
        End::new(a, b, shape.slots.0, posted(a), shape.wants.0),
        End::new(b, a, shape.slots.1, posted(b), shape.wants.1),
    ];
    let mut step = |action: u8| -> Result<bool, String> {
        let [first, second] = &mut ends;
        let (one, other) = if action & 1 == 0 {
            (first, second)
        } else {
            (second, first)
        };
        Ok(match action >> 1 & 7 {
            0 | 1 => one.send(),
            2 | 3 => one.receive(other)?,
            4 => one.acknowledge(),
            5 => one.probe()?,
            // Reads between 1 and 6001 bytes, so that the tests read parts of messages and whole
            // messages.
            _ => one.read(1 + usize::from(action >> 4) * 400),
        })
    };
    for action in schedule {
        step(*action)?;
    }
    loop {
        let mut moved = false;
        for action in 0..16 {
            moved |= step(action | 0xf0)?;
        }
        if !moved {
            break;
        }
    }
    for (end, other) in [(0, 1), (1, 0)] {
        if ends[end].read_bytes != ends[other].wants_bytes {
            return Err(format!("end {end} waits for ever: {:?}", ends[end].flow));
        }
        assert!(ends[end].flow.is_settled());
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    credits: (u16, u16),
    slots: (u16, u16),
    buffer_bytes: u32,
    wants: (u64, u64),
}

fn shapes() -> impl Strategy<Value = Shape> {
    let counts = || (1u16..6, 1u16..6);
    (
        (2u16..9, 2u16..9),
        counts(),
        4096u32..9000,
        (0u64..200_000, 0u64..200_000),
    )
        .prop_map(|(credits, slots, buffer_bytes, wants)| Shape {
            credits,
            slots,
            buffer_bytes,
            wants,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn no_schedule_overruns_a_receive_or_stands_still(
        shape in shapes(),
        schedule in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        prop_assert_eq!(run(shape, &schedule, 0), Ok(()));
    }

    #[test]
    fn whatever_the_other_end_says_is_taken_or_refused(
        arrivals in prop::collection::vec((0u32..5000, prop::option::of(0u32..70_000), any::<bool>()), 0..200),
    ) {
        let own = terms(4, 4096);
        let mut flow = Flow::new(own, terms(3, 4096), 2);
        let mut held = 0u16;
        for (bytes, word, reads) in arrivals {
            let Ok(again) = flow.arrive(0, bytes, word) else { break };
            held += u16::from(again.is_none());
            // The end never holds more messages than the number of credits that it grants, whatever
            // the other end sends.
            prop_assert!(held <= own.credits);
            if let Some(first) = flow.first().filter(|_| reads) {
                flow.take(first.end - first.start);
                held -= 1;
            }
            if flow.next_idle_message().is_some() {
                flow.idle_message_sent();
            }
            if let Some(message) = flow.next_message(10_000) {
                flow.sent(message.slot);
            }
        }
    }
}

/// Checks that every posted receive is necessary: a schedule that succeeds must fail if an end
/// posts one receive fewer. So the other tests would detect an end that posts too few.
#[test]
fn every_receive_is_needed() {
    let shape = Shape {
        credits: (2, 2),
        slots: (2, 2),
        buffer_bytes: 4096,
        wants: (2 * 4096, 2 * 4096),
    };
    // Each even number is an action of the first end: with 0 the end sends a message, with 4 its
    // device receives a message, with 10 its program processes a received message, and with 0xfc
    // its program reads the data. Of the odd numbers, which are actions of the second end, with 1
    // the end sends a message, and with 5 its device receives a message. First both ends send all
    // their data. Then the first end twice reads a message and gives the credit back in a message
    // without data. Finally the device of the second end receives the four messages of the first
    // end, and the program of the second end does not process them.
    let schedule = [0, 0, 1, 1, 4, 4, 10, 0xfc, 0, 10, 0xfc, 0, 5, 5, 5, 5];
    assert_eq!(run(shape, &schedule, 0), Ok(()));
    let overrun = Err("no receive is posted".to_owned());
    assert_eq!(run(shape, &schedule, -1), overrun);
}
