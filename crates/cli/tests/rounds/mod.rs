//! Rounds in which a BRP target is killed with SIGKILL under a load that checks every answer. The
//! load uses the client crate, whose session outlives the target.
//!
//! The load keeps many requests in flight, including several successive changes of the same blocks.
//! Every written block contains the number of its write, so a read shows immediately whether an
//! acknowledged write is lost, or an older write has overtaken a newer one. The seed determines the
//! requests of a run, and the number of answers after which the target is killed. It does not
//! determine which requests are in flight at that time.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bimetal_client::{Answer, Call, Ended, Job, Op, Options, SessionThread};
use bimetal_rt::net::Address;

const BLOCK_BYTES: u64 = 4096;
/// Number of blocks of the volume. The number is small, so that many changes affect the same
/// blocks.
const BLOCKS: u64 = 256;
/// Number of requests in flight.
const DEPTH: usize = 48;
/// Maximum number of blocks in a write or a read. A request of more than one block is never merged
/// with other requests.
const WRITE_BLOCKS_MAX: u64 = 6;
/// Maximum number of answers after which the target is killed.
const ANSWERS_MAX: u64 = 600;
/// Maximum number of connection threads of a target. The actual number depends on the seed.
const CONNECTION_THREADS_MAX: u64 = 2;
/// Time for which the session waits for a target. It is never reached unless there is a bug.
const PATIENCE: Duration = Duration::from_secs(60);

/// Devices behind the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// A file. Acknowledged writes survive the death of the target's process.
    File,
    /// A file behind a write-back cache. When the target's process is killed, acknowledged writes
    /// that were not flushed are lost, and the client sends them again.
    Cache,
    /// A file behind a write-back cache, with a client that keeps no copies of unflushed writes.
    /// This is a planted bug that the checks must detect.
    Forgetful,
}

impl Stack {
    /// Returns the configuration of a target with the given number of connection threads.
    fn config(self, connection_threads: u64) -> String {
        let device = match self {
            Stack::File => "disk",
            Stack::Cache | Stack::Forgetful => "cache",
        };
        format!(
            "[device.disk]\ntype = \"file\"\npath = \"disk.img\"\n\
             [device.cache]\ntype = \"cache\"\nbelow = \"disk\"\nsize = \"4MiB\"\n\
             [export.vol]\ndevice = \"{device}\"\nprotocol = \"brp\"\nlisten = \"unix:s\"\n\
             [server]\nlock_memory = false\nmemory = \"16MiB\"\n\
             connection_threads = {connection_threads}\n"
        )
    }

    fn keep_bytes(self) -> u64 {
        match self {
            Stack::Forgetful => 0,
            Stack::File | Stack::Cache => 1 << 20,
        }
    }
}

/// Counters of the rounds. From these counters a test verifies that the rounds were effective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Number of times that the target was killed.
    pub rounds: u64,
    /// Number of acknowledged writes.
    pub writes: u64,
    /// Number of blocks that were read and had the right content.
    pub blocks_read: u64,
    /// Number of requests in flight when the target was killed, summed over all rounds.
    pub under_way: u64,
    /// Number of acknowledged flushes.
    pub flushes: u64,
}

/// Generator of random numbers from a seed (SplitMix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// The target process, which is killed when the value is dropped.
struct Target {
    process: Child,
}

impl Target {
    fn start(binary: &Path, config: &Path) -> Result<Target, String> {
        let process = Command::new(binary)
            .args([Path::new("serve"), config])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        let mut target = Target { process };
        let mut line = String::new();
        let out = target.process.stdout.as_mut().expect("it is piped");
        let read = BufReader::new(out).read_line(&mut line);
        match read {
            Ok(_) if line == "ready\n" => Ok(target),
            other => Err(format!("`ready` was due: {other:?}, {line:?}")),
        }
    }

