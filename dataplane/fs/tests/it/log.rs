//! Tests of the operation log.

mod changes;
mod crash;
mod golden;
mod hostile;
mod mirror;
mod properties;
mod space;
