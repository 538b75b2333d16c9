//! Mounts the oracle's file system and uses it as programs do. Needs root and `/dev/fuse`.

mod beside;
mod coherence;
mod content;
mod mounted;
mod names;
mod permissions;
mod programs;
mod recovery;
mod shared_page;
mod waits;
