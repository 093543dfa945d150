//! Random sequences of the documented operations on a volume in use. Whatever happened before, each
//! operation must work or give a reason in one line, and the content must be preserved.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{blank_of, byte_at, open_without, put, until_complete};
use crate::common::virtual_rt;
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::{Candidate, SideKind};
use bimetal_block::layers::mirror::{Mirror, OpenOptions};
use bimetal_block::{Device, Geometry, IoError, IoFuture, Request};
use bimetal_rt::{Rng, Rt};

const MIB: u64 = 1 << 20;
/// Size of the two first sides in bytes. Each later side is larger than the one before by
/// [`MORE_BYTES`].
const FIRST_BYTES: u64 = 40 * MIB;
const MORE_BYTES: u64 = 8 * MIB;
/// Number of operations in one sequence.
const STEPS: usize = 14;
const SEEDS: u64 = 40;

/// A device that fails every request while it is unplugged, and also once the server that opened it
/// is dead.
struct Pluggable {
    below: Rc<dyn Device>,
    unplugged: Rc<Cell<bool>>,
    server_is_dead: Rc<Cell<bool>>,
}

impl Device for Pluggable {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if self.unplugged.get() || self.server_is_dead.get() {
            return IoFuture::ready(Err(IoError::Offline));
        }
        self.below.submit(request)
    }
}

/// A side of the volume at present.
struct Member {
    blank: Candidate,
    unplugged: Rc<Cell<bool>>,
}

impl Member {
    /// Returns the side as a running server opens it. Its device fails once `server_is_dead` is
    /// set.
    fn side(&self, server_is_dead: &Rc<Cell<bool>>) -> Candidate {
        Candidate {
            name: self.blank.name.clone(),
            device: Rc::new(Pluggable {
                below: Rc::clone(&self.blank.device),
                unplugged: Rc::clone(&self.unplugged),
                server_is_dead: Rc::clone(server_is_dead),
            }),
        }
    }
}

/// A volume in use, with its present sides and its expected content.
struct Sequence {
    rt: Rt,
    rng: Rng,
    members: Vec<Member>,
    mirror: Mirror,
    server_is_dead: Rc<Cell<bool>>,
    /// Byte that fills the block at the start of each MiB.
    content: Vec<u8>,
    sides_made: u64,
    grown: u64,
    converted: u64,
}

fn member(rt: &Rt, number: u64) -> Member {
    let size_bytes = FIRST_BYTES + number.saturating_sub(1) * MORE_BYTES;
    Member {
        blank: blank_of(rt, &format!("side{number}"), size_bytes),
        unplugged: Rc::default(),
    }
}

/// Opens the volume in a new server, which cannot find the sides with the indices `missing`.
async fn opened(
    rt: &Rt,
    members: &[Member],
    missing: &[usize],
    server_is_dead: &Rc<Cell<bool>>,
) -> Mirror {
    let sides: Vec<Candidate> = members.iter().map(|m| m.side(server_is_dead)).collect();
    let sides: Vec<&Candidate> = sides.iter().collect();
    let opened = open_without(rt, &sides, missing, &OpenOptions::default()).await;
    opened.expect("it opens")
}

impl Sequence {
    async fn begin(rt: &Rt, seed: u64) -> Sequence {
        let members: Vec<Member> = (0..2).map(|number| member(rt, number)).collect();
        let sides: Vec<Candidate> = members.iter().map(|m| m.blank.clone()).collect();
        let made = formatting::format(rt, "vol", &sides, &Formatting::with_homes()).await;
        made.expect("the sides are fit");
        let server_is_dead = Rc::default();
        let mirror = opened(rt, &members, &[], &server_is_dead).await;
        let mut sequence = Sequence {
            rt: rt.clone(),
            rng: Rng::labelled(seed, "life of sides"),
            members,
            content: Vec::new(),
            mirror,
            server_is_dead,
            sides_made: 2,
            grown: 0,
            converted: 0,
        };
        sequence.note_size();
        sequence
    }

    /// Adjusts the expected content to the size of the volume: the range beyond the old end reads
    /// as zeroes.
    fn note_size(&mut self) {
        let size_bytes = self.mirror.geometry().size_bytes;
        self.content.resize((size_bytes / MIB) as usize, 0);
    }

    fn draw(&mut self) -> usize {
        self.rng.below(self.members.len() as u64) as usize
    }

    fn new_member(&mut self) -> Member {
        self.sides_made += 1;
        member(&self.rt, self.sides_made - 1)
    }

    async fn write_some(&mut self) {
        for _ in 0..20 {
            let at = self.rng.below(self.content.len() as u64);
            let byte = self.rng.below(255) as u8 + 1;
            put(&self.rt, &self.mirror, at * MIB, byte).await;
            self.content[at as usize] = byte;
        }
    }

    async fn until_complete(&self) {
        // A conversion that a dead server has left behind begins when all sides are healthy.
        while !self.mirror.status().operations.is_empty() {
            self.rt.sleep(Duration::from_millis(100)).await;
        }
        until_complete(&self.rt, &self.mirror, self.members.len()).await;
    }

    async fn replace(&mut self, which: usize) {
        let new = self.new_member();
        let old = self.members[which].blank.name.clone();
        let added = self
            .mirror
            .add_side(new.side(&self.server_is_dead), Some(&old), false)
            .await;
        added.expect("a blank device takes the place of a side");
        self.members[which] = new;
    }

