//! Tests of the lab as one program, so that they are built and linked once.

mod engine;
mod files;
mod loadfile;
mod replay;
mod stack;
mod steady;
