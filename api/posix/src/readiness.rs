//! HEADER

pub(crate) mod arm;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod hooks;
pub(crate) mod inherit;
pub(crate) mod limits;
pub(crate) mod nested;
pub(crate) mod peek;
pub(crate) mod polling;
pub(crate) mod replace;
pub(crate) mod set;
pub(crate) mod settle;
pub(crate) mod tag;
