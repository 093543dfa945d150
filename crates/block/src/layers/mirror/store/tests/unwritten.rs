//! Tests of pages of the dirty-region bitmap and of the checksum area. Formatting leaves these
//! pages unwritten. Old content of the device must never be mistaken for such a page. A stop at any
//! time must neither lose a written page nor make an unwritten page appear as written.

use super::super::checksums::fixture::page_by_hand;
use super::super::pages::Area;
use super::*;
use crate::request::{IoResult, Reply};

/// Size of the tested volume. Nine checksum pages describe 32 MiB; this volume uses six of them.
const LARGE_BYTES: u64 = 20 << 20;
/// Byte that fills the device before it is formatted.
const LITTER: u8 = 0xEE;

/// A device with a volatile cache, whose power is cut after a given number of changes.
struct Volatile {
    rt: Rt,
    geometry: Geometry,
    seen: RefCell<Vec<u8>>,
    durable: RefCell<Vec<u8>>,
    unflushed: RefCell<Vec<(usize, Vec<u8>)>>,
    changes_left: Cell<u64>,
}

impl Volatile {
    fn new(rt: &Rt, content: Vec<u8>, changes_left: u64) -> Rc<Volatile> {
        Rc::new(Volatile {
            rt: rt.clone(),
            geometry: Geometry::of_size(content.len() as u64),
            durable: content.clone().into(),
            seen: content.into(),
            unflushed: RefCell::default(),
            changes_left: changes_left.into(),
        })
    }

