//! Programs of operations: made at random or exhaustively, run on any file system, compared.
//!
//! 1. An [`operation::Operation`] names inodes and handles by *slots*, small numbers that earlier
//!    operations filled. So a program means the same on every file system, and stays a program when
//!    operations are left out.
//! 2. [`run::apply`] carries an operation out and returns its [`run::Outcome`], in which inodes
//!    have numbers in the order of their first appearance.
//! 3. [`tree::Tree`] is all that the names of a file system lead to. Two trees are equal if a
//!    program cannot tell the file systems apart by reading.
//! 4. [`generate::generate`] makes random programs from a seed. It runs them in a
//!    [`crate::Model`] on the way, to choose operations that mostly succeed.
//! 5. [`exhaustive`] makes all short programs over a small alphabet.
//! 6. [`compare::compare`] runs a program on two file systems; [`minimise::minimise`] shortens a
//!    program that fails.

pub mod compare;
pub mod exhaustive;
pub mod generate;
pub mod minimise;
pub mod operation;
pub mod run;
pub mod tree;
