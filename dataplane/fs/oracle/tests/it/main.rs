//! The model against the file systems of the kernel.

mod coverage;
mod differential;
mod gate;
mod kernel;
mod mounts;
mod rules;
