//! The intercepted calls of the C library, by family.
//!
//! Each call looks up its descriptor in the table. A descriptor that is not ours goes to the C
//! library's own function (`system::originals`).

pub mod data;
pub mod descriptor;
pub mod files;
pub mod options;
pub mod process;
pub mod signal;
pub mod socket;
pub mod syscall;
pub mod wait;
