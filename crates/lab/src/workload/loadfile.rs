//! Recorded calls of the clients of a file server, in the format of Dbench's load files: one line
//! for each call, with the recorded names and offsets.
//!
//! Versions 2 to 4 of load files are supported: `NTCreateX \clients\client1\a.doc 0x40 0x2 9938`,
//! with or without a time before the call and a status after it. Calls on attributes or locks
//! transfer no data and are ignored. Recorded times are ignored, too.

use std::collections::BTreeMap;
use std::path::Path;

use bimetal_rt::Instant;
use bimetal_sim::experiment::latency::LatencyHistogram;

use super::World;
use crate::files::{FileId, Program};
use crate::layer::{FileLayer, LoadError};

/// Maximum length of a load file in bytes.
const BYTES_MAX: u64 = 256 << 20;
/// Maximum offset of a read or write in bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Maximum length of a read or write in bytes.
const CALL_BYTES_MAX: u64 = 16 << 20;

/// Option bit for directories, and values of the disposition, in the call `NTCreateX`.
const IS_DIRECTORY: u64 = 1;
const SUPERSEDE: u64 = 0;
const OPEN: u64 = 1;
const CREATE: u64 = 2;
const OVERWRITE: u64 = 4;
const OVERWRITE_IF: u64 = 5;

/// Index of a path in [`LoadFile::names`].
type Name = usize;

/// A recorded call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    MakeDirectory(Name),
    Open {
        name: Name,
        handle: i64,
        makes: bool,
        empties: bool,
    },
    Close(i64),
    Write {
        handle: i64,
        offset: u64,
        bytes: u64,
    },
    Read {
        handle: i64,
        offset: u64,
        bytes: u64,
    },
    Flush(i64),
    Remove(Name),
    RemoveTree(Name),
    Rename(Name, Name),
    /// A call that transfers no data, or that failed in the recording; it is not executed.
    Ask,
}

/// Parsed content of a load file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LoadFile {
    calls: Vec<Call>,
    names: Vec<String>,
}

/// Splits a line into words, which are separated by blanks or enclosed in quotation marks.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, behind) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        words.push(word);
        rest = behind.trim_start();
    }
    words
}

/// Parses a number as in C: decimal, or hexadecimal after `0x`.
fn number(word: &str) -> Option<i64> {
    match word.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Iterator over the words of a line after the name of the call.
struct Words<'a>(std::slice::Iter<'a, &'a str>);

impl<'a> Words<'a> {
    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.0
            .next()
            .copied()
            .ok_or_else(|| format!("{what} is missing"))
    }

    fn number(&mut self, what: &str) -> Result<i64, String> {
        let word = self.word(what)?;
        number(word).ok_or_else(|| format!("{what} is not a number: `{word}`"))
    }

    fn count(&mut self, what: &str) -> Result<u64, String> {
        let number = self.number(what)?;
        u64::try_from(number).map_err(|_| format!("{what} is negative"))
    }

    /// Parses the status of a call. Returns false if the recorded call failed. A call without a
    /// status is treated as successful.
    fn is_success(&mut self) -> bool {
        self.0.next().is_none_or(|status| {
            let ok = ["NT_STATUS_OK", "SUCCESS", "*"].contains(status);
            ok || number(status) == Some(0)
        })
    }
}

/// Parser of the lines of a load file.
#[derive(Default)]
struct Parser {
    file: LoadFile,
    numbers: BTreeMap<String, Name>,
}

impl Parser {
    fn name(&mut self, word: &str) -> Name {
        let path = word.replace('\\', "/");
        if let Some(name) = self.numbers.get(&path) {
            return *name;
        }
        self.file.names.push(path.clone());
        let name = self.file.names.len() - 1;
        self.numbers.insert(path, name);
        name
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let all = words(line);
        let is_time = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
        let all = match all.first() {
            Some(first) if first.starts_with('#') => return Ok(()),
            Some(first) if is_time(first) => &all[1..],
            Some(_) => &all[..],
            None => return Ok(()),
        };
        let Some((call, rest)) = all.split_first() else {
            return Err("a time without a call".to_owned());
        };
        let mut words = Words(rest.iter());
        let parsed = self.call(&call.to_ascii_uppercase(), &mut words)?;
        // A recorded call that failed transferred no data, so it is not executed.
        let is_done = parsed == Call::Ask || words.is_success();
        self.file
            .calls
            .push(if is_done { parsed } else { Call::Ask });
        Ok(())
    }

