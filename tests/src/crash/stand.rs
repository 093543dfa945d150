//! A mirrored volume whose two sides are on volatile disks, and the ways to crash it.

use std::path::PathBuf;

use crate::client::Outcome;
use crate::deadline::eventually;
use crate::nbd::Wire;
use crate::random::Random;
use crate::server::Server;
use crate::volatile_disk::{Keep, VolatileDisk};
use crate::volume::{EXPORT_VOL, MIB, Volume};

/// Size of a side in bytes. It is small, so that a test round is cheap.
const SIDE_BYTES: u64 = 24 * MIB;

/// Names of the disks, which are also the names of the sides.
pub const SIDES: [&str; 2] = ["a", "b"];

/// A volume, its two disks, and the server, which is `None` while it is down.
#[derive(Debug)]
pub struct Stand {
    volume: Volume,
    /// Both disks, in the order of the sides.
    pub disks: [VolatileDisk; 2],
    server: Option<Server>,
}

/// Effect of a crash on the two disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Only the program is killed; both disks keep their power.
    Stays,
    /// The power of one disk or of both disks is cut. Each element selects the unflushed writes
    /// that the disk keeps; with `None` the disk keeps its power.
    Fails([Option<Keep>; 2]),
}

impl Power {
    /// Draws the effect of a crash at random. In most cases the power of both disks is cut, and
    /// both lose some unflushed writes.
    pub fn draw(random: &mut Random) -> Self {
        if random.chance(1, 10) {
            return Power::Stays;
        }
        let one_only = random.chance(1, 10).then(|| random.below(2) as usize);
        let keep = |random: &mut Random| match random.below(10) {
            0 => Keep::Nothing,
            1 => Keep::Everything,
            2..=4 => Keep::Blocks(random.draw()),
            _ => Keep::Sectors(random.draw()),
        };
        let both = [Some(keep(random)), Some(keep(random))];
        match one_only {
            Some(0) => Power::Fails([both[0], None]),
            Some(_) => Power::Fails([None, both[1]]),
            None => Power::Fails(both),
        }
    }
}

impl Stand {
    /// Formats and serves a volume whose sides have homes. `mirror_keys` are additional lines for
    /// the mirror's section of the configuration.
    pub fn new(name: &str, mirror_keys: &str) -> Self {
        Self::with_top(name, mirror_keys, EXPORT_VOL, Volume::format_homes)
    }

    /// Does the same as [`Stand::new`] with the sides that `format` makes by default, which are
    /// logged.
    pub fn logged(name: &str, mirror_keys: &str) -> Self {
        Self::with_top(name, mirror_keys, EXPORT_VOL, |volume| {
            volume.verb("format").ok();
        })
    }

    /// Does the same as [`Stand::new`], with a buffer cache above the mirror that is so small that
    /// it constantly evicts and destages pages.
    pub fn cached(name: &str, mirror_keys: &str) -> Self {
        let cache = "[device.cached]\ntype = \"cache\"\nbelow = \"vol\"\nsize = \"1MiB\"\n\
                     dirty_age = \"20ms\"\ncluster = \"64KiB\"\n\n";
        let export = EXPORT_VOL.replace("device = \"vol\"", "device = \"cached\"");
        let top = cache.to_owned() + &export;
        Self::with_top(name, mirror_keys, &top, Volume::format_homes)
    }

    /// Formats and serves a volume. `top` is the configuration of the layers above the mirror and
    /// of the export. `format` formats the sides.
    fn with_top(name: &str, mirror_keys: &str, top: &str, format: fn(&Volume)) -> Self {
        let side = |name: &str| {
            format!(
                "[device.{name}]\ntype = \"remote\"\naddress = \"unix:{name}.sock\"\n\
                 reconnect = \"200ms\"\n\n"
            )
        };
        let mirror =
            format!("[device.vol]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\n{mirror_keys}\n\n");
        // Use little memory, so that a start is cheap. Memory need not be locked, because the
        // machine that mounts file systems in these tests is not short of memory.
        let server = "[server]\nlock_memory = false\nmemory = \"24MiB\"\n\n";
        let text = side("a") + &side("b") + &mirror + server + top;
        let volume = Volume::from_toml(name, &text);
        let disks = SIDES.map(|side| {
            volume.dir().sparse(&format!("{side}.img"), SIDE_BYTES);
            VolatileDisk::start(volume.dir(), side)
        });
        format(&volume);
        let server = Some(volume.serve());
        Self {
            volume,
            disks,
            server,
        }
    }

    /// Returns the volume, with its configuration, folder and verbs.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Connects to the export; returns the connection and the size of the volume in bytes.
    pub fn attach(&self) -> (Wire, u64) {
        let (wire, export) = Wire::attached(&self.volume.socket(), "vol");
        (wire, export.size_bytes)
    }

    /// Returns the path of the export's socket.
    pub fn socket(&self) -> PathBuf {
        self.volume.socket()
    }

    /// Kills the server, then cuts the power of the disks as `power` says. Also ends every freeze,
    /// delay and limit of the disks.
    pub fn crash(&mut self, power: Power) {
        self.kill();
        if let Power::Fails(both) = power {
            for (disk, keep) in self.disks.iter().zip(both) {
                if let Some(keep) = keep {
                    disk.cut(keep);
                }
            }
        }
        for disk in &self.disks {
            disk.thaw();
            disk.delay(0);
            disk.limit(0);
        }
    }

    /// Kills the server and leaves the disks unchanged.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }

    /// Serves the volume after a crash without any options: the server must recover by itself.
    ///
    /// # Errors
    /// The message of `serve` if it refuses the volume.
    pub fn recover(&mut self) -> Result<(), String> {
        self.try_serve_with(&[])
    }

    /// Serves the volume with `options`.
    ///
    /// # Errors
    /// The message of `serve` if it refuses the volume.
    pub fn try_serve_with(&mut self, options: &[&str]) -> Result<(), String> {
        assert!(self.server.is_none(), "the program is down");
        let server = Server::try_start_with(self.volume.config(), options)?;
        self.server = Some(server);
        Ok(())
    }

    /// Does the same as [`Stand::try_serve_with`]; panics if `serve` refuses the volume.
    pub fn serve_with(&mut self, options: &[&str]) {
        let served = self.try_serve_with(options);
        served.unwrap_or_else(|words| panic!("{words}"));
    }

    /// Waits until every side is in sync.
    pub fn await_complete(&self) {
        eventually(60, "every side is whole", || {
            let whole = |side: &str| self.volume.health(side) == "healthy";
            SIDES.into_iter().all(whole).then_some(())
        });
    }

    /// Runs `serve` with `options` on a volume that the test expects it to refuse, and returns the
    /// outcome.
    pub fn refused(&self, options: &[&str]) -> Outcome {
        assert!(self.server.is_none(), "the program is down");
        self.volume.verb("serve").args(options).run()
    }

    /// Stops the server cleanly.
    pub fn stop(&mut self) {
        self.server.take().expect("the program runs").stop();
    }

    /// Returns the server's standard error, for failure messages.
    pub fn said(&self) -> String {
        self.server.as_ref().map_or(String::new(), Server::said)
    }
}
