//! An ordered, durable index for flash: keys and values of variable length, read snapshots, atomic
//! transactions, and a durability for each commit.
//!
//! Source: the CHC-Tree (Byun 2011), a B+-tree with hot and cold clusters of nodes and packed cold
//! nodes. What the paper leaves open (a log, recovery, concurrency, space) is in docs/index.md, the
//! bytes in docs/format/.
//!
//! The core is a state machine that is called: it starts no thread, reads no clock, and reaches its
//! device through one seam. It must never give an answer that it has not checked.

pub mod node;
