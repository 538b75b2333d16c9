//! The filters against an oracle in plain Rust, under an interpreter and under the kernel, and over
//! real veths.

mod frames;
mod interpreted;
mod kernel;
mod live;
mod machine;
mod oracle;
mod plain;
