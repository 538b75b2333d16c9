//! The simulator: whole systems in one thread, in virtual time, from one seed.
//!
//! It implements the device seams, so it drives the code that runs in production:
//!
//! 1. [`link`]: joins two in-memory NIC queues by paths with bandwidth, delay, queues that mark or
//!    drop, and MTUs. The paths lose, repeat, reorder and damage frames, in bursts and through
//!    outages.
//! 2. [`lossy`]: does the same around a real queue, for tests against the kernel's TCP.
//! 3. [`cable`]: the paths of [`link`] around a real queue, in real time.
//! 4. [`disk`]: a disk with a volatile cache. It completes in any order, tears writes, loses
//!    unflushed ones, reports false success, fails, and applies writes of a dead process late.
//! 5. [`memory`]: persistent memory that loses, word by word, every store that no fence followed.
//! 6. [`chooser`]: enumerates every outcome of a crash, where they are few enough.
//! 7. [`segment`] and [`invariants`]: a TCP codec independent of the engine, and a checker of TCP's
//!    invariants on the wire.
//! 8. [`checksums`]: fixes those of a frame that a test has changed.
//! 9. [`seeds`]: runs a test over many seeds. A failing seed prints itself, and the same seed fails
//!    again.
//!
//! Only tests use it. It reads no clock, and no source of randomness other than the seed.
//!
//! How to use it: `cargo test -p sietch-sim` runs the seeds that failed once. Then it runs a
//! series, the same each time, as far as a time budget allows. `SIETCH_SIM_SEED=n` runs that seed
//! alone. `SIETCH_SIM_SEEDS=n` and `SIETCH_SIM_SECONDS=s` set the number and the time.
//! `SIETCH_SIM_FRESH=1` draws fresh seeds; `cargo xtask soak` does so, for hours.
#![forbid(unsafe_code)]

pub mod cable;
pub mod checksums;
pub mod chooser;
pub mod disk;
pub mod invariants;
pub mod link;
pub mod lossy;
pub mod memory;
pub mod seeds;
pub mod segment;

pub use cable::Cable;
pub use chooser::ExhaustiveChooser;
pub use disk::{Crash, Media, SimDisk};
pub use invariants::InvariantChecker;
pub use link::{Direction, Link, LinkConfig};
pub use lossy::Lossy;
pub use memory::Memory;
pub use sietch_structures::Random;
