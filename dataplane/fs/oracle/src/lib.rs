//! The oracle of the file system: what each operation must return, for tests alone.
//!
//! 1. [`Model`] implements [`sietch_fs::FileSystem`] in memory, in the simplest way that has the
//!    semantics and the errno of Linux. It shares no code with the real implementation, apart from
//!    the permission checks of [`sietch_fs::access`] and the hash of names.
//! 2. [`program`] has programs of operations, random and exhaustive, which run on two file systems
//!    and must have the same results and leave the same tree.
//! 3. [`checks`] has rules that random programs do not reach: limits, for instance.
//!
//! What it must never do: decide anything as the implementation under test does, only because that
//! one does it. Where a man page leaves a question open, the kernel's answer counts.
#![forbid(unsafe_code)]

pub mod checks;
mod model;
pub mod program;

pub use model::Model;
