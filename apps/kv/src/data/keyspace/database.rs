//! One numbered database: an index of entries, and the expiries in order.

use std::collections::BTreeMap;

use super::entry::{Entry, NEVER, Weight};
use crate::data::index::Index;

/// One numbered database.
pub(crate) struct Database {
    pub(super) index: Index<Entry>,
    pub(super) expires: Expires,
    /// The bytes that its entries take.
    pub(super) weight: Weight,
}

/// Keys by (deadline, ticket).
pub(super) type Expires = BTreeMap<(u64, u32), Box<[u8]>>;

impl Database {
    pub(super) fn new(seed: u64) -> Self {
        Self { index: Index::new(seed), expires: Expires::new(), weight: Weight::default() }
    }

    /// Its entries.
    pub(crate) fn index(&self) -> &Index<Entry> {
        &self.index
    }

    /// Average bytes of an entry.
    pub(crate) fn average(&self) -> usize {
        self.weight.memory / self.index.len().max(1)
    }

    /// Keys with an expiry.
    pub(crate) fn volatile_count(&self) -> usize {
        self.expires.len()
    }

    pub(super) fn earliest(&self) -> u64 {
        self.expires.first_key_value().map_or(NEVER, |(&(deadline, _), _)| deadline)
    }
}
