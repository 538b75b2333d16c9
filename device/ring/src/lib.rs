//! Placeholder header, replaced by the crate's own.
