//! The target side of BRP (the block protocol of this project), which provides volumes to
//! initiators. It implements `docs/brp.md` section by section.

mod connection;
mod greeting;
mod outgoing;
mod target;

pub(crate) use connection::Transmission;
pub(crate) use greeting::greet;
pub(crate) use target::Target;
