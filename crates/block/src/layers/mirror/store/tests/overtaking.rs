//! Tests of entries of the log that the device is late with: others overtake them, and after a
//! crash nothing that was reported as stored is missing, whether the late writes have taken effect
//! or not.

use std::collections::BTreeSet;

use bimetal_rt::sync::Event;

use super::*;

/// A device that holds some of its writes until they are let go. A write that is held when the
/// device is dropped has no effect.
struct Holding {
    below: Rc<dyn Device>,
    /// Number of writes so far.
    count: Cell<u64>,
    /// Numbers of the writes to hold.
    held: RefCell<BTreeSet<u64>>,
    /// Offsets at which writes are held.
    held_at: RefCell<BTreeSet<u64>>,
    changed: Event,
}

impl Holding {
    fn over(below: &Rc<dyn Device>) -> Rc<Holding> {
        Rc::new(Holding {
            below: Rc::clone(below),
            count: Cell::new(0),
            held: RefCell::default(),
            held_at: RefCell::default(),
            changed: Event::new(),
        })
    }

    /// Holds the write that comes after `after` other writes.
    fn hold(&self, after: u64) {
        self.held.borrow_mut().insert(self.count.get() + after);
    }

    fn let_go(&self) {
        self.held.borrow_mut().clear();
        self.held_at.borrow_mut().clear();
        self.changed.notify();
    }
}

impl Device for Holding {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if request.op != Op::Write {
            return self.below.submit(request);
        }
        let number = self.count.replace(self.count.get() + 1);
        IoFuture::new(async move {
            let is_held = || {
                let is_at = self.held_at.borrow().contains(&request.offset);
                is_at || self.held.borrow().contains(&number)
            };
            self.changed.until(|| !is_held()).await;
            self.below.submit(request).await
        })
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.below.close()
    }
}

/// A logged side on a device that holds writes.
struct Side {
    rt: Rt,
    memory: Rc<dyn Device>,
    holding: Rc<Holding>,
    store: Rc<Store>,
    next: Rc<Cell<u64>>,
}

impl Side {
    async fn new(rt: &Rt) -> Side {
        let memory: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, 64 << 20));
        formatted_as(rt, &memory, SideKind::Log).await;
        Side::opened(rt, memory).await
    }

    async fn opened(rt: &Rt, memory: Rc<dyn Device>) -> Side {
        let holding = Holding::over(&memory);
        let device: Rc<dyn Device> = Rc::clone(&holding) as Rc<dyn Device>;
        let asked = Asked {
            kind: SideKind::Log,
            ..Asked::default()
        };
        let layout = SideLayout::of(memory.geometry(), asked).expect("it is large enough");
        let on = StoreDevice {
            layout,
            ..on(&device)
        };
        let (store, next) = opened_on(rt, &on).await;
        Side {
            rt: rt.clone(),
            memory,
            holding,
            store,
            next,
        }
    }

    /// Begins to append blocks that are filled with one byte each.
    fn begin(&self, block: u64, bytes: &[u8]) -> Outcome {
        let number = self.next.replace(self.next.get() + 1);
        let mut buf = self.rt.pool().alloc_now(bytes.len() * BLOCK_BYTES as usize);
        for (content, byte) in buf.chunks_mut(BLOCK_BYTES as usize).zip(bytes) {
            content.fill(*byte);
        }
        let range = block * BLOCK_BYTES..(block + bytes.len() as u64) * BLOCK_BYTES;
        let payload = Payload::from(buf.freeze());
        self.store.append(Append::of(range, payload, number))
    }

    /// Holds the write of an entry at a position of the log.
    fn hold_entry(&self, position: u64) {
        let at = self.store.log.area.at(position);
        self.holding.held_at.borrow_mut().insert(at);
    }

    fn overtaken(&self) -> u64 {
        self.store.counts().1.overtaken
    }

    /// Ends the program without the writes that are held, and opens the side again.
    async fn crash(self) -> Side {
        self.store.stop().await;
        Side::opened(&self.rt, self.memory).await
    }
}

