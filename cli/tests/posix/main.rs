//! Unmodified programs of Debian under `sietch run`: each serves a real load to its end, and the
//! received data is compared with the sent data.
//!
//! 1. A test has a network namespace, a folder and a socket service of its own ([`testbed`]). Its
//!    servers and its clients run on the kernel's sockets or under Sietch: both, either, or
//!    neither; the last shows that the test itself is right.
//! 2. The kernel counts the bytes that cross its loopback. With both ends under Sietch there must
//!    be next to none, else all of them: a program that silently fell back is a failure, even if
//!    its results are right.
//! 3. Every process of a test is ended after [`testbed::PATIENCE`] at the latest, and with it
//!    everything in its namespace. A hanging program is shown with the current system call of each
//!    of its threads.
//! 4. In CI each program runs a short load, mostly with both ends under Sietch. `cargo xtask soak
//!    posix` runs every combination repeatedly, with loads ten times as long.
//! 5. Without root for the namespace, or without the program, a test prints SKIPPED.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod bypass;
mod connection_churn;
mod dovecot;
mod gloo;
mod hostile;
mod iperf;
mod java;
mod kernel_comparison;
mod memcached;
mod nginx;
mod node;
mod php;
mod postgres;
mod process;
mod python;
mod redis;
mod renumbered;
mod restart;
mod rsync;
mod short_lived;
mod ssh;
mod streams;
mod stress;
mod testbed;
mod zookeeper;

/// The four combinations of one load as tests of the module; those named run in CI.
macro_rules! combinations {
    ($load:path, needs $programs:expr, in CI $quick:expr) => {
        #[test]
        fn kernel_only() {
            crate::testbed::run(module_path!(), &$programs, crate::testbed::Sides::KERNEL, &$quick, $load);
        }

        #[test]
        fn both_ends() {
            crate::testbed::run(module_path!(), &$programs, crate::testbed::Sides::BOTH, &$quick, $load);
        }

        #[test]
        fn server_only() {
            crate::testbed::run(module_path!(), &$programs, crate::testbed::Sides::SERVER, &$quick, $load);
        }

        #[test]
        fn client_only() {
            crate::testbed::run(module_path!(), &$programs, crate::testbed::Sides::CLIENT, &$quick, $load);
        }
    };
}
pub(crate) use combinations;
