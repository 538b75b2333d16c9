//! The cores of a store with several shards: what they tell each other, and what each does with it.
//!
//! 1. Each core is a thread with a reactor. Core 0, the *coordinator*, writes the one log; the
//!    others are *members*. Both have a shard, and serve clients.
//! 2. Cores share nothing. They exchange messages by value ([`message`]), and messages from one
//!    core to another arrive in order ([`links`]). All rules below rest on that order.

pub(super) mod channels;
pub(super) mod links;
pub(super) mod message;
