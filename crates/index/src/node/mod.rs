//! One node of the tree, without I/O.