    async fn add(&mut self) {
        let new = self.new_member();
        let added = self
            .mirror
            .add_side(new.side(&self.server_is_dead), None, false)
            .await;
        added.expect("a blank device becomes a side");
        self.members.push(new);
    }

    async fn remove(&mut self, which: usize) {
        let name = self.members[which].blank.name.clone();
        let removed = self.mirror.remove_side(&name).await;
        if self.members.len() == 1 {
            removed.expect_err("the last side stays");
        } else {
            removed.expect("another side has everything");
            self.members.remove(which);
        }
    }

    async fn grow(&mut self) {
        let old_bytes = self.mirror.geometry().size_bytes;
        match self.mirror.grow().await {
            Ok(size_bytes) => {
                assert!(size_bytes > old_bytes, "{size_bytes} from {old_bytes}");
                assert_eq!(self.mirror.geometry().size_bytes, size_bytes);
                self.grown += 1;
                self.note_size();
            }
            Err(why) => assert!(why.contains("has room for only"), "{why}"),
        }
    }

    /// Converts a side to a random layout. In some cases the server dies as soon as the command has
    /// returned.
    async fn convert(&mut self, which: usize) {
        let name = self.members[which].blank.name.clone();
        let to = match self.rng.chance(0.5) {
            true => SideKind::Log,
            false => SideKind::Home,
        };
        match self.mirror.convert_side(&name, to).await {
            Ok(()) => self.converted += u64::from(self.mirror.status().degraded),
            Err(why) => {
                let is_only = why.contains("the last durable side that is complete");
                let is_known = is_only && self.members.len() == 1 || why.contains("has room for");
                assert!(is_known, "{why}");
            }
        }
        if self.rng.chance(0.3) {
            self.reopen(false).await;
        }
    }

    async fn unplug(&mut self, which: usize) {
        if self.members.len() == 1 {
            return;
        }
        self.members[which].unplugged.set(true);
        self.write_some().await;
        self.rt.sleep(Duration::from_secs(40)).await;
        self.members[which].unplugged.set(false);
    }

    async fn scrub(&mut self) {
        self.mirror.start_scrub().expect("it can be scrubbed");
        let done = || {
            self.mirror
                .status()
                .scrub
                .is_some_and(|scrub| scrub.state == "done")
        };
        for _ in 0..10_000 {
            if done() {
                return;
            }
            self.rt.sleep(Duration::from_millis(10)).await;
        }
        panic!("the scrub does not end: {:?}", self.mirror.status().scrub);
    }

    async fn reopen(&mut self, cleanly: bool) {
        if cleanly {
            self.mirror.close().await.expect("closed");
        }
        self.server_is_dead.set(true);
        self.server_is_dead = Rc::default();
        self.mirror = opened(&self.rt, &self.members, &[], &self.server_is_dead).await;
    }

    /// Executes one random operation, and returns a description of it for failure messages.
    async fn step(&mut self) -> String {
        let which = self.draw();
        let what = self.rng.below(11);
        let name = &self.members[which].blank.name;
        let said = format!("{what} of {name}");
        match what {
            0 | 1 => self.replace(which).await,
            2 if self.members.len() < 4 => self.add().await,
            2 | 3 => self.remove(which).await,
            4 | 5 => self.grow().await,
            6 => self.unplug(which).await,
            7 => self.scrub().await,
            8 => {
                let cleanly = self.rng.chance(0.5);
                self.reopen(cleanly).await;
            }
            9 | 10 => self.convert(which).await,
            _ => unreachable!("one of eleven"),
        }
        said
    }

    async fn check(&self, done: &[String]) {
        let names = self
            .mirror
            .status()
            .sides
            .iter()
            .map(|side| side.name.clone())
            .collect::<Vec<_>>();
        let mut expected: Vec<String> = self.members.iter().map(|m| m.blank.name.clone()).collect();
        let mut found = names;
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "after {done:?}");
        self.check_content(done).await;
    }

    async fn check_content(&self, done: &[String]) {
        for (at, byte) in self.content.iter().enumerate() {
            let found = byte_at(&self.mirror, at as u64 * MIB).await;
            assert_eq!(found, Ok(*byte), "MiB {at} after {done:?}");
        }
    }
}

/// Runs a random sequence of writes and operations on the sides of a volume. Returns the number of
/// times that the volume has grown, and the number of sides that were converted.
async fn run(rt: &Rt, seed: u64) -> (u64, u64) {
    let mut sequence = Sequence::begin(rt, seed).await;
    let mut done = Vec::new();
    for _ in 0..STEPS {
        sequence.write_some().await;
        done.push(sequence.step().await);
        sequence.until_complete().await;
        sequence.check(&done).await;
    }
    sequence.mirror.close().await.expect("closed");
    let alone = sequence.draw();
    let others: Vec<usize> = (0..sequence.members.len())
        .filter(|i| *i != alone)
        .collect();
    // After a clean stop, any single side must open without the others.
    sequence.mirror = opened(rt, &sequence.members, &others, &Rc::default()).await;
    sequence.check_content(&done).await;
    (sequence.grown, sequence.converted)
}

#[test]
fn operations_work_in_every_order() {
    let (mut grown, mut converted) = (0, 0);
    for seed in 0..SEEDS {
        let rt = virtual_rt(seed);
        let (grown_now, converted_now) = rt.block_on(run(&rt, seed));
        grown += grown_now;
        converted += converted_now;
    }
    // Otherwise the sequences would not have tested growing, or converting.
    assert!(
        grown > 0 && converted > 0,
        "{grown} grown, {converted} converted"
    );
}
