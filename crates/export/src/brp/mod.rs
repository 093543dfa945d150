//! The target side of BRP, which implements `docs/brp.md` section by section.

mod connection;
mod greeting;
mod outgoing;
mod target;

pub(crate) use connection::Transmission;
pub(crate) use greeting::greet;
pub(crate) use target::Target;
