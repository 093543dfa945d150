//! The tests of the lab, one program: so it is built and linked once.

mod engine;
mod files;
mod loadfile;
mod replay;
mod stack;
mod steady;
