//! Logs, queues and maps from outside, one module a subject. One program, because each further one
//! links the whole workspace again. `cargo test -p sietch-persist --test it MODULE` runs one
//! module.

mod disk;
mod history;

mod crash;
mod faults;
mod files;
mod forged;
mod golden;
mod kill;
mod properties;
mod reading;
mod resize;
mod stored;
mod structures;
