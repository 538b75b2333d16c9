//! Disk queues from outside, one module a subject. One program, because each further one links the
//! whole workspace again. `cargo test -p sietch-disk --test it MODULE` runs one module.

mod support;

mod areas;
mod conformance;
mod faults;
