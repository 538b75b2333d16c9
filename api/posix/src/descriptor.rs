//! The descriptor table, and descriptors that the library holds for itself.

pub(crate) mod change;
pub(crate) mod copied_table;
pub(crate) mod description;
pub(crate) mod hidden;
pub(crate) mod in_flight;
pub(crate) mod kernel_calls;
pub(crate) mod room;
pub(crate) mod table;
