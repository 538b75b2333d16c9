//! Programs of socket calls under the kernel and under the shim.

mod named;
mod place;
mod random;
