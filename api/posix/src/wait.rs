//! HEADER

pub(crate) mod epoll;
pub(crate) mod memory;
pub(crate) mod output;
pub(crate) mod outsider;
pub(crate) mod poll;
pub(crate) mod scan;
pub(crate) mod select;
pub(crate) mod sliced;

#[cfg(test)]
mod tests;
