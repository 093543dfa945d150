//! Builds the index with the locks of Shuttle (`crates/index/src/sync.rs`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(interleaved)");
    println!("cargo::rustc-cfg=interleaved");
}
