//! Migration between media: content, crashes, faults, watermarks, pins and pace.

mod crash;
mod driver;
mod faults;
mod files;
mod leaving;
mod programs;
mod rules;
