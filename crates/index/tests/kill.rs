//! The process that writes is killed, again and again, with several threads writing, leaves being written
//! back and checkpoints on their way. What it had acknowledged is there, and no batch by half.

use bimetal_index::{Batch, Db, Durability, Error, Options};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// A value that says its number; every eleventh is kept apart from its key.
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

/// Writes until it is killed, and says what is durable. Not a test of its own: the other one starts it.
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
            // When nobody reads any more, the kill is on its way.
            let _ = std::io::stdout().write_all(line.as_bytes());
        }
    }
}

/// Lets a child write until it has said so many lines, kills it, and returns what it had said.
fn run_and_kill(path: &Path, lines: usize) -> [u64; THREADS] {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "kill::child", "--nocapture"])
        .env(PATH, path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut durable = [0; THREADS];
    let mut said = 0;
    let output = BufReader::new(child.stdout.take().expect("its output"));
    for line in output.lines() {
        let line = line.expect("text");
        let words: Vec<&str> = line.split(' ').collect();
        // The last line may be cut short by the kill.
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
        // A batch has both of its keys, so each key has the newest number that is not above the last.
        for number in last.saturating_sub(KEYS - 1).max(1)..=last {
            let found = db.get(&key(thread, number))?.expect("a value");
            assert_eq!((number_of(&found), found), (number, value(number)));
        }
    }
    Ok(())
}

#[test]
fn what_was_durable_survives_every_kill() {
    let folder = std::env::temp_dir().join(format!("bimetal-index-kill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path: PathBuf = folder.join("db");
    let rounds = match std::env::var("BIMETAL_KILLS").map(|kills| kills.parse()) {
        Ok(Ok(kills)) => kills,
        _ => 25,
    };
    let mut live_bytes = 0;
    for round in 0..rounds {
        let durable = run_and_kill(&path, 20 + (round * 97) % 400);
        let whole = bimetal_index::verify(
            &bimetal_index::storage::file::FileStorage::open(
                &path,
                bimetal_index::storage::file::Presence::Existing,
            )
            .expect("the file"),
            &mut |_, _| {},
        );
        assert_eq!(whole.expect("an index").problems, [], "round {round}");
        let db = Db::open_path(&path, &small()).expect("it opens");
        check(&db, &durable).expect("it reads");
        live_bytes += db.figures().space.live_bytes;
    }
    assert!(
        live_bytes > 0,
        "children wrote leaves back, and checkpoints"
    );
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}
