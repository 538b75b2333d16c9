//! The name of a key beyond its database.

/// A key of a numbered database.
pub(crate) type DatabaseKey = (usize, Box<[u8]>);
