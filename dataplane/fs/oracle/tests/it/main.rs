//! The model against the file systems of the kernel.

mod differential;
mod kernel;
mod mounts;
