//! The name of an area.

/// The control plane's name for an area that is served: the number of its grant.
pub type AreaId = u64;
