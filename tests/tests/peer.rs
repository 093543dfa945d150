//! The checks of the other tests, run against nbdkit. A correct server must pass them, and a server
//! that forgets every write must fail. If a test of the server under test fails while the tests in
//! this file pass, the bug is in the server.

use bimetal_tests::checks;
use bimetal_tests::mount::source_tree;
use bimetal_tests::nbd::{Request, Wire, cmd};
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::Peer;
use bimetal_tests::volume::MIB;

#[test]
fn a_right_server_passes() {
    let peer = Peer::nbdkit(&["memory", "512M"]);
    let uri = peer.uri("");
    checks::assert_complete_export(&uri, 512 * MIB);
    checks::assert_map_covers(&uri, 512 * MIB);
    checks::qemu_io_commands(&uri);
    let verified = checks::fio_verify(&uri, 8 * MIB);
    assert_eq!(verified.status, Some(0), "{verified}");
    let dir = Scratch::new("peer-image");
    let image = checks::image_of_tree(&dir, 256 * MIB, &source_tree(&dir));
    checks::nbdcopy_there_and_back(&uri, &dir, &image);
    checks::qemu_img_convert_and_compare(&uri, &dir, &image);
}

/// Returns the panic message of a failed check; panics if the check passes. The check runs on a
/// separate thread, so that its panic does not make the test keep its scratch directories.
fn complaint(check: impl FnOnce() + Send) -> String {
    let failure = std::thread::scope(|scope| scope.spawn(check).join());
    let message = failure.expect_err("the check let a wrong server pass");
    *message.downcast::<String>().expect("a message")
}

#[test]
fn qemu_io_finds_a_server_that_forgets_writes() {
    let peer = Peer::nbdkit(&["null", "64M"]);
    let said = complaint(|| checks::qemu_io_commands(&peer.uri("")));
    assert!(said.contains("Pattern verification failed"), "{said}");
}

#[test]
fn fio_finds_a_server_that_forgets_writes() {
    let outcome = checks::fio_verify(&Peer::nbdkit(&["null", "64M"]).uri(""), MIB);
    assert_ne!(outcome.status, Some(0), "{outcome}");
}

#[test]
fn nbdcopy_finds_a_server_that_forgets_writes() {
    let peer = Peer::nbdkit(&["null", "256M"]);
    let dir = Scratch::new("peer-null");
    let image = checks::image_of_tree(&dir, 256 * MIB, &source_tree(&dir));
    let said = complaint(|| checks::nbdcopy_there_and_back(&peer.uri(""), &dir, &image));
    assert!(said.contains("differ"), "{said}");
}

#[test]
fn our_own_client_speaks_the_protocol() {
    let peer = Peer::nbdkit(&["memory", "16M"]);
    let (mut wire, export) = Wire::attached(&peer.socket(), "");
    assert_eq!(export.size_bytes, 16 * MIB);
    let data: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
    wire.write(4096, &data);
    wire.flush();
    assert_eq!(wire.read(4096, 8192), data);
    assert_eq!(wire.read(12288, 4096), [0; 4096]);
    let past = wire
        .run(Request::new(cmd::TRIM, 16 * MIB, 4096), &[])
        .expect("a reply");
    assert_eq!(past, 22);
    wire.request(Request::new(cmd::DISC, 0, 0)).expect("send");
    assert!(wire.drained().is_empty());
}
