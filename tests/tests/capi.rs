//! The C library as a user gets it: installed, found by pkg-config, compiled against, and run.

use bimetal_tests::client::Client;
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::target_dir;
use bimetal_tests::volume::Volume;
use std::path::{Path, PathBuf};

const MEMORY_BY_BRP: &str = "[device.vol]\ntype = \"memory\"\nsize = \"8MiB\"\n\
    [export.vol]\ndevice = \"vol\"\nprotocol = \"brp\"\nlisten = \"unix:vol.sock\"\n";

/// Installs the C library under `prefix`. Uses the built libraries in the folder that
/// `BIMETAL_CAPI` names (the static and the shared one, built with the rest of the tree), or builds
/// them if the variable is not set.
fn install(prefix: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the root of the workspace");
    let built = std::env::var("BIMETAL_CAPI").unwrap_or_default();
    Client::new("env")
        .arg("CAPI_PROFILE=dev")
        .arg(format!("CAPI_BUILT={built}"))
        .arg(format!("CARGO_TARGET_DIR={}", target_dir().display()))
        .arg(root.join("scripts/install-capi.sh"))
        .arg(prefix)
        .within_s(1200)
        .that_builds()
        .ok();
}

/// Compiles `capi.c`. The compiler flags are those that pkg-config reports for the library under
/// `prefix`.
fn compile(prefix: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi.c");
    let program = prefix.join("capi");
    let flags = Client::new("env")
        .arg(format!(
            "PKG_CONFIG_PATH={}",
            prefix.join("lib/pkgconfig").display()
        ))
        .args(["pkg-config", "--cflags", "--libs", "bimetal_brp"])
        .ok();
    Client::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .arg("-o")
        .arg(&program)
        .arg(source)
        .args(flags.stdout.split_whitespace())
        .ok();
    program
}

#[test]
fn a_c_program_uses_a_served_volume() {
    let volume = Volume::from_toml("capi", MEMORY_BY_BRP);
    let server = volume.serve();
    let prefix = Scratch::new("capi-prefix");
    install(prefix.path());
    let program = compile(prefix.path());
    let uri = |export: &str| {
        let socket = volume.socket();
        format!("brp+unix://{}?export={export}", socket.display())
    };
    let outcome = Client::new("env")
        .arg(format!(
            "LD_LIBRARY_PATH={}",
            prefix.path().join("lib").display()
        ))
        .arg(&program)
        .args([uri("vol"), uri("none")])
        .ok();
    assert_eq!(outcome.stdout, "all as it should be\n", "{outcome}");
    server.stop();
}
