//! Tests that the changes that a lagging member lacks stay in the log, however often the log wraps
//! around (T13, T14).

use bimetal_rt::sync::Event;

use super::*;

/// Sequence number and content of the last change of each block.
struct Written(Vec<(u64, u8)>);

impl Written {
    fn note(&mut self, number: u64, start: u64, bytes: &[u8]) {
        for (block, byte) in (start..).zip(bytes) {
            self.0[block as usize] = (number, *byte);
        }
    }

    /// Checks that the log has what a member needs that holds exactly the changes below `number`:
    /// the newest change of each block that was changed at or after `number`. Also checks that no
    /// region is marked, and that every block reads as written.
    async fn check(&self, store: &Store, number: u64) {
        for (block, (last, _)) in (0u64..).zip(&self.0) {
            if *last >= number {
                let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
                assert_eq!(store.numbers_in(&range), vec![(range, *last)]);
            }
        }
        assert_eq!(
            store.out_of_sync_since(0),
            Vec::new(),
            "no region is marked"
        );
        let bytes: Vec<u8> = self.0.iter().map(|(_, byte)| *byte).collect();
        assert_eq!(get(store, 0..bytes.len() as u64).await, Ok(bytes));
    }
}

/// A client that repeatedly writes the same blocks while a member lags is never delayed.
#[test]
fn blocks_written_again_and_again_fill_no_log() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        store.release(1, false);
        let mut written = Written(vec![(0, 0); (VOLUME_BYTES / BLOCK_BYTES) as usize]);
        for step in 0..6_000u64 {
            // Each change takes two blocks of a log of 1,024 blocks. Of the first 400 changes,
            // every tenth is the only change of its block.
            let block = match step {
                0..400 if step % 10 == 0 => 100 + step / 10,
                _ => step % 7,
            };
            let byte = 1 + (step % 250) as u8;
            written.note(next.get(), block, &[byte]);
            put(&rt, &store, &next, block, &[byte]).await;
            if step % 64 == 0 {
                store.flush(next.get()).await.expect("it flushes");
            }
        }
        written.check(&store, 1).await;
        let (_, log) = store.counts();
        let (_, log_bytes) = store.log_bytes();
        assert!(log.bytes > 4 * log_bytes, "it has gone round");
        store.stop().await;
        drop(store);
        let (store, _) = opened(&rt, &device).await;
        written.check(&store, 1).await;
        store.stop().await;
    });
}

/// The log keeps every change that a lagging member lacks. Changes, and the progress of the member,
/// are random, and the store is closed and opened in between.
#[test]
fn a_late_member_finds_in_the_log_what_it_lacks() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let blocks = VOLUME_BYTES / BLOCK_BYTES;
        let mut written = Written(vec![(0, 0); blocks as usize]);
        let mut rng = Rng::new(11);
        let (mut store, mut next) = opened(&rt, &device).await;
        let mut member = next.get();
        store.release(member, false);
        for step in 0..8_400u64 {
            let hot = rng.below(3) > 0;
            let (start, len) = match hot {
                true => (rng.below(8), 1 + rng.below(4)),
                false => (rng.below(blocks - 16), 1 + rng.below(16)),
            };
            let bytes: Vec<u8> = (0..len).map(|_| 1 + rng.below(250) as u8).collect();
            written.note(next.get(), start, &bytes);
            put(&rt, &store, &next, start, &bytes).await;
            if rng.below(40) == 0 {
                store.flush(next.get()).await.expect("it flushes");
            }
            // When the member lacks about a third of the log, it catches up by a random amount. In
            // a mirror, the bound of the exposure ensures this limit.
            let lacked = written.0.iter().filter(|(last, _)| *last >= member).count();
            if lacked > 220 || rng.below(200) == 0 {
                member += rng.below(next.get() - member + 1);
                store.flush(next.get()).await.expect("it flushes");
                store.release(member, false);
            }
            if step % 300 == 0 {
                written.check(&store, member).await;
            }
            if step % 1_500 == 1_499 {
                store.flush(next.get()).await.expect("it flushes");
                store.stop().await;
                drop(store);
                (store, next) = opened(&rt, &device).await;
                store.release(member, false);
                written.check(&store, member).await;
            }
        }
        let (counts, log) = store.counts();
        assert!(counts.destaged_bytes > 0, "what is released goes home");
        let (_, log_bytes) = store.log_bytes();
        assert!(log.bytes > log_bytes, "it has gone round");
        store.stop().await;
    });
}

/// A program that opens the side and is killed, again and again, does not fill up the log.
#[test]
fn runs_without_entries_take_no_room() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        store.release(1, false);
        for block in 0..150 {
            put(&rt, &store, &next, block, &[7]).await;
        }
        store.flush(next.get()).await.expect("it flushes");
        store.stop().await;
        for _ in 0..300 {
            let store = Store::open(&rt, &on(&device)).await.expect("it opens");
            store.flush_what_was_found().await.expect("it flushes");
            store.release(1, false);
            store.begin().await.expect("there is room to begin");
            store.stop().await;
        }
        let (store, _) = opened(&rt, &device).await;
        assert_eq!(store.found().complete_below, 151);
        assert_eq!(get(&store, 0..150).await, Ok(vec![7; 150]));
        store.stop().await;
    });
}

/// A device that completes no change while `hangs` is set.
struct Hanging {
    below: Rc<dyn Device>,
    hangs: Cell<bool>,
    goes_on: Event,
}

impl Device for Hanging {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            if request.op.changes_content() {
                self.goes_on.until(|| !self.hangs.get()).await;
            }
            self.below.submit(request).await
        })
    }
}

/// While the full log of a side waits for a lagging member, the side is treated as making progress.
/// A device that hangs during this wait is detected once the log has requests for it again.
#[test]
fn a_side_that_waits_for_a_late_member_is_not_silent() {
    const PROBE: Duration = Duration::from_millis(10);
    for hangs in [false, true] {
        let rt = rt();
        let hanging = Rc::new(Hanging {
            below: memory(&rt),
            hangs: Cell::new(false),
            goes_on: Event::new(),
        });
        let device: Rc<dyn Device> = Rc::clone(&hanging) as _;
        rt.block_on(async {
            let (store, next) = opened(&rt, &device).await;
            store.release(1, false);
            let fill = async {
                for block in 0..VOLUME_BYTES / BLOCK_BYTES {
                    put(&rt, &store, &next, block, &[7]).await;
                }
            };
            let mut fill = Box::pin(fill);
            while !store.is_full() {
                let ended = rt.timeout(PROBE, fill.as_mut()).await;
                assert!(ended.is_err(), "it does not fit into the log");
            }
            hanging.hangs.set(hangs);
            let (began, mut silent) = (rt.now(), Duration::ZERO);
            while rt.timeout(PROBE, fill.as_mut()).await.is_err() && silent < 20 * PROBE {
                silent = silent.max(rt.now().since(store.last_progress()));
            }
            assert!(rt.now().since(began) >= 20 * PROBE, "it has waited");
            assert_eq!(silent >= 20 * PROBE, hangs, "silent for {silent:?}");
            hanging.hangs.set(false);
            hanging.goes_on.notify();
            store.stop().await;
        });
    }
}
