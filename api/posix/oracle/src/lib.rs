//! The semantics suite: random programs of socket calls, or of calls on files, must have the same
//! results under the shim as under the kernel.
//!
//! 1. A [`program::Program`] is a list of steps. Each names an *actor* (the main thread, two more
//!    threads, two forked children) and one [`operation::Operation`]. As text a step is one line,
//!    so that a program which once differed is kept as a file.
//! 2. The *executor* (`sietch-socket-calls`, module [`execute`]) reads programs and carries them
//!    out with plain libc calls. It prints one line a step: the return value, the errno's name, a
//!    hash of the data, addresses, events.
//! 3. [`generate`] makes programs of socket calls from a seed, [`generate::files`] those of calls
//!    on files. Only steps whose outcome on the kernel is determined are generated.
//! 4. [`session`] runs the executor. `compare` compares two runs line by line, with ports
//!    normalised. The generator avoids the differences that `docs/posix.md` lists.
//! 5. `minimise` removes steps from a program that differs as long as the rest still differs.
//!
//! Two executors without the shim must always agree: this tests the suite itself.

mod compare;
mod content;
pub mod execute;
pub mod generate;
mod minimise;
mod operation;
pub mod program;
pub mod session;
pub mod suite;
