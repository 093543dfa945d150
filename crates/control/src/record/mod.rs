//! Recording of the requests on a device of a running server: both ends of the verb `record` of the
//! control socket (docs/control.md).
//!
//! The server only passes on the requests that the device's tap has recorded, in batches that are
//! small enough not to delay other requests. The client hands each record to its caller, which
//! writes the file. If the server exits, the client must still return what it has received. If the
//! client dies, the recording on the server must end.

mod client;
mod server;
mod text;

pub use client::{RecordError, Recorded, Recording};
pub use server::answer;
