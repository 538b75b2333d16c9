//! Small data structures that several crates share.
//!
//! | type | use |
//! | --- | --- |
//! | [`Slab`] | values with stable indices, whose [`Key`]s go stale when the value is removed |
//! | [`crc32c()`] | the checksum of every format |
//! | [`TokenBucket`] | a rate limit with a burst, driven by the caller's clock |
//! | [`Random`] | the generator to take by default: tests, simulation, anything with a seed |
//! | [`SplitMix64`], [`XorShift64`], [`XorShift64Star`] | generators with one word of state |
//!
//! No type here reads a clock, locks or does I/O, and none holds `unsafe` code. No generator here
//! is fit for secrets.
//!
//! Two relatives stay where they are used, because their behaviour differs on purpose. The table of
//! descriptors of the POSIX library is read without locks by all threads of a process. The hash
//! tables of the network engine and of the store have probe sequences of their own.
//!
//! ```
//! use sietch_structures::{Random, Slab, TokenBucket};
//!
//! let mut connections = Slab::new();
//! let first = connections.insert("first");
//! connections.remove(first);
//! let second = connections.insert("second"); // The same index, and another generation.
//! assert_eq!((connections.get(first), connections.get(second)), (None, Some(&"second")));
//!
//! let mut limit = TokenBucket::new(1000, 10); // 1,000 tokens a second, 10 at once.
//! assert_eq!(limit.take(10, 0), Ok(()));
//! assert_eq!(limit.take(1, 0), Err(1_000_000)); // The next token is there after 1 ms.
//!
//! let (mut one, mut other) = (Random::new(7), Random::new(7));
//! assert_eq!(one.below(100), other.below(100));
//! ```

#![forbid(unsafe_code)]

mod crc32c;
mod random;
mod slab;
mod token_bucket;

pub use crc32c::{Crc32c, crc32c, crc32c_from};
pub use random::{Random, SplitMix64, XorShift64, XorShift64Star};
pub use slab::{Key, Slab};
pub use token_bucket::TokenBucket;
