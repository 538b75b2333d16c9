//! HEADER

pub(crate) mod blocked;
pub(crate) mod doorbell;
pub(crate) mod edges;
pub(crate) mod flags;
pub(crate) mod foreign_bytes;
pub(crate) mod names;
pub(crate) mod option_words;
pub(crate) mod pause;
pub(crate) mod peer;
pub(crate) mod short_lived;
pub(crate) mod spin;
pub(crate) mod status;
