//! Unmodified programs over Sietch: what stands behind the calls of the C library's socket
//! interface.
//!
//! 1. `sietch run -- CMD` preloads `libsietch_posix.so`
//!    ([`api/posix/preload`](../preload/src/lib.rs)), which exports the calls and forwards each to
//!    a function of this crate. To link this crate alone interposes nothing.
//! 2. Every descriptor is a kernel's descriptor. Those that are Sietch's are *placeholders*: a Unix
//!    socket whose other end the peer or the service holds. So descriptor limits, dup, fork,
//!    SCM_RIGHTS and close are the kernel's own.
//! 3. [`table`] says in one load whether a descriptor is ours. If not, the call goes to the C
//!    library.
//! 4. What sleeps sleeps in the kernel, on placeholders; what is awake moves bytes through the
//!    memory that two ends share (`sietch_ring::stream`).
//! 5. No call allocates from the heap or holds a lock across a fork, and each may be called from a
//!    signal handler.
//!
//! `docs/posix.md` lists what is supported, and what is not with the errno that it gives.

pub mod accept;
pub mod action;
pub mod adopt;
pub mod apart;
pub mod borrowed;
pub mod build;
pub mod bypass;
pub mod confined;
pub mod context;
pub mod data;
pub mod descriptor;
pub mod doorbell;
pub mod end;
pub mod exec;
pub mod faults;
pub mod file;
pub mod history;
pub mod jump;
pub mod load;
pub mod local;
pub mod mapped;
pub mod message;
pub mod options;
pub mod options_of;
pub mod process;
pub mod publish;
pub mod raw;
pub mod real;
pub mod receive;
pub mod renewal;
pub mod reservation;
pub mod room;
pub mod scarce;
pub mod send;
pub mod service;
pub mod sleep;
pub mod socket;
pub mod stdio;
pub mod sys;
pub mod table;
pub mod wait;
