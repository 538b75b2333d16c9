//! The simulator: whole systems in one thread, in virtual time, from one seed.
//!
//! It implements the device seams, so what it drives is the code that runs in production:
//!
//! 1. [`link`]: joins two in-memory NIC queues by paths with bandwidth, delay, queues that mark or
//!    drop, and MTUs; they lose, repeat, reorder and damage frames, in bursts and through outages.
//! 2. [`lossy`]: does the same around a real queue, for tests against the kernel's TCP.
//! 3. [`cable`]: the paths of [`link`] around a real queue, in real time.
//! 4. [`disk`]: a disk with a volatile cache that completes in any order, tears, forgets what was
//!    not flushed, lies, fails, and lets writes of a dead process land late.
//! 5. [`memory`]: persistent memory that loses, word by word, what no fence followed.
//! 6. [`odometer`]: every outcome of a crash, where they are few enough.
//! 7. [`segment`] and [`referee`]: TCP read and written apart from the engine, and one who watches
//!    the wire for broken rules.
//! 8. [`seeds`]: runs a test over many seeds. A failing seed prints itself, and the same seed fails
//!    again.
//!
//! It is used by tests alone. Nothing here reads a clock, or a source of randomness other than its
//! seed.
//!
//! How to use it: `cargo test -p sietch-sim` runs the seeds that failed once and then a series, the
//! same each time, as far as a time budget allows. `SIETCH_SIM_SEED=n` runs that seed alone;
//! `SIETCH_SIM_SEEDS=n` and `SIETCH_SIM_SECONDS=s` set how many and how long; `SIETCH_SIM_FRESH=1`
//! draws seeds that nobody has tried. `cargo xtask soak` does so, for hours.
#![forbid(unsafe_code)]

pub mod cable;
pub mod disk;
pub mod link;
pub mod lossy;
pub mod memory;
pub mod odometer;
pub mod referee;
pub mod seeds;
pub mod segment;

pub use cable::Cable;
pub use disk::{Crash, Media, SimDisk};
pub use link::{Direction, Link, LinkConfig};
pub use lossy::Lossy;
pub use memory::Memory;
pub use odometer::Odometer;
pub use referee::Referee;
pub use sietch_structures::Random;
