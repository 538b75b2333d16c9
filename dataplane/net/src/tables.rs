//! What tables are made of: index types, deadlines, and a bounded table whose oldest entry can be
//! found.

pub(crate) mod aged;
pub(crate) mod index;
pub(crate) mod timers;
pub(crate) mod timing_wheel;
