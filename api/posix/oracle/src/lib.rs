//! The socket-semantics suite: what programs of socket calls do under the kernel is what they must
//! do under the shim.
//!
//! 1. A [`program::Program`] is a list of steps. Each names an *actor* (the main thread, two more
//!    threads, two forked children) and one [`operation::Operation`]. As text a step is one line,
//!    so that a program which once differed is kept as a file.
//! 2. The *executor* (`sietch-socket-calls`, module [`execute`]) reads programs and carries them
//!    out with plain libc calls. It prints one line a step: what the call returned, the errno's
//!    name, a hash of the data, addresses, events.
//! 3. [`generate`] makes programs from a seed. Only steps whose outcome on the kernel is determined
//!    are generated.
//! 4. [`session`] runs the executor, [`compare`] compares two runs line by line (ports and
//!    descriptors under names of their own), leaving out the differences of [`differences`], each
//!    with its reason.
//! 5. [`minimise`] drops steps from a program that differs as long as it still differs.
//!
//! Two executors without the shim must agree always: that is the test of the suite itself.

pub mod compare;
pub mod differences;
pub mod execute;
pub mod generate;
pub mod minimise;
pub mod operation;
pub mod program;
pub mod session;
pub mod suite;
