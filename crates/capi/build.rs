//! Sets the soname of the shared library to the version of its interface, so that a program built
//! for one version of the library is never run with another version.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbimetal_brp.so.1");
}
