//! The tests of the lab, as one program that is built and linked only once.

mod engine;
mod files;
mod loadfile;
mod replay;
mod stack;
mod steady;
