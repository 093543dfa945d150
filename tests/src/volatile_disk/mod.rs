//! A disk with a volatile cache, as a small NBD server: the storage below the program in a crash
//! test.
//!
//! Killing a process does not lose the writes that it has completed, because the kernel keeps them.
//! So the sides of a crash test are on disks that lose unflushed writes when they receive a command
//! to cut the power: either all unflushed writes, or a part that a seed chooses, torn at sector
//! boundaries. A disk can also freeze, be slow, and lie about flushes. With a lying disk the tests
//! prove that they would detect a missing flush.
//!
//! The disk is a process (`volatile-disk FILE SOCKET`) that reads commands from its standard input,
//! one a line, and answers each with one line. After a power cut it must never perform an operation
//! that was requested before the cut.
//!
//! | command | effect |
//! | --- | --- |
//! | `cut nothing`, `cut everything` | power cut; the disk keeps nothing of its cache, or everything |
//! | `cut blocks SEED`, `cut sectors SEED` | power cut; each block of 4 KiB keeps some version, torn at 512 bytes with `sectors` |
//! | `freeze`, `thaw` | the disk stops answering requests; the disk answers again |
//! | `delay MS` | every operation takes MS milliseconds longer |
//! | `limit N` | at most N operations a second, 0 for no limit |
//! | `lie`, `honest` | flushes and FUA stop making data durable; they make data durable again |
//! | `counts` | reads, writes, writes with FUA, flushes, unflushed blocks, waiting operations |
//! | `await N` | answers when N writes have completed since the start |

mod cache;
mod device;
mod disk;
mod serve;

pub use cache::{BLOCK_BYTES, Keep, SECTOR_BYTES};
pub use device::DiskCounters;
pub use disk::VolatileDisk;

use cache::Content;
use device::Device;
use std::io::{BufRead, Error, Result, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time in seconds for which the command `await` waits.
const AWAIT_MAX_S: u64 = 60;

/// Serves the disk whose durable content is in `file` on the socket `socket`, and executes the
/// commands on standard input until its end. This is the body of the program `volatile-disk`.
///
/// # Errors
/// If the file or the socket cannot be opened, or standard input or output fails. A failure of the
/// disk while serving ends the process.
pub fn run(file: &Path, socket: &Path) -> Result<()> {
    let device = Arc::new(Device::new(Content::open(file)?));
    let listener = UnixListener::bind(socket)?;
    let (worker, server) = (Arc::clone(&device), Arc::clone(&device));
    std::thread::spawn(move || fatal("file", &worker.work()));
    std::thread::spawn(move || fatal("socket", &serve::accept(&listener, &server)));
    // A panic of a disk thread is a bug in the disk: end the whole process.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(1);
    }));
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    for line in std::io::stdin().lock().lines() {
        let answer = command(&device, &line?).unwrap_or_else(|e| format!("error {e}"));
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

fn fatal(what: &str, error: &Error) -> ! {
    eprintln!("volatile-disk: {what}: {error}");
    std::process::exit(1)
}

/// Executes one line with a command and returns the answer.
fn command(device: &Device, line: &str) -> Result<String> {
    let mut words = line.split_whitespace();
    let (verb, word, number) = (words.next(), words.next(), words.next());
    let unknown = || Error::other(format!("what is {line:?}?"));
    let parse = |word: Option<&str>| word.and_then(|w| w.parse::<u64>().ok()).ok_or_else(unknown);
    match (verb, word) {
        (Some("cut"), Some("nothing")) => device.cut(Keep::Nothing)?,
        (Some("cut"), Some("everything")) => device.cut(Keep::Everything)?,
        (Some("cut"), Some("blocks")) => device.cut(Keep::Blocks(parse(number)?))?,
        (Some("cut"), Some("sectors")) => device.cut(Keep::Sectors(parse(number)?))?,
        (Some("freeze"), None) => device.freeze(true),
        (Some("thaw"), None) => device.freeze(false),
        (Some("delay"), _) => device.delay(Duration::from_millis(parse(word)?)),
        (Some("limit"), _) => device.limit(parse(word)?),
        (Some("lie"), None) => device.lie(true),
        (Some("honest"), None) => device.lie(false),
        (Some("counts"), None) => {
            let c = device.counts();
            let numbers = [
                c.reads,
                c.writes,
                c.durable_writes,
                c.flushes,
                c.unflushed_blocks,
                c.waiting,
            ];
            return Ok(numbers.map(|n| n.to_string()).join(" "));
        }
        (Some("await"), _) => {
            if !device.await_writes(parse(word)?, Duration::from_secs(AWAIT_MAX_S)) {
                return Err(Error::other("not so many writes within a minute"));
            }
        }
        _ => return Err(unknown()),
    }
    Ok("ok".to_owned())
}
