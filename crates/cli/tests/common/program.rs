//! Helpers that run the built program of the tested package, each test in a directory of its own.
//! The packages of both programs share this file.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Path of the program of this package.
const PROGRAM: &str = match (
    option_env!("CARGO_BIN_EXE_bimetal"),
    option_env!("CARGO_BIN_EXE_bimetal-lab"),
) {
    (Some(path), _) | (None, Some(path)) => path,
    (None, None) => panic!("a package without one of the programs"),
};

/// Returns the name of the program. Each line of the program on standard error begins with this
/// name.
fn name() -> &'static str {
    let name = Path::new(PROGRAM).file_name();
    name.and_then(std::ffi::OsStr::to_str).unwrap()
}

/// A directory that is removed at the end of the test.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty directory; `name` distinguishes the tests.
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("bimetal-cli-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    /// Returns the path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a text file and returns its path.
    pub fn text(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Creates a file of zeroes and returns its path.
    pub fn zeroes(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create_new(&path)
            .unwrap()
            .set_len(bytes)
            .unwrap();
        path
    }

    /// Returns the names of the files in the directory, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failed removal leaves files in the temporary directory, but is not a failure of the
        // test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a command that runs the program with these arguments.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args);
    command
}

/// Runs the program to its end.
pub fn bimetal(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Runs the program, and returns its standard output. The program must exit with status 0 and print
/// nothing on standard error.
pub fn stdout_of(args: &[&str]) -> String {
    let output = bimetal(args);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{args:?}\n{out}\n{err}");
    assert_eq!(err, "", "{args:?}");
    out
}

/// Asserts that the program exits with status `status` and prints one line that contains all of
/// `words` on standard error. A list of ranges can follow the line.
pub fn assert_refused(args: &[&str], status: i32, words: &[&str]) {
    let output = bimetal(args);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}\n{out}\n{err}");
    assert_eq!(out, "", "a refusal prints nothing on standard output");
    let mut list = err.lines().skip(1);
    let is_item = |line: &str| line.starts_with("  ") && line.contains('+');
    assert!(
        err.starts_with(&format!("{}: ", name())) && err.ends_with('\n') && list.all(is_item),
        "a refusal is one line and a list: {err:?}"
    );
    for word in words {
        assert!(err.contains(word), "{word:?} is not in {err:?}");
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Returns a path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}