    fn call(&mut self, call: &str, words: &mut Words<'_>) -> Result<Call, String> {
        Ok(match call {
            "NTCREATEX" => self.open(words)?,
            "MKDIR" => Call::MakeDirectory(self.name(words.word("the name")?)),
            "CLOSE" => Call::Close(words.number("the handle")?),
            "FLUSH" => Call::Flush(words.number("the handle")?),
            "UNLINK" => {
                let name = self.name(words.word("the name")?);
                // In some versions, a word with attributes follows the name.
                let attributes = words
                    .0
                    .clone()
                    .next()
                    .is_some_and(|word| number(word).is_some());
                if attributes && words.0.len() > 1 {
                    words.number("the attributes")?;
                }
                Call::Remove(name)
            }
            "DELTREE" => Call::RemoveTree(self.name(words.word("the name")?)),
            "RENAME" => {
                let from = self.name(words.word("the old name")?);
                Call::Rename(from, self.name(words.word("the new name")?))
            }
            "WRITEX" | "READX" | "WRITE" => moved(call == "READX", words)?,
            "RMDIR" | "FIND_FIRST" | "LOCKX" | "UNLOCKX" | "SLEEP" => Call::Ask,
            _ if call.starts_with("QUERY_") || call.starts_with("SET_") => Call::Ask,
            _ => return Err(format!("the call `{call}` is unknown")),
        })
    }

    fn open(&mut self, words: &mut Words<'_>) -> Result<Call, String> {
        let name = self.name(words.word("the name")?);
        let options = words.count("the options")?;
        let disposition = words.count("the disposition")?;
        let handle = words.number("the handle")?;
        if options & IS_DIRECTORY != 0 {
            return Ok(Call::MakeDirectory(name));
        }
        if disposition > OVERWRITE_IF {
            return Err(format!("the disposition {disposition} is unknown"));
        }
        // A negative handle means that the recorded open failed, because the file did not exist.
        if handle < 0 {
            return Ok(Call::Ask);
        }
        Ok(Call::Open {
            name,
            handle,
            makes: ![OPEN, OVERWRITE].contains(&disposition),
            empties: [SUPERSEDE, CREATE, OVERWRITE, OVERWRITE_IF].contains(&disposition),
        })
    }
}

/// Parses the arguments of a read or a write, including the number of bytes that were transferred.
fn moved(is_read: bool, words: &mut Words<'_>) -> Result<Call, String> {
    let handle = words.number("the handle")?;
    let offset = words.count("the offset")?;
    words.count("the size")?;
    let bytes = words.count("the size that was moved")?;
    if bytes > CALL_BYTES_MAX || offset > FILE_BYTES_MAX {
        return Err(format!(
            "{bytes} bytes at {offset}, of {CALL_BYTES_MAX} at {FILE_BYTES_MAX} at most"
        ));
    }
    Ok(match is_read {
        true => Call::Read {
            handle,
            offset,
            bytes,
        },
        false => Call::Write {
            handle,
            offset,
            bytes,
        },
    })
}

impl LoadFile {
    /// Reads a load file.
    ///
    /// # Errors
    /// If the file cannot be read, or one of its lines cannot be parsed.
    pub(super) fn read(path: &Path) -> Result<LoadFile, LoadError> {
        let shown = path.display();
        let refused = |why: String| LoadError::Trace(format!("{shown}: {why}"));
        let length = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?;
        if length.len() > BYTES_MAX {
            return Err(refused(format!("it is longer than {BYTES_MAX} bytes")));
        }
        let bytes = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
        LoadFile::parse(&String::from_utf8_lossy(&bytes)).map_err(refused)
    }

    fn parse(text: &str) -> Result<LoadFile, String> {
        let mut parser = Parser::default();
        for (number, line) in (1..).zip(text.lines()) {
            let read = parser.line(line);
            read.map_err(|why| format!("line {number}: {why}"))?;
        }
        let moves = |call: &Call| matches!(call, Call::Write { .. } | Call::Read { .. });
        match parser.file.calls.iter().any(moves) {
            true => Ok(parser.file),
            false => Err("it reads and writes nothing".to_owned()),
        }
    }

    /// Returns the path of the directory that contains a name.
    fn directory_of(&self, name: Name) -> &str {
        let path = &self.names[name];
        path.rsplit_once('/').map_or("", |(directory, _)| directory)
    }

