//! Tests of discards: only what nothing needs is discarded, nothing waits for it, and a device that
//! cannot do it is not asked again.

use std::collections::BTreeMap;

use super::*;
use crate::layers::mirror::store::segments::Segments;
use crate::request::Reply;

/// Number of blocks that are written again and again.
const BLOCKS: u64 = 512;

/// What a [`Flash`] does with a discard.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    /// It takes up to 20 ms, and destroys the content when it ends.
    Late,
    /// It fails.
    Refused,
    /// It never ends.
    Never,
}

/// A device in memory that watches discards: none is of something that may still be needed, and no
/// other request concerns a range while it is being discarded.
struct Flash {
    rt: Rt,
    below: MemoryDevice,
    geometry: Geometry,
    answer: Answer,
    rng: RefCell<Rng>,
    /// The segments of the open store.
    segments: RefCell<Option<Rc<Segments>>>,
    /// Ranges of the discards in flight, and of those that were refused.
    discarding: RefCell<RangeSet>,
    /// Changes in flight, by their number.
    changing: RefCell<BTreeMap<u64, Range<u64>>>,
    requests: Cell<u64>,
    discards: Cell<u64>,
}

impl Flash {
    fn new(rt: &Rt, answer: Answer) -> Rc<Flash> {
        let below = MemoryDevice::new(rt, 64 << 20);
        Rc::new(Flash {
            rt: rt.clone(),
            geometry: *below.geometry(),
            below,
            answer,
            rng: Rng::labelled(1, "flash").into(),
            segments: RefCell::default(),
            discarding: RefCell::default(),
            changing: RefCell::default(),
            requests: Cell::new(0),
            discards: Cell::new(0),
        })
    }

    async fn discard(&self, request: Request) -> Result<Reply, IoError> {
        let range = request.offset..request.end();
        self.discards.set(self.discards.get() + 1);
        assert!(request.flags.advisory, "nothing relies on it");
        assert!(!self.may_need(&range), "{range:?} is needed");
        let is_written = |of: &Range<u64>| of.start < range.end && range.start < of.end;
        assert!(!self.changing.borrow().values().any(is_written));
        self.discarding.borrow_mut().insert(range.clone());
        match self.answer {
            Answer::Refused => return Err(IoError::Unsupported),
            Answer::Never => std::future::pending().await,
            Answer::Late => {
                let ms = self.rng.borrow_mut().below(20);
                self.rt.sleep(Duration::from_millis(ms)).await;
            }
        }
        assert!(!self.may_need(&range), "{range:?} is needed");
        let rubbish = self.rt.pool().copy_of(&vec![0xEE; request.len as usize]);
        let rubbish = Request::write(request.offset, rubbish, Flags::NONE);
        self.below.submit(rubbish).await?;
        self.discarding.borrow_mut().remove(range);
        Ok(Reply::Done)
    }

    fn may_need(&self, range: &Range<u64>) -> bool {
        let segments = self.segments.borrow();
        segments.as_ref().expect("it is open").may_need(range)
    }

    async fn serve(&self, request: Request) -> Result<Reply, IoError> {
        let number = self.requests.get();
        self.requests.set(number + 1);
        if request.op == Op::Discard {
            return self.discard(request).await;
        }
        let range = request.offset..request.end();
        assert!(
            self.discarding.borrow().is_clear(&range),
            "{} of {range:?} while it is discarded",
            request.op.name()
        );
        if request.op.changes_content() {
            self.changing.borrow_mut().insert(number, range);
        }
        let us = self.rng.borrow_mut().below(200);
        self.rt.sleep(Duration::from_micros(us)).await;
        let answer = self.below.submit(request).await;
        self.changing.borrow_mut().remove(&number);
        answer
    }
}

impl Device for Flash {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(self.serve(request))
    }
}

/// Blocks of a logged side that are overwritten at random.
struct Used {
    flash: Rc<Flash>,
    store: Rc<Store>,
    next: Rc<Cell<u64>>,
    bytes: Vec<u8>,
}

impl Used {
    async fn open(rt: &Rt, flash: &Rc<Flash>, on: &StoreDevice, bytes: Vec<u8>) -> Used {
        let store = Store::open(rt, on).await.expect("it opens");
        *flash.segments.borrow_mut() = store.segments.clone();
        let next = Rc::new(Cell::new(store.found().next_number.max(1)));
        store.begin().await.expect("it begins");
        let given = Rc::clone(&next);
        let given = Rc::new(move |limit| given.get().min(limit));
        store.monitor(1, given, Rc::new(|| false));
        store.release(u64::MAX, false);
        Used {
            flash: Rc::clone(flash),
            store,
            next,
            bytes,
        }
    }

