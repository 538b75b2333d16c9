//! Tests of the operation log.

mod changes;
mod crash;
mod mirror;
mod properties;
