//! Volumes from outside, one module a subject. One program, because each further one links the
//! whole workspace again. `cargo test -p sietch-volume --test it MODULE` runs one module.

mod crash;
mod format;