    /// Returns the content after a power cut: of the writes that no flush has covered, arbitrary
    /// sectors survive.
    fn after_cut(&self, rng: &mut Rng) -> Vec<u8> {
        let mut left = self.durable.borrow().clone();
        for (offset, bytes) in self.unflushed.borrow().iter() {
            for (index, sector) in bytes.chunks(512).enumerate() {
                if rng.below(2) == 1 {
                    let at = offset + index * 512;
                    left[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        left
    }

    fn answer(&self, request: Request) -> IoResult {
        let at = request.offset as usize..(request.offset + request.len) as usize;
        if request.op == Op::Read {
            let found = self.rt.pool().copy_of(&self.seen.borrow()[at]);
            return Ok(Reply::Data(Payload::from(found)));
        }
        let left = self.changes_left.get();
        self.changes_left.set(left.saturating_sub(1));
        if left == 0 {
            return Err(IoError::Medium);
        }
        match request.op {
            Op::Write => {
                let bytes = request.payload.to_vec();
                self.seen.borrow_mut()[at.clone()].copy_from_slice(&bytes);
                self.unflushed.borrow_mut().push((at.start, bytes));
            }
            Op::Flush => {
                let mut durable = self.durable.borrow_mut();
                for (offset, bytes) in self.unflushed.borrow_mut().drain(..) {
                    durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
            }
            // A discard is only a hint, which this device ignores.
            Op::Discard => {}
            other => panic!("{other:?} is not asked for where checksums are kept"),
        }
        Ok(Reply::Done)
    }
}

impl Device for Volatile {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::ready(self.answer(request))
    }
}

/// Returns the content of a formatted device that was full of old content before.
fn formatted(rt: &Rt) -> Vec<u8> {
    let device = Volatile::new(rt, vec![LITTER; DEVICE_BYTES as usize], u64::MAX);
    let layout = on(&memory(rt)).layout;
    let below = Rc::clone(&device) as Rc<dyn Device>;
    let made = initialise(rt, &below, SIDE, &layout, false);
    rt.block_on(made).expect("it does not fail");
    device.durable.take()
}

fn on_large(device: &Rc<dyn Device>) -> StoreDevice {
    StoreDevice {
        volume_bytes: LARGE_BYTES,
        ..on(device)
    }
}

async fn begun(rt: &Rt, on_device: &StoreDevice) -> Result<(Rc<Store>, Rc<Cell<u64>>), IoError> {
    let store = Store::open(rt, on_device).await?;
    let next = Rc::new(Cell::new(store.found().next_number.max(1)));
    store.begin().await?;
    let given = Rc::clone(&next);
    let given = Rc::new(move |limit| given.get().min(limit));
    store.monitor(1, given, Rc::new(|| false));
    store.release(u64::MAX, false);
    Ok((store, next))
}

/// Blocks at the boundaries and in the middle of several checksum pages.
const BLOCKS: [u64; 5] = [3, 1007, 1008, 2500, 5039];

/// Possible content of each of [`BLOCKS`]: the last flushed value, and all values written since.
type Known = [Vec<u8>; BLOCKS.len()];

/// Writes blocks, flushes the store, and runs the destager, until an operation fails.
async fn run_until_cut(rt: &Rt, device: &Rc<Volatile>, known: &mut Known) -> Result<(), IoError> {
    let below = Rc::clone(device) as Rc<dyn Device>;
    let (store, next) = begun(rt, &on_large(&below)).await?;
    let mut ended = Ok(());
    for (value, some) in [(1, 0..2), (2, 2..4), (3, 0..5), (4, 1..3)] {
        ended = round(rt, &store, &next, value, some, known).await;
        if ended.is_err() {
            break;
        }
    }
    store.stop().await;
    ended
}

async fn round(
    rt: &Rt,
    store: &Rc<Store>,
    next: &Rc<Cell<u64>>,
    value: u8,
    some: Range<usize>,
    known: &mut Known,
) -> Result<(), IoError> {
    for at in some {
        let number = next.get();
        next.set(number + 1);
        let payload = Payload::from(rt.pool().copy_of(&[value; 4096]));
        let start = BLOCKS[at] * BLOCK_BYTES;
        known[at].push(value);
        let append = Append::of(start..start + BLOCK_BYTES, payload, number);
        store.append(append).wait().await?;
    }
    store.flush(next.get()).await?;
    for values in known.iter_mut() {
        values.drain(..values.len() - 1);
    }
    store.empty().await?;
    Ok(())
}

/// Repeats the same run, and cuts the power after each possible number of changes, until a run ends
/// before its cut.
#[test]
fn a_stop_at_any_moment_loses_no_page_and_invents_none() {
    let rt = rt();
    let image = formatted(&rt);
    let mut rng = Rng::new(9);
    let (mut cuts, mut destaged) = (0, 0);
    rt.block_on(async {
        for changes in 0.. {
            let device = Volatile::new(&rt, image.clone(), changes);
            let mut known: Known = std::array::from_fn(|_| vec![0]);
            if run_until_cut(&rt, &device, &mut known).await.is_ok() {
                break;
            }
            cuts += 1;
            for _ in 0..3 {
                let left = Volatile::new(&rt, device.after_cut(&mut rng), u64::MAX);
                let left = left as Rc<dyn Device>;
                let (store, _) = begun(&rt, &on_large(&left)).await.expect("it opens");
                for (block, values) in BLOCKS.iter().zip(&known) {
                    let found = get(&store, *block..block + 1).await;
                    let found = found.expect("no page is damaged")[0];
                    assert!(
                        values.contains(&found),
                        "{found} of {values:?}, cut {changes}"
                    );
                }
                // The neighbours of these blocks were never written.
                assert_eq!(get(&store, 1009..1020).await, Ok(vec![0; 11]));
                assert_eq!(get(&store, 4000..4010).await, Ok(vec![0; 10]));
                assert!(store.empty().await.expect("it goes home"));
                destaged += u64::from(store.counts().0.destage_writes > 0);
                store.stop().await;
            }
        }
    });
    assert!(cuts > 40 && destaged > 20, "{cuts} {destaged}");
}

/// A written page is validated by its checksums alone: if it turns to zeroes, or to its old
/// content, it is damaged.
#[test]
fn a_written_page_that_has_turned_to_zeroes_is_damaged() {
    let rt = rt();
    let device = Volatile::new(&rt, formatted(&rt), u64::MAX);
    let below = Rc::clone(&device) as Rc<dyn Device>;
    rt.block_on(async {
        let (store, next) = begun(&rt, &on_large(&below)).await.expect("it opens");
        put(&rt, &store, &next, 3, &[1]).await;
        store.flush(next.get()).await.expect("it is flushed");
        assert!(store.empty().await.expect("it goes home"));
        store.stop().await;
        let page = on(&below).layout.checksums.0 as usize;
        for wrong in [0, LITTER] {
            device.seen.borrow_mut()[page..page + 4096].fill(wrong);
            let (store, _) = begun(&rt, &on_large(&below)).await.expect("it opens");
            assert_eq!(get(&store, 3..4).await, Err(IoError::Corrupt));
            // The checksum of this block is in the next page. That page was never written, so its
            // content on the device is not used.
            assert_eq!(get(&store, 1008..1009).await, Ok(vec![0]));
            store.stop().await;
        }
    });
}

/// A side that was formatted before written bits existed has no such bits, so all of its pages are
/// treated as written.
#[test]
fn a_side_that_says_nothing_of_its_pages_has_all_of_them() {
    let rt = rt();
    let device = Volatile::new(&rt, formatted(&rt), u64::MAX);
    let below = Rc::clone(&device) as Rc<dyn Device>;
    let mut older = on_large(&below);
    older.layout.written = None;
    for (offset, len) in [older.layout.map, older.layout.checksums] {
        for page in 0..len / 4096 {
            let at = (offset + page * 4096) as usize;
            let bytes = page_by_hand(&[], SIDE, page);
            device.seen.borrow_mut()[at..at + 4096].copy_from_slice(&bytes);
        }
    }
    rt.block_on(async {
        let (store, next) = begun(&rt, &older).await.expect("it opens");
        assert_eq!(get(&store, 0..2000).await, Ok(vec![0; 2000]));
        put(&rt, &store, &next, 3, &[1]).await;
        store.flush(next.get()).await.expect("it is flushed");
        assert!(store.empty().await.expect("it goes home"));
        store.stop().await;
        let second = (older.layout.checksums.0 + 4096) as usize;
        device.seen.borrow_mut()[second..second + 4096].fill(0);
        let (store, _) = begun(&rt, &older).await.expect("it opens");
        assert_eq!(get(&store, 2..5).await, Ok(vec![0, 1, 0]));
        assert_eq!(get(&store, 1008..1009).await, Err(IoError::Corrupt));
        store.stop().await;
    });
}

/// The existing content of an adopted disk is unknown, even where no checksum page was written.
#[test]
fn content_that_was_there_is_unknown_without_a_page() {
    let rt = rt();
    let device = Volatile::new(&rt, formatted(&rt), u64::MAX);
    let below = Rc::clone(&device) as Rc<dyn Device>;
    let adopted = StoreDevice {
        unknown_blocks: 1500,
        ..on_large(&below)
    };
    rt.block_on(async {
        let (store, next) = begun(&rt, &adopted).await.expect("it opens");
        assert_eq!(get(&store, 1499..1501).await, Ok(vec![LITTER, 0]));
        put(&rt, &store, &next, 1100, &[1]).await;
        store.flush(next.get()).await.expect("it is flushed");
        assert!(store.empty().await.expect("it goes home"));
        store.stop().await;
        let (store, _) = begun(&rt, &adopted).await.expect("it opens");
        let found = get(&store, 1099..1102).await;
        assert_eq!(found, Ok(vec![LITTER, 1, LITTER]));
        assert_eq!(get(&store, 1499..1501).await, Ok(vec![LITTER, 0]));
        let blocks = |from: u64, to: u64| from * BLOCK_BYTES..to * BLOCK_BYTES;
        let unknown = store.unknown_in(&blocks(1098, 1600)).await;
        assert_eq!(unknown, Ok(vec![blocks(1098, 1100), blocks(1101, 1500)]));
        store.stop().await;
    });
}

/// The checksums of a page include the number of the page. Pages of written bits are numbered
/// differently from pages of the bitmap and of the checksums. So a page of one kind is never valid
/// as a page of another kind.
#[test]
fn no_page_of_the_map_passes_for_bits() {
    let area = |numbered_from| Area {
        offset: 0,
        len: 4096,
        side: SIDE,
        numbered_from,
    };
    let page = page_by_hand(&[1], SIDE, 0);
    assert!(area(0).entries(0, &page).is_ok());
    assert!(area(1 << 62).entries(0, &page).is_err());
    assert!(area(1 << 63).entries(0, &page).is_err());
}
