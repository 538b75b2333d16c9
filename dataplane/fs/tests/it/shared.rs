//! Several clients on one tree, each with a log of its own.

mod crash;
mod dual;
mod programs;
mod world;
