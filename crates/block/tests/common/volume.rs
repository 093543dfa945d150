//! A formatted volume on sides in memory, which the tests open, kill, damage and open again.

use std::ops::{Deref, Range};
use std::rc::Rc;

use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::{Candidate, SideKind, Superblock};
use bimetal_block::layers::mirror::{Layouts, Mirror, MirrorConfig, OpenOptions, ScrubStatus};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Flags, IoError, Request};
use bimetal_rt::Rt;

use super::sides::{self, blank};
use super::{byte_of, virtual_rt, write};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A volume `vol` whose sides `side0`, `side1` and so on are in memory, each 64 MiB long.
pub struct Volume {
    pub rt: Rt,
    pub sides: Vec<Candidate>,
    /// The configuration with which the volume is opened. Its list of sides is not used: the
    /// volume is opened with `sides`.
    pub config: MirrorConfig,
}

impl Volume {
    /// Runs a test of a new volume with `count` sides in each layout in turn: with homes, and
    /// logged. For tests that look at no home.
    pub fn test_both(seed: u64, count: usize, test: impl AsyncFn(Volume)) {
        for kind in [SideKind::Home, SideKind::Log] {
            println!("{kind:?}");
            let rt = virtual_rt(seed);
            rt.block_on(async {
                let mut volume = Volume::unformatted(&rt, count);
                volume.config.layout = Layouts::All(kind);
                volume.try_format("vol").await.expect("the sides are fit");
                test(volume).await;
            });
        }
    }

    /// Runs a test of a new volume with `count` sides, which have homes, in virtual time with the
    /// seed `seed`.
    pub fn test<T>(seed: u64, count: usize, test: impl AsyncFnOnce(Volume) -> T) -> T {
        let rt = virtual_rt(seed);
        rt.block_on(async { test(Volume::format(&rt, count).await).await })
    }

    pub async fn format(rt: &Rt, count: usize) -> Volume {
        let volume = Volume::unformatted(rt, count);
        let made = volume.try_format("vol").await;
        made.expect("the sides are fit");
        volume
    }

    /// Formats the sides for a volume `name`, which must be blank.
    pub async fn try_format(&self, name: &str) -> Result<(), String> {
        let formatting = Formatting {
            layouts: self.config.layout.clone(),
            volume_bytes: self.config.size.map(|size| size.0),
            reserve: self.config.reserve,
            ..Formatting::with_homes()
        };
        let made = formatting::format(&self.rt, name, &self.sides, &formatting).await;
        made.map(drop).map_err(|error| error.to_string())
    }

    /// Creates devices that are large enough to be formatted as sides, and leaves them blank. The
    /// configuration asks for sides with homes.
    pub fn unformatted(rt: &Rt, count: usize) -> Volume {
        let sides = (0..count).map(|index| blank(rt, &format!("side{index}")));
        let mut config = MirrorConfig::of(Vec::new());
        config.layout = Layouts::All(SideKind::Home);
        Volume {
            rt: rt.clone(),
            sides: sides.collect(),
            config,
        }
    }

    /// Returns this volume as a configuration that names only the given `sides` would describe it.
    pub fn on(&self, sides: &[&Candidate]) -> Volume {
        Volume {
            rt: self.rt.clone(),
            sides: sides.iter().map(|side| (*side).clone()).collect(),
            config: self.config.clone(),
        }
    }

