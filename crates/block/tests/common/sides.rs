//! Mirrors over sides in memory, for the tests of operations on a whole mirror.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::graph::OpenError;
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, MirrorConfig, OpenOptions, ScrubStatus, SideToOpen};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Geometry, IoError, IoFuture, Op, Request};
use bimetal_rt::Rt;
use bimetal_rt::sync::Event;

use super::write;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A device that simulates a power cut: it fails all requests once `power` is 0. Each change to any
/// of the devices that share `power` decrements it.
pub struct Powered {
    below: Rc<dyn Device>,
    power: Rc<Cell<u64>>,
}

impl Device for Powered {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        let left = self.power.get();
        if left == 0 {
            return IoFuture::ready(Err(IoError::Offline));
        }
        if request.op.changes_content() {
            self.power.set(left - 1);
        }
        self.below.submit(request)
    }
}

impl Powered {
    /// Returns the same side over a device that fails once `power` is 0.
    pub fn side(side: &Candidate, power: &Rc<Cell<u64>>) -> Candidate {
        Candidate {
            name: side.name.clone(),
            device: Powered::device(&side.device, power),
        }
    }

    /// Returns a device over `below` that fails once `power` is 0.
    pub fn device(below: &Rc<dyn Device>, power: &Rc<Cell<u64>>) -> Rc<dyn Device> {
        Rc::new(Powered {
            below: Rc::clone(below),
            power: Rc::clone(power),
        })
    }
}

/// Whether a device stalls before or after the write of its superblock takes effect.
#[derive(Clone, Copy, PartialEq)]
pub enum Stall {
    Before,
    After,
}

/// A device that can stall. After the test has armed it, it stalls at the next write of its
/// superblock: it answers neither this write nor any later request until the test frees it.
pub struct Stalling {
    below: Rc<dyn Device>,
    stall: Stall,
    is_armed: Cell<bool>,
    is_stalled: Cell<bool>,
    freed: Event,
}

impl Stalling {
    pub fn over(below: Rc<dyn Device>, stall: Stall) -> Stalling {
        Stalling {
            below,
            stall,
            is_armed: Cell::new(false),
            is_stalled: Cell::new(false),
            freed: Event::new(),
        }
    }

    pub fn arm(&self) {
        self.is_armed.set(true);
    }

    pub fn is_stalled(&self) -> bool {
        self.is_stalled.get()
    }

    pub fn free(&self) {
        self.is_armed.set(false);
        self.is_stalled.set(false);
        self.freed.notify();
    }

    async fn until_free(&self) {
        self.freed.until(|| !self.is_stalled.get()).await;
    }
}

impl Device for Stalling {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        let copies = [0, self.geometry().size_bytes - BLOCK];
        let of_superblock = request.op == Op::Write && copies.contains(&request.offset);
        IoFuture::new(async move {
            self.until_free().await;
            if of_superblock && self.is_armed.replace(false) {
                self.is_stalled.set(true);
            }
            if self.stall == Stall::Before {
                self.until_free().await;
            }
            let answer = self.below.submit(request).await;
            self.until_free().await;
            answer
        })
    }
}

/// Fills the block at `offset` with `byte`.
pub async fn put(rt: &Rt, mirror: &Mirror, offset: u64, byte: u8) {
    let stored = mirror.submit(write(rt, offset, BLOCK as usize, byte)).await;
    stored.expect("a side takes it");
}

/// Reads a block that is filled with one byte, and returns that byte.
pub async fn byte_at(mirror: &Mirror, offset: u64) -> Result<u8, IoError> {
    let read = mirror.submit(Request::read(offset, BLOCK)).await?;
    let bytes = read.into_data().to_vec();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "of one write");
    Ok(bytes[0])
}

/// Returns a device of 64 MiB that is not formatted as a side.
pub fn blank(rt: &Rt, name: &str) -> Candidate {
    blank_of(rt, name, 64 * MIB)
}

/// Returns a device of `size_bytes` that is not formatted as a side.
pub fn blank_of(rt: &Rt, name: &str, size_bytes: u64) -> Candidate {
    Candidate {
        name: name.to_owned(),
        device: Rc::new(MemoryDevice::new(rt, size_bytes)),
    }
}

/// Returns options that open a volume and rebuild one of its sides from scratch.
pub fn rebuilding(side: &str) -> OpenOptions {
    OpenOptions {
        rebuild: vec![side.to_owned()],
        ..OpenOptions::default()
    }
}

/// Returns the device of a side, or an error if `is_there` is false.
pub fn there(side: &Candidate, is_there: bool) -> Result<Rc<dyn Device>, OpenError> {
    let device = is_there.then(|| Rc::clone(&side.device));
    device.ok_or_else(|| OpenError::new("unplugged"))
}

/// Opens a volume all of whose sides can be found.
pub async fn open_these(
    rt: &Rt,
    sides: &[&Candidate],
    options: &OpenOptions,
) -> Result<Mirror, OpenError> {
    open_without(rt, sides, &[], options).await
}

/// Opens a volume whose sides with the indices `missing` cannot be found.
pub async fn open_without(
    rt: &Rt,
    sides: &[&Candidate],
    missing: &[usize],
    options: &OpenOptions,
) -> Result<Mirror, OpenError> {
    let config = MirrorConfig::of(Vec::new());
    open_with(rt, &config, sides, missing, options).await
}

/// Opens a volume whose sides with the indices `missing` cannot be found, with the configuration
/// `config` for the sides `sides`.
pub async fn open_with(
    rt: &Rt,
    config: &MirrorConfig,
    sides: &[&Candidate],
    missing: &[usize],
    options: &OpenOptions,
) -> Result<Mirror, OpenError> {
    let mut config = config.clone();
    config.sides = sides.iter().map(|side| side.name.clone()).collect();
    let side = |(index, side): (usize, &&Candidate)| SideToOpen {
        name: side.name.clone(),
        device: there(side, !missing.contains(&index)),
    };
    let sides = sides.iter().enumerate().map(side).collect();
    Mirror::open(rt, &config, sides, options).await
}

/// Waits until the volume has exactly `sides` sides and all of them are in sync.
pub async fn until_complete(rt: &Rt, mirror: &Mirror, sides: usize) {
    for _ in 0..600 {
        let status = mirror.status();
        if !status.degraded && status.sides.len() == sides {
            return;
        }
        rt.sleep(Duration::from_millis(100)).await;
    }
    panic!("it is not whole: {:?}", mirror.status());
}

/// Scrubs the volume, and returns the final status of the scrub.
pub async fn scrub(rt: &Rt, mirror: &Mirror) -> ScrubStatus {
    mirror.start_scrub().expect("it can be scrubbed");
    loop {
        let status = mirror.status().scrub.expect("it has begun");
        if status.state != "running" {
            return status;
        }
        rt.sleep(Duration::from_millis(1)).await;
    }
}