    fn kill(mut self) -> Result<(), String> {
        let killed = self.process.kill().and_then(|()| self.process.wait());
        killed.map(|_| ()).map_err(|error| format!("kill: {error}"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The process has already exited, unless an error has occurred.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A request of the load.
#[derive(Debug)]
enum Ask {
    Write {
        block: u64,
        count: u64,
        number: u64,
    },
    /// A read. For each block, `floors` has the number of the write that was the last acknowledged
    /// one when the read was submitted.
    Read {
        block: u64,
        floors: Vec<u64>,
    },
    Flush,
}

/// Fills a block with the block's number and the number of its write, repeated.
fn fill(block: u64, number: u64, into: &mut [u8]) {
    for pair in into.chunks_exact_mut(16) {
        pair[..8].copy_from_slice(&block.to_le_bytes());
        pair[8..].copy_from_slice(&number.to_le_bytes());
    }
}

/// Returns the number of the write that produced the content of a block, or 0 if the block contains
/// only zeroes. Any other content is an error.
fn number_of(block: u64, bytes: &[u8]) -> Result<u64, String> {
    let number = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
    let mut expected = vec![0; bytes.len()];
    if number > 0 {
        fill(block, number, &mut expected);
    }
    if bytes == expected {
        Ok(number)
    } else {
        Err(format!(
            "block {block} holds parts of several writes, or of another block"
        ))
    }
}

impl Job for Ask {
    fn call(&self) -> Call {
        let range = |op, block: u64, count: u64| {
            Call::new(op, block * BLOCK_BYTES, (count * BLOCK_BYTES) as u32)
        };
        match self {
            Ask::Write { block, count, .. } => range(Op::Write, *block, *count),
            Ask::Read { block, floors } => range(Op::Read, *block, floors.len() as u64),
            Ask::Flush => Call::flush(),
        }
    }

    fn fill(&self, into: &mut [u8]) {
        if let Ask::Write { block, number, .. } = self {
            for (at, bytes) in into.chunks_exact_mut(BLOCK_BYTES as usize).enumerate() {
                fill(block + at as u64, *number, bytes);
            }
        }
    }
}

/// Number of the last acknowledged and of the last submitted write of a block.
#[derive(Clone, Copy, Default)]
struct Known {
    answered: u64,
    submitted: u64,
}

/// A completed request and its result: the data of a read, `None` for other requests, or an error
/// message.
type Answered = (Ask, Result<Option<Vec<u8>>, String>);

struct Load {
    draw: Draw,
    session: SessionThread<Ask>,
    ended: Receiver<Vec<Answered>>,
    blocks: Vec<Known>,
    next_number: u64,
    under_way: usize,
    flushes: bool,
    met: Met,
}

impl Load {
    fn new(draw: Draw, stack: Stack, socket: PathBuf) -> Result<Load, String> {
        let options = Options {
            export: "vol".to_owned(),
            patience: PATIENCE,
            keep_bytes: stack.keep_bytes(),
            paths: 2,
            crc: true,
            ..Options::new(Address::Unix(socket))
        };
        let (send, ended) = channel();
        let deliver = move |ended: Vec<Ended<Ask>>| {
            let answered = ended.into_iter().map(|(ask, result)| match result {
                Ok(Answer::Data(data)) => (ask, Ok(Some(data.to_vec()))),
                Ok(Answer::Done | Answer::Runs(_)) => (ask, Ok(None)),
                Err(error) => (ask, Err(error.to_string())),
            });
            // The receiver no longer exists if a check has failed.
            let _ = send.send(answered.collect());
        };
        let session = SessionThread::connect(options, deliver).map_err(|e| e.to_string())?;
        Ok(Load {
            draw,
            session,
            ended,
            blocks: vec![Known::default(); BLOCKS as usize],
            next_number: 1,
            under_way: 0,
            // The planted bug is tested without flushes, because a flush would report the loss
            // before a read shows it.
            flushes: stack != Stack::Forgetful,
            met: Met::default(),
        })
    }

    fn any(&mut self) -> Ask {
        let block = self.draw.below(BLOCKS);
        let count = match self.draw.below(8) {
            0 => 1 + self.draw.below(WRITE_BLOCKS_MAX),
            _ => 1,
        };
        let count = count.min(BLOCKS - block);
        match self.draw.below(40) {
            0 if self.flushes => Ask::Flush,
            0..=27 => self.write(block, count),
            _ => self.read(block, count),
        }
    }

    fn range(&mut self, block: u64, count: u64) -> &mut [Known] {
        &mut self.blocks[block as usize..(block + count) as usize]
    }

    fn write(&mut self, block: u64, count: u64) -> Ask {
        let number = self.next_number;
        self.next_number += 1;
        for known in self.range(block, count) {
            known.submitted = number;
        }
        Ask::Write {
            block,
            count,
            number,
        }
    }

    fn read(&mut self, block: u64, count: u64) -> Ask {
        let floors = self.range(block, count).iter().map(|known| known.answered);
        let floors = floors.collect();
        Ask::Read { block, floors }
    }

    fn submit(&mut self, asks: Vec<Ask>) -> Result<(), String> {
        self.under_way += asks.len();
        self.session.submit(asks).map_err(|error| error.to_string())
    }

    /// Submits requests up to the queue depth, several in one call. Some of them change the same
    /// blocks.
    fn submit_more(&mut self) -> Result<(), String> {
        if self.under_way + 4 > DEPTH {
            return Ok(());
        }
        let mut asks: Vec<Ask> = (self.under_way..DEPTH).map(|_| self.any()).collect();
        if let Some(Ask::Write { block, count, .. }) = asks.last() {
            let (block, count) = (*block, *count);
            asks.push(self.write(block, count));
            asks.push(self.read(block, count));
        }
        self.submit(asks)
    }

    /// Waits for answers and checks them. Returns the number of answers.
    fn take_answers(&mut self) -> Result<u64, String> {
        let ended = self.ended.recv_timeout(PATIENCE + PATIENCE);
        let ended = ended.map_err(|_| "no answer in twice the patience".to_owned())?;
        let count = ended.len() as u64;
        self.under_way -= ended.len();
        for (ask, result) in ended {
            let answer = result.map_err(|error| format!("{ask:?}: {error}"))?;
            self.check(&ask, answer.as_deref())?;
        }
        Ok(count)
    }

    fn check(&mut self, ask: &Ask, answer: Option<&[u8]>) -> Result<(), String> {
        match (ask, answer) {
            (
                Ask::Write {
                    block,
                    count,
                    number,
                },
                None,
            ) => {
                self.met.writes += 1;
                for known in self.range(*block, *count) {
                    known.answered = known.answered.max(*number);
                }
                Ok(())
            }
            (Ask::Read { block, floors }, Some(data)) => {
                let blocks = data.chunks_exact(BLOCK_BYTES as usize);
                for (at, (bytes, floor)) in blocks.zip(floors).enumerate() {
                    self.check_block(*block + at as u64, bytes, *floor)?;
                }
                Ok(())
            }
            (Ask::Flush, None) => {
                self.met.flushes += 1;
                Ok(())
            }
            (ask, _) => Err(format!("{ask:?} has an answer of another kind")),
        }
    }

    fn check_block(&mut self, block: u64, bytes: &[u8], floor: u64) -> Result<(), String> {
        let number = number_of(block, bytes)?;
        let newest = self.blocks[block as usize].submitted;
        if !(floor..=newest).contains(&number) {
            return Err(format!(
                "block {block} holds write {number}, after write {floor} was answered and before \
                 any behind {newest}"
            ));
        }
        self.met.blocks_read += 1;
        Ok(())
    }

    /// Runs the load until `answers` answers have arrived.
    fn run(&mut self, answers: u64) -> Result<(), String> {
        let mut left = answers;
        while left > 0 {
            self.submit_more()?;
            left = left.saturating_sub(self.take_answers()?);
        }
        Ok(())
    }

    /// Waits for all requests in flight, then reads all blocks. Each block must hold the content of
    /// its last write.
    fn settle(&mut self) -> Result<(), String> {
        while self.under_way > 0 {
            self.take_answers()?;
        }
        for block in 0..BLOCKS {
            let known = self.blocks[block as usize];
            if known.answered != known.submitted {
                return Err(format!("the last write of block {block} has no answer"));
            }
            let read = self.read(block, 1);
            self.submit(vec![read])?;
            if self.under_way == DEPTH {
                self.take_answers()?;
            }
        }
        while self.under_way > 0 {
            self.take_answers()?;
        }
        Ok(())
    }
}

/// Runs `count` rounds on a new volume in `dir`, which must be an empty folder, and returns the
/// counters.
///
/// # Errors
/// A description of the first violation or failure.
pub fn rounds(
    binary: &Path,
    dir: &Path,
    stack: Stack,
    seed: u64,
    count: u64,
) -> Result<Met, String> {
    let (image, config) = (dir.join("disk.img"), dir.join("c.toml"));
    let made = std::fs::File::create_new(&image)
        .and_then(|file| file.set_len(BLOCKS * BLOCK_BYTES))
        .and_then(|()| std::fs::write(&config, stack.config(seed % (CONNECTION_THREADS_MAX + 1))));
    made.map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut target = Target::start(binary, &config)?;
    let mut load = Load::new(Draw(seed), stack, dir.join("s"))?;
    for _ in 0..count {
        let answers = 1 + load.draw.below(ANSWERS_MAX);
        load.run(answers)?;
        load.submit_more()?;
        target.kill()?;
        load.met.under_way += load.under_way as u64;
        load.met.rounds += 1;
        target = Target::start(binary, &config)?;
        load.settle()?;
    }
    // The content of the disk is checked directly, after a last flush and the death of the target.
    load.submit(vec![Ask::Flush])?;
    load.take_answers()?;
    target.kill()?;
    check_image(&image, &load.blocks)?;
    Ok(load.met)
}

fn check_image(image: &Path, blocks: &[Known]) -> Result<(), String> {
    let file = std::fs::File::open(image).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    for (block, known) in (0..).zip(blocks) {
        let read = file.read_exact_at(&mut bytes, block * BLOCK_BYTES);
        read.map_err(|error| error.to_string())?;
        let number = number_of(block, &bytes)?;
        if number != known.answered {
            return Err(format!(
                "block {block} of the disk holds write {number} and not {}",
                known.answered
            ));
        }
    }
    Ok(())
}
