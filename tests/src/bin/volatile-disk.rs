//! `volatile-disk FILE SOCKET`: a disk with a volatile cache, as an NBD server for the crash tests.
//!
//! The disk is a separate process, so that it survives a crash of other parts of a test, and so
//! that the benchmarks can use it. It must never outlive its parent: it exits at the end of its
//! standard input.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, socket] = words.as_slice() else {
        eprintln!("usage: volatile-disk FILE SOCKET");
        return ExitCode::from(2);
    };
    match bimetal_tests::volatile_disk::run(Path::new(file), Path::new(socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("volatile-disk {file}: {error}");
            ExitCode::FAILURE
        }
    }
}
