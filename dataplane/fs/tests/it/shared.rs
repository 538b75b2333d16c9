//! Several clients on one tree, each with a log of its own.

mod clients;
mod crash;
mod dual;
mod hostile;
mod programs;
mod questions;
mod quotas;
mod room;
mod turns;
mod urgent;
mod world;
