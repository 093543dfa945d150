//! The tests of the simulators and the tester, one program: so it is built and linked once.

mod cache;
mod index_swarm;
mod published_tables;
mod regressions;
mod swarm;
