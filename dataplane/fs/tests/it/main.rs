//! The file system's parts from outside, one module a subject. One program, because each further
//! one links the whole workspace again. `cargo test -p sietch-fs --test it MODULE` runs one module.

mod coalescing;
mod crash;
mod faults;
mod fragments;
mod full;
mod hostile;
mod log;
mod mover;
mod pool;
mod programs;
mod quotas;
mod rules;
mod setup;
mod shared;
mod steps;
mod tries;
