//! `volatile-disk FILE SOCKET`: a disk with a volatile cache, as an NBD server for the crash tests.
//!
//! A process of its own, so that no crash of a test's other parts takes it along, and so that the
//! benchmarks can use it. It must never outlive whoever started it: it ends with its standard
//! input.

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
