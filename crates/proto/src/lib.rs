//! The NBD wire protocol without I/O.
