//! Runs a program on two file systems and finds where they differ.

use std::fmt;

use sietch_fs::FileSystem;

use super::operation::{Operation, text};
use super::run::{Outcome, State, apply};
use super::tree::{Tree, tree};

/// Where two file systems differ.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The operation after which they differ.
    pub step: usize,
    /// What the first and the second returned, or have.
    pub found: String,
    /// The program, up to that operation.
    pub program: Vec<Operation>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}step {}: {}", text(&self.program), self.step, self.found)
    }
}

/// Runs a program on both, compares each outcome and the trees after each operation that changed
/// something. Both begin empty and equal. Afterwards nothing of the program is open.
///
/// # Errors
/// They differ, or one cannot be read.
pub fn compare(
    one: &mut dyn FileSystem,
    two: &mut dyn FileSystem,
    program: &[Operation],
) -> Result<(), Difference> {
    let (mut first, mut second) = (State::new(), State::new());
    let result = program.iter().enumerate().try_for_each(|(number, operation)| {
        let found = step(one, two, (&mut first, &mut second), operation);
        let program = program[..=number].to_vec();
        found.map_or(Ok(()), |found| Err(Difference { step: number, found, program }))
    });
    first.release_all(one);
    second.release_all(two);
    result
}

/// Runs one operation on both; how they differ afterwards.
pub fn step(
    one: &mut dyn FileSystem,
    two: &mut dyn FileSystem,
    states: (&mut State, &mut State),
    operation: &Operation,
) -> Option<String> {
    let outcomes = (apply(one, states.0, operation), apply(two, states.1, operation));
    difference(one, two, operation, &outcomes)
}

fn difference(
    one: &mut dyn FileSystem,
    two: &mut dyn FileSystem,
    operation: &Operation,
    outcomes: &(Outcome, Outcome),
) -> Option<String> {
    if outcomes.0 != outcomes.1 || matches!(outcomes.0, Outcome::Broken(_)) {
        return Some(format!("\n  {:?}\n  {:?}", outcomes.0, outcomes.1));
    }
    if !changes(operation) || outcomes.0 == Outcome::Skipped {
        return None;
    }
    match (tree(one), tree(two)) {
        (Ok(one), Ok(two)) => one.difference(&two),
        (one, two) => Some(format!("a tree cannot be read: {:?}, {:?}", one.err(), two.err())),
    }
}

/// Whether an operation may change what names lead to.
pub fn changes(operation: &Operation) -> bool {
    match operation {
        Operation::SetAttributes { .. }
        | Operation::Create { .. }
        | Operation::CreateUnnamed { .. }
        | Operation::Link { .. }
        | Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::Rename { .. }
        | Operation::Write { .. }
        | Operation::Allocate { .. }
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. } => true,
        Operation::Open { mode, .. } => mode.truncate,
        _ => false,
    }
}

/// The trees that a file system has before the program and after each of its operations: what a
/// crash may leave. `Err` has the number of an operation after which the tree could not be read.
///
/// # Errors
/// The file system breaks its own rules.
pub fn prefixes(file_system: &mut dyn FileSystem, program: &[Operation]) -> Result<Vec<Tree>, usize> {
    let mut state = State::new();
    let mut trees = vec![tree(file_system).map_err(|_| 0_usize)?];
    for (step, operation) in program.iter().enumerate() {
        apply(file_system, &mut state, operation);
        trees.push(tree(file_system).map_err(|_| step)?);
    }
    state.release_all(file_system);
    Ok(trees)
}
