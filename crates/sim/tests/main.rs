//! The tests of the simulators and the testers, as one program that is built and linked only once.

mod cache;
mod index_swarm;
mod published_tables;
mod regressions;
mod swarm;
