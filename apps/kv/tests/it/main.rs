//! The store's engine from outside, one module a subject. One program, because each further one
//! links the whole workspace again. `cargo test -p sietch-kv --test it MODULE` runs one module.

mod cluster;
mod compatibility;
mod encodings;
mod golden;
mod key_events;
mod memory;
mod observation;
mod subject;