    /// Puts a simulated device over the device of a side, and returns the simulated device.
    pub fn put_over<D: Device + 'static>(
        &mut self,
        side: usize,
        over: impl FnOnce(Rc<dyn Device>) -> D,
    ) -> Rc<D> {
        let device = Rc::new(over(Rc::clone(&self.sides[side].device)));
        self.sides[side].device = Rc::clone(&device) as Rc<dyn Device>;
        device
    }

    /// Opens the volume while all sides can be found. Panics if the volume does not open.
    pub async fn open(&self) -> OpenVolume {
        self.open_as(&OpenOptions::default()).await
    }

    pub async fn open_as(&self, options: &OpenOptions) -> OpenVolume {
        self.open_without(&[], options).await
    }

    /// Opens the volume, which must succeed, with only the side `side`. The other sides cannot be
    /// found.
    pub async fn open_alone(&self, side: usize) -> OpenVolume {
        let options = OpenOptions::default();
        self.open_without(&self.all_but(side), &options).await
    }

    /// Opens the volume, which must succeed, while the sides with the indices `missing` cannot be
    /// found.
    pub async fn open_without(&self, missing: &[usize], options: &OpenOptions) -> OpenVolume {
        let opened = self.try_open(missing, options).await;
        opened.unwrap_or_else(|error| panic!("it does not open: {error}"))
    }

    /// Opens the volume, which must be refused, and returns the error message.
    pub async fn refusal(&self) -> String {
        let opened = self.try_open(&[], &OpenOptions::default()).await;
        opened.err().expect("it must not open")
    }

    /// Opens the volume with only the side `side`, which must be refused, and returns the error
    /// message.
    pub async fn refusal_alone(&self, side: usize) -> String {
        let options = OpenOptions::default();
        let opened = self.try_open(&self.all_but(side), &options).await;
        opened.err().expect("it must not open")
    }

    /// Opens the volume while the sides with the indices `missing` cannot be found.
    pub async fn try_open(
        &self,
        missing: &[usize],
        options: &OpenOptions,
    ) -> Result<OpenVolume, String> {
        let sides: Vec<&Candidate> = self.sides.iter().collect();
        let opened = sides::open_with(&self.rt, &self.config, &sides, missing, options).await;
        let mirror = opened.map_err(|error| error.to_string())?;
        let rt = self.rt.clone();
        Ok(OpenVolume { rt, mirror })
    }

    fn all_but(&self, side: usize) -> Vec<usize> {
        (0..self.sides.len()).filter(|at| *at != side).collect()
    }

    pub async fn superblock(&self, side: usize) -> Superblock {
        let found = self.sides[side].superblock().await;
        found.expect("it can be read").expect("it is there")
    }

    /// Returns the offset on a side of the newest content of a block of the open volume `mirror`.
    ///
    /// # Panics
    /// When the block consists of zeroes that are stored nowhere.
    pub fn place(&self, mirror: &Mirror, side: usize, offset: u64) -> u64 {
        mirror.place_on(side, offset).expect("it is stored")
    }

    /// Returns the offset of the home location of a block of the volume on a side.
    pub async fn home(&self, side: usize, offset: u64) -> u64 {
        self.superblock(side).await.layout.data.0 + offset
    }

    /// Corrupts a block of a side: overwrites it without the mirror.
    pub async fn spoil(&self, side: usize, offset: u64) {
        let spoilt = write(&self.rt, offset, BLOCK as usize, 0xEE);
        let done = self.sides[side].device.submit(spoilt).await;
        done.expect("memory can be written");
    }

    /// Corrupts the home location of a block of the volume on a side.
    pub async fn spoil_home(&self, side: usize, offset: u64) {
        self.spoil(side, self.home(side, offset).await).await;
    }

    /// Reads the home location of a block of the volume on a side, without the mirror. The block
    /// is filled with one byte, which is returned.
    pub async fn byte_at_home(&self, side: usize, offset: u64) -> u8 {
        byte_of(&self.sides[side].device, self.home(side, offset).await).await
    }

    /// Kills the server that has the volume open. Its tasks go on, but on devices of their own:
    /// from now on, the sides are what was on their devices at this moment.
    pub async fn kill(&mut self, rt: &Rt) {
        for side in &mut self.sides {
            let size_bytes = side.device.geometry().size_bytes;
            let left = Rc::new(MemoryDevice::new(rt, size_bytes)) as Rc<dyn Device>;
            for offset in (0..size_bytes).step_by(MIB as usize) {
                let len = MIB.min(size_bytes - offset);
                let read = side.device.submit(Request::read(offset, len)).await;
                let data = read.expect("it can be read").into_data();
                let write = Request::write(offset, data, Flags::NONE);
                left.submit(write).await.expect("it can be written");
            }
            side.device = left;
        }
    }

    /// Writes a block at the start of each of the first `mib` MiB, and closes the volume, which
    /// destages all of them. The block at MiB `n` is filled with the byte `n + 1`.
    pub async fn fill(&self, mib: u64) {
        let mirror = self.open().await;
        for at in 0..mib {
            mirror.put(at * MIB, at as u8 + 1).await;
        }
        mirror.close().await;
    }
}

/// A volume that is open. A test that drops it without closing it simulates the death of an idle
/// server. The tasks of a busy one go on, and [`Volume::kill`] is for that.
pub struct OpenVolume {
    rt: Rt,
    mirror: Mirror,
}

impl Deref for OpenVolume {
    type Target = Mirror;

    fn deref(&self) -> &Mirror {
        &self.mirror
    }
}

impl OpenVolume {
    /// Fills the block at `offset` with `byte`.
    pub async fn put(&self, offset: u64, byte: u8) {
        sides::put(&self.rt, &self.mirror, offset, byte).await;
    }

    /// Fills the bytes `range`, which are whole blocks, with `byte`.
    pub async fn fill(&self, range: Range<u64>, byte: u8) {
        let len = (range.end - range.start) as usize;
        let filled = self.mirror.submit(write(&self.rt, range.start, len, byte));
        filled.await.expect("a side takes it");
    }

    /// Reads a block that is filled with one byte, and returns that byte.
    pub async fn byte_at(&self, offset: u64) -> Result<u8, IoError> {
        sides::byte_at(&self.mirror, offset).await
    }

    pub async fn flush(&self) {
        let flushed = self.mirror.submit(Request::flush()).await;
        flushed.expect("it can be flushed");
    }

    /// Scrubs the volume, and returns the final status of the scrub.
    pub async fn scrub(&self) -> ScrubStatus {
        sides::scrub(&self.rt, &self.mirror).await
    }

    /// Waits until the volume has exactly `sides` sides and all of them are in sync.
    pub async fn until_complete(&self, sides: usize) {
        sides::until_complete(&self.rt, &self.mirror, sides).await;
    }

    /// Closes the volume, which destages all changes.
    pub async fn close(self) {
        self.mirror.close().await.expect("it closes");
    }
}
