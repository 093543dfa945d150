//! Tests that repeatedly kill the writing process. In one test, several threads write while leaves
//! are written back and checkpoints are taken. In the other test, the kill comes at any time
//! between the start and the end of the process, while another process waits for the same file.
//! After each kill, all acknowledged batches must be present, and no batch may be present only in
//! part.
//!
//! `BIMETAL_KILLS=1000 cargo test --release -p bimetal-index --test all kill::` runs the long
//! campaign.

use crate::world::Draw;
use bimetal_index::storage::file::{FileStorage, Presence};
use bimetal_index::{Batch, Db, Durability, Error, ErrorKind, Options};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const THREADS: usize = 4;
const KEYS: u64 = 200;
const PATH: &str = "BIMETAL_INDEX_KILLED";

fn small() -> Options {
    Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 32 << 10,
        log_bytes: 512 << 10,
        segment_bytes: 64 << 10,
        node_bytes: 1024,
        inline_value_bytes: 256,
        ..Options::default()
    }
}

fn key(thread: usize, number: u64) -> Vec<u8> {
    format!("{thread}/{:04}", number % KEYS).into_bytes()
}

fn last_key(thread: usize) -> Vec<u8> {
    format!("{thread}/last").into_bytes()
}

/// Returns a value that contains its number. The value of every eleventh number is long enough to
/// be stored out of line (outside its leaf).
fn value(number: u64) -> Vec<u8> {
    let len = if number.is_multiple_of(11) { 700 } else { 16 };
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn number_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("a number"))
}

fn last(db: &Db, thread: usize) -> u64 {
    let last = db.get(&last_key(thread)).expect("a get");
    last.map_or(0, |last| number_of(&last))
}

/// Writes until the process is killed, and prints the durable batches. This is not a test of its
/// own: another test starts it in a child process.
#[test]
fn child() {
    let Some(path) = std::env::var_os(PATH) else {
        return;
    };
    let db = Db::open_path(Path::new(&path), &small()).expect("it opens");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = db.clone();
            scope.spawn(move || write_for_ever(&db, thread));
        }
    });
}

fn write_for_ever(db: &Db, thread: usize) {
    let mut batch = Batch::new();
    for number in last(db, thread) + 1.. {
        batch.clear();
        batch.put(&key(thread, number), &value(number));
        batch.put(&last_key(thread), &value(number));
        let is_relaxed = number % 5 == 1;
        let durability = if is_relaxed {
            Durability::Relaxed
        } else {
            Durability::Durable
        };
        db.write(&batch, durability).expect("a write");
        if !is_relaxed {
            let line = format!("durable {thread} {number}\n");
            // If the pipe has no reader any more, the parent is about to kill this process.
            let _ = std::io::stdout().write_all(line.as_bytes());
        }
    }
}

