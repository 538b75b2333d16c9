//! The daemon from outside, one module a subject. One program, because each further one links the
//! whole workspace again. `cargo test -p sietch-daemon --test it MODULE` runs one module.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod scene;

mod areas;
mod brokered;
mod control;
mod full;
mod full_volume;
mod growing_log;
mod hostile;
mod hostile_areas;
mod inquiry;
mod kernel;
mod links;
mod names;
mod ports;
mod reload;