fn run(test: impl AsyncFnOnce(Side)) {
    let rt = rt();
    rt.block_on(async {
        test(Side::new(&rt).await).await;
    });
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn what_is_behind_a_late_entry_does_not_wait_for_it() {
    run(async |side: Side| {
        side.begin(0, &[1]).wait().await.expect("it is stored");
        side.hold_entry(side.store.log.head.get());
        let began = side.rt.now();
        let late = side.begin(1, &[2]);
        let behind = side.begin(2, &[3]);
        late.wait().await.expect("it is stored elsewhere");
        behind.wait().await.expect("it is stored");
        assert!(side.rt.now().since(began) < 3 * MS, "the write is held");
        side.begin(3, &[4]).wait().await.expect("it is stored");
        assert_eq!(side.overtaken(), 2);
        assert_eq!(get(&side.store, 0..5).await, Ok(vec![1, 2, 3, 4, 0]));
        // A flush would have to wait for the late write, so others are not held up by it.
        {
            let mut flush = std::pin::pin!(side.store.flush(side.next.get()));
            assert!(side.rt.timeout(100 * MS, &mut flush).await.is_err());
            side.begin(4, &[5]).wait().await.expect("it is stored");
            side.holding.let_go();
            flush.await.expect("it flushes");
        }
        let side = side.crash().await;
        assert_eq!(get(&side.store, 0..5).await, Ok(vec![1, 2, 3, 4, 5]));
        side.store.stop().await;
    });
}

/// Under load, there may always be a late write. A flush waits for those before it only.
#[test]
fn a_flush_does_not_wait_for_writes_that_are_late_after_it() {
    run(async |side: Side| {
        side.begin(0, &[1]).wait().await.expect("it is stored");
        let log = &side.store.log;
        let first = log.area.at(log.head.get());
        side.hold_entry(log.head.get());
        side.begin(1, &[2]).wait().await.expect("stored elsewhere");
        let mut flush = std::pin::pin!(side.store.flush(side.next.get()));
        assert!(side.rt.timeout(10 * MS, &mut flush).await.is_err());
        side.hold_entry(log.head.get());
        side.begin(2, &[3]).wait().await.expect("stored elsewhere");
        side.holding.held_at.borrow_mut().remove(&first);
        side.holding.changed.notify();
        let flushed = side.rt.timeout(10 * MS, flush).await;
        assert_eq!(flushed.expect("it does not wait"), Ok(()));
        side.holding.let_go();
        side.store.stop().await;
    });
}

/// The late write has no effect before the crash. What is behind it is found, at this opening and
/// at the next one, for which the entries are in an earlier incarnation of the log.
#[test]
fn an_opening_finds_what_has_overtaken_an_entry_that_is_missing() {
    run(async |side: Side| {
        side.begin(0, &[1]).wait().await.expect("it is stored");
        side.holding.hold(0);
        let late = side.begin(1, &[2, 2]);
        let behind = side.begin(2, &[3]);
        late.wait().await.expect("it is stored elsewhere");
        behind.wait().await.expect("it is stored");
        let mut side = side.crash().await;
        for _ in 0..2 {
            let found = side.store.found();
            assert!(!found.damaged);
            assert_eq!(found.complete_below, side.next.get());
            assert_eq!(get(&side.store, 0..4).await, Ok(vec![1, 2, 3, 0]));
            side = side.crash().await;
        }
        side.store.stop().await;
    });
}

/// What is overtaken takes two entries, since the segment of the log ends. The first of them is
/// stored and the second one is not. The first one must not state that all of it is there, and no
/// opening may go on with the second one alone.
#[test]
fn a_part_of_what_overtakes_states_no_more_than_it_has() {
    for is_first_stored in [true, false] {
        run(async |side: Side| {
            let log = &side.store.log;
            let left = || log.area.bytes_left_at(log.head.get()) / BLOCK_BYTES;
            while left() > 13 {
                side.begin(0, &[1]).wait().await.expect("it is stored");
            }
            let (complete, at) = (side.next.get(), log.head.get());
            let end = at + left() * BLOCK_BYTES;
            // Of the two entries that are late, six blocks have to be written again, for which the
            // segment has no room.
            let again = at + 8 * BLOCK_BYTES;
            let not_stored = match is_first_stored {
                true => end,
                false => again,
            };
            side.hold_entry(at);
            side.hold_entry(not_stored);
            let outcomes = [side.begin(1, &[7; 4]), side.begin(5, &[8; 2])];
            side.rt.sleep(MS + MS / 2).await;
            assert_eq!(side.overtaken(), 2);
            let flying: Vec<u64> = log
                .flying
                .borrow()
                .iter()
                .map(|entry| entry.header.position)
                .collect();
            let passed = [vec![end], vec![at, at + 5 * BLOCK_BYTES, again, end]];
            assert_eq!(flying, passed[usize::from(!is_first_stored)]);
            assert!(outcomes.iter().all(|outcome| outcome.get().is_none()));
            let side = side.crash().await;
            assert_eq!(side.store.found().complete_below, complete);
            let found = get(&side.store, 1..7).await.expect("it reads");
            let first = found.iter().filter(|byte| **byte != 0).count() as u64;
            let expected = u64::from(is_first_stored) * ((end - again) / BLOCK_BYTES - 1);
            assert_eq!(first, expected);
            side.store.stop().await;
        });
    }
}

/// The write of an overtaken entry may take effect until it has ended. Its space must not be used
/// again before that.
#[test]
fn the_space_of_an_overtaken_entry_is_kept_until_its_write_has_ended() {
    run(async |side: Side| {
        side.begin(0, &[1]).wait().await.expect("it is stored");
        let at = side.store.log.head.get();
        side.holding.hold(0);
        side.begin(1, &[2]).wait().await.expect("stored elsewhere");
        let mut flush = std::pin::pin!(side.store.flush(side.next.get()));
        // It waits for the late write, for a second.
        let _ = side.rt.timeout(2_000 * MS, &mut flush).await;
        assert_eq!(side.store.empty().await, Ok(true));
        assert!(side.store.log.tail() > at);
        assert_eq!(side.store.log.floor(), at);
        side.holding.let_go();
        side.store.log.until_idle().await;
        assert_eq!(side.store.log.floor(), side.store.log.tail());
        assert_eq!(get(&side.store, 0..2).await, Ok(vec![1, 2]));
        side.store.stop().await;
    });
}

/// Random changes on a device that holds one write in eight, with crashes in which the held writes
/// have no effect.
#[test]
fn nothing_that_is_stored_is_lost_with_late_writes() {
    const BLOCKS: u64 = 96;
    let (mut overtaken, mut crashes) = (0, 0);
    for seed in 0..24 {
        run(async |mut side: Side| {
            let mut rng = Rng::new(seed);
            // Of each block, what may be there: the last content that was stored, and all that was
            // begun since.
            let mut may = vec![vec![0_u8]; BLOCKS as usize];
            for _ in 0..12 {
                let mut begun: Vec<(u64, u8, Outcome)> = Vec::new();
                for _ in 0..rng.below(80) {
                    if rng.below(8) == 0 {
                        side.holding.hold(rng.below(3));
                    }
                    let (block, byte) = (rng.below(BLOCKS), 1 + rng.below(250) as u8);
                    begun.push((block, byte, side.begin(block, &[byte])));
                    may[block as usize].push(byte);
                    match rng.below(12) {
                        0 => side.rt.sleep(rng.below(20) as u32 * MS).await,
                        1 => side.holding.let_go(),
                        2 => {
                            let flush = side.store.flush(0);
                            let _ = side.rt.timeout(3 * MS, flush).await;
                        }
                        _ => side.rt.sleep(MS / 20).await,
                    }
                }
                for (block, byte, outcome) in &begun {
                    if outcome.get() == Some(Ok(())) {
                        let of = &mut may[*block as usize];
                        let last = of.iter().rposition(|other| other == byte);
                        of.drain(..last.unwrap_or(0));
                    }
                }
                overtaken += side.overtaken();
                side = side.crash().await;
                crashes += 1;
                assert!(!side.store.found().damaged, "seed {seed}");
                let found = get(&side.store, 0..BLOCKS).await.expect("it reads");
                for (block, byte) in found.into_iter().enumerate() {
                    let of = &mut may[block];
                    assert!(
                        of.contains(&byte),
                        "seed {seed}: block {block}: {byte}, {of:?}"
                    );
                    *of = vec![byte];
                }
            }
            side.store.stop().await;
        });
    }
    assert!(overtaken > crashes, "{overtaken} of {crashes} crashes");
}