    /// Returns true if `name` is the directory `tree` or is inside this directory.
    fn is_in(&self, name: Name, tree: Name) -> bool {
        let rest = self.names[name].strip_prefix(&*self.names[tree]);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// A client that executes the calls of a load file.
pub(super) struct Player<'a, F: FileLayer> {
    world: World<F>,
    file: &'a LoadFile,
    program: Program,
    directories: BTreeMap<&'a str, u32>,
    files: BTreeMap<Name, FileId>,
    open: BTreeMap<i64, (FileId, F::Open)>,
    /// Total number of bytes read and written.
    bytes: u64,
}

impl<'a, F: FileLayer> Player<'a, F> {
    pub(super) fn new(world: World<F>, file: &'a LoadFile, program: Program) -> Player<'a, F> {
        Player {
            world,
            file,
            program,
            directories: BTreeMap::new(),
            files: BTreeMap::new(),
            open: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Executes the calls of the load file repeatedly until the time `until`. After each call,
    /// `moved` is called with the number of bytes that the call has transferred.
    ///
    /// # Errors
    /// If the device is full, or the layer fails.
    pub(super) async fn play(
        &mut self,
        until: Instant,
        latency: &std::cell::RefCell<LatencyHistogram>,
        moved: impl Fn(u64),
    ) -> Result<(), LoadError> {
        'time: loop {
            let bytes_before = self.bytes;
            for call in &self.file.calls {
                let begun = self.world.rt.now();
                if begun >= until {
                    break 'time;
                }
                let before = self.bytes;
                self.call(*call).await?;
                moved(self.bytes - before);
                if *call != Call::Ask {
                    let ns = self.world.rt.now().ns_since(begun);
                    latency.borrow_mut().record(ns);
                }
            }
            if self.bytes == bytes_before {
                // If no call transfers data, the calls possibly take no time, and the loop would
                // never end. So return an error.
                let why = "the load file reads and writes nothing of what it has opened";
                return Err(LoadError::Trace(why.to_owned()));
            }
            self.remove_all().await?;
        }
        self.remove_all().await
    }

    async fn call(&mut self, call: Call) -> Result<(), LoadError> {
        match call {
            Call::Ask => Ok(()),
            Call::MakeDirectory(name) => {
                let path = &self.file.names[name];
                self.directory(path).await.map(|_| ())
            }
            Call::Open {
                name,
                handle,
                makes,
                empties,
            } => self.open(name, handle, makes, empties).await,
            Call::Close(handle) => {
                self.open.remove(&handle);
                Ok(())
            }
            Call::Write {
                handle,
                offset,
                bytes,
            } => self.write(handle, offset, bytes).await,
            Call::Read {
                handle,
                offset,
                bytes,
            } => self.read(handle, offset, bytes).await,
            Call::Flush(handle) => match self.open.get(&handle) {
                Some((file, _)) => {
                    let files = self.world.files.clone();
                    files.sync_file(*file, &mut self.program).await
                }
                None => Ok(()),
            },
            Call::Remove(name) => self.remove(name).await,
            Call::RemoveTree(tree) => {
                let all: Vec<Name> = self.files.keys().copied().collect();
                for name in all.into_iter().filter(|name| self.file.is_in(*name, tree)) {
                    self.remove(name).await?;
                }
                Ok(())
            }
            Call::Rename(from, to) => {
                // A rename replaces a file that already has the new name.
                if self.files.contains_key(&from) {
                    self.remove(to).await?;
                }
                if let Some(file) = self.files.remove(&from) {
                    self.files.insert(to, file);
                }
                Ok(())
            }
        }
    }

    async fn directory(&mut self, path: &'a str) -> Result<u32, LoadError> {
        if let Some(directory) = self.directories.get(path) {
            return Ok(*directory);
        }
        let files = self.world.files.clone();
        let directory = files.make_directory(&mut self.program).await?;
        self.directories.insert(path, directory);
        Ok(directory)
    }

    async fn open(
        &mut self,
        name: Name,
        handle: i64,
        makes: bool,
        empties: bool,
    ) -> Result<(), LoadError> {
        let files = self.world.files.clone();
        if empties {
            self.remove(name).await?;
        }
        let open = match self.files.get(&name) {
            Some(file) => files.open(*file, &mut self.program).await?,
            // A recording can open a file that existed before the recording began. The replay does
            // not have this file yet, so the first open creates it.
            None if makes || empties => {
                let directory = self.directory(self.file.directory_of(name)).await?;
                files.create(directory, &mut self.program).await?
            }
            None => return Ok(()),
        };
        let file = files.file_of(&open);
        self.files.insert(name, file);
        self.open.insert(handle, (file, open));
        Ok(())
    }

    async fn write(&mut self, handle: i64, offset: u64, bytes: u64) -> Result<(), LoadError> {
        let files = self.world.files.clone();
        let Some((file, _)) = self.open.get(&handle) else {
            return Ok(());
        };
        // Files must not have holes, so a write beyond the end of the file starts at the end.
        let from = offset.min(files.size_bytes(*file));
        let length = offset + bytes - from;
        files.write(*file, from, length, &mut self.program).await?;
        self.bytes += bytes;
        Ok(())
    }

    async fn read(&mut self, handle: i64, offset: u64, bytes: u64) -> Result<(), LoadError> {
        let files = self.world.files.clone();
        let Some((file, open)) = self.open.get_mut(&handle) else {
            return Ok(());
        };
        let there = files.size_bytes(*file).saturating_sub(offset).min(bytes);
        if there > 0 {
            files.read(open, offset, there, &mut self.program).await?;
            self.bytes += there;
        }
        Ok(())
    }

    async fn remove(&mut self, name: Name) -> Result<(), LoadError> {
        let Some(file) = self.files.remove(&name) else {
            return Ok(());
        };
        self.open.retain(|_, (open, _)| *open != file);
        let files = self.world.files.clone();
        files.remove(file, &mut self.program).await
    }

    async fn remove_all(&mut self) -> Result<(), LoadError> {
        self.open.clear();
        while let Some((name, _)) = self.files.first_key_value() {
            self.remove(*name).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_versions_are_read() {
        let text = "# a recording\n\
            NTCreateX \\clients\\client1 0x1 0x2 1\n\
            NTCreateX \\clients\\client1\\A.DOC 0x40 0x2 12120\n\
            WriteX 12120 65534 1 1\n\
            0.250 ReadX 12120 0 4096 512 NT_STATUS_OK\n\
            QUERY_PATH_INFORMATION \"/clients/client1/a b\" 1004 NT_STATUS_OBJECT_NAME_NOT_FOUND\n\
            1.0 NTCreateX \"/clients/client1/A.DOC\" 0x40 1 7 0xc0000034\n\
            Flush 12120 SUCCESS\n\
            Unlink \"/clients/client1/A.DOC\" 0x16 NT_STATUS_OK\n\
            Rename /clients/client1/A.DOC /clients/client1/B.DOC *\n\
            Deltree \"/clients/client1\" 0x00000000\n\
            Close 12120\n";
        let file = LoadFile::parse(text).expect("it is one");
        let expected = [
            Call::MakeDirectory(0),
            Call::Open {
                name: 1,
                handle: 12120,
                makes: true,
                empties: true,
            },
            Call::Write {
                handle: 12120,
                offset: 65534,
                bytes: 1,
            },
            Call::Read {
                handle: 12120,
                offset: 0,
                bytes: 512,
            },
            Call::Ask,
            Call::Ask,
            Call::Flush(12120),
            Call::Remove(1),
            Call::Rename(1, 2),
            Call::RemoveTree(0),
            Call::Close(12120),
        ];
        assert_eq!(file.calls, expected);
        assert_eq!(file.names[1], "/clients/client1/A.DOC");
        assert_eq!(file.directory_of(1), "/clients/client1");
        assert!(file.is_in(1, 0) && !file.is_in(0, 1));
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_line() {
        for (text, why) in [
            ("Close 1\nFoo 1", "line 2: the call `FOO` is unknown"),
            ("WriteX 1 0 8", "line 1: the size that was moved is missing"),
            ("WriteX 1 x 8 8", "line 1: the offset is not a number: `x`"),
            ("WriteX 1 -4 8 8", "line 1: the offset is negative"),
            (
                "ReadX 1 0 99999999 99999999",
                "line 1: 99999999 bytes at 0, of 16777216 at 1073741824 at most",
            ),
            (
                "NTCreateX a 0x40 9 1",
                "line 1: the disposition 9 is unknown",
            ),
            ("1.5", "line 1: a time without a call"),
            ("Close 1", "it reads and writes nothing"),
        ] {
            assert_eq!(LoadFile::parse(text), Err(why.to_owned()), "{text}");
        }
    }
}
