//! Several shards in one thread answer as one shard does, whatever the order in which their
//! messages arrive.
//!
//! 1. [`harness`] holds the shards, the queues between them, and the log. A seed decides what
//!    happens next: a message arrives, a shard does an iteration, records become durable, an
//!    exclusive section runs.
//! 2. `programs` runs the random programs of `sietch_kv_programs` against one shard and several.
//! 3. `concurrent` has several clients at a time, and checks what no order of their commands may
//!    break.
//! 4. `directed` has a test for each rule of several shards, `sections` for each rule of exclusive
//!    sections.

mod concurrent;
mod directed;
mod harness;
mod programs;
mod sections;
