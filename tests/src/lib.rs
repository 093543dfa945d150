//! Support for the black-box tests: what stands between a test and the programs it drives.
//!
//! The tests under `tests/tests/` treat the server as a stranger would: they start the built
//! binary, speak to it through unmodified clients (libnbd's tools, qemu's, fio, the kernel's
//! file systems) or through bytes put together by hand, and look at files and at `/proc`. So
//! nothing here may depend on a crate of this workspace: a mistake in our codec must not be able
//! to hide behind the same mistake in the test.
//!
//! Two rules hold for everything here. Nothing waits for a fixed time: a wait names a condition
//! and a deadline, and missing the deadline is a failure that prints what was seen. Nothing is
//! skipped: a tool or a right that is missing fails the test and names the script that installs
//! it.

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
