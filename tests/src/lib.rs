//! Support for the black-box tests: the code between a test and the programs that it drives.
//!
//! The tests under `tests/tests/` know only the public interfaces of the server: they start the
//! built binary, speak to it through unmodified clients (libnbd's tools, qemu's, fio, the kernel's
//! file systems) or through hand-made bytes, and inspect files and `/proc`. So this crate must not
//! depend on a crate of this workspace: a bug in our codec must not be hidden by the same bug in
//! the test.
//!
//! Two rules hold for the whole crate. No code waits for a fixed time: a wait names a condition and
//! a deadline, and a missed deadline is a failure that prints the observed state. No test is
//! skipped: a missing tool or permission fails the test and names the script that installs the
//! tool.

pub mod cgroup;
pub mod checks;
pub mod client;
pub mod crash;
pub mod deadline;
pub mod mount;
pub mod mounted;
pub mod nbd;
pub mod procfs;
pub mod random;
pub mod rust_text;
pub mod scratch;
pub mod server;
pub mod tidy;
pub mod volatile_disk;
pub mod volume;