/// Starts one of the helper tests in a child process. The environment variable `variable` passes
/// the path of the index to the child.
fn start(test: &str, variable: &str, path: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(variable, path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let output = child.stdout.take().expect("its output");
    (child, BufReader::new(output))
}

/// Lets a child process write until it has printed `lines` lines, kills it, and returns the last
/// durable number printed by each thread.
fn run_and_kill(path: &Path, lines: usize) -> [u64; THREADS] {
    let (mut child, output) = start("kill::child", PATH, path);
    let mut durable = [0; THREADS];
    let mut said = 0;
    for line in output.lines() {
        let line = line.expect("text");
        let words: Vec<&str> = line.split(' ').collect();
        // The kill may cut the last line short.
        if let ["durable", thread, number] = words[..]
            && let (Ok(thread), Ok(number)) = (thread.parse::<usize>(), number.parse::<u64>())
        {
            said += 1;
            if said <= lines {
                durable[thread] = number.max(durable[thread]);
            }
            if said == lines {
                child.kill().expect("it is running");
            }
        }
    }
    let status = child.wait().expect("it has ended");
    assert!(
        said >= lines && !status.success(),
        "it was killed: {status}, {said} lines"
    );
    durable
}

fn check(db: &Db, durable: &[u64; THREADS]) -> Result<(), Error> {
    for (thread, durable) in durable.iter().enumerate() {
        let last = last(db, thread);
        assert!(last >= *durable, "{last} is there, {durable} was durable");
        // A batch must never be present in part. The last `KEYS` numbers up to `last` belong to
        // different keys, so each of these keys must have its number as its value.
        for number in last.saturating_sub(KEYS - 1).max(1)..=last {
            let found = db.get(&key(thread, number))?.expect("a value");
            assert_eq!((number_of(&found), found), (number, value(number)));
        }
    }
    Ok(())
}

/// Returns the number of kills: 25, unless `BIMETAL_KILLS` is set.
fn kills() -> u64 {
    let wanted = std::env::var("BIMETAL_KILLS").ok();
    wanted.and_then(|kills| kills.parse().ok()).unwrap_or(25)
}

/// Creates a folder. The test removes it when it has passed.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("bimetal-index-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Checks that the index in the file is intact.
fn assert_whole(path: &Path, round: u64) {
    let storage = FileStorage::open(path, Presence::Existing).expect("the file");
    let verified = bimetal_index::verify(&storage, &mut |_, _| {}).expect("an index");
    assert_eq!(verified.problems, [], "round {round}");
}

#[test]
fn what_was_durable_survives_every_kill() {
    let folder = folder("kill");
    let path = folder.join("db");
    let mut live_bytes = 0;
    for round in 0..kills() {
        let durable = run_and_kill(&path, 20 + (round as usize * 97) % 400);
        assert_whole(&path, round);
        let db = Db::open_path(&path, &small()).expect("it opens");
        check(&db, &durable).expect("it reads");
        live_bytes += db.statistics().space.live_bytes;
    }
    assert!(
        live_bytes > 0,
        "children wrote leaves back, and checkpoints"
    );
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

/// Number of batches that a process writes in its life.
const LIFE_BATCHES: u64 = 60;
const LIFE: &str = "BIMETAL_INDEX_LIFE";

/// A whole life of a process: waits until no other process has the file open, creates or opens the
/// index, writes, compacts and closes. This is not a test of its own: another test starts it in a
/// child process.
#[test]
fn life() {
    let Some(path) = std::env::var_os(LIFE) else {
        return;
    };
    let db = loop {
        match Db::open_path(Path::new(&path), &small()) {
            Ok(db) => break db,
            Err(error) if error.kind() == ErrorKind::Busy => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let first = last(&db, 0) + 1;
    for number in first..first + LIFE_BATCHES {
        let mut batch = Batch::new();
        batch.put(&key(0, number), &value(number));
        batch.put(&last_key(0), &value(number));
        db.write(&batch, Durability::Durable).expect("a write");
        println!("durable {number}");
    }
    db.compact(|_| {}).expect("a compaction");
    db.close().expect("it is closed");
    println!("closed");
}

/// A process that runs [`life`], and the progress that its printed lines have reported.
struct Living {
    child: Child,
    /// The last batch that the process has reported as durable.
    durable: u64,
    has_closed: bool,
}

/// Two processes that compete for the same file.
struct Rivals {
    both: [Living; 2],
    /// Lines printed by both processes, each with the number of the process.
    lines: Receiver<(usize, String)>,
}

impl Rivals {
    fn start(path: &Path) -> Rivals {
        let (tell, lines) = channel();
        let both = [0, 1].map(|number| {
            let (child, output) = start("kill::life", LIFE, path);
            let tell = tell.clone();
            std::thread::spawn(move || {
                let lines = output.lines().map(|line| line.expect("text"));
                // If the test has failed, the receiver has been dropped.
                lines
                    .take_while(|line| tell.send((number, line.clone())).is_ok())
                    .count()
            });
            Living {
                child,
                durable: 0,
                has_closed: false,
            }
        });
        Rivals { both, lines }
    }

    /// Receives `lines` valid lines, and then waits at most `then` for one more line.
    fn listen(&mut self, lines: u64, then: Duration) {
        let mut said = 0;
        while said < lines
            && let Ok((number, line)) = self.lines.recv()
        {
            said += u64::from(self.take(number, &line));
        }
        if let Ok((number, line)) = self.lines.recv_timeout(then) {
            self.take(number, &line);
        }
    }

    /// Processes one printed line. Returns true if the line is valid.
    fn take(&mut self, number: usize, line: &str) -> bool {
        let living = &mut self.both[number];
        let is_end = line == "closed";
        living.has_closed |= is_end;
        let batch = line.strip_prefix("durable ");
        // A kill can cut a line short. A number without its last digits is lower, which is harmless
        // here. A line without any digit does not count.
        let Some(Ok(batch)) = batch.map(str::parse) else {
            return is_end;
        };
        living.durable = living.durable.max(batch);
        true
    }

    /// Receives all remaining lines, and returns the last batch reported as durable. A process that
    /// was not killed must have closed its index.
    fn end(mut self, killed: [bool; 2]) -> u64 {
        while let Ok((number, line)) = self.lines.recv() {
            self.take(number, &line);
        }
        for (living, was_killed) in self.both.iter_mut().zip(killed) {
            let status = living.child.wait().expect("it has ended");
            let has_ended = status.success() && living.has_closed;
            assert!(was_killed || has_ended, "{status}");
        }
        self.both[0].durable.max(self.both[1].durable)
    }
}

/// Two processes compete for one file, which does not exist at the start of every third round. One
/// process or both processes are killed, at a random moment before both would have ended. A
/// surviving process completes its life, and every batch that either process has reported as
/// durable is present.
#[test]
fn a_process_can_be_killed_from_its_start_to_its_end_while_another_waits() {
    let folder = folder("lives");
    let path = folder.join("db");
    let mut draw = Draw::new(1);
    assert_eq!(Rivals::start(&path).end([false; 2]), 2 * LIFE_BATCHES);
    let mut last_durable = 2 * LIFE_BATCHES;
    let mut closed = 0;
    for round in 0..kills() {
        let is_new = round % 3 == 0;
        if is_new {
            std::fs::remove_file(&path).expect("the file goes");
            last_durable = 0;
        }
        let mut rivals = Rivals::start(&path);
        // An index is created or opened before the process prints its first line, and is compacted
        // and closed after all batches. The first case kills a process near its start, the second
        // case at any line, and the third case near the end of its life.
        let (lines, micros_max) = match draw.below(3) {
            0 => (0, 40_000),
            1 => (draw.below(2 * LIFE_BATCHES + 2), 2_000),
            _ => (LIFE_BATCHES * (1 + draw.below(2)), 20_000),
        };
        rivals.listen(lines, Duration::from_micros(draw.below(micros_max)));
        // The first process is killed, the second, or both.
        let killed = [[true, false], [false, true], [true, true]][draw.below(3) as usize];
        for (living, is_killed) in rivals.both.iter_mut().zip(killed) {
            closed += u64::from(living.has_closed);
            if is_killed {
                living.child.kill().expect("it can be killed, or has ended");
            }
        }
        last_durable = last_durable.max(rivals.end(killed));
        let db = Db::open_path(&path, &small()).expect("it opens");
        check(&db, &[last_durable, 0, 0, 0]).expect("it reads");
        last_durable = last(&db, 0);
        db.close().expect("it is closed");
        assert_whole(&path, round);
    }
    assert!(
        closed < 2 * kills(),
        "some were killed before they had closed"
    );
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}
