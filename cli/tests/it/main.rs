//! The `sietch` command from outside, one module a subject. One program, because each further one
//! links the whole workspace again. `cargo test -p sietch-cli --test it MODULE` runs one module.
//! The programs `acceptance` and `posix` are separate. The first measures, and needs an otherwise
//! idle machine; the second takes minutes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod command_line;
mod file_system;
mod file_system_media;
mod mounted_programs;
mod quotas;
mod run;
mod sockets;
mod up;
