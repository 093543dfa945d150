//! Policies of the data path as state machines without I/O.
