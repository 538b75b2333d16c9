//! Programs of socket calls under the kernel and under the shim, one module a subject. One program,
//! because each further one links the whole workspace again. `cargo test -p sietch-posix-oracle
//! --test it MODULE` runs one module.

mod kernel;
mod named;
mod random;
mod settings;
