//! The native API from outside, one module a subject. One program, because each further one links
//! the whole workspace again. `cargo test -p sietch --test it MODULE` runs one module.
#![allow(clippy::duplicate_mod, reason = "examples stand on their own, and some share a file")]
#![allow(clippy::unwrap_used, reason = "a test that finds nothing has failed")]

mod examples;
mod interop;
mod one_loop;