    async fn new(rt: &Rt, flash: &Rc<Flash>, cleans_always: bool) -> (Used, StoreDevice) {
        let device = Rc::clone(flash) as Rc<dyn Device>;
        let on = StoreDevice {
            cleans_always,
            ..formatted_as(rt, &device, SideKind::Log).await
        };
        let bytes = vec![0; BLOCKS as usize];
        (Used::open(rt, flash, &on, bytes).await, on)
    }

    /// Overwrites each block about twice, and folds the log now and then.
    async fn overwrite(&mut self) {
        let rt = self.flash.rt.clone();
        for round in 0..64 {
            let first = self.flash.rng.borrow_mut().below(BLOCKS - 16);
            let byte = 1 + (round + self.next.get() % 200) as u8 % 250;
            put(&rt, &self.store, &self.next, first, &[byte; 16]).await;
            self.bytes[first as usize..][..16].fill(byte);
            if round % 16 == 15 {
                self.store.flush(self.next.get()).await.expect("durable");
                assert_eq!(self.store.empty().await, Ok(true));
            }
        }
        assert_eq!(get(&self.store, 0..BLOCKS).await.as_ref(), Ok(&self.bytes));
    }

    fn discarded(&self) -> u64 {
        statistic(&self.store, "segments_discarded")
    }
}

/// Discards end late and leave anything behind. What is discarded is needed by nothing, neither
/// when the discard begins nor when it ends, and is not filled meanwhile.
#[test]
fn only_what_nothing_needs_is_discarded() {
    let rt = rt();
    rt.block_on(async {
        let flash = Flash::new(&rt, Answer::Late);
        let (mut used, on) = Used::new(&rt, &flash, false).await;
        for _ in 0..32 {
            used.overwrite().await;
        }
        assert!(used.discarded() > 20, "{} segments", used.discarded());
        // An idle side has nothing left to discard.
        rt.sleep(Duration::from_secs(60)).await;
        let (requests, discarded) = (flash.requests.get(), used.discarded());
        assert_eq!(discarded, flash.discards.get());
        rt.sleep(Duration::from_secs(600)).await;
        assert_eq!(flash.requests.get(), requests, "it is idle");
        used.store.end().await;

        // Of what is not used when a side is opened, only what a commit frees then is discarded.
        let mut used = Used::open(&rt, &flash, &on, used.bytes).await;
        rt.sleep(Duration::from_secs(60)).await;
        let before = used.discarded();
        assert!(before < 20, "{before} segments");
        for _ in 0..8 {
            used.overwrite().await;
        }
        assert!(used.discarded() > before);
        used.store.end().await;
    });
}

/// A device that refuses a discard is asked once, and nothing else comes of it.
#[test]
fn a_device_that_refuses_a_discard_is_not_asked_again() {
    let rt = rt();
    rt.block_on(async {
        let flash = Flash::new(&rt, Answer::Refused);
        let (mut used, on) = Used::new(&rt, &flash, true).await;
        for _ in 0..8 {
            used.overwrite().await;
        }
        assert_eq!((flash.discards.get(), used.discarded()), (1, 0));
        used.store.end().await;
        *flash.discarding.borrow_mut() = RangeSet::new();
        let mut used = Used::open(&rt, &flash, &on, used.bytes).await;
        used.overwrite().await;
        used.overwrite().await;
        assert_eq!(flash.discards.get(), 2, "another program asks again");
        used.store.end().await;
    });
}

/// Neither writes nor cleaning nor commits wait for a discard that does not end.
#[test]
fn nothing_waits_for_a_discard() {
    let rt = rt();
    rt.block_on(async {
        let flash = Flash::new(&rt, Answer::Never);
        let (mut used, _) = Used::new(&rt, &flash, true).await;
        for _ in 0..8 {
            used.overwrite().await;
        }
        assert_eq!((flash.discards.get(), used.discarded()), (1, 0));
        assert!(statistic(&used.store, "segments_cleaned") > 0);
        used.store.stop().await;
    });
}

#[test]
fn a_device_that_gains_nothing_is_not_asked() {
    let rt = rt();
    rt.block_on(async {
        let flash = Flash::new(&rt, Answer::Late);
        let mut flash = Rc::try_unwrap(flash).ok().expect("it has one owner");
        flash.geometry.wants_discards = false;
        let flash = Rc::new(flash);
        let (mut used, _) = Used::new(&rt, &flash, false).await;
        for _ in 0..4 {
            used.overwrite().await;
        }
        assert_eq!(flash.discards.get(), 0);
        used.store.end().await;
    });
}
