//! The engine from outside, one module a subject. One program, because each further one links the
//! whole workspace again. `cargo test -p sietch-net --test it MODULE` runs one module.

mod harness;

mod against_smoltcp;
mod announce;
mod attacks;
mod conversation;
mod fragments;
mod fuzz;
mod groups;
mod hostile;
mod ipv6;
mod kernel;
mod loss;
mod medium;
mod options;
mod pacing;
mod path_mtu;
mod protocol;
mod recovery;
mod sack;
mod sharing;
mod throughput;
mod zero_copy;
