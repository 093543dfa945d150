//! The block device contract.
