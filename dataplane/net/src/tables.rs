//! What tables are made of: index types, deadlines, and a bounded table that knows its oldest
//! entry.

pub(crate) mod aged;
pub(crate) mod index;
pub(crate) mod timers;
pub(crate) mod timing_wheel;
